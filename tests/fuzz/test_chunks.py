"""Mutated files read in chunks and whole: the same tensor, or an error of ours from both."""

import random
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

from jointensor.data.formats import count_entries, read_tensor, scan_source
from jointensor.data.frames import TableSpec
from jointensor.data.shard_writer import write_shards
from jointensor.data.shards import read_ahead
from jointensor.data.split import SplitAssignment, SplitRule
from jointensor.errors import JointensorError
from tests.fuzz.readers import READERS

CASES = {"tns": 250, "npz": 400, "csv": 120}
TABLE = TableSpec.of(["user", "movie", "day"], "rating", duplicates="sum")


def _whole(path, spec):
    try:
        tensor = read_tensor(path, spec).tensor
    except JointensorError:
        return None
    return tensor if len(tensor) else None


def _sharded(path, spec, scratch):
    """All entries of the shards, and the modes."""
    scratch.mkdir()
    try:
        count_entries(path, None if spec is None else spec.to_dict())
        source = scan_source(path, None if spec is None else spec.to_dict(), scratch / "sorting")
        if sum(mode.size for mode in source.modes) > 10**6:
            return None  # a fit is refused where there is no memory for so many labels
        assignment = SplitAssignment(SplitRule(test=0.0, valid=0.0), source.entries, scratch / "assignment", 10**6)
        sharded = write_shards(scratch / "shards", source.chunks(), source.modes, assignment, 1000, {})
    except JointensorError:
        return None
    blocks = list(read_ahead(sharded.train.read, range(len(sharded.train.counts))))
    return np.concatenate([one.indices for one in blocks]), np.concatenate([one.values for one in blocks]), source.modes


@pytest.mark.parametrize("name", CASES)
def test_chunks_are_what_the_whole_file_is(name):
    reader, accepted = READERS[name](), 0
    for number in range(CASES[name]):
        spec = TABLE if name == "csv" else None
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = reader.case(random.Random(number))
            for file, data in case.items():
                (Path(folder) / file).write_bytes(data)
            path = next((p for p in sorted(Path(folder).iterdir()) if p.suffix != ".map"), None)
            if path is None or (name == "csv" and path.name.split(".")[0] != "plain"):
                continue
            whole, found = _whole(path, spec), _sharded(path, spec, Path(folder) / "scratch")
        if whole is None:
            assert found is None, (number, path.name)
        elif found is not None:
            accepted += 1
            indices, values, modes = found
            assert modes == whole.modes, number
            order, wanted = (np.lexsort(one.T) for one in (indices, whole.indices))
            np.testing.assert_array_equal(indices[order], whole.indices[wanted], err_msg=str(number))
            np.testing.assert_allclose(values[order], whole.values[wanted], rtol=1e-5, err_msg=str(number))
    assert accepted > 5
