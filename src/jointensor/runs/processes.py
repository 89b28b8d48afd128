"""What the processes of one run share: the source, and the run folder, which the first of them writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jointensor.atomic import write_json
from jointensor.distributed.launch import restarted
from jointensor.distributed.process_group import ProcessGroup
from jointensor.errors import DataError, RunError
from jointensor.runs.folder import CHECKPOINTS, CONFIG, METRICS, new_folder, read_config, read_object


def check_same_source(source: Path, checksum: str, processes: ProcessGroup) -> None:
    """Refuse a source that is another one where the first process runs."""
    if processes.decide(lambda: checksum) != checksum:
        raise DataError(
            f"process {processes.rank} of {processes.size} reads another {source} than process 0: their checksums "
            "differ; give all machines the same file"
        )


@contextmanager
def run_folder(out: Path, asked: dict[str, Any], processes: ProcessGroup) -> Iterator[Path]:
    """The folder of a new run, with its configuration; only the first process touches it.

    Processes that were started again go on in the folder of their earlier life: one that was asked for the same, and is
    not finished. For a process that is alone a folder that exists is an error.
    """
    if not processes.first or (processes.shared and _was_begun(out, asked)):
        yield out
        return
    with new_folder(out) as path:
        write_json(path / CONFIG, asked)
        yield path


def finished_before(out: Path, asked: dict[str, Any], processes: ProcessGroup) -> dict[str, Any] | None:
    """Metrics of a run that was finished when its processes were started again: what failed was its end."""

    def find() -> dict[str, Any] | None:
        if not processes.first or not processes.shared or not restarted() or not (out / METRICS).exists():
            return None
        return read_object(out / METRICS) if _same(out, asked) else None

    return processes.decide(find)


def _same(out: Path, asked: dict[str, Any]) -> bool:
    return bool(read_config(out) == json.loads(json.dumps(asked)))


def _was_begun(out: Path, asked: dict[str, Any]) -> bool:
    if not (out / CONFIG).exists() or (out / METRICS).exists():
        return False
    if not _same(out, asked):
        raise RunError(f"{out} exists already, and was begun with other options; give another --out, or remove it")
    (out / CHECKPOINTS).mkdir(exist_ok=True)
    return True


def communication_record(processes: ProcessGroup, passes: int) -> dict[str, float] | None:
    """Bytes that the first process has sent, in all, by operation and per pass; ``None`` for a single process."""
    if not processes.shared:
        return None
    total, operations = sum(processes.wire.values()), {name: count for name, count in processes.wire.items() if count}
    return {"epochs": passes, "bytes": total, "bytes_per_epoch": total / max(passes, 1), **operations}
