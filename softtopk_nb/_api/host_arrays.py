"""Array kinds on the host: x as NumPy rows, and results as the kind that x was.

No array library is imported here: an array can only exist if its library is already loaded.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from .._threads import halves
from .._threads.transposing import WORTH_IT, transposed
from . import fronts

_CUDA = (2, 13)  # DLPack's device types for CUDA memory and managed memory


def _torch_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def on_device(x: Any) -> bool:
    """Whether x is an array in the memory of a CUDA device."""
    if isinstance(x, (np.ndarray, np.generic, int, float, list, tuple, type(None))):
        return False
    if _torch_tensor(x):
        return bool(x.is_cuda)
    if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__cuda_ndarray__"):
        return True
    where = getattr(x, "__dlpack_device__", None)
    return where is not None and int(where()[0]) in _CUDA


def as_numpy(x: Any, name: str) -> npt.NDArray[Any]:
    """`x` as a NumPy array, a view if possible; device arrays are refused, not copied."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; pass its data and where=~{name}.mask")
    if isinstance(x, np.ndarray):
        return x
    if on_device(x):
        raise TypeError(
            f"{name} is a CUDA array ({type(x).__name__}); expected an array on the host here: "
            "nothing is copied to the host by itself"
        )
    if _torch_tensor(x):
        if x.device.type != "cpu":
            raise TypeError(f"{name} is on device {x.device}; expected the CPU or CUDA")
        if x.requires_grad:
            raise TypeError(
                f"{name} requires grad, but this function computes with NumPy; pass "
                f"{name}.detach(), or call the function of softtopk_nb.torch, which has gradients"
            )
        return x.numpy()  # type: ignore[no-any-return]
    front = fronts.name_of(x)
    if front == "dask":
        raise TypeError(
            f"{name} is a Dask array, which this function would load into memory; pass "
            f"{name}.compute(), or call a function of softtopk_nb.dask"
        )
    if front == "jax" and isinstance(x, sys.modules["jax"].core.Tracer):
        raise TypeError(
            f"{name} is traced by JAX, but this function computes with NumPy; call the function of "
            "softtopk_nb.jax, or call this one outside jax.jit and jax.grad"
        )
    try:
        found = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: {error}") from error
    if found.dtype == object and not isinstance(x, (list, tuple, type(None))):
        raise TypeError(f"{name} is a {type(x).__name__}; expected an array of real numbers")
    return found


def like(x: Any, result: npt.NDArray[Any]) -> Any:
    """`result` as the kind of array that `x` is."""
    if type(x) is not np.ndarray:
        front = fronts.name_of(x)
        if front == "torch":
            return sys.modules["torch"].from_numpy(result)
        if front == "jax":
            return sys.modules["jax"].numpy.asarray(result)
    return result


@functools.lru_cache(maxsize=256)
def compute_dtype(dtype: np.dtype[Any], name: str) -> tuple[type, np.dtype[Any]]:
    """The type to compute in and the type to return, both in native byte order."""
    if dtype.kind in "biu":
        return np.float64, np.dtype(np.float64)
    native = dtype.newbyteorder("=")
    if native == np.float16:
        return np.float32, native
    if native in (np.float32, np.float64):
        return native.type, native
    raise TypeError(
        f"{name} has dtype {dtype}; expected float16, float32, float64, an integer type or bool"
    )


class _Writable:
    """An array's memory without the read-only flag, for kernels that only read it.

    Numba compiles a kernel again for read-only arrays.
    """

    def __init__(self, x: npt.NDArray[Any]) -> None:
        self.owner = x
        interface = dict(x.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def to_rows(
    x: npt.NDArray[Any], axis: int, dtype: type, table: tuple[int, ...]
) -> npt.NDArray[Any]:
    """`x` as a contiguous table (rows, n) with the axis last; a view if possible."""
    if not x.flags.c_contiguous and x.ndim == 2 and x.flags.f_contiguous:
        x, axis = x.T, 1 - axis  # one other axis remains, whose order stays
    if axis != x.ndim - 1:
        if x.size >= WORTH_IT and x.flags.c_contiguous:
            x = _readable(_contiguous(x, dtype))
            return transposed(x.reshape(_tables(x.shape, axis))).reshape(table)
        x = np.moveaxis(x, axis, -1)
    rows = _contiguous(x, dtype)
    if rows.shape != table:
        rows = rows.reshape(table)
    return _readable(rows)


def _contiguous(x: npt.NDArray[Any], dtype: type) -> npt.NDArray[Any]:
    if x.dtype == np.float16 and dtype is np.float32 and x.size >= halves.WORTH_IT:
        return halves.widened(_readable(np.ascontiguousarray(x)))
    return np.ascontiguousarray(x, dtype)


def _readable(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return x if x.flags.writeable else np.asarray(_Writable(x))


def _tables(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(product of the sizes before the axis, size of the axis, product of those after it)."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def write_rows(rows: npt.NDArray[Any], axis: int, out: npt.NDArray[Any]) -> None:
    """Write rows, whose axis is last, to an array of the same type with the axis in its place."""
    like = rows.dtype == out.dtype and out.flags.c_contiguous
    if out.size >= WORTH_IT and like and axis != out.ndim - 1:
        before, n, behind = _tables(out.shape, axis)
        transposed(rows.reshape(before, behind, n), out)
    else:
        out[...] = from_rows(rows, out.shape, axis)


def from_rows(rows: npt.NDArray[Any], shape: tuple[int, ...], axis: int) -> npt.NDArray[Any]:
    """Undo the reshaping of `to_rows`: a view of `rows` with the axis in its place."""
    if axis == len(shape) - 1:
        return rows.reshape(shape)
    batch = shape[:axis] + shape[axis + 1 :]
    return np.moveaxis(rows.reshape((*batch, shape[axis])), -1, axis)


def cast(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`values` in the type of the result; overflow to inf, or to 0 in float16, does not warn."""
    if values.dtype == dtype:
        return values
    if dtype == np.float16 and values.dtype == np.float32 and values.size >= halves.WORTH_IT:
        return halves.narrowed(np.ascontiguousarray(values))
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(dtype, copy=False)


def sum_to(
    numbers: npt.NDArray[Any], batch: tuple[int, ...], argument: Any, dtype: np.dtype[Any]
) -> Any:
    """Sum one number per row over the axes along which `argument` was broadcast to `batch`."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if isinstance(argument, (float, int)):
            return dtype.type(numbers.sum())
        per_row = numbers.reshape(batch)
        extra = per_row.ndim - argument.ndim
        stretched = tuple(
            extra + i
            for i, size in enumerate(argument.shape)
            if size == 1 != per_row.shape[extra + i]
        )
        total = per_row.sum(axis=(*range(extra), *stretched)).reshape(argument.shape)
        return total.astype(dtype)[()]
