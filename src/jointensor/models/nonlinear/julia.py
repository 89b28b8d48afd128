"""The paper's own f: two flows over the rows, a gate between them, an output layer.

b̃ = σ(B_1(i_1,:) ⊙ ⋯ ⊙ B_N(i_N,:))               product flow
b̆ = MLP(B_1(i_1,:) ⊕ ⋯ ⊕ B_N(i_N,:))              concatenation flow, N·F → F² → F
b = z ⊙ b̃ + (1 − z) ⊙ b̆                           gate
f = σ(wᵀ b + ε)                                    output layer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.kernels.cp import multiply_modes
from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.base import Nonlinear, check_size, nonlinear_parts
from jointensor.registry import nearest


@nonlinear_parts.register("julia")
class Julia(Nonlinear):
    """f exactly as the paper writes it, eq. (3).

    The paper's list of layer sizes gives the MLP an input width of ``N·R``; that is a slip, because
    the concatenation flow is fed the *nonlinear* rows, which are ``N·F`` wide. Built here as
    N·F → F² → F.

    Parameters
    ----------
    n_modes, width
        N and F.
    activation
        σ of the product flow and inside the MLP; the paper's default is ReLU.
    mixed
        Activation after the MLP flow; the paper does not say. ``"relu"`` makes the flow and the output
        layer the "3-layer MLP" of the paper's text; ``"identity"`` leaves b̆ unbounded.
    output
        σ of the output layer. ``"relu"`` is the paper's: f ≥ 0.
    gate
        ``"free"``: z is any vector, as the text has it. ``"sigmoid"``: 0 < z < 1.
    hidden
        Width of the MLP's hidden layer; F² when 0.
    """

    gates: ClassVar = ("free", "sigmoid")

    def __init__(
        self,
        n_modes: int,
        width: int,
        *,
        activation: str = "relu",
        mixed: str = "relu",
        output: str = "relu",
        gate: Literal["free", "sigmoid"] = "free",
        hidden: int = 0,
    ) -> None:
        super().__init__(n_modes, width, activation=activation, mixed=mixed, output=output, gate=gate, hidden=hidden)
        if gate not in self.gates:
            raise ConfigError(f"julia: gate '{gate}'; {nearest(gate, self.gates)}")
        hidden = check_size("julia", "hidden", hidden) or width**2
        self.activation = make_activation(activation)
        self.mlp = nn.Sequential(
            nn.Linear(n_modes * width, hidden),
            make_activation(activation),
            nn.Linear(hidden, width),
            make_activation(mixed),
        )
        self.fuses = "two_layers" if activation == "relu" else None
        self.fused: Callable[..., Tensor] | None = None
        self.gate = nn.Parameter(torch.empty(width))
        self.squash = gate == "sigmoid"
        self.head = nn.Linear(width, 1)
        self.output = make_activation(output)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both flows start with equal weight; the layers reset themselves."""
        nn.init.constant_(self.gate, 0.0 if self.squash else 0.5)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        product = self.activation(multiply_modes(rows))  # b̃, (batch, width)
        mixed = self._mix(rows.flatten(start_dim=1))  # b̆, (batch, width)
        gate = torch.sigmoid(self.gate) if self.squash else self.gate  # z, (width,)
        blended = gate * product + (1 - gate) * mixed  # b, (batch, width)
        return self.output(self.head(blended)).squeeze(-1)  # σ(wᵀb + ε), (batch,)

    def _mix(self, row: Tensor) -> Tensor:
        """The concatenation flow, ``(batch, modes · width)`` → ``(batch, width)``, by an engine where one is set."""
        if self.fused is None:
            return self.mlp(row)
        first, _, second, last = self.mlp
        return last(self.fused(row, first.weight, first.bias, second.weight, second.bias))
