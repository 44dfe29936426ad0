"""softmax, its logarithm and the smoothed maximum of JAX arrays: the operators without a k."""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.typing import ArrayLike

from .._api.front import FrontOperator
from .._api.without_k import registry
from . import arguments, calls, primitives
from .arguments import Layout
from .operators import call_of, checked

_DOC = """`softtopk_nb.{name}` of JAX arrays, under every transform of JAX.

Parameters
----------
x : array, shape (..., n, ...)
    Scores: float32, or float64 where JAX is set to it; float16 and bfloat16 are computed in
    float32, integers and bools in JAX's default type, which the result has then.
temperature : float or array, default=1.0
    As in `softtopk_nb.{name}`: a number, or an array that broadcasts to x's shape without `axis`.
axis : int, default=-1
    The axis of the scores.
where : array of bool, default=None
    Entries that take part, broadcastable to x's shape.

Returns
-------
value : array of x's type
    As `softtopk_nb.{name}`: {shape}.

Raises
------
TypeError, ValueError
    As `softtopk_nb.{name}`, while JAX traces; for integer and complex x too.
jax.errors.JaxRuntimeError, ValueError
    INVALID_ARGUMENT, from the compiled program, where a temperature that was not known before is
    not positive. One that is NaN is no error: it makes its row NaN.

Notes
-----
{derivatives} The compiled program calls Python, which takes the interpreter's lock; on
other devices than the CPU arrays are copied to the host for that.

Examples
--------
>>> import jax
>>> import softtopk_nb.jax as stj
>>> x = jax.numpy.array([3.0, 2.0, 1.0, 4.0])
>>> jax.jit(lambda x: stj.{name}(x, temperature=0.5))(x).dtype
dtype('float32')
"""


class WithoutK(FrontOperator):
    """An operator of the registry of those without a k, on arrays of JAX."""

    documentation = _DOC

    def __call__(
        self,
        x: ArrayLike,
        *,
        temperature: ArrayLike = 1.0,
        axis: int = -1,
        where: ArrayLike | None = None,
    ) -> jax.Array:
        """The value: see the class."""
        array, layout = checked(self._op, "x", x, 0, temperature, axis, True, where)
        self._op.check_length(array.shape, layout.axis)
        call = call_of(self._op, {})
        result: jax.Array = _values(array, temperature, where, call=call, layout=layout)
        return result


@functools.partial(jax.jit, static_argnames=("call", "layout"), inline=True)
def _values(x: Any, temperature: Any, where: Any, *, call: calls.Call, layout: Layout) -> Any:
    rows = layout.rows(x, where, arguments.kept_in(x.dtype))
    problem = rows, *arguments.numbers(call.op, rows, layout, 0, temperature)
    value, _ = primitives.solve.bind(*problem, call=call)
    return value.astype(x.dtype) if call.op.reduces else layout.back(value, x.dtype)


WITHOUT_K = {name: WithoutK(op) for name, op in registry.items()}
softmax = WITHOUT_K["softmax"]
log_softmax = WITHOUT_K["log_softmax"]
logsumexp = WITHOUT_K["logsumexp"]
