"""Ensembles against the weighted mean by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import ConfigError, RunError
from jointensor.models.joint import JointModel
from jointensor.predictors import ensemble as module
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.conformal import HeldOut, calibrate
from jointensor.predictors.ensemble import Ensemble, Member
from jointensor.predictors.joint import JointPredictor
from jointensor.predictors.knn import fit_knn
from jointensor.predictors.kriging import Kriging
from jointensor.predictors.tables import Mean, fit_tables

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
    return JointPredictor(model, fit_bias(TENSOR, NONE), calibration=calibration)


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
    return replace(Kriging.of(TENSOR.indices, noise, TENSOR.modes, (2,)), near=0.6, length=2.0, far=0.1)


def knn_of():
    folds = np.arange(len(TENSOR)) % 3
    return fit_knn(TENSOR.indices, TENSOR.values, folds, 0, TENSOR.shape)[0]


def ensemble_of():
    members = (
        Member("joint", 0.5, (predictor_of(1), predictor_of(2))),
        Member("tables", 0.3, (fit_tables(TENSOR, NONE),)),
        Member("mean", 0.2, (Mean(0.7),)),
    )
    residual_models = (local_of(), fit_tables(TENSOR.with_values(TENSOR.values**3), TENSOR))
    return Ensemble(members, residual_models, fit_bias(TENSOR, NONE), -0.3, 2.5, calibration_of())


def test_an_ensemble_is_the_weighted_mean_of_its_members_plus_its_residual_models():
    made = ensemble_of()
    one, two = (member.predict(EVERY) for member in made.members[0].fits)
    mixed = 0.5 * (one.astype(np.float64) + two) / 2 + 0.3 * made.members[1].fits[0].predict(EVERY) + 0.2 * 0.7
    whole = mixed + made.residual_models[0].predict(EVERY) + made.residual_models[1].predict(EVERY)
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
    models = [part.model for part in made.members[0].fits]
    parts = [*models, made.members[1].fits[0], made.members[2].fits[0], *made.residual_models]
    assert made.n_parameters() == sum(part.n_parameters() for part in parts)
    assert made.model is models[0]
    assert made.shape == SHAPE
    assert replace(made, members=made.members[1:]).model is None


def test_an_explanation_names_members_weights_and_residual_models():
    explained = json.loads(json.dumps(ensemble_of().explain()))
    assert explained["kind"] == "ensemble"
    assert [(member["name"], member["weight"]) for member in explained["members"]] == [
        ("joint", 0.5),
        ("tables", 0.3),
        ("mean", 0.2),
    ]
    assert [[fit["kind"] for fit in member["fits"]] for member in explained["members"]] == [
        ["joint", "joint"],
        ["tables"],
        ["mean"],
    ]
    assert [model["kind"] for model in explained["residual_models"]] == ["kriging", "tables"]
    assert explained["dependency"] is None
