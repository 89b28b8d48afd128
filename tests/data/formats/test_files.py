import gzip
import re
import subprocess
import sys
import zipfile

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import SparseTensor, read_tensor, write_tensor
from jointensor.data import formats
from jointensor.data.formats import format_of, read_table, with_orders, write_table
from jointensor.data.frames import TableSpec
from jointensor.data.modes import Mode
from jointensor.data.queries import read_queries
from jointensor.errors import ConfigError, DataError
from tests.data.strategies import assume_fit_for_32_bits

SPEC = TableSpec.of(["a", "b"], "v")
CSV = "a,b,v\n01,x,3\n1,y,6\n"
TABLES = ["x.csv", "x.tsv", "x.parquet", "x.pq", "x.arrow", "x.feather", "x.jsonl", "x.ndjson"]


def put(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def cells(tensor):
    return {
        tuple(mode.label(i) for mode, i in zip(tensor.modes, row, strict=True)): value
        for row, value in zip(tensor.indices.tolist(), tensor.values.tolist(), strict=True)
    }


def refused(path, message, spec=SPEC):
    with pytest.raises(DataError, match=message) as caught:
        read_tensor(path, spec)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.npz", "npz"),
        ("A.TNS.GZ", "tns"),
        ("a.tns", "tns"),
        ("a.parquet", "parquet"),
        ("a.ipc", "arrow"),
        ("a.ndjson", "jsonl"),
        ("u.data", "delimited"),
        ("a.csv.gz", "delimited"),
    ],
)
def test_kind_goes_by_the_name(tmp_path, name, kind):
    assert format_of(tmp_path / name).name == kind


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=4)] * 2),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=10,
    )
)
def test_tables_round_trip(tmp_path_factory, name, table):
    assume_fit_for_32_bits(table.values())
    path = tmp_path_factory.mktemp("tables") / name
    frame = pl.DataFrame([[*cell, v] for cell, v in table.items()], schema=["a", "b", "v"], orient="row")
    written = SparseTensor.from_frame(frame, ["a", "b"], "v")
    write_tensor(written, path)
    back = read_tensor(path, TableSpec.of(["a", "b"], "value")).tensor
    assert cells(back) == table
    assert back.modes == written.modes


def test_every_column_of_text_is_text_as_written(tmp_path):
    frame = read_table(put(tmp_path / "x.csv", "a,b\n01,1.50\n1e3,\n"))
    assert frame.rows() == [("01", "1.50"), ("1e3", None)]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.csv", CSV),
        ("x.csv", CSV.removesuffix("\n")),
        ("x.csv", CSV.replace("\n", "\r\n")),
        ("x.csv", "\ufeff" + CSV),
        ("x.csv", CSV + "\n\n"),
        ("x.csv", 'a,b,v\n"01","x",3\n1,"y","6"\n'),
        ("x[1].csv", CSV),
        ("x.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("x.tsv", CSV.replace(",", "\t")),
        ("x.tsv.gz", gzip.compress(CSV.replace(",", "\t").encode(), mtime=0)),
        ("x.data", CSV.replace(",", "\t")),
        ("x.txt", CSV.replace(",", ";")),
        ("x.txt", CSV.replace(",", "|")),
        ("x", CSV),
        ("x.jsonl", '{"a":"01","b":"x","v":3}\n\n{"v":6,"b":"y","a":"1"}\n'),
        ("x[1].jsonl", '{"a":"01","b":"x","v":3}\n{"a":"1","b":"y","v":6}'),
    ],
)
def test_text_in_many_shapes(tmp_path, name, data):
    assert cells(read_tensor(put(tmp_path / name, data), SPEC).tensor) == {("01", "x"): 3.0, ("1", "y"): 6.0}


def test_no_header_a_separator_and_names_for_the_columns(tmp_path):
    path = put(tmp_path / "x.csv", "1:2:3\n4:5:6\n")
    spec = TableSpec.of(["a", "b"], "v", header=False, separator=":", columns=("a", "b", "v"))
    assert cells(read_tensor(path, spec).tensor) == {("1", "2"): 3.0, ("4", "5"): 6.0}
    unnamed = TableSpec.of(["column_1", "column_2"], "column_3", header=False, separator=":")
    assert cells(read_tensor(path, unnamed).tensor) == {("1", "2"): 3.0, ("4", "5"): 6.0}
    refused(
        path, "has 3 columns, but --columns names 2", TableSpec.of(["a", "b"], "v", separator=":", columns=("a", "b"))
    )


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.csv", "", "is empty"),
        ("x.csv", "\n", "cannot be read as a table"),
        ("x.csv", "a,b,v\n", "the table has no rows"),
        ("x.csv", "a,b,v", "the table has no rows"),
        ("x.csv", "a,b,w\n1,2,3\n", "there is no column 'v'; the columns are a, b, w"),
        ("x.csv", "a,c,v\n1,2,3\n", "mode 'b': there is no column 'b'; the columns are a, c, v"),
        ("x.csv", "a,b,v\n1,2,three\n", "row 1: the value 'three' in column 'v' is not a number"),
        ("x.csv", "a,b,v\n1,2,3\n1,3,nan\n", "row 2: the value in column 'v' is nan"),
        ("x.csv", "a,b,v\n1,2,-inf\n", "row 1: the value in column 'v' is -inf"),
        ("x.csv", "a,b,v\n1,2,3\n1,2,4\n", "2 rows share their cell with another row, the first is a=1, b=2"),
        ("x.csv", "a,b,v\n1,2,3\n4,5", r"the last row \(2\) has 2 of 3 fields and no line end: the file is cut off"),
        ("x.csv", "a,b,v,w\n1,2,3,4\n4,5,6", r"the last row \(2\) has 3 of 4 fields"),
        ("x.csv", "a,b,v\n1,2,3\n4,5\n6,7,8\n", "row 2 has nothing for value 'v'"),
        ("x.csv", "a,b,v\n1,2,3\n\n6,7,8\n", "row 2 has nothing for value 'v'"),
        ("x.csv", 'a,b,v\n1,2,3\n4,"5', "line 3: a quoted field does not end"),
        ("x.csv", 'a,b,v\n1,2,3\n"4,5,6\n7,8,9\n', "line 3: a quoted field does not end"),
        ("x.csv", "a,b,v\n1,2,3\n4,5,6,7\n", "line 3 has 4 fields, the first line has 3"),
        ("x.csv", "a,b,v\n1,2,3\né,5,6\n".encode("latin-1"), "line 3 is not UTF-8 text"),
        ("x.csv", CSV.encode("utf-16"), "is not text"),
        ("x.csv", b"PK\x03\x04\x14\x00\x00\x00\x08\x00", "is not text.*unpack it"),
        ("x.csv", bytes(range(128, 256)) * 3, "cannot be read as a table: line 1 is not UTF-8 text"),
        ("x.csv", np.random.default_rng(0).bytes(5000), "is not text"),
        ("x.csv.gz", gzip.compress(CSV.encode() * 100, mtime=0)[:-20], "cut off"),
        (
            "x.csv.gz",
            gzip.compress(np.random.default_rng(0).bytes(200_000).hex().encode(), mtime=0)[:90_000],
            "end of file",
        ),
        ("x.csv.gz", b"\x1f\x8bgarbage", "cannot be unpacked"),
        ("x.jsonl", '{"a":"1","b":"x","v":3}\n{"a":"1","b', "line 2 is not JSON"),
        ("x.jsonl", '{"a":"1","b":"x","v":3}\n[1, 2]\n', "line 2 is not a JSON object"),
        ("x.jsonl", '{"a":"1","b":"x","v":3}\n{"a":"1","b":"y"}\n', "row 2 has nothing for value 'v'"),
        ("x.jsonl", '{"a":"1","b":"x","v":3}\n{"a":"1","b":"y","v":"z"}\n', "row 2: the value 'z'"),
        ("x.parquet", b"PAR1 and no more", "cannot be read as a table"),
        ("x.arrow", b"ARROW1\0\0 and no more", "cannot be read as a table"),
        ("x.parquet", b"x", "cannot be read as a table"),
        ("x.arrow", b"x", "cannot be read as a table"),
    ],
)
def test_bad_files_are_refused_by_name_and_row(tmp_path, name, data, message):
    refused(put(tmp_path / name, data), message)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_cut_binary_tables_are_refused(tmp_path, name, keep):
    write_table(pl.DataFrame({"a": ["1"], "b": ["2"], "v": [3.0]}), tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    refused(put(tmp_path / name, whole[: int(len(whole) * keep)]), "cannot be read as a table")


def test_missing_files_and_folders_are_refused(tmp_path):
    for name in ("no.csv", "no.npz", "no.tns", "no.parquet"):
        spec = SPEC if format_of(tmp_path / name).name in ("text", "parquet") else None
        refused(tmp_path / name, "there is no file", spec)
    refused(tmp_path, "is a folder, not a file")


def test_one_mode_is_refused(tmp_path):
    refused(put(tmp_path / "x.csv", CSV), "at least two modes", TableSpec.of(["a"], "v"))


@pytest.mark.parametrize("spec", [None, TableSpec.of([], "v")])
def test_tables_need_to_be_told_their_modes(tmp_path, spec):
    with pytest.raises(ConfigError, match=r"x\.csv is a table: name its modes .* the columns are a, b, v"):
        read_tensor(put(tmp_path / "x.csv", CSV), spec)


def test_archives_say_themselves_what_they_are(tmp_path):
    path = put(tmp_path / "x.tns", "1 1 2\n")
    with pytest.raises(ConfigError, match="has its own modes and values"):
        read_tensor(path, SPEC)


def test_orders_can_be_declared(tmp_path):
    path = put(tmp_path / "x.tns", "1 1 2\n")
    tensor = read_tensor(path, orders={"mode_1": "cyclic"}).tensor
    assert [mode.order for mode in tensor.modes] == ["none", "cyclic"]
    with pytest.raises(ConfigError, match="no mode 'hour'"):
        with_orders(tensor, {"hour": "cyclic"})
    with pytest.raises(ConfigError, match="order 'round' of mode 'mode_1' is not one of"):
        with_orders(tensor, {"mode_1": "round"})


MODES = (Mode("a", 2, ("01", "1")), Mode("b", 2, ("x", "y")))


@pytest.mark.parametrize("name", ["q.csv", "q.parquet", "q.jsonl", "q.arrow", "q.tsv"])
def test_queries_keep_their_order_and_unseen_labels_are_minus_one(tmp_path, name):
    frame = pl.DataFrame({"b": ["y", "z", "x"], "id": [7, 8, 9], "a": ["1", "01", "001"]})
    write_table(frame, tmp_path / name)
    queries = read_queries(tmp_path / name, MODES, SPEC, values=False)
    assert queries.indices.tolist() == [[1, 1], [0, -1], [-1, 0]]
    assert queries.values is None
    assert queries.frame.columns == ["b", "id", "a"]


def test_queries_to_judge_by_have_values(tmp_path):
    queries = read_queries(put(tmp_path / "q.csv", CSV), MODES, SPEC, values=True)
    assert queries.values.tolist() == [3.0, 6.0]
    with pytest.raises(DataError, match=r"q\.csv: .*no column 'v'"):
        read_queries(put(tmp_path / "q.csv", "a,b\n1,x\n"), MODES, SPEC, values=True)


RAW = TableSpec.of({"user": "user", "day": "day(time)"}, "rating", header=False, columns=("user", "rating", "time"))
RAW_MODES = (Mode("user", 2, ("7", "8")), Mode("day", 2, ("1997-12-04", "1998-04-04")))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("q.data", "8\t3\t881250949\n9\t4\t891717742\n"),
        ("q.csv", "day,user\n1997-12-04,8\n1998-04-04,9\n"),
        ("q.tsv", "day\tuser\n1997-12-04\t8\n1998-04-04\t9\n"),
        ("q.csv", "time,user\n881250949,8\n891717742,9\n"),
    ],
)
@pytest.mark.parametrize("separator", [None, "\t"])
def test_queries_for_a_table_without_header_are_raw_rows_or_named_labels(tmp_path, name, data, separator):
    spec = TableSpec(RAW.modes, "rating", separator=separator, header=False, columns=RAW.columns)
    queries = read_queries(put(tmp_path / name, data), RAW_MODES, spec, values=False)
    assert queries.indices.tolist() == [[1, 0], [-1, 1]]


def test_archive_queries_beyond_the_shape_are_minus_one(tmp_path):
    np.savez(tmp_path / "q.npz", indices=[[1, 1], [2, 0], [0, 10**12]], values=[1.0, 2.0, 3.0])
    queries = read_queries(tmp_path / "q.npz", (Mode("a", 2), Mode("b", 2)), None, values=True)
    assert queries.indices.tolist() == [[1, 1], [-1, 0], [0, -1]]
    assert queries.values.tolist() == [1.0, 2.0, 3.0]
    assert queries.frame is None


def test_tns_queries_are_one_based_and_beyond_the_shape_minus_one(tmp_path):
    queries = read_queries(put(tmp_path / "q.tns", "2 2 5\n3 1 6\n"), (Mode("a", 2), Mode("b", 2)), None, values=True)
    assert queries.indices.tolist() == [[1, 1], [-1, 0]]
    assert queries.values.tolist() == [5.0, 6.0]


@pytest.mark.parametrize("name", ["q.npz", "q.tns"])
def test_queries_with_labels_of_their_own_are_matched_by_label(tmp_path, name):
    own = (Mode("a", 3, ("1", "new", "01")), Mode("b", 2, ("x", "y")))
    write_tensor(SparseTensor([[0, 1], [1, 0], [2, 0]], [1, 2, 3], own), tmp_path / name)
    queries = read_queries(tmp_path / name, MODES, None, values=False)
    assert queries.indices.tolist() == [[1, 1], [-1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indices": [[0, -1]]}, "query 0 has index -1 for mode 'b'; indices start at 0"),
        ({"indices": [[0, 0.5]]}, "entry 0: mode 'b' has index 0.5"),
        ({"indices": [["a", "b"]]}, "indices must be whole numbers"),
        ({"indices": [[0, 0, 0]]}, "queries have shape (1, 3), the tensor has 2 modes"),
        ({"values": [1.0]}, "has no array 'indices'"),
    ],
)
def test_bad_archive_queries_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "q.npz", **arrays)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_queries(tmp_path / "q.npz", MODES, None, values=False)
    assert "q.npz" in str(caught.value)


def test_archive_queries_to_judge_by_need_values(tmp_path):
    np.savez(tmp_path / "q.npz", indices=[[0, 0]])
    with pytest.raises(DataError, match="has no array 'values'"):
        read_queries(tmp_path / "q.npz", MODES, None, values=True)


def test_archives_and_splits_do_not_load_polars():
    program = """
import sys
import jointensor.data.tensor, jointensor.data.formats.npz, jointensor.data.split, jointensor.data.modes
import jointensor.data.synthetic, jointensor.data.formats
assert "polars" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_movielens_log_is_the_stored_tensor(real):
    spec = TableSpec.of(
        ["user", "movie", "day=day(time)"], "rating", header=False, columns=("user", "movie", "rating", "time")
    )
    reading = read_tensor(real("raw/ml-100k.u.data"), spec)
    stored = read_tensor(real("ml_100k.npz")).tensor
    tensor = reading.tensor
    assert tensor.shape == stored.shape == (943, 1682, 213)
    assert tensor.modes[0].labels == tuple(str(n) for n in range(1, 944))
    assert reading.spec.modes[2].format == "unix s"
    order = np.lexsort(stored.indices.T[::-1])
    np.testing.assert_array_equal(tensor.indices, stored.indices[order])
    np.testing.assert_array_equal(tensor.values, stored.values[order])


def test_uber_april_counts_every_pickup(real, tmp_path):
    with zipfile.ZipFile(real("raw/uber-raw-data-apr14.csv.zip")) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".csv") and not n.startswith("__"))
        path = put(tmp_path / "apr.csv", archive.read(name))
    modes = ["date=day(Date/Time)", "hour=hour(Date/Time)", "lat=ROUND(Lat,3)", "lon=ROUND(Lon,3)"]
    reading = read_tensor(path, TableSpec.of(modes, "count"))
    tensor = reading.tensor
    assert tensor.values.sum(dtype=np.float64) == 564_516
    assert tensor.shape[:2] == (30, 24)
    assert tensor.modes[0].labels[::29] == ("2014-04-01", "2014-04-30")
    assert [mode.order for mode in tensor.modes] == ["ordered", "cyclic", "ordered", "ordered"]
    assert len(reading.notes) == 1
    queries = put(tmp_path / "q.csv", "Date/Time,Lat,Lon\n4/1/2014 0:11:00,40.7690,-73.9549\n5/1/2014 0:11:00,0,0\n")
    asked = read_queries(queries, tensor.modes, reading.spec, values=False).indices
    assert (asked[0] >= 0).all()
    assert asked[1].tolist() == [-1, 0, -1, -1]


def test_a_format_of_ones_own_is_read_and_written_by_its_suffix(tmp_path, monkeypatch):
    class Reversed:
        """Text, back to front."""

        @staticmethod
        def scan(path, spec, rows):
            table = pl.read_csv(path.read_bytes()[::-1], infer_schema=False)
            yield table.clear()
            yield from table.iter_slices(rows)

        @staticmethod
        def sink(table, path):
            path.write_bytes(table.collect().write_csv().encode()[::-1])

    monkeypatch.setattr(formats, "FORMATS", [*formats.FORMATS])
    with pytest.raises(ConfigError, match="needs a suffix"):
        formats.register_format(formats.Format("reversed", (), tensor=False, functions=Reversed))
    formats.register_format(formats.Format("reversed", (".rev",), tensor=False, functions=Reversed))
    tensor = SparseTensor([[0, 1], [1, 0]], [2.0, 3.0], (Mode("a", 2, ("x", "y")), Mode("b", 2, ("u", "v"))))
    write_tensor(tensor, tmp_path / "t.rev")
    back = read_tensor(tmp_path / "t.rev", TableSpec.of(["a", "b"], "value")).tensor
    assert back.modes == tensor.modes
    np.testing.assert_array_equal(back.values, tensor.values)
