"""``smooth:A`` and ``cyclic:A``: no blocks, but a prior by which rows of neighbouring labels are alike."""

from __future__ import annotations

from dataclasses import dataclass

from jointensor.models.blocks.base import Kind, register, some_modes


@dataclass(frozen=True)
class Neighbours:
    """Labels of a mode in their order."""

    cyclic: bool
    """Whether the first label follows the last, as of hours of the day."""


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
