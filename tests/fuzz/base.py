"""What a reader under test is: how its inputs are made, and how they are read."""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from pathlib import Path

Case = dict[str, bytes]


class Reader(ABC):
    """One kind of file."""

    name: str
    modules: tuple[str, ...]
    """Parsers whose coverage is reported."""

    @abstractmethod
    def case(self, rng: random.Random) -> Case:
        """A mutated file, or several."""

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Read what a case left in a folder; raises whatever the reader raises."""

    def warm_up(self, folder: Path) -> None:
        """Whatever is done once only, such as compiling; before memory is limited."""
        for number in range(20):
            for path in folder.iterdir():
                path.unlink()
            for name, data in self.case(random.Random(number)).items():
                (folder / name).write_bytes(data)
            with contextlib.suppress(Exception):
                self.read(folder)
