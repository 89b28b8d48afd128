"""What cannot be an f is refused when the model is made, before any training; what a package brings is found."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from jointensor.errors import ConfigError, RunError
from jointensor.models.joint import JointModel
from jointensor.models.nonlinear import Mlp, make_nonlinear
from jointensor.models.nonlinear.base import check_values
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import Table, Tables
from jointensor.testing import check_joint_model, check_nonlinear
from tests.models import own_parts as own

HERE = "nonlinear part 'tests.models.own_parts:"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("costko", "there is no nonlinear part 'costko'; did you mean 'costco'? known are avocado, costco, "),
        ("", "there is no nonlinear part ''; known are "),
        ("costco,layot=paper", "nonlinear part 'costco' has no option 'layot'; did you mean 'layout'? known are "),
        ("costco,n_modes=3", "nonlinear part 'costco' has no option 'n_modes'"),
        ("neurtn,interaction=outr", "neurtn: interaction 'outr'; did you mean 'outer'?"),
        (own.Column, f"{HERE}Column' returned (3, 1) for rows (3, 2, 4); it must return one number per entry, (3,)"),
        (own.Squeezed, f"{HERE}Squeezed' returned () for rows (1, 2, 4); it must return one number per entry, (1,)"),
        (own.Pair, f"{HERE}Pair' returned tuple for rows (3, 2, 4)"),
        (own.NotFinite, f"{HERE}NotFinite' returned values that are not finite for rows that are"),
        (own.ThreeModes, f"{HERE}ThreeModes' cannot take rows of 2 modes and width 4: index 2 is out of bounds"),
        (own.NoWidth, f"{HERE}NoWidth' cannot be made for 2 modes and width 4: NoWidth.__init__() got an unexpected"),
        (own.Fine(2, 3), f"{HERE}Fine' cannot take rows of 2 modes and width 4: mat1 and mat2"),
        (own.Column(2, 4), f"{HERE}Column' returned (3, 1)"),
        (nn.Module, "nonlinear part 'torch.nn.modules.module:Module' cannot be made for 2 modes and width 4"),
        (7, "a nonlinear part is a name, a torch module or a class of one, not 7"),
        (dict, "a nonlinear part is a name, a torch module or a class of one, not <class 'dict'>"),
    ],
)
def test_what_cannot_be_an_f_is_refused_with_the_reason(part, message):
    with pytest.raises(ConfigError) as caught:
        make_nonlinear(part, 2, 4)
    assert str(caught.value).startswith(message)
    with pytest.raises(ConfigError) as caught:
        JointModel((3, 5), (2, 4), nonlinear=part)
    assert str(caught.value).startswith(message)


def test_a_fault_in_one_number_of_modes_only_is_no_fault_in_the_others():
    assert isinstance(make_nonlinear(own.ThreeModes, 3, 4), own.ThreeModes)


def test_an_instance_is_taken_as_it_is_and_left_as_it_is():
    part = own.Normalised(3, 2).train()
    before = {name: value.clone() for name, value in part.state_dict().items()}
    assert make_nonlinear(part, 3, 2) is part
    assert part.training
    assert part.norm.training
    assert all(torch.equal(value, before[name]) for name, value in part.state_dict().items())
    assert all(parameter.grad is None for parameter in part.parameters())
    assert not make_nonlinear(part.eval(), 3, 2).training


def test_trying_an_f_does_not_touch_the_random_state():
    part = make_nonlinear("neptune,dropout_first=0.5", 3, 2)
    before = torch.random.get_rng_state()
    check_values(part, 3, 2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        expected = Mlp(3, 2).state_dict()
        torch.manual_seed(3)
        found = make_nonlinear("mlp", 3, 2).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


WAVES = """
import torch
from torch import nn

class Waves(nn.Module):
    def __init__(self, n_modes, width, *, frequency=1.0):
        super().__init__()
        self.frequency = frequency
        self.layer = nn.Linear(n_modes * width, 3)

    def forward(self, rows):
        return torch.sin(self.frequency * self.layer(rows.flatten(1))).sum(dim=1)

number = 7
"""

POINTS = """
[jointensor.nonlinear]
waves = waves_of_tests:Waves
gone = no_such_module_of_tests:Part
lost = waves_of_tests:Wave
seven = waves_of_tests:number
"""


@pytest.fixture
def _installed(tmp_path, monkeypatch, registry):
    """A package on the path that brings an f of its own, and entry points that lead nowhere."""
    (tmp_path / "waves_of_tests.py").write_text(WAVES, encoding="utf-8")
    info = tmp_path / "waves_of_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waves-of-tests\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("waves_of_tests", None)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", "the nonlinear part 'gone' of no_such_module_of_tests:Part cannot be loaded: No module named"),
        ("lost", "the nonlinear part 'lost' of waves_of_tests:Wave cannot be loaded: module 'waves_of_tests' has no"),
        ("seven", "a nonlinear part is a name, a torch module or a class of one, not 7"),
        ("wave", "there is no nonlinear part 'wave'; did you mean 'waves'?"),
        ("waves,frequenzy=2", "nonlinear part 'waves' has no option 'frequenzy'; did you mean 'frequency'?"),
    ],
)
def test_an_entry_point_that_is_no_f_is_refused_with_the_reason(name, message):
    with pytest.raises(ConfigError) as caught:
        JointModel((3, 5), (2, 4), nonlinear=name)
    assert str(caught.value).startswith(message)


@pytest.mark.usefixtures("_installed")
def test_an_f_of_an_installed_package_is_found_by_name_saved_and_loaded(registry, tmp_path):
    assert {"waves", "gone", "mlp"} < set(registry.names())
    model = JointModel((3, 5), (2, 4), nonlinear="waves,frequency=2.5")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    assert type(model.nonlinear.part).__module__ == "waves_of_tests"
    assert model.nonlinear.part.frequency == 2.5
    cells = np.argwhere(np.ones((3, 5)))
    seen = tuple(Table((n,), (size,), np.arange(size), np.zeros(size + 1)) for n, size in enumerate((3, 5)))
    predictor = JointPredictor(model, Tables(0.0, seen, ()))
    save_predictor(predictor, tmp_path / "weights")
    registry._classes.pop("waves")  # as in a new process, where nobody has asked for it yet
    again = load_predictor(tmp_path / "weights")
    assert again.model.nonlinear.spec == "waves,frequency=2.5"
    np.testing.assert_array_equal(again.predict(cells), predictor.predict(cells))
    check_nonlinear("waves,frequency=2.5", widths=(3,))
    check_joint_model("waves,frequency=2.5", modes=(3,))


def test_a_saved_model_whose_package_is_gone_says_so(tmp_path, registry):
    registry.register("here")(own.Fine)
    seen = tuple(Table((n,), (size,), np.arange(size), np.zeros(size + 1)) for n, size in enumerate((3, 5)))
    save_predictor(
        JointPredictor(JointModel((3, 5), (0, 4), nonlinear="here"), Tables(0.0, seen, ())), tmp_path / "weights"
    )
    registry._classes.pop("here")
    with pytest.raises(RunError, match="there is no nonlinear part 'here'"):
        load_predictor(tmp_path / "weights")
