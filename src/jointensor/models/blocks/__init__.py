"""Blocks that g is a sum of, one file for each kind; this list of imports is the list of kinds."""

# kinds are listed in this order
# isort: off
from jointensor.models.blocks import mean
from jointensor.models.blocks import bias
from jointensor.models.blocks import cp
from jointensor.models.blocks import pairs
from jointensor.models.blocks import fm
from jointensor.models.blocks import tables
from jointensor.models.blocks import local
from jointensor.models.blocks import smooth
from jointensor.models.blocks import tucker

# isort: on
from jointensor.models.blocks.base import KINDS, Block, Kind, Piece
from jointensor.models.blocks.spec import linear_spec, parse_blocks

__all__ = [
    "KINDS",
    "Block",
    "Kind",
    "Piece",
    "bias",
    "cp",
    "fm",
    "linear_spec",
    "local",
    "mean",
    "pairs",
    "parse_blocks",
    "smooth",
    "tables",
    "tucker",
]
