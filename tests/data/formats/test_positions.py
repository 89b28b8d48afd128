"""Positions so large that a model over them would fill the memory: refused by every reader."""

import tracemalloc

import numpy as np
import pytest

from jointensor import read_tensor
from jointensor.data.formats import scan_source
from jointensor.data.formats.base import MAX_POSITIONS
from jointensor.errors import DataError


def _write(folder, name, largest):
    path = folder / name
    if name == "a.tns":
        path.write_text(f"1 1 1.0\n{largest} 2 2.0\n3 3 1.5\n", encoding="utf-8")
    else:
        cells = {"indices": np.array([[0, 0], [2, 2], [largest - 1, 1]]), "values": np.array([1.0, 1.5, 2.0])}
        np.savez(path, **cells, **({"shape": np.array([largest, 3])} if name == "shape.npz" else {}))
    return path


@pytest.mark.parametrize("name", ["a.tns", "a.npz", "shape.npz"])
@pytest.mark.parametrize("read", [read_tensor, lambda path: scan_source(path, None, path.parent / "sorting")])
def test_positions_beyond_the_limit_are_refused_without_an_allocation(tmp_path, name, read):
    path = _write(tmp_path, name, 10**12)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"mode 'mode_0' goes up to position 1,000,000,000,000 with 3 entries"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert len(read_tensor(_write(tmp_path, name, MAX_POSITIONS)).tensor) == 3
