"""Links of rows that are chosen by the validation entries."""

import numpy as np
import pytest
import torch

from jointensor.data.modes import Mode
from jointensor.data.split import split
from jointensor.data.tensor import SparseTensor
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

RECIPE = make_recipe("default", fall_back=False, rounds=3, ridges=(0.001, 0.01))


def series(rows, *, share, noise=0.0, seed=0, places=20):
    """Two modes of places and one of days, whose components follow some rows ``(days, R)``; some of the cells."""
    rng = np.random.default_rng(seed)
    days, rank = rows.shape
    shape = (places, places, days)
    first, second = (1 + 0.5 * rng.standard_normal((places, rank)) for _ in range(2))
    truth = np.einsum("ir,jr,kr->ijk", first, second, rows)
    cells = np.argwhere(rng.random(shape) < share)
    values = truth[tuple(cells.T)]
    modes = (Mode("a", places), Mode("b", places), Mode("day", days, order="ordered"))
    tensor = SparseTensor.part(cells, (values + noise * rng.standard_normal(len(cells))).astype(np.float32), modes)
    return tensor, truth


def error_everywhere(tensor, truth, linear, recipe=RECIPE):
    """Of a fit, on all cells; and the links that were chosen along the days."""
    found = fit(JointModel(tensor.shape, (0, 0), linear=linear), split(tensor, test=0.0, seed=0), recipe, device="cpu")
    cells = np.argwhere(np.ones(truth.shape, dtype=bool))
    links = found.attempts[found.attempt]["links"]
    return rmse(found.predict(cells), truth[tuple(cells.T)]) / truth.std(), links.get(2)


def test_smooth_factors_are_found_from_two_in_a_hundred_cells_where_no_prior_finds_them():
    at = np.linspace(0, 2 * np.pi, 150)
    rows = np.stack([np.sin(at) + 1.5, np.cos(2 * at), np.sin(3 * at)], axis=1)
    tensor, truth = series(rows, share=0.02)
    plain, _ = error_everywhere(tensor, truth, "mean+bias+cp:3")
    smooth, links = error_everywhere(tensor, truth, "mean+bias+cp:3+smooth:2")
    assert smooth < 0.1 < 0.3 < plain
    assert set(links) <= {"walk", "curve"}


def test_weeks_that_come_back_are_linked_and_predict_better_than_without():
    """On average over tensors: with few entries the solution without links may be a lucky one."""
    ratios, chosen = [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = np.tile(1 + rng.standard_normal((7, 2)), (20, 1)) + 0.1 * rng.standard_normal((140, 2))
        tensor, truth = series(rows, share=0.02, noise=0.5, seed=seed, places=30)
        plain, _ = error_everywhere(tensor, truth, "mean+bias+cp:2")
        linked, links = error_everywhere(tensor, truth, "mean+bias+cp:2+smooth:2")
        ratios.append(linked / plain)
        chosen.append("season:7" in links)
    assert np.mean(ratios) < 0.85
    assert max(ratios) < 1.05
    assert sum(chosen) >= 2


def test_rows_without_any_order_are_linked_weakly():
    rows = np.random.default_rng(2).standard_normal((60, 2))
    tensor, truth = series(rows, share=0.3, noise=0.1)
    plain, _ = error_everywhere(tensor, truth, "mean+bias+cp:2")
    linked, _ = error_everywhere(tensor, truth, "mean+bias+cp:2+smooth:2")
    assert linked < 1.1 * plain + 0.01


def test_a_missing_stretch_of_days_is_as_long_as_its_labels_say():
    """Labels in any order, with a gap: the fit is that of the same days in their order."""
    at = np.linspace(0, 2 * np.pi, 40)
    tensor, truth = series(np.stack([np.sin(at) + 1.5, np.cos(2 * at)], axis=1), share=0.2)
    order = np.random.default_rng(3).permutation(40)
    place = np.argsort(order)  # where each day stands now
    labels = tuple(str(day) for day in order)
    cells = tensor.indices.copy()
    cells[:, 2] = place[cells[:, 2]]
    modes = (*tensor.modes[:2], Mode("day", 40, labels=labels, order="ordered"))
    shuffled = SparseTensor.part(cells, tensor.values, modes)
    torch.manual_seed(0)
    plain, _ = error_everywhere(tensor, truth, "mean+bias+cp:2+smooth:2")
    moved, _ = error_everywhere(shuffled, truth[:, :, order], "mean+bias+cp:2+smooth:2")
    assert moved == pytest.approx(plain, abs=0.02)
    assert moved < 0.1


def test_links_are_kept_with_the_fit_and_solved_on(tmp_path):
    from jointensor.predictors.storage import load_predictor, save_predictor
    from jointensor.training.solve_on import solve_on

    at = np.linspace(0, 2 * np.pi, 60)
    tensor, _ = series(np.stack([np.sin(at) + 1.5, np.cos(2 * at)], axis=1), share=0.05)
    parts = split(tensor, test=0.0, seed=0)
    found = fit(JointModel(tensor.shape, (0, 0), linear="mean+bias+cp:2+smooth:2"), parts, RECIPE, device="cpu")
    chosen = found.predictor.solved.links
    assert chosen == found.attempts[found.attempt]["links"]
    assert chosen[2] != {"walk": 1.0}
    save_predictor(found.predictor, tmp_path / "fit.safetensors")
    stored = load_predictor(tmp_path / "fit.safetensors")
    assert stored.solved == found.predictor.solved
    one, other = (solve_on([fits], tensor, RECIPE, device="cpu") for fits in (found.predictor, stored))
    np.testing.assert_array_equal(one.predict(tensor.indices), other.predict(tensor.indices))
    weak = found.predictor.solved._replace(links={2: {"walk": 1e-6}})
    elsewhere = solve_on([type(stored)(stored.model, stored.fallback, solved=weak)], tensor, RECIPE, device="cpu")
    assert np.abs(elsewhere.predict(tensor.indices) - one.predict(tensor.indices)).max() > 1e-3
