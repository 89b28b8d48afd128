"""A fit that is interrupted anywhere and resumed ends with the same bits as one that was not."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.errors import RunError
from jointensor.models.joint import JointModel
from jointensor.solvers.stopping import Either, Patience, RelativeChange
from jointensor.training.checkpoint import Checkpoints, Slot, from_bytes, to_bytes
from jointensor.training.fit import fit
from jointensor.training.history import Epoch
from jointensor.training.recipe import make_recipe
from jointensor.training.state import TrainState

RECIPES = {
    "paper": make_recipe("paper", rounds=2, refine_epochs=3, warm_epochs=2, batch_size=64),
    "default": make_recipe("default", restarts=1, refine_epochs=10, cycle=3, batch_size=64, cycle_gain=0.0),
    "naive": make_recipe("paper", training="naive", refine_epochs=4, batch_size=64, optimizer="sgd"),
    "gibbs": make_recipe("default", linear_solver="gibbs", burn_in=3, draws=4, refine_epochs=3, cycle=3),
    "huber": make_recipe("default", loss="huber", refine_epochs=3, cycle=3),
    "nested": make_recipe("default", nested=True, max_rank=8, restarts=1, refine_epochs=9, cycle=3, batch_size=64),
    "averaged": make_recipe("default", max_rank=8, solutions=3, restarts=0, sweeps=2, refine_epochs=3),
    "linked": make_recipe("default", restarts=0, sweeps=2, rounds=3, refine_epochs=0),
    "nested paper": make_recipe("paper", nested=True, rounds=2, refine_epochs=3, warm_epochs=2, batch_size=64),
}
MODELS = {"joint": ((2, 3), "julia"), "linear": ((3, 0), "julia"), "network": ((0, 3), "julia")}
LINEAR = {"linear": "mean+bias+cp:3", "linked": "mean+bias+cp:3+smooth:0+smooth:2"}


class Killed(BaseException):
    """As a kill would end a process: nothing of ours catches it."""


@pytest.fixture(scope="module")
def parts():
    return split(make_joint((9, 8, 7), (2, 0), observed=300, noise=0.1, seed=3)[0], seed=0)


def new_model(name, shape):
    rank, part = MODELS.get(name, MODELS["linear"])
    return JointModel(shape, rank, linear=LINEAR.get(name), nonlinear=part)


def run_fit(parts, recipe, name, slot=None, **options):
    model = new_model(name, parts.train.shape)
    return fit(model, parts, recipe, seed=5, device="cpu", engine="reference", checkpoint=slot, **options)


def slot_of(folder, kill_after=None):
    """A slot that is always due, and the process 'dies' after so many checkpoints; or one that is never due."""
    slot, counter = Checkpoints(folder, math.inf if kill_after is None else 0.0).next(), count(1)
    write = slot.write

    def dying(*given, **options):
        write(*given, **options)
        if next(counter) == kill_after:
            raise Killed

    slot.write = dying
    return slot


def state_of(fitted):
    return {name: value.clone() for name, value in fitted.model.state_dict().items()}


def assert_same(fitted, whole):
    assert fitted.outcome == whole.outcome
    assert [row.to_dict() | {"seconds": 0} for row in fitted.history] == [
        row.to_dict() | {"seconds": 0} for row in whole.history
    ]
    other = state_of(whole)
    for name, value in state_of(fitted).items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize(
    ("recipe", "model"),
    [("paper", "joint"), ("default", "joint"), ("gibbs", "joint"), ("nested", "joint"), ("nested paper", "joint"),
     ("averaged", "linear"), ("linked", "linked")]
    + [pytest.param(*pair, marks=pytest.mark.slow) for pair in (
        ("default", "linear"), ("default", "network"), ("naive", "joint"), ("gibbs", "linear"), ("huber", "joint")
    )],
)  # fmt: skip
def test_a_fit_killed_after_any_checkpoint_ends_with_the_same_bits(parts, recipe, model, tmp_path):
    chosen = RECIPES[recipe]
    whole = run_fit(parts, chosen, model)
    for kill in (2, 10, 31, 72):
        folder = tmp_path / str(kill)
        folder.mkdir()
        try:
            run_fit(parts, chosen, model, slot_of(folder, kill_after=kill))
        except Killed:
            resumed = run_fit(parts, chosen, model, slot_of(folder))
            assert_same(resumed, whole)
            assert resumed.resumed_epochs > 0
        else:
            break  # fewer checkpoints than that
    assert kill > 10


def test_one_fit_killed_again_and_again(parts, tmp_path):
    whole, deaths = run_fit(parts, RECIPES["default"], "joint"), 0
    while True:
        try:
            fitted = run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path, kill_after=9))
            break
        except Killed:
            deaths += 1
    assert deaths > 5
    assert_same(fitted, whole)


def test_a_fit_with_restarts_resumes_in_a_later_start(parts, tmp_path):
    hopeless = make_recipe(
        "paper", restarts=2, failure_epochs=1, rounds=1, refine_epochs=2, lr_linear=1e-9, lr_nonlinear=1e-9
    )
    whole = run_fit(parts, hopeless, "network")
    assert whole.restarts == 2
    for kill in (2, 3, 4):
        folder = tmp_path / str(kill)
        folder.mkdir()
        try:
            run_fit(parts, hopeless, "network", slot_of(folder, kill_after=kill))
        except Killed:
            assert_same(run_fit(parts, hopeless, "network", slot_of(folder)), whole)
        else:
            raise AssertionError(f"fewer than {kill} checkpoints")


def test_a_finished_fit_is_not_trained_again(parts, tmp_path):
    whole = run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path))
    seen = []
    again = run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path), on_epoch=seen.append)
    assert_same(again, whole)
    assert again.resumed_epochs == len(whole.history)
    assert not seen


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path, kill_after=12))
    before, newest = sorted(tmp_path.glob("fit-0.*"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    resumed = run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path))
    assert_same(resumed, run_fit(parts, RECIPES["default"], "joint"))
    assert resumed.resumed_epochs > 0
    assert before.name < newest.name


def test_a_checkpoint_of_another_model_is_refused(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path, kill_after=5))
    with pytest.raises(RunError, match="does not fit"):
        run_fit(parts, RECIPES["default"], "linear", slot_of(tmp_path))


def test_a_fit_that_is_stopped_has_the_best_state_so_far_and_can_be_continued(parts, tmp_path):
    whole, asked = run_fit(parts, RECIPES["default"], "joint"), count(1)
    slot = Checkpoints(tmp_path, math.inf).next()
    stopped = run_fit(parts, RECIPES["default"], "joint", slot, stopping=lambda: next(asked) > 60)
    assert stopped.stopped
    assert len(list(tmp_path.glob("fit-0.*"))) == 1
    assert len(stopped.history) < len(whole.history)
    assert np.isfinite(stopped.predict(parts.valid.indices)).all()
    assert not stopped.model.training
    resumed = run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path))
    assert_same(resumed, whole)
    assert resumed.resumed_epochs >= len(stopped.history)
    assert not resumed.stopped


@pytest.mark.parametrize("stop", [2, 40])
def test_draws_that_are_stopped_leave_their_mean_and_can_be_continued(parts, tmp_path, stop):
    whole = run_fit(parts, RECIPES["gibbs"], "linear")
    drawn = [k for k, row in enumerate(whole.history) if row.phase == "draw"]
    asked = []
    stopped = run_fit(
        parts, RECIPES["gibbs"], "linear", Checkpoints(tmp_path, math.inf).next(),
        on_epoch=asked.append, stopping=lambda: len(asked) > min(drawn[0] + 5, stop + drawn[0]),
    )  # fmt: skip
    assert stopped.stopped
    assert np.isfinite(stopped.predict(parts.valid.indices)).all()
    assert_same(run_fit(parts, RECIPES["gibbs"], "linear", slot_of(tmp_path)), whole)


def test_a_disk_that_is_full_costs_a_note_and_not_the_fit(parts, tmp_path):
    slot, notes = Checkpoints(tmp_path, 0.0).next(), []

    def full(*_, **__):
        raise RunError("no space left on device")

    slot.write = full
    fitted = run_fit(parts, RECIPES["paper"], "joint", slot, on_note=notes.append)
    assert_same(fitted, run_fit(parts, RECIPES["paper"], "joint"))
    assert set(notes) == {"no checkpoint was written, training continues: no space left on device"}


def test_checkpoints_are_written_when_they_are_due(parts, tmp_path):
    seconds, written = count(), []
    slot = Slot(tmp_path, "fit-0", 10.0, clock=lambda: float(next(seconds)))
    write = slot.write
    slot.write = lambda *given, **options: (written.append(next(seconds)), write(*given, **options))
    run_fit(parts, RECIPES["paper"], "joint", slot)
    assert len(written) > 2
    assert all(10 <= later - before < 20 for before, later in pairwise(written[:-1]))  # the last one is forced
    assert len(list(tmp_path.glob("fit-0.*"))) == 2


def test_at_most_a_piece_of_an_epoch_is_computed_again(parts, tmp_path):
    """Steps of a fit that is killed after every third checkpoint, beside those of one that is not."""
    recipe, steps = RECIPES["paper"], []

    class Counted(nn.Module):
        def __init__(self, n_modes, width):
            super().__init__()
            self.head = nn.Linear(n_modes * width, 1)

        def forward(self, rows):
            if self.training:
                steps.append(len(rows))
            return self.head(rows.flatten(1)).squeeze(-1)

    def run(slot=None):
        model = JointModel(parts.train.shape, (2, 3), nonlinear=Counted)
        return fit(model, parts, recipe, seed=5, device="cpu", engine="reference", checkpoint=slot)

    whole = run()
    alone, deaths = len(steps), 0
    steps.clear()
    while True:
        try:
            fitted = run(slot_of(tmp_path, kill_after=3))
            break
        except Killed:
            deaths += 1
    assert deaths > 10
    assert_same(fitted, whole)
    assert len(steps) == alone  # a checkpoint at every point, so that nothing is computed twice


class Noisy(nn.Module):
    """A network with dropout, which draws from torch's global state."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(n_modes * width, 1)

    def forward(self, rows):
        return self.head(self.dropout(rows.flatten(1))).squeeze(-1)


def test_a_killed_fit_with_dropout_ends_with_the_same_bits(parts, tmp_path):
    def run(slot=None):
        model = JointModel(parts.train.shape, (2, 3), nonlinear=Noisy)
        return fit(model, parts, RECIPES["paper"], seed=5, device="cpu", checkpoint=slot)

    whole = run()
    with pytest.raises(Killed):
        run(slot_of(tmp_path, kill_after=18))
    assert_same(run(slot_of(tmp_path)), whole)


class Stubborn(nn.Module):
    """A network that fails, with a parameter that no start resets and that differs from process to process."""

    def __init__(self, n_modes, width):
        super().__init__()
        self.level = nn.Parameter(torch.rand(()))

    def forward(self, rows):
        return self.level + 1e-9 * rows.sum(dim=(1, 2))


def test_every_start_of_a_resumed_fit_begins_with_the_parameters_that_were_given(parts, tmp_path):
    recipe = make_recipe("paper", restarts=3, refine_epochs=2, lr_nonlinear=1e-3)

    def run(slot=None, seed=0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = JointModel(parts.train.shape, (0, 2), nonlinear=Stubborn)
        return fit(model, parts, recipe, seed=5, device="cpu", checkpoint=slot)

    whole = run()
    assert whole.restarts == 3
    with pytest.raises(Killed):
        run(slot_of(tmp_path, kill_after=4))
    assert_same(run(slot_of(tmp_path), seed=1), whole)


@pytest.mark.parametrize("recipe", ["default", "gibbs"])
@pytest.mark.parametrize("network", ["julia", Noisy])
def test_fits_in_two_threads_with_one_seed_are_the_fit_of_one_alone(parts, recipe, network):
    def run(model):
        return fit(model, parts, RECIPES[recipe], seed=5, device="cpu", engine="reference")

    alone, *models = [JointModel(parts.train.shape, (2, 3), nonlinear=network) for _ in range(4)]
    before, wanted = torch.get_rng_state(), run(alone)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, models):
            assert_same(found, wanted)
    assert torch.equal(torch.get_rng_state(), before)


def test_models_that_are_made_in_other_threads_do_not_disturb_a_fit(parts):
    """Layers are made with torch's global random state, which the fits of other threads use under a lock."""

    def run(_):
        model = JointModel(parts.train.shape, (2, 3), nonlinear=Noisy)
        return fit(model, parts, RECIPES["paper"], seed=5, device="cpu", engine="reference")

    with torch.random.fork_rng(devices=[]):
        wanted, done = run(0), threading.Event()

        def make_models():
            while not done.is_set():
                JointModel(parts.train.shape, (2, 3))

        with ThreadPoolExecutor(3) as pool:
            making = pool.submit(make_models)
            try:
                found = list(pool.map(run, range(2)))
            finally:
                done.set()
            making.result()
    for one in found:
        assert_same(one, wanted)


def test_torchs_global_random_state_is_left_alone(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", slot_of(tmp_path, kill_after=12))
    model, before = new_model("joint", parts.train.shape), torch.get_rng_state()
    fit(model, parts, RECIPES["default"], seed=5, device="cpu", engine="reference", checkpoint=slot_of(tmp_path))
    assert torch.equal(torch.get_rng_state(), before)


def test_states_come_back_as_they_were_written():
    state = TrainState(history=[Epoch(0, "refine", 1, 2, 0.5, None, 0.1, best=True, most=3)], best_state={})
    state.variables["a"] = Either((Patience(3, waited=2), RelativeChange(0.1, last=math.inf)))
    state.best_state["w"] = state.start["w"] = torch.arange(3.0)
    state.start["values/cp"] = torch.ones(2)
    found, elapsed = from_bytes(to_bytes(state, elapsed=2.5), "it")
    assert elapsed == 2.5
    assert found.variables == state.variables
    assert found.history == state.history
    assert found.start["w"] is found.best_state["w"]  # stored once
    assert set(found.start) == {"w", "values/cp"}
    assert set(from_bytes(to_bytes(state, "values/"), "it")[0].start) == {"w"}


@pytest.mark.parametrize("data", [b"", b"12345678{}", to_bytes({"object": 1})[:-3]])
def test_bytes_that_are_no_checkpoint_are_an_error(data):
    with pytest.raises(RunError, match="it is no checkpoint"):
        from_bytes(data, "it")


def test_a_class_that_is_not_registered_cannot_be_loaded():
    whole = to_bytes(TrainState()).replace(b"TrainState", b"TrainStatf")
    with pytest.raises(RunError, match="it is no checkpoint"):
        from_bytes(whole, "it")
