"""Forecasts of run folders: the command, queries after the last label, and what cannot be forecast."""

import contextlib
import json
import shutil
import sys

import numpy as np
import polars as pl
import pytest

from jointensor import write_tensor
from jointensor.cli import main
from jointensor.runs.folder import load_run
from jointensor.runs.future import Future
from jointensor.runs.predict import predict_file
from tests.forecasting.planted import seasonal_factors

QUICK = ("--rank", "1/0", "--set", "warm_epochs=1", "--set", "rounds=1", "--set", "refine_epochs=1", "--quiet")
STEPS, PLACES, KINDS, NOISE = 80, 4, 2, 0.1


@pytest.fixture(scope="module")
def planted():
    """A tensor of a weekly season, its future included, without an autoregression: nothing is unforeseen."""
    return seasonal_factors(STEPS + 10, PLACES, KINDS, noise=NOISE, memory=0.0, seed=3)


@pytest.fixture(scope="module")
def source(planted, tmp_path_factory):
    tensor, _ = planted
    path = tmp_path_factory.mktemp("forecast") / "places.csv"
    write_tensor(tensor.take(np.flatnonzero(tensor.indices[:, 2] < STEPS)), path)
    return path


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    """A run folder that nobody changes."""
    out = tmp_path_factory.mktemp("finished") / "run"
    words = ("fit", source, "--modes", "place,kind,day", "--value", "value", *QUICK, "--out", out)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(sys, "argv", ["jointensor", *map(str, words)])
        main()
    return out


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def truth_of(planted, frame):
    tensor, truth = planted
    place, kind, day = (tensor.modes[n].encode(frame[name]) for n, name in enumerate(("place", "kind", "day")))
    return truth[place, kind, day]


def test_the_next_labels_of_every_series_are_forecast(cli, run, planted, tmp_path):
    code, out, err = cli("forecast", run, "--horizon", 7, "--interval", 0.9, "--out", tmp_path / "next.csv")
    assert code == 0, err
    assert "56 forecasts written" in out
    assert "8 series along day, 2024-03-21 to 2024-03-27" in err
    frame = pl.read_csv(tmp_path / "next.csv", schema_overrides={"day": pl.String})
    assert frame.columns[:6] == ["place", "kind", "day", "forecast", "lower", "upper"]
    assert {"last", "drift"} < set(frame.columns)
    assert frame.height == 7 * PLACES * KINDS == frame.select("place", "kind", "day").n_unique()
    truth = truth_of(planted, frame)
    error = np.sqrt(np.mean((frame["forecast"].to_numpy() - truth) ** 2))
    assert error < 0.5 * np.sqrt(np.mean((frame["last"].to_numpy() - truth) ** 2))
    assert (frame["lower"] < frame["forecast"]).all()
    assert (frame["forecast"] < frame["upper"]).all()


def test_queries_after_the_last_label_are_forecast_as_the_command_does(cli, run, tmp_path, monkeypatch):
    """By the shortest horizon among powers of two that reaches them, whatever else is in the file or in a chunk."""
    monkeypatch.setattr("jointensor.runs.predict.CHUNK", 7)
    parts = []
    for horizon in (1, 2, 4):
        cli("forecast", run, "--horizon", horizon, "--interval", 0.8, "--out", tmp_path / "next.csv")
        frame = pl.read_csv(tmp_path / "next.csv", schema_overrides={"day": pl.String})
        parts.append(frame[(horizon // 2) * PLACES * KINDS :])
    pl.concat(parts, how="diagonal").write_csv(tmp_path / "next.csv")
    next_ones = pl.read_csv(tmp_path / "next.csv", schema_overrides={"day": pl.String})
    asked = pl.concat([
        next_ones.select("place", "kind", "day").reverse(),
        pl.DataFrame({"place": ["P0", "P0", "new", "P0"], "kind": ["a", "a", "a", "a"],
                      "day": ["2024-02-01", "2023-12-31", "2024-03-21", "2031-01-01"]}),
    ])  # fmt: skip
    asked.write_csv(tmp_path / "asked.csv")
    code, _, err = cli("predict", run, tmp_path / "asked.csv", "--interval", 0.8, "--out", tmp_path / "answers.csv")
    assert code == 0, err
    assert "32 queries lie after the last label of an ordered mode, and were forecast" in err
    assert "3 of 36 queries have a label that no training entry had" in err
    answers = pl.read_csv(tmp_path / "answers.csv", schema_overrides={"day": pl.String})
    forecasts, others = answers[:32], answers[32:]
    for mine, theirs in (("prediction", "forecast"), ("lower", "lower"), ("upper", "upper")):
        assert forecasts[mine].reverse().to_numpy() == pytest.approx(next_ones[theirs].to_numpy(), rel=1e-5)
    assert not forecasts["unseen"].any()
    assert others["unseen"].to_list() == [False, True, True, True]  # before the first, a new place, too far away


def test_queries_of_archives_are_forecast_too(cli, run, tmp_path):
    later = pl.DataFrame({"place": ["P1", "P2"], "kind": ["a", "b"], "day": ["2024-03-21", "2024-03-20"]})
    later.write_csv(tmp_path / "asked.csv")
    for name in ("a.npz", "a.csv"):
        assert cli("predict", run, tmp_path / "asked.csv", "--out", tmp_path / name)[0] == 0
    stored = np.load(tmp_path / "a.npz")
    assert stored["unseen"].tolist() == [False, False]
    assert stored["values"] == pytest.approx(pl.read_csv(tmp_path / "a.csv")["prediction"].to_numpy())


def test_forecasts_need_the_source_and_predictions_say_that_it_is_gone(cli, run, source, tmp_path):
    config = json.loads((run / "config.json").read_text())
    shutil.copy(source, tmp_path / "copy.csv")
    (run / "config.json").write_text(json.dumps(config | {"source": str(tmp_path / "copy.csv")}))
    (tmp_path / "copy.csv").write_text(source.read_text() + "P9,a,2024-01-01,1\n")
    code, _, err = cli("forecast", run, "--horizon", 1, "--out", tmp_path / "next.csv")
    assert code == 1
    assert "copy.csv is gone or has changed" in err
    pl.DataFrame({"place": ["P1"], "kind": ["a"], "day": ["2024-03-21"]}).write_csv(tmp_path / "asked.csv")
    code, _, err = cli("predict", run, tmp_path / "asked.csv", "--out", tmp_path / "answers.csv")
    assert code == 0
    assert "labels after the last one of 'day' are not forecast" in err
    assert pl.read_csv(tmp_path / "answers.csv")["unseen"].to_list() == [True]


def test_rolling_origins_are_evaluated_by_forecast_and_by_fit_alike(cli, run, source, tmp_path):
    words = ("forecast", run, "--horizon", 2, "--origins", 5, "--out", tmp_path / "figures.json")
    code, out, err = cli(*words)
    assert code == 0, err
    assert "5 origins, horizon 2 along day" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures["by_step"]) == {"1", "2"}
    assert figures["test"]["n"] == sum(one["n"] for one in figures["by_step"].values())
    split = ("--split", "time:day,horizon=2,origins=5")
    code, out, err = cli("fit", source, "--modes", "place,kind,day", "--value", "value", *QUICK[:-1], *split, "--out",
                         tmp_path / "rolled")  # fmt: skip
    assert code == 0, err
    assert "5 origins, horizon 2 along day" in out
    metrics = json.loads((tmp_path / "rolled" / "metrics.json").read_text())
    assert metrics["forecast"] == figures
    assert metrics["entries"]["test"] == figures["test"]["n"]
    assert json.loads((run / "metrics.json").read_text())["forecast"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--horizon", 0), "the horizon is 0; give the number of labels"),
        (("--horizon", 1, "--by", "place"), "mode 'place' is not ordered, nothing comes after its last label"),
        (("--horizon", 1, "--by", "month"), "there is no mode 'month'"),
        (("--horizon", 1, "--interval", 90), "the interval is 90; give a share between 0 and 1"),
        (("--horizon", 0, "--origins", 2), "both must be 1 or more"),
    ],
)
def test_what_cannot_be_forecast_is_refused(cli, run, words, message, tmp_path):
    code, _, err = cli("forecast", run, *words, "--out", tmp_path / "next.csv")
    assert code == 2
    assert message in err
    assert not (tmp_path / "next.csv").exists()


def test_a_run_without_ordered_modes_has_no_future(cli, tmp_path):
    pl.DataFrame({"user": list("abcd"), "film": list("xyxy"), "value": [1.0, 2.0, 3.0, 4.0]}).write_csv(
        tmp_path / "films.csv"
    )
    words = ("--modes", "user,film", "--value", "value", "--test", "0", "--valid", "0", *QUICK)
    assert cli("fit", tmp_path / "films.csv", *words, "--out", tmp_path / "run")[0] == 0
    code, _, err = cli("forecast", tmp_path / "run", "--horizon", 1, "--out", tmp_path / "next.csv")
    assert code == 2
    assert "no mode is ordered (user, film)" in err
    assert Future.of(load_run(tmp_path / "run")).timelines == {}


def test_numbers_of_users_are_not_continued(cli, tmp_path):
    """A user 13 after twelve users is a new user."""
    frame = pl.DataFrame({"user": [n for n in range(12) for _ in "abc"], "film": list("abc") * 12})
    frame.with_columns(value=pl.int_range(36).cast(pl.Float64)).write_csv(tmp_path / "films.csv")
    words = ("--modes", "user,film", "--value", "value", "--test", "0", "--valid", "0", *QUICK)
    assert cli("fit", tmp_path / "films.csv", *words, "--out", tmp_path / "run")[0] == 0
    pl.DataFrame({"user": [12], "film": ["a"]}).write_csv(tmp_path / "asked.csv")
    assert predict_file(load_run(tmp_path / "run"), tmp_path / "asked.csv", tmp_path / "answers.csv") == (1, 1)
