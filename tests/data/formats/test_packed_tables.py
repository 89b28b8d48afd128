"""Parquet and Arrow files are looked over before polars reads them: what lies is refused, nothing else is."""

import datetime
import io
import struct

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from jointensor import read_tensor
from jointensor.data.formats import read_table
from jointensor.data.formats.arrow import check_arrow
from jointensor.data.formats.parquet import check_parquet
from jointensor.data.frames import TableSpec
from jointensor.errors import DataError

FRAME = pl.DataFrame({
    "user": [f"u{n % 7}" for n in range(40)], "n": range(40), "x": np.arange(40) / 3, "nothing": [None] * 40,
    "day": [datetime.date(2020, 1, 1 + n % 20) for n in range(40)], "many": [[n, None] for n in range(40)],
    "both": [{"a": n, "b": str(n)} for n in range(40)], "flag": [n % 3 == 0 for n in range(40)],
}).with_columns(
    kind=pl.col("user").cast(pl.Categorical), few=pl.col("user").cast(pl.Enum([f"u{n}" for n in range(7)]))
)  # fmt: skip


def packed(frame, kind, **options):
    file = io.BytesIO()
    (frame.write_ipc if kind == "arrow" else frame.write_parquet)(file, **options)
    return file.getvalue()


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("packing", ["uncompressed", "lz4", "zstd"])
def test_arrow_files_of_polars_are_accepted(rows, packing, tmp_path):
    path = tmp_path / "t.arrow"
    path.write_bytes(packed(FRAME.head(rows), "arrow", compression=packing))
    assert read_table(path).equals(FRAME.head(rows))


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("packing", ["uncompressed", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_parquet_files_of_polars_are_accepted(rows, packing, tmp_path):
    path = tmp_path / "t.parquet"
    path.write_bytes(packed(FRAME.head(rows), "parquet", compression=packing, row_group_size=16))
    assert read_table(path).equals(FRAME.head(rows))


@pytest.mark.parametrize("packing", ["uncompressed", "lz4", "zstd"])
def test_files_of_pyarrow_are_accepted(packing, tmp_path):
    table = pa.table({
        "a": pa.array(["x", "y", None] * 300).dictionary_encode(), "b": np.arange(900.0),
        "c": [[1], [2, 3], None] * 300,
        "d": pa.array([True, None, False] * 300), "e": pa.array([None] * 900), "f": pa.array([b"x", b"", None] * 300),
    })  # fmt: skip
    pa.feather.write_feather(table, tmp_path / "t.feather", compression=packing, chunksize=100)
    kind = {"uncompressed": "none"}.get(packing, packing)
    for version in ("1.0", "2.0"):
        path = tmp_path / f"t{version}.parquet"
        pa.parquet.write_table(table, path, compression=kind, data_page_version=version, row_group_size=250)
        assert read_table(path).shape == (900, 6)
    assert read_table(tmp_path / "t.feather").shape == (900, 6)


@pytest.mark.parametrize(("kind", "check"), [("arrow", check_arrow), ("parquet", check_parquet)])
def test_a_file_that_is_cut_off_anywhere_is_refused_by_name(kind, check, tmp_path):
    data, path = packed(FRAME, kind), tmp_path / f"t.{kind}"
    for size in range(1, len(data), 61):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=rf"{path} cannot be read as a table"):
            check(path)


@pytest.mark.parametrize(("kind", "check"), [("arrow", check_arrow), ("parquet", check_parquet)])
def test_a_file_without_its_first_columns_is_refused(kind, check, tmp_path):
    data, path = packed(FRAME, kind, compression="uncompressed"), tmp_path / f"t.{kind}"
    path.write_bytes(data[:8] + data[1200:])
    with pytest.raises(DataError, match=r"outside|impossible|does not match|metadata are wrong"):
        check(path)


@pytest.mark.parametrize("lie", [-1, 2**40, 2**62])
def test_arrow_columns_of_rows_that_are_not_there_are_refused(lie, tmp_path):
    data, path = packed(FRAME, "arrow", compression="uncompressed"), tmp_path / "t.arrow"
    path.write_bytes(data.replace(struct.pack("<q", 40), struct.pack("<q", lie)))
    with pytest.raises(DataError, match=r"impossible|negative|unpacks to|outside"):
        read_table(path)


def test_a_small_parquet_file_that_fills_a_memory_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pl.select(a=pl.repeat(0, 40_000_000)).write_parquet(path)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(DataError, match="over 200 times its size"):
        read_table(path)


@pytest.mark.parametrize("mode", ["t", "d=day(t)", "h=hour(t)"])
def test_times_that_no_calendar_has_are_refused(mode, tmp_path):
    times = pl.Series("t", [0, 2**62]).cast(pl.Datetime("ms"))
    pl.DataFrame({"user": ["a", "b"], "t": times, "v": [1.0, 2.0]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: (row 2|column 't')"):
        read_tensor(tmp_path / "t.parquet", TableSpec.of(["user", mode], "v"))


def test_a_page_of_a_negative_number_of_values_is_refused(tmp_path):
    """polars takes it for 2⁶⁴ or so, wants memory for as many, and ends the process."""
    frame, path = pl.DataFrame({"a": [None, *range(15)]}), tmp_path / "t.parquet"
    data = packed(frame, "parquet", compression="uncompressed", statistics=False)
    at = data.index(b"\x2c\x15\x20")  # the head of a data page: its first field, 16 values, written as 2 · 16
    path.write_bytes(data[: at + 2] + b"\x21" + data[at + 3 :])  # -17 of them
    with pytest.raises(DataError, match="a page has an impossible size"):
        read_table(path)
