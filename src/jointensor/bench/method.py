"""Methods: anything that predicts cells from entries.

A method is a name that is built in (``fit``, ``auto``, a baseline, or a model such as ``julia:4/16`` or
``cp:20@paper``), or a Python file with a function ``predict``:

    def predict(problem):
        return problem.everything.values.mean()

The docstring of the file says what it is. Optional names in it: ``ENSEMBLE`` (several models are mixed), ``CHOSEN``
(how settings are chosen) and ``PACKAGES`` (distributions whose versions are recorded). Packages may register such
modules as entry points of the group ``jointensor.methods``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import ArrayLike, NDArray

from jointensor.data.tensor import SparseTensor, join
from jointensor.errors import ConfigError

GROUP = "jointensor.methods"


@dataclass(frozen=True)
class Problem:
    """What a method is given: never the values that are asked for."""

    train: SparseTensor
    """Entries to learn from."""
    valid: SparseTensor
    """Entries to choose settings by; a method may learn from them, too, once they have chosen."""
    cells: NDArray[Any]
    """Labels of the values that are asked for, by position, ``(entries, modes)``; -1: a label that no entry has."""
    groups: tuple[int, ...] = ()
    """Modes whose labels, taken together, are new in these cells."""
    seed: int = 0
    seconds: float = 300.0
    """That a method may take, if it can be told so."""
    cores: int = 2

    @property
    def everything(self) -> SparseTensor:
        """Training and validation entries."""
        return join(self.train, self.valid)


@dataclass(frozen=True)
class Answer:
    """Predictions, and what was chosen on the way."""

    predictions: ArrayLike
    """One number per cell, or one for all."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What was chosen, for the record."""


@dataclass(frozen=True)
class Method:
    """One way to predict."""

    name: str
    predict: Callable[[Problem], Answer | ArrayLike]
    about: str = ""
    """In a line."""
    ensemble: bool = False
    """Whether several models are mixed."""
    chosen: str = "fixed"
    """How its settings are chosen."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions matter."""

    @property
    def slug(self) -> str:
        """The name in file names."""
        return re.sub(r"[^A-Za-z0-9.@]+", "-", self.name).strip("-")


def find_method(text: str) -> Method:
    """The method that a text names."""
    from jointensor.bench.builtin import builtin_method  # noqa: PLC0415 - it needs Problem

    if text.endswith(".py"):
        return _from_module(Path(text).stem, _module_of(Path(text)))
    found: dict[str, EntryPoint] = {one.name: one for one in entry_points(group=GROUP)}
    if text in found:
        return _from_module(text, found[text].load())
    return builtin_method(text, [*found])


def _module_of(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no method file {path}")
    spec = spec_from_file_location(f"jointensor_method_{path.stem}", path)
    assert spec is not None  # the name ends with .py
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, SyntaxError, NameError) as error:
        raise ConfigError(f"method {path} cannot be loaded: {error}") from error
    return module


def _from_module(name: str, module: Any) -> Method:
    predict = getattr(module, "predict", None)
    if not callable(predict):
        raise ConfigError(f"method {name} has no function predict(problem)")
    return Method(
        name,
        predict,
        about=(getattr(module, "__doc__", None) or "").strip().partition("\n")[0],
        ensemble=bool(getattr(module, "ENSEMBLE", False)),
        chosen=str(getattr(module, "CHOSEN", "fixed")),
        packages=tuple(getattr(module, "PACKAGES", ())),
    )
