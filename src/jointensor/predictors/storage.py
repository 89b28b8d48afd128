"""What predicts, on disk: one safetensors file with all numbers, and in its metadata how to put them together.

A file may come from anybody: :mod:`jointensor.predictors.storage_checks` looks at what is loaded from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from jointensor.errors import JointensorError, RunError
from jointensor.models.joint import JointModel
from jointensor.predictors.conformal import LEVELS, Calibration
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import Predictor
from jointensor.predictors.knn import KnnResiduals
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage_checks import (
    LAW,
    NoLarger,
    Numbers,
    check_calibration,
    check_ensemble,
    check_knn,
    check_kriging,
    check_model,
    check_trees,
    checked_table,
    must_fit,
    whole_numbers,
)
from jointensor.predictors.tables import Mean, Tables
from jointensor.predictors.target_encoding import Encoder
from jointensor.predictors.trees import Trees

Config = dict[str, Any]

_BROKEN = (
    SafetensorError, OSError, LookupError, ValueError, TypeError, RuntimeError, AttributeError, ArithmeticError,
    MemoryError,  # Python's, for numbers and brackets that are too long to read
)  # fmt: skip
"""What a damaged file makes of what it is read by."""

_UNKNOWN = (
    "is not a model of this version; use the version that wrote the run (environment.json names it), or fit again"
)


def save_predictor(predictor: Predictor | Ensemble | Tables | Trees | Mean, path: Path) -> None:
    """Write all numbers; how they belong together goes into the file's metadata."""
    config, numbers = _pack(predictor)
    numbers = {name: value.clone() for name, value in numbers.items()}  # a thing may be in two places
    # one key: several are written in an order that differs from file to file
    name = "model" if isinstance(predictor, Predictor) else "parts"
    try:
        save_file(numbers, path, metadata={name: json.dumps(config)})
    except SafetensorError as error:  # a full disk, by another name
        raise OSError(str(error)) from None


def load_predictor(path: Path, nonlinear: type[nn.Module] | nn.Module | None = None) -> Any:
    """Read what :func:`save_predictor` wrote.

    Parameters
    ----------
    path
        The safetensors file.
    nonlinear
        The class (or an instance) of f, where it is not a registered one.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")  # a pipe would be waited for
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if "parts" in metadata:
            return _unpack(json.loads(metadata["parts"]), numbers, nonlinear)
        return _unpack({"kind": "joint", **json.loads(metadata["model"])}, numbers, nonlinear)
    except JointensorError as error:
        raise RunError(f"{path} cannot be used: {error}") from error
    except _BROKEN as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} is damaged and cannot be loaded: {reason}") from error


def _pack(thing: Any) -> tuple[Config, Numbers]:
    """How to build a thing again, and its numbers."""
    return PACKERS[type(thing)][0](thing)


def _unpack(config: Config, numbers: Numbers, nonlinear: type[nn.Module] | nn.Module | None = None) -> Any:
    for pack, unpack in PACKERS.values():
        if pack.__name__ == f"_pack_{config.get('kind')}":
            return unpack(config, numbers, nonlinear)
    raise RunError(f"'{config.get('kind')}' {_UNKNOWN}")


def _pack_joint(predictor: Predictor) -> tuple[Config, Numbers]:
    numbers = {f"model.{name}": value.detach().cpu().clone() for name, value in predictor.model.state_dict().items()}
    fallback = predictor.fallback
    for n, table in enumerate(fallback.tables):
        numbers[f"fallback.{n}.keys"] = torch.as_tensor(table.keys)
        numbers[f"fallback.{n}.effects"] = torch.as_tensor(table.effects)
    numbers["fallback.mean"] = torch.tensor(fallback.mean, dtype=torch.float64)
    config = predictor.model.config() | {"returned": predictor.returned, "kind": "joint"}
    if predictor.calibration is not None:
        config["calibration"], own = _pack(predictor.calibration)
        numbers |= {f"calibration.{name}": value for name, value in own.items()}
    return config, numbers


def _unpack_joint(config: Config, numbers: Numbers, nonlinear: type[nn.Module] | nn.Module | None) -> Predictor:
    returned = config.get("returned", "joint")
    if returned not in ("joint", "bias"):
        raise RunError(f"'{returned}' {_UNKNOWN}")
    own = _below(numbers, "model.")
    whole_numbers(config["shape"])
    with NoLarger(own) as limit:
        limit.check_options(config["nonlinear"])
        model = JointModel.from_config(config, nonlinear)
        model.load_state_dict(own)
    check_model(model.eval())
    tables = [
        checked_table((n,), (size,), numbers[f"fallback.{n}.keys"], numbers[f"fallback.{n}.effects"])
        for n, size in enumerate(model.shape)
    ]
    shrinkage = tuple(np.full(len(tables), np.nan))  # how strongly it was shrunk does not matter for predicting
    fallback = Tables(float(numbers["fallback.mean"]), tuple(tables), shrinkage)
    stored = config.get("calibration")
    calibration = None if stored is None else _unpack(stored, _below(numbers, "calibration."))
    check_calibration(calibration, len(model.shape))
    return Predictor(model, fallback, returned, calibration)


def _pack_mean(mean: Mean) -> tuple[Config, Numbers]:
    return {"kind": "mean", "mean": mean.mean}, {}


def _unpack_mean(config: Config, _numbers: Numbers, _: object) -> Mean:
    return Mean(float(config["mean"]))


def _pack_tables(tables: Tables) -> tuple[Config, Numbers]:
    numbers: Numbers = {}
    for n, table in enumerate(tables.tables):
        numbers[f"{n}.keys"] = torch.as_tensor(np.ascontiguousarray(table.keys))
        numbers[f"{n}.effects"] = torch.as_tensor(np.ascontiguousarray(table.effects))
    each = [{"modes": list(map(int, table.modes)), "sizes": list(map(int, table.sizes))} for table in tables.tables]
    shrinkage, *passes = (
        [None if not math.isfinite(one) else one for one in some] for some in (tables.shrinkage, *tables.passes)
    )
    return {"kind": "tables", "mean": tables.mean, "tables": each, "shrinkage": shrinkage, "passes": passes}, numbers


def _unpack_tables(config: Config, numbers: Numbers, _: object) -> Tables:
    tables = [
        checked_table(one["modes"], one["sizes"], numbers[f"{n}.keys"], numbers[f"{n}.effects"])
        for n, one in enumerate(config["tables"])
    ]
    stored = config.get("passes", [config["shrinkage"]] * int(config.get("rounds", 0)))  # once they were but counted
    shrinkage, *passes = (
        tuple(math.inf if one is None else float(one) for one in some) for some in (config["shrinkage"], *stored)
    )
    must_fit(all(len(one) == len(tables) for one in passes), "shrinkage of tables")
    return Tables(float(config["mean"]), tuple(tables), shrinkage, tuple(passes))


TREES = ("edges", "nodes", "values", "roots")


def _pack_trees(trees: Trees) -> tuple[Config, Numbers]:
    # a sum of tables in all but name: means are written as they are, counts beside them
    config, numbers = _pack_tables(Tables(trees.mean, tuple(one.table for one in trees.encoders), ()))
    numbers |= {f"{n}.counts": torch.as_tensor(one.counts) for n, one in enumerate(trees.encoders)}
    numbers |= {name: torch.as_tensor(getattr(trees, name)) for name in TREES}
    return config | {"kind": "trees"}, numbers


def _unpack_trees(config: Config, numbers: Numbers, _: object) -> Trees:
    tables = _unpack_tables(config, numbers, None).tables
    encoders = tuple(Encoder(table, numbers[f"{n}.counts"].numpy()) for n, table in enumerate(tables))
    must_fit(all(one.counts.shape == one.table.effects.shape for one in encoders), "counts of trees")
    arrays: dict[str, Any] = {name: numbers[name].numpy() for name in TREES}
    trees = Trees(float(config["mean"]), encoders, **arrays)
    check_trees(trees)
    return trees


LOCAL = ("mode", "shape", *LAW)


def _pack_local(local: Kriging) -> tuple[Config, Numbers]:
    arrays = {name: torch.as_tensor(getattr(local, name)) for name in ("coordinates", "ranks", "keys", "residuals")}
    return {"kind": "local"} | {name: getattr(local, name) for name in LOCAL}, arrays


def _unpack_local(config: Config, numbers: Numbers, _: object) -> Kriging:
    law = {name: float(config[name]) for name in LAW}  # compiled for floats
    known = {"mode": config["mode"], "shape": tuple(config["shape"])} | law
    arrays: dict[str, Any] = {name: value.numpy() for name, value in numbers.items()}
    local = Kriging(**known, **arrays)
    check_kriging(local)
    return local


PARTNERS = ("keys", "residuals", "partners", "weights")


def _pack_partners(part: KnnResiduals) -> tuple[Config, Numbers]:
    arrays = {name: torch.as_tensor(getattr(part, name)) for name in PARTNERS}
    return {"kind": "partners", "mode": part.mode, "shape": part.shape}, arrays


def _unpack_partners(config: Config, numbers: Numbers, _: object) -> KnnResiduals:
    arrays: dict[str, Any] = {name: numbers[name].numpy() for name in PARTNERS}
    part = KnnResiduals(config["mode"], tuple(config["shape"]), **arrays)
    check_knn(part)
    return part


def _pack_calibration(calibration: Calibration) -> tuple[Config, Numbers]:
    scale, numbers = (None, {}) if calibration.scale is None else _pack(calibration.scale)
    numbers = {f"scale.{name}": value for name, value in numbers.items()}
    numbers |= {name: torch.as_tensor(getattr(calibration, name)) for name in ("edges", "quantiles", "below", "held")}
    return {"kind": "calibration", "scale": scale, "shape": list(calibration.shape)}, numbers


def _unpack_calibration(config: Config, numbers: Numbers, _: object) -> Calibration:
    scale = None if config["scale"] is None else _unpack(config["scale"], _below(numbers, "scale."))
    edges, quantiles = numbers["edges"].numpy(), numbers["quantiles"].numpy()
    # files of earlier versions: misses shared evenly, and as many entries inside as were asked for
    below = numbers["below"].numpy() if "below" in numbers else np.full(len(quantiles), 0.5)
    held = numbers["held"].numpy() if "held" in numbers else LEVELS.copy()
    return Calibration(edges, scale, quantiles, tuple(config["shape"]), below, held)


def _pack_ensemble(ensemble: Ensemble) -> tuple[Config, Numbers]:
    numbers: Numbers = {}

    def inside(name: str, thing: Any) -> Config:
        config, own = _pack(thing)
        numbers.update({f"{name}.{key}": value for key, value in own.items()})
        return config

    members = [
        {
            "name": member.name,
            "weight": member.weight,
            "parts": [inside(f"member.{m}.{k}", part) for k, part in enumerate(member.parts)],
        }
        for m, member in enumerate(ensemble.members)
    ]
    config = {
        "kind": "ensemble",
        "members": members,
        "memory": [inside(f"memory.{k}", one) for k, one in enumerate(ensemble.memory)],
        "fallback": inside("fallback", ensemble.fallback),
        "range": [ensemble.low, ensemble.high],
        "calibration": None if ensemble.calibration is None else inside("calibration", ensemble.calibration),
        "decided": None if ensemble.decided is None else inside("decided", Tables(0.0, (ensemble.decided,), ())),
    }
    return config, numbers


def _unpack_ensemble(config: Config, numbers: Numbers, nonlinear: type[nn.Module] | nn.Module | None) -> Ensemble:
    def inside(name: str, one: Config) -> Any:
        return _unpack(one, _below(numbers, f"{name}."), nonlinear)

    members = tuple(
        Member(
            one["name"],
            float(one["weight"]),
            tuple(inside(f"member.{m}.{k}", part) for k, part in enumerate(one["parts"])),
        )
        for m, one in enumerate(config["members"])
    )
    memory = tuple(inside(f"memory.{k}", one) for k, one in enumerate(config["memory"]))
    calibration = None if config["calibration"] is None else inside("calibration", config["calibration"])
    low, high = map(float, config["range"])
    known = config.get("decided")  # not in files of earlier versions
    decided = None if known is None else inside("decided", known)
    must_fit(decided is None or (isinstance(decided, Tables) and len(decided.tables) == 1), "decided values")
    fallback = inside("fallback", config["fallback"])
    ensemble = Ensemble(members, memory, fallback, low, high, calibration, decided and decided.tables[0])
    check_ensemble(ensemble)
    return ensemble


def _below(numbers: Numbers, prefix: str) -> Numbers:
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}


PACKERS: dict[type, tuple[Callable[..., tuple[Config, Numbers]], Callable[..., Any]]] = {
    Predictor: (_pack_joint, _unpack_joint),
    Mean: (_pack_mean, _unpack_mean),
    Tables: (_pack_tables, _unpack_tables),
    Trees: (_pack_trees, _unpack_trees),
    Kriging: (_pack_local, _unpack_local),
    KnnResiduals: (_pack_partners, _unpack_partners),
    Calibration: (_pack_calibration, _unpack_calibration),
    Ensemble: (_pack_ensemble, _unpack_ensemble),
}
"""How every kind of thing is written and read."""
