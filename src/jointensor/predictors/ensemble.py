"""An ensemble: the weighted mean of its members, corrected by models of its residuals, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jointensor.data.tensor import SparseTensor
from jointensor.models.joint import JointModel
from jointensor.predictors.base import CHUNK, PREDICTORS, Packed, Predictor, pack_predictor, require, unpack_predictor
from jointensor.predictors.conformal import Calibration
from jointensor.predictors.joint import Calibrated, Evaluate, JointPredictor
from jointensor.predictors.tables import Table, Tables, modes_needed
from jointensor.predictors.update import check_labels_kept, fit_new_biases

NAMES = ("auto", "mixture")
"""What makes ensembles: a search, or the default fit."""


@dataclass(frozen=True)
class Member:
    """One candidate: the mean of its fits, to all entries or to all but one fold each."""

    name: str
    weight: float
    fits: tuple[Predictor, ...]

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """Mean of the fits' predictions, ``(entries,)``."""
        total = np.zeros(len(indices))
        for fit in self.fits:
            total += fit.predict(indices)
        return total / len(self.fits)


@PREDICTORS.register("ensemble")
@dataclass(frozen=True)
class Ensemble(Calibrated):
    """What ``auto`` returns."""

    members: tuple[Member, ...]
    residual_models: tuple[Predictor, ...]
    """Fitted one after the other to residuals, those of held-out entries as far as there are some."""
    fallback: Tables
    """Additive biases of all entries; knows which labels were seen."""
    low: float
    high: float
    """Smallest and largest training value; predictions stay between."""
    calibration: Calibration | None = None
    dependency: Table | None = None
    """Values by the labels of some modes, where those labels determine the value (a functional dependency)."""
    name: str = "auto"
    """Of what made it, as metrics.json has it: ``auto``, or ``mixture`` of the default fit."""

    @property
    def returned(self) -> str:
        """Which model predicts, as metrics.json names it."""
        return self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of every mode."""
        return tuple(table.sizes[0] for table in self.fallback.tables)

    @property
    def joint_predictors(self) -> list[JointPredictor]:
        """Fits of joint models, those of the heaviest member first."""
        members = sorted(self.members, key=lambda member: -member.weight)
        found: list[JointPredictor] = []
        for fit in (fit for member in members for fit in member.fits):
            found += fit.joint_predictors if isinstance(fit, Ensemble) else []
            found += [fit] if isinstance(fit, JointPredictor) else []
        return found

    @property
    def model(self) -> JointModel | None:
        """The joint model of the heaviest member that has one."""
        return next((predictor.model for predictor in self.joint_predictors), None)

    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``."""
        indices = np.asarray(indices)
        predictions = np.empty(len(indices), dtype=np.float32)
        for start in range(0, len(indices), CHUNK):
            chunk = indices[start : start + CHUNK]
            correction = np.zeros(len(chunk))
            for model in self.residual_models:
                correction += model.predict(chunk)
            predictions[start : start + CHUNK] = self._finished(chunk, self.weighted_mean(chunk) + correction)
        return predictions

    def predict_with(
        self,
        indices: NDArray[np.integer],
        unseen: NDArray[np.bool_],
        evaluate: Evaluate,
    ) -> NDArray[np.float32]:
        """The same; see :meth:`JointPredictor.predict_with`."""
        return self.predict(indices)

    def interval_around(
        self, indices: NDArray[np.integer], predictions: NDArray[np.floating], unseen: NDArray[np.bool_], level: float
    ) -> NDArray[np.float32]:
        """Intervals within the range of the training values."""
        return np.clip(super().interval_around(indices, predictions, unseen, level), self.low, self.high)

    def weighted_mean(self, indices: NDArray[np.integer]) -> NDArray[np.float64]:
        """The weighted mean of the members, ``(entries,)``."""
        total = np.zeros(len(indices))
        for member in self.members:
            total += member.weight * member.predict(indices)
        return total

    def determined(self, indices: NDArray[np.integer]) -> NDArray[np.bool_]:
        """By the dependency."""
        return super().determined(indices) if self.dependency is None else self.dependency.observed(indices)

    def best_stack_size(self, fresh: SparseTensor) -> tuple[int, float]:
        """With how many residual models, the first ones, entries that nothing was fitted to are predicted best, and the
        mean squared error with them.
        """
        value = self.weighted_mean(fresh.indices)
        errors = []
        for model in (None, *self.residual_models):
            value = value if model is None else value + model.predict(fresh.indices)
            errors.append(float(np.mean((self._finished(fresh.indices, value) - fresh.values) ** 2)))
        return int(np.argmin(errors)), min(errors)

    def _finished(self, indices: NDArray[np.integer], value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predictions within the range of the training values; the known value where a dependency determines it."""
        value = np.clip(value, self.low, self.high)
        if self.dependency is None:
            return value
        rows = self.dependency.find(indices)
        return np.where(rows < len(self.dependency.keys), self.dependency.effects[rows], value)

    def with_entries(self, fresh: SparseTensor) -> Self:
        """Joint models and biases learn the new labels; residual models, trees and tables stay as they are."""
        check_labels_kept(self.shape, fresh)
        members = tuple(
            replace(member, fits=tuple(fit.with_entries(fresh) for fit in member.fits)) for member in self.members
        )
        return replace(self, members=members, fallback=fit_new_biases(self.fallback, fresh))

    def n_parameters(self) -> int:
        """All numbers that were learnt."""
        fits = [fit for member in self.members for fit in member.fits]
        determined = 0 if self.dependency is None else len(self.dependency.keys)
        return determined + sum(predictor.n_parameters() for predictor in (*fits, *self.residual_models))

    def explain(self) -> dict[str, Any]:
        """Members with their weights, residual models, and the modes of a dependency."""
        members = [
            {"name": member.name, "weight": member.weight, "fits": [fit.explain() for fit in member.fits]}
            for member in self.members
        ]
        return super().explain() | {
            "members": members,
            "residual_models": [model.explain() for model in self.residual_models],
            "dependency": None if self.dependency is None else list(self.dependency.modes),
        }

    def pack(self) -> Packed:
        """All parts, each with its kind."""
        config = {"name": self.name, "range": [self.low, self.high], "calibration": None, "dependency": None}
        packed = Packed(config, {})
        packed.config["members"] = [
            {
                "name": member.name,
                "weight": member.weight,
                "fits": [packed.add(f"member.{m}.{k}", pack_predictor(fit)) for k, fit in enumerate(member.fits)],
            }
            for m, member in enumerate(self.members)
        ]
        packed.config["residual_models"] = [
            packed.add(f"residual_model.{k}", pack_predictor(model)) for k, model in enumerate(self.residual_models)
        ]
        packed.config["fallback"] = packed.add("fallback", self.fallback.pack())
        if self.calibration is not None:
            packed.config["calibration"] = packed.add("calibration", self.calibration.pack())
        if self.dependency is not None:
            packed.config["dependency"] = packed.add("dependency", self.dependency.pack())
        return packed

    @classmethod
    def unpack(cls, packed: Packed) -> Self:
        """The stored ensemble, if all parts have the same modes."""
        config = packed.config
        fallback = Tables.unpack_biases(packed.part(config["fallback"], "fallback"))
        n_modes = len(fallback.tables)

        def predictor(stored: Any, name: str) -> Predictor:
            found = unpack_predictor(packed.part(stored, name))
            require(found.supports(n_modes), "modes")
            return found

        members = tuple(
            Member(
                one["name"],
                float(one["weight"]),
                tuple(predictor(fit, f"member.{m}.{k}") for k, fit in enumerate(one["fits"])),
            )
            for m, one in enumerate(config["members"])
        )
        require(all(len(member.fits) for member in members), "members")
        models = tuple(predictor(one, f"residual_model.{k}") for k, one in enumerate(config["residual_models"]))
        low, high = map(float, config["range"])
        require(low <= high, "smallest and largest values")
        calibration, dependency = config["calibration"], config["dependency"]
        if calibration is not None:
            calibration = Calibration.unpack(packed.part(calibration, "calibration"), n_modes)
        if dependency is not None:
            dependency = Table.unpack(packed.part(dependency, "dependency"))
            require(modes_needed([dependency]) <= n_modes, "modes")
        require(config["name"] in NAMES, "name")
        return cls(members, models, fallback, low, high, calibration, dependency, config["name"])
