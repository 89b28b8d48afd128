"""Which operations wait for a GPU is heard by the thread whose operations they are. Without a GPU: as torch warns."""

import warnings
from threading import Event, Thread

import pytest
import torch

pytest.importorskip("triton")

from jointensor.solvers.cuda_graphs import operations_that_wait
from jointensor.threads import PROCESS_STATE

SECONDS = 120
WAITS = "called a synchronizing CUDA operation"


def test_a_thread_hears_of_its_own_operations_only(monkeypatch):
    modes, other_is_in, other_may_end = [], Event(), Event()
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def other():
        other_is_in.set()
        warnings.warn(WAITS, stacklevel=1)
        other_may_end.set()

    with operations_that_wait() as found:
        thread = Thread(target=other)
        thread.start()
        assert other_may_end.wait(SECONDS)
        thread.join()
        assert found == []
        for _ in range(2):
            warnings.warn(WAITS, stacklevel=1)
    assert found == [WAITS] * 2
    assert modes == ["warn", "default"]


def test_other_warnings_go_where_they_went(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda _: None)
    with pytest.warns(UserWarning, match="something else"), operations_that_wait() as found:
        warnings.warn("something else", stacklevel=1)
    assert found == []


def test_an_error_leaves_torch_and_warnings_as_they_were(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    show = warnings.showwarning
    with pytest.raises(RuntimeError, match="no memory"), operations_that_wait():
        raise RuntimeError("no memory")
    assert modes[-1] == "default"
    assert warnings.showwarning is show
    free = []
    thread = Thread(target=lambda: free.append(PROCESS_STATE.acquire(timeout=SECONDS)) or PROCESS_STATE.release())
    thread.start()
    thread.join()
    assert free == [True]
