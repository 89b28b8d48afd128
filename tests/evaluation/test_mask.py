"""The picture of what is seen, missing and left out: cell by cell against the entries."""

import numpy as np

from jointensor.data.modes import Mode
from jointensor.data.split import blocks_of, split, with_folds
from jointensor.data.tensor import SparseTensor
from jointensor.evaluation.mask import MAX_COLUMNS, MAX_ROWS, MISSING, SEEN, VALIDATES, Mask
from tests.data.test_gaps import hidden, tensor_of


def mask_of(tensor, folds="like-gaps"):
    parts = with_folds(split(tensor), folds, 0.1)
    return Mask(parts.train, parts.valid, tuple(n for n, _ in blocks_of(parts.together)))


def test_a_dense_tensor_is_drawn_as_a_slice_of_the_modes_of_its_gaps():
    mask = mask_of(tensor_of(hidden((1, 1, 36), 0.3)))
    found = mask.picture()
    assert found.modes == (0, 1)
    assert list(found.at) == [2]
    state = {tuple(cell): SEEN for cell in mask.train.indices.tolist()}
    state |= {tuple(cell): VALIDATES for cell in mask.valid.indices.tolist()}
    for i, station in enumerate(found.rows):
        for j, day in enumerate(found.columns):
            assert found.cells[i, j] == state.get((station, day, found.at[2]), MISSING)
    assert (found.cells == VALIDATES).any()


def test_a_sparse_tensor_is_drawn_with_all_its_slices():
    rng = np.random.default_rng(0)
    modes = (Mode("who", 200), Mode("what", 300), Mode("day", 90, order="ordered"))
    cells = np.unique(np.column_stack([rng.integers(0, mode.size, 3000) for mode in modes]), axis=0)
    mask = mask_of(SparseTensor(cells, np.arange(len(cells)), modes), "slices:who")
    found = mask.picture()
    assert (found.modes, found.at) == ((0, 2), {})
    assert (len(found.rows), len(found.columns)) == (MAX_ROWS, MAX_COLUMNS)
    assert found.columns == list(range(90 - MAX_COLUMNS, 90))  # the last ones
    for i, who in enumerate(found.rows):
        for j, day in enumerate(found.columns):
            seen, left = (((p.indices[:, 0] == who) & (p.indices[:, 2] == day)).sum() for p in (mask.train, mask.valid))
            assert found.cells[i, j] == (VALIDATES if left > seen else SEEN if seen else MISSING)


def test_the_longer_ordered_mode_goes_across_and_follows_its_order():
    labels = tuple(f"2024-01-{day:02d}" for day in (3, 1, 2, 5, 4, 7, 6, 8))
    modes = (Mode("hour", 4, order="ordered"), Mode("day", 8, labels, "ordered"))
    tensor = SparseTensor.from_dense(np.arange(32.0).reshape(4, 8), modes)
    found = mask_of(tensor, "time:day").picture()
    assert found.modes == (0, 1)
    assert [labels[n] for n in found.columns] == sorted(labels)
    assert (found.cells[:, -1] == VALIDATES).any()
    assert not (found.cells[:, :-1] == VALIDATES).any()
