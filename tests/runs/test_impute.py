"""Gaps of series: the estimator and the command line, on planted series."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from jointensor import TensorCompleter
from jointensor.data.formats import read_table
from jointensor.errors import ConfigError, DataError
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.impute import impute_file

DAYS = 14


@pytest.fixture(scope="module")
def truth():
    """Five series of different units with the same two daily waves and a trend, a little noise on them."""
    rng = np.random.default_rng(0)
    hour = np.arange(24 * DAYS)
    waves = np.stack([np.sin(hour * np.pi / 12), np.cos(hour * np.pi / 6), hour / len(hour)], axis=1)
    numbers = waves @ rng.normal(size=(3, 5)) + 0.02 * rng.normal(size=(len(hour), 5))
    index = pd.date_range("2024-01-01", periods=len(hour), freq="h", name="when")
    units = pd.Series([1.0, 100.0, 0.01, 1.0, 1.0], index=list("abcde"))
    return pd.DataFrame(numbers, index=index, columns=list("abcde")) * units + 5


@pytest.fixture(scope="module")
def gaps(truth):
    """A tenth of the cells, a day of one series, and some hours of all."""
    hidden = np.random.default_rng(1).random(truth.shape) < 0.1
    hidden[48:72, 1] = hidden[100:104] = True
    return hidden


@pytest.fixture
def gappy(truth, gaps):
    return truth.mask(gaps)


def quick(**settings):
    return TensorCompleter(**{"rank": (3, 0), "device": "cpu", "random_state": 0} | settings)


def relative_error(filled, truth, gaps):
    """RMSE of the gaps in standard deviations of their series."""
    return np.sqrt(np.mean((((filled - truth) / truth.std()).to_numpy()[gaps]) ** 2))


@pytest.mark.parametrize("rank", [pytest.param(None, marks=pytest.mark.slow), (3, 0)])
def test_planted_series_are_recovered(truth, gaps, gappy, rank):
    filled = quick(rank=rank).impute(gappy)
    assert relative_error(filled, truth, gaps) < 0.2 * relative_error(gappy.fillna(gappy.mean()), truth, gaps)
    assert np.array_equal(filled.to_numpy()[~gaps].view(np.uint64), truth.to_numpy()[~gaps].view(np.uint64))
    assert filled.index.equals(truth.index)
    assert filled.columns.equals(truth.columns)


def test_pandas_and_polars_give_the_same_numbers(gappy):
    ours = quick().impute(gappy)
    table = pl.from_pandas(gappy.reset_index())
    theirs = quick().impute(table)
    assert theirs.columns == table.columns
    np.testing.assert_array_equal(theirs.drop("when").to_numpy(), ours.to_numpy())


def test_rows_in_another_order_keep_it(gappy):
    # order of the rows decides which entries validate, not what is planted
    mixed = gappy.sample(frac=1, random_state=0)
    filled = quick().impute(mixed)
    assert filled.index.equals(mixed.index)
    ours = quick().impute(gappy)
    assert ((filled.loc[ours.index] - ours).abs().mean() < 0.2 * ours.std()).all()


def test_intervals_hold_predictions_and_most_values(truth, gaps, gappy):
    filled, lower, upper = quick().impute(gappy, return_interval=0.9)
    assert (lower <= filled).all(axis=None)
    assert (filled <= upper).all(axis=None)
    assert ((lower < upper).to_numpy() == gaps).all()  # observed ones are known
    inside = ((lower <= truth) & (truth <= upper)).to_numpy()[gaps].mean()
    assert 0.75 < inside < 1
    _, narrow, _ = quick().impute(gappy, return_interval=0.5)
    assert narrow.to_numpy()[gaps].sum() > lower.to_numpy()[gaps].sum()


def test_irregular_and_real_stamps():
    rng = np.random.default_rng(0)
    at = np.sort(rng.uniform(0, 6, 60))
    frame = pd.DataFrame({"a": np.sin(at), "b": np.cos(at)}, index=at)
    hidden = rng.random(frame.shape) < 0.2
    filled = quick(rank=None).impute(frame.mask(hidden))
    assert relative_error(filled, frame, hidden) < 0.1
    assert filled.index.equals(frame.index)
    # as times the same stamps are the same numbers of days, and so are the predictions
    times = frame.set_axis(
        pd.Timestamp("2024-01-01") + pd.to_timedelta(np.round(at * 86400) - np.round(at[0] * 86400), "s")
    )
    days = frame.set_axis((np.round(at * 86400) - np.round(at[0] * 86400)) / 86400)
    both = [quick().impute(one.mask(hidden)).to_numpy() for one in (times, days)]
    np.testing.assert_array_equal(*both)


def test_a_frame_without_gaps_is_returned_without_a_fit(truth):
    never = quick(rank=(2, 4), nonlinear="there is no such network")
    pd.testing.assert_frame_equal(never.impute(truth), truth)
    for one in never.impute(truth, return_interval=0.9):
        pd.testing.assert_frame_equal(one, truth)
    with pytest.raises(ConfigError, match="no such network"):
        never.impute(truth.mask(truth > 6))


def test_what_cannot_be_filled_in_is_refused(truth, gappy):
    with pytest.raises(DataError, match="no series has a single value"):
        quick().impute(truth * np.nan)
    with pytest.raises(DataError, match=r"rows share their time stamp in 'when' .* '2024-01-01 00:00:00'"):
        quick().impute(pd.concat([gappy, gappy.head(1)]))
    with pytest.raises(DataError, match="values are too few for intervals"):
        quick().impute(gappy.head(20), return_interval=0.9)
    with pytest.raises(ConfigError, match="an interval of 90"):
        quick().impute(gappy, return_interval=90)


def test_series_and_hours_without_a_value(truth, gaps, gappy):
    filled, lower, upper = quick().impute(gappy.assign(a=np.nan), return_interval=0.9)
    assert np.isfinite(filled.to_numpy()).all()
    assert ((upper - lower)["a"] > 0).all()
    assert (
        relative_error(filled.drop(columns="a").iloc[100:104], truth.drop(columns="a").iloc[100:104], slice(None)) < 3
    )


def test_a_single_series_and_a_handful_of_values():
    wave = pd.DataFrame({"x": np.sin(np.arange(60) / 8)})
    hidden = np.random.default_rng(0).random(wave.shape) < 0.2
    assert relative_error(quick(rank=None).impute(wave.mask(hidden)), wave, hidden) < 0.2
    few = pd.DataFrame({"x": [1.0, np.nan, 3.0]})
    assert np.isfinite(quick().impute(few).to_numpy()).all()


def test_levels_of_columns_are_modes(truth, gaps):
    both = pd.concat({"north": truth, "south": 2 * truth}, axis=1, names=["place"])
    hidden = np.concatenate([gaps, np.roll(gaps, 7, axis=0)], axis=1)
    filled = quick().impute(both.mask(hidden))
    assert filled.columns.equals(both.columns)
    assert relative_error(filled, both, hidden) < 0.3


# --- the command line


def test_a_table_of_text_keeps_its_text(cli, gappy, tmp_path):
    gappy = gappy.round(3)
    given = tmp_path / "given.csv"
    gappy.reset_index().to_csv(given, index=False, na_rep="NA")
    given.write_text(given.read_text(encoding="utf-8").replace("NA", "", 3), encoding="utf-8")  # gaps of both kinds
    code, printed, err = cli("impute", given, "--time", "when", "--out", tmp_path / "filled.csv", "--rank", "3/0")
    assert code == 0, err
    missing = int(gappy.isna().sum().sum())
    assert f"{missing:,} of {gappy.size:,} cells filled in" in printed
    before, after = (read_table(tmp_path / name) for name in ("given.csv", "filled.csv"))
    assert after.columns == before.columns
    for name in before.columns:
        there = before[name].is_not_null() & (before[name] != "NA")
        assert before[name].filter(there).equals(after[name].filter(there))
    assert np.isfinite(after.drop("when").cast(pl.Float64).to_numpy()).all()


def test_what_was_stopped_is_filled_in_and_nothing_is_said_of_a_folder_that_is_gone(gappy, tmp_path):
    pl.from_pandas(gappy.reset_index()).write_parquet(tmp_path / "given.parquet")
    notes = []
    config = RunConfig("", rank=(3, 4), test=0.0, device="cpu")
    listener = Listener(notes.append, stopping=lambda: True)
    done = impute_file(tmp_path / "given.parquet", tmp_path / "filled.parquet", "when", config, listener=listener)
    assert done.gaps == gappy.isna().sum().sum()
    assert pl.read_parquet(tmp_path / "filled.parquet").null_count().sum_horizontal().item() == 0
    assert notes[-1] == "stopped before its end: filled in by the best model so far"
    assert not any("--resume" in note for note in notes)


def test_intervals_and_other_formats(cli, gappy, gaps, tmp_path):
    table = pl.from_pandas(gappy.reset_index())
    table.write_parquet(tmp_path / "given.parquet")
    words = ("--time", "when", "--out", tmp_path / "filled.parquet", "--rank", "3/0", "--interval", "0.9", "--quiet")
    code, printed, err = cli("impute", tmp_path / "given.parquet", *words)
    assert (code, printed) == (0, ""), err
    filled = pl.read_parquet(tmp_path / "filled.parquet")
    assert filled.columns == [*table.columns, *(f"{name}_{end}" for name in "abcde" for end in ("lower", "upper"))]
    assert filled.select(table.columns).schema == table.schema
    for n, name in enumerate("abcde"):
        lower, value, upper = (filled[one].to_numpy() for one in (f"{name}_lower", name, f"{name}_upper"))
        assert ((lower <= value) & (value <= upper)).all()
        assert np.array_equal(lower < upper, gaps[:, n])
        assert np.array_equal(value[~gaps[:, n]], gappy[name].to_numpy()[~gaps[:, n]])


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("t,a\n1,2\n2,\n", ("--time", "tt"), "no column 'tt' with time stamps; did you mean 't'"),
        ("t,a\n1,2\n2,x\n", ("--time", "t"), "row 2: 'x' in column 'a' is not a number"),
        ("t,a\n1,2\n1,\n", ("--time", "t"), "2 rows share their time stamp in 't' with another row: '1'"),
        ("t,a\n1,\n2,\n", ("--time", "t"), "no series has a single value"),
        ("t,a,a_lower\n1,2,3\n2,,4\n", ("--time", "t", "--interval", "0.9"), "already has a column 'a_lower'"),
        ("t,a\n1,2\n2,\n", ("--time", "t", "--valid", "2"), "valid"),
    ],
)
def test_errors_are_one_line(cli, tmp_path, text, words, message):
    (tmp_path / "given.csv").write_text(text, encoding="utf-8")
    code, _, err = cli("impute", tmp_path / "given.csv", *words, "--out", tmp_path / "filled.csv")
    assert code in (1, 2)
    assert message in err
    assert not (tmp_path / "filled.csv").exists()
