"""The operators of fronts: what one on tensors and one on JAX arrays share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import operator, without_k
from .operator import Differentiable, chosen


def named(name: str) -> Any:
    """The operator of arrays with this name, with or without a k."""
    return operator.registry.get(name) or without_k.registry[name]


class FrontOperator:
    """An operator of the registry on the arrays of a framework."""

    #: The documentation, with places for `name`, `k_type`, `shape` and `derivatives`.
    documentation: str
    #: What is said of derivatives where there is none.
    without_derivatives: str

    def __init__(self, op: Any) -> None:
        self._op = op
        self.__name__ = op.__name__
        self.__module__ = type(self).__module__.rpartition(".")[0]  # where `pickle` looks it up
        second = "first and second" if op.has_second else "first"
        to = "x, k and the temperature" if op.real_k else "x and the temperature"
        soft = isinstance(op, (Differentiable, without_k.WithoutK))
        self.__doc__ = self.documentation.format(
            name=op.__name__,
            k_type="float" if op.real_k else "int",
            shape="x's shape without the axis" if op.reduces else "x's shape",
            derivatives=f"Derivatives: {second}, in {to}." if soft else self.without_derivatives,
        )

    @property
    def real_k(self) -> bool:
        """Whether k may be any real number, and has a derivative."""
        return bool(self._op.real_k)

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of {self.__module__}>"

    def __reduce__(self) -> str:
        return str(self.__name__)


#: What the argument `op` may be.
Choice = operator.Name | operator.Operator[Any, Any, Any, Any, Any] | FrontOperator


def relaxation(relax: Any, operators: dict[str, Any]) -> Any:
    """What relaxes a mask: the front's operator for one of arrays or a name, or any callable."""
    if callable(relax) and not isinstance(relax, operator.Operator):
        return relax
    return operators[chosen(relax, "relax").__name__]


def check_potential(op: Any) -> None:
    """Refuse an operator without a potential."""
    if not op.has_potential:
        raise TypeError(f"{op.__name__} is the gradient of no potential")


def check_threshold(op: Any) -> None:
    """Refuse an operator without a threshold."""
    if not hasattr(op, "threshold"):
        raise TypeError(f"{op.__name__} has no threshold; thretopk has one")


def refuse_cost(options: Mapping[str, Any], what: str) -> None:
    """Refuse a cost where a front has no derivative or no meaning for it."""
    if options.get("cost") is not None:
        raise NotImplementedError(f"cost was given, which {what} does not take")
