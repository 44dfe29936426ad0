"""Whether the processor that is compiled for adds a product without rounding it first."""

from __future__ import annotations

import numpy as np
from numba import njit

from softtopk_nb._math.elementary import fma


@njit
def _rounding_of_square(a):
    return fma(a, a, -(a * a))


FUSED = _rounding_of_square(1.0 + 2.0**-30) != 0.0


def units_without_fma(t):
    """What e^(-t^2/2) may be off by, in units, more than where the square's rounding is known."""
    return np.zeros_like(t) if FUSED else 0.25 * t * t
