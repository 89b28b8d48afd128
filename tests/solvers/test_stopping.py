"""Stopping rules: small state machines, checked against their definitions over whole sequences."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jointensor.solvers.stopping import Either, Patience, RelativeChange

FIGURES = st.lists(st.sampled_from([0.5, 0.9, 0.95, 0.999, 1.0, 1.0001, 1.1, 2.0]), min_size=1, max_size=12)


@given(FIGURES, st.sampled_from([1e-4, 1e-3, 0.1]))
def test_relative_change_stops_where_neighbours_differ_by_less_than_the_tolerance(figures, tolerance):
    rule = RelativeChange(tolerance)
    said = [rule.report(x) for x in figures]
    assert said == [False] + [abs(b - a) / a < tolerance for a, b in pairwise(figures)]


def test_relative_change_never_stops_a_figure_that_keeps_getting_worse():
    rule = RelativeChange(1e-4)
    assert not any(rule.report(1.01**k) for k in range(100))


def test_relative_change_never_stops_at_the_first_figure():
    assert not RelativeChange(1e6).report(1.0)


@given(FIGURES, st.integers(1, 4))
def test_patience_stops_after_so_many_figures_since_the_best(figures, epochs):
    rule = Patience(epochs)
    said = [rule.report(x) for x in figures]
    expected = []
    for k in range(len(figures)):
        seen = figures[: k + 1]
        expected.append(k - seen.index(min(seen)) >= epochs)
    assert said == expected


@given(FIGURES, st.integers(1, 4), st.sampled_from([0.0, 0.001, 0.07, 0.3]))
def test_patience_counts_a_figure_as_better_only_if_it_is_so_by_a_share(figures, epochs, share):
    rule = Patience(epochs, share)
    best, since = figures[0], 0
    for k, figure in enumerate(figures):
        if figure < best - share * best:
            best, since = figure, k
        assert rule.report(figure) == (k - since >= epochs)


@given(FIGURES)
def test_either_stops_when_one_does_and_shows_every_figure_to_all(figures):
    rules = RelativeChange(1e-3), Patience(2)
    alone = RelativeChange(1e-3), Patience(2)
    both = Either(rules)
    for figure in figures:
        assert both.report(figure) == (alone[0].report(figure) | alone[1].report(figure))
    assert rules == alone


def test_no_rule_never_stops():
    assert not any(Either(()).report(1.0) for _ in range(5))
