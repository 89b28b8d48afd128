"""Splits and folds: the one place that decides which entries are for training, validation, testing and calibration.

``rules`` splits a tensor in memory, ``assignment`` gives the same splits entry by entry for tensors on disk, and
``folds`` makes the folds of a cross-validation.
"""

from jointensor.data.split.assignment import LEFT_OUT, TEST, TRAIN, VALID, SplitAssignment, SplitRule
from jointensor.data.split.folds import FOLDS, groups_of, held_out, make_folds
from jointensor.data.split.rules import RULES, Split, check_share, share_of, split

__all__ = [
    "FOLDS",
    "LEFT_OUT",
    "RULES",
    "TEST",
    "TRAIN",
    "VALID",
    "Split",
    "SplitAssignment",
    "SplitRule",
    "check_share",
    "groups_of",
    "held_out",
    "make_folds",
    "share_of",
    "split",
]  # fmt: skip
