"""What happened, epoch by epoch: plain rows that go to ``history.jsonl``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """One pass over the training entries."""

    attempt: int
    phase: str
    """``warm start``, ``alternate: nonlinear``, ``alternate: linear`` or ``refine``."""
    round: int
    epoch: int
    """Counted from 1 through the whole attempt."""
    train_loss: float
    valid_loss: float | None
    seconds: float
    best: bool
    """Whether this is the best state so far."""
    most: int
    """How many epochs the recipe allows in all."""

    def to_dict(self) -> dict[str, Any]:
        """The row as it is written to ``history.jsonl``."""
        return asdict(self)


OnEpoch = Callable[[Epoch], None]
"""Called after every epoch; progress bars hang here."""
