"""Several models as one, by hand; and everything that predicts, on disk and back again."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, RunError
from jointensor.models.joint import JointModel
from jointensor.predictors import ensemble as module
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import Predictor
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import Mean, Tables, fit_bias, fit_tables

SHAPE = (7, 6, 9)
SPEC = "mean+bias+cp:2+fm:2+implicit:0/1+tables:0/2"


def tensor_of(seed=0):
    """Entries without the last label of each mode, which is known but unseen."""
    dense = np.full(SHAPE, np.nan)
    dense[:6, :5, :8] = np.random.default_rng(seed).standard_normal((6, 5, 8))
    dense[::2, ::3] = np.nan
    return SparseTensor.from_dense(dense, (7, 6, Mode("hour", 9, order="cyclic")))


TENSOR = tensor_of()
NONE = TENSOR.take(np.zeros(0, dtype=np.int64))
EVERY = np.concatenate([np.argwhere(np.ones(SHAPE)), [[-1, 0, 0], [0, -1, 3], [-1, -1, -1]]])


def predictor_of(seed=0, calibration=None, spec=SPEC, rank=(0, 3)):
    """Random weights, and three draws of all that is multiplied."""
    model = JointModel(SHAPE, rank, linear=spec).eval()
    model.multilinear.see(torch.as_tensor(np.array(TENSOR.indices), dtype=torch.int64))
    generator = torch.Generator().manual_seed(seed)

    def like(values):
        return torch.randn(values.shape, generator=generator)

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(like(parameter))
    g = model.multilinear
    if "cp" in g.blocks:
        stacked = g.blocks["cp"].factors.stacked
        g.draws.keep("cp", [{"factors.stacked": like(stacked)} for _ in range(3)], noise=0.3)
    if "fm" in g.blocks:
        g.draws.keep("fm", [{"whole": like(g.blocks["fm"].factors.stacked)} for _ in range(3)], noise=0.3)
    return Predictor(model, fit_bias(TENSOR, NONE), calibration=calibration)


def calibration_of(seed=0, noisy=True):
    """From noise that differs by label, so that there is a scale, or from five entries, so that there is none."""
    rng = np.random.default_rng(seed)
    cells = np.argwhere(np.ones(SHAPE))
    some = rng.permutation(cells)[: 300 if noisy else 5]
    size = np.exp(np.linspace(-2, 2, 7))[some[:, 0]] if noisy else 1.0
    residuals = size * rng.standard_normal(len(some))
    return calibrate(HeldOut(some, rng.standard_normal(len(some)), residuals, np.arange(len(some)) % 9 == 0), SHAPE)


def local_of(seed=0):
    noise = np.random.default_rng(seed).standard_normal(len(TENSOR))
    return replace(Kriging.of(TENSOR.indices, noise, 2, TENSOR.modes[2], SHAPE), near=0.6, length=2.0, far=0.1)


def ensemble_of():
    members = (
        Member("joint", 0.5, (predictor_of(1), predictor_of(2))),
        Member("tables", 0.3, (fit_tables(TENSOR, NONE),)),
        Member("mean", 0.2, (Mean(0.7),)),
    )
    memory = (local_of(), fit_tables(TENSOR.with_values(TENSOR.values**3), TENSOR))
    return Ensemble(members, memory, fit_bias(TENSOR, NONE), -0.3, 2.5, calibration_of())


def test_an_ensemble_is_the_weighted_mean_of_its_members_with_what_its_memory_adds():
    made = ensemble_of()
    one, two = (member.predict(EVERY) for member in made.members[0].parts)
    mixed = 0.5 * (one.astype(np.float64) + two) / 2 + 0.3 * made.members[1].parts[0].predict(EVERY) + 0.2 * 0.7
    whole = mixed + made.memory[0].predict(EVERY) + made.memory[1].predict(EVERY)
    np.testing.assert_allclose(made.predict(EVERY), np.clip(whole, -0.3, 2.5), rtol=1e-5, atol=1e-5)
    assert made.predict(EVERY).dtype == np.float32
    assert (whole < -0.3).any()
    assert (whole > 2.5).any()


def test_answers_do_not_depend_on_company_or_chunks(monkeypatch):
    made = ensemble_of()
    together = made.predict(EVERY), made.interval(EVERY, 0.8)
    monkeypatch.setattr(module, "CHUNK", 50)
    np.testing.assert_allclose(made.predict(EVERY), together[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made.interval(EVERY[100:110], 0.8), together[1][100:110], rtol=1e-5, atol=1e-6)
    assert made.predict(EVERY[:0]).shape == (0,)


def test_an_ensemble_knows_which_labels_were_seen():
    made = ensemble_of()
    expected = (EVERY == -1).any(axis=1) | (np.array(SHAPE) - 1 == EVERY).any(axis=1)
    assert np.array_equal(made.unseen(EVERY), expected)


def test_intervals_lie_around_predictions_and_between_the_smallest_and_the_largest_value():
    made = ensemble_of()
    low, high = made.interval(EVERY, 0.9).T
    centre = made.predict(EVERY)
    assert ((made.low <= low) & (low <= centre) & (centre <= high) & (high <= made.high)).all()
    narrow = made.interval(EVERY, 0.3).T
    assert ((low <= narrow[0]) & (narrow[1] <= high)).all()


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90, float("nan")])
def test_levels_that_are_no_share_are_refused(level):
    for made in (ensemble_of(), predictor_of(calibration=calibration_of())):
        with pytest.raises(ConfigError, match="give a share between 0 and 1"):
            made.interval(EVERY, level)


def test_without_calibration_there_are_no_intervals():
    for made in (replace(ensemble_of(), calibration=None), predictor_of()):
        with pytest.raises(RunError, match="this model has no intervals"):
            made.interval(EVERY, 0.9)


def test_what_an_ensemble_is_made_of_is_counted_and_named():
    made = ensemble_of()
    models = [part.model for part in made.members[0].parts]
    parts = [*models, made.members[1].parts[0], made.members[2].parts[0], *made.memory]
    assert made.n_parameters() == sum(part.n_parameters() for part in parts)
    assert made.model is models[0]
    assert made.shape == SHAPE
    assert replace(made, members=made.members[1:]).model is None


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
    "ensemble": ensemble_of,
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
    if isinstance(thing, Predictor | Ensemble):
        assert np.array_equal(loaded.unseen(EVERY), thing.unseen(EVERY))
        assert (loaded.returned, loaded.shape) == (thing.returned, thing.shape)


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_same_thing_gives_the_same_bytes_even_after_it_was_loaded(tmp_path, name):
    thing = EVERYTHING[name]()
    loaded = kept(thing, tmp_path / "first")
    save_predictor(thing, tmp_path / "second")
    save_predictor(loaded, tmp_path / "third")
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    if not isinstance(thing, Predictor):  # of its biases the shrinkage is not stored
        assert (tmp_path / "first").read_bytes() == (tmp_path / "third").read_bytes()


def test_parts_of_an_ensemble_come_back_as_they_were(tmp_path):
    made = ensemble_of()
    loaded = kept(made, tmp_path / "w")
    assert [(member.name, member.weight) for member in loaded.members] == [
        ("joint", 0.5),
        ("tables", 0.3),
        ("mean", 0.2),
    ]
    assert [type(part) for member in loaded.members for part in member.parts] == [Predictor, Predictor, Tables, Mean]
    assert [type(one) for one in loaded.memory] == [Kriging, Tables]
    assert (loaded.low, loaded.high) == (-0.3, 2.5)
    for one, other in zip(loaded.memory, made.memory, strict=True):
        assert np.array_equal(one.predict(EVERY), other.predict(EVERY))
    assert loaded.memory[0].left_out(TENSOR.indices).tolist() == made.memory[0].left_out(TENSOR.indices).tolist()
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


def test_files_of_the_earlier_format_still_load(tmp_path):
    """The configuration lay under another name, did not say of what kind it is, and there were no draws."""
    thing = predictor_of(spec="mean+bias+cp:2")
    thing.model.multilinear.draws.forget()
    save_predictor(thing, tmp_path / "new")
    numbers, metadata = contents(tmp_path / "new")
    config = json.loads(metadata["model"])
    old = {name: value for name, value in config.items() if name in ("shape", "rank", "linear", "nonlinear", "link")}
    assert len(old) == 5
    numbers = {name: value for name, value in numbers.items() if "draws" not in name}
    save_file(numbers, tmp_path / "old", metadata={"model": json.dumps(old)})
    loaded = load_predictor(tmp_path / "old")
    assert np.array_equal(loaded.predict(EVERY), thing.predict(EVERY))
    assert loaded.calibration is None
    assert float(loaded.model.multilinear.draws.noise) == 0.0


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
        if "/" in name or name.endswith(("draws.noise", ".below", ".held")):  # any number of draws; earlier files
            continue
        less = {other: value for other, value in numbers.items() if other != name}
        save_file(less, tmp_path / "less", metadata=metadata)
        with pytest.raises(RunError):
            load_predictor(tmp_path / "less")


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "[]", "null", "3", '"words"', '{"kind": null}', '{"kind": "ensemble"}']
)
@pytest.mark.parametrize("key", ["parts", "model"])
def test_a_description_that_makes_no_sense_is_refused(tmp_path, key, text):
    save_predictor(ensemble_of(), tmp_path / "w")
    numbers, _ = contents(tmp_path / "w")
    save_file(numbers, tmp_path / "wrong", metadata={key: text})
    with pytest.raises(RunError):
        load_predictor(tmp_path / "wrong")


@pytest.mark.parametrize("field", ["members", "memory", "fallback", "range", "calibration"])
@pytest.mark.parametrize("value", [None, 3, "words", [], [1], {}])
def test_a_description_with_one_wrong_field_is_refused_or_answers(tmp_path, field, value):
    """Some of them are a smaller ensemble: without memory, or without intervals."""
    save_predictor(ensemble_of(), tmp_path / "w")
    numbers, metadata = contents(tmp_path / "w")
    config = json.loads(metadata["parts"]) | {field: value}
    save_file(numbers, tmp_path / "wrong", metadata={"parts": json.dumps(config)})
    if (field, value) in [("calibration", None), ("memory", []), ("memory", {}), ("members", []), ("members", {})]:
        assert np.isfinite(load_predictor(tmp_path / "wrong").predict(EVERY)).all()
    else:
        with pytest.raises(RunError):
            load_predictor(tmp_path / "wrong")


def test_a_kind_of_a_later_version_is_refused_by_its_name(tmp_path):
    save_predictor(ensemble_of(), tmp_path / "w")
    numbers, metadata = contents(tmp_path / "w")
    save_file(numbers, tmp_path / "later", metadata={"parts": metadata["parts"].replace('"local"', '"oracle"')})
    with pytest.raises(RunError, match="'oracle' is not a model of this version"):
        load_predictor(tmp_path / "later")
