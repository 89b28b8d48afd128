"""The default recipe: which half comes first, ridges that follow, blocks that collapse, falling back, schedules."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.store import Entries
from jointensor.data.tensor import SparseTensor
from jointensor.kernels import pick_engine
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.solvers.sgd import FrozenHalf
from jointensor.training.exact import make_exact, solve_turn
from jointensor.training.fit import fit
from jointensor.training.phases import warm_start
from jointensor.training.recipe import RECIPES, make_recipe
from jointensor.training.schedule import schedule_of
from jointensor.training.trainer import STEPS_PER_EPOCH, Trainer
from tests.networks import Silent

SHAPE = (20, 18, 16)
QUICK = make_recipe("default", refine_epochs=8)


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def observed(dense, share=0.6):
    there = np.random.default_rng(0).random(SHAPE) < share
    return split(SparseTensor.from_dense(np.where(there, dense, np.nan)), seed=0)


@pytest.fixture(scope="module")
def multilinear():
    """Two components and nothing else."""
    rng = np.random.default_rng(1)
    return observed(np.einsum("ir,jr,kr->ijk", *(rng.standard_normal((size, 2)) for size in SHAPE)))


@pytest.fixture(scope="module")
def bent():
    """The size of a sum: neither biases nor a component say anything about it, a network does."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.uniform(-1, 1, size) for size in SHAPE)
    return observed(3 * np.abs(a[:, None, None] + b[:, None] + c) + 0.05 * rng.standard_normal(SHAPE))


@pytest.fixture(scope="module")
def noisy():
    """Effects of every mode under noise: all there is to know is biases."""
    rng = np.random.default_rng(1)
    effects = sum(rng.standard_normal([size if m == n else 1 for m in range(3)]) for n, size in enumerate(SHAPE))
    return observed(effects + rng.standard_normal(SHAPE), share=0.3)


@pytest.fixture(scope="module")
def fell_back(noisy):
    return fit(new_model(), noisy, QUICK, seed=0)


def new_model(rank=(2, 8), linear=None, **options):
    return JointModel(SHAPE, rank, linear=f"mean+bias+cp:{rank[0]}" if linear is None else linear, **options)


def without_validation(parts):
    return replace(parts, valid=parts.train.take(np.arange(0)))


def new_trainer(parts, recipe, model=None):
    device = torch.device("cpu")
    given = (Entries.of(part, device) for part in (parts.train, parts.valid))
    trainer = Trainer(model or new_model(), *given, recipe, seed=4, engine=pick_engine("numba", "cpu"))
    trainer.start()
    return trainer


def error_on(part, result):
    return rmse(result.predict(part.indices), part.values)


def test_fit_takes_the_default_recipe_unless_it_is_told_another(multilinear):
    result = fit(new_model(), multilinear, budget=0.0)
    assert result.recipe == RECIPES["default"]
    assert (result.recipe.blocks, result.recipe.first, result.recipe.fall_back) == ("mean+bias+cp", "auto", True)


def test_components_come_first_where_they_explain_more(multilinear):
    result = fit(new_model(), multilinear, QUICK, seed=0)
    assert result.first == "linear"
    assert [one["first"] for one in result.attempts] == ["linear"]
    assert (result.returned, result.collapsed, result.notes) == ("joint", [], [])
    assert error_on(multilinear.test, result) < 0.02 * multilinear.test.values.std()


def test_the_network_comes_first_where_it_explains_more(bent):
    result = fit(new_model(), bent, QUICK, seed=0)
    assert result.first == "nonlinear"
    assert [one["first"] for one in result.attempts] == ["nonlinear"]
    phases = [row.phase for row in result.history]
    assert phases.index("alternate: linear") < phases.index("alternate: nonlinear")
    assert error_on(bent.test, result) < 0.1 * bent.test.values.std()


@pytest.mark.parametrize("first", ["linear", "nonlinear"])
def test_a_half_that_is_named_comes_first_whatever_it_explains(multilinear, first):
    result = fit(new_model(), multilinear, replace(QUICK, first=first, refine_epochs=1), seed=0)
    assert result.first == first


def test_a_model_of_one_half_has_no_first(multilinear):
    assert fit(new_model((2, 0)), multilinear, QUICK).first is None


def test_a_network_beside_a_constant_is_kept_where_nothing_is_better(bent):
    model = new_model()
    result = fit(model, bent, replace(QUICK, rounds=0, refine_epochs=0), seed=0)
    alone = [row for row in result.history if row.phase == "warm start: nonlinear"]
    assert [row for row in result.history if row.best][-1] in alone
    g = model.multilinear.blocks
    assert not g["cp"].factors.stacked.any()
    assert not any(g[f"bias_{n}"].factors.stacked.any() for n in range(3))
    assert error_on(bent.valid, result) == pytest.approx(min(row.valid_loss for row in alone), rel=1e-4)


def test_a_network_beside_what_is_no_constant_is_not_kept(bent):
    """Below zero g stands for the level, and without a mean it cannot be a constant."""
    below = replace(
        bent,
        **{name: replace(getattr(bent, name), values=getattr(bent, name).values - 5) for name in ("train", "valid")},
    )
    for linear, kept in (("bias+cp:2", False), ("mean+bias+cp:2", True)):
        trainer = new_trainer(below, QUICK, new_model(linear=linear))
        assert trainer.state.levels.linear < 0
        warm_start(trainer, make_exact(trainer))
        assert (trainer.state.best_state is not None) == kept


@pytest.mark.parametrize("average", [0.0, 1.0])
def test_training_goes_on_from_the_network_that_validated_best(bent, average):
    trainer = new_trainer(bent, replace(QUICK, average=average))
    warm_start(trainer, make_exact(trainer))
    assert trainer.state.first == "nonlinear"
    lowest = min(row.valid_loss for row in trainer.state.history if row.phase == "warm start: nonlinear")
    with torch.no_grad():
        predicted = trainer.model.nonlinear(trainer.valid.indices) + trainer.state.levels.linear
    assert rmse(predicted, trainer.valid.values) == pytest.approx(lowest, rel=1e-4)


def test_of_a_few_entries_a_network_alone_takes_no_more_steps_than_of_many(bent):
    """Without validation entries its error falls for ever; every epoch is one step, whatever the size of batches."""
    few = replace(bent, train=bent.train.take(np.arange(12)), valid=bent.valid.take(np.arange(0)))
    trainer = new_trainer(few, replace(QUICK, batch_size=4096, warm_epochs=1))
    warm_start(trainer, make_exact(trainer))
    assert 1 <= sum(row.phase == "warm start: nonlinear" for row in trainer.state.history) <= STEPS_PER_EPOCH


def test_values_that_the_solver_keeps_are_those_of_the_state_that_goes_on(bent, multilinear):
    for parts in (bent, multilinear):
        trainer = new_trainer(parts, QUICK)
        exact = make_exact(trainer)
        warm_start(trainer, exact)
        with torch.no_grad():
            g = trainer.model.multilinear(trainer.train.indices)
        torch.testing.assert_close(exact.als.total(), g, rtol=1e-4, atol=1e-4)


def test_a_dead_network_does_not_take_the_components_along(multilinear):
    result = fit(new_model(nonlinear=Silent), multilinear, replace(QUICK, restarts=1), seed=0)
    assert (result.first, result.failed, result.nonlinear_dead, result.restarts) == ("linear", False, True, 0)
    assert error_on(multilinear.test, result) < 0.02 * multilinear.test.values.std()


def asked_of(trainer, exact, ridges):
    """Validation figures of one sweep from here with each ridge; the state is left as it was."""
    start, last, figures = exact.als.save(), exact.als.ridge, []
    for ridge in ridges:
        exact.als.restore(start)
        exact.als.ridge = ridge
        exact.als.sweep(trainer.train.values)
        with torch.no_grad():
            predicted = trainer.model.multilinear(trainer.valid.indices)
        figures.append(rmse(predicted, trainer.valid.values))
    exact.als.restore(start)
    exact.als.ridge = last
    return figures


@pytest.mark.parametrize(("signal", "start", "largest"), [(1.0, 0.2, 0.3), (0.0, 0.02, 0.3), (0.0, 0.02, 0.03)])
def test_a_ridge_follows_what_validates_best_and_stays_below_the_largest(multilinear, signal, start, largest):
    """From a ridge that is too large for components, and from ones that are too small for mere noise."""
    recipe = replace(QUICK, ridges=(0.001, largest))
    trainer = new_trainer(multilinear, recipe, new_model((2, 0), linear="cp:2"))
    generator = torch.Generator().manual_seed(0)
    for name in ("train", "valid"):
        part = getattr(trainer, name)
        noise = torch.randn(len(part), generator=generator)
        setattr(trainer, name, Entries(part.indices, signal * part.values + (1 - signal) * noise))
    exact = make_exact(trainer)
    exact.als.ridge = trainer.state.ridge = start
    moved = set()
    for round_ in range(1, 9):
        if exact.als.collapsed():  # of noise there may be nothing left
            break
        last = exact.als.ridge
        asked = [last, min(3 * last, largest), last / 3]
        figures = asked_of(trainer, exact, asked)
        found = solve_turn(trainer, exact, FrozenHalf(), round_)
        assert exact.als.ridge == trainer.state.ridge
        assert figures[asked.index(exact.als.ridge)] == pytest.approx(min(figures), rel=1e-5)
        assert found == pytest.approx(min(figures), rel=1e-4)
        assert exact.als.ridge <= largest
        moved.add(np.sign(exact.als.ridge - last))
        assert len(trainer.state.history) == 3 * round_
    assert (-1 if signal else 1) in moved


@pytest.mark.parametrize("validated", [True, False])
def test_without_following_or_validation_the_ridge_stays(multilinear, validated):
    parts = multilinear if validated else without_validation(multilinear)
    trainer = new_trainer(parts, replace(QUICK, follow=0.0) if validated else QUICK, new_model((2, 0)))
    exact = make_exact(trainer)
    exact.als.ridge = trainer.state.ridge = 0.2
    solve_turn(trainer, exact, FrozenHalf(), 1)
    assert exact.als.ridge == trainer.state.ridge == 0.2
    assert len(trainer.state.history) == 1


def test_a_block_that_ends_at_zero_is_recorded_and_said(multilinear):
    result = fit(new_model(), multilinear, replace(QUICK, ridges=(30.0,), follow=0.0), seed=0)
    assert result.collapsed == ["cp"]
    assert [one["collapsed"] for one in result.attempts] == [["cp"]]
    assert "block 'cp' ended at zero: the ridge that validated best is large" in result.notes


def test_the_ridge_of_a_block_that_ended_at_zero_is_one_that_leads_there(fell_back, noisy):
    """A smaller one, tried from zero, does nothing; from a new start, on all entries, it would fit the noise."""
    assert fell_back.collapsed == ["cp"]
    again = fit(new_model(), without_validation(noisy), schedule_of(fell_back), seed=0)
    assert again.collapsed == ["cp"]


def test_biases_that_validate_better_are_returned(fell_back, noisy):
    bias = fit_bias(noisy.train, noisy.valid)
    joint = replace(fell_back.predictor, returned="joint")
    assert fell_back.returned == fell_back.predictor.returned == "bias"
    np.testing.assert_allclose(fell_back.predict(noisy.test.indices), bias.predict(noisy.test.indices), rtol=1e-6)
    own, theirs = error_on(noisy.valid, joint), error_on(noisy.valid, bias)
    assert theirs < own
    assert fell_back.notes[-1] == (
        f"the additive-bias predictor is returned: its RMSE on the validation entries is {theirs:.4g}, "
        f"that of the joint model {own:.4g}; --set fall_back=false returns the joint model all the same"
    )


def test_a_recipe_that_does_not_fall_back_returns_the_joint_model(fell_back, noisy):
    result = fit(new_model(), noisy, replace(QUICK, fall_back=False), seed=0)
    assert result.returned == "joint"
    joint = replace(fell_back.predictor, returned="joint")
    np.testing.assert_array_equal(result.predict(noisy.test.indices), joint.predict(noisy.test.indices))
    assert not any("additive-bias" in note for note in result.notes)


def test_without_validation_there_is_nothing_to_fall_back_by(noisy):
    assert fit(new_model(), without_validation(noisy), QUICK, seed=0).returned == "joint"


@pytest.mark.parametrize("returned", ["joint", "bias"])
def test_which_of_the_two_answers_survives_saving(fell_back, noisy, tmp_path, returned):
    predictor = replace(fell_back.predictor, returned=returned)
    save_predictor(predictor, tmp_path / "w.safetensors")
    loaded = load_predictor(tmp_path / "w.safetensors")
    assert loaded.returned == returned
    cells = np.concatenate([noisy.test.indices, [[-1, 0, 0]]])
    np.testing.assert_array_equal(loaded.predict(cells), predictor.predict(cells))


def test_the_same_predictor_is_the_same_file(fell_back, tmp_path):
    for k in range(8):
        save_predictor(fell_back.predictor, tmp_path / f"{k}.safetensors")
    assert len({(tmp_path / f"{k}.safetensors").read_bytes() for k in range(8)}) == 1


def test_a_schedule_keeps_what_was_chosen_and_needs_no_validation(multilinear):
    result = fit(new_model(), multilinear, QUICK, seed=0)
    schedule = schedule_of(result)
    assert (schedule.first, schedule.ridges) == ("linear", (result.ridge,))
    assert (schedule.follow, schedule.fall_back, schedule.patience, schedule.tolerance) == (0.0, False, 0, 0.0)
    again = fit(new_model(), without_validation(multilinear), schedule, seed=0)
    assert (again.first, again.ridge, again.returned) == ("linear", result.ridge, "joint")
    assert all(row.valid_loss is None for row in again.history)
    refined = sum(row.phase == "refine" for row in again.history)
    assert refined == schedule.refine_epochs
    assert error_on(multilinear.test, again) < 0.05 * multilinear.test.values.std()


@pytest.mark.parametrize(
    ("changes", "best"),
    [({"rounds": 0, "refine_epochs": 0}, "warm start: nonlinear"), ({"refine_epochs": 0}, "alternate: linear")],
)
def test_the_schedule_of_a_network_that_came_first_leads_to_as_good_a_model(bent, changes, best):
    """Where the best state is that of the network alone, and where it is in the middle of a round."""
    result = fit(new_model(), bent, replace(QUICK, **changes), seed=0)
    assert result.first == "nonlinear"
    assert [row.phase for row in result.history if row.best][-1] == best
    schedule = schedule_of(result)
    assert schedule.first == "nonlinear"
    again = fit(new_model(), without_validation(bent), schedule, seed=0)
    assert error_on(bent.test, again) < 2 * error_on(bent.test, result)


def test_the_warm_start_of_a_schedule_is_as_long_as_the_network_alone_took(bent):
    result = fit(new_model(), bent, QUICK, seed=0)
    alone = [row.valid_loss for row in result.history if row.phase == "warm start: nonlinear"]
    assert schedule_of(result).warm_epochs == alone.index(min(alone)) + 1
    assert math.isfinite(min(alone))


@pytest.mark.parametrize("seed", range(2))
def test_the_same_seed_gives_the_same_predictions(bent, seed):
    one, other = (fit(new_model(), bent, QUICK, seed=seed) for _ in range(2))
    np.testing.assert_array_equal(one.predict(bent.test.indices), other.predict(bent.test.indices))


@pytest.mark.parametrize("precision", ["float32", "short"])
def test_figures_and_predictions_are_in_32_bits(bent, precision):
    """A network wide enough for short products: what is predicted is what plain torch makes of the weights."""
    result = fit(new_model((1, 16)), bent, replace(QUICK, precision=precision, refine_epochs=2), seed=0)
    best = [row for row in result.history if row.best][-1]
    assert error_on(bent.valid, result) == pytest.approx(best.valid_loss, rel=1e-5)
    model = result.model
    found = result.predict(bent.test.indices)
    pick_engine("reference", "cpu").equip(model)
    with torch.no_grad():
        expected = model(torch.as_tensor(bent.test.indices.copy())).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
