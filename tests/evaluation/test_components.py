"""Components that can be read and drawn, however many there are."""

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.evaluation import components as module
from jointensor.evaluation.components import MAX_DRAWN, draw_components, read_components

pytest.importorskip("matplotlib")


@pytest.fixture
def many():
    rng = np.random.default_rng(0)
    modes = [Mode("user", 12, tuple(f"u{n}" for n in range(12))), Mode("day", 9, None, "ordered")]
    return read_components([rng.random((mode.size, 330)) for mode in modes], modes)


def test_a_picture_of_330_components_shows_the_largest(many, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(module, "_draw_panel", lambda panel, found, r, n, count: drawn.append((r, n)))
    draw_components(many, tmp_path / "components.png")
    assert drawn == [(r, n) for r in range(MAX_DRAWN) for n in range(2)]
    assert (tmp_path / "components.png").read_bytes().startswith(b"\x89PNG")


def test_all_components_are_data(many):
    assert len(many.to_dict()) == 330
    assert np.all(np.diff(many.weights) <= 0)
