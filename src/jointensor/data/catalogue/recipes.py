"""Recipes: one small TOML file per tensor of the paper.

A recipe says who publishes the data, on what terms, in which files, and what the paper's table says of
the tensor. A tensor may have several *sources*: the same data in different files. Checksums stand in a recipe
only where they are known.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jointensor.data.modes import ORDERS, Order
from jointensor.errors import ConfigError, DataError
from jointensor.registry import nearest

FORMATS = ("frostt", "konect", "mpi-wall", "movielens", "table")
"""How a publisher's files may be written."""

MIN_FILE_LIMIT, BYTES_PER_ENTRY = 1 << 26, 64
"""Limits of a download: 64 MiB for labels and small tensors, and 64 bytes per entry, more than a line of text takes
even if the file is not packed."""


@dataclass(frozen=True)
class DataFile:
    """One file of a publisher."""

    name: str
    urls: tuple[str, ...] = ()
    """Where it can be downloaded; none where it is only ever taken from a folder."""
    sha256: str | None = None
    optional: bool = False
    """Whether the tensor can be made without it (labels)."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]*\w", self.name) or self.name.startswith("."):
            raise DataError(f"'{self.name}' is not a plain file name")
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise DataError(f"file '{self.name}': '{self.sha256}' is not a SHA-256 checksum in lower case")


@dataclass(frozen=True)
class Source:
    """Files that together hold the data, and how they are written."""

    format: str
    files: tuple[DataFile, ...]

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise DataError(f"format '{self.format}': {nearest(self.format, FORMATS)}")
        if not self.files or self.files[0].optional:
            raise DataError("the first file of a source is the one with the entries, and cannot be optional")

    @property
    def main(self) -> DataFile:
        """The file with the entries."""
        return self.files[0]

    @property
    def downloadable(self) -> bool:
        """Whether every file that is needed has an address."""
        return all(file.urls for file in self.files if not file.optional)


@dataclass(frozen=True)
class Recipe:
    """Where a tensor of the paper comes from and how it is made."""

    name: str
    title: str
    licence: str
    citation: str
    modes: tuple[str, ...]
    orders: tuple[Order, ...]
    """Whether neighbours along each mode are alike."""
    value: str
    """What the entries are."""
    how: str
    """How the publisher's data become the tensor."""
    shape: tuple[int, ...]
    """The paper's."""
    entries: int
    """The paper's."""
    sources: tuple[Source, ...]
    page: str | None = None
    differs: str | None = None
    """Why shape and entries may differ from the paper's."""
    substitute: str | None = None
    """What can take the place of data that are not public."""
    stand_ins: tuple[str, ...] = ()
    """Names of smaller tensors of the same kind."""

    @property
    def max_file_bytes(self) -> int:
        """Bytes that a file of this tensor may have; anything larger is not what was published."""
        return MIN_FILE_LIMIT + BYTES_PER_ENTRY * self.entries

    @property
    def public(self) -> bool:
        """Whether it can be downloaded."""
        return any(source.downloadable for source in self.sources)


def names() -> list[str]:
    """The tensors that have a recipe."""
    folder = files(__package__) / "tensors"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load(name: str) -> Recipe:
    """The recipe of a tensor.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    known = names()
    if name not in known:
        raise ConfigError(f"there is no tensor '{name}' in the catalogue; {nearest(name, known)}")
    return parse((files(__package__) / "tensors" / f"{name}.toml").read_text(encoding="utf-8"), name)


def parse(text: str, name: str) -> Recipe:
    """A recipe from the text of its file; unknown and missing keys are refused."""
    try:
        data = tomllib.loads(text)
        paper = data.pop("paper")
        sources = tuple(_source(source) for source in data.pop("sources"))
        plain: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in data.items()}
        recipe = Recipe(
            **plain,
            shape=tuple(paper.pop("shape")), entries=paper.pop("entries"), sources=sources,
        )  # fmt: skip
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"recipe '{name}' is not TOML: {error}") from None
    except KeyError as error:
        raise DataError(f"recipe '{name}' has no {error}") from None
    except (TypeError, DataError) as error:
        raise DataError(f"recipe '{name}': {error}") from None
    if paper:
        raise DataError(f"recipe '{name}' says more of the paper than is understood: {', '.join(paper)}")
    if recipe.name != name:
        raise DataError(f"recipe '{name}' is called '{recipe.name}'")
    if not len(recipe.modes) == len(recipe.orders) == len(recipe.shape) or not set(recipe.orders) <= set(ORDERS):
        raise DataError(f"recipe '{name}' needs a mode, an order ({', '.join(ORDERS)}) and a size for every axis")
    return recipe


def _source(data: dict[str, Any]) -> Source:
    made = []
    for file in data.pop("files"):
        made.append(DataFile(**{**file, "urls": tuple(file.get("urls", ()))}))
    return Source(**data, files=tuple(made))
