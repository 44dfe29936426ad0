"""Calls on CUDA devices: recorded programs, which one handler repeats for XLA.

What is launched for a call follows from its shapes, types and options, so it is recorded while JAX
lowers the call. The compiled program holds a hash of all that, no address: the handler looks it up
among the programs of this process, reads the stream and the addresses from XLA's call frame, and
launches. What it does not find is left to Python, which loads the kernels of a program that has
none yet, or says what is wrong.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import logging
import math
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import llvmlite.binding
import numpy as np
from jax.interpreters import mlir
from numba import types

from .._api.operator import registry
from .._compile.decorators import c_address
from .._compile.stamp import package_stamp
from .._threads.jobs import WORD
from . import foreign
from .calls import Call
from .handlers import recorded as handlers
from .handlers.recorded import ALIGNED, FIRST, KEY, LENGTH, NOT_LOADED, PLACES, PYTHON, UNFIT

TARGET = "softtopk_nb.recorded"  # the name by which XLA calls the handler
_DATA = "softtopk_nb_recorded"  # that by which the linker knows its data
# From JAX 0.8 on it is a public name.
_home = jax if hasattr(jax, "enable_x64") else importlib.import_module("jax.experimental")
enable_x64: Any = _home.enable_x64

_LOG = logging.getLogger("softtopk_nb")


@functools.cache
def _recording() -> Any:
    """The module that records, imported with the first call that is lowered for a device."""
    return importlib.import_module(".._api.device_recording", __package__)


class _Asked(ctypes.Structure):
    """A call that the handler leaves to Python, and what it has found."""

    _fields_ = [("frame", ctypes.POINTER(foreign.Frame)), ("found", ctypes.c_int64)]


class _Number(ctypes.Structure):
    """An attribute that is a number, as its bits."""

    _fields_ = [("dtype", ctypes.c_int), ("bits", ctypes.POINTER(ctypes.c_int64))]


class Known(NamedTuple):
    """A program of this process."""

    name: str  # of its verb and operator
    program: Any
    buffers: tuple[tuple[tuple[int, int], ...], ...]  # (slot, entries) of arguments and of results


class _Programs:
    """The programs of this process, by key, and where the handler finds those that are loaded."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self._lock = threading.Lock()
        self._kept: dict[int, Any] = {}  # XLA's programs may call them for ever
        self._old: list[Any] = []
        self.data = np.zeros(2, np.int64)
        self._grow(64)

    def load(self, key: int, device: int) -> Any:
        """The words of a program, with its kernels loaded on a device."""
        with self._lock:
            if key not in self._kept:
                known = self.known[key]
                sides = [word for side in known.buffers for pair in side for word in pair]
                head = FIRST, *map(len, known.buffers), *sides
                words = np.array([*head, *known.program.table(device)], np.int64)
                words[LENGTH:FIRST] = words.size, *map(len, known.buffers)
                self._kept[key] = words
                if 2 * len(self._kept) > (len(self._places) - 2) // 2:
                    self._grow(len(self._places) - 2)
                self._put(key, words)
            return self._kept[key]

    def _grow(self, places: int) -> None:
        """Make room for so many pairs; the old table stays, as a handler may be reading it."""
        self._places = np.zeros(2 + 2 * places, np.int64)
        self._places[0] = places - 1
        self._old.append(self._places)
        for each in self._kept.items():
            self._put(*each)
        self.data[PLACES // WORD] = self._places.ctypes.data

    def _put(self, key: int, words: Any) -> None:
        mask = int(self._places[0])
        i = key & mask
        while self._places[2 + 2 * i] not in (0, key):
            i = (i + 1) & mask
        self._places[3 + 2 * i] = words.ctypes.data
        self._places[2 + 2 * i] = key  # last: it marks the pair as valid


_programs = _Programs()


def _devices() -> list[Any]:
    """The CUDA devices of this process."""
    try:
        return jax.local_devices(backend="cuda")
    except RuntimeError:
        return []


def _device() -> int:
    """The number of the device that kernels are loaded on."""
    devices = _devices()
    return devices[0].local_hardware_id if devices else 0


def _entries(buffers: foreign.Buffers) -> list[int]:
    each = (buffers.each[i].contents for i in range(buffers.count))
    return [math.prod(buffer.dims[: buffer.rank]) for buffer in each]


def _check(key: int, given: list[list[int]]) -> Known:
    """The program with this key, for arguments and results of so many entries."""
    known = _programs.known.get(key)
    if known is None:
        raise ValueError(
            "an operator on a device was compiled in another process, and this one has not "
            "recorded what it launches: trace and compile the function here first"
        )
    expected = [[entries for _, entries in side] for side in known.buffers]
    if given != expected:
        raise ValueError(
            f"{known.name} was recorded for arrays of {expected[0]} entries and is called on "
            f"{given[0]}: rows were divided later; divide them by jax.shard_map"
        )
    return known


def _prepare(frame: foreign.Frame, found: int) -> None:
    """Load the program of a call, or raise what is wrong with it."""
    if foreign.sizes(frame) != foreign.EXPECTED:
        raise RuntimeError("XLA's call frame has parts of other sizes than those that are known")
    number = ctypes.cast(frame.attributes.each[KEY], ctypes.POINTER(_Number)).contents
    key = number.bits[0]
    known = _check(key, [_entries(frame.arguments), _entries(frame.results)])
    if found == NOT_LOADED:
        _programs.load(key, _device())
    elif found == UNFIT:
        raise ValueError(f"{known.name} got memory that is not aligned to {ALIGNED} bytes")
    else:
        reasons = {handlers.NO_STREAM: "XLA gives no stream", handlers.NO_MEMORY: "out of memory"}
        reason = reasons.get(found, f"error {found} of CUDA's driver")
        raise RuntimeError(f"{known.name} could not be launched: {reason}")


def _answer(address: Any) -> Any:
    """Answer XLA or the handler: see `foreign`."""
    asked = address.contents
    frame = asked.frame.contents
    if foreign.describe(frame, foreign.COMMAND_BUFFER_COMPATIBLE):
        return None
    try:
        _prepare(frame, asked.found)
    except BaseException as error:  # no exception may pass through XLA's own frames
        return foreign.error_of(frame, error)
    return None


_python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Asked))(_answer)


@functools.cache
def handler() -> int:
    """The address of the handler, compiled at the first call."""
    _programs.data[PYTHON // WORD] = ctypes.cast(_python, ctypes.c_void_p).value or 0
    llvmlite.binding.add_symbol(_DATA, _programs.data.ctypes.data)
    module = _recording()
    made = handlers.make(_DATA, module.replay, (module.SLOTS, module.K, module.TEMPERATURE))
    return c_address(made, types.int64)


@functools.cache
def _register() -> None:
    """Register the handler with XLA, of a JAX with or without CUDA."""
    capsule = jax.ffi.pycapsule(ctypes.c_void_p(handler()))
    jax.ffi.register_ffi_target(TARGET, capsule, platform="CUDA")


# Lowering.


def _constant(operand: Any) -> float | None:
    """The constant that an operand is broadcast from, or None."""
    operation = operand.owner
    while getattr(operation, "name", "") == "stablehlo.broadcast_in_dim":
        operation = operation.operands[0].owner
    if getattr(operation, "name", "") != "stablehlo.constant":
        return None
    value: Any = mlir.ir.DenseElementsAttr(operation.attributes["value"])
    return float(value.get_splat_value().value) if value.is_splat else None


def _form(op: Any, n: int, slot: int, constant: float | None) -> Any:
    """The form of a number that is this constant, if it is one."""
    module = _recording()
    if slot == module.K:
        known = constant is not None and 0 <= constant <= n
        return module.IN_MEMORY if not known else module.OF_CALL if op.has_programs else constant
    if slot == module.TEMPERATURE:
        known = constant is not None and 5e-324 <= constant <= 1.7e308
        return module.OF_CALL if known else module.IN_MEMORY
    in_k = slot in (module.FIRST + 1, module.OTHER + 1)
    return 0.0 if constant == 0 or (in_k and not op.real_k) else module.IN_MEMORY


def _aval(shape: Any, dtype: Any) -> Any:
    return jax.core.ShapedArray(shape, np.dtype(dtype))


def _converted(value: Any, dtype: Any) -> Any:
    """An array of this type, float64 in any mode of JAX."""
    kind = mlir.ir.RankedTensorType(value.type)
    real = mlir.dtype_to_ir_type(np.dtype(dtype))
    if kind.element_type == real:
        return value
    wanted = mlir.ir.RankedTensorType.get(kind.shape, real)
    made = mlir.ir.Operation.create("stablehlo.convert", results=[wanted], operands=[value])
    return made.result


def _whole_k(context: Any, op: Any, x: Any, k: Any) -> Any:
    """k for the mask of the round(k) largest; n + 1, for a row of NaN, where a row has fewer."""
    constant = _constant(k)
    if not op.real_k or (constant is not None and constant.is_integer()):
        return k

    def whole(x: Any, k: Any) -> Any:
        return jnp.where((x > -jnp.inf).sum(-1) < k, x.shape[-1] + 1, jnp.rint(k))

    avals = context.avals_in[:2]
    rule = mlir.lower_fun(whole, multiple_results=False)
    (result,) = rule(context.replace(avals_in=avals, avals_out=avals[1:]), x, k)
    return result


def _by_buffers(key: int, numbers: tuple[float, float], avals: list[Any]) -> Any:
    """The call of a program by way of Python, which gets addresses and the stream."""
    from jax.experimental.buffer_callback import buffer_callback

    def compute(context: Any, results: Any, *arguments: Any) -> None:
        known, module = _programs.known[key], _recording()
        starts: list[Any] = [0] * module.SLOTS
        starts[module.K], starts[module.TEMPERATURE] = numbers
        for side, buffers in zip((arguments, results), known.buffers, strict=True):
            for buffer, (slot, _) in zip(side, buffers, strict=True):
                starts[slot] = buffer.__cuda_array_interface__["data"][0]
        known.program.run(_device(), context.stream, starts)

    shapes = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in avals]
    return buffer_callback(compute, shapes, command_buffer_compatible=True)


class _Plan(NamedTuple):
    """A call as XLA gets it: arguments and results with their slots and types."""

    arguments: tuple[tuple[int, Any], ...]
    results: tuple[tuple[int, Any], ...]
    recorded: Any


def _planned(verb: str, problem: Any, avals_in: Any, avals_out: Any) -> _Plan:
    """Record a verb, and lay out its call."""
    module = _recording()
    recorded, forms, rank = module.record(verb, problem), dict(problem.forms), avals_in[0].ndim
    arguments = [
        (slot, aval if aval.ndim == rank else _aval(aval.shape, np.float64))
        for slot, aval in enumerate(avals_in)
        if forms.get(slot, module.IN_MEMORY) == module.IN_MEMORY
        and (slot != module.STATE or (aval.size and module.keeps(problem)))
    ]
    results = [
        (module.RESULTS + i, aval if aval.ndim == rank else _aval(aval.shape, np.float64))
        for i, (aval, result) in enumerate(zip(avals_out, recorded.results, strict=True))
        if result is not None or aval.ndim == rank
    ]
    if recorded.program.bytes:
        results.append((module.SCRATCH, _aval((recorded.program.bytes,), np.uint8)))
    return _Plan(tuple(arguments), tuple(results), recorded)


def _sizes(plan: _Plan) -> Any:
    """(slot, entries) of arguments and of results, as many as the program reads and writes."""
    written = {
        _recording().RESULTS + i: each.block.size
        for i, each in enumerate(plan.recorded.results)
        if each is not None
    }
    return (
        tuple((slot, aval.size) for slot, aval in plan.arguments),
        tuple(
            (slot, written[slot] // aval.dtype.itemsize if slot in written else aval.size)
            for slot, aval in plan.results
        ),
    )


def _known(name: str, problem: Any, plan: _Plan) -> int:
    """The key of a program, which is kept, and loaded where there is a device."""
    spelled = repr((package_stamp(), name, problem.shape, problem.dtype, problem.forms))
    digest = hashlib.sha256(spelled.encode()).digest()
    key = int.from_bytes(digest[:8], "little", signed=True) | 1  # not 0, which marks a free place
    _programs.known.setdefault(key, Known(name, plan.recorded.program, _sizes(plan)))
    if _devices():
        _programs.load(key, _device())
    return key


def lowered(verb: str, call: Call, context: Any, operands: Any) -> Any:
    """The results of a primitive by a program that is recorded here; None if there is none."""
    x = context.avals_in[0]
    if x.dtype == jnp.bfloat16 or not foreign.are_known(x.shape) or x.size == 0:
        return None
    try:
        return _lowered(verb, call, context, [*operands])
    except (ImportError, NotImplementedError, ValueError) as error:
        _LOG.info("%s of %s is computed on the host, by a callback: %s", verb, call.key, error)
        return None


def _lowered(verb: str, call: Call, context: Any, operands: list[Any]) -> Any:
    module, x, op, options = _recording(), context.avals_in[0], call.op, call.settings
    if "k" not in op.names:
        raise NotImplementedError("what is launched for operators without a k is not recorded")
    name = f"{verb} of {call.key}"
    if verb == "mark":
        operands[module.K] = _whole_k(context, op, *operands[:2])
        verb, op, options = "value", registry["hardtopk"], ()
    constants = {slot: _constant(operands[slot]) for slot in module.NUMBERS if slot < len(operands)}
    forms = tuple((slot, _form(op, x.shape[-1], slot, constants[slot])) for slot in constants)
    shape = x.size // x.shape[-1], x.shape[-1]
    problem = module.Problem(op, options, shape, np.dtype(x.dtype).type, forms)
    avals_in = [*context.avals_in]
    if verb == "loss":  # it has no state: the target is what other verbs take as a direction
        operands.insert(module.STATE, None)
        avals_in.insert(module.STATE, _aval((*x.shape[:-1], 0), np.float64))
    plan = _planned(verb, problem, avals_in, context.avals_out)
    key = _known(name, problem, plan)
    avals = [aval for _, aval in plan.results]
    inner = context.replace(avals_in=[aval for _, aval in plan.arguments], avals_out=avals)
    values = [
        _converted(operands[slot], np.float64) if slot in constants else operands[slot]
        for slot, _ in plan.arguments
    ]
    of_k, of_temperature = (constants[slot] or 0.0 for slot in (module.K, module.TEMPERATURE))
    if foreign.is_known():
        _register()
        rule = jax.ffi.ffi_lowering(TARGET)
        numbers = {"k": np.float64(of_k), "temperature": np.float64(of_temperature)}
        found = rule(inner, *values, key=np.int64(key), **numbers)
    else:
        found = mlir.lower_fun(_by_buffers(key, (of_k, of_temperature), avals))(inner, *values)
    by_slot = dict(zip((slot for slot, _ in plan.results), found, strict=True))
    return [
        _result(by_slot.get(module.RESULTS + i), aval, x)
        for i, aval in enumerate(context.avals_out)
    ]


def _result(found: Any, aval: Any, x: Any) -> Any:
    """A result in its type; zeros where the program writes none."""
    if found is None:
        zeros = np.broadcast_to(np.zeros((), aval.dtype), aval.shape)
        return mlir.ir_constant(zeros)
    return found if aval.ndim == x.ndim else _converted(found, aval.dtype)
