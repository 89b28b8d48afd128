"""Downloads: resumable, verified, limited in size, and never partial under the final name.

Bytes that have arrived are in ``FILE.part``. ``FILE.part.json`` has their address and their version (entity tag), so
that a file that changed in the meantime is fetched from the beginning.
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
from pathlib import Path
from typing import IO, Any, NoReturn

from jointensor._version import __version__
from jointensor.atomic import sha256 as checksum_of
from jointensor.atomic import write_json
from jointensor.errors import ConfigError, DataError, RunError

OnBytes = Callable[[int, int | None], None]
"""Called with the number of bytes that have arrived and the size of the file, ``None`` if it is unknown."""

SCHEMES = ("http", "https")
BLOCK = 1 << 18
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes after which a download is tried again."""


class NotThereError(DataError):
    """The server has no such file."""


class _TooLargeError(Exception):
    """The file is larger than the limit."""


class _InterruptedError(Exception):
    """The connection failed or ended early; the bytes that have arrived are kept."""


@dataclass(frozen=True)
class Retries:
    """Timeout and retries of a download."""

    timeout: float = 30.0
    """Seconds without a byte until a connection counts as lost."""
    tries: int = 5
    """Connections per file."""
    pause: float = 1.0
    """Seconds before the second try; doubled before each further one."""
    sleep: Callable[[float], None] = time.sleep


def download(
    url: str,
    path: Path,
    *,
    max_bytes: int,
    sha256: str | None = None,
    on_bytes: OnBytes = lambda here, total: None,
    retries: Retries | None = None,
) -> str:
    """Fetch ``url`` into ``path``, resuming an interrupted call, and return the SHA-256 checksum.

    Parameters
    ----------
    url
        ``http`` or ``https``.
    path
        The file to write; it appears when it is complete and verified.
    max_bytes
        Largest size that is accepted.
    sha256
        The expected checksum; a file with another checksum is removed.
    on_bytes
        Called with the progress.
    retries
        Timeout and retries.

    Raises
    ------
    NotThereError
        If the server has no such file.
    DataError
        If it cannot be fetched completely, is larger than ``max_bytes``, or has another checksum.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise ConfigError(f"'{url}' is not an http or https address; use files of your own with --from")
    retries = retries or Retries()
    partial = _Partial(url, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path.parent} cannot be created: {error.strerror}") from error
    reason = ""
    for turn in range(retries.tries):
        if turn:
            retries.sleep(retries.pause * 2 ** (turn - 1))
        try:
            _transfer(partial, retries.timeout, max_bytes, on_bytes)
            break
        except _TooLargeError as error:
            partial.remove()
            raise DataError(f"{url} {error}: it is not the published file, or has to be downloaded by hand") from None
        except _InterruptedError as error:
            reason = str(error)
    else:
        raise DataError(
            f"{url} could not be fetched in {retries.tries} tries ({reason}); {partial.size():,} bytes are kept in "
            f"{partial.data}: repeat the command to resume"
        )
    found = checksum_of(partial.data)
    if sha256 is not None and found != sha256:
        partial.remove()
        raise DataError(
            f"{url} has the SHA-256 checksum {found}, expected {sha256}: it is corrupt, or the publisher changed it; "
            "the download was removed, try again"
        )
    partial.data.replace(path)
    partial.remove()
    return found


class _Partial:
    """The bytes of a file that have arrived."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.data, self.note = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")

    def size(self) -> int:
        """Number of bytes."""
        return self.data.stat().st_size if self.data.exists() else 0

    def resumable(self) -> tuple[int, str]:
        """Number of bytes that a transfer can continue from, and the version of the file they belong to."""
        try:
            known = json.loads(self.note.read_text(encoding="utf-8"))
            if known["url"] == self.url and isinstance(known["version"], str):
                return self.size(), known["version"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0, ""

    def remove(self) -> None:
        """Remove both files."""
        self.data.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _transfer(partial: _Partial, timeout: float, max_bytes: int, on_bytes: OnBytes) -> None:
    """One connection: append the missing bytes of the file."""
    here, version = partial.resumable()
    headers = {"User-Agent": f"jointensor/{__version__}", "Accept-Encoding": "identity"}
    if here:
        headers |= {"Range": f"bytes={here}-", "If-Range": version}
    try:
        response = _OPENER.open(urllib.request.Request(partial.url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        _refused(partial, error.code)
    except (OSError, http.client.HTTPException) as error:
        raise _InterruptedError(_reason(error)) from None
    with response:
        start, total = _extent(response)
        tag = response.headers.get("ETag") or ""
        found = response.headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag  # W/: a weak tag
        if total is not None and total > max_bytes:
            raise _TooLargeError(f"has {total:,} bytes, more than the limit of {max_bytes:,}")
        if start and (start != here or found not in (None, version)):
            partial.remove()  # some servers do not honour Range and If-Range
            raise _InterruptedError(f"the server did not continue after {here:,} bytes")
        try:
            write_json(partial.note, {"url": partial.url, "version": found})
            with partial.data.open("ab" if start else "wb") as file:
                _copy(response, file, start, total, max_bytes, on_bytes)
        except OSError as error:
            raise RunError(f"{partial.data} cannot be written: {error.strerror or error}") from error


def _copy(response: Any, file: IO[bytes], here: int, total: int | None, max_bytes: int, on_bytes: OnBytes) -> None:
    while True:
        try:
            block = response.read(BLOCK)
        except http.client.IncompleteRead as error:
            file.write(error.partial)
            raise _InterruptedError("the connection ended early") from None
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedError(_reason(error)) from None
        if not block:
            break
        here += len(block)
        if here > max_bytes:
            raise _TooLargeError(f"has more bytes than the limit of {max_bytes:,}")
        file.write(block)
        on_bytes(here, total)
    file.flush()
    os.fsync(file.fileno())
    if total is not None and here < total:
        raise _InterruptedError(f"the connection ended after {here:,} of {total:,} bytes")


def _extent(response: Any) -> tuple[int, int | None]:
    """Position at which the response starts (-1 if unknown), and the size of the file if it is given."""
    if response.status == http.client.PARTIAL_CONTENT:
        match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        return (-1, None) if match is None else (int(match[1]), None if match[2] == "*" else int(match[2]))
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _refused(partial: _Partial, code: int) -> NoReturn:
    if code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
        partial.remove()
        raise _InterruptedError("the file is not longer than the bytes that had arrived")
    if code in TRANSIENT:
        raise _InterruptedError(f"HTTP status {code}")
    if code in (http.client.NOT_FOUND, http.client.GONE):
        raise NotThereError(f"{partial.url} does not exist (HTTP {code}): download it by hand, and give it with --from")
    raise DataError(f"{partial.url} cannot be fetched: HTTP {code} {http.client.responses.get(code, '')}".rstrip())


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    return " ".join(str(inner).split()) or type(inner).__name__


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https addresses, and never from https to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request that follows a redirect."""
        before, after = (urllib.parse.urlsplit(url).scheme.lower() for url in (req.full_url, newurl))
        if after not in SCHEMES:
            raise DataError(f"{req.full_url} redirects to {newurl}, which is not an http or https address")
        if before == "https" and after == "http":
            raise DataError(f"{req.full_url} redirects to {newurl}, which is not encrypted: anyone could change it")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SafeRedirects)
