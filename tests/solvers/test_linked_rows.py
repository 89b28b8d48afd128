"""Priors that link rows: differences against loops, joint solutions and draws against dense algebra."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.kernels import pick_engine
from jointensor.models.multilinear import Multilinear
from jointensor.solvers import linked_rows
from jointensor.solvers.als import Als
from jointensor.solvers.gibbs import Gibbs, Level
from jointensor.solvers.linked_rows import LinkPrior, RowLinks, solve_linked
from jointensor.solvers.systems import SystemsInMemory

KINDS = [{"walk": 1.0}, {"curve": 2.0}, {"season:4": 0.5}, {"season:4": 3.0, "walk": 0.3}]


def links_along(coordinates, *, cyclic=False, **strengths):
    found = RowLinks.along(torch.as_tensor(coordinates, dtype=torch.float64), cyclic=cyclic)
    return found.with_strengths(strengths) if strengths else found


def dense(links, size):
    """DᵀD, from the quadratic form of unit vectors."""
    rows = links.differences.apply(torch.eye(size, dtype=torch.float64))
    return rows.T @ rows


def energy(links, row):
    return float(links.differences.apply(torch.as_tensor(row, dtype=torch.float64)[:, None]).square().sum())


def test_a_walk_is_the_sum_of_squared_steps_over_their_gaps():
    """Labels in any order, with a gap: two labels that are twice as far apart may differ by more."""
    row = np.array([3.0, 1.0, 2.5, -1.0])
    steps = [(1.0, 3.0, 1.0), (3.0, 2.5, 1.0), (2.5, -1.0, 2.0)]  # labels 1, 0, 2, 3 at 0, 1, 2, 4
    by_hand = sum((b - a) ** 2 / gap for a, b, gap in steps)
    scale = (2 * (1 + 1 + 1 / 2)) / 4  # 1 per label on the diagonal, on average
    assert energy(links_along([1, 0, 2, 4]), row) == pytest.approx(by_hand / scale)


def test_a_curve_does_not_resist_a_straight_line_however_its_labels_lie():
    at = np.array([0.0, 1.0, 3.0, 3.5, 7.0])
    assert energy(links_along(at, curve=1.0), 4 - 2 * at) == pytest.approx(0.0, abs=1e-9)
    assert energy(links_along(at, curve=1.0), at**2) > 0.1


def test_a_cyclic_walk_closes_the_ring():
    row = np.array([0.0, 0.0, 0.0, 5.0])
    assert energy(links_along(range(4), cyclic=True), row) > 1.9 * energy(links_along(range(4)), row) * (3 / 4)
    assert energy(links_along(range(4), cyclic=True), np.roll(row, 1)) == pytest.approx(
        energy(links_along(range(4), cyclic=True), row)
    )


def test_a_season_is_zero_for_rows_that_come_back():
    week = np.tile([1.0, 5.0, 2.0, 0.0, 3.0, 3.0, 9.0], 4)
    assert energy(links_along(range(28), **{"season:7": 1.0}), week) == pytest.approx(0.0)
    assert energy(links_along(range(28), **{"season:6": 1.0}), week) > 1


@settings(deadline=None)
@given(size=st.integers(3, 12), seed=st.integers(0, 99), kind=st.sampled_from(KINDS), cyclic=st.booleans())
def test_differences_and_their_transpose_belong_together(size, seed, kind, cyclic):
    rng = np.random.default_rng(seed)
    found = links_along(np.sort(rng.random(size)), cyclic=cyclic, **kind).differences
    row, values = torch.from_numpy(rng.random((size, 2))), torch.from_numpy(rng.random((len(found.rows), 2)))
    torch.testing.assert_close((found.apply(row) * values).sum(), (row * found.spread(values, size)).sum())
    matrix = found.apply(torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(found.diagonal(size).double(), (matrix.T @ matrix).diagonal(), rtol=1e-5, atol=1e-6)


def problem(size=9, rank=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(size, 2 * rank, rank, generator=generator, dtype=torch.float64)
    half[2] = 0  # a row without entries
    gram, right = half.mT @ half, torch.randn(size, rank, generator=generator, dtype=torch.float64)
    right[2] = 0
    return gram, right, 0.1 + torch.rand(size, generator=generator, dtype=torch.float64)


def dense_system(gram, ridge, links, strength):
    """``(I R, I R)``."""
    size, rank = gram.shape[:2]
    eye = torch.eye(rank, dtype=torch.float64)
    whole = torch.einsum("ij,rs,r->irjs", dense(links, size), eye, strength)
    for i in range(size):
        whole[i, :, i] += gram[i] + ridge[i] * eye
    return whole.reshape(size * rank, -1)


@pytest.mark.parametrize("strengths", KINDS)
@pytest.mark.parametrize("groups", [1, 3])
def test_all_rows_together_solve_the_dense_system(monkeypatch, strengths, groups):
    """Where memory allows a few rows at a time, passes over the groups end at the same solution."""
    gram, right, ridge = problem()
    size, rank = right.shape
    links, mean = links_along(range(size), **strengths), torch.ones(size, rank, dtype=torch.float64)
    prior = LinkPrior(links.differences, torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64), 0.3 * mean)
    wanted = (right + ridge[:, None] * mean + prior.pull).flatten()
    expected = torch.linalg.solve(dense_system(gram, ridge, links, prior.strength), wanted).reshape(size, rank)
    monkeypatch.setitem(
        __import__("jointensor.kernels.rows", fromlist=["x"]).MAX_GRAM_BYTES, "cpu", 8 * rank**2 * -(-size // groups)
    )
    found = torch.zeros_like(right)
    for _ in range(1 if groups == 1 else 200):
        solve_linked(lambda rows: (gram[rows], right[rows]), ridge, mean, prior, found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize("block", [256, 7])
@pytest.mark.parametrize("strength", [0.0, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("rows", ["many entries", "few entries", "a gap", "uneven", "one component"])
def test_a_long_mode_solves_the_dense_system_whatever_its_rows_and_links(monkeypatch, rows, strength, block, cyclic):
    monkeypatch.setattr(linked_rows, "MAX_BLOCK", block)
    size, rank = 30, 1 if rows == "one component" else 4
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(size, 2 if rows == "few entries" else 9, rank, generator=generator, dtype=torch.float64)
    if rows == "a gap":
        half[8:17] = 0
    if rows == "uneven":
        half *= (torch.arange(size) % 5).exp()[:, None, None]
    gram, right = half.mT @ half, (half.mT @ half.sum(dim=2, keepdim=True)).squeeze(2)
    ridge = torch.full((size,), 0.05, dtype=torch.float64)
    links = links_along(range(size), cyclic=cyclic, walk=1.0)
    strengths = strength * torch.tensor([1.0, 3.0, 0.2, 1.0], dtype=torch.float64)[:rank]
    found = torch.zeros_like(right)
    solve_linked(lambda rows: (gram[rows], right[rows]), ridge, None, LinkPrior(links.differences, strengths), found)
    expected = torch.linalg.solve(dense_system(gram, ridge, links, strengths), right.flatten())
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("most", [0, 1 << 18])
def test_a_gpu_solves_the_dense_system_there_and_on_the_host(monkeypatch, most):
    monkeypatch.setattr(linked_rows, "MAX_HOST_NUMBERS", most)
    gram, right, ridge = problem(size=20)
    mean = torch.ones_like(right)
    links = links_along(range(20), **{"season:7": 1.0, "walk": 0.2})
    strengths = torch.tensor([0.5, 2.0, 9.0], dtype=torch.float64)
    wanted = (right + ridge[:, None] * mean + 0.3 * mean).flatten()
    expected = torch.linalg.solve(dense_system(gram, ridge, links, strengths), wanted)
    there = RowLinks(links.coordinates.cuda(), links.labels.cuda(), strengths=links.strengths)
    prior = LinkPrior(there.differences, strengths.cuda(), 0.3 * mean.cuda())
    found = torch.zeros_like(right).cuda()
    solve_linked(lambda rows: (gram[rows].cuda(), right[rows].cuda()), ridge.cuda(), mean.cuda(), prior, found)
    torch.testing.assert_close(found.cpu().flatten(), expected, rtol=1e-4, atol=1e-4)


def test_rows_with_the_same_system_are_solved_in_one_step(monkeypatch):
    """The preconditioner is the inverse then, with strengths of every component."""
    monkeypatch.setattr(linked_rows, "MAX_STEPS_ALIKE", 1)
    monkeypatch.setattr(linked_rows, "MAX_STEPS_SINGLE", 0)
    gram, right, _ = problem(size=40)
    gram = gram[:1].expand(40, -1, -1).contiguous()
    ridge, strengths = torch.full((40,), 0.3, dtype=torch.float64), torch.tensor([0.01, 5.0, 300.0]).double()
    links = links_along(range(40), **{"season:7": 1.0, "walk": 0.2})
    found = torch.zeros_like(right)
    solve_linked(lambda rows: (gram[rows], right[rows]), ridge, None, LinkPrior(links.differences, strengths), found)
    expected = torch.linalg.solve(dense_system(gram, ridge, links, strengths), right.flatten())
    torch.testing.assert_close(found.flatten(), expected)


@settings(deadline=None)
@given(size=st.integers(3, 12), first=st.integers(0, 2), block=st.integers(1, 5), kind=st.sampled_from(KINDS))
def test_eigenvectors_are_those_of_blocks_of_the_links(size, first, block, kind):
    links = links_along(range(size), **kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linked_rows, "MAX_BLOCK", block)
        values, vectors = links.differences.spectrum(slice(first, size))
    found, expected = (vectors * values[:, None]) @ vectors.mT, dense(links, size)[first:, first:]
    assert found.shape[1] <= block
    for k, start in enumerate(range(0, size - first, found.shape[1])):
        part = expected[start : start + found.shape[1], start : start + found.shape[1]]
        torch.testing.assert_close(found[k, : len(part), : len(part)], part, rtol=1e-5, atol=1e-5)
        assert float(found[k, len(part) :].abs().sum()) < 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e300])
def test_rows_are_finite_whatever_their_systems_are(bad):
    gram, right, ridge = problem()
    gram[3, 1, 1] = right[3, 0] = bad
    found = torch.ones_like(right)
    prior = LinkPrior(links_along(range(len(right)), walk=1.0).differences, torch.ones(3, dtype=torch.float64))
    solve_linked(lambda rows: (gram[rows], right[rows]), ridge, None, prior, found)
    assert bool(torch.isfinite(found).all())


def solver_of(spec, shape, engine="reference", kind=Als, seed=0):
    torch.manual_seed(seed)
    g = Multilinear(shape, spec)
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter)
    cells = torch.cartesian_prod(*(torch.arange(size) for size in shape))
    indices = cells[torch.randperm(len(cells))[: len(cells) // 2]]
    return kind(g, SystemsInMemory(g, indices, pick_engine(engine, "cpu")), spread=1.0), torch.randn(len(indices))


@pytest.mark.parametrize("engine", ["reference", "numba"])
@pytest.mark.parametrize("spec", ["cp:2+smooth:1", "fm:2+cyclic:1", "bias+smooth:0+smooth:1"])
def test_every_solve_is_the_minimum_of_the_penalised_error(spec, engine):
    """After the last table of a block is solved, no small change of its rows lowers the objective."""
    als, targets = solver_of(spec, (6, 8), engine)
    als.ridge, als.pull, als.smoothness = 0.2, 1.5, 3.0
    als.systems.begin_sweep(targets, None)
    name, block = list(als.blocks.items())[-1]
    als.systems.begin_block(name)
    rest = als.systems.targets.clone()  # before this block is solved
    k = len(block.tables) - 1
    if len(block.tables) > 1:  # earlier tables are not solved again after the last
        block.solve(als)
        als.systems.values[name] = block(als.systems.indices).detach()
        als.systems.begin_block(name)
    mode, table = block.table_modes[k], block.tables[k]
    present = [one.clone() for one in block.tables[:k]]
    prior = als.row_prior(name, k) if len(block.tables) > 1 else None
    if len(block.tables) > 1:
        als.systems.targets = rest
        if block.sums:
            change = torch.zeros_like(table)
            pull = -prior.links.product(table)
            als.systems.solve_rows(
                k, prior._replace(mean=-table, links=prior.links._replace(pull=pull)), change, noise=0.0, last=True
            )
            table += change
        else:
            als.systems.solve_rows(k, prior, table, noise=0.0, last=True)
        ridge, strength = prior.ridge, prior.links.strength
    else:
        block.solve(als)
        ridge, strength = torch.zeros(len(table)), torch.tensor([als.pull])
    differences = als.links[mode].differences

    def objective(rows):
        with torch.no_grad():
            kept = table.clone()
            table.copy_(rows)
            error = (rest - block(als.systems.indices)).double().square().sum()
            table.copy_(kept)
        steps = differences.apply(rows.double()).square().sum(0) @ strength.double()
        return float(error + (ridge[:, None] * rows.square()).double().sum() + steps)

    lowest = objective(table)
    for seed in range(20):
        direction = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed))
        assert objective(table + 0.02 * direction) > lowest
    assert all(torch.equal(one, now) for one, now in zip(present, block.tables[:k], strict=True))


@pytest.mark.parametrize("blocks", ["mean+bias+cp:3", "mean+fm:2"])
def test_links_without_strength_change_no_bit(blocks):
    plain, targets = solver_of(blocks, (6, 8), "numba")
    linked, _ = solver_of(f"{blocks}+smooth:1", (6, 8), "numba")
    for als in (plain, linked):
        als.ridge, als.pull, als.smoothness = 0.2, 1.0, 0.0
        for _ in range(3):
            als.sweep(targets)
    for one, other in zip(plain.g.parameters(), linked.g.parameters(), strict=True):
        assert torch.equal(one, other)


def test_draws_of_linked_rows_are_those_of_their_joint_posterior():
    """One table of a product, the other fixed, against the dense Gaussian posterior."""
    gibbs, targets = solver_of("cp:2+smooth:1", (4, 5), kind=Gibbs)
    gibbs.noise = 0.5
    cp = gibbs.blocks["cp"]
    precision, stiffness, mean = torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.5]), torch.tensor([0.5, -1.0])
    gibbs.levels["cp", 1] = Level(mean, precision, stiffness)
    gibbs.systems.begin_sweep(targets, None)
    gibbs.systems.begin_block("cp")
    aim, indices, (first, table) = gibbs.systems.targets.clone(), gibbs.systems.indices, cp.tables
    draws = []
    for _ in range(1200):
        gibbs.systems.targets = aim
        gibbs.systems.solve_rows(1, gibbs.row_prior("cp", 1), table, noise=gibbs.noise, last=True)
        draws.append(table.flatten().clone())
    found = torch.stack(draws).double()
    design = torch.zeros(len(aim), 5, 2, dtype=torch.float64)
    design[torch.arange(len(aim)), indices[:, 1]] = first[indices[:, 0]].double()
    design = design.flatten(1)
    links = torch.einsum("ij,rs,r->irjs", dense(gibbs.links[1], 5), torch.eye(2).double(), stiffness.double())
    prior = torch.diag(precision.repeat(5)).double()
    system = design.T @ design / 0.5 + prior + links.reshape(10, 10)
    centre = torch.linalg.solve(system, design.T @ aim.double() / 0.5 + prior @ mean.repeat(5).double())
    covariance = torch.linalg.inv(system)
    spread = covariance.diagonal().sqrt()
    assert ((found.mean(0) - centre).abs() < 5 * spread / len(draws) ** 0.5).all()  # draws are independent
    torch.testing.assert_close(found.T.cov(), covariance, rtol=0.25, atol=0.25 * float(spread.min()) ** 2)


def test_seasons_are_found_in_rows_that_have_them_and_in_no_others():
    rng = np.random.default_rng(0)
    day = np.tile(rng.standard_normal(24), 21)
    week = np.repeat(np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 0.1], 3), 24)
    hours = torch.from_numpy(np.stack([day * week, 0.1 * rng.standard_normal(504)], axis=1))
    assert links_along(range(504)).likely_seasons(hours) == ["season:24", "season:168"]
    assert links_along(range(60)).likely_seasons(torch.arange(60.0)[:, None]) == []
    assert links_along(range(24), cyclic=True).likely_seasons(hours[:24]) == []
