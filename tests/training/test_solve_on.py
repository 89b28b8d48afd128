"""Exact solutions with more entries: against the normal equations, the mean by hand, and errors on new entries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import join
from jointensor.errors import RunError
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.training.average import mean_of_solutions, solutions_of
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from jointensor.training.solve_on import solve_on

CPU = {"device": "cpu", "engine": "reference"}
RECIPE = make_recipe("default", fall_back=False, restarts=0)


def noisy(seed=0):
    return split(make_joint((20, 18, 16), (6, 0), observed=2500, noise=0.3, seed=2)[0], seed=seed)


def solved(parts, rank=4, seed=0, **changes):
    recipe = make_recipe(RECIPE, **changes)
    model = JointModel(parts.train.shape, (rank, 0), linear=recipe.linear(rank))
    return fit(model, parts, recipe, seed=seed, **CPU).predictor


def test_the_last_rows_solve_the_normal_equations_of_all_entries():
    parts = noisy()
    before, entries = solved(parts), join(parts.train, parts.valid)
    after = solve_on([before], entries, RECIPE, **CPU)
    first, second, last = (table.detach().double().numpy() for table in after.model.linear_factors)
    blocks = after.model.multilinear.named_blocks
    cells = torch.tensor(entries.indices)
    with torch.no_grad():
        others = sum(block(cells).double().numpy() for name, block in blocks.items() if name != "cp")
    spread, scales = float(entries.values.std()), []
    for label in range(parts.train.shape[2]):
        here = entries.indices[:, 2] == label
        rows = first[entries.indices[here, 0]] * second[entries.indices[here, 1]]  # (entries, R)
        ridge = before.solved.ridge * here.sum() * spread ** (2 - 2 / 3)
        slope = rows.T @ (rows @ last[label] - (entries.values - others)[here])
        scales.append(-slope / (ridge * last[label]))
    # factors are balanced after they are solved, so the ridge of a component is scaled, by one number for all rows
    scales = np.array(scales)  # (labels, R)
    np.testing.assert_allclose(scales, np.broadcast_to(np.median(scales, axis=0), scales.shape), rtol=0.02)
    assert (scales > 0).all()


def test_more_entries_lower_the_error_of_new_ones():
    parts = noisy()
    before = solved(parts)
    after = solve_on([before], join(parts.train, parts.valid), RECIPE, **CPU)
    errors = [rmse(one.predict(parts.test.indices), parts.test.values) for one in (before, after)]
    assert errors[1] < errors[0]
    seen = [rmse(one.predict(parts.valid.indices), parts.valid.values) for one in (before, after)]
    assert seen[1] < 0.9 * seen[0]


def test_the_same_entries_leave_a_solution_where_it_is():
    parts = split(make_joint((20, 18, 16), (2, 0), observed=2500, noise=0.0, seed=2)[0], seed=0)
    before = solved(parts, rank=2)
    after = solve_on([before], parts.train, RECIPE, **CPU)
    spread = parts.test.values.std()
    np.testing.assert_allclose(
        after.predict(parts.test.indices), before.predict(parts.test.indices), atol=0.01 * spread
    )


def test_several_fits_become_the_mean_of_all_their_solutions():
    parts = noisy()
    fits = [solved(parts, rank=4), solved(parts, rank=3, seed=1), solved(parts, rank=4, seed=2, solutions=3)]
    counts = [one.solved.solutions for one in fits]
    assert counts[:2] == [1, 1]
    alone = [solve_on([one], parts.train, RECIPE, **CPU).predict(parts.test.indices) for one in fits]
    expected = np.average(alone, axis=0, weights=counts)
    together = solve_on(fits, parts.train, RECIPE, **CPU)
    np.testing.assert_allclose(together.predict(parts.test.indices), expected, rtol=1e-3, atol=1e-3)
    assert together.solved is None


def test_a_mean_is_taken_apart_into_its_solutions():
    parts = noisy()
    mean = solved(parts, solutions=3)
    apart = solutions_of(mean.model, mean.solved.solutions)
    assert len(apart) == mean.solved.solutions
    again = JointModel(parts.train.shape, (4, 0), linear="mean+bias+cp:4")
    again.take(mean_of_solutions(apart, 3))
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, mean.model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_solutions_that_are_finished_are_enough_where_it_is_stopped():
    parts = noisy()
    fits = [solved(parts), solved(parts, seed=1)]
    found = solve_on(fits, parts.train, RECIPE, stopping=lambda: True, **CPU)
    first = solve_on(fits[:1], parts.train, RECIPE, **CPU)
    np.testing.assert_array_equal(found.predict(parts.test.indices), first.predict(parts.test.indices))


def test_with_very_many_labels_the_first_solution_of_every_fit_is_enough(monkeypatch):
    parts = noisy()
    fits = [solved(parts, solutions=3), solved(parts, seed=1, solutions=3)]
    assert min(one.solved.solutions for one in fits) > 1
    monkeypatch.setattr("jointensor.training.solve_on.MAX_NUMBERS", 2 * 4 * sum(parts.train.shape))
    few = solve_on(fits, parts.train, RECIPE, **CPU)
    assert few.model.rank == (8, 0)  # one of each fit


def test_a_network_is_not_solved_on():
    parts = noisy()
    recipe = make_recipe("default", fall_back=False, restarts=0, refine_epochs=1, warm_epochs=1)
    joint = fit(JointModel(parts.train.shape, (2, 2)), parts, recipe, seed=0, **CPU).predictor
    assert joint.solved is None
    with pytest.raises(RuntimeError, match="not solved"):
        solve_on([joint], parts.train, RECIPE, **CPU)


def test_sampled_components_are_not_solved_on():
    assert solved(noisy(), linear_solver="gibbs", burn_in=2, draws=2).solved is None


def test_how_it_was_solved_is_stored(tmp_path):
    mean = solved(noisy(), solutions=3)
    save_predictor(mean, tmp_path / "model.safetensors")
    assert load_predictor(tmp_path / "model.safetensors").solved == mean.solved


@pytest.mark.parametrize("changes", [{"solutions": 3}, {"solutions": 0}, {"ridge": 0.0}, {"ridge": float("nan")}])
def test_what_cannot_be_true_of_a_model_is_refused(tmp_path, changes):
    one = solved(noisy())
    broken = replace(one, solved=one.solved._replace(**changes))
    save_predictor(broken, tmp_path / "model.safetensors")
    with pytest.raises(RunError):
        load_predictor(tmp_path / "model.safetensors")
