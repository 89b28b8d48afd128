"""Entries on disk: shards, split assignment and sources read in chunks, against reading and splitting in memory."""

import threading

import numpy as np
import polars as pl
import pytest

from jointensor.data.formats import count_entries, npz, read_tensor, scan_source, tns, write_table, write_tensor
from jointensor.data.frames import TableSpec
from jointensor.data.modes import Mode
from jointensor.data.queries import read_entries, scan_entries
from jointensor.data.shard_writer import Share, load_shards, write_shards
from jointensor.data.shards import Shards, read_ahead, save_shard
from jointensor.data.split import LEFT_OUT, TEST, TRAIN, VALID, SplitAssignment, SplitRule, assignment, split
from jointensor.data.split.assignment import mix, uniform
from jointensor.data.table_source import scan_table_source
from jointensor.data.tensor import SparseTensor
from jointensor.data.values import ValueSummary
from jointensor.errors import ConfigError, DataError

SHAPE = (30, 20, 10)


@pytest.fixture(scope="module")
def tensor():
    rng = np.random.default_rng(0)
    cells = rng.permutation(np.prod(SHAPE))[:2500]
    return SparseTensor(np.stack(np.unravel_index(cells, SHAPE), axis=1), rng.normal(size=2500), SHAPE)


def _chunks(tensor, rows=300):
    for start in range(0, len(tensor), rows):
        yield tensor.indices[start : start + rows], np.array(tensor.values[start : start + rows])


def _assignment(tmp_path, entries, **how):
    return SplitAssignment(SplitRule(**how), entries, tmp_path / "assignment", 10**9)


def _sharded(tmp_path, tensor, **how):
    assignment = _assignment(tmp_path, len(tensor), **how)
    return write_shards(tmp_path / "shards", _chunks(tensor), tensor.modes, assignment, 400, {"rule": 1})


def _set(indices, values):
    return {(*map(int, cell), float(value)) for cell, value in zip(indices, values, strict=True)}


def _all(shards: Shards):
    found = set()
    for block in shards.blocks():
        found |= _set(block.indices, block.values)
    return found


def _readers():
    return [one for one in threading.enumerate() if one.name.startswith("read-ahead")]


def test_reading_ahead_keeps_the_order_and_reads_one_ahead():
    begun, second = [], threading.Event()

    def read(k):
        begun.append(k)
        if k == 1:
            second.set()
        return k

    reading = read_ahead(read, range(5))
    assert next(reading) == 0
    assert second.wait(60)  # the next one is read without being asked for
    assert begun == [0, 1]  # and no further one: it is submitted when the next item is taken
    assert list(reading) == [1, 2, 3, 4]
    assert not _readers()


def test_the_reader_ends_with_a_consumer_that_stops_or_fails():
    reading = read_ahead(lambda k: k, range(100))
    next(reading)
    reading.close()
    assert not _readers()

    def fails():
        for k in read_ahead(lambda k: k, range(100)):
            raise ValueError(k)

    with pytest.raises(ValueError, match="0"):
        fails()
    with pytest.raises(ZeroDivisionError):
        list(read_ahead(lambda k: 1 // (k - 2), range(5)))
    assert not _readers()


def test_shards_hold_what_was_written_and_notice_damage(tmp_path):
    rng = np.random.default_rng(1)
    written = [(rng.integers(9, size=(n, 3)).astype(np.int32), rng.normal(size=n).astype(np.float32)) for n in (5, 7)]
    sums = tuple(save_shard(tmp_path, "train", k, *one) for k, one in enumerate(written))
    shards = Shards(tmp_path, "train", (5, 7), sums)
    for k in range(2):
        shards.write_column(k, "fixed", 2 * written[k][1])
    for block, (indices, values) in zip(shards.blocks("fixed"), written, strict=True):
        np.testing.assert_array_equal(block.indices, indices)
        np.testing.assert_array_equal(block.values, values)
        np.testing.assert_array_equal(block.column, 2 * values)
        mixed = block.shuffled(np.random.default_rng(0))
        assert _set(mixed.indices, mixed.values) == _set(indices, values)
        np.testing.assert_array_equal(mixed.column, 2 * mixed.values)
    assert len(shards) == 12
    assert shards.whole()
    path = shards.path(1, "values")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert not shards.whole()


@pytest.mark.parametrize(("test", "valid", "seed"), [(0.2, 0.1, 0), (0.33, 0.15, 5), (0.0, 0.0, 1)])
def test_assignments_are_those_of_the_standard_split(tmp_path, tensor, test, valid, seed):
    parts = split(tensor, test=test, valid=valid, seed=seed)
    sharded = _sharded(tmp_path, tensor, test=test, valid=valid, seed=seed)
    assert _all(sharded.train) == _set(parts.train.indices, parts.train.values)
    assert _all(sharded.test) == _set(parts.test.indices, parts.test.values)
    assert _set(sharded.valid.indices, sharded.valid.values) == _set(parts.valid.indices, parts.valid.values)
    assert len(sharded.train.counts) > 3
    assert sharded.summary.mean == pytest.approx(parts.train.values.mean(dtype=np.float64), rel=1e-12)
    assert sharded.summary.spread == pytest.approx(parts.train.values.std(dtype=np.float64), rel=1e-12)
    for n, size in enumerate(SHAPE):
        np.testing.assert_array_equal(sharded.counts[n], np.bincount(parts.train.indices[:, n], minlength=size))


def test_assignments_of_the_first_entries(tmp_path, tensor):
    parts, sharded = split(tensor, rule="first:2000", seed=3), _sharded(tmp_path, tensor, rule="first:2000", seed=3)
    assert _all(sharded.train) == _set(parts.train.indices, parts.train.values)
    assert _all(sharded.test) == _set(parts.test.indices, parts.test.values)


def test_a_split_that_needs_all_entries_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs all entries in memory"):
        _assignment(tmp_path, 10, rule="time:day")


@pytest.mark.parametrize("rule", ["first", "first:", "first:0", "first:11", "first:x", "first:-1"])
def test_a_number_of_first_entries_that_cannot_be_is_refused(tmp_path, rule):
    with pytest.raises(ConfigError, match="give a number of entries between 1 and 10"):
        _assignment(tmp_path, 10, rule=rule)


@pytest.mark.parametrize("rule", ["standard:3", "", "time:"])
def test_rules_without_a_meaning_are_refused(tmp_path, rule):
    with pytest.raises(ConfigError, match="with --memory give standard or first:N"):
        _assignment(tmp_path, 10, rule=rule)


@pytest.mark.parametrize("first", [1, 9, 10])
def test_entries_after_the_first_are_tested(tmp_path, first):
    parts = _assignment(tmp_path, 10, rule=f"first:{first}", valid=0.0).of(0, 10)
    assert parts.tolist() == [TRAIN] * first + [TEST] * (10 - first)


@pytest.mark.parametrize(
    ("rule", "numba", "entry_bytes"), [("standard", True, 1), ("standard", False, 4), ("first:60", True, 4)]
)
def test_a_permutation_takes_so_many_bytes_an_entry(tmp_path, monkeypatch, rule, numba, entry_bytes):
    """With less memory a hash decides. The parts do not depend on how the permutation was made."""
    if not numba:
        monkeypatch.setattr(assignment, "find_spec", lambda _: None)
    how = SplitRule(rule=rule, seed=3)
    enough = SplitAssignment(how, 100, tmp_path / "parts", 100 * entry_bytes)
    assert enough.method == "permuted"
    assert SplitAssignment(how, 100, tmp_path / "hashed", 100 * entry_bytes - 1).method == "hashed"
    expected = split(SparseTensor(np.arange(100)[:, None] * [1, 1], np.arange(100), (100, 100)), rule=rule, seed=3)
    parts = enough.of(0, 100)
    for number, part in ((TRAIN, expected.train), (VALID, expected.valid), (TEST, expected.test)):
        assert np.flatnonzero(parts == number).tolist() == sorted(part.values.astype(int))
    assert enough.of(37, 5).tolist() == parts[37:42].tolist()


def test_hashes_are_those_of_splitmix64():
    """Its first numbers from the seed 0 as they are published, and of other seeds in whole numbers of any size."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    assert mix(np.arange(5, dtype=np.uint64), 0).tolist() == published

    def by_hand(number, seed):
        z = ((number + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    for seed in (1, 7, 2**40 + 3):
        numbers = [0, 1, 2, 10**6, 2**63]
        assert mix(np.array(numbers, dtype=np.uint64), seed).tolist() == [by_hand(one, seed) for one in numbers]
    assert uniform(np.array([0, 2**11, 2**64 - 1], dtype=np.uint64)).tolist() == [0.0, 2.0**-53, 1 - 2.0**-53]


def test_hashed_assignments_keep_to_the_first_entries(tmp_path):
    for most, valid in ((10**6, 0.1), (2000, 0.025)):
        how = SplitRule(rule="first:80000", valid=0.1, max_valid=most)
        parts = SplitAssignment(how, 100_000, tmp_path / "assignment", 1000).of(0, 100_000)
        assert (parts[80_000:] == TEST).all()
        assert (parts[:80_000] != TEST).all()
        shares = np.bincount(parts[:80_000], minlength=4) / 80_000
        np.testing.assert_allclose(shares[[TRAIN, VALID, LEFT_OUT]], [0.9, valid, 0.1 - valid], atol=0.005)


def test_all_hashed_validation_entries_are_kept_where_there_is_room(tmp_path):
    parts = SplitAssignment(SplitRule(), 100_000, tmp_path / "assignment", 1000).of(0, 100_000)
    np.testing.assert_allclose(np.bincount(parts, minlength=4) / 100_000, [0.72, 0.08, 0.2, 0.0], atol=0.004)


def test_hashed_assignments_keep_the_shares_whatever_the_chunks(tmp_path):
    how = SplitRule(test=0.2, valid=0.1, seed=4, max_valid=2000)
    assignment = SplitAssignment(how, 100_000, tmp_path / "assignment", 1000)
    assert assignment.method == "hashed"
    whole = assignment.of(0, 100_000)
    np.testing.assert_array_equal(
        whole, np.concatenate([assignment.of(k, 7000) for k in range(0, 98_000, 7000)] + [assignment.of(98_000, 2000)])
    )
    shares = np.bincount(whole, minlength=4) / 100_000
    np.testing.assert_allclose(shares[[TRAIN, TEST]], [0.72, 0.2], atol=0.01)
    np.testing.assert_allclose(shares[[VALID, LEFT_OUT]], [0.02, 0.06], atol=0.003)
    other = SplitAssignment(SplitRule(seed=5), 100_000, tmp_path / "assignment", 1000).of(0, 100_000)
    assert np.mean((whole == TEST) & (other == TEST)) == pytest.approx(0.04, abs=0.01)  # seeds are independent


def test_validation_entries_beyond_the_most_are_left_out(tmp_path, tensor):
    sharded = _sharded(tmp_path, tensor, max_valid=50)
    parts = split(tensor)
    assert len(sharded.valid) == 50
    assert _set(sharded.valid.indices, sharded.valid.values) <= _set(parts.valid.indices, parts.valid.values)
    assert _all(sharded.train) == _set(parts.train.indices, parts.train.values)


def test_a_cell_that_occurs_twice_is_refused_wherever_it_is(tmp_path, tensor):
    def twice():
        yield from _chunks(tensor)
        yield tensor.indices[:1], np.array([9.0], dtype=np.float32)

    assignment = _assignment(tmp_path, len(tensor) + 1)
    with pytest.raises(DataError, match=r"repeat a cell, for example .mode_0="):
        write_shards(tmp_path / "shards", twice(), tensor.modes, assignment, 400, {})


def test_shards_of_before_are_taken_again_only_if_they_are_whole(tmp_path, tensor):
    sharded = _sharded(tmp_path, tensor)
    again = load_shards(tmp_path / "shards", tensor.modes, {"rule": 1})
    assert _all(again.train) == _all(sharded.train)
    assert vars(again.summary) == vars(sharded.summary)
    np.testing.assert_array_equal(again.counts[1], sharded.counts[1])
    np.testing.assert_array_equal(again.valid.values, sharded.valid.values)
    assert load_shards(tmp_path / "shards", tensor.modes, {"rule": 2}) is None
    again.test.path(0, "indices").unlink()
    assert load_shards(tmp_path / "shards", tensor.modes, {"rule": 1}) is None


def test_running_sums_do_not_cancel():
    values = (1e6 + np.random.default_rng(0).normal(size=10_000)).astype(np.float32)
    summary = ValueSummary()
    for part in np.array_split(values, 7):
        summary.update(part)
    assert summary.mean == pytest.approx(values.mean(dtype=np.float64), rel=1e-12)
    assert summary.spread == pytest.approx(values.std(dtype=np.float64), rel=1e-6)
    assert (summary.low, summary.high) == (values.min(), values.max())


def _whole(source):
    chunks = list(source.chunks())
    return np.concatenate([one for one, _ in chunks]), np.concatenate([one for _, one in chunks])


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_in_chunks_is_the_archive(tmp_path, tensor, packed):
    path = tmp_path / "a.npz"
    if packed:
        write_tensor(tensor, path)
    else:  # without a shape, and in 64 bits
        np.savez(path, indices=tensor.indices.astype(np.int64), values=tensor.values.astype(np.float64))
    source, whole = npz.scan(path, 300), read_tensor(path).tensor
    indices, values = _whole(source)
    np.testing.assert_array_equal(indices, whole.indices)
    np.testing.assert_array_equal(values, whole.values)
    assert source.modes == whole.modes
    assert (source.entries, len(source.modes)) == count_entries(path, None) == (2500, 3)


def test_damaged_archives_are_refused(tmp_path, tensor):
    bad = {
        "short": {"indices": tensor.indices, "values": tensor.values[:-1]},
        "flat": {"indices": tensor.indices[:, 0], "values": tensor.values},
        "columns": {"indices": np.asfortranarray(tensor.indices), "values": tensor.values},
        "none": {"values": tensor.values},
    }
    for name, arrays in bad.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(DataError, match=f"{name}.npz"):
            npz.scan(tmp_path / f"{name}.npz", 300)
    data = (tmp_path / "short.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="cannot be read as a NumPy archive"):
        npz.scan(tmp_path / "cut.npz", 300)


def test_a_bad_entry_is_found_in_any_piece(tmp_path, tensor):
    values = np.array(tensor.values)
    values[1000] = np.nan
    np.savez(tmp_path / "nan.npz", indices=tensor.indices, values=values)
    with pytest.raises(DataError, match=r"entry 100 has the value nan.*counted from entry 900 on"):
        _whole(npz.scan(tmp_path / "nan.npz", 300))


@pytest.mark.parametrize("name", ["a.tns", "a.tns.gz"])
def test_a_text_tensor_in_chunks_is_the_tensor(tmp_path, tensor, monkeypatch, name):
    write_tensor(tensor, tmp_path / name)
    monkeypatch.setattr("jointensor.data.formats.base.BLOCK", 2000)
    source, whole = tns.scan(tmp_path / name, 300), read_tensor(tmp_path / name).tensor
    indices, values = _whole(source)
    np.testing.assert_array_equal(indices, whole.indices)
    np.testing.assert_array_equal(values, whole.values)
    assert source.modes == whole.modes
    assert count_entries(tmp_path / name, None)[1] == 3


def test_a_bad_line_of_a_text_tensor_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("jointensor.data.formats.base.BLOCK", 64)
    lines = ["1 2 3 0.5"] * 40 + ["1 2 x 0.5"]
    (tmp_path / "a.tns").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match="line 41: 'x' is not a number"):
        tns.scan(tmp_path / "a.tns", 300)


@pytest.mark.parametrize("rule", ["sum", "mean", "count", "last"])
@pytest.mark.parametrize("ending", ["csv", "parquet", "arrow", "jsonl"])
def test_a_table_in_chunks_is_the_table(tmp_path, monkeypatch, rule, ending):
    monkeypatch.setattr("jointensor.data.formats.base.BLOCK", 5000)
    rng = np.random.default_rng(2)
    frame = pl.DataFrame(
        {
            "user": [f"u{k:03d}" for k in rng.zipf(1.5, 3000) % 50],
            "when": [f"2024-{1 + k % 12:02d}-{1 + k % 28:02d} 10:00:00" for k in rng.integers(400, size=3000)],
            "lat": rng.integers(1000, size=3000) / 10,
            "x": rng.normal(size=3000),
        }
    )
    path = tmp_path / f"a.{ending}"
    write_table(frame, path)
    spec = TableSpec.of(["user", "day=day(when)", "lat=ROUND(lat, 0)"], "x", duplicates=rule)
    source, whole = scan_table_source(path, spec, 200, tmp_path / "sorting"), read_tensor(path, spec)
    indices, values = _whole(source)
    np.testing.assert_array_equal(indices, whole.tensor.indices)
    np.testing.assert_allclose(values, whole.tensor.values, rtol=1e-6)
    assert source.modes == whole.tensor.modes
    assert source.spec == whole.spec
    assert source.entries == len(whole.tensor)


@pytest.mark.parametrize("ending", ["npz", "tns", "csv", "parquet"])
@pytest.mark.parametrize("rule", ["error", "sum"])
def test_test_entries_in_chunks_are_those_read_whole(tmp_path, monkeypatch, ending, rule):
    """Rows over other labels in another order, some of them new; and repeated ones, which are merged as in training."""
    monkeypatch.setattr("jointensor.data.queries.CHUNK_ROWS", 40)
    monkeypatch.setattr("jointensor.data.formats.CHUNK_ROWS", 40)
    monkeypatch.setattr("jointensor.data.formats.base.BLOCK", 500)
    rng = np.random.default_rng(3)
    modes = Mode("a", 9, tuple("hgfedcbaz")), Mode("b", 5)
    indices, values = rng.integers((12, 7), size=(200, 2)), rng.normal(size=200)
    path = tmp_path / f"test.{ending}"
    spec = TableSpec.of(["a", "b"], "value", duplicates=rule)
    if ending in ("csv", "parquet"):
        letters = np.array(list("abcdefghijkl"))[indices[:, 0]]
        write_table(pl.DataFrame({"value": values, "a": letters, "b": indices[:, 1]}), path)
    else:
        _, first = np.unique(indices, axis=0, return_index=True)
        write_tensor(SparseTensor(indices[first], values[first], (12, 7)), path)
    wanted = read_entries(path, modes, spec)
    chunks = list(scan_entries(path, modes, spec, tmp_path / "sorting"))
    assert len(chunks) > 1 or rule == "sum"  # merged cells come in larger chunks
    found = np.concatenate([one for one, _ in chunks]), np.concatenate([one for _, one in chunks])
    assert (wanted[0] < 0).any()

    def ordered(indices, values):
        order = np.lexsort((values, *indices.T))
        return indices[order], values[order]

    for one, other in zip(ordered(*found), ordered(*wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_shares_of_processes_hold_every_entry_once(tmp_path, tensor):
    whole = _sharded(tmp_path, tensor)
    shared = []
    for rank in range(3):
        assignment = _assignment(tmp_path, len(tensor))
        shared.append(
            write_shards(tmp_path / str(rank), _chunks(tensor), tensor.modes, assignment, 200, {}, share=Share(rank, 3))
        )
    trained = [_all(one.train) for one in shared]
    assert set.union(*trained) == _all(whole.train)
    assert sum(map(len, trained)) == len(_all(whole.train))
    assert len({len(one.train.counts) for one in shared}) == 1
    assert _all(shared[0].test) == _all(whole.test)  # the first process evaluates
    assert _all(shared[1].test) | _all(shared[2].test) < _all(whole.test)
    for one in shared:
        np.testing.assert_array_equal(one.valid.values, whole.valid.values)
    for n in range(3):
        np.testing.assert_array_equal(sum(one.counts[n] for one in shared), whole.counts[n])
    summary = ValueSummary()
    for one in shared:
        summary.merge(one.summary)
    assert vars(summary) == pytest.approx(vars(whole.summary), rel=1e-12)


def test_a_process_without_training_entries_is_refused(tmp_path, tensor):
    some = SparseTensor(tensor.indices[:20], tensor.values[:20], SHAPE)

    def write(rank):
        assignment = _assignment(tmp_path, 20)
        write_shards(tmp_path / "few", _chunks(some), some.modes, assignment, 9, {}, share=Share(rank, 50))

    with pytest.raises(ConfigError, match="too few training entries for 50 processes"):
        list(map(write, range(50)))  # one of them at least


def test_fields_in_quotes_may_hold_lines_wherever_blocks_end(tmp_path, monkeypatch):
    lines = [f'"a ""{k}""\nb","{k % 7}\n",{k}.5\n' for k in range(200)]
    (tmp_path / "a.csv").write_text("u,v,x\n" + "".join(lines) + "\n\n", encoding="utf-8")
    spec = TableSpec.of(["u", "v"], "x")
    whole = read_tensor(tmp_path / "a.csv", spec).tensor
    for chunk in (40, 97, 1000):
        monkeypatch.setattr("jointensor.data.formats.base.BLOCK", chunk)
        source = scan_table_source(tmp_path / "a.csv", spec, 500, tmp_path / "sorting")
        assert source.modes == whole.modes
        np.testing.assert_array_equal(_whole(source)[0], whole.indices)


@pytest.mark.parametrize("codes", ["", "007"])
def test_columns_are_numbers_or_text_by_all_their_rows(tmp_path, codes):
    """A code, or a number that is not whole, decides, though it comes last."""
    rows = [f"{k},{k % 3},{k}" for k in range(50)] + ["50,2.5,1", f"51,{codes},1" if codes else "52,2,1"]
    (tmp_path / "a.csv").write_text("a,b,v\n" + "\n".join(rows) + "\n", encoding="utf-8")
    spec = TableSpec.of(["a", "b=b || '-'"], "v")
    whole = read_tensor(tmp_path / "a.csv", spec)
    source = scan_table_source(tmp_path / "a.csv", spec, 7, tmp_path / "sorting")
    assert source.modes == whole.tensor.modes
    assert source.spec == whole.spec
    assert whole.spec.modes[1].types == {"b": "String" if codes else "Float64"}
    assert ("007-" in whole.tensor.modes[1].labels) == bool(codes)


def test_faults_of_tables_in_chunks_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("jointensor.data.formats.base.BLOCK", 100)
    (tmp_path / "a.csv").write_text("a,b,v\n" + "".join(f"{k % 5},{k},{k}\n" for k in range(50)), encoding="utf-8")
    same = TableSpec.of(["c=a * 0", "d=a * 0 || ''"], "v", duplicates="sum")
    with pytest.raises(DataError, match=r"more than 20 rows share the cell c=0, d=0; aggregate them first"):
        scan_table_source(tmp_path / "a.csv", same, 20, tmp_path / "sorting")
    twice = TableSpec.of(["a", "half=FLOOR(b / 10)"], "v")
    with pytest.raises(DataError, match="share their cell with another row"):
        scan_table_source(tmp_path / "a.csv", twice, 20, tmp_path / "sorting")
    (tmp_path / "b.csv").write_text(
        "a,b,v\n" + "".join(f"{k},{k},{k}\n" for k in range(30)) + "31,,2\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"row 31 has nothing for mode 'b'"):
        scan_table_source(tmp_path / "b.csv", TableSpec.of(["a", "b"], "v"), 20, tmp_path / "sorting")
    with pytest.raises(ConfigError, match="is a table: name its modes"):
        scan_source(tmp_path / "a.csv", None, tmp_path / "sorting")
