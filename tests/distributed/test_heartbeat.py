"""Signs of life: a process that works is waited for, one that is stopped is named. Clocks are the tests' own."""

import threading
import time
from itertools import count

import pytest
import torch.distributed as dist

from jointensor.distributed.heartbeat import Heartbeat, PeerWatch
from jointensor.errors import LostProcessError


def test_a_process_is_lost_when_its_sign_stands_still_for_the_timeout():
    watch = PeerWatch.begin([1, 2], timeout=10.0, now=100.0)
    watch.see(1, "1 0", 101.0)
    watch.see(2, "7 0", 101.0)
    watch.see(1, "2 0", 108.0)
    watch.see(2, "7 0", 108.0)
    assert watch.lost(110.9) == []
    assert watch.lost(111.0) == [2]
    watch.see(2, "8 0", 112.0)
    assert watch.lost(118.0) == [1]


def test_a_process_that_was_never_seen_is_lost_after_the_timeout():
    watch = PeerWatch.begin([1], timeout=10.0, now=0.0)
    assert watch.lost(9.9) == []
    assert watch.lost(10.0) == [1]


@pytest.fixture
def beating():
    """Heartbeats in one store, with threads that end with the test."""
    store, made = dist.HashStore(), []

    def make(rank, size=2, **more):
        made.append(Heartbeat(store, rank, size, **{"timeout": 600.0, **more}))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_a_meeting_ends_when_all_have_come_and_not_before(beating):
    first, second = beating(0).start(), beating(1).start()
    for _ in range(2):  # a second meeting is another one
        over = threading.Event()
        waiting = threading.Thread(target=lambda over=over: (first.meet(), over.set()), daemon=True)
        waiting.start()
        second.exchange()
        assert not over.is_set()
        second.meet()
        assert over.wait(60)


def test_a_stopped_process_is_named_although_others_work_for_long(beating):
    ticks = count(0.0, 50.0)  # seconds of this clock pass by looks at it
    first = beating(0, 3, clock=lambda: next(ticks)).start()
    second, third = beating(1, 3), beating(2, 3)
    second.meetings = 1
    for one in (second, third):
        one.exchange()
    with pytest.raises(LostProcessError, match="process 2 of 3 gave no sign of life for 600 s"):
        first.meet()


def test_a_process_that_works_alone_is_waited_for_beyond_the_timeout(beating):
    now = [0.0]
    first, second = beating(0, clock=lambda: now[0]), beating(1)
    outcome = []
    waiting = threading.Thread(target=lambda: outcome.append(first.meet()), daemon=True)
    waiting.start()
    while first._watch is None:
        time.sleep(0.001)
    for _ in range(5):  # 2,500 s, with a sign every 500 s
        now[0] += 500.0
        second.exchange()
        first.exchange()
    assert not outcome
    second.meetings = 1
    second.exchange()
    first.exchange()
    waiting.join(60)
    assert outcome == [None]


class SilentStore:
    """A store whose keeper is stopped: nobody answers."""

    def __init__(self):
        self.released = threading.Event()

    def set(self, key, value):
        self.released.wait(60)


def test_a_store_that_does_not_answer_is_an_error_not_a_wait():
    store, ticks = SilentStore(), count(0.0, 50.0)
    heartbeat = Heartbeat(store, 1, 2, 600.0, clock=lambda: next(ticks)).start()
    with pytest.raises(LostProcessError, match="has not answered for 600 s"):
        heartbeat.meet()
    store.released.set()
    heartbeat.stop()


class GoneStore:
    """A store whose keeper has ended."""

    def set(self, key, value):
        raise RuntimeError("Broken pipe")


def test_a_store_that_is_gone_is_an_error():
    heartbeat = Heartbeat(GoneStore(), 1, 2, 600.0).start()
    with pytest.raises(LostProcessError, match=r"has gone \(Broken pipe\)"):
        heartbeat.meet()
