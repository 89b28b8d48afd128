"""Resumable, verified downloads of limited size that never leave a partial file under its final name.

Bytes that have arrived are in ``FILE.part``; ``FILE.part.json`` has the version of the file they belong to, so that a
file that changed meanwhile is fetched from its beginning.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any, NoReturn

from jointensor._version import __version__
from jointensor.atomic import sha256 as checksum_of
from jointensor.atomic import write_json
from jointensor.errors import ConfigError, DataError, RunError

OnBytes = Callable[[int, int | None], None]
"""Called with the bytes that have arrived and, where it is known, the size of the file."""

WEB = ("http", "https")
BLOCK = 1 << 18
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""HTTP answers after which a download is tried again."""
MAX_BYTES = 1 << 34
"""Bytes of a file of which nothing else is known: 16 GiB, several times the largest tensor of the catalogue."""


class NotThereError(DataError):
    """The publisher has no such file (any more)."""


class ChecksumError(DataError):
    """A file is not the one it should be."""


class _TooLargeError(Exception):
    """The file is larger than is expected."""


class _CutOffError(Exception):
    """The connection failed or ended early; the bytes that have arrived are kept."""


@dataclass(frozen=True)
class Patience:
    """Timeouts and retries of a download."""

    timeout: float = 30.0
    """Seconds without a byte before a connection counts as lost."""
    tries: int = 5
    """Connections for one file."""
    pause: float = 1.0
    """Seconds before the second try; twice as many before each further one."""
    sleep: Callable[[float], None] = time.sleep
    """Waits so many seconds."""


def download(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    max_bytes: int = MAX_BYTES,
    on_bytes: OnBytes | None = None,
    patience: Patience | None = None,
) -> str:
    """Fetch ``url`` into ``path``, resuming an earlier call that was interrupted, and return the SHA-256 checksum.

    Parameters
    ----------
    url
        ``http`` or ``https``.
    path
        The file to write; it appears when it is complete and verified.
    sha256
        The expected checksum; a file with another checksum is removed.
    max_bytes
        Largest size that is accepted; more bytes are not stored.
    on_bytes
        Called with the progress.
    patience
        Time-outs and retries.

    Raises
    ------
    NotThereError
        If the server says that it has no such file.
    ChecksumError
        If the checksum differs.
    DataError
        If it cannot be fetched whole, or is larger than ``max_bytes``.
    """
    check_url(url)
    patience = patience or Patience()
    part, note = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be made: {error.strerror}") from error
    reason = ""
    for turn in range(patience.tries):
        if turn:
            patience.sleep(patience.pause * 2 ** (turn - 1))
        try:
            _transfer(url, part, note, patience.timeout, max_bytes, on_bytes)
            break
        except _TooLargeError as error:
            _forget(part, note)
            raise DataError(f"{url} {error}; it is not the file that was published, or fetch it by hand") from None
        except _CutOffError as error:
            reason = str(error)
    else:
        here = part.stat().st_size if part.exists() else 0
        raise DataError(
            f"{url} could not be fetched in {patience.tries} tries ({reason}); {here:,} bytes are kept in {part}: "
            "repeat the command to go on from there"
        )
    found = checksum_of(part)
    note.unlink(missing_ok=True)
    if sha256 is not None and found != sha256:
        part.unlink()
        raise ChecksumError(
            f"{url} has the SHA-256 checksum {found}, expected {sha256}: it is corrupt, or its publisher changed it; "
            "the file was removed, try again"
        )
    part.replace(path)
    return found


def check_url(url: str) -> None:
    """Refuse addresses that are not on the web."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in WEB or not parts.hostname:
        raise ConfigError(f"'{url}' is not an http or https address; give files of your own with --from")


def _transfer(url: str, part: Path, note: Path, timeout: float, max_bytes: int, on_bytes: OnBytes | None) -> None:
    """One connection: append the missing bytes of the file to ``part``."""
    here, version = _partial(url, part, note)
    headers = {"User-Agent": f"jointensor/{__version__}", "Accept-Encoding": "identity"}
    if here:
        headers |= {"Range": f"bytes={here}-", "If-Range": version}
    try:
        response = _OPENER.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        _refused(url, error.code, part, note)
    except (OSError, http.client.HTTPException) as error:
        raise _CutOffError(_reason(error)) from None
    with response:
        start, total = _extent(response, here)
        if total is not None and total > max_bytes:
            raise _TooLargeError(f"has {total:,} bytes, and at most {max_bytes:,} are expected")
        if start and (start != here or _version(response.headers) not in (None, version)):
            _forget(part, note)  # not every server does what Range and If-Range ask for
            raise _CutOffError(f"the server did not go on after the {here:,} bytes that were here")
        try:
            write_json(note, {"url": url, "version": _version(response.headers), "bytes": total})
            with part.open("ab" if start else "wb") as file:
                _copy(response, file, start, total, max_bytes, on_bytes)
        except OSError as error:
            raise RunError(f"{part} cannot be written: {error.strerror or error}") from error


def _copy(
    response: Any, file: IO[bytes], here: int, total: int | None, max_bytes: int, on_bytes: OnBytes | None
) -> None:
    while True:
        try:
            block = response.read(BLOCK)
        except http.client.IncompleteRead as error:
            file.write(error.partial)
            raise _CutOffError("the connection ended early") from None
        except (OSError, http.client.HTTPException) as error:
            raise _CutOffError(_reason(error)) from None
        if not block:
            break
        here += len(block)
        if here > max_bytes:
            raise _TooLargeError(f"has more than the {max_bytes:,} bytes that are expected")
        file.write(block)
        if on_bytes is not None:
            on_bytes(here, total)
    file.flush()
    os.fsync(file.fileno())
    if total is not None and here < total:
        raise _CutOffError(f"the connection ended after {here:,} of {total:,} bytes")


def _partial(url: str, part: Path, note: Path) -> tuple[int, str]:
    """Number of bytes of an earlier try that can be resumed, and the version of the file they belong to."""
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        here, version, total = part.stat().st_size, known["version"], known["bytes"]
        if known["url"] == url and isinstance(version, str) and version and (total is None or here < total):
            return here, version
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _extent(response: Any, here: int) -> tuple[int, int | None]:
    """Position at which the answer starts, and the length of the whole file where it is given."""
    if response.status == http.client.PARTIAL_CONTENT:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        if match is None:
            return -1 if here else 0, None
        return int(match[1]), None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _version(headers: Message) -> str | None:
    """Version of a file: a strong entity tag, or the time of its last change."""
    tag = headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified")


def _refused(url: str, code: int, part: Path, note: Path) -> NoReturn:
    if code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        _forget(part, note)
        raise _CutOffError("the file became shorter than what had arrived of it")
    if code in TRANSIENT:
        raise _CutOffError(f"the server answered {code}")
    if code in (http.client.NOT_FOUND, http.client.GONE):
        raise NotThereError(f"{url} is not there (HTTP {code}): fetch it by hand, and give its folder with --from")
    raise DataError(
        f"{url} cannot be fetched: the server answered {code} {http.client.responses.get(code, '')}".rstrip()
    )


def _forget(part: Path, note: Path) -> None:
    part.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    return " ".join(str(inner).split()) or type(inner).__name__


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to web addresses, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request that follows a redirection."""
        before, after = (urllib.parse.urlsplit(url).scheme.lower() for url in (req.full_url, newurl))
        if after not in WEB:
            raise DataError(f"{req.full_url} leads to {newurl}, which is not an http or https address")
        if before == "https" and after == "http":
            raise DataError(f"{req.full_url} leads to {newurl}, which is not encrypted: anybody could change the file")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SafeRedirects)
