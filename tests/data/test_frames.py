import re
from collections import defaultdict

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import SparseTensor
from jointensor.data.frames import (
    ABSENCE,
    TableSpec,
    encode_frame,
    frame_to_tensor,
    labels_frame,
    query_values,
    refuse_columns,
    tensor_to_frame,
)
from jointensor.data.modes import Mode
from jointensor.errors import ConfigError, DataError
from tests.data.strategies import assume_fit_for_32_bits

EVENTS = {
    "Date/Time": ["4/1/2014 0:11:00", "4/1/2014 0:17:00", "4/13/2014 5:00:00", "4/1/2014 0:59:00"],
    "Lat": ["40.7690", "40.7694", "40.7267", "40.76949"],
    "Base": ["B02512", "B02512", "B02598", "B02512"],
}
EVENT_MODES = {"date": "day(Date/Time)", "hour": "hour(Date/Time)", "lat": "ROUND(Lat, 3)"}
RATINGS = {"user": ["ann", "bob", "ann"], "film": ["10", "9", "9"], "rating": [1.5, 2.0, -3.0]}


def cells(tensor):
    return {
        tuple(mode.label(i) for mode, i in zip(tensor.modes, row, strict=True)): value
        for row, value in zip(tensor.indices.tolist(), tensor.values.tolist(), strict=True)
    }


def read(data, modes, value, **options):
    frame = pl.DataFrame(data) if isinstance(data, dict) else data
    return frame_to_tensor(frame, TableSpec.of(modes, value, **options))


def test_labels_are_sorted_and_cells_sorted_by_index():
    tensor = read(RATINGS, ["user", "film"], "rating").tensor
    assert [mode.labels for mode in tensor.modes] == [("ann", "bob"), ("9", "10")]
    assert [mode.order for mode in tensor.modes] == ["none", "ordered"]
    assert tensor.indices.tolist() == [[0, 0], [0, 1], [1, 0]]
    assert tensor.values.tolist() == [-3.0, 1.5, 2.0]


def test_codes_with_leading_zeros_are_labels_of_their_own():
    tensor = read({"fips": ["01001", "1001"], "b": ["x", "x"], "v": [1, 2]}, ["fips", "b"], "v").tensor
    assert cells(tensor) == {("01001", "x"): 1.0, ("1001", "x"): 2.0}


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, lambda d: pd.DataFrame(d, index=[5, 5, 7])])
def test_every_brand_of_frame_gives_the_same_tensor(make):
    tensor = SparseTensor.from_frame(make(RATINGS), ["user", "film"], "rating")
    assert cells(tensor) == {("ann", "10"): 1.5, ("bob", "9"): 2.0, ("ann", "9"): -3.0}


def test_pandas_dates_categories_and_missing_integers():
    frame = pd.DataFrame(
        {
            "t": pd.to_datetime(["2014-04-01 10:00", "2014-04-02 11:00"]),
            "c": pd.Categorical(["b", "a"]),
            "n": pd.array([1, 2], dtype="Int64"),
        }
    )
    reading = read(frame, {"day": "day(t)", "hour": "hour(t)", "c": "c"}, "n")
    assert cells(reading.tensor) == {("2014-04-01", "10", "b"): 1.0, ("2014-04-02", "11", "a"): 2.0}
    assert [mode.order for mode in reading.tensor.modes] == ["ordered", "cyclic", "none"]


ROWS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(-50, 50)), min_size=1, max_size=30)
BRUTE = {"sum": sum, "mean": lambda v: sum(v) / len(v), "count": len, "last": lambda v: v[-1]}


@pytest.mark.parametrize("rule", BRUTE)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_duplicate_rules_agree_with_brute_force(rule, rows):
    groups = defaultdict(list)
    for a, b, value in rows:
        groups[a, str(b)].append(value)
    frame = pl.DataFrame(rows, schema=["a", "b", "v"], orient="row")
    tensor = read(frame, ["a", "b"], "v", duplicates=rule).tensor
    assert cells(tensor) == {cell: np.float32(BRUTE[rule](values)) for cell, values in groups.items()}


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_duplicates_are_an_error_unless_a_rule_is_chosen(rows):
    frame = pl.DataFrame(rows, schema=["a", "b", "v"], orient="row")
    distinct = {(a, b) for a, b, _ in rows}
    if len(distinct) == len(rows):
        assert len(read(frame, ["a", "b"], "v").tensor) == len(rows)
    else:
        with pytest.raises(DataError, match=r"rows share their cell.* a=[ab], b=\d; choose a rule: --duplicates sum"):
            read(frame, ["a", "b"], "v")


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=4)] * 3),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=15,
    )
)
def test_frame_to_tensor_to_frame(table):
    assume_fit_for_32_bits(table.values())
    frame = pl.DataFrame([[*cell, v] for cell, v in table.items()], schema=["a", "b", "c", "v"], orient="row")
    tensor = read(frame, ["a", "b", "c"], "v").tensor
    back = tensor_to_frame(tensor, "v")
    assert back.columns == ["a", "b", "c", "v"]
    assert {row[:3]: row[3] for row in back.iter_rows()} == table
    again = SparseTensor.from_frame(back, ["a", "b", "c"], "v")
    np.testing.assert_array_equal(again.indices, tensor.indices)
    np.testing.assert_array_equal(again.values, tensor.values)
    assert again.modes == tensor.modes


def test_counting_events_and_saying_what_absence_means():
    reading = read(EVENTS, EVENT_MODES, "count")
    assert cells(reading.tensor) == {("2014-04-01", "0", "40.769"): 3.0, ("2014-04-13", "5", "40.727"): 1.0}
    assert ABSENCE in reading.notes
    assert reading.spec.modes[0].format == "%m/%d/%Y %H:%M:%S%.f"


def test_a_column_called_count_is_a_value_like_any_other():
    reading = read({"a": ["x", "y"], "b": ["x", "y"], "count": ["5", "7"]}, ["a", "b"], "count")
    assert reading.tensor.values.tolist() == [5.0, 7.0]
    assert reading.notes == ()


def test_ambiguous_dates_are_noted():
    notes = read({"t": ["1/2/2014"], "b": ["x"], "v": [1]}, {"day": "day(t)", "b": "b"}, "v").notes
    assert len(notes) == 1
    assert "column 't' was read month first" in notes[0]


def test_queries_use_the_expressions_and_the_format_of_the_training_table():
    data = {"t": ["1/2/2014", "13/2/2014"], "Lat": ["1.25", "2.5"], "v": [1, 2]}
    reading = read(data, {"day": "day(t)", "lat": "ROUND(Lat, 1)"}, "v")
    stored = TableSpec.from_dict(reading.spec.to_dict())
    assert stored == reading.spec
    queries = pl.DataFrame({"t": ["1/2/2014", "2/1/2014"], "Lat": ["2.51", "7"]})
    assert encode_frame(queries, reading.tensor.modes, stored).tolist() == [[0, 1], [-1, -1]]


def test_queries_may_hold_labels_instead_of_what_they_are_made_from():
    reading = read(EVENTS, EVENT_MODES, "count")
    queries = pd.DataFrame({"lat": ["40.727", "40.7270"], "hour": [5, 7], "date": ["2014-04-13", "2014-04-01"]})
    assert encode_frame(queries, reading.tensor.modes, reading.spec).tolist() == [[1, 1, 0], [0, -1, -1]]


def test_queries_with_columns_named_like_words_of_sql():
    reading = read({"user": ["10", "25"], "b": ["x", "y"], "v": [1, 2]}, {"ten": "FLOOR(user / 10)", "b": "b"}, "v")
    queries = pl.DataFrame({"user": ["29", "99"], "b": ["x", "y"]})
    assert encode_frame(queries, reading.tensor.modes, reading.spec).tolist() == [[1, 0], [-1, 1]]


def test_queries_with_unseen_or_missing_labels_are_minus_one():
    tensor = read(RATINGS, ["user", "film"], "rating").tensor
    queries = pl.DataFrame({"film": ["9", "09", None, "10"], "user": ["bob", "ann", "ann", "Ann"]})
    assert encode_frame(queries, tensor.modes, None).tolist() == [[1, 0], [0, -1], [0, -1], [-1, 1]]


def test_queries_over_modes_without_labels_are_numbers():
    queries = pl.DataFrame({"a": ["0", "4", "5", "x"], "b": [1.0, 0.0, 0.5, 2.0]})
    assert encode_frame(queries, (Mode("a", 5), Mode("b", 2)), None).tolist() == [[0, 1], [4, 0], [-1, -1], [-1, -1]]


def test_no_queries_is_a_table_of_none():
    tensor = read(RATINGS, ["user", "film"], "rating").tensor
    empty = pl.DataFrame({"user": [], "film": []}, schema={"user": pl.String, "film": pl.String})
    assert encode_frame(empty, tensor.modes, None).shape == (0, 2)


def test_queries_without_the_columns_are_refused():
    reading = read(EVENTS, EVENT_MODES, "count")
    with pytest.raises(DataError, match=r"need a column 'date' .* made from \('Date/Time'\); their columns are x"):
        encode_frame(pl.DataFrame({"x": [1]}), reading.tensor.modes, reading.spec)


def test_values_of_queries_are_those_of_the_value_column():
    frame = pl.DataFrame({"rating": ["1", "2.5"], "value": [3, 4]})
    assert query_values(frame, TableSpec.of(["a", "b"], "rating")).tolist() == [1.0, 2.5]
    assert query_values(frame, None).tolist() == [3.0, 4.0]


def test_labels_of_entries_leave_out_what_is_unseen():
    modes = (Mode("a", 2, ("x", "y")), Mode("b", 3))
    assert labels_frame(modes, np.array([[1, 2], [-1, -1]])).rows() == [("y", 2), (None, None)]


def test_values_do_not_overwrite_a_mode_of_that_name():
    tensor = SparseTensor([[0, 0]], [1], (Mode("value", 1), Mode("b", 1)))
    with pytest.raises(DataError, match="'value' is the name of a mode"):
        tensor.to_frame()
    assert tensor.to_frame("rating").columns == ["value", "b", "rating"]


def test_columns_of_the_user_are_not_overwritten():
    refuse_columns(pl.DataFrame({"a": [1]}), ["prediction"])
    with pytest.raises(DataError, match="already have a column 'a'"):
        refuse_columns(pl.DataFrame({"a": [1]}), ["prediction", "a"])


GOOD = {"a": ["x", "y"], "b": ["1", "2"], "v": ["1", "2"]}


@pytest.mark.parametrize(
    ("change", "modes", "value", "message"),
    [
        ({}, ["a", "nope"], "v", "mode 'nope': there is no column 'nope'; the columns are a, b, v"),
        ({}, ["a", "b"], "nope", "there is no column 'nope'; the columns are a, b, v"),
        ({}, ["a"], "v", "at least two modes, this one has 1"),
        ({}, ["a", "a"], "v", "mode names must differ, got a, a"),
        ({}, ["a", "c=MAX(b)"], "v", "'MAX(b)': unsupported function 'max'"),
        ({"v": ["1", "three"]}, ["a", "b"], "v", "row 2: the value 'three' in column 'v' is not a number"),
        ({"v": ["1", " 2"]}, ["a", "b"], "v", "row 2: the value ' 2' in column 'v' is not a number"),
        ({"v": ["nan", "1"]}, ["a", "b"], "v", "row 1: the value in column 'v' is nan; values must be finite"),
        ({"v": [1.0, float("inf")]}, ["a", "b"], "v", "row 2: the value in column 'v' is inf"),
        ({"v": ["1", None]}, ["a", "b"], "v", "row 2 has nothing for value 'v'"),
        ({"v": ["1", "1e39"]}, ["a", "b"], "v", "the value 1e+39"),
        ({"v": pd.to_datetime(["2014-01-01"] * 2)}, ["a", "b"], "v", "column 'v' holds Datetime"),
        ({"b": ["1", None]}, ["a", "b"], "v", "row 2 has nothing for mode 'b'"),
        ({"b": [1.0, float("nan")]}, ["a", "b"], "v", "row 2 has nothing for mode 'b'"),
        ({"b": [[1], [2]]}, ["a", "b"], "v", "column 'b' of type List(Int64) cannot be used as labels"),
        ({"a": ["x", "x"], "b": ["1", "1"]}, ["a", "b"], "v", "2 rows share their cell with another row"),
        ({"a": [], "b": [], "v": []}, ["a", "b"], "v", "the table has no rows"),
    ],
)
def test_bad_tables_are_refused_by_row_and_name(change, modes, value, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read(GOOD | change, modes, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"a": [1]}, "dict is not a data frame"),
        (pl.LazyFrame({"a": [1]}), "LazyFrame is not a data frame"),
        (np.zeros((2, 2)), "ndarray is not a data frame"),
        (pd.DataFrame([[1, 2, 3]], columns=["a", "a", "v"]), "cannot be read: Expected unique column names"),
        (pd.DataFrame({"a": [1, "x"], "b": [1, 2], "v": [1, 2]}), "cannot be read: Could not convert"),
    ],
)
def test_what_is_no_frame_is_refused(frame, message):
    with pytest.raises(DataError, match=message):
        frame_to_tensor(frame, TableSpec.of(["a", "b"], "v"))


def test_numbers_written_as_categories_are_numbers():
    frame = pd.DataFrame({"a": ["x", "y"], "b": ["x", "y"], "v": pd.Categorical(["30", "5"])})
    assert read(frame, ["a", "b"], "v").tensor.values.tolist() == [30.0, 5.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duplicates": "maen"}, "did you mean 'mean'"),
        ({"separator": "ab"}, "separator 'ab': give a single character"),
        ({"separator": ""}, "separator '': give a single character"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        TableSpec.of(["a", "b"], "v", **options)


def test_spec_survives_being_stored_as_json():
    import json

    spec = TableSpec.of(EVENT_MODES, "count", duplicates="sum", separator="\t", header=False, columns=("a", "b"))
    assert TableSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
