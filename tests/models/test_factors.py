"""Factor tables in one parameter: lookups, views that write through, and tables for more labels."""

import pytest
import torch

from jointensor.kernels.cp import multiply_modes
from jointensor.models.factors import Factors

SIZES = (5, 3, 4)


@pytest.fixture
def factors():
    made = Factors(SIZES, 2)
    with torch.no_grad():
        made.stacked.copy_(torch.arange(24.0).view(12, 2))
    return made


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


@pytest.mark.parametrize("centre", [True, False])
def test_tables_of_larger_modes_keep_known_rows_and_start_new_ones_at_their_mean_or_zero(factors, centre):
    larger = Factors((7, 3, 5), 2)
    larger.grow_from(factors, centre=centre)
    for table, known in zip(larger.tables, factors.tables, strict=True):
        assert torch.equal(table[: len(known)], known)
        for row in table[len(known) :]:
            torch.testing.assert_close(row, known.mean(dim=0) if centre else torch.zeros(2))
