"""Scaling of rows whose temperatures are near the ends of a type's range.

No operator changes when x and the temperature are multiplied by the same number, and a power of two
is exact. So a row whose temperature has no reciprocal in its type, or so small a one that
differences of x overflow in its units, is solved as a multiple of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The range of temperatures that kernels take unscaled, for each type of x.
MODERATE: dict[type, tuple[float, float]] = {
    np.float32: (2.0**-60, 2.0**60),
    np.float64: (2.0**-500, 2.0**500),
}
HEADROOM = 4  # binary digits of the exponent kept free for sums and differences of entries


def is_moderate(temperature: Any, kind: type) -> bool:
    """Whether all temperatures are in the range that kernels take unscaled."""
    least, most = MODERATE[kind]
    if isinstance(temperature, float):
        return least <= temperature <= most
    return bool(((temperature >= least) & (temperature <= most)).all())


def rescaled(x: Array, tau: Array) -> tuple[Array, Array, Array]:
    """(2^s x, 2^s tau, s) with an s for each row that brings its temperature near 1.

    If entries would overflow, s is reduced: then all differences that are not 0 are many
    temperatures.
    """
    least, most = MODERATE[x.dtype.type]
    shift = np.where((tau < least) | (tau > most), -np.frexp(tau)[1], 0)
    headroom = np.finfo(x.dtype).maxexp - HEADROOM - exponent_of(x)
    shift = np.where(shift > 0, np.clip(headroom, 0, shift), shift)
    return scaled(x, shift), scaled(tau, shift), shift


def exponent_of(values: Array) -> Array:
    """The exponent s of each row with its largest finite |value| between 2^(s-1) and 2^s."""
    largest = np.max(np.abs(values), axis=1, where=np.isfinite(values), initial=0)
    exponent: Array = np.frexp(largest)[1]
    return exponent


def scaled(values: Array, shift: Array | None) -> Array:
    """The values times 2^s for each row; unchanged if `shift` is None."""
    if shift is None:
        return values
    with np.errstate(over="ignore", under="ignore"):
        moved: Array = np.ldexp(values, shift.reshape(-1, *(1,) * (values.ndim - 1)))
    return moved


def along(jvp: Callable[..., Array], shift: Array | None, dx: Array, *numbers: Array) -> Array:
    """The derivative along a direction, from a `jvp` of rows that are 2^shift times x.

    The last of the numbers is the direction in the temperature; a k before it has no unit.
    """
    if shift is None:
        return jvp(dx, *numbers)
    # Directions in x and the temperature are scaled with them, and first to near 1, whatever their
    # own size. Rows that are not scaled get the same bits as without any scaling.
    *in_k, dtau = numbers
    given, still = shift == 0, np.zeros_like(dtau)
    size = np.maximum(exponent_of(dx), exponent_of(dtau[:, None]))
    size[given] = 0
    as_given = (np.where(given, dk, still) for dk in in_k)
    moved = jvp(scaled(dx, -size), *as_given, scaled(dtau, -size))
    result = scaled(moved, shift + size)
    if in_k:
        along_k = jvp(np.zeros_like(dx), *in_k, still)
        result = np.where(given[:, None], moved, result + along_k)
    return result


def along_two(second: Callable[..., Any], shift: Array | None, state: Any, *given: Any) -> Any:
    """The results of `second`, from those for rows that are 2^shift times x.

    given: v and its directions in the numbers, a and its own. The result is linear in both, so
    directions in the units of x, and those in k, which has no unit, are computed apart and then
    scaled.
    """
    if shift is None:
        return second(state, *given)
    v, moves, a, others = given
    total: list[Any] = []
    for units, *first in _by_units(v, moves):
        for more, *other in _by_units(a, others):
            gx, *in_k, in_tau = second(state, *first, *other)
            both, alone = (units + more) * shift, units * shift
            each = [scaled(gx, both), *(scaled(gk, alone) for gk in in_k), scaled(in_tau, both)]
            total = [s + g for s, g in zip(total, each, strict=True)] if total else each
    return total


def _by_units(v: Array, moves: tuple[Array, ...]) -> list[tuple[int, Array, tuple[Array, ...]]]:
    """(1, direction in x and the temperature), and (0, direction in k) if there is one."""
    *in_k, dtau = moves
    still = np.zeros_like(dtau)
    parts: list[tuple[int, Array, tuple[Array, ...]]] = [(1, v, (*(still for _ in in_k), dtau))]
    if any(dk.any() for dk in in_k):
        parts.append((0, np.zeros_like(v), (*in_k, still)))
    return parts
