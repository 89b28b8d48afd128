"""What is kept of residuals: planted tables and processes, not noise; shrunk means of other entries."""

import math

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.synthetic import draw_cells
from jointensor.data.tensor import SparseTensor
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.residual_stack import MIN_GAIN, fit_residual_stack, fit_validated_kriging, refit_kriging
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import Table, Tables, fit_tables, refit_tables

SIZES, LARGER = (16, 10, 30), (25, 12, 40)


def residuals_of(*, table=0.0, process=0.0, noise=1.0, seed=0, order="ordered", sizes=SIZES):
    """Half of the cells of a dense tensor of residuals: tensor, the cells of the other half, their values.

    The table is over items and days, and says nothing of the days beside; the process goes along the days.
    """
    rng = np.random.default_rng(seed)
    dense = noise * rng.standard_normal(sizes) + table * rng.standard_normal(sizes[1:])
    steps = rng.standard_normal(sizes)
    path = steps.copy()
    for t in range(1, sizes[2]):
        path[..., t] = 0.9 * path[..., t - 1] + math.sqrt(0.19) * steps[..., t]
    dense += process * path
    cells = rng.permutation(np.argwhere(np.ones(sizes)))
    half = len(cells) // 2
    modes = (Mode("user", sizes[0]), Mode("item", sizes[1]), Mode("day", sizes[2], order=order))
    return SparseTensor(cells[:half], dense[tuple(cells[:half].T)], modes), cells[half:], dense[tuple(cells[half:].T)]


def folds_of(tensor, many=4, seed=5):
    return np.random.default_rng(seed).integers(many, size=len(tensor))


def stack_of(tensor, **options):
    return fit_residual_stack(tensor, tensor.values, folds_of(tensor), **options)


def predict(stack, cells):
    return sum((part.predict(cells) for part in stack.models), np.zeros(len(cells)))


def test_noise_is_not_kept():
    for seed in range(2):
        tensor, _, _ = residuals_of(seed=seed, sizes=LARGER)  # chance alone finds less than one in 500 there
        stack = stack_of(tensor)
        assert stack.models == ()
        assert np.array_equal(stack.residuals, tensor.values.astype(np.float64))
        assert [name for name, _ in stack.notes] == ["local:day", "tables"]
        assert all(gain < MIN_GAIN for _, gain in stack.notes)


def test_a_planted_table_is_kept_and_lowers_the_error_of_new_entries():
    tensor, cells, values = residuals_of(table=1.0, noise=0.5)
    stack = stack_of(tensor)
    assert [type(part) for part in stack.models] == [Tables]
    # of 1.25, the noise of variance 0.25 remains, and what 8 noisy entries leave open of each number
    best = 0.25 + 1 / (1 + 8 / 0.25)
    assert np.mean((values - predict(stack, cells)) ** 2) < 1.2 * best


def test_a_planted_process_is_kept_and_lowers_the_error_of_new_entries():
    tensor, cells, values = residuals_of(process=1.0, noise=0.5)
    stack = stack_of(tensor)
    assert isinstance(stack.models[0], Kriging)
    assert stack.models[0].axis.modes == (2,)
    assert stack.notes[0][0] == "local:day"
    assert np.mean((values - predict(stack, cells)) ** 2) < 0.6 * np.mean(values**2)


def test_a_table_and_a_process_are_kept_together():
    tensor, cells, values = residuals_of(process=1.0, table=0.7, noise=0.3)
    both, alone = stack_of(tensor), stack_of(tensor, tables=False)
    assert [type(part) for part in both.models] == [Kriging, Tables]
    assert [type(part) for part in alone.models] == [Kriging]
    errors = [np.mean((values - predict(stack, cells)) ** 2) for stack in (both, alone)]
    assert errors[0] < errors[1] < 0.9 * np.mean(values**2)


@pytest.mark.parametrize("planted", [{"process": 1.0}, {"table": 1.0}, {"process": 1.0, "table": 0.7, "noise": 0.3}])
def test_what_is_left_is_as_large_as_the_error_of_new_entries(planted):
    """Nothing that is kept has seen the entry it is judged on: or what is left would be too small."""
    tensor, cells, values = residuals_of(**planted)
    stack = stack_of(tensor)
    left, new = np.mean(stack.residuals**2), np.mean((values - predict(stack, cells)) ** 2)
    # √(2/n) is the standard error of a mean square; tables of new entries also know the fold that was left out
    assert left > new * (1 - 4 * math.sqrt(4 / len(cells)))
    assert left < 1.1 * new


def test_gains_are_the_shares_of_the_error_that_are_taken_away():
    tensor, _, _ = residuals_of(process=1.0, table=0.7, noise=0.3)
    stack = stack_of(tensor)
    share = math.prod(1 - gain for _, gain in stack.notes if gain >= MIN_GAIN)
    assert np.mean(stack.residuals**2) == pytest.approx(
        share * np.mean(tensor.values.astype(np.float64) ** 2), rel=1e-6
    )


def test_a_mode_without_an_order_has_no_neighbours():
    tensor, _, _ = residuals_of(process=1.0, order="none")
    stack = stack_of(tensor)
    assert not any(isinstance(part, Kriging) for part in stack.models)
    assert [name for name, _ in stack.notes] == ["tables"]


def test_every_ordered_mode_is_tried_the_best_first():
    tensor, _, _ = residuals_of(process=1.0, noise=0.5)
    either = tensor.over((Mode("user", 16, order="ordered"), Mode("item", 10), Mode("day", 30, order="ordered")))
    stack = stack_of(either, tables=False)
    assert [part.axis.modes for part in stack.models] == [(2,)]  # users do not resemble those beside them
    assert [name for name, _ in stack.notes] == ["local:day", "local:user"]


def test_a_matrix_has_no_tables():
    rng = np.random.default_rng(0)
    cells = np.argwhere(np.ones((30, 20)))
    tensor = SparseTensor(cells, rng.standard_normal(30)[cells[:, 0]], (30, 20))
    assert stack_of(tensor).notes == ()


def test_residuals_of_zero_leave_nothing_to_keep():
    tensor, _, _ = residuals_of()
    stack = fit_residual_stack(tensor, np.zeros(len(tensor)), folds_of(tensor))
    assert stack.models == ()
    assert not stack.residuals.any()


def shrunk(modes_, shrinkage, train):
    """The shape of tables: their modes and shrinkage; the numbers do not count."""
    tables = [Table(m, tuple(train.shape[n] for n in m), np.zeros(0, np.int64), np.zeros(1)) for m in modes_]
    return Tables(0.0, tuple(tables), tuple(shrinkage))


def test_a_single_table_is_refitted_as_shrunk_means():
    tensor, cells, _ = residuals_of(table=1.0)
    train = tensor.take(np.arange(1500))
    fitted = refit_tables(shrunk([(1, 2)], [3.0], train), train)
    mean = train.values.mean(dtype=np.float64)
    expected = []
    for cell in cells[:200]:
        mine = (train.indices[:, 1:] == cell[1:]).all(axis=1)
        expected.append(mean + (train.values[mine].astype(np.float64) - mean).sum() / (mine.sum() + 3.0))
    np.testing.assert_allclose(fitted.predict(cells[:200]), expected, rtol=1e-9, atol=1e-12)


def test_tables_of_a_full_tensor_are_refitted_as_the_ridge_regression():
    dense = np.random.default_rng(0).standard_normal((5, 4, 3))
    full = SparseTensor.from_dense(dense)  # labels of different modes are orthogonal there
    fitted = refit_tables(shrunk([(0,), (1,)], [2.0, 5.0], full), full)
    left = full.values.astype(np.float64).reshape(5, 4, 3)
    mean = left.mean()
    by_first, by_second = (left - mean).sum(axis=(1, 2)) / (12 + 2), (left - mean).sum(axis=(0, 2)) / (15 + 5)
    expected = mean + by_first[:, None, None] + by_second[None, :, None]
    found = fitted.predict(full.indices).reshape(5, 4, 3)
    np.testing.assert_allclose(found, np.broadcast_to(expected, (5, 4, 3)), atol=1e-9)


def test_tables_that_were_shrunk_away_are_left_out():
    tensor, cells, _ = residuals_of(table=1.0)
    fitted = refit_tables(shrunk([(0,), (1, 2), (2,)], [math.inf, 3.0, math.inf], tensor), tensor)
    assert [table.modes for table in fitted.tables] == [(1, 2)]
    assert fitted.shrinkage == (3.0,)
    nothing = refit_tables(shrunk([(0,)], [math.inf], tensor), tensor)
    assert np.ptp(nothing.predict(cells)) == 0


@pytest.mark.parametrize("cells_per_entry", [2, 10, 50])
def test_tables_refitted_to_the_entries_they_were_fitted_to_are_the_same(cells_per_entry, tmp_path):
    """Also where entries are few, and the shrinkage of a table differs from pass to pass."""
    rng = np.random.default_rng(cells_per_entry)
    shape = (9, 20, 12 * cells_per_entry)
    indices = draw_cells(shape, 1000, rng)
    values = rng.standard_normal(20)[indices[:, 1]] + rng.standard_normal((9, shape[2]))[indices[:, 0], indices[:, 2]]
    tensor = SparseTensor(indices, values, shape)
    train = tensor.take(np.arange(800))
    first = fit_tables(train, tensor.take(np.arange(800, 1000)))
    assert len(set(first.passes)) > 1
    asked = rng.integers(shape, size=(500, 3))
    again = refit_tables(first, train)
    np.testing.assert_allclose(again.predict(asked), first.predict(asked), rtol=1e-9, atol=1e-12)
    save_predictor(first, tmp_path / "tables.safetensors")
    assert load_predictor(tmp_path / "tables.safetensors").passes == first.passes


def test_the_first_parts_leave_what_the_others_took():
    tensor, _, _ = residuals_of(table=1.0, process=1.0, noise=0.5)
    stack = stack_of(tensor)
    assert stack.names == ["local:day", "tables"]
    assert stack.first(2).residuals == pytest.approx(stack.residuals)
    one = stack.first(1)
    assert one.models == stack.models[:1]
    assert one.names == ["local:day"]
    assert one.residuals == pytest.approx(tensor.values - one.models[0].leave_one_out(tensor.indices), abs=1e-6)
    assert stack.first(0).residuals == pytest.approx(tensor.values.astype(float), abs=1e-6)


def test_entries_that_nothing_was_learnt_from_decide_how_many_models_are_kept():
    """Tables of what the members know already would count it twice."""
    tensor, cells, values = residuals_of(table=1.0, process=1.0, noise=0.5)
    stack = stack_of(tensor)
    fresh, nothing = SparseTensor(cells, values, tensor.modes), Tables(0.0, (), ())
    knows_nothing = Ensemble((Member("none", 1.0, (nothing,)),), stack.models, nothing, -math.inf, math.inf)
    assert knows_nothing.best_stack_size(fresh)[0] == 2
    knows_tables = Ensemble((Member("tables", 1.0, (stack.models[1],)),), stack.models, nothing, -math.inf, math.inf)
    assert knows_tables.best_stack_size(fresh)[0] == 1


def validated(tensor, cells, values, shrink=1.0):
    """Kriging of training residuals, half of the others to validate by."""
    half = len(cells) // 2
    valid = SparseTensor(cells[:half], values[:half], tensor.modes)
    stack = fit_validated_kriging(tensor, shrink * tensor.values, valid, valid.values, along=[(2,)])
    return stack, cells[half:], values[half:]


def test_kriging_of_training_residuals_is_kept_where_it_predicts_validation_entries():
    tensor, cells, values = residuals_of(process=2.0)
    stack, fresh, truth = validated(tensor, cells, values)
    assert stack.names == ["local:day"]
    assert np.mean((truth - predict(stack, fresh)) ** 2) < 0.6 * np.mean(truth**2)


def test_training_residuals_that_are_too_small_predict_the_same():
    tensor, cells, values = residuals_of(process=2.0)
    one, half = (validated(tensor, cells, values, shrink)[0] for shrink in (1.0, 0.6))
    assert np.allclose(predict(one, cells), predict(half, cells), rtol=1e-3, atol=1e-3)


def test_kriging_of_training_residuals_without_a_process_is_not_kept():
    for seed in range(3):
        stack, *_ = validated(*residuals_of(seed=seed))
        assert stack.models == ()


def test_kriging_of_training_residuals_ends_with_the_axes_that_there_was_time_for():
    tensor, cells, values = residuals_of(process=2.0)
    valid = SparseTensor(cells, values, tensor.modes)
    for times, expected in (([False], 0), ([True, False], 1)):
        left = iter(times)
        stack = fit_validated_kriging(
            tensor, tensor.values, valid, valid.values, along=[(2,), (1,)], in_time=lambda left=left: next(left, False)
        )
        assert [model.axis.modes for model in stack.models] == [(2,)][:expected]


def test_kriging_is_refitted_to_what_the_models_before_leave():
    """Two models one after the other: the same entries give the same predictions, further ones better predictions."""
    tensor, cells, truth = residuals_of(process=2.0, noise=0.5, sizes=LARGER)
    few, rest = tensor.take(np.arange(0, len(tensor), 2)), tensor.take(np.arange(1, len(tensor), 2))
    stack = fit_validated_kriging(few, few.values, rest, rest.values, along=[(2,), (1,)])
    assert stack.models
    again = refit_kriging(stack.models, few, few.values)
    for before, after in zip(stack.models, again, strict=True):
        np.testing.assert_allclose(after.predict(cells), before.predict(cells), rtol=1e-5, atol=1e-6)
    more = refit_kriging(stack.models, tensor, tensor.values)
    errors = [np.mean((truth - sum(one.predict(cells) for one in models)) ** 2) for models in (stack.models, more)]
    assert errors[1] < 0.9 * errors[0]
