r"""Text that is safe to print: without control characters from the data, and without what the stream cannot encode.

Labels, column names and file names come from files that others wrote. Printed as they are, an escape sequence among
them could clear the screen, set the window's title or hide what follows. So control characters are shown as escapes,
``\x1b`` for ESC. Files keep all labels as they are.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from typing import Any

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""C0 and C1 controls (ESC and CSI among them), delete, line separators, and marks that turn the direction of text."""

LOOKALIKES = {"–": "-", "—": "-", "−": "-", "…": "...", "×": "x", "±": "+-", "·": ".", "→": "->", "“": '"', "”": '"'}
"""What messages use beyond ASCII, in ASCII."""

HANDLER = "jointensor.degrade"

LINE_EVERY = 5.0
"""Seconds between progress lines where there is no progress bar."""


def visible(text: str) -> str:
    r"""A text with escapes instead of control characters.

    >>> print(visible("a" + chr(27) + "[2J"))
    a\x1b[2J
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def json_text(data: Any, encoding: str | None) -> str:
    """Data as JSON that a stream of an encoding can take, without control characters."""
    utf = (encoding or "utf-8").lower().replace("_", "-").startswith("utf")
    text = json.dumps(data, indent=2, ensure_ascii=not utf)
    # json escapes those below 32 itself; what is left here is the line breaks between fields
    return CONTROLS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def _degrade(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    pieces = (LOOKALIKES.get(one) or one.encode("ascii", "backslashreplace").decode("ascii") for one in text)
    return "".join(pieces), error.end


def degrade_output() -> None:
    """Let standard output and error replace what their encoding lacks, where they would fail otherwise."""
    codecs.register_error(HANDLER, _degrade)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not those that a test or a notebook has put there
            stream.reconfigure(errors=HANDLER)
