"""The phases, driven one by one: what they change, what they leave alone, in which order."""

import math
from dataclasses import replace
from itertools import groupby

import pytest
import torch

from jointensor.data.store import Entries
from jointensor.metrics import rmse
from jointensor.models.joint import JointModel
from jointensor.solvers.failures import BudgetError, DivergedError
from jointensor.training.fit import fit
from jointensor.training.init import Levels
from jointensor.training.phases import alternate, init_components, refine, train, warm_start
from jointensor.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def copies(parameters):
    return [parameter.detach().clone() for parameter in parameters]


def same(before, after):
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def make_trainer(parts, recipe, *, rank=(2, 3), linear=None, on_epoch=None, deadline=math.inf):
    model = JointModel(parts.train.shape, rank, linear=linear)
    entries = (Entries.of(part, CPU) for part in (parts.train, parts.valid))
    trainer = Trainer(model, *entries, recipe, on_epoch=on_epoch, deadline=deadline)
    trainer.start()
    return trainer


class Watch:
    """Notes after every epoch which half has changed, to the bit, and what the whole model's RMSE is."""

    def __init__(self):
        self.rows = []

    def attach(self, trainer):
        self.model, self.valid = trainer.model, trainer.valid
        self._remember()
        trainer.on_epoch = self

    def __call__(self, row):
        changed = {
            "linear": not same(self.linear, self.model.linear_parameters()),
            "nonlinear": not same(self.nonlinear, self.model.nonlinear_parameters()),
        }
        with torch.no_grad():
            figure = rmse(self.model(self.valid.indices), self.valid.values)
        self.rows.append((row, {half for half, moved in changed.items() if moved}, figure))
        self._remember()

    def _remember(self):
        self.linear, self.nonlinear = copies(self.model.linear_parameters()), copies(self.model.nonlinear_parameters())


@pytest.mark.parametrize("first", ["linear", "nonlinear"])
@pytest.mark.parametrize("linear", [None, "mean+bias+cp:2"])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_half_step_leaves_the_frozen_half_bit_identical(parts, short, first, linear, turns):
    trainer = make_trainer(parts, replace(short, first=first, epochs_per_turn=turns), linear=linear)
    watch = Watch()
    watch.attach(trainer)
    alternate(trainer)
    assert len(watch.rows) == short.rounds * 2 * turns
    for row, changed, _ in watch.rows:
        assert changed == {row.phase.removeprefix("alternate: ")}


@pytest.mark.parametrize("first", ["linear", "nonlinear"])
def test_the_warm_start_trains_the_first_half_only_and_keeps_no_state(parts, short, first):
    trainer = make_trainer(parts, replace(short, first=first))
    watch = Watch()
    watch.attach(trainer)
    warm_start(trainer)
    assert [changed for _, changed, _ in watch.rows] == [{first}] * short.warm_epochs
    assert [row.best for row, _, _ in watch.rows] == [False] * short.warm_epochs
    assert trainer.state.best_state is None


def test_refinement_trains_both_halves(parts, short):
    trainer = make_trainer(parts, short)
    watch = Watch()
    watch.attach(trainer)
    refine(trainer)
    assert [changed for _, changed, _ in watch.rows] == [{"linear", "nonlinear"}] * short.refine_epochs


def test_the_validation_figure_of_a_half_step_is_that_of_the_whole_model(parts, short):
    trainer = make_trainer(parts, replace(short, epochs_per_turn=2))
    watch = Watch()
    watch.attach(trainer)
    alternate(trainer)
    refine(trainer)
    assert [row.valid_loss for row, _, _ in watch.rows] == pytest.approx(
        [figure for *_, figure in watch.rows], rel=1e-5
    )


def test_one_round_of_plain_gradient_descent_is_equations_8_and_9(parts, short):
    recipe = replace(short, optimizer="sgd", batch_size=10_000, rounds=1, lr_linear=0.01, lr_nonlinear=0.03)
    trainer = make_trainer(parts, recipe)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    alternate(trainer)

    model = JointModel(parts.train.shape, (2, 3))
    model.load_state_dict(start)
    entries = trainer.train
    for parameters, rate in ((model.nonlinear_parameters(), 0.03), (model.linear_parameters(), 0.01)):
        loss = ((model(entries.indices) - entries.values) ** 2).sum() / len(entries)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= rate * gradient
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_one_epoch_of_refinement_is_one_step_on_all_parameters_with_their_own_rates(parts, short):
    recipe = replace(short, optimizer="sgd", batch_size=10_000, refine_epochs=1, lr_linear=0.01, lr_nonlinear=0.03)
    trainer = make_trainer(parts, recipe)
    model = JointModel(parts.train.shape, (2, 3))
    model.load_state_dict(trainer.model.state_dict())
    refine(trainer)
    loss = ((model(trainer.train.indices) - trainer.train.values) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for parameters, rate in ((model.nonlinear_parameters(), 0.03), (model.linear_parameters(), 0.01)):
            for parameter in parameters:
                parameter -= rate * parameter.grad
    for name, value in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_the_warm_start_fits_the_values_less_the_level_of_the_network(parts, short):
    recipe = replace(short, optimizer="sgd", batch_size=10_000, warm_epochs=1, start="data")
    trainer = make_trainer(parts, recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        init_components(trainer)
    model = JointModel(parts.train.shape, (2, 0))
    model.multilinear.load_state_dict(trainer.model.multilinear.state_dict())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        warm_start(trainer)
    target = trainer.train.values - trainer.state.levels.nonlinear
    assert trainer.state.levels.nonlinear > 0
    ((model(trainer.train.indices) - target) ** 2).mean().backward()
    with torch.no_grad():
        for found, parameter in zip(trainer.model.linear_parameters(), model.linear_parameters(), strict=True):
            torch.testing.assert_close(found, parameter - 0.02 * parameter.grad, rtol=1e-4, atol=1e-5)


def test_an_epoch_visits_every_entry_once_in_a_new_order(parts, short):
    trainer = make_trainer(parts, replace(short, batch_size=50))
    seen = []

    def score(indices):
        if torch.is_grad_enabled():
            seen.append(indices.clone())
        return trainer.model.score(indices)

    optimizer = trainer.sgd("it", (trainer.model, 1e-9))
    orders = []
    for _ in range(2):
        seen.clear()
        trainer.epoch(score, trainer.freeze(lambda indices: torch.zeros(len(indices))), optimizer, "refine")
        assert [len(batch) for batch in seen] == [50] * 7 + [10]
        orders.append(torch.cat(seen).tolist())
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(trainer.train.indices.tolist())
    assert orders[0] != orders[1]


def test_refinement_goes_on_from_the_best_state(parts, short):
    trainer = make_trainer(parts, replace(short, refine_epochs=0))
    alternate(trainer)
    best = {name: value.clone() for name, value in trainer.state.best_state.items()}
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.fill_(7.0)
    refine(trainer)
    assert all(torch.equal(value, best[name]) for name, value in trainer.model.state_dict().items())


def phases(history):
    return [(name, len(list(rows))) for name, rows in groupby(row.phase for row in history)]


def test_history_follows_the_order_of_the_recipe(parts, short):
    history = fit(JointModel(parts.train.shape, (2, 3)), parts, short).history
    turns = [("alternate: nonlinear", 1), ("alternate: linear", 1)]
    assert phases(history) == [("warm start", 3), *turns * 4, ("refine", 5)]
    assert [row.epoch for row in history] == list(range(1, 17))
    assert [row.round for row in history] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 0, 0, 0, 0]


def test_the_ablation_starts_with_the_nonlinear_half(parts, short):
    history = fit(JointModel(parts.train.shape, (2, 3)), parts, replace(short, first="nonlinear")).history
    turns = [("alternate: linear", 1), ("alternate: nonlinear", 1)]
    assert phases(history) == [("warm start", 3), *turns * 4, ("refine", 5)]


@pytest.mark.parametrize(("rank", "training"), [((2, 3), "naive"), ((2, 0), "alternating"), ((0, 3), "alternating")])
def test_naive_training_and_models_of_one_half_refine_only(parts, short, rank, training):
    history = fit(JointModel(parts.train.shape, rank), parts, replace(short, training=training)).history
    assert phases(history) == [("refine", 5)]


def test_alternation_stops_by_the_rule_at_the_end_of_a_round(parts, short):
    trainer = make_trainer(parts, replace(short, tolerance=10.0, rounds=9, epochs_per_turn=2))
    alternate(trainer)
    assert max(row.round for row in trainer.state.history) == 2  # the first round has nothing to be compared with
    assert len(trainer.state.history) == 2 * 4


def test_patience_stops_refinement_that_gets_worse(parts, short):
    trainer = make_trainer(parts, replace(short, patience=3, refine_epochs=50))
    trainer.valid = Entries(trainer.train.indices, -trainer.train.values)  # what is learnt is wrong here
    refine(trainer)
    figures = [row.valid_loss for row in trainer.state.history]
    assert trainer.state.converged
    assert len(figures) == figures.index(min(figures)) + 1 + 3 < 50


def test_the_best_state_is_kept_bit_for_bit(parts, short):
    states = []
    trainer = make_trainer(parts, short)
    trainer.valid = Entries(trainer.train.indices, -trainer.train.values)  # what is learnt is wrong here
    trainer.on_epoch = lambda row: states.append(copies(trainer.model.state_dict().values()))
    train(trainer)
    figures = [math.inf if row.phase == "warm start" else row.valid_loss for row in trainer.state.history]
    best = figures.index(min(figures))
    assert best != len(figures) - 1
    assert same(states[best], trainer.state.best_state.values())
    assert [row.best for row in trainer.state.history] == [
        x < min([math.inf, *figures[:k]]) for k, x in enumerate(figures)
    ]


def test_guessed_components_take_the_place_of_random_ones_unless_the_start_is_raw(clear, short):
    for start, guessed in (("data", True), ("raw", False)):
        trainer = make_trainer(clear, replace(short, start=start))
        before = copies(trainer.model.linear_factors)
        init_components(trainer)
        assert same(before, trainer.model.linear_factors) != guessed


@pytest.mark.parametrize(
    ("guesses", "how", "guessed"),
    [
        ("linear", {"training": "alternating"}, True),
        ("linear", {"training": "naive"}, False),
        ("linear", {"first": "nonlinear"}, False),
        ("always", {"training": "alternating"}, True),
        ("always", {"training": "naive"}, True),
        ("always", {"first": "nonlinear"}, True),
        ("never", {"training": "alternating"}, False),
        ("never", {"training": "naive"}, False),
    ],
)
def test_when_components_start_at_guesses(clear, short, guesses, how, guessed):
    """With steps of next to nothing components stay where they start."""
    still = replace(short, guesses=guesses, lr_linear=1e-12, lr_nonlinear=1e-12, restarts=0, failure_epochs=0, **how)
    trainer = make_trainer(clear, still)
    before = copies(trainer.model.linear_factors)
    train(trainer)
    moved = [
        not torch.allclose(one, other, atol=1e-6)
        for one, other in zip(before, trainer.model.linear_factors, strict=True)
    ]
    assert all(moved) == any(moved) == guessed


def test_guesses_that_only_fit_their_training_entries_are_not_taken(clear, short):
    """Of pure noise a rank-one term explains a part of the entries it was fitted to, and of others nothing."""
    trainer = make_trainer(clear, short)
    generator = torch.Generator().manual_seed(0)
    for name in ("train", "valid"):
        indices = getattr(trainer, name).indices
        setattr(trainer, name, Entries(indices, torch.randn(len(indices), generator=generator)))
    trainer.state.levels = Levels(0.0, 0.0)
    before = copies(trainer.model.linear_factors)
    init_components(trainer)
    assert same(before, trainer.model.linear_factors)


def test_guessed_components_explain_more_than_random_ones(clear, short):
    trainer = make_trainer(clear, short)
    target = trainer.train.values - trainer.state.levels.nonlinear

    def error():
        return rmse(trainer.model.multilinear(trainer.train.indices).detach(), target)

    before = error()
    init_components(trainer)
    assert error() < 0.8 * min(before, float(target.square().mean().sqrt()))


def test_a_deadline_in_the_past_ends_training_before_the_next_epoch(parts, short):
    trainer = make_trainer(parts, short, deadline=0.0)
    with pytest.raises(BudgetError):
        refine(trainer)
    assert trainer.state.history == []


def test_a_loss_that_is_not_finite_ends_training(parts, short):
    trainer = make_trainer(parts, replace(short, optimizer="sgd", lr_linear=1e30, lr_nonlinear=1e30))
    with pytest.raises(DivergedError):
        refine(trainer)
