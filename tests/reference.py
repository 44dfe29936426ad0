"""Independent definitions of the operators, to test the package against.

Nothing here is imported from the package, and nothing here is clever. A threshold is found by
bisection on its defining equation, sum_i f((x_i - lam)/tau) = k, at 60 decimal digits; derivatives
come twice, once from the implicit function theorem and once from a central difference.

`thretopk` and its relatives answer in `mp`, a context of its own, so numbers keep their precision
in later arithmetic, whatever the precision of the global ``mpmath.mp``. `thretopk_float64` does the
same bisection in float64 for rows too long for 60 digits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
from scipy import special

mp = mpmath.mp.clone()
mp.dps = 80  # 60 behind the point, and 20 before it for rows with a huge spread
ZERO, HALF, ONE = mp.mpf(0), mp.mpf(1) / 2, mp.mpf(1)
# Thresholds lam/tau are located to this, and so is every p where f' is bounded by 1.
RESOLUTION = mp.mpf(10) ** -58
# Central differences: truncation 1e-40, and 1e-58 of resolution divided by 1e-20.
STEP = mp.mpf(10) ** -20

CURVES = ("exp", "sigmoid", "laplace", "clip", "normal")


def exact(values: Any) -> list:
    """The numbers of a sequence as `mp` numbers, without rounding floats of any width."""
    return [v if isinstance(v, mp.mpf) else mp.mpf(float(v)) for v in values]


def to_float64(values: Any) -> np.ndarray:
    """The `mp` numbers of a sequence rounded to float64."""
    return np.array([float(v) for v in values])


def dot(u: Any, v: Any) -> Any:
    """sum_i u_i v_i in `mp`."""
    return mp.fsum(a * b for a, b in zip(u, v, strict=True))


# ---------------------------------------------------------------------------------- hard top-k


def hardtopk(x: Any, k: int) -> np.ndarray:
    """T_k(x): ones at the k largest entries, ties to the lowest index."""
    p = np.zeros(len(x))
    p[sorted(range(len(x)), key=lambda i: (-x[i], i))[:k]] = 1.0
    return p


def sum_of_largest(x: Any, k: float) -> float:
    """s_k(x), the sum of the k largest entries, the last of them in part if k is not an integer."""
    ordered = sorted(map(float, x), reverse=True)
    whole = math.floor(k)
    return math.fsum([*ordered[:whole], *(v * (k - whole) for v in ordered[whole : whole + 1])])


# -------------------------------------------------------------------------------------- curves


class Curve(NamedTuple):
    """A curve f of ThreTopK: f itself, f', F with F' = f and F(-inf) = 0, and lim F(t) - t."""

    cdf: Callable
    pdf: Callable
    integral: Callable | None = None
    excess: Any = None


@functools.cache
def _entmax(alpha: float) -> Curve:
    c = mp.mpf(alpha) - 1
    top = 1 / c  # the support of f' is [0, 1/(alpha-1)]

    def cdf(t: Any) -> Any:
        return ZERO if t <= 0 else ONE if t >= top else (c * t) ** (1 / c)

    def pdf(t: Any) -> Any:
        return (c * t) ** (1 / c - 1) if 0 < t < top else ZERO

    def integral(t: Any) -> Any:
        if t <= 0:
            return ZERO
        return (c * t) ** ((c + 1) / c) / (c + 1) if t < top else t - top + 1 / (c + 1)

    return Curve(cdf, pdf, integral, 1 / (c + 1) - top)


_TABLE = {
    "exp": Curve(
        lambda t: mp.exp(t) if t < 0 else ONE,
        lambda t: mp.exp(t) if t < 0 else ZERO,
        lambda t: mp.exp(t) if t < 0 else 1 + t,
        ONE,
    ),
    "sigmoid": Curve(
        lambda t: mp.exp(t) / (1 + mp.exp(t)) if t < 0 else 1 / (1 + mp.exp(-t)),
        lambda t: mp.exp(-abs(t)) / (1 + mp.exp(-abs(t))) ** 2,
        lambda t: max(t, ZERO) + mp.log1p(mp.exp(-abs(t))),
        ZERO,
    ),
    "laplace": Curve(
        lambda t: mp.exp(t) / 2 if t < 0 else 1 - mp.exp(-t) / 2,
        lambda t: mp.exp(-abs(t)) / 2,
        lambda t: max(t, ZERO) + mp.exp(-abs(t)) / 2,
        ZERO,
    ),
    "clip": Curve(
        lambda t: min(max(t, ZERO), ONE),
        lambda t: ONE if 0 < t < 1 else ZERO,
        lambda t: ZERO if t < 0 else t**2 / 2 if t < 1 else t - HALF,
        -HALF,
    ),
    "normal": Curve(
        lambda t: mp.erfc(-t / mp.sqrt(2)) / 2,
        lambda t: mp.npdf(t),
        lambda t: t * mp.erfc(-t / mp.sqrt(2)) / 2 + mp.npdf(t),
        ZERO,
    ),
}


def curve_of(curve: str | Curve, alpha: float | None = None) -> Curve:
    """The curve of that name; a `Curve` is returned as it is."""
    if isinstance(curve, Curve):
        return curve
    return _entmax(alpha) if curve == "entmax" and alpha is not None else _TABLE[curve]


# ---------------------------------------------------------------------------- thretopk, 60 digits


class Solution(NamedTuple):
    """p = f((x - threshold)/temperature) with sum k, and the potential whose gradient is p."""

    p: list
    threshold: Any
    potential: Any


def _bracket(f: Callable, level: Any) -> tuple:
    """(q, r) with f(q) <= level <= f(r)."""
    q = r = ZERO
    step = ONE
    while f(q) > level:
        q, step = q - step, 2 * step
    step = ONE
    while f(r) < level:
        r, step = r + step, 2 * step
    return q, r


def thretopk(
    x: Any,
    k: float,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
) -> Solution:
    """ThreTopK by bisection. Where no entry is partly chosen, the threshold is one of many."""
    return _solve(tuple(exact(x)), *exact([k, temperature]), curve_of(curve, alpha))


@functools.cache
def _solve(x: tuple, k: Any, tau: Any, curve: Curve) -> Solution:
    f, integral, excess, n = curve.cdf, curve.integral, curve.excess, len(x)
    if k in (0, n):  # the infimum over l is a limit, at l = +inf or -inf
        potential = None if integral is None else mp.fsum(x) + n * tau * excess if k else ZERO
        return Solution([ONE if k else ZERO] * n, -mp.inf if k else mp.inf, potential)

    z = [v / tau for v in x]
    q, r = _bracket(f, k / n)
    low, high = min(z) - r, max(z) - q  # sum f(z - low) >= k >= sum f(z - high)
    while high - low > RESOLUTION:
        middle = (low + high) / 2
        if mp.fsum(f(v - middle) for v in z) >= k:
            low = middle
        else:
            high = middle
    lam = (low + high) / 2
    potential = None
    if integral is not None:
        potential = tau * (k * lam + mp.fsum(integral(v - lam) for v in z))
    return Solution([f(v - lam) for v in z], tau * lam, potential)


def weights(
    x: Any,
    k: float,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
) -> tuple[list, list]:
    """w_i = f'(zeta_i) and zeta_i = (x_i - lam)/tau, of which every derivative is made."""
    lam = thretopk(x, k, curve, temperature, alpha).threshold
    if not mp.isfinite(lam):
        return [ZERO] * len(x), [ZERO] * len(x)
    zeta = [(v - lam) / mp.mpf(float(temperature)) for v in exact(x)]
    return [curve_of(curve, alpha).pdf(t) for t in zeta], zeta


def thretopk_jvp(
    x: Any,
    k: float,
    dx: Any,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
    dk: float = 0.0,
    dtemperature: float = 0.0,
) -> list:
    """dp by the implicit function theorem; zeros where no entry is partly chosen."""
    w, zeta = weights(x, k, curve, temperature, alpha)
    dx, tau, dk, dtau = exact(dx), *exact([temperature, dk, dtemperature])
    total = mp.fsum(w)
    if total == 0:
        return [ZERO] * len(w)
    moved = [d - t * dtau for d, t in zip(dx, zeta, strict=True)]
    dlam = (dot(w, moved) - tau * dk) / total
    return [wi / tau * (m - dlam) for wi, m in zip(w, moved, strict=True)]


def thretopk_jvp_by_difference(
    x: Any,
    k: float,
    dx: Any,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
    dk: float = 0.0,
    dtemperature: float = 0.0,
) -> list:
    """dp by a central difference of `thretopk` itself; knows nothing of derivatives."""
    x, dx = exact(x), exact(dx)
    k, tau, dk, dtau = exact([k, temperature, dk, dtemperature])

    def moved(h: Any) -> list:
        return thretopk(
            [v + h * d for v, d in zip(x, dx, strict=True)],
            k + h * dk,
            curve,
            tau + h * dtau,
            alpha,
        ).p

    return [(a - b) / (2 * STEP) for a, b in zip(moved(STEP), moved(-STEP), strict=True)]


def jacobian(
    x: Any,
    k: float,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
) -> np.ndarray:
    """dp_i/dx_j, column by column, in float64."""
    unit = np.eye(len(x))
    columns = [thretopk_jvp(x, k, e, curve, temperature, alpha) for e in unit]
    return np.array([to_float64(c) for c in columns]).T


# ---------------------------------------------------------------------------- thretopk, float64


def cdf_float64(
    t: np.ndarray, curve: str | Callable = "laplace", alpha: float | None = None
) -> np.ndarray:
    """f in float64; a callable is its own f."""
    if callable(curve):
        return curve(t)
    match curve:
        case "exp":
            return np.exp(np.minimum(t, 0.0))
        case "sigmoid":
            return special.expit(t)
        case "laplace":
            tail = 0.5 * np.exp(-np.abs(t))
            return np.where(t < 0, tail, 1.0 - tail)
        case "clip":
            return np.clip(t, 0.0, 1.0)
        case "normal":
            return special.ndtr(t)
        case "entmax" if alpha is not None:
            return np.clip((alpha - 1) * t, 0.0, 1.0) ** (1 / (alpha - 1))
    raise ValueError(f"no curve is called {curve!r}")


def thretopk_float64(
    x: Any,
    k: float,
    curve: str | Callable = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
) -> np.ndarray:
    """p of one long row, by bisection with exactly rounded sums until the bracket is exhausted."""
    x = np.asarray(x, dtype=np.float64)
    if k in (0, x.size):
        return np.full(x.size, 1.0 if k else 0.0)
    z = (x - x.mean()) / temperature

    def f(t: Any) -> np.ndarray:
        return cdf_float64(np.asarray(t, dtype=np.float64), curve, alpha)

    width = 1.0
    while f(-width) > k / x.size or f(width) < k / x.size:
        width *= 2.0
    low, high = z.min() - width, z.max() + width
    while low < (middle := 0.5 * (low + high)) < high:
        if math.fsum(f(z - middle)) >= k:
            low = middle
        else:
            high = middle
    return f(z - low)
