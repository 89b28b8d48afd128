"""CP of the matrix of fibers by positions, against matrices written out."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.tensor import SparseTensor
from jointensor.errors import RunError
from jointensor.models.joint import cp_rank
from jointensor.predictors.biases import fit_bias
from jointensor.predictors.storage import load_predictor, save_predictor
from jointensor.predictors.unfolding import Unfolding
from jointensor.search.families import FAMILIES, FitOptions
from jointensor.search.portfolio import Candidate, exact_candidates
from jointensor.search.settings import SETTINGS
from tests.predictors.test_ensemble import EVERY, TENSOR

PLACES, KINDS, DAYS, HOURS = 5, 4, 3, 6
RNG = np.random.default_rng(0)


def timed(values=None, keep=0.7):
    """Place × hour × kind × day: days are written in another order than that of time."""
    shape = (PLACES, HOURS, KINDS, DAYS)
    cells = np.argwhere(np.ones(shape))
    cells = cells[RNG.permutation(len(cells))[: int(keep * len(cells))]]
    given = np.arange(len(cells), dtype=float) if values is None else values[tuple(cells.T)]
    day = Mode("day", DAYS, ("2024-01-03", "2024-01-01", "2024-01-02"), "ordered")
    hour = Mode("hour", HOURS, order="ordered")
    return SparseTensor(cells, given, (Mode("place", PLACES), hour, Mode("kind", KINDS), day))


def test_the_matrix_has_a_row_per_fiber_and_the_positions_of_time_as_columns():
    tensor = timed()
    unfolding = Unfolding.of(tensor, (3, 1))
    matrix = unfolding.matrix(tensor)
    assert matrix.shape == (PLACES * KINDS, DAYS * HOURS)
    order = {0: 2, 1: 0, 2: 1}  # of the day labels in time
    wanted = np.full(matrix.shape, np.nan)
    for (place, hour, kind, day), value in zip(tensor.indices, tensor.values, strict=True):
        wanted[place * KINDS + kind, order[day] * HOURS + hour] = value
    found = np.full(matrix.shape, np.nan)
    found[tuple(matrix.indices.T)] = matrix.values
    assert np.array_equal(found, wanted, equal_nan=True)
    assert matrix.modes[1].coordinates().tolist() == list(range(DAYS * HOURS))


def test_fibers_without_entries_and_labels_never_seen_have_no_row():
    tensor = timed()
    some = tensor.take(np.flatnonzero((tensor.indices[:, 0] != 2) | (tensor.indices[:, 2] != 1)))
    unfolding = Unfolding.of(some, (3, 1))
    queries = np.array([[2, 0, 1, 0], [2, 0, 0, 0], [-1, 0, 0, 0], [0, HOURS, 0, 0], [0, 0, 0, 2]])
    cells, known = unfolding.cells(queries)
    assert known.tolist() == [False, True, False, False, True]
    assert cells[4].tolist() == [0, HOURS]  # the second day in time
    assert len(unfolding.fibers) == PLACES * KINDS - 1
    assert len(unfolding.matrix(tensor)) == len(some)


def fitted(tensor, rank=2, **options):
    """CP of the unfolded tensor with a fixed number of components."""
    candidate = Candidate(
        "unfolding", "unfolding", 3, (rank, 0), linear=f"mean+bias+cp:{rank}+smooth:1", options=options
    )
    some = np.random.default_rng(1).permutation(len(tensor))
    cut = len(tensor) // 8
    train, valid = tensor.take(some[cut:]), tensor.take(some[:cut])
    return FAMILIES["unfolding"].fit(candidate, train, valid, FitOptions(device="cpu")), candidate


def planted(components=2):
    """Values whose unfolding has few components, and whose CP has many: every fiber has weights of its own."""
    rng = np.random.default_rng(3)
    fibers = rng.standard_normal((40, 12, components))
    hours = np.cumsum(rng.standard_normal((30, components)), axis=0)
    values = np.einsum("ijr,tr->ijt", fibers, hours / np.abs(hours).max())
    cells = np.argwhere(rng.random(values.shape) < 0.4)
    modes = (Mode("place", 40), Mode("kind", 12), Mode("hour", 30, order="ordered"))
    return SparseTensor(cells, values[tuple(cells.T)], modes), values


def test_planted_fibers_are_found_where_cp_of_the_tensor_needs_many_components():
    tensor, values = planted()
    found, _ = fitted(tensor)
    every = np.argwhere(np.ones(values.shape))
    missing = np.setdiff1d(np.ravel_multi_index(every.T, values.shape),
                           np.ravel_multi_index(tensor.indices.T, values.shape))  # fmt: skip
    truth = values.ravel()[missing]
    errors = found.predict(every[missing]) - truth
    assert np.sqrt(np.mean(errors**2)) < 0.2 * truth.std()
    cp = Candidate("cp", "exact", 2, (2, 0))
    plain = FAMILIES["exact"].fit(cp, tensor, tensor.take(np.arange(400)), FitOptions(device="cpu"))
    assert cp_rank(found.inner.model) < cp_rank(plain.model) / 2


def test_a_refit_has_the_same_rows_and_learns_from_the_entries_that_were_left_out():
    tensor, _ = planted()
    found, candidate = fitted(tensor)
    again = FAMILIES["unfolding"].refit(candidate, [found, found], tensor, FitOptions(device="cpu"))
    assert np.array_equal(again.unfolding.fibers, found.unfolding.fibers)
    errors = [np.square(one.predict(tensor.indices) - tensor.values).mean() for one in (found, again)]
    assert errors[1] < errors[0]


def test_biases_predict_what_has_no_row():
    tensor, _ = planted()
    seen = tensor.take(np.flatnonzero((tensor.indices[:, 0] != 7) | (tensor.indices[:, 1] != 3)))
    found, _ = fitted(seen)
    queries = np.array([[7, 3, 5], [-1, 3, 5], [7, 2, 5]])
    predictions = found.predict(queries)
    assert np.array_equal(predictions[:2], found.fallback.predict(queries[:2]).astype(np.float32))
    assert predictions[2] != np.float32(found.fallback.predict(queries[2:])[0])


def test_new_labels_are_learnt_by_the_biases():
    tensor, _ = planted()
    found, _ = fitted(tensor)
    modes = (Mode("place", 41), *tensor.modes[1:])
    fresh = SparseTensor([[40, kind, 3] for kind in range(12)], np.full(12, 9.0), modes)
    grown = found.with_entries(fresh)
    assert grown.predict(np.array([[40, 0, 3]]))[0] > 3.0
    assert np.array_equal(grown.predict(tensor.indices), found.predict(tensor.indices))


def test_it_is_a_candidate_where_fibers_have_entries_enough():
    few = replace(SETTINGS, first_rank=4)  # 2,040 parameters

    def names(tensor):
        return [one.name for one in exact_candidates(tensor, few)]

    tensor, _ = planted()
    assert names(tensor)[0] == "unfolding"
    assert "unfolding" not in names(tensor.take(np.arange(0, len(tensor), 2)))
    assert "unfolding" not in names(tensor.over(tuple(replace(mode, order="none") for mode in tensor.modes)))
    assert "unfolding" not in names(Unfolding.of(tensor, (2,)).matrix(tensor))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda one: replace(one, unfolding=replace(one.unfolding, fibers=one.unfolding.fibers[::-1].copy())),
        lambda one: replace(one, unfolding=replace(one.unfolding, fibers=one.unfolding.fibers[:-1])),
        lambda one: replace(one, fallback=fit_bias(TENSOR, TENSOR)),
    ],
)
def test_stored_parts_that_do_not_belong_together_are_refused(tmp_path, spoil):
    found, _ = fitted(planted()[0])
    save_predictor(spoil(found), tmp_path / "w")
    with pytest.raises(RunError, match="inconsistent"):
        load_predictor(tmp_path / "w")


def unfolded_of():
    """Of the tensor of the other tests of predictors."""
    candidate = Candidate("unfolding", "unfolding", 3, (2, 0), linear="mean+bias+cp:2+cyclic:1")
    return FAMILIES["unfolding"].fit(candidate, TENSOR, TENSOR.take(np.arange(9)), FitOptions(device="cpu"))


def test_every_cell_is_predicted():
    assert np.isfinite(unfolded_of().predict(EVERY)).all()
