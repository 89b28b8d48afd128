"""How ``--memory`` is divided among shards, systems of the exact solver, batches and parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jointensor.errors import ConfigError
from jointensor.models.joint import JointModel

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

MIN_MEMORY = 10**9
"""Bytes below which nothing is promised: Python, PyTorch and the compiled loops take half of it."""

LIBRARY_BYTES = 600 * 10**6
"""Bytes of the libraries, of the validation entries, and of everything else that does not grow with the data."""

SHARD_BYTES_PER_INDEX = 60
"""Bytes per entry and mode of a shard: two shards at a time, sorted and shuffled copies, residuals."""

MAX_SHARD_ENTRIES, MIN_SHARD_ENTRIES = 1 << 22, 1 << 15
"""Bounds of the entries of a shard."""

PARAMETER_COPIES = 14
"""Copies of the parameters: gradients, Adam's moments, best and earlier states, tables in the compiled loops."""

BYTES_PER_LABEL = 400
"""Bytes per label: its text, its number of entries, and its bias for every shrinkage that is tried."""

BYTES_PER_ACTIVATION = 24
"""Bytes per output of a layer, while it is trained."""

MIN_BATCH = 256
"""Entries of a step below which steps cost more than their entries."""

IN_MEMORY_BYTES_PER_ENTRY, IN_MEMORY_BYTES_PER_INDEX = 200, 130
"""Bytes per entry, and per entry and mode, of a fit in memory: sorted copies, the split, tables of the baselines, steps
of the network. Measured, and rounded up."""


@dataclass(frozen=True)
class MemoryPlan:
    """How the memory of a run from disk is divided."""

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
        """The plan for a model; a :class:`ConfigError` where its parameters and labels alone take more."""
        parameters = PARAMETER_COPIES * sum(one.numel() * one.element_size() for one in model.parameters())
        parameters += BYTES_PER_LABEL * sum(model.shape)
        n_modes, free = len(model.shape), memory - LIBRARY_BYTES - parameters
        shards = 2 * MIN_SHARD_ENTRIES * SHARD_BYTES_PER_INDEX * n_modes
        _refuse(
            memory,
            LIBRARY_BYTES + parameters + shards,
            f"{sum(model.shape):,} labels and {model.n_parameters():,} parameters",
        )
        return cls(
            rows=max(MIN_SHARD_ENTRIES, min(MAX_SHARD_ENTRIES, free // 2 // (SHARD_BYTES_PER_INDEX * n_modes))),
            systems=free // 4,
            permutation=memory // 4,
            batch=max(MIN_BATCH, free // 4 // (BYTES_PER_ACTIVATION * _outputs_per_entry(model))),
        )


def check_labels(memory: int, shape: Sequence[int], width: int) -> None:
    """Refuse more labels than memory holds, before tables are made for them; ``width``: parameters of a label."""
    _refuse(
        memory, LIBRARY_BYTES + sum(shape) * (BYTES_PER_LABEL + 4 * PARAMETER_COPIES * width), f"{sum(shape):,} labels"
    )


def _refuse(memory: int, needed: int, what: str) -> None:
    if needed > memory:
        raise ConfigError(
            f"--memory {memory / 1e9:g}GB is too little for {what}; give {math.ceil(needed / 10**8) / 10:g}GB or more, "
            "or fewer components"
        )


def _outputs_per_entry(model: JointModel) -> int:
    """About how many numbers the layers put out for one entry."""
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
    if memory < MIN_MEMORY:
        raise ConfigError(f"--memory {text}: the libraries alone take half a gigabyte; give 1GB or more")
    return memory


def fits_in_memory(entries: int, n_modes: int, memory: int) -> bool:
    """Whether a fit may hold all its entries, with all that it keeps of them."""
    return LIBRARY_BYTES + entries * (IN_MEMORY_BYTES_PER_ENTRY + IN_MEMORY_BYTES_PER_INDEX * n_modes) <= memory


def peak_memory() -> int | None:
    """The largest resident memory of this process so far, in bytes; ``None`` where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
