"""Where NumPy's permutation puts things, for a byte each: the swaps of its shuffle, drawn to a file and undone from it.

``numpy.random.default_rng(seed).permutation(n)`` swaps places i = n − 1, …, 1 with a random j ≤ i. Undoing the swaps
carries what is written at every place of the permutation back to the item that is there.
"""

from __future__ import annotations

from functools import lru_cache
from tempfile import TemporaryFile
from typing import IO

import numpy as np
from numba import njit
from numpy.typing import NDArray

from jointensor.kernels.numba_rows import CACHE

DRAWS = 1 << 20
"""Swaps that are in memory at a time."""


def carry_back(places: NDArray[np.uint8], seed: int, folder: str | None = None) -> None:
    """Turn what is written at the places of a permutation into what is written at its items, in place.

    Afterwards ``places[permutation[k]]`` is what ``places[k]`` was, for the permutation of ``default_rng(seed)``.

    Parameters
    ----------
    places
        One byte per item; fewer than 2³¹ of them.
    seed
        Of the permutation.
    folder
        For a file of 4 bytes per item.
    """
    with TemporaryFile(dir=folder) as file:
        _draw(len(places), seed, file)
        for end in range(len(places) - 1, 0, -DRAWS):  # the last swap first
            begin = max(end - DRAWS, 0)
            file.seek(4 * begin)
            swaps = np.frombuffer(file.read(4 * (end - begin)), dtype=np.int32)
            _undo(places, swaps, len(places) - 1 - begin)


@lru_cache(maxsize=1)
def agrees_with_numpy() -> bool:
    """Whether the NumPy that is there draws its permutations as these loops do."""
    written = np.arange(3000) % 251
    places = written.astype(np.uint8)
    carry_back(places, 5)
    return bool(np.array_equal(places[np.random.default_rng(5).permutation(len(places))], written))


def _draw(count: int, seed: int, file: IO[bytes]) -> None:
    """Write the j of all swaps, from that of the last place on."""
    generator = np.random.default_rng(seed).bit_generator
    place, raw = count - 1, np.empty(0, np.uint32)
    swaps = np.empty(DRAWS, np.int32)
    while place > 0:
        if len(raw) < DRAWS:
            fresh = generator.random_raw(DRAWS).astype("<u8").view("<u4")  # 64 bits are two draws, low half first
            raw = np.concatenate([raw, fresh.astype(np.uint32)])
        made, used = _bounded(raw, place, swaps)
        file.write(swaps[:made].tobytes())
        place, raw = place - made, raw[used:]


@njit(cache=CACHE, nogil=True)
def _bounded(raw, place, swaps):  # type: ignore[no-untyped-def]
    """Whole numbers from 0 to place, place − 1, …: as many bits as that has, drawn until they are no more than it.

    Returns how many were made, and of how many draws.
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
    """Undo some swaps, the last of them first; the first was of place ``first``."""
    for k in range(swaps.shape[0] - 1, -1, -1):
        i, j = first - k, swaps[k]
        kept = places[i]
        places[i] = places[j]
        places[j] = kept
