import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import SparseTensor, read_tensor, write_tensor
from jointensor.data.modes import Mode
from jointensor.errors import DataError

CELLS = np.array([[0, 1], [1, 0]])
ONES = np.array([1.0, 2.0])


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6), min_size=1, max_size=6, unique=True
    ),
    size=st.integers(1, 10**7),
    order=st.sampled_from(["none", "ordered", "cyclic"]),
    value=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_what_is_written_is_read_back(tmp_path_factory, labels, size, order, value):
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    modes = (Mode("who", len(labels), tuple(labels), order), Mode("Date/Time", size))
    written = SparseTensor([[len(labels) - 1, size - 1]], [value], modes)
    write_tensor(written, path)
    back = read_tensor(path).tensor
    assert back.modes == written.modes
    assert back.indices.dtype == written.indices.dtype
    np.testing.assert_array_equal(back.indices, written.indices)
    np.testing.assert_array_equal(back.values, written.values)


def test_bare_arrays_are_a_tensor_in_file_order(tmp_path):
    tensor = read_tensor(save(tmp_path / "x.npz", indices=CELLS[::-1], values=ONES)).tensor
    assert tensor.indices.tolist() == [[1, 0], [0, 1]]
    assert tensor.shape == (2, 2)
    assert tensor.mode_names == ("mode_0", "mode_1")


def test_stored_shape_may_be_larger_than_the_indices(tmp_path):
    path = save(tmp_path / "x.npz", indices=CELLS, values=ONES, shape=[5, 6], mode_names=["user", "day"])
    tensor = read_tensor(path).tensor
    assert tensor.shape == (5, 6)
    assert tensor.modes[1] == Mode("day", 6, order="ordered")


def test_labels_of_bytes_and_numbers_become_text(tmp_path):
    path = save(tmp_path / "x.npz", indices=CELLS, values=ONES, labels_0=np.array([b"01", b"1"]), labels_1=[5, 7])
    tensor = read_tensor(path).tensor
    assert [mode.labels for mode in tensor.modes] == [("01", "1"), ("5", "7")]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": ONES}, "has no array 'indices'; it has values"),
        ({"indices": CELLS}, "has no array 'values'; it has indices"),
        ({"indices": CELLS[0], "values": ONES}, "'indices' has shape (2,), expected (entries, modes)"),
        ({"indices": CELLS - 1, "values": ONES}, "entry 0: mode 'mode_0' has index -1"),
        ({"indices": CELLS + 0.5, "values": ONES}, "index 0.5, which is not a whole number"),
        ({"indices": CELLS + np.nan, "values": ONES}, "index nan, which is not a whole number"),
        ({"indices": CELLS * 1e300, "values": ONES}, "must fit 64 bits"),
        ({"indices": CELLS.astype(str), "values": ONES}, "indices must be whole numbers"),
        ({"indices": CELLS, "values": ONES, "shape": [1, 2]}, "entry 1: mode 'mode_0' has index 1"),
        ({"indices": CELLS, "values": ONES, "shape": [2, 2, 2]}, "'shape' is [2, 2, 2], expected 2 whole numbers"),
        ({"indices": CELLS, "values": ONES, "shape": [2.5, 2]}, "'shape' is [2.5, 2.0], expected 2 whole numbers"),
        ({"indices": CELLS, "values": ONES, "shape": ["a", "b"]}, "'shape' is ['a', 'b']"),
        ({"indices": CELLS, "values": ONES, "shape": [-2, 2]}, "mode 'mode_0' has size -2"),
        ({"indices": CELLS, "values": ONES[:1]}, "values have shape (1,), expected (2,)"),
        ({"indices": CELLS, "values": ONES * np.nan}, "entry 0 has the value nan"),
        ({"indices": CELLS, "values": ONES * np.inf}, "entry 0 has the value inf"),
        ({"indices": CELLS * 0, "values": ONES}, "1 entries repeat a cell"),
        ({"indices": CELLS[:, :1], "values": ONES}, "at least two modes"),
        ({"indices": CELLS[:0], "values": ONES[:0]}, "there are no entries, and no array 'shape'"),
        ({"indices": CELLS, "values": ONES, "mode_names": "ab"}, "'mode_names' has shape (), expected (2,)"),
        ({"indices": CELLS, "values": ONES, "mode_names": ["a"]}, "'mode_names' has shape (1,), expected (2,)"),
        ({"indices": CELLS, "values": ONES, "orders": ["none"]}, "'orders' has shape (1,), expected (2,)"),
        ({"indices": CELLS, "values": ONES, "orders": ["none", "up"]}, "order 'up' is not one of"),
        ({"indices": CELLS, "values": ONES, "labels_0": ["a"]}, "'labels_0' has shape (1,), expected (2,)"),
        ({"indices": CELLS, "values": ONES, "labels_0": ["a", "a"]}, "occurs twice: 'a'"),
        ({"indices": CELLS, "values": np.array([1, None])}, "nothing is unpickled"),
        ({"indices": CELLS, "values": ONES, "extra": np.array([{}])}, "nothing is unpickled"),
    ],
)
def test_bad_archives_are_refused_by_name(tmp_path, arrays, message):
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_tensor(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [1, 4, 100, 0.5, -30, -1])
def test_cut_archives_are_refused(tmp_path, keep):
    whole = save(tmp_path / "whole.npz", indices=CELLS, values=ONES).read_bytes()
    path = tmp_path / "cut.npz"
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(DataError, match=r"cut\.npz cannot be read as a NumPy archive"):
        read_tensor(path)


def test_garbage_a_single_array_and_an_empty_file_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="cannot be read as a NumPy archive"):
        read_tensor(path)
    np.save(tmp_path / "x.npy", CELLS)
    path.write_bytes((tmp_path / "x.npy").read_bytes())
    with pytest.raises(DataError, match="holds a single array"):
        read_tensor(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        read_tensor(path)


def test_any_damaged_byte_is_survived_or_refused(tmp_path):
    path = tmp_path / "x.npz"
    write_tensor(SparseTensor(CELLS, ONES, (Mode("a", 2, ("x", "y")), Mode("b", 2))), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.choice(len(whole), size=200, replace=False):
        damaged = bytearray(whole)
        damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            assert read_tensor(path).tensor.shape == (2, 2)
        except DataError:
            refused += 1
    assert refused > 50
