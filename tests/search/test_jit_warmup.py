"""Candidates are compiled for before they are timed; nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.search import cross_fit
from jointensor.search.families import FAMILIES, FitOptions, family_of
from jointensor.search.jit_warmup import warm_up
from jointensor.search.portfolio import candidates_for
from jointensor.search.settings import SETTINGS
from tests.search.searches import TREES, bench

EVERY_CANDIDATE = replace(SETTINGS, min_exact_entries=0.0, max_sparse_entries=0.0)


def some_tensor(n_modes=3, entries=300):
    modes = [Mode(f"m{n}", 12 + n) for n in range(n_modes - 1)] + [Mode("day", 40, order="ordered")]
    rng = np.random.default_rng(0)
    cells = draw_cells([mode.size for mode in modes], entries, rng)
    return SparseTensor(cells, rng.standard_normal(entries) + cells[:, 0], modes)


@pytest.mark.parametrize("n_modes", [2, 3, 5])
def test_every_candidate_can_be_warmed_up(n_modes):
    """None of them fails on a handful of entries."""
    tensor = some_tensor(n_modes)
    for one in candidates_for(tensor, EVERY_CANDIDATE):
        if family_of(one).warmup_key(one) is not None:
            warm_up(one, tensor, FitOptions(device="cpu"))


def test_candidates_that_run_the_same_code_are_warmed_up_once():
    keys = {one.name: family_of(one).warmup_key(one) for one in candidates_for(some_tensor(), EVERY_CANDIDATE)}
    assert keys["bias"] is keys["tables"] is None
    assert keys["mean+bias+tables+fm:8"] == keys["mean+bias+tables+fm:24"] != keys["cp"]
    assert keys["julia:4/16"] == keys["julia:4/32"] != keys["avocado:20"]
    assert len({keys[name] for name in ("julia:4/16", "avocado:20", "cp", "trees")}) == 4


def test_fits_are_timed_without_their_warm_up(monkeypatch):
    """What is compiled takes 90 seconds and a fit 10, by the clock of the search."""
    parts, calls, real = bench(some_tensor(), TREES, seconds=1e6), [], FAMILIES["trees"].fit

    def slow_warm_up(candidate, *_):
        calls.append(candidate.name)
        parts.clock.now += 90

    def slow_fit(*args):
        parts.clock.now += 10
        return real(*args)

    monkeypatch.setattr(cross_fit, "warm_up", slow_warm_up)
    monkeypatch.setattr(FAMILIES["trees"], "fit", slow_fit)
    results = {}
    parts.fitter.fit(results, [(TREES, 0), (TREES, 1)])
    assert calls == ["trees"]  # once, before both folds
    assert set(results["trees"].predictions) == {0, 1}
    assert results["trees"].cost == 10
    assert results["trees"].seconds == 20


def test_a_warm_up_that_fails_costs_nothing_but_itself(monkeypatch):
    def failing(*_):
        raise FloatingPointError("diverged")

    monkeypatch.setattr(cross_fit, "warm_up", failing)
    results = {}
    bench(some_tensor(), TREES).fitter.fit(results, [(TREES, 0)])
    assert results["trees"].failure is None
    assert set(results["trees"].predictions) == {0}
