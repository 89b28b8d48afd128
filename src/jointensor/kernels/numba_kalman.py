"""The Kalman filter of a level, a damped slope and an autoregression, for many series at once, compiled by numba.

    y_t = ℓ_t + a_t + ε_t,   ℓ_t = ℓ_{t−1} + φ b_{t−1} + η_t,   b_t = φ b_{t−1} + ζ_t,   a_t = ρ a_{t−1} + ξ_t

Variances are in units of that of ε, which is estimated in closed form. A missing value (NaN) updates nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jointensor.kernels.numba_cache import CACHE
from jointensor.kernels.numba_threads import parallel_loop

Array = NDArray[np.float64]


class Filtered(NamedTuple):
    """What the filter knows after every step."""

    states: Array
    """ℓ, b and a, ``(steps, series, 3)``."""
    log_variances: Array
    """Sum of the logarithms of the one-step variances, ``(series,)``."""
    squares: Array
    """Sum of squared one-step errors, each divided by its variance, ``(series,)``."""
    counts: NDArray[np.int64]
    """Observed values, ``(series,)``."""


def kalman_filter(values: Array, numbers: Array) -> Filtered:
    """Filter series.

    Parameters
    ----------
    values
        ``(steps, series)``; NaN where nothing was observed.
    numbers
        One row per series, ``(series, 7)``: variances of η, ζ and ξ, φ, ρ, and the variances of the first level and
        slope. The first a has its stationary variance.
    """
    steps, series = values.shape
    states = np.empty((steps, series, 3))
    sums, counts = np.zeros((series, 2)), np.zeros(series, dtype=np.int64)
    with parallel_loop():
        _filter(values, numbers, states, sums, counts)
    return Filtered(states, sums[:, 0], sums[:, 1], counts)


@njit(parallel=True, cache=CACHE, nogil=True)
def _filter(values, numbers, states, sums, counts):  # type: ignore[no-untyped-def]
    for s in prange(values.shape[1]):
        q_level, q_slope, q_auto = numbers[s, 0], numbers[s, 1], numbers[s, 2]
        damping, memory = numbers[s, 3], numbers[s, 4]
        level = slope = auto = 0.0
        # covariance of ℓ, b and a before the step
        ll, bb, aa = numbers[s, 5], numbers[s, 6], q_auto / (1 - memory * memory)
        lb = la = ba = 0.0
        logs = squares = 0.0
        count = 0
        for t in range(values.shape[0]):
            if t > 0:
                level, slope, auto = level + damping * slope, damping * slope, memory * auto
                ll = ll + 2 * damping * lb + damping * damping * bb + q_level
                lb = damping * lb + damping * damping * bb
                la = memory * (la + damping * ba)
                bb = damping * damping * bb + q_slope
                ba = memory * damping * ba
                aa = memory * memory * aa + q_auto
            y = values[t, s]
            if not np.isnan(y):
                h_l, h_b, h_a = ll + la, lb + ba, la + aa  # covariance of the state with y
                variance = h_l + h_a + 1.0
                error = y - level - auto
                level += h_l / variance * error
                slope += h_b / variance * error
                auto += h_a / variance * error
                ll -= h_l * h_l / variance
                lb -= h_l * h_b / variance
                la -= h_l * h_a / variance
                bb -= h_b * h_b / variance
                ba -= h_b * h_a / variance
                aa -= h_a * h_a / variance
                logs += np.log(variance)
                squares += error * error / variance
                count += 1
            states[t, s, 0] = level
            states[t, s, 1] = slope
            states[t, s, 2] = auto
        sums[s, 0] = logs
        sums[s, 1] = squares
        counts[s] = count
