"""What a fit may hold in memory at a time, so that all of it stays below ``--memory``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

LEAST = 10**9
"""Bytes below which nothing is promised: Python, PyTorch and the compiled loops take half of it."""

LIBRARIES = 600 * 10**6
"""Bytes of these, of validation entries, and of what else does not grow with the data."""

ROW_BYTES = 60
"""Bytes per entry of a shard and mode: two shards at a time, sorted and shuffled copies, what is left of the values."""

MOST_ROWS, LEAST_ROWS = 1 << 22, 1 << 15
"""Bounds of a shard's entries."""

COPIES = 14
"""Copies of the parameters: gradients, Adam's means, best and earlier states, tables in the compiled loops."""

LABEL = 400
"""Bytes per label: its text, how many entries it has, and its bias for every shrinkage that is tried."""

ACTIVATION = 24
"""Bytes per number that a layer gives out, while it is trained."""

LEAST_BATCH = 256

IN_MEMORY = 200, 130
"""Bytes per entry, and per entry and mode, of a fit in memory: sorted copies, the split, tables of the baselines, steps
of the network. Measured, and rounded up."""


@dataclass(frozen=True)
class MemoryPlan:
    """How memory is shared out."""

    rows: int
    """Entries of a shard."""
    systems: int
    """Bytes for the systems of an exact solve."""
    permutation: int
    """Bytes for the permutation of a split."""
    batch: int
    """Most entries of a step."""

    @classmethod
    def of(cls, memory: int, model: JointModel) -> MemoryPlan:
        """Room for a model; a :class:`ConfigError` where there is none."""
        parameters = COPIES * sum(one.numel() * one.element_size() for one in model.parameters())
        parameters += LABEL * sum(model.shape)
        n_modes, left = len(model.shape), memory - LIBRARIES - parameters
        least = 2 * LEAST_ROWS * ROW_BYTES * n_modes
        _refuse(
            memory,
            LIBRARIES + parameters + least,
            f"{sum(model.shape):,} labels and {model.n_parameters():,} parameters",
        )
        return cls(
            rows=max(LEAST_ROWS, min(MOST_ROWS, left // 2 // (ROW_BYTES * n_modes))),
            systems=left // 4,
            permutation=memory // 4,
            batch=max(LEAST_BATCH, left // 4 // (ACTIVATION * _numbers(model))),
        )


def check_labels(memory: int, shape: Sequence[int], width: int) -> None:
    """Refuse more labels than there is room for, before anything is made for them; ``width``: numbers of each."""
    _refuse(memory, LIBRARIES + sum(shape) * (LABEL + 4 * COPIES * width), f"{sum(shape):,} labels")


def _refuse(memory: int, needed: int, what: str) -> None:
    if needed > memory:
        raise ConfigError(
            f"--memory {memory / 1e9:g}GB is too little for {what}; give {math.ceil(needed / 10**8) / 10:g}GB or more, "
            "or fewer components"
        )


def _numbers(model: JointModel) -> int:
    """About how many numbers the layers give out for one entry."""
    n_modes, (rank, width) = len(model.shape), model.rank
    total = n_modes * (width + rank) + 4
    for layer in model.modules():
        total += int(getattr(layer, "out_features", 0)) + int(getattr(layer, "out_channels", 0)) * n_modes * width
    return total


def parse_memory(text: str) -> int:
    """``4GB``, ``500MB`` or ``4GiB`` as bytes.

    >>> parse_memory("4GB"), parse_memory("1.5 GiB")
    (4000000000, 1610612736)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", text.upper())
    if match is None or match[2] not in UNITS:
        raise ConfigError(f"--memory '{text}' is not an amount of memory such as 4GB, 1.5GiB or 2000MB")
    memory = int(float(match[1]) * UNITS[match[2]])
    if memory < LEAST:
        raise ConfigError(f"--memory {text}: the libraries alone take half a gigabyte; give 1GB or more")
    return memory


def fits_in_memory(entries: int, n_modes: int, memory: int) -> bool:
    """Whether a fit may hold all its entries, with all that it keeps of them."""
    return LIBRARIES + entries * (IN_MEMORY[0] + IN_MEMORY[1] * n_modes) <= memory


def memory_record(allowed: int) -> dict[str, int | None]:
    """What ``metrics.json`` says of the memory of this process so far."""
    return {"allowed": allowed, "peak": peak_memory()}


def peak_memory() -> int | None:
    """Most bytes that this process ever had in memory; ``None`` where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
