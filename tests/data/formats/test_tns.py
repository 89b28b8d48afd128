import gzip
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor import SparseTensor, read_tensor, write_tensor
from jointensor.data.modes import Mode
from jointensor.errors import DataError
from tests.data.strategies import assume_fit_for_32_bits

EXPECTED = ([[0, 0, 1], [1, 2, 0]], [2.5, -4.0])


def put(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def entries(path):
    tensor = read_tensor(path).tensor
    return tensor.indices.tolist(), tensor.values.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "1 1 2 2.5\n2 3 1 -4\n",
        "1 1 2 2.5\n2 3 1 -4",
        "1 1 2 2.5\r\n2 3 1 -4\r\n",
        "# a comment\n1 1 2 2.5\n# another\n2 3 1 -4\n",
        "1\t1\t2\t2.5\n2\t3\t1\t-4\n",
        "1 1 2 2.5\n2\t3 \t1   -4e0\n",
        "  1 1   2 +2.5  \n\n2 3 1 -4.\n\n",
        "1 1 2 2.5 # first\n2 3 1 -4# second\n",
        "1 1 2 2.5\n   # indented\n2 3 1 -4\n",
        "1.0 1 2 2.5\n2 3 1 -4\n",
    ],
)
def test_lines_in_every_shape_are_read(tmp_path, text):
    assert entries(put(tmp_path / "x.tns", text)) == EXPECTED
    assert entries(put(tmp_path / "x.tns.gz", gzip.compress(text.encode()))) == EXPECTED


def test_file_order_is_kept_and_the_shape_is_the_largest_index(tmp_path):
    tensor = read_tensor(put(tmp_path / "x.tns", "3 1 1\n1 7 2\n2 2 3\n")).tensor
    assert tensor.values.tolist() == [1, 2, 3]
    assert tensor.shape == (3, 7)
    assert tensor.mode_names == ("mode_0", "mode_1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1 2.5\n2 3\n", "line 2: 2 fields, the first entry has 3"),
        ("# c\n1 1 2.5\n\n2 3 4 5\n", "line 4: 4 fields, the first entry has 3"),
        ("1\t1\t2.5\n2\t3\n", "line 2: 2 fields"),
        ("# c\n1 1 2.5\n0 3 4\n", "line 3: index 0 of mode 1 is below 1; indices are one-based"),
        ("1 1 2.5\n1 -3 4\n", "line 2: index -3 of mode 2 is below 1"),
        ("1 1 2.5\n1.5 3 4\n", "line 2: index 1.5 of mode 1 is not a whole number"),
        ("nan 1 1\n", "line 1: index nan of mode 1 is not a whole number"),
        ("inf 1 1\n", "line 1: index inf of mode 1 is not a whole number"),
        ("1e300 1 1\n", "mode 'mode_0' has size 1e+300"),
        ("1 1 1\n1 2 abc\n", "line 2: 'abc' is not a number"),
        ("1_0 1 1\n", "line 1: '1_0' is not a number"),
        ('1 1 "1\n2 2 2\n', "line 1: '\"1' is not a number"),
        ("1 1 1\n1 2 nan\n", "entry 1 has the value nan"),
        ("1 1 1\n1 2 -inf\n", "entry 1 has the value -inf"),
        ("1 1 1\n1 1 2\n", "1 entries repeat a cell"),
        ("1 2\n", "line 1: 2 fields in a line; a tensor needs at least two indices"),
        ("1\n", "line 1: 1 fields"),
        ("", "is empty"),
        ("# nothing\n\n", "has no entries"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "line 1: "),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path, text, message):
    path = put(tmp_path / "bad.tns", text)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_tensor(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [3, 12, -1, -9])
def test_cut_gzip_is_refused(tmp_path, keep):
    path = put(tmp_path / "cut.tns.gz", gzip.compress(b"1 1 2.5\n2 3 4\n" * 100)[:keep])
    with pytest.raises(DataError, match=r"cut\.tns\.gz cannot be unpacked.*cut off"):
        read_tensor(path)


def test_labels_come_from_map_files(tmp_path):
    put(tmp_path / "mode-1-sender.map", "ann\n01\nx y\n")
    put(tmp_path / "mode-2-day.map.gz", gzip.compress(b"2014-04-01\r\n2014-04-02\r\n"))
    put(tmp_path / "mode-9-none.map", "a\n")
    tensor = read_tensor(put(tmp_path / "mail.tns", "1 1 1 5\n2 2 1 6\n")).tensor
    assert tensor.modes[0] == Mode("sender", 3, ("ann", "01", "x y"))
    assert tensor.modes[1] == Mode("day", 2, ("2014-04-01", "2014-04-02"), "ordered")
    assert tensor.modes[2] == Mode("mode_2", 1)


def test_map_files_of_the_tensors_own_name_win(tmp_path):
    put(tmp_path / "mode-1-all.map", "a\nb\n")
    put(tmp_path / "mail.mode-1-own.map", "c\nd\n")
    put(tmp_path / "other.mode-1-other.map", "e\nf\n")
    put(tmp_path / "mail.tns", "1 1 5\n2 1 6\n")
    put(tmp_path / "news.tns", "1 1 5\n2 1 6\n")
    assert read_tensor(tmp_path / "mail.tns").tensor.modes[0].labels == ("c", "d")
    assert read_tensor(tmp_path / "news.tns").tensor.modes[0].labels == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "message"),
    [("a\n", "mode 'who' has index 2, but its .map file has 1 labels"), ("a\na\n", "occurs twice: 'a'")],
)
def test_map_files_that_do_not_fit_are_refused(tmp_path, labels, message):
    put(tmp_path / "mode-1-who.map", labels)
    path = put(tmp_path / "x.tns", "1 1 5\n2 1 6\n")
    with pytest.raises(DataError, match=re.escape(f"{path}: ") + ".*" + message):
        read_tensor(path)


LABELS = st.lists(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=5),
    min_size=2,
    max_size=5,
    unique=True,
)


@pytest.mark.parametrize("name", ["x.tns", "x.tns.gz"])
@settings(max_examples=25, deadline=None)
@given(
    labels=LABELS, values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2)
)
def test_what_is_written_is_read_back(tmp_path_factory, name, labels, values):
    assume_fit_for_32_bits(values)
    path = tmp_path_factory.mktemp("tns") / name
    modes = (Mode("Date/Time", len(labels), tuple(labels)), Mode("mode_1", 3))
    written = SparseTensor([[len(labels) - 1, 2], [0, 0]], values, modes)
    write_tensor(written, path)
    back = read_tensor(path).tensor
    np.testing.assert_array_equal(back.indices, written.indices)
    np.testing.assert_array_equal(back.values, written.values)
    assert back.modes[0].labels == tuple(labels)
    assert back.mode_names == ("Date/Time", "mode_1")


def test_labels_with_line_ends_are_refused_before_anything_is_written(tmp_path):
    tensor = SparseTensor([[0, 0]], [1], (Mode("note", 1, ("two\nlines",)), Mode("b", 1)))
    with pytest.raises(DataError, match=r"label 'two\\nlines' of mode 'note' has a line end"):
        write_tensor(tensor, tmp_path / "x.tns")
    assert list(tmp_path.iterdir()) == []
