"""Files that are either whole or not there: written beside their place, flushed, then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from jointensor.errors import RunError

_UMASK = os.umask(0)
os.umask(_UMASK)

_MACHINE = zlib.crc32(platform.node().encode())

DRAFT = f".writing-{_MACHINE:08x}-{os.getuid() if hasattr(os, 'getuid') else 0}-"
"""How the folders of drafts begin that processes of this machine and this user make; a process's number follows."""


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file of the same name ending, then put it in place.

    Raises
    ------
    RunError
        If it cannot be written (disk full, no permission); nothing is left behind then.
    """
    try:
        _remove_stale_drafts(path.parent)
        with tempfile.TemporaryDirectory(prefix=f"{DRAFT}{os.getpid()}-", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            write(draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.chmod(0o666 & ~_UMASK)  # some writers leave files that only their owner can read
            draft.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error


def _remove_stale_drafts(folder: Path) -> None:
    """Remove drafts that processes have left beside a file because they were killed."""
    for draft in folder.glob(f"{DRAFT}*-*"):
        pid = draft.name.removeprefix(DRAFT).partition("-")[0]
        if pid.isdecimal() and not _is_running(int(pid)):
            shutil.rmtree(draft, ignore_errors=True)


def _is_running(pid: int) -> bool:
    if os.name != "posix":  # elsewhere there is no signal that does nothing
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # somebody else's, or no number of a process
        return True
    return True


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
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Write JSON whole; numbers must be finite."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def sha256(path: Path) -> str:
    """Checksum of a file's contents.

    Raises
    ------
    RunError
        If it is there but not a regular file: a pipe or a device may never end.
    """
    if path.exists() and not path.is_file():
        raise RunError(f"{path} is not a regular file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
