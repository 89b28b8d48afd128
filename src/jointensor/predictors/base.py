"""The seam of everything that predicts: one protocol, and the registry by which predictors are stored and loaded.

A new kind of predictor subclasses :class:`Predictor`, is registered with ``@PREDICTORS.register("name")``, and owns how
it is packed into arrays and unpacked again. A file may come from anybody, and compiled loops look up positions without
checking them: ``unpack`` checks every position, size and dtype that it reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.registry import Registry

PREDICTORS = Registry("predictor", "jointensor.predictors")
"""Every kind of predictor, by the name under which it is stored."""

MAX_CELLS = 2**62
"""Cells that can be numbered with 64 bits; beyond it the keys of training entries and of queries would not agree."""

CHUNK = 1 << 18
"""Entries that are predicted at a time: bounds memory."""

Config = dict[str, Any]
Arrays = dict[str, Tensor]


class Packed(NamedTuple):
    """A predictor as a description and arrays."""

    config: Config
    """What JSON can hold."""
    arrays: Arrays
    nonlinear: type[nn.Module] | nn.Module | None = None
    """f of joint models, where it is not a registered one; only when unpacking."""

    def part(self, config: Config, name: str) -> Packed:
        """The part whose arrays are stored under ``name.``."""
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in self.arrays.items() if key.startswith(prefix)}
        return Packed(config, own, self.nonlinear)

    def add(self, name: str, part: Packed) -> Config:
        """Store the arrays of a part under ``name.``; returns its description, to be kept in this one's."""
        self.arrays.update({f"{name}.{key}": value for key, value in part.arrays.items()})
        return part.config

    def array(self, name: str) -> NDArray[Any]:
        """One of the arrays."""
        found: NDArray[Any] = self.arrays[name].numpy()
        return found


class Predictor(ABC):
    """Predicts entries from their indices; an index of -1, or beyond a mode's size, is a label never seen."""

    @abstractmethod
    def predict(self, indices: NDArray[np.integer]) -> NDArray[np.floating]:
        """One number per entry, ``(entries, modes)`` → ``(entries,)``."""

    def interval(self, indices: NDArray[np.integer], level: float) -> NDArray[np.floating]:
        """Lower and upper ends that hold a share ``level`` of such entries, ``(entries, 2)``."""
        raise RunError(f"a predictor of kind '{kind_of(self)}' has no intervals: it is not calibrated")

    @abstractmethod
    def n_parameters(self) -> int:
        """How many numbers were learnt from the training entries."""

    @abstractmethod
    def supports(self, n_modes: int) -> bool:
        """Whether it predicts entries with ``n_modes`` indices."""

    @abstractmethod
    def pack(self) -> Packed:
        """Description and arrays from which :meth:`unpack` builds the same predictor."""

    @classmethod
    @abstractmethod
    def unpack(cls, packed: Packed) -> Self:
        """What :meth:`pack` described; raises :class:`RunError` where the arrays are inconsistent."""

    def with_entries(self, fresh: SparseTensor) -> Self:
        """A predictor that knows the labels of new entries, too; by default the same, which does not know them.

        The modes of ``fresh`` begin with the labels that are known and go on with new ones.
        """
        return self

    def explain(self) -> dict[str, Any]:
        """What the predictor is: kind, parameters, and members or weights where it has some."""
        return {"kind": kind_of(self), "parameters": self.n_parameters()}


def kind_of(predictor: Predictor) -> str:
    """The name under which a predictor is registered."""
    return PREDICTORS.name_of(type(predictor))


def pack_predictor(predictor: Predictor) -> Packed:
    """A predictor with its kind, so that :func:`unpack_predictor` finds the class."""
    packed = predictor.pack()
    return packed._replace(config={"kind": kind_of(predictor), **packed.config})


def unpack_predictor(packed: Packed) -> Predictor:
    """The predictor of the kind that the description names."""
    kind = packed.config["kind"]
    require(isinstance(kind, str) and kind in PREDICTORS.names(), f"kind of predictor: {kind!r}")
    predictor: Predictor = PREDICTORS.find(kind).unpack(packed)  # type: ignore[attr-defined]
    return predictor


def require(condition: object, what: str) -> None:
    """Refuse a file whose ``what`` cannot be right."""
    if not condition:
        raise RunError(f"inconsistent {what}")


def whole_numbers(sizes: Any) -> tuple[int, ...]:
    """Sizes or positions of a description: whole numbers, none negative."""
    good = isinstance(sizes, list | tuple) and all(type(one) is int and 0 <= one < MAX_CELLS for one in sizes)
    require(good, "sizes")
    return tuple(sizes)


def is_array(array: NDArray[Any], dtype: type, *shape: int) -> bool:
    """Whether an array has this dtype and shape."""
    return bool(array.dtype == dtype and array.shape == shape)
