"""TensorCompleter.forecast: the next labels, from the entries of fit and partial_fit."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from jointensor import TensorCompleter
from jointensor.errors import ConfigError
from tests.forecasting.planted import days

STEPS = 60


@pytest.fixture(scope="module")
def shops():
    """Sales of shops with a weekly season and no noise."""
    every = days(STEPS + 7)
    phase = np.array([5.0, 1.0, 2.0, 3.0, 4.0, 9.0, 7.0])
    rows = [(f"S{s}", str(day), (s + 1) * phase[t % 7]) for s in range(4) for t, day in enumerate(every)]
    return pd.DataFrame(rows, columns=["shop", "day", "sold"])


def fitted(frame):
    settings = {"rank": (1, 0), "budget": 1.0, "device": "cpu", "random_state": 0}
    return TensorCompleter(**settings).fit(frame[["shop", "day"]], frame["sold"])


def test_the_next_labels_follow_the_season(shops):
    known, later = shops[shops.day < "2024-03-01"], shops[shops.day >= "2024-03-01"]
    completer = fitted(known)
    found = completer.forecast(7, return_interval=0.9)
    expected = later.set_index(["shop", "day"])["sold"]
    truth = expected.loc[list(zip(found["shop"], found["day"], strict=True))].to_numpy()
    assert len(found) == 28
    assert found["forecast"].to_numpy() == pytest.approx(truth, abs=0.5)
    assert (found["lower"] <= found["upper"]).all()
    assert completer.forecast(7).columns == [c for c in found.columns if c not in ("lower", "upper")]
    assert completer.forecast(7, by="day").equals(completer.forecast(7))
    again = pickle.loads(pickle.dumps(completer))  # noqa: S301 - what was just written
    assert again.forecast(7).equals(completer.forecast(7))


def test_entries_that_were_added_are_forecast_from(shops):
    early, late = shops[shops.day < "2024-02-20"], shops[shops.day >= "2024-02-13"]
    late = late.assign(sold=late.sold + 0.25)  # some cells again, with another value
    completer = fitted(early).partial_fit(late[["shop", "day"]], late["sold"])
    everything = completer.observed_
    assert len(everything) == len(shops)
    assert everything.values.sum() == pytest.approx(shops.sold.sum() + 0.25 * len(late))
    assert completer.forecast(1)["day"].unique().to_list() == ["2024-03-08"]


def test_what_cannot_be_forecast_is_refused(shops):
    with pytest.raises(NotFittedError):
        TensorCompleter().forecast(1)
    completer = fitted(shops)
    with pytest.raises(ConfigError, match="the horizon is 0"):
        completer.forecast(0)
    with pytest.raises(ConfigError, match="mode 'shop' is not ordered"):
        completer.forecast(1, by="shop")
