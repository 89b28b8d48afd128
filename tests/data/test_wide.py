"""Wide frames of every brand: what is read from them, and that nothing but gaps is changed."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from jointensor.data.wide import WideFrame
from jointensor.errors import DataError


def wide(index=None):
    """Four types of columns, each with gaps, and one without."""
    index = pd.date_range("2024-01-01", periods=72, freq="h", name="when") if index is None else index
    numbers = np.random.default_rng(0).normal(size=(72, 3))
    frame = pd.DataFrame(
        {
            "plain": numbers[:, 0],
            "small": numbers[:, 1].astype(np.float32),
            "whole": pd.array(range(72), dtype="Int64"),
            "masked": pd.array(numbers[:, 2], dtype="Float64"),
            "full": range(72),
        },
        index=index,
    )
    for n in range(4):
        frame.iloc[3 + n : 6 + n, n] = None
    return frame


def bits(column):
    return np.asarray(column, dtype=column.dtype).view(f"u{column.dtype.itemsize}")


def test_only_gaps_of_a_pandas_frame_change():
    frame = wide()
    before = frame.copy()
    made = WideFrame.of(frame)
    filled = made.filled(np.full(12, 7.6))
    pd.testing.assert_frame_equal(frame, before)  # the given one
    assert filled.dtypes.equals(frame.dtypes)
    assert filled.index.equals(frame.index)
    assert filled.index.freq == frame.index.freq
    assert list(filled.columns) == list(frame.columns)
    gaps = frame.isna()
    assert not filled.isna().any(axis=None)
    for name, value in {"plain": 7.6, "small": np.float32(7.6), "whole": 8, "masked": 7.6}.items():
        assert (filled[name][gaps[name]] == value).all()
        there = ~gaps[name].to_numpy()
        kind = np.dtype(str(frame[name].dtype).lower())
        ours, theirs = (one[name][there].to_numpy(dtype=kind) for one in (filled, frame))
        assert np.array_equal(bits(ours), bits(theirs))
    assert filled["full"].equals(frame["full"])


@pytest.mark.parametrize("brand", ["polars", "pyarrow", "pandas column"])
def test_other_brands_have_the_same_panel_and_keep_their_types(brand):
    frame = wide()
    made = {
        "polars": lambda: pl.from_pandas(frame.reset_index()),
        "pyarrow": lambda: pa.Table.from_pandas(frame.reset_index(), preserve_index=False),
        "pandas column": frame.reset_index,
    }[brand]()
    given = WideFrame.of(made, "when")
    expected = WideFrame.of(frame)
    np.testing.assert_array_equal(given.panel.numbers, expected.panel.numbers)
    assert given.panel.modes == expected.panel.modes
    filled = given.filled(np.arange(12.0))
    assert type(filled) is type(made)
    if brand == "pandas column":
        assert filled.dtypes.equals(made.dtypes)
    else:
        assert filled.schema == made.schema
    np.testing.assert_array_equal(
        WideFrame.of(filled, "when").panel.numbers, WideFrame.of(expected.filled(np.arange(12.0))).panel.numbers
    )


def test_the_only_column_of_times_is_found():
    frame = pl.DataFrame({"x": [1.0, None], "d": [1, 2]}).with_columns(pl.col("d").cast(pl.Date))
    assert WideFrame.of(frame).columns == ("x",)
    with pytest.raises(DataError, match="name the column of time stamps, for example time='x': no column has dates"):
        WideFrame.of(frame.select("x"))
    with pytest.raises(DataError, match="columns of times are d, e"):
        WideFrame.of(frame.with_columns(e="d"))


def test_nulls_without_a_type_become_numbers():
    filled = WideFrame.of(pl.DataFrame({"t": [1, 2], "x": [None, None], "y": [1.0, float("nan")]}), "t").filled(
        np.array([1.0, 2.0, 3.0])
    )
    assert filled["x"].to_list() == [1.0, 2.0]
    assert filled["y"].to_list() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("index", "sizes"),
    [
        (pd.date_range("2024-01-01", periods=72, freq="h", tz="Europe/Berlin"), {"date": 4, "time": 24}),
        (pd.period_range("2024-01-01", periods=72, freq="D"), {"time": 72}),
        (pd.to_timedelta(np.arange(72) ** 1.5, unit="h"), {"time": 72}),
        (pd.RangeIndex(72), {"time": 72}),
        (pd.Index(np.arange(72) ** 1.5), {"time": 72}),
        (pd.Index([f"2020/01/{1 + n // 24:02d} {n % 24}:00" for n in range(72)]), {"date": 3, "time": 24}),
    ],
)
def test_any_index_that_tells_the_time(index, sizes):
    made = WideFrame.of(wide(index))
    assert {mode.name: mode.size for mode in made.panel.stamps.modes} == sizes
    assert made.filled(np.zeros(12)).index.equals(index)


def test_columns_of_levels_are_modes_and_kept():
    frame = wide().drop(columns="full")
    frame.columns = pd.MultiIndex.from_product([["x", "y"], [1, 2]], names=["place", None])
    made = WideFrame.of(frame)
    assert [mode.name for mode in made.panel.modes] == ["place", "series", "date", "time"]
    assert made.filled(np.zeros(12)).columns.equals(frame.columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f, "when_"), "no column 'when_' with time stamps; did you mean 'when'"),
        (lambda f: (f.assign(note="x"), "when"), "column 'note' holds .*String, and a series has numbers"),
        (lambda f: (f.assign(plain=np.inf), "when"), "row 1 of column 'plain' is infinite"),
        (lambda f: (f.rename(columns={"small": "plain"}), "when"), "two columns are called 'plain'"),
        (lambda f: (f[["when"]], "when"), "72 rows and 0 series"),
        (lambda f: (f.head(0), "when"), "0 rows and 5 series"),
        (lambda f: (f.set_index(["when", "full"]), None), "the index has several levels"),
        (lambda f: (f.set_index("when").set_axis([*"ab"] * 36), None), "row 1: 'a' in column 'the index'"),
        (lambda f: ("x", None), "str is not a data frame"),
    ],
)
def test_what_is_no_wide_frame_is_refused(change, message):
    frame, time = change(wide().reset_index())
    with pytest.raises(DataError, match=message):
        WideFrame.of(frame, time)
