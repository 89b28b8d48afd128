"""Recipes: one TOML file per tensor of the paper.

A recipe names the publisher's files, their terms of use, and the tensor's row in the paper's table. A tensor may have
several sources: the same data in different files. The tests check the recipes; they are not user input.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jointensor.data.modes import Order
from jointensor.errors import ConfigError
from jointensor.registry import nearest

MIN_FILE_LIMIT, BYTES_PER_ENTRY = 1 << 26, 64
"""Size limit of a download: 64 MiB for labels and small tensors, and 64 bytes per entry, more than an uncompressed line
of text takes."""


@dataclass(frozen=True)
class DataFile:
    """One file of a publisher."""

    name: str
    url: str | None = None
    """``None`` for files that can only be given with ``--from``."""
    sha256: str | None = None
    optional: bool = False
    """Whether the tensor can be built without it (labels)."""


@dataclass(frozen=True)
class Source:
    """Files that together contain the data. The first one has the entries."""

    format: str
    """A key of :data:`jointensor.data.catalogue.build.BUILDERS`."""
    files: tuple[DataFile, ...]

    @property
    def main(self) -> DataFile:
        """The file with the entries."""
        return self.files[0]

    @property
    def downloadable(self) -> bool:
        """Whether every required file has an address."""
        return all(file.url for file in self.files if not file.optional)


@dataclass(frozen=True)
class Recipe:
    """The origin of a tensor of the paper, and how it is built."""

    name: str
    title: str
    licence: str
    citation: str
    modes: tuple[str, ...]
    orders: tuple[Order, ...]
    """Order of every mode, see :class:`~jointensor.data.modes.Mode`."""
    value: str
    """Meaning of the values."""
    how: str
    """How the publisher's data become the tensor."""
    shape: tuple[int, ...]
    """Of the paper's tensor."""
    entries: int
    """Of the paper's tensor."""
    sources: tuple[Source, ...]
    page: str | None = None
    differs: str | None = None
    """Why shape and entries may differ from the paper's."""
    substitute: str | None = None
    """What can replace data that are not public."""

    @property
    def max_file_bytes(self) -> int:
        """Size limit of a file of this tensor."""
        return MIN_FILE_LIMIT + BYTES_PER_ENTRY * self.entries

    @property
    def public(self) -> bool:
        """Whether it can be downloaded."""
        return any(source.downloadable for source in self.sources)


def names() -> list[str]:
    """Names of the tensors that have a recipe."""
    folder = files(__package__) / "tensors"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load(name: str) -> Recipe:
    """The recipe of a tensor.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in names():
        raise ConfigError(f"there is no tensor '{name}' in the catalogue; {nearest(name, names())}")
    data = tomllib.loads((files(__package__) / "tensors" / f"{name}.toml").read_text(encoding="utf-8"))
    sources = tuple(
        Source(source["format"], tuple(DataFile(**file) for file in source["files"])) for source in data.pop("sources")
    )
    facts: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Recipe(name=name, sources=sources, **facts)
