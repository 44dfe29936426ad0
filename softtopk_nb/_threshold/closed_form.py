"""The threshold in closed form, where it is known which entries lie above it."""

from __future__ import annotations

import math

from .._compile.decorators import scalar


@scalar
def beyond(z, rest, g):
    """Theorem thm-closed-form-exp: where entries of weight 1 + `rest` at z sum to g."""
    return z + math.log1p(rest) - math.log(g)


@scalar
def below(z, above, g):
    """Theorem thm-closed-form-laplace below all entries, which miss their number by g at z."""
    return z + math.log(2.0 * g) - math.log(above)


@scalar
def within(upper, lower, above, weight, g):
    """Theorem thm-closed-form-laplace in the gap between two entries.

    `above` is the weight of the entries from `upper` on, relative to that, `weight` that of those
    from `lower` down, relative to it; g is what k leaves to the latter. Exponents are relative to
    the middle of the gap.
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
