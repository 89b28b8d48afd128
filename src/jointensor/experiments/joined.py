"""What processes of one run have to agree on: the source, and the folder that the first of them writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jointensor.atomic import write_json
from jointensor.errors import DataError, RunError
from jointensor.experiments.folder import CHECKPOINTS, CONFIG, METRICS, new_folder, read_config, read_json
from jointensor.training.launch import restarted
from jointensor.training.world import World


def check_same_source(source: Path, checksum: str, world: World) -> None:
    """Refuse a source that is another one where the first process runs."""
    if world.decide(lambda: checksum) != checksum:
        raise DataError(
            f"process {world.rank} of {world.size} reads another {source} than process 0: their checksums differ; give "
            "all machines the same file"
        )


@contextmanager
def run_folder(out: Path, asked: dict[str, Any], world: World) -> Iterator[Path]:
    """The folder of a new run, with its configuration; only the first process touches it.

    Processes that were started again go on in the folder of their earlier life: one that was asked for the same, and is
    not finished. For a process that is alone a folder that exists is an error.
    """
    if not world.first or (world.shared and _was_begun(out, asked)):
        yield out
        return
    with new_folder(out) as path:
        write_json(path / CONFIG, asked)
        yield path


def finished_before(out: Path, asked: dict[str, Any], world: World) -> dict[str, Any] | None:
    """Metrics of a run that was finished when its processes were started again: what failed was its end."""

    def find() -> dict[str, Any] | None:
        if not world.first or not world.shared or not restarted() or not (out / METRICS).exists():
            return None
        found = read_json(out / METRICS) if _same(out, asked) else None
        return found if isinstance(found, dict) else None

    return world.decide(find)


def _same(out: Path, asked: dict[str, Any]) -> bool:
    return bool(read_config(out) == json.loads(json.dumps(asked)))


def _was_begun(out: Path, asked: dict[str, Any]) -> bool:
    if not (out / CONFIG).exists() or (out / METRICS).exists():
        return False
    if not _same(out, asked):
        raise RunError(f"{out} exists already, and was begun with other options; give another --out, or remove it")
    (out / CHECKPOINTS).mkdir(exist_ok=True)
    return True


def wire_record(world: World, epochs: int) -> dict[str, Any]:
    """What ``metrics.json`` says of what the first process sent; nothing for a process that is alone."""
    if not world.shared:
        return {}
    total, kinds = sum(world.wire.values()), {name: count for name, count in world.wire.items() if count}
    return {"wire": {"epochs": epochs, "bytes": total, "bytes_per_epoch": total / max(epochs, 1), **kinds}}
