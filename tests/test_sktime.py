"""TensorImputer: sktime's own checks, and what it fills in by."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sktime", reason="sktime is not installed: pip install jointensor[sktime]")

from sktime.utils.estimator_checks import check_estimator

from jointensor.sktime import TensorImputer

QUICK = {"rank": (4, 0), "device": "cpu", "random_state": 0}


@pytest.fixture
def panel():
    """Five instances of two series, two waves in all; gaps in all of them, and one instance that ends early."""
    time = np.arange(60)
    waves = np.stack([np.sin(time / 3), np.cos(time / 3)], axis=1)
    index = pd.MultiIndex.from_product([list("uvwxy"), pd.RangeIndex(60)], names=["who", None])
    rng = np.random.default_rng(0)
    series = rng.normal(size=(2, 2))  # the same of every instance, but for the weights of the waves
    numbers = np.concatenate([waves * rng.normal(size=2) @ series for _ in "uvwxy"])
    truth = pd.DataFrame(numbers, index=index, columns=["x", "y"]).iloc[:-10]
    return truth, rng.random(truth.shape) < 0.15


@pytest.mark.filterwarnings("ignore")  # sktime's own
def test_sktime_checks():
    results = check_estimator(TensorImputer, verbose=False)
    assert len(results) > 100
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}


def test_instances_of_a_panel_are_learnt_together(panel):
    truth, hidden = panel
    hidden[20:40] |= [True, False]  # a third of a series of one instance: more than a wave
    filled = TensorImputer(**QUICK).fit_transform(truth.mask(hidden))
    assert filled.index.equals(truth.index)
    assert np.array_equal(filled.to_numpy()[~hidden], truth.to_numpy()[~hidden])
    errors = (filled - truth).to_numpy()[hidden]
    assert np.sqrt(np.mean(errors**2)) < 0.3 * truth.to_numpy().std()


def test_what_was_seen_in_fit_is_used_but_not_for_the_same_time():
    time = np.arange(80)[:, None]
    frame = pd.DataFrame(np.sin(time / 6 + np.arange(6))).add_prefix("s")
    late = frame.tail(10).copy()
    late.iloc[2:, 0] = np.nan
    alone = TensorImputer(**QUICK).fit_transform(late)
    imputer = TensorImputer(**QUICK).fit(frame.head(70))
    errors = [np.abs(filled - frame.tail(10)).to_numpy().max() for filled in (alone, imputer.transform(late))]
    assert errors[1] < 0.3 * errors[0]
    told = TensorImputer(**QUICK).fit(frame).transform(late)  # the answers are among what fit was given
    pd.testing.assert_frame_equal(told, imputer.transform(late))
