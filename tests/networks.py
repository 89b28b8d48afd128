"""Networks that misbehave, for tests of what is made of them."""

from torch import nn


class Failing(nn.Module):
    """A network that is fine until it is trained."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        if self.training:
            raise RuntimeError("out of paper\nand out of ink")
        return self.layer(rows.flatten(1)).squeeze(-1)


class Silent(nn.Module):
    """A network that says nothing whatever it is shown."""

    def __init__(self, n_modes, width):
        super().__init__()

    def forward(self, rows):
        return 0 * rows.sum(dim=(1, 2))
