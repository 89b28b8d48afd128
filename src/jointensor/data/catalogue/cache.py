"""The download cache, and the recorded checksums of files whose publishers state none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jointensor.atomic import sha256 as checksum_of
from jointensor.atomic import write_json
from jointensor.data.catalogue.archives import check_whole_archive
from jointensor.data.catalogue.download import ChecksumError, NotThereError, OnBytes, Patience, download
from jointensor.data.catalogue.recipes import DataFile, Recipe, Source
from jointensor.errors import ConfigError, DataError

CHECKSUMS = "checksums.json"
"""File beside the folders of the tensors: checksums of files at their first download."""


def cache_folder(given: Path | None = None) -> Path:
    """Folder of downloads: as given, else ``$JOINTENSOR_CACHE``, else ``~/.cache/jointensor``."""
    if given is not None:
        return given
    named = os.environ.get("JOINTENSOR_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "jointensor"


def downloaded(recipe: Recipe, cache: Path) -> Source | None:
    """The source whose main file is in the cache; ``None`` where there is none."""
    return next((s for s in recipe.sources if s.downloadable and (cache / recipe.name / s.main.name).is_file()), None)


@dataclass
class Fetcher:
    """Downloads the files of a recipe into the cache."""

    cache: Path
    on_note: Callable[[str], None] = field(default=lambda text: None)
    on_bytes: Callable[[str], OnBytes] | None = None
    """Makes a listener to the progress of a file."""
    patience: Patience = field(default_factory=Patience)

    def fetch(self, recipe: Recipe) -> tuple[Source, Path]:
        """A source whose files are all in the cache, and their folder.

        Raises
        ------
        ConfigError
            If nothing is published.
        DataError
            If no source can be fetched; the message has the reason for each.
        """
        sources = [source for source in recipe.sources if source.downloadable]
        if not sources:
            raise ConfigError(
                f"'{recipe.name}' is not public; give a file of your own: "
                f"jointensor data get {recipe.name} --from FILE. {recipe.substitute or ''}".rstrip()
            )
        here = downloaded(recipe, self.cache)
        sources.sort(key=lambda source: source is not here)  # prefer the one in the cache
        folder = self.cache / recipe.name
        reasons = []
        for source in sources:
            try:
                for file in source.files:
                    self._fetch_file(recipe, file, folder)
            except DataError as error:
                reasons.append(str(error))
            else:
                return source, folder
        raise DataError(f"'{recipe.name}' cannot be fetched: {'; '.join(reasons)}")

    def _fetch_file(self, recipe: Recipe, file: DataFile, folder: Path) -> None:
        path, key = folder / file.name, f"{recipe.name}/{file.name}"
        expected = file.sha256 or self._recorded(key)
        if path.is_file() and self._is_good(path, expected, key):
            return
        reasons: list[DataError] = []
        for url in file.urls:
            try:
                self._download(url, path, expected, key, recipe.max_file_bytes)
            except DataError as error:
                reasons.append(error)
            else:
                return
        if file.optional and all(isinstance(reason, NotThereError) for reason in reasons):
            self.on_note(f"{file.name} is not there (any more); the tensor is made without it")
            return
        raise DataError("; ".join(map(str, reasons)))

    def _is_good(self, path: Path, expected: str | None, key: str) -> bool:
        """Whether a file in the cache can be used; one that cannot is removed."""
        try:
            if expected is None:
                check_whole_archive(path)
                self._record(key, checksum_of(path), path.stat().st_size, None)
                return True
            if checksum_of(path) == expected:
                return True
            reason = f"{path} is not what was downloaded (its checksum differs)"
        except DataError as error:
            reason = str(error)
        self.on_note(f"{reason}; it is fetched again")
        path.unlink()
        return False

    def _download(self, url: str, path: Path, expected: str | None, key: str, max_bytes: int) -> None:
        self.on_note(f"downloading {url}")
        listener = None if self.on_bytes is None else self.on_bytes(path.name)
        try:
            found = download(url, path, sha256=expected, max_bytes=max_bytes, on_bytes=listener, patience=self.patience)
        except ChecksumError as error:
            if key not in self._read():
                raise
            raise ChecksumError(
                f"{error} (that checksum was recorded at the first download; to accept the publisher's new file, "
                f"remove '{key}' from {self.cache / CHECKSUMS})"
            ) from None
        if expected is not None:
            return
        try:
            check_whole_archive(path)
        except DataError:
            path.unlink()
            raise
        self._record(key, found, path.stat().st_size, url)
        self.on_note(f"nobody published a checksum of {path.name}; this one was recorded in {self.cache / CHECKSUMS}")

    def _recorded(self, key: str) -> str | None:
        entry = self._read().get(key)
        return None if entry is None else str(entry["sha256"])

    def _record(self, key: str, sha256: str, size: int, url: str | None) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"sha256": sha256, "bytes": size, "url": url, "first_seen": when}
        write_json(self.cache / CHECKSUMS, {**self._read(), key: entry})

    def _read(self) -> dict[str, dict[str, Any]]:
        path = self.cache / CHECKSUMS
        if not path.exists():
            return {}
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if all(isinstance(entry["sha256"], str) for entry in known.values()):
                return dict(known)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            pass
        raise DataError(f"{path} cannot be read; remove it, and checksums are recorded anew")
