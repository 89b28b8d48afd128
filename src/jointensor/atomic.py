"""Files that are either whole or not there: written beside their place, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jointensor.errors import RunError

_UMASK = os.umask(0)
os.umask(_UMASK)


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file of the same name ending, then put it in place.

    Raises
    ------
    RunError
        If it cannot be written (disk full, no permission); nothing is left behind then.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            write(draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.chmod(0o666 & ~_UMASK)  # some writers leave files that only their owner can read
            draft.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _flush_folder(folder: Path) -> None:
    """Let a renaming outlast a loss of power; not every file system can be asked to."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole."""

    def write(draft: Path) -> None:
        draft.write_bytes(data)

    write_whole(path, write)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""

    def write(draft: Path) -> None:
        draft.write_text(text, encoding="utf-8")

    write_whole(path, write)


def write_json(path: Path, data: Any) -> None:
    """Write JSON whole; numbers must be finite."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """Checksum of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
