"""Handlers in machine code: which calls have one, and the data that XLA and the handler need.

A handler (`handlers`) reads XLA's call frame, runs the same kernels as the operator of arrays, by
their addresses, and returns. Rare cases it leaves to Python, which then does the whole call.
Kernels that Python has compiled for it, as for a first row with infinities, the handler runs from
then on.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import llvmlite.binding
import numpy as np
from numba import types

from .._compile.decorators import c_address, called_by_c
from .._compile.subnormals import keep, restore
from .._curves.base import is_steep
from .._curves.user import UserCurve
from .._threads import pool
from .._threads.jobs import WORD, get
from .._threads.long_rows import LONG
from .._threshold.records import FLAGS
from ..gradtopk.records import SHORT_32, SOLUTION
from . import bfloat16, sharing
from .calls import Call
from .frame import EXTENSION
from .handlers.iterations import ITERATIONS, MARK, MARK_REAL
from .handlers.subsets import MIDDLING_SUBSETS, SHORT_SUBSETS, SUBSETS, limits_of
from .handlers.thresholds import THRETOPK
from .handlers.verbs import Sample, Setting, Verb
from .sharing import (
    ENTRY_POINT,
    HANDLER_DATA,
    HELP,
    KERNEL,
    PYTHON,
    SHARED,
    THREADS,
    call_c,
    handler_data_of,
)

VERBS = {"mark", "solve", "jvp", "vjp"}


class Awaited(NamedTuple):
    """A kernel that a handler will run once it is compiled."""

    kernel: Any
    given: tuple[Any, ...]
    handler_data: Any
    small: bool


class Compiled(NamedTuple):
    """A handler: its name, its address, its data, and the kernels it waits for."""

    name: str
    address: int
    handler_data: Any
    awaited: tuple[Awaited, ...] = ()


_known: dict[str, Compiled] = {}
# Handlers that may have been called, by (verb, key, type of the rows) and name.
_called: dict[tuple[str, str, str], dict[str, Compiled]] = {}


def _verbs_of(call: Call, options: Any, dtype: Any, n: int) -> dict[str, Verb]:
    """The verbs of an operator that have a handler."""
    mark = {"mark": MARK_REAL if call.op.real_k else MARK}
    if call.name == "thretopk":
        own = isinstance(options.curve, UserCurve) or is_steep(options.curve)
        return mark if own or not options.method.sampled else {**THRETOPK, **mark}
    if call.name == "gradtopk":
        if options != "auto":
            return mark
        if n <= SHORT_32.always:
            return {**SHORT_SUBSETS, **mark}
        return {**(MIDDLING_SUBSETS if n <= limits_of(dtype).most else SUBSETS), **mark}
    return {**ITERATIONS, **mark} if call.name in ("itertopk", "wsoftmaxtopk") else mark


def work_of(call: Call) -> float:
    """The work for each entry of x, as `_threads.pool.over` counts it."""
    known = {"thretopk": 1, "gradtopk": 3, "hardtopk": 4}
    return known.get(call.name, np.inf)  # of an iteration k times as much, and k is not known yet


def _made(verb: Verb, setting: Setting, name: str) -> Any:
    """The handler as XLA calls it."""
    do = verb.make(setting)

    @functools.partial(called_by_c, label=name)
    def handle(frame):
        control = keep()
        handler_data, done = handler_data_of(name), False
        if get(frame + EXTENSION) == 0:
            try:
                done = do(frame, handler_data)
            except Exception:  # out of memory, for example: Python raises it again, with a message
                done = False
        error = 0 if done else call_c(get(handler_data + PYTHON), frame)
        restore(control)
        return error

    return handle


def _like(dtype: Any, n: int, is_vjp: bool) -> Sample:
    x, reals, whole = np.empty((1, n), dtype), np.empty(1), np.empty(1, np.int64)
    state, flags = np.empty((1, SOLUTION)), np.zeros(FLAGS, np.bool_)
    return Sample(x, reals, whole, state, flags, np.empty((1, int(is_vjp))))


def _fill(awaited: Awaited) -> None:
    """Write a kernel's thread data and then its address, which marks it as ready."""
    kernel, given, handler_data, small = awaited
    if handler_data[KERNEL // WORD] != 0:
        return
    code = pool.code_of(kernel, given)
    if not small:
        handler_data[ENTRY_POINT // WORD] = code.entry_point
        handler_data[THREADS // WORD] = pool.thread_count()
        handler_data[SHARED // WORD] = c_address(sharing.shared, *6 * [types.int64])
        handler_data[HELP // WORD] = c_address(sharing.help_out, types.int64)
    handler_data[KERNEL // WORD] = code.address


def tell_what_is_compiled(verb: str, call: Call, kind: str) -> None:
    """Fill the data of those kernels that Python has compiled, in this call or another."""
    for made in _called.get((verb, call.key, kind), {}).values():
        for each in made.awaited:
            if pool.is_compiled(each.kernel, each.given):
                _fill(each)


def compile_what_is_awaited() -> None:
    """Compile all kernels that the known handlers may run."""
    for made in _known.values():
        for each in made.awaited:
            _fill(each)


@functools.cache
def handler(verb: str, kind: str, call: Call, n: int, small: bool, python: Any) -> Any:
    """A handler, or None if Python is to be called.

    `kind`: the type of the rows; `n`: their length; `small`: whether all of them are too little
    work for a second thread; `python`: the address of the function that calls Python.
    """
    if verb not in VERBS or not 0 < n < LONG:
        return None
    options, dtype = call.op.check_options(call.options), np.dtype(kind).type
    found = _verbs_of(call, options, dtype, n).get(verb)
    if found is None:
        return None
    like = _like(dtype, n, verb == "vjp")
    kernels = found.kernels(options, like)
    all_kernels = [*kernels, *found.further(options, like)]
    functions = [kernel.py_func for kernel, _ in all_kernels]
    names = " ".join(f"{each.__module__}.{each.__name__}" for each in functions)
    # For equal options, however they are spelled, the code is the same; a mask has the same for all
    # operators.
    what = call.op.real_k if verb == "mark" else (call.name, options)
    spelled = f"{verb} {what} {kind} {names} {small}"
    name = f"softtopk_nb_{hashlib.sha256(spelled.encode()).hexdigest()[:16]}"
    if name not in _known:  # it may be there already, from rows of another length
        handler_data = np.zeros(HANDLER_DATA * len(all_kernels), np.int64)
        handler_data[PYTHON // WORD] = python
        llvmlite.binding.add_symbol(name, handler_data.ctypes.data)
        setting = Setting(options, dtype, sharing.alone if small else sharing.together)
        address = c_address(_made(found, setting, name), types.int64)
        own = handler_data.reshape(-1, HANDLER_DATA)
        awaited = (Awaited(*each, own[i], small) for i, each in enumerate(all_kernels))
        _known[name] = Compiled(name, address, handler_data, tuple(awaited))
    for each in _known[name].awaited[: len(kernels)]:
        _fill(each)
    _called.setdefault((verb, call.key, kind), {})[name] = _known[name]
    return _known[name]


def by_pieces(inner: Compiled, python: Any) -> Compiled:
    """The handler of bfloat16 rows that calls this one of float32 rows."""
    name = f"{inner.name}_by_pieces"
    if name not in _known:
        bits, wide = np.empty((1, 1), np.uint16), np.empty((1, 1), np.float32)
        handler_data = np.zeros(2 * HANDLER_DATA, np.int64)
        handler_data[bfloat16.INNER // WORD], handler_data[PYTHON // WORD] = inner.address, python
        _fill(Awaited(bfloat16.widen, (bits, wide), handler_data[bfloat16.WIDEN // WORD :], False))
        _fill(
            Awaited(bfloat16.narrow, (wide, bits), handler_data[bfloat16.NARROW // WORD :], False)
        )
        llvmlite.binding.add_symbol(name, handler_data.ctypes.data)
        _known[name] = Compiled(name, c_address(bfloat16.made(name), types.int64), handler_data)
    return _known[name]
