"""``smooth:A`` and ``cyclic:A``: no blocks, but a prior by which rows of neighbouring labels are alike."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from jointensor.models.blocks.base import Kind, register, some_modes


@dataclass(frozen=True)
class Neighbours:
    """Labels of a mode in their order."""

    cyclic: bool
    """Whether the first label follows the last, as of hours of the day."""

    def mean(self, table: Tensor) -> Tensor:
        """Mean of the two neighbours of every row, ``(I, R)``; a row at an end has one neighbour, twice."""
        before, after = table.roll(1, 0), table.roll(-1, 0)
        if not self.cyclic:
            before[0], after[-1] = table[1], table[-2]
        return (before + after) / 2


for _name, _cyclic in (("smooth", False), ("cyclic", True)):
    register(
        Kind(
            _name,
            (f"{_name}:A",),
            f"{_name}:A with one mode",
            some_modes(1, 1),
            streamable=True,
            neighbours=Neighbours(_cyclic),
        )
    )
