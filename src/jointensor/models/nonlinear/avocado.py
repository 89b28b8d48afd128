"""AVOCADO: concatenated rows through an MLP (Schreiber et al., 2020), in the form the paper gives it.

concatenation  B_1(i_1,:) ⊕ ⋯ ⊕ B_N(i_N,:)        N·K
MLP            N·K → N²·K → K → 1, ReLU between the layers, linear output
"""

from __future__ import annotations

from torch import Tensor, nn

from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.base import Nonlinear, nonlinear_parts


@nonlinear_parts.register("avocado")
class Avocado(Nonlinear):
    """Concatenation and a 3-layer MLP; one row per mode, instead of the three genome scales of the original.

    Parameters
    ----------
    n_modes, width
        N and K.
    activation
        Between the layers.
    output
        Activation of the output; the original's is linear.
    """

    def __init__(self, n_modes: int, width: int, *, activation: str = "relu", output: str = "identity") -> None:
        super().__init__(n_modes, width, activation=activation, output=output)
        self.mlp = hidden_layers(n_modes * width, n_modes, width, activation)
        self.head = nn.Linear(width, 1)
        self.output = make_activation(output)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        concatenated = rows.flatten(start_dim=1)  # (batch, modes · width)
        return self.output(self.head(self.mlp(concatenated))).squeeze(-1)  # (batch,)


def hidden_layers(inputs: int, n_modes: int, width: int, activation: str) -> nn.Sequential:
    """inputs → N²·K → K: the widths that the paper gives to all methods but its own."""
    return nn.Sequential(
        nn.Linear(inputs, n_modes**2 * width),
        make_activation(activation),
        nn.Linear(n_modes**2 * width, width),
        make_activation(activation),
    )
