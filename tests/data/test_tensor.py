import itertools
import math
import re

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jointensor import SparseTensor
from jointensor.data import tensor as sparse
from jointensor.data.modes import Mode
from jointensor.data.tensor import cell_keys, distinct_keys
from jointensor.errors import ConfigError, DataError
from tests.data.strategies import assume_fit_for_32_bits

TWO = [[0, 1], [1, 0]]


def dense_of(tensor):
    dense = np.full(tensor.shape, np.nan)
    for cell, value in zip(tensor.indices, tensor.values, strict=True):
        dense[tuple(cell)] = value
    return dense


def test_repr_says_shape_names_entries_density_and_range():
    modes = (Mode("user", 4), Mode("film", 5))
    text = repr(SparseTensor([[0, 1], [3, 4]], [-1.5, 2.0], modes))
    assert text == "SparseTensor 4 x 5 (user, film): 2 entries, density 0.1, values -1.5 to 2"


def test_arrays_and_attributes_cannot_be_changed():
    tensor = SparseTensor(TWO, [1.0, 2.0], (2, 2))
    with pytest.raises(ValueError, match="read-only"):
        tensor.values[0] = 5
    with pytest.raises(ValueError, match="read-only"):
        tensor.indices[0, 0] = 1
    with pytest.raises(AttributeError):
        tensor.values = np.zeros(2)
    with pytest.raises(ValueError, match="read-only"):
        tensor.take(np.array([0])).values[0] = 5


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements=st.one_of(st.just(np.nan), st.floats(-1e6, 1e6, width=32)),
    )
)
def test_dense_array_goes_in_and_comes_out(dense):
    assume_fit_for_32_bits(dense.ravel())
    tensor = SparseTensor.from_dense(dense)
    np.testing.assert_array_equal(dense_of(tensor), dense)
    assert len(tensor) == np.count_nonzero(~np.isnan(dense))
    assert tensor.density == pytest.approx(len(tensor) / dense.size, rel=1e-12)


def test_masked_cells_of_a_dense_array_are_missing():
    dense = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    assert SparseTensor.from_dense(dense).indices.tolist() == [[0, 0], [1, 0], [1, 1]]


def test_zeros_of_a_dense_array_were_observed():
    assert SparseTensor.from_dense([[0.0, 1.0], [np.nan, 0.0]]).values.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array, scipy.sparse.csc_array])
def test_scipy_matrices_give_their_stored_entries(make):
    dense = np.array([[0, 2.5, 0], [1, 0, -3]])
    tensor = SparseTensor.from_scipy(make(dense))
    assert tensor.shape == (2, 3)
    np.testing.assert_array_equal(np.nan_to_num(dense_of(tensor)), dense)
    assert len(tensor) == 3


def test_scipy_stored_zero_was_observed():
    stored = scipy.sparse.coo_array(([0.0, 4.0], ([0, 1], [1, 1])), shape=(2, 2))
    assert SparseTensor.from_scipy(stored).values.tolist() == [0.0, 4.0]


def test_scipy_coo_array_of_three_modes():
    coords = (np.array([0, 1]), np.array([2, 0]), np.array([3, 1]))
    tensor = SparseTensor.from_scipy(scipy.sparse.coo_array((np.array([5.0, 6.0]), coords), shape=(2, 3, 4)))
    assert tensor.shape == (2, 3, 4)
    assert tensor.indices.tolist() == [[0, 2, 3], [1, 0, 1]]


def test_anything_with_coords_and_data_is_sparse():
    class Coo:
        coords = np.array([[0, 1], [1, 1]])
        data = np.array([1.0, 2.0])
        shape = (2, 2)

    assert SparseTensor.from_scipy(Coo()).indices.tolist() == [[0, 1], [1, 1]]


def test_a_cube_of_a_million_per_side_costs_nothing():
    indices = np.random.default_rng(0).integers(10**6, size=(10_000, 3))
    tensor = SparseTensor(indices, np.ones(10_000), (10**6,) * 3)
    assert tensor.indices.nbytes + tensor.values.nbytes < 200_000
    assert tensor.density == pytest.approx(1e-14, rel=1e-12)
    assert tensor.take(np.arange(10)).shape == (10**6,) * 3


def test_modes_beyond_32_bits_get_64_bit_indices():
    assert SparseTensor([[2**31, 0]], [1.0], (2**31 + 1, 2)).indices.tolist() == [[2**31, 0]]
    assert SparseTensor([[2**31 - 2, 0]], [1.0], (2**31 - 1, 2)).indices.dtype == np.int32


SHAPES = [(3, 2, 4), (2**31, 2**31, 2**31), (2**40, 3, 2**40, 5), (10**6,) * 12, (2**61, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_keys_are_equal_exactly_where_cells_are(shape):
    corners = np.array([[0, 1, size - 1, size // 2] for size in shape])
    picks = np.random.default_rng(0).integers(4, size=(300, len(shape)))
    cells = corners[np.arange(len(shape)), picks]
    keys = cell_keys(cells, shape)
    distinct = {tuple(cell) for cell in cells.tolist()}
    assert len(set(keys.tolist())) == len(distinct)
    assert len(set(zip(keys.tolist(), map(tuple, cells.tolist()), strict=True))) == len(distinct)


def test_small_keys_are_positions_in_the_flattened_tensor():
    cells = np.array(list(itertools.product(range(3), range(2), range(4))))
    assert cell_keys(cells, (3, 2, 4)).tolist() == list(range(24))


def test_duplicates_are_found_where_the_product_of_sizes_overflows():
    shape = (2**31, 2**31, 2**31)
    assert math.prod(shape) > 2**63
    cells = [[2**31 - 1, 5, 7], [5, 2**31 - 1, 7], [2**31 - 1, 5, 7]]
    assert len(SparseTensor(cells[:2], [1, 2], shape)) == 2
    with pytest.raises(DataError, match="entries 0 and 2"):
        SparseTensor(cells, [1, 2, 3], shape)


def test_duplicate_message_counts_entries_and_names_labels():
    modes = (Mode("user", 2, ("ann", "bob")), Mode("film", 2, ("alien", "brazil")))
    with pytest.raises(DataError, match=r"2 entries repeat a cell.*entries 1 and 2.*user=bob, film=alien"):
        SparseTensor([[0, 0], [1, 0], [1, 0], [1, 0]], [1, 2, 3, 4], modes)


@pytest.mark.parametrize(
    ("indices", "values", "shape", "message"),
    [
        ([[0, -1]], [1], (2, 2), "entry 0: mode 'mode_1' has index -1, allowed are 0 to 1"),
        ([[0, 0], [2, 0]], [1, 2], (2, 2), "entry 1: mode 'mode_0' has index 2"),
        ([[0.0, 0.5]], [1], (2, 2), "entry 0: mode 'mode_1' has index 0.5, which is not a whole number"),
        ([[0.0, np.nan]], [1], (2, 2), "index nan, which is not a whole number"),
        ([[0.0, np.inf]], [1], (2, 2), "index inf, which is not a whole number"),
        ([[0.0, 1e300]], [1], (2, 2), "entry 0: mode 'mode_1' has index 1000"),
        (np.array([[2**64 - 1, 0]], dtype=np.uint64), [1], (2, 2), "index 18446744073709551615"),
        ([["a", "b"]], [1], (2, 2), "indices must be whole numbers"),
        ([[True, False]], [1], (2, 2), "indices must be whole numbers"),
        ([[0, 1], [1]], [1, 2], (2, 2), "indices are not a regular array"),
        ([0, 1], [1, 2], (2, 2), "indices have shape (2,), expected (entries, 2)"),
        ([[0, 1, 0]], [1], (2, 2), "indices have shape (1, 3)"),
        (TWO, [1, np.nan], (2, 2), "entry 1 has the value nan"),
        (TWO, [np.inf, 1], (2, 2), "entry 0 has the value inf"),
        (TWO, [1, 1e39], (2, 2), "entry 1 has the value 1e+39"),
        (TWO, [1], (2, 2), "values have shape (1,), expected (2,)"),
        (TWO, ["a", "b"], (2, 2), "values must be numbers"),
        (TWO, [1j, 2], (2, 2), "values must be numbers"),
        ([[0], [1]], [1, 2], (2,), "at least two modes, this one has 1"),
        (TWO, [1, 2], (Mode("a", 2), Mode("a", 2)), "mode names must differ, got a, a"),
        (TWO, [1, 2], (2, 0), "mode 'mode_1' has size 0"),
        (TWO, [1, 2], (2, 2**63), "must fit 64 bits"),
    ],
)
def test_bad_entries_are_refused_by_name(indices, values, shape, message):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        SparseTensor(indices, values, shape)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("array", [[["a", "b"]], [[1.0, 2.0], [3.0]], [[1.0, np.inf]], [1.0, 2.0]])
def test_bad_dense_arrays_are_refused(array):
    with pytest.raises(DataError):
        SparseTensor.from_dense(array)


def test_from_scipy_refuses_what_is_not_sparse():
    with pytest.raises(DataError, match="takes a sparse array, not ndarray"):
        SparseTensor.from_scipy(np.zeros((2, 2)))


def test_whole_floats_are_indices():
    assert SparseTensor([[0.0, 1.0]], [1], (2, 2)).indices.dtype == np.int32


def test_no_entries_is_a_tensor():
    tensor = SparseTensor([], [], (2, 3))
    assert tensor.indices.shape == (0, 2)
    assert "no values" in repr(tensor)


def test_take_keeps_the_order_asked_for_and_over_checks_sizes():
    tensor = SparseTensor([[0, 1], [1, 0], [1, 1]], [1, 2, 3], (2, 2))
    assert tensor.take(np.array([2, 0])).values.tolist() == [3, 1]
    named = tensor.over((Mode("a", 2), Mode("b", 2)))
    assert named.mode("b") == 1
    with pytest.raises(DataError, match="shape"):
        tensor.over((Mode("a", 2), Mode("b", 3)))
    with pytest.raises(ConfigError, match="no mode 'c'; the modes are a, b"):
        named.mode("c")


@pytest.mark.parametrize("few", [0, 1000])
def test_distinct_keys_are_those_of_numpy_sorted_or_marked(few, monkeypatch):
    monkeypatch.setattr(sparse, "MAX_MARKED_KEYS", few)
    for keys in ([5, 3, 3, 99, 0], [], [7]):
        given = np.array(keys, dtype=np.int64)
        found, place = distinct_keys(given, 100)
        expected, inverse = np.unique(given, return_inverse=True)
        assert found.tolist() == expected.tolist()
        assert place.tolist() == inverse.tolist()
