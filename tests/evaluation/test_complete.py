"""Filling in, against brute force over a small tensor."""

from itertools import product

import numpy as np
import polars as pl
import pytest

from jointensor import SparseTensor
from jointensor.data.modes import Mode
from jointensor.errors import ConfigError
from jointensor.evaluation import complete
from jointensor.evaluation.complete import Observed, fill_in, fill_in_top, select

MODES = (Mode("a", 5, tuple("vwxyz")), Mode("b", 4), Mode("c", 3, ("01", "02", "1")))
SHAPE = (5, 4, 3)


class Rule:
    """Says a number that many cells share, so that order among equals shows."""

    asked = 0

    def predict(self, indices):
        self.asked = max(self.asked, len(indices))
        return ((7 * indices[:, 0] + 3 * indices[:, 1] + indices[:, 2]) % 5).astype(np.float32)

    def unseen(self, indices):
        return indices[:, 1] == 3


@pytest.fixture
def observed():
    cells = np.random.default_rng(0).permutation(60)[:25]
    return SparseTensor(np.stack(np.unravel_index(cells, SHAPE), axis=1), 100.0 + np.arange(25), MODES)


CASES = [
    (None, lambda _a, _b, _c: True),
    ("a = 'w'", lambda a, _b, _c: a == 1),
    ("b >= 2 AND c = '01'", lambda _a, b, c: b >= 2 and c == 0),
    ("a = 'z' OR b = 0", lambda a, b, _c: a == 4 or b == 0),
    ("(a = 'z' OR b = 0) AND c <> '1'", lambda a, b, c: (a == 4 or b == 0) and c != 2),
]


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize(("where", "rule"), CASES)
def test_every_selected_cell_comes_once_with_what_was_observed(where, rule, chunk, observed, monkeypatch):
    monkeypatch.setattr(complete, "CHUNK", chunk)
    says = Rule()
    selection = select(MODES, where)
    frame = pl.concat(fill_in(says, selection, Observed(observed, selection)))
    cells = np.array([cell for cell in product(*map(range, SHAPE)) if rule(*cell)])
    known = {tuple(cell): value for cell, value in zip(observed.indices.tolist(), observed.values, strict=True)}
    predicted = says.predict(cells)
    assert selection.count() == len(cells)
    assert frame["a"].to_list() == [MODES[0].labels[a] for a in cells[:, 0]]
    assert frame["b"].to_list() == cells[:, 1].tolist()
    assert frame["prediction"].to_list() == predicted.tolist()
    assert frame["observed"].to_list() == [tuple(cell) in known for cell in cells.tolist()]
    assert frame["value"].to_list() == [known.get(tuple(c), p) for c, p in zip(cells.tolist(), predicted, strict=True)]
    assert frame["unseen"].to_list() == (cells[:, 1] == 3).tolist()


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("count", [1, 4, 13, 500])
@pytest.mark.parametrize(("where", "rule"), CASES)
def test_the_largest_missing_cells_come_first_and_of_equals_the_earliest(
    where, rule, count, chunk, observed, monkeypatch
):
    monkeypatch.setattr(complete, "CHUNK", chunk)
    says = Rule()
    selection = select(MODES, where)
    frame = fill_in_top(says, selection, Observed(observed, selection), count)
    known = set(map(tuple, observed.indices.tolist()))
    missing = [cell for cell in product(*map(range, SHAPE)) if rule(*cell) and cell not in known]
    figures = dict(zip(missing, says.predict(np.array(missing)).tolist(), strict=True))
    expected = sorted(missing, key=lambda cell: -figures[cell])[:count]
    assert frame["prediction"].to_list() == [figures[cell] for cell in expected]
    found = zip(frame["a"], frame["b"], frame["c"], strict=True)
    assert list(found) == [(MODES[0].labels[a], b, MODES[2].labels[c]) for a, b, c in expected]


def test_no_more_than_a_chunk_is_asked_and_no_more_than_the_slice_is_kept(observed, monkeypatch):
    monkeypatch.setattr(complete, "CHUNK", 6)
    says = Rule()
    selection = select(MODES, "a = 'w'")
    known = Observed(observed, selection)
    assert len(known.numbers) == (observed.indices[:, 0] == 1).sum()
    list(fill_in(says, selection, known))
    fill_in_top(says, selection, known, 3)
    assert says.asked == 6


def test_a_slice_of_a_tensor_of_a_million_cubed_is_cheap():
    modes = tuple(Mode(name, 10**6) for name in "abc")
    where = "a = 5 AND b = 7 AND c < 1000"
    tensor = SparseTensor(np.array([[5, 7, 3], [5, 8, 3], [999_999, 7, 3]]), np.array([1.0, 2.0, 3.0]), modes)
    selection = select(modes, where)
    frame = pl.concat(fill_in(Rule(), selection, Observed(tensor, selection)))
    assert frame.height == 1000
    assert frame.filter("observed").select("c", "value").rows() == [(3, 1.0)]


@pytest.mark.parametrize("where", ["a = '2'", "a = 2", "a IN ('2')", "a = '2' AND b >= 0", "CONCAT(a, b) LIKE '2%'"])
def test_modes_without_labels_are_compared_with_numbers_or_text(where):
    cells = np.concatenate([indices for _, indices in select((Mode("a", 5), Mode("b", 3)), where)])
    assert sorted(cells.tolist()) == [[2, b] for b in range(3)]


def test_without_entries_nothing_is_observed():
    selection = select(MODES, None)
    assert not pl.concat(fill_in(Rule(), selection, Observed(None, selection)))["observed"].any()


def test_a_condition_reads_no_files(tmp_path):
    (tmp_path / "secret.csv").write_text("password\nhunter2\n", encoding="utf-8")
    for text in (f"a IN (SELECT password FROM read_csv('{tmp_path}/secret.csv'))", "a IN (FROM 'secret.csv')"):
        with pytest.raises(ConfigError) as found:
            select((Mode("a", 3), Mode("b", 2)), text)
        assert "password" not in str(found.value).replace(text, "")
