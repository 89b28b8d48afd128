"""Candidates are plain data with names of their own, and families that fit them."""

from dataclasses import replace

import numpy as np
import pytest

from jointensor.data.modes import Mode
from jointensor.data.synthetic import make_joint
from jointensor.data.tensor import SparseTensor
from jointensor.search.families import FAMILIES, FitOptions, family_of
from jointensor.search.portfolio import Candidate, candidates_for, default_candidates, exact_candidates
from jointensor.search.settings import SETTINGS
from tests.search.searches import BIAS


@pytest.mark.parametrize("shape", [(5, 4), (6, 5, 4), (4, 4, 4, 4)])
def test_candidates_have_names_of_their_own(shape):
    tensor, _ = make_joint(shape, (1, 0), observed=15, seed=0)
    offered = candidates_for(tensor)
    assert len({one.slug for one in offered}) == len({one.name for one in offered}) == len(offered)
    assert all(one.after is None or one.after in {other.name for other in offered} for one in offered)
    assert {one.family for one in offered if one.stage == "core"} == set(FAMILIES) - {
        "mean",
        "interpolation",
        "kriging",
        "exact",
        "unfolding",
        "roots",
        "unfolded roots",
    }
    assert offered[0] == BIAS


def test_interpolation_is_offered_along_ordered_modes():
    tensor, _ = make_joint((6, 5, 4), (1, 0), observed=15, seed=0)
    modes = (replace(tensor.modes[0], order="ordered"), *tensor.modes[1:])
    ordered = SparseTensor(tensor.indices, tensor.values, modes)
    assert {one.family for one in candidates_for(ordered) if one.stage == "core"} == set(FAMILIES) - {
        "mean",
        "exact",
        "unfolding",
        "roots",
        "unfolded roots",
    }


def test_cp_is_offered_where_there_are_many_entries_per_parameter():
    dense, _ = make_joint((12, 12, 12), (1, 0), observed=1700, seed=0)
    few = replace(SETTINGS, first_rank=2)  # 72 parameters, 23.6 entries each
    core = [one.name for one in candidates_for(dense, few) if one.stage == "core"]
    assert core.index("cp") < core.index("trees")
    sparse = dense.take(np.arange(700))  # 9.7 entries each
    core = [one.name for one in candidates_for(sparse, few) if one.stage == "core"]
    assert core.index("cp") > core.index("trees")
    assert "cp" not in {one.name for one in candidates_for(dense.take(np.arange(140)), few)}  # 1.9 entries each


def test_rows_of_ordered_modes_are_smooth_in_one_of_the_exact_candidates():
    tensor, _ = make_joint((12, 12, 24), (1, 0), observed=3000, seed=0)
    assert [one.name for one in exact_candidates(tensor)] == ["cp"]
    modes = (Mode("day", 12, order="ordered"), tensor.modes[1], Mode("hour", 24, order="cyclic"))
    timed = SparseTensor(tensor.indices, tensor.values, modes)
    assert [one.linear for one in exact_candidates(timed)] == ["mean+bias+cp:8+smooth:0+cyclic:2", ""]


def test_the_mean_of_exact_solutions_has_fewer_of_them_where_entries_are_many():
    tensor, _ = make_joint((12, 12, 24), (1, 0), observed=3000, seed=0)
    assert [one.options for one in exact_candidates(tensor)] == [{"solutions": 4}]
    most = replace(SETTINGS, max_averaged_entries=2999)
    assert [one.options for one in exact_candidates(tensor, most)] == [{"solutions": 2}]


def test_fewer_solutions_are_averaged_where_several_kinds_of_cp_are_mixed():
    tensor, _ = make_joint((12, 12, 24), (1, 0), observed=3000, seed=0)
    timed = tensor.over((*tensor.modes[:2], Mode("hour", 24, order="cyclic")))
    found = {one.name: one.options.get("solutions") for one in exact_candidates(timed)}
    assert found == {"unfolding": None, "cp+smooth": 2, "cp": 2}
    assert [one.options["solutions"] for one in exact_candidates(tensor)] == [4]


def test_implicit_feedback_is_tried_by_the_default_fit_of_few_entries_per_label():
    sparse, _ = make_joint((60, 50, 40), (1, 0), observed=1000, seed=0)
    assert [one.name for one in default_candidates(sparse)][-1] == "mean+bias+tables+fm:8+implicit"
    most = replace(SETTINGS, max_small_entries=999)
    assert not any("implicit" in one.name for one in default_candidates(sparse, most))
    dense, _ = make_joint((8, 8, 8), (1, 0), observed=500, seed=0)
    few = replace(SETTINGS, first_rank=1)
    assert not any("implicit" in one.name for one in default_candidates(dense, few))


def test_interpolation_is_fitted_and_refitted():
    """A series is a line: interpolation has it exactly, on entries that were left out and after a refit."""
    cells = np.array([[i, t] for i in range(3) for t in range(20)])
    modes = (Mode("series", 3), Mode("time", 20, order="ordered"))
    tensor = SparseTensor(cells, 2.0 * cells[:, 1] + cells[:, 0], modes)
    family, candidate = FAMILIES["interpolation"], Candidate("interp", "interpolation", 1)
    inner = np.flatnonzero(cells[:, 1] % 4 == 2)
    train, valid = tensor.take(np.setdiff1d(np.arange(60), inner)), tensor.take(inner)
    found = family.fit(candidate, train, valid, FitOptions())
    assert np.allclose(found.predict(valid.indices), valid.values)
    again = family.refit(candidate, [found], tensor.take(np.flatnonzero(cells[:, 1] % 2 == 0)), FitOptions())
    odd = tensor.take(np.flatnonzero((cells[:, 1] % 2 == 1) & (cells[:, 1] < 19)))
    assert np.allclose(again.predict(odd.indices), odd.values)


def test_families_say_what_they_tabulate():
    tensor, _ = make_joint((6, 5, 4), (1, 0), observed=15, seed=0)
    tabulating = {one.name for one in candidates_for(tensor) if family_of(one).tabulates(one)}
    assert {"tables", "trees", "mean+bias+tables+fm:8"} <= tabulating
    assert not {"bias", "julia:4/16", "avocado:20"} & tabulating
    matrix, _ = make_joint((6, 5), (1, 0), observed=15, seed=0)
    assert {one.name for one in candidates_for(matrix) if family_of(one).tabulates(one)} == {"tables", "trees"}


@pytest.mark.parametrize(("shape", "observed"), [((30, 20, 10), 1000), ((40, 40, 60), 55_000)])
def test_the_core_has_the_candidates_of_the_default_fit_before_others(shape, observed):
    tensor, _ = make_joint(shape, (1, 0), observed=observed, seed=0)
    core = [one.name for one in candidates_for(tensor) if one.stage == "core"]
    first = {one.name for one in default_candidates(tensor) if not one.seed and one.stage != "richer"}
    baselines = {"bias", "tables", "interp"}
    assert set(core[: len(first | (baselines & set(core)))]) == first | (baselines & set(core))


def test_a_warm_up_of_exact_candidates_has_every_rank():
    tensor, _ = make_joint((12, 12, 24), (1, 0), observed=3000, seed=0)
    timed = SparseTensor(tensor.indices, tensor.values, (*tensor.modes[:2], Mode("hour", 24, order="cyclic")))
    _, smooth, plain = exact_candidates(timed)
    assert [one.rank[0] for one in family_of(plain).warmup_candidates(plain)] == [8, 16, 32, 64, 128]
    blocks = [one.linear for one in family_of(smooth).warmup_candidates(smooth)]
    assert blocks == [f"mean+bias+cp:{rank}+cyclic:2" for rank in (8, 16, 32, 64, 128)]
