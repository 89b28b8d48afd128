"""A fit that is interrupted anywhere and resumed ends with the same bits as one that was not."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.errors import RunError
from jointensor.models.joint import JointModel
from jointensor.training.checkpoint import Checkpoints
from jointensor.training.fit import fit
from jointensor.training.journal import Journals
from jointensor.training.recipe import make_recipe

RECIPES = {
    "paper": make_recipe("paper", rounds=2, refine_epochs=3, warm_epochs=2, batch_size=64),
    "default": make_recipe("default", restarts=1, refine_epochs=10, cycle=3, batch_size=64, cycle_gain=0.0),
    "naive": make_recipe("paper", training="naive", refine_epochs=4, batch_size=64, optimizer="sgd"),
    "gibbs": make_recipe("default", linear_solver="gibbs", burn_in=3, draws=4, refine_epochs=3, cycle=3),
    "huber": make_recipe("default", loss="huber", refine_epochs=3, cycle=3),
}
MODELS = {"joint": ((2, 3), "julia"), "linear": ((3, 0), "julia"), "network": ((0, 3), "julia")}


class Killed(BaseException):
    """As a kill would end a process: nothing of ours catches it."""


@pytest.fixture(scope="module")
def parts():
    return split(make_joint((9, 8, 7), (2, 0), observed=300, noise=0.1, seed=3)[0], seed=0)


def new_model(name, shape):
    rank, part = MODELS[name]
    linear = "mean+bias+cp:3" if name == "linear" else None
    return JointModel(shape, rank, linear=linear, nonlinear=part)


def run_fit(parts, recipe, name, journals=None):
    model = new_model(name, parts.train.shape)
    journal = None if journals is None else journals.next()
    return fit(model, parts, recipe, seed=5, device="cpu", engine="reference", journal=journal)


def journals_of(folder, kill_after=None, stop_after=None):
    """Journals that write at every point; the process 'dies' after so many files, or somebody asks to stop."""
    made, counter = Checkpoints(folder, 0.0), count(1)
    asked = []
    journals = Journals(made, lambda: bool(asked), lambda note: None)
    plain = journals.next

    def next_():
        journal = plain()
        write = journal.slot.write

        def dying(data):
            write(data)
            number = next(counter)
            if number == kill_after:
                raise Killed
            if number == stop_after:
                asked.append(True)

        journal.slot.write = dying
        return journal

    journals.next = next_
    return journals


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
    [("paper", "joint"), ("default", "joint"), ("gibbs", "joint")]
    + [pytest.param(*pair, marks=pytest.mark.slow) for pair in (
        ("default", "linear"), ("default", "network"), ("naive", "joint"), ("gibbs", "linear"), ("huber", "joint")
    )],
)  # fmt: skip
def test_a_fit_killed_after_any_checkpoint_ends_with_the_same_bits(parts, recipe, model, tmp_path):
    chosen = RECIPES[recipe]
    whole = run_fit(parts, chosen, model)
    for kill in (1, 10, 31, 72):
        folder = tmp_path / str(kill)
        folder.mkdir()
        try:
            run_fit(parts, chosen, model, journals_of(folder, kill_after=kill))
        except Killed:
            journals = journals_of(folder)
            assert_same(run_fit(parts, chosen, model, journals), whole)
            assert journals.resumed_epochs > 0
        else:
            break  # fewer checkpoints than that
    assert kill > 10


def test_one_fit_killed_again_and_again(parts, tmp_path):
    whole, deaths = run_fit(parts, RECIPES["default"], "joint"), 0
    while True:
        try:
            fitted = run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path, kill_after=9))
            break
        except Killed:
            deaths += 1
    assert deaths > 5
    assert_same(fitted, whole)


def test_a_fit_with_restarts_resumes_in_a_later_start(parts, tmp_path):
    hopeless = make_recipe(
        "paper", restarts=2, probation=1, rounds=1, refine_epochs=2, lr_linear=1e-9, lr_nonlinear=1e-9
    )
    whole = run_fit(parts, hopeless, "joint")
    for kill in (20, 60):
        folder = tmp_path / str(kill)
        folder.mkdir()
        try:
            run_fit(parts, hopeless, "joint", journals_of(folder, kill_after=kill))
        except Killed:
            assert_same(run_fit(parts, hopeless, "joint", journals_of(folder)), whole)


def test_a_finished_fit_is_not_trained_again(parts, tmp_path):
    whole = run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path))
    journals = journals_of(tmp_path)
    again = run_fit(parts, RECIPES["default"], "joint", journals)
    assert_same(again, whole)
    assert journals.resumed_epochs == len(whole.history)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path, kill_after=12))
    before, newest = sorted(tmp_path.glob("fit-0.*"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    journals = journals_of(tmp_path)
    assert_same(run_fit(parts, RECIPES["default"], "joint", journals), run_fit(parts, RECIPES["default"], "joint"))
    assert journals.resumed_epochs > 0
    assert before.name < newest.name


def test_a_checkpoint_of_another_model_is_refused(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path, kill_after=5))
    with pytest.raises(RunError, match="does not fit"):
        run_fit(parts, RECIPES["default"], "linear", journals_of(tmp_path))


def test_somebody_who_asks_to_stop_gets_the_best_so_far_and_can_go_on(parts, tmp_path):
    whole = run_fit(parts, RECIPES["default"], "joint")
    journals = journals_of(tmp_path, stop_after=60)
    stopped = run_fit(parts, RECIPES["default"], "joint", journals)
    assert journals.stopped
    assert len(stopped.history) < len(whole.history)
    assert np.isfinite(stopped.predict(parts.valid.indices)).all()
    assert not stopped.model.training
    assert_same(run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path)), whole)


def test_torchs_own_random_state_is_left_alone(parts, tmp_path):
    with pytest.raises(Killed):
        run_fit(parts, RECIPES["default"], "joint", journals_of(tmp_path, kill_after=12))
    model, before = new_model("joint", parts.train.shape), torch.get_rng_state()
    fit(model, parts, RECIPES["default"], seed=5, device="cpu", journal=journals_of(tmp_path).next())
    assert torch.equal(torch.get_rng_state(), before)
