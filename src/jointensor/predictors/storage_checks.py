"""What was loaded fits together: compiled loops look up places without checking them, so places are checked here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from jointensor.errors import RunError
from jointensor.kernels.numba_trees import BINS, MOST_LEAVES
from jointensor.models.blocks import SharedPairs
from jointensor.models.joint import JointModel
from jointensor.predictors.conformal import GRID, LEVELS, Calibration
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import Predictor
from jointensor.predictors.knn import MOST, KnnResiduals
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.tables import Mean, Table, Tables
from jointensor.predictors.trees import Trees
from jointensor.registry import parse_spec

Numbers = dict[str, Tensor]

LAW = ("period", "near", "length", "far")
"""Numbers that say how the values of neighbours hang together."""


class NoLarger(TorchFunctionMode):
    """Refuses to build a model that is larger than the numbers that are there for it."""

    MAKERS = (torch.zeros, torch.empty, torch.ones, torch.randn, torch.full)
    SPARE, SPARE_TENSORS, FEW = 4096, 64, 1_000_000
    """Numbers and tensors that a small model may need on top of its own; an option that means no harm."""

    def __init__(self, own: Numbers) -> None:
        super().__init__()
        self.numbers = sum(one.numel() for one in own.values())
        self.left = 8 * self.numbers + self.SPARE  # f is tried on a few rows, blocks make buffers
        self.tensors_left = 4 * len(own) + self.SPARE_TENSORS

    def check_options(self, nonlinear: Any) -> None:
        """Refuse options of f that ask for more layers or units than there are numbers."""
        options = parse_spec(nonlinear)[1] if isinstance(nonlinear, str) else {}
        must_fit(
            all(not isinstance(one, int) or one <= max(self.numbers, self.FEW) for one in options.values()), "options"
        )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count what is made."""
        if func in self.MAKERS:
            size = args[0] if args and isinstance(args[0], Sequence) else args
            self.left -= max(math.prod(length for length in size if isinstance(length, int)), 1)
            self.tensors_left -= 1
            if self.left < 0 or self.tensors_left < 0:
                raise RunError("its configuration is of a larger model than its numbers")
        return func(*args, **(kwargs or {}))


def must_fit(right: object, what: str) -> None:
    """Refuse a file whose ``what`` is not right."""
    if not right:
        raise RunError(f"its {what} do not fit together")


def whole_numbers(sizes: Any) -> tuple[int, ...]:
    """Whole numbers, none below zero."""
    must_fit(isinstance(sizes, list | tuple) and all(type(one) is int and 0 <= one < 2**62 for one in sizes), "sizes")
    return tuple(sizes)


def checked_table(modes: Any, sizes: Any, keys: Tensor, effects: Tensor) -> Table:
    """A table whose keys and effects belong together."""
    table = Table(whole_numbers(modes), whole_numbers(sizes), keys.numpy(), effects.numpy())
    must_fit(len(table.modes) == len(table.sizes) > 0 and math.prod(table.sizes) > 0, "tables")
    must_fit(table.keys.dtype == np.int64 and table.keys.ndim == 1 and len(table.keys), "keys of tables")
    must_fit(table.effects.dtype.kind == "f" and table.effects.shape == (len(table.keys) + 1,), "effects of tables")
    return table


def check_model(model: JointModel) -> None:
    """Ask for the first and the last entry: numbers that do not fit each other fail here."""
    g = model.multilinear
    for block in () if g is None else g.blocks.values():
        for one in block.implicit_feedback if isinstance(block, SharedPairs) else ():
            pairs = one.seen_with
            must_fit(pairs.ndim == 2 and len(pairs) == 2 and pairs.dtype == torch.int64, "implicit labels")
            tops = torch.tensor([[one.size], [len(one.table)]])
            must_fit(bool(((pairs >= 0) & (pairs < tops)).all()), "implicit labels")
    with torch.no_grad():
        corners = torch.tensor([[0] * len(model.shape), [size - 1 for size in model.shape]])
        must_fit(model(corners).shape == (2,), "weights")


def modes_of(*tables: Table) -> int:
    """Number of modes that tables need to be there."""
    return 1 + max((mode for table in tables for mode in table.modes), default=-1)


def check_trees(trees: Trees) -> None:
    """Every node but a root is the child of one before it in its tree, and no tree has more leaves than can be told."""
    edges, nodes, values, roots = trees.edges, trees.nodes, trees.values, trees.roots
    columns = 2 * len(trees.encoders) + modes_of(*(one.table for one in trees.encoders))
    must_fit(edges.shape == (columns, BINS - 1) and edges.dtype == np.float32, "edges of trees")
    must_fit(nodes.ndim == 2 and nodes.shape[1] == 4 and nodes.dtype == np.int32, "nodes of trees")
    must_fit(values.shape == (len(nodes),) and values.dtype == np.float64, "values of trees")
    must_fit(roots.ndim == 1 and roots.dtype == np.int64, "roots of trees")
    if not len(roots):
        return
    must_fit(roots[0] == 0 and (np.diff(roots) > 0).all() and roots[-1] < len(nodes), "roots of trees")
    place = np.arange(len(nodes))
    tree = np.searchsorted(roots, place, side="right") - 1
    ends = np.append(roots[1:], len(nodes))
    inner = nodes[:, 0] >= 0
    children = nodes[inner, 2:].astype(np.int64) + roots[tree[inner], None]
    later = (children > place[inner, None]) & (children < ends[tree[inner], None])
    must_fit((nodes[:, 0] < columns).all() and later.all(), "nodes of trees")
    must_fit(np.array_equal(np.sort(children, axis=None), np.setdiff1d(place, roots)), "nodes of trees")
    must_fit((np.bincount(tree[~inner]) <= MOST_LEAVES).all(), "leaves of trees")


def check_kriging(local: Kriging) -> None:
    """Neighbours are where they are looked for."""
    shape = whole_numbers(local.shape)
    must_fit(type(local.mode) is int and 0 <= local.mode < len(shape) and 0 < math.prod(shape) < 2**62, "neighbours")
    size = shape[local.mode]
    must_fit(local.coordinates.shape == (size,) and local.coordinates.dtype == np.float64, "coordinates of neighbours")
    must_fit(local.ranks.shape == (size,) and local.ranks.dtype == np.int64, "ranks of neighbours")
    must_fit(((local.ranks >= 0) & (local.ranks < size)).all(), "ranks of neighbours")
    keys = local.keys
    must_fit(keys.ndim == 1 and keys.dtype == np.int64 and (np.diff(keys) >= 0).all(), "keys of neighbours")
    must_fit(not len(keys) or (keys[0] >= 0 and keys[-1] < math.prod(shape)), "keys of neighbours")
    must_fit(local.residuals.shape == keys.shape and local.residuals.dtype == np.float32, "residuals of neighbours")
    must_fit(all(0 <= getattr(local, name) < 2**62 for name in LAW) and local.length, "law of neighbours")


def check_knn(part: KnnResiduals) -> None:
    """Partners are labels of the mode, and their residuals where they are looked for."""
    shape, keys = whole_numbers(part.shape), part.keys
    must_fit(type(part.mode) is int and 0 <= part.mode < len(shape) and 0 < math.prod(shape) < 2**62, "partners")
    must_fit(keys.ndim == 1 and keys.dtype == np.int64 and len(keys) > 0, "keys of partners")
    must_fit((np.diff(keys) >= 0).all() and keys[0] >= 0 and keys[-1] < math.prod(shape), "keys of partners")
    must_fit(part.residuals.shape == keys.shape and part.residuals.dtype == np.float32, "residuals of partners")
    size = (shape[part.mode], MOST)
    must_fit(part.partners.shape == size and part.partners.dtype == np.int32, "partners")
    must_fit(((part.partners >= -1) & (part.partners < size[0])).all(), "partners")
    must_fit(part.weights.shape == size and part.weights.dtype == np.float32, "weights of partners")


def check_calibration(calibration: Any, n_modes: int) -> None:
    """Intervals of as many modes as the model has, with all their numbers."""
    if calibration is None:
        return
    must_fit(isinstance(calibration, Calibration), "intervals")
    arrays = (calibration.edges, calibration.quantiles, calibration.below, calibration.held)
    groups = len(calibration.edges) + 2 if calibration.edges.ndim == 1 else 0
    shapes = ((groups - 2,), (groups, GRID), (groups,), (len(LEVELS),))
    must_fit(
        all(one.shape == shape and one.dtype.kind == "f" for one, shape in zip(arrays, shapes, strict=True)),
        "intervals",
    )
    must_fit(len(whole_numbers(calibration.shape)) == n_modes, "intervals")
    scale = calibration.scale
    must_fit(scale is None or (isinstance(scale, Tables) and modes_of(*scale.tables) <= n_modes + 1), "intervals")


def check_ensemble(ensemble: Ensemble) -> None:
    """All parts are of kinds that predict, and of the same modes."""
    fallback = ensemble.fallback
    must_fit(isinstance(fallback, Tables), "parts")
    n_modes = len(fallback.tables)
    must_fit(n_modes > 1 and all(table.modes == (n,) for n, table in enumerate(fallback.tables)), "parts")
    parts = [part for member in ensemble.members for part in member.parts]
    must_fit(all(len(member.parts) for member in ensemble.members), "members")
    for part in (*parts, *ensemble.memory):
        if isinstance(part, Predictor | Kriging | KnnResiduals):
            must_fit(len(part.shape) == n_modes, "modes")
        elif isinstance(part, Tables):
            must_fit(modes_of(*part.tables) <= n_modes, "modes")
        elif isinstance(part, Trees):
            must_fit(modes_of(*(one.table for one in part.encoders)) == n_modes, "modes")
        else:
            must_fit(isinstance(part, Mean), "parts")
    must_fit(all(isinstance(one, Kriging | KnnResiduals | Tables) for one in ensemble.memory), "parts")
    must_fit(ensemble.decided is None or modes_of(ensemble.decided) <= n_modes, "modes")
    must_fit(isinstance(ensemble.low, float) and ensemble.low <= ensemble.high, "smallest and largest values")
    check_calibration(ensemble.calibration, n_modes)
