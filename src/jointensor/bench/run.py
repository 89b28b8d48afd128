"""Every method on every split of every task, one at a time, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jointensor.atomic import write_json
from jointensor.bench.method import Method, find_method
from jointensor.bench.records import Record, provenance, read_record
from jointensor.bench.task import Task, read_task
from jointensor.errors import ConfigError

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that tell libraries how many threads to use."""

OVERTIME = 10.0
"""How many times the seconds of a method it may take before it is ended: many packages cannot be told a budget."""


@dataclass(frozen=True)
class BenchConfig:
    """What is run, and what every method is given."""

    tasks: tuple[Path, ...]
    """Files."""
    methods: tuple[str, ...]
    """Names, or files."""
    splits: int = 5
    """Seeds of splits, from 0 on."""
    seconds: float = 300.0
    """That a method may take, if it can be told so."""
    cores: int = 2
    data: tuple[Path, ...] = ()
    """Folders of the tasks' sources, where they do not lie beside them."""


@dataclass(frozen=True)
class Cell:
    """One method on one split of one task, as its process is told."""

    task: str
    """File."""
    method: str
    """Name, or file."""
    split: int
    seconds: float
    cores: int
    data: list[str]
    out: str
    """File of the record."""

    def to_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Cell:
        """As :meth:`to_text` wrote it."""
        return cls(**json.loads(text))


OnRecord = Callable[[Record, int, int], None]
"""Called with every record, how many there are so far, and how many there will be."""


def record_file(folder: Path, task: Task, method: Method, split: int) -> Path:
    """Where the record of a result lies."""
    return folder / task.name / f"{method.slug}.{split}.json"


def bench(config: BenchConfig, out: Path, on_record: OnRecord = lambda *_: None) -> list[Record]:
    """Make the records that are not there yet; returns all that were asked for.

    A record of an error is made again. A record of other data, or of other seconds and cores, is refused: one table
    compares like with like.

    Raises
    ------
    ConfigError
        If a task or method cannot be found, or a record was made in another way; nothing has been run then.
    """
    tasks = [(path, read_task(path, config.data)) for path in config.tasks]
    methods = [(text, find_method(text)) for text in config.methods]
    for what, names in (("task", [one.name for _, one in tasks]), ("method", [one.name for _, one in methods])):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"{what} {twice} is given twice")
    cells = list(_cells(config, tasks, methods, out))
    for cell, task in cells:
        _check_kept(cell, task)
    records: list[Record] = []
    for cell, task in cells:
        found = read_record(Path(cell.out))
        if found is None or "error" in found:
            found = _run(cell, task)
        records.append(found)
        on_record(found, len(records), len(cells))
    return records


def _cells(
    config: BenchConfig, tasks: list[tuple[Path, Task]], methods: list[tuple[str, Method]], out: Path
) -> Iterator[tuple[Cell, Task]]:
    """Splits outermost, so that every method has figures early."""
    data = [str(folder.resolve()) for folder in config.data]
    for split in range(config.splits):
        for path, task in tasks:
            for text, method in methods:
                file = str(Path(text).resolve()) if text.endswith(".py") else text
                where = str(record_file(out, task, method, split))
                yield Cell(str(path.resolve()), file, split, config.seconds, config.cores, data, where), task


def _check_kept(cell: Cell, task: Task) -> None:
    """Refuse a record that was made with other data or in another way."""
    found = read_record(Path(cell.out))
    if found is None or "error" in found:
        return
    expected: dict[str, Any] = {"data": task.checksums(), "budget": cell.seconds, "cores": cell.cores}
    for key, value in expected.items():
        if found.get(key) != value:
            raise ConfigError(
                f"{cell.out} was made with {key} {found.get(key)}, not {value}; remove it, or give another --out"
            )


def _run(cell: Cell, task: Task) -> Record:
    """The record of a cell, by a process of its own; of its failure, if it failed."""
    threads = dict.fromkeys(THREADS, str(cell.cores))
    command = [sys.executable, "-m", "jointensor.bench.cell", cell.to_text()]
    Path(cell.out).parent.mkdir(parents=True, exist_ok=True)
    limit = OVERTIME * max(cell.seconds, 60.0)
    try:
        done = subprocess.run(
            command, env=os.environ | threads, capture_output=True, text=True, check=False, timeout=limit
        )
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines and done.returncode > 0 else f"the process ended with {done.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"it took longer than {limit:.0f} s"
    found = read_record(Path(cell.out))
    if found is None or "error" in found:
        found = {"task": task.name, "method": _name(cell), "split": cell.split, "error": reason[:300]}
        found |= provenance()
        write_json(Path(cell.out), found)
    return found


def _name(cell: Cell) -> str:
    return find_method(cell.method).name
