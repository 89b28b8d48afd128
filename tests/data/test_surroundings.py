"""What is left around cells, against loops over all entries."""

import math
from itertools import combinations

import numpy as np
import pytest

from jointensor.data.split import steps_to_nearest
from jointensor.data.split.surroundings import MAX_SHARE, Surroundings

SIZES, ORDERED = (5, 4, 9), (1, 2)


def points(seed, count):
    rng = np.random.default_rng(seed)
    cells = rng.permutation(np.argwhere(np.ones(SIZES)))
    return cells[:count], cells[count : count + 20]


def by_hand(entries, cell):
    """Shares, distances and what comes later, in the order of :class:`Surroundings`."""
    found = []
    for size in (1, 2):
        for modes in combinations(range(3), size):
            count = sum(all(entry[n] == cell[n] for n in modes) for entry in entries)
            found.append(min(count * math.prod(SIZES[n] for n in modes) / len(entries), MAX_SHARE))
    for n in ORDERED:
        fiber = [e[n] for e in entries if all(e[m] == cell[m] for m in range(3) if m != n)]
        steps = min((abs(place - cell[n]) for place in fiber), default=math.inf)
        found.append(math.log2(min(steps, 2 * SIZES[n])))
    return [*found, *(sum(entry[n] > cell[n] for entry in entries) / len(entries) for n in ORDERED)]


@pytest.mark.parametrize(("seed", "count"), [(0, 90), (1, 30), (2, 8)])
def test_surroundings_of_asked_cells_and_of_hidden_entries_are_those_of_a_loop(seed, count):
    entries, asked = points(seed, count)
    around = Surroundings(entries, asked, SIZES, ORDERED, 0)
    expected = np.array([by_hand(entries, cell) for cell in around.asked])
    np.testing.assert_allclose(np.stack(around.of_asked, axis=1), expected)
    hidden = np.random.default_rng(9).random(count) < 0.3
    left = around.entries[~hidden]
    expected = np.array([by_hand(left, cell) for cell in around.entries[hidden]])
    np.testing.assert_allclose(np.stack(around.of_hidden(hidden), axis=1), expected)


def test_the_order_of_entries_and_cells_does_not_matter():
    entries, asked = points(3, 60)
    one, other = (Surroundings(entries[::k], asked[::k], SIZES, ORDERED, 0) for k in (1, -1))
    np.testing.assert_array_equal(one.entries, other.entries)
    np.testing.assert_array_equal(np.stack(one.of_asked), np.stack(other.of_asked))


def test_the_share_of_asked_cells_without_entries_is_counted():
    entries, asked = points(4, 12)
    around = Surroundings(entries, asked, SIZES, ORDERED, 0)
    for modes in ((0,), (0, 1), (2, 1)):
        pairs = {tuple(entry[list(modes)]) for entry in entries}
        assert around.share_without(modes) == pytest.approx(
            np.mean([tuple(c[list(modes)]) not in pairs for c in asked])
        )


def test_steps_to_the_nearest_entry_are_those_of_a_loop():
    entries, cells = points(5, 25)
    for n in range(3):
        found = steps_to_nearest(entries, cells, n, SIZES)
        for cell, steps in zip(cells, found, strict=True):
            fiber = [abs(e[n] - cell[n]) for e in entries if all(e[m] == cell[m] for m in range(3) if m != n)]
            assert steps == min(fiber, default=math.inf)
