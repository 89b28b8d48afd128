"""Stores of entries: in memory, on disk, and the shares of several processes give the same entries."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from jointensor.data.shard_writer import Share, write_shards
from jointensor.data.split import SplitAssignment, SplitRule, split
from jointensor.data.store import FROZEN, MAX_SAMPLE, Entries, ShardedEntries
from jointensor.data.synthetic import make_joint
from jointensor.distributed.process_group import ProcessGroup
from jointensor.random_state import Generators
from jointensor.solvers.data_parallel import SharedEntries

CPU = torch.device("cpu")
SHAPE = (20, 18, 15)


@pytest.fixture(scope="module")
def tensor():
    return make_joint(SHAPE, (2, 0), observed=3000, noise=0.1, seed=3)[0]


@pytest.fixture(scope="module")
def train(tensor):
    return split(tensor, seed=0).train


@pytest.fixture(params=["memory", "disk", "share"])
def stores(request, tensor, train, tmp_path):
    """The same training entries: one store, or one for each of three processes."""
    if request.param == "memory":
        return [Entries.of(train, CPU)]
    if request.param == "disk":
        assignment = SplitAssignment(SplitRule(), len(tensor), tmp_path / "sides", 10**9)
        chunks = [(tensor.indices, np.array(tensor.values))]
        sharded = write_shards(tmp_path / "shards", chunks, tensor.modes, assignment, 500, {})
        assert len(sharded.train.counts) > 3
        return [ShardedEntries.of(sharded, CPU)]
    whole = Entries.of(train, CPU)
    groups = [ProcessGroup(rank, 3, CPU, dist.HashStore()) for rank in range(3)]
    mine = [Entries(whole.indices[rank::3], whole.values[rank::3]) for rank in range(3)]
    return [SharedEntries(one.indices, one.values, group, len(whole)) for one, group in zip(mine, groups, strict=True)]


def cells(batches):
    """Labels and value of every entry."""
    found = [(batch.indices.numpy(), batch.values.numpy()) for batch in batches]
    return [(*map(int, i), float(v)) for indices, values in found for i, v in zip(indices, values, strict=True)]


def passes(stores, size, generators=None, scores=0.0, start=0):
    """Batches of all processes, which have the same random state."""
    return [list(one.batches(size, scores, generators or Generators(CPU, 1), start)) for one in stores]


def test_an_epoch_has_every_entry_once(stores, train):
    wanted = cells([Entries.of(train, CPU).batch(torch.arange(len(train)), 0.0)])
    found = passes(stores, 100)
    assert sorted(cell for one in found for cell in cells(one)) == sorted(wanted)
    for store, batches in zip(stores, found, strict=True):
        assert len(batches) == store.steps(100)
        assert store.total == len(train)
    for same in zip(*found, strict=True):  # a batch is as large as all processes have of it together
        assert {batch.total for batch in same} == {sum(len(batch.values) for batch in same)}
        assert same[0].total <= 150


def test_every_epoch_has_an_order_of_its_own_and_the_same_seed_the_same(stores):
    (store, *_), generators = stores, Generators(CPU, 1)
    first, second = (cells(store.batches(64, 0.0, generators)) for _ in range(2))
    assert sorted(first) == sorted(second)
    assert first != second
    assert cells(store.batches(64, 0.0, Generators(CPU, 1))) == first


@pytest.mark.parametrize("start", [1, 7, 20])
def test_an_epoch_can_be_begun_anywhere(stores, start):
    for whole, rest in zip(passes(stores, 64), passes(stores, 64, start=start), strict=True):
        assert [cells([batch]) for batch in whole[start:]] == [cells([batch]) for batch in rest]


def test_the_order_is_drawn_when_batches_are_asked_for(stores):
    (store, *_), generators = stores, Generators(CPU, 1)
    before = generators.state()
    coming = store.batches(64, 0.0, generators)
    assert not torch.equal(generators.state()["cpu"], before["cpu"])
    generators.set_state(Generators(CPU, 5).state())  # too late to change it
    assert cells(coming) == cells(store.batches(64, 0.0, Generators(CPU, 1)))


def test_scores_of_a_half_come_with_their_entries(stores):
    def half(indices):
        assert len(indices) <= 1000 or indices.dtype == torch.int64
        return (indices * torch.tensor([400, 20, 1])).sum(dim=1).float()

    for store in stores:
        scores = store.evaluate(half, 128)
        for batch in store.batches(100, scores, Generators(CPU, 0)):
            assert torch.equal(batch.scores, half(batch.indices))
        assert all(batch.scores == 2.5 for batch in store.batches(100, 2.5, Generators(CPU, 0)))


def test_moments_are_those_of_the_entries(stores, train):
    if len(stores) == 1:  # of several processes: in tests/distributed
        assert stores[0].moments() == pytest.approx((train.values.mean(), train.values.std()), rel=1e-5)


def test_a_sample_is_of_the_entries(stores, train):
    wanted = set(cells([Entries.of(train, CPU).batch(torch.arange(len(train)), 0.0)]))
    for store in stores:
        sample = store.sample()
        assert len(sample) == min(len(store), MAX_SAMPLE)
        assert set(cells([sample.batch(torch.arange(len(sample)), 0.0)])) <= wanted


def test_entries_on_disk_are_not_resident_and_their_column_is_written_over(tensor, tmp_path):
    assignment = SplitAssignment(SplitRule(), len(tensor), tmp_path / "sides", 10**9)
    sharded = write_shards(
        tmp_path / "shards", [(tensor.indices, np.array(tensor.values))], tensor.modes, assignment, 500, {}
    )
    looked = []
    store = ShardedEntries.of(sharded, CPU, lambda: looked.append(1))
    assert store.resident is None
    for level in (1.0, 2.0):
        assert store.evaluate(lambda indices, level=level: torch.full((len(indices),), level), 64) == FROZEN
        assert {float(v) for block in store.blocks(FROZEN) for v in block.column} == {level}
    assert len(looked) == 2 * len(sharded.train.counts)  # between shards


def test_processes_take_parts_of_the_same_batches_from_disk(tensor, tmp_path):
    sharded = []
    for rank in range(2):
        assignment = SplitAssignment(SplitRule(), len(tensor), tmp_path / "sides", 10**9)
        chunks = [(tensor.indices, np.array(tensor.values))]
        folder, share = tmp_path / str(rank), Share(rank, 2)
        sharded.append(write_shards(folder, chunks, tensor.modes, assignment, 300, {}, share=share))
    counts = np.array([one.train.counts for one in sharded])
    stores = [ShardedEntries.of(one, CPU, shard_counts=counts, rank=rank) for rank, one in enumerate(sharded)]
    for start in (0, 11):
        first, second = (list(store.batches(100, 0.0, Generators(CPU, 5), start)) for store in stores)
        assert len(first) == len(second) == stores[0].steps(100) - start == stores[1].steps(100) - start
        for one, other in zip(first, second, strict=True):
            assert one.total == other.total == len(one.values) + len(other.values)
            assert one.total == pytest.approx(100, rel=0.2)
    everything = [batch for store in stores for batch in store.batches(100, 0.0, Generators(CPU, 5))]
    assert len(set(cells(everything))) == len(cells(everything)) == stores[0].total == stores[1].total == counts.sum()
