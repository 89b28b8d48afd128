"""Specifications of g: blocks joined by ``+``."""

from __future__ import annotations

from collections.abc import Sequence

from jointensor.errors import ConfigError
from jointensor.models.blocks.base import KINDS, Block, FindMode, Piece
from jointensor.registry import nearest


def linear_spec(rank: int) -> str:
    """The multilinear half that the paper's R stands for."""
    return f"cp:{rank}" if rank else ""


def block_forms() -> list[str]:
    """How all kinds of blocks are written."""
    return [form for kind in KINDS.values() for form in kind.forms]


def parse_blocks(spec: str, find: FindMode | None = None) -> list[Piece]:
    """The pieces of a specification.

    Parameters
    ----------
    spec
        Blocks joined by ``+``.
    find
        Position of a mode by its name; without it modes are given by position.

    Examples
    --------
    >>> [piece.numbers for piece in parse_blocks("mean + bias + cp:4")]
    [(), (), (4,)]
    >>> [str(piece) for piece in parse_blocks("fm:10+implicit:user/movie", ["user", "movie", "day"].index)]
    ['fm:10', 'implicit:0/1']
    """
    pieces: list[Piece] = []
    for text in filter(None, (text.strip() for text in spec.split("+"))):
        piece = _parse(text, find)
        if piece.key in [other.key for other in pieces]:
            raise ConfigError(f"block '{piece.kind.name}' occurs twice in '{spec}'")
        pieces.append(piece)
    names = {piece.kind.name for piece in pieces}
    for piece in pieces:
        if piece.kind.requires is not None and piece.kind.requires[0] not in names:
            raise ConfigError(f"'{spec}': {piece.kind.requires[1]}")
    return pieces


def _parse(text: str, find: FindMode | None) -> Piece:
    name, colon, argument = text.partition(":")
    if name not in KINDS:
        raise ConfigError(f"there is no multilinear block '{name}'; {nearest(name, block_forms())}")
    parsed = KINDS[name].parse(argument if colon else None, find)
    if parsed is None:
        raise ConfigError(f"'{text}': write {KINDS[name].usage}")
    return Piece(KINDS[name], parsed)


def by_position(spec: str, find: FindMode) -> str:
    """The same blocks with modes by position.

    >>> by_position("cp:4+local:day", ["user", "movie", "day"].index)
    'cp:4+local:2'
    """
    return "+".join(map(str, parse_blocks(spec, find)))


def split_residual_blocks(spec: str, *, sampled: bool) -> tuple[str, list[Piece]]:
    """Blocks that are trained together, and blocks that are fitted to their residuals; modes by position.

    ``sampled``: whether a sampler draws g.

    >>> trained, later = split_residual_blocks("mean+cp:4+tables+local:2", sampled=False)
    >>> trained, [str(piece) for piece in later]
    ('mean+cp:4', ['tables', 'local:2'])
    """
    pieces = parse_blocks(spec)
    later = [piece for piece in pieces if piece.kind.residual_model and not (sampled and piece.kind.sampled)]
    return "+".join(str(piece) for piece in pieces if piece not in later), later


def build_blocks(shape: Sequence[int], pieces: Sequence[Piece]) -> dict[str, Block]:
    """The blocks of a specification by name, with parameters of zero."""
    for piece in pieces:
        if piece.argument.over_modes and max(piece.numbers) >= len(shape):
            raise ConfigError(f"'{piece}': the tensor has {len(shape)} modes, counted from 0")
    made: dict[str, Block] = {}
    for piece in pieces:
        made |= piece.kind.build(shape, piece, pieces)
    return made
