"""Candidates are plain data with names of their own, and families that fit them."""

import pytest

from jointensor.data.synthetic import make_joint
from jointensor.search.families import FAMILIES, family_of
from jointensor.search.portfolio import candidates_for
from tests.search.searches import BIAS


@pytest.mark.parametrize("shape", [(5, 4), (6, 5, 4), (4, 4, 4, 4)])
def test_candidates_have_names_of_their_own(shape):
    tensor, _ = make_joint(shape, (1, 0), observed=15, seed=0)
    offered = candidates_for(tensor)
    assert len({one.slug for one in offered}) == len({one.name for one in offered}) == len(offered)
    assert all(one.after is None or one.after in {other.name for other in offered} for one in offered)
    assert {one.family for one in offered if one.stage == "core"} == set(FAMILIES)
    assert offered[0] == BIAS


def test_families_say_what_they_tabulate():
    tensor, _ = make_joint((6, 5, 4), (1, 0), observed=15, seed=0)
    tabulating = {one.name for one in candidates_for(tensor) if family_of(one).tabulates(one)}
    assert {"tables", "trees", "mean+bias+tables", "mean+bias+tables+fm:8"} <= tabulating
    assert not {"bias", "julia:4/16", "avocado:20"} & tabulating
    matrix, _ = make_joint((6, 5), (1, 0), observed=15, seed=0)
    assert {one.name for one in candidates_for(matrix) if family_of(one).tabulates(one)} == {"tables", "trees"}
