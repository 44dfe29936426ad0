"""The short way of a call on a device: launches that have been recorded, with its addresses.

It serves contiguous tensors of PyTorch with the scores along the last axis, and numbers or tensors
for k and the temperature. Every other call goes the long way, `device_call`, from which this one is
recorded.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np

from .._cuda.copying import new_buffer
from .._cuda.interop import stream_of_torch
from .._cuda.program import (
    COTANGENT,
    GRADIENT,
    KEPT,
    SCRATCH,
    TEMPERATURE,
    VALUE,
    Block,
    K,
    Memory,
    Number,
    Program,
    Recording,
    X,
    resolved,
)
from .._cuda.target import SIMULATED
from . import device_call

MOST = 512  # programs: of a layout, its operator and options
NUMBERS = {"float16", "float32", "float64", "int32", "int64"}  # types of tensors of k, temperature


class Key(NamedTuple):
    """What the launches of a call follow from."""

    op: Any
    options: tuple[tuple[str, Any], ...]
    dtype: Any  # of NumPy
    shape: tuple[int, ...]
    largest: bool
    device: int
    aligned: bool  # x lies at a multiple of 16 bytes, as results do
    k: Any  # None if it is a number for all rows, else (type, shape) of a tensor
    temperature: Any


class Recorded:
    """The programs of calls that are alike, each recorded when it is first wanted."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._solved: Any = None  # the recorded call of `solve`
        self.state: Any = None  # and its state

    def _call(self, recording: Recording) -> Any:
        """A checked call of memory that is not there."""
        key, kind = self._key, recording.kind
        start = 0 if key.aligned else np.dtype(key.dtype).itemsize
        x = Memory(kind, Block(X, start=start), key.shape, key.dtype)
        k = Memory(kind, Block(K), *key.k[::-1]) if key.k else 0
        of_tau = key.temperature
        tau = Memory(kind, Block(TEMPERATURE), *of_tau[::-1]) if of_tau else 1.0
        numbers = (k, tau)[-len(key.op.names) :]
        given = *numbers, -1, key.largest, None, None, dict(key.options)
        call = device_call.check(key.op, x, *given)
        rows = call.rows
        if not key.k:
            rows = rows._replace(k=rows.k._replace(value=Number(0.0, K)))
        if not key.temperature:
            own = rows.temperature._replace(value=Number(1.0, TEMPERATURE))
            rows = rows._replace(temperature=own)
        return call._replace(rows=rows)

    @functools.cached_property
    def value(self) -> Program:
        """Of the value alone."""
        recording = Recording(SCRATCH)
        return recording.program((self._call(recording).value(), VALUE))

    @functools.cached_property
    def solve(self) -> Program:
        """Of the value and what derivatives need."""
        recording = Recording(KEPT)
        self._solved = self._call(recording)
        p, self.state = self._solved.solve()
        return recording.program((self._solved.give_back(p), VALUE))

    @functools.cached_property
    def gradient(self) -> Program:
        """Of the gradient in x, after `solve`, whose memory it reads."""
        recording = Recording(SCRATCH)
        kind = recording.kind
        rows = self._solved.rows._replace(
            stream=recording, empty=lambda entries, dtype: new_buffer(kind, entries, dtype)
        )
        call = self._solved._replace(given=self._solved.given._replace(kind=kind), rows=rows)
        cotangent = Memory(kind, Block(COTANGENT), self._key.shape, self._key.dtype)
        return recording.program((call.vjp_in_x(self.state, cotangent), GRADIENT))


_recorded = functools.lru_cache(maxsize=MOST)(Recorded)


class ShortCall(NamedTuple):
    """A call that goes the short way, with the verbs of `device_call.Call`."""

    recorded: Recorded
    key: Key
    x: Any
    k: Any  # numbers, or tensors
    temperature: Any
    stream: int

    def value(self) -> Any:
        """The value."""
        p = sys.modules["torch"].empty_like(self.x)
        starts = self._starts()
        starts[VALUE] = p.data_ptr()
        self._run(self.recorded.value, starts, SCRATCH)
        return p

    def solve(self) -> tuple[Any, Any]:
        """(the value, memory that has the state)."""
        p = sys.modules["torch"].empty_like(self.x)
        starts = self._starts()
        starts[VALUE] = p.data_ptr()
        return p, self._run(self.recorded.solve, starts, KEPT)

    def packed(self, state: Any) -> Any:
        """The state as an array, shape (*batch, width), a part of the memory that has it."""
        shape, recorded = self.x.shape, self.recorded
        width = device_call.engine_of(self.key.op.cpu.__name__).state_width(shape[-1], None)
        first = recorded.state.address.offset
        torch, size = sys.modules["torch"], 8 * width * (self.x.numel() // shape[-1])
        numbers = state[first : first + size].view(torch.float64)
        return numbers.view(*shape[:-1], width)

    def kept(self) -> ShortCall:
        """The call itself: nothing that is read is written."""
        return self

    def give_back(self, p: Any) -> Any:
        """The value, which it is."""
        return p

    def vjp(self, state: Any, g: Any, /) -> Any:
        """The gradients of <g, value>, by the long way."""
        return self._long().vjp(self._resolved(state), g)

    def vjp_in_x(self, state: Any, g: Any) -> Any:
        """The gradient of <g, value> in x alone."""
        x, starts = self.x, self._starts()
        alike = g.dtype == x.dtype and g.shape == x.shape and g.is_contiguous()
        starts[COTANGENT] = cotangent = g.data_ptr()
        if not alike or cotangent % 16 or g.is_neg():
            return self._long().vjp_in_x(self._resolved(state), g)
        gx = sys.modules["torch"].empty_like(x)
        starts[KEPT], starts[GRADIENT] = state.data_ptr(), gx.data_ptr()
        self._run(self.recorded.gradient, starts, SCRATCH)
        return gx

    def _resolved(self, state: Any) -> Any:
        """The state as the long way has it."""
        starts = self._starts()
        starts[KEPT] = state.data_ptr()
        return resolved(self.recorded.state, starts, state)

    def _starts(self) -> list[Any]:
        """Addresses and numbers by their slots, those of the problem."""
        k = float(self.k) if self.key.k is None else self.k.data_ptr()
        of_temperature = self.key.temperature
        tau = float(self.temperature) if of_temperature is None else self.temperature.data_ptr()
        return [self.x.data_ptr(), 0, 0, 0, 0, 0, k, tau]

    def _run(self, program: Program, starts: list[Any], slot: int) -> Any:
        """Launch a program; returns the memory that it works in."""
        torch, memory = sys.modules["torch"], None
        if program.bytes:
            memory = self.x.new_empty(program.bytes, dtype=torch.uint8)
            starts[slot] = memory.data_ptr()
        device = self.key.device
        if torch.cuda.current_device() == device:
            program.run(device, self.stream, starts)
        else:
            with torch.cuda.device(device):
                program.run(device, self.stream, starts)
        return memory

    def _long(self) -> Any:
        """The same call, checked anew."""
        op, options = self.key.op, dict(self.key.options)
        numbers = (self.k, self.temperature)[-len(op.names) :]
        return device_call.check(op, self.x, *numbers, -1, self.key.largest, None, None, options)


def _known(value: Any, shape: tuple[int, ...], least: float, most: float, device: int) -> Any:
    """None of a number in this range, (type, shape) of a tensor; else False."""
    if type(value) in (int, float):
        return None if least <= value <= most else False
    torch = sys.modules["torch"]
    if type(value) is not torch.Tensor or value.shape != shape or value.get_device() != device:
        return False
    if value.requires_grad or value.is_neg() or not value.is_contiguous():
        return False
    name = _name(value.dtype)
    return (name, shape) if name in NUMBERS else False


@functools.cache
def _name(dtype: Any) -> str:
    """The name of a type of PyTorch's, which is NumPy's where that has it."""
    return str(dtype).partition(".")[2]


def find(op: Any, x: Any, *arguments: Any) -> Any:
    """A call that goes the short way, or None."""
    torch = sys.modules.get("torch")
    if SIMULATED or torch is None or type(x) is not torch.Tensor:
        return None
    *numbers, axis, largest, where, out, options = arguments
    if not op.has_programs or op.reduces or where is not None or out is not None:
        return None
    shape, real = tuple(x.shape), x.dtype in (torch.float32, torch.float64)
    last = type(axis) is int and axis in (-1, len(shape) - 1) and type(largest) is bool
    if not (shape and last and real and x.is_contiguous()) or x.requires_grad or x.is_neg():
        return None
    k, temperature = numbers if len(numbers) == 2 else (0, numbers[0])
    if not x.numel() or (type(k) is float and not op.real_k):
        return None
    device = x.get_device()
    of_k = _known(k, shape[:-1], 0, shape[-1], device)
    of_temperature = _known(temperature, shape[:-1], 5e-324, 1.7e308, device)
    if of_k is False or of_temperature is False:
        return None
    dtype = np.float32 if x.dtype == torch.float32 else np.float64
    aligned, stream = x.data_ptr() % 16 == 0, stream_of_torch(torch, device)
    of_call = dtype, shape, largest, device, aligned, of_k, of_temperature
    try:
        key = Key(op, tuple(options.items()), *of_call)
        recorded = _recorded(key)
    except TypeError:
        return None  # an option without a hash, or a wrong one, which the long way names
    return ShortCall(recorded, key, x, k, temperature, stream)
