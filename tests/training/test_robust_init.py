"""A start that works: levels, outputs that do not die, and starts that are given up early enough to try again."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.data.formats.npz import write as write_npz
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rfe
from jointensor.models.blocks.tucker import OFF_DIAGONAL
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear import Nonlinear, nonlinear_parts
from jointensor.runs.config import RunConfig
from jointensor.runs.model_specs import parse_model
from jointensor.runs.pipeline import run
from jointensor.training.fit import fit
from jointensor.training.init import LIFT, SPREAD, initialise
from jointensor.training.recipe import Recipe

PARTS = ("avocado", "costco", "julia", "mlp", "neptune", "neurtn")
LONG = Recipe(batch_size=64, warm_epochs=2, rounds=0, refine_epochs=12, tolerance=0.0, patience=0)
"""Long enough to see what is cut short; no rule ends it."""


class Sunk(nn.Module):
    """An output ReLU whose bias is far below zero at every start: zero everywhere, and no way back."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.layer = nn.Linear(n_modes * width, 1)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.layer.bias, -100.0)

    def forward(self, rows):
        return torch.relu(self.layer(rows.flatten(1))).squeeze(-1)


class Contrary(nn.Module):
    """Varies, learns nothing, and has the sign of the values wrong: worse than predicting zero."""

    def __init__(self, n_modes, width):
        super().__init__()

    def forward(self, rows):
        return -5 - rows.detach().sum(dim=(1, 2)) + 0 * rows.sum(dim=(1, 2))


class Late(Contrary):
    """Contrary for its first 40 steps, then right; a new start does not set it back."""

    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.steps = 0

    def forward(self, rows):
        self.steps += self.training
        return super().forward(rows) * (-1 if self.steps > 40 else 1)


class Fading(Contrary):
    """Right for its first 10 steps, then contrary for ever; a new start does not set it back."""

    def __init__(self, n_modes, width):
        super().__init__(n_modes, width)
        self.steps = 0

    def forward(self, rows):
        self.steps += self.training
        return super().forward(rows) * (-1 if self.steps <= 10 else 1)


class Asleep(nn.Module):
    """The same number for every entry in two epochs of three, which is not dead."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.checks = 0

    def forward(self, rows):
        self.checks += not self.training
        asleep = not self.training and self.checks % 3
        return 5 + (0 if asleep else 1) * rows.sum(dim=(1, 2))


@pytest.fixture
def registry(monkeypatch):
    """The registry as it is, back as it was afterwards."""
    monkeypatch.setattr(nonlinear_parts, "_classes", dict(nonlinear_parts._classes))
    return nonlinear_parts


@pytest.fixture(scope="module")
def tensor():
    """600 counts of mean 5, with rates that are a product over the modes."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.gamma(4.0, 0.25, size) for size in (12, 10, 8))
    rates = a[:, None, None] * b[:, None] * c
    counts = rng.poisson(5 * rates / rates.mean()).astype(float)
    cells = rng.permutation(counts.size)[:600]
    indices = np.stack(np.unravel_index(cells, counts.shape), axis=1)
    return SparseTensor(indices, counts.ravel()[cells], counts.shape)


@pytest.fixture(scope="module")
def counts(tensor):
    parts = split(tensor)
    assert parts.train.values.mean() == pytest.approx(5.0, rel=0.1)
    return parts


def model_for(parts, rank, part):
    return JointModel(parts.train.shape, rank, nonlinear=part)


def without_seconds(attempts):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in attempts]


def values_of(mean, spread, entries=2000):
    values = np.random.default_rng(0).standard_normal(entries)
    return torch.as_tensor(mean + spread * (values - values.mean()) / values.std(), dtype=torch.float32)


def started(model, values, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        moments = float(values.mean()), float(values.std(correction=0))
        return initialise(model.eval(), moments, start="data")


def at_the_centre(half):
    """f of rows that are all at the mean of the start."""
    centre, _ = getattr(half.part, "row_start", Nonlinear.row_start)
    rows = torch.full((1, len(half.factors.tables), half.factors.width), centre)
    with torch.no_grad():
        return half.part(rows).item()


def test_the_parts_below_are_all_there_are():
    assert [name for name in nonlinear_parts.names() if name not in PARTS] == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("joint", [False, True], ids=["alone", "inside JULIA"])
@pytest.mark.parametrize("part", PARTS)
def test_no_output_dies_from_a_start_at_the_data(counts, part, joint, seed):
    """At the widths of the paper, without a second try."""
    text = {(True, True): "julia", (True, False): "julia:0/20", (False, True): f"julia-{part}", (False, False): part}
    model = parse_model(text[part == "julia", joint]).make(counts.train.shape)
    recipe = Recipe(batch_size=128, warm_epochs=2, rounds=1, refine_epochs=4, tolerance=0.0, patience=0, restarts=0)
    result = fit(model, counts, recipe, seed=seed)
    assert (result.outcome, result.failed, result.nonlinear_dead) == ("budget", False, False)
    predicted = result.predict(counts.test.indices)
    assert rfe(predicted, counts.test.values) < 1
    assert predicted.std() > 1e-3 * counts.test.values.std()
    with torch.no_grad():
        f = result.model.nonlinear(torch.as_tensor(counts.test.indices.copy()))
    assert f.std() > 0


def test_a_dead_output_is_called_dead_after_three_epochs_and_started_again(counts):
    result = fit(model_for(counts, (0, 3), Sunk), counts, replace(LONG, restarts=2))
    assert (result.outcome, result.failed, result.nonlinear_dead, result.restarts) == ("dead", True, True, 2)
    assert [(row.attempt, row.epoch) for row in result.history] == [(k, e) for k in range(3) for e in (1, 2, 3)]
    assert (
        without_seconds(result.attempts)
        == [
            {
                "outcome": "dead", "failed": True, "first": None, "ridge": None, "collapsed": [], "valid_rfe": 1.0,
                "nonlinear_dead": True, "epochs": 3, "solutions": 1, "links": {},
            }
        ]
        * 3
    )  # fmt: skip
    for k, one in enumerate(result.attempts):
        assert one["seconds"] == pytest.approx(sum(row.seconds for row in result.history if row.attempt == k))
    assert not result.predict(counts.test.indices).any()


def test_a_dead_output_beside_a_living_half_is_neither_cut_short_nor_started_again(counts):
    result = fit(model_for(counts, (1, 3), Sunk), counts, replace(LONG, restarts=2))
    assert (result.outcome, result.failed, result.nonlinear_dead, result.restarts) == ("budget", False, True, 0)
    assert len(result.history) == 2 + 12
    assert [one["nonlinear_dead"] for one in result.attempts] == [True]


def test_predictions_that_are_constant_now_and_then_are_not_dead(counts):
    result = fit(model_for(counts, (0, 3), Asleep), counts, replace(LONG, restarts=2))
    assert result.restarts == 0
    assert len(result.history) == 12


def test_every_attempt_is_in_the_metrics_of_a_run(registry, tensor, counts, tmp_path):
    registry.register("sunk")(Sunk)
    write_npz(tensor, tmp_path / "counts.npz")
    changes = {"batch_size": 64, "refine_epochs": 12, "tolerance": 0.0, "patience": 0, "restarts": 2}
    config = RunConfig(str(tmp_path / "counts.npz"), rank=(0, 3), nonlinear="sunk", recipe_changes=changes, seed=4)
    run(config, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))
    result = fit(model_for(counts, (0, 3), Sunk), counts, Recipe(**changes), seed=4)
    assert without_seconds(metrics["attempts"]) == without_seconds(result.attempts)
    assert [one["outcome"] for one in metrics["attempts"]] == ["dead"] * 3
    assert [one["epochs"] for one in metrics["attempts"]] == [3, 3, 3]
    assert (metrics["restarts"], metrics["outcome"], metrics["failed"], metrics["epochs"]) == (2, "dead", True, 9)


def test_a_hopeless_start_is_given_up_while_there_are_others_and_the_last_one_runs_its_course(counts):
    result = fit(model_for(counts, (0, 3), Contrary), counts, replace(LONG, restarts=2, failure_epochs=5))
    assert [one["epochs"] for one in result.attempts] == [5, 5, 12]
    assert [one["outcome"] for one in result.attempts] == ["budget"] * 3
    assert all(one["failed"] and one["valid_rfe"] >= 1 and not one["nonlinear_dead"] for one in result.attempts)
    assert len(result.history) == 5 + 5 + 12
    errors = [one["valid_rfe"] for one in result.attempts]
    assert len(set(errors)) == 3  # three starts, not one
    assert result.attempt == errors.index(min(errors))
    assert result.failed


@pytest.mark.parametrize(
    ("changes", "epochs"), [({"restarts": 0}, [12]), ({"restarts": 1, "failure_epochs": 0}, [12, 12])]
)
def test_no_start_is_given_up_without_another_one_or_without_probation(counts, changes, epochs):
    result = fit(model_for(counts, (0, 3), Contrary), counts, replace(LONG, **({"failure_epochs": 5} | changes)))
    assert [one["epochs"] for one in result.attempts] == epochs


def test_a_start_that_comes_round_within_its_probation_is_not_given_up(counts):
    steps = -(-len(counts.train) // 64)  # of an epoch
    first_right = 40 // steps + 1
    for failure_epochs, attempts in ((first_right, 1), (first_right - 1, 2)):
        result = fit(model_for(counts, (0, 3), Late), counts, replace(LONG, restarts=3, failure_epochs=failure_epochs))
        assert len(result.attempts) == attempts
        assert result.attempts[-1]["epochs"] == 12
        assert not result.failed


def test_a_start_that_was_right_once_is_not_given_up(counts):
    """The first start is right for an epoch and runs its course; those after it are never right."""
    assert -(-len(counts.train) // 64) <= 10  # an epoch is within the steps that are right
    result = fit(model_for(counts, (0, 3), Fading), counts, replace(LONG, restarts=3, failure_epochs=5))
    assert [one["epochs"] for one in result.attempts] == [12, 5, 5, 12]


def test_the_warm_start_does_not_count_for_probation(counts):
    """Two epochs of warm start, four of alternation, one of refinement: five are on failure_epochs."""
    recipe = replace(LONG, rounds=2, restarts=1, failure_epochs=5, lr_linear=1e-9)
    model = JointModel(counts.train.shape, (0, 3), linear="bias", nonlinear=Contrary)
    result = fit(model, counts, recipe)
    assert [one["epochs"] for one in result.attempts] == [2 + 5, 2 + 4 + 12]
    assert [row.phase for row in result.history if row.attempt == 0] == [
        *["warm start"] * 2,
        *["alternate: nonlinear", "alternate: linear"] * 2,
        "refine",
    ]


@pytest.mark.parametrize("joint", [False, True], ids=["alone", "beside cp"])
@pytest.mark.parametrize(("mean", "spread"), [(5.0, 2.0), (100.0, 5.0), (0.0, 20.0), (-8.0, 20.0)])
@pytest.mark.parametrize("part", PARTS)
def test_every_output_starts_at_the_level_of_the_data(part, mean, spread, joint):
    """The mean, or a tenth of the spread where an output ReLU would be dead."""
    level = max(mean, LIFT * spread)
    for seed in range(5):
        model = JointModel((9, 8, 7), (2 * joint, 8), nonlinear=part)
        levels = started(model, values_of(mean, spread), seed)
        assert levels.nonlinear == pytest.approx(level, rel=1e-5)
        assert levels.linear + levels.nonlinear == pytest.approx(mean, abs=1e-4)
        assert at_the_centre(model.nonlinear) == pytest.approx(level, rel=1e-4)


@pytest.mark.parametrize("part", PARTS)
def test_small_values_are_started_at_their_level_too(part):
    """Shares and rates: what the layers add below zero is more than the level, and a ReLU hides how much."""
    for seed in range(10):
        model = JointModel((9, 8, 7), (0, 8), nonlinear=part)
        levels = started(model, values_of(0.01, 0.003), seed)
        assert levels.nonlinear == pytest.approx(0.01, rel=1e-4), f"seed {seed}"
        assert at_the_centre(model.nonlinear) == pytest.approx(0.01, rel=1e-3), f"seed {seed}"


def mean_of_tucker(tucker):
    """The mean over all cells is the core with the mean rows."""
    a, b, c = (table.detach().numpy().astype(np.float64).mean(axis=0) for table in tucker.tables)
    return np.einsum("klm,k,l,m->", tucker.core.detach().numpy().astype(np.float64), a, b, c)


@pytest.mark.parametrize("mean", [5.0, -5.0])
@pytest.mark.parametrize(("ranks", "lowest"), [("4", 4), ("4x2x3", 2)])
def test_tucker_starts_around_the_mean_with_a_share_of_the_spread(ranks, lowest, mean):
    model = JointModel((300, 200, 250), (0, 0), linear=f"tucker:{ranks}")
    levels = started(model, values_of(mean, 2.0), 0)
    assert (levels.linear, levels.nonlinear) == (pytest.approx(mean, abs=1e-5), 0.0)
    tucker = model.multilinear.blocks["tucker"]
    assert mean_of_tucker(tucker) == pytest.approx(mean, abs=3 * OFF_DIAGONAL * abs(mean) / lowest)
    rng = np.random.default_rng(0)
    cells = torch.as_tensor(np.stack([rng.integers(size, size=20_000) for size in model.shape], axis=1))
    with torch.no_grad():
        assert model(cells).std().item() == pytest.approx(SPREAD * 2.0, rel=0.15)


def test_tucker_beside_a_mean_or_a_network_starts_around_zero():
    values = values_of(5.0, 2.0)
    model = JointModel((300, 200, 250), (0, 0), linear="mean+tucker:4")
    started(model, values, 0)
    assert model.multilinear.blocks["mean"].constant.item() == pytest.approx(5.0, abs=1e-5)
    assert mean_of_tucker(model.multilinear.blocks["tucker"]) == pytest.approx(0.0, abs=0.1)
    model = JointModel((300, 200, 250), (0, 8), linear="tucker:4")
    levels = started(model, values, 0)
    assert levels.nonlinear == pytest.approx(5.0, abs=1e-5)
    assert mean_of_tucker(model.multilinear.blocks["tucker"]) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("rank", [(0, 4), (2, 4)])
def test_one_entry_left_over_at_the_end_of_an_epoch_trains_neptune(counts, rank):
    size = 1
    while len(counts.train) % size != 1:
        size += 1
    recipe = replace(LONG, batch_size=size, rounds=1, refine_epochs=3, restarts=0)
    model = model_for(counts, rank, "neptune")
    seen = []
    model.nonlinear.part.register_forward_pre_hook(
        lambda part, args: seen.append(len(args[0])) if part.training else None
    )
    result = fit(model, counts, recipe)
    assert 1 in seen
    assert result.outcome == "budget"
    assert not result.failed
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
