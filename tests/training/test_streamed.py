"""Fits from disk beside fits in memory: the same sweeps and phases, the same bits after an interruption."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.shard_writer import write_shards
from jointensor.data.split import SplitAssignment, SplitRule, split
from jointensor.data.store import FROZEN, Entries, ShardedEntries
from jointensor.data.synthetic import make_joint
from jointensor.errors import ConfigError, DataError
from jointensor.kernels import pick_engine
from jointensor.models.joint import JointModel, evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.predictors.biases import fit_bias, fit_bias_streamed
from jointensor.solvers.als import Als
from jointensor.solvers.systems import SystemsInMemory
from jointensor.solvers.systems_on_disk import SystemsOnDisk
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from jointensor.training.trainer import MemoryLimits, Trainer
from tests.training.test_fit import Ticking
from tests.training.test_state import Killed, slot_of

SHAPE = (20, 18, 15, 6)
CPU = torch.device("cpu")
LIMITS = MemoryLimits(systems=10**8, batch=10**6)


def _bump(rows):
    return (rows[:, 0] * rows[:, 1]).sum(axis=1) ** 2 + rows[:, 2].sum(axis=1)


@pytest.fixture(scope="module")
def tensor():
    return make_joint(SHAPE, (2, 2), _bump, observed=4000, ratio=0.3, seed=3)[0]


@pytest.fixture(scope="module")
def parts(tensor):
    return split(tensor, seed=0)


@pytest.fixture
def dealt(tmp_path, tensor):
    sides = SplitAssignment(SplitRule(), len(tensor), tmp_path / "sides", 10**9)
    pieces = [(tensor.indices, np.array(tensor.values))]
    return write_shards(tmp_path / "shards", pieces, tensor.modes, sides, 700, {})


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("engine", ["reference", "numba", pytest.param("triton", marks=GPU)])
@pytest.mark.parametrize(
    ("spec", "memory"),
    [
        ("mean+bias+cp:3", 10**9),
        ("cp:2+mean+pairs:2", 2000),
        ("mean+bias+fm:2+cp:2", 2000),
        ("bias+cp:2+fm:2+smooth:2+cyclic:0", 2000),
    ],
)
def test_sweeps_from_disk_are_those_in_memory(dealt, parts, engine, spec, memory):
    device = torch.device("cuda" if engine == "triton" else "cpu")
    kernels, in_memory = pick_engine(engine, device.type), pick_engine("auto", "cpu")
    train, streamed = Entries.of(parts.train, CPU), ShardedEntries.of(dealt, device)
    spread = float(train.values.std(correction=0))
    g = Multilinear(SHAPE, spec)
    torch.manual_seed(0)
    for parameter in g.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    other = Multilinear(SHAPE, spec).to(device)
    other.load_state_dict(g.state_dict())
    assert streamed.spread == pytest.approx(spread, rel=1e-6)
    als = Als(g, SystemsInMemory(g, train.indices, in_memory), spread=spread)
    from_disk = Als(other, SystemsOnDisk(other, streamed, kernels, memory), spread=streamed.spread)
    for one in (als, from_disk):
        one.ridge, one.pull = 0.03, 5.0
    with torch.no_grad():
        for _ in range(3):
            als.sweep(train.values - 0.25)
            from_disk.sweep(0.25)
        error = from_disk.systems.mean_squared_error()
        assert als.systems.mean_squared_error() == pytest.approx(error, rel=1e-4)
        assert error == pytest.approx(float((train.values - 0.25 - als.total()).square().mean()), rel=1e-4)
        asked = torch.tensor(parts.test.indices.tolist())
        wanted, found = g(asked), other(asked.to(device)).cpu()
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3 * spread)


def test_a_frozen_half_is_evaluated_once_and_kept_on_disk(dealt, parts):
    trainer = _trainer(dealt, parts)
    trainer.start()
    frozen = trainer.freeze(trainer.model.nonlinear)
    assert frozen.train == FROZEN
    for block in trainer.train.blocks(FROZEN):
        said = evaluate_in_batches(trainer.model.nonlinear, torch.from_numpy(block.indices).long(), 512)
        np.testing.assert_allclose(block.column, said.numpy(), rtol=1e-5, atol=1e-6)
    als = trainer.exact(trainer.model.multilinear).als
    als.ridge, als.pull = 0.01, 5.0
    als.sweep(FROZEN)
    error = als.systems.mean_squared_error()
    left = [block.values - block.column for block in trainer.train.blocks(FROZEN)]
    g = [evaluate_in_batches(als.g, torch.from_numpy(b.indices).long(), 512).numpy() for b in trainer.train.blocks()]
    assert error == pytest.approx(np.mean((np.concatenate(left) - np.concatenate(g)) ** 2), rel=1e-4)


def _trainer(dealt, parts):
    recipe = make_recipe("default", batch_size=100)
    model = JointModel(SHAPE, (2, 2), linear="mean+bias+cp:2")
    valid = Entries.of(parts.valid, CPU)
    return Trainer(model, ShardedEntries.of(dealt, CPU), valid, recipe, engine=pick_engine("numba", "cpu"))


def test_biases_from_disk_are_those_in_memory(dealt, parts):
    nobody, engine = parts.valid.take(np.zeros(0, dtype=np.int64)), pick_engine("numba", "cpu")
    for valid in (parts.valid, nobody):
        found = fit_bias_streamed(replace(dealt, valid=valid), engine)
        wanted = fit_bias(parts.train, valid)
        np.testing.assert_allclose(
            found.predict(parts.test.indices), wanted.predict(parts.test.indices), rtol=1e-5, atol=1e-6
        )
        assert found.shrinkage[0] == wanted.shrinkage[0]


def _both(dealt, parts, rank, recipe):
    bias = fit_bias(parts.train, parts.valid)
    linear = recipe.linear(rank[0])
    in_memory = fit(JointModel(SHAPE, rank, linear=linear), parts, recipe, seed=1, fallback=bias, device="cpu")
    streamed = fit(JointModel(SHAPE, rank, linear=linear), dealt, recipe, fallback=bias, seed=1, limits=LIMITS)
    return in_memory, streamed


def test_a_multilinear_fit_from_disk_is_the_fit_in_memory(dealt, parts):
    in_memory, streamed = _both(
        dealt, parts, (2, 0), make_recipe("default", sweeps=3, ridges=(0.01, 0.1), refine_epochs=2)
    )
    wanted, found = (one.predict(parts.test.indices) for one in (in_memory, streamed))
    np.testing.assert_allclose(found, wanted, atol=2e-3 * parts.train.values.std())
    assert streamed.ridge == in_memory.ridge
    for one, other in zip(streamed.history, in_memory.history, strict=True):
        assert (one.phase, one.train_loss, one.valid_loss) == (
            other.phase,
            pytest.approx(other.train_loss, rel=1e-3),
            pytest.approx(other.valid_loss, rel=1e-3),
        )


@pytest.mark.parametrize("name", ["default", pytest.param("paper", marks=pytest.mark.slow)])
def test_a_joint_fit_from_disk_is_as_good_as_in_memory(dealt, parts, name):
    short = {"refine_epochs": 8, "ridges": (0.01,), "sweeps": 4}
    changes = short if name == "default" else {"refine_epochs": 20, "rounds": 10, "batch_size": 128}
    in_memory, streamed = _both(dealt, parts, (2, 2), make_recipe(name, **changes))
    spread = parts.test.values.std()
    errors = [
        np.sqrt(np.mean((one.predict(parts.test.indices) - parts.test.values) ** 2)) for one in (in_memory, streamed)
    ]
    assert max(errors) < 0.5 * spread
    assert errors[1] < errors[0] + 0.1 * spread
    assert {row.phase for row in streamed.history} == {row.phase for row in in_memory.history}


def test_the_same_seed_gives_the_same_fit(dealt, parts):
    recipe = make_recipe("default", refine_epochs=1, ridges=(0.01,), sweeps=1, follow=0.0, first="linear")
    bias = fit_bias(parts.train, parts.valid)
    first, second = (
        fit(
            JointModel(SHAPE, (2, 2), linear="mean+bias+cp:2"), dealt, recipe, fallback=bias, seed=3, limits=LIMITS
        ).predict(parts.test.indices)
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)


def test_a_budget_ends_a_pass(dealt, parts):
    bias = fit_bias(parts.train, parts.valid)
    model = JointModel(SHAPE, (2, 2), linear="mean+bias+cp:2")
    ended = fit(model, dealt, make_recipe("default"), fallback=bias, budget=0.0)
    assert ended.outcome == "budget"
    assert np.isfinite(ended.predict(parts.test.indices)).all()


def test_biases_are_fitted_from_disk_where_none_are_given(dealt, parts):
    recipe = make_recipe("default", refine_epochs=0, rounds=0, ridges=(0.01,), sweeps=1)
    unseen = np.array([[-1, 2, 3, 1]])
    found = fit(JointModel(SHAPE, (2, 0)), dealt, recipe).predict(unseen)
    np.testing.assert_allclose(found, fit_bias(parts.train, parts.valid).predict(unseen), rtol=1e-5)


def test_the_time_may_be_up_in_the_middle_of_a_pass(dealt, parts):
    """The clock is read between shards, of which a sweep has many, and at the beginning of epochs."""
    model = JointModel(SHAPE, (2, 2), linear="mean+bias+cp:2")
    clock = Ticking(0.01)
    ended = fit(model, dealt, make_recipe("default"), budget=0.3, clock=clock)
    assert ended.outcome == "budget"
    assert ended.seconds < 0.4
    assert np.isfinite(ended.predict(parts.test.indices)).all()


def test_a_fit_that_needs_all_entries_or_other_values_is_refused(dealt):
    with pytest.raises(ConfigError, match="gibbs needs all entries in memory"):
        fit(JointModel(SHAPE, (2, 0)), dealt, make_recipe("default", linear_solver="gibbs"))
    with pytest.raises(DataError, match="kl loss needs values of at least 0"):
        fit(JointModel(SHAPE, (2, 0)), dealt, make_recipe("default", loss="kl"))


def test_a_fit_from_disk_that_is_interrupted_ends_with_the_same_bits(dealt, parts, tmp_path):
    recipe = make_recipe(
        "default", refine_epochs=1, warm_epochs=1, ridges=(0.01,), sweeps=1, cycle=0, batch_size=64, first="linear",
        follow=0.0,
    )  # fmt: skip
    bias = fit_bias(parts.train, parts.valid)

    def run(slot=None):
        model = JointModel(SHAPE, (2, 2), linear="mean+bias+cp:2")
        fitted = fit(model, dealt, recipe, fallback=bias, seed=2, limits=LIMITS, checkpoint=slot)
        return fitted.predict(parts.test.indices)

    wanted = run()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for kill_after in (3, 20):  # within epochs
        with pytest.raises(Killed):
            run(slot_of(folder, kill_after=kill_after))
    np.testing.assert_array_equal(run(slot_of(folder)), wanted)
