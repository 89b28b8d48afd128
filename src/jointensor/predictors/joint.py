"""A trained joint model as a predictor for every entry, those with labels it never saw included."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, RunError
from jointensor.kernels import equip_for_predictions
from jointensor.models.joint import JointModel, cp_rank, evaluate_in_batches
from jointensor.models.size import CountAllocations
from jointensor.predictors.base import CHUNK, PREDICTORS, Arrays, Packed, Predictor, require, whole_numbers
from jointensor.predictors.conformal import Calibration
from jointensor.predictors.tables import Tables
from jointensor.predictors.update import check_labels_kept, fit_new_biases, fit_new_labels
from jointensor.registry import parse_spec
from jointensor.threads import in_threads, slices_of

BATCH = 1 << 15
"""Entries that go through the model at a time."""

CPU_BATCH = 1 << 13
"""The same for each thread of a CPU."""

Evaluate = Callable[[JointModel, NDArray[np.integer]], NDArray[np.float32]]
"""How values of entries are computed by a model."""


class Calibrated(Predictor):
    """A predictor that knows which labels were seen, and has intervals where entries were held out for them."""

    fallback: Tables
    """Additive biases; a label that they lack was not seen."""
    calibration: Calibration | None
    """``None`` where there were too few held-out entries for intervals."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""

    def unseen(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have a label that no training entry had (or that is unknown: -1)."""
        return self.fallback.unseen(indices)

    def determined(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which entries have labels that determine the value and were seen together."""
        return np.zeros(len(indices), dtype=np.bool_)

    def interval(self, indices: NDArray[np.integer], level: float) -> NDArray[np.float32]:
        """Lower and upper ends that hold a share ``level`` of such entries, ``(entries, 2)``."""
        indices = np.asarray(indices)
        return self.interval_around(indices, self.predict(indices), self.unseen(indices), level)

    def interval_around(
        self, indices: NDArray[np.integer], predictions: NDArray[np.floating], unseen: NDArray[np.bool_], level: float
    ) -> NDArray[np.float32]:
        """The same for entries that were predicted already; refuses levels that are no share."""
        if not 0 < level < 1:
            raise ConfigError(f"an interval of {level:g} is not possible; give a share between 0 and 1, such as 0.9")
        if self.calibration is None:
            raise RunError(
                "this model has no intervals: there were too few entries that it was not trained on; fit again"
            )
        return self.calibration.interval(indices, predictions, level, unseen).astype(np.float32)

    def supports(self, n_modes: int) -> bool:
        """As many modes as the training entries had."""
        return len(self.shape) == n_modes


class Solved(NamedTuple):
    """How an exact solver found g: enough to solve on from there with more entries."""

    ridge: float
    """λ."""
    solutions: int
    """Exact solutions whose mean g is: of K solutions of R components, CP has K·R."""
    links: Mapping[int, Mapping[str, float]]
    """Strengths of the links of rows, by mode and kind."""


@PREDICTORS.register("joint")
@dataclass(frozen=True)
class JointPredictor(Calibrated):
    """A joint model and the additive biases that stand in for it on unseen labels.

    The factor rows of a label without training entries are whatever they were initialised to, so an entry with such a
    label is predicted by the biases, to which the unseen label adds nothing; unless rows were sampled (Gibbs), which
    gives a label without entries rows from the distribution of the others.
    """

    model: JointModel
    fallback: Tables
    returned: Literal["joint", "bias"] = "joint"
    """Which of the two predicts entries whose labels were all seen."""
    calibration: Calibration | None = None
    solved: Solved | None = None
    """Of a model of one half, g, that was solved with one ridge; ``None`` of all others."""

    def __post_init__(self) -> None:
        equip_for_predictions(self.model)

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return self.model.shape

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``; in chunks, so that memory is bounded."""
        indices = np.asarray(indices)
        predictions = np.empty(len(indices), dtype=np.float32)
        for start in range(0, len(indices), CHUNK):
            chunk = indices[start : start + CHUNK]
            predictions[start : start + CHUNK] = self.predict_with(chunk, self.unseen(chunk), evaluate_model)
        return predictions

    def predict_with(
        self, indices: NDArray[np.integer], unseen: NDArray[np.bool_], evaluate: Evaluate
    ) -> NDArray[np.float32]:
        """The same for one chunk, given which entries have an unseen label and how the model is evaluated."""
        cold = self.uses_fallback(indices, unseen)  # (entries,)
        if not cold.any():
            return evaluate(self.model, indices)
        predictions = np.empty(len(indices), dtype=np.float32)
        predictions[cold] = self.fallback.predict(indices[cold])
        predictions[~cold] = evaluate(self.model, indices[~cold])
        return predictions

    def uses_fallback(self, indices: NDArray[np.integer], unseen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which entries are predicted by the biases, given which of them have an unseen label.

        Sampled rows are sampled for labels without entries too: such a model only cannot predict labels that it has no
        row for.
        """
        if self.returned != "joint":
            return np.ones(len(indices), dtype=np.bool_)
        g = self.model.multilinear
        if self.model.nonlinear is None and g is not None and len(g.draws):
            return np.any((indices < 0) | (indices >= np.array(self.model.shape)), axis=1)
        return unseen

    def with_entries(self, fresh: SparseTensor) -> Self:
        """Model and biases have rows for new labels, too; all others stay as they are."""
        check_labels_kept(self.shape, fresh)
        return replace(self, model=fit_new_labels(self.model, fresh), fallback=fit_new_biases(self.fallback, fresh))

    def n_parameters(self) -> int:
        """Those of the joint model."""
        return self.model.n_parameters()

    def explain(self) -> dict[str, Any]:
        """The model's configuration, and which of model and biases predicts."""
        return super().explain() | {"model": self.model.config(), "returned": self.returned}

    def pack(self) -> Packed:
        """The model's configuration and weights, the biases, and the calibration."""
        weights = {f"model.{name}": value.detach().cpu() for name, value in self.model.state_dict().items()}
        config = self.model.config() | {"returned": self.returned, "calibration": None}
        packed = Packed(config | {"solved": None if self.solved is None else _pack_solved(self.solved)}, weights)
        packed.config["fallback"] = packed.add("fallback", self.fallback.pack())
        if self.calibration is not None:
            packed.config["calibration"] = packed.add("calibration", self.calibration.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored model, if its configuration is that of its weights."""
        config, returned = packed.config, packed.config["returned"]
        require(returned in ("joint", "bias"), f"choice of model or biases: {returned!r}")
        weights = packed.part({}, "model").arrays
        whole_numbers(config["shape"])
        limit = _SizeLimit(weights)
        limit.check_options(config["nonlinear"])
        with CountAllocations(limit.take):
            model = JointModel.from_config(config, packed.nonlinear)
            model.load_state_dict(weights)
        _check_model(model.eval())
        fallback = Tables.unpack_biases(packed.part(config["fallback"], "fallback"))
        require(tuple(table.sizes[0] for table in fallback.tables) == model.shape, "biases")
        stored, calibration = config["calibration"], None
        if stored is not None:
            calibration = Calibration.unpack(packed.part(stored, "calibration"), len(model.shape))
        return cls(model, fallback, returned, calibration, _unpack_solved(config["solved"], model))


def _pack_solved(solved: Solved) -> list[Any]:
    links = [[n, kind, strength] for n, kinds in solved.links.items() for kind, strength in kinds.items()]
    return [solved.ridge, solved.solutions, links]


def _unpack_solved(stored: Any, model: JointModel) -> Solved | None:
    """How g was solved, if that can be true of the model."""
    if stored is None:
        return None
    ridge, (solutions,), links = float(stored[0]), whole_numbers(stored[1:2]), dict[int, dict[str, float]]()
    require(math.isfinite(ridge) and ridge > 0, "ridge")
    require(solutions > 0 and cp_rank(model) % solutions == 0, "solutions")
    for n, kind, strength in stored[2]:
        known = isinstance(kind, str) and re.fullmatch(r"walk|curve|season:[1-9]\d{0,6}", kind) is not None
        require(n in range(len(model.shape)) and known and 0 <= float(strength) < math.inf, "links")
        links.setdefault(n, {})[kind] = float(strength)
    return Solved(ridge, solutions, links)


def evaluate_model(model: JointModel, indices: NDArray[np.integer]) -> NDArray[np.float32]:
    """Values of entries on the device of the model, ``(entries, modes)`` → ``(entries,)``."""
    # a copy: torch warns of arrays that cannot be written to
    queries = torch.as_tensor(np.array(indices, order="C"), device=next(model.parameters()).device)
    if queries.device.type == "cpu":
        # threads take whole batches: at every operation they would wait for each other, and for other processes
        parts = slices_of(len(queries), CPU_BATCH)
        found = torch.cat(in_threads(lambda part: evaluate_in_batches(model, queries[part], BATCH), parts))
    else:
        found = evaluate_in_batches(model, queries, BATCH).cpu()
    values: NDArray[np.float32] = found.numpy()
    return values


class _SizeLimit:
    """Refuses to build a model that is larger than the weights stored for it."""

    SPARE_NUMBERS, SPARE_TENSORS = 4096, 64
    """What a small model may allocate on top of its weights."""
    MAX_HARMLESS_OPTION = 1_000_000
    """Options of f up to this number are accepted however small the model is."""

    def __init__(self, weights: Arrays) -> None:
        self.stored = sum(one.numel() for one in weights.values())
        self.numbers_left = 8 * self.stored + self.SPARE_NUMBERS  # f is tried on a few rows, blocks make buffers
        self.tensors_left = 4 * len(weights) + self.SPARE_TENSORS

    def check_options(self, nonlinear: Any) -> None:
        """Refuse options of f that ask for more layers or units than there are weights."""
        options = parse_spec(nonlinear)[1] if isinstance(nonlinear, str) else {}
        most = max(self.stored, self.MAX_HARMLESS_OPTION)
        require(all(not isinstance(one, int) or one <= most for one in options.values()), "options")

    def take(self, numbers: int) -> None:
        """Count a tensor of so many numbers."""
        self.numbers_left -= max(numbers, 1)
        self.tensors_left -= 1
        if self.numbers_left < 0 or self.tensors_left < 0:
            raise RunError("its configuration is of a larger model than its weights")


def _check_model(model: JointModel) -> None:
    """Predict the first and the last entry: weights that do not belong together fail here."""
    g = model.multilinear
    for block in () if g is None else g.named_blocks.values():
        require(not block.misfit(), block.misfit())
    with torch.no_grad():
        corners = torch.tensor([[0] * len(model.shape), [size - 1 for size in model.shape]])
        require(model(corners).shape == (2,), "weights")
