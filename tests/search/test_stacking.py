"""Which folds decide the weights of members."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.split import FOLDS
from jointensor.search.stacking import folds_that_score, stack
from tests.search.searches import BIAS, COMPONENTS, TABLES, TREES, bench


def test_a_member_whose_folds_were_cut_off_is_not_lost(planted):
    """One that is much better has the first fold only: it is judged by that one. An equal one is not waited for."""
    parts, results = bench(planted[0]), {}
    parts.fitter.fit(results, [(COMPONENTS, 0), *((BIAS, fold) for fold in range(FOLDS))])
    assert folds_that_score(parts.data, results) == [0]
    results["julia:2/0"] = replace(results["julia:2/0"], predictions={0: results["bias"].predictions[0]})
    assert folds_that_score(parts.data, results) == list(range(FOLDS))


def test_out_of_fold_predictions_of_the_mix_are_the_weighted_mean(planted):
    parts, results = bench(planted[0]), {}
    parts.fitter.fit(results, [(one, fold) for one in (TABLES, COMPONENTS) for fold in range(2)])
    parts.fitter.fit(results, [(TREES, 0)])
    mix = stack(parts.data, results)
    assert mix.folds == [0, 1]
    assert set(mix.predictions) == {"tables", "julia:2/0"}  # trees have no predictions for the second fold
    np.testing.assert_array_equal(mix.truth, planted[0].values[mix.positions])
    by_hand = sum(
        weight * np.concatenate([results[name].predictions[fold].astype(np.float64) for fold in range(2)])
        for name, weight in mix.weights.items()
    )
    np.testing.assert_allclose(mix.mixed, by_hand)
    tables = mix.weights.get("tables", 0.0)
    assert mix.tabulated_share(results) == pytest.approx(tables)
