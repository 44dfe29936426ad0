"""What type checkers and editors are told: array-likes in, the same kind of array out.

The decorators return the function itself; what they say of it is for checkers alone. No array
library is imported: its arrays are told apart by a method that no other kind has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    cast,
    overload,
)

import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
#: A kind of array.
A = TypeVar("A")
#: A type of NumPy's real numbers, which a result keeps.
F = TypeVar("F", bound=np.floating[Any])

#: What an operator's k is, if it is one number: int or float.
K = TypeVar("K")
#: What an operator's options `curve`, `alpha`, `method` and `cost` are; Never where it has none.
C = TypeVar("C")
E = TypeVar("E")
M = TypeVar("M")
X = TypeVar("X")


class SupportsArray(Protocol):
    """What NumPy can turn into an array: arrays, tensors on the host, data frames."""

    def __array__(self) -> Any: ...


class Nested(Protocol[T_co]):
    """Lists and tuples, in one another or not, but no text: it holds nothing but text."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, index: int, /) -> T_co | Nested[T_co]: ...
    def __contains__(self, value: object, /) -> bool: ...
    def count(self, value: Any, /) -> int:
        """How often a value is there, which a mapping doesn't say."""


class Tensor(Protocol[T_co]):
    """A tensor of PyTorch."""

    def requires_grad_(self, mode: bool = ..., /) -> T_co:
        """As in PyTorch."""


class JaxArray(Protocol[T_co]):
    """An array of JAX, or a tracer."""

    def addressable_data(self, index: int, /) -> T_co:
        """As in JAX."""


class Lazy(Protocol):
    """An array of Dask."""

    def __dask_graph__(self) -> Any: ...


class OnDevice(Protocol):
    """An array in the memory of a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


Foreign = Tensor[A] | JaxArray[A]
#: What NumPy makes an array of.
ArrayLike = float | SupportsArray | Nested[float | SupportsArray]
#: Arrays of every kind, and lists of numbers.
Arrays = SupportsArray | OnDevice | Nested[float | SupportsArray]
#: One number or many.
Numbers = float | Arrays
#: Where random numbers come from.
Rng = np.random.Generator | int | Sequence[int] | None
#: How many draws.
Size = int | Sequence[int] | None
#: Whatever a function of the top level takes for scores.
Scores = Numbers | Lazy
D = TypeVar("D", bound=OnDevice)
L = TypeVar("L", bound=Lazy | OnDevice)


class Own(TypedDict, Generic[C, E, M, X], total=False):
    """The options that operators have of their own."""

    curve: C
    alpha: E | None
    method: M
    cost: X | None


class OfRows(Own[C, E, M, X], total=False):
    """Those, and what PyTorch calls the axis of a tensor."""

    dim: int


class OfValue(OfRows[C, E, M, X], total=False):
    """Those, and what the operators on tensors and on arrays of JAX have besides."""

    hard: bool


if TYPE_CHECKING:
    # At run time they have no other base than `tuple`: older releases of PyTorch know a named
    # tuple by that.
    class Gradients(NamedTuple, Generic[A]):
        """The gradients of <cotangent, p>: `base.Gradients`."""

        x: A
        k: A | Any  # None where k must be an integer
        temperature: A

        @property
        def cost(self) -> A | Any:
            """That in the costs; None for a call without."""

    class TopK(NamedTuple, Generic[A]):
        """The k chosen entries of each row: `base.TopK`."""

        values: A
        indices: A

    class PowerGradients(NamedTuple, Generic[A]):
        """The gradients of <cotangent, value>: `softmax.powers.PowerGradients`."""

        x: A
        power: A


class Value(Protocol[P]):
    """A function whose result is of x's kind of array, and of its type."""

    @overload
    def __call__(
        self, x: npt.NDArray[F], /, *args: P.args, **kwargs: P.kwargs
    ) -> npt.NDArray[F]: ...
    @overload
    def __call__(self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs) -> A: ...
    @overload
    def __call__(self, x: L, /, *args: P.args, **kwargs: P.kwargs) -> L: ...
    @overload
    def __call__(self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs) -> npt.NDArray[Any]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class Indices(Protocol[P]):
    """A function whose result is of x's kind of array, and of another type."""

    @overload
    def __call__(self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs) -> A: ...
    @overload
    def __call__(self, x: D, /, *args: P.args, **kwargs: P.kwargs) -> D: ...
    @overload
    def __call__(self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs) -> npt.NDArray[Any]: ...


class Chosen(Protocol[P]):
    """A function that gives the chosen entries."""

    @overload
    def __call__(
        self, x: npt.NDArray[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> TopK[npt.NDArray[Any]]: ...
    @overload
    def __call__(self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs) -> TopK[A]: ...
    @overload
    def __call__(
        self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs
    ) -> TopK[npt.NDArray[Any]]: ...


class JVP(Protocol[P]):
    """A function that gives value and derivative."""

    @overload
    def __call__(
        self, x: npt.NDArray[F], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[F], npt.NDArray[F]]: ...
    @overload
    def __call__(self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs) -> tuple[A, A]: ...
    @overload
    def __call__(self, x: D, /, *args: P.args, **kwargs: P.kwargs) -> tuple[D, D]: ...
    @overload
    def __call__(
        self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class HVP(Protocol[P]):
    """A function that gives gradients."""

    @overload
    def __call__(
        self, x: npt.NDArray[F], /, *args: P.args, **kwargs: P.kwargs
    ) -> Gradients[npt.NDArray[F]]: ...
    @overload
    def __call__(self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs) -> Gradients[A]: ...
    @overload
    def __call__(self, x: D, /, *args: P.args, **kwargs: P.kwargs) -> Gradients[D]: ...
    @overload
    def __call__(
        self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs
    ) -> Gradients[npt.NDArray[Any]]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class VJP(Protocol[P]):
    """A function that gives value and VJP function."""

    @overload
    def __call__(
        self, x: npt.NDArray[F], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[F], Callable[[Numbers], Gradients[npt.NDArray[F]]]]: ...
    @overload
    def __call__(
        self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, Callable[[Numbers], Gradients[A]]]: ...
    @overload
    def __call__(
        self, x: D, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[D, Callable[[Numbers], Gradients[D]]]: ...
    @overload
    def __call__(
        self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[Any], Callable[[Numbers], Gradients[npt.NDArray[Any]]]]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class PowerVJP(Protocol[P]):
    """A function that gives value and VJP function, of `gradual`."""

    @overload
    def __call__(
        self, x: npt.NDArray[F], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[F], Callable[[Numbers], PowerGradients[npt.NDArray[F]]]]: ...
    @overload
    def __call__(
        self, x: Foreign[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, Callable[[Numbers], PowerGradients[A]]]: ...
    @overload
    def __call__(
        self, x: ArrayLike, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[Any], Callable[[Numbers], PowerGradients[npt.NDArray[Any]]]]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class Loss(Protocol[P]):
    """A loss, of theta's kind of array and type."""

    @overload
    def __call__(
        self, op: Any, theta: npt.NDArray[F], *args: P.args, **kwargs: P.kwargs
    ) -> npt.NDArray[F]: ...
    @overload
    def __call__(self, op: Any, theta: Foreign[A], *args: P.args, **kwargs: P.kwargs) -> A: ...
    @overload
    def __call__(
        self, op: Any, theta: ArrayLike, *args: P.args, **kwargs: P.kwargs
    ) -> npt.NDArray[Any]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


class LossVJP(Protocol[P]):
    """A loss and its VJP function."""

    @overload
    def __call__(
        self, op: Any, theta: npt.NDArray[F], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[F], Callable[[Numbers], Gradients[npt.NDArray[F]]]]: ...
    @overload
    def __call__(
        self, op: Any, theta: Foreign[A], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[A, Callable[[Numbers], Gradients[A]]]: ...
    @overload
    def __call__(
        self, op: Any, theta: ArrayLike, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[npt.NDArray[Any], Callable[[Numbers], Gradients[npt.NDArray[Any]]]]: ...
    def __get__(self, instance: object, owner: Any = None, /) -> Self: ...


Function = Callable[Concatenate[Any, P], Any]
Method = Callable[Concatenate[Any, Any, P], Any]
OfLoss = Callable[Concatenate[Any, Any, Any, P], Any]


def value(function: Method[P], /) -> Value[P]:
    """Say that a method gives arrays of x's kind and type."""
    return cast("Value[P]", function)


def jvp(function: Method[P], /) -> JVP[P]:
    """Say that a method gives value and derivative."""
    return cast("JVP[P]", function)


def hvp(function: Method[P], /) -> HVP[P]:
    """Say that a method gives gradients."""
    return cast("HVP[P]", function)


def vjp(function: Method[P], /) -> VJP[P]:
    """Say that a method gives value and VJP function."""
    return cast("VJP[P]", function)


def power_vjp(function: Method[P], /) -> PowerVJP[P]:
    """Say that a method gives value and VJP function, of `gradual`."""
    return cast("PowerVJP[P]", function)


def function(function: Function[P], /) -> Value[P]:
    """Say that a function gives arrays of x's kind and type."""
    return cast("Value[P]", function)


def indices(function: Function[P], /) -> Indices[P]:
    """Say that a function gives arrays of x's kind, of another type."""
    return cast("Indices[P]", function)


def chosen(function: Function[P], /) -> Chosen[P]:
    """Say that a function gives the chosen entries, of x's kind."""
    return cast("Chosen[P]", function)


def loss(function: OfLoss[P], /) -> Loss[P]:
    """Say that a method (op, theta, ...) gives arrays of theta's kind and type."""
    return cast("Loss[P]", function)


def loss_vjp(function: OfLoss[P], /) -> LossVJP[P]:
    """Say that a method (op, theta, ...) gives the loss and its VJP function."""
    return cast("LossVJP[P]", function)
