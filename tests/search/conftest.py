"""A small planted tensor, and tensors that hold entries out for calibration."""

import pytest

from jointensor.data.split import folds
from jointensor.data.synthetic import make_joint
from tests.search.searches import halves


@pytest.fixture(scope="module")
def planted():
    """Two components and noise: 2,400 entries to learn from and 1,000 others."""
    tensor, _ = make_joint((20, 18, 15), (2, 0), observed=3400, noise=0.3, seed=1)
    return halves(tensor, 2400)


@pytest.fixture
def hold_out(monkeypatch):
    """Let small tensors hold a share of their entries out, as large ones do."""

    def share(of_entries):
        monkeypatch.setattr(folds, "MIN_ENTRIES_TO_HOLD_OUT", 1000)
        monkeypatch.setattr(folds, "CALIBRATION_SHARE", of_entries)

    return share
