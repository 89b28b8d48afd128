"""Scatter bytes by NumPy's permutation without holding the permutation: its swaps are written to a file and undone.

``numpy.random.default_rng(seed).permutation(n)`` swaps positions i = n − 1, …, 1 with a random j ≤ i. Undoing the swaps
in reverse moves the byte at each position of the permutation to the item that the permutation has there.
"""

from __future__ import annotations

from functools import lru_cache
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE

MAX_DRAWS = 1 << 20
"""Swaps in memory at a time."""


def scatter_by_permutation(places: NDArray[np.uint8], seed: int, folder: str | None = None) -> None:
    """Scatter in place: ``places[permutation[k]]`` becomes what ``places[k]`` was.

    The permutation is ``default_rng(seed).permutation(len(places))``.

    Parameters
    ----------
    places
        One byte per item; fewer than 2³¹ of them.
    seed
        Seed of the permutation.
    folder
        Folder of a temporary file of 4 bytes per item.
    """
    with TemporaryFile(dir=folder) as file:
        _draw(len(places), seed, file)
        for end in range(len(places) - 1, 0, -MAX_DRAWS):  # the last swap first
            begin = max(end - MAX_DRAWS, 0)
            file.seek(4 * begin)
            swaps = np.frombuffer(file.read(4 * (end - begin)), dtype=np.int32)
            _undo(places, swaps, len(places) - 1 - begin)


@lru_cache(maxsize=1)
def agrees_with_numpy() -> bool:
    """Whether the installed NumPy draws its permutations as these loops do."""
    written = np.arange(3000) % 251
    places = written.astype(np.uint8)
    scatter_by_permutation(places, 5)
    return bool(np.array_equal(places[np.random.default_rng(5).permutation(len(places))], written))


def _draw(count: int, seed: int, file: IO[bytes]) -> None:
    """Write the j of all swaps, beginning with i = n − 1."""
    generator = np.random.default_rng(seed).bit_generator
    place, raw = count - 1, np.empty(0, np.uint32)
    swaps = np.empty(MAX_DRAWS, np.int32)
    while place > 0:
        if len(raw) < MAX_DRAWS:
            fresh = generator.random_raw(MAX_DRAWS).astype("<u8").view("<u4")  # 64 bits are two draws, low half first
            raw = np.concatenate([raw, fresh.astype(np.uint32)])
        made, used = _bounded(raw, place, swaps)
        file.write(swaps[:made].tobytes())
        place, raw = place - made, raw[used:]


@njit(cache=CACHE, nogil=True)
def _bounded(raw, place, swaps):  # type: ignore[no-untyped-def]
    """Fill ``swaps`` with random integers in [0, place], [0, place − 1], … by masked rejection, as NumPy does.

    Returns the number of integers made and the number of raw draws used.
    """
    made = used = 0
    mask = np.int64(1)
    while mask < place:
        mask = 2 * mask + 1
    for at in range(raw.shape[0]):
        if made == swaps.shape[0] or place == made:
            break
        while mask >> 1 >= place - made:
            mask = mask >> 1
        value = np.int64(raw[at]) & mask
        used = at + 1
        if value <= place - made:
            swaps[made] = value
            made += 1
    return made, used


@njit(cache=CACHE, nogil=True)
def _undo(places, swaps, first):  # type: ignore[no-untyped-def]
    """Undo some swaps in reverse order; the first of them was of position ``first``."""
    for k in range(swaps.shape[0] - 1, -1, -1):
        i, j = first - k, swaps[k]
        kept = places[i]
        places[i] = places[j]
        places[j] = kept
