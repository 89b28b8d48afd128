"""A predictor made ready for very many queries: the same predictions, bit for bit, sooner."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.julia import Julia
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor, evaluate_model
from jointensor.predictors.tables import Table, Tables
from jointensor.threads import slices_of

BATCH = 1 << 12
"""Entries that go through a model at a time: the outputs of a layer stay in the cache of a core."""

HIDDEN_BATCH = 1 << 10
"""Entries whose widest layer is computed at a time: it is read again before it leaves that cache."""


@dataclass(frozen=True)
class Answers:
    """Predictions of some entries, from which their intervals can be computed."""

    predicted: NDArray[np.float32]
    """``(entries,)``."""
    never_seen: NDArray[np.bool_]
    """Which entries have a label that no training entry had, ``(entries,)``."""


class Serving:
    """Predicts like the given predictor, in small batches on all of torch's threads."""

    def __init__(self, predictor: JointPredictor | Ensemble) -> None:
        self.predictor = replace(predictor, fallback=_indexed(predictor.fallback))

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no training entry had (or that is unknown: -1)."""
        return self.predictor.unseen(indices)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``."""
        return self.answer(indices).predicted

    def answer(self, indices: NDArray[np.integer]) -> Answers:
        """Predictions, and which entries have a label that was never seen."""
        unseen = self.unseen(indices)
        return Answers(self.predictor.predict_with(indices, unseen, _in_small_batches), unseen)

    def interval(self, indices: NDArray[np.integer], answers: Answers, level: float) -> NDArray[np.float32]:
        """Lower and upper ends of entries that were predicted, ``(entries, 2)``."""
        return self.predictor.interval_around(indices, answers.predicted, answers.never_seen, level)


def _in_small_batches(model: JointModel, indices: NDArray[np.integer]) -> NDArray[np.float32]:
    """Values of entries, ``(entries, modes)`` → ``(entries,)``; on a GPU in the usual batches."""
    if next(model.parameters()).device.type != "cpu":
        return evaluate_model(model, indices)
    queries = torch.as_tensor(np.array(indices, order="C"))  # (entries, modes)
    predicted = torch.empty(len(queries))
    batches = slices_of(len(queries), BATCH)

    def predict(batch: slice) -> None:
        with torch.inference_mode():
            predicted[batch] = model(queries[batch])

    with _one_thread_per_call() as threads, _hidden_in_cache(model):
        if threads == 1:  # starting and ending threads leaks memory
            for batch in batches:
                predict(batch)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(predict, batches))
    return predicted.numpy()


@contextmanager
def _one_thread_per_call() -> Iterator[int]:
    """How many calls to make at once, each of which keeps to its thread: small batches are not worth sharing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _hidden_in_cache(model: JointModel) -> Iterator[None]:
    """Compute the wide layer of the paper's f for a few entries at a time, and use it at once."""
    part = None if model.nonlinear is None else model.nonlinear.part
    if not isinstance(part, Julia) or part.fuses is None or part.fused is not None:
        yield
        return
    part.fused = _two_layers
    try:
        yield
    finally:
        part.fused = None


def _two_layers(rows: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """ReLU between two linear layers, ``(entries, inputs)`` → ``(entries, outputs)``."""
    out = rows.new_empty(len(rows), len(b2))
    for part in slices_of(len(rows), HIDDEN_BATCH):
        hidden = torch.addmm(b1, rows[part], w1.T).relu_()  # (HIDDEN_BATCH, hidden)
        torch.addmm(b2, hidden, w2.T, out=out[part])
    return out


@dataclass(frozen=True)
class _IndexedTable(Table):
    """A table over one mode that knows the row of every label, instead of searching for it."""

    rows: NDArray[np.int32]
    """``(labels + 2,)``; the first and the last one are for labels that the mode does not have."""

    def find(self, indices: NDArray[np.integer]) -> NDArray[np.int32]:
        """Row of each entry's label; the last row where it was never observed."""
        return np.take(self.rows, indices[:, self.modes[0]] + 1, mode="clip")  # (entries,)


def _indexed(tables: Tables) -> Tables:
    return replace(tables, tables=tuple(_with_rows(one) if len(one.modes) == 1 else one for one in tables.tables))


def _with_rows(table: Table) -> Table:
    rows = np.full(table.sizes[0] + 2, len(table.keys), dtype=np.int32)  # (labels + 2,)
    rows[table.keys + 1] = np.arange(len(table.keys))
    return _IndexedTable(table.modes, table.sizes, table.keys, table.effects, rows)
