"""GradTopK as an operator."""

from __future__ import annotations

from typing import Any, Literal, Never, Unpack, get_args

from .._api import operator, typed
from . import cpu
from .cpu import chunks

Method = Literal["auto", "contour", "dp", "recursion"]
METHODS = get_args(Method)


class GradTopK(operator.Differentiable[int, Never, Never, Method, Never]):
    """Smooth top-k as a gradient: the inclusion probabilities of a random k-subset.

    A subset S of k entries has probability proportional to exp(sum of x_i/temperature over S);
    p_i is the probability that i is in S. It is the gradient of temperature * log Z_k, Z_k the sum
    over all subsets, which smooths the sum of the k largest entries. With k = 1 it is softmax.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type (float16 is computed in float32);
        integers and bools give float64.
    k : int or array_like of int
        Size of the subset, 0 <= k <= n; broadcast against x's shape without the axis, or with 1
        along it.
    method : {"auto", "contour", "dp", "recursion"}, default="auto"
        contour: O(n) for every k, a sum over at most 30 points of a circle. dp: O(n k) time and
        O(k sqrt(n)) memory, sums over prefixes and suffixes; ties agree to rounding only. auto:
        contour, but on the CPU for short rows the distribution of the subset's size multiplied out,
        O(n k): for n up to 128 (96 in float32), and up to 512 (256) if k (n - k) <= 27 n (13 n). It
        takes down to a fifth of the time there. recursion: O(n k), of Su (2024), kept for teaching:
        it returns NaN or, worse, wrong finite numbers as soon as some p is close to 1 (see Notes).
    temperature : float or array_like, default=1.0
        Width of the transition, in the units of x; broadcast as k.
    axis : int, default=-1
        The axis of the scores.
    largest : bool, default=True
        False smooths the k smallest instead.
    where : array_like of bool, default=None
        Entries that take part; the others get 0, exactly as if they were not there.
    out : ndarray, default=None
        Array of x's shape and of the result's type to write to; it is returned.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row; a row with fewer is NaN otherwise.

    Returns
    -------
    p : array of x's shape and type
        Between 0 and 1, summing to k along the axis.

    Raises
    ------
    TypeError
        x, k, temperature, where or out of a wrong type (k must be an integer), an unknown keyword.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, an unknown method, a
        shape that does not fit.

    See Also
    --------
    KSubset : the distribution itself: log-probabilities, samples, entropy.
    thretopk : independent Bernoulli variables instead of a subset; k may be any real number.

    Notes
    -----
    *Holds*: range (strictly between 0 and 1 before rounding), sum, strict monotonicity up to
    rounding (x_i > x_j exactly if p_i > p_j, to a few units in the last place), invariance under
    shifts and permutations, convergence to the hard top-k when x_(k) > x_(k+1), the complement p(x,
    k) + p(-x, n - k) = 1, and a symmetric positive semidefinite Jacobian, the covariance of the
    subset's indicator divided by the temperature. *Does not hold*: a real k has no meaning here.

    *Accuracy*, R = (max x - min x)/temperature: 1e-13 + 4 eps R in float64, 1e-6 + 4 eps R in
    float32; small p have full relative accuracy as long as they are normal numbers, and so have
    small 1 - p as ``gradtopk(-x, n - k)``. *Cost*: O(n) whatever k is; a row of
    some thousand entries costs little more than a sigmoid `thretopk`, and a derivative as much
    again. Derivatives are those of contour with every method but auto.

    *Recursion*: with n = 100 scores from N(0, 9) and k = 20, most rows come out as NaN, and at
    k = 10 some finite results are wrong by more than 1. It is unstable because it subtracts
    nearly equal numbers; the operator itself is well-conditioned.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. At k = 0 and k = n all derivatives are 0.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024). The evaluation in
    O(n) is this library's own.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([3.0, 2.0, 1.0, 4.0])
    >>> stk.gradtopk(x, 2, temperature=0.5).round(3)
    array([0.869, 0.131, 0.018, 0.982])
    >>> p, dp = stk.gradtopk.jvp(x, 2, np.array([1.0, 0.0, 0.0, 0.0]), temperature=0.5)
    >>> dp.round(3)
    array([ 0.228, -0.197, -0.027, -0.004])
    >>> round(float(stk.gradtopk.potential(x, 2)), 3)  # log(e^7 + e^6 + e^5 + e^5 + e^4 + e^3)
    7.535
    """

    __name__ = "gradtopk"
    has_second = True
    has_potential = True
    cpu = cpu
    chunks = chunks

    @typed.value
    def potential(
        self,
        x: typed.Scores,
        /,
        k: int | typed.Arrays,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.OfRows[Never, Never, Method, Never]],
    ) -> Any:
        """Smoothed sum of the k largest entries, temperature * log Z_k; its gradient in x is p.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call of the operator; the result does not depend on the method.

        Returns
        -------
        phi : array of the batch shape, or a scalar
            In the units of x, between the sum of the k largest entries and that plus
            temperature * log(n choose k). With ``largest=False``, the smoothed sum of the k
            smallest.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> round(float(stk.gradtopk.potential([3.0, 2.0, 1.0, 4.0], 2)), 3)
        7.535
        """
        named = {"temperature": temperature, "axis": axis, "largest": largest, "where": where}
        return self._number("potential", x, k, options, clamp_k=clamp_k, **named)

    def _options(self, *, method: str = "auto") -> str:
        if method not in METHODS:
            known = ", ".join(map(repr, METHODS))
            raise ValueError(f"method is {method!r}; expected one of {known}")
        return method


gradtopk = GradTopK()
