"""Checkpoints on disk: whole or not there, checked by their own name, the last two of every fit kept.

A file is called ``fit-0.000012.<first digits of its SHA-256>.safetensors``. It is written beside its place, flushed and
renamed, so that a name always stands for all of its bytes. A file that does not match its name is skipped for the one
before. Tensors are stored as safetensors, everything else as JSON; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from jointensor._version import __version__
from jointensor.atomic import write_bytes
from jointensor.errors import RunError

KEPT = 2
"""Checkpoints of a fit that are kept: the last good one, should the disk lose the newest."""

CHECKSUM_DIGITS = 16
"""Digits of the checksum in a file's name."""

C = TypeVar("C", bound=type)

_STORED: dict[str, type] = {}


def stored(kind: C) -> C:
    """Register a dataclass whose objects may be part of a checkpoint; decorates it."""
    _STORED[kind.__name__] = kind
    return kind


def pack(nested: Any, tensors: dict[str, Tensor], skip: str | None = None) -> Any:
    """Dataclasses, dictionaries, lists and tuples as JSON, with their tensors moved to ``tensors`` under a number.

    Parameters
    ----------
    nested
        The object.
    tensors
        Filled with the tensors; one that occurs several times is stored once.
    skip
        Entries of dictionaries whose key begins with this are left out.

    Examples
    --------
    >>> import torch
    >>> kept = {}
    >>> unpack(pack({"a": [1, None], 2: torch.ones(2)}, kept), kept)
    {'a': [1, None], 2: tensor([1., 1.])}
    """
    numbers: dict[int, str] = {}

    def packed(one: Any) -> Any:
        if isinstance(one, Tensor):
            if id(one) not in numbers:
                numbers[id(one)] = str(len(tensors))
                tensors[numbers[id(one)]] = one.detach().cpu().contiguous().clone()
            return {"tensor": numbers[id(one)]}
        if is_dataclass(one):
            values = {part.name: packed(getattr(one, part.name)) for part in fields(one)}
            return {"object": [type(one).__name__, values]}
        if isinstance(one, dict):
            kept = {k: v for k, v in one.items() if skip is None or not (isinstance(k, str) and k.startswith(skip))}
            return {"dict": [[packed(key), packed(value)] for key, value in kept.items()]}
        if isinstance(one, tuple):
            return {"tuple": [packed(part) for part in one]}
        if isinstance(one, list):
            return [packed(part) for part in one]
        return one

    return packed(nested)


def unpack(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of :func:`pack`."""
    if isinstance(packed, list):
        return [unpack(one, tensors) for one in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "object":
        return _STORED[inner[0]](**{name: unpack(value, tensors) for name, value in inner[1].items()})
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
    elapsed: Callable[[], float] = lambda: 0.0
    """Seconds since the run began, earlier tries included."""
    clock: Callable[[], float] = time.monotonic
    last: float = field(init=False)
    """When the last one was written, or looked for."""
    number: int = 0

    def __post_init__(self) -> None:
        self.last = self.clock()

    @property
    def due(self) -> bool:
        """Whether it is time for the next one."""
        return self.clock() - self.last >= self.every

    def write(self, state: Any, skip: str | None = None) -> None:
        """Write one more, and remove all but the last few; ``skip`` as for :func:`pack`."""
        whole = to_bytes(state, skip, elapsed=self.elapsed())
        digest = hashlib.sha256(whole).hexdigest()[:CHECKSUM_DIGITS]
        self.number += 1
        path = self.folder / f"{self.name}.{self.number:06d}.{digest}.safetensors"
        write_bytes(path, whole)
        for old in self._files()[:-KEPT]:
            old.unlink(missing_ok=True)
        self.last = self.clock()

    def read(self) -> Any:
        """The newest state that is whole; ``None`` where there is none."""
        found = self._newest()
        return None if found is None else from_bytes(*found)[0]

    def elapsed_then(self) -> float:
        """Seconds of the run when the newest was written; 0 where there is none."""
        found = self._newest()
        return 0.0 if found is None else from_bytes(*found)[1]

    def _newest(self) -> tuple[bytes, str] | None:
        for path in reversed(self._files()):
            whole = path.read_bytes()
            if hashlib.sha256(whole).hexdigest()[:CHECKSUM_DIGITS] == path.name.split(".")[2]:
                self.number = int(path.name.split(".")[1])
                return whole, str(path)
        return None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}.??????.*.safetensors"))


def to_bytes(state: Any, skip: str | None = None, *, elapsed: float = 0.0) -> bytes:
    """A checkpoint as it is written."""
    tensors: dict[str, Tensor] = {}
    packed = pack(state, tensors, skip)
    return save(tensors, {"version": __version__, "elapsed": repr(elapsed), "state": json.dumps(packed)})


def from_bytes(whole: bytes, name: str) -> tuple[Any, float]:
    """The inverse of :func:`to_bytes`: state and elapsed seconds; ``name`` is for messages."""
    try:
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])["__metadata__"]
        version = header["version"]
        if version != __version__:
            raise RunError(
                f"{name} was written by version {version} of jointensor, this is {__version__}: resume with that one, "
                "or remove the folder checkpoints of the run to start again"
            )
        return unpack(json.loads(header["state"]), load(whole)), float(header["elapsed"])
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{name} is no checkpoint: {error}") from None


class Checkpoints:
    """The checkpoints of a run: a slot for each of its fits, in the order in which they are asked for."""

    def __init__(self, folder: Path, every: float) -> None:
        self.folder, self.every = folder, every
        self.begin = time.monotonic()
        self.slots = 0
        for stray in folder.glob(".writing-*"):  # left by a kill in the middle of writing
            _remove(stray)
        names = {path.name.split(".")[0] for path in folder.glob("fit-*.safetensors")}
        self.before = max((Slot(folder, name, every).elapsed_then() for name in names), default=0.0)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, as far as its checkpoints know."""
        return self.before + time.monotonic() - self.begin

    def next(self) -> Slot:
        """The slot of the next fit."""
        self.slots += 1
        return Slot(self.folder, f"fit-{self.slots - 1}", self.every, lambda: self.elapsed)


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    folder.rmdir()
