"""Factor tables in one parameter: lookups, views that write through, and weights as earlier versions stored them."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.models.factors import Factors, multiply_modes
from jointensor.models.joint import JointModel
from jointensor.predictors import fit_bias
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.storage import load_predictor, save_predictor

SIZES = (5, 3, 4)


@pytest.fixture
def factors():
    made = Factors(SIZES, 2)
    with torch.no_grad():
        made.stacked.copy_(torch.arange(24.0).view(12, 2))
    return made


def separate(state, model):
    """A state dict with one tensor per mode, and nothing stacked, wherever the model has factors."""
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, Factors):
            tables = state.pop(f"{name}.stacked").split(module.sizes)
            state |= {f"{name}.tables.{n}": table.clone() for n, table in enumerate(tables)}
    return state


@pytest.mark.parametrize("width", [torch.int32, torch.int64])
def test_rows_are_those_of_the_tables(factors, width):
    indices = torch.tensor([[0, 0, 0], [4, 2, 3], [1, 2, 0]], dtype=width)
    expected = torch.stack([table[indices[:, n].long()] for n, table in enumerate(factors.tables)], dim=1)
    assert factors(indices).shape == (3, 3, 2)
    torch.testing.assert_close(factors(indices), expected, rtol=0, atol=0)
    assert [tuple(table.shape) for table in factors.tables] == [(5, 2), (3, 2), (4, 2)]


def test_gradients_of_rows_reach_their_places_only(factors):
    factors(torch.tensor([[4, 0, 1], [4, 2, 1]])).sum().backward()
    expected = torch.zeros(12, 2)
    expected[[4, 5, 7, 9]] = torch.tensor([[2.0], [1.0], [1.0], [2.0]])
    torch.testing.assert_close(factors.stacked.grad, expected)


def test_what_is_written_to_a_table_is_written_to_the_model(factors):
    factors.tables[1].fill_(-1.0)
    assert (factors.stacked[5:8] == -1).all()
    assert (factors.stacked != -1).sum() == 9 * 2
    assert not any(table.requires_grad for table in factors.tables)


def test_products_over_modes_are_those_of_torch():
    rows = torch.randn(7, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    rows.data[0, 1] = 0.0  # where a gradient by division would fail
    torch.testing.assert_close(multiply_modes(rows), rows.prod(dim=1))
    assert torch.autograd.gradcheck(multiply_modes, rows)


def test_one_parameter_is_stored(factors):
    assert list(factors.state_dict()) == ["stacked"]
    assert sum(parameter.numel() for parameter in factors.parameters()) == 24


def test_weights_of_one_tensor_per_mode_still_load(factors):
    new = Factors(SIZES, 2)
    new.load_state_dict({f"tables.{n}": table.clone() for n, table in enumerate(factors.tables)})
    assert torch.equal(new.stacked, factors.stacked)


def test_a_table_that_is_missing_or_of_another_size_is_refused(factors):
    tables = {f"tables.{n}": table.clone() for n, table in enumerate(factors.tables)}
    with pytest.raises(RuntimeError, match="size mismatch for stacked"):
        Factors(SIZES, 2).load_state_dict(tables | {"tables.1": torch.zeros(4, 2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        Factors(SIZES, 2).load_state_dict({name: tables[name] for name in ("tables.0", "tables.2")})


def test_a_whole_model_takes_weights_of_one_tensor_per_mode():
    model, new = (JointModel(SIZES, (2, 3), linear="mean+bias+cp:2") for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    old = separate(model.state_dict(), model)
    assert "nonlinear.factors.tables.2" in old
    assert "multilinear.blocks.bias_1.factors.tables.0" in old
    assert not any("stacked" in name for name in old)
    new.load_state_dict(old)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), new.parameters(), strict=True))


@pytest.fixture
def stored(tmp_path):
    """A predictor, and a file of it as earlier versions wrote it: a tensor per mode, nothing said of what answers."""
    dense = np.random.default_rng(0).standard_normal(SIZES)
    tensor = SparseTensor.from_dense(dense)
    model = JointModel(SIZES, (2, 3), linear="mean+bias+cp:2").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    predictor = JointPredictor(model, fit_bias(tensor, tensor.take(np.arange(0))))
    save_predictor(predictor, tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    others = {name: value for name, value in tensors.items() if not name.startswith("model.")}
    old = others | {f"model.{name}": value for name, value in separate(weights, model).items()}
    return predictor, old, tmp_path / "old.safetensors"


def test_a_file_of_earlier_versions_answers_as_it_did(stored):
    predictor, old, path = stored
    save_file(old, path, metadata={"model": json.dumps(predictor.model.config())})
    loaded = load_predictor(path)
    assert loaded.returned == "joint"
    cells = np.concatenate([np.argwhere(np.ones(SIZES)), [[-1, 0, 0]]])
    np.testing.assert_array_equal(loaded.predict(cells), predictor.predict(cells))


def test_a_file_of_a_later_version_is_refused(stored, tmp_path):
    """One that says that something answers which this version does not have."""
    predictor, _, path = stored
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        metadata = {name: text.replace("joint", "oracle") for name, text in file.metadata().items()}
    assert metadata != {"model": json.dumps(predictor.model.config())}
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(RunError, match="'oracle' is not a model of this version"):
        load_predictor(path)
