"""One method on one split of one task: the process that :mod:`jointensor.bench.run` starts.

python -m jointensor.bench.cell '{"task": …}'
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from jointensor.atomic import write_json
from jointensor.bench.method import Answer, Problem, find_method
from jointensor.bench.records import Record, provenance
from jointensor.bench.run import Cell
from jointensor.bench.task import read_task
from jointensor.errors import RunError
from jointensor.metrics import measure


def run_cell(cell: Cell) -> Record:
    """Fit, predict and measure; returns the record without its provenance."""
    task = read_task(Path(cell.task), [Path(folder) for folder in cell.data])
    method = find_method(cell.method)
    parts, (cells, truth) = task.divided(cell.split)
    kind, _, names = task.split.partition(":")
    groups = tuple(parts.train.mode(name.strip()) for name in names.split(",")) if kind == "group" else ()
    problem = Problem(parts.train, parts.valid, cells, groups, cell.split, cell.seconds, cell.cores)
    begin = time.perf_counter()
    found = method.predict(problem)
    seconds = time.perf_counter() - begin
    answer = found if isinstance(found, Answer) else Answer(found)
    predicted = np.asarray(answer.predictions, dtype=np.float64)
    if predicted.shape not in ((), truth.shape):
        raise RunError(f"{method.name} returned predictions of shape {predicted.shape} for {len(truth)} cells")
    if not np.isfinite(predicted).all():
        raise RunError(f"{method.name} returned predictions that are not finite")
    return {
        "task": task.name,
        "method": method.name,
        "split": cell.split,
        "about": method.about,
        "ensemble": method.ensemble,
        "chosen": method.chosen,
        "settings": answer.settings,
        "test": measure(np.broadcast_to(predicted, truth.shape), truth).to_dict(),
        "seconds": seconds,
        "budget": cell.seconds,
        "cores": cell.cores,
        "data": task.checksums(),
        "division": task.split if task.test is None else f"test entries of {task.test.name}",
        "published": [vars(one) for one in task.published],
    }


def main() -> None:
    """Write the record of the cell that the command line has."""
    cell = Cell.of(sys.argv[1])
    facts = provenance(find_method(cell.method).packages)  # the load of the machine before the fit
    write_json(Path(cell.out), run_cell(cell) | facts)


if __name__ == "__main__":
    main()
