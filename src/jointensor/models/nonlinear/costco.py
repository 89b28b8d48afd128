"""COSTCO: a convolutional f (Liu et al., KDD 2019).

image   the rows as a picture, components × modes                      (K, N)
modes   convolution 1 × N, ReLU: one look at each component            (C, K, 1)
comps   convolution K × 1, ReLU: one look at all components            (C, 1, 1)
dense   C → C, ReLU
output  C → 1, ReLU
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.base import Nonlinear, check_size, nonlinear_parts
from jointensor.registry import nearest


@nonlinear_parts.register("costco")
class Costco(Nonlinear):
    """Convolution over modes, convolution over components, dense, output.

    Parameters
    ----------
    n_modes, width
        N and K.
    layout
        ``"paper"``: column n of the image is the row of mode n, so that the first convolution sees one
        component in all modes. ``"official"``: as the authors' notebook does it, where a reshape
        stands in the place of a transpose and a line of the image holds N neighbouring numbers of
        the concatenated rows, mostly of one mode.
    channels
        C, filters of each convolution; K when 0, as the authors have it.
    output
        Activation of the output. ``"relu"`` is the authors': f ≥ 0.
    """

    layouts: ClassVar = ("paper", "official")

    def __init__(
        self,
        n_modes: int,
        width: int,
        *,
        layout: Literal["paper", "official"] = "paper",
        channels: int = 0,
        output: str = "relu",
    ) -> None:
        super().__init__(n_modes, width, layout=layout, channels=channels, output=output)
        if layout not in self.layouts:
            raise ConfigError(f"costco: layout '{layout}'; {nearest(layout, self.layouts)}")
        channels = check_size("costco", "channels", channels) or width
        self.over_modes = nn.Conv2d(1, channels, (1, n_modes))
        self.over_components = nn.Conv2d(channels, channels, (width, 1))
        self.dense = nn.Linear(channels, channels)
        self.head = nn.Linear(channels, 1)
        self.activation = nn.ReLU()
        self.output = make_activation(output)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        image = self.image(rows)  # (batch, width, modes)
        looks = self.activation(whole_line(self.over_modes, image))  # (batch, width, channels)
        summary = self.activation(whole_line(self.over_components, looks.flatten(start_dim=1)))  # (batch, channels)
        hidden = self.activation(self.dense(summary))  # (batch, channels)
        return self.output(self.head(hidden)).squeeze(-1)  # (batch,)

    def image(self, rows: Tensor) -> Tensor:
        """The rows as a picture, ``(batch, modes, width)`` → ``(batch, width, modes)``."""
        return rows.transpose(1, 2) if self.options["layout"] == "paper" else rows.reshape(-1, self.width, self.n_modes)


def whole_line(convolution: nn.Conv2d, lines: Tensor) -> Tensor:
    """A convolution whose kernel is as long as the line it slides along: one place to be, so one matrix product.

    Three times as fast on a CPU as the convolution itself, ``(…, line)`` → ``(…, channels)``.
    """
    kernel = convolution.weight.flatten(start_dim=2).transpose(1, 2)  # (channels, line, channels before)
    return nn.functional.linear(lines, kernel.flatten(start_dim=1), convolution.bias)
