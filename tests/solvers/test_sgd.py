"""Sgd: running means of parameters, learning rates that fall, cycles, decay, and how many entries a step takes."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from jointensor.data.store import Entries
from jointensor.models.joint import JointModel
from jointensor.solvers.losses import make_loss
from jointensor.solvers.sgd import PIECES, Average, FrozenHalf, Sgd, set_rate
from jointensor.training.phases import alternate, refine
from jointensor.training.recipe import Recipe
from jointensor.training.trainer import MAX_BATCH, MIN_BATCH, STEPS_PER_EPOCH, Trainer

CPU = torch.device("cpu")


class Noted(torch.optim.SGD):
    """Plain gradient descent that notes the learning rate of every step."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.rates = []

    def step(self):
        self.rates.append([float(group["lr"]) for group in self.param_groups])
        super().step()


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def entries(count):
    generator = torch.Generator().manual_seed(0)
    return Entries(torch.zeros(count, 1, dtype=torch.int64), torch.randn(count, generator=generator))


def level():
    """A half that is one number."""
    number = nn.Parameter(torch.zeros(()))
    return number, lambda indices: number.expand(len(indices))


def test_the_running_mean_is_that_of_all_at_first_and_forgets_later():
    parameter = nn.Parameter(torch.tensor([1.0, 10.0]))
    average = Average([parameter], epochs=4 / PIECES)  # over four pieces
    seen, expected = [], torch.zeros(2)
    for step in range(1, 9):
        with torch.no_grad():
            parameter.copy_(torch.tensor([float(step), -(float(step) ** 2)]))
        average.update()
        seen.append(parameter.detach().clone())
        expected = torch.stack(seen).mean(dim=0) if step <= 4 else 0.75 * expected + 0.25 * seen[-1]
        torch.testing.assert_close(average.means[0], expected)


def test_a_mean_over_less_than_a_piece_is_the_last_state():
    parameter = nn.Parameter(torch.tensor(1.0))
    average = Average([parameter], epochs=0.001)
    for value in (3.0, -2.0):
        with torch.no_grad():
            parameter.fill_(value)
        average.update()
        assert float(average.means[0]) == value


def test_swapping_twice_changes_nothing_and_settling_goes_on_from_the_mean():
    one, other = nn.Parameter(torch.tensor([4.0])), nn.Parameter(torch.tensor([[8.0]]))
    average = Average([one, other], epochs=1.0)
    average.update()
    with torch.no_grad():
        one.fill_(6.0)
        other.fill_(0.0)
    average.update()
    for state, mean in (((6.0, 0.0), (5.0, 4.0)), ((5.0, 4.0), (6.0, 0.0)), ((6.0, 0.0), (5.0, 4.0))):
        assert (one.item(), other.item()) == state
        assert tuple(kept.item() for kept in average.means) == mean
        average.swap()
    average.swap()
    average.settle()
    assert (one.item(), other.item()) == (5.0, 4.0)
    with torch.no_grad():
        one.fill_(9.0)
    average.update()  # a new mean, of what comes now only
    assert average.means[0].item() == 9.0


def test_the_mean_is_validated_and_kept_and_training_goes_on_without_it(parts, short):
    trainers = []
    for average in (0.0, 2.0):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = JointModel(parts.train.shape, (2, 3))
            given = (Entries.of(part, CPU) for part in (parts.train, parts.valid))
            trainer = Trainer(model, *given, replace(short, average=average))
            trainer.start()
            descent = trainer.sgd("it", (model, 0.1))
            figure = trainer.epoch(model.score, FrozenHalf(), descent, "refine")
        trainers.append(trainer)
    plain, averaged = trainers
    assert all(torch.equal(a, b) for a, b in zip(plain.snapshot().values(), averaged.snapshot().values(), strict=True))
    names = [name for name, _ in model.named_parameters()]
    kept = [averaged.state.best_state[name] for name in names]
    assert all(torch.equal(a, b) for a, b in zip(kept, descent.average.means, strict=True))
    assert not any(torch.equal(plain.state.best_state[name], averaged.state.best_state[name]) for name in names)
    model.load_state_dict(averaged.state.best_state)
    with torch.no_grad():
        error = (model(averaged.valid.indices) - averaged.valid.values).square().mean().sqrt()
    assert figure == pytest.approx(float(error), rel=1e-5)


def test_set_rate_is_a_share_of_the_first_rate_however_often_it_is_called():
    number = nn.Parameter(torch.zeros(()))
    on_device = torch.tensor(0.4)
    optimizer = torch.optim.SGD([{"params": [number], "lr": 0.2}])
    optimizer.param_groups.append({"params": [], "lr": on_device})
    for share in (0.5, 0.25, 1.0, 0.0):
        set_rate(optimizer, share)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * share)
        assert optimizer.param_groups[1]["lr"] is on_device
        assert float(on_device) == pytest.approx(0.4 * share)


@pytest.mark.parametrize(("within", "epochs"), [(1, 1), (3, 3), (4, 2)])
def test_a_rate_that_falls_is_set_for_every_piece_of_an_epoch(within, epochs):
    number, half = level()
    optimizer = Noted([number], lr=0.2)
    descent = Sgd(optimizer, make_loss("squared"), batch_size=2, falls_within=within)
    for _ in range(epochs):
        descent.epoch(half, FrozenHalf(), entries(4 * PIECES))  # two steps a piece
    pieces = torch.arange(epochs * PIECES).repeat_interleave(2)
    expected = 0.2 * (1 - pieces / (PIECES * within))
    torch.testing.assert_close(torch.tensor(optimizer.rates).squeeze(1), expected)
    assert descent.epochs == epochs


def test_a_rate_that_does_not_fall_stays():
    number, half = level()
    optimizer = Noted([number], lr=0.2)
    descent = Sgd(optimizer, make_loss("squared"), batch_size=4)
    for _ in range(2):
        descent.epoch(half, FrozenHalf(), entries(30))
    assert optimizer.rates == [[0.2]] * 16


@pytest.mark.parametrize("steps", [1, 5, 16, 17, 100])
def test_the_pieces_of_an_epoch_are_its_steps_in_order(steps):
    number, _ = level()
    descent = Sgd(torch.optim.SGD([number], lr=0.1), make_loss("squared"), 1, Average([number], 1.0))
    pieces = list(descent.pieces(steps))
    assert [step for first, last in pieces for step in range(first, last)] == list(range(steps))
    assert len(pieces) == descent.average.count == min(steps, PIECES)


def trainer_of(count, recipe):
    return Trainer(JointModel((2, 2), (1, 0)), entries(count), entries(0), recipe)


@pytest.mark.parametrize(
    ("count", "size"),
    [
        (1, MIN_BATCH),
        (100_000, MIN_BATCH),
        (1_000_000, 4096),
        (20_000_000, 65_536),
        (30_000_000, MAX_BATCH),
        (10**9, MAX_BATCH),
    ],
)
def test_a_batch_size_of_zero_takes_about_256_steps_within_bounds(count, size):
    trainer = trainer_of(1, Recipe(batch_size=0))
    trainer.train = SimpleNamespace(total=count)  # all that counts is how many there are
    assert trainer.batch_size == size
    if MIN_BATCH < size < MAX_BATCH:
        assert STEPS_PER_EPOCH / math.sqrt(2) <= count / size <= STEPS_PER_EPOCH * math.sqrt(2)


def test_a_batch_size_that_is_given_is_taken():
    assert trainer_of(50, Recipe(batch_size=7)).batch_size == 7


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_decay_shrinks_what_no_entry_holds_up(optimizer):
    """Both halves of a model whose targets are its own values: no gradients, so that all that acts is the decay."""
    model = JointModel((3, 3), (1, 0))
    indices = torch.tensor([[0, 0], [1, 1], [2, 2]])
    with torch.no_grad():
        model.multilinear.cp.stacked.fill_(2.0)
    recipe = Recipe(decay=0.5, optimizer=optimizer, batch_size=1, lr_linear=0.1)
    trainer = Trainer(model, Entries(indices, torch.full((3,), 4.0)), Entries(indices[:0], torch.zeros(0)), recipe)
    held = model.multilinear.cp.stacked.detach().clone()
    descent = trainer.sgd("it", (model, 0.1))
    descent.epoch(lambda given: 0 * model(given) + 4.0, FrozenHalf(), trainer.train)  # three steps
    torch.testing.assert_close(model.multilinear.cp.stacked.detach(), held * (1 - 0.1 * 0.5) ** 3)
    still = trainer_of(5, Recipe(optimizer=optimizer)).sgd("it", (model, 0.1))
    assert [group["weight_decay"] for group in still.optimizer.param_groups] == [0.0]


def refined(parts, recipe, first=alternate):
    model = JointModel(parts.train.shape, (2, 3))
    trainer = Trainer(model, *(Entries.of(part, CPU) for part in (parts.train, parts.valid)), recipe, seed=1)
    trainer.start()
    first(trainer)
    trainer.state.history.clear()
    refine(trainer)
    return trainer


@pytest.mark.parametrize(
    ("gain", "most", "epochs", "converged"),
    [(0.9999, 120, 4, True), (0.0, 12, 12, False), (0.0, 11, 11, False), (0.0, 3, 3, False), (0.0, 0, 0, False)],
)
def test_another_cycle_follows_while_cycles_gain_and_epochs_are_left(parts, short, gain, most, epochs, converged):
    recipe = replace(short, cycle=4, cycle_gain=gain, refine_epochs=most)
    trainer = refined(parts, recipe)
    assert (len(trainer.state.history), trainer.state.converged) == (epochs, converged)
    assert {row.phase for row in trainer.state.history} <= {"refine"}


def test_a_first_cycle_that_is_compared_with_nothing_gains(parts, short):
    recipe = replace(short, cycle=4, cycle_gain=0.9999, refine_epochs=120)
    assert len(refined(parts, recipe, first=lambda trainer: None).state.history) == 4 + 8


def test_cycles_stop_after_the_first_that_gains_too_little(parts, short):
    recipe = replace(short, cycle=2, cycle_gain=0.04, refine_epochs=1000, lr_linear=0.05, lr_nonlinear=0.05)
    trainer = refined(parts, recipe, first=lambda trainer: None)
    figures, lengths, begin = [row.valid_loss for row in trainer.state.history], [], 0
    while begin < len(figures):
        lengths.append(2 ** (len(lengths) + 1))
        begin += lengths[-1]
    assert sum(lengths) == len(figures) < 1000
    bests = [min(figures[: sum(lengths[: k + 1])]) for k in range(len(lengths))]
    gains = [1 - after / before for before, after in pairwise(bests)]
    assert len(gains) >= 2
    assert all(gain > 0.04 for gain in gains[:-1])
    assert gains[-1] <= 0.04
    assert trainer.state.converged


def test_without_validation_all_epochs_are_spent_in_cycles(parts, short):
    nothing = parts.train.take(range(0))
    trainer = refined(replace(parts, valid=nothing), replace(short, cycle=4, cycle_gain=0.5, refine_epochs=30))
    assert len(trainer.state.history) == 30
    assert not trainer.state.converged


def test_a_cycle_starts_from_the_best_state_and_ends_with_a_rate_near_zero(parts, short):
    """Steps of a whole epoch get shorter as the cycle goes on, and long again at the start of the next."""
    model = JointModel(parts.train.shape, (2, 3))
    given = (Entries.of(part, CPU) for part in (parts.train, parts.valid))
    moved, last = [], []
    trainer = Trainer(model, *given, replace(short, cycle=4, cycle_gain=0.0, refine_epochs=12, average=1.0))

    def note(row):
        now = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        moved.append(float((now - last[-1]).norm()) if last else 0.0)
        last.append(now)

    trainer.on_epoch = note
    trainer.start()
    refine(trainer)
    assert moved[3] < 0.5 * moved[1]
    assert moved[11] < 0.3 * moved[5]
    assert moved[4] > moved[3]
