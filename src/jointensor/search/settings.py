"""Every number that changes what a search does, with its unit and the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchSettings:
    """Numbers of the search; shares and ratios have no unit unless a field says otherwise."""

    seconds: float = 600.0
    """Budget where neither seconds nor fits are given."""

    # --- fits side by side
    workers: int = 0
    """Fits that are made side by side; 1: one after the other. 0: as many as the numbers below allow."""
    max_workers: int = 8
    """The same at most on a CPU, where there are as many cores: their Python code runs one at a time."""
    max_gpu_workers: int = 1
    """The same at most on a GPU. Five folds of JULIA 4/16 side by side took 3.7 times as long as one, in turn 5.2 times
    (``benchmarks/side_by_side.py``); torch's check for operations that wait for the device hears those of all threads,
    so that more than one is not safe yet."""
    max_entries: int = 20_000_000
    """Entries that all fits side by side may have together on a CPU: each takes about 200 bytes of memory."""
    max_gpu_entries: int = 5_000_000
    """The same on a GPU: steps grow with the entries, and a fit of more fills it."""

    # --- folds
    min_open_share: float = 0.02
    """Share of the entries whose value no functional dependency gives, for candidates to be scored on these alone."""
    min_open_entries: int = 50
    """The same as a number of entries in every fold; fewer rank candidates by chance."""

    # --- screening
    screening_share: float = 0.6
    """Share of the budget after which no further core candidate is screened: the rest is for the other folds."""
    max_error_ratio: float = 1.1
    """A family whose squared error is this many times the lowest one is not tried any further."""
    reserve_share: float = 0.12
    """Share of a budget in seconds that is kept for stacking, residual models and calibration."""
    min_fit_seconds: float = 1.0
    """Seconds that every fit may take, however little is left of the budget: one that is stopped at once is useless."""

    # --- cross-fitting
    cheap_share: float = 0.2
    """Share of the budget that all folds of a candidate may take to be cross-fitted without being selected: one fold
    may not show what it is worth."""
    near_error_ratio: float = 1.2
    """Ratio to the lowest squared error that such a candidate may have."""
    seed_variance_share: float = 0.03
    """Share of a network's squared error that averaging over many seeds removes, at least: measured as 0.04 and 0.11 on
    two large tensors (``benchmarks/folds.py``)."""

    # --- stacking
    selection_steps: int = 30
    """Draws with replacement in ensemble selection: weights are multiples of its inverse."""
    min_selection_gain: float = 0.0005
    """Share of the squared error that a further draw must remove."""

    even_mix_tolerance: float = 2.0
    """Standard errors by which a weight of the default fit must validate better than one half to be taken: the default
    fit chose its epochs by the same entries, which favour it a little."""

    max_even_mix_loss: float = 0.005
    """Share of the squared error that one half may cost all the same: where the other members had no time, the default
    fit is better by more than that, and heavy tails hide it."""
    chance_gain: float = 4.0
    """Share of the squared error of entries, times their number, that a weight fitted to them removes by chance."""

    # --- residual models
    max_tabulated_share: float = 0.5
    """Weight of members with tables from which tables of residuals are not tried on small tensors: refitted tables know
    the other entries already."""
    knn_share: float = 0.9
    """Share of the remaining seconds that the search for nearest neighbours may take."""
    overtime_share: float = 1.25
    """Share of the budget within which members may have predicted all entries: kriging over all of them is worth it."""

    # --- intervals
    min_calibration_entries: int = 100
    """Validation entries of the default fit from which quantiles may come, at least: half of fewer vary by more than
    5 % by chance, and they chose epochs."""

    # --- refits
    refit_margin: float = 1.3
    """Ratio of the remaining seconds to those of the last fit for a fit to be made again: durations vary."""
    max_fold_error_ratio: float = 1.5
    """Ratio to the squared error of its other folds that a further fold's fit may have to be averaged with them."""
    trees_averaged: int = 4
    """Fits of boosted trees whose mean is returned: each leaves other entries out of its target encoding."""

    min_refitted_share: float = 0.5
    """Weight of the members of a default fit that have seen the validation entries, for kriging to use residuals of
    these, too."""

    # --- portfolio
    first_rank: int = 8
    """Components that the multilinear part of a candidate starts with before it grows."""
    solutions: int = 4
    """Exact solutions whose mean a candidate is, at most."""
    few_solutions: int = 2
    """The same where several kinds of CP are mixed, to which more solutions add nothing, and of many entries."""
    max_averaged_entries: int = 2_000_000
    """Entries up to which so many solutions are averaged: of more, each takes a minute or more."""
    min_exact_entries: float = 2.0
    """Entries per parameter of these components for them to be tried: with fewer, their rows are not determined."""
    max_unfolded_entries: int = 2_000_000
    """Entries up to which CP of the unfolded tensor is tried: of more, it takes minutes on two cores."""
    max_sparse_entries: float = 20.0
    """Entries per parameter of these components up to which the default fit tries pairs of modes and trees, and a
    search tries them before CP: on ratings and events they are ahead of it."""
    max_repeated_entries: int = 50_000
    """Entries of a tensor up to which the default fit trains its network from several seeds: it may fail from one, and
    a fit takes two seconds."""
    n_repeated_fits: int = 3
    """Number of these seeds."""
    max_sampled_entries: int = 1_000_000
    """Entries of a tensor up to which the default fit samples pairs of modes and grows trees: a minute on two cores."""
    fm_width: int = 8
    """Width of the vectors of a factorisation machine."""
    wide_fm_width: int = 24
    """Width of the larger one."""
    max_implicit_entries: int = 3_000_000
    """Entries up to which implicit feedback is tried: its systems grow with all pairs of labels that occur together."""
    max_small_entries: int = 300_000
    """Entries up to which Gibbs chains are long and networks have their fourth cycle: both are cheap there."""
    encoding_seconds: float = 1.5e-7
    """Seconds per column and entry that target encoding takes on one core."""
    max_encoding_threads: int = 4
    """Cores that make target encoding faster."""
    min_tree_seconds: float = 2.0
    """Seconds that boosted trees are expected to take at least, so that a budget of a few seconds compiles nothing."""


SETTINGS = SearchSettings()
"""The settings of ``--rank auto``."""
