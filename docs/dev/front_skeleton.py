"""A front for a library whose arrays speak DLPack: what a framework needs of an operator.

The verbs are those of `softtopk_nb._api.array_calls`: they take NumPy arrays with the scores along
the last axis and give NumPy arrays. All that is left to a front is said here once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from softtopk_nb._api import array_calls
from softtopk_nb._api.operator import Differentiable, registry

Array = np.ndarray


class Layout(NamedTuple):
    """How scores lie in an array: a framework's own operations, with its own derivatives."""

    axis: int
    largest: bool
    where: Array | None

    def rows(self, x: Array) -> Array:
        """The scores along the last axis, the largest wanted, -inf where masked."""
        x = x if self.largest else -x
        x = x if self.where is None else np.where(self.where, x, x.dtype.type(-np.inf))
        return np.moveaxis(x, self.axis, -1)

    def back(self, rows: Array) -> Array:
        """Undo the move of the axis."""
        return np.moveaxis(rows, -1, self.axis)


class Saved(NamedTuple):
    """What a backward pass needs: arrays, which a framework saves as it likes, and constants."""

    x: Array
    k: Array
    temperature: Array
    state: Array  # with which nothing is solved again
    layout: Layout
    options: dict[str, Any]


class Operator:
    """An operator of the registry on arrays of a library, which has `from_dlpack`."""

    def __init__(self, op: Any, library: Any) -> None:
        self._op, self._library = op, library
        self.__name__ = op.__name__

    def __call__(self, x: Any, k: Any, **arguments: Any) -> Any:
        """The value: an array of x's shape and type."""
        return self.vjp(x, k, **arguments)[0]

    def vjp(
        self,
        x: Any,
        k: Any,
        *,
        temperature: Any = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: Any = None,
        **options: Any,
    ) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
        """(the value, a function from a cotangent to the gradients in x, k and temperature)."""
        x, k, temperature, where = map(self._numpy, (x, k, temperature, where))
        layout = Layout(axis, largest, where)
        p, saved = self.forward(layout.rows(x), k, temperature, layout, options)

        def backward(g: Any) -> tuple[Any, ...]:
            return tuple(map(self._own, self.backward(saved, self._numpy(g))))

        return self._own(layout.back(p)), backward

    def forward(self, rows: Array, k: Any, tau: Any, layout: Layout, options: Any) -> Any:
        """(the value of rows, what the backward pass needs)."""
        batch = rows.shape[:-1]
        problem = rows, np.broadcast_to(k, batch), np.broadcast_to(tau, batch)
        if not isinstance(self._op, Differentiable):
            return array_calls.value(self._op, options, problem), None
        p, state = array_calls.solve(self._op, options, problem)
        return p, Saved(*problem, state, layout, options)

    def backward(self, saved: Saved, g: Array) -> tuple[Array, ...]:
        """The gradients of <g, value>; those in the numbers are of each row."""
        *problem, state, layout, options = saved
        g = np.moveaxis(g, layout.axis, -1)
        gx, gk, gtau = array_calls.vjp(self._op, options, tuple(problem), state, g)
        # At -inf it is 0 already.
        return layout.back(gx if layout.largest else -gx), gk, gtau

    def _numpy(self, given: Any) -> Any:
        """An array as NumPy sees it; a number, or None, as it is."""
        return np.from_dlpack(given) if hasattr(given, "__dlpack__") else given

    def _own(self, array: Array) -> Any:
        return self._library.from_dlpack(array)


def operators(library: Any) -> dict[str, Operator]:
    """Every operator with a k, also one that is registered tomorrow."""
    return {name: Operator(op, library) for name, op in registry.items()}
