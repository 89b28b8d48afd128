"""A search on a tensor whose values some labels decide."""

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.sparse import SparseTensor
from jointensor.experiments import folds as parting
from jointensor.experiments.auto import Search, run_auto
from jointensor.training.weights import load_predictor, save_predictor
from tests.experiments.searches import BIAS, LONG, TABLES, rmse

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
    result = run_auto(learnt, budget=LONG, device="cpu")
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
    result = run_auto(learnt, budget=LONG, device="cpu")
    known, said = is_known(learnt, others), result.predictor.predict(others.indices)
    new = rmse(said[~known], others.values[~known])
    assert result.figures["all"] == pytest.approx(new, rel=0.25)
    assert np.isfinite(result.predicted).all()
    whole = rmse(result.predicted, learnt.values)
    assert whole == pytest.approx(rmse(said, others.values), rel=0.25)
    assert whole < 0.8 * result.figures["all"]


@pytest.mark.parametrize("held", [False, True])
def test_intervals_hold_their_share_of_both(joined, offer, monkeypatch, held):
    if held:
        monkeypatch.setattr(parting, "HOLD_FROM", 1000)
        monkeypatch.setattr(parting, "HELD", 0.2)
    offer(BIAS, TABLES)
    learnt, others = joined
    ends = run_auto(learnt, budget=LONG, device="cpu").predictor.interval(others.indices, 0.9)
    inside = (others.values >= ends[:, 0]) & (others.values <= ends[:, 1])
    assert 0.85 < inside.mean() < 0.96


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
