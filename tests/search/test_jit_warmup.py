"""Candidates are compiled for before they are timed; nothing else changes."""

import time

import numpy as np
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.search import cross_validation as trials
from jointensor.search.cross_validation import CrossValidation, Trial
from jointensor.search.jit_warmup import rehearse, scene_of
from jointensor.search.portfolio import Candidate, candidates_for

HOW = {"seed": 0, "device": "cpu", "engine": "auto", "groups": ()}


def some_tensor(n_modes=3, entries=300):
    modes = [Mode(f"m{n}", 12 + n) for n in range(n_modes - 1)] + [Mode("day", 40, order="ordered")]
    rng = np.random.default_rng(0)
    cells = draw_cells([mode.size for mode in modes], entries, rng)
    return SparseTensor(cells, rng.standard_normal(entries) + cells[:, 0], modes)


@pytest.mark.parametrize("n_modes", [2, 3, 5])
def test_every_candidate_can_be_rehearsed(n_modes):
    """None of them fails on a handful of entries."""
    tensor = some_tensor(n_modes)
    for one in candidates_for(tensor):
        if scene_of(one) is not None:
            rehearse(one, tensor, budget=60.0, **HOW)


def test_what_runs_the_same_code_is_rehearsed_once():
    scenes = {one.name: scene_of(one) for one in candidates_for(some_tensor())}
    assert scenes["bias"] is scenes["tables"] is None
    assert scenes["mean+bias+tables+fm:8"] == scenes["mean+bias+tables+fm:24"] != scenes["mean+bias+tables"]
    assert scenes["julia:4/16"] == scenes["julia:4/32"] != scenes["avocado:20"]
    assert len({scenes[name] for name in ("julia:4/16", "julia:0/20", "julia:20/0", "trees")}) == 4


def test_a_search_times_fits_without_what_was_compiled_for_them(monkeypatch):
    """A fit is slow once, as the first one is where nothing is compiled yet; its trial takes no notice."""
    fit, calls = trials.fit_candidate, []

    def slow_once(candidate, train, valid, **how):
        if not calls:
            time.sleep(1.5)
        calls.append(len(train))
        return fit(candidate, train, valid, **how)

    monkeypatch.setattr("jointensor.search.jit_warmup.fit_candidate", slow_once)
    search = CrossValidation(some_tensor(), budget=60.0, device="cpu")
    trial = Trial(Candidate("trees", "trees", 5))
    search.fit_all([(trial, 0), (trial, 1)])
    assert calls == [48]  # once, before both folds
    assert set(trial.predicted) == {0, 1}
    assert trial.fits[0].seconds < 1.0


def test_a_rehearsal_that_fails_costs_nothing_but_itself(monkeypatch):
    def failing(*_, **__):
        raise FloatingPointError("diverged")

    monkeypatch.setattr("jointensor.search.jit_warmup.fit_candidate", failing)
    search = CrossValidation(some_tensor(), budget=60.0, device="cpu")
    trial = Trial(Candidate("trees", "trees", 5))
    search.fit_all([(trial, 0)])
    assert trial.failure is None
    assert set(trial.predicted) == {0}
