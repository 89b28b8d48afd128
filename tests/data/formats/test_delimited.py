"""Delimited text in blocks of any size is the table that polars reads from the whole file."""

import gzip

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.formats import base, read_table, scan_table
from jointensor.data.frames import TableSpec
from jointensor.errors import DataError

FIELD = st.one_of(
    st.text(st.sampled_from("ab1 .x"), max_size=3),
    st.sampled_from(['"a,b"', '"line\nend"', '"say ""hi"""', '""', "é", "x\x01"]),
)
LINES = st.lists(st.lists(FIELD, min_size=1, max_size=3), min_size=1, max_size=25)


@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=60, deadline=None)
@given(lines=LINES, size=st.integers(8, 60), rows=st.integers(1, 7), header=st.booleans(), end=st.booleans())
def test_blocks_of_any_size_give_the_same_table(tmp_path_factory, packed, lines, size, rows, header, end):
    text = "a,b,c\n" + "\n".join(",".join(line) for line in lines) + ("\n" if end else "")
    path = tmp_path_factory.mktemp("text") / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    spec = TableSpec.of(["a", "b"], "c", header=header)
    whole, cut = _outcome(read_table, path, spec), None
    before = base.BLOCK
    base.BLOCK = size
    try:
        cut = _outcome(read_table, path, spec)
        chunks = _outcome(lambda *given: pl.concat([*scan_table(*given, rows)]), path, spec)
    finally:
        base.BLOCK = before
    if isinstance(whole, str):
        assert isinstance(cut, str)
        assert isinstance(chunks, str)
        return
    expected = pl.read_csv(text.encode(), has_header=header, infer_schema=False)
    expected = expected.head(
        max((n + 1 for n, row in enumerate(expected.iter_rows()) if any(x is not None for x in row)), default=0)
    )
    for found in (whole, cut, chunks):
        assert found.rows() == expected.rows()


def _outcome(read, path, spec):
    try:
        return read(path, spec)
    except DataError as error:
        return f"{type(error).__name__}: {error}"


def test_a_packed_file_without_content_is_empty(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(DataError, match="is empty"):
        read_table(path)


def test_a_stray_quote_does_not_take_for_ever(tmp_path):
    """Line ends behind an odd quote are looked at once, not once for every line."""
    path = tmp_path / "t.csv"
    path.write_text('a,b\n1,5"\n' + "2,3\n" * 200_000, encoding="utf-8")
    with pytest.raises(DataError, match="cannot be read as a table"):  # as polars has it
        read_table(path)
