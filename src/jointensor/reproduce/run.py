"""Experiments by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jointensor.errors import ConfigError
from jointensor.registry import nearest
from jointensor.reproduce.claims import claims
from jointensor.reproduce.figure2 import figure2
from jointensor.reproduce.figure3 import figure3
from jointensor.reproduce.figure5 import figure5
from jointensor.reproduce.paper import DATASETS
from jointensor.reproduce.study import Outcome, Setting, write_outcome
from jointensor.reproduce.table1 import table1
from jointensor.reproduce.table2 import table2
from jointensor.reproduce.table3 import table3
from jointensor.reproduce.table4 import figure4, table4

EXPERIMENTS: dict[str, Callable[[Setting], Outcome]] = {
    "table1": table1,
    "figure2": figure2,
    "figure3": figure3,
    "table2": table2,
    "table3": table3,
    "figure4": figure4,
    "table4": table4,
    "figure5": figure5,
    "claims": claims,
}
"""In the order of the paper."""


def reproduce(name: str, setting: Setting) -> tuple[Outcome, Path]:
    """Run an experiment, or go on with it, and write its page."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; {nearest(name, list(EXPERIMENTS))}")
    for dataset in setting.datasets:
        if dataset not in DATASETS:
            raise ConfigError(f"the paper has no data set '{dataset}'; {nearest(dataset, list(DATASETS))}")
    outcome = EXPERIMENTS[name](setting)
    return outcome, write_outcome(outcome, setting, name)
