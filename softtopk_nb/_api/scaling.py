"""Temperatures near the ends of a type's range, brought where kernels can divide by them.

No operator changes when x and the temperature are multiplied by the same number, and a power of two
costs no digit. So a row whose temperature has no reciprocal of its type, or one beside which
differences of x overflow, is solved as a multiple of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Temperatures that kernels are given as they are, for each type of x.
MODERATE: dict[type, tuple[float, float]] = {
    np.float32: (2.0**-60, 2.0**60),
    np.float64: (2.0**-500, 2.0**500),
}
ROOM = 4  # binary digits of the exponent that sums and differences of entries may need


def is_moderate(temperature: Any, kind: type) -> bool:
    """Whether all temperatures are, beside entries of this type."""
    least, most = MODERATE[kind]
    if isinstance(temperature, float):
        return least <= temperature <= most
    return bool(((temperature >= least) & (temperature <= most)).all())


def rescaled(x: Array, tau: Array) -> tuple[Array, Array, Array]:
    """(2^s x, 2^s tau, s) with an s for each row that brings its temperature near 1.

    A row with entries so large that they would overflow is brought as near as they allow: there all
    differences that are not 0 are many temperatures.
    """
    least, most = MODERATE[x.dtype.type]
    shift = np.where((tau < least) | (tau > most), -np.frexp(tau)[1], 0)
    room = np.finfo(x.dtype).maxexp - ROOM - exponent_of(x)
    shift = np.where(shift > 0, np.clip(room, 0, shift), shift)
    return scaled(x, shift), scaled(tau, shift), shift


def exponent_of(values: Array) -> Array:
    """The s of each row for which its largest finite value lies between 2^(s-1) and 2^s."""
    largest = np.max(np.abs(values), axis=1, where=np.isfinite(values), initial=0)
    exponent: Array = np.frexp(largest)[1]
    return exponent


def scaled(values: Array, shift: Array | None) -> Array:
    """2^s times the values of each row; the values themselves without an s."""
    if shift is None:
        return values
    with np.errstate(over="ignore", under="ignore"):
        moved: Array = np.ldexp(values, shift.reshape(-1, *(1,) * (values.ndim - 1)))
    return moved


def along(push: Callable[..., Array], shift: Array | None, dx: Array, *numbers: Array) -> Array:
    """The derivative along a direction, of what `push` gives for rows that are 2^shift times x.

    The last of the numbers is the direction in the temperature; a k before it has no unit.
    """
    if shift is None:
        return push(dx, *numbers)
    # What goes with x and the temperature is as much larger as they are smaller. Directions in them
    # are brought near 1 on the way, whatever their own size. Rows that are as given stay as alone.
    *in_k, dtau = numbers
    given, still = shift == 0, np.zeros_like(dtau)
    size = np.maximum(exponent_of(dx), exponent_of(dtau[:, None]))
    size[given] = 0
    as_given = (np.where(given, dk, still) for dk in in_k)
    moved = push(scaled(dx, -size), *as_given, scaled(dtau, -size))
    result = scaled(moved, shift + size)
    if in_k:
        along_k = push(np.zeros_like(dx), *in_k, still)
        result = np.where(given[:, None], moved, result + along_k)
    return result


def along_two(second: Callable[..., Any], call: Any, state: Any, *given: Any) -> Any:
    """What `second` gives for rows that are 2^shift times x: `call` says so.

    given: v and its directions in the numbers, a and its own. It is linear in both, so what is in
    the units of x, and a k, which has no unit, are taken apart and scaled after it.
    """
    if call.shift is None:
        return second(call, state, *given)
    v, moves, a, others = given
    total: list[Any] = []
    for units, *first in _by_units(v, moves):
        for more, *other in _by_units(a, others):
            gx, *in_k, in_tau = second(call, state, *first, *other)
            both, alone = (units + more) * call.shift, units * call.shift
            each = [scaled(gx, both), *(scaled(gk, alone) for gk in in_k), scaled(in_tau, both)]
            total = [s + g for s, g in zip(total, each, strict=True)] if total else each
    return total


def _by_units(v: Array, moves: tuple[Array, ...]) -> list[tuple[int, Array, tuple[Array, ...]]]:
    """(1, a direction in x and the temperature), and (0, that in k) if there is one."""
    *in_k, dtau = moves
    still = np.zeros_like(dtau)
    parts: list[tuple[int, Array, tuple[Array, ...]]] = [(1, v, (*(still for _ in in_k), dtau))]
    if any(dk.any() for dk in in_k):
        parts.append((0, np.zeros_like(v), (*in_k, still)))
    return parts
