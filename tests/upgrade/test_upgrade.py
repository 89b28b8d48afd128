"""Run folders that version 0.1 wrote are refused with what to do."""

from pathlib import Path

import pytest

from jointensor.errors import RunError
from jointensor.runs.folder import load_run


@pytest.mark.parametrize("kind", ["joint", "auto"])
def test_runs_of_version_0_1_are_refused_by_their_version(kind):
    with pytest.raises(RunError, match=r"written by jointensor 0\.1; this is 0\.2\S*: fit again"):
        load_run(Path(__file__).parent / "runs_0_1" / kind)
