"""Loops over entries that are in memory for a moment: compiled ones and the reference, beside plain sums."""

import numpy as np
import pytest
import torch

from jointensor.kernels import ModeView, RowEntries, pick_engine
from jointensor.kernels.terms import RowSums, Term, Terms, add_numbers

SHAPE = (7, 5, 6, 4)


@pytest.fixture(scope="module")
def entries():
    rng = np.random.default_rng(0)
    indices = np.stack([rng.integers(size, size=700) for size in SHAPE], axis=1).astype(np.int32)
    return indices, rng.normal(size=700).astype(np.float32)


def _term(modes, rank, *, sums=False, sign=1.0, seed=0):
    made = torch.Generator().manual_seed(seed)
    return Term(modes, tuple(torch.randn(SHAPE[n], rank, generator=made) for n in modes), sums, sign)


@pytest.mark.parametrize("engine", ["reference", "numba"])
def test_terms_are_taken_from_the_values(engine, entries):
    indices, values = entries
    terms = [
        _term((2,), 1), _term((0, 1, 2, 3), 3), _term((1, 3), 2, sign=-1.0), _term((1, 3, 0), 4),
        _term((3,), 1, sign=-1.0), _term((0, 1, 2, 3), 2, sums=True),
        _term((0, 2), 5, sums=True, sign=-1.0),
    ]  # fmt: skip
    left = torch.from_numpy(values.copy())
    pick_engine(engine, "cpu").subtract_terms(Terms(0.5, tuple(terms)), torch.from_numpy(indices), left)
    for e in (0, 13, 699):
        said = 0.5
        for term in terms:
            rows = [table[indices[e, n]].double() for n, table in zip(term.modes, term.tables, strict=True)]
            pairs = [(a * b).sum() for k, a in enumerate(rows) for b in rows[k + 1 :]]
            product = torch.stack(rows).prod(dim=0).sum()
            said += term.sign * float(sum(pairs) if term.sums else product)
        assert float(left[e]) == pytest.approx(values[e] - said, abs=1e-5)


@pytest.mark.parametrize("engine", ["reference", "numba"])
@pytest.mark.parametrize("sums", [True, False])
def test_systems_of_rows_are_the_sums_over_their_entries(engine, sums, entries):
    indices, values = entries
    loops = pick_engine(engine, "cpu")
    term = _term((0, 1, 3), 3, sums=sums)
    for k, rows in ((0, range(7)), (1, range(2, 4)), (2, range(4))):
        systems = RowSums.zero(len(rows), term.tables[k])
        tables = [table for m, table in enumerate(term.tables) if m != k]
        for part in (slice(0, 300), slice(300, 700)):
            others = [mode for m, mode in enumerate(term.modes) if m != k]
            view = ModeView.of(torch.from_numpy(indices[part]), term.modes[k], others, SHAPE[term.modes[k]])
            given = RowEntries(view, tables, torch.from_numpy(values[part]), sums=sums)
            systems.add(given, rows, loops.row_systems)
        h = [table.double()[indices[:, n]] for n, table in zip(term.modes, term.tables, strict=True)]
        del h[k]
        h = (h[0] + h[1] if sums else h[0] * h[1]).numpy()
        squares = 0.0
        for place, row in enumerate(rows):
            mine = indices[:, term.modes[k]] == row
            np.testing.assert_allclose(systems.gram[place], h[mine].T @ h[mine], rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(systems.right[place], h[mine].T @ values[mine], rtol=1e-4, atol=1e-4)
            squares += float((values[mine].astype(np.float64) ** 2).sum())
        assert float(systems.squares) == pytest.approx(squares, rel=1e-5)


def test_numbers_are_summed_by_label(entries):
    indices, values = entries
    sums = torch.ones(SHAPE[2], dtype=torch.float64)
    add_numbers(torch.from_numpy(indices), 2, torch.from_numpy(values), sums)
    np.testing.assert_allclose(sums, [1 + values[indices[:, 2] == i].sum(dtype=np.float64) for i in range(SHAPE[2])])
