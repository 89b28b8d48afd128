"""jointensor's side of every comparison."""

import torch

from jointensor.data.store import Entries
from jointensor.kernels import pick_engine
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.systems import SystemsInMemory


def exact(shape, indices, values, rank, *, scale=(0.3, 0.1), seed=0, links=""):
    """The multilinear half with links of rows such as `+smooth:0`, its solver, and the values in the solver's order."""
    torch.manual_seed(seed)
    g = Multilinear(shape, f"cp:{rank}{links}")
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter, *scale)
    entries = Entries(torch.as_tensor(indices), torch.as_tensor(values)).by_last_mode()  # as `fit` does
    systems = SystemsInMemory(g, entries.indices, pick_engine("numba", "cpu"))
    als = Als(g, systems, spread=float(entries.values.std()))
    als.ridge = 0.01
    return g, als, entries.values


def sweeper(shape, indices, values, rank):
    """A sweep to be timed; it has run once, so that it is compiled."""
    _, als, sorted_values = exact(shape, indices, values, rank)
    als.sweep(sorted_values)
    return lambda: als.sweep(sorted_values)
