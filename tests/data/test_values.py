"""Values that 32 bits cannot hold: refused wherever a tensor comes from, before anything is fitted."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointensor import SparseTensor, read_tensor
from jointensor.data.formats import scan_source
from jointensor.data.frames import TableSpec
from jointensor.data.values import MAX_OFFSET, MIN_SPREAD, ValueSummary
from jointensor.errors import DataError

CELLS = np.ascontiguousarray(np.argwhere(np.ones((13, 6), dtype=np.bool_)))  # (78, 2)
STAMPS = 1_700_000_000 + np.arange(78)
SPEC = TableSpec.of(["a", "b"], "v")


def _write(folder, values, ending):
    path = folder / f"source.{ending}"
    if ending == "npz":
        np.savez(path, indices=CELLS, values=values)
    elif ending == "tns":
        lines = [f"{a + 1} {b + 1} {v!r}\n" for (a, b), v in zip(CELLS.tolist(), values.tolist(), strict=True)]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        frame = pl.DataFrame({"a": CELLS[:, 0], "b": CELLS[:, 1], "v": values})
        frame.write_csv(path) if ending == "csv" else frame.write_parquet(path)
    return path


def _read(path, *, in_chunks, scratch):
    spec = SPEC if path.suffix in (".csv", ".parquet") else None
    if not in_chunks:
        return read_tensor(path, spec).tensor.values
    source = scan_source(path, None if spec is None else spec.to_dict(), scratch / "sorting")
    return np.concatenate([values for _, values in source.chunks()])


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("ending", ["npz", "tns", "csv", "parquet"])
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (STAMPS, r"between 1700000000 and 1700000077.*subtract an offset such as 1700000000 "),
        (STAMPS % 50 + 1_700_000_000, "subtract an offset"),  # the same number in 32 bits, all of them
        (np.where(STAMPS[5] == STAMPS, 1e-308, 1.0), r"entry 5 has the value 1e-308, which is 0 as a 32-bit number"),
        (1e-20 * np.arange(78), "multiply all values by a power of ten"),
    ],
)
def test_values_that_32_bits_lose_are_refused_with_advice(tmp_path, values, reason, ending, in_chunks):
    with pytest.raises(DataError, match=reason):
        _read(_write(tmp_path, values, ending), in_chunks=in_chunks, scratch=tmp_path)
    with pytest.raises(DataError, match=reason):
        SparseTensor(CELLS, values, (13, 6))


@pytest.mark.parametrize("in_chunks", [False, True])
@pytest.mark.parametrize("ending", ["npz", "tns", "csv"])
@pytest.mark.parametrize(
    "values", [STAMPS - STAMPS[0], np.full(78, 1.7e9 + 1), np.full(78, 0.1), 1.7e9 + 1e6 * np.arange(78)]
)
def test_other_values_are_taken(tmp_path, values, ending, in_chunks):
    np.testing.assert_array_equal(
        np.sort(_read(_write(tmp_path, values, ending), in_chunks=in_chunks, scratch=tmp_path)),
        np.sort(values.astype(np.float32)),
    )


def test_advice_can_be_followed():
    """Without the offset of the message the values are taken, exactly."""
    tensor = SparseTensor(CELLS, STAMPS - 1_700_000_000, (13, 6))
    np.testing.assert_array_equal(tensor.values.astype(np.int64) + 1_700_000_000, STAMPS)


def test_a_few_entries_need_no_spread_of_their_own():
    part = SparseTensor.part([[0, 0], [0, 1]], [1e6, 1e6 + 0.1], (13, 6))
    assert part.values.tolist() == [1e6, np.float32(1e6 + 0.1)]


@given(
    st.lists(st.floats(-1, 1).filter(lambda x: x == 0 or abs(x) > 1e-30), min_size=2, max_size=30),
    st.sampled_from([0.0, 1.0, 1e3, 1e5, 1e8]),
)
def test_the_limits_are_those_of_the_exact_statistics(numbers, offset):
    """Mean and standard deviation by another route; at most a thousandth of the spread is lost in what is taken."""
    values = np.array(numbers) + offset
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((values - mean) ** 2) / len(values))
    summary = ValueSummary()
    summary.update(values)
    assert summary.mean == pytest.approx(mean, rel=1e-12, abs=1e-300)
    if spread > 1e-12 * abs(mean):
        assert summary.spread == pytest.approx(spread, rel=1e-3)
    try:
        summary.check_precision()
    except DataError:
        assert abs(mean) > 0.99 * MAX_OFFSET * spread or spread < 1.01 * MIN_SPREAD
        return
    constant = spread <= 1e-14 * abs(mean)
    assert constant or np.abs(values.astype(np.float32) - values).mean() <= 1.1e-3 * spread
