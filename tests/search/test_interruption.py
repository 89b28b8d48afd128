"""What the first and the second request to stop do to the stages of a search."""

from dataclasses import replace

import pytest

from jointensor.distributed.process_group import SINGLE_PROCESS
from jointensor.search.interruption import Interruption, StopRequested


def test_the_first_interrupt_ends_a_stage_and_the_second_is_raised():
    notes = []
    interruption = Interruption(on_note=notes.append)
    with interruption.ends_stage():
        raise KeyboardInterrupt
    assert interruption.happened
    assert notes == ["Interrupted; using the fits that have finished."]
    with pytest.raises(KeyboardInterrupt), interruption.ends_stage():
        raise KeyboardInterrupt


def test_a_stage_that_must_have_a_result_is_run_again_in_its_short_form():
    interruption = Interruption()
    calls = []

    def stage():
        calls.append(interruption.happened)
        if not interruption.happened:
            raise KeyboardInterrupt
        return "short"

    assert interruption.complete(stage) == "short"
    assert calls == [False, True]


def test_a_request_to_stop_is_heard_once():
    interruption = Interruption(stopping=lambda: True)
    with pytest.raises(StopRequested):
        interruption.check()
    with interruption.ends_stage():
        interruption.check()
    assert interruption.happened
    interruption.check()


def test_nobody_asked():
    interruption = Interruption()
    interruption.check()
    assert interruption.complete(lambda: 3) == 3
    assert not interruption.happened


class Group:
    """Several processes, of which the first was asked to stop."""

    shared = True

    def decide(self, compute):
        compute()
        return True


def test_several_processes_stop_together_and_a_signal_ends_them():
    """Ctrl-C may reach one of them alone."""
    assert not replace(SINGLE_PROCESS).shared
    interruption = Interruption(processes=Group())
    with pytest.raises(KeyboardInterrupt), interruption.ends_stage():
        raise KeyboardInterrupt
    assert not interruption.happened
    with interruption.ends_stage():
        interruption.check()
    assert interruption.happened
