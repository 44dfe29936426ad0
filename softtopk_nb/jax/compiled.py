"""Handlers in machine code: which calls have one, and where XLA and the handler find what.

A handler (`handlers`) reads XLA's call frame, runs the kernels that the operator of arrays runs, by
their addresses, and returns. What is unusual it leaves to Python, which does the whole call. What
Python has compiled for it, as for a first row with infinities, the handler runs from then on.
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
from .sharing import HELP, KERNEL, PYTHON, SHARED, SLOTS, THREADS, call_c, slots_of

VERBS = {"mark", "solve", "push", "pull"}


class Awaited(NamedTuple):
    """A kernel that a handler runs once it is compiled."""

    kernel: Any
    given: tuple[Any, ...]
    slots: Any
    small: bool


class Compiled(NamedTuple):
    """A handler: its name, its address, what it keeps, and what it awaits."""

    name: str
    address: int
    slots: Any
    awaited: tuple[Awaited, ...] = ()


_known: dict[str, Compiled] = {}
# By verb, call and type of the rows: those that may be called, by name.
_called: dict[tuple[str, str, str], dict[str, Compiled]] = {}


def _verbs_of(call: Call, plan: Any, dtype: Any, n: int) -> dict[str, Verb]:
    """The verbs of an operator that have a handler."""
    mark = {"mark": MARK_REAL if call.op.real_k else MARK}
    if call.name == "thretopk":
        own = isinstance(plan.curve, UserCurve) or is_steep(plan.curve)
        return mark if own or not plan.method.sampled else {**THRETOPK, **mark}
    if call.name == "gradtopk":
        if plan != "auto":
            return mark
        if n <= SHORT_32.always:
            return {**SHORT_SUBSETS, **mark}
        return {**(MIDDLING_SUBSETS if n <= limits_of(dtype).most else SUBSETS), **mark}
    return mark if call.name == "hardtopk" else {**ITERATIONS, **mark}


def work_of(call: Call) -> float:
    """The work for each entry of x, as `_threads.pool.over` counts it."""
    known = {"thretopk": 1, "gradtopk": 3, "hardtopk": 4}
    return known.get(call.name, np.inf)  # of an iteration k times as much, which nobody knows yet


def _made(verb: Verb, setting: Setting, name: str) -> Any:
    """The handler itself, as XLA calls it."""
    do = verb.make(setting)

    @functools.partial(called_by_c, told=name)
    def handle(frame):
        control = keep()
        slots, done = slots_of(name), False
        if get(frame + EXTENSION) == 0:
            try:
                done = do(frame, slots)
            except Exception:  # without memory, say: Python meets it again, and says so
                done = False
        error = 0 if done else call_c(get(slots + PYTHON), frame)
        restore(control)
        return error

    return handle


def _like(dtype: Any, n: int, pulls: bool) -> Sample:
    x, reals, whole = np.empty((1, n), dtype), np.empty(1), np.empty(1, np.int64)
    state, flags = np.empty((1, SOLUTION)), np.zeros(FLAGS, np.bool_)
    return Sample(x, reals, whole, state, flags, np.empty((1, int(pulls))))


def _fill(awaited: Awaited) -> None:
    """Write where a kernel is and how it is shared out; its own address, which says so, last."""
    kernel, given, slots, small = awaited
    if slots[KERNEL // WORD] != 0:
        return
    address = pool.address_of(kernel, given)
    if not small:
        slots[THREADS // WORD] = pool.thread_count()
        slots[SHARED // WORD] = pool.address_of(sharing.shared, (0, 0, 0, given))
        slots[HELP // WORD] = c_address(sharing.help_out, types.int64)
    slots[KERNEL // WORD] = address


def tell_what_is_compiled(verb: str, call: Call, kind: str) -> None:
    """Fill the slots of those kernels that this call in Python, or another, has compiled."""
    for made in _called.get((verb, call.word, kind), {}).values():
        for each in made.awaited:
            if pool.is_compiled(each.kernel, each.given):
                _fill(each)


def compile_what_is_awaited() -> None:
    """Compile whatever a handler that is known may run."""
    for made in _known.values():
        for each in made.awaited:
            _fill(each)


@functools.cache
def handler(verb: str, kind: str, call: Call, n: int, small: bool, python: Any) -> Any:
    """A handler, or None if Python is to be called.

    `kind`: the type of the rows; `n`: their length; `small`: that all of them are not worth a
    second thread; `python`: the address of what calls Python.
    """
    if verb not in VERBS or not 0 < n < LONG:
        return None
    plan, dtype = call.op._plan(call.options), np.dtype(kind).type
    found = _verbs_of(call, plan, dtype, n).get(verb)
    if found is None:
        return None
    like = _like(dtype, n, verb == "pull")
    kernels = found.kernels(plan, like)
    all_kernels = [*kernels, *found.further(plan, like)]
    functions = [kernel.py_func for kernel, _ in all_kernels]
    names = " ".join(f"{each.__module__}.{each.__name__}" for each in functions)
    # Of equal plans, however they are spelled, the code is the same; of masks for all operators.
    what = call.op.real_k if verb == "mark" else (call.name, plan)
    spelled = f"{verb} {what} {kind} {names} {small}"
    name = f"softtopk_nb_{hashlib.sha256(spelled.encode()).hexdigest()[:16]}"
    if name not in _known:  # else by rows of another length, say
        slots = np.zeros(SLOTS * len(all_kernels), np.int64)
        slots[PYTHON // WORD] = python
        llvmlite.binding.add_symbol(name, slots.ctypes.data)
        setting = Setting(plan, dtype, sharing.alone if small else sharing.together)
        address = c_address(_made(found, setting, name), types.int64)
        own = slots.reshape(-1, SLOTS)
        awaited = (Awaited(*each, own[i], small) for i, each in enumerate(all_kernels))
        _known[name] = Compiled(name, address, slots, tuple(awaited))
    for each in _known[name].awaited[: len(kernels)]:
        _fill(each)
    _called.setdefault((verb, call.word, kind), {})[name] = _known[name]
    return _known[name]


def by_pieces(inner: Compiled, python: Any) -> Compiled:
    """The handler of bfloat16 rows that calls this one of float32 rows."""
    name = f"{inner.name}_by_pieces"
    if name not in _known:
        bits, wide = np.empty((1, 1), np.uint16), np.empty((1, 1), np.float32)
        slots = np.zeros(2 * SLOTS, np.int64)
        slots[bfloat16.INNER // WORD], slots[PYTHON // WORD] = inner.address, python
        _fill(Awaited(bfloat16.widen, (bits, wide), slots[bfloat16.WIDEN // WORD :], False))
        _fill(Awaited(bfloat16.narrow, (wide, bits), slots[bfloat16.NARROW // WORD :], False))
        llvmlite.binding.add_symbol(name, slots.ctypes.data)
        _known[name] = Compiled(name, c_address(bfloat16.made(name), types.int64), slots)
    return _known[name]
