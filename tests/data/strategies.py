"""What the property tests of readers share."""

import numpy as np
from hypothesis import assume


def assume_fit_for_32_bits(values):
    """Skip values that a tensor refuses: all but equal, or far from zero compared with their spread."""
    exact = np.array(list(values), dtype=np.float64)
    exact = exact[~np.isnan(exact)]
    if len(exact) and (exact != exact[0]).any():
        assume(exact.std() > 1e-14 and abs(exact.mean()) < 1.6e4 * exact.std())
