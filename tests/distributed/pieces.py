"""Run by two processes: every piece of a shared fit beside the same piece of one process.

``python -m torch.distributed.run --nproc-per-node 2 -m tests.distributed.pieces FOLDER`` writes what each process saw.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path

import torch

from jointensor.errors import WorldError
from jointensor.kernels import pick_engine
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.training.als import Als
from jointensor.training.gibbs import Gibbs
from jointensor.training.launch import join_world
from jointensor.training.losses import make_loss
from jointensor.training.shared_rows import share_engine
from jointensor.training.solvers import Descent
from jointensor.training.start import initialise
from jointensor.training.state import Entries, Fixed
from jointensor.training.together import SharedDescent, keep_together

SHAPE = (9, 8, 7)
BLOCKS = "mean+bias+tables:0/1+cp:3+fm:2+implicit:0/1+smooth:2"


def entries(count, shape=SHAPE):
    """The same in every process, each cell at most a few times."""
    torch.manual_seed(5)
    indices = torch.stack([torch.randint(size, (count,)) for size in shape], dim=1)
    return indices, torch.randn(count) + 2.0


def started(indices):
    torch.manual_seed(6)
    g = Multilinear(SHAPE, BLOCKS)
    g.see(indices)
    with torch.no_grad():
        for parameter in g.parameters():
            parameter.normal_(0.0, 0.5)
    return g


def apart(one, other):
    """Largest difference of two modules' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def operations(world):
    own = torch.arange(4.0) + world.rank
    rows = torch.full((2 + world.rank, 3), float(world.rank))
    long = bytes(range(256)) * 40
    with world.own_random(3):
        mine = float(torch.rand(()))
    return {
        "decided": world.decide(lambda: [world.rank, "zero", None, float("inf")]),
        "sum": world.sum_(own.clone()).tolist(),
        "mean": world.mean(own[: 3 + world.rank]),
        "moments": world.moments(own),
        "rows": torch.cat(world.gather_rows(rows))[:, 0].tolist(),
        "parts": world.sum_parts(torch.tensor([[1.0], [10.0]]) * (world.rank + 1)).tolist(),
        "bytes": world.bytes_of(long if world.rank else b"", 1) == long,
        "common": float(torch.rand(())),
        "mine": mine,
    }


def exact_sweeps(world, weighted):
    indices, values = entries(300)
    alone, shared = started(indices), started(indices)
    weights = torch.rand(300) + 0.5 if weighted else None
    reference = pick_engine("reference", "cpu")
    mine = world.share(300)
    both = share_engine(reference, world)
    one = Als(alone, indices, spread=1.0, solver=reference.solve_rows, systems=reference.row_systems)
    two = Als(shared, indices[mine], spread=1.0, solver=both.solve_rows, systems=both.row_systems, world=world)
    for als in (one, two):
        als.ridge, als.pull = 0.05, 2.0
    for _ in range(2):
        one.sweep(values, weights)
        two.sweep(values[mine], None if weights is None else weights[mine])
    return {"apart": apart(alone, shared), "values": float((one.total()[mine] - two.total()).abs().max())}


def descents(world, optimizer, batch):
    shape = (3000, 20, 10)
    indices, values = entries(400, shape)
    torch.manual_seed(7)
    model = JointModel(shape, (3, 8))
    initialise(model, values, start="data")
    shared, mine = deepcopy(model), world.share(400)
    sent = dict(world.wire)
    losses = []
    for one, where in ((model, slice(None)), (shared, mine)):
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[optimizer]
        given = (make(one.parameters(), lr=0.01), make_loss("squared"), batch)
        descent = Descent(*given) if one is model else SharedDescent(*given, world=world)
        torch.manual_seed(8)
        losses += [descent.epoch(one.score, Fixed(), Entries(indices[where], values[where])) for _ in range(2)]
    gathered = world.wire["all_gather"] - sent.get("all_gather", 0)
    return {"apart": apart(model, shared), "losses": losses, "gathered": gathered}


def sampled(world):
    indices, values = entries(300)
    g, mine = started(indices), world.share(300)
    both = share_engine(pick_engine("reference", "cpu"), world)
    gibbs = Gibbs(g, indices[mine], spread=1.0, solver=both.solve_rows, systems=both.row_systems, world=world)
    torch.manual_seed(9)
    for _ in range(3):
        gibbs.sweep(values[mine])
    every = world.gather(torch.cat([one.detach().flatten() for one in g.parameters()]))
    seen = world.gather(torch.tensor([gibbs.noise, float(torch.rand(()))]))
    return {
        "same": all(torch.equal(one, every[0]) for one in every),
        "noise and state": all(torch.equal(one, seen[0]) for one in seen),
        "error": world.mean((values[mine] - gibbs.total()).square()),
    }


def kept_together(world):
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.fill_(1.0 + 1e-6 * world.rank)
    keep_together(model, world)
    even = float(model.bias.detach())
    with torch.no_grad():
        model.bias.add_(world.rank)
    try:
        keep_together(model, world)
    except WorldError as error:
        return {"even": even, "message": str(error)}
    return {"even": even, "message": None}


def main():
    world = join_world("cpu")
    torch.manual_seed(1)
    found = {
        "operations": operations(world),
        "exact": exact_sweeps(world, weighted=False),
        "weighted": exact_sweeps(world, weighted=True),
        "rows": descents(world, "sgd", 32),
        "adam": descents(world, "adam", 150),
        "sampled": sampled(world),
        "together": kept_together(world),
    }
    world.leave()
    found["threads"] = [one.read_text().strip() for one in Path("/proc/self/task").glob("*/comm")]
    Path(sys.argv[1], f"{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
