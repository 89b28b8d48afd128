"""Checkpoints on disk: whole or not there, checked by their own name, the last two of every fit kept.

A file is called ``fit-0.000012.<first digits of its SHA-256>.safetensors``: it is written beside its place, flushed and
renamed, so that a name always stands for all of its bytes. What does not match its name is passed over for the one
before.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from jointensor._version import __version__
from jointensor.atomic import write_bytes
from jointensor.errors import RunError

KEPT = 2
"""Checkpoints of a fit that are kept: the last good one, should the disk lose the newest."""

KEYS = {"epochs", "points", "inside", "told", "model", "snapshots", "things", "random", "elapsed"}
"""What a checkpoint holds."""

DIGITS = 16
"""Of the checksum, in a file's name."""


def pack(nested: Any, tensors: dict[str, Tensor]) -> Any:
    """Nested dictionaries and lists as JSON, with the tensors in them moved to ``tensors`` under a number.

    >>> import torch
    >>> kept = {}
    >>> unpack(pack({"a": [1, None], 2: torch.ones(2)}, kept), kept)
    {'a': [1, None], 2: tensor([1., 1.])}
    """
    if isinstance(nested, Tensor):
        name = str(len(tensors))
        tensors[name] = nested.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(nested, dict):
        return {"dict": [[pack(key, tensors), pack(value, tensors)] for key, value in nested.items()]}
    if isinstance(nested, tuple):
        return {"tuple": [pack(one, tensors) for one in nested]}
    if isinstance(nested, list):
        return [pack(one, tensors) for one in nested]
    return nested


def unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`pack`."""
    if isinstance(packed, list):
        return [unpack(one, tensors) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(unpack(one, tensors) for one in inner)
    return {unpack(key, tensors): unpack(value, tensors) for key, value in inner}


@dataclass
class Slot:
    """Where one fit keeps its checkpoints."""

    folder: Path
    name: str
    every: float
    """Seconds from one checkpoint to the next."""
    elapsed: Callable[[], float]
    """Seconds since the run began, earlier tries counted in."""
    last: float = field(default_factory=time.monotonic)
    number: int = 0

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self.last >= self.every

    def write(self, data: dict[str, Any]) -> None:
        """Write one more, and remove all but the last few."""
        whole = to_bytes({**data, "elapsed": self.elapsed()})
        digest = hashlib.sha256(whole).hexdigest()[:DIGITS]
        self.number += 1
        path = self.folder / f"{self.name}.{self.number:06d}.{digest}.safetensors"
        write_bytes(path, whole)
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)
        self.last = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The newest that is whole; ``None`` where there is none."""
        for path in reversed(self._files()):
            whole = path.read_bytes()
            if hashlib.sha256(whole).hexdigest()[:DIGITS] != path.name.split(".")[2]:
                continue
            self.number = int(path.name.split(".")[1])
            return from_bytes(whole, str(path))
        return None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}.??????.*.safetensors"))


def to_bytes(data: dict[str, Any]) -> bytes:
    """A checkpoint as it is written."""
    tensors: dict[str, Tensor] = {}
    packed = pack(data, tensors)
    return save(tensors, {"version": __version__, "data": json.dumps(packed)})


def from_bytes(whole: bytes, name: str) -> dict[str, Any]:
    """The inverse of :func:`to_bytes`; ``name`` is for messages."""
    try:
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])["__metadata__"]
        version, data = header["version"], json.loads(header["data"])
        found: dict[str, Any] = unpack(data, load(whole))
        missing = KEYS - set(found)
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{name} is no checkpoint: {error}") from None
    if missing:
        raise RunError(f"{name} is no checkpoint: it has no {', '.join(sorted(missing))}")
    if version != __version__:
        raise RunError(
            f"{name} was written by version {version} of jointensor, this is {__version__}: resume with that one, "
            "or remove the folder checkpoints of the run to start again"
        )
    return found


class Checkpoints:
    """The checkpoints of a run: a slot for each of its fits, in the order in which they are asked for."""

    def __init__(self, folder: Path, every: float) -> None:
        self.folder, self.every = folder, every
        self.begin = time.monotonic()
        self.slots = 0
        for stray in folder.glob(".writing-*"):  # what a kill in the middle of writing left
            _remove(stray)
        self.before = max((found["elapsed"] for found in self._newest()), default=0.0)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, as far as its checkpoints know."""
        return self.before + time.monotonic() - self.begin

    def next(self) -> Slot:
        """The slot of the next fit."""
        self.slots += 1
        return Slot(self.folder, f"fit-{self.slots - 1}", self.every, lambda: self.elapsed)

    def clear(self) -> None:
        """Remove all of them: the run is finished."""
        for path in self.folder.glob("fit-*.safetensors"):
            path.unlink(missing_ok=True)

    def _newest(self) -> list[dict[str, Any]]:
        names = {path.name.split(".")[0] for path in self.folder.glob("fit-*.safetensors")}
        found = [Slot(self.folder, name, self.every, lambda: 0.0).read() for name in sorted(names)]
        return [one for one in found if one is not None]


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
