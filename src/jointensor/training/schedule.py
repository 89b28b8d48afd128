"""How long the best state of a fit took, as a recipe."""

from __future__ import annotations

from dataclasses import replace

from jointensor.training.fit import Fit
from jointensor.training.history import Epoch
from jointensor.training.recipe import Recipe


def schedule_of(result: Fit) -> Recipe:
    """The recipe that trains exactly as long as the best state of a fit took, without validation.

    For training once more on all entries, where nothing is left to tell when to stop.
    """
    rows = [row for row in result.history if row.attempt == result.attempt]
    steps = [row for row in rows if row.best] or rows  # refinement goes on from the best state of alternation
    last = max((row.epoch for row in steps), default=0)
    # Θ_N alone was trained until it validated best; Θ_L is solved in a fixed number of sweeps
    alone = [row for row in rows if row.phase == "warm start: nonlinear"]
    lowest = min(alone, key=lambda row: row.train_loss if row.valid_loss is None else row.valid_loss, default=None)
    warm = 0 if lowest is None or result.first != "nonlinear" else alone.index(lowest) + 1
    return replace(
        result.recipe,
        ridges=result.recipe.ridges if result.ridge is None else (result.ridge,),
        first=result.first or result.recipe.first,  # type: ignore[arg-type]
        warm_epochs=warm or result.recipe.warm_epochs,
        follow=0.0,
        fall_back=False,
        rounds=max((row.round for row in steps), default=0),
        turns=_turns(steps, result.first),
        refine_epochs=sum(row.phase == "refine" and row.epoch <= last for row in rows),
        tolerance=0.0,
        patience=0,
    )


def _turns(steps: list[Epoch], first: str | None) -> int:
    """Turns up to the best state of alternation."""
    last = max((row for row in steps if row.round), key=lambda row: row.epoch, default=None)
    if last is None:
        return 0
    begins = "nonlinear" if first == "linear" else "linear"
    return 2 * last.round - (last.phase == f"alternate: {begins}")
