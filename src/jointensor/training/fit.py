"""Fit a joint model to a split: phases, restarts, and an outcome that is data, not a crash."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.shard_writer import ShardedTensor
from jointensor.data.split import Split
from jointensor.data.store import Entries, EntryStore, ShardedEntries
from jointensor.data.tensor import SparseTensor
from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import ConfigError, DataError
from jointensor.kernels import Engine, pick_engine
from jointensor.metrics import measure
from jointensor.models.joint import JointModel
from jointensor.models.size import check_memory, describe_model
from jointensor.predictors.biases import fit_bias, fit_bias_on_device, fit_bias_streamed
from jointensor.predictors.joint import JointPredictor, Solved
from jointensor.predictors.tables import Tables
from jointensor.solvers.data_parallel import SharedEntries, own_share, see_all
from jointensor.solvers.failures import BudgetError
from jointensor.solvers.losses import make_loss
from jointensor.threads import threads_for
from jointensor.training.checkpoint import Slot
from jointensor.training.from_disk import Request, check_from_disk
from jointensor.training.history import Epoch, OnEpoch
from jointensor.training.recipe import Recipe, make_recipe
from jointensor.training.restarts import run_restarts
from jointensor.training.state import Outcome, read_state
from jointensor.training.trainer import DEFAULT_LIMITS, MemoryLimits, Trainer

MAX_VALUE = 1e30
"""Size of values whose sums fit into 32 bits, however many there are."""

TRAIN_ENTRIES_PER_THREAD = 500_000
"""Training entries that are worth a thread of a CPU for what is done between steps and sweeps (starts, evaluation): a
tenth of the time of a small fit alone, and most of it where two threads wait for each other beside other processes."""

MAX_ENTRIES_COMPARED = 500_000
"""Validation entries that decide between the joint model and the biases; more would only take longer."""


@dataclass(frozen=True)
class Fit:
    """A trained model and how it came about."""

    predictor: JointPredictor
    """The model, and the biases for labels that were not seen."""
    history: list[Epoch]
    """All epochs of all starts."""
    outcome: Outcome
    """How training ended: ``converged``, ``budget``, ``diverged`` or ``dead``."""
    attempts: list[dict[str, Any]]
    """How every start ended, see :meth:`~jointensor.training.state.Attempt.to_dict`."""
    attempt: int
    """Which start was kept, counted from 0."""
    failed: bool
    """Whether even the best start has a validation RFE ≥ 1."""
    nonlinear_dead: bool
    """Whether f ended as a constant, even if g carried the fit."""
    seed: int
    """Of everything random in it."""
    seconds: float
    """How long it took."""
    recipe: Recipe
    """How it was trained."""
    engine: str
    """Which kernels were used."""
    ridge: float | None
    """λ of the exact solver; ``None`` where Θ_L was descended."""
    first: str | None
    """Which half was estimated first; ``None`` for a model of one half."""
    collapsed: list[str]
    """Blocks that ended at zero."""
    notes: list[str]
    """What the recipe asked for and the model or the loss did not allow, and what is worth knowing of the result."""
    stopped: bool = False
    """Whether ``stopping`` ended it; its checkpoint continues it."""
    resumed_epochs: float = 0.0
    """Epochs that came from a checkpoint; a part of one counts as that."""

    @property
    def returned(self) -> str:
        """Which predictor is used: ``joint``, or ``bias`` where that validated better and the recipe falls back."""
        return self.predictor.returned

    @property
    def restarts(self) -> int:
        """How many new starts were made."""
        return len(self.attempts) - 1

    @property
    def model(self) -> JointModel:
        """The trained model."""
        return self.predictor.model

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Values of entries, by index; see :class:`~jointensor.predictors.joint.JointPredictor`."""
        return self.predictor.predict(indices)


def fit(  # noqa: PLR0913 - everything that decides a fit
    model: JointModel,
    split: Split | ShardedTensor,
    recipe: str | Recipe = "default",
    *,
    seed: int = 0,
    device: str = "auto",
    budget: float = math.inf,
    fallback: Tables | None = None,
    on_epoch: OnEpoch | None = None,
    engine: str = "auto",
    on_note: Callable[[str], None] | None = None,
    checkpoint: Slot | None = None,
    stopping: Callable[[], bool] = lambda: False,
    processes: ProcessGroup = SINGLE_PROCESS,
    clock: Callable[[], float] = time.monotonic,
    limits: MemoryLimits = DEFAULT_LIMITS,
) -> Fit:
    """Train a model on a split.

    Parameters
    ----------
    model
        Trained in place, from a new random start.
    split
        Training and validation entries, in memory or in shards on disk; test entries are not read.
    recipe
        Every number of training, by name or as a :class:`~jointensor.training.recipe.Recipe`.
    seed
        Of everything random here. Same seed, same result, bit for bit on the CPU; a GPU adds in an order
        of its own. Torch's global random state is left as it was, and fits in several threads do not disturb each
        other.
    device
        ``auto`` takes a GPU where there is one; of entries on disk, the CPU.
    budget
        Seconds after which training stops with the best state so far; looked at between epochs and between shards.
    fallback
        Bias predictor for unseen labels, if there is one already.
    on_epoch
        Called with every row of the history.
    engine
        Which kernels do the work: ``auto``, ``reference``, ``numba`` (CPU) or ``triton`` (NVIDIA GPU).
    on_note
        Called with what is worth a line while it happens.
    checkpoint
        Where checkpoints are written and looked for; a fit that finds one continues from there.
    stopping
        Called between pieces of an epoch: whether to stop with the best state so far, after a last checkpoint.
    processes
        The processes that train together: all are given the same split, and each keeps its share of the training
        entries. Only the first one has a ``checkpoint``.
    clock
        Seconds; what ``budget`` and :attr:`Fit.seconds` are measured by.
    limits
        Memory that training may take where entries are on disk.
    """
    recipe = make_recipe(recipe)
    begin = clock()
    check_fit(model, split, recipe)
    if isinstance(split, ShardedTensor):
        check_from_disk(Request(model.linear, recipe))
        device = "cpu" if device == "auto" else device
    place = processes.device if processes.shared else pick_device(device)
    kernels = pick_engine(engine, place.type)
    if kernels.first_use and recipe.solves and on_note is not None:
        on_note(kernels.first_use)

    def check_time() -> None:
        if processes.decide(lambda: clock() > begin + budget):
            raise BudgetError

    if isinstance(split, Split):
        see_all(model, split.train, processes)
    model.to(place)
    kernels.equip(model, short=recipe.precision == "short")
    store, valid = make_store(split, recipe, place, processes, check_time), Entries.of(split.valid, place)
    if model.multilinear is not None:
        modes = split.train.modes if isinstance(split, Split) else split.modes
        model.multilinear.place(lambda n: modes[n].coordinates())
        if store.resident is not None and not processes.shared:
            model.multilinear.see(store.resident.indices)
        model.multilinear.draws.forget()  # those of an earlier fit
    trainer = Trainer(
        model,
        store,
        valid,
        recipe,
        seed=seed,
        deadline=begin + budget,
        clock=clock,
        on_epoch=on_epoch,
        on_note=on_note,
        engine=kernels,
        processes=processes,
        checkpoint=checkpoint,
        stopping=stopping,
        limits=limits,
    )
    found = read_state(checkpoint, processes)
    resumed = 0.0 if found is None else found.epochs
    if found is not None:
        trainer.resume(found)
    with threads_for(store.total, TRAIN_ENTRIES_PER_THREAD):  # steps and sweeps may be worth more
        run_restarts(trainer)
    fallback = _fit_bias(split, store, valid, kernels, processes) if fallback is None else fallback
    return finish(trainer, fallback, split.valid, kernels, begin=begin, resumed=resumed)


def make_store(
    split: Split | ShardedTensor,
    recipe: Recipe,
    device: torch.device,
    processes: ProcessGroup,
    between_shards: Callable[[], None],
) -> EntryStore:
    """The training entries as training sees them: in memory, on disk, or this process's share."""
    if isinstance(split, ShardedTensor):
        counts = torch.stack(processes.gather(torch.tensor(split.train.counts, device=device)))  # (processes, shards)
        return ShardedEntries.of(split, device, between_shards, counts.cpu().numpy(), processes.rank)
    entries = Entries.of(own_share(split.train, processes, ordered=recipe.solves), device)
    if processes.shared:
        return SharedEntries.share(entries, processes)
    return entries.by_last_mode() if recipe.solves else entries


def _fit_bias(
    split: Split | ShardedTensor, store: EntryStore, valid: Entries, engine: Engine, processes: ProcessGroup
) -> Tables:
    """Additive biases, fitted where the entries are."""
    if isinstance(split, ShardedTensor):
        return fit_bias_streamed(split, engine, processes)
    if isinstance(store, Entries) and store.device.type == "cuda" and len(store) == store.total:
        parts = [(part.indices, part.values) for part in (store, valid)]
        return fit_bias_on_device(parts[0], parts[1], split.train.shape)
    return fit_bias(split.train, split.valid)


def finish(
    trainer: Trainer, fallback: Tables, valid: SparseTensor, kernels: Engine, *, begin: float, resumed: float
) -> Fit:
    """The result of a fit whose training has ended."""
    model, recipe, state, processes = trainer.model, trainer.recipe, trainer.state, trainer.processes
    best = state.attempts[state.best_attempt]
    collapsed = [f"block '{name}' ended at zero: the ridge that validated best is large" for name in best.collapsed]
    notes = state.notes + collapsed
    used = kernels.serves(model, short=recipe.precision == "short")
    by_als = recipe.linear_solver == "als" and model.nonlinear is None
    solved = Solved(best.ridge, best.solutions, best.links) if by_als and best.ridge is not None else None
    predictor = JointPredictor(model.eval(), fallback, solved=solved)
    if recipe.fall_back:
        predictor = _better(predictor, valid, notes, processes)
    return Fit(
        predictor=predictor,
        history=state.past + state.history,
        outcome=best.outcome,
        attempts=[one.to_dict() for one in state.attempts],
        attempt=best.number,
        failed=best.failed,
        nonlinear_dead=best.nonlinear_dead,
        seed=trainer.seed,
        seconds=trainer.clock() - begin,
        recipe=recipe,
        engine=kernels.name if best.ridge is not None or used else "reference",
        ridge=best.ridge,
        first=best.first,
        collapsed=list(best.collapsed),
        notes=notes,
        stopped=trainer.stopped,
        resumed_epochs=resumed,
    )


def _better(
    predictor: JointPredictor, valid: SparseTensor, notes: list[str], processes: ProcessGroup
) -> JointPredictor:
    """The joint model, or the additive biases where they validate better."""
    if not len(valid):
        return predictor
    asked, truth = valid.indices[:MAX_ENTRIES_COMPARED], valid.values[:MAX_ENTRIES_COMPARED]
    joint, bias = processes.decide(
        lambda: [measure(one.predict(asked), truth).rmse for one in (predictor, predictor.fallback)]
    )
    if joint <= bias:
        return predictor
    notes.append(
        f"the additive-bias predictor is returned: its RMSE on the validation entries is {bias:.4g}, that of the joint "
        f"model {joint:.4g}; --set fall_back=false returns the joint model all the same"
    )
    return replace(predictor, returned="bias")


def pick_device(device: str) -> torch.device:
    """The device by name; ``auto`` is a GPU where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None
    return place


def check_fit(model: JointModel, split: Split | ShardedTensor, recipe: Recipe) -> None:
    """Refuse a model, entries and a recipe that do not go together."""
    shape = split.shape if isinstance(split, ShardedTensor) else split.train.shape
    if model.shape != shape:
        raise ConfigError(f"the model has shape {model.shape}, the tensor {shape}")
    if recipe.solves and model.multilinear is not None:
        widest = max((parameter.shape[-1] for parameter in model.multilinear.parameters() if parameter.ndim), default=0)
        check_memory(widest**2, f"one system of the exact solver for {describe_model(model.shape, model.rank)}")
    if isinstance(split, ShardedTensor):
        check_values(split.summary.low, split.summary.high, recipe)
        return
    parts = (split.train.values, split.valid.values)
    check_values(min(float(v.min(initial=0.0)) for v in parts), max(float(v.max(initial=0.0)) for v in parts), recipe)


def check_values(lowest: float, highest: float, recipe: Recipe) -> None:
    """Refuse values that training cannot take."""
    largest = max(-lowest, highest)
    if largest > MAX_VALUE:
        raise DataError(f"there is a value of size {largest:g}; divide all values so that none is beyond {MAX_VALUE:g}")
    if make_loss(recipe.loss).nonnegative and lowest < 0:
        raise DataError(f"the {recipe.loss} loss needs values of at least 0; there is a value of {lowest:g}")
