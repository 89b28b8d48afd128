"""Predictors on disk: one safetensors file with all arrays, and in its metadata the version and the description.

Nothing is unpickled. A file may come from anybody: it is built by the ``unpack`` of the registered class, which checks
what it reads (:mod:`jointensor.predictors.base`).
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from jointensor._version import __version__
from jointensor.errors import JointensorError, RunError
from jointensor.predictors.base import Packed, Predictor, pack_predictor, unpack_predictor

METADATA_KEY = "jointensor"
"""The one key of the metadata: several are written in an order that differs from file to file."""

VERSION_0_1_KEYS = ("model", "parts")
"""Keys of the metadata in files of version 0.1."""

_DAMAGE = (
    SafetensorError, OSError, LookupError, ValueError, TypeError, RuntimeError, AttributeError, ArithmeticError,
    MemoryError,  # Python's, for numbers and brackets that are too long to read
)  # fmt: skip
"""Exceptions that a damaged file may cause in its readers."""


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Write a predictor to a safetensors file."""
    packed = pack_predictor(predictor)
    arrays = {name: value.clone() for name, value in packed.arrays.items()}  # two parts may share an array
    metadata = {METADATA_KEY: json.dumps({"version": __version__, **packed.config})}
    try:
        save_file(arrays, path, metadata=metadata)
    except SafetensorError as error:  # a full disk, among others
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
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")  # reading a pipe would block
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        if METADATA_KEY not in metadata and any(key in metadata for key in VERSION_0_1_KEYS):
            raise RunError(_other_version("0.1"))
        config = json.loads(metadata[METADATA_KEY])
        if _series(config["version"]) != _series(__version__):
            raise RunError(_other_version(config["version"]))
        return unpack_predictor(Packed(config, arrays, nonlinear))
    except JointensorError as error:
        raise RunError(f"{path} cannot be used: {error}") from error
    except _DAMAGE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} is damaged and cannot be loaded: {reason}") from error


def _series(version: str) -> list[str]:
    """Major and minor number: files are exchanged between versions that agree in both."""
    return version.split(".")[:2]


def _other_version(version: str) -> str:
    return f"it was written by jointensor {version}; this is {__version__}: fit again, or use that version"
