"""Tucker's model against the dense einsum, on tensors small enough to hold whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.errors import ConfigError
from jointensor.models.blocks import tucker as module
from jointensor.models.blocks.tucker import Tucker
from jointensor.models.multilinear import Multilinear

CASES = [
    ((4, 3), (2, 3)),
    ((3, 4, 2), (2, 3, 1)),
    ((2, 3, 2, 3), (2, 1, 2, 3)),
    ((2, 2, 3, 2, 2), (1, 2, 3, 2, 2)),
]


def all_cells(shape):
    return torch.as_tensor(np.argwhere(np.ones(shape)))


def random_tucker(shape, ranks, seed=0):
    part = Tucker(shape, ranks).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return part


def dense(core, tables, einsum=torch.einsum):
    """Σ_k W(k_1, …, k_N) Π_n A_n(i_n, k_n) for every cell of the tensor."""
    inner, outer = "abcde"[: len(tables)], "vwxyz"[: len(tables)]
    terms = ",".join(f"{o}{i}" for o, i in zip(outer, inner, strict=True))
    return einsum(f"{inner},{terms}->{outer}", core, *tables)


@pytest.mark.parametrize(("shape", "ranks"), CASES)
def test_value_of_every_cell_is_the_dense_einsum(shape, ranks):
    part = random_tucker(shape, ranks)
    core, *tables = (parameter.detach().numpy() for parameter in (part.core, *part.tables))
    found = part(all_cells(shape)).detach().numpy().reshape(shape)
    np.testing.assert_allclose(found, dense(core, tables, np.einsum), rtol=1e-12, atol=1e-13)


@st.composite
def problems(draw):
    """A shape, ranks, and a batch of cells in which labels and whole cells repeat."""
    shape = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    ranks = [draw(st.integers(1, min(size, 3))) for size in shape]
    cell = st.tuples(*(st.integers(0, size - 1) for size in shape))
    few = draw(st.lists(cell, min_size=1, max_size=3))
    return shape, ranks, draw(st.lists(st.one_of(st.sampled_from(few), cell), min_size=1, max_size=40))


@given(problems(), st.integers(0, 1000), st.sampled_from((None, 0, 40, 1 << 20)))
@settings(max_examples=120, deadline=None)
def test_values_and_gradients_of_any_batch_are_those_of_the_dense_tensor(problem, seed, room):
    """``room``: how much a contraction may take."""
    shape, ranks, cells = problem
    part = random_tucker(shape, ranks, seed)
    indices = torch.tensor(cells)
    weights = torch.arange(1.0, 1.0 + len(cells), dtype=torch.float64)  # every entry has a gradient of its own
    expected = dense(part.core, list(part.factors))[tuple(indices.T)]
    with pytest.MonkeyPatch.context() as patch:
        if room is not None:
            patch.setattr(module, "MAX_CONTRACTION", room)
        found = part(indices)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    slopes = torch.autograd.grad(found @ weights, list(part.parameters()))
    torch.testing.assert_close(
        slopes, torch.autograd.grad(expected @ weights, list(part.parameters())), rtol=1e-9, atol=1e-10
    )


@pytest.fixture
def gathers(monkeypatch):
    """One item for every contraction that gathers rows, which is where torch.bmm is called."""
    bmm, calls = torch.bmm, []
    monkeypatch.setattr(torch, "bmm", lambda *given: calls.append(1) or bmm(*given))
    return calls


def test_both_ways_of_contraction_are_taken_by_a_model_and_agree(gathers):
    part = random_tucker((9, 8, 7), (3, 2, 3))
    cells = all_cells((9, 8, 7))
    together = part(cells)
    assert not gathers
    scattered = torch.randperm(len(cells), generator=torch.Generator().manual_seed(0))[:20]  # few of the pairs
    torch.testing.assert_close(part(cells[scattered]), together[scattered], rtol=1e-12, atol=1e-13)
    assert len(gathers) == 2  # all modes but the first


@pytest.mark.parametrize("room", [0, 100, 1 << 20])
def test_entries_are_contracted_by_themselves_some_at_a_time_where_room_is_short(room, gathers, monkeypatch):
    part = random_tucker((4, 5, 60, 50), (2, 3, 4, 2))
    cells = torch.stack(
        [torch.randint(size, (30,), generator=torch.Generator().manual_seed(size)) for size in (4, 5, 60, 50)], 1
    )
    monkeypatch.setattr(module, "MAX_CONTRACTION", room)
    found = part(cells)
    torch.testing.assert_close(found, dense(part.core, list(part.factors))[tuple(cells.T)], rtol=1e-11, atol=1e-12)
    # 4 labels, then 20 pairs of them, by one product each where there is room; the others entry by entry
    assert len(gathers) == {0: 90, 100: 13, 1 << 20: 2}[room]


@pytest.mark.parametrize(("shape", "ranks"), CASES)
def test_a_batch_of_one_is_a_batch(shape, ranks):
    part = random_tucker(shape, ranks)
    cells = all_cells(shape)
    one_by_one = [part(cells[k : k + 1]) for k in range(len(cells))]
    assert {tuple(one.shape) for one in one_by_one} == {(1,)}
    torch.testing.assert_close(torch.cat(one_by_one), part(cells), rtol=1e-12, atol=1e-13)


def test_indices_of_32_bits_in_a_tensor_of_more_cells_than_32_bits_can_count():
    shape = (70_000, 60_000, 50_000)  # 2 · 10¹⁴ cells; two modes alone overflow
    part = random_tucker(shape, (2, 2, 2))
    rng = np.random.default_rng(0)
    indices = np.stack([rng.integers(size - 5, size, size=50) for size in shape], axis=1)
    core, *tables = (parameter.detach().numpy() for parameter in (part.core, *part.tables))
    rows = [table[column] for table, column in zip(tables, indices.T, strict=True)]
    expected = np.einsum("abc,ia,ib,ic->i", core, *rows)
    for kind in (np.int32, np.int64):
        found = part(torch.as_tensor(indices.astype(kind))).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4, 3), (3, 3, 4, 5), (3, 3, 3, 3, 3)])
def test_a_superdiagonal_core_is_cp(shape):
    part = random_tucker(shape, (3,))
    cp = Multilinear(shape, "cp:3").double()
    with torch.no_grad():
        part.core.zero_()
        for k in range(3):
            part.core[(k,) * len(shape)] = 1.0
        for mine, theirs in zip(part.tables, cp.cp.tables, strict=True):
            theirs.copy_(mine)
    cells = all_cells(shape)
    torch.testing.assert_close(part(cells), cp(cells), rtol=1e-12, atol=1e-13)


@given(st.permutations(range(4)))
@settings(max_examples=24, deadline=None)
def test_permuting_modes_with_their_tables_and_the_core_leaves_values_unchanged(order):
    shape, ranks = (2, 5, 3, 4), (2, 3, 1, 2)
    part = random_tucker(shape, ranks)
    moved = Tucker([shape[n] for n in order], [ranks[n] for n in order]).double()
    with torch.no_grad():
        moved.core.copy_(part.core.permute(order))
        for new, old in enumerate(order):
            moved.tables[new].copy_(part.tables[old])
    cells = all_cells(shape)
    torch.testing.assert_close(moved(cells[:, order]), part(cells), rtol=1e-12, atol=1e-12)


def test_one_rank_for_all_is_capped_at_the_labels_of_a_mode():
    part = Tucker((2, 9, 4), (5,))
    assert part.ranks == (2, 5, 4)
    assert part.core.shape == (2, 5, 4)
    assert [tuple(table.shape) for table in part.tables] == [(2, 2), (9, 5), (4, 4)]
    assert sum(parameter.numel() for parameter in part.parameters()) == 2 * 5 * 4 + 2 * 2 + 9 * 5 + 4 * 4


@pytest.mark.parametrize(
    ("shape", "ranks", "message"),
    [
        ((4, 3, 2), (2, 2), "tucker:2x2 has 2 ranks, the tensor 3 modes; give one rank, or one per mode"),
        ((4, 3), (2, 2, 2), "tucker:2x2x2 has 3 ranks, the tensor 2 modes"),
        ((4, 3), (2, 4), "tucker: rank 4 of mode 2 is more than its 3 labels"),
        ((500, 500, 500), (300,), "tucker: a core of 300 x 300 x 300 has 27,000,000 numbers, more than 10,000,000; "),
    ],
)
def test_ranks_that_do_not_fit_are_refused(shape, ranks, message):
    with pytest.raises(ConfigError) as caught:
        Tucker(shape, ranks)
    assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError):
        Multilinear(shape, f"tucker:{'x'.join(map(str, ranks))}")


def test_the_largest_core_is_still_built(monkeypatch):
    monkeypatch.setattr(module, "MAX_CORE", 24)
    assert Tucker((4, 3, 2), (4, 3, 2)).core.numel() == 24
    with pytest.raises(ConfigError, match="more than 24; give lower ranks"):
        Tucker((5, 3, 2), (5, 3, 2))
