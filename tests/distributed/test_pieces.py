"""Pieces of a shared fit are those of one process: operations, exact sweeps, descent, draws."""

import json
import math

import pytest
import torch

from jointensor.distributed.launch import TIMEOUT, join_processes, restarted
from jointensor.distributed.process_group import CPU, SINGLE_PROCESS, ProcessGroup
from jointensor.distributed.sharded_rows import _pack, _unpack
from jointensor.errors import ConfigError, ProcessGroupError
from jointensor.random_state import Generators
from jointensor.solvers.data_parallel import MAX_SHUFFLED_TOGETHER, _own_plan, make_plan
from tests.distributed.launch import torchrun


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("pieces")
    done = torchrun("-m", "tests.distributed.pieces", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_no_thread_outlives_the_last_message(seen):
    # one that drops a tensor while Python ends would abort the process, after all was written
    assert not [name for one in seen for name in one["threads"] if "gloo" in name]


def test_operations_are_over_all_processes(seen):
    first, second = (one["operations"] for one in seen)
    assert first["decided"] == second["decided"] == [0, "zero", None, math.inf]
    assert first["sum"] == second["sum"] == [1.0, 3.0, 5.0, 7.0]
    assert first["mean"] == second["mean"] == pytest.approx((0 + 1 + 2 + 1 + 2 + 3 + 4) / 7)
    values = torch.tensor([0.0, 1, 2, 3, 1, 2, 3, 4])
    assert (
        first["moments"] == second["moments"] == pytest.approx([float(values.mean()), float(values.std(correction=0))])
    )
    assert first["rows"] == second["rows"] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert (first["parts"], second["parts"]) == ([3.0], [30.0])
    assert first["bytes"]
    assert second["bytes"]


def test_random_numbers_are_common_or_a_processs_own(seen):
    first, second = (one["operations"] for one in seen)
    assert first["common"] == second["common"]
    assert first["mine"] != second["mine"]


@pytest.mark.parametrize("name", ["exact", "weighted"])
def test_exact_sweeps_solve_what_one_process_solves(seen, name):
    for one in seen:
        assert one[name]["apart"] < 5e-5
        assert one[name]["values"] < 5e-5


@pytest.mark.parametrize("name", ["rows", "adam"])
def test_descent_makes_the_steps_of_one_process(seen, name):
    for one in seen:
        *alone, third, fourth = one[name]["losses"]
        assert [third, fourth] == pytest.approx(alone, rel=1e-5)
        assert one[name]["apart"] < 2e-5


def test_only_rows_that_occur_are_sent_of_a_large_table(seen):
    steps = 2 * math.ceil(400 / 32)
    most = 32 * 3 * (4 * 8 + 8) + 32 * 3 * (4 * 3 + 8) + 16  # rows of both tables, had all entries other labels
    dense = 3030 * (8 + 3) * 4
    assert 0 < seen[0]["rows"]["gathered"] <= steps * most < steps * dense


def test_draws_are_the_same_everywhere(seen):
    for one in seen:
        assert one["sampled"]["same"]
        assert one["sampled"]["noise and state"]
        assert one["sampled"]["error"] < 3.0


def test_models_that_come_apart_are_an_error_and_rounding_is_evened_out(seen):
    assert [one["together"]["even"] for one in seen] == [1.0, 1.0]
    for one in seen:
        assert "processes 0 and 1 have come apart" in one["together"]["message"]


@pytest.mark.parametrize("make", [make_plan, _own_plan])
@pytest.mark.parametrize(("count", "size", "batch"), [(10, 1, 3), (11, 3, 4), (1000, 4, 64), (5, 2, 100)])
def test_a_plan_takes_every_entry_once_and_batches_are_as_large_as_with_one_process(make, count, size, batch):
    plans = []
    for rank in range(size):
        plans.append(make(count, batch, ProcessGroup(rank, size), Generators(CPU, 3)))
    for rank, plan in enumerate(plans):
        assert sorted(plan.order.tolist()) == list(range(len(range(rank, count, size))))
        assert [part.start for part, _ in plan.batches] == [0, *(part.stop for part, _ in plan.batches[:-1])]
    for batches in zip(*(plan.batches for plan in plans), strict=True):
        assert len({whole for _, whole in batches}) == 1
        assert sum(part.stop - part.start for part, _ in batches) == batches[0][1]
    assert len(plans[0].batches) == math.ceil(count / batch)
    assert sum(whole for _, whole in plans[0].batches) == count


def test_the_plan_of_several_processes_has_the_batches_of_one():
    order = torch.randperm(100, generator=Generators(CPU, 3).cpu)
    plans = [make_plan(100, 30, ProcessGroup(rank, 3), Generators(CPU, 3)) for rank in range(3)]
    for step in range(4):
        places = [3 * int(k) + rank for rank, plan in enumerate(plans) for k in plan.order[plan.batches[step][0]]]
        assert sorted(places) == sorted(order[30 * step : 30 * (step + 1)].tolist())
    assert MAX_SHUFFLED_TOGETHER > 10**7  # beyond that, each shuffles its own


def test_systems_come_back_from_the_wire():
    torch.manual_seed(0)
    half = torch.randn(4, 3, 3)
    gram, right = half @ half.mT, torch.randn(4, 3)
    packed = _pack(gram, right)
    assert packed.shape == (4, 9)
    again = _unpack(packed, 3)
    assert torch.allclose(again[0], gram)
    assert torch.equal(again[1], right)


def test_one_process_is_alone():
    assert join_processes("cpu", {}) is SINGLE_PROCESS
    assert not SINGLE_PROCESS.shared
    assert SINGLE_PROCESS.decide(lambda: 3) == 3
    assert SINGLE_PROCESS.shares(5) == [5]
    assert not SINGLE_PROCESS.wire


RUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "one"}, "RANK is 'one'"),
        ({TIMEOUT: "soon"}, f"{TIMEOUT} is 'soon'"),
        ({TIMEOUT: "-1"}, f"{TIMEOUT} is '-1'"),
    ],
)
def test_what_the_environment_says_is_checked(change, message):
    with pytest.raises(ConfigError, match=message):
        join_processes("cpu", {**RUN, **change})


def test_processes_that_cannot_be_reached_are_an_error_that_says_what_to_check():
    with pytest.raises(
        ProcessGroupError, match=r"process 1 of 2 could not join the others at 127.0.0.1:1 within 1 s.*check"
    ):
        join_processes("cpu", {**RUN, TIMEOUT: "1"})


def test_several_processes_cannot_share_one_device():
    with pytest.raises(ConfigError, match="several processes take cpu, cuda"):
        join_processes("cuda:1", RUN)


def test_a_restart_is_known():
    assert not restarted({})
    assert not restarted({"TORCHELASTIC_RESTART_COUNT": "0"})
    assert restarted({"TORCHELASTIC_RESTART_COUNT": "2"})
