"""Networks that bring about what is to be survived."""

import torch
from torch import nn


class Hungry(nn.Module):
    """A network for which the memory lasts for batches up to a size only, as on a small GPU."""

    most = 1500
    full: type[Exception] = torch.OutOfMemoryError
    words = "tried to allocate {} rows"

    def __init__(self, n_modes, width):
        super().__init__()
        self.head = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        if len(rows) > self.most:
            raise self.full(self.words.format(len(rows)))
        return torch.tanh(self.head(rows.flatten(1))).squeeze(-1)


class LateHungry(Hungry):
    """The same, where it is a library that finds no memory when it is first used."""

    full = RuntimeError
    words = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"


class DriverHungry(Hungry):
    """The same, where it is the driver that finds none, for a stream or a kernel."""

    full = torch.AcceleratorError
    words = "CUDA error: out of memory"


class Starving(Hungry):
    """The same with next to nothing."""

    most = 8


class LaterNan(nn.Module):
    """A network whose output stops being a number after some steps of training."""

    def __init__(self, n_modes, width, steps=40):
        super().__init__()
        self.head = nn.Linear(n_modes * width, 1)
        self.steps, self.left = steps, steps

    def reset_parameters(self):
        self.left = self.steps

    def forward(self, rows):
        self.left -= self.training
        out = self.head(rows.flatten(1)).squeeze(-1)
        return out if self.left > 0 else out * float("nan")
