"""What a request to stop does to the stages of a search."""

from dataclasses import replace

import pytest

from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.search.interruption import Interruption, StopRequested


def test_a_request_to_stop_is_heard_once():
    notes = []
    interruption = Interruption(stopping=lambda: True, on_note=notes.append)
    with pytest.raises(StopRequested):
        interruption.check()
    with interruption.ends_stage():
        interruption.check()
    assert interruption.happened
    assert notes == ["Interrupted; using the fits that have finished."]
    interruption.check()


def test_ctrl_c_of_a_caller_is_the_callers():
    """As for a fit: what turns Ctrl-C into a request to stop is the command line, and the estimator."""
    interruption = Interruption()
    with pytest.raises(KeyboardInterrupt), interruption.ends_stage():
        raise KeyboardInterrupt
    assert not interruption.happened


def test_nobody_asked():
    interruption = Interruption()
    with interruption.ends_stage():
        interruption.check()
    assert not interruption.happened


class Group:
    """Several processes, of which the first was asked to stop."""

    shared = True

    def decide(self, compute):
        compute()
        return True


def test_several_processes_stop_together():
    assert not replace(SINGLE_PROCESS).shared
    interruption = Interruption(processes=Group())
    with interruption.ends_stage():
        interruption.check()
    assert interruption.happened
