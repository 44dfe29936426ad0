"""The device functions that `nopython.device` hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import float64, int64

from .._cuda.target import cuda, device
from .._cuda.thread_groups import Team, made_once, tools
from .._curves.base import origin
from .._nonfinite import ALL, MIXED, UNDEFINED
from .._threshold.cuda.rows import RECORD, passes
from .._threshold.methods import METHODS
from .._threshold.newton import inverse_temperature_of
from .._threshold.records import REST, C, D
from ..gradtopk.cuda.contour import arrange, contours
from ..gradtopk.nodes import NODES
from ..hardtopk.cuda import row_value as hard_row
from ..hardtopk.cuda.rows import wanted
from ..iterative.cuda.rows import row_value
from ..iterative.formulas import Plain, Weighted

HELD = 32  # bytes of a row in the registers of a thread
ENOUGH = 0.01  # a step of so many temperatures ends the search for GradTopK's tilt


@made_once
def _thretopk(T: Any, team: Team, curve: Any) -> Any:
    t, do = tools(T, team), passes(T, team, curve, METHODS["newton"])
    held = team.held

    @device
    def thretopk(x, k, temperature, out, shared):
        regs = cuda.local.array(held, T)
        record, room = shared[:RECORD], shared[RECORD:]
        n, first, k, tau = int64(x.shape[0]), int64(0), float64(k), float64(temperature)
        code = do.survey(x, first, n, 0, k, tau, regs, record, room)
        if code > MIXED:
            do.constant(x, first, n, 0, code, k, regs, record, out)
            lam = np.nan if code == UNDEFINED else -np.inf if code == ALL else np.inf
        else:
            inv = inverse_temperature_of(tau, T(1))
            do.search(x, x, first, n, 0, inv, regs, record, room)
            do.fill(x, first, n, 0, inv, regs, record, out)
            lam = record[C] + tau * (record[D] + record[REST] - origin(curve))
        t.meet()  # the team sees what it has written, and `shared` is free
        return lam

    return thretopk


@made_once
def _hardtopk(T: Any, team: Team, curve: Any) -> Any:
    t, fill, held = tools(T, team), hard_row(T, team, False), team.held

    @device
    def hardtopk(x, k, out, shared):
        regs = cuda.local.array(held, T)
        n = int64(x.shape[0])
        fill(x, int64(0), n, 0, wanted(float64(k), 1.0, n), regs, shared, out)
        t.meet()

    return hardtopk


@made_once
def _iteration(T: Any, team: Team, kind: Any) -> Any:
    t, fill = tools(np.float64, team), row_value(T, team, kind)

    @device
    def iteration(x, k, temperature, out, shared, work):
        n, first = int64(x.shape[0]), int64(0)
        fill(x, first, n, float64(k), float64(temperature), work, first, shared, out)
        t.meet()

    return iteration


@made_once
def _gradtopk(T: Any, team: Team, curve: Any) -> Any:
    t, do, held = tools(T, team), contours(T, team, ENOUGH), team.held

    @device
    def gradtopk(x, k, temperature, out, shared):
        regs = cuda.local.array(held, T)
        memory = arrange(shared)
        n, first, k, tau = int64(x.shape[0]), int64(0), float64(k), float64(temperature)
        code = do.tilt(x, first, n, 0, k, tau, regs, memory)
        if code > MIXED:
            do.constant(x, first, n, 0, code, k, regs, memory.record, out)
        else:
            inv = inverse_temperature_of(tau, T(1))
            c, d, cut = do.opened(memory.record, inv)
            do.quadrature(x, first, n, 0, k, c, inv, d, cut, regs, memory)
            do.marginals(x, first, n, 0, inv, regs, memory, out)
        t.meet()

    return gradtopk


_MAKE: dict[str, Callable[[Any, Team, Any], Any]] = {
    "thretopk": _thretopk,
    "gradtopk": _gradtopk,
    "hardtopk": _hardtopk,
    "itertopk": lambda T, team, curve: _iteration(T, team, Plain()),
    "wsoftmaxtopk": lambda T, team, curve: _iteration(T, team, Weighted()),
}


def make(name: str, dtype: Any, curve: Any, lanes: int) -> Any:
    """What `nopython.device` returns."""
    if name not in _MAKE:
        raise ValueError(f"name is {name!r}; expected one of {', '.join(_MAKE)}")
    T = np.dtype(dtype).type
    if T not in (np.float32, np.float64):
        raise TypeError(f"dtype is {dtype!r}; expected float32 or float64")
    if lanes not in (1 << j for j in range(11)):
        raise ValueError(f"lanes is {lanes!r}; expected a power of 2 up to 1024")
    if name == "gradtopk" and lanes < NODES:
        raise ValueError(f"lanes is {lanes!r}; gradtopk takes whole warps, {NODES} at least")
    return _MAKE[name](T, Team(lanes, HELD // np.dtype(T).itemsize, streams=True), curve)
