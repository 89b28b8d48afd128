"""The members of the ensemble, their weights, and the folds that decide them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jointensor.data.split import FOLDS
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.search.cross_fit import Results, fitted_to
from jointensor.search.ensemble_selection import ErrorProducts, tolerated_error
from jointensor.search.families import family_of
from jointensor.search.folds import Folds
from jointensor.search.screening import first_fold_errors
from jointensor.search.settings import SETTINGS, SearchSettings


@dataclass(frozen=True)
class Stack:
    """A weighted mean of candidates."""

    folds: list[int]
    """Whose entries decide the weights."""
    weights: dict[str, float]
    """By name, in the order of selection; they sum to 1."""
    predictions: dict[str, NDArray[np.float32]]
    """Out-of-fold predictions of every candidate that was fitted to all these folds, ``(entries,)`` each."""
    positions: NDArray[np.int64]
    """Of these entries in the tensor, ``(entries,)``."""
    truth: NDArray[np.float32]
    """Their values, ``(entries,)``."""

    @property
    def mixed(self) -> NDArray[np.float64]:
        """Out-of-fold predictions of the weighted mean, ``(entries,)``."""
        total = np.zeros(len(self.truth))
        for name, weight in self.weights.items():
            total += weight * self.predictions[name].astype(np.float64)
        return total

    def tabulated_share(self, results: Results) -> float:
        """Weight of the members that have numbers for combinations of labels."""
        candidates = {name: results[name].candidate for name in self.weights}
        return sum(self.weights[name] for name, one in candidates.items() if family_of(one).tabulates(one))


def stack(
    data: Folds, results: Results, processes: ProcessGroup = SINGLE_PROCESS, settings: SearchSettings = SETTINGS
) -> Stack:
    """Choose members and weights by ensemble selection on out-of-fold predictions."""
    folds = processes.decide(lambda: folds_that_score(data, results, settings))
    fitted = fitted_to(results, folds)
    predictions = {name: np.concatenate([one.predictions[fold] for fold in folds]) for name, one in fitted.items()}
    truth = data.truth(folds)
    weights = processes.decide(lambda: ErrorProducts.of(predictions, truth).best_weights(settings))
    return Stack(folds, weights, predictions, data.positions_of(folds), truth)


def folds_that_score(data: Folds, results: Results, settings: SearchSettings = SETTINGS) -> list[int]:
    """As many folds as members were fitted to; fewer if that would lose a member that is worth more."""
    errors = first_fold_errors(data, results)
    expected: dict[int, float] = {}
    for count in range(1, FOLDS + 1):
        fitted = fitted_to(results, range(count))
        if fitted:
            averaged = {name: one.n_predicting(1) for name, one in fitted.items()}
            expected[count] = errors.among(list(fitted)).expected_error(averaged, settings)
    most = tolerated_error(min(expected.values()), len(data.truth([0])))
    return list(range(max(count for count, error in expected.items() if error <= most)))
