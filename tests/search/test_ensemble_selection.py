"""Weights of members, against all multiples and against theory."""

from itertools import product

import numpy as np
import pytest

from jointensor.search import ensemble_selection
from jointensor.search.ensemble_selection import (
    ErrorProducts,
    squared_error,
    tolerated_error,
    within_standard_errors,
)
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


def greedy(predicted, truth, steps, gain):
    """Ensemble selection from predictions alone: the draw that lowers the error most, as often as it pays."""
    names, drawn, kept, lowest = list(predicted), [], 1, np.inf
    for step in range(1, steps + 1):
        errors = [np.mean((np.mean([predicted[n] for n in [*drawn, name]], axis=0) - truth) ** 2) for name in names]
        best = int(np.argmin(errors))
        drawn.append(names[best])
        if errors[best] < lowest * (1 - gain / step):
            lowest, kept = errors[best], step
    return {name: drawn[:kept].count(name) / kept for name in dict.fromkeys(drawn[:kept])}


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 30])
@pytest.mark.parametrize("gain", [0.0005, 0.1, 0.5, 0.95])
def test_weights_are_those_of_the_draws_one_by_one(steps, gain):
    for seed in range(6):
        predicted, truth = members(seed, noises=(0.5, 0.55, 0.7, 1.5), entries=60)
        exact = {name: one.astype(np.float64) for name, one in predicted.items()}
        settings = SearchSettings(selection_steps=steps, min_selection_gain=gain)
        found = ErrorProducts.of(predicted, truth).best_weights(settings)
        assert found == pytest.approx(greedy(exact, truth.astype(np.float64), steps, gain))


@pytest.mark.parametrize("chunk", [1, 7, 30, 100])
def test_products_do_not_depend_on_chunks(monkeypatch, chunk):
    predicted, truth = members(0, entries=30)
    errors = np.stack([one.astype(np.float64) - truth for one in predicted.values()])
    monkeypatch.setattr(ensemble_selection, "CHUNK", chunk)
    found = ErrorProducts.of(predicted, truth)
    np.testing.assert_allclose(found.products, errors @ errors.T / 30, rtol=1e-12)
    np.testing.assert_allclose(
        ErrorProducts.of({name: one[:1] for name, one in predicted.items()}, truth[:1]).products,
        np.outer(errors[:, 0], errors[:, 0]),
    )
    assert not ErrorProducts.of({name: one[:0] for name, one in predicted.items()}, truth[:0]).products.any()


def test_a_member_that_has_an_equal_removes_nothing():
    """Even where nothing is left to remove."""
    truth = np.arange(5, dtype=np.float32)
    errors = ErrorProducts.of({"one": truth, "other": truth, "bad": truth + 1}, truth)
    assert errors.gains({"one": 1.0}) == {"one": 0.0}
    assert ErrorProducts.of({"one": truth, "bad": truth + 1}, truth).gains({"one": 1.0}) == {"one": 1.0}


def test_of_a_mix_only_the_averaged_part_is_removed():
    """The variance of a weighted mean has the squares of the weights."""
    rng = np.random.default_rng(0)
    truth = np.zeros(4000, dtype=np.float32)
    both = {name: rng.standard_normal(4000).astype(np.float32) for name in ("a", "b")}
    errors = ErrorProducts.of(both, truth)
    settings = SearchSettings(seed_variance_share=0.2, selection_steps=2)
    assert errors.best_weights(settings) == {"a": 0.5, "b": 0.5}
    expected = errors.of_mean({"a": 0.5, "b": 0.5}) * (1 - 0.2 * (0.25 * (1 - 1 / 4) + 0.25 * (1 - 1 / 2)))
    assert errors.expected_error({"a": 4, "b": 2}, settings) == pytest.approx(expected)


def test_squares_of_large_values_are_finite():
    assert squared_error(np.float32([3e30, 1e30]), np.float32([1e30, 1e30])) == pytest.approx(2e60)
    assert squared_error(np.float32([1.0, 4.0]), np.float32([2.0, 2.0])) == 2.5


def test_differences_are_compared_with_their_standard_error():
    differences = np.array([0.0, 1.0, 2.0, 3.0])  # mean 1.5, standard error 0.559
    least = 1.5 / (np.std(differences) / 2)
    assert within_standard_errors(differences, least + 1e-9)
    assert not within_standard_errors(differences, least - 1e-9)
    assert not within_standard_errors(differences)
    assert within_standard_errors(differences - 1.0)
    assert within_standard_errors(np.zeros(3))
