"""Random small tensors and random options, each case checked by a second method.

    python -m tests.soak.run                # an hour
    python -m tests.soak.run --seconds 60
    python -m tests.soak.run --cases 100    # the same cases on every machine

A case is determined by the seed and its number; one that fails prints the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from jointensor.errors import JointensorError
from tests.soak import parts, runs

Check = Callable[[np.random.Generator, Path], str]
KINDS: dict[str, tuple[Check, float]] = {
    "rows": (parts.rows, 3), "blocks": (parts.blocks, 3), "engines": (parts.engines, 3), "splits": (parts.splits, 2),
    "baselines": (parts.baselines, 3), "files": (parts.files, 3), "intervals": (parts.intervals, 3),
    "estimator": (parts.estimator, 1), "runs": (runs.runs, 8), "tables": (runs.tables, 1), "auto": (runs.auto, 0.1),
}  # fmt: skip
"""Kinds of cases, and how often each is drawn."""
MAX_CASE_SECONDS = 900
"""Seconds after which a case counts as hanging: hundreds of times as long as any case takes on a quiet machine."""


@dataclass
class Tally:
    """Results of the cases."""

    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Cases that were refused because options and data do not fit together, by message."""
    failures: list[str] = field(default_factory=list)


class TookTooLongError(Exception):
    """A case hangs."""


def _ring(_: int, __: FrameType | None) -> None:
    raise TookTooLongError(f"more than {MAX_CASE_SECONDS} s")


def run_case(number: int, seed: int, only: tuple[str, ...], tally: Tally, *, loud: bool = False) -> None:
    """Run one case and record its result."""
    rng = np.random.default_rng([seed, number])
    names = [name for name in KINDS if not only or name in only]
    odds = np.array([KINDS[name][1] for name in names])
    name = str(rng.choice(names, p=odds / odds.sum()))
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(MAX_CASE_SECONDS)
    try:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            tally.kinds[KINDS[name][0](rng, Path(folder))] += 1
    except (runs.Refused, JointensorError) as error:
        tally.kinds[f"{name} refused"] += 1
        tally.refused[f"{name}: {str(error)[:160]}"] += 1
    except Exception as error:  # noqa: BLE001 - anything else is a finding
        some = "".join(f" --only {one}" for one in only)
        again = f"python -m tests.soak.run --case {number} --seed {seed}{some}"
        tally.failures.append(f"{name}: {again}\n    {type(error).__name__}: {' '.join(str(error).split())[:400]}")
        if loud:
            traceback.print_exc()
    finally:
        signal.alarm(0)


def soak(
    goes_on: Callable[[int], bool],
    seed: int = 0,
    only: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Tally:
    """Run cases while ``goes_on``, which is given the number of the next case."""
    tally, number = Tally(), 0
    while goes_on(number):
        known = len(tally.failures)
        run_case(number, seed, only, tally)
        for failure in tally.failures[known:]:
            say(f"FAILED {failure}")
        number += 1
    return tally


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--cases", type=int, help="run so many cases, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run this one only, and show where it fails")
    parser.add_argument("--only", action="append", choices=KINDS, default=[], help="kinds of cases")
    options = parser.parse_args()
    only = tuple(options.only)
    if options.case is not None:
        tally = Tally()
        run_case(options.case, options.seed, only, tally, loud=True)
    else:
        end = time.monotonic() + options.seconds
        by_count = options.cases is not None
        tally = soak(lambda n: n < options.cases if by_count else time.monotonic() < end, options.seed, only, say)
    for kind, count in sorted(tally.kinds.items()):
        say(f"{count:7,}  {kind}")
    for message, count in tally.refused.most_common(20):
        say(f"{count:7,}  {message}")
    say(f"{tally.kinds.total() + len(tally.failures):,} cases, {len(tally.failures)} failures")
    for failure in tally.failures if options.case is None else ():
        say(failure)
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
