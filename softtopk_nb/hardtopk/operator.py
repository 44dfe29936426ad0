"""The hard top-k, the limit of all other constructions as the temperature goes to 0."""

from __future__ import annotations

from typing import Never

from .._api import operator
from . import cpu
from .cpu import chunks

__all__ = ["hardtopk"]


class HardTopK(operator.Operator[int, Never, Never, Never, Never]):
    """The indicator of the k largest entries along an axis.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type; integers and bools give float64.
    k : int or array_like of int
        How many entries, 0 <= k <= n; broadcast against x's shape without the axis, or with 1
        along it.
    temperature : float or array_like, default=1.0
        Accepted so that operators can be exchanged, checked, and without effect.
    axis : int, default=-1
        The axis of the scores.
    largest : bool, default=True
        False takes the k smallest.
    where : array_like of bool, default=None
        Entries that take part; the others get 0.
    out : ndarray, default=None
        Array of x's shape and of the result's type to write to; it is returned.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row; a row with fewer is NaN otherwise.

    Returns
    -------
    p : array of x's shape and type
        Exactly k ones in each row and zeros elsewhere. Ties go to the lowest index, ties of more
        than k entries at +inf too. A row with a NaN, or with fewer than k entries above -inf, is
        NaN.

    Raises
    ------
    TypeError
        x, k, temperature, where or out of a wrong type.
    ValueError
        k outside [0, n], a temperature that is not positive, a shape that does not fit.

    See Also
    --------
    thretopk : a smooth form.

    Notes
    -----
    At most 64 passes of comparisons (32 in float32), about log2(n) for most rows, and a quarter of
    that from 4,000,000 entries on; no sort. It is the hard top-k of Su (2024), and has no useful
    derivative: it is constant almost everywhere.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> stk.hardtopk([3.0, 2.0, 1.0, 4.0], 2)
    array([1., 0., 0., 1.])
    """

    __name__ = "hardtopk"
    is_soft = False
    cpu = cpu
    chunks = chunks


hardtopk = HardTopK()
