"""Tables that polars reads: Parquet, Arrow, JSON lines; and queries that are read in parts."""

from __future__ import annotations

import datetime
import io
import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.base import Case, Reader
from tests.fuzz.mutate import NUMBERS, mutated

COLUMNS = ("user", "movie", "day")


def frames() -> list[Any]:
    """Small tables with columns of every type that labels and values may have."""
    import polars as pl

    days = [datetime.date(2020, 1, 1 + n) for n in range(6)]
    plain = pl.DataFrame({
        "user": ["ann", "bob", "Ü", "", None, "ann"], "movie": [1, 2, 3, 4, 5, -1], "day": days,
        "rating": [1.5, 2.0, -3.0, 1e300, float("nan"), None],
    })  # fmt: skip
    good = pl.DataFrame({
        "user": [f"u{n % 7}" for n in range(40)], "movie": [n // 7 for n in range(40)],
        "day": [days[n % 6] for n in range(40)],
        "rating": np.arange(40, dtype=np.float32),
    })  # fmt: skip
    typed = good.with_columns(
        pl.col("user").cast(pl.Categorical), pl.col("movie").cast(pl.UInt8), pl.col("day").cast(pl.Datetime("ms")),
        flag=pl.col("movie") > 2, nothing=pl.lit(None), amount=pl.col("rating").cast(pl.Decimal(10, 2)),
    )  # fmt: skip
    nested = good.with_columns(
        many=pl.concat_list("movie", "movie"), both=pl.struct("user", "movie"), raw=pl.col("user").cast(pl.Binary),
        user=pl.col("user").cast(pl.Enum([f"u{n}" for n in range(7)])),
    )  # fmt: skip
    return [plain, good, typed, nested, good.clear()]


def modes() -> tuple[Any, ...]:
    """Modes that queries are asked for."""
    from jointensor.data.modes import Mode

    days = tuple(f"2020-01-0{n + 1}" for n in range(6))
    return (Mode("user", 7, tuple(f"u{n}" for n in range(7))), Mode("movie", 6), Mode("day", 6, days))


class Table(Reader):
    """A file as a tensor, as queries or as test entries, by its name."""

    ending: str
    modules = ("data/formats/__init__.py", "data/frames.py", "data/queries.py")

    def read(self, folder: Path) -> None:
        """By the rules that the file's name asks for."""
        from jointensor.data.formats import read_tensor
        from jointensor.data.frames import TableSpec
        from jointensor.data.queries import read_entries, read_queries

        path = next(iter(folder.iterdir()))
        spec = TableSpec.of(COLUMNS, "rating", duplicates="mean" if path.stem == "entries" else "error")
        if path.stem == "queries":
            read_queries(path, modes(), spec, values=False)
        elif path.stem == "entries":
            read_entries(path, modes(), spec)
        else:
            read_tensor(path, spec)

    def named(self, rng: random.Random, data: bytes) -> Case:
        """A case under one of the names."""
        return {f"{rng.choice(('tensor', 'queries', 'entries'))}.{self.ending}": data}


class Parquet(Table):
    """Parquet: pages, and the description of them at the end."""

    name, ending = "parquet", "parquet"
    modules = ("data/formats/parquet.py",)

    def __init__(self) -> None:
        self.files = []
        for frame in frames():
            for packing in ("uncompressed", "snappy", "zstd", "gzip", "lz4"):
                file = io.BytesIO()
                frame.write_parquet(file, compression=packing, row_group_size=16, statistics=packing != "gzip")
                self.files.append(file.getvalue())

    def case(self, rng: random.Random) -> Case:
        """Bytes anywhere, in the description only, or its length."""
        data = rng.choice(self.files)
        size = struct.unpack("<I", data[-8:-4])[0]
        match rng.randrange(6):
            case 0:
                data = mutated(rng, data, self.files, text=False)
            case 1:
                length = rng.choice((0, 1, size - 1, size + 1, len(data), 2**31 - 1, 2**31, 2**32 - 1))
                data = data[:-8] + struct.pack("<I", length) + data[-4:]
            case 2:
                pages = mutated(rng, data[4 : -8 - size], (), text=False)
                data = data[:4] + pages + data[-8 - size :]
            case _:
                about = mutated(rng, data[-8 - size : -8], (), text=False)
                data = data[: -8 - size] + about + struct.pack("<I", len(about)) + data[-4:]
        return self.named(rng, data)


class Arrow(Table):
    """Arrow's files, and its streams under the same name."""

    name = "arrow"
    modules = ("data/formats/arrow.py",)

    def __init__(self) -> None:
        self.files = []
        for frame in frames():
            for packing in ("uncompressed", "lz4", "zstd"):
                file = io.BytesIO()
                frame.write_ipc(file, compression=packing)
                self.files.append(file.getvalue())
            file = io.BytesIO()
            frame.write_ipc_stream(file)
            self.files.append(file.getvalue())

    def case(self, rng: random.Random) -> Case:
        """Bytes anywhere, or whole numbers where offsets and lengths are."""
        self.ending = rng.choice(("arrow", "feather", "ipc"))
        data = rng.choice(self.files)
        if rng.random() < 0.5:
            data = mutated(rng, data, self.files, text=False)
        else:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2))):
                at = rng.randrange(0, len(changed) - 8, 4)
                odd = rng.choice((0, 1, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1))
                changed[at : at + 8] = struct.pack("<Q", odd)
            data = bytes(changed)
        return self.named(rng, data)


class JsonLines(Table):
    """An object a line."""

    name, ending = "jsonl", "jsonl"
    texts = (
        b'{"user":"u1","movie":1,"day":"2020-01-01","rating":2.5}\n{"user":"u2","movie":2,"day":"2020-01-02","rating":1}\n',
        b'{"user":"a","movie":1.0,"day":null,"rating":true}\n\n{"movie":"2","user":"b","rating":"3","day":"x"}',
        b'{"user":{"a":[1,{"b":null}]},"movie":[1,2],"day":"\\ud83d\\ude00","rating":1e5}\n',
        b'{"user":"a","movie":99999999999999999999,"day":"","rating":-0.0,"extra":[]}\r\n{"user":"a"}\r\n',
    )

    def case(self, rng: random.Random) -> Case:
        """Text, or an object changed."""
        data = rng.choice(self.texts)
        if rng.random() < 0.3:
            rows = [json.loads(line) for line in self.texts[0].splitlines()]
            row = rng.choice(rows)
            row[rng.choice((*row, "new"))] = rng.choice(
                (None, [], {}, [None], {"": ""}, 10**30, -1, 1.5, "x", "\0", True, [[[[1]]]], {"a": {"b": 1}})
            )
            data = "\n".join(json.dumps(one) for one in rows * rng.choice((1, 30))).encode()
        if rng.random() < 0.02:
            data = rng.choice((b'{"a":' * 5000, b"[" * 100_000, b'{"user":"' + b"x" * 100_000, b"{}\n" * 2000))
        if rng.random() < 0.1:
            data = data.replace(b"1", rng.choice(NUMBERS), 1)
        return self.named(rng, mutated(rng, data, self.texts))


class Streamed(Reader):
    """Queries in parts of three rows; where they can be, they are what is read whole."""

    name = "stream"
    modules = ("data/queries.py",)

    def __init__(self) -> None:
        self.makers: list[Reader] = [Parquet(), Arrow(), JsonLines()]
        rows = [f"u{n % 9},{n % 7},2020-01-0{1 + n % 8},{n},{n * 0.25}" for n in range(20)]
        self.texts = tuple(
            "\n".join(["user,movie,day,n,x", *rows, end]).replace(",", sign).encode()
            for sign in ",;\t"
            for end in ("", "\n\n\n", ",,,,", "last,1,2020-01-01,007,abc")
        )

    def case(self, rng: random.Random) -> Case:
        """A table in any format, by the columns or by expressions."""
        kind = rng.choice(("columns", "sums", "dates", "other"))
        if rng.random() < 0.5:
            name, data = f"t.{rng.choice(('csv', 'tsv', 'txt'))}", mutated(rng, rng.choice(self.texts), self.texts)
        else:
            ((name, data),) = rng.choice(self.makers).case(rng).items()
        return {f"{kind}.{name.rpartition('.')[2]}": data}

    def read(self, folder: Path) -> None:
        """In parts and whole."""
        from jointensor.data.formats import check_file
        from jointensor.data.frames import TableSpec
        from jointensor.data.queries import read_queries, scan_queries
        from jointensor.errors import DataError

        path = next(iter(folder.iterdir()))
        texts = {
            "columns": COLUMNS, "sums": ("user=UPPER(user)", "movie=movie + 1", "day"),
            "dates": ("user", "movie", "day=day(day)"), "other": ("user=user || movie", "movie=x - 1", "day=n"),
        }  # fmt: skip
        types = {"user": "String", "movie": "Int64", "x": "Float64"}  # decided by a training table
        parsed = TableSpec.of(texts[path.stem], "rating")
        spec = replace(parsed, modes=tuple(replace(one, types=types) for one in parsed.modes))
        check_file(path)
        try:
            parts = list(scan_queries(path, modes(), spec, 3))
        except DataError:
            parts = None
        whole = read_queries(path, modes(), spec, values=False)
        if parts is not None:
            indices = np.concatenate([part for _, part in parts])
            if not np.array_equal(indices, whole.indices):
                raise ValueError(f"in parts {indices.tolist()}, whole {whole.indices.tolist()}")
            rows = [frame for frame, _ in parts if frame.height]
            if whole.frame is not None and sum(frame.height for frame in rows) != whole.frame.height:
                raise ValueError("other rows in parts")
