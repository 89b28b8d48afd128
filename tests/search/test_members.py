"""Which candidates a search mixes, by what weights, and which it fits to more folds when time is short."""

from itertools import product

import numpy as np
import pytest

from jointensor.data.split import FOLDS
from jointensor.search import cross_validation as trials
from jointensor.search.ensemble_selection import STEPS, Errors
from jointensor.search.portfolio import Candidate, Fitted
from jointensor.search.search import Search
from tests.search.searches import BIAS, LONG

# --- weights


def members(seed, noises=(0.5, 0.6, 1.5), entries=400):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(entries).astype(np.float32)
    said = {f"m{k}": (truth + s * rng.standard_normal(entries)).astype(np.float32) for k, s in enumerate(noises)}
    return said, truth


def best_weights(said, truth):
    return Errors.of(said, truth).best_weights()


def error_of(weights, said, truth):
    return np.mean((sum(w * said[name].astype(np.float64) for name, w in weights.items()) - truth) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_nearly_the_best_of_all_multiples(seed):
    said, truth = members(seed)
    errors = np.stack([one - truth for one in said.values()]).astype(np.float64)
    products = errors @ errors.T / len(truth)
    grid = [(i / k, j / k, (k - i - j) / k) for k in range(1, STEPS + 1) for i, j in product(range(k + 1), repeat=2)]
    every = [np.array(w) @ products @ np.array(w) for w in grid if min(w) >= 0]
    alone = [error_of({name: 1.0}, said, truth) for name in said]
    weights = best_weights(said, truth)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(weight > 0 for weight in weights.values())
    error = error_of(weights, said, truth)
    assert error == pytest.approx(Errors.of(said, truth).of_mean(weights))
    # steps that are too small to count may be left lying
    assert min(every) * (1 - 1e-6) <= error < min(every) + 0.05 * (min(alone) - min(every))


def test_of_two_independent_members_the_weights_are_the_inverse_variances():
    said, truth = members(3, noises=(0.4, 0.8), entries=40_000)
    weights = best_weights(said, truth)
    assert weights["m0"] == pytest.approx(0.64 / (0.16 + 0.64), abs=2 / STEPS)


def test_a_perfect_member_gets_everything():
    said, truth = members(0)
    assert best_weights(said | {"oracle": truth}, truth) == {"oracle": 1.0}
    assert best_weights({"only": said["m2"]}, truth) == {"only": 1.0}


def test_weights_do_not_depend_on_order_nor_scale():
    said, truth = members(1)
    weights = best_weights(said, truth)
    assert best_weights(dict(reversed(said.items())), truth) == weights
    assert best_weights({name: 4 * one for name, one in said.items()}, 4 * truth) == weights


def test_a_member_more_never_makes_the_mix_worse():
    for seed in range(4):
        errors = Errors.of(*members(seed))
        alone = [errors.among([name]).of_mean({name: 1.0}) for name in errors.names]
        assert errors.of_mean(errors.best_weights()) <= min(alone)


ALIKE, HARDLY, LITTLE = ((0.95, 0.31), (0.95, -0.31)), ((1.0, 0.03), (1.0, -0.03)), ((1.0, 0.0), (0.9, 1.0))
"""How two members err, in two directions: the mean of the first two errs 10 % less than one, of the next 0.1 %, and
nine parts of the last but one and one part of the last 1 %."""


@pytest.mark.parametrize(
    ("kinds", "errors", "names", "folds"),
    [
        (("tables", "tables"), ALIKE, 2, 2),
        (("tables", "tables"), HARDLY, 1, 3),
        (("joint", "joint"), ALIKE, 2, 3),
        (("joint", "tables"), LITTLE, 1, FOLDS),  # one network alone gains most by being averaged
    ],
)
def test_a_member_that_helps_is_weighed_against_folds(offer, planted, monkeypatch, kinds, errors, names, folds):
    """There are 45 seconds, and every fit takes ten."""
    offer(BIAS)
    search = Search(planted[0], budget=LONG, device="cpu")
    truth = search.truth([0])
    common = np.resize([1.0, 1.0, -1.0, -1.0], len(truth))
    own = np.resize([1.0, -1.0], len(truth))
    for k, (kind, (first, second)) in enumerate(zip(kinds, errors, strict=True)):
        trial = trials.Trial(Candidate(f"member {k}", kind, 1), {0: Fitted(None, 10.0)})
        trial.predicted[0] = (truth + first * common + second * own).astype(np.float32)
        search.trials[f"member {k}"] = trial
    monkeypatch.setattr(search, "left_here", lambda share=1.0: 45.0)
    chosen, many = search._affordable()
    assert (len(chosen), many) == (names, folds)


def test_folds_that_others_have_had_are_not_given_up(offer, planted, monkeypatch):
    """Trees of all folds would not count beside networks of three."""
    offer(BIAS)
    search = Search(planted[0], budget=LONG, device="cpu")
    truth, own = search.truth([0]), np.resize([1.0, -1.0], len(search.truth([0])))
    for name, kind, folds, sign in (("trees", "trees", FOLDS, 1), ("network", "joint", 1, -1)):
        trial = trials.Trial(Candidate(name, kind, 1), {fold: Fitted(None, 10.0) for fold in range(folds)})
        trial.predicted |= {fold: (truth + sign * own).astype(np.float32) for fold in range(folds)}
        search.trials[name] = trial
    for left, expected in ((35.0, (["trees"], FOLDS)), (55.0, (["trees", "network"], FOLDS))):
        monkeypatch.setattr(search, "left_here", lambda share=1.0, left=left: left)
        chosen, folds = search._affordable()
        assert (sorted(one.candidate.name for one in chosen), folds) == (sorted(expected[0]), expected[1])


def test_others_are_taken_along_only_where_members_have_time_for_all_folds(offer, planted, monkeypatch):
    """Two that are good together need 40 s for three folds, a third, which adds nothing, ten more; there are 45."""
    offer(BIAS)
    search = Search(planted[0], budget=LONG, device="cpu")
    size = len(search.truth([0]))
    common, own = np.resize([1.0, 1.0, -1.0, -1.0], size), np.resize([1.0, -1.0], size)
    for name, (first, second) in (("a", (0.95, 0.31)), ("b", (0.95, -0.31)), ("c", (1.0, 0.0))):
        trial = trials.Trial(Candidate(name, "joint", 1), {0: Fitted(None, 10.0 if name < "c" else 5.0)})
        trial.predicted[0] = (search.truth([0]) + first * common + second * own).astype(np.float32)
        search.trials[name] = trial
    left, fitted = [45.0], []

    def fit(jobs):
        for trial, fold in jobs:
            trial.predicted[fold] = trial.predicted[0]
            left[0] -= trial.seconds
            fitted.append(trial.candidate.name)

    monkeypatch.setattr(search, "left_here", lambda share=1.0: left[0])
    monkeypatch.setattr(search, "fit_all", fit)
    search._cross_fit()
    assert sorted(fitted) == ["a", "a", "b", "b"]
