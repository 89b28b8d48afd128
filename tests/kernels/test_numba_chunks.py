"""Values of CP by compiled loops: equal to those of plain torch, with gradients where they are asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.kernels import pick_engine
from jointensor.kernels.cp import cp_values
from jointensor.models.joint import JointModel
from jointensor.threads import use_threads

pytest.importorskip("numba")
from jointensor.kernels import numba_chunks
from jointensor.kernels.numba_chunks import cp_values_numba


def drawn(rows, rank, modes, entries, seed):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, rank, generator=generator),
        torch.randint(rows, (entries, modes), generator=generator),
    )


@given(
    rows=st.integers(1, 9), rank=st.integers(1, 70), modes=st.integers(2, 6), entries=st.integers(0, 40),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_values_are_those_of_the_reference(rows, rank, modes, entries, seed):
    stacked, places = drawn(rows, rank, modes, entries, seed)
    for columns in (places, places.int()):
        torch.testing.assert_close(cp_values_numba(stacked, columns), cp_values(stacked, places), rtol=1e-4, atol=1e-4)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    monkeypatch.setattr(numba_chunks, "MIN_PRODUCTS", 1)
    stacked, places = drawn(50, 33, 3, 1001, 0)
    with use_threads(1):
        alone = cp_values_numba(stacked, places)
    with use_threads(3):
        assert torch.equal(cp_values_numba(stacked, places), alone)


def test_gradients_are_those_of_the_reference():
    stacked, places = drawn(8, 5, 3, 20, 1)
    gradients = []
    for values in (cp_values, cp_values_numba):
        one = stacked.clone().requires_grad_()
        values(one, places).square().sum().backward()
        gradients.append(one.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("place", [-1, 8])
def test_a_row_that_does_not_exist_is_an_error(place):
    stacked, places = drawn(8, 5, 3, 20, 1)
    places[7, 1] = place
    with pytest.raises(IndexError):
        cp_values_numba(stacked, places)


def test_a_model_predicts_the_same_with_and_without_them():
    model = JointModel((9, 8, 7), (6, 3), linear="mean+bias+cp:6")
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    cells = torch.cartesian_prod(*(torch.arange(size) for size in model.shape))
    found = []
    for name in ("reference", "numba"):
        pick_engine(name, "cpu").equip(model)
        with torch.no_grad():
            found.append(model(cells))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
