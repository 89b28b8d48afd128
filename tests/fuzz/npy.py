"""NumPy arrays and zip archives byte by byte, so that they can lie about themselves."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from functools import cache

import numpy as np

HUGE = (0, 1, -1, 2, 7, 10**6, 2**31, 2**40, 2**62, 2**63 - 1, 2**64, 10**30)
DTYPES = (
    "'<f4'", "'<f8'", "'>f8'", "'<i4'", "'<i8'", "'|u1'", "'|b1'", "'|O'", "'<U5'", "'|S3'", "'<c16'", "'<M8[D]'",
    "'<m8[ns]'", "'<f2'", "'<U999999999'", "'|V8'", "'<i3'", "'S0'", "[('a', '<i4'), ('b', '|O')]", "[]", "None", "7",
    "'<f4', (2, 2)", "'" + "x" * 200 + "'",
)  # fmt: skip


def header(descr: str, order: str, shape: str, version: tuple[int, int] = (1, 0)) -> bytes:
    """Of a ``.npy`` file, as written: nothing is checked."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode("latin-1", "replace")
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + b"\n"
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text) & (0xFFFF if version == (1, 0) else 0xFFFFFFFF))
    return b"\x93NUMPY" + bytes(version) + size + text


def lying_array(rng: random.Random, array: np.ndarray) -> bytes:
    """An array whose header says something else."""
    descr, order, shape = repr(array.dtype.str), "False", repr(array.shape)
    match rng.randrange(5):
        case 0:
            shape = repr(tuple(rng.choice(HUGE) for _ in range(rng.randrange(4))))
        case 1:
            descr = rng.choice(DTYPES)
        case 2:
            shape = rng.choice(("[2, 3]", "(2.0, 3)", "None", "()", "(1,)", "'x'", "(" * 300 + ")" * 300, "(True, 3)"))
        case 3:
            order = rng.choice(("True", "None", "0", "__import__('os').system('touch pwned')"))
        case 4:
            shape, descr = repr((rng.choice(HUGE),) * rng.choice((1, 2, 40))), rng.choice(DTYPES)
    version = rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    return header(descr, order, shape, version) + array.tobytes()


def plain_array(array: np.ndarray) -> bytes:
    """An array as NumPy writes it, objects pickled."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def pack(members: list[tuple[str, bytes]], deflated: bool = False) -> bytes:
    """A zip archive; names may repeat and lead anywhere."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = archive.compression
            archive.writestr(info, data)
    return file.getvalue()


@cache
def bomb(size: int, start: bytes = b"") -> bytes:
    """Zeros that unpack to ``size`` bytes, as a raw deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = bytes(1 << 20)
    first = packer.compress(start + bytes((1 << 20) - len(start)))
    return first + b"".join(packer.compress(block) for _ in range((size >> 20) - 1)) + packer.flush()


def npy_bomb(size: int) -> bytes:
    """An array of zeros, packed."""
    head = header("'|u1'", "False", repr((size - 128, 1)))
    return bomb(size, head)


def zip_of_raw(name: str, raw: bytes, size: int, crc: int = 0) -> bytes:
    """An archive with one member that is packed already and says to be ``size`` bytes long."""
    encoded, low = name.encode(), min(size, 0xFFFFFFFF)
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, crc, len(raw), low, len(encoded), 0)
    local = b"PK\x03\x04" + fields + encoded + raw
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + encoded
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end
