"""Balanced top-k: rows sum to k and columns to a load, by a threshold for each of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._api import fronts
from . import call


class Balanced(NamedTuple):
    """The result of `balancedtopk`."""

    p: Any
    rows: Any
    columns: Any


class BalancedGradients(NamedTuple):
    """The result of the VJP function of `balancedtopk`."""

    x: Any
    k: Any
    load: Any
    temperature: Any


class BalancedTopK:
    """Smooth top-k of the rows of a matrix whose columns have a load to meet, or not to exceed."""

    __name__ = "balancedtopk"

    def __repr__(self) -> str:
        return "<function balancedtopk of softtopk_nb>"

    def __reduce__(self) -> str:
        return "balancedtopk"

    def __call__(
        self,
        x: Any,
        /,
        k: Any,
        load: Any = None,
        *,
        temperature: Any = 1.0,
        curve: Any = "laplace",
        alpha: float | None = None,
        axis: tuple[int, int] = (-2, -1),
        at_most: bool = False,
        where: Any = None,
        tol: float = 1e-10,
        max_iter: int = 100,
    ) -> Balanced:
        """Solve the matrices: see the class."""
        options = {"curve": curve, "alpha": alpha, "axis": axis, "at_most": at_most}
        options |= {"where": where, "tol": tol, "max_iter": max_iter}
        if front := fronts.function(self.__name__, x):
            found: Balanced = front(x, k, load, temperature=temperature, **options)
            return found
        return Balanced(*call.check(x, k, load, temperature, options).value())

    def jvp(
        self,
        x: Any,
        /,
        k: Any,
        dx: Any,
        load: Any = None,
        *,
        dk: Any = None,
        dload: Any = None,
        dtemperature: Any = None,
        temperature: Any = 1.0,
        curve: Any = "laplace",
        alpha: float | None = None,
        axis: tuple[int, int] = (-2, -1),
        at_most: bool = False,
        where: Any = None,
        tol: float = 1e-10,
        max_iter: int = 100,
    ) -> tuple[Balanced, Any]:
        """Value and derivative of p along a direction (forward mode)."""
        options = {"curve": curve, "alpha": alpha, "axis": axis, "at_most": at_most}
        options |= {"where": where, "tol": tol, "max_iter": max_iter}
        checked = call.check(x, k, load, temperature, options)
        value, dp = checked.jvp(dx, dk, dload, dtemperature)
        return Balanced(*value), dp

    def vjp(
        self,
        x: Any,
        /,
        k: Any,
        load: Any = None,
        *,
        temperature: Any = 1.0,
        curve: Any = "laplace",
        alpha: float | None = None,
        axis: tuple[int, int] = (-2, -1),
        at_most: bool = False,
        where: Any = None,
        tol: float = 1e-10,
        max_iter: int = 100,
    ) -> tuple[Balanced, Callable[[Any], BalancedGradients]]:
        """Value and VJP function (reverse mode)."""
        options = {"curve": curve, "alpha": alpha, "axis": axis, "at_most": at_most}
        options |= {"where": where, "tol": tol, "max_iter": max_iter}
        checked = call.check(x, k, load, temperature, options)
        value, gradients = checked.vjp()

        def vjp_function(g: Any, /) -> BalancedGradients:
            return BalancedGradients(*gradients(g))

        return Balanced(*value), vjp_function


balancedtopk = BalancedTopK()
