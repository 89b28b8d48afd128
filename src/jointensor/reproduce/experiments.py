"""The experiments of the paper by name: running one, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jointensor.errors import ConfigError
from jointensor.registry import nearest
from jointensor.reproduce.claims import claims
from jointensor.reproduce.figure2 import figure2
from jointensor.reproduce.figure3 import figure3
from jointensor.reproduce.figure4 import figure4
from jointensor.reproduce.figure5 import figure5
from jointensor.reproduce.paper import DATASETS
from jointensor.reproduce.planted import TEACHERS
from jointensor.reproduce.students import students
from jointensor.reproduce.study import Outcome, Setting, page_name, write_outcome
from jointensor.reproduce.table1 import table1
from jointensor.reproduce.table2 import table2
from jointensor.reproduce.table3 import table3
from jointensor.reproduce.table4 import table4

EXPERIMENTS: dict[str, Callable[[Setting], Outcome]] = {
    one.__name__: one for one in (table1, figure2, students, figure3, table2, table3, figure4, table4, figure5, claims)
}
"""By name, in the order of the paper."""

EVERY = "all"
"""Name of all experiments together."""


def reproduce(name: str, setting: Setting) -> tuple[Outcome, Path]:
    """Run an experiment, or continue it, and write its page."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment '{name}'; {nearest(name, [*EXPERIMENTS, EVERY])}")
    for dataset in setting.datasets:
        if dataset not in DATASETS:
            raise ConfigError(f"the paper has no data set '{dataset}'; {nearest(dataset, list(DATASETS))}")
    if setting.teacher not in TEACHERS:
        raise ConfigError(f"there is no teacher '{setting.teacher}'; {nearest(setting.teacher, list(TEACHERS))}")
    outcome = EXPERIMENTS[name](setting)
    return outcome, write_outcome(outcome, setting, name)


def reproduce_all(setting: Setting) -> Iterator[tuple[Outcome, Path]]:
    """Every experiment; of what is finished, those that have records, or need none."""
    for name in EXPERIMENTS:
        for teacher in TEACHERS if name == "figure2" else (setting.teacher,):
            mine = replace(setting, teacher=teacher)
            if not setting.finished or name == "claims" or mine.records(page_name(name, mine)):
                yield reproduce(name, mine)
