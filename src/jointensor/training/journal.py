"""How an interrupted fit goes on: its program runs again, and is answered from what it was told before.

A fit is a program that trains, asks for figures, keeps copies of its state and decides. The journal stands between
the two. It notes every figure the program was given (:meth:`Journal.decide`), knows the copies that are still held
(:meth:`Journal.snapshot`) and the things that change while they train, such as optimisers (:meth:`Journal.watch`). To
resume, the program starts again from its beginning; until it reaches the checkpoint nothing is trained, every question
has the answer it had. There, model, copies, things and random state are put back, and training goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from jointensor.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from jointensor.errors import RunError
from jointensor.solvers.als import LARGE, VALUES
from jointensor.solvers.random_state import random_state, set_random_state
from jointensor.training.checkpoint import Checkpoints, Slot, from_bytes, to_bytes

T = TypeVar("T")
R = TypeVar("R", bound="Resumable")


MISFIT = "the checkpoint does not fit this run; remove the files in its folder checkpoints to start again"


class Snapshot(dict[str, Tensor]):
    """Copies of some tensors, by name."""


class Resumable(Protocol):
    """Something that changes while it trains."""

    def resumable(self) -> Any:
        """All of it that the model does not hold: nested dictionaries, lists, numbers and tensors."""

    def resume(self, state: Any) -> None:
        """Take that up again."""


class StoppedError(Exception):
    """Somebody asked to stop; the state was written."""


class Journal:
    """What a fit was told; see the head of this module.

    Parameters
    ----------
    slot
        Where checkpoints are written and looked for; without one nothing is.
    stopping
        Says whether somebody asked to stop.
    on_note
        Called with what is worth a line, such as a checkpoint that could not be written.
    processes
        The processes of the fit; the first one writes, and whether to is its decision.
    """

    def __init__(
        self,
        slot: Slot | None = None,
        stopping: Callable[[], bool] = lambda: False,
        on_note: Callable[[str], None] = lambda _: None,
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.slot, self.stopping, self.on_note, self.processes = slot, stopping, on_note, processes
        self.model: nn.Module | None = None
        self.found: dict[str, Any] | None = _read(slot, processes)
        """The checkpoint that is to be reached; ``None`` where training is under way."""
        self.resumed_epochs: float = 0.0 if self.found is None else self.found["epochs"]
        self.told: list[Any] = []
        self.snapshots: list[weakref.ref[Snapshot]] = []
        self.things: list[weakref.ref[Any]] = []
        self.points = 0
        self.stopped = False

    @property
    def replaying(self) -> bool:
        """Whether nothing is trained, since the checkpoint is not reached yet."""
        return self.found is not None

    def decide(self, compute: Callable[[], T]) -> T:
        """What ``compute`` gives (numbers, words, lists of them), or gave when this was asked the first time."""
        if self.found is None:
            answer = self.processes.decide(compute)
        elif len(self.told) < len(self.found["told"]):
            answer = self.found["told"][len(self.told)]
        else:
            raise RunError(MISFIT)
        self.told.append(answer)
        return answer

    def snapshot(self, make: Callable[[], dict[str, Tensor]]) -> Snapshot:
        """A copy of the state; in a replay, the copy of then, or nothing where nobody needs it any more."""
        if self.found is None:
            copy = Snapshot(make())
        else:
            copy = Snapshot(self.found["snapshots"].get(len(self.snapshots), {}))
        self.snapshots.append(weakref.ref(copy))
        return copy

    def watch(self, thing: R) -> R:
        """Write the state of a thing with every checkpoint, for as long as somebody holds it."""
        self.things.append(weakref.ref(thing))
        return thing

    def pause(self, epochs: int, *, force: bool = False) -> None:
        """A point between epochs: the one to go on from, or a place for a checkpoint."""
        self.points += 1
        if self.found is not None:
            if self.found["points"] == self.points and self.found["inside"] is None:
                self._restore()
            return
        self._maybe_write(float(epochs), None, force=force)

    def pause_inside(self, epochs: float, inside: dict[str, Any]) -> None:
        """A point within an epoch; ``inside`` says where."""
        self._maybe_write(epochs, inside)

    def enter(self) -> dict[str, Any] | None:
        """Where to go on within the epoch that begins now; ``None``: at its beginning."""
        found = self.found
        if found is None or found["points"] != self.points or found["inside"] is None:
            return None
        if len(self.told) < len(found["told"]):  # something that comes before this epoch
            return None
        self._restore()
        return dict(found["inside"])

    def _maybe_write(self, epochs: float, inside: dict[str, Any] | None, *, force: bool = False) -> None:
        if self.stopped:
            return
        due, stop = self.processes.decide(lambda: [self.slot is not None and self.slot.due, self.stopping()])
        if self.slot is not None and (force or due or stop):
            try:
                self.slot.write(self._state(epochs, inside))
            except RunError as error:  # a full disk must not cost the fit; the checkpoint before is still there
                self.on_note(f"no checkpoint was written, training goes on: {error}")
        if stop and not force:
            self.stopped = True
            raise StoppedError

    def _state(self, epochs: float, inside: dict[str, Any] | None) -> dict[str, Any]:
        assert self.model is not None  # somebody trains it
        copies = {k: one for k, ref in enumerate(self.snapshots) if (one := ref()) is not None}
        things = {k: one.resumable() for k, ref in enumerate(self.things) if (one := ref()) is not None}
        return {
            "epochs": epochs,
            "shared": self.processes.shared,
            "points": self.points,
            "inside": inside,
            "told": self.told,
            "model": dict(self.model.state_dict()),
            "snapshots": {k: self._written(copy) for k, copy in copies.items()},
            "things": things,
            "random": random_state(next(self.model.parameters()).device),
        }

    def _restore(self) -> None:
        assert self.model is not None
        assert self.found is not None
        found, self.found = self.found, None
        try:
            self.model.load_state_dict(found["model"])
            for k, state in found["things"].items():
                thing = self.things[k]()
                if thing is not None:
                    thing.resume(state)
            set_random_state(found["random"])
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{MISFIT} ({' '.join(str(error).split())})") from None

    def _written(self, copy: Snapshot) -> dict[str, Tensor]:
        """A copy without values of training entries where these are very many, or only a share of them is here."""
        entries = sum(tensor.numel() for name, tensor in copy.items() if name.startswith(VALUES))
        whole = entries <= LARGE and not self.processes.shared
        return {name: tensor for name, tensor in copy.items() if whole or not name.startswith(VALUES)}


def _read(slot: Slot | None, processes: ProcessGroup) -> dict[str, Any] | None:
    """The newest checkpoint; that of the first process for all, since its folder need not be where the others are."""
    found = None if slot is None else slot.read()
    if found is not None and found.get("shared", False) != processes.shared:
        was = "by processes that torchrun had started" if found.get("shared") else "by one process without torchrun"
        raise RunError(f"the checkpoint was written {was}: resume the run in the same way, or start a new one")
    if not processes.shared:
        return found
    data = processes.bytes_of(b"" if found is None else to_bytes(found))
    return from_bytes(data, "the checkpoint of the first process") if data else None


class Journals:
    """The journals of a run, one for each of its fits in turn.

    Parameters
    ----------
    checkpoints
        Where they are written; ``None`` in all processes but the first.
    stopping, on_note, processes
        As a :class:`Journal` takes them.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        stopping: Callable[[], bool],
        on_note: Callable[[str], None],
        processes: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self.checkpoints, self.stopping, self.on_note, self.processes = checkpoints, stopping, on_note, processes
        self.made: list[Journal] = []

    def next(self) -> Journal:
        """The journal of the next fit."""
        slot = None if self.checkpoints is None else self.checkpoints.next()
        self.made.append(Journal(slot, self.stopping, self.on_note, self.processes))
        return self.made[-1]

    @property
    def resumed_epochs(self) -> float:
        """Epochs of all fits that were not trained again; a part of one counts as that."""
        return sum(journal.resumed_epochs for journal in self.made)

    @property
    def stopped(self) -> bool:
        """Whether somebody asked to stop, and a fit did."""
        return any(journal.stopped for journal in self.made)
