"""Balanced top-k: rows sum to k and columns to a load, by a threshold for each of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._api import arguments, fronts
from . import call


class Balanced(NamedTuple):
    """The result of `balancedtopk`: p_ij = f((x_ij - rows_i - columns_j)/temperature).

    Parameters
    ----------
    p : array of x's shape and type
        Between 0 and 1.
    rows : array, shape (..., m)
        The thresholds of the rows, in the units of x.
    columns : array, shape (..., n)
        Those of the columns. With them `thretopk` of x - columns routes rows that come later.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> stk.balancedtopk([[2.0, 0.0], [1.0, 0.0]], 1).columns
    array([ 0.75, -0.75])
    """

    p: Any
    rows: Any
    columns: Any


class BalancedGradients(NamedTuple):
    """The result of the VJP function of `balancedtopk`: the gradients of <cotangent, p>.

    Parameters
    ----------
    x : array
        The gradient in the scores, of their shape.
    k : array or scalar
        The gradient in k. Loads that must be met, or that were not given, grow with it, in
        proportion.
    load : array, scalar or None
        The gradient in the load; None if none was given. Loads that must be met count by their
        shares: it is orthogonal to them.
    temperature : array or scalar
        The gradient in the temperature.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> found, vjp = stk.balancedtopk.vjp([[2.0, 0.0], [1.0, 0.0]], 1)
    >>> vjp([[1.0, 0.0], [0.0, 0.0]]).x.round(3)
    array([[ 0.097, -0.097],
           [-0.097,  0.097]])
    """

    x: Any
    k: Any
    load: Any
    temperature: Any


class BalancedTopK:
    """Smooth top-k of each row of a matrix, with loads that its columns have to meet.

    p_ij = f((x_ij - a_i - b_j)/temperature), where the thresholds a and b make row i sum to k_i and
    column j to its load. Of all matrices in [0, 1] with these sums it is the one that maximises
    <x, p> less a regulariser; as the temperature goes to 0 it solves the transportation problem.

    Parameters
    ----------
    x : array_like, shape (..., m, n) for the axes given
        Scores, of m rows (tokens) and n columns (experts), m, n >= 1. float16, float32 and float64
        keep their type (float16 is computed in float32); integers and bools give float64.
    k : float or array_like, shape (..., m)
        Sum of each row, 0 <= k <= n; of the host, as the load and the temperature are.
    load : float or array_like, shape (..., n), default=None
        Sum of each column, 0 <= load <= m. It must have the sum of k, to 1e-9 of it or to rounding
        of its type, and is then scaled to that. None is sum k / n for each.
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast over the batch.
    curve : str or Curve, default="laplace"
        As for `thretopk`.
    alpha : float, default=None
        As for `thretopk`.
    axis : tuple of two int, default=(-2, -1)
        The axes along which rows and columns are counted.
    at_most : bool, default=False
        Whether the load is an upper bound, of any size from 0 up: one of m or more, such as inf,
        bounds nothing. Then b >= 0, and b_j = 0 where column j stays below its bound.
    where : array_like of bool, default=None
        Entries that take part, all if None; the others get 0, as if they were not there.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row, as of padding, which is an error
        otherwise. A load that must be met has the sum of that.
    tol : float, default=1e-10
        How far the columns' sums may be off, as a part of max(1, load).
    max_iter : int, default=100
        How many steps to make at the temperature given.
    **named
        `dim` in place of the axis, for a tensor of PyTorch.

    Returns
    -------
    found : Balanced
        p, and the thresholds of the rows and of the columns. Where the load must be met those of
        the columns have mean 0 over columns that leave a choice; where a bound is not used up, the
        least of them is 0.

    Raises
    ------
    TypeError
        An argument of a wrong type; an array of Dask; a k, load or temperature on a device.
    ValueError
        Budgets that cannot be met, by how much: k outside [0, n], a load outside [0, m] (with
        `at_most`, below 0), sums that differ (with `at_most`, a load that sums to less than k),
        rows or columns with fewer entries than their budget, k's that do not fit into the columns;
        what `thretopk` refuses.
    ConvergenceError
        A matrix that did not reach the tolerance. Nothing is returned then.

    See Also
    --------
    thretopk : One budget; balancedtopk with thretopk's own column sums as the load.
    sinkhorn : Without the bound p <= 1.

    Notes
    -----
    *Holds*: the sums, of rows as `thretopk`, of columns to `tol`, or where that is more to
    1e-13 + 4 eps R in float64 and 1e-6 + 4 eps R in float32, R = (max x - min x)/temperature, but
    to no more than 0.1, all as a part of max(1, load); invariance under permutations and what is
    added to whole rows, or to whole columns that must meet a load: where that is far larger than
    what is left without it, it is taken off first, and R is of what is left. Matrices of a batch do
    not influence each other. *Does not hold*: p is not close to 0 and 1 where the transportation
    problem has several solutions, and rows are not independent of each other. A mask may allow no
    matrix with the given sums without any row or column that shows it: then the search does not
    converge.

    *Limits*: a NaN makes its matrix NaN. -inf gives 0 and is excluded. +inf gives 1 and uses up one
    of k and one of the load. A matrix whose infinities leave no solution is NaN. Rows and columns
    whose budget is 0, or all that there is, are 0 or 1 exactly, with thresholds of inf or -inf,
    and have no derivative.

    *Cost*: a step takes a `thretopk` of the matrix and O(m n^2); mostly 3 to 6 steps, and some at
    higher temperatures, of 2048 rows where there are many. n^3 grows fast: give the longer axis as
    that of the rows. Curves that saturate (clip, entmax) with unequal bounds and `at_most` may not
    converge at low temperatures: of 40 problems of 5 to 80 rows none failed at a thirtieth of the
    scores' deviation, 4 to 5 at a hundredth, 5 to 8 at a thousandth (laplace: 1). The
    derivative is a system of n columns, factored once. Three arrays of the size of x are kept, or
    four where offsets were taken off.

    *On a CUDA device* x, `where`, p, directions and cotangents lie there, as do the thresholds that
    are returned; gradients in k, load and temperature are of the host. Each step copies n^2 numbers
    to the host, which solves the system of n columns, and n there and back for each point that it
    tries; a call copies a few for each row and column, and no more. The host waits for these, so a
    call cannot be captured in a CUDA graph. Budgets that a mask leaves no room for raise there too.

    *Derivatives*: only changes of k and load with the same total are possible, so gradients in both
    are known up to a constant. Here loads that must be met count by their shares of the total. The
    default load moves with k, as a bound too.
    The derivative of a bound that is not used up is 0. A direction or a cotangent that is not
    finite gives NaN for its matrix, and for no other.

    Source: "Quantile Balancing" (Su, 2026) has the columns' thresholds for a hard top-k, from
    quantiles and without a gradient. The smooth form, its bounds and derivatives are ours.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([[3.0, 2.0, 0.0], [3.0, 1.0, 0.0], [2.0, 1.0, 1.0]])
    >>> p, rows, columns = stk.balancedtopk(x, 1, temperature=0.5)
    >>> p.sum(axis=0).round(9), p.sum(axis=1).round(9)
    (array([1., 1., 1.]), array([1., 1., 1.]))
    >>> stk.balancedtopk(x, 1, 1.5, at_most=True, temperature=0.5).p.sum(axis=0).round(3)
    array([1.5  , 1.105, 0.395])
    """

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
        clamp_k: bool = False,
        tol: float = 1e-10,
        max_iter: int = 100,
        **named: Any,
    ) -> Balanced:
        """Solve the matrices: see the class."""
        options = {"curve": curve, "alpha": alpha, "at_most": at_most, "where": where}
        options |= {"clamp_k": clamp_k, "tol": tol, "max_iter": max_iter}
        if front := fronts.function(self.__name__, x):
            given = fronts.named(named, axis, (-2, -1), temperature=temperature, **options)
            found: Balanced = front(x, k, load, **given)
            return found
        for name in named:
            raise arguments.unexpected(
                self.__name__, name, ("load", "temperature", "axis", *options)
            )
        options["axis"] = axis
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
        clamp_k: bool = False,
        tol: float = 1e-10,
        max_iter: int = 100,
    ) -> tuple[Balanced, Any]:
        """Value and derivative of p along a direction (forward mode).

        Parameters
        ----------
        x, k, load, temperature, curve, alpha, axis, at_most, where, clamp_k, tol, max_iter
            As in a call.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dk, dload, dtemperature : array_like, default=None
            Directions in the others, broadcastable as they are; not moved by default. Loads that
            must be met are scaled to the sum of k, and so is `dload`.

        Returns
        -------
        found : Balanced
            As of a call.
        dp : array of x's shape and type
            The derivative of p.

        Raises
        ------
        TypeError, ValueError, ConvergenceError
            As in a call; a `dload` without a load.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> x, dx = [[2.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]
        >>> stk.balancedtopk.jvp(x, 1, dx)[1].round(3)
        array([[ 0.097, -0.097],
               [-0.097,  0.097]])
        """
        options = {"curve": curve, "alpha": alpha, "axis": axis, "at_most": at_most}
        options |= {"where": where, "clamp_k": clamp_k, "tol": tol, "max_iter": max_iter}
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
        clamp_k: bool = False,
        tol: float = 1e-10,
        max_iter: int = 100,
    ) -> tuple[Balanced, Callable[[Any], BalancedGradients]]:
        """Value and VJP function (reverse mode).

        Parameters
        ----------
        x, k, load, temperature, curve, alpha, axis, at_most, where, clamp_k, tol, max_iter
            As in a call.

        Returns
        -------
        found : Balanced
            As of a call.
        vjp : callable
            ``vjp(g)``, g broadcastable to p's shape, returns `BalancedGradients` of sum(g * p). It
            may be called any number of times and does not solve again.

        Raises
        ------
        TypeError, ValueError, ConvergenceError
            As in a call.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> found, vjp = stk.balancedtopk.vjp([[2.0, 0.0], [1.0, 0.0]], 1, [1.2, 0.8])
        >>> vjp([[1.0, 0.0], [0.0, 0.0]]).load.round(3)
        array([ 0.151, -0.227])
        """
        options = {"curve": curve, "alpha": alpha, "axis": axis, "at_most": at_most}
        options |= {"where": where, "clamp_k": clamp_k, "tol": tol, "max_iter": max_iter}
        checked = call.check(x, k, load, temperature, options)
        value, gradients = checked.vjp()

        def vjp_function(g: Any, /) -> BalancedGradients:
            return BalancedGradients(*gradients(g))

        return Balanced(*value), vjp_function


balancedtopk = BalancedTopK()
