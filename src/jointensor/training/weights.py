"""A predictor on disk: one safetensors file with the weights, the fallback and how to build the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from jointensor.baselines.tables import Table, Tables
from jointensor.errors import JointensorError, RunError
from jointensor.models.joint import JointModel
from jointensor.training.predictor import Predictor


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Write weights and fallback; the model's configuration goes into the file's metadata."""
    tensors = {f"model.{name}": value.detach().cpu().clone() for name, value in predictor.model.state_dict().items()}
    fallback = predictor.fallback
    for n, table in enumerate(fallback.tables):
        tensors[f"fallback.{n}.keys"] = torch.as_tensor(table.keys)
        tensors[f"fallback.{n}.effects"] = torch.as_tensor(table.effects)
    tensors["fallback.mean"] = torch.tensor(fallback.mean, dtype=torch.float64)
    # one key: several are written in an order that differs from file to file
    metadata = {"model": json.dumps(predictor.model.config() | {"returned": predictor.returned})}
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:  # a full disk, by another name
        raise OSError(str(error)) from None


def load_predictor(path: Path, nonlinear: type[nn.Module] | nn.Module | None = None) -> Predictor:
    """Read what :func:`save_predictor` wrote.

    Parameters
    ----------
    path
        The safetensors file.
    nonlinear
        The class (or an instance) of f, where it is not a registered one.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            config = json.loads(metadata["model"])
            returned = config.pop("returned", "joint")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        model = JointModel.from_config(config, nonlinear)
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        model.load_state_dict(weights)
        if returned not in ("joint", "bias"):
            raise RunError(f"'{returned}' is not a model of this version")
        return Predictor(model.eval(), _fallback(tensors, model.shape), returned)
    except JointensorError as error:
        raise RunError(f"{path} cannot be used: {error}") from error
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} is damaged and cannot be loaded: {reason}") from error


def _fallback(tensors: dict[str, torch.Tensor], shape: tuple[int, ...]) -> Tables:
    tables = [
        Table((n,), (size,), tensors[f"fallback.{n}.keys"].numpy(), tensors[f"fallback.{n}.effects"].numpy())
        for n, size in enumerate(shape)
    ]
    shrinkage = tuple(np.full(len(shape), np.nan))  # how strongly it was shrunk does not matter for predicting
    return Tables(float(tensors["fallback.mean"]), tuple(tables), shrinkage)
