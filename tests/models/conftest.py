"""Shared by the tests of models."""

import pytest

from jointensor.models.nonlinear import nonlinear_parts


@pytest.fixture
def registry(monkeypatch):
    """The registry as it is, back as it was afterwards."""
    monkeypatch.setattr(nonlinear_parts, "_classes", dict(nonlinear_parts._classes))
    return nonlinear_parts
