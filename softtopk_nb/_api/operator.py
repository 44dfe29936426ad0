"""The front door: what every operator does before and after its mathematics.

An operator is one object, in the manner of a NumPy ufunc. It is called with arrays of any shape;
here they are checked and laid out as rows, handed to the construction (a *room*: the methods
with an underscore, which a subclass provides), and given back in the shape, type and kind that
came in. Everything is checked before anything is computed or written.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import arguments as _arguments
from . import host_arrays, scaling

Array = npt.NDArray[Any]

#: Every operator by name: what the contract tests go through.
registry: dict[str, Operator] = {}


class Gradients(NamedTuple):
    """What a pullback returns: the gradients of <cotangent, p>.

    Each has the shape of the argument it belongs to; where an argument was broadcast over rows,
    their contributions are summed. `k` is None for operators whose k must be an integer.
    """

    x: Any
    k: Any
    temperature: Any


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each entry of `k` and `temperature`."""

    x: Array  # (rows, n), contiguous, float32 or float64
    k: Array  # (rows,), float64 or int64
    temperature: Array  # (rows,), float64


class _Call(NamedTuple):
    """A checked call: the problem, and how to give its result back."""

    rows: Rows
    given: Any  # x as it came
    shape: tuple[int, ...]
    axis: int
    batch: tuple[int, ...]
    dtype: np.dtype[Any]  # of the result
    sign: int  # -1 if the smallest entries are wanted
    where: Array | None  # broadcast to `shape`
    out: Array | None
    k: Array  # as given
    temperature: Array  # as given
    plan: Any  # the room's own options, checked
    shift: Array | None = None  # `rows` are 2^shift times what was given (`_api.scaling`)


class Operator:
    """A map from rows of scores to rows p that sum to k; into [0, 1]^n if it is `bounded`."""

    __name__: str
    #: Whether p lies in [0, 1], so that k = n gives ones.
    bounded = True
    #: Whether k may be any real number in [0, n].
    real_k = False
    #: Whether the temperature has an effect.
    is_soft = True

    def __init__(self) -> None:
        self.__doc__ = type(self).__doc__
        registry[self.__name__] = self

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb>"

    def __reduce__(self) -> str:
        return self.__name__

    @property
    def __signature__(self) -> inspect.Signature:
        """The common arguments and the room's own, for `help` and `inspect`."""
        common = list(inspect.signature(Operator.__call__).parameters.values())[1:-1]
        own = inspect.signature(self._options).parameters.values()
        return inspect.Signature([*common, *own])

    def __call__(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> Any:
        if host_arrays.on_device(x):
            return self._device().call(self, x, k, temperature, axis, largest, where, out, options)
        call = self._check(x, k, temperature, axis, largest, where, out, options)
        p = self._target(call)
        self._value(call.rows, call.plan, p)
        return self._give_back(call, p)

    @staticmethod
    @functools.cache
    def _device() -> Any:
        """The front door for device arrays: imported when the first of them comes."""
        return importlib.import_module(".device_operator", __package__)

    # What a room provides; for device arrays, functions of its module `cuda`.

    def _options(self) -> Any:
        """Check the room's own keyword arguments and return what its kernels need."""
        return None

    def _computed_in(self, plan: Any, given: type) -> type:
        """The type of the rows, where `given` is that of x or the next wider one."""
        return given

    def _value(self, rows: Rows, plan: Any, out: Array) -> None:
        """Write p, row by row."""
        raise TypeError(f"{self.__name__} cannot be evaluated")

    # Arguments.

    def _check(
        self,
        x: Any,
        k: Any,
        temperature: Any,
        axis: Any,
        largest: Any,
        where: Any,
        out: Any,
        options: dict[str, Any],
    ) -> _Call:
        values = host_arrays.as_numpy(x, "x")
        if values.ndim == 0:
            raise ValueError(f"x is 0-dimensional ({x!r}); expected at least one axis")
        compute, dtype = host_arrays.compute_dtype(values.dtype, "x")
        axis = _arguments.check_axis(axis, values.ndim)
        if not isinstance(largest, (bool, np.bool_)):
            raise TypeError(f"largest is {largest!r}; expected True or False")
        shape = values.shape
        n, batch = shape[axis], shape[:axis] + shape[axis + 1 :]
        plan = self._plan(options)
        compute = self._computed_in(plan, compute)
        k_given = self._check_k(k, n, batch)
        tau_given = _arguments.check_temperature(temperature, batch)
        mask = None if where is None else _arguments.check_where(where, shape)
        if out is not None:
            _arguments.check_out(out, shape, dtype)
        rows = host_arrays.to_rows(values, axis, compute)
        if not largest:
            rows = -rows
        if mask is not None:
            # An absent entry is one at -inf: every room treats it as if it were not there.
            rows = np.where(host_arrays.to_rows(mask, axis, bool), rows, compute(-np.inf))
        k_rows = _arguments.per_row(k_given, batch)
        tau_rows = _arguments.per_row(tau_given, batch)
        shift = None
        if self.is_soft and not scaling.is_moderate(tau_given, compute):
            rows, tau_rows, shift = scaling.rescaled(rows, tau_rows)
        problem = Rows(rows, k_rows, tau_rows)
        result = axis, batch, dtype, 1 if largest else -1, mask, out
        return _Call(problem, x, shape, *result, k_given, tau_given, plan, shift)

    def _plan(self, options: dict[str, Any]) -> Any:
        for name in options:
            if name not in self._known:
                raise TypeError(
                    f"{self.__name__} got an unexpected keyword argument {name!r}"
                    + (f"; it knows {', '.join(self._known)}" if self._known else "")
                )
        return self._options(**options)

    @functools.cached_property
    def _known(self) -> tuple[str, ...]:
        """The room's own keyword arguments; reading a signature takes longer than a row."""
        return tuple(inspect.signature(self._options).parameters)

    def _check_k(self, k: Any, n: int, batch: tuple[int, ...]) -> Array:
        if type(k) is int and 0 <= k <= n:
            return np.asarray(k, np.float64 if self.real_k else np.int64)  # the usual case
        given = _arguments.real_array(k, "k")
        if not self.real_k and given.dtype.kind not in "iu":
            raise TypeError(f"k is {_arguments.show(k)} of dtype {given.dtype}; expected integers")
        # Compared before any conversion: a large unsigned integer must not wrap around.
        ok = (given >= 0) & (given <= n)
        if not np.all(ok):
            bad = given[~ok].flat[0]
            raise ValueError(f"k is {bad}; expected 0 <= k <= n = {n}, x's length along the axis")
        _arguments.check_broadcast(given, batch, "k")
        return given.astype(np.float64 if self.real_k else np.int64)

    # Results.

    def _target(self, call: _Call, *read_later: Array) -> Array:
        """Rows to write p to: `out` itself where its memory allows, else new ones.

        `read_later`: what is still to be read, beside x, once p has been written.
        """
        out, x = call.out, call.rows.x
        if (
            isinstance(out, np.ndarray)
            and out.dtype == x.dtype
            and out.dtype.isnative
            and out.flags.c_contiguous
            and call.axis == out.ndim - 1
            and not any(np.may_share_memory(out, rows) for rows in (x, *read_later))
        ):
            return out.reshape(x.shape)
        return np.empty_like(x)

    def _give_back(self, call: _Call, rows: Array, *, into_out: bool = True) -> Any:
        result = host_arrays.from_rows(rows, call.shape, call.axis)
        if call.out is not None and into_out:
            target = host_arrays.as_numpy(call.out, "out")
            if not np.shares_memory(rows, target):
                target[...] = result
            return call.out
        return host_arrays.like(call.given, host_arrays.cast(result, call.dtype))

    def _give_back_batch(self, call: _Call, values: Array) -> Any:
        """One number for each row, in the units of x."""
        if call.shift is not None:
            values = scaling.scaled(values, -call.shift)
        result = host_arrays.cast(values, call.dtype).reshape(call.batch)
        return host_arrays.like(call.given, result) if call.batch else result[()]


class Differentiable(Operator):
    """An operator with derivatives."""

    def jvp(
        self,
        x: Any,
        /,
        k: Any,
        dx: Any,
        *,
        dk: Any = None,
        dtemperature: Any = None,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, **options
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dk, dtemperature : array_like, optional
            Directions in k and in the temperature, broadcastable to the batch shape; not moved
            by default. `dk` only where k may be real.

        Returns
        -------
        p, dp : arrays of x's shape and type
            The value, and the derivative of p along the direction.
        """
        arguments = x, k, temperature, axis, largest, where, out, options
        if host_arrays.on_device(x):
            pair: tuple[Any, Any] = self._device().jvp(self, dx, dk, dtemperature, *arguments)
            return pair
        call = self._check(*arguments)
        rows = call.rows
        rows_of_dx = self._tangent_rows(call, dx, "dx")
        if dk is not None and not self.real_k:
            raise TypeError(f"dk was given, but {self.__name__} takes an integer k")
        dk_rows = _arguments.direction(dk, call.batch, "dk")
        dtau_rows = _arguments.direction(dtemperature, call.batch, "dtemperature")
        direction = _arguments.Direction(rows.x, rows_of_dx, dk_rows, dtau_rows)
        p = self._target(call, direction.rows)
        state = self._linearize(rows, call.plan, p)
        dp = self._tangent(call, state, direction.rows, *direction.numbers)
        return self._give_back(call, p), self._give_back(call, direction.back(dp), into_out=False)

    def vjp(
        self,
        x: Any,
        /,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        out: Any = None,
        **options: Any,
    ) -> tuple[Any, Callable[[Any], Gradients]]:
        """Value and pullback (reverse mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, **options
            As in a call of the operator; `out` receives the value.

        Returns
        -------
        p : array of x's shape and type
            The value.
        pullback : callable
            ``pullback(g)``, g broadcastable to p's shape, returns `Gradients` (x, k, temperature)
            of sum(g * p). It may be called any number of times and does not solve again. It reads
            x: do not change x in place before the last call.
        """
        arguments = x, k, temperature, axis, largest, where, out, options
        if host_arrays.on_device(x):
            both: tuple[Any, Any] = self._device().vjp(self, Gradients, *arguments)
            return both
        call = self._kept(self._check(*arguments))
        p = self._target(call)
        state = self._linearize(call.rows, call.plan, p)
        result = self._give_back(call, p)

        def pullback(g: Any, /) -> Gradients:
            return self._pull_back(call, state, g)

        return result, pullback

    def _tangent(self, call: _Call, state: Any, dx: Array, dk: Array, dtau: Array) -> Array:
        def push(dx: Array, dk: Array, dtau: Array) -> Array:
            dp = np.empty_like(call.rows.x)
            self._push(call.rows, call.plan, state, dx, dk, dtau, dp)
            return dp

        return scaling.along(push, call.shift, dx, dk, dtau)

    @staticmethod
    def _kept(call: _Call) -> _Call:
        """The call with copies of what the pullback reads, if p is written over it."""
        if call.out is None:
            return call
        rows, where = call.rows, call.where
        if np.may_share_memory(call.out, rows.x):
            rows = rows._replace(x=rows.x.copy())
        if where is not None and np.may_share_memory(call.out, where):
            where = where.copy()
        return call._replace(rows=rows, where=where)

    def _pull_back(self, call: _Call, state: Any, g: Any) -> Gradients:
        rows = call.rows
        cotangent = _arguments.Direction(rows.x, self._cotangent_rows(call, g))
        gx = np.empty_like(rows.x)
        gk, gtau = np.empty(len(rows.k)), np.empty(len(rows.k))
        self._pull(rows, call.plan, state, cotangent.rows, gx, gk, gtau)
        gx, gk, gtau = (cotangent.back(each) for each in (gx, gk, gtau))
        gx, gtau = scaling.scaled(gx, call.shift), scaling.scaled(gtau, call.shift)
        if call.sign < 0:
            np.negative(gx, out=gx)
        return Gradients(
            self._give_back(call, gx, into_out=False),
            host_arrays.sum_to(gk.reshape(call.batch), call.k, call.dtype) if self.real_k else None,
            host_arrays.sum_to(gtau.reshape(call.batch), call.temperature, call.dtype),
        )

    def _tangent_rows(self, call: _Call, v: Any, name: str) -> Array:
        rows = self._cotangent_rows(call, v, name)
        return -rows if call.sign < 0 else rows

    def _cotangent_rows(self, call: _Call, v: Any, name: str = "the cotangent") -> Array:
        return _arguments.rows_of(
            v, name, call.shape, call.axis, call.rows.x.dtype.type, call.where
        )

    # What a room provides.

    def _linearize(self, rows: Rows, plan: Any, out: Array) -> Any:
        """Write p; return what `_push` and `_pull` need so as not to solve again."""
        raise TypeError(f"{self.__name__} has no derivatives")

    def _push(
        self, rows: Rows, plan: Any, state: Any, dx: Array, dk: Array, dtau: Array, dp: Array
    ) -> None:
        raise TypeError(f"{self.__name__} has no derivatives")

    def _pull(
        self, rows: Rows, plan: Any, state: Any, g: Array, gx: Array, gk: Array, gtau: Array
    ) -> None:
        raise TypeError(f"{self.__name__} has no derivatives")
