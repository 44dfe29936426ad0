"""Rows in chunks: each chunk by the operator of NumPy, on the thread of its task."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from .._api.front import named
from .._threads import pool
from .arguments import Problem


def _one(block: Any) -> Any:
    """A block of an axis in one chunk, for which Dask gives a nested list."""
    while isinstance(block, list):
        (block,) = block
    return block


def _on_block(name: str, verb: str, options: dict[str, Any], n_numbers: int, *blocks: Any) -> Any:
    """A verb of the operator on a block of rows."""
    op = named(name)
    x, where, *others = map(_one, blocks)
    numbers, others = others[:n_numbers], others[n_numbers:]
    *k, temperature = numbers
    given = {**options, "temperature": temperature, "where": where}
    with pool.one_thread():
        if verb in ("value", "potential", "threshold"):
            return np.asarray((op if verb == "value" else getattr(op, verb))(x, *k, **given))
        if verb == "jvp":
            v, *moves = others
            keywords = dict(zip(("dtemperature", "dk"), reversed(moves), strict=False))
            return op.jvp(x, *k, v, **keywords, **given)
        # Gradients in numbers are computed per row: they are summed over all chunks later.
        rows = x.shape[:-1]
        *k, given["temperature"] = (np.broadcast_to(each, rows) for each in numbers)
        gradients = op.vjp(x, *k, **given)[1](others[0])
        return tuple(map(np.asarray, (gradients.x, gradients.k, gradients.temperature)))


def _pick(found: Any, i: int) -> Any:
    return np.asarray(_one(found)[i])


def run(op: Any, problem: Problem, verb: str, *others: Any) -> Any:
    """A verb on rows, the axis last and in one chunk; for "jvp" and "vjp" `part(i, of_rows)`."""
    x = problem.x
    index = tuple(range(x.ndim))
    arrays: list[Any] = []
    for each in (x, problem.where, *problem.numbers, *others):
        arrays += [each, index[: each.ndim] if isinstance(each, da.Array) else None]
    options = dict(problem.options)
    if op.names[0] == "k":
        options |= {"largest": problem.largest, "clamp_k": problem.clamp_k}
    at = op.__name__, verb, options, len(problem.numbers)

    def function(*blocks: Any) -> Any:
        return _on_block(*at, *blocks)

    if verb in ("jvp", "vjp"):
        found = da.blockwise(
            function, index, *arrays, dtype=object, meta=np.empty((0,) * x.ndim, object)
        )

        def part(i: int, of_rows: bool) -> Any:
            out = index[:-1] if of_rows else index
            meta = np.empty((0,) * len(out), x.dtype)
            return da.blockwise(_pick, out, found, index, i, None, dtype=x.dtype, meta=meta)

        return part
    out = index[:-1] if op.reduces or verb != "value" else index
    meta = np.empty((0,) * len(out), x.dtype)
    return da.blockwise(function, out, *arrays, dtype=x.dtype, meta=meta)
