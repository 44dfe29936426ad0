"""The base class of operators: their properties, whatever arrays they are called with.

An operator is one object, like a NumPy ufunc. Its methods pass their arguments on to `verbs`, which
check them (`call`, `device_call`) and call the operator's engines.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


if TYPE_CHECKING:
    from .typed import Gradients as Gradients
    from .typed import TopK as TopK
else:

    class Gradients(NamedTuple):
        """The result of a VJP function: the gradients of <cotangent, p>.

        Each has the shape of the argument it belongs to; where an argument was broadcast over rows,
        their contributions are summed.

        Parameters
        ----------
        x : array
            The gradient in the scores.
        k : array, scalar or None
            The gradient in k; None for operators whose k must be an integer, and for those without
            a k.
        temperature : array or scalar
            The gradient in the temperature.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, vjp = stk.thretopk.vjp([3.0, 2.0, 1.0, 4.0], 2)
        >>> round(float(vjp([1.0, 0.0, 0.0, 0.0]).k), 3)
        0.366
        """

        x: Any
        k: Any
        temperature: Any

        @property
        def cost(self) -> Any:
            """The gradient in the costs, None for a call without: see `GradientsWithCost`."""
            return None

    class TopK(NamedTuple):
        """The result of `topk`: the k chosen entries of each row, with their weights.

        Parameters
        ----------
        values : array
            The weights, of x's shape but for k along the axis.
        indices : array of int64
            Where these entries stand along the axis; of the same shape.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> values, indices = stk.topk([3.0, 2.0, 1.0, 4.0], 2)
        >>> indices
        array([3, 0])
        """

        values: Any
        indices: Any


class GradientsWithCost(NamedTuple):
    """The result of a VJP function of a call with a cost: `Gradients` and that in the costs.

    Parameters
    ----------
    x, k, temperature : array or scalar
        As of `Gradients`.
    cost : array or scalar
        The gradient in the costs, of their shape.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> p, vjp = stk.thretopk.vjp([3.0, 2.0, 1.0, 4.0], 4, cost=[1.0, 2.0, 1.0, 3.0])
    >>> vjp([1.0, 0.0, 0.0, 0.0]).cost.round(3)
    array([-0.113,  0.008,  0.001,  0.009])
    """

    x: Any
    k: Any
    temperature: Any
    cost: Any


class RowOperator:
    """A map of rows of scores, each with a few numbers of its own, such as a temperature.

    A subclass has the public methods, in which these numbers are named arguments. They pass on
    `arguments`: the numbers, axis, largest, where, out, and a dict of the other options.
    """

    __name__: str
    #: The engine on the CPU: a package with the functions of the protocol `engine`.
    cpu: Any
    #: The engine of one row in chunks, a module; None if there is none.
    chunks: Any = None
    #: The type of a checked problem: `x`, of shape (rows, n), contiguous, float32 or float64; and
    #: the numbers by name, each of shape (rows,).
    rows_type: Any
    #: Whether the temperature has an effect.
    is_soft = True
    #: Whether k, if there is one, may be any real number in [0, n].
    real_k = False
    #: Whether the result has one number for each row, in the units of x.
    reduces = False
    #: Whether rows may be empty.
    takes_empty_rows = False
    #: Whether second derivatives are implemented.
    has_second = False
    #: Whether arrays on a device are accepted.
    has_device_side = True
    #: Whether the launches of a call on a device do not depend on the numbers k and temperature.
    has_programs = True
    #: The value written in place of a masked entry, which every engine ignores.
    excluded = -np.inf
    #: A function that checks rows of scores and returns them; None if any numbers will do.
    check_rows: Any = None
    #: The same operator of rows whose entries have costs (`prices`); None if there is none.
    priced: Any = None

    def __init__(self) -> None:
        # `help` lists all methods of an object whose documentation is that of its class.
        self.__doc__ = inspect.cleandoc(type(self).__doc__ or "") + "\n"
        #: The names of the numbers of a row.
        self.names: tuple[str, ...] = self.rows_type._fields[1:]
        #: How many of these, from the first on, are not real numbers and have no derivative.
        self.fixed = int(self.names[0] == "k" and not self.real_k)

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb>"

    def __reduce__(self) -> str:
        return self.__name__

    def check_options(self, options: dict[str, Any]) -> Any:
        """Check the operator's own options and return what its engines need."""
        return None

    def computed_in(self, options: Any, given: type) -> type:
        """The type in which rows are computed, if `given` is that of x or the next wider one."""
        return given

    def computed_in_chunks(self, options: Any, given: type) -> type:
        """The type in which a row in chunks is computed."""
        return self.computed_in(options, given)

    def check_length(self, shape: tuple[int, ...], axis: int) -> None:
        """Refuse rows without entries, unless the operator takes them."""
        if shape[axis] == 0 and not self.takes_empty_rows:
            raise ValueError(f"x has shape {shape}; expected at least one entry along axis {axis}")

    def shape_of_out(
        self, shape: tuple[int, ...], batch: tuple[int, ...]
    ) -> tuple[tuple[int, ...], str]:
        """The shape that `out` must have, and its name."""
        return (batch, "the batch shape") if self.reduces else (shape, "x's shape")

    def check_second(self) -> None:
        """Raise unless second derivatives are known."""
        if not self.has_second:
            raise NotImplementedError(
                f"{self.__name__} has no second derivative here; thretopk and gradtopk have one"
            )

    def gradients(self, x: Any, *numbers: Any) -> Any:
        """The gradients in x and the numbers, as a VJP function returns them."""
        return Gradients(x, *numbers)
