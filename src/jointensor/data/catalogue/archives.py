"""Packed files: complete or not, and one member of them. Nothing is written to a path taken from an archive."""

from __future__ import annotations

import bz2
import gzip
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

_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError)
BLOCK = 1 << 20


def check_whole_archive(path: Path) -> None:
    """Refuse a packed file that is cut off or damaged; its checksums are compared to its end."""
    name = path.name.lower()
    with _complaining(path):
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                check_unpacked(path, sum(member.file_size for member in archive.infolist()))
                wrong = archive.testzip()
            if wrong is not None:
                raise DataError(f"{path} is damaged at '{wrong}'")
        elif name.endswith(".gz"):
            with gzip.open(path) as packed:
                _read_through(path, packed)
        elif name.endswith(".bz2"):
            with bz2.open(path) as packed:
                _read_through(path, packed)


@contextmanager
def open_member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """The file called ``member`` of a ``.zip`` or ``.tar.*``, in any of its folders; or ``path`` itself, unpacked.

    Raises
    ------
    DataError
        If the archive is damaged, has no such file, or has names that lead out of it.
    """
    name = path.name.lower()
    with _complaining(path):
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                name = _find(path, archive.namelist(), member)
                check_unpacked(path, archive.getinfo(name).file_size)
                with archive.open(name) as file:
                    yield file
        elif ".tar" in name:
            with tarfile.open(path) as tar:
                inside = tar.getmember(_find(path, _names(path, tar), member))
                found = tar.extractfile(inside) if inside.isreg() else None  # links are not followed
                if found is None:
                    raise DataError(f"{path}: '{member}' is not a plain file")
                with found:
                    yield found
        elif name.endswith(".gz"):
            yield io.BytesIO(unpack_gzip(path))
        else:
            with path.open("rb") as plain:
                yield plain


def _find(path: Path, names: list[str], member: str) -> str:
    outside = next((name for name in names if _leads_out(name)), None)
    if outside is not None:
        raise DataError(f"{path} has a file '{outside}', which leads out of the archive: it is not the publisher's")
    found = [name for name in names if PurePosixPath(name).name == member]
    if len(found) != 1:
        raise DataError(f"{path} has {len(found) or 'no'} files called '{member}'; it has {', '.join(names[:8])}")
    return found[0]


def _leads_out(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or parts[0] == "" or parts[0].endswith(":")


def _names(path: Path, tar: tarfile.TarFile) -> list[str]:
    """Names in the order they come, as long as there is not too much between them."""
    names, size = [], 0
    for member in tar:
        names.append(member.name)
        size += member.size
        check_unpacked(path, size)
    return names


def _read_through(path: Path, file: IO[bytes] | gzip.GzipFile | bz2.BZ2File) -> None:
    size = 0
    while block := file.read(BLOCK):
        size += len(block)
        check_unpacked(path, size)


@contextmanager
def _complaining(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except _BROKEN as error:
        if isinstance(error, FileNotFoundError):
            raise DataError(f"there is no file {path}") from None
        raise DataError(f"{path} cannot be unpacked: {error} (is the file cut off?)") from None
