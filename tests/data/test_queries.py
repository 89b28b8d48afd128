"""Chunks of queries that are made ahead of time: the same ones, in the same order, with the same errors."""

import threading

import pytest

from jointensor.data.queries import ahead


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
