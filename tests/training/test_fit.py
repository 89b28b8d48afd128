"""Fitting as a whole: what comes back, how it ended, and that it can be repeated."""

import hashlib
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.data.split import Split, split
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, DataError
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.training.fit import fit, pick_device
from jointensor.training.recipe import Recipe
from jointensor.training.schedule import schedule_of


class Silent(nn.Module):
    """A network that says nothing whatever it is shown."""

    def __init__(self, n_modes, width):
        super().__init__()

    def forward(self, rows):
        return 0 * rows.sum(dim=(1, 2))


class Sulky(nn.Module):
    """A network that says nothing until it has been started for the third time."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.starts = 0

    def reset_parameters(self):
        self.starts += 1

    def forward(self, rows):
        return (self.starts >= 3) * rows.sum(dim=(1, 2))


class Level(nn.Module):
    """One number for every entry, which no start resets; notes where it stood at each start."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(7.0))
        self.noted = []

    def reset_parameters(self):
        self.noted.append(self.level.item())

    def forward(self, rows):
        return self.level.expand(len(rows))


class Bursting(nn.Module):
    """Learns well and bursts in its first life; in its second one it stays as it was born."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.starts = self.steps = 0

    def reset_parameters(self):
        self.starts += 1

    def forward(self, rows):
        self.steps += self.training
        if self.starts > 1:
            rows = rows.detach() + 0 * rows
        value = 5 + rows.sum(dim=(1, 2))
        return value * math.inf if self.training and self.starts == 1 and self.steps > 100 else value


class Noisy(nn.Module):
    """A network with dropout, which must be off wherever figures and predictions are made."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        return self.head(self.dropout(rows.flatten(1))).squeeze(-1)


class Ticking:
    """A clock that goes on by the same time whenever it is read."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 100.0

    def __call__(self):
        self.now += self.seconds
        return self.now


def new_model(parts, rank=(2, 3), **options):
    return JointModel(parts.train.shape, rank, **options)


def without_validation(parts):
    return Split(parts.train, parts.train.take(np.arange(0)), parts.test)


def weights(model):
    return [value.clone() for value in model.state_dict().values()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def around_five():
    """Row plus column effects around 5."""
    rng = np.random.default_rng(0)
    return split(SparseTensor.from_dense(5 + rng.standard_normal((12, 1)) + rng.standard_normal((1, 10))))


@pytest.mark.parametrize("rank", [(2, 3), (2, 0), (0, 3)])
def test_the_model_that_comes_back_is_the_one_that_validated_best(parts, short, rank):
    result = fit(new_model(parts, rank), parts, replace(short, lr_linear=0.6, lr_nonlinear=0.2, refine_epochs=20))
    figures = [row.valid_loss for row in result.history if row.phase != "warm start"]
    with torch.no_grad():
        found = result.model(torch.as_tensor(parts.valid.indices.copy()))
    assert rmse(found, parts.valid.values) == pytest.approx(min(figures), rel=1e-5)
    assert figures[-1] > min(figures)


def test_training_lowers_the_error_below_that_of_the_mean(parts, short):
    result = fit(new_model(parts), parts, replace(short, refine_epochs=60))
    assert rmse(result.predict(parts.test.indices), parts.test.values) < 0.6 * parts.test.values.std()
    assert not result.failed
    assert not result.nonlinear_dead


def test_the_stopping_rule_makes_the_outcome_converged_and_running_out_of_epochs_budget(parts, short):
    assert fit(new_model(parts), parts, short).outcome == "budget"
    result = fit(new_model(parts), parts, replace(short, tolerance=10.0))
    assert result.outcome == "converged"
    assert sum(row.phase == "refine" for row in result.history) == 2
    assert (
        fit(new_model(parts), parts, replace(short, patience=1, refine_epochs=200, lr_linear=1.0)).outcome
        == "converged"
    )


def test_a_budget_of_seconds_is_kept_and_leaves_the_best_state_so_far(parts, short):
    clock = Ticking(0.01)
    result = fit(new_model(parts), parts, replace(short, refine_epochs=10**9, restarts=10), budget=1.0, clock=clock)
    assert result.outcome == "budget"
    assert result.restarts == 0
    assert 1.0 <= result.seconds < 1.1
    assert 20 < len(result.history) < 100
    figures = [row.valid_loss for row in result.history if row.phase != "warm start"]
    with torch.no_grad():
        found = result.model(torch.as_tensor(parts.valid.indices.copy()))
    assert rmse(found, parts.valid.values) == pytest.approx(min(figures), rel=1e-5)


def test_no_budget_at_all_still_gives_a_model_that_answers(parts, short):
    result = fit(new_model(parts), parts, short, budget=0.0)
    assert (result.outcome, result.history, result.restarts) == ("budget", [], 0)
    assert np.isfinite(result.predict(parts.test.indices)).all()
    again = schedule_of(result)
    assert (again.rounds, again.refine_epochs) == (0, 0)


@pytest.mark.parametrize("training", ["alternating", "naive"])
def test_an_absurd_learning_rate_is_an_outcome_not_an_exception(parts, short, training):
    recipe = replace(short, training=training, optimizer="sgd", lr_linear=1e30, lr_nonlinear=1e30, restarts=2)
    result = fit(new_model(parts), parts, recipe)
    assert (result.outcome, result.failed, result.restarts) == ("diverged", True, 2)
    assert np.isfinite(result.predict(parts.test.indices)).all()


def test_a_fit_that_diverges_late_keeps_its_best_state(around_five):
    recipe = Recipe(batch_size=100, refine_epochs=200, lr_nonlinear=0.05, tolerance=0.0, patience=0, restarts=0)
    result = fit(new_model(around_five, (0, 1), nonlinear=Bursting), around_five, recipe)
    assert result.outcome == "diverged"
    assert len(result.history) == 100
    assert rmse(result.predict(around_five.valid.indices), around_five.valid.values) == pytest.approx(
        min(row.valid_loss for row in result.history), rel=1e-5
    )


def test_a_success_is_preferred_to_a_failure_with_a_lower_error(around_five):
    recipe = Recipe(batch_size=100, refine_epochs=200, lr_nonlinear=0.05, tolerance=0.0, patience=0, restarts=5)
    result = fit(new_model(around_five, (0, 1), nonlinear=Bursting), around_five, recipe)
    first, second = ([row.valid_loss for row in result.history if row.attempt == k] for k in (0, 1))
    assert min(first) < 0.5 * min(second)
    assert (result.outcome, result.failed) == ("budget", False)
    assert (result.restarts, result.attempt) == (1, 1)


def test_a_dead_network_is_found_out_and_started_again_as_often_as_the_recipe_says(parts, short):
    result = fit(new_model(parts, (0, 3), nonlinear=Silent), parts, replace(short, restarts=3, refine_epochs=2))
    assert (result.outcome, result.failed, result.nonlinear_dead, result.restarts) == ("dead", True, True, 3)
    assert [row.attempt for row in result.history] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row.epoch for row in result.history] == [1, 2] * 4


def test_a_new_start_takes_nothing_over_from_the_attempt_before(parts, short):
    model = new_model(parts, (0, 3), nonlinear=Level)
    result = fit(model, parts, replace(short, restarts=2))
    assert result.outcome == "dead"
    assert model.nonlinear.part.level.item() != 7.0
    assert model.nonlinear.part.noted == [7.0, 7.0, 7.0]


def test_a_dead_network_beside_a_living_multilinear_half_is_noted_but_no_failure(parts, short):
    result = fit(new_model(parts, (2, 3), nonlinear=Silent), parts, replace(short, restarts=3, refine_epochs=40))
    assert (result.outcome, result.failed, result.nonlinear_dead, result.restarts) == ("budget", False, True, 0)


def test_restarts_stop_at_the_first_success(around_five):
    recipe = Recipe(batch_size=64, refine_epochs=60, lr_nonlinear=0.1, tolerance=0.0, patience=0, restarts=10)
    result = fit(new_model(around_five, (0, 1), nonlinear=Sulky), around_five, recipe)
    assert (result.outcome, result.failed, result.restarts, result.attempt) == ("budget", False, 2, 2)
    assert sorted({row.attempt for row in result.history}) == [0, 1, 2]
    assert rmse(result.predict(around_five.test.indices), around_five.test.values) < 1.0


def test_the_best_of_failures_comes_back_when_all_fail(parts, short):
    far = replace(short, warm_epochs=0, rounds=0, refine_epochs=1, restarts=3, start="raw", lr_linear=1e-6)
    result = fit(new_model(parts, (6, 0)), parts, far)
    assert result.failed
    assert result.restarts == 3
    figures = [row.valid_loss for row in result.history]
    assert len(set(figures)) == 4
    assert result.attempt == figures.index(min(figures))
    assert rmse(result.predict(parts.valid.indices), parts.valid.values) == pytest.approx(min(figures), rel=1e-5)


def test_figures_and_predictions_are_made_without_dropout(parts, short):
    result = fit(new_model(parts, (0, 3), nonlinear=Noisy), parts, short)
    one, other = (result.predict(parts.valid.indices) for _ in range(2))
    assert np.array_equal(one, other)
    assert rmse(one, parts.valid.values) == pytest.approx(min(row.valid_loss for row in result.history), rel=1e-5)
    layer = result.model.nonlinear.part.dropout
    assert not layer.training


def test_torchs_random_state_is_left_as_it_was(parts, short):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    fit(new_model(parts, (0, 3), nonlinear=Silent), parts, replace(short, restarts=1))
    fit(JointModel(parts.train.shape, (2, 0)), parts, short).predict(parts.test.indices)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_same_seed_gives_the_same_weights_whatever_came_before(parts, short):
    torch.manual_seed(1)
    one = fit(new_model(parts), parts, short, seed=5)
    torch.manual_seed(2)
    used = new_model(parts)
    fit(used, parts, short, seed=8)
    other = fit(used, parts, short, seed=5)
    assert same(weights(one.model), weights(other.model))
    assert [replace(row, seconds=0.0) for row in one.history] == [replace(row, seconds=0.0) for row in other.history]


def test_another_seed_gives_other_weights(parts, short):
    one, other = (fit(new_model(parts), parts, short, seed=seed) for seed in (0, 1))
    assert not any(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


REPEATED = """
import hashlib, numpy, torch
from jointensor import JointModel, Recipe, SparseTensor, fit, split
values = numpy.random.default_rng(4).standard_normal((7, 6, 5))
result = fit(JointModel((7, 6, 5), (2, 2)), split(SparseTensor.from_dense(values)),
             Recipe(warm_epochs=2, rounds=2, refine_epochs=3, batch_size=32, restarts=1), seed=11)
print(hashlib.sha256(b"".join(w.numpy().tobytes() for w in result.model.state_dict().values())).hexdigest())
"""


def test_the_same_seed_gives_the_same_weights_in_another_process():
    there = subprocess.run([sys.executable, "-c", REPEATED], capture_output=True, text=True, check=True).stdout.strip()
    values = np.random.default_rng(4).standard_normal((7, 6, 5))
    recipe = Recipe(warm_epochs=2, rounds=2, refine_epochs=3, batch_size=32, restarts=1)
    result = fit(JointModel((7, 6, 5), (2, 2)), split(SparseTensor.from_dense(values)), recipe, seed=11)
    here = hashlib.sha256(b"".join(w.numpy().tobytes() for w in result.model.state_dict().values())).hexdigest()
    assert here == there


def test_test_entries_are_not_read(parts, short):
    wild = SparseTensor(parts.test.indices, 1e6 * parts.test.values, parts.test.modes)
    one = fit(new_model(parts), parts, short)
    other = fit(new_model(parts), replace(parts, test=wild), short)
    assert same(weights(one.model), weights(other.model))


def test_validation_entries_are_not_trained_on(parts, short):
    wild = SparseTensor(parts.valid.indices, parts.valid.values[::-1], parts.valid.modes)
    recipe = replace(short, start="raw")  # guesses at components are chosen on validation entries
    one, other = (fit(new_model(parts), replace(parts, valid=v), recipe).history for v in (parts.valid, wild))
    alternating = [k for k, row in enumerate(one) if row.phase != "refine"]  # refinement starts from the best state
    assert [one[k].train_loss for k in alternating] == [other[k].train_loss for k in alternating]
    assert one[0].valid_loss != other[0].valid_loss


def test_without_validation_entries_the_last_state_is_what_comes_back(parts, short):
    states = []
    bare = without_validation(parts)
    model = new_model(bare)
    result = fit(model, bare, short, on_epoch=lambda row: states.append(weights(model)))
    assert all(row.valid_loss is None for row in result.history)
    assert same(states[-1], weights(result.model))
    assert not result.failed
    assert rmse(result.predict(bare.train.indices), bare.train.values) < bare.train.values.std()


def test_every_row_of_the_history_is_told_as_it_happens(parts, short):
    told = []
    result = fit(new_model(parts), parts, short, on_epoch=told.append)
    assert told == result.history
    assert told[0].to_dict()["phase"] == "warm start"


def test_the_fallback_is_the_bias_predictor_unless_one_is_given(parts, short):
    ours = fit_bias(parts.train, parts.valid)
    unseen = np.array([[-1, 2, 3], [4, -1, -1]])
    found = fit(new_model(parts), parts, short).predict(unseen)
    np.testing.assert_allclose(found, ours.predict(unseen), rtol=1e-6)
    other = fit_bias(parts.test, parts.valid)
    assert fit(new_model(parts), parts, short, fallback=other).predictor.fallback is other


@pytest.mark.parametrize("training", ["alternating", "naive"])
def test_the_schedule_of_a_fit_is_as_long_as_its_best_state_took(parts, short, training):
    recipe = replace(short, training=training, lr_linear=0.2, lr_nonlinear=0.2, refine_epochs=30, tolerance=1e-9)
    result = fit(new_model(parts), parts, recipe)
    best = [row for row in result.history if row.best]
    schedule = schedule_of(result)
    refined = [row for row in result.history if row.phase == "refine"]
    last = best[-1]
    assert schedule.rounds == max(row.round for row in best)
    assert schedule.refine_epochs == (refined.index(last) + 1 if last in refined else 0)
    turns = [row for row in result.history if row.phase.startswith("alternate")]  # one epoch each
    assert schedule.turns == max((n for n, row in enumerate(turns, start=1) if row.best), default=0)
    assert (schedule.tolerance, schedule.patience) == (0.0, 0)
    assert replace(schedule, rounds=4, turns=0, refine_epochs=30, tolerance=1e-9, patience=0) == recipe
    again = fit(new_model(parts), without_validation(parts), schedule)
    assert len(again.history) == (3 if training == "alternating" else 0) + schedule.turns + schedule.refine_epochs


def test_rounds_that_led_nowhere_are_not_in_the_schedule(parts, short):
    """Refinement goes on from the best state, so rounds after it are not part of how it came about."""
    recipe = replace(short, rounds=15, lr_linear=0.2, lr_nonlinear=0.2, refine_epochs=30)
    result = fit(new_model(parts), parts, recipe)
    best = [row for row in result.history if row.best]
    assert best[-1].phase == "refine"
    assert max(row.round for row in best) < 15
    assert schedule_of(result).rounds == max(row.round for row in best)


def test_the_schedule_is_that_of_the_attempt_that_was_kept(parts, short):
    result = fit(new_model(parts, (0, 3), nonlinear=Silent), parts, replace(short, restarts=2, refine_epochs=4))
    assert result.attempt == 0
    assert schedule_of(result).refine_epochs == 1  # nothing gets better after the first epoch


def test_a_model_of_another_shape_is_refused(parts):
    with pytest.raises(ConfigError, match=r"the model has shape \(9, 8, 6\), the tensor \(9, 8, 7\)"):
        fit(JointModel((9, 8, 6), (2, 2)), parts)


def test_values_whose_sums_do_not_fit_into_32_bits_are_refused_with_what_to_do(short):
    whole = SparseTensor.from_dense(np.linspace(-9e29, 1e29, 40).reshape(8, 5))
    fit(new_model(split(whole), (1, 0)), split(whole), short)
    whole = whole.with_values(whole.values * 2)
    with pytest.raises(DataError, match=r"a value of size 1.8e\+30; divide all values so that none is beyond 1e\+30"):
        fit(new_model(split(whole), (1, 0)), split(whole), short)


def test_devices_by_name():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="device 'abacus' cannot be used here"):
        pick_device("abacus")


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
@pytest.mark.parametrize("shape", [(12, 10), (6, 5, 4), (5, 4, 3, 3), (3, 3, 3, 3, 3)])
def test_tensors_of_any_number_of_modes_are_fitted_under_every_loss(shape, loss, short):
    rng = np.random.default_rng(0)
    dense = sum(rng.standard_normal([size if m == n else 1 for m in range(len(shape))]) for n, size in enumerate(shape))
    parts = split(SparseTensor.from_dense(dense + np.zeros(shape)))
    result = fit(new_model(parts, (2, 2)), parts, replace(short, loss=loss, refine_epochs=15))
    assert result.outcome == "budget"
    assert result.history[-1].train_loss < result.history[0].train_loss
