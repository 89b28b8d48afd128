"""One process that is joined as several are: the shared way of training, its checkpoints, its folder."""

import json

import pytest
import torch
import torch.distributed as dist

from jointensor.atomic import write_json
from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.distributed.process_group import CPU, SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, LostProcessError, RunError
from jointensor.models.joint import JointModel
from jointensor.runs.folder import CONFIG, METRICS, finished_before, run_folder
from jointensor.solvers.data_parallel import own_share
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe
from tests.training.test_state import Killed, slot_of

RECIPES = {
    "paper": make_recipe("paper", rounds=2, refine_epochs=3, warm_epochs=2, batch_size=64),
    "default": make_recipe("default", restarts=1, refine_epochs=6, cycle=3, batch_size=64, cycle_gain=0.0),
    "gibbs": make_recipe("default", linear_solver="gibbs", burn_in=3, draws=4, refine_epochs=3, cycle=3),
}


@pytest.fixture(scope="module")
def joined():
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield ProcessGroup(0, 1, CPU, store)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def parts():
    return split(make_joint((9, 8, 7), (2, 0), observed=300, noise=0.1, seed=3)[0], seed=0)


def run_fit(parts, recipe, processes, slot=None):
    model = JointModel(parts.train.shape, (2, 3), linear="mean+bias+cp:2")
    return fit(model, parts, recipe, seed=5, device="cpu", engine="reference", processes=processes, checkpoint=slot)


def test_a_joined_process_trains_as_one_that_is_alone(joined, parts):
    alone, shared = (run_fit(parts, RECIPES["default"], processes) for processes in (SINGLE_PROCESS, joined))
    assert [row.phase for row in shared.history] == [row.phase for row in alone.history]
    assert shared.history[-1].valid_loss == pytest.approx(alone.history[-1].valid_loss, rel=1e-3)
    assert not SINGLE_PROCESS.wire


@pytest.mark.parametrize(
    "recipe", ["paper", pytest.param("default", marks=pytest.mark.slow), pytest.param("gibbs", marks=pytest.mark.slow)]
)
def test_a_shared_fit_killed_after_a_checkpoint_ends_as_one_that_was_not(joined, parts, recipe, tmp_path):
    whole = run_fit(parts, RECIPES[recipe], joined)
    for kill in (10, 31):
        folder = tmp_path / str(kill)
        folder.mkdir()
        with pytest.raises(Killed):
            run_fit(parts, RECIPES[recipe], joined, slot_of(folder, kill))
        again = run_fit(parts, RECIPES[recipe], joined, slot_of(folder))
        assert again.resumed_epochs > 0
        assert [row.phase for row in again.history] == [row.phase for row in whole.history]
        other = whole.model.state_dict()
        for name, value in again.model.state_dict().items():  # values of entries are taken from the tables again
            assert torch.allclose(value, other[name], rtol=1e-3, atol=1e-3), name


def test_a_checkpoint_is_resumed_the_way_it_was_written(joined, parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["paper"], joined, slot_of(tmp_path, 2))
    with pytest.raises(RunError, match="written by processes that torchrun had started"):
        run_fit(parts, RECIPES["paper"], SINGLE_PROCESS, slot_of(tmp_path))


def test_every_process_needs_an_entry(parts):
    few = parts.train.take([0, 1])
    with pytest.raises(ConfigError, match="2 training entries are fewer than the 3 processes"):
        own_share(few, ProcessGroup(0, 3, CPU, dist.HashStore()), ordered=False)


def test_shares_hold_every_entry_once(parts):
    for ordered in (False, True):
        groups = [ProcessGroup(rank, 3, CPU, dist.HashStore()) for rank in range(3)]
        shares = [own_share(parts.train, processes, ordered=ordered) for processes in groups]
        cells = [tuple(cell) for share in shares for cell in share.indices.tolist()]
        assert sorted(cells) == sorted(map(tuple, parts.train.indices.tolist()))


def test_a_folder_that_was_begun_is_gone_on_with_by_joined_processes_only(joined, tmp_path):
    asked, out = {"source": "a", "rank": [2, 3]}, tmp_path / "run"
    with run_folder(out, asked, SINGLE_PROCESS):
        pass
    with run_folder(out, asked, joined):
        assert (out / CONFIG).exists()
    with pytest.raises(RunError, match="exists already; give another"), run_folder(out, asked, SINGLE_PROCESS):
        pass
    other = {**asked, "rank": [1, 1]}
    with pytest.raises(RunError, match="was begun with other options"), run_folder(out, other, joined):
        pass
    write_json(out / METRICS, {"test": 1})
    with pytest.raises(RunError, match="exists already; give another"), run_folder(out, asked, joined):
        pass
    assert json.loads((out / CONFIG).read_text(encoding="utf-8"))["source"] == "a"


def test_a_run_that_was_finished_is_not_begun_again_by_a_restart(joined, tmp_path, monkeypatch):
    asked, out = {"source": "a"}, tmp_path / "run"
    with run_folder(out, asked, SINGLE_PROCESS):
        pass
    write_json(out / METRICS, {"test": 1})
    assert finished_before(out, asked, joined) is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert finished_before(out, asked, joined) == {"test": 1}
    assert finished_before(out, {"source": "b"}, joined) is None
    assert finished_before(out, asked, SINGLE_PROCESS) is None


def test_an_error_is_said_once_and_its_echo_not_at_all():
    store = dist.HashStore()
    first, second = ProcessGroup(0, 2, CPU, store), ProcessGroup(1, 2, CPU, store)
    assert first.should_report(ConfigError("wrong"))
    assert not second.should_report(ConfigError("wrong"))
    assert second.should_report(ConfigError("something else"))
    assert not first.should_report(LostProcessError("lost"))
    assert ProcessGroup(0, 1).should_report(LostProcessError("lost"))


def test_lost_processes_say_so_once_where_nobody_else_did(monkeypatch):
    monkeypatch.setattr("jointensor.distributed.process_group.ERROR_REPORT_WAIT", 0.1)
    store = dist.HashStore()
    assert ProcessGroup(0, 3, CPU, store).should_report(LostProcessError("one of 3"))
    assert not ProcessGroup(1, 3, CPU, store).should_report(LostProcessError("one of 3, too"))
