"""NePTuNe: Tucker's model with one nonlinearity before the last mode (Sonkar et al., 2021).

first   e_1 = Dropout(Norm(B_1(i_1,:)))                                    K
core    W ×_1 e_1, and in turn ×_n B_n(i_n,:) for the modes between        K
hidden  σ(Dropout(Norm(·)))                                                K
output  the inner product with the last row B_N(i_N,:), times w, plus ε     1
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jointensor.errors import ConfigError
from jointensor.models.nonlinear.activations import make_activation
from jointensor.models.nonlinear.base import Nonlinear, nonlinear_parts

MAX_CORE = 10_000_000
"""Largest core, K^N numbers, that is built."""


@nonlinear_parts.register("neptune")
class Neptune(Nonlinear):
    """The core contracted with all rows but the last, normalised and activated, times the last row.

    The original scores triples of a knowledge graph against all candidates for the last mode and ends
    in a sigmoid. Here N is any number of modes, and in place of the sigmoid the score is brought to the
    scale of the values by two learnt numbers, w and ε.

    Parameters
    ----------
    n_modes, width
        N and K.
    activation
        σ; the original takes ``prelu`` or ``leaky_relu``, depending on the data set.
    norm
        ``True``: batch normalisation of the first row and of the hidden layer, as published.
    dropout_first, dropout_core, dropout_hidden
        Shares dropped from the first row, from the core after its first contraction, and from the hidden
        layer. The original's 0.3, 0.2 and 0.4 are for embeddings 200 wide; the default drops nothing.
    """

    row_start = (1.0, 0.1)

    def __init__(
        self,
        n_modes: int,
        width: int,
        *,
        activation: str = "leaky_relu",
        norm: bool = True,
        dropout_first: float = 0.0,
        dropout_core: float = 0.0,
        dropout_hidden: float = 0.0,
    ) -> None:
        shares = {"dropout_first": dropout_first, "dropout_core": dropout_core, "dropout_hidden": dropout_hidden}
        super().__init__(n_modes, width, activation=activation, norm=norm, **shares)
        for name, share in shares.items():
            if not isinstance(share, int | float) or not 0 <= share < 1:
                raise ConfigError(f"neptune: {name} is {share!r}, it must be a share from 0 to below 1")
        if not isinstance(norm, bool):
            raise ConfigError(f"neptune: norm is {norm!r}, it must be true or false")
        if width**n_modes > MAX_CORE:
            raise ConfigError(
                f"neptune of width {width} has a core of {width**n_modes:,} numbers over {n_modes} modes, more than "
                f"{MAX_CORE:,}; give at most width {int((MAX_CORE + 0.5) ** (1 / n_modes))}"
            )
        self.core = nn.Parameter(torch.empty((width,) * n_modes))
        self.first = nn.Sequential(BatchNorm(width) if norm else nn.Identity(), nn.Dropout(dropout_first))
        self.thin = nn.Dropout(dropout_core)
        self.hidden = nn.Sequential(
            BatchNorm(width) if norm else nn.Identity(), nn.Dropout(dropout_hidden), make_activation(activation)
        )
        self.head = nn.Linear(1, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A core that keeps the size of what it is contracted with, and the score as it is."""
        nn.init.normal_(self.core, 0.0, self.width ** (-(self.n_modes - 1) / 2))
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, modes, width)`` → ``(batch,)``."""
        contracted = self.first(rows[:, 0]) @ self.core.flatten(start_dim=1)  # W ×_1 e_1, (batch, width ** (modes - 1))
        contracted = self.thin(contracted)
        for n in range(1, rows.shape[1] - 1):
            matrix = contracted.unflatten(1, (self.width, -1))  # (batch, width, the modes that are left)
            contracted = torch.bmm(rows[:, n].unsqueeze(1), matrix).squeeze(1)  # ×_n B_n(i_n,:)
        hidden = self.hidden(contracted)  # (batch, width)
        score = (hidden * rows[:, -1]).sum(dim=1, keepdim=True)  # (batch, 1)
        return self.head(score).squeeze(-1)  # (batch,)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation that takes a batch of one by its running figures: one entry has no spread."""

    def forward(self, rows: Tensor) -> Tensor:
        """``(batch, width)`` → ``(batch, width)``."""
        if self.training and len(rows) == 1:
            return nn.functional.batch_norm(
                rows, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        return super().forward(rows)
