"""The default fit is no worse than its members on the validation entries, and says what it mixed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointensor.data.formats import write_tensor
from jointensor.data.modes import Mode
from jointensor.data.split import split
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor, join
from jointensor.metrics import rmse
from jointensor.predictors import Predictor, fit_baselines
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.tables import refit_tables
from jointensor.runs.config import Listener, RunConfig
from jointensor.runs.folder import load_run
from jointensor.runs.pipeline import resume, run
from jointensor.search.default_fit import default_fit
from jointensor.search.families import FAMILIES, Family, FitOptions
from jointensor.search.interruption import StopRequested
from jointensor.search.portfolio import Candidate, default_candidates
from tests.search.searches import FakeClock

CP = Candidate("cp:2", "joint", 6, (2, 0))
EXACT = Candidate("cp", "exact", 2, (2, 0))
OPTIONS = FitOptions(device="cpu", engine="reference")


def planted(kind, seed):
    """Values that one of the baselines is made for, or a CP; with noise."""
    rng = np.random.default_rng(seed)
    sizes = (14, 12, 20)
    user, item, day = (rng.standard_normal(size) for size in sizes)
    dense = {
        "bias": user[:, None, None] + item[None, :, None] + day[None, None, :],
        "tables": np.broadcast_to(rng.standard_normal(sizes[:2])[:, :, None], sizes),
        "interp": np.cumsum(rng.standard_normal(sizes), axis=2),
        "cp": 3 * user[:, None, None] * item[None, :, None] * day[None, None, :],
    }[kind] + 0.2 * rng.standard_normal(sizes)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:2000]
    modes = (Mode("user", sizes[0]), Mode("item", sizes[1]), Mode("day", sizes[2], order="ordered"))
    return split(SparseTensor(cells, dense[tuple(cells.T)], modes), seed=seed)


def fitted(parts, candidates=(CP,), options=OPTIONS, **more):
    return default_fit(parts, fit_baselines(parts), options, candidates=candidates, **more)


@given(kind=st.sampled_from(["bias", "tables", "interp", "cp"]), seed=st.integers(0, 50))
@settings(max_examples=8, deadline=None)
def test_it_validates_no_worse_than_any_member(kind, seed):
    parts = planted(kind, seed)
    found = fitted(parts)
    error = rmse(found.validated.predict(parts.valid.indices), parts.valid.values)
    assert error <= (1 + 1e-6) * min(row["rmse"] for row in found.trials)
    assert sum(row["weight"] for row in found.trials) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["bias", "tables", "interp", "cp"])
def test_it_is_as_good_as_the_member_that_is_right_on_new_entries(kind):
    parts = planted(kind, 3)
    found = fitted(parts)
    errors = {row["name"]: row["rmse"] for row in found.trials}
    right = {"cp": "cp:2"}.get(kind, kind)
    assert min(errors, key=errors.get) == right
    member = fit_baselines(parts).get(right)
    best = errors[right] if member is None else rmse(member.predict(parts.test.indices), parts.test.values)
    assert rmse(found.predictor.predict(parts.test.indices), parts.test.values) < 1.1 * best


def test_residuals_along_an_ordered_mode_are_predicted():
    """Additive values and a process along the days that no member but interpolation sees."""
    rng = np.random.default_rng(0)
    sizes = (20, 15, 40)
    steps = rng.standard_normal(sizes)
    process = steps.copy()
    for t in range(1, sizes[2]):
        process[..., t] = 0.9 * process[..., t - 1] + math.sqrt(0.19) * steps[..., t]
    dense = 5 * rng.standard_normal(sizes[0])[:, None, None] + 5 * rng.standard_normal(sizes[2]) + process
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:6000]
    modes = (Mode("user", sizes[0]), Mode("item", sizes[1]), Mode("day", sizes[2], order="ordered"))
    parts = split(SparseTensor(cells, dense[tuple(cells.T)], modes), seed=0)
    late = fitted(parts, options=replace(OPTIONS, seconds=0.0), clock=FakeClock(), candidates=())
    assert late.residual_models == []
    found = fitted(parts, candidates=())
    assert [name for name, _ in found.residual_models] == ["local:day"]
    assert [type(model) for model in found.predictor.residual_models] == [Kriging]
    members = rmse(found.predictor.weighted_mean(parts.test.indices), parts.test.values)
    assert rmse(found.predictor.predict(parts.test.indices), parts.test.values) < 0.9 * members
    assert "local:day reduced the squared error" in found.reason


@pytest.mark.parametrize("kind", ["bias", "tables", "interp", "cp"])
def test_members_are_fitted_again_to_training_and_validation_entries(kind):
    parts = planted(kind, 3)
    found = fitted(parts, candidates=[EXACT] if kind == "cp" else [])
    assert found.refit
    weights = [{one.name: one.weight for one in mean.members} for mean in (found.predictor, found.validated)]
    assert weights[0] == weights[1]
    everything = join(parts.train, parts.valid)
    np.testing.assert_array_equal(
        found.predictor.fallback.predict(parts.test.indices),
        refit_tables(fit_baselines(parts)["bias"], everything).predict(parts.test.indices),
    )
    errors = [rmse(one.predict(parts.valid.indices), parts.valid.values) for one in (found.predictor, found.validated)]
    assert errors[0] < errors[1]
    errors = [rmse(one.predict(parts.test.indices), parts.test.values) for one in (found.predictor, found.validated)]
    assert errors[0] < 1.005 * errors[1]


def test_a_label_that_only_validation_entries_have_is_known_in_the_end():
    parts = planted("bias", 1)
    first = parts.train.indices[:, 0] == 0
    parts = replace(parts, train=parts.train.take(np.flatnonzero(~first)))
    found, cell = fitted(parts), np.array([[0, 1, 1]])
    assert (parts.valid.indices[:, 0] == 0).any()
    assert found.validated.unseen(cell).all()
    assert not found.predictor.unseen(cell).any()


def test_members_that_depend_on_chance_are_the_mean_of_both_fits():
    found = fitted(planted("bias", 0), candidates=[Candidate("trees", "trees", 5)])
    before, after = ({one.name: one.fits for one in mean.members} for mean in (found.validated, found.predictor))
    assert {name: len(fits) for name, fits in before.items()} == {"tables": 1, "trees": 1}
    assert {name: len(fits) for name, fits in after.items()} == {"tables": 1, "trees": 2}
    assert after["trees"][0] is before["trees"][0]
    assert after["tables"][0] is not before["tables"][0]


def test_a_refit_that_fails_leaves_the_member_as_it_was(monkeypatch):
    class Once(Family):
        def fit(self, candidate, train, valid, options):
            return FAMILIES["joint"].fit(CP, train, valid, options)

        def refit(self, candidate, fits, tensor, options):
            raise RuntimeError("the system is singular")

    monkeypatch.setitem(FAMILIES, "once", Once())
    parts, notes = planted("cp", 0), []
    found = fitted(parts, candidates=[Candidate("once", "once", 9)], on_note=notes.append)
    assert "once: the fit to training and validation entries failed (the system is singular)" in notes
    before, after = ({one.name: one.fits[0] for one in mean.members} for mean in (found.validated, found.predictor))
    assert after["once"] is before["once"]


def test_without_time_for_a_refit_there_is_none(monkeypatch):
    clock = FakeClock()

    class Timed(Family):
        def fit(self, candidate, train, valid, options):
            clock.now += 60
            return FAMILIES["joint"].fit(CP, train, valid, options)

        def refit(self, candidate, fits, tensor, options):
            raise AssertionError("it takes longer than there is time")

    monkeypatch.setitem(FAMILIES, "timed", Timed())
    found = fitted(
        planted("cp", 0), candidates=[Candidate("timed", "timed", 9)], options=replace(OPTIONS, seconds=100.0),
        clock=clock,
    )  # fmt: skip
    assert "timed" in {one.name for one in found.predictor.members}


def test_a_refit_has_the_time_that_is_left(monkeypatch):
    clock, seen = FakeClock(), []

    class Timed(Family):
        def fit(self, candidate, train, valid, options):
            clock.now += 30
            return FAMILIES["joint"].fit(CP, train, valid, replace(options, seconds=math.inf))

        def refit(self, candidate, fits, tensor, options):
            seen.append(options.seconds)
            clock.now += 80  # longer than it may
            return fits[0]

    monkeypatch.setitem(FAMILIES, "timed", Timed())
    found = fitted(
        planted("cp", 0), candidates=[Candidate("timed", "timed", 9)], options=replace(OPTIONS, seconds=100.0),
        clock=clock,
    )  # fmt: skip
    assert seen == [70]
    assert (found.refit, found.outcome) == (True, "budget")  # what is finished is used


def test_a_refit_that_is_stopped_is_not_used(monkeypatch):
    asked = []

    class Stopped(Family):
        def fit(self, candidate, train, valid, options):
            return FAMILIES["joint"].fit(CP, train, valid, replace(options, stopping=lambda: False))

        def refit(self, candidate, fits, tensor, options):
            asked.append(True)
            raise StopRequested

    monkeypatch.setitem(FAMILIES, "stopped", Stopped())
    options = replace(OPTIONS, stopping=lambda: bool(asked))
    found = fitted(planted("cp", 0), candidates=[Candidate("stopped", "stopped", 9)], options=options)
    assert found.outcome == "interrupted"
    before, after = ({one.name: one.fits for one in mean.members} for mean in (found.validated, found.predictor))
    assert after["stopped"] == before["stopped"]


class FailingFamily(Family):
    """Fits that raise an error, or predict what is not finite."""

    def fit(self, candidate, train, valid, options):
        if candidate.options:
            return replace(fit_baselines(split(train, seed=0))["mean"], mean=math.nan)
        raise RuntimeError("the loss is nan\nmore about it")


def test_a_fit_that_fails_is_a_row(monkeypatch):
    monkeypatch.setitem(FAMILIES, "failing", FailingFamily())
    notes = []
    broken = [Candidate("breaks", "failing", 9), Candidate("nan", "failing", 9, options={"nan": True})]
    found = fitted(planted("bias", 0), candidates=[*broken, CP], on_note=notes.append)
    rows = {row["name"]: row for row in found.trials}
    assert rows["breaks"]["failure"] == "the loss is nan"
    assert rows["nan"]["failure"] == "its predictions are not finite"
    assert rows["breaks"]["rmse"] is None
    assert rows["cp:2"]["rmse"] is not None
    assert found.outcome == "converged"
    assert "breaks: failed, the loss is nan" in notes


def test_without_time_it_is_a_mean_of_baselines():
    found = fitted(planted("cp", 0), options=replace(OPTIONS, seconds=0.0), clock=FakeClock())
    assert {row["name"] for row in found.trials} == {"mean", "bias", "tables", "interp"}
    assert (found.fits, found.outcome, found.refit) == (0, "budget", False)


def test_time_that_one_fit_leaves_is_for_the_next(monkeypatch):
    clock, seen = FakeClock(), []

    class Timed(Family):
        def fit(self, candidate, train, valid, options):
            seen.append(options.seconds)
            clock.now += 10
            return fit_baselines(split(train, seed=0))["mean"]

    monkeypatch.setitem(FAMILIES, "timed", Timed())
    fitted(
        planted("bias", 0), candidates=[Candidate(name, "timed", 9) for name in "abc"],
        options=replace(OPTIONS, seconds=100.0), clock=clock,
    )  # fmt: skip
    assert seen == [100 / 3, 45, 80]


@dataclass(frozen=True)
class Slow(Predictor):
    """Known values; a second passes for each that is asked for."""

    values: np.ndarray
    clock: FakeClock

    def predict(self, indices):
        self.clock.now += len(indices)
        return self.values[tuple(indices.T)]

    def n_parameters(self):
        return self.values.size

    def supports(self, n_modes):
        return n_modes == self.values.ndim

    def pack(self):
        raise NotImplementedError

    @classmethod
    def unpack(cls, packed):
        raise NotImplementedError


@pytest.mark.parametrize(("seconds", "kriged"), [(1000.0, 0), (2500.0, 1440), (math.inf, 1600)])
def test_kriging_of_what_the_mean_leaves_is_bounded_by_the_time_that_is_left(monkeypatch, seconds, kriged):
    """1440 training and 160 validation entries; the member leaves a process along the days."""
    clock, rng = FakeClock(), np.random.default_rng(0)
    sizes = (14, 12, 20)
    process = 0.3 * np.cumsum(rng.standard_normal(sizes), axis=2)
    known = 5 * rng.standard_normal(sizes)
    cells = rng.permutation(np.argwhere(np.ones(sizes)))[:2000]
    modes = (Mode("user", sizes[0]), Mode("item", sizes[1]), Mode("day", sizes[2], order="ordered"))
    parts = split(SparseTensor(cells, (known + process)[tuple(cells.T)], modes), seed=0)

    class Known(Family):
        def fit(self, candidate, train, valid, options):
            return Slow(known, clock)

    monkeypatch.setitem(FAMILIES, "known", Known())
    found = fitted(
        parts, candidates=[Candidate("known", "known", 9)], options=replace(OPTIONS, seconds=seconds), clock=clock
    )
    assert [len(model.keys) for model in found.predictor.residual_models] == [kriged] * bool(kriged)
    assert found.refit
    assert clock.now < seconds


def test_candidates_follow_the_number_of_entries():
    def names(observed, shape):
        tensor = make_joint(shape, (1, 0), observed=observed, seed=0)[0]
        return [one.name for one in default_candidates(tensor)]

    seeds = ["julia:4/16", "julia:4/16, seed 1", "julia:4/16, seed 2"]
    fm, implicit = "mean+bias+tables+fm:8", "mean+bias+tables+fm:8+implicit"
    assert names(900, (30, 20, 10)) == [fm, "trees", *seeds, implicit]
    assert names(1000, (30, 20, 10)) == [fm, "trees", "cp", *seeds, implicit]
    assert names(6000, (12, 12, 50)) == [fm, "trees", "cp", *seeds, implicit]
    assert names(55_000, (40, 40, 60)) == ["cp", "julia:4/16"]


def test_it_is_stored_and_loaded(tmp_path):
    parts = planted("interp", 1)
    predictor = fitted(parts).predictor
    save_predictor(predictor, tmp_path / "model.safetensors")
    loaded = load_predictor(tmp_path / "model.safetensors")
    assert loaded.returned == "mixture"
    assert np.array_equal(loaded.predict(parts.test.indices), predictor.predict(parts.test.indices))


# --- as a run


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "tensor.npz"
    write_tensor(make_joint((12, 10, 8), (2, 0), observed=600, noise=0.1, seed=1)[0], path)
    return path


def test_a_run_without_a_rank_is_one(source, tmp_path):
    result = run(RunConfig(str(source), device="cpu"), tmp_path / "run")
    members = {row["name"] for row in result.search["trials"] if row["weight"]}
    assert result.returned == {"model": "mixture", "refit": any("julia" not in name for name in members)}
    assert result.valid["n"] == 48  # a tenth of four fifths
    assert result.test["rmse"] < result.baselines["bias"]["test"]["rmse"]
    assert {"mean", "bias", "tables", "julia:4/16"} <= {row["name"] for row in result.search["trials"]}
    assert load_run(tmp_path / "run").predictor.predict(np.array([[1, 1, 1]])).shape == (1,)
    history = (tmp_path / "run" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line)["attempt"] for line in history} == set(range(result.fits - 1))  # trees have no epochs


@pytest.mark.parametrize(
    "changes", [{"rank": (2, 0)}, {"linear": "mean+bias"}, {"nonlinear": "avocado"}, {"recipe": "paper"},
                {"recipe_changes": {"refine_epochs": 1}}, {"valid": 0.0}]
)  # fmt: skip
def test_options_of_one_model_fit_one_model(source, tmp_path, changes):
    quick = {"refine_epochs": 1, "rounds": 1, "warm_epochs": 1, "restarts": 0}
    changes = {"recipe_changes": quick} | changes if "valid" not in changes else changes
    result = run(RunConfig(str(source), device="cpu", **changes), tmp_path / "run")
    assert result.returned["model"] in ("joint", "bias")
    assert result.search is None


def test_a_stopped_run_goes_on_to_the_same_result(source, tmp_path):
    config = RunConfig(str(source), device="cpu")
    whole = run(config, tmp_path / "whole")
    calls = iter(range(10_000))
    stopped = run(config, tmp_path / "run", Listener(stopping=lambda: next(calls) > 150))
    assert stopped.interrupted
    assert stopped.fits < whole.fits
    again = resume(tmp_path / "run")
    assert not again.interrupted
    assert again.test == whole.test
    assert [row["weight"] for row in again.search["trials"]] == [row["weight"] for row in whole.search["trials"]]
