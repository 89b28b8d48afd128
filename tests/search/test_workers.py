"""Fits side by side: the same results in the same order as one after the other, and threads that end."""

import threading
from dataclasses import replace
from threading import Event, Thread

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info

from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.kernels.numba_blas import blas_alone
from jointensor.predictors import fit_baselines
from jointensor.search.default_fit import default_fit
from jointensor.search.executor import FitResult, Job, run_fits
from jointensor.search.families import FAMILIES, Family, FitOptions
from jointensor.search.interruption import Interruption, StopRequested
from jointensor.search.portfolio import Candidate
from jointensor.search.search import search
from jointensor.search.settings import SETTINGS
from jointensor.search.workers import Workers
from tests.search.searches import BIAS, TABLES, TREES

SECONDS = 120
"""After which a fit that waits for another one fails: they are not made side by side."""

CPU = torch.device("cpu")


def results_of(jobs, workers, interruption=None):
    return run_fits(SINGLE_PROCESS, jobs, interruption or Interruption(), workers=workers)


def alive():
    return [one for one in threading.enumerate() if one.name.startswith("fit")]


@pytest.fixture
def cores():
    """Let torch have so many threads."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# --- the executor


def test_results_come_in_the_order_of_the_jobs_and_are_kept_as_they_end():
    last_is_done, ended = Event(), []

    def work(number):
        if number == 0:
            assert last_is_done.wait(SECONDS)
        return FitResult(seconds=float(number))

    def done(result):
        ended.append(result.seconds)
        if result.seconds == 4:
            last_is_done.set()

    jobs = [Job(lambda k=k: work(k), done=done) for k in range(5)]
    with Workers(2) as workers:
        found = list(results_of(jobs, workers))
    assert [one.seconds for one in found] == [0, 1, 2, 3, 4]
    assert ended == [1, 2, 3, 4, 0]
    assert [one.share for one in found] == [0.5] * 5


def test_no_more_fits_are_made_at_once_than_there_are_workers():
    lock, running, most = threading.Lock(), [0], [0]
    both = threading.Barrier(2)

    def work():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        both.wait(SECONDS)
        with lock:
            running[0] -= 1
        return FitResult()

    with Workers(2) as workers:
        assert len(list(results_of([Job(work)] * 6, workers))) == 6
    assert most == [2]


def test_a_fit_that_needs_no_gpu_is_made_beside_one_that_does_and_waits_for_its_like_alone():
    lock, running, most, both = threading.Lock(), {True: 0, False: 0}, {True: 0, False: 0}, threading.Barrier(2)

    def work(number, on_cpu):
        with lock:
            running[on_cpu] += 1
            most[on_cpu] = max(most[on_cpu], running[on_cpu])
        both.wait(SECONDS)
        with lock:
            running[on_cpu] -= 1
        return FitResult(seconds=float(number))

    kinds = [False, True, True, False, False, True]
    jobs = [Job(lambda k=k, kind=kind: work(k, kind), on_cpu=kind) for k, kind in enumerate(kinds)]
    with Workers(1, cpu_beside=True) as workers:
        found = list(results_of(jobs, workers))
    assert [one.seconds for one in found] == [0, 1, 2, 3, 4, 5]
    assert [one.share for one in found] == [1.0] * 6
    assert most == {True: 1, False: 1}


@pytest.mark.parametrize(("beside", "kinds"), [(True, [True, True]), (True, [False, False]), (False, [True, False])])
def test_fits_of_one_worker_stay_in_the_thread_of_the_caller_where_none_is_beside(beside, kinds):
    seen = []
    jobs = [Job(lambda: seen.append(threading.get_ident()) or FitResult(), on_cpu=kind) for kind in kinds]
    with Workers(1, cpu_beside=beside) as workers:
        list(results_of(jobs, workers))
    assert seen == [threading.get_ident()] * 2


def test_jobs_are_asked_for_when_it_is_their_turn_and_left_out_if_they_are_not_affordable():
    left, made = [3], []

    def admitted():
        left[0] -= 1
        return left[0] >= 0

    jobs = [Job(lambda k=k: made.append(k) or FitResult(seconds=1.0), admitted) for k in range(6)]
    with Workers(2) as workers:
        found = list(results_of(jobs, workers))
    assert sorted(made) == [0, 1, 2]
    assert [one.admitted for one in found] == [True] * 3 + [False] * 3


def test_after_a_request_to_stop_fits_that_have_begun_count_and_no_other_begins():
    asked, begun = Event(), threading.Barrier(2)

    def work(number):
        begun.wait(SECONDS)
        asked.set()
        if number == 0:
            raise StopRequested
        return FitResult(seconds=float(number))

    jobs = [Job(lambda k=k: work(k)) for k in range(4)]
    found = []
    with Workers(2) as workers, pytest.raises(StopRequested):  # noqa: PT012 - what comes before it counts
        for one in results_of(jobs, workers, Interruption(asked.is_set)):
            found.append(one.seconds)
    assert found == [0.0, 1.0]  # the first has stopped itself, and has no model


@pytest.mark.parametrize("where", ["in a fit", "in the caller"])
def test_an_error_stops_the_fits_that_are_running(where):
    running = Event()

    def fails():
        assert running.wait(SECONDS)
        if where == "in a fit":
            raise ValueError("a mistake")
        return FitResult()

    def endless(stopping):
        running.set()
        for _ in range(100 * SECONDS):
            if stopping():
                raise StopRequested
            Event().wait(0.01)
        raise AssertionError("nobody stopped it")

    with pytest.raises(ValueError, match="a mistake"), Workers(2) as workers:  # noqa: PT012 - where it is raised is the point
        jobs = [Job(fails), Job(lambda: endless(workers.stopping(lambda: False)))]
        for _ in results_of(jobs, workers):
            raise ValueError("a mistake of the caller")
    assert not alive()


def test_one_fit_or_one_worker_needs_no_thread():
    caller = threading.get_ident()
    seen = []
    job = Job(lambda: seen.append(threading.get_ident()) or FitResult())
    with Workers(3) as workers:
        list(results_of([job], workers))
    with Workers(1) as workers:
        list(results_of([job] * 3, workers))
    assert seen == [caller] * 4


# --- threads


def test_fits_side_by_side_share_the_cores_and_others_keep_theirs(cores):
    cores(4)
    seen = []
    with Workers(3) as workers:
        list(results_of([Job(lambda: seen.append(torch.get_num_threads()) or FitResult())] * 2, workers))
        list(results_of([Job(lambda: seen.append(torch.get_num_threads()) or FitResult())] * 5, workers))
        assert torch.get_num_threads() == 4
    assert seen == [2, 2, 1, 1, 1, 1, 1]
    thread = Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen[-1] == 4


def test_as_many_workers_as_cores_and_memory_allow(cores):
    cores(4)
    few = replace(SETTINGS, max_workers=3, max_entries=1000, max_gpu_workers=5, max_gpu_entries=100)
    assert Workers.of(CPU, 10, SETTINGS).most == 4
    assert Workers.of(CPU, 10, few).most == 3
    assert Workers.of(CPU, 500, few).most == 2
    assert Workers.of(CPU, 5000, few).most == 1
    assert Workers.of(torch.device("cuda"), 10, few).most == 5
    assert Workers.of(torch.device("cuda"), 60, few).most == 1
    assert [Workers.of(torch.device(name), 10).cpu_beside for name in ("cpu", "cuda")] == [False, True]
    assert Workers.of(CPU, 5000, replace(few, workers=2)).most == 2
    cores(1)
    assert Workers.of(CPU, 10, SETTINGS).most == 1
    assert [Workers(3).count(fits) for fits in (0, 1, 2, 9)] == [1, 1, 2, 3]


def test_the_limit_of_blas_is_lifted_by_the_last_that_needs_it():
    def limits():
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    before, both_in, first_out = limits(), threading.Barrier(2), Event()
    seen = []

    def other():
        with blas_alone():
            both_in.wait(SECONDS)
            assert first_out.wait(SECONDS)
            seen.extend(limits())

    thread = Thread(target=other)
    thread.start()
    with blas_alone():
        both_in.wait(SECONDS)
    first_out.set()
    thread.join()
    assert seen == [1] * len(before)
    assert limits() == before


# --- searches and the default fit


class FailingFamily(Family):
    """Raises an error."""

    def fit(self, candidate, train, valid, options):
        raise RuntimeError("the loss is nan")


CANDIDATES = [
    BIAS,
    TABLES,
    TREES,
    Candidate("fails", "failing", 9, stage="core"),
    Candidate("cp:2", "joint", 6, (2, 0), stage="core"),
    Candidate("pairs", "gibbs", 3, linear="mean+bias+fm:2", stage="core"),
    Candidate("smooth", "gibbs", 4, linear="mean+bias+fm:2+tables", stage="richer"),
    Candidate("wide", "gibbs", 5, linear="mean+bias+fm:3", stage="richer", after="pairs"),
    *(Candidate(f"cp:{r}", "joint", 7, (r, 0)) for r in (1, 3)),
]


@pytest.fixture
def _failing(monkeypatch):
    monkeypatch.setitem(FAMILIES, "failing", FailingFamily())


def searched(tensor, workers, **more):
    given = {"budget_fits": 34, "seed": 2, "device": "cpu", "candidates": CANDIDATES}
    return search(tensor, settings=replace(SETTINGS, workers=workers), **{**given, **more})


def rows(found):
    return [row | {"seconds": 0} for row in found.trials]


@pytest.mark.usefixtures("_failing")
@pytest.mark.parametrize("fits", [7, 34])
def test_a_search_in_fits_has_the_same_result_with_any_number_of_workers(planted, fits):
    learnt, others = planted
    alone, together = (searched(learnt, workers, budget_fits=fits) for workers in (1, 3))
    assert rows(alone) == rows(together)
    assert [row["failure"] for row in rows(together) if row["name"] == "fails"] == ["the loss is nan"]
    assert alone.reason == together.reason
    np.testing.assert_array_equal(alone.predicted, together.predicted)
    np.testing.assert_array_equal(alone.predictor.predict(others.indices), together.predictor.predict(others.indices))
    assert not alive()


@pytest.mark.usefixtures("_failing")
def test_a_search_of_several_workers_that_was_stopped_goes_on_to_the_same_result(planted, tmp_path):
    learnt, others = planted
    whole = searched(learnt, 3)
    calls = iter(range(10_000))
    stopped = searched(learnt, 3, store=tmp_path / "fits", stopping=lambda: next(calls) > 300)
    assert stopped.interrupted
    made = len(list((tmp_path / "fits").glob("*.json")))
    assert made > 0
    again = searched(learnt, 3, store=tmp_path / "fits")
    assert len(list((tmp_path / "fits").glob("*.json"))) > made
    assert rows(again) == rows(whole)
    np.testing.assert_array_equal(again.predictor.predict(others.indices), whole.predictor.predict(others.indices))


@pytest.mark.usefixtures("_failing")
def test_a_default_fit_has_the_same_result_with_any_number_of_workers():
    parts = split(make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=1)[0], seed=0)
    candidates = [CANDIDATES[3], *CANDIDATES[4:6], TREES, replace(CANDIDATES[4], name="cp:2, seed 1", seed=1)]
    found = []
    for count in (1, 3):
        with Workers(count) as workers:
            found.append(
                default_fit(
                    parts, fit_baselines(parts), FitOptions(device="cpu"), candidates=candidates, workers=workers
                )
            )
    alone, together = found
    assert rows(alone) == rows(together)
    assert (alone.reason, alone.fits, alone.outcome) == (together.reason, 4, "converged")
    np.testing.assert_array_equal(
        alone.predictor.predict(parts.test.indices), together.predictor.predict(parts.test.indices)
    )


def test_members_of_a_default_fit_share_its_seconds():
    """Two of four at a time may take half of what is left each; then two, all of it."""
    parts = split(make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=1)[0], seed=0)
    seen, both = {}, threading.Barrier(2)

    class Timed(Family):
        def fit(self, candidate, train, valid, options):
            seen[candidate.name] = options.seconds
            both.wait(SECONDS)
            return fit_baselines(parts)["mean"]

    FAMILIES["timed"] = Timed()
    try:
        with Workers(2) as workers:
            default_fit(
                parts, fit_baselines(parts), FitOptions(device="cpu", seconds=120.0), workers=workers,
                candidates=[Candidate(name, "timed", 9) for name in "abcd"], clock=lambda: 0.0,
            )  # fmt: skip
    finally:
        del FAMILIES["timed"]
    assert seen == {"a": 60.0, "b": 80.0, "c": 120.0, "d": 120.0}
