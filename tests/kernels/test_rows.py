"""Row solves against dense least squares, and every engine against the reference."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, relu

from jointensor.errors import ConfigError
from jointensor.kernels import (
    ENGINES,
    ModeView,
    RowEntries,
    engines,
    numba_blas,
    numba_rows,
    pick_engine,
    rows,
    solve_rows,
)
from jointensor.kernels.engines import linear_relu_linear_16
from jointensor.kernels.rows import DIAGONAL_LIFT, row_systems, solve_in_blocks
from jointensor.models.joint import JointModel

SHAPE = (7, 5, 6, 4, 3)
COMPILED = ["numba"]  # on the CPU; the kernels for a GPU are in test_triton.py


def problem(modes, entries=400, rank=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = SHAPE[:modes]
    indices = torch.stack([torch.randint(size, (entries,), generator=generator) for size in sizes], dim=1)
    tables = [torch.randn(size, rank, generator=generator) for size in sizes]
    targets, weights = torch.randn(entries, generator=generator), torch.rand(entries, generator=generator)
    return indices, tables, targets, weights


def solved(solver, indices, tables, targets, weights, mode, ridge, **options):
    others = [m for m in range(len(tables)) if m != mode]
    view = ModeView.of(indices, mode, others, len(tables[mode]))
    table = tables[mode].clone()
    amount = torch.full((len(table),), float(ridge)) if np.isscalar(ridge) else ridge
    entries = RowEntries(view, [tables[m] for m in others], targets, weights, options.pop("sums", False))
    values = solver(entries, amount, table, **options)
    return table, values


def by_numpy(indices, tables, targets, weights, mode, ridge, prior=None, sums=False, lift=0.0):
    """One row after the other by a general least-squares routine: the ridge is rank more equations.

    ``lift``: more ridge without a prior mean, as a share of the mean of the diagonal.
    """
    rank = tables[0].shape[1]
    rows = np.zeros((len(tables[mode]), rank))
    looked_up = [t.double().numpy()[indices[:, m].numpy()] for m, t in enumerate(tables) if m != mode]
    h = np.sum(looked_up, axis=0) if sums else np.prod(looked_up, axis=0)
    root = np.ones(len(indices)) if weights is None else np.sqrt(weights.double().numpy())
    for row in range(len(rows)):
        mine = (indices[:, mode] == row).numpy()
        weighed = h[mine] * root[mine, None]
        lifted = np.sqrt(ridge + lift * np.square(weighed).sum() / rank)
        drawn = np.zeros(rank) if prior is None else ridge / lifted * prior[row].double().numpy()
        left = np.vstack([weighed, lifted * np.eye(rank)])
        right = np.concatenate([targets.double().numpy()[mine] * root[mine], drawn])
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


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("modes", [2, 3, 4, 5])
def test_rows_are_drawn_to_the_prior_and_others_may_be_summed(engine, modes, sums):
    indices, tables, targets, weights = problem(modes)
    indices = torch.where(indices == 2, 0, indices)  # a row without entries
    prior = torch.randn(SHAPE[0], 3, generator=torch.Generator().manual_seed(9))
    same = (indices, tables, targets, weights, 0, 1.3)
    found, values = solved(pick_engine(engine, "cpu").solve_rows, *same, prior=prior, sums=sums)
    rows, expected = by_numpy(*same, prior, sums)
    np.testing.assert_allclose(found.numpy(), rows, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(values.numpy(), expected, rtol=2e-4, atol=5e-5)
    torch.testing.assert_close(found[2], prior[2])


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
def test_a_row_without_a_solution_becomes_the_prior(engine):
    indices, tables, targets, _ = problem(3)
    prior = torch.randn(SHAPE[0], 3)
    huge = [1e30 * table for table in tables]
    found, _ = solved(pick_engine(engine, "cpu").solve_rows, indices, huge, targets, None, 0, 0.0, prior=prior)
    torch.testing.assert_close(found, prior)


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


COUNTS = (4095, 10, 4096, 4097, 0, 9000, 513, 1, 2, 27, 28, 29)
"""Entries of rows: none, fewer and more than components, more than are kept or added in 32 bits, and about as many."""


def rows_of_many_sizes(rank, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (len(COUNTS), 9, 11)
    tables = [torch.randn(size, rank, generator=generator) for size in sizes]
    rows = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.tensor(COUNTS))
    rows = rows[torch.randperm(len(rows), generator=generator)]
    others = [torch.randint(size, rows.shape, generator=generator) for size in sizes[1:]]
    targets, weights = torch.randn(len(rows), generator=generator), torch.rand(len(rows), generator=generator)
    return torch.stack([rows, *others], dim=1), tables, targets, weights


@pytest.fixture(params=[numba_blas.SMALL_TILE, numba_blas.WIDE_TILE])
def tile(request, monkeypatch):
    """Products as any machine would form them."""
    monkeypatch.setattr(numba_rows, "product_tile", lambda: request.param)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("rank", [1, 5, 8, 20, 37, 64])
def test_rows_of_any_number_of_entries_are_the_ridge_solution(rank, weighed):
    """Against 64 bits; with and without a prior mean and values, products and sums."""
    indices, tables, targets, weights = rows_of_many_sizes(rank)
    prior = torch.randn(len(COUNTS), rank, generator=torch.Generator().manual_seed(9))
    for mean, sums in ((None, False), (prior, False), (prior, True)):
        same = (indices, tables, targets, weights if weighed else None, 0, 50.0)
        found, values = solved(numba_rows.solve_rows_numba, *same, prior=mean, sums=sums)
        rows, expected = by_numpy(*same, mean, sums, DIAGONAL_LIFT)
        np.testing.assert_allclose(found.numpy(), rows, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(values.numpy(), expected, rtol=1e-3, atol=5e-3)
        torch.testing.assert_close(found[4], torch.zeros(rank) if mean is None else prior[4])


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("rank", [1, 5, 20, 37])
def test_systems_are_those_of_the_reference(rank, weighed):
    indices, tables, targets, weights = rows_of_many_sizes(rank)
    view = ModeView.of(indices, 0, [1, 2], len(COUNTS))
    asked = RowEntries(view, tables[1:], targets, weights if weighed else None), rank
    for found, expected in zip(numba_rows.row_systems_numba(*asked), row_systems(*asked), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)


def objective(indices, tables, targets, rows, ridge):
    """Squared error and penalty of every row in 64 bits, with the lift of its diagonal, ``(I,)``."""
    h = np.prod([t.double().numpy()[indices[:, m].numpy()] for m, t in enumerate(tables) if m != 0], axis=0)
    mine = indices[:, 0].numpy()
    errors = (targets.double().numpy() - (h * rows[mine]).sum(axis=1)) ** 2
    lifted = ridge + DIAGONAL_LIFT * np.bincount(mine, np.square(h).mean(axis=1), minlength=len(rows))
    return np.bincount(mine, errors, minlength=len(rows)) + lifted * np.square(rows).sum(axis=1)


@pytest.mark.parametrize("engine", ["reference", *COMPILED])
@pytest.mark.parametrize("ridge", [1.0, 1e-2, 1e-4])
def test_components_that_are_almost_alike_are_fitted_as_well_as_they_can_be(engine, ridge):
    """All components within a thousandth of each other, few entries and many: without more lift than the first one,
    rounding in 32 bits leaves systems that are not positive."""
    indices, tables, targets, _ = rows_of_many_sizes(24)
    tables = [table[:, :1] + 1e-3 * table for table in tables]
    found, values = solved(pick_engine(engine, "cpu").solve_rows, indices, tables, targets, None, 0, ridge)
    best, _ = by_numpy(indices, tables, targets, None, 0, ridge, lift=DIAGONAL_LIFT)
    reached = objective(indices, tables, targets, found.double().numpy(), ridge)
    lowest = objective(indices, tables, targets, best, ridge)
    assert (reached <= 1.02 * lowest + 1e-6).all()
    assert found.abs().amax(dim=1).gt(0).tolist() == [count > 0 for count in COUNTS]
    assert torch.isfinite(values).all()


@pytest.mark.parametrize(("rank", "block"), [(12, 4), (13, 4), (3, 4), (40, 16)])
def test_systems_are_solved_in_blocks(rank, block):
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(5, 2 * rank, rank, dtype=torch.float64, generator=generator)
    system, right = h.mT @ h, torch.randn(5, rank, dtype=torch.float64, generator=generator)
    system[3, rank // 2, rank // 2] = -1.0
    expected = torch.linalg.solve(system, right)
    found, failed = solve_in_blocks(system.tril(), right, block)
    torch.testing.assert_close(found[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])
    assert failed.gt(0).tolist() == [False, False, False, True, False]


def test_rows_are_solved_in_groups_that_fit_into_memory(monkeypatch):
    indices, tables, targets, weights = problem(3)
    expected = solved(solve_rows, indices, tables, targets, weights, 0, 0.5)
    monkeypatch.setattr(rows, "MAX_GRAM_BYTES", {"cpu": 2 * 4 * 3**2})  # two of seven rows
    assert [(group.start, group.stop) for group in rows.row_groups(7, tables[0])] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    for one, other in zip(solved(solve_rows, indices, tables, targets, weights, 0, 0.5), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_weights_below_zero_are_taken_as_they_are():
    """Also where a row has few entries: there is no root of such a weight."""
    indices, tables, targets, weights = problem(3, entries=12, rank=6)
    weights[::3] *= -0.01
    expected, _ = solved(solve_rows, indices, tables, targets, weights, 0, 5.0)
    found, _ = solved(pick_engine("numba", "cpu").solve_rows, indices, tables, targets, weights, 0, 5.0)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_solver_leaves_the_threads_as_they_were(threads):
    before = torch.get_num_threads()
    indices, tables, targets, _ = problem(3, entries=2000)
    torch.set_num_threads(threads)
    try:
        solved(pick_engine("numba", "cpu").solve_rows, indices, tables, targets, None, 0, 1.0)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


FRESH = """
import os, torch
torch.set_num_threads(int(os.environ["THREADS"]))
from jointensor.kernels import ModeView, RowEntries, pick_engine
engine = pick_engine("auto", "cpu")
indices = torch.tensor([[0, 0], [0, 1], [1, 0], [2, 1]])
view, table = ModeView.of(indices, 0, [1], 3), torch.zeros(3, 1)
entries = RowEntries(view, [torch.tensor([[1.0], [2.0]])], torch.tensor([1.0, 2.0, 3.0, 4.0]))
engine.solve_rows(entries, torch.zeros(3), table)
print(torch.get_num_threads(), [round(x, 3) for x in table.flatten().tolist()])
print(engine.first_use)
"""
SOLVED = "[1.0, 3.0, 2.0]"

NOWHERE = """
from numba.core import caching
found = getattr(caching, "CacheImpl", None) or caching._CacheImpl
found._locator_classes = []  # no place at all, as for a package in a folder that nobody may write to
"""


def in_a_process(code, threads=2, **environment):
    given_environment = os.environ | {"THREADS": str(threads)} | environment
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=given_environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_machine_where_the_solver_is_not_compiled_yet_is_told_so_once(tmp_path):
    first = in_a_process(FRESH, NUMBA_CACHE_DIR=str(tmp_path))
    assert first[0] == f"2 {SOLVED}"
    assert first[1].startswith(f"compiling the exact solver, once on this machine; it is kept in {tmp_path}")
    assert in_a_process(FRESH, NUMBA_CACHE_DIR=str(tmp_path)) == [f"2 {SOLVED}", "None"]


@pytest.mark.parametrize("threads", [1, 3])
def test_starting_the_threads_of_the_solver_leaves_those_of_torch_as_they_were(threads):
    """Only the first solve of a process starts them."""
    assert in_a_process(FRESH, threads)[0] == f"{threads} {SOLVED}"


@pytest.mark.slow
def test_a_machine_without_a_place_for_compiled_code_compiles_in_every_process():
    assert in_a_process(NOWHERE + FRESH) == [
        f"2 {SOLVED}",
        "compiling the exact solver for this process: there is no folder to keep it in",
    ]


@pytest.mark.parametrize(("engine", "device"), [("numba", "cpu"), ("triton", "cuda")])
def test_without_its_packages_the_reference_does_the_work(monkeypatch, engine, device):
    missing = dict.fromkeys(engines.REQUIRED_PACKAGES, ("a_package_that_nobody_has", "nor_this_one"))
    monkeypatch.setattr(engines, "REQUIRED_PACKAGES", missing)
    assert pick_engine("auto", device).name == "reference"
    assert pick_engine("reference", device).name == "reference"
    said = f"engine '{engine}' cannot be used here: it needs a_package_that_nobody_has and nor_this_one; take auto or"
    with pytest.raises(ConfigError, match=said):
        pick_engine(engine, device)


def test_engines_by_name():
    assert ENGINES == ("auto", "reference", "numba", "triton")
    assert pick_engine("reference", "cpu").name == "reference"
    assert pick_engine("auto", "cpu").name == pick_engine("numba", "cpu").name == "numba"
    assert pick_engine("reference", "cuda").name == "reference"
    assert pick_engine("auto", "mps").name == "reference"
    with pytest.raises(ConfigError, match=r"there is no engine 'nubma'; did you mean 'numba'\?"):
        pick_engine("nubma", "cpu")
    with pytest.raises(ConfigError, match="engine 'numba' cannot be used here: it runs on the CPU, not on cuda"):
        pick_engine("numba", "cuda")
    with pytest.raises(ConfigError, match="engine 'triton' cannot be used here: it runs on an NVIDIA GPU, not on cpu"):
        pick_engine("triton", "cpu")


def test_a_gpu_has_the_triton_engine():
    pytest.importorskip("triton")
    engine = pick_engine("auto", "cuda")
    assert engine.name == pick_engine("triton", "cuda").name == "triton"
    assert engine.replays_steps
    assert not pick_engine("numba", "cpu").replays_steps
    assert set(engine.operations) == {"cp_values", "two_layers"}
    assert set(engine.short_operations) == {"two_layers"}


def test_an_engine_equips_the_modules_that_say_what_they_fuse():
    def exact(*_):
        return torch.zeros(0)

    def short(*_):
        return torch.ones(0)

    model = JointModel((4, 3, 2), (2, 3), linear="mean+bias+cp:2")
    cp, part = model.multilinear.blocks["cp"], model.nonlinear.part
    engine = engines.Engine(
        "made up", solve_rows, operations={"cp_values": exact}, short_operations={"two_layers": short}
    )
    engine.equip(model)
    assert (cp.fused, part.fused) == (exact, None)
    engine.equip(model, short=True)
    assert (cp.fused, part.fused) == (exact, short)
    assert model.multilinear.blocks["bias_0"].fused is None  # a sum over one mode is no product
    pick_engine("reference", "cpu").equip(model, short=True)
    assert (cp.fused, part.fused) == (None, None)


def layers(hidden, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = [(64, 24), (hidden, 24), (hidden,), (8, hidden), (8,)]
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes]


def by_torch(x, w1, b1, w2, b2):
    return linear(relu(linear(x, w1, b1)), w2, b2)


def test_sixteen_bits_are_for_training_only():
    given_layers = layers(hidden=256)
    expected = by_torch(*given_layers)
    with torch.no_grad():
        assert torch.equal(linear_relu_linear_16(*given_layers), expected)
    found = linear_relu_linear_16(*given_layers)
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    slopes = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    assert float((found - expected).detach().norm() / expected.detach().norm()) < 0.01
    wanted, made = (torch.autograd.grad(values, given_layers, slopes) for values in (expected, found))
    for one, other in zip(made, wanted, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.1  # a unit near zero may fall on its other side


def test_narrow_layers_are_computed_in_full_even_while_training():
    given_layers = layers(hidden=16)
    assert torch.equal(linear_relu_linear_16(*given_layers), by_torch(*given_layers))
