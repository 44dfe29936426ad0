"""XLA's foreign function interface, by which a compiled program calls the operators.

XLA gives a handler one address, that of a call frame, whose layout is defined in `c_api.h`, which
comes with jaxlib: arguments, results and attributes with their addresses, types and shapes. This
module reads it in Python and computes in place: no array is copied but the results.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._threads import pool
from ..softmax.assignment import ConvergenceError
from . import bfloat16, calls, compiled, host

#: The version of the interface, (major, minor), for which the handlers are written: the oldest with
#: all they use. XLA accepts handlers of earlier versions than its own.
CLAIMED = (0, 1)
_FIRST = "softtopk_nb.first"  # the name of a handler that is registered as a test

_LOG = logging.getLogger("softtopk_nb")
_Address = ctypes.c_void_p

# XLA's codes for errors and for the types of numbers.
_INVALID_ARGUMENT, _ABORTED, _UNIMPLEMENTED, _INTERNAL = 3, 10, 12, 13
_TYPES = {
    code: np.dtype(name)
    for code, name in {1: "?", 4: "i4", 5: "i8", 8: "u4", 11: "f4", 12: "f8"}.items()
}
_METADATA = 1  # the kind of an extension
COMMAND_BUFFER_COMPATIBLE = 1  # a trait: what a handler launches may be captured in a CUDA graph


class _Extension(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("next", _Address)]


class _Version(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
    ]


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
    ]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", ctypes.POINTER(_Metadata))]


class _Api(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("version", _Version),
        ("internal", _Address),
        ("create_error", _Address),
    ]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    ]


class Buffer(ctypes.Structure):
    """An argument or result: its type, address and shape."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("dtype", ctypes.c_int),
        ("data", _Address),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    ]


class Buffers(ctypes.Structure):
    """All arguments, or all results."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("count", ctypes.c_int64),
        ("kinds", ctypes.POINTER(ctypes.c_int)),
        ("each", ctypes.POINTER(ctypes.POINTER(Buffer))),
    ]


class _Span(ctypes.Structure):
    _fields_ = [("data", _Address), ("length", ctypes.c_size_t)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", _Address),
        ("count", ctypes.c_int64),
        ("kinds", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("each", ctypes.POINTER(ctypes.POINTER(_Span))),
    ]


class Frame(ctypes.Structure):
    """A call frame."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_MetadataExtension)),
        ("api", ctypes.POINTER(_Api)),
        ("context", _Address),
        ("stage", ctypes.c_int),
        ("arguments", Buffers),
        ("results", Buffers),
        ("attributes", _Attributes),
    ]


Handler = ctypes.CFUNCTYPE(_Address, ctypes.POINTER(Frame))
_CreateError = ctypes.CFUNCTYPE(_Address, ctypes.POINTER(_ErrorArguments))


def describe(frame: Frame, traits: int = 0) -> bool:
    """Write what the handler is to the frame if XLA asks for it; returns whether it does."""
    if not frame.extension or frame.extension.contents.base.kind != _METADATA:
        return False
    described = frame.extension.contents.metadata.contents
    described.version.major, described.version.minor = CLAIMED
    described.traits |= traits
    return True


def sizes(frame: Frame) -> tuple[int, ...]:
    """The sizes that a call frame states for its parts, each of which shifts what follows it."""
    return frame.arguments.size, frame.results.size, frame.attributes.size


EXPECTED = ctypes.sizeof(Buffers), ctypes.sizeof(Buffers), ctypes.sizeof(_Attributes)


def _obstacle() -> str:
    """The reason why XLA cannot call the handlers, or "", found by registering a first one."""
    try:  # a handler refused before the backend exists would prevent it
        jax.local_devices(backend="cpu")
    except RuntimeError:
        return ""  # JAX_PLATFORMS leaves the CPU out, and nobody would ask a handler there
    seen: list[tuple[int, ...]] = []

    def look(address: Any) -> Any:
        seen.append(sizes(address.contents))
        describe(address.contents)

    try:
        _register(_FIRST, Handler(look))
    except Exception as error:  # JAX does not document the types of exceptions that it raises here
        return str(error)
    if seen and seen[0] == EXPECTED:
        return ""
    return f"the parts of its call frame have the sizes {seen}, expected {EXPECTED}"


@functools.cache
def is_known() -> bool:
    """Whether the XLA of this jaxlib can call the handlers."""
    if obstacle := _obstacle():
        _LOG.info(
            "XLA's foreign function interface cannot be used here: softtopk_nb.jax computes by "
            "jax.pure_callback, which is slower on small arrays (%s)",
            obstacle,
        )
    return not obstacle


class _Memory:
    """A buffer with NumPy's array interface: a type of `ctypes` for each size would take 100 us."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (buffer.data, False),
            "shape": shape,
            "typestr": dtype.str,
        }


def _array(buffer: Buffer) -> Any:
    """The memory of a buffer as an array."""
    shape, dtype = tuple(buffer.dims[: buffer.rank]), _TYPES[buffer.dtype]
    if not buffer.data or 0 in shape:
        return np.empty(shape, dtype)
    return np.asarray(_Memory(buffer, shape, dtype))


def _arrays(buffers: Buffers) -> list[Any]:
    return [_array(buffers.each[i].contents) for i in range(buffers.count)]


def _spread(arrays: list[Any]) -> list[Any]:
    """The arrays, with scalars that stand for all rows broadcast to the batch."""
    batch = arrays[0].shape[:-1]
    return [np.broadcast_to(each, batch) if each.ndim == 0 else each for each in arrays]


def _key(attributes: _Attributes) -> str:
    """The key of the call: the one attribute."""
    span = attributes.each[0].contents
    return ctypes.string_at(span.data, span.length).decode()


def error_of(frame: Frame, error: BaseException) -> Any:
    """An exception as an error of XLA, which JAX raises."""
    code = _INTERNAL
    if isinstance(error, (ValueError, TypeError)):
        code = _INVALID_ARGUMENT
    elif isinstance(error, NotImplementedError):
        code = _UNIMPLEMENTED
    elif isinstance(error, ConvergenceError):
        code = _ABORTED
    message = str(error) if code != _INTERNAL else repr(error)
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), code)
    return _CreateError(frame.api.contents.create_error)(ctypes.byref(arguments))


def _answer(compute: Any, address: Any) -> Any:
    """Answer XLA: state the version of its interface, or compute a call."""
    frame = address.contents
    if describe(frame):
        return None
    try:
        compute(_key(frame.attributes), _arrays(frame.arguments), _arrays(frame.results))
    except BaseException as error:  # no exception may pass through XLA's own frames
        return error_of(frame, error)
    return None


def _compute(verb: str, key: str, arguments: list[Any], results: list[Any]) -> None:
    """Compute a primitive, and write its results."""
    made = calls.find(key)
    where = {"out": results[0]} if verb in host.IN_PLACE else {}
    found = made.compute(verb, *_spread(arguments), **where)
    for result, values in zip(results, found, strict=True):
        if result is not values:
            result[...] = values
    compiled.tell_what_is_compiled(verb, made, str(arguments[0].dtype))


_handlers: dict[str, Any] = {}  # XLA keeps these addresses for ever


def _register(name: str, handler: Any) -> None:
    if name not in _handlers:
        _handlers[name] = handler  # also if it is refused
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
        jax.ffi.register_ffi_target_as_batch_partitionable(name)


def _wait_for_programs(process: int) -> None:
    """Wait until all programs that this thread has started on the CPU have ended."""
    if os.getpid() != process:
        return  # a forked child has no threads of XLA, and would wait forever
    for device in jax.local_devices(backend="cpu"):
        # A program waits for those that were started before it.
        jax.block_until_ready(jax.jit(jnp.negative)(jax.device_put(1, device)))


@functools.cache
def _end_in_order() -> None:
    """Make Python wait, as it ends, for programs that call it.

    It would end a thread of XLA that calls it later, and XLA waits for its threads forever.
    """
    atexit.register(_wait_for_programs, os.getpid())


@functools.cache
def _in_python(compute: Any) -> Any:
    """A handler that is `compute`, of the call's key, its arguments and its results."""
    _end_in_order()
    return Handler(functools.partial(_answer, compute))


def python_target(name: str, compute: Any) -> str:
    """The name by which XLA calls a function of a key, arguments and results."""
    name = f"softtopk_nb.{name}"
    _register(name, _in_python(compute))
    return name


@functools.cache
def _of_verb(verb: str) -> Any:
    return functools.partial(_compute, verb)


def are_known(shape: tuple[Any, ...]) -> bool:
    """Whether all sizes are numbers, and none a symbol of `jax.export`."""
    return all(isinstance(size, int) for size in shape)


def target(verb: str, call: calls.Call, x: Any) -> str | None:
    """The name by which XLA calls the primitive, registered if needed.

    None if x is bfloat16 and is to be converted.
    """
    python = _in_python(_of_verb(verb))
    address = ctypes.cast(python, ctypes.c_void_p).value
    # If the number of rows is not known yet, the handler may need all threads.
    small = are_known(x.shape) and x.size * compiled.work_of(call) < pool.WORTH_A_THREAD
    given: Any = (call, x.shape[-1], small, address)
    if x.dtype == jnp.bfloat16:
        large = are_known(x.shape) and x.size >= bfloat16.LARGE
        inner = compiled.handler(verb, "float32", *given) if large else None
        if inner is None:
            return None
        found: Any = compiled.by_pieces(inner, address)
    else:
        found = compiled.handler(verb, str(x.dtype), *given)
    if found is None:
        return python_target(verb, _of_verb(verb))
    name = f"softtopk_nb.{verb}.{found.name}"
    _register(name, ctypes.c_void_p(found.address))
    return name
