"""Fits side by side on an NVIDIA GPU: as good as one after the other, whatever their kind."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)
pytest.importorskip("triton")

from jointensor.data.split import FOLDS, split
from jointensor.data.synthetic import make_joint
from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_baselines
from jointensor.search.default_fit import default_fit
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.families import FitOptions, family_of
from jointensor.search.folds import fold_entries
from jointensor.search.interruption import Interruption
from jointensor.search.portfolio import Candidate
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from jointensor.search.workers import Workers
from jointensor.solvers.cuda_graphs import GraphSteps
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

GPU = torch.device("cuda")
JULIA = Candidate("julia:4/16", "joint", 6, (4, 16), stage="core")
CP = Candidate("cp", "exact", 2, (4, 0), stage="core")
PAIRS = Candidate("pairs", "gibbs", 3, linear="mean+bias+fm:4", stage="core")


class Waiting(nn.Module):
    """A network that asks the host about every batch."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.head = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        scale = 1.0 if rows.sum().item() < 1e30 else 0.0
        return scale * self.head(rows.flatten(1)).squeeze(-1)


class Dropping(nn.Module):
    """A network that draws on torch's global state of the GPU."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(n_modes * width, 1))

    def forward(self, rows):
        return self.head(rows.flatten(1)).squeeze(-1)


@pytest.fixture(scope="module")
def entries():
    """20,000 entries of two components, a network, and noise."""

    def network(rows):
        return (rows[:, 0] * rows[:, 1]).sum(axis=1) ** 2 + rows[:, 2].sum(axis=1)

    return make_joint((60, 50, 40), (2, 2), network, observed=20_000, noise=0.2, seed=1)[0]


def made(work, count, workers):
    """Results of a function of a number, by so many workers."""
    with Workers(workers, GPU) as threads:
        jobs = [Job(lambda k=k: FitResult(predictions=work(k))) for k in range(count)]
        return [one.predictions for one in run_fits(SINGLE_PROCESS, jobs, Interruption(), workers=threads)]


@pytest.mark.parametrize(("candidate", "tolerance"), [(JULIA, 0.1), (CP, 0.02), (PAIRS, 0.05)])
def test_five_folds_side_by_side_are_as_good_as_one_after_the_other(entries, candidate, tolerance):
    """A GPU adds in an order of its own: predictions of two fits differ by a share of the spread."""
    data, options = fold_entries(entries, (), 0), FitOptions(device="cuda")

    def work(fold):
        part = family_of(candidate).fit(candidate, *data.split(fold), options)
        return part.predict(data.left_out(fold).indices)

    alone, together = (made(work, FOLDS, workers) for workers in (1, FOLDS))
    spread = float(entries.values.std())
    for fold, (one, other) in enumerate(zip(alone, together, strict=True)):
        truth = data.left_out(fold).values
        assert rmse(other, truth) == pytest.approx(rmse(one, truth), abs=tolerance * spread)
        assert rmse(other, truth) < 0.9 * spread  # pairs cannot have all of it
        assert rmse(other, one) < 2 * tolerance * spread


def test_recorded_steps_of_fits_side_by_side_do_not_disturb_each_other(entries, monkeypatch):
    """One fit three times beside two others each time: nothing but the order of sums may differ."""
    parts, unrecorded = split(entries, seed=0), []
    record = GraphSteps._record_both
    monkeypatch.setattr(
        GraphSteps, "_record_both", lambda self, *given: record(self, *given) or unrecorded.append(self.unrecorded)
    )
    recipe = make_recipe("default", refine_epochs=4, cycle=4, fall_back=False, restarts=0)

    def work(number):
        model = JointModel(parts.train.shape, (2, 8), linear="mean+bias+cp:2")
        return fit(model, parts, recipe, seed=number // 3, device="cuda").predict(parts.test.indices)

    found = made(work, 9, 5)
    assert unrecorded
    assert not any(unrecorded)
    spread = float(entries.values.std())
    for seed in range(3):
        first, *others = found[3 * seed : 3 * seed + 3]
        assert all(rmse(other, first) < 0.05 * spread for other in others)
    assert rmse(found[0], found[3]) > 0


def test_fits_of_all_kinds_go_together(entries):
    """Some record, some wait for the host, some draw on torch's state, some solve; none of them fails."""
    parts = split(entries, seed=0)
    recipe = make_recipe("default", refine_epochs=4, cycle=4, fall_back=False, restarts=0, warm_epochs=3, rounds=2)
    kinds = [
        {"nonlinear": "julia"}, {"nonlinear": Waiting}, {"nonlinear": Dropping}, {"nonlinear": "costco"},
        {"nonlinear": "mlp"},
    ]  # fmt: skip

    def work(number):
        model = JointModel(parts.train.shape, (2, 8), linear="mean+bias+cp:2", **kinds[number % len(kinds)])
        return fit(model, parts, recipe, seed=number, device="cuda").predict(parts.test.indices)

    before = torch.cuda.get_rng_state()
    found = made(work, 3 * len(kinds), 5)
    assert all(np.isfinite(one).all() for one in found)
    assert max(rmse(one, parts.test.values) for one in found) < float(entries.values.std())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.cuda.get_sync_debug_mode() == 0


def test_a_search_and_a_default_fit_use_several_workers(entries):
    parts = split(entries, seed=0)
    assert Workers.of(GPU, len(parts.train)).most == SETTINGS.max_gpu_workers
    errors = []
    for workers in (1, 0):
        found = search(
            parts.train, budget_fits=16, device="cuda", candidates=[CP, JULIA, PAIRS],
            settings=replace(SETTINGS, workers=workers),
        )  # fmt: skip
        assert not [row for row in found.trials if row["failure"]]
        errors.append(rmse(found.predictor.predict(parts.test.indices), parts.test.values))
    assert errors[1] == pytest.approx(errors[0], abs=0.05 * float(entries.values.std()))
    errors = []
    for count in (1, 5):
        with Workers(count, GPU) as workers:
            mixed = default_fit(
                parts, fit_baselines(parts), FitOptions(device="cuda"), candidates=[CP, JULIA], workers=workers
            )
        assert not [row for row in mixed.trials if row["failure"]]
        errors.append(rmse(mixed.predictor.predict(parts.test.indices), parts.test.values))
    assert errors[1] == pytest.approx(errors[0], abs=0.05 * float(entries.values.std()))
    assert not [one for one in threading.enumerate() if one.name.startswith("fit")]
