"""NeurTN: a "neural powered Tucker network" (Chen & Li, IJCAI 2020).

none     B_1(i_1,:) ⊕ ⋯ ⊕ B_N(i_N,:)                                                  N·K features
product  (B_1(i_1,:) ⊙ ⋯ ⊙ B_N(i_N,:)) ⊕ B_1(i_1,:) ⊕ ⋯ ⊕ B_N(i_N,:)              (N + 1)·K features
outer    B_1(i_1,:) ∘ ⋯ ∘ B_N(i_N,:)                                                 K^N features
MLP      features → N²·K → K → 1, ReLU between the layers, linear output
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.kernels.cp import multiply_modes
from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.avocado import hidden_layers
from jointensor.models.nonlinear.base import Nonlinear, nonlinear_parts
from jointensor.registry import nearest

MAX_FEATURES = 200_000
"""Largest K^N that is built: a batch of 4,096 entries then takes 3 GB."""


@nonlinear_parts.register("neurtn")
class NeurTN(Nonlinear):
    """The rows, or interactions of them as Tucker's core weighs them, through an MLP.

    Only the abstract of the original is public, and no code: its details are not known, and nothing here
    claims to be them. JULIA's paper gives the layer widths above, with N·K inputs: the rows as they are, which
    makes it AVOCADO's network at another rank, 10. It also calls it a Tucker network, over-parameterised; the
    outer product fits that description.

    Parameters
    ----------
    n_modes, width
        N and K.
    interaction
        ``"none"``: the rows side by side, N·K numbers as in the paper.
        ``"product"``: the K products over all modes, beside the rows.
        ``"outer"``: all K^N products of one number per mode, as in Tucker's model.
    activation
        Between the layers.
    output
        Activation of the output.
    """

    total_rank: ClassVar = 10

    def __init__(
        self,
        n_modes: int,
        width: int,
        *,
        interaction: Literal["none", "product", "outer"] = "none",
        activation: str = "relu",
        output: str = "identity",
    ) -> None:
        super().__init__(n_modes, width, interaction=interaction, activation=activation, output=output)
        if interaction not in FEATURES:
            raise ConfigError(f"neurtn: interaction '{interaction}'; {nearest(interaction, list(FEATURES))}")
        features = {"none": n_modes * width, "product": (n_modes + 1) * width, "outer": width**n_modes}[interaction]
        if features > MAX_FEATURES:
            raise ConfigError(
                f"neurtn of width {width} makes {features:,} products of {n_modes} modes, more than {MAX_FEATURES:,}; "
                f"give at most width {int((MAX_FEATURES + 0.5) ** (1 / n_modes))}, or interaction=none"
            )
        if interaction == "outer":
            self.row_start = (width**-0.5, 0.1)  # rows of length one: so are their outer products
        self.mlp = hidden_layers(features, n_modes, width, activation)
        self.head = nn.Linear(width, 1)
        self.output = make_activation(output)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        features = FEATURES[self.options["interaction"]](rows)
        return self.output(self.head(self.mlp(features))).squeeze(-1)  # (batch,)


def concatenate(rows: Tensor) -> Tensor:
    """The rows side by side, ``(batch, modes, width)`` → ``(batch, modes · width)``."""
    return rows.flatten(start_dim=1)


def outer(rows: Tensor) -> Tensor:
    """Outer product over modes, ``(batch, modes, width)`` → ``(batch, width ** modes)``."""
    made = rows[:, 0]  # (batch, width)
    for n in range(1, rows.shape[1]):
        made = (made.unsqueeze(2) * rows[:, n].unsqueeze(1)).flatten(start_dim=1)  # (batch, width ** (n + 1))
    return made


def product_and_rows(rows: Tensor) -> Tensor:
    """Product over modes beside the rows, ``(batch, modes, width)`` → ``(batch, (modes + 1) · width)``."""
    return torch.cat([multiply_modes(rows), rows.flatten(start_dim=1)], dim=1)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"none": concatenate, "product": product_and_rows, "outer": outer}
"""What the MLP sees, by the interaction."""
