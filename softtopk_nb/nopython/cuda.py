"""The device functions that `nopython.device` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import float64, int64

from .._cuda.row_kernels import Scratch
from .._cuda.target import cuda, device
from .._cuda.thread_groups import Span, ThreadGroup, made_once, tools
from .._curves.base import origin
from .._nonfinite import ALL, UNDEFINED, WITH_INFINITIES
from .._threshold.cuda.rows import passes
from .._threshold.methods import METHODS
from .._threshold.newton import inverse_temperature_of
from .._threshold.records import RECORD, REST, C, D
from ..gradtopk.cuda.contour import contours
from ..gradtopk.nodes import NODES
from ..hardtopk.cuda.rows import wanted
from ..hardtopk.cuda.solve import row_value as hard_row
from ..iterative.cuda.rows import row_value
from ..iterative.formulas import Plain, Weighted

HELD = 32  # bytes of a row in the registers of a thread
ENOUGH = 0.01  # a step of this many temperatures ends the search for GradTopK's tilt


@device
def _span(x):
    """All of an array as a span, read entry by entry."""
    return Span(x, int64(0), int64(x.shape[0]), 0)


@made_once
def _thretopk(T: Any, group: ThreadGroup, curve: Any) -> Any:
    t, do = tools(T, group), passes(T, group, curve, METHODS["newton"])
    held = group.held

    @device
    def thretopk(x, k, temperature, out, shared):
        regs, span = cuda.local.array(held, T), _span(x)
        s = Scratch(regs, regs, shared[RECORD:], shared[:RECORD])
        k, tau = float64(k), float64(temperature)
        code = do.survey(span, k, tau, s)
        if code > WITH_INFINITIES:
            do.constant(span, code, k, s, out)
            lam = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
        else:
            inv = inverse_temperature_of(tau, T(1))
            do.search(span, x, inv, s)
            do.fill(span, inv, s, out)
            lam = s.record[C] + tau * (s.record[D] + s.record[REST] - origin(curve))
        t.meet()  # the group sees what it has written, and `shared` is free
        return lam

    return thretopk


@made_once
def _hardtopk(T: Any, group: ThreadGroup, curve: Any) -> Any:
    t, fill, held = tools(T, group), hard_row(T, group, False), group.held

    @device
    def hardtopk(x, k, out, shared):
        regs, span = cuda.local.array(held, T), _span(x)
        fill(span, wanted(float64(k), 1.0, span.n), Scratch(regs, regs, shared, shared), out)
        t.meet()

    return hardtopk


@made_once
def _iteration(T: Any, group: ThreadGroup, kind: Any) -> Any:
    t, fill = tools(np.float64, group), row_value(T, group, kind)

    @device
    def iteration(x, k, temperature, out, shared, work):
        fill(_span(x), float64(k), float64(temperature), work, int64(0), shared, out)
        t.meet()

    return iteration


@made_once
def _gradtopk(T: Any, group: ThreadGroup, curve: Any) -> Any:
    t, do, held = tools(T, group), contours(T, group, ENOUGH), group.held

    @device
    def gradtopk(x, k, temperature, out, shared):
        regs, span = cuda.local.array(held, T), _span(x)
        s, k, tau = Scratch(regs, regs, shared, shared), float64(k), float64(temperature)
        code = do.tilt(span, k, tau, s)
        if code > WITH_INFINITIES:
            do.constant(span, code, k, s, out)
        else:
            do.quadrature(span, k, do.opened(s.record, tau), s)
            do.marginals(span, tau, s, out)
        t.meet()

    return gradtopk


_MAKE: dict[str, Callable[[Any, ThreadGroup, Any], Any]] = {
    "thretopk": _thretopk,
    "gradtopk": _gradtopk,
    "hardtopk": _hardtopk,
    "itertopk": lambda T, group, curve: _iteration(T, group, Plain()),
    "wsoftmaxtopk": lambda T, group, curve: _iteration(T, group, Weighted()),
}


def make(name: str, dtype: Any, curve: Any, lanes: int) -> Any:
    """Make the function that `nopython.device` returns."""
    if name not in _MAKE:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(_MAKE)}")
    T = np.dtype(dtype).type
    if T not in (np.float32, np.float64):
        raise TypeError(f"dtype is {dtype!r}; expected float32 or float64")
    if lanes not in (1 << j for j in range(11)):
        raise ValueError(f"lanes is {lanes!r}; expected a power of 2 up to 1024")
    if name == "gradtopk" and lanes < NODES:
        raise ValueError(f"lanes is {lanes!r}; gradtopk takes whole warps, {NODES} at least")
    return _MAKE[name](T, ThreadGroup(lanes, HELD // np.dtype(T).itemsize, streams=True), curve)
