"""Where a fit is: everything that a checkpoint holds and that training continues from.

Phases read and write the state. A phase keeps its local variables in a small dataclass of its own
(:meth:`Trainer.enter`), so that a fit that is resumed enters the phase it was in, finds its variables there and
continues with the epoch that was interrupted. A checkpoint is written at the beginning of an epoch or between pieces of
one; at these points a phase has nothing to remember that is not in its variables.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

from jointensor.distributed.process_group import ProcessGroup
from jointensor.errors import RunError
from jointensor.random_state import RandomState
from jointensor.solvers.failures import FailureDetector
from jointensor.solvers.sgd import Position
from jointensor.solvers.stopping import Either, Patience, RelativeChange
from jointensor.training.checkpoint import Slot, from_bytes, stored, to_bytes
from jointensor.training.history import Epoch
from jointensor.training.init import Levels

for kind in (Epoch, Either, FailureDetector, Levels, Patience, Position, RelativeChange):
    stored(kind)

MISFIT = "the checkpoint does not fit this run; remove the files in its folder checkpoints to start again"

Snapshot = dict[str, Tensor]
"""Copies of tensors, by name."""

Outcome = Literal["converged", "budget", "diverged", "dead"]
"""``converged``: the stopping rule fired. ``budget``: epochs or seconds ran out, or a start was given up.
``diverged``: a loss was not finite. ``dead``: every prediction is the same number."""


@stored
@dataclass(frozen=True)
class Attempt:
    """One start and how it ended."""

    number: int
    outcome: Outcome
    rfe: float
    """On validation entries (training entries where there are none)."""
    nonlinear_dead: bool
    """Whether f ended as a constant, even if g carried the fit."""
    epochs: int
    seconds: float
    ridge: float | None = None
    """λ of the exact solver; ``None`` where Θ_L was descended."""
    links: dict[int, dict[str, float]] = field(default_factory=dict)
    """Strengths of the links of rows, by mode and kind."""
    solutions: int = 1
    """Exact solutions whose mean g is."""
    first: str | None = None
    """Which half was estimated first."""
    collapsed: tuple[str, ...] = ()
    """Blocks of g that ended at zero."""

    @property
    def failed(self) -> bool:
        """Whether the paper would start again: RFE ≥ 1, or nothing learnt at all."""
        return self.outcome in ("diverged", "dead") or not self.rfe < 1

    def to_dict(self) -> dict[str, Any]:
        """The row of ``metrics.json``."""
        row = asdict(self) | {"failed": self.failed, "valid_rfe": self.rfe if math.isfinite(self.rfe) else None}
        del row["number"], row["rfe"]
        return row | {"collapsed": list(self.collapsed)}


@stored
@dataclass(frozen=True)
class Alone:
    """One half that was trained alone, the other a constant."""

    figure: float
    state: Snapshot | None
    """Of the whole model."""
    epochs: int = 0
    """Of descent so far."""
    ended: bool = True
    """Whether it was trained to its end."""


@stored
@dataclass
class TrainState:
    """Where a fit is; see the head of this module."""

    shared: bool = False
    """Whether several processes train, each on its share of the entries."""
    # all starts
    finished: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    """Starts that have ended."""
    best_attempt: int = 0
    """Which of them is the best."""
    attempt_state: Snapshot = field(default_factory=dict)
    """Its parameters."""
    past: list[Epoch] = field(default_factory=list)
    """Epochs of these starts."""
    untouched: Snapshot = field(default_factory=dict)
    """Parameters that no initialisation sets, as they were given: every start begins with them."""
    batch_limit: int = sys.maxsize
    """Most entries per step that fit into memory, as far as is known."""
    notes: list[str] = field(default_factory=list)
    # this start
    start: Snapshot = field(default_factory=dict)
    """Parameters after initialisation; empty before it."""
    levels: Levels = Levels(0.0, 0.0)  # noqa: RUF009 - frozen
    phase: int = 0
    """Phases of the recipe that are done."""
    variables: dict[str, Any] = field(default_factory=dict)
    """Local variables of phases that are under way."""
    history: list[Epoch] = field(default_factory=list)
    best_figure: float = math.inf
    best_state: Snapshot | None = None
    converged: bool = False
    ridge: float | None = None
    links: dict[int, dict[str, float]] = field(default_factory=dict)
    first: str | None = None
    """Which half was estimated first."""
    alone: dict[str, Alone] = field(default_factory=dict)
    """Halves that were trained alone, by name."""
    single: Snapshot | None = None
    """The first of several solutions of Θ_L, where their mean was taken."""
    collapsed: list[str] = field(default_factory=list)
    failures: FailureDetector = field(default_factory=lambda: FailureDetector(0))
    # filled in when a checkpoint is written
    model: Snapshot = field(default_factory=dict)
    random: RandomState = field(default_factory=dict)
    solvers: dict[str, Any] = field(default_factory=dict)
    """States of optimisers, running averages and exact solvers, by name."""
    position: Position | None = None
    """Where in an epoch the checkpoint was written; ``None`` between epochs."""

    @property
    def epochs(self) -> float:
        """Epochs so far; a part of one counts as that."""
        return len(self.past) + len(self.history) + (0.0 if self.position is None else self.position.share)

    def next_start(self) -> TrainState:
        """The state of the next start."""
        return TrainState(
            shared=self.shared,
            attempts=self.attempts,
            best_attempt=self.best_attempt,
            attempt_state=self.attempt_state,
            past=self.past + self.history,
            untouched=self.untouched,
            batch_limit=self.batch_limit,
        )


def read_state(slot: Slot | None, processes: ProcessGroup) -> TrainState | None:
    """The newest checkpoint; that of the first process for all, since its folder need not be where the others are."""
    found = None if slot is None else slot.read()
    if found is not None and not isinstance(found, TrainState):
        raise RunError(MISFIT)
    if found is not None and found.shared != processes.shared:
        was = "by processes that torchrun had started" if found.shared else "by one process without torchrun"
        raise RunError(f"the checkpoint was written {was}: resume the run in the same way, or start a new one")
    if not processes.shared:
        return found
    data = processes.bytes_of(b"" if found is None else to_bytes(found))
    if not data:
        return None
    state: TrainState = from_bytes(data, "the checkpoint of the first process")[0]
    return state
