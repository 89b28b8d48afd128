"""A predictor made ready for very many queries: the same predictions, bit for bit, sooner."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jointensor.models.joint import JointModel
from jointensor.models.nonlinear.julia import Julia
from jointensor.predictors.ensemble import Ensemble
from jointensor.predictors.joint import JointPredictor, evaluate_model
from jointensor.threads import slices_of

BATCH = 1 << 12
"""Entries that go through a model at a time: the outputs of a layer stay in the cache of a core."""

HIDDEN_BATCH = 1 << 10
"""Entries whose widest layer is computed at a time: it is read again before it leaves that cache."""


class Serving:
    """Predicts like the given predictor, in small batches on all of torch's threads."""

    def __init__(self, predictor: JointPredictor | Ensemble) -> None:
        self.predictor = predictor

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no training entry had (or that is unknown: -1)."""
        return self.predictor.unseen(indices)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``."""
        return self.answer(indices)[0]

    def answer(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Predictions, and which entries have a label that was never seen, ``(entries,)`` each."""
        unseen = self.unseen(indices)
        return self.predictor.predict_with(indices, unseen, _in_small_batches), unseen


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
