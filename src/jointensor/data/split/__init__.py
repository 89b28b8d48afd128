"""Splits and folds: the one place that decides which entries are for training, validation, testing and calibration.

``rules`` splits a tensor in memory, ``assignment`` gives the same splits entry by entry for tensors on disk, and
``folds`` makes the folds of a cross-validation.
"""

from jointensor.data.split.assignment import LEFT_OUT, TEST, TRAIN, VALID, SplitAssignment, SplitRule
from jointensor.data.split.folds import (
    FOLDS,
    Groups,
    Tail,
    blocks_of,
    groups_of,
    held_out,
    learnt_from,
    make_folds,
    new_modes,
    places_of,
    steps_from_end,
    tail_of,
)
from jointensor.data.split.gaps import QUERIES, Asked, like_gaps, pattern_of_gaps, pattern_of_queries
from jointensor.data.split.patterns import Pattern, in_words
from jointensor.data.split.rules import (
    FOLD_RULES,
    RULES,
    RollingRule,
    Split,
    check_share,
    draws_folds,
    fold_rule,
    rolling_rule,
    share_of,
    split,
    with_folds,
)
from jointensor.data.split.surroundings import steps_to_nearest

__all__ = [
    "FOLDS",
    "FOLD_RULES",
    "LEFT_OUT",
    "QUERIES",
    "RULES",
    "TEST",
    "TRAIN",
    "VALID",
    "Asked",
    "Groups",
    "Pattern",
    "RollingRule",
    "Split",
    "SplitAssignment",
    "SplitRule",
    "Tail",
    "blocks_of",
    "check_share",
    "draws_folds",
    "fold_rule",
    "groups_of",
    "held_out",
    "in_words",
    "learnt_from",
    "like_gaps",
    "make_folds",
    "new_modes",
    "pattern_of_gaps",
    "pattern_of_queries",
    "places_of",
    "rolling_rule",
    "share_of",
    "split",
    "steps_from_end",
    "steps_to_nearest",
    "tail_of",
    "with_folds",
]  # fmt: skip
