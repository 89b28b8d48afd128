"""A small planted tensor, and searches that choose from a few candidates."""

import pytest

from jointensor.data.synthetic import make_joint
from jointensor.search import cross_validation as trials
from tests.search.searches import halves


@pytest.fixture(scope="module")
def planted():
    """Two components and noise: 2,400 entries to learn from and 1,000 others."""
    tensor, _ = make_joint((20, 18, 15), (2, 0), observed=3400, noise=0.3, seed=1)
    return halves(tensor, 2400)


@pytest.fixture
def offer(monkeypatch):
    """Let a search choose from a few candidates only."""

    def few(*candidates):
        monkeypatch.setattr(trials, "candidates_for", lambda _: list(candidates))

    return few
