"""What a block of g is, and the registry of the kinds of blocks.

A *kind* is a word of a specification such as ``mean+bias+cp:4``: how it is written, and which blocks it stands for.
A *block* is a torch module, one summand of g. To add a kind: write one file in this package that ends with a call of
:func:`register`, and import it in ``__init__.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from jointensor.errors import ConfigError
from jointensor.models.blocks.growth import NewEntries

if TYPE_CHECKING:
    from jointensor.models.blocks.smooth import Neighbours

SMALL_START = 0.1
"""Standard deviation of factors that are multiplied in pairs at the start, in roots of the values' spread: small, so
that they start with little of the values, and not zero, where they would stay."""

FindMode = Callable[[str], int]
"""Position of a mode by its name."""


class SolveSteps(Protocol):
    """Steps of an exact solver for the block that is solved now. All of them change its parameters in place."""

    def constant(self, number: Tensor) -> None:
        """Solve for one number that all entries share, ``()``."""

    def numbers(self, rows: int | None = None) -> None:
        """Solve for the first rows of the block's only table, one number each; further rows become zero."""

    def products(self) -> None:
        """Solve for the rows of one table after the other; an entry's value is a product of rows."""

    def pairs(self) -> None:
        """Solve for a change of the rows of one table after the other; an entry's value is a sum over pairs of rows."""

    def implicit_feedback(self, k: int) -> None:
        """Solve for the k-th table of implicit feedback."""


class Block(nn.Module):
    """One summand of g, linear in each of its tables when the others are fixed."""

    modes: tuple[int, ...] = ()
    """Modes whose labels decide the value of an entry."""
    sums: ClassVar[bool] = False
    """Whether an entry's value is a sum over pairs of rows, not a product of rows."""
    solvable: ClassVar[bool] = True
    """Whether exact solvers can solve it; otherwise it is trained by gradient descent only."""
    sum_of_blocks: ClassVar[Callable[..., Tensor] | None] = None
    """Sum of the values of several blocks of this class at once, where that is faster."""
    level_order: ClassVar[int | None] = None
    """Blocks that can start around the mean of the values: the one of lowest order does. ``None`` cannot."""
    learns_rows: ClassVar[bool] = False
    """Whether rows of new labels can be solved for in a fitted model."""
    memorises: ClassVar[bool] = False
    """Whether it has numbers of single combinations of labels: fitted after blocks that generalise."""

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Tables ``(I_k, R)`` without gradients; writing to them writes to the model."""
        return ()

    def effective_tables(self) -> tuple[Tensor, ...]:
        """Tables as an entry's value is made of them, without gradients."""
        return self.tables

    @property
    def extra_tables(self) -> tuple[Tensor, ...]:
        """Tables that no entry looks up by itself; the block solves them after ``tables``. Their prior mean is zero."""
        return ()

    @property
    def table_modes(self) -> tuple[int, ...]:
        """The mode whose labels the rows of each table belong to; empty where rows are not labels of one mode."""
        return self.modes

    @property
    def row_key(self) -> tuple[int, ...]:
        """Blocks with equal keys look up the same rows, and can share entries that are sorted by them."""
        return self.modes

    @property
    def degree(self) -> int:
        """How many rows are multiplied in one term of the value."""
        return 2 if self.sums else len(self.tables)

    @property
    def multiplies(self) -> bool:
        """Whether rows are multiplied. The mean of factors is not the mean of their products: draws are kept."""
        return len(self.tables) > 1

    def columns(self, indices: Tensor) -> Tensor:
        """The row of every table that an entry looks up, ``(batch, all modes)`` → ``(batch, tables)``."""
        raise NotImplementedError

    # training

    def see(self, indices: Tensor) -> None:
        """Look at the training entries ``(entries, modes)``, where the block's size depends on them."""

    @torch.no_grad()
    def init(self, spread: float | None) -> None:
        """Draw all parameters; ``spread`` is the spread of the values that g starts with, ``None`` for unit scale."""
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        if self.multiplies:
            for parameter in self.parameters():
                nn.init.normal_(parameter, 0.0, SMALL_START * (1.0 if spread is None else spread) ** 0.5)

    def init_level(self, level: float, spread: float | None) -> float:
        """After :meth:`init`: start around a level; returns what is left of it for other blocks."""
        return level

    @torch.no_grad()
    def become(self, level: float) -> float:
        """Become a constant; returns what is left of the level for other blocks."""
        for parameter in self.parameters():
            parameter.zero_()
        return level

    def forget(self) -> None:
        """Set the numbers of combinations to zero, where the block memorises."""

    def solve(self, steps: SolveSteps) -> None:
        """Solve for all parameters, everything else fixed."""
        raise NotImplementedError

    # draws from the posterior

    def draw(self) -> dict[str, Tensor]:
        """The parameters as they are kept in a draw."""
        return {name: value.detach().clone() for name, value in self.named_parameters()}

    def values_of_draw(self, draw: Mapping[str, Tensor], indices: Tensor) -> Tensor:
        """Values of the entries with the parameters of a draw, ``(batch, modes)`` → ``(batch,)``."""
        return functional_call(self, dict(draw), (indices,))

    # new labels

    def grow_from(self, old: Block) -> None:
        """Take the parameters of the same block of a tensor whose modes had fewer labels."""
        self.load_state_dict({name: value.cpu() for name, value in old.state_dict().items()})

    def grow_draw(self, old: Block, draw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same for a draw of the old block."""
        return {name: value.cpu() for name, value in draw.items()}

    def learn_new_labels(self, new: NewEntries, targets: Tensor, draw: Mapping[str, Tensor] | None = None) -> None:
        """Solve for the rows of new labels, in place; of a draw, where one is given.

        ``targets``: values of the new entries minus those of all other blocks, ``(entries,)``.
        """

    # storage

    def misfit(self) -> str:
        """What of the block's state does not fit together, in a word or two; empty where all does."""
        return ""


Build = Callable[[Sequence[int], "Piece", Sequence["Piece"]], dict[str, Block]]
"""Blocks by name, from the tensor's shape, the piece of the specification, and all its pieces."""


def build_nothing(shape: Sequence[int], piece: Piece, pieces: Sequence[Piece]) -> dict[str, Block]:
    """For kinds that are no block of their own."""
    return {}


@dataclass(frozen=True)
class Argument:
    """What is written behind the colon of a piece."""

    numbers: tuple[int, ...] = ()
    """Ranks, or positions of modes."""
    over_modes: bool = False
    """Whether the numbers are positions of modes."""


@dataclass(frozen=True)
class Kind:
    """A word of a specification."""

    name: str
    forms: tuple[str, ...]
    """How it is written."""
    usage: str
    """The same with the conditions, for error messages."""
    parse: Callable[[str | None, FindMode | None], Argument | None]
    """The argument from the text behind the colon, ``None`` without one; returns ``None`` where it is malformed."""
    build: Build = build_nothing
    streamable: bool = False
    """Whether the systems of its rows are sums over entries in any order, so that entries may stay on disk."""
    residual_model: Literal["", "kriging", "tables"] = ""
    """The residual model that it stands for: fitted after training, to residuals of held-out entries."""
    sampled: bool = False
    """Whether samplers draw it together with the other blocks instead."""
    requires: tuple[str, str] | None = None
    """Name of another kind without which this one has no meaning, and the reason."""
    neighbours: Neighbours | None = None
    """A prior by which rows of neighbouring labels are alike."""
    check_ranks: Callable[[Sequence[int], int], None] = lambda ranks, n_modes: None
    """Refuses ranks that do not go with the number of modes."""


@dataclass(frozen=True)
class Piece:
    """One kind with its argument."""

    kind: Kind
    argument: Argument = Argument()

    @property
    def numbers(self) -> tuple[int, ...]:
        """Ranks, or positions of modes."""
        return self.argument.numbers

    @property
    def key(self) -> str:
        """What may occur only once in a specification: a kind, or a kind over some modes."""
        return str(self) if self.argument.over_modes else self.kind.name

    def __str__(self) -> str:
        """As it is written, with modes by position."""
        text = ("/" if self.argument.over_modes else "x").join(map(str, self.numbers))
        return f"{self.kind.name}:{text}" if text else self.kind.name


KINDS: dict[str, Kind] = {}
"""All kinds by name, in the order in which they are listed."""


def register(kind: Kind) -> Kind:
    """Make a kind known."""
    if kind.name in KINDS:
        raise ConfigError(f"there is already a multilinear block called '{kind.name}'")
    KINDS[kind.name] = kind
    return kind


def no_argument(text: str | None, find: FindMode | None) -> Argument | None:
    """Nothing behind the name."""
    return Argument() if text is None else None


def one_rank(text: str | None, find: FindMode | None) -> Argument | None:
    """A whole number of at least 1."""
    return some_ranks(text, find) if text is not None and "x" not in text else None


def some_ranks(text: str | None, find: FindMode | None) -> Argument | None:
    """Whole numbers of at least 1, joined by ``x``."""
    ranks = [] if text is None else text.split("x")
    if not ranks or not all(rank.isdecimal() and int(rank) > 0 for rank in ranks):
        return None
    return Argument(tuple(map(int, ranks)))


def some_modes(least: int, most: int) -> Callable[[str | None, FindMode | None], Argument | None]:
    """So many different modes, joined by ``/``."""

    def parse(text: str | None, find: FindMode | None) -> Argument | None:
        names = [] if text is None else [name.strip() for name in text.split("/")]
        if find is None and not all(name.isdecimal() for name in names):
            raise ConfigError(f"'{text}': modes are given by position here, such as tables:0/2")
        modes = tuple(int(name) if find is None else find(name) for name in names)
        fits = len(set(modes)) == len(modes) and least <= len(modes) <= most
        return Argument(modes, over_modes=True) if fits else None

    return parse
