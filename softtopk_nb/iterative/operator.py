"""The iterative constructions: k steps add shares that sum to 1 and depend on the steps before."""

from __future__ import annotations

from typing import Any, Never

from .._api import operator
from . import cpu
from .formulas import Plain, Weighted

__all__ = ["itertopk", "wsoftmaxtopk"]


class _Iteration(operator.Differentiable[int, Never, Never, Never, Never]):
    """The base of both operators: all but the step."""

    bounded = False
    cpu = cpu  # no chunks: each step depends on all of a row
    has_programs = False  # memory and launches depend on k
    _kind: Any  # a value of one of the types in `formulas`

    def _options(self) -> Any:
        return self._kind


class IterTopK(_Iteration):
    """Iterated softmax: p += softmax((1 - p) z), k times; z = (x - min x) / temperature.

    The heuristic behind it: an entry that has been chosen, p = 1, is multiplied by 0 and so becomes
    one of the smallest. p sums to k, but may exceed 1 and break the order of x.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type; integers and bools give float64. The
        arithmetic is in float64 in any case: a step magnifies the errors of those before it.
    k : int or array_like of int
        Number of steps and sum of p, 0 <= k <= n; broadcast against x's shape without the axis, or
        with 1 along it.
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast as k.
    axis : int, default=-1
        The axis of the scores.
    largest : bool, default=True
        False takes the k smallest instead.
    where : array_like of bool, default=None
        Entries that take part; the others get 0, exactly as if they were not there.
    out : ndarray, default=None
        Array of x's shape and of the result's type to write to; it is returned.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row; a row with fewer is NaN otherwise.

    Returns
    -------
    p : array of x's shape and type
        Positive, summing to k along the axis; not bounded by 1.

    Raises
    ------
    TypeError
        x, k, temperature, where or out of a wrong type, a k that is not an integer, an unknown
        keyword.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, a shape that does not fit.

    See Also
    --------
    thretopk : bounded by 1, monotone, and quicker.
    wsoftmaxtopk : the other iteration.

    Notes
    -----
    *Holds*: p >= 0, sum p = k, invariance under shifts and permutations, softmax at k = 1,
    convergence to the hard top-k as the temperature falls if k < n and the k + 1 largest entries
    are distinct. *Does not hold*: p <= 1; monotonicity (the second largest entry may come out
    ahead); ones at k = n, and at k = n no temperature helps; a symmetric Jacobian, so `jvp` and
    `vjp` are two algorithms and p is the gradient of nothing.

    *Cost*: O(n k), one exponential per entry and step. `jvp` is run beside the loop, with two more
    rows. `vjp` keeps nothing: its function runs the loop twice and needs O(n sqrt(k)) memory for
    the row at work. One row is not shared out among threads of the CPU.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. Where several entries are the smallest, min x
    has a kink, and they share its derivative equally. Derivatives beyond
    1e250 are held there, and on a device temperatures below 2.3e-308 act as that.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> stk.itertopk(np.array([3.0, 2.0, 1.0, 4.0]), 2, temperature=0.5).round(3)
    array([0.884, 0.176, 0.025, 0.915])
    >>> stk.itertopk(np.array([1.0, 0.0]), 2).round(3)
    array([1.298, 0.702])
    """

    __name__ = "itertopk"
    _kind = Plain()


class WSoftmaxTopK(_Iteration):
    """Iterated weighted softmax: p += w e^z / sum(w e^z), w = 1 - p, k times; z = x / temperature.

    An entry that has been chosen, p = 1, has the weight 0. It is never quite chosen, however: at
    low temperature what is left of the largest entry still weighs as much as the next, and p
    does not turn into the hard top-k.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type; integers and bools give float64. The
        arithmetic is in float64 in any case: a step magnifies the errors of those before it.
    k : int or array_like of int
        Number of steps and sum of p, 0 <= k <= n; broadcast against x's shape without the axis, or
        with 1 along it.
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast as k.
    axis : int, default=-1
        The axis of the scores.
    largest : bool, default=True
        False takes the k smallest instead.
    where : array_like of bool, default=None
        Entries that take part; the others get 0, exactly as if they were not there.
    out : ndarray, default=None
        Array of x's shape and of the result's type to write to; it is returned.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row; a row with fewer is NaN otherwise.

    Returns
    -------
    p : array of x's shape and type
        Summing to k along the axis; entries may be negative or exceed 1.

    Raises
    ------
    TypeError
        x, k, temperature, where or out of a wrong type, a k that is not an integer, an unknown
        keyword.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, a shape that does not fit.

    See Also
    --------
    thretopk : bounded by 0 and 1, monotone, with the right limit.
    itertopk : the other iteration.

    Notes
    -----
    *Holds*: sum p = k, invariance under shifts and permutations, softmax at k = 1; for k <= 2,
    p >= 0 and monotonicity. *Does not hold*: p <= 1; from k = 3 on, p >= 0 and monotonicity;
    convergence to the hard top-k (at k = 2, the two largest entries tend to 1.5 and 0.5); ones at
    k = n; from k = 3 on, a symmetric Jacobian, so `jvp` and `vjp` are two algorithms. At k = 2, p
    is softmax plus half of GradTopK.

    *Zero crossing*: once weights are negative, sum(w e^z) may come arbitrarily close to 0. Then
    entries of p are huge, of both signs, and lose as many digits, as does their sum; where it is
    exactly 0, that row is infinite or NaN, and no other. Nothing guards against this, for it is
    the definition. Rows whose largest entries lie close together are prone to it when k is larger
    than their number. Entries within 2^-48 temperatures of the largest count as equal to it, and
    largest entries more than 500 temperatures ahead of the rest as 500 ahead: either moves p by
    less than it is rounded.

    *Cost*: O(n k), with one exponential per entry in all. `jvp` is run beside the loop, with two
    more rows. `vjp` keeps nothing: its function runs the loop twice and needs O(n sqrt(k)) memory
    for the row at work. One row is not shared out among threads of the CPU.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. Derivatives beyond
    1e250 are held there, and on a device temperatures below 2.3e-308 act as that.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024), after an answer on
    Stack Exchange.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> stk.wsoftmaxtopk(np.array([3.0, 2.0, 1.0, 4.0]), 2, temperature=2.0).round(3)
    array([0.571, 0.373, 0.236, 0.821])
    >>> stk.wsoftmaxtopk(np.array([3.0, 2.0, 1.0, 4.0]), 2, temperature=0.05).round(3)
    array([0.5, 0. , 0. , 1.5])
    """

    __name__ = "wsoftmaxtopk"
    _kind = Weighted()


itertopk = IterTopK()
wsoftmaxtopk = WSoftmaxTopK()
