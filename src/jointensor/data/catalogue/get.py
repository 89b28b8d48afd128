"""Tensors by name: downloaded, or taken from a folder or file of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointensor.atomic import sha256 as checksum_of
from jointensor.atomic import write_whole
from jointensor.data.catalogue.build import build, read_stand_in
from jointensor.data.catalogue.cache import Fetcher
from jointensor.data.catalogue.recipes import Recipe, Source, load, names
from jointensor.data.formats import format_of, write_tensor
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError, RunError
from jointensor.registry import nearest

TENSORS = (".npz", ".tns", ".tns.gz")
"""Suffixes of tensor files."""


@dataclass(frozen=True)
class Built:
    """A tensor of the catalogue, and how it compares with the paper's."""

    name: str
    tensor: SparseTensor
    recipe: Recipe | None
    """``None`` for a tensor that the catalogue does not have."""
    origin: Path
    """The file with the entries."""
    stand_in: bool = False
    """Whether it is another tensor in place of the paper's."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Shape and entries beside the paper's, as plain data."""
        paper = None if self.recipe is None else {"shape": list(self.recipe.shape), "entries": self.recipe.entries}
        own = {"shape": list(self.tensor.shape), "entries": len(self.tensor)}
        return {
            "name": self.name,
            "modes": list(self.tensor.mode_names),
            **own,
            "paper": paper,
            "same_as_paper": None if paper is None else paper == own,
            "stand_in": self.stand_in,
            "from": str(self.origin),
            "notes": list(self.notes),
        }


def get(name: str, origin: Path | None, fetcher: Fetcher) -> Built:
    """A tensor by its name.

    Parameters
    ----------
    name
        Of a recipe or, with ``origin``, of a tensor file in that folder.
    origin
        A folder, or a file, to take it from instead of downloading.
    fetcher
        Downloads what is not in the cache.
    """
    if origin is None:
        recipe = load(name)
        source, folder = fetcher.fetch(recipe)
        path = folder / source.main.name
        return Built(name, build(recipe, source.format, path), recipe, path, notes=_remarks(recipe))
    if not origin.exists():
        raise DataError(f"--from {origin}: there is no such folder or file")
    return _from_folder(name, origin) if origin.is_dir() else _from_file(name, origin)


def write(tensor: SparseTensor, out: Path) -> None:
    """Write a tensor whole, as ``.npz`` or as a table, by the ending of ``out``."""
    write_whole(out, lambda draft: write_tensor(tensor, draft))


def check_out(out: Path) -> None:
    """Refuse a place that cannot be written to, before hours of work go there."""
    if format_of(out).name == "tns":
        raise ConfigError(
            f"--out {out}: .tns keeps labels in other files; write .npz, or a table such as .parquet or .csv"
        )
    if out.exists():
        raise RunError(f"{out} exists already; give another --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise RunError(f"there is no folder {out.absolute().parent} to write {out.name} to")


def _from_folder(name: str, folder: Path) -> Built:
    recipe = load(name) if name in names() else None
    if recipe is not None:
        for source in recipe.sources:
            if (folder / source.main.name).is_file():
                return _from_source(recipe, source, folder / source.main.name)
    for stem in (name, *(recipe.stand_ins if recipe is not None else ())):
        for ending in TENSORS:
            if (folder / f"{stem}{ending}").is_file():
                return _as_it_is(name, recipe, folder / f"{stem}{ending}")
    if recipe is None:
        there = sorted({p.name.split(".")[0] for p in folder.iterdir() if _is_tensor(p)} | set(names()))
        raise ConfigError(f"{folder} has no {name}.npz, and the catalogue no '{name}'; {nearest(name, there)}")
    wanted = ", ".join(
        [source.main.name for source in recipe.sources] + [f"{x}.npz" for x in (name, *recipe.stand_ins)]
    )
    raise DataError(f"{folder} has nothing to make '{name}' from; it needs one of {wanted}")


def _from_file(name: str, path: Path) -> Built:
    recipe = load(name)
    source = next((source for source in recipe.sources if source.main.name == path.name), None)
    if source is not None:
        return _from_source(recipe, source, path)
    if format_of(path).name in ("npz", "tns"):
        return _as_it_is(name, recipe, path)
    if any(source.format == "table" for source in recipe.sources):
        return Built(name, build(recipe, "table", path), recipe, path, stand_in=True, notes=_remarks(recipe))
    wanted = ", ".join(source.main.name for source in recipe.sources)
    raise DataError(f"{path.name} is not a file that '{name}' is made from; those are {wanted}, or any .npz or .tns")


def _from_source(recipe: Recipe, source: Source, path: Path) -> Built:
    notes = _remarks(recipe)
    if source.main.sha256 is not None and checksum_of(path) != source.main.sha256:
        notes = (f"{path} is not the publisher's file: its checksum differs", *notes)
    return Built(recipe.name, build(recipe, source.format, path), recipe, path, not recipe.public, notes)


def _as_it_is(name: str, recipe: Recipe | None, path: Path) -> Built:
    notes = () if recipe is None else (f"{path} was taken as it is, in the place of the paper's tensor",)
    return Built(name, read_stand_in(path), recipe, path, recipe is not None, notes)


def _is_tensor(path: Path) -> bool:
    return path.name.endswith(TENSORS) and not path.name.endswith("_labels.npz")


def _remarks(recipe: Recipe) -> tuple[str, ...]:
    return () if recipe.differs is None else (recipe.differs,)
