"""Chunks of queries that are made ahead of time: the same ones, in the same order, with the same errors."""

import threading

import numpy as np
import polars as pl
import pytest

from jointensor.data import queries
from jointensor.data.expressions import ModeExpression
from jointensor.data.frames import TableSpec, frame_to_tensor
from jointensor.data.queries import ahead, scan_entries
from jointensor.errors import DataError


def made(count, seen, fails_at=None):
    for k in range(count):
        if k == fails_at:
            raise ValueError(f"part {k}")
        seen.append(threading.current_thread().name)
        yield k, None


def test_parts_made_ahead_are_the_parts_and_come_from_another_thread():
    seen = []
    assert [k for k, _ in ahead(made(5, seen))] == list(range(5))
    assert len(seen) == 5
    assert threading.current_thread().name not in seen


def test_the_next_part_is_made_while_the_last_one_is_used():
    begun = threading.Event()

    def parts():
        yield 0, None
        begun.set()
        yield 1, None

    for k, _ in ahead(parts()):
        if k == 0:
            assert begun.wait(60)


def test_an_error_comes_after_the_parts_before_it():
    parts = ahead(made(5, [], fails_at=2))
    assert [next(parts)[0], next(parts)[0]] == [0, 1]
    with pytest.raises(ValueError, match="part 2"):
        next(parts)


def test_somebody_who_stops_early_leaves_no_thread_behind():
    parts = ahead(made(1000, []))
    assert next(parts) == (0, None)
    parts.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("read-ahead")]


@pytest.fixture
def trained():
    """A tensor from a table of numbers with a mode that is computed, and how it was read."""
    table = pl.DataFrame({"x": [1.0, 2.0, 1.5, 2.5], "y": ["a", "b", "a", "b"], "value": [1.0, 2.0, 3.0, 4.0]})
    spec = TableSpec((ModeExpression("d", "x * 2"), ModeExpression("y", "y")), "value")
    return frame_to_tensor(table, spec)


def chunks_of(path, trained, monkeypatch, tmp_path):
    monkeypatch.setattr(queries, "CHUNK_ROWS", 2)
    return list(scan_entries(path, trained.tensor.modes, trained.spec, tmp_path / "scratch"))


def test_text_in_queries_is_read_as_the_numbers_of_the_training_table(trained, tmp_path, monkeypatch):
    """Whole numbers in the first chunk, others in the next."""
    path = tmp_path / "queries.csv"
    path.write_text("x,y,value\n1,a,0\n2,b,0\n1.5,a,0\n2.5,b,0\n", encoding="utf-8")
    found = np.concatenate([indices for indices, _ in chunks_of(path, trained, monkeypatch, tmp_path)])
    labels = trained.tensor.modes[0].labels
    assert [labels[i] for i in found[:, 0]] == ["2", "4", "3", "5"]


@pytest.mark.parametrize(("value", "says"), [("bad", "row 4"), ("1e39", "32 bits")])
def test_errors_in_values_of_a_later_chunk_name_the_file_and_the_row(trained, tmp_path, monkeypatch, value, says):
    path = tmp_path / "queries.csv"
    path.write_text(f"x,y,value\n1,a,0\n2,b,0\n1.5,a,0\n2.5,b,{value}\n", encoding="utf-8")
    with pytest.raises(DataError, match=says) as error:
        chunks_of(path, trained, monkeypatch, tmp_path)
    assert path.name in str(error.value)


def test_types_that_are_no_names_are_refused():
    with pytest.raises(DataError, match="types of columns"):
        ModeExpression("d", "x * 2", types={"x": []})
