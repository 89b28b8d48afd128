"""Which entries have labels that the fits to the other folds did not see."""

import numpy as np

from jointensor.search.folds import fold_entries
from jointensor.search.intervals import cold_entries
from tests.search.searches import additive
from tests.search.test_dependencies import joined  # noqa: F401 - a fixture


def test_cold_entries_are_those_with_a_label_of_their_fold_alone():
    data = fold_entries(additive((60, 50), 90), (), 0)
    cold = cold_entries(data, np.arange(90))
    for row, fold, found in zip(data.tensor.indices, data.fold, cold, strict=True):
        others = data.tensor.indices[data.fold != fold]
        assert found == any(label not in others[:, n] for n, label in enumerate(row))
    assert 0 < cold.sum() < len(cold)


def test_labels_that_only_given_entries_of_the_fold_have_are_not_cold(joined):  # noqa: F811
    """They are learnt from in every fold."""
    data = fold_entries(joined[0], (), 0)
    scored = np.flatnonzero(~data.dependent)
    for at, cold in zip(scored, cold_entries(data, scored), strict=True):
        seen = data.tensor.indices[data.scored != data.scored[at]]
        assert cold == any(data.tensor.indices[at, n] not in seen[:, n] for n in range(3))
