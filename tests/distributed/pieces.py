"""Run by two processes: every piece of a shared fit beside the same piece of one process.

``python -m torch.distributed.run --nproc-per-node 2 -m tests.distributed.pieces FOLDER`` writes what each process saw.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path

import torch

from jointensor.data.store import Entries
from jointensor.distributed.launch import join_processes
from jointensor.errors import ProcessGroupError
from jointensor.kernels import pick_engine
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.als import Als
from jointensor.solvers.data_parallel import SharedEntries, keep_together
from jointensor.solvers.gibbs import Gibbs
from jointensor.solvers.losses import make_loss
from jointensor.solvers.sgd import FrozenHalf, Sgd
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.init import initialise

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


def operations(processes):
    own = torch.arange(4.0) + processes.rank
    rows = torch.full((2 + processes.rank, 3), float(processes.rank))
    long = bytes(range(256)) * 40
    with processes.own_random(3):
        mine = float(torch.rand(()))
    return {
        "decided": processes.decide(lambda: [processes.rank, "zero", None, float("inf")]),
        "sum": processes.sum_(own.clone()).tolist(),
        "mean": processes.mean(own[: 3 + processes.rank]),
        "moments": processes.moments(own),
        "rows": torch.cat(processes.gather_rows(rows))[:, 0].tolist(),
        "parts": processes.sum_parts(torch.tensor([[1.0], [10.0]]) * (processes.rank + 1)).tolist(),
        "bytes": processes.bytes_of(long if processes.rank else b"", 1) == long,
        "common": float(torch.rand(())),
        "mine": mine,
    }


def exact_sweeps(processes, weighted):
    indices, values = entries(300)
    alone, shared = started(indices), started(indices)
    weights = torch.rand(300) + 0.5 if weighted else None
    reference = pick_engine("reference", "cpu")
    mine = processes.share(300)
    one = Als(alone, SystemsInMemory(alone, indices, reference), spread=1.0)
    two = Als(shared, SystemsInMemory(shared, indices[mine], reference, processes), spread=1.0)
    for als in (one, two):
        als.ridge, als.pull = 0.05, 2.0
    for _ in range(2):
        one.sweep(values, weights)
        two.sweep(values[mine], None if weights is None else weights[mine])
    return {"apart": apart(alone, shared), "values": float((one.total()[mine] - two.total()).abs().max())}


def descents(processes, optimizer, batch):
    shape = (3000, 20, 10)
    indices, values = entries(400, shape)
    torch.manual_seed(7)
    model = JointModel(shape, (3, 8))
    initialise(model, (float(values.mean()), float(values.std())), start="data")
    shared, mine = deepcopy(model), processes.share(400)
    sent = dict(processes.wire)
    losses = []
    for one, where in ((model, slice(None)), (shared, mine)):
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}[optimizer]
        given = (make(one.parameters(), lr=0.01), make_loss("squared"), batch)
        store, alone = Entries(indices[where], values[where]), one is model
        sgd = Sgd(*given) if alone else Sgd(*given, processes=processes)
        store = store if alone else SharedEntries.share(store, processes)
        losses += [sgd.epoch(one.score, FrozenHalf(), store) for _ in range(2)]
    gathered = processes.wire["all_gather"] - sent.get("all_gather", 0)
    return {"apart": apart(model, shared), "losses": losses, "gathered": gathered}


def sampled(processes):
    indices, values = entries(300)
    g, mine = started(indices), processes.share(300)
    systems = SystemsInMemory(g, indices[mine], pick_engine("reference", "cpu"), processes)
    gibbs = Gibbs(g, systems, spread=1.0)
    torch.manual_seed(9)
    for _ in range(3):
        gibbs.sweep(values[mine])
    every = processes.gather(torch.cat([one.detach().flatten() for one in g.parameters()]))
    seen = processes.gather(torch.tensor([gibbs.noise, float(torch.rand(()))]))
    return {
        "same": all(torch.equal(one, every[0]) for one in every),
        "noise and state": all(torch.equal(one, seen[0]) for one in seen),
        "error": processes.mean((values[mine] - gibbs.total()).square()),
    }


def kept_together(processes):
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.fill_(1.0 + 1e-6 * processes.rank)
    keep_together(model, processes)
    even = float(model.bias.detach())
    with torch.no_grad():
        model.bias.add_(processes.rank)
    try:
        keep_together(model, processes)
    except ProcessGroupError as error:
        return {"even": even, "message": str(error)}
    return {"even": even, "message": None}


def main():
    processes = join_processes("cpu")
    torch.manual_seed(1)
    found = {
        "operations": operations(processes),
        "exact": exact_sweeps(processes, weighted=False),
        "weighted": exact_sweeps(processes, weighted=True),
        "rows": descents(processes, "sgd", 32),
        "adam": descents(processes, "adam", 150),
        "sampled": sampled(processes),
        "together": kept_together(processes),
    }
    processes.leave()
    found["threads"] = [one.read_text(encoding="utf-8").strip() for one in Path("/proc/self/task").glob("*/comm")]
    Path(sys.argv[1], f"{processes.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
