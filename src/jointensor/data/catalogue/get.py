"""Tensors by name: downloaded, or built from files of the user's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointensor.atomic import sha256 as checksum_of
from jointensor.atomic import write_text
from jointensor.data.catalogue.build import TABLE, build
from jointensor.data.catalogue.download import NotThereError, OnBytes, Retries, download
from jointensor.data.catalogue.recipes import DataFile, Recipe, Source, load
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError


@dataclass(frozen=True)
class Built:
    """A tensor of the catalogue, and how it compares with the paper's."""

    tensor: SparseTensor
    recipe: Recipe
    origin: Path
    """The file with the entries."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Shape and entries beside the paper's, as plain data."""
        paper = {"shape": list(self.recipe.shape), "entries": self.recipe.entries}
        own = {"shape": list(self.tensor.shape), "entries": len(self.tensor)}
        return {
            "name": self.recipe.name,
            "modes": list(self.tensor.mode_names),
            **own,
            "paper": paper,
            "same_as_paper": paper == own,
            "from": str(self.origin),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Fetcher:
    """Downloads files of recipes into a cache."""

    cache: Path
    on_note: Callable[[str], None] = lambda text: None
    on_bytes: Callable[[str], OnBytes] = lambda name: lambda here, total: None
    """Makes a listener to the progress of a file."""
    retries: Retries | None = None

    def fetch(self, recipe: Recipe) -> tuple[Source, Path]:
        """A source whose files are all in the cache, and their folder.

        Raises
        ------
        ConfigError
            If nothing is published.
        DataError
            If no source can be fetched; the message has the reason for each.
        """
        if not recipe.public:
            raise ConfigError(
                f"'{recipe.name}' is not public; give a file of your own: "
                f"jointensor data get {recipe.name} --from FILE. {recipe.substitute or ''}".rstrip()
            )
        cached = downloaded(recipe, self.cache)
        sources = [cached] if cached else [source for source in recipe.sources if source.downloadable]
        reasons = []
        for source in sources:
            try:
                for file in source.files:
                    self._fetch_file(file, self.cache / recipe.name / file.name, recipe.max_file_bytes)
            except DataError as error:
                reasons.append(str(error))
            else:
                return source, self.cache / recipe.name
        raise DataError(f"'{recipe.name}' cannot be fetched: {'; '.join(reasons)}")

    def _fetch_file(self, file: DataFile, path: Path, max_bytes: int) -> None:
        """Download a file unless it is in the cache; checksums that are not published are recorded beside it."""
        record = path.with_name(f"{path.name}.sha256")
        expected = file.sha256 or (record.read_text(encoding="utf-8").strip() if record.exists() else None)
        if path.is_file() and expected in (None, checksum_of(path)):
            return
        if path.is_file():
            self.on_note(f"{path} was changed or damaged after its download (checksum); downloading it again")
        assert file.url is not None  # sources with such files are not downloadable
        self.on_note(f"downloading {file.url}")
        try:
            found = download(
                file.url, path, max_bytes=max_bytes, sha256=expected, on_bytes=self.on_bytes(path.name),
                retries=self.retries,
            )  # fmt: skip
        except NotThereError:
            if not file.optional:
                raise
            self.on_note(f"{file.name} is no longer published; the tensor is built without it")
            return
        if expected is None:
            write_text(record, f"{found}\n")
            self.on_note(f"no checksum of {path.name} is published; recorded in {record} (remove it to accept another)")


def cache_folder(given: Path | None = None) -> Path:
    """Folder of downloads: as given, else ``$JOINTENSOR_CACHE``, else ``~/.cache/jointensor``."""
    named = os.environ.get("JOINTENSOR_CACHE")
    return given or (Path(named) if named else Path.home() / ".cache" / "jointensor")


def downloaded(recipe: Recipe, cache: Path) -> Source | None:
    """The source whose main file is in the cache; ``None`` if there is none."""
    return next((s for s in recipe.sources if s.downloadable and (cache / recipe.name / s.main.name).is_file()), None)


def get(name: str, origin: Path | None, fetcher: Fetcher) -> Built:
    """A tensor by its name.

    Parameters
    ----------
    name
        Name of a recipe.
    origin
        A folder with the publisher's files, or one file, instead of a download.
    fetcher
        Downloads files that are not in the cache.
    """
    recipe = load(name)
    notes = () if recipe.differs is None else (recipe.differs,)
    if origin is None:
        source, folder = fetcher.fetch(recipe)
        path = folder / source.main.name
    else:
        source, path = _find(recipe, origin)
        if source.main.sha256 is not None and checksum_of(path) != source.main.sha256:
            notes = (f"{path} is not the publisher's file: its checksum differs", *notes)
    return Built(build(recipe, source.format, path), recipe, path, notes)


def _find(recipe: Recipe, origin: Path) -> tuple[Source, Path]:
    """The source whose file with entries is ``origin`` or in that folder."""
    if not origin.exists():
        raise DataError(f"--from {origin}: there is no such folder or file")
    for source in recipe.sources:
        path = origin / source.main.name if origin.is_dir() else origin
        # a table of the user's own may have any name
        if path.is_file() and (path.name == source.main.name or source.format == TABLE):
            return source, path
    wanted = ", ".join(source.main.name for source in recipe.sources)
    raise DataError(f"{origin} has no file to build '{recipe.name}' from; give one of {wanted}")
