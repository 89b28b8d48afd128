"""Every kind of predictor, written to a file and read again; and files that are not what was written."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from jointensor._version import __version__
from jointensor.errors import RunError
from jointensor.predictors import PREDICTORS, Interpolation, Packed, Predictor, fit_trees
from jointensor.predictors.base import unpack_predictor
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.dependencies import dependency_table
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import Mean, Tables, fit_tables
from tests.predictors.test_ensemble import (
    EVERY,
    NONE,
    TENSOR,
    calibration_of,
    ensemble_of,
    knn_of,
    local_of,
    predictor_of,
)
from tests.predictors.test_roots import SQUARES
from tests.predictors.test_unfolding import unfolded_of


def kept(thing, path):
    save_predictor(thing, path)
    return load_predictor(path)


EVERYTHING = {
    "joint": predictor_of,
    "joint with intervals": lambda: predictor_of(calibration=calibration_of()),
    "joint with intervals of one size": lambda: predictor_of(calibration=calibration_of(noisy=False)),
    "biases in its place": lambda: replace(predictor_of(), returned="bias"),
    "multilinear only": lambda: predictor_of(rank=(0, 0)),
    "pairs": lambda: predictor_of(spec="pairs:2", rank=(0, 0)),
    "tables": lambda: fit_tables(TENSOR, TENSOR),
    "biases": lambda: fit_bias(TENSOR, NONE),
    "mean": lambda: Mean(0.25),
    "interpolation": lambda: Interpolation.of(TENSOR, 2, fit_bias(TENSOR, NONE)),
    "trees": lambda: fit_trees(TENSOR, TENSOR, rounds=3),
    "kriging": local_of,
    "nearest neighbours": knn_of,
    "ensemble": ensemble_of,
    "ensemble with a dependency": lambda: replace(ensemble_of(), dependency=dependency_table(TENSOR, (0, 1))),
    "unfolding": unfolded_of,
    "squares": lambda: SQUARES,
    "ensemble without more": lambda: Ensemble(
        (Member("mean", 1.0, (Mean(0.5),)),), (), fit_bias(TENSOR, NONE), -1.0, 1.0
    ),
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_was_stored_answers_as_it_did(tmp_path, name):
    thing = EVERYTHING[name]()
    loaded = kept(thing, tmp_path / "w.safetensors")
    assert type(loaded) is type(thing)
    assert np.array_equal(loaded.predict(EVERY), thing.predict(EVERY))
    if getattr(thing, "calibration", None) is not None:
        for level in (0.5, 0.9):
            assert np.array_equal(loaded.interval(EVERY, level), thing.interval(EVERY, level))
    if isinstance(thing, JointPredictor | Ensemble):
        assert np.array_equal(loaded.unseen(EVERY), thing.unseen(EVERY))
        assert (loaded.returned, loaded.shape) == (thing.returned, thing.shape)


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_same_thing_gives_the_same_bytes_even_after_it_was_loaded(tmp_path, name):
    thing = EVERYTHING[name]()
    loaded = kept(thing, tmp_path / "first")
    save_predictor(thing, tmp_path / "second")
    save_predictor(loaded, tmp_path / "third")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert (tmp_path / "first").read_bytes() == (tmp_path / "third").read_bytes()


def test_parts_of_an_ensemble_come_back_as_they_were(tmp_path):
    made = ensemble_of()
    loaded = kept(made, tmp_path / "w")
    assert [(member.name, member.weight) for member in loaded.members] == [
        ("joint", 0.5),
        ("tables", 0.3),
        ("mean", 0.2),
    ]
    assert [type(part) for member in loaded.members for part in member.fits] == [
        JointPredictor,
        JointPredictor,
        Tables,
        Mean,
    ]
    assert [type(one) for one in loaded.residual_models] == [Kriging, Tables]
    assert (loaded.low, loaded.high) == (-0.3, 2.5)
    for one, other in zip(loaded.residual_models, made.residual_models, strict=True):
        assert np.array_equal(one.predict(EVERY), other.predict(EVERY))
    assert (
        loaded.residual_models[0].leave_one_out(TENSOR.indices).tolist()
        == made.residual_models[0].leave_one_out(TENSOR.indices).tolist()
    )
    assert loaded.n_parameters() == made.n_parameters()


def test_a_part_that_is_used_twice_is_stored(tmp_path):
    """The biases that know which labels were seen may be a member as well, and models may share them."""
    bias, joint = fit_bias(TENSOR, NONE), predictor_of()
    other = replace(predictor_of(3), fallback=joint.fallback)
    made = Ensemble((Member("bias", 0.5, (bias,)), Member("joint", 0.5, (joint, other))), (), bias, -2.0, 2.0)
    assert np.array_equal(kept(made, tmp_path / "w").predict(EVERY), made.predict(EVERY))


def contents(path):
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 - no mapping


def test_every_kind_of_predictor_is_stored():
    made = [make() for make in EVERYTHING.values()]
    assert {PREDICTORS.name_of(type(one)) for one in made} == set(PREDICTORS.names())
    assert all(isinstance(one, Predictor) for one in made)


@pytest.mark.parametrize("name", EVERYTHING)
def test_an_explanation_is_json_and_says_what_the_predictor_is(name):
    made = EVERYTHING[name]()
    explained = json.loads(json.dumps(made.explain()))
    assert explained["kind"] == PREDICTORS.name_of(type(made))
    assert explained["parameters"] == made.n_parameters()


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_predictor_without_calibration_has_no_intervals(name):
    made = EVERYTHING[name]()
    if getattr(made, "calibration", None) is None:
        with pytest.raises(RunError, match="no intervals"):
            made.interval(EVERY, 0.9)


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_predictor_knows_how_many_modes_it_predicts(name):
    made = EVERYTHING[name]()
    assert made.supports(3)
    for n_modes in (1, 2):
        assert made.supports(n_modes) == (name == "mean")


def test_a_predictor_of_another_package_is_stored_like_ours(tmp_path, monkeypatch):
    class Constant(Predictor):
        def __init__(self, value):
            self.value = value

        def predict(self, indices):
            return np.full(len(indices), self.value)

        def n_parameters(self):
            return 1

        def supports(self, n_modes):
            return n_modes == 3

        def pack(self):
            return Packed({}, {"value": torch.tensor(self.value)})

        @classmethod
        def unpack(cls, packed):
            return cls(float(packed.array("value")))

    monkeypatch.setitem(PREDICTORS._classes, "constant", Constant)
    inside = replace(ensemble_of(), members=(Member("c", 1.0, (Constant(0.5),)),), residual_models=())
    assert np.array_equal(kept(Constant(0.5), tmp_path / "w").predict(EVERY), np.full(len(EVERY), 0.5))
    assert np.array_equal(kept(inside, tmp_path / "w").predict(EVERY), np.full(len(EVERY), 0.5))


def rewritten(path, **changes):
    """The same file with another description."""
    arrays, metadata = contents(path)
    config = json.loads(metadata["jointensor"]) | changes
    save_file(arrays, path, metadata={"jointensor": json.dumps(config)})


@pytest.mark.parametrize("key", ["model", "parts"])
def test_files_of_version_0_1_are_refused_with_what_to_do(tmp_path, key):
    save_file({"a": torch.zeros(2)}, tmp_path / "old", metadata={key: "{}"})
    with pytest.raises(RunError, match=r"written by jointensor 0\.1; this is .*: fit again"):
        load_predictor(tmp_path / "old")


@pytest.mark.parametrize(("version", "loads"), [("0.3.0", False), ("1.2.0", False), ("", False), ("0.2.99", True)])
def test_files_of_other_versions_are_refused_by_their_number(tmp_path, version, loads):
    save_predictor(Mean(0.5), tmp_path / "w")
    assert json.loads(contents(tmp_path / "w")[1]["jointensor"])["version"] == __version__
    rewritten(tmp_path / "w", version=version)
    if loads:
        assert load_predictor(tmp_path / "w") == Mean(0.5)
    else:
        with pytest.raises(RunError, match=f"written by jointensor {version};"):
            load_predictor(tmp_path / "w")


@pytest.mark.parametrize("make", [ensemble_of, predictor_of, lambda: fit_tables(TENSOR, NONE)])
def test_files_that_were_cut_off_are_refused(tmp_path, make):
    save_predictor(make(), tmp_path / "w")
    data = (tmp_path / "w").read_bytes()
    for length in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(RunError, match="is damaged and cannot be loaded"):
            load_predictor(tmp_path / "cut")


def test_files_that_are_something_else_are_refused(tmp_path):
    for data in (b"user,movie\n1,2\n", bytes(1000), b"\xff" * 1000):
        (tmp_path / "w").write_bytes(data)
        with pytest.raises(RunError, match="is damaged and cannot be loaded"):
            load_predictor(tmp_path / "w")
    with pytest.raises(RunError, match="nowhere"):
        load_predictor(tmp_path / "nowhere")
    save_file({"a": torch.zeros(2)}, tmp_path / "no metadata")
    with pytest.raises(RunError, match="is damaged and cannot be loaded"):
        load_predictor(tmp_path / "no metadata")


@pytest.mark.parametrize("make", [ensemble_of, predictor_of, lambda: fit_tables(TENSOR, NONE)])
def test_a_file_that_lacks_any_of_its_numbers_is_refused(tmp_path, make):
    save_predictor(make(), tmp_path / "w")
    numbers, metadata = contents(tmp_path / "w")
    for name in numbers:
        if "/" in name or name.endswith("draws.noise"):  # any number of draws
            continue
        less = {other: value for other, value in numbers.items() if other != name}
        save_file(less, tmp_path / "less", metadata=metadata)
        with pytest.raises(RunError):
            load_predictor(tmp_path / "less")


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", "3", '"words"', '{"kind": null}', '{"kind": "ensemble"}']
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path, text):
    save_predictor(ensemble_of(), tmp_path / "w")
    numbers, _ = contents(tmp_path / "w")
    save_file(numbers, tmp_path / "wrong", metadata={"jointensor": text})
    with pytest.raises(RunError):
        load_predictor(tmp_path / "wrong")


@pytest.mark.parametrize("field", ["members", "residual_models", "fallback", "range", "calibration", "dependency"])
@pytest.mark.parametrize("value", [None, 3, "words", [], [1], {}])
def test_a_description_with_one_wrong_field_is_refused_or_answers(tmp_path, field, value):
    """Some of them are a smaller ensemble: without residual models, or without intervals."""
    save_predictor(ensemble_of(), tmp_path / "w")
    rewritten(tmp_path / "w", **{field: value})
    optional = [(name, None) for name in ("calibration", "dependency")]
    if (field, value) in optional + [(name, none) for name in ("residual_models", "members") for none in ([], {})]:
        assert np.isfinite(load_predictor(tmp_path / "w").predict(EVERY)).all()
    else:
        with pytest.raises(RunError):
            load_predictor(tmp_path / "w")


@pytest.mark.parametrize("kind", ["oracle", "", None, 3, [], {}])
def test_a_kind_that_is_not_registered_is_refused_by_its_name(tmp_path, kind):
    save_predictor(Mean(0.5), tmp_path / "w")
    rewritten(tmp_path / "w", kind=kind)
    with pytest.raises(RunError, match="kind of predictor: "):
        load_predictor(tmp_path / "w")
    with pytest.raises(RunError, match="kind of predictor: "):
        unpack_predictor(Packed({"kind": kind}, {}))


@pytest.mark.parametrize(("name", "value"), [("keys", 10**9), ("keys", -1), ("ranks", 99), ("ranks", -1)])
def test_interpolation_between_positions_that_do_not_exist_is_refused(tmp_path, name, value):
    made = Interpolation.of(TENSOR, 2, fit_bias(TENSOR, NONE))
    wrong = getattr(made, name).copy()
    wrong[-1 if value > 0 else 0] = value
    save_predictor(replace(made, **{name: wrong}), tmp_path / "w")
    with pytest.raises(RunError, match=f"{name} of fibers"):
        load_predictor(tmp_path / "w")


def test_a_fit_of_other_modes_is_refused(tmp_path):
    made = ensemble_of()
    other = replace(local_of(), axis=replace(local_of().axis, shape=(7, 6, 9, 1)))
    for wrong in (replace(made, residual_models=(other,)), replace(made, members=(Member("k", 1.0, (other,)),))):
        save_predictor(wrong, tmp_path / "w")
        with pytest.raises(RunError, match="inconsistent modes"):
            load_predictor(tmp_path / "w")
