"""Independent definitions of the operators, to test the package against.

Nothing here is imported from the package, and nothing here is clever. A threshold is found by
bisection on its defining equation, sum_i f((x_i - lam)/tau) = k, at 60 decimal digits; derivatives
come twice, once from the implicit function theorem and once from a central difference.

GradTopK is computed from sums of positive terms, at 80 digits, and by listing the subsets; its
derivative from pair marginals and from a central difference. The iterations are run as they are
defined, and differentiated step by step.

`thretopk` and its relatives answer in `mp`, a context of its own, so numbers keep their precision
in later arithmetic, whatever the precision of the global ``mpmath.mp``. `thretopk_float64` does the
same bisection in float64 for rows too long for 60 digits.
"""

from __future__ import annotations

import functools
import itertools
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
    """A curve f of ThreTopK: f itself, f', F with F' = f and F(-inf) = 0, and lim F(t) - t.

    Without a mean F(0) = 0, and there is no limit. The rest is in float64: f and omega on arrays,
    where omega(q) = max of q t - F(t), so that omega' = f^-1; and the bound of thm-convergence on
    ||p - T_k||_1, from n, k, the gap and the temperature.
    """

    cdf: Callable
    pdf: Callable
    integral: Callable | None = None
    excess: Any = None
    cdf_float64: Callable | None = None
    omega: Callable | None = None
    rate: Callable | None = None


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

    return Curve(
        cdf,
        pdf,
        integral,
        1 / (c + 1) - top,
        lambda t: np.clip((alpha - 1) * t, 0.0, 1.0) ** (1 / (alpha - 1)),
        lambda q: q**alpha / (alpha * (alpha - 1)),
        lambda n, k, gap, tau: 0.0 if tau <= (alpha - 1) * gap else math.inf,
    )


def _laplace_float64(t: np.ndarray) -> np.ndarray:
    tail = 0.5 * np.exp(-np.abs(t))
    return np.where(t < 0, tail, 1.0 - tail)


def _laplace_omega(q: np.ndarray) -> np.ndarray:
    least = np.minimum(q, 1 - q)
    return special.xlogy(least, 2 * least) - least


def _cauchy(t: Any) -> Any:
    """f, without what 1/2 would take from a small tail."""
    return mp.atan(-1 / t) / mp.pi if t < -1 else HALF + mp.atan(t) / mp.pi


_TABLE = {
    "exp": Curve(
        lambda t: mp.exp(t) if t < 0 else ONE,
        lambda t: mp.exp(t) if t < 0 else ZERO,
        lambda t: mp.exp(t) if t < 0 else 1 + t,
        ONE,
        lambda t: np.exp(np.minimum(t, 0.0)),
        lambda q: special.xlogy(q, q) - q,
        lambda n, k, gap, tau: 2 * (n - k) * math.exp(-gap / tau),
    ),
    "sigmoid": Curve(
        lambda t: mp.exp(t) / (1 + mp.exp(t)) if t < 0 else 1 / (1 + mp.exp(-t)),
        lambda t: mp.exp(-abs(t)) / (1 + mp.exp(-abs(t))) ** 2,
        lambda t: max(t, ZERO) + mp.log1p(mp.exp(-abs(t))),
        ZERO,
        special.expit,
        lambda q: special.xlogy(q, q) + special.xlogy(1 - q, 1 - q),
        lambda n, k, gap, tau: 2 * math.sqrt(k * (n - k)) * math.exp(-gap / (2 * tau)),
    ),
    "laplace": Curve(
        lambda t: mp.exp(t) / 2 if t < 0 else 1 - mp.exp(-t) / 2,
        lambda t: mp.exp(-abs(t)) / 2,
        lambda t: max(t, ZERO) + mp.exp(-abs(t)) / 2,
        ZERO,
        _laplace_float64,
        _laplace_omega,
        lambda n, k, gap, tau: math.sqrt(k * (n - k)) * math.exp(-gap / (2 * tau)),
    ),
    "clip": Curve(
        lambda t: min(max(t, ZERO), ONE),
        lambda t: ONE if 0 < t < 1 else ZERO,
        lambda t: ZERO if t < 0 else t**2 / 2 if t < 1 else t - HALF,
        -HALF,
        lambda t: np.clip(t, 0.0, 1.0),
        lambda q: q**2 / 2,
        lambda n, k, gap, tau: 0.0 if tau <= gap else math.inf,
    ),
    "normal": Curve(
        lambda t: mp.erfc(-t / mp.sqrt(2)) / 2,
        lambda t: mp.npdf(t),
        lambda t: t * mp.erfc(-t / mp.sqrt(2)) / 2 + mp.npdf(t),
        ZERO,
        special.ndtr,
        lambda q: -np.exp(-(special.ndtri(q) ** 2) / 2) / math.sqrt(2 * math.pi),
        lambda n, k, gap, tau: max(k, n - k) * math.exp(-(gap**2) / (8 * tau**2)),
    ),
    "cauchy": Curve(
        _cauchy,
        lambda t: 1 / (mp.pi * (1 + mp.mpf(t) ** 2)),
        lambda t: t * _cauchy(t) - mp.log1p(t**2) / (2 * mp.pi),
        None,
        lambda t: np.arctan2(1.0, -t) / math.pi,
        lambda q: -special.xlogy(1 / np.pi, np.sin(np.pi * np.minimum(q, 1 - q))),
        lambda n, k, gap, tau: 2 * n * tau / (math.pi * gap),
    ),
}
CURVES = tuple(_TABLE)


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
    numbers = tuple(exact(x)), *exact([k, temperature])
    if curve == "entmax" and alpha is not None and alpha > 2 and 0 < k < len(x):
        return _solve_steep(*numbers, mp.mpf(alpha) - 1)
    return _solve(*numbers, curve_of(curve, alpha))


@functools.cache
def _solve_steep(x: tuple, k: Any, tau: Any, c: Any) -> Solution:
    """Entmax with alpha = c + 1 > 2 by bisection on p of the lowest entry above the threshold.

    Where the slope of f is infinite, no number of digits of the threshold is enough for all of p.
    """
    steps = sorted({v / tau for v in x}, reverse=True)

    def values(edge: Any, p: Any) -> list:
        # The threshold lies p^c/c below the edge, where f is p.
        above = [v / tau - edge for v in x]
        partly = [min(c * max(t, ZERO) + p**c, ONE) ** (1 / c) for t in above]
        return [ZERO if t < 0 else p if t == 0 else f for t, f in zip(above, partly, strict=True)]

    # The highest entry for which k is reached before p is 1 there, or the next entry the lowest.
    for edge, after in itertools.zip_longest(steps, steps[1:]):
        most = ONE if after is None else min(c * (edge - after), ONE) ** (1 / c)
        if mp.fsum(values(edge, most)) >= k:
            break
    low, high = ZERO, most
    while high - low > RESOLUTION * most:
        middle = (low + high) / 2
        low, high = (middle, high) if mp.fsum(values(edge, middle)) < k else (low, middle)
    p = values(edge, high)
    curve, lam = curve_of("entmax", float(c + 1)), edge - high**c / c
    potential = tau * (k * lam + mp.fsum(curve.integral(v / tau - lam) for v in x))
    return Solution(p, tau * lam, potential)


@functools.cache
def _solve(x: tuple, k: Any, tau: Any, curve: Curve) -> Solution:
    f, integral, excess, n = curve.cdf, curve.integral, curve.excess, len(x)
    if k in (0, n):  # the infimum over l is a limit, at l = +inf or -inf
        potential = None
        if integral is not None:
            whole = -mp.inf if excess is None else mp.fsum(x) + n * tau * excess
            potential = whole if k or excess is None else ZERO
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


# ---------------------------------------------------------------------- with costs, 60 digits


def priced(
    x: Any,
    k: float,
    cost: Any,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
) -> Solution:
    """sum c p = k, p = f((x - lam c)/temperature), by bisection on lam; 0 < k < sum c."""
    x, cost, (k, tau), known = (
        exact(x),
        exact(cost),
        exact([k, temperature]),
        curve_of(curve, alpha),
    )
    f = known.cdf

    def spent(lam: Any) -> Any:
        return mp.fsum(c * f((v - lam * c) / tau) for v, c in zip(x, cost, strict=True))

    q, r = _bracket(f, k / mp.fsum(cost))
    low = min((v - tau * r) / c for v, c in zip(x, cost, strict=True))
    high = max((v - tau * q) / c for v, c in zip(x, cost, strict=True))
    while (high - low) * max(cost) > RESOLUTION * tau:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) >= k else (low, middle)
    lam = (low + high) / 2
    t = [(v - lam * c) / tau for v, c in zip(x, cost, strict=True)]
    potential = None
    if known.integral is not None:
        potential = k * lam + tau * mp.fsum(map(known.integral, t))
    return Solution([f(each) for each in t], lam, potential)


def knapsack(x: Any, k: float, cost: Any) -> np.ndarray:
    """The fractional knapsack: entries by their value for each unit of cost until k is spent."""
    left, p = k, np.zeros(len(x))
    for i in sorted(range(len(x)), key=lambda i: -x[i] / cost[i]):
        p[i] = min(1.0, left / cost[i])
        left -= p[i] * cost[i]
    return p


# ---------------------------------------------------------------------------- thretopk, float64


def cdf_float64(
    t: np.ndarray, curve: str | Callable = "laplace", alpha: float | None = None
) -> np.ndarray:
    """f in float64; a callable is its own f."""
    return curve(t) if callable(curve) else curve_of(curve, alpha).cdf_float64(t)


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


# ------------------------------------------------------------------------ balanced top-k, 60 digits


class Balance(NamedTuple):
    """p_ij = f((x_ij - rows_i - columns_j)/temperature), with the sums of both."""

    p: list  # of rows
    rows: list
    columns: list


def balancedtopk(
    x: Any,
    k: Any,
    load: Any,
    curve: str | Curve = "laplace",
    temperature: float = 1.0,
    alpha: float | None = None,
    at_most: bool = False,
) -> Balance:
    """The minimum of the dual: alternating between rows and columns, and Newton's steps to end it.

    The thresholds of columns have mean 0; of bounds they are at least 0, and 0 where a column stays
    below. A constant that may go from rows to columns is held by one more equation. -inf in x is an
    entry that is not there.
    """
    xs, shape = [exact(row) for row in np.asarray(x).tolist()], curve_of(curve, alpha)
    k, load, (tau,) = exact(k), exact(load), exact([temperature])
    if not at_most:
        share = mp.fsum(k) / mp.fsum(load)
        load = [c * share for c in load]
    a, b = _alternated(np.asarray(x, np.float64) / float(tau), k, load, shape, at_most)
    held = [j for j, v in enumerate(b) if v > 0.0 or not at_most]
    found = _balance(xs, k, load, shape, tau, ([tau * v for v in a], [tau * v for v in b]), held)
    sums = [mp.fsum(column) for column in zip(*found.p, strict=True)]
    if at_most:
        assert min(found.columns) >= 0
        assert all(p <= c * (1 + RESOLUTION) for p, c in zip(sums, load, strict=True))
    return found


def _alternated(x: np.ndarray, k: list, load: list, curve: Curve, at_most: bool) -> tuple:
    """Thresholds of rows and columns near the solution, in temperatures."""

    def level(z: np.ndarray, sums: np.ndarray) -> np.ndarray:
        low = np.full(len(z), z.min(where=z > -np.inf, initial=0.0) - 1e3)
        high = np.full(len(z), z.max() + 1e3)
        for _ in range(64):
            middle = 0.5 * (low + high)
            above = curve.cdf_float64(z - middle[:, None]).sum(axis=1) >= sums
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return low

    rows, columns, b = to_float64(k), to_float64(load), np.zeros(x.shape[1])
    for _ in range(150):
        a = level(x - b, rows)
        b = level((x - a[:, None]).T, columns)
        b = np.where(b > 1e-9, b, 0.0) if at_most else b
    shift = 0.0 if at_most else b.mean()
    return exact(a + shift), exact(b - shift)


def _balance(
    xs: list, k: list, load: list, curve: Curve, tau: Any, start: tuple, held: list
) -> Balance:
    """Newton's steps in the thresholds of all rows and of the columns that are `held`."""
    (a, b), m, n = start, len(k), len(load)
    for _ in range(30):
        t = [[(v - a[i] - b[j]) / tau for j, v in enumerate(row)] for i, row in enumerate(xs)]
        p = [[ZERO if v == -mp.inf else curve.cdf(v) for v in row] for row in t]
        u = [[ZERO if v == -mp.inf else curve.pdf(v) / tau for v in row] for row in t]
        short = [mp.fsum(row) - c for row, c in zip(p, k, strict=True)]
        short += [mp.fsum(row[j] for row in p) - load[j] for j in held]
        if max(map(abs, short)) < mp.mpf(10) ** -65:
            return Balance(p, a, b)
        system = mp.zeros(len(short))
        for i in range(m):
            system[i, i] = mp.fsum(u[i]) + mp.mpf(10) ** -70
            for at, j in enumerate(held, m):
                system[i, at] = system[at, i] = u[i][j]
                system[at, at] += u[i][j]
        if len(held) == n:
            for at, other in itertools.product(range(m, m + n), repeat=2):
                system[at, other] += 1
        step = mp.lu_solve(system, mp.matrix(short))
        a = [v + step[i] for i, v in enumerate(a)]
        for at, j in enumerate(held, m):
            b[j] += step[at]
    raise AssertionError(f"the sums are still off by {float(max(map(abs, short))):.1e}")


# ---------------------------------------------------------------------------- gradtopk, 80 digits


class Subsets(NamedTuple):
    """p_i = P(i in S) for the k-subset S of probability e^(sum of z over S)/Z, and tau log Z."""

    p: list
    potential: Any


def gradtopk(x: Any, k: int, temperature: float = 1.0) -> Subsets:
    """GradTopK from elementary symmetric polynomials, every term of which is positive.

    So p keeps all its digits however small it is. About 3 k (n - k) products of 80 digits; 1 - p
    keeps all of its digits as ``gradtopk(-x, n - k)``.
    """
    return _subsets(tuple(exact(x)), int(k), *exact([temperature]))


@functools.cache
def _subsets(x: tuple, k: int, tau: Any) -> Subsets:
    n, top = len(x), max(x)
    if k in (0, n):  # one subset, the empty one or the whole
        return Subsets([ONE if k else ZERO] * n, mp.fsum(x) if k else ZERO)
    y = [mp.exp((v - top) / tau) for v in x]
    before = _symmetric(y, k)
    after = _symmetric(y[::-1], k)[::-1]  # after[i] belongs to the entries i, i+1, ..., n-1
    total = before[n][k]
    p = []
    for i in range(n):  # i, with a of the entries before it and k - 1 - a of those after it
        fewest = max(0, k - n + i)
        others = mp.fdot(
            (before[i][a], after[i + 1][k - 1 - a]) for a in range(fewest, min(i, k - 1) + 1)
        )
        p.append(y[i] * others / total)
    return Subsets(p, k * top + tau * mp.log(total))


def elementary_symmetric(x: Any, k: int) -> Any:
    """Z_k, the sum of e^(sum of x over S) over the k-subsets S."""
    return _symmetric([mp.exp(v) for v in exact(x)], k)[-1][k]


def _symmetric(y: list, k: int) -> list[list]:
    """Row i holds e_0 .. e_k of y[:i], with 0 where n - i more entries cannot make k of it."""
    n = len(y)
    rows = [[ONE] + [ZERO] * k]
    for i, weight in enumerate(y, start=1):
        last, row = rows[-1], [ONE] + [ZERO] * k
        for a in range(max(1, k - n + i), min(i, k) + 1):
            row[a] = last[a] + weight * last[a - 1]
        rows.append(row)
    return rows


class Listing(NamedTuple):
    """`Subsets`, with pairs[i][j] = P(i in S and j in S), whose diagonal is p."""

    p: list
    potential: Any
    pairs: list[list]


def gradtopk_by_enumeration(x: Any, k: int, temperature: float = 1.0) -> Listing:
    """GradTopK from its definition, a sum over all C(n, k) subsets."""
    x, tau, n = exact(x), mp.mpf(float(temperature)), len(x)
    total = ZERO
    pairs = [[ZERO] * n for _ in range(n)]
    for subset in itertools.combinations(range(n), k):
        weight = mp.exp(mp.fsum(x[i] for i in subset) / tau)
        total += weight
        for i in subset:
            for j in subset:
                pairs[i][j] += weight
    pairs = [[pair / total for pair in row] for row in pairs]
    return Listing([pairs[i][i] for i in range(n)], tau * mp.log(total), pairs)


class Entropy(NamedTuple):
    """log P of every subset, in their order; the entropy and its derivatives."""

    log_p: list
    entropy: Any
    in_x: list
    in_temperature: Any


def entropy_of_subsets(x: Any, k: int, temperature: float = 1.0) -> Entropy:
    """The entropy H of the k-subset by enumeration.

    With the score s of a subset, the sum of its entries, H' = Var(s)/tau^3 in the temperature and
    -Cov(i in S, s)/tau^2 in x_i.
    """
    x, tau, n = exact(x), mp.mpf(float(temperature)), len(x)
    listed = list(itertools.combinations(range(n), k))
    scores = [mp.fsum(x[i] for i in subset) / tau for subset in listed]
    top = max(scores)
    log_z = top + mp.log(mp.fsum(mp.exp(s - top) for s in scores))
    log_p = [s - log_z for s in scores]
    chance = [mp.exp(v) for v in log_p]
    mean = dot(chance, log_p)
    off = [p * (v - mean) for p, v in zip(chance, log_p, strict=True)]
    in_x = [
        -mp.fsum(v for v, subset in zip(off, listed, strict=True) if i in subset) / tau
        for i in range(n)
    ]
    return Entropy(log_p, -mean, in_x, dot(off, log_p) / tau)


def gradtopk_pairs(x: Any, k: int, temperature: float = 1.0) -> list[list]:
    """P(i in S and j in S) = P(i in S) P(j in S | i in S).

    Given that i is in S, the rest of S is the (k-1)-subset of the other entries. So this costs n
    times as much as `gradtopk`, and every pair keeps all its digits.
    """
    return _pairs(tuple(exact(x)), int(k), *exact([temperature]))


@functools.cache
def _pairs(x: tuple, k: int, tau: Any) -> list[list]:
    pairs = []
    for i, p in enumerate(_subsets(x, k, tau).p):
        if p == 0:  # k = 0, where no i is in S
            pairs.append([ZERO] * len(x))
            continue
        others = _subsets(x[:i] + x[i + 1 :], k - 1, tau).p if len(x) > 1 else []
        pairs.append([p * q for q in (*others[:i], ONE, *others[i:])])
    return pairs


def gradtopk_jvp(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp = Cov(S) (dx - z dtau)/tau, where z = (x - max x)/tau and Cov(S) is made of pairs.

    The shift of z changes nothing, for the rows of Cov(S) sum to 0.
    """
    p, pairs = gradtopk(x, k, temperature).p, gradtopk_pairs(x, k, temperature)
    x, dx, tau, dtau = exact(x), exact(dx), *exact([temperature, dtemperature])
    moved = [(d - (v - max(x)) / tau * dtau) / tau for v, d in zip(x, dx, strict=True)]
    mean = dot(p, moved)
    return [dot(row, moved) - pi * mean for row, pi in zip(pairs, p, strict=True)]


def gradtopk_jvp_by_difference(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp by a central difference of `gradtopk` itself; knows nothing of derivatives."""
    return _difference(gradtopk, x, k, dx, temperature, dtemperature)


def _difference(
    operator: Callable, x: Any, k: int, dx: Any, temperature: float, dtemperature: float
) -> list:
    x, dx, tau, dtau = exact(x), exact(dx), *exact([temperature, dtemperature])

    def moved(h: Any) -> list:
        return operator([v + h * d for v, d in zip(x, dx, strict=True)], k, tau + h * dtau).p

    return [(a - b) / (2 * STEP) for a, b in zip(moved(STEP), moved(-STEP), strict=True)]


def second_by_difference(
    operator: Callable,
    x: Any,
    k: Any,
    first: tuple,
    second: tuple,
    temperature: float,
    **options: Any,
) -> list:
    """The derivative of p along two directions (dx, dk, dtemperature), from four values of p."""
    x, (k, tau) = exact(x), exact([k, temperature])
    (v, dk, dtau), (a, ak, atau) = ((exact(d[0]), *exact(d[1:])) for d in (first, second))
    h = mp.mpf(10) ** -14  # truncation 1e-28, and 1e-58 of resolution divided by its square

    def moved(r: Any, s: Any) -> list:
        y = [e + r * d + s * b for e, d, b in zip(x, v, a, strict=True)]
        return operator(y, k + r * dk + s * ak, temperature=tau + r * dtau + s * atau, **options).p

    corners = moved(h, h), moved(h, -h), moved(-h, h), moved(-h, -h)
    return [(p - q - r + s) / (4 * h * h) for p, q, r, s in zip(*corners, strict=True)]


# ------------------------------------------------------------------ the two iterations, 80 digits


class Iterated(NamedTuple):
    """p after k steps, and dp along the tangent that was given, if one was."""

    p: list
    dp: list


def itertopk(x: Any, k: int, temperature: float = 1.0) -> Iterated:
    """k times p += softmax((1 - p) z), from p = 0, with z = (x - min x)/tau."""
    return _itertopk(x, k, [0.0] * len(x), temperature, 0.0)


def itertopk_jvp(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp by differentiating every step. Of several minima, min x moves with the first.

    The choice matters: (1 - p) z is not shifted by a constant when z is.
    """
    return _itertopk(x, k, dx, temperature, dtemperature).dp


def itertopk_jvp_by_difference(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp by a central difference of `itertopk` itself."""
    return _difference(itertopk, x, k, dx, temperature, dtemperature)


def _itertopk(x: Any, k: int, dx: Any, temperature: float, dtemperature: float) -> Iterated:
    x, dx, tau, dtau = exact(x), exact(dx), *exact([temperature, dtemperature])
    n, lowest = len(x), x.index(min(x))
    z = [(v - x[lowest]) / tau for v in x]
    dz = [(d - dx[lowest] - t * dtau) / tau for d, t in zip(dx, z, strict=True)]
    p, dp = [ZERO] * n, [ZERO] * n
    for _ in range(k):
        y = [(1 - p[i]) * z[i] for i in range(n)]
        dy = [(1 - p[i]) * dz[i] - dp[i] * z[i] for i in range(n)]
        share = [mp.exp(v - max(y)) for v in y]
        total = mp.fsum(share)
        share = [v / total for v in share]
        mean = dot(share, dy)
        p = [p[i] + share[i] for i in range(n)]
        dp = [dp[i] + share[i] * (dy[i] - mean) for i in range(n)]
    return Iterated(p, dp)


def wsoftmaxtopk(x: Any, k: int, temperature: float = 1.0) -> Iterated:
    """k times p += w e^z / sum(w e^z), from p = 0, with w = 1 - p and z = x/tau."""
    return _wsoftmaxtopk(x, k, [0.0] * len(x), temperature, 0.0)


def wsoftmaxtopk_jvp(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp by differentiating every step."""
    return _wsoftmaxtopk(x, k, dx, temperature, dtemperature).dp


def wsoftmaxtopk_jvp_by_difference(
    x: Any, k: int, dx: Any, temperature: float = 1.0, dtemperature: float = 0.0
) -> list:
    """dp by a central difference of `wsoftmaxtopk` itself."""
    return _difference(wsoftmaxtopk, x, k, dx, temperature, dtemperature)


def _wsoftmaxtopk(x: Any, k: int, dx: Any, temperature: float, dtemperature: float) -> Iterated:
    x, dx, tau, dtau = exact(x), exact(dx), *exact([temperature, dtemperature])
    n, top = len(x), x.index(max(x))
    # 1 - p is as small as e^-R, R = (max x - min x)/tau, and that many digits of p are lost in it.
    with mp.workdps(mp.dps + int((x[top] - min(x)) / tau)):
        # A shift of z cancels in the quotient, and so does what it moves with.
        z = [(v - x[top]) / tau for v in x]
        dz = [(d - dx[top] - t * dtau) / tau for d, t in zip(dx, z, strict=True)]
        p, dp = [ZERO] * n, [ZERO] * n
        for _ in range(k):
            weight = [(1 - p[i]) * mp.exp(z[i]) for i in range(n)]
            dweight = [weight[i] * dz[i] - dp[i] * mp.exp(z[i]) for i in range(n)]
            total, dtotal = mp.fsum(weight), mp.fsum(dweight)
            p = [p[i] + weight[i] / total for i in range(n)]
            dp = [dp[i] + (dweight[i] - weight[i] / total * dtotal) / total for i in range(n)]
    return Iterated(p, dp)
