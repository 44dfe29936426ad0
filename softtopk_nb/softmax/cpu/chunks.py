"""softmax, its logarithm and logsumexp of one row in chunks; `options` is the function's name."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..records import EXCESS, TOP
from . import long
from . import rows as kernels


def ends(options: str) -> tuple[float, float]:
    """The values at entries of +inf and of -inf."""
    return (0.0, -np.inf) if options == "log_softmax" else (1.0, 0.0)


def kind(n: int, seen: Any, *numbers: Any) -> Any:
    """(-1, whether only the finite entries are solved, the numbers for them) of a row."""
    alone = seen.excluded > 0 == seen.nans + seen.above and seen.excluded < n
    return -1, alone, numbers


def unmoved(options: str, solved: Any) -> float | None:
    """The derivative of a row that is constant, 0 or NaN; None for any other row."""
    value = np.empty(1)
    top = solved.state[..., TOP].item()
    return float(value[0]) if kernels.constant(top, options == "logsumexp", value) else None


def value(x: Any, numbers: Any, options: str, look: Any, out: Any) -> Any:
    """Write the value; returns the state."""
    record = long.record_of(look)
    if options == "logsumexp":
        out = np.empty(0, x.dtype)
    yield from long.value_finite(x, numbers[0], record, options == "log_softmax", out)
    return record


def jvp(x: Any, options: str, solved: Any, v: Any, moves: Any, out: Any) -> Any:
    """Write the derivative along v and `moves`; returns it if it is a single number."""
    (tau,), (dtau,), record = solved.numbers, moves, solved.state
    if options == "logsumexp":
        return (yield from long.jvp_logsumexp_finite(x, tau, record, v, dtau))
    logs = options == "log_softmax"
    return (yield from long.jvp_finite(x, tau, record, logs, v, dtau, out))


def vjp(x: Any, options: str, solved: Any, g: Any, out: Any) -> Any:
    """Write the gradient in x; returns those in the numbers."""
    (tau,), record = solved.numbers, solved.state
    if options == "logsumexp":
        return ((yield from long.vjp_logsumexp_finite(x, tau, record, g, out)),)
    return ((yield from long.vjp_finite(x, tau, record, options == "log_softmax", g, out)),)


def number(name: str, x: Any, options: str, solved: Any) -> Any:
    """The value of logsumexp, from the record of a row."""
    yield from ()
    (tau,), record = solved.numbers, solved.state
    return record[TOP] + tau * np.log1p(record[EXCESS])


def number_of_few(name: str, options: str, rows: Any, solved: Any) -> float:
    """The value of logsumexp for a row of few entries, from its record."""
    (tau,), record = solved.numbers, solved.state[0]
    return float(record[TOP] + tau * np.log1p(record[EXCESS]))
