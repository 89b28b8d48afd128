"""Tasks: a tensor, how its entries are divided, and figures that others have published for the same entries.

A task is a small TOML file. Only ``source`` is required:

    source = "hangzhou-days-30.train.npz"     # beside this file, or in a folder of data
    test = "hangzhou-days-30.test.npz"        # the entries that are asked for; without it they are split off
    split = "group:paper,word"                # how: see `jointensor fit --split`; "standard" if it is not given
    about = "whole days of a station are missing"

    [order]                                   # of modes, where it should not be guessed
    slot = "cyclic"

    [table]                                   # of a source that is a table; see TableSpec
    modes = ["user", "movie", "day=day(time)"]
    value = "rating"

    [[published]]
    method = "LATC"
    rmse = 47.38
    source = "a notebook of its authors"
    chosen = "by test entries"                # how its settings were chosen
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from jointensor.atomic import sha256
from jointensor.data.formats import read_tensor
from jointensor.data.queries import read_entries
from jointensor.data.split import Split, split
from jointensor.data.tensor import SparseTensor, cell_keys
from jointensor.errors import ConfigError, DataError
from jointensor.evaluation.evaluate import Entries
from jointensor.registry import nearest

if TYPE_CHECKING:
    from jointensor.data.frames import TableSpec

TEST = 0.2
"""Share of the entries that are asked for where a task has no test entries of its own."""


@dataclass(frozen=True)
class Published:
    """A figure that others have published for the same test entries."""

    method: str
    rmse: float
    source: str
    """Where it is printed."""
    chosen: str = "not stated"
    """By what its settings were chosen."""


@dataclass(frozen=True)
class Task:
    """A tensor, and the entries that are asked for."""

    name: str
    source: Path
    test: Path | None = None
    """Entries that are asked for; ``None``: they are split off."""
    split: str = "standard"
    about: str = ""
    order: dict[str, str] = field(default_factory=dict)
    """Orders of modes: ordered, cyclic or none."""
    table: dict[str, Any] | None = None
    """How a table becomes a tensor: fields of :class:`~jointensor.data.frames.TableSpec`; ``None`` for tensors."""
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        if self.test is not None and self.split != "standard":
            raise ConfigError(
                f"task {self.name} has test entries of its own and a split, {self.split}; give one of them"
            )

    def divided(self, seed: int) -> tuple[Split, Entries]:
        """Training and validation entries of a split, and the entries that are asked for: indices and values.

        Labels that only these have are -1. Entries of the source that a test file has, too, are not learnt from.
        """
        reading = read_tensor(self.source, self._spec(), self.order)
        tensor = reading.tensor
        if self.test is None:
            parts = split(tensor, rule=self.split, test=TEST, seed=seed)
            asked: Entries = parts.test.indices, parts.test.values
        else:
            asked = read_entries(self.test, tensor.modes, reading.spec)
            parts = split(_without(tensor, asked[0]), rule=self.split, test=0.0, seed=seed)
        if not len(asked[1]):
            raise DataError(f"task {self.name} asks for no entries")
        return parts, asked

    def checksums(self) -> dict[str, str]:
        """Of its files, so that records of other entries are told apart."""
        return {path.name: sha256(path) for path in (self.source, self.test) if path is not None}

    def _spec(self) -> TableSpec | None:
        if self.table is None:
            return None
        from jointensor.data.frames import TableSpec  # noqa: PLC0415 - polars only for tables

        try:
            return TableSpec.of(**self.table)
        except TypeError as error:
            raise ConfigError(f"task {self.name}, table: {error}") from error


def _without(tensor: SparseTensor, indices: NDArray[np.integer]) -> SparseTensor:
    """The entries of other cells."""
    known = indices[np.all(indices >= 0, axis=1)]
    keys = cell_keys(np.concatenate([tensor.indices, known]), tensor.shape)
    return tensor.take(np.flatnonzero(~np.isin(keys[: len(tensor)], keys[len(tensor) :])))


def read_task(path: Path, data: Sequence[Path] = ()) -> Task:
    """The task of a file; its sources lie beside it, or in one of the folders of data."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"task {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"task {path} is not TOML: {error}") from error
    published = tuple(_made(Published, one, f"{path}, published") for one in given.pop("published", []))
    for name in ("source", "test"):
        if name in given:
            given[name] = _found(Path(str(given[name])), path, data)
    return _made(Task, {"name": path.stem} | given | {"published": published}, str(path))


def _found(name: Path, task: Path, data: Sequence[Path]) -> Path:
    """A file of a task."""
    folders = [task.parent, *data]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise DataError(f"{task}: {name} is not in {' or '.join(map(str, folders))}; give its folder with --data")
    return found


T = TypeVar("T")


def _made(kind: type[T], given: dict[str, Any], where: str) -> T:
    """An object of a file's keys."""
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: there is no key '{key}'; {nearest(key, known)}")
    try:
        return kind(**given)
    except TypeError as error:
        raise ConfigError(f"{where}: {str(error).partition(') ')[2] or error}") from error
