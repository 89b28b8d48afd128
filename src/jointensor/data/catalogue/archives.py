"""One file of a packed archive. Nothing is written to a path taken from an archive."""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from jointensor.data.formats.base import check_unpacked, unpack_gzip
from jointensor.errors import DataError

_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError)
"""Exceptions that a damaged archive causes; ``RuntimeError`` if it is encrypted."""


@contextmanager
def open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """Open the file ``member`` of a ``.zip`` or ``.tar.*``, in any of its folders; or ``path`` itself, uncompressed.

    Raises
    ------
    DataError
        If the archive is damaged, has no such file, or has paths outside of the archive.
    """
    name = path.name.lower()
    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                inside = _find(path, archive.namelist(), member)
                check_unpacked(path, archive.getinfo(inside).file_size)
                with archive.open(inside) as file:
                    yield file
        elif ".tar" in name:
            with tarfile.open(path) as tar:
                entry = tar.getmember(_find(path, _tar_names(path, tar), member))
                found = tar.extractfile(entry) if entry.isreg() else None  # links are not followed
                if found is None:
                    raise DataError(f"{path}: '{member}' is not a regular file")
                with found:
                    yield found
        elif name.endswith(".gz"):
            yield io.BytesIO(unpack_gzip(path))
        else:
            with path.open("rb") as plain:
                yield plain
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except _DAMAGE as error:
        raise DataError(f"{path} cannot be unpacked: {error} (is the file cut off?)") from None


def _find(path: Path, names: list[str], member: str) -> str:
    outside = next((name for name in names if _is_outside(name)), None)
    if outside is not None:
        raise DataError(f"{path} has a file '{outside}', a path outside of the archive: it is not the publisher's file")
    found = [name for name in names if PurePosixPath(name).name == member]
    if len(found) != 1:
        raise DataError(f"{path} has {len(found) or 'no'} files called '{member}'; it has {', '.join(names[:8])}")
    return found[0]


def _is_outside(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or parts[0] == "" or parts[0].endswith(":")


def _tar_names(path: Path, tar: tarfile.TarFile) -> list[str]:
    """Names in the archive; stops where it unpacks to too much."""
    names, size = [], 0
    for entry in tar:
        names.append(entry.name)
        size += entry.size
        check_unpacked(path, size)
    return names
