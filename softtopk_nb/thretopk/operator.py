"""ThreTopK: p_i = f((x_i - lambda)/tau), with the threshold lambda that makes p sum to k."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np

from .._api import arguments, operator, typed, verbs
from .._curves.base import is_steep
from .._curves.entmax import Entmax
from .._curves.registry import CURVES, NAMES
from .._curves.registry import Name as CurveName
from .._curves.user import UserCurve
from .._threshold.cpu.scan import SCANNED
from .._threshold.methods import METHODS
from .._threshold.methods import Name as Method
from . import cpu
from .cpu import chunks
from .curve import Curve
from .prices import Priced

__all__ = ["Curve", "CurveChoice", "Method", "thretopk"]

#: What the argument `curve` may be.
CurveChoice = CurveName | Curve

MOST_ALPHA = 100.0  # for a larger one entmax is nearly a step, and float64 cannot resolve it


class Options(NamedTuple):
    curve: Any  # a value of one of the types in `_curves`
    method: Any  # a value of one of the types in `_threshold.methods`
    name: str


class ThreTopK(operator.Differentiable[float, CurveChoice, float, Method, typed.Numbers]):
    """Smooth top-k by a threshold: p_i = f((x_i - lambda) / temperature), sum p = k.

    f is a CDF, the *curve*; lambda is the one number for each row that makes p sum to k. As the
    temperature goes to 0, p turns into the hard top-k.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores. float16, float32 and float64 keep their type (float16 is computed in float32);
        integers and bools give float64.
    k : float or array_like
        Sum of p, any real number 0 <= k <= n; broadcast against x's shape without the axis, or with
        1 along it. One below n 2^-1020 is taken for that; with ``curve="cauchy"`` one below
        n 2^-500, or n 2^-60 in float32.
    curve : {CURVES} or Curve, default="laplace"
        The curve f: see the page "Which operator?".
    alpha : float, default=None
        Exponent of ``curve="entmax"``, 1 < alpha <= 100; towards 1 it becomes exp, 2 is clip, 1.5
        is the usual choice.
    method : {"auto", "newton", "scan", "bisect"}, default="auto"
        How lambda is found. newton: passes over the row, no sort (auto takes it). scan: sort and
        scan analytically, for exp, laplace and clip. bisect: halve until the mass is right.
    cost : array_like, default=None
        Positive costs c, broadcastable to x's shape: sum c p = k with p_i = f((x_i - lambda
        c_i)/temperature), 0 <= k <= sum c. None is a cost of 1, to rounding.
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
        x, k, temperature, where, alpha or out of a wrong type, an unknown keyword.
    ValueError
        k outside [0, n] or [0, sum c], a temperature or cost that is not positive and finite, an
        unknown curve or method, a shape that does not fit.
    NotImplementedError
        A cost where it has no kernel or derivative: on a device, for `hvp`.

    See Also
    --------
    hardtopk : the limit of temperature 0.
    softtopk_nb.torch.thretopk, softtopk_nb.jax.thretopk : with autograd, and `hard=True` for a 0/1
        mask that has the derivatives of p.

    Notes
    -----
    *Holds*: range, sum, monotonicity up to rounding (x_i >= x_j implies p_i >= p_j, less a unit
    or two in the last place), invariance under shifts and permutations, convergence to the hard
    top-k when x_(k) > x_(k+1), and a symmetric positive semidefinite Jacobian: p is the gradient
    of `potential`. *Does not hold*: p_i >= p_j implies x_i >= x_j only for the strictly increasing
    curves, not where exp, clip or entmax saturate; exp, clip and entmax have kinks.

    *Accuracy*, R = (max x - min x)/temperature: 1e-13 + 4 eps R in float64, 1e-6 + 4 eps R in
    float32, for entmax with every alpha; with alpha > 2, where the slope is infinite at the edge
    of the support, float32 rows are solved in float64 (on the CPU). *Cost*: O(n), a few passes
    over the row; a row is never sorted unless asked for. The derivatives cost two passes.

    *Limits*: a NaN makes its row NaN; -inf gives 0 and is excluded; +inf gives 1 and uses up
    one of k, and more +inf than k share k equally. At k = 0 and k = n, and where every entry is
    saturated to rounding, all derivatives are 0. Temperatures may be as small or large as numbers
    are; on a device those beyond 1/max or max of the type (3e-39 and 3e38 in float32) act as these.

    *With a cost* p is the smooth fractional knapsack, for up to four times the time; `vjp` returns
    the gradient in the costs too, `threshold` the marginal value of a unit of k. A shift of x
    changes p. For the accuracy R = max abs(x)/temperature + k max dp/dk; above 1e21 the budget is
    not kept. alpha is at most 2. A k within rounding of sum c gives ones. Entries of +inf use up
    their costs.

    Source: Su, "Softmax Sequel: Finding Smooth Approximations for Top-K" (2024).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.array([3.0, 2.0, 1.0, 4.0])
    >>> stk.thretopk(x, 2, temperature=0.5).round(3)
    array([0.816, 0.184, 0.025, 0.975])
    >>> p, vjp = stk.thretopk.vjp(x, 2, temperature=0.5)
    >>> vjp(np.array([1.0, 0.0, 0.0, 0.0])).x.round(3)
    array([ 0.206, -0.162, -0.022, -0.022])
    >>> stk.thretopk(x, 3, temperature=0.1, cost=[2.0, 1.0, 2.0, 4.0]).round(3)
    array([0.999, 1.   , 0.   , 0.   ])
    """

    __name__ = "thretopk"
    real_k = True
    has_second = True
    has_potential = True
    has_conjugate = True
    cpu = cpu
    chunks = chunks

    def __init__(self) -> None:
        super().__init__()
        self.priced = Priced(self)

    @typed.jvp
    def jvp(
        self,
        x: typed.Numbers,
        /,
        k: float | typed.Arrays,
        dx: typed.Numbers,
        *,
        dk: typed.Numbers | None = None,
        dtemperature: typed.Numbers | None = None,
        dcost: typed.Numbers | None = None,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        out: typed.Arrays | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[CurveChoice, float, Method, typed.Numbers]],
    ) -> tuple[Any, Any]:
        """Value and derivative along a direction (forward mode).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, out, clamp_k, **options
            As in a call of the operator; `out` receives the value.
        dx : array_like
            The direction in x, broadcastable to its shape.
        dk, dtemperature : array_like, default=None
            Directions in k and in the temperature, broadcastable to the batch shape; None for
            ones that do not move.
        dcost : array_like, default=None
            The direction in the costs, broadcastable to x's shape; only where a cost is given.

        Returns
        -------
        p, dp : arrays of x's shape and type
            The value, and the derivative of p along the direction.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> p, dp = stk.thretopk.jvp([3.0, 2.0, 1.0, 4.0], 2, [0.0, 1.0, 0.0, 0.0], temperature=0.5)
        >>> dp.round(3)
        array([-0.162,  0.206, -0.022, -0.022])
        """
        directions: tuple[Any, ...] = dk, dtemperature
        if options.get("cost") is not None:
            directions = *directions, dcost
        elif dcost is not None:
            raise TypeError("dcost was given, but no cost")
        k = arguments.clamped(k, clamp_k)
        return verbs.jvp(
            self, dx, directions, x, k, temperature, axis, largest, where, out, options
        )

    @typed.value
    def potential(
        self,
        x: typed.Scores,
        /,
        k: float | typed.Arrays,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.OfRows[CurveChoice, float, Method, typed.Numbers]],
    ) -> Any:
        """Smoothed sum of the k largest entries; its gradient in x is p.

        temperature * min over l of [k l + sum F(x/temperature - l)], F the antiderivative of the
        curve that vanishes at -inf; of a distribution without a mean the one that vanishes at 0,
        and then it is -inf at k = 0 and k = n. For entmax it goes to -inf as
        -k temperature/(alpha - 1) where alpha goes to 1, and has digits in proportion.

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call of the operator. A `Curve` of one's own needs its ``integral``.

        Returns
        -------
        phi : array of the batch shape, or a scalar
            In the units of x. With ``largest=False``, the smoothed sum of the k smallest.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> phi = stk.thretopk.potential([3.0, 2.0, 1.0, 4.0], 2, temperature=0.1)
        >>> round(float(phi), 4)                                 # near 3 + 4
        7.0007
        """
        named = {"temperature": temperature, "axis": axis, "largest": largest, "where": where}
        return self._number("potential", x, k, options, clamp_k=clamp_k, **named)

    @typed.value
    def threshold(
        self,
        x: typed.Scores,
        /,
        k: float | typed.Arrays,
        *,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.OfRows[CurveChoice, float, Method, typed.Numbers]],
    ) -> Any:
        """The threshold lambda of p = f((x - lambda)/temperature).

        Parameters
        ----------
        x, k, temperature, axis, largest, where, clamp_k, **options
            As in a call of the operator.

        Returns
        -------
        lam : array of the batch shape, or a scalar
            In the units of x; +inf where nothing is selected (k = 0), -inf where everything is
            (k = n). With ``largest=False``, p = f((lam - x)/temperature). That of entmax goes to
            -inf as -temperature/(alpha - 1) where alpha goes to 1.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> float(stk.thretopk.threshold([3.0, 2.0, 1.0, 4.0], 2))
        2.5
        """
        named = {"temperature": temperature, "axis": axis, "largest": largest, "where": where}
        return self._number("threshold", x, k, options, clamp_k=clamp_k, **named)

    def _options(
        self,
        *,
        curve: Any = "laplace",
        alpha: Any = None,
        method: str = "auto",
        cost: Any = None,
    ) -> Options:
        if cost is not None:
            raise TypeError(
                "cost was given where it has no meaning; expected it in a call of thretopk, its "
                "jvp, vjp, potential and threshold alone"
            )
        chosen: Any
        if isinstance(curve, Curve):
            chosen, name = curve.compiled, curve.name
        elif curve == "entmax" and isinstance(curve, str):
            chosen, name = Entmax(_check_alpha(alpha)), curve
        elif isinstance(curve, str) and curve in CURVES:
            chosen, name = CURVES[curve], curve
        else:
            known = ", ".join(map(repr, NAMES))
            hint = f"; you may want {_OTHERS[str(curve)]}" if str(curve) in _OTHERS else ""
            raise ValueError(f"curve is {curve!r}; expected one of {known} or a Curve{hint}")
        if alpha is not None and name != "entmax":
            raise ValueError(
                f"alpha is {alpha!r}, but curve {name!r} has no alpha; you may want temperature"
            )
        if method not in ("auto", *METHODS):
            known = ", ".join(map(repr, ("auto", *METHODS)))
            raise ValueError(f"method is {method!r}; expected one of {known}")
        if method == "scan" and not isinstance(chosen, SCANNED):
            raise ValueError(
                f"method is 'scan', which curve {name!r} does not have; "
                "expected curve 'exp', 'laplace' or 'clip'"
            )
        return Options(chosen, METHODS["newton" if method == "auto" else method], name)

    def computed_in(self, options: Options, given: type) -> type:
        """The type of the rows: float64 for a user's curve."""
        # float32 lacks the digits for tails that are differences from 1.
        return np.float64 if isinstance(options.curve, UserCurve) else given

    def computed_in_chunks(self, options: Options, given: type) -> type:
        """The type of a row in chunks: float64 for a steep curve too."""
        return np.float64 if is_steep(options.curve) else self.computed_in(options, given)


# What others call a curve.
_OTHERS = {
    "entmax15": "curve='entmax' with alpha=1.5",
    "sparsemax": "curve='clip' with k = 1",
    "softmax": "curve='exp' with k = 1",
    "lapsum": "curve='laplace'",
    "lml": "curve='sigmoid'",
}


def _check_alpha(alpha: Any) -> float:
    expected = f"a number above 1, at most {MOST_ALPHA:g}"
    if alpha is None:
        raise ValueError(f"curve 'entmax' needs alpha=..., {expected}")
    if isinstance(alpha, (bool, np.bool_)) or not isinstance(
        alpha, (int, float, np.integer, np.floating)
    ):
        raise TypeError(
            f"alpha is {alpha!r}; expected {expected}, of Python or NumPy: it has no gradient"
        )
    if not (1 < alpha <= MOST_ALPHA and float(alpha) > 1.0):
        raise ValueError(f"alpha is {alpha!r}; expected {expected}")
    return float(alpha)


if ThreTopK.__doc__ is not None:  # it is under -OO
    ThreTopK.__doc__ = ThreTopK.__doc__.replace("{CURVES}", f"{{{', '.join(map(repr, NAMES))}}}")
thretopk = ThreTopK()
