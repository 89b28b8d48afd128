"""Priors that link the rows of a table, and the solution of all its rows at once.

Penalties on differences of rows say how neighbouring labels are alike:

    walk      a_{i+1} − a_i                    slow changes: a random walk
    curve     a_i − (a_{i−1} + a_{i+1}) / 2    slow changes of direction: a random walk of second order
    season    a_{i+p} − a_i                    rows that come back after a lag p

An autoregressive prior is a walk together with the ridge of every row. With D for the differences, each row's system
(H_i, c_i) from its entries and ridge ρ_i, the rows solve

    (H_i + ρ_i I) a_i + Σ_j (DᵀD)_ij s ∘ a_j = c_i + ρ_i p_i    for all i,

by conjugate gradients. They are preconditioned by the same system with the mean H of all rows in place of each one,
which is solved through the eigenvectors of H and of DᵀD. Where the rows' systems are too different for that, those of
single rows, which take long to factorise, are added to the preconditioner.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from jointensor.kernels.rows import DIAGONAL_LIFT, MORE_LIFT, row_groups

MAX_STEPS_ALIKE = 32
"""Steps of conjugate gradients with the mean of the rows' systems, at most: where these are alike, 5 to 20 suffice."""

MAX_STEPS_SINGLE = 100
"""Steps with the systems of single rows besides, at most."""

STEPS_PER_LOOK = {"cpu": 1, "cuda": 4}
"""Steps after which the residual is looked at: on a GPU the host waits for it."""

MAX_BLOCK = 256
"""Rows whose links have common eigenvectors. Links between blocks are left to the steps: more rows save few of those,
and cost more each."""

MAX_BLOCK_NUMBERS = 1 << 23
"""Numbers in these eigenvectors: blocks are smaller where rows are many."""

TINY = 1e-30
"""Least denominator."""

MIN_SHARE = 1e-6
"""Least eigenvalue of a preconditioner, and least strength, as a share of the mean."""

STEP_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4}
"""Size of the residual over that of the right side at which the steps end. Rows without entries, which links alone
determine, have little part in it: ten times as much leaves them so far off that they predict worse."""

MAX_DOUBLE_NUMBERS = 1 << 20
"""Numbers in systems up to which these are solved in 64 bits on a CPU. The steps read all of them: beyond the cache,
half the bytes are half the seconds."""

MAX_HOST_NUMBERS = 1 << 18
"""Numbers in systems up to which those of a GPU are solved on the CPU: a step there takes less time than its kernels
need to start."""

TERMS = 3
"""Rows in one difference."""

MIN_LAG = 4
"""Shortest season, in labels: what is closer is a walk."""

MAX_LAG_SHARE = 0.5
"""Longest season as a share of the labels: every row has another one lag away."""

MAX_LAG = 1024
"""The same in labels."""

MAX_SEASONS = 2
"""Seasons that are tried: a day and a week."""

HALF_STEP = 0.5
"""Within which coordinates count as equal, in median steps."""

MIN_GAP = 1e-3
"""Smallest distance of neighbours, in median steps: labels at one place would have weights without bounds."""

MIN_LAG_GAIN = 0.1
"""Share by which rows a lag apart must differ less than those on the way to it."""


MIN_MULTIPLE_GAIN = 0.25
"""The same for a multiple of a shorter season, beside that: it has fewer pairs of rows, and differs by chance."""


class Spectrum(NamedTuple):
    """Eigenvalues and eigenvectors of blocks of DᵀD on its diagonal; the last block is filled up with zeros."""

    values: Tensor
    """``(blocks, B)``."""
    vectors: Tensor
    """``(blocks, B, B)``."""


@dataclass(frozen=True)
class Differences:
    """D: weighted differences of rows."""

    rows: Tensor
    """``(differences, 3)``."""
    weights: Tensor
    """Alike."""
    spectra: dict[tuple[int, int], Spectrum] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of ranges of rows, from their first use."""

    @cached_property
    def on_host(self) -> Differences:
        """The same in the memory of the CPU."""
        return Differences(self.rows.cpu(), self.weights.cpu())

    @classmethod
    def of(cls, rows: list[Tensor], weights: list[Tensor], size: int) -> Self:
        """From columns of rows and weights, on average 1 on the diagonal of DᵀD."""
        columns = TERMS - len(rows)
        places = torch.stack([*rows, *[torch.zeros_like(rows[0])] * columns], dim=1)
        found = torch.stack([*weights, *[torch.zeros_like(weights[0])] * columns], dim=1)
        total = found.square().sum() / max(size, 1)
        return cls(places, found / total.sqrt().clamp_min(1e-30))

    def apply(self, table: Tensor) -> Tensor:
        """D a, ``(I, R)`` → ``(differences, R)``."""
        found = table.new_zeros(len(self.rows), table.shape[1])
        for k in range(TERMS):
            found.addcmul_(table.index_select(0, self.rows[:, k]), self.weights[:, k, None].to(table.dtype))
        return found

    def spread(self, values: Tensor, size: int) -> Tensor:
        """Dᵀ v, ``(differences, R)`` → ``(I, R)``."""
        found = values.new_zeros(size, values.shape[1])
        for k in range(TERMS):
            found.index_add_(0, self.rows[:, k], values * self.weights[:, k, None].to(values.dtype))
        return found

    def diagonal(self, size: int) -> Tensor:
        """Of DᵀD, ``(I,)``."""
        return self.weights.new_zeros(size).index_add_(0, self.rows.flatten(), self.weights.square().flatten())

    def spectrum(self, some: slice) -> Spectrum:
        """Of DᵀD between some rows, in blocks of rows that follow one another."""
        place = some.start, some.stop
        if place not in self.spectra:
            self.spectra[place] = self._spectrum(*place)
        return self.spectra[place]

    def _spectrum(self, start: int, stop: int) -> Spectrum:
        count = -(-(stop - start) // max(1, min(MAX_BLOCK, MAX_BLOCK_NUMBERS // (stop - start))))
        size = -(-(stop - start) // count)  # of a block, B
        rows = self.rows - start  # (differences, 3)
        inside = (rows >= 0) & (rows < stop - start)
        block, place = rows // size, rows % size
        pairs = inside[:, :, None] & inside[:, None, :] & (block[:, :, None] == block[:, None, :])
        cells = (rows * size)[:, :, None] + place[:, None, :]  # (differences, 3, 3)
        weights = self.weights.double()
        found = weights.new_zeros(count * size * size)
        found.index_add_(0, cells[pairs], (weights[:, :, None] * weights[:, None, :])[pairs])
        return Spectrum(*torch.linalg.eigh(found.view(count, size, size)))


@dataclass(frozen=True)
class RowLinks:
    """Which differences of a mode's rows are small, and how small."""

    coordinates: Tensor
    """Of the labels, ascending, in median steps, ``(I,)``."""
    labels: Tensor
    """The label at every place of the order, ``(I,)``."""
    period: float = 0.0
    """After which the order begins again; 0 if it is not cyclic."""
    strengths: Mapping[str, float] = field(default_factory=lambda: {"walk": 1.0})
    """Of every kind of difference, relative to each other: ``walk``, ``curve``, ``season:P``."""

    @classmethod
    def along(cls, coordinates: Tensor, *, cyclic: bool) -> Self:
        """Of labels at coordinates in any order, ``(I,)``."""
        ascending, labels = coordinates.double().sort(stable=True)
        gaps = ascending.diff()
        step = float(gaps[gaps > 0].median()) if bool((gaps > 0).any()) else 1.0
        ascending = (ascending - ascending[0]) / step if len(ascending) else ascending
        return cls(ascending, labels, float(ascending[-1]) + 1 if cyclic and len(ascending) else 0.0)

    def with_strengths(self, strengths: Mapping[str, float]) -> Self:
        """The same with other strengths."""
        return self if strengths == self.strengths else replace(self, strengths=dict(strengths))

    @cached_property
    def differences(self) -> Differences:
        """D with all kinds of differences, each times the root of its strength."""
        found = [(self._of_kind(kind), strength) for kind, strength in self.strengths.items() if strength > 0]
        parts = [(one.rows, one.weights * strength**0.5) for one, strength in found]
        if not parts:
            return Differences(self.labels.new_zeros(0, TERMS), self.coordinates.new_zeros(0, TERMS).float())
        return Differences(torch.cat([rows for rows, _ in parts]), torch.cat([weights for _, weights in parts]).float())

    def _of_kind(self, kind: str) -> Differences:
        name, _, lag = kind.partition(":")
        return self._season(float(lag)) if name == "season" else self._walk() if name == "walk" else self._curve()

    def _walk(self) -> Differences:
        """Steps from one label to the next, over the roots of their gaps."""
        places = torch.arange(len(self.labels), device=self.labels.device)
        kept = places if self.period else places[:-1]
        root = self._gaps()[kept].rsqrt()
        return Differences.of([self.labels.roll(-1)[kept], self.labels[kept]], [root, -root], len(self.labels))

    def _curve(self) -> Differences:
        """Every row less the line between its neighbours."""
        places, gaps = torch.arange(len(self.labels), device=self.labels.device), self._gaps()
        kept = places if self.period else places[1:-1]
        before, after = gaps.roll(1)[kept], gaps[kept]
        scale = (before * after).rsqrt()
        rows = [self.labels[kept], self.labels.roll(1)[kept], self.labels.roll(-1)[kept]]
        shares = [after / (before + after), before / (before + after)]
        return Differences.of(rows, [scale, *(-share * scale for share in shares)], len(self.labels))

    def _season(self, lag: float) -> Differences:
        """Every row less the one a lag before it."""
        later, earlier = self._apart(lag)
        ones = torch.ones_like(self.coordinates[earlier])
        return Differences.of([self.labels[later], self.labels[earlier]], [ones, -ones], len(self.labels))

    def _gaps(self) -> Tensor:
        """From every place of the order to the next one, and from the last to the first, ``(I,)``."""
        gaps = self.coordinates.roll(-1) - self.coordinates
        if self.period:
            gaps[-1] += self.period
        return gaps.clamp_min(MIN_GAP)

    def _apart(self, lag: float) -> tuple[Tensor, Tensor]:
        """Pairs of places that are a lag apart, the later ones first."""
        wanted = self.coordinates + lag
        there = torch.searchsorted(self.coordinates, wanted - HALF_STEP).clamp_max(len(wanted) - 1)
        earlier = ((self.coordinates[there] - wanted).abs() < HALF_STEP).nonzero().squeeze(1)
        return there[earlier], earlier

    def likely_seasons(self, table: Tensor) -> list[str]:
        """Kinds of seasons whose differences of rows ``(I, R)`` are smallest; the shortest one first.

        At such a lag rows differ less than at lags nearby, and less than at some lag on the way to it. Of a lag and its
        multiples, those that are not much better than it are left out.
        """
        at, rows = self.coordinates, table[self.labels].double()
        most = int(MAX_LAG_SHARE * float(at[-1])) if len(at) and not self.period else 0
        sizes = [math.inf, *(self._step_size(rows, lag) for lag in range(1, min(most, MAX_LAG) + 1))]
        found: list[int] = []
        for lag in range(MIN_LAG, len(sizes)):
            nearby, between = sizes[max(lag - 1 - lag // 8, 1) : lag + 2 + lag // 8], sizes[lag // 4 + 1 : lag]
            shorter = [sizes[one] for one in found if lag % one == 0]
            stands_out = sizes[lag] == min(nearby) and sizes[lag] < (1 - MIN_LAG_GAIN) * max(between)
            if stands_out and all(sizes[lag] < (1 - MIN_MULTIPLE_GAIN) * one for one in shorter):
                found.append(lag)
        best = sorted(found, key=lambda lag: sizes[lag])[:MAX_SEASONS]
        return [f"season:{lag}" for lag in sorted(best)]

    def _step_size(self, rows: Tensor, lag: int) -> float:
        """Mean squared difference of rows a lag apart, ``(I, R)`` in their order."""
        later, earlier = self._apart(lag)
        return float((rows[later] - rows[earlier]).square().mean()) if len(later) else math.inf


class LinkPrior(NamedTuple):
    """Links of the rows of one table: ``Σ_r s_r ‖D a(·, r)‖²`` is added to the squared error."""

    differences: Differences
    strength: Tensor
    """s, ``(R,)``."""
    pull: Tensor | None = None
    """Added to the right sides, ``(I, R)``."""

    def on_host(self) -> LinkPrior:
        """The same in the memory of the CPU."""
        return LinkPrior(self.differences.on_host, self.strength.cpu(), None if self.pull is None else self.pull.cpu())

    def product(self, table: Tensor) -> Tensor:
        """DᵀD a, times the strengths, ``(I, R)``."""
        return self.differences.spread(self.differences.apply(table), len(table)) * self.strength


def solve_linked(
    systems_of: Callable[[slice], tuple[Tensor, Tensor]],
    ridge: Tensor,
    mean: Tensor | None,
    links: LinkPrior,
    table: Tensor,
) -> None:
    """Solve for all rows of ``table (I, R)`` in place, from where they are.

    Where the systems of all rows would take too much memory, groups of rows are solved one after the other, each given
    the present rows of the others.

    Parameters
    ----------
    systems_of
        H and c of some rows, ``(rows, R, R)`` and ``(rows, R)``.
    ridge
        ρ, ``(I,)``.
    mean
        p, ``(I, R)``; zero without one.
    links
        Between the rows.
    """
    for rows in row_groups(len(table), table):
        gram, right = systems_of(rows)
        if gram.is_cuda and gram.numel() <= MAX_HOST_NUMBERS:
            found, center = table.cpu(), None if mean is None else mean.cpu()
            solve_group(gram.cpu().double(), right.cpu().double(), ridge.cpu(), center, links.on_host(), found, rows)
            table.copy_(found)
            continue
        if not gram.is_cuda and gram.numel() <= MAX_DOUBLE_NUMBERS:
            gram, right = gram.double(), right.double()
        solve_group(gram, right, ridge, mean, links, table, rows)


def solve_group(
    gram: Tensor, right: Tensor, ridge: Tensor, mean: Tensor | None, links: LinkPrior, table: Tensor, rows: slice
) -> None:
    """Solve for some rows in place, given all others; arguments as of :func:`solve_linked`, systems of these rows."""
    present = table.to(gram.dtype)
    here = _System(gram, ridge[rows].to(gram.dtype), links, rows, len(table))
    wanted = right if mean is None else right + ridge[rows, None] * mean[rows]
    if links.pull is not None:
        wanted = wanted + links.pull[rows]
    missing = wanted - here.own(present[rows]) - links.product(present)[rows].to(gram.dtype)
    change = here.solve(missing, STEP_TOLERANCES[gram.dtype] * _norm(wanted))
    if bool(torch.isfinite(change).all()):
        table[rows] += change.to(table.dtype)


@dataclass
class _System:
    """The joint system of some rows."""

    gram: Tensor
    ridge: Tensor
    links: LinkPrior
    rows: slice
    size: int
    """Rows of the whole table."""

    def own(self, found: Tensor) -> Tensor:
        """H_i a_i + ρ_i a_i, ``(rows, R)``."""
        image = torch.bmm(found[:, None, :], self.gram).squeeze(1)  # H is symmetric; columns are read one by one
        return image + self.ridge[:, None] * found

    def product(self, found: Tensor) -> Tensor:
        """The left side for rows ``(rows, R)``, all others zero."""
        whole = found.new_zeros(self.size, found.shape[1])
        whole[self.rows] = found
        return self.own(found) + self.links.product(whole)[self.rows]

    def solve(self, right: Tensor, tolerance: float) -> Tensor:
        """Conjugate gradients from zero until the residual is smaller than a tolerance."""
        if not tolerance < _norm(right) < math.inf:
            return torch.zeros_like(right)
        alike = self._alike()
        found, residual = self._steps(right, alike, tolerance, MAX_STEPS_ALIKE)
        if not _norm(residual) > tolerance:
            return found
        single = self._single()
        rest, _ = self._steps(
            right - self.product(found), lambda one: alike(one) + single(one), tolerance, MAX_STEPS_SINGLE
        )
        return found + rest

    def _steps(
        self, right: Tensor, near_of: Callable[[Tensor], Tensor], tolerance: float, most: int
    ) -> tuple[Tensor, Tensor]:
        """Where some steps with a preconditioner lead from zero, and the residual there."""
        look = STEPS_PER_LOOK.get(right.device.type, 1)
        found, residual = torch.zeros_like(right), right
        step = near = near_of(residual)
        size = (residual * near).sum()
        for count in range(1, most + 1):
            image = self.product(step)
            length = _ratio(size, (step * image).sum())
            found, residual = found + length * step, residual - length * image
            if count % look == 0 and not _norm(residual) > tolerance:
                break
            near = near_of(residual)
            size, before = (residual * near).sum(), size
            step = near + _ratio(size, before) * step
        return found, residual

    def _alike(self) -> Callable[[Tensor], Tensor]:
        """Solutions where every row has the mean H + ρ I, and links are within blocks of rows.

        With strengths s = s̄ u, u^(−½) (H + ρ I) u^(−½) = V diag(λ) Vᵀ and DᵀD = Q diag(θ) Qᵀ, factors 1 / (λ + s̄ θ).
        """
        strength, size = self.links.strength.double(), len(self.gram)
        shares = self.gram.new_full((1, size), 1 / size)
        mean = (shares @ self.gram.flatten(1)).view(self.gram.shape[1:]).double()  # (R, R)
        mean.diagonal().add_(self.ridge.mean(dtype=torch.float64))
        level = strength.mean()
        root = (strength / level.clamp_min(TINY)).clamp_min(MIN_SHARE).rsqrt()  # (R,)
        values, vectors = torch.linalg.eigh(root[:, None] * mean * root)
        spectrum = self.links.differences.spectrum(self.rows)
        least = MIN_SHARE * (values.abs().mean() + level * spectrum.values.mean()) + TINY
        factors = 1 / (values.clamp_min(least) + level * spectrum.values.clamp_min(0)[:, :, None])  # (blocks, B, R)
        outer, factors = (root[:, None] * vectors).to(self.gram.dtype), factors.to(self.gram.dtype)
        inner = spectrum.vectors.to(self.gram.dtype)
        more = factors[:, :, 0].numel() - size  # rows that fill up the last block

        def near_of(residual: Tensor) -> Tensor:
            rotated = pad(residual @ outer, (0, 0, 0, more)).view(factors.shape)  # (blocks, B, R)
            found = torch.bmm(inner, torch.bmm(inner.mT, rotated) * factors)
            return found.flatten(0, 1)[:size] @ outer.T

        return near_of

    def _single(self) -> Callable[[Tensor], Tensor]:
        """Solutions of the rows' systems alone."""
        factor = self._factor()
        return lambda residual: torch.cholesky_solve(residual[:, :, None], factor).squeeze(2)

    def _factor(self) -> Tensor:
        """Cholesky factors of the rows' systems, ``(rows, R, R)``."""
        diagonal = self.links.differences.diagonal(self.size)[self.rows, None] * self.links.strength  # (rows, R)
        share = self.gram.diagonal(dim1=1, dim2=2).mean(dim=1) + self.ridge + diagonal.mean(dim=1)
        for lift in (DIAGONAL_LIFT, *MORE_LIFT, 1.0):
            system = self.gram.clone()
            added = self.ridge[:, None] + diagonal + (lift * share + torch.finfo(system.dtype).tiny ** 0.5)[:, None]
            system.diagonal(dim1=1, dim2=2).add_(added)
            factor, failed = torch.linalg.cholesky_ex(system)
            if not bool(failed.any()):
                break
        return factor


def _norm(table: Tensor) -> float:
    return float(torch.linalg.vector_norm(table))


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """Of two sums of squares; zero where rounding has left nothing of the second, so that steps end there."""
    return torch.where(other > 0, one / other, 0.0)
