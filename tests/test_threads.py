"""Several calls at once: their order, their failures, and one thread alone."""

import threading

import pytest
import torch

from jointensor.threads import in_threads


@pytest.fixture
def threads(monkeypatch):
    """Let there be so many threads."""
    return lambda count: monkeypatch.setattr(torch, "get_num_threads", lambda: count)


def test_answers_come_in_the_order_of_the_items_not_in_that_of_their_ends(threads):
    threads(2)
    second_is_done, ended = threading.Event(), []

    def wait(item):
        if item == 0:
            assert second_is_done.wait(timeout=600)  # never, where calls follow each other
        ended.append(item)
        if item == 1:
            second_is_done.set()
        return 10 * item

    assert in_threads(wait, range(5)) == [0, 10, 20, 30, 40]
    assert ended.index(1) < ended.index(0)


def test_one_thread_takes_one_item_after_the_other(threads):
    threads(1)
    met = []
    assert in_threads(lambda item: met.append((item, threading.get_ident())), iter("abc")) == [None] * 3
    assert [item for item, _ in met] == ["a", "b", "c"]
    assert len({thread for _, thread in met}) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_failure_reaches_the_caller(threads, count):
    threads(count)

    def fail(item):
        if item == 2:
            raise ArithmeticError(f"item {item}")
        return item

    with pytest.raises(ArithmeticError, match="item 2"):
        in_threads(fail, range(6))
    assert in_threads(fail, range(2)) == [0, 1]


def test_nothing_is_asked_of_no_items():
    assert in_threads(pytest.fail, []) == []
