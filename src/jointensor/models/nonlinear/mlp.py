"""A plain MLP with halving layers, after NeuMF's (He et al., 2017): the simplest f.

N·K → H → H/2 → … → 1, ReLU between the layers, linear output.
"""

from __future__ import annotations

from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.base import Nonlinear, check_size, nonlinear_parts


@nonlinear_parts.register("mlp")
class Mlp(Nonlinear):
    """Concatenated rows through layers that halve.

    Parameters
    ----------
    n_modes, width
        N and K.
    layers
        Hidden layers, at least one; each is half as wide as the one before.
    hidden
        Width of the first hidden layer; N·K when 0.
    activation
        After every hidden layer.
    output
        Activation of the output.
    """

    def __init__(
        self,
        n_modes: int,
        width: int,
        *,
        layers: int = 2,
        hidden: int = 0,
        activation: str = "relu",
        output: str = "identity",
    ) -> None:
        super().__init__(n_modes, width, layers=layers, hidden=hidden, activation=activation, output=output)
        if not check_size("mlp", "layers", layers):
            raise ConfigError("mlp: layers is 0, it must be at least 1")
        first = check_size("mlp", "hidden", hidden) or n_modes * width
        widths = [n_modes * width, *(max(first >> k, 1) for k in range(layers))]
        self.mlp = nn.Sequential()
        for k in range(layers):
            self.mlp.extend([nn.Linear(widths[k], widths[k + 1]), make_activation(activation)])
        self.head = nn.Linear(widths[-1], 1)
        self.output = make_activation(output)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        return self.output(self.head(self.mlp(rows.flatten(start_dim=1)))).squeeze(-1)  # (batch,)
