"""Splits and folds: the one place that decides which entries are for training, validation, testing and calibration.

``rules`` splits a tensor in memory, ``assignment`` gives the same splits entry by entry for tensors on disk, and
``folds`` makes the folds of a cross-validation.
"""

from jointensor.data.split.assignment import LEFT_OUT, TEST, TRAIN, VALID, SplitAssignment, SplitRule
from jointensor.data.split.folds import FOLDS, Groups, blocks_of, groups_of, held_out, make_folds, new_modes
from jointensor.data.split.gaps import in_words, like_gaps
from jointensor.data.split.rules import FOLD_RULES, RULES, Split, check_share, fold_rule, share_of, split, with_folds

__all__ = [
    "FOLDS",
    "FOLD_RULES",
    "LEFT_OUT",
    "RULES",
    "TEST",
    "TRAIN",
    "VALID",
    "Groups",
    "Split",
    "SplitAssignment",
    "SplitRule",
    "blocks_of",
    "check_share",
    "fold_rule",
    "groups_of",
    "held_out",
    "in_words",
    "like_gaps",
    "make_folds",
    "new_modes",
    "share_of",
    "split",
    "with_folds",
]  # fmt: skip
