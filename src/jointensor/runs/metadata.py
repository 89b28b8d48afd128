"""What ``metrics.json`` holds of a fit besides its figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jointensor.runs.config import RunConfig
from jointensor.training.fit import Fit
from jointensor.training.journal import Journals


def fit_record(fitted: Fit, config: RunConfig, begin: float) -> dict[str, Any]:
    """How a fit went."""
    return {
        "outcome": fitted.outcome,
        "restarts": fitted.restarts,
        "attempts": fitted.attempts,
        "failed": fitted.failed,
        "nonlinear_dead": fitted.nonlinear_dead,
        "epochs": len(fitted.history),
        "parameters": fitted.model.n_parameters(),
        "seconds": time.monotonic() - begin,
        "engine": fitted.engine,
        "linear": fitted.model.linear,
        "first": fitted.first,
        "ridge": fitted.ridge,
        "collapsed": fitted.collapsed,
        "seed": config.seed,
        "split": config.split_record(),
    }


def journal_record(journals: Journals) -> dict[str, Any]:
    """Whether a run was interrupted, now or before."""
    return {"resumed_from_epoch": journals.resumed_epochs or None, "interrupted": journals.stopped}


def stopped_note(path: Path) -> str:
    """What a run says that somebody stopped."""
    return f"stopped before its end, with the best model so far; to go on: jointensor fit --resume {path}"
