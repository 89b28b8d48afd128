"""Clocks for a noisy machine: passes taken alternately, the median of the ratios of neighbours, and their spread."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Pass:
    """How long one pass took, and how many cores it kept busy: whether it kept to its threads."""

    seconds: float
    cores: float


def clock(work: Callable[[], object]) -> Pass:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    taken = time.perf_counter() - wall
    return Pass(taken, (time.process_time() - cpu) / taken)


def alternate(ours: Callable[[], Pass], rival: Callable[[], Pass], passes: int) -> tuple[list[Pass], list[Pass]]:
    """Both in turn, so that a slow spell of the machine hits both; one pass each beforehand does not count."""
    ours(), rival()
    pairs = [(ours(), rival()) for _ in range(passes)]
    return [one for one, _ in pairs], [other for _, other in pairs]


def side(entries: int, passes: list[Pass]) -> dict:
    seconds = [one.seconds for one in passes]
    return {
        "entries": entries,
        "seconds": seconds,
        "entries_per_second": entries / float(np.median(seconds)),
        "cores": float(np.median([one.cores for one in passes])),
    }


def compared(ours: dict, rival: dict) -> dict:
    """How many times as many entries per second ours goes through, pair by pair: median and quartiles."""
    mine = ours["entries"] / np.array(ours["seconds"])
    theirs = rival["entries"] / np.array(rival["seconds"])
    low, middle, high = np.quantile(mine / theirs, [0.25, 0.5, 0.75]).tolist()
    return {"ours": ours, "rival": rival, "ratio": middle, "quartiles": [low, high]}


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """e of seconds ~ size ** e."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def peak_mib() -> float:
    """Largest resident set of this process. Not getrusage: its figure starts at that of the parent process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmHWM")
