"""A fitted estimator in a forked child, as servers with worker processes use it."""

import multiprocessing
import os

import numpy as np
import pandas as pd
import pytest

from jointensor import TensorCompleter

GUARD = 120.0
"""Seconds after which a child counts as blocked; a prediction takes milliseconds."""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def _cells():
    cells = np.argwhere(np.ones((8, 6, 4), dtype=np.bool_))
    return cells[np.random.default_rng(0).permutation(len(cells))[:150]]


CELLS = _cells()
TABLES = {
    "whole numbers": CELLS,
    "fractions": CELLS / 4,
    "text": CELLS.astype(str),
    "mixed rows": [[int(a), str(b), float(c) / 4] for a, b, c in CELLS],
    "dates": pd.DataFrame(
        {"a": CELLS[:, 0], "b": pd.Timestamp("2020-01-01") + pd.to_timedelta(CELLS[:, 1], unit="D"), "c": CELLS[:, 2]}
    ),
}


def _answer(model, table, sender):
    sender.send(model.predict(table))
    sender.close()


@pytest.mark.parametrize("kind", TABLES)
def test_a_forked_child_predicts_what_its_parent_does(kind):
    table = TABLES[kind]
    model = TensorCompleter(rank=(2, 0), random_state=0).fit(table, np.random.default_rng(1).normal(size=len(table)))
    expected = model.predict(table)  # also starts the threads that a child does not inherit
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(model, table, sender), daemon=True)
    child.start()
    try:
        assert receiver.poll(GUARD), "the forked child is blocked"
        np.testing.assert_array_equal(receiver.recv(), expected)
    finally:
        child.kill()
        child.join()
