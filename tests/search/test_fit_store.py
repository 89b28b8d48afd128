"""Stored fits come back as they were, or not at all."""

import json

import numpy as np
import pytest

from jointensor.errors import RunError
from jointensor.predictors import fit_bias
from jointensor.search.fit_store import FitStore, fingerprint_of
from tests.search.searches import additive


@pytest.fixture
def part():
    tensor = additive()
    return fit_bias(tensor, tensor.take(np.arange(100)))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def stored(part, notes, tmp_path):
    store = FitStore(tmp_path / "fits", "mine", notes.append)
    store.save("bias.0", part, 1.5)
    return tmp_path / "fits"


def test_a_fit_comes_back_with_its_seconds(stored, part, notes):
    again = FitStore(stored, "mine", notes.append)
    assert again.has("bias.0")
    assert not again.has("bias.1")
    found, seconds = again.load("bias.0")
    cells = additive().indices
    np.testing.assert_array_equal(found.predict(cells), part.predict(cells))
    assert seconds == 1.5
    assert notes == []


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


DAMAGE = {
    "truncated model": ("safetensors", cut),
    "one bit of the model": ("safetensors", flip),
    "empty model": ("safetensors", lambda path: path.write_bytes(b"")),
    "no record": ("json", lambda path: path.unlink()),
    "truncated record": ("json", cut),
    "empty record": ("json", lambda path: path.write_bytes(b"")),
    "a record that is no object": ("json", lambda path: path.write_text("[]", encoding="utf-8")),
    "a record without seconds": (
        "json", lambda path: path.write_text(
            json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"seconds": None}), encoding="utf-8"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", DAMAGE)
def test_a_damaged_fit_is_discarded_with_a_note_and_can_be_stored_again(stored, part, notes, way):
    ending, damage = DAMAGE[way]
    damage(stored / f"bias.0.{ending}")
    store = FitStore(stored, "mine", notes.append)
    assert store.load("bias.0") is None
    (note,) = notes
    assert note.startswith("Stored fit bias.0 cannot be used")
    assert list(stored.iterdir()) == []
    store.save("bias.0", part, 2.5)
    assert FitStore(stored, "mine").load("bias.0")[1] == 2.5


def test_a_fit_with_a_checksum_that_no_version_can_read_is_discarded(stored, notes):
    from jointensor.atomic import sha256

    (stored / "bias.0.safetensors").write_bytes(b"something else")
    record = json.loads((stored / "bias.0.json").read_text(encoding="utf-8"))
    record["sha256"] = sha256(stored / "bias.0.safetensors")
    (stored / "bias.0.json").write_text(json.dumps(record), encoding="utf-8")
    store = FitStore(stored, "mine", notes.append)
    assert store.has("bias.0")
    assert store.load("bias.0") is None
    assert not store.has("bias.0")
    assert len(notes) == 1


def test_a_fit_of_another_search_is_discarded(stored, notes):
    assert not FitStore(stored, "another", notes.append).has("bias.0")
    assert "another search" in notes[0]


def test_fingerprints_tell_entries_and_options_apart():
    tensor = additive()
    marks = {
        fingerprint_of(tensor, 0, ()),
        fingerprint_of(tensor, 1, ()),
        fingerprint_of(tensor, 0, (1,)),
        fingerprint_of(tensor.with_values(tensor.values + 1), 0, ()),
        fingerprint_of(tensor.take(np.arange(499)), 0, ()),
    }
    assert len(marks) == 5
    assert fingerprint_of(additive(), 0, ()) in marks


def test_without_a_folder_nothing_is_stored(part):
    store = FitStore(None, "mine")
    store.save("bias.0", part, 1.0)
    assert not store.has("bias.0")
    assert store.load("bias.0") is None


def test_a_folder_that_cannot_be_made_is_named(part, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file/fits cannot be made"):
        FitStore(tmp_path / "file" / "fits", "mine").save("bias.0", part, 1.0)
