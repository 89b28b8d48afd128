"""Ctrl-C as a request to stop."""

import signal
import threading

import numpy as np
import pytest

from jointensor import TensorCompleter
from jointensor.runs.interrupt import stop_on_interrupt
from jointensor.search.families import FAMILIES


@pytest.fixture(autouse=True)
def python_default():
    """Python's own handler: a shell that starts the tests in the background has the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_is_a_request_and_the_second_ends():
    before, notes = signal.getsignal(signal.SIGINT), []
    with stop_on_interrupt(notes.append) as stopping:
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        assert "Ctrl-C again" in notes[0]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_receive_no_signals():
    found = []

    def ask():
        with stop_on_interrupt() as stopping:
            found.append(stopping())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [False]


def test_the_estimator_keeps_what_its_search_has_finished(monkeypatch):
    real, calls = FAMILIES["bias"].fit, []

    def interrupted(*args):
        calls.append(None)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(FAMILIES["bias"], "fit", interrupted)
    X = [[user, film] for user in range(12) for film in range(10)]
    y = np.array([user * film for user, film in X], dtype=float)
    fitted = TensorCompleter(rank="auto", budget_fits=40, device="cpu", random_state=0).fit(X, y)
    assert fitted.outcome_ == "interrupted"
    assert np.isfinite(fitted.predict(X)).all()
