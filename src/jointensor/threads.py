"""Calls in several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Results of a function for all items, computed by as many threads as torch may use.

    Meant for NumPy: it lets other threads run while it sorts and looks up.
    """
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return list(pool.map(function, items))
