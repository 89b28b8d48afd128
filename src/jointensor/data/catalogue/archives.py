"""Packed files: whether they are whole, and one file out of them. Nothing is written where an archive says."""

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

from jointensor.errors import DataError

_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError)
BLOCK = 1 << 20


def check_whole_archive(path: Path) -> None:
    """Refuse a packed file that is cut off or damaged; its checksums are compared to its end."""
    name = path.name.lower()
    with _complaining(path):
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                wrong = archive.testzip()
            if wrong is not None:
                raise DataError(f"{path} is damaged at '{wrong}'")
        elif name.endswith(".gz"):
            with gzip.open(path) as packed:
                _read_through(packed)
        elif name.endswith(".bz2"):
            with bz2.open(path) as packed:
                _read_through(packed)


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
            with zipfile.ZipFile(path) as archive, archive.open(_find(path, archive.namelist(), member)) as file:
                yield file
        elif ".tar" in name:
            with tarfile.open(path) as tar:
                found = tar.extractfile(_find(path, tar.getnames(), member))
                if found is None:
                    raise DataError(f"{path}: '{member}' is not a plain file")
                with found:
                    yield found
        elif name.endswith(".gz"):
            with gzip.open(path) as unpacked:
                yield io.BufferedReader(unpacked)
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


def _read_through(file: IO[bytes] | gzip.GzipFile | bz2.BZ2File) -> None:
    while file.read(BLOCK):
        pass


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
