"""Whether numba can keep compiled code on this machine."""

from __future__ import annotations

from numba import njit


def _can_cache() -> bool:
    """Whether numba finds a folder for compiled code; without one it compiles in every process."""
    try:
        njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """Never compiled."""


CACHE = _can_cache()
