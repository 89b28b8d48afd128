"""Finished fits of a search on disk, so that a search that was stopped goes on from them.

A fit is two files: the model, and after it a record with the checksum of the model and a fingerprint of the search.
Both are written whole or not at all. A fit whose files are damaged, or that belongs to another search, is discarded
with a note and made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from jointensor.atomic import sha256, write_json, write_whole
from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.predictors import Predictor
from jointensor.predictors.storage import load_predictor, save_predictor


class FitStore:
    """Fits by key, in a folder.

    Parameters
    ----------
    folder
        Made with the first fit; ``None``: nothing is stored.
    fingerprint
        Of everything that decides the fits beside their keys.
    on_note
        Called with a line for the user.
    """

    def __init__(self, folder: Path | None, fingerprint: str, on_note: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._fingerprint, self._on_note = folder, fingerprint, on_note
        self._seconds: dict[str, float] = {}  # of fits that are known to be whole

    def has(self, key: str) -> bool:
        """Whether there is an undamaged fit of this search; one that is damaged is discarded."""
        if self._folder is None or not (self._folder / f"{key}.safetensors").exists():
            return False
        if key not in self._seconds:
            try:
                self._seconds[key] = self._check(self._folder, key)
            except (OSError, ValueError, LookupError, TypeError) as error:
                self._discard(self._folder, key, str(error))
        return key in self._seconds

    def load(self, key: str) -> tuple[Predictor, float] | None:
        """A fit, and the seconds that it took; ``None`` if there is none that can be used."""
        if self._folder is None or not self.has(key):
            return None
        try:
            return load_predictor(self._folder / f"{key}.safetensors"), self._seconds[key]
        except RunError as error:
            self._discard(self._folder, key, str(error))
            return None

    def save(self, key: str, part: Predictor, seconds: float) -> None:
        """Write a fit that is not there yet; the record comes last."""
        if self._folder is None or key in self._seconds:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self._folder} cannot be made: {error.strerror or error}") from error
        path = self._folder / f"{key}.safetensors"
        write_whole(path, lambda draft: save_predictor(part, draft))
        record = {"sha256": sha256(path), "seconds": seconds, "fingerprint": self._fingerprint}
        write_json(self._folder / f"{key}.json", record)
        self._seconds[key] = seconds

    def _check(self, folder: Path, key: str) -> float:
        """Seconds of an undamaged fit; raises an error that says what is wrong with it."""
        record = json.loads((folder / f"{key}.json").read_text(encoding="utf-8"))
        if record["fingerprint"] != self._fingerprint:
            raise ValueError("it belongs to another search")
        if record["sha256"] != sha256(folder / f"{key}.safetensors"):
            raise ValueError("its checksum is wrong")
        return float(record["seconds"])

    def _discard(self, folder: Path, key: str, reason: str) -> None:
        """Remove a fit that cannot be used."""
        self._on_note(f"Stored fit {key} cannot be used ({reason}); it is fitted again.")
        self._seconds.pop(key, None)
        for ending in ("json", "safetensors"):
            (folder / f"{key}.{ending}").unlink(missing_ok=True)


def fingerprint_of(tensor: SparseTensor, *options: object) -> str:
    """A checksum of the entries and of options that decide fits."""
    digest = hashlib.sha256(repr((tensor.shape, [mode.order for mode in tensor.modes], options)).encode())
    digest.update(tensor.indices.tobytes())
    digest.update(tensor.values.tobytes())
    return digest.hexdigest()
