"""Arguments checked when the graph is built; what depends on the data is checked at compute."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from .._api import arguments
from .._api.arguments import show
from .._api.call import check_numbers
from .._api.front import refuse_cost


def moved(a: Any, source: int, destination: int) -> Any:
    """`moveaxis`, without a task for each chunk if the axis stays."""
    return a if (source - destination) % a.ndim == 0 else da.moveaxis(a, source, destination)


class Problem(NamedTuple):
    """A checked call: scores with their axis last, and the numbers of their rows."""

    x: Any
    where: Any  # of x's shape and chunks, or None
    numbers: tuple[Any, ...]  # one for all rows, or an array of the batch shape in x's chunks
    given: tuple[Any, ...]  # the numbers as given
    axis: int
    largest: bool
    clamp_k: bool
    options: dict[str, Any]

    @property
    def batch(self) -> tuple[Any, ...]:
        """Chunks of the batch shape."""
        return tuple(self.x.chunks[:-1])

    def back(self, p: Any) -> Any:
        """A result whose axis is last, with the axis in its place in x."""
        return moved(p, -1, self.axis)


def check(
    op: Any, x: Any, numbers: tuple[Any, ...], axis: Any, largest: Any, where: Any, options: Any
) -> Problem:
    """Check a call; returns it with the axis last. Options of operators with a k have `clamp_k`."""
    if not isinstance(x, da.Array):
        raise TypeError(f"x is a {type(x).__name__}; expected a dask array (da.from_array(x))")
    if x.dtype.kind in "biu":
        x = x.astype(np.float64)  # as an array of NumPy
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x has dtype {x.dtype}; expected float32, float64, integers or bool")
    if any(math.isnan(size) for sizes in x.chunks for size in sizes):
        raise ValueError(
            "x has chunks of unknown sizes; expected known ones: call x.compute_chunk_sizes()"
        )
    if not x.ndim:
        raise ValueError("x is 0-dimensional; expected at least one axis")
    axis = arguments.check_axis(axis, x.ndim)
    op.check_length(x.shape, axis)
    options = dict(options)
    clamp_k = options.pop("clamp_k", False) if op.names[0] == "k" else False
    refuse_cost(options, "a Dask array")
    op.check_options(options)
    arguments.check_largest(largest)
    rows, n = moved(x, axis, -1), x.shape[axis]
    batch = rows.shape[:-1]
    # A number that is not known yet is replaced by one that passes.
    known = [
        (0 if name == "k" else 1.0) if isinstance(value, da.Array) else value
        for name, value in zip(op.names, numbers, strict=True)
    ]
    known[0] = arguments.clamped(known[0], clamp_k)
    checked = check_numbers(op, n, batch, axis, *known)
    ready = tuple(
        _number(op, name, value if isinstance(value, da.Array) else number, rows, axis, clamp_k)
        for name, value, number in zip(op.names, numbers, checked, strict=True)
    )
    mask = None if where is None else _mask(where, x, axis)
    return Problem(rows, mask, ready, numbers, axis, bool(largest), bool(clamp_k), options)


def _spread(value: Any, shape: Any, chunks: Any) -> Any:
    """An array broadcast to this shape in these chunks."""
    own = tuple(
        sizes if n == sum(sizes) else (n,)
        for n, sizes in zip(value.shape, chunks[len(chunks) - value.ndim :], strict=True)
    )
    # A task holds its block of an array in memory; if it were cut later, one task would hold it
    # all.
    in_memory = isinstance(value, np.ndarray)
    given = da.from_array(np.asarray(value), own) if in_memory else value.rechunk(own)
    return da.broadcast_to(given, shape, chunks)


def without_axis(value: Any, batch: tuple[int, ...], axis: int) -> Any:
    """Checked numbers of rows without the axis of the scores, if they have it."""
    return value if value.ndim <= len(batch) else value.squeeze(axis)


def _number(op: Any, name: str, value: Any, rows: Any, axis: int, clamp_k: bool) -> Any:
    """A number for all rows, or an array with one for each in their chunks; checked when known."""
    batch, sizes, n = rows.shape[:-1], rows.chunks[:-1], rows.shape[-1]
    kind = np.int64 if name == "k" and not op.real_k else np.float64
    if not isinstance(value, da.Array):
        given = without_axis(np.asarray(value).astype(kind), batch, axis)
        return given.item() if given.size == 1 else _spread(given, batch, sizes)
    if value.dtype.kind not in ("iu" if kind is np.int64 else "iuf"):
        wanted = "integers" if kind is np.int64 else "real numbers"
        raise TypeError(f"{name} has dtype {value.dtype}; expected {wanted}")
    arguments.check_per_row(value, batch, axis, name)
    value = without_axis(value, batch, axis)
    for place, (own, of_x) in enumerate(
        zip(value.chunks, sizes[len(sizes) - value.ndim :], strict=True)
    ):
        if sum(own) == sum(of_x) and own != of_x:
            raise ValueError(
                f"{name} has the chunks {own} along its axis {place}, where x has {of_x}; expected "
                f"the same: {name}.rechunk({sizes[len(sizes) - value.ndim :]})"
            )
    if clamp_k and name == "k":
        value = da.minimum(value, np.int64(n))
    whole = da.broadcast_to(value, batch, chunks=sizes)
    return da.map_blocks(_checked, whole, name, n, kind, dtype=kind, meta=np.empty(0, kind))


def _checked(block: Any, name: str, n: int, kind: Any, block_info: Any = None) -> Any:
    """A block of numbers, after a check that each is valid."""
    good = (block >= 0) & (block <= n) if name == "k" else (block > 0) & (block < np.inf)
    if not np.all(good):
        first = np.argwhere(~np.atleast_1d(good))[0]
        place = [low for low, _ in block_info[0]["array-location"]] if block_info else []
        row = tuple(int(a + b) for a, b in zip(first, place, strict=False))
        bad = np.atleast_1d(block)[tuple(first)]
        wanted = f"0 <= k <= n = {n}" if name == "k" else "a positive finite number"
        raise ValueError(f"{name} is {show(bad.item())} in row {row}; expected {wanted}")
    return np.asarray(block, kind)


def _mask(where: Any, x: Any, axis: int) -> Any:
    if where.dtype != np.bool_ if hasattr(where, "dtype") else not isinstance(where, bool):
        raise TypeError(f"where is {show(where)}; expected an array of bool")
    given = where if isinstance(where, (np.ndarray, da.Array)) else da.asarray(where)
    arguments.check_broadcast(given, x.shape, "where")
    return moved(_spread(given, x.shape, x.chunks), axis, -1)


def direction(value: Any, problem: Problem, name: str) -> Any:
    """A direction or cotangent of x's shape, in its chunks and type, with the axis last."""
    given = _real(value, name)
    x = problem.back(problem.x)
    arguments.check_broadcast(given, x.shape, name)
    return moved(_spread(given, x.shape, x.chunks), problem.axis, -1)


def per_row(value: Any, problem: Problem, name: str) -> Any:
    """A direction in a number, or a cotangent with a number for each row."""
    given, batch = _real(0.0 if value is None else value, name), problem.x.shape[:-1]
    arguments.check_per_row(given, batch, problem.axis, name)
    given = without_axis(given, batch, problem.axis)
    if isinstance(given, np.ndarray) and given.size == 1:
        return float(given.item())
    return _spread(given.astype(np.float64), batch, problem.batch)


def _real(value: Any, name: str) -> Any:
    """An array of real numbers, of NumPy or of Dask."""
    in_memory = np.isscalar(value) or isinstance(value, np.ndarray)
    given = np.asarray(value) if in_memory else da.asarray(value)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {given.dtype}; expected real numbers")
    return given
