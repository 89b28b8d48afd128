"""Draws against the posterior worked out by hand, planted noise and ranks, and whole fits that are sampled."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from jointensor.data.split import split
from jointensor.data.store import Entries
from jointensor.data.tensor import SparseTensor
from jointensor.kernels import pick_engine
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.solvers.gibbs import GAMMA_RATE, GAMMA_SHAPE, Gibbs, Level
from jointensor.solvers.systems import SystemsInMemory
from jointensor.training.fit import fit
from jointensor.training.gibbs_driver import GibbsDriver
from jointensor.training.recipe import make_recipe
from tests.training.test_fit import Ticking

MANY = 6000
"""Draws of the same row: labels of the first mode that all have the same entries."""

OFTEN = 5
"""Standard errors that a figure of many draws may be off by; chance alone does it once in two million."""


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def gibbs_of(g, indices, *, spread=1.0, noise=0.4, engine="reference"):
    kernels = pick_engine(engine, "cpu")
    made = Gibbs(g, SystemsInMemory(g, indices, kernels), spread=spread)
    made.noise = noise
    return made


def solve_block(gibbs, name, targets):
    """Draw one block for targets that the other blocks, which are zero, leave to it; returns its values."""
    gibbs.systems.begin_sweep(targets, None)
    gibbs.solve_block(name)
    return gibbs.values[name]


def fill(g, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in g.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return g


def copies(cells):
    """Every label of the first mode with the same cells of the other modes, ``(MANY · cells, modes)``."""
    first = torch.arange(MANY).repeat_interleave(len(cells))
    return torch.cat([first[:, None], torch.tensor(cells).repeat(MANY, 1)], dim=1)


def posterior(h, y, noise, level):
    """Mean and covariance of a row with ``y = h row + noise`` and the rows' level as its prior, by dense algebra."""
    h, y = np.asarray(h, dtype=np.float64), np.asarray(y, dtype=np.float64)
    precision = np.diag(level.precision.double().numpy())
    covariance = np.linalg.inv(h.T @ h / noise + precision)
    return covariance @ (h.T @ y / noise + precision @ level.mean.double().numpy()), covariance


def check_draws(draws, mean, covariance):
    """Draws ``(many, numbers)`` have this mean and covariance, as far as so many can tell."""
    many = len(draws)
    found, spread = draws.mean(axis=0), np.sqrt(np.diag(covariance))
    assert (np.abs(found - mean) < OFTEN * spread / math.sqrt(many)).all()
    error = np.sqrt((np.outer(spread, spread) ** 2 + covariance**2) / many)  # of a covariance of normal draws
    assert (np.abs(np.atleast_2d(np.cov(draws.T)) - covariance) < OFTEN * error).all()


def test_the_mean_is_drawn_around_the_mean_of_what_is_wanted():
    indices = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]])
    gibbs = gibbs_of(Multilinear((3, 2), "mean"), indices)
    wanted = torch.tensor([1.0, -2.0, 0.5, 3.0, 1.5])
    draws = np.array([[float(solve_block(gibbs, "mean", wanted)[0])] for _ in range(MANY)])
    check_draws(draws, np.array([0.8]), np.array([[0.4 / 5]]))


@pytest.mark.parametrize("spec", ["bias", "tables:0/1"])
def test_numbers_are_drawn_from_their_posterior(spec):
    cells = [[0, 0], [0, 1], [0, 2]]
    indices = copies(cells)
    g = Multilinear((MANY, 1, 3), spec)
    g.see(indices)
    gibbs = gibbs_of(g, indices)
    name = "bias_0" if spec == "bias" else "table_0_1"
    level = gibbs.levels[name, 0] = Level(torch.zeros(1), torch.tensor([2.0]))
    wanted = torch.tensor([1.0, -0.5, 2.5])
    values = solve_block(gibbs, name, wanted.repeat(MANY))
    draws = gibbs.blocks[name].tables[0][:MANY].numpy()
    check_draws(draws, *posterior(np.ones((3, 1)), wanted, 0.4, level))
    assert torch.equal(values.view(MANY, 3), torch.as_tensor(draws).expand(MANY, 3))


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_vectors_of_a_factorisation_machine_are_drawn_from_their_posterior(engine):
    cells = [[0, 0], [1, 1], [2, 0], [0, 1]]
    g = fill(Multilinear((MANY, 3, 2), "fm:2"))
    gibbs = gibbs_of(g, copies(cells), engine=engine)
    for k in range(3):
        gibbs.levels["fm", k] = Level(torch.tensor([0.5, -1.0]), torch.tensor([0.7, 3.0]))
    _, one, two = (table.clone() for table in g.blocks["fm"].tables)
    y = torch.tensor([1.0, -0.5, 2.5, 0.3])
    solve_block(gibbs, "fm", y.repeat(MANY))
    i, j = torch.tensor(cells).T
    h, without = one[i] + two[j], (one[i] * two[j]).sum(dim=1)
    draws = g.blocks["fm"].tables[0].numpy()  # solved first, from the others as they were
    check_draws(draws, *posterior(h, y - without, 0.4, gibbs.levels["fm", 0]))


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_rows_of_a_product_are_drawn_from_their_posterior(engine):
    """What the engine writes is taken down: once all modes are drawn, the sizes of components are evened out."""
    cells = [[0, 0], [1, 1], [2, 0], [0, 1]]
    solver, written = pick_engine(engine, "cpu").solve_rows, []

    def noting(entries, ridge, table, **options):
        values = solver(entries, ridge, table, **options)
        written.append(table.clone())
        return values

    g = fill(Multilinear((MANY, 3, 2), "cp:2"))
    engine = replace(pick_engine(engine, "cpu"), solve_rows=noting)
    gibbs = Gibbs(g, SystemsInMemory(g, copies(cells), engine), spread=1.0)
    gibbs.noise = 0.4
    for k in range(3):
        gibbs.levels["cp", k] = Level(torch.tensor([0.5, -1.0]), torch.tensor([0.7, 3.0]))
    _, one, two = (table.clone() for table in g.cp.tables)
    y = torch.tensor([1.0, -0.5, 2.5, 0.3])
    values = solve_block(gibbs, "cp", y.repeat(MANY))
    i, j = torch.tensor(cells).T
    level = gibbs.levels["cp", 0]
    draws = (written[0] * level.precision.rsqrt()).numpy()  # solved in units of the components' spread
    check_draws(draws, *posterior(one[i] * two[j], y, 0.4, level))
    torch.testing.assert_close(values, g(gibbs.systems.indices).detach(), rtol=1e-3, atol=1e-4)


def test_rows_without_entries_are_drawn_from_what_rows_are_like():
    indices = torch.tensor([[0, 0], [0, 1]])
    g = fill(Multilinear((MANY, 2), "fm:2"))
    gibbs = gibbs_of(g, indices)
    level = Level(torch.tensor([0.5, -1.0]), torch.tensor([0.7, 3.0]))
    gibbs.levels |= {("fm", 0): level, ("fm", 1): level}
    solve_block(gibbs, "fm", torch.tensor([1.0, 2.0]))
    check_draws(g.blocks["fm"].tables[0][1:].numpy(), level.mean.numpy(), np.diag(1 / level.precision.numpy()))


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_implicit_labels_are_drawn_from_their_posterior(engine):
    """With vectors that a huge precision holds at one value, y is the only unknown of a linear model."""
    many, indices = 1000, torch.tensor([[0, 0, 0], [0, 1, 1], [1, 1, 0], [2, 2, 1], [2, 0, 0], [3, 1, 1]])
    g = Multilinear((4, 3, 2), "fm:1+implicit:0/1")
    g.see(indices)
    gibbs = gibbs_of(g, indices, engine=engine)
    held = [0.3, 0.8, -1.7]
    for k, value in enumerate(held):
        gibbs.levels["fm", k] = Level(torch.tensor([value]), torch.tensor([1e10]))
    level = gibbs.levels["fm", 3] = Level(torch.zeros(1), torch.tensor([1.5]))
    block, y = g.blocks["fm"], torch.tensor([1.0, -0.5, 2.5, 0.3, 0.8, -1.2])
    draws = np.empty((many, 3))
    for k in range(many):
        solve_block(gibbs, "fm", y)
        draws[k] = block.implicit_feedback[0].table.detach()[:, 0]
    h = held[1] + held[2]
    design = h * block.implicit_feedback[0].matrix().to_dense()[indices[:, 0]].numpy()
    without = held[0] * h + held[1] * held[2]
    many_levels = Level(level.mean.expand(3), level.precision.expand(3))
    check_draws(draws, *posterior(design, y.numpy() - without, 0.4, many_levels))


def likely(draws, distribution):
    """Whether draws may be of a distribution: a chance of one in ten thousand is enough."""
    return stats.kstest(np.asarray(draws), distribution.cdf).pvalue > 1e-4


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_noise_is_drawn_from_its_posterior(spread):
    indices = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    gibbs = gibbs_of(Multilinear((2, 2), "mean"), indices, spread=spread)
    left = spread * torch.tensor([1.0, -2.0, 0.5, 3.0])
    draws = []
    for _ in range(MANY):
        gibbs._draw_noise(left, None)
        draws.append(1 / gibbs.noise)
    rate = GAMMA_RATE * spread**2 + float(left.square().sum()) / 2
    assert likely(draws, stats.gamma(GAMMA_SHAPE + 4 / 2, scale=1 / rate))


def test_what_rows_are_like_is_drawn_from_its_posterior():
    """μ is taken as a row that was seen to be zero: N(0, 1/λ) before anything is known."""
    g, rows = Multilinear((5, 4), "fm:1"), torch.tensor([[1.0], [2.0], [1.5], [0.5], [3.0]])
    gibbs = gibbs_of(g, torch.tensor([[0, 0]]))
    found = []
    for _ in range(MANY):
        gibbs.levels.clear()  # the first draw of λ is for μ = 0
        gibbs._draw_level("fm", 0, rows)
        found.append([float(x) for x in (gibbs.levels["fm", 0].precision[0], gibbs.levels["fm", 0].mean[0])])
    precision, mean = np.array(found).T
    rate = GAMMA_RATE + float(rows.square().sum()) / 2
    assert likely(precision, stats.gamma(GAMMA_SHAPE + 6 / 2, scale=1 / rate))
    assert likely((mean - 8 / 6) * np.sqrt(6 * precision), stats.norm())


def test_numbers_lie_around_zero():
    g, rows = Multilinear((5, 4), "bias"), torch.tensor([[1.0], [2.0], [1.5], [0.5], [3.0]])
    gibbs = gibbs_of(g, torch.tensor([[0, 0]]))
    gibbs._draw_level("bias_0", 0, rows)  # how wide it starts
    found = []
    for _ in range(MANY):
        gibbs._draw_level("bias_0", 0, rows)
        found.append(float(gibbs.levels["bias_0", 0].precision[0]))
        assert float(gibbs.levels["bias_0", 0].mean[0]) == 0
    assert likely(found, stats.gamma(GAMMA_SHAPE + 5 / 2, scale=1 / (GAMMA_RATE + float(rows.square().sum()) / 2)))


def planted(shape=(20, 18, 15), rank=2, entries=3000, noise=0.5, level=0.0, seed=0):
    """A CP tensor with noise of a known size, and its values without it."""
    rng = np.random.default_rng(seed)
    tables = [rng.standard_normal((size, rank)) for size in shape]
    clean = np.einsum("ir,jr,kr->ijk", *tables) + level
    cells = np.stack(np.unravel_index(rng.permutation(clean.size)[:entries], shape), axis=1)
    return split(SparseTensor(cells, clean[tuple(cells.T)] + noise * rng.standard_normal(entries), shape)), clean


def recipe(**changes):
    return make_recipe("default", **({"linear_solver": "gibbs", "burn_in": 30, "draws": 20, "thin": 1} | changes))


def as_tensor(indices):
    return torch.as_tensor(np.array(indices), dtype=torch.int64)


@pytest.fixture(scope="module")
def sampled():
    """The default numbers of draws on a planted tensor of rank 2."""
    parts, clean = planted()
    model = JointModel(parts.train.shape, (2, 0), linear="mean+bias+cp:2")
    return parts, clean, fit(model, parts, make_recipe("default", linear_solver="gibbs"), seed=0)


def test_the_noise_of_planted_data_is_recovered(sampled):
    parts, _, result = sampled
    noise = float(result.model.multilinear.draws.noise)
    assert noise == pytest.approx(0.25, rel=OFTEN * math.sqrt(2 / len(parts.train)))


def test_planted_values_are_found_below_the_noise(sampled):
    parts, clean, result = sampled
    assert rmse(result.predict(parts.test.indices), clean[tuple(parts.test.indices.T)]) < 0.5 * 0.5


def test_enough_draws_are_stored_by_default(sampled):
    _, _, result = sampled
    assert result.outcome == "converged"
    assert len(result.model.multilinear.draws) >= 50
    assert result.model.multilinear.draws.names() == ["cp"]


def test_predictions_are_the_mean_over_draws(sampled):
    parts, _, result = sampled
    g, cells = result.model.multilinear, parts.test.indices
    products = []
    for k in range(len(g.draws)):
        tables = torch.split(g.draws.of("cp", k)["factors.stacked"], list(parts.train.shape))
        rows = [table.double().numpy()[cells[:, n]] for n, table in enumerate(tables)]
        products.append((rows[0] * rows[1] * rows[2]).sum(axis=1))
    numbers = g.blocks["mean"].constant.item() + sum(
        g.blocks[f"bias_{n}"].tables[0][:, 0].double().numpy()[cells[:, n]] for n in range(3)
    )
    np.testing.assert_allclose(result.predict(cells), numbers + np.mean(products, axis=0), rtol=1e-4, atol=1e-4)


def test_draws_say_how_far_values_lie_from_predictions(sampled):
    """Were they too much alike, or too different, another share than 90 % would be inside."""
    parts, _, result = sampled
    mean, variance = result.model.multilinear.moments(as_tensor(parts.test.indices))
    spread = (variance + result.model.multilinear.draws.noise).sqrt().detach().numpy()
    inside = np.abs(parts.test.values - mean.detach().numpy()) < stats.norm.ppf(0.95) * spread
    assert abs(inside.mean() - 0.9) < OFTEN * math.sqrt(0.9 * 0.1 / len(inside))


@pytest.mark.parametrize("spec", ["cp:5", "fm:5"])
def test_superfluous_components_shrink_away(spec):
    rng = np.random.default_rng(3)
    shape = (25, 20, 16)
    vectors = [rng.standard_normal(size) for size in shape]
    if spec == "cp:5":
        clean = np.einsum("i,j,k->ijk", *vectors)
    else:
        a, b, c = np.ix_(*vectors)
        clean = a * b + a * c + b * c
    cells = np.stack(np.unravel_index(rng.permutation(clean.size)[:4000], shape), axis=1)
    values = clean[tuple(cells.T)] + 0.3 * rng.standard_normal(4000)
    parts = split(SparseTensor(cells, values, shape))
    g = fit(JointModel(shape, (0, 0), linear=spec), parts, recipe(burn_in=60), seed=0).model.multilinear
    sizes = [table.square().mean(dim=0).sqrt() for table in g.blocks[spec[:2]].tables]  # of the last draw
    weight = (torch.stack(sizes).prod(dim=0) if spec == "cp:5" else sizes[0] * sizes[1]).sort(descending=True).values
    assert weight[0] > 0.5
    assert weight[1] < 0.1 * weight[0]


def test_the_same_seed_gives_the_same_draws_and_another_one_others(parts):
    short = recipe(refine_epochs=2, fall_back=False, restarts=0)
    found = [fit(JointModel(parts.train.shape, (2, 2)), parts, short, seed=seed) for seed in (3, 3, 4)]
    first, again, other = (one.predict(parts.test.indices) for one in found)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("spec", ["mean+bias+cp:2", "mean+bias+fm:2+implicit:0/1", "pairs:1", "bias+fm:2+tables"])
def test_what_is_kept_of_a_chain_is_the_mean_of_its_states(spec):
    parts, _ = planted(entries=800)
    train = Entries.of(parts.train, torch.device("cpu"))
    g = fill(Multilinear(parts.train.shape, spec)).eval()
    g.see(train.indices)
    chain = GibbsDriver(g, train, pick_engine("numba", "cpu"))
    cells = as_tensor(parts.test.indices)
    at_train, at_test = [], []
    for sweep in range(12):
        chain.sweep(train.values)
        if sweep >= 4:
            chain.keep(store=True)
            at_train.append(chain.gibbs.total())
            at_test.append(g(cells).detach())
    chain.settle()
    torch.testing.assert_close(chain.fitted, torch.stack(at_train).mean(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(g(cells).detach(), torch.stack(at_test).mean(dim=0), rtol=1e-4, atol=1e-4)


def test_of_numbers_all_states_count_of_products_those_that_are_stored():
    parts, _ = planted(entries=800)
    train = Entries.of(parts.train, torch.device("cpu"))
    g = fill(Multilinear(parts.train.shape, "mean+cp:2"))
    chain = GibbsDriver(g, train, pick_engine("numba", "cpu"))
    means, noises = [], []
    for sweep in range(6):
        chain.sweep(train.values)
        chain.keep(store=sweep % 3 == 2)
        means.append(g.blocks["mean"].constant.item())
        noises.append(chain.gibbs.noise)
    last = [table.clone() for table in g.cp.tables]
    chain.settle()
    assert len(g.draws) == 2
    assert g.blocks["mean"].constant.item() == pytest.approx(np.mean(means), rel=1e-4, abs=1e-6)
    assert float(g.draws.noise) == pytest.approx(np.mean(noises), rel=1e-5)
    assert all(torch.equal(one, other) for one, other in zip(last, g.cp.tables, strict=True))


def guarded(values, cells=None, shape=(9, 8, 7)):
    if cells is None:
        cells = np.stack(np.unravel_index(np.random.default_rng(0).permutation(504)[: len(values)], shape), axis=1)
    return SparseTensor(cells, values, shape)


NORMAL = np.random.default_rng(1).standard_normal(300)
HOSTILE = {
    "constant": guarded(np.full(300, 7.0)),
    "zero": guarded(np.zeros(300)),
    "one entry per row": guarded(NORMAL[:40], np.repeat(np.arange(40)[:, None], 3, axis=1), (40, 40, 40)),
    "all but one alike": guarded(np.where(np.arange(300) == 7, 100.0, 1.0)),
    "a few entries": guarded(NORMAL[:5]),
    "far from zero": guarded(1e4 + NORMAL),
    "large": guarded(1e10 * NORMAL),
    "huge": guarded(1e25 * NORMAL),
    "small": guarded(1e-10 * NORMAL),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")  # figures of values whose squares are beyond 32 bits
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("linear", ["mean+bias+cp:3", "mean+bias+fm:2+implicit:0/1+tables:0/2"])
def test_hostile_values_never_give_predictions_that_are_not_finite(name, linear):
    tensor = HOSTILE[name]
    short = recipe(burn_in=5, draws=5, restarts=0, fall_back=False)
    result = fit(JointModel(tensor.shape, (0, 0), linear=linear), split(tensor), short)
    assert np.isfinite(result.predict(tensor.indices)).all()


def test_constant_values_are_predicted():
    tensor = HOSTILE["constant"]
    result = fit(JointModel(tensor.shape, (2, 0)), split(tensor), recipe(fall_back=False))
    np.testing.assert_allclose(result.predict(tensor.indices), 7.0, atol=0.5)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_values_of_another_scale_are_predicted_on_that_scale(factor):
    parts, clean = planted(entries=1500)
    other = type(parts)(*(one.with_values(factor * one.values) for one in (parts.train, parts.valid, parts.test)))
    result = fit(JointModel(clean.shape, (2, 0)), other, recipe(), seed=0)
    assert result.returned == "joint"
    assert rmse(result.predict(parts.test.indices) / factor, clean[tuple(parts.test.indices.T)]) < 0.5
    assert float(result.model.multilinear.draws.noise) / factor**2 == pytest.approx(0.25, rel=0.3)


@pytest.mark.parametrize(
    ("rank", "linear"),
    [((2, 0), "mean+bias+cp:2"), ((0, 2), "mean+bias+fm:2+implicit:0/1+tables"), ((0, 0), "bias+pairs:1")],
)
def test_a_sampled_fit_is_the_same_after_it_was_stored(tmp_path, parts, rank, linear):
    short = recipe(draws=7, refine_epochs=4)
    result = fit(JointModel(parts.train.shape, rank, linear=linear), parts, short, seed=0)
    assert {"draw"} <= {row.phase for row in result.history}
    assert len(result.model.multilinear.draws) == 7
    save_predictor(result.predictor, tmp_path / "w.safetensors")
    loaded = load_predictor(tmp_path / "w.safetensors")
    assert np.array_equal(loaded.predict(parts.test.indices), result.predict(parts.test.indices))
    cells = as_tensor(parts.test.indices)
    for one, other in zip(
        loaded.model.multilinear.moments(cells), result.model.multilinear.moments(cells), strict=True
    ):
        assert torch.equal(one, other)


def test_a_network_next_to_the_draws_does_no_harm(clear):
    shape, cells = clear.train.shape, as_tensor(clear.test.indices)
    short, linear = recipe(refine_epochs=8), "mean+bias+cp:2"
    both, alone = (fit(JointModel(shape, (2, width), linear=linear), clear, short, seed=0) for width in (6, 0))
    assert both.history[-1].phase == "draw: nonlinear"
    assert len(both.model.multilinear.draws) == 20
    with torch.no_grad():
        of_halves = both.model.multilinear.moments(cells)[0] + both.model.nonlinear(cells)
    np.testing.assert_allclose(both.predict(clear.test.indices), of_halves.numpy(), rtol=1e-5, atol=1e-5)
    errors = [rmse(one.predict(clear.test.indices), clear.test.values) for one in (both, alone)]
    assert errors[0] < 1.02 * errors[1]


def test_the_validation_error_of_the_last_draw_is_that_of_the_predictions(parts):
    result = fit(JointModel(parts.train.shape, (2, 0)), parts, recipe(fall_back=False), seed=0)
    error = rmse(result.predict(parts.valid.indices), parts.valid.values)
    assert result.history[-1].valid_loss == pytest.approx(error, rel=1e-3)


def test_a_model_that_was_sampled_is_fitted_anew_as_if_it_had_not_been(parts):
    """Draws of the fit before are not of this one."""
    again, fresh = JointModel(parts.train.shape, (2, 0)), JointModel(parts.train.shape, (2, 0))
    fit(again, parts, recipe(), seed=1)
    solved = make_recipe("default", fall_back=False)
    found = [fit(model, parts, solved, seed=0).predict(parts.test.indices) for model in (again, fresh)]
    assert np.array_equal(*found)


def test_naive_training_goes_without_draws_or_with_them_but_does_not_fail(parts):
    naive = recipe(training="naive", refine_epochs=2, restarts=0)
    result = fit(JointModel(parts.train.shape, (2, 2)), parts, naive, seed=0)
    assert np.isfinite(result.predict(parts.test.indices)).all()


@pytest.mark.parametrize(("linear", "loss"), [("cp:2", "kl"), ("tucker:2", "squared")])
def test_what_cannot_be_sampled_is_descended_and_said_so(parts, linear, loss):
    positive = type(parts)(*(one.with_values(np.abs(one.values)) for one in (parts.train, parts.valid, parts.test)))
    short = recipe(loss=loss, refine_epochs=2, restarts=0)
    result = fit(JointModel(parts.train.shape, (0, 2), linear=linear), positive, short, seed=0)
    assert any("descended, not solved" in note for note in result.notes)
    assert len(result.model.multilinear.draws) == 0


@pytest.mark.parametrize("changes", [{"burn_in": 100_000}, {"draws": 100_000}], ids=["burn-in", "draws"])
def test_the_budget_is_kept(parts, changes):
    model = JointModel(parts.train.shape, (2, 0))
    result = fit(model, parts, recipe(restarts=0, **changes), seed=0, budget=10.0, clock=Ticking(0.01))
    assert result.outcome == "budget"
    assert 10.0 <= result.seconds < 10.1
    assert np.isfinite(result.predict(parts.test.indices)).all()


def test_a_budget_that_ends_while_the_network_is_trained_leaves_a_model(parts):
    long = recipe(refine_epochs=100_000, cycle=0, patience=0)
    result = fit(JointModel(parts.train.shape, (2, 2)), parts, long, seed=0, budget=10.0, clock=Ticking(0.01))
    assert result.outcome == "budget"
    assert 10.0 <= result.seconds < 10.1
    assert np.isfinite(result.predict(parts.test.indices)).all()
