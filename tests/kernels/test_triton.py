"""The Triton kernels against plain torch: on a GPU where there is one, else by Triton's interpreter on the CPU."""

import pytest
import torch
from torch.nn.functional import linear, relu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # there by the interpreter, see tests/conftest.py
pytest.importorskip("triton")

from jointensor.kernels import ModeView, RowEntries, rows, solve_rows, triton_rows, triton_wide_rows
from jointensor.kernels.rows import row_systems
from jointensor.kernels.triton_adam import adam_step
from jointensor.kernels.triton_cp import cp_gradient, cp_values
from jointensor.kernels.triton_mlp import (
    MAX_INPUTS,
    MAX_OUTPUTS,
    linear_relu_linear,
    linear_relu_linear_short,
    two_layers,
)
from jointensor.kernels.triton_rows import solve_rows_triton
from jointensor.kernels.triton_wide_rows import row_systems_triton

SHAPE = (7, 5, 6, 4, 3)
SLOW = [pytest.mark.slow] if DEVICE == "cpu" else []
"""Sizes that take the interpreter a minute."""
BETAS, EPS = (0.9, 0.999), 1e-8


def numbers(*shape, seed=0, scale=1.0):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(DEVICE)


def problem(modes, rank, entries=150, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(size, (entries,), generator=generator) for size in SHAPE[:modes]], dim=1)
    tables = [numbers(size, rank, seed=seed + n) for n, size in enumerate(SHAPE[:modes], 1)]
    weights = torch.rand(entries, generator=generator).to(DEVICE)
    return indices.to(DEVICE), tables, numbers(entries, seed=seed + 9), weights


def solved(solver, indices, tables, targets, weights, mode, ridge, **options):
    others = [m for m in range(len(tables)) if m != mode]
    view = ModeView.of(indices, mode, others, len(tables[mode]))
    table = tables[mode].clone()
    ridges = ridge * (1 + torch.arange(len(table), device=DEVICE))  # a row has a ridge of its own
    entries = RowEntries(view, [tables[m] for m in others], targets, weights, options.pop("sums", False))
    values = solver(entries, ridges, table, **options)
    return table, values


def assert_same_solution(*given, rtol=1e-3, atol=1e-4, **options):
    expected, expected_values = solved(solve_rows, *given, **options)
    found, values = solved(solve_rows_triton, *given, **options)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(values, expected_values, rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("modes", "rank"), [(1, 1), (2, 1), (2, 20), (3, 3), (3, 16), (4, 3), (5, 3), (5, 20)])
def test_rows_are_those_of_the_reference(modes, rank, weighed):
    indices, tables, targets, weights = problem(modes, rank)
    for mode in {0, modes - 1}:
        assert_same_solution(indices, tables, targets, weights if weighed else None, mode, 0.5)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("modes", "rank"), [(1, 1), (2, 3), (3, 16), (3, 20)])
def test_rows_longer_than_a_segment_are_added_up(monkeypatch, modes, rank, weighed):
    """Rows of one, two and many segments next to each other, one of which is exactly full."""
    monkeypatch.setattr(triton_rows, "SEGMENT", 16)
    indices, tables, targets, weights = problem(modes, rank)
    indices[:100, 0] = 3
    indices[100:116, 0] = 2
    indices[116:133, 0] = 1
    indices[133:, 0] = 0
    view = ModeView.of(indices, 0, [], SHAPE[0])
    cut = triton_rows.segments_of(view)
    assert (cut.ends - cut.begins).tolist() == [16, 1, 16, 1, 16, *[16] * 6, 4, 0, 0, 0]
    assert cut.rows.tolist() == [0, 0, 1, 1, 2, *[3] * 7, 4, 5, 6]
    assert cut.slots.tolist() == [0, 0, 1, 1, -1, *[2] * 7, -1, -1, -1]
    assert cut.long_rows.tolist() == [0, 1, 3]
    assert_same_solution(indices, tables, targets, weights if weighed else None, 0, 0.5)


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("segment", [16, 1024])
@pytest.mark.parametrize(("modes", "rank"), [(1, 1), (2, 3), (3, 16), pytest.param(4, 20, marks=pytest.mark.slow)])
def test_rows_are_drawn_to_the_prior_and_others_may_be_summed(monkeypatch, modes, rank, segment, sums):
    monkeypatch.setattr(triton_rows, "SEGMENT", segment)
    indices, tables, targets, weights = problem(modes, rank)
    indices[indices[:, 0] == 2, 0] = 0
    prior = numbers(SHAPE[0], rank, seed=3)
    assert_same_solution(indices, tables, targets, weights, 0, 0.5, prior=prior, sums=sums)
    found, _ = solved(solve_rows_triton, indices, tables, targets, weights, 0, 0.5, prior=prior, sums=sums)
    torch.testing.assert_close(found[2], prior[2])


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize(("modes", "rank", "sums"), [(1, 1, False), (3, 3, False), (3, 70, False), (3, 5, True)])
def test_systems_of_rows_are_those_of_the_reference(monkeypatch, modes, rank, sums, weighed):
    """Rows without entries, of one segment and of several."""
    monkeypatch.setattr(triton_wide_rows, "SEGMENT", 16)
    indices, tables, targets, weights = problem(modes, rank)
    indices[indices[:, 0] == 2, 0] = 0
    view = ModeView.of(indices, 0, range(1, modes), SHAPE[0])
    entries = RowEntries(view, tables[1:modes], targets, weights if weighed else None, sums)
    for found, expected in zip(row_systems_triton(entries, rank), row_systems(entries, rank), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("segment", [16, 1024])
def test_rows_without_entries_become_zero(monkeypatch, segment):
    monkeypatch.setattr(triton_rows, "SEGMENT", segment)
    indices, tables, targets, _ = problem(3, 3)
    kept = (indices[:, 0] != 2) & (indices[:, 0] != 6)
    found, values = solved(solve_rows_triton, indices[kept], tables, targets[kept], None, 0, 0.0)
    assert not found[[2, 6]].any()
    assert found[[0, 1, 3, 4, 5]].all()
    assert torch.isfinite(values).all()


def test_a_view_without_entries_gives_zeros():
    indices, tables, targets, _ = problem(3, 3)
    found, values = solved(solve_rows_triton, indices[:0], tables, targets[:0], None, 0, 0.0)
    assert not found.any()
    assert values.shape == (0,)


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # NumPy, under the interpreter, says so
@pytest.mark.parametrize("segment", [16, 1024])
def test_singular_and_hopeless_systems_never_give_nan(monkeypatch, segment):
    """Two components alike and no ridge; then rows so large that their squares overflow 32 bits."""
    monkeypatch.setattr(triton_rows, "SEGMENT", segment)
    indices, tables, targets, _ = problem(3, 2)
    twins = [table[:, [0, 0, 1]].contiguous() for table in tables]
    _, expected = solved(solve_rows, indices, tables, targets, None, 0, 0.0)
    found, values = solved(solve_rows_triton, indices, twins, targets, None, 0, 0.0)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(values, expected, rtol=1e-2, atol=1e-2)  # the same fit, however it is shared
    found, values = solved(solve_rows_triton, indices, [1e30 * table for table in tables], targets, None, 0, 0.0)
    assert torch.isfinite(found).all()
    assert not found.any()
    nothing = [torch.zeros_like(table) for table in tables]
    found, values = solved(solve_rows_triton, indices, nothing, targets, None, 0, 0.0)
    assert not found.any()
    assert not values.any()


@pytest.mark.parametrize("segment", [16, 1024])
def test_systems_that_are_not_positive_have_no_solution(monkeypatch, segment):
    """Weights below zero: the reference finds no root and gives zeros."""
    monkeypatch.setattr(triton_rows, "SEGMENT", segment)
    indices, tables, targets, weights = problem(3, 3)
    expected, _ = solved(solve_rows, indices, tables, targets, -weights, 0, 0.0)
    found, values = solved(solve_rows_triton, indices, tables, targets, -weights, 0, 0.0)
    assert not expected.any()
    assert not found.any()
    assert not values.any()


LONG = (0, 300, 1, 16, 17, 130, 128)
"""Entries of the rows of a problem with a high rank: none, few, more than a segment, and one more than few."""


def wide_problem(rank, seed=0):
    """Components of unit size, so that systems are as well conditioned as their ridge makes them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.repeat_interleave(torch.arange(len(LONG)), torch.tensor(LONG))
    rows = rows[torch.randperm(len(rows), generator=generator)]
    indices = torch.stack([rows, *(torch.randint(40, rows.shape, generator=generator) for _ in range(2))], dim=1)
    tables = [numbers(size, rank, seed=n, scale=rank**-0.25) for n, size in enumerate((len(LONG), 40, 40))]
    weights = torch.rand(len(rows), generator=generator).to(DEVICE)
    return indices.to(DEVICE), tables, numbers(len(rows), seed=seed + 9), weights


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("rank", [129, 192, *(pytest.param(rank, marks=SLOW) for rank in (256, 512))])
def test_high_ranks_are_solved_in_tiles(monkeypatch, rank, weighed):
    """Rows without entries, with few, in one segment and in several; in one group of rows and in several."""
    indices, tables, targets, weights = wide_problem(rank)
    monkeypatch.setattr(triton_wide_rows, "SEGMENT", 160)
    same = (indices, tables, targets, weights if weighed else None, 0, 0.5)
    assert_same_solution(*same)
    monkeypatch.setattr(rows, "MAX_GRAM_BYTES", {"cpu": 4 * rank**2, "cuda": 4 * rank**2})
    prior = numbers(len(LONG), rank, seed=3)
    assert_same_solution(*same, prior=prior)
    found, _ = solved(solve_rows_triton, *same, prior=prior)
    torch.testing.assert_close(found[0], prior[0])


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("modes", [1, 2, 4])
@pytest.mark.parametrize("rank", [5, 20])
def test_tiles_of_any_number_of_modes(monkeypatch, rank, modes, sums):
    """The same code at sizes that the interpreter runs in no time: tiles of 16, one of which is full of zeros."""
    monkeypatch.setattr(triton_rows, "MAX_RANK", 4)
    for name, size in (("FEW", (16,)), ("SEGMENT", 16), ("TILES", (16, 64)), ("PART", 16)):
        monkeypatch.setattr(triton_wide_rows, name, size)
    assert triton_wide_rows.tile_of(20) == 16
    indices, tables, targets, weights = problem(modes, rank)
    indices[indices[:, 0] == 2, 0] = 1
    indices[:60, 0] = 3
    prior = numbers(SHAPE[0], rank, seed=3)
    assert_same_solution(indices, tables, targets, weights, 0, 2.0, prior=prior, sums=sums)
    assert_same_solution(indices, tables, targets, None, 0, 2.0, sums=sums)


@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
def test_hopeless_systems_of_a_high_rank_never_give_nan():
    indices, tables, targets, _ = wide_problem(192)
    for scale in (0.0, 1e30):
        found, values = solved(solve_rows_triton, indices, [scale * table for table in tables], targets, None, 0, 0.0)
        assert not found.any()
        assert scale or not values.any()


def test_tiles_waste_little_where_the_rank_is_no_multiple_of_them():
    assert [triton_wide_rows.tile_of(rank) for rank in (129, 192, 256, 320, 512)] == [64, 64, 128, 64, 128]


def test_values_are_left_out_when_they_are_not_asked_for():
    indices, tables, targets, _ = problem(3, 3)
    with_values, _ = solved(solve_rows_triton, indices, tables, targets, None, 1, 0.1)
    without, values = solved(solve_rows_triton, indices, tables, targets, None, 1, 0.1, evaluate=False)
    assert values.shape == (0,)
    torch.testing.assert_close(without, with_values, rtol=1e-6, atol=1e-6)


def cp_by_torch(stacked, places):
    return stacked[places.long()].prod(dim=1).sum(dim=1)


@pytest.mark.parametrize("width", [torch.int32, torch.int64])
@pytest.mark.parametrize(("modes", "rank"), [(2, 1), (3, 3), (3, 16), (4, 20), (5, 4)])
def test_cp_values_and_their_gradient(modes, rank, width):
    """More entries than one program takes; rows that many entries share add up."""
    generator = torch.Generator().manual_seed(modes)
    places = torch.randint(12, (300, modes), generator=generator).to(DEVICE, width)
    slopes = numbers(300, seed=1)
    expected_table = numbers(12, rank).requires_grad_()
    expected = cp_by_torch(expected_table, places)
    (expected * slopes).sum().backward()
    table = expected_table.detach().clone().requires_grad_()
    values = cp_values(table, places)
    (values * slopes).sum().backward()
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(table.grad, expected_table.grad, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_cp_takes_slopes_of_any_layout():
    """A sum hands back one slope, expanded: its stride is zero."""
    table, places = numbers(6, 3).requires_grad_(), torch.tensor([[0, 3], [1, 4], [2, 5]], device=DEVICE)
    cp_values(table, places).sum().backward()
    expected = cp_gradient(table.detach(), places, torch.ones(3, device=DEVICE))
    torch.testing.assert_close(table.grad, expected)
    torch.testing.assert_close(expected[:3], table.detach()[3:])


def test_no_entries_have_no_cp_values():
    table = numbers(6, 3).requires_grad_()
    values = cp_values(table, torch.zeros(0, 2, dtype=torch.int64, device=DEVICE))
    assert values.shape == (0,)
    values.sum().backward()
    assert not table.grad.any()


def network(width, hidden, outputs):
    given = [numbers(hidden, width, seed=1), numbers(hidden, seed=2), numbers(outputs, hidden, seed=3)]
    given = [*given, numbers(outputs, seed=4)]
    return [one.mul_(width**-0.5).requires_grad_() for one in given]


def two_layers_by_torch(x, w1, b1, w2, b2):
    return linear(relu(linear(x, w1, b1)), w2, b2)


def values_and_gradients(layers, x, weights, slopes):
    inputs = [x.clone().requires_grad_(), *(one.detach().clone().requires_grad_() for one in weights)]
    y = layers(*inputs)
    (y * slopes).sum().backward()
    return [y.detach(), *(one.grad for one in inputs)]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("batch", "width", "hidden", "outputs"),
    [(1, 1, 1, 1), (5, 6, 9, 3), (128, 16, 32, 16), (200, 12, 49, 7), (300, 48, 256, 16), (130, 100, 70, 32)],
)
def test_two_layers_and_their_five_gradients(batch, width, hidden, outputs, exact):
    """Sizes below, at and above those of the tiles, powers of two and not.

    Short products are compared as a whole: a hidden unit near zero may be off on one side and on on the other.
    """
    x, slopes, weights = numbers(batch, width), numbers(batch, outputs, seed=5), network(width, hidden, outputs)
    expected = values_and_gradients(two_layers_by_torch, x, weights, slopes)
    found = values_and_gradients(lambda *given: two_layers(*given, exact), x, weights, slopes)
    for mine, theirs in zip(found, expected, strict=True):
        if exact:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))
        assert float((mine - theirs).norm()) <= 3e-2 * float(theirs.norm())


def test_layers_that_are_too_wide_are_left_to_torch():
    for width, outputs in ((MAX_INPUTS + 1, 3), (3, MAX_OUTPUTS + 1)):
        x, weights = numbers(10, width), network(width, 8, outputs)
        assert torch.equal(linear_relu_linear(x, *weights), two_layers_by_torch(x, *weights))


def test_no_rows_go_through_two_layers():
    weights = network(6, 9, 3)
    y = two_layers(numbers(0, 6), *weights, True)
    assert y.shape == (0, 3)
    y.sum().backward()
    assert not any(one.grad.any() for one in weights)


def test_short_products_are_for_training_and_wide_layers_only():
    for hidden, rounded in ((256, DEVICE == "cuda"), (64, False)):  # the interpreter rounds nothing
        x, weights = numbers(200, 48), network(48, hidden, 16)
        exact = linear_relu_linear(x, *weights)
        short = linear_relu_linear_short(x, *weights)
        assert torch.equal(short, exact) != rounded
        torch.testing.assert_close(short, exact, rtol=0, atol=1e-2 * float(exact.detach().abs().max()))
        with torch.no_grad():
            assert torch.equal(linear_relu_linear_short(x, *weights), exact)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("size", [(5, 3), (700, 3)])
def test_adam_steps_are_those_of_torch(size, decay):
    """Less and more than one program; a rate that changes on the way."""
    expected = torch.nn.Parameter(numbers(*size))
    found, first, second = expected.detach().clone(), torch.zeros(size).to(DEVICE), torch.zeros(size).to(DEVICE)
    theirs = torch.optim.AdamW([expected], lr=0.05, betas=BETAS, eps=EPS, weight_decay=decay)
    for step, rate in enumerate((0.05, 0.05, 0.02, 0.01, 0.01), 1):
        gradient = numbers(*size, seed=step)
        theirs.param_groups[0]["lr"], expected.grad = rate, gradient
        theirs.step()
        count, lr = torch.tensor(float(step), device=DEVICE), torch.tensor(rate, device=DEVICE)
        adam_step(found, gradient, first, second, count, lr, BETAS, EPS, decay)
        # steps of 0.05 from values of size 1; a GPU's roots and quotients differ in their last bits
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(first, theirs.state[expected]["exp_avg"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(second, theirs.state[expected]["exp_avg_sq"], rtol=1e-4, atol=1e-6)
