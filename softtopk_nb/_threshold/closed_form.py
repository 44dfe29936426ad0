"""The threshold in closed form, given the number of entries above it."""

from __future__ import annotations

import math

from .._compile.decorators import scalar


@scalar
def beyond(z, rest, g):
    """The threshold where weights 1 + `rest` at z sum to g (Theorem thm-closed-form-exp)."""
    return z + math.log1p(rest) - math.log(g)


@scalar
def below(z, above, g):
    """The threshold below all entries, where p is g short at z (thm-closed-form-laplace)."""
    return z + math.log(2.0 * g) - math.log(above)


@scalar
def within(upper, lower, above, weight, g):
    """The threshold in the gap between two entries (Theorem thm-closed-form-laplace).

    `above` is the weight of the entries from `upper` on, relative to `upper`, `weight` that of the
    entries from `lower` down, relative to `lower`; g is the part of k left for the latter.
    Exponents are relative to the middle of the gap.
    """
    half = 0.5 * (upper - lower)
    A, B = above * math.exp(-half), weight * math.exp(-half)
    root = math.hypot(g, math.sqrt(A) * math.sqrt(B))
    shift = 0.0  # both sums underflow: any threshold within the gap saturates every entry
    if g + root > 0.0 and B > 0.0 and g >= 0.0:
        shift = math.log(B) - math.log(root + g)
    elif A > 0.0 and g < 0.0:
        shift = math.log(root - g) - math.log(A)
    return 0.5 * (upper + lower) + min(max(shift, -half), half)
