"""Fits shared out to two processes, here threads that talk as processes do."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from jointensor.predictors import fit_bias
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.interruption import Interruption, StopRequested
from jointensor.search.search import search
from tests.search.searches import BIAS, TABLES, TREES, additive

SECONDS = 60
"""After which a thread that waits for the other one fails: both have to take the same branches."""


class Process:
    """One of two processes of a group."""

    size, shared = 2, True

    def __init__(self, rank, line):
        self.rank, self.first, self.line = rank, rank == 0, line

    def bytes_of(self, data, source=0):
        if self.rank == source:
            self.line["sent"] = data
        self.meet()
        received = self.line["sent"]
        self.meet()
        return received

    def decide(self, compute):
        return json.loads(self.bytes_of(json.dumps(compute()).encode()))

    def meet(self):
        self.line["barrier"].wait(SECONDS)


def both(work):
    """Results of the same function in two processes."""
    line = {"barrier": Barrier(2)}
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, Process(rank, line)) for rank in range(2)]
        return [one.result(timeout=2 * SECONDS) for one in running]


def test_every_process_makes_some_fits_and_has_all_results():
    tensor, made = additive(), []

    def fits(process):
        def job(k):
            made.append((process.rank, k))
            part = fit_bias(tensor.take(np.arange(100 * k, 100 * k + 100)), tensor.take(np.arange(0)))
            return FitResult(part, float(k), part.predict(tensor.indices).astype(np.float32), 0.5)

        jobs = [Job(lambda k=k: job(k)) for k in range(4)]
        jobs.append(Job(lambda: made.append((process.rank, 4)) or FitResult(failure="diverged")))
        return list(run_fits(process, jobs, Interruption(), [False, True, False, False, False]))

    first, second = both(fits)
    assert sorted(made) == [(0, 0), (0, 1), (0, 3), (1, 2), (1, 4)]  # the second is stored, at the first process
    for one, other in zip(first, second, strict=True):
        assert (one.seconds, one.failure, one.predict_seconds) == (other.seconds, other.failure, other.predict_seconds)
        np.testing.assert_array_equal(one.predictions, other.predictions)
        if one.part is not None:
            np.testing.assert_array_equal(one.part.predict(tensor.indices), other.part.predict(tensor.indices))
    assert [one.failure for one in first] == [None] * 4 + ["diverged"]


def test_a_request_at_the_first_process_stops_both():
    def fits(process):
        interruption = Interruption(lambda: process.first, process)
        with pytest.raises(StopRequested):
            list(run_fits(process, [Job(FitResult)], interruption))
        return True

    assert both(fits) == [True, True]


@pytest.mark.parametrize("budget", [3, 9, 25])
def test_two_processes_end_with_the_same_search(tmp_path, budget):
    """Fits that are affordable, and their number, are the same in both; the first one stores all of them."""
    tensor = additive()

    def searched(process):
        return search(
            tensor, budget_fits=budget, device="cpu", candidates=[BIAS, TABLES, TREES], processes=process,
            store=tmp_path / "fits" if process.first else None,
        )  # fmt: skip

    first, second = both(searched)
    assert [row | {"seconds": 0} for row in first.trials] == [row | {"seconds": 0} for row in second.trials]
    assert (first.reason, first.outcome) == (second.reason, second.outcome)
    np.testing.assert_array_equal(first.predicted, second.predicted)
    np.testing.assert_array_equal(first.predictor.predict(tensor.indices), second.predictor.predict(tensor.indices))
    stored = len(list((tmp_path / "fits").glob("*.safetensors")))
    assert stored >= sum(row["folds"] for row in first.trials)
    again = both(searched)[0]
    assert again.reason == first.reason
    np.testing.assert_array_equal(again.predicted, first.predicted)
