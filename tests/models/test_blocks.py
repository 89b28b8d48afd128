"""Blocks of g against loops in plain Python, their sizes on disk, and the draws that g is the mean of."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.errors import ConfigError
from jointensor.models.blocks.fm import ImplicitFeedback, SharedPairs
from jointensor.models.blocks.spec import by_position, parse_blocks
from jointensor.models.blocks.tables import Combinations, all_subsets, countable
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Draws, Multilinear

SHAPES = [(4, 3), (3, 4, 2), (2, 3, 2, 3)]
SHAPE = (5, 4, 3)


def all_cells(shape):
    return torch.as_tensor(np.argwhere(np.ones(shape)))


def some_cells(shape, entries, seed=0):
    chosen = np.random.default_rng(seed).permutation(math.prod(shape))[:entries]
    return torch.as_tensor(np.stack(np.unravel_index(chosen, shape), axis=1))


def random_numbers(part, seed=0):
    """The part with random numbers everywhere; the last row of a table of combinations stays zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return part


def dot(one, other):
    return sum(a * b for a, b in zip(one.tolist(), other.tolist(), strict=True))


def pairs_by_loops(vectors, cell):
    """Σ_{n<m} ⟨v_n(i_n), v_m(i_m)⟩, each pair once."""
    return sum(dot(vectors[n][cell[n]], vectors[m][cell[m]]) for n, m in combinations(range(len(cell)), 2))


@pytest.mark.parametrize("shape", SHAPES)
def test_pairs_have_tables_of_their_own_for_every_two_modes(shape):
    part = random_numbers(Multilinear(shape, "pairs:2").double())
    assert list(part.blocks) == [f"pairs_{n}_{m}" for n, m in combinations(range(len(shape)), 2)]
    expected = []
    for cell in all_cells(shape).tolist():
        value = 0.0
        for n, m in combinations(range(len(shape)), 2):
            p, q = part.blocks[f"pairs_{n}_{m}"].tables
            value += dot(p[cell[n]], q[cell[m]])
        expected.append(value)
    np.testing.assert_allclose(part(all_cells(shape)).detach().numpy(), expected, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=5), rank=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_a_factorisation_machine_is_the_sum_over_all_pairs_of_modes(shape, rank, seed):
    part = random_numbers(SharedPairs(shape, rank).double(), seed)
    expected = [pairs_by_loops(part.tables, cell) for cell in all_cells(shape).tolist()]
    np.testing.assert_allclose(part(all_cells(shape)).detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def with_company(entries, vectors, tables):
    """Vectors to which the labels of another mode are added that a label was seen with, by sets."""
    whole = [[row.clone() for row in table] for table in vectors]
    for (a, b), table in tables.items():
        for u in range(len(vectors[a])):
            implicit_feedback = {cell[b] for cell in entries.tolist() if cell[a] == u}
            for j in implicit_feedback:
                whole[a][u] += table[j] / math.sqrt(len(implicit_feedback))
    return whole


@pytest.mark.parametrize("implicit", [[(0, 1)], [(0, 1), (0, 2)], [(0, 1), (1, 0)], [(2, 0), (1, 0), (0, 2)]])
def test_implicit_labels_are_added_to_the_vectors_of_those_that_were_seen_with_them(implicit):
    spec = "fm:3" + "".join(f"+implicit:{a}/{b}" for a, b in implicit)
    part = random_numbers(Multilinear(SHAPE, spec).double())
    entries = some_cells(SHAPE, 14)
    entries[:, 0].clamp_(max=3)  # label 4 of mode 0 is never seen
    part.see(entries)
    fm = part.blocks["fm"]
    whole = with_company(
        entries, fm.tables, {pair: one.table.detach() for pair, one in zip(implicit, fm.implicit_feedback, strict=True)}
    )
    expected = [pairs_by_loops(whole, cell) for cell in all_cells(SHAPE).tolist()]
    np.testing.assert_allclose(part(all_cells(SHAPE)).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_matrix_of_who_was_seen_with_whom_gives_the_same_sums():
    one = random_numbers(ImplicitFeedback(SHAPE, 0, 1, 2).double())
    one.see(some_cells(SHAPE, 20))
    torch.testing.assert_close(one.matrix().to_dense() @ one.table, one())
    assert one.matrix().to_dense().square().sum(dim=1).allclose(torch.ones(5, dtype=torch.float64))  # n times 1/n


def test_a_pair_that_occurs_in_many_entries_counts_once():
    once, often = (ImplicitFeedback(SHAPE, 0, 1, 2) for _ in range(2))
    entries = some_cells(SHAPE, 20)
    once.see(torch.unique(entries[:, :2], dim=0))
    often.see(torch.cat([entries, entries]))
    assert torch.equal(once.seen_with, often.seen_with)


def test_without_any_entries_seen_implicit_labels_add_nothing():
    part = random_numbers(Multilinear(SHAPE, "fm:2+implicit:0/1"))
    plain = Multilinear(SHAPE, "fm:2")
    plain.blocks["fm"].factors.load_state_dict(part.blocks["fm"].factors.state_dict())
    torch.testing.assert_close(part(all_cells(SHAPE)), plain(all_cells(SHAPE)))


@pytest.mark.parametrize("modes", [(0, 1), (1, 2), (2, 0), (1,), (0, 1, 2)])
def test_combinations_are_a_dictionary_that_knows_zero_for_all_others(modes):
    block = Combinations(SHAPE, modes)
    entries = some_cells(SHAPE, 12)
    block.see(entries.repeat(2, 1))  # none is alone
    random_numbers(block)
    known = sorted({tuple(cell[n] for n in modes) for cell in entries.tolist()})
    assert len(block.keys) == len(known)
    numbers = dict(zip(known, block.effects.detach()[:-1, 0].tolist(), strict=True))
    expected = [numbers.get(tuple(cell[n] for n in modes), 0.0) for cell in all_cells(SHAPE).tolist()]
    np.testing.assert_allclose(block(all_cells(SHAPE)).detach().numpy(), expected, rtol=1e-6)
    assert len(modes) == 1 or 0.0 in expected


def test_a_table_of_single_entries_is_left_empty():
    """Its numbers would be the entries' noise; one entry in ten that is not alone is enough."""
    alone = all_cells((20, 1, 1))
    block = Combinations((20, 1, 1), (0, 1))
    block.see(alone)
    assert not len(block.keys)
    block.see(torch.cat([alone, alone[:2]]))  # four of 22
    assert len(block.keys) == 20


def test_a_table_that_has_seen_nothing_is_zero():
    assert not Combinations(SHAPE, (0, 1))(all_cells(SHAPE)).any()


def test_the_row_of_unseen_combinations_learns_nothing():
    block = Combinations(SHAPE, (0, 1))
    block.see(torch.tensor([[0, 0, 0], [0, 0, 1], [1, 2, 0]]))
    block(all_cells(SHAPE)).sum().backward()
    assert block.effects.grad[:, 0].tolist() == [3.0, 3.0, 0.0]  # mode 2 has three labels


def test_all_tables_are_those_of_two_or_more_modes_but_not_all():
    assert all_subsets((3, 4)) == []
    assert all_subsets(SHAPE) == [(0, 1), (0, 2), (1, 2)]
    assert all_subsets((2,) * 4) == [*combinations(range(4), 2), *combinations(range(4), 3)]
    assert list(Multilinear(SHAPE, "tables").blocks) == ["table_0_1", "table_0_2", "table_1_2"]


def test_combinations_that_cannot_be_numbered_are_left_out():
    sizes = (2**31, 2**31, 2**30)
    assert all_subsets(sizes) == [(0, 2), (1, 2)]
    assert not countable(sizes, (0, 1))
    assert countable(sizes, (0, 2))


def test_large_labels_do_not_get_mixed_up():
    sizes = (2**31, 2**30)
    block = Combinations(sizes, (0, 1))
    cells = torch.tensor([[2**31 - 1, 2**30 - 1], [2**31 - 1, 0], [0, 2**30 - 1], [0, 0]])
    block.see(cells[:3].repeat(2, 1))
    random_numbers(block)
    found = block(cells)
    assert len(set(found.tolist())) == 4
    assert found[3] == 0


@pytest.mark.parametrize(
    "spec", ["pairs:2", "fm:3", "fm:2+implicit:0/1+implicit:1/2", "tables", "mean+bias+fm:2+tables:0/2"]
)
def test_gradients_are_those_of_finite_differences(spec):
    part = Multilinear((3, 3, 2), spec).double()
    part.see(some_cells((3, 3, 2), 9))
    random_numbers(part)
    names, parameters = zip(*part.named_parameters(), strict=True)
    cells = all_cells((3, 3, 2))

    def value(*numbers):
        return torch.func.functional_call(part, dict(zip(names, numbers, strict=True)), (cells,))

    assert torch.autograd.gradcheck(value, parameters)


@pytest.mark.parametrize("spec", ["tables", "fm:2+implicit:0/1", "mean+bias+cp:2+fm:2+implicit:0/2+tables:0/1"])
@pytest.mark.parametrize("seen_before", [0, 3, 40])
def test_a_state_goes_into_a_fresh_model_whatever_that_has_seen(spec, seen_before):
    """The number of combinations is that of the entries that were seen, not of the shape."""
    part = Multilinear(SHAPE, spec)
    part.see(some_cells(SHAPE, 15))
    random_numbers(part)
    fresh = Multilinear(SHAPE, spec)
    fresh.see(some_cells(SHAPE, seen_before, seed=1))
    fresh.load_state_dict(part.state_dict())
    assert torch.equal(part(all_cells(SHAPE)), fresh(all_cells(SHAPE)))


def test_a_whole_model_with_tables_and_company_is_built_again_from_its_configuration():
    model = JointModel(SHAPE, (0, 2), linear="mean+bias+fm:2+implicit:0/1+tables").eval()
    model.multilinear.see(some_cells(SHAPE, 15))
    random_numbers(model)
    again = JointModel.from_config(model.config()).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(all_cells(SHAPE)), again(all_cells(SHAPE)))


def test_seeing_other_entries_starts_tables_anew():
    block = Combinations(SHAPE, (0, 1))
    block.see(some_cells(SHAPE, 15))
    random_numbers(block)
    block.see(some_cells(SHAPE, 4, seed=2))
    assert not block(all_cells(SHAPE)).any()


def test_blocks_with_modes_are_read():
    pieces = parse_blocks("pairs:2+fm:3+implicit:0/2+tables+local:1")
    assert [piece.kind.name for piece in pieces] == ["pairs", "fm", "implicit", "tables", "local"]
    assert [piece.numbers for piece in pieces] == [(2,), (3,), (0, 2), (), (1,)]
    assert [str(piece) for piece in parse_blocks("tables: 0 / 2 / 1")] == ["tables:0/1/2"]  # one order: none twice
    assert len(parse_blocks("fm:1+implicit:0/1+implicit:1/0")) == 3


def test_modes_by_name_become_positions():
    find = ["user", "movie", "day"].index
    assert by_position("mean + bias+cp:4", find) == "mean+bias+cp:4"
    assert (
        by_position("fm:2+implicit:user/movie+tables:day/user+local:day", find)
        == "fm:2+implicit:0/1+tables:0/2+local:2"
    )
    assert by_position("tables+tucker:2x3x4", find) == "tables+tucker:2x3x4"
    spec = by_position("fm:2+implicit:movie/user+tables:user/day", find)
    assert by_position(spec, int) == spec


@pytest.mark.parametrize(
    "spec",
    ["pairs", "pairs:0", "pairs:2x2", "fm", "fm:", "fm:-1", "fm:a", "local", "implicit", "tables:0/1+fm"],
)
def test_what_is_missing_or_no_rank_is_refused(spec):
    with pytest.raises(ConfigError, match=r"': write (pairs:K|fm:K|local:A|implicit:A/B) with"):
        parse_blocks(spec)


@pytest.mark.parametrize("piece", ["local:0/1", "implicit:0", "implicit:0/1/2", "implicit:1/1", "tables:0/0"])
def test_too_many_or_too_few_or_equal_modes_are_refused(piece):
    with pytest.raises(ConfigError, match=f"'{piece}': write .*(local:A|implicit:A/B|tables:A/B/…) with"):
        parse_blocks(f"fm:1+{piece}")


@pytest.mark.parametrize("piece", ["tables:", "tables:user/1", "local:day", "implicit:-1/0", "tables:0,1"])
def test_modes_by_name_are_refused_where_nobody_knows_names(piece):
    with pytest.raises(ConfigError, match="modes are given by position here, such as tables:0/2"):
        parse_blocks(f"fm:1+{piece}")


@pytest.mark.parametrize("spec", ["tables:0/3", "fm:2+implicit:4/0", "local:3"])
def test_modes_that_the_tensor_does_not_have_are_refused(spec):
    with pytest.raises(ConfigError, match="the tensor has 3 modes, counted from 0"):
        Multilinear(SHAPE, spec)


@pytest.mark.parametrize("spec", ["implicit:0/1", "cp:2+implicit:0/1", "pairs:2+implicit:0/1"])
def test_implicit_labels_need_vectors_to_add_to(spec):
    with pytest.raises(ConfigError, match="implicit labels add to the vectors of an fm block; write fm:K too"):
        parse_blocks(spec)


@pytest.mark.parametrize("spec", ["fm:1+fm:2", "tables+tables", "local:1+local:1", "tables:0/1+tables:0/1"])
def test_one_block_twice_is_refused(spec):
    with pytest.raises(ConfigError, match="occurs twice"):
        parse_blocks(spec)


def drawn(spec="mean+cp:2+fm:2+implicit:0/1", draws=7):
    """A model with draws of all that is multiplied, and the models that each draw stands for."""
    g = Multilinear(SHAPE, spec).double()
    g.see(some_cells(SHAPE, 20))
    random_numbers(g, seed=100)
    each = []
    for k in range(draws):
        one = Multilinear(SHAPE, spec).double()
        one.load_state_dict(g.state_dict())
        for name in ("cp", "fm"):
            random_numbers(one.blocks[name], seed=k)
        each.append(one)
    for name in ("cp", "fm"):
        g.draws.keep(name, [one.blocks[name].draw() for one in each], noise=0.25)
    return g, each


def test_with_draws_g_is_the_mean_of_their_values_not_the_value_of_their_mean():
    g, each = drawn()
    cells = all_cells(SHAPE)
    values = torch.stack([one(cells) for one in each]).detach()
    mean, variance = g.eval().moments(cells)
    torch.testing.assert_close(mean.detach(), values.mean(dim=0))
    torch.testing.assert_close(variance.detach(), values.var(dim=0, correction=0))
    torch.testing.assert_close(g(cells).detach(), values.mean(dim=0))
    of_mean = Multilinear(SHAPE, g.spec).double()
    of_mean.load_state_dict(each[0].state_dict())
    with torch.no_grad():
        for name, parameter in of_mean.named_parameters():
            parameter.copy_(torch.stack([one.get_parameter(name).detach() for one in each]).mean(dim=0))
    assert (of_mean(cells) - g(cells)).abs().max() > 0.1


def test_while_training_g_is_its_single_state():
    g, _ = drawn()
    plain = Multilinear(SHAPE, g.spec).double()
    plain.load_state_dict({name: value for name, value in g.state_dict().items() if "/" not in name})
    cells = all_cells(SHAPE)
    assert torch.equal(g.train()(cells), plain(cells))
    assert not torch.allclose(g.eval()(cells), plain(cells))


def test_draws_are_counted_named_and_given_back_one_by_one():
    g, each = drawn(draws=3)
    assert len(g.draws) == 3
    assert set(g.draws.names()) == {"cp", "fm"}
    assert float(g.draws.noise) == 0.25
    for k, one in enumerate(each):
        for name in ("cp", "fm"):
            given_back, kept = g.draws.of(name, k), one.blocks[name].draw()
            assert given_back.keys() == kept.keys()
            assert all(torch.equal(given_back[key], kept[key]) for key in kept)
    g.draws.forget()
    assert (len(g.draws), g.draws.names(), list(g.state_dict())[-1]) == (0, [], "draws.noise")


def test_one_draw_has_no_variance():
    g, each = drawn(draws=1)
    mean, variance = g.moments(all_cells(SHAPE))
    torch.testing.assert_close(mean, each[0](all_cells(SHAPE)))
    assert float(variance.abs().max()) < 1e-12


@pytest.mark.parametrize("before", [0, 2, 9])
def test_draws_go_into_a_model_that_has_none_or_others(before):
    g, _ = drawn(draws=5)
    other = drawn(draws=before)[0] if before else Multilinear(SHAPE, g.spec).double()
    other.load_state_dict(g.state_dict())
    assert len(other.draws) == 5
    assert torch.equal(other.eval()(all_cells(SHAPE)), g.eval()(all_cells(SHAPE)))


def test_a_state_without_draws_leaves_none_behind():
    g, _ = drawn()
    g.load_state_dict(Multilinear(SHAPE, g.spec).state_dict())
    assert len(g.draws) == 0
    assert float(g.draws.noise) == 0.0


def test_draws_of_a_block_that_is_not_there_are_refused():
    g, _ = drawn()
    state = g.state_dict()
    state["blocks.cq.factors.stacked"] = torch.zeros(2)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*cq"):
        Multilinear(SHAPE, g.spec).load_state_dict(state)


def test_draws_are_no_parameters():
    g, _ = drawn()
    plain = Multilinear(SHAPE, g.spec)
    assert sum(p.numel() for p in g.parameters()) == sum(p.numel() for p in plain.parameters())
    assert len(list(Draws().parameters())) == 0
