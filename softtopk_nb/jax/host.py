"""From NumPy arrays to the operators and back: what the primitives do, row by row.

Arrays come with the scores along the last axis; k, the temperature and directions in them have the
shape of the batch before it. What derivatives need of a solved call goes along as a `state`: its
float64 numbers are 32-bit words, which JAX takes whatever it is set to, and never differentiates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._api.operator import registry
from ..losses import fenchel_young

Array = npt.NDArray[Any]
Options = dict[str, Any]

WORDS = 2  # of 32 bits, in a number of a state
IN_PLACE = {"mark", "solve"}  # those that write their value to `out`


def state_width(op: Any, options: Options, n: int) -> int:
    """How many words the state of a row of n entries has."""
    width: int = op.cpu.state_width(n, op._plan(options))
    return WORDS * width


def nan_rows(x: Array, k: Array, temperature: Array, *others: Array) -> tuple[Array, ...]:
    """The arrays of a call, with a row of NaN for each k or temperature that is NaN.

    In a compiled program an error would end all rows for one, as under `vmap` all seeds.
    """
    lost = np.isnan(k) | np.isnan(temperature)
    if lost.any():
        x = np.where(lost[..., None], x.dtype.type(np.nan), x)
        k = np.where(lost, k.dtype.type(0), k)
        temperature = np.where(lost, temperature.dtype.type(1), temperature)
    return x, k, temperature, *others


def mark(
    op: Any, options: Options, x: Array, k: Array, temperature: Array, *, out: Any = None
) -> tuple[Any]:
    """The 0/1 mask of the k largest, or of round(k); k must be one that the operator takes."""
    op._check_numbers(x.shape[-1], x.shape[:-1], k, temperature)
    p = registry["hardtopk"](x, np.rint(k).astype(int), temperature=temperature, out=out)
    p[(x > -np.inf).sum(axis=-1) < k] = np.nan  # of a k that was rounded down
    return (p,)


def solve(
    op: Any, options: Options, x: Array, k: Array, temperature: Array, *, out: Any = None
) -> tuple[Array, Array]:
    """(value, state)."""
    p, call, state = op._solved(x, k, temperature, -1, True, None, out, options)
    packed = np.ascontiguousarray(op.cpu.pack(call.rows, call.plan, state)).view(np.uint32)
    return p, packed.reshape((*call.batch, packed.shape[1]))


def _solved(op: Any, options: Options, problem: tuple[Array, ...], state: Array) -> Any:
    """The call and the state that `solve` had."""
    call = op._check(*problem, -1, True, None, None, options)
    numbers = np.array(state).reshape(len(call.rows.x), state.shape[-1]).view(np.float64)
    return call, op.cpu.unpack(call.rows, call.plan, numbers)


def _all_three(gradients: Any, like: Array) -> tuple[Array, Array, Array]:
    """Gradients in x, k and the temperature; 0 in a k that is an integer."""
    in_k = np.zeros_like(like) if gradients.k is None else gradients.k
    return gradients.x, in_k, gradients.temperature


def push(op: Any, options: Options, *arrays: Array) -> tuple[Array]:
    """Of (problem, state, direction): the derivative along the direction."""
    problem, state, (dx, *numbers) = arrays[:3], arrays[3], arrays[4:]
    return (op._move(*_solved(op, options, problem, state), dx, tuple(numbers)),)


def pull(op: Any, options: Options, *arrays: Array) -> tuple[Array, Array, Array]:
    """Of (problem, state, cotangent): the gradients of <cotangent, value>, row by row."""
    problem, state, g = arrays[:3], arrays[3], arrays[4]
    return _all_three(op._pull_back(*_solved(op, options, problem, state), g), problem[2])


def push_twice(op: Any, options: Options, *arrays: Array) -> tuple[Array]:
    """Of (problem, state, two directions): the derivative along both."""
    problem, state, (v, *moves), (a, *others) = arrays[:3], arrays[3], arrays[4:7], arrays[7:]
    solved = _solved(op, options, problem, state)
    return (op._second(*solved, v, tuple(moves), a, tuple(others)).x,)


def pull_push(op: Any, options: Options, *arrays: Array) -> tuple[Array, Array, Array]:
    """Of (problem, state, direction, cotangent): the gradients of <cotangent, `push`>."""
    problem, state, (v, *moves), g = arrays[:3], arrays[3], arrays[4:7], arrays[7]
    still = np.zeros_like(moves[0])
    solved = _solved(op, options, problem, state)
    return _all_three(op._second(*solved, v, tuple(moves), g, (still, still)), problem[2])


def potential(op: Any, options: Options, x: Array, k: Array, temperature: Array) -> tuple[Any]:
    """The smoothed sum of the k largest, of each row."""
    return (op.potential(x, k, temperature=temperature, **options),)


def threshold(op: Any, options: Options, x: Array, k: Array, temperature: Array) -> tuple[Any]:
    """The derivative of the potential in k, of each row."""
    return (op.threshold(x, k, temperature=temperature, **options),)


def loss(op: Any, options: Options, x: Array, k: Array, temperature: Array, y: Array) -> tuple[Any]:
    """The Fenchel-Young loss of each row against y; `options` say if it has its constant."""
    # It is NaN whatever the target of a row of NaN, whose k may not be known.
    lost = np.asarray(np.isnan(x).any(-1))
    y, k = np.where(lost[..., None], y.dtype.type(0), y), np.where(lost, k.dtype.type(0), k)
    return (fenchel_young(op, x, y, k, temperature=temperature, **options),)
