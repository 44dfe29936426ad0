"""Bounds on the errors of float64's scalar functions, by interval arithmetic, for `certify`.

Each follows a kernel from its coefficients: what the polynomial lacks, and every rounding.
"""

from __future__ import annotations

import math
from typing import Any

from mpmath import iv, mp
from numba import types

from softtopk_nb._curves import cauchy as cauchy_module
from softtopk_nb._math import elementary, special


def exponential(fused: bool, pieces: int = 256) -> float:
    """A bound on the relative error of float64's `exp_neg`, in units of eps, by intervals.

    r is t - n log 2 but for its rounding and what the two parts of log 2 lack; the polynomial is
    compared with Taylor's on pieces of [-log(2)/2, log(2)/2]; each operation of Horner's scheme
    adds its rounding, two where a product is rounded before it is added.
    """
    iv.prec = 120
    u = iv.mpf(2) ** -53
    cells = constants_of(elementary._exponential(types.float64, 1.0))
    (hi, lo), c = exactly((-cells["minus_hi"], -cells["minus_lo"])), exactly(cells["c"])
    most = iv.mpf(1022)
    # n times the first part is exact, and so is the difference; then a rounding, and the rest.
    reach = iv.log(2) / 2 + iv.mpf(2) ** -40
    off_r = u * reach + (0 if fused else u * most * abs(lo)) + most * abs(hi + lo - iv.log(2))
    worst_of_all = iv.mpf(0)
    # The polynomial less Taylor's, by its value in the middle of a piece and its slope.
    both, terms = [iv.mpf(1), iv.mpf(1), *c], 24
    lacks = [
        (both[i] if i < len(both) else iv.mpf(0)) - 1 / iv.mpf(math.factorial(i))
        for i in range(terms + 1)
    ]
    for j in range(-pieces, pieces):
        r = reach * iv.mpf([j, j + 1]) / pieces
        size = iv.mpf([0, max(abs(r.a), abs(r.b))])
        _, lost = rounded_horner(both, r, size, fused)
        middle = iv.mpf(r.mid)
        slope = horner(derivative_of(lacks), r)
        difference = horner(lacks, middle) + slope * (r - middle)
        remainder = 2 * size ** (terms + 1) / math.factorial(terms + 1)  # of Taylor's
        error = (abs(difference) + remainder + lost) / iv.exp(r) + off_r * iv.exp(off_r)
        worst_of_all = most_of(worst_of_all, error)
    return float(worst_of_all.b) / 2.0**-52


def horner(coefficients: list[Any], r: Any) -> Any:
    """The polynomial with these coefficients, the constant first, at r."""
    value = iv.mpf(0)
    for a in reversed(coefficients):
        value = value * r + a
    return value


def rounded_horner(coefficients: list[Any], r: Any, size: Any, fused: bool) -> tuple[Any, Any]:
    """(the polynomial at r, the rounding error of Horner's scheme), where |r| is in `size`."""
    u = iv.mpf(2) ** -53
    value, lost = coefficients[-1], iv.mpf(0)
    for a in coefficients[-2::-1]:
        lost = lost * size + (0 if fused else u * abs(value) * size)
        value = value * r + a
        lost += u * (abs(value) + lost)
    return value, lost


def circle(fused: bool, pieces: int = 256) -> dict[str, float]:
    """Bounds on the errors of float64's `circular` for |t| <= 1000, in units of eps, by intervals.

    Absolute errors of cosine and sine; and the relative error of the sine up to pi/4, where t is
    not reduced.
    """
    iv.prec = 120
    u, most = iv.mpf(2) ** -53, iv.mpf(638)  # quarters of the circle
    cells = constants_of(elementary._circular(types.float64))
    cosine, sine = exactly(cells["c"]), exactly(cells["s"][1:])
    parts = exactly(cells[f"part_{i}"] for i in (1, 2, 3))
    for part in parts[:2]:  # products with the quarter are exact, and so is the first difference
        assert (float(part.a) * 2.0**32 / 2.0 ** math.floor(math.log2(float(part.a)))).is_integer()
    reach = iv.pi / 4 + iv.mpf(2) ** -40
    off_r = 2 * u * reach + u * most * parts[2] + most * abs(sum(parts) - iv.pi / 2)
    found = {"cosine": iv.mpf(0), "sine": iv.mpf(0), "relative sine": iv.mpf(0)}
    for j in range(pieces):
        r = reach * iv.mpf([j, j + 1]) / pieces
        z, size = r * r, iv.mpf([0, (r * r).b])
        off_z = u * size
        value, lost = rounded_horner(cosine, z, size, fused)
        slope = abs(horner(derivative_of(cosine), z))
        off_cosine = lost + slope * off_z + lacks_of_series(cosine, 0, size)
        value, lost = rounded_horner(sine, z, size, fused)
        slope = abs(horner(derivative_of(sine), z))
        off_series = lost + slope * off_z + lacks_of_series(sine, 1, size)  # of (sin r - r)/r^3
        # r z times the series plus r, over r: products of r and z, with the series, and the sum.
        off_sine = size * off_series + (2 if fused else 3) * u * size * abs(value)
        off_sine += u * abs(1 + value * z)
        relative = off_sine / (iv.sin(r) / r if j else 1 - size / 6)
        for kind, error in (
            ("cosine", off_cosine + off_r * iv.sin(r)),
            ("sine", off_sine * r + off_r),
            ("relative sine", relative),
        ):
            found[kind] = most_of(found[kind], error)
    return {kind: float(error.b) / 2.0**-52 for kind, error in found.items()}


def lacks_of_series(coefficients: list[Any], odd: int, size: Any) -> Any:
    """What these coefficients of cos r, or of (sin r - r)/r^3 (`odd`), lack; r^2 is in `size`."""
    lacks = iv.mpf(0)
    first = 3 * odd
    for i, a in enumerate(coefficients):
        exact = (-1) ** (i + odd) / iv.mpf(math.factorial(2 * i + first))
        lacks += abs(a - exact) * size**i
    terms = len(coefficients)
    return lacks + 2 * size**terms / math.factorial(2 * terms + first)


def normal(fused: bool, pieces: int = 256) -> dict[str, float]:
    """Bounds on the relative errors of float64's `normal_tail`, in units of eps, t^2/4 apart.

    Beside a polynomial of higher degree, which Mills' equation certifies.
    """
    iv.prec = 120
    u, (shift, numbers) = iv.mpf(2) ** -53, special._MILLS_64
    a, c = iv.mpf(shift), exactly(numbers)
    slope = derivative_of(c)
    near = close_to_mills(shift)
    lacks = largest_on_interval(plus(c, [-v for v in near])) + largest_residual(near, a)
    worst_of_all, last = iv.mpf(0), (special._LAST_64 - shift) / (special._LAST_64 + shift)
    for j in range(-pieces, math.ceil(last * pieces)):
        y = iv.mpf([j, j + 1]) / pieces
        z, size = y * y, iv.mpf([0, max(abs(y.a), abs(y.b))])
        square = size * size
        even, lost = rounded_horner(c[0::2], z, square, fused)
        odd, lost_odd = rounded_horner(c[1::2], z, square, fused)
        lost += u * square * abs(horner(derivative_of(c[0::2]), z))
        lost_odd += u * square * abs(horner(derivative_of(c[1::2]), z))
        value = even + y * odd
        lost += size * (lost_odd + (0 if fused else u * abs(odd))) + u * abs(value)
        lost += 4 * u * size * abs(horner(slope, y))  # y: two sums, a quotient and a product
        worst_of_all = most_of(worst_of_all, lost / value)
    scale = 1 / iv.sqrt(2 * iv.pi)
    density = abs(iv.mpf(1 / math.sqrt(2 * math.pi)) / scale - 1) + 2 * u
    density += exponential(fused) * 2 * u
    # lacks is relative to a polynomial that is at least 1.
    found = {"tail": density + lacks + worst_of_all + 4 * u, "slope": density}
    return {kind: float(iv.mpf(error).b) / 2.0**-52 for kind, error in found.items()}


def close_to_mills(shift: float, degree: int = 44) -> list[Any]:
    """A polynomial in y = (t - a)/(t + a) near (t + a) m(t), m Mills' ratio, on [-1, 1]."""
    with mp.workdps(60):

        def scaled(y: Any) -> Any:
            t = shift * (1 + y) / (1 - y)
            if t > 1e3:
                return (1 + shift / t) * (1 - t**-2 + 3 * t**-4 - 15 * t**-6 + 105 * t**-8)
            return (t + shift) * mp.sqrt(mp.pi / 2) * mp.erfc(t / mp.sqrt(2)) * mp.exp(t * t / 2)

        places = [mp.cos(mp.pi * (2 * i + 1) / (2 * degree)) for i in range(degree)]
        powers = mp.matrix([[y**j for j in range(degree)] for y in places])
        found = mp.lu_solve(powers, mp.matrix([scaled(y) for y in places]))
        return [iv.mpf(v) for v in found]


def largest_residual(c: list[Any], a: Any) -> Any:
    """A bound of the relative error of P(y)/(t + a) as Mills' ratio m.

    m' = t m - 1, and A' - t A + 1 for A = P(y)/(t + a) is a polynomial r in y. A - m vanishes at
    infinity and is the integral of r e^((t^2 - s^2)/2) over s > t, as m is of that exponential.
    """
    inner = plus(times([1, -1], derivative_of(c)), [-v for v in c])
    first = [v / (4 * a * a) for v in times([1, -2, 1], inner)]
    return largest_on_interval(plus(plus(first, times([-0.5, -0.5], c)), [iv.mpf(1)]))


def cauchy(fused: bool, pieces: int = 256) -> dict[str, float]:
    """Bounds on the relative errors of float64's tail and slope of `cauchy`, in units of eps."""
    iv.prec = 120
    u, c, per_pi = iv.mpf(2) ** -53, exactly(cauchy_module._ARCTAN_64), iv.mpf(cauchy_module.PER_PI)
    reach = (iv.sqrt(2) - 1) * (1 + iv.mpf(2) ** -40)
    # (a - arctan/pi)/y, from the series of arctan, in x with y^2 = half (1 + x).
    terms, half = 30, reach * reach / 2
    series = [(-1) ** i / ((2 * i + 1) * iv.pi) for i in range(terms)]
    inside, power = [iv.mpf(0)], [iv.mpf(1)]
    for v in plus([per_pi, *c], [-v for v in series]):
        inside, power = plus(inside, [v * w for w in power]), times([half, half], power)
    lacks = largest_on_interval(inside) + reach ** (2 * terms)
    found = {"0": iv.mpf(0), "1/4": iv.mpf(0), "1/2": iv.mpf(0)}
    for j in range(pieces):
        y = reach * iv.mpf([j, j + 1]) / pieces
        z, size = y * y, iv.mpf([0, (y * y).b])
        g, lost = rounded_horner(c, z, size, fused)
        lost += u * size * abs(horner(derivative_of(c), z))
        over = per_pi + z * g  # a/y
        # y z, its product with g, y/pi, their sum; and the argument: a quotient, and two sums.
        off = z * lost + (2 if fused else 3) * u * z * abs(g) + u * per_pi + u * over + lacks
        found["0"] = most_of(found["0"], (off + u * per_pi) / over)
        found["1/2"] = most_of(found["1/2"], y * off / (0.5 - y * over) + u)
        found["1/4"] = most_of(found["1/4"], y * (off + 3 * u * per_pi) / (0.25 - y * over) + u)
    tail = max(float(error.b) for error in found.values()) / 2.0**-52
    slope = abs(per_pi * iv.pi - 1) + 3 * u
    return {"tail": tail, "slope": float(slope.b) / 2.0**-52}


def derivative_of(p: list[Any]) -> list[Any]:
    """The derivative of a polynomial."""
    return [i * v for i, v in enumerate(p)][1:]


def most_of(so_far: Any, error: Any) -> Any:
    """The interval from 0 to the larger upper end."""
    return iv.mpf([0, max(so_far.b, iv.mpf(error).b)])


def plus(p: list[Any], q: list[Any]) -> list[Any]:
    """The sum of two polynomials."""
    size = max(len(p), len(q))
    p, q = (a + [iv.mpf(0)] * (size - len(a)) for a in (p, q))
    return [a + b for a, b in zip(p, q, strict=True)]


def times(p: list[Any], q: list[Any]) -> list[Any]:
    """The product of two polynomials."""
    total = [iv.mpf(0)] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            total[i + j] += a * b
    return total


def largest_on_interval(p: list[Any]) -> Any:
    """A bound of |p| on [-1, 1]: the sum of |b_m|, p = sum of b_m T_m."""
    series = [iv.mpf(0), iv.mpf(0)]
    for a in reversed(p):  # x T_m = (T_(m-1) + T_(m+1))/2
        halves = [v / 2 for v in series]
        moved = [halves[1], series[0], *([iv.mpf(0)] * (len(series) - 1))]
        for m, v in enumerate(halves[1:], 1):
            moved[m + 1] += v
            if m > 1:
                moved[m - 1] += v
        moved[0] += a
        series = moved
    return sum(abs(v) for v in series)


def exactly(numbers: Any) -> list[Any]:
    """These floats as intervals."""
    return [iv.mpf(float(v)) for v in numbers]


def constants_of(function: Any) -> dict[str, Any]:
    """The numbers that a function which Numba compiles is closed over, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells}
