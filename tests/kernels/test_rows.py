"""Row solves against dense least squares, and every engine against the reference."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.errors import ConfigError
from jointensor.kernels import ENGINES, ModeView, engines, pick_engine, solve_rows

SHAPE = (7, 5, 6, 4, 3)
COMPILED = [name for name in ENGINES if name not in ("auto", "reference")]


def problem(modes, entries=400, rank=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = SHAPE[:modes]
    indices = torch.stack([torch.randint(size, (entries,), generator=generator) for size in sizes], dim=1)
    tables = [torch.randn(size, rank, generator=generator) for size in sizes]
    targets, weights = torch.randn(entries, generator=generator), torch.rand(entries, generator=generator)
    return indices, tables, targets, weights


def solved(solver, indices, tables, targets, weights, mode, ridge, *, evaluate=True):
    others = [m for m in range(len(tables)) if m != mode]
    view = ModeView.of(indices, mode, others, len(tables[mode]))
    table = tables[mode].clone()
    amount = torch.full((len(table),), float(ridge)) if np.isscalar(ridge) else ridge
    values = solver(view, [tables[m] for m in others], targets, weights, amount, table, evaluate=evaluate)
    return table, values


def by_numpy(indices, tables, targets, weights, mode, ridge):
    """One row after the other by a general least-squares routine: the ridge is rank more equations."""
    rank = tables[0].shape[1]
    rows = np.zeros((len(tables[mode]), rank))
    h = np.ones((len(indices), rank))
    for m, table in enumerate(tables):
        if m != mode:
            h *= table.double().numpy()[indices[:, m].numpy()]
    root = np.ones(len(indices)) if weights is None else np.sqrt(weights.double().numpy())
    for row in range(len(rows)):
        mine = (indices[:, mode] == row).numpy()
        left = np.vstack([h[mine] * root[mine, None], np.sqrt(ridge) * np.eye(rank)])
        right = np.concatenate([targets.double().numpy()[mine] * root[mine], np.zeros(rank)])
        rows[row] = np.linalg.lstsq(left, right, rcond=None)[0]
    return rows, (h * rows[indices[:, mode].numpy()]).sum(axis=1)


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("modes", [2, 3, 4, 5])
def test_every_row_is_the_ridge_solution(engine, modes, weighed):
    indices, tables, targets, weights = problem(modes)
    weights = weights if weighed else None
    for mode in range(modes):
        found, values = solved(pick_engine(engine, "cpu").solve_rows, indices, tables, targets, weights, mode, 0.7)
        rows, expected = by_numpy(indices, tables, targets, weights, mode, 0.7)
        np.testing.assert_allclose(found.numpy(), rows, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(values.numpy(), expected, rtol=2e-4, atol=5e-5)


@pytest.mark.parametrize("engine", COMPILED)
@settings(max_examples=30, deadline=None)
@given(
    modes=st.integers(1, 5), entries=st.integers(1, 1500), rank=st.integers(1, 24), weighed=st.booleans(),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_engines_agree_with_the_reference(engine, modes, entries, rank, weighed, seed):
    indices, tables, targets, weights = problem(modes, entries, rank, seed)
    given_weights = weights if weighed else None
    mode = seed % modes
    ridge = 0.5 + torch.rand(len(tables[mode]), generator=torch.Generator().manual_seed(seed))
    same = (indices, tables, targets, given_weights, mode, ridge)
    expected, expected_values = solved(solve_rows, *same)
    found, values = solved(pick_engine(engine, "cpu").solve_rows, *same)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-4)
    torch.testing.assert_close(values, expected_values, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
def test_values_are_left_out_when_they_are_not_asked_for(engine):
    indices, tables, targets, _ = problem(3)
    solver = pick_engine(engine, "cpu").solve_rows
    with_values, _ = solved(solver, indices, tables, targets, None, 1, 0.1)
    without, values = solved(solver, indices, tables, targets, None, 1, 0.1, evaluate=False)
    assert values.shape == (0,)
    torch.testing.assert_close(without, with_values, rtol=0, atol=0)


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
def test_rows_without_entries_become_zero(engine):
    indices, tables, targets, _ = problem(3)
    indices = indices[indices[:, 0] != 2]
    found, values = solved(
        pick_engine(engine, "cpu").solve_rows, indices, tables, targets[: len(indices)], None, 0, 0.0
    )
    assert not found[2].any()
    assert torch.isfinite(found).all()
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
def test_singular_and_hopeless_systems_never_give_nan(engine):
    """Two components alike and no ridge; then rows so large that their squares overflow 32 bits."""
    indices, tables, targets, _ = problem(3)
    solver = pick_engine(engine, "cpu").solve_rows
    twins = [table[:, [0, 0, 1]] for table in tables]
    found, values = solved(solver, indices, twins, targets, None, 0, 0.0)
    assert torch.isfinite(found).all()
    expected = by_numpy(indices, [t[:, :2] for t in tables], targets, None, 0, 0.0)[1]
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-2, atol=1e-2)  # the same fit, however it is shared
    found, _ = solved(solver, indices, [1e30 * table for table in tables], targets, None, 0, 0.0)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("engine", COMPILED)
def test_rows_longer_than_a_block_are_solved_in_several(engine):
    indices, tables, targets, _ = problem(2, entries=20_000, rank=5)
    expected, expected_values = solved(solve_rows, indices, tables, targets, None, 1, 1.0)
    found, values = solved(pick_engine(engine, "cpu").solve_rows, indices, tables, targets, None, 1, 1.0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(values, expected_values, rtol=1e-3, atol=1e-5)


def test_without_its_packages_the_reference_does_the_work(monkeypatch):
    monkeypatch.setattr(engines, "NEEDS", ("a_package_that_nobody_has",))
    assert pick_engine("auto", "cpu").name == "reference"
    with pytest.raises(ConfigError, match="engine 'numba' cannot be used here: it needs a_package_that_nobody_has"):
        pick_engine("numba", "cpu")


def test_engines_by_name():
    assert pick_engine("reference", "cpu").name == "reference"
    assert pick_engine("auto", "cpu").name == "numba"
    assert pick_engine("auto", "cuda").name == "reference"
    with pytest.raises(ConfigError, match=r"there is no engine 'nubma'; did you mean 'numba'\?"):
        pick_engine("nubma", "cpu")
    with pytest.raises(ConfigError, match="engine 'numba' cannot be used here: it runs on the CPU, not on cuda"):
        pick_engine("numba", "cuda")
