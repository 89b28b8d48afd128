"""Chunks of queries that are made ahead of time: the same ones, in the same order, with the same errors."""

import threading

import numpy as np
import polars as pl
import pytest

from jointensor import SparseTensor, write_tensor
from jointensor.data import queries
from jointensor.data.expressions import ModeExpression
from jointensor.data.frames import TableSpec, frame_to_tensor
from jointensor.data.modes import Mode
from jointensor.data.queries import ahead, scan_entries
from jointensor.data.split import places_of
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


# --- cells that will be asked for


def asked(tmp_path, text, table=None, spec=None):
    path = tmp_path / "asked.csv"
    path.write_text(text, encoding="utf-8")
    frame = pl.DataFrame({"shop": ["a", "b"], "day": ["2024-01-01", "2024-01-03"], "value": [1.0, 2.0]})
    spec = TableSpec.of(["shop", "day"], "value")
    reading = frame_to_tensor(frame, spec)
    return queries.read_asked(path, reading.tensor.modes, reading.spec)


def test_cells_that_are_asked_for_may_have_new_labels(tmp_path):
    found = asked(tmp_path, "day,shop\n2024-01-02,b\n2024-01-09,a\n2024-01-01,c\n")
    shop, day = found.modes
    assert [(shop.label(int(i)), day.label(int(j))) for i, j in found.indices] == [
        ("b", "2024-01-02"), ("a", "2024-01-09"), ("c", "2024-01-01"),
    ]  # fmt: skip
    assert shop.labels == ("a", "b", "c")
    assert day.labels[:2] == ("2024-01-01", "2024-01-03")  # those that are known keep their positions
    assert places_of(day).tolist() == [0, 2, 1, 3]
    assert day.order == "ordered"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,place\n2024-01-02,b\n", "asked.csv.*the queries need a column 'shop'.*their columns are day, place"),
        ("day,shop\n", "asked.csv has no cells; give those that are to be predicted"),
        ("day,shop\n2024-01-02,b\n2024-01-02,\n", "asked.csv: row 2 has no label for mode 'shop'"),
    ],
)
def test_files_without_such_cells_are_refused_by_name(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        asked(tmp_path, text)


def test_archives_name_cells_by_label_or_by_position(tmp_path):
    known = SparseTensor([[0, 0], [1, 2]], [1.0, 2.0], (Mode("who", 2, ("x", "y")), Mode("day", 3, order="ordered")))
    others = SparseTensor([[0, 5], [1, 1]], [1.0, 2.0], (Mode("who", 2, ("y", "z")), Mode("day", 6, order="ordered")))
    write_tensor(others, tmp_path / "asked.npz")
    found = queries.read_asked(tmp_path / "asked.npz", known.modes, None)
    assert found.indices.tolist() == [[1, 5], [2, 1]]
    assert found.modes[0].labels == ("x", "y", "z")
    assert (found.modes[1].size, found.modes[1].order) == (6, "ordered")
    with pytest.raises(DataError, match="queries have shape"):
        queries.read_asked(tmp_path / "asked.npz", (*known.modes, Mode("third", 2)), None)
