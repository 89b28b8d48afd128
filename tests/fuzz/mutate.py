"""Changes to valid files, most of them small: bytes, lines, numbers, structure."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

NUMBERS = (
    b"0", b"-1", b"1", b"2147483647", b"2147483648", b"4294967296", b"-9223372036854775808", b"9223372036854775807",
    b"9223372036854775808", b"18446744073709551616", b"1e308", b"1e309", b"-1e400", b"1e-400", b"nan", b"NaN", b"inf",
    b"-inf", b"Infinity", b"1_000", b"0x10", b"1.5", b"01", b"+3", b"1e", b".", b"-", b"", b"1,5", b"\xd9\xa3",
    b"9" * 400, b"0." + b"0" * 400 + b"1", b"1" + b"0" * 30, b"true", b"null",
)  # fmt: skip
TOKENS = (
    b"\0", b"\n", b"\r", b"\r\n", b"\n\n\n", b"\t", b" ", b",", b";", b"|", b'"', b'""', b"'", b"#", b"%", b"\\",
    b"\xef\xbb\xbf", b"\xff\xfe", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xa8", b"\x85",
    b"\x1f\x8b", b"PK\x03\x04", b"x\x9c", b"x\x01", b"\x28\xb5\x2f\xfd", b"[", b"{", b"}", b"]", b"../", b"\x1a",
)  # fmt: skip
_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")

Change = Callable[[random.Random, bytes], bytes]


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes] = (), text: bool = True) -> bytes:
    """One to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        if others and rng.random() < 0.08:
            data = splice(rng, data, rng.choice(others))
        else:
            data = rng.choice(TEXTUAL if text else BINARY)(rng, data)
    return data


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flip a few bits."""
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def put(rng: random.Random, data: bytes) -> bytes:
    """Overwrite some bytes with telling ones."""
    at = rng.randrange(len(data) + 1)
    some = bytes(rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))) for _ in range(rng.choice((1, 1, 2, 4, 8))))
    return data[:at] + some + data[at + len(some) :]


def cut(rng: random.Random, data: bytes) -> bytes:
    """Leave out the end."""
    return data[: rng.randrange(len(data) + 1)]


def leave_out(rng: random.Random, data: bytes) -> bytes:
    """Leave out a piece."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 1, 2, 4, 16, 64)) :]


def double(rng: random.Random, data: bytes) -> bytes:
    """Repeat a piece, a few times or many."""
    at = rng.randrange(len(data) + 1)
    piece = data[at : at + rng.choice((1, 3, 10, 40))]
    return data[:at] + piece * rng.choice((1, 1, 2, 50)) + data[at:]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def number(rng: random.Random, data: bytes) -> bytes:
    """Another number in the place of one."""
    found = list(_NUMBER.finditer(data[:4000]))
    if not found:
        return data
    one = rng.choice(found)
    return data[: one.start()] + rng.choice(NUMBERS) + data[one.end() :]


def token(rng: random.Random, data: bytes) -> bytes:
    """A piece that readers look out for, somewhere."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Repeat, drop or swap lines, or change the line ends."""
    all_lines = data.split(b"\n")
    one, two = rng.randrange(len(all_lines)), rng.randrange(len(all_lines))
    match rng.randrange(5):
        case 0:
            all_lines.insert(one, all_lines[two])
        case 1:
            del all_lines[one]
        case 2:
            all_lines[one], all_lines[two] = all_lines[two], all_lines[one]
        case 3:
            return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b"\n\n", b" \n")))
        case 4:
            all_lines[one] += rng.choice((b" ", b",", b"x")) * rng.choice((1, 2, 3000))
    return b"\n".join(all_lines)


def code(rng: random.Random, data: bytes) -> bytes:
    """The same text in another encoding."""
    text = data.decode("utf-8", errors="replace")
    return text.encode(rng.choice(("utf-16", "utf-16-be", "utf-32", "latin-1", "utf-7", "cp037")), errors="replace")


BINARY: tuple[Change, ...] = (flip, flip, put, put, cut, leave_out, double, token)
TEXTUAL: tuple[Change, ...] = (
    flip,
    put,
    cut,
    leave_out,
    double,
    number,
    number,
    number,
    token,
    token,
    lines,
    lines,
    code,
)
