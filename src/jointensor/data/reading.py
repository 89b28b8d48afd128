"""What reading a source gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jointensor.data.sparse import SparseTensor

if TYPE_CHECKING:
    from jointensor.data.tables import TableSpec


@dataclass(frozen=True)
class Reading:
    """A tensor, the rules of its table as they were resolved, and what the user should know."""

    tensor: SparseTensor
    spec: TableSpec | None = None
    notes: tuple[str, ...] = ()
