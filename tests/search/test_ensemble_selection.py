"""Weights of members, against all multiples and against theory."""

from itertools import product

import numpy as np
import pytest

from jointensor.search.ensemble_selection import ErrorProducts, tolerated_error
from jointensor.search.settings import SETTINGS, SearchSettings

STEPS = SETTINGS.selection_steps


def members(seed, noises=(0.5, 0.6, 1.5), entries=400):
    rng = np.random.default_rng(seed)
    truth = rng.standard_normal(entries).astype(np.float32)
    predicted = {f"m{k}": (truth + s * rng.standard_normal(entries)).astype(np.float32) for k, s in enumerate(noises)}
    return predicted, truth


def best_weights(predicted, truth):
    return ErrorProducts.of(predicted, truth).best_weights()


def error_of(weights, predicted, truth):
    return np.mean((sum(w * predicted[name].astype(np.float64) for name, w in weights.items()) - truth) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_weights_are_nearly_the_best_of_all_multiples(seed):
    predicted, truth = members(seed)
    errors = np.stack([one - truth for one in predicted.values()]).astype(np.float64)
    products = errors @ errors.T / len(truth)
    grid = [(i / k, j / k, (k - i - j) / k) for k in range(1, STEPS + 1) for i, j in product(range(k + 1), repeat=2)]
    every = [np.array(w) @ products @ np.array(w) for w in grid if min(w) >= 0]
    alone = [error_of({name: 1.0}, predicted, truth) for name in predicted]
    weights = best_weights(predicted, truth)
    assert sum(weights.values()) == pytest.approx(1.0)
    assert all(weight > 0 for weight in weights.values())
    error = error_of(weights, predicted, truth)
    assert error == pytest.approx(ErrorProducts.of(predicted, truth).of_mean(weights))
    # steps that are too small to count are not made
    assert min(every) * (1 - 1e-6) <= error < min(every) + 0.05 * (min(alone) - min(every))


def test_of_two_independent_members_the_weights_are_the_inverse_variances():
    weights = best_weights(*members(3, noises=(0.4, 0.8), entries=40_000))
    assert weights["m0"] == pytest.approx(0.64 / (0.16 + 0.64), abs=2 / STEPS)


def test_a_perfect_member_gets_everything():
    predicted, truth = members(0)
    assert best_weights(predicted | {"oracle": truth}, truth) == {"oracle": 1.0}
    assert best_weights({"only": predicted["m2"]}, truth) == {"only": 1.0}


def test_weights_do_not_depend_on_order_nor_scale():
    predicted, truth = members(1)
    weights = best_weights(predicted, truth)
    assert best_weights(dict(reversed(predicted.items())), truth) == weights
    assert best_weights({name: 4 * one for name, one in predicted.items()}, 4 * truth) == weights


def test_one_more_member_never_makes_the_mix_worse():
    for seed in range(4):
        errors = ErrorProducts.of(*members(seed))
        alone = [errors.among([name]).of_mean({name: 1.0}) for name in errors.names]
        assert errors.of_mean(errors.best_weights()) <= min(alone)


def test_means_of_many_fits_are_expected_to_err_less():
    """By the part of the error that comes from the seed, as far as it is averaged away."""
    predicted, truth = members(0)
    errors = ErrorProducts.of({"m0": predicted["m0"]}, truth)
    lone, settings = errors.of_mean({"m0": 1.0}), SearchSettings(seed_variance_share=0.2)
    assert errors.expected_error({"m0": 1}, settings) == pytest.approx(lone)
    assert errors.expected_error({"m0": 4}, settings) == pytest.approx(lone * (1 - 0.2 * 3 / 4))


def test_few_entries_tolerate_more():
    assert tolerated_error(2.0, 100) == pytest.approx(2.2)
    assert tolerated_error(2.0, 10_000) == pytest.approx(2.02)


@pytest.mark.parametrize("seed", range(3))
def test_gains_are_what_the_others_alone_lose(seed):
    predicted, truth = members(seed)
    errors = ErrorProducts.of(predicted, truth)
    weights = errors.best_weights()
    gains = errors.gains(weights)
    assert set(gains) == set(weights)
    for name, gain in gains.items():
        others = {other: one for other, one in predicted.items() if other != name}
        without = error_of(best_weights(others, truth), others, truth)
        assert gain == pytest.approx(1 - error_of(weights, predicted, truth) / without)


def test_the_only_member_removes_everything():
    predicted, truth = members(0)
    assert ErrorProducts.of({"m0": predicted["m0"]}, truth).gains({"m0": 1.0}) == {"m0": 1.0}
