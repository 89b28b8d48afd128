"""Students of a planted network: what is trained is what is measured, and L-BFGS keeps what validates best."""

import numpy as np
import pytest
import torch

from jointensor import JointModel
from jointensor.metrics import rmse
from jointensor.reproduce.planted import TEACHERS, compared, planted
from jointensor.reproduce.students import RANK, STUDENTS, descend_at_once, teach
from jointensor.training.fit import fit
from jointensor.training.recipe import make_recipe

SHORT = {"warm_epochs": 1, "rounds": 1, "refine_epochs": 2, "restarts": 0}


@pytest.fixture(scope="module")
def trained():
    parts, truth = planted(16, RANK, TEACHERS["scaled"], 0.3, 0)
    return fit(JointModel(parts.train.shape, RANK), parts, make_recipe("paper", **SHORT), seed=0), parts, truth


def scores(model, part):
    with torch.no_grad():
        return model(torch.tensor(part.indices)).numpy()


def test_descent_on_all_entries_lowers_the_error_and_what_is_measured_follows(trained):
    result, parts, truth = trained
    before = [rmse(scores(result.model, part), part.values) for part in (parts.train, parts.valid)]
    descend_at_once(result.model, parts, 40)
    after = [rmse(scores(result.model, part), part.values) for part in (parts.train, parts.valid)]
    assert after[0] < 0.9 * before[0]
    assert after[1] <= before[1]
    direct = rmse(scores(result.model, parts.test), parts.test.values)
    assert compared(result, parts, truth)["rmse"] == pytest.approx(direct, rel=0.05)  # predictions keep to the range


def test_descent_that_validates_worse_leaves_the_model_as_it_was(trained):
    """Validation entries are predicted exactly before."""
    result, parts, _ = trained
    state = {name: value.clone() for name, value in result.model.state_dict().items()}
    perfect = parts.valid.with_values(scores(result.model, parts.valid).astype(np.float64))
    descend_at_once(result.model, type(parts)(parts.train, perfect, parts.test), 40)
    assert all(torch.equal(value, state[name]) for name, value in result.model.state_dict().items())


@pytest.mark.parametrize("name", ["paper", "wide", "wide layer"])
def test_students_are_as_wide_as_they_say(name):
    found = teach(STUDENTS[name], 16, 0, "cpu", SHORT)
    labels, width = 3 * 16, STUDENTS[name].width
    hidden = 400 if name == "wide layer" else width**2
    layers = (3 * width + 1) * hidden + (hidden + 1) * width + width + width + 1
    assert found["parameters"] == labels * (3 + width) + layers
    assert found["teacher_spread"] == pytest.approx(0.3)
