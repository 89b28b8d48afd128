"""An f of a user's own that keeps the contract, and what may go wrong with it, one fault a class."""

import numpy as np
import torch
from torch import nn

from jointensor.models.nonlinear import Nonlinear


class Fine(nn.Module):
    """A network of a user's own, which keeps the contract; what is wrong below is wrong in one place."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 6)
        self.head = nn.Linear(6, 1)

    def hidden(self, rows):
        return torch.tanh(self.layer(rows.flatten(1)))  # (batch, 6)

    def forward(self, rows):
        return self.head(self.hidden(rows)).squeeze(-1)  # (batch,)


class Column(Fine):
    def forward(self, rows):
        return self.head(self.hidden(rows))  # (batch, 1)


class Pair(Fine):
    def forward(self, rows):
        return super().forward(rows), None


class NotFinite(Fine):
    def forward(self, rows):
        return super().forward(rows) / 0


class ThreeModes(Fine):
    def forward(self, rows):
        return super().forward(rows) + rows[:, 2].sum(dim=1)


class Squeezed(Fine):
    def forward(self, rows):
        return self.head(self.hidden(rows)).squeeze()


class Normalised(Fine):
    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.norm = nn.BatchNorm1d(6)

    def hidden(self, rows):
        return self.norm(super().hidden(rows))


class Centred(Fine):
    def forward(self, rows):
        values = super().forward(rows)
        return values - values.mean() if len(rows) > 4 else values  # small batches do not show it


class Cumulative(Fine):
    def forward(self, rows):
        return super().forward(rows).cumsum(dim=0)


class AlwaysDropping(Fine):
    def hidden(self, rows):
        return nn.functional.dropout(super().hidden(rows), 0.5)  # also in eval mode


class DrawnByNumpy(Fine):
    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        nn.init.constant_(self.head.bias, np.random.default_rng().normal())


class Detached(Fine):
    def forward(self, rows):
        return super().forward(rows).detach()


class HalfDetached(Fine):
    def forward(self, rows):
        return super().forward(rows) + self.layer(rows.flatten(1)).detach().sum(dim=1)


class DetachedWeight(Fine):
    def forward(self, rows):
        return super().forward(rows) * self.head.weight.data[0, 0]


class Rounded(Fine):
    def forward(self, rows):
        return (100 * super().forward(rows)).round()


class PlainTensor(Fine):
    """A tensor that is neither parameter nor buffer, in a sum: 64 bits alone do not show it."""

    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.shift = torch.ones(6)

    def hidden(self, rows):
        return super().hidden(rows) + self.shift


class PlainMatrix(PlainTensor):
    def hidden(self, rows):
        return Fine.hidden(self, rows) @ torch.diag(self.shift).to(rows.dtype)


class MadeOnTheProcessor(Fine):
    def hidden(self, rows):
        return super().hidden(rows) * torch.arange(6)


class Single(Fine):
    def forward(self, rows):
        return super().forward(rows).float()


class LosesProjection(Fine):
    """What is drawn moves along, but is not saved."""

    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.register_buffer("projection", torch.randn(6), persistent=False)

    def hidden(self, rows):
        return super().hidden(rows) * self.projection


class NoWidth(Fine):
    def __init__(self, n_modes):
        super().__init__(n_modes, 2)


class NeverReset(Fine):
    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        return self.scale * super().forward(rows)


class Counting(Fine):
    """A value that grows from call to call."""

    calls = 0

    def forward(self, rows):
        self.calls += 1
        return super().forward(rows) + self.calls


class Forgetful(Nonlinear):
    """Does not hand its option on."""

    def __init__(self, n_modes, width, *, power=1.0):
        super().__init__(n_modes, width)
        self.inner = Fine(n_modes, width)
        self.power = power

    def forward(self, rows):
        return self.power * self.inner(rows)


class Mindful(Forgetful):
    def __init__(self, n_modes, width, *, power=1.0):
        super().__init__(n_modes, width, power=power)
        self.options = {"power": power}


class WithOption(Fine):
    def __init__(self, n_modes, width, *, power=1.0):
        super().__init__(n_modes, width)
        self.power = power

    def forward(self, rows):
        return self.power * super().forward(rows)


class Distinct(Fine):
    """Takes an operation that the meta device does not know; it is none of the faults."""

    def forward(self, rows):
        return super().forward(rows[rows[:, 0, 0].isfinite()])
