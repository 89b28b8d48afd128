"""Alternating least squares: Θ_L solved exactly, block by block and row by row.

With f fixed, the loss is quadratic in each factor matrix of g when its others are fixed, so every row has its optimum
in closed form, without a learning rate. :class:`Als` knows the order of the solves and the priors. How entries are
summed into systems, in memory, by several processes or in passes over a disk, is the task of :class:`Systems`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from jointensor.distributed.process_group import ProcessGroup
from jointensor.models.blocks.base import Block
from jointensor.models.blocks.fm import SharedPairs
from jointensor.models.joint import evaluate_in_batches
from jointensor.models.multilinear import Multilinear
from jointensor.solvers.implicit_feedback import Seen, solve_implicit_feedback
from jointensor.solvers.linked_rows import LinkPrior, RowLinks, solve_linked
from jointensor.threads import threads_for

BATCH = 1 << 19
"""Entries that a block is evaluated on at a time."""

STATE, VALUES = "state/", "values/"
"""Prefixes of names in a saved state: of tables, and of values of training entries."""

MAX_CHECKPOINT_VALUES = 1 << 25
"""Values of training entries beyond this number are not written to checkpoints but computed from the tables again."""

COLLAPSE_TOLERANCE = 1e-6
"""A block whose values stay below this share of the values' spread has collapsed to zero."""

TINY = 1e-30
"""Least denominator."""


class RowPrior(NamedTuple):
    """Prior on the rows of one table: ``ridge · ‖row − mean‖²``, and that of links, is added to the squared error."""

    ridge: Tensor
    """``(I,)``."""
    mean: Tensor | None = None
    """``(I, R)``; zero without one."""
    scale: Tensor | None = None
    """Of every component, ``(R,)``: ridge, mean and links hold for rows divided by it."""
    links: LinkPrior | None = None
    """Between the rows."""


class Systems(ABC):
    """Sums over training entries, for one block after the other. Targets exclude the values of all other blocks.

    Parameters
    ----------
    g
        Whose blocks are solved.
    indices
        Entries whose values are kept, ``(entries, modes)``: all of this process, or a sample.
    processes
        The processes that have shares of the entries; sums are over all of them.
    """

    def __init__(self, g: Multilinear, indices: Tensor, processes: ProcessGroup) -> None:
        self.blocks, self.indices, self.processes = g.named_blocks, indices, processes
        self.values: dict[str, Tensor] = {}
        """Values of every block at these entries, ``(entries,)``."""

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the values of all blocks from their tables."""
        self.values = {
            name: evaluate_in_batches(block, self.indices, BATCH).clone() for name, block in self.blocks.items()
        }

    @abstractmethod
    def counts(self, block: Block, k: int) -> Tensor:
        """Entries of every row of a block's k-th table, ``(I,)``, of all processes."""

    @abstractmethod
    def begin_sweep(self, targets: Any, weights: Tensor | None) -> None:
        """Begin a sweep; the type of the targets is that of the class."""

    def begin_block(self, name: str) -> None:
        """All that follows is about this block."""
        self.name, self.block = name, self.blocks[name]

    def end_block(self) -> None:  # noqa: B027 - there may be nothing to do
        """The block is solved."""

    def end_sweep(self) -> None:  # noqa: B027 - there may be nothing to do
        """All blocks are solved."""

    @abstractmethod
    def mean_squared_error(self) -> float:
        """Of all training entries, after the sweep."""

    @abstractmethod
    def solve_constant(self, number: Tensor, noise: float) -> None:
        """Set a number to the mean of the targets; ``noise`` is the variance of noise that is added to targets."""

    @abstractmethod
    def sums_by_row(self) -> tuple[Tensor, Tensor]:
        """Sum of the targets and sum of the weights of every row of the block's only table, ``(I,)`` each."""

    @abstractmethod
    def end_numbers(self, table: Tensor, sums: Tensor, counts: Tensor) -> None:
        """The table is solved from these sums."""

    @abstractmethod
    def solve_rows(self, k: int, prior: RowPrior, out: Tensor, *, noise: float, last: bool) -> None:
        """Solve for the rows of the k-th table; of a sum over pairs, for a change of rows.

        Parameters
        ----------
        k
            Of the block's tables.
        prior
            Of the solution, divided by the prior's scale.
        out
            The solution is written here, ``(I, R)``. Rows that are linked are solved from where they are.
        noise
            Variance of noise that is added to the targets.
        last
            Whether values of the block are to be computed from this solution.
        """

    def implicit_systems(self, k: int, noise: float) -> tuple[Tensor, Tensor]:
        """Systems of the rows that the k-th table of implicit feedback adds to, ``(I_a, R, R)`` and ``(I_a, R)``.

        It needs all entries in memory: ``Kind.streamable`` refuses it for others.
        """
        raise NotImplementedError("implicit feedback from entries on disk")

    def end_implicit(self, k: int, change: Tensor) -> None:
        """The table is solved; its sums changed by so much, ``(I_a, R)``."""
        raise NotImplementedError("implicit feedback from entries on disk")


PRODUCTS_PER_THREAD = 1e8
"""Products of numbers in the systems of a sweep that are worth a thread of a CPU, about 20 ms. A sweep of CP with 8
components over 150,000 entries takes 9 ms with one thread and 6 ms with two, and beside two other processes, which the
threads wait for at the end of every loop, 13 and 330 ms."""


class Als:
    """Sweeps over the blocks of g; its steps are those of :class:`jointensor.models.blocks.base.SolveSteps`.

    The ridge of a row is ``ridge · n``, with n the number of its entries, for blocks over several modes, and ``pull``
    for blocks of numbers. Both are in units of the values' spread, so that values of another scale give the same fit
    on that scale.

    Parameters
    ----------
    g
        Its tables are changed in place. All its blocks must be solvable.
    systems
        Of the training entries.
    spread
        Standard deviation of the training values.
    """

    noise = 0.0
    """Variance of noise that is added to targets: samplers have one."""

    def __init__(self, g: Multilinear, systems: Systems, *, spread: float) -> None:
        self.g, self.systems, self.spread = g, systems, spread
        self.blocks = g.named_blocks
        self.ridge, self.pull = 0.0, 0.0
        """Ridge of blocks over several modes (λ), as a share of each row's entries, and of numbers (κ), in entries."""
        self.smoothness = 1.0
        """Strength of links between rows, in ridges of a row with the mean number of entries; 0: there are none."""
        device = systems.indices.device
        self.links = {
            n: RowLinks.along(torch.as_tensor(place, device=device), cyclic=g.neighbours[n].cyclic)
            for n, place in g.coordinates.items()
        }
        """Between rows of a mode, by mode."""
        self.seen_pairs: dict[tuple[str, int], Seen] = {}
        """Matrices of implicit feedback by block and table, made at their first use."""

    @property
    def values(self) -> dict[str, Tensor]:
        """Values of every block at the entries in memory."""
        return self.systems.values

    @property
    def processes(self) -> ProcessGroup:
        """The processes that have shares of the entries."""
        return self.systems.processes

    def refresh(self) -> None:
        """Compute the values of all blocks again, after their tables were changed elsewhere."""
        self.systems.refresh()

    def save(self) -> dict[str, Tensor]:
        """A copy of tables and values."""
        state = {STATE + name: value.detach().clone() for name, value in self.g.state_dict().items()}
        return state | {VALUES + name: value.clone() for name, value in self.values.items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go back to saved tables and values; values that were not saved are computed from the tables."""
        self.g.load_state_dict({name[len(STATE) :]: value for name, value in saved.items() if name.startswith(STATE)})
        self._set_values({name[len(VALUES) :]: value for name, value in saved.items() if name.startswith(VALUES)})

    def _set_values(self, values: Mapping[str, Tensor]) -> None:
        if values:
            device = self.systems.indices.device
            self.systems.values = {name: value.to(device, copy=True) for name, value in values.items()}
        else:
            self.refresh()

    def resumable(self) -> dict[str, Any]:
        """The state of sweeps beside the tables."""
        few = sum(value.numel() for value in self.values.values()) <= MAX_CHECKPOINT_VALUES
        return {"values": self.values if few and not self.processes.shared else {}}

    def resume(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self._set_values(state["values"])

    def collapsed(self) -> list[str]:
        """Blocks of products whose values are all zero: the ridge was too large, or the start too small."""
        products = [name for name, block in self.blocks.items() if block.multiplies]
        return [name for name in products if float(self.values[name].abs().max()) <= COLLAPSE_TOLERANCE * self.spread]

    def total(self) -> Tensor:
        """g of the entries in memory, ``(entries,)``."""
        return torch.stack(list(self.values.values())).sum(dim=0)

    def threads(self, entries: int) -> AbstractContextManager[None]:
        """As many threads of a CPU as a sweep over so many entries is worth."""
        squares = sum(table.shape[-1] ** 2 for block in self.blocks.values() for table in block.tables)
        return threads_for(entries * squares, PRODUCTS_PER_THREAD)

    @torch.no_grad()
    def sweep(self, targets: Any, weights: Tensor | None = None) -> None:
        """Solve every block once.

        Parameters
        ----------
        targets
            In memory: x − f of the training entries, ``(entries,)``. On disk: f, which is subtracted there.
        weights
            Of the entries, ``(entries,)``; in memory only.
        """
        self.systems.begin_sweep(targets, weights)
        for name in self.blocks:
            self.solve_block(name)
        self.systems.end_sweep()

    @torch.no_grad()
    def solve_block(self, name: str) -> None:
        """Solve one block for the targets of this sweep, all other blocks fixed."""
        self.systems.begin_block(name)
        self.blocks[name].solve(self)
        self.systems.end_block()

    # priors; samplers have their own

    def set_links(self, strengths: Mapping[int, Mapping[str, float]]) -> None:
        """Give the links of modes other strengths, by mode and kind."""
        self.links = {n: one.with_strengths(strengths.get(n, one.strengths)) for n, one in self.links.items()}

    def likely_seasons(self, mode: int) -> list[str]:
        """Kinds of seasons in the rows of CP along a mode, the most likely one first."""
        cp = self.g.cp
        return [] if cp is None else self.links[mode].likely_seasons(cp.tables[mode])

    def links_of(self, block: Block, k: int, strength: Tensor | float) -> LinkPrior | None:
        """Links between the rows of a block's k-th table; ``None`` where its mode has none.

        ``strength``: of every component ``(R,)``, or of all.
        """
        table = block.tables[k]
        if not self.smoothness or k >= len(block.table_modes) or len(table) < 3:
            return None
        links = self.links.get(block.table_modes[k])
        if links is None or not any(links.strengths.values()):
            return None
        return LinkPrior(links.differences, torch.zeros_like(table[0]) + strength)

    def row_prior(self, name: str, k: int) -> RowPrior:
        """Prior on the rows of a block's k-th table."""
        block = self.blocks[name]
        unit = self.spread ** (2 - 2 / block.degree)  # rows of k modes have the k-th root of the values' scale
        ridge = unit * self.ridge * self.systems.counts(block, k).to(block.tables[k].dtype)  # (I,)
        return RowPrior(ridge, links=self.links_of(block, k, self.smoothness * ridge.mean()))

    def solve_numbers(self, name: str, sums: Tensor, counts: Tensor) -> Tensor:
        """The number of every row from the sum and the count of its targets, ``(I,)`` each."""
        links = self.links_of(self.blocks[name], 0, self.pull)
        if links is None:
            return torch.where(counts > 0, sums / (counts + self.pull).clamp_min(TINY), 0.0)
        found = self.blocks[name].tables[0].to(sums.dtype, copy=True)
        solve_linked(
            lambda rows: (counts[rows, None, None], sums[rows, None]), torch.zeros_like(sums), None, links, found
        )
        return found[:, 0]

    def implicit_prior(self, name: str, k: int) -> tuple[Tensor, Tensor]:
        """Prior on the k-th table of implicit feedback: ridge ``(R,)`` and mean ``(I_b, R)``."""
        block = cast(SharedPairs, self.blocks[name])
        one, table = block.implicit_feedback[k], block.extra_tables[k]
        counts = self.systems.counts(block, one.a)
        counts = counts[counts > 0].to(table.dtype)
        return torch.full_like(table[0], self.spread * self.ridge) * counts.mean(), torch.zeros_like(table)

    # steps that blocks are solved by: SolveSteps, for the block that the systems are about

    def constant(self, number: Tensor) -> None:
        """One number: the mean of the targets."""
        self.systems.solve_constant(number, self.noise)

    def numbers(self, rows: int | None = None) -> None:
        """One number per row: sums over its entries, without matrices."""
        block = self.systems.block
        (table,) = block.tables
        sums, counts = self.systems.sums_by_row()
        table[:, 0] = self.solve_numbers(self.systems.name, sums, counts).to(table.dtype)
        table[len(table) if rows is None else rows :] = 0.0
        self.systems.end_numbers(table, sums, counts)

    def products(self) -> None:
        """Rows of one table after the other."""
        name, tables = self.systems.name, self.systems.block.tables
        for k, table in enumerate(tables):
            prior, last = self.row_prior(name, k), k == len(tables) - 1
            self.systems.solve_rows(k, prior, table, noise=self.noise, last=last)
        rebalance(tables)

    def pairs(self) -> None:
        """Changes of rows of one table after the other: a sum over pairs has terms without the rows that are solved."""
        name, block = self.systems.name, self.systems.block
        for k, table in enumerate(block.tables):
            prior, change = self.row_prior(name, k), torch.zeros_like(table)
            present = table if prior.scale is None else table / prior.scale
            mean = -present if prior.mean is None else prior.mean - present
            links = prior.links
            if links is not None:
                pull = -links.product(present)
                links = links._replace(pull=pull if links.pull is None else links.pull + pull)
            self.systems.solve_rows(k, prior._replace(mean=mean, links=links), change, noise=self.noise, last=True)
            table += change

    def implicit_feedback(self, k: int) -> None:
        """A table of implicit feedback, by conjugate gradients."""
        name, block = self.systems.name, cast(SharedPairs, self.systems.block)
        one = block.implicit_feedback[k]
        systems = self.systems.implicit_systems(k, self.noise)
        ridge, mean = self.implicit_prior(name, k)
        if (name, k) not in self.seen_pairs:
            self.seen_pairs[name, k] = Seen.of(one)
        seen = self.seen_pairs[name, k]
        self.systems.end_implicit(k, solve_implicit_feedback(one, seen, systems, ridge, mean))


def rebalance(tables: Sequence[Tensor]) -> None:
    """Give every component factors of equal size in all modes; their products stay as they are."""
    sizes = torch.stack([table.square().mean(dim=0).sqrt() for table in tables])  # (modes, R)
    alive = (sizes > 0).all(dim=0)
    common = sizes.clamp_min(TINY).log().mean(dim=0).exp()
    for table, size in zip(tables, sizes, strict=True):
        table.mul_(torch.where(alive, common / size.clamp_min(TINY), 1.0))
