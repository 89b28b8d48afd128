"""A search on a tensor whose values some labels decide."""

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.split import folds as parting
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.search.finalise import MISSES, _cold
from jointensor.search.search import Search, search
from tests.search.searches import BIAS, LONG, TABLES, rmse

MODES = (Mode("paper", 40), Mode("author", 12), Mode("word", 30))


@pytest.fixture(scope="module")
def joined():
    """How often papers have words, listed for each of a paper's authors: entries to learn from, and the others."""
    rng = np.random.default_rng(0)
    counts = rng.normal(size=(40, 1)) + rng.normal(size=(1, 30)) + 0.5 * rng.normal(size=(40, 30))
    wrote = rng.random((40, 12)) < 0.25
    cells = np.argwhere(wrote[:, :, None] & (rng.random((40, 1, 30)) < 0.7))
    whole = SparseTensor(cells, counts[cells[:, 0], cells[:, 2]].astype(np.float32), MODES)
    order = rng.permutation(len(whole))
    half = 2 * len(whole) // 3
    return whole.take(np.sort(order[:half])), whole.take(np.sort(order[half:]))


def is_known(learnt, others):
    pairs = {(a, c) for a, _, c in learnt.indices.tolist()}
    return np.array([(a, c) in pairs for a, _, c in others.indices.tolist()])


def test_what_labels_decide_is_answered_exactly(joined, offer, tmp_path):
    offer(BIAS, TABLES)
    learnt, others = joined
    result = search(learnt, budget=LONG, device="cpu")
    known = is_known(learnt, others)
    assert 0.3 < known.mean() < 0.95
    said = result.predictor.predict(others.indices)
    np.testing.assert_array_equal(said[known], others.values[known])
    assert (said[~known] != others.values[~known]).all()
    assert "where paper and word were seen together" in result.reason
    save_predictor(result.predictor, tmp_path / "t")
    np.testing.assert_array_equal(load_predictor(tmp_path / "t").predict(others.indices), said)
    assert result.predictor.n_parameters() > len({(a, c) for a, _, c in learnt.indices.tolist()})


def test_structures_are_judged_by_what_nothing_else_decides(joined, offer):
    """Their figures are those of new pairs; those of the whole answer are of all entries."""
    offer(BIAS, TABLES)
    learnt, others = joined
    result = search(learnt, budget=LONG, device="cpu")
    known, said = is_known(learnt, others), result.predictor.predict(others.indices)
    new = rmse(said[~known], others.values[~known])
    assert result.figures["all"] == pytest.approx(new, rel=0.25)
    assert np.isfinite(result.predicted).all()
    whole = rmse(result.predicted, learnt.values)
    assert whole == pytest.approx(rmse(said, others.values), rel=0.25)
    assert whole < 0.8 * result.figures["all"]


@pytest.mark.parametrize("held", [False, True])
def test_intervals_hold_their_share_of_all_and_most_of_those_that_are_new(joined, offer, monkeypatch, held):
    if held:
        monkeypatch.setattr(parting, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
        monkeypatch.setattr(parting, "CALIBRATION_SHARE", 0.2)
    offer(BIAS, TABLES)
    learnt, others = joined
    ends = search(learnt, budget=LONG, device="cpu").predictor.interval(others.indices, 0.9)
    inside = (others.values >= ends[:, 0]) & (others.values <= ends[:, 1])
    known = is_known(learnt, others)
    assert known.mean() > 1 - 1 / MISSES
    assert inside[known].all()
    least = 1 - MISSES * 0.1
    assert least - 4 * np.sqrt(least * (1 - least) / (~known).sum()) < inside[~known].mean() < 0.9
    assert 0.88 < inside.mean() < 0.97


def test_new_groups_have_nothing_decided(joined, offer):
    offer(BIAS, TABLES)
    search = Search(joined[0], budget=LONG, device="cpu", groups=(0, 2))
    assert search.deciding is None
    assert (search.folds >= 0).all()


def test_where_next_to_nothing_is_left_open_structures_are_judged_by_all(offer):
    offer(BIAS)
    cells = np.argwhere(np.ones((20, 15, 10)))
    values = np.random.default_rng(0).normal(size=20)[cells[:, 0]]
    search = Search(SparseTensor(cells, values, (20, 15, 10)), budget=LONG, device="cpu")
    assert search.deciding is None
    assert (search.folds >= 0).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_few_entries_are_searched_whatever_others_decide(offer, seed):
    offer(BIAS, TABLES)
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.argwhere(np.ones((6, 8, 5))))[:90]
    values = rng.normal(size=(6, 5))[cells[:, 0], cells[:, 2]]
    result = search(SparseTensor(cells, values, (6, 8, 5)), budget=LONG, device="cpu")
    assert all(row["spread"] is None or np.isfinite(row["spread"]) for row in result.trials)
    assert np.isfinite(list(result.figures.values())).all()


def test_labels_that_only_settled_entries_of_the_fold_have_are_no_new_ones(joined, offer):
    """They are learnt from in every fold."""
    offer(BIAS)
    search = Search(joined[0], budget=LONG, device="cpu")
    open_ = np.flatnonzero(~search.settled)
    found = _cold(search, search.tensor.take(open_), search.parted[open_])
    for at, cold in zip(open_, found, strict=True):
        seen = search.tensor.indices[search.folds != search.folds[at]]
        assert cold == any(search.tensor.indices[at, n] not in seen[:, n] for n in range(3))
