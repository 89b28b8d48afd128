"""Boosting on an NVIDIA GPU: trees of :mod:`jointensor.kernels.numba_trees`, grown without asking the host.

Every entry knows the leaf it is in. A split is three launches: one moves the entries of a leaf and sums up the smaller
side by column and bin; one, column by column, takes the difference to the parent and seeks the best split of both
sides; one says which leaf is next. Which that is stays on the device, so that a whole tree is recorded once and
replayed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton  # type: ignore[import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor

from jointensor.kernels.numba_trees import BINS

BLOCK = 1024
"""Entries of one program."""

LEAF, COLUMN, BOUND, NEW, SMALL, SPLITS = range(6)
"""What is next: a leaf (-1: none), where it is split, the number of its right side, which side has fewer entries; and
how many splits there were."""


class Boosting:
    """Trees for what is left of the values.

    Parameters
    ----------
    bins
        Binned columns, those of validation entries last, ``(columns, entries)``.
    left
        Values, and what is left of them later, ``(entries,)``.
    count
        How many entries are learnt from; the others are only moved.
    leaves, least, rate
        Most leaves of a tree, fewest entries in one, and the share of a tree that is taken.
    """

    def __init__(self, bins: Tensor, left: Tensor, count: int, leaves: int, least: int, rate: float) -> None:
        self.bins, self.left, self.count, self.leaves, self.least, self.rate = bins, left, count, leaves, least, rate
        columns, entries = bins.shape
        self.leaf = bins.new_zeros(entries, dtype=torch.int16)
        self.sums = left.new_zeros(leaves, 2, columns, BINS)  # of what is left, and of entries
        self.side = left.new_zeros(2, columns, BINS)
        self.next = bins.new_zeros(6, dtype=torch.int32)
        # the best split of every leaf in every column: gain, bound, how many more entries are on its left side
        self.gains, self.lean = left.new_zeros(leaves, columns), left.new_zeros(leaves, columns)
        self.bounds = bins.new_zeros(leaves, columns, dtype=torch.int32)
        self.node = bins.new_zeros(leaves, dtype=torch.int32)  # of every leaf
        self.nodes = bins.new_zeros(2 * leaves - 1, 4, dtype=torch.int32)
        self.values = left.new_zeros(2 * leaves - 1)
        self.error = left.new_zeros(())  # squared, of the validation entries
        self.replay: Callable[[], None] | None = None

    def grow(self) -> None:
        """One more tree; ``nodes``, ``values`` and ``error`` are its."""
        if self.replay is None:
            self._grow()
            self.replay = self._recorded()
        else:
            self.replay()

    def _grow(self) -> None:
        columns, entries = self.bins.shape
        grid = (triton.cdiv(entries, BLOCK),)
        size = triton.next_power_of_2(self.leaves * columns)
        for state in (self.leaf, self.next, self.node, self.nodes, self.values):
            state.zero_()
        self.nodes[0, :1].fill_(-1)
        for splits in range(self.leaves):
            root = splits == 0
            _move[grid](
                self.bins, self.left, self.leaf, self.side, self.next, entries, self.count, columns,
                ROOT=root, BLOCK=BLOCK, BINS=BINS,
            )  # fmt: skip
            _judge[(columns,)](
                self.sums, self.side, self.next, self.gains, self.bounds, self.lean, self.node, self.values, columns,
                self.least, ROOT=root, BINS=BINS,
            )  # fmt: skip
            _choose[(1,)](
                self.next, self.gains, self.bounds, self.lean, self.node, self.nodes, columns, self.leaves,
                ROOT=root, SIZE=size,
            )  # fmt: skip
        said = self.rate * self.values[self.node.long()]  # (leaves,)
        self.left -= said[self.leaf.long()]
        self.error.copy_(self.left[self.count :].double().square().sum())

    def _recorded(self) -> Callable[[], None]:
        """The same launches, replayed."""
        if self.bins.device.type != "cuda":
            return self._grow
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._grow()
        replay: Callable[[], None] = graph.replay
        return replay


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _move(  # type: ignore[no-untyped-def]
    bins, left, leaf, side, next_, entries, count, columns, ROOT: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr
):
    """Entries of the chosen leaf to its sides; the smaller side is summed up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < entries
    if ROOT:
        counted = at < count
    else:
        one = tl.load(next_)
        new = tl.load(next_ + 3)
        mine = tl.load(leaf + at, mask=live, other=-2).to(tl.int32)
        inside = live & (mine == one)
        split = tl.load(next_ + 1).to(tl.int64)
        bound = tl.load(next_ + 2)
        right = tl.load(bins + split * entries + at, mask=inside, other=0).to(tl.int32) > bound
        tl.store(leaf + at, tl.zeros_like(at).to(tl.int16) + new.to(tl.int16), mask=inside & right)
        small = tl.load(next_ + 4)
        counted = inside & (at < count) & (right == (small == new))
    value = tl.load(left + at, mask=counted, other=0.0)
    ones = tl.full([BLOCK], 1.0, tl.float32)
    for c in range(columns):
        b = tl.load(bins + at, mask=counted, other=0).to(tl.int32)
        tl.atomic_add(side + c * BINS + b, value, mask=counted, sem="relaxed")
        tl.atomic_add(side + (columns + c) * BINS + b, ones, mask=counted, sem="relaxed")
        at += entries  # the next column, counted in 64 bits


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _judge(  # type: ignore[no-untyped-def]
    sums, side, next_, gains, bounds, lean, node, values, columns, least, ROOT: tl.constexpr, BINS: tl.constexpr
):
    """Sums of both sides of the last split in one column, and the best next split of each there."""
    c = tl.program_id(0)
    b = tl.arange(0, BINS)
    some = tl.load(side + c * BINS + b)
    many = tl.load(side + (columns + c) * BINS + b)
    tl.store(side + c * BINS + b, tl.zeros_like(some))
    tl.store(side + (columns + c) * BINS + b, tl.zeros_like(many))
    one = tl.load(next_)
    new = tl.load(next_ + 3)
    small = tl.load(next_ + 4)
    size = 2 * columns * BINS
    if ROOT:
        tl.store(sums + c * BINS + b, some)
        tl.store(sums + (columns + c) * BINS + b, many)
        _judge_leaf(some, many, 0, c, gains, bounds, lean, node, values, columns, least, BINS)
    elif one >= 0:
        rest = tl.load(sums + one * size + c * BINS + b) - some
        others = tl.load(sums + one * size + (columns + c) * BINS + b) - many
        few, lots = small, one + new - small
        tl.store(sums + few * size + c * BINS + b, some)
        tl.store(sums + few * size + (columns + c) * BINS + b, many)
        tl.store(sums + lots * size + c * BINS + b, rest)
        tl.store(sums + lots * size + (columns + c) * BINS + b, others)
        _judge_leaf(some, many, few, c, gains, bounds, lean, node, values, columns, least, BINS)
        _judge_leaf(rest, others, lots, c, gains, bounds, lean, node, values, columns, least, BINS)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _judge_leaf(some, many, leaf, c, gains, bounds, lean, node, values, columns, least, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The best split of a leaf in one column: gain, bound, and how many more entries are on its left side."""
    total = tl.sum(some, axis=0)
    count = tl.sum(many, axis=0)
    lower = tl.cumsum(some, axis=0)
    below = tl.cumsum(many, axis=0)
    above = count - below
    gain = lower * lower / tl.maximum(below, 1.0) + (total - lower) * (total - lower) / tl.maximum(above, 1.0)
    fair = (many > 0.0) & (below >= least) & (above >= least)
    whole = total * total / tl.maximum(count, 1.0)
    # less is rounding: a leaf of equal values would be split for ever
    gain = tl.where(fair & (gain - whole > 1e-6 * whole), gain - whole, 0.0)
    most = tl.max(gain, axis=0)
    b = tl.arange(0, BINS)
    bound = tl.min(tl.where(gain == most, b, BINS), axis=0)
    tl.store(gains + leaf * columns + c, most)
    tl.store(bounds + leaf * columns + c, bound)
    tl.store(lean + leaf * columns + c, tl.sum(tl.where(b == bound, below - above, 0.0), axis=0))
    if c == 0:
        tl.store(values + tl.load(node + leaf), total / tl.maximum(count, 1.0))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _choose(  # type: ignore[no-untyped-def]
    next_, gains, bounds, lean, node, nodes, columns, most, ROOT: tl.constexpr, SIZE: tl.constexpr
):
    """The leaf and column that gain most are split next; where none does, or there are enough leaves, none is."""
    splits = tl.load(next_ + 5)
    going = tl.load(next_) >= 0
    if ROOT:
        splits = 0
        going = splits == 0
    at = tl.arange(0, SIZE)
    gain = tl.load(gains + at, mask=at < (splits + 1) * columns, other=0.0)
    best = tl.max(gain, axis=0)
    place = tl.min(tl.where(gain == best, at, SIZE), axis=0)
    found = going & (best > 0.0) & (splits + 1 < most)
    leaf = place // columns
    new = splits + 1
    made = 2 * splits + 1
    tl.store(next_, tl.where(found, leaf, -1))
    if found:
        column = place % columns
        bound = tl.load(bounds + place)
        parent = tl.load(node + leaf)
        tl.store(next_ + 1, column)
        tl.store(next_ + 2, bound)
        tl.store(next_ + 3, new)
        tl.store(next_ + 4, tl.where(tl.load(lean + place) <= 0.0, leaf, new))
        tl.store(nodes + 4 * parent, column)
        tl.store(nodes + 4 * parent + 1, bound)
        tl.store(nodes + 4 * parent + 2, made)
        tl.store(nodes + 4 * parent + 3, made + 1)
        tl.store(nodes + 4 * made, -1)
        tl.store(nodes + 4 * made + 4, -1)
        tl.store(node + leaf, made)
        tl.store(node + new, made + 1)
        tl.store(next_ + 5, new)
