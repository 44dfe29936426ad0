"""Class of fault: spreads and temperatures near the ends of the type's range.

Where neighbouring numbers of x are many temperatures apart, where the temperature has no reciprocal
of the type, and where differences of x overflow: as the temperature goes to 0 the answer is the
hard top-k, entries tied at its end sharing what is left of k; as it grows, k/n. Multiplied by the
same power of two, x and the temperature give the same p. No warning, no NaN.
"""

from __future__ import annotations

import numpy as np
import operators
import pytest
from operators import dtypes, every, same, smooth

import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable

CURVES = [*operators.CURVES.values(), {"curve": "entmax", "alpha": 3.0}]
ROWS = [
    [5.0, 4.0, 3.0, 2.0, 1.0],
    [1.3, 0.7, 0.3, 0.1, -0.9, -2.2],
    [1.0, 1.0, 1.0, 0.0, 0.0, -1.0, -1.0],
    [2.0, 2.0, 1.5, 1.5, 1.5, -3.0],
]
#: What the rows are multiplied by, and the temperature: a gap is always many temperatures.
COLD = {
    np.float64: [
        (1e300, 1e-300),
        (1e307, 5e-324),
        (1e300, 1.0),
        (1.0, 1e-300),
        (1e-300, 5e-324),
        (1e20, 1e-5),
        (1e10, 1e-12),
        (1e17, 1.0),
        (1.0, 1e-17),
    ],
    np.float32: [
        (1e36, 6e-39),
        (1e36, 1e-300),
        (1e36, 1.0),
        (1.0, 1e-30),
        (1.0, 1e-40),
        (1.0, 1e-300),
        (1e-38, 1e-45),
        (1e9, 0.1),
    ],
}


def hard_with_ties(x, k):
    """The limit of temperature 0: entries that are equal share what is left of k."""
    p, left = np.zeros(len(x)), k
    for value in np.unique(x)[::-1]:
        tied = x == value
        p[tied] = max(0.0, min(1.0, left / tied.sum()))
        left -= tied.sum()
    return p


def near(p, expected, k):
    """Within the contract, for a spread that does not count."""
    entry, mass = (1e-6, 1e-6) if p.dtype == np.float32 else (1e-13, 1e-12)
    np.testing.assert_allclose(p.astype(np.float64), expected, rtol=0, atol=entry)
    assert abs(p.sum(dtype=np.float64) - k) <= mass * max(1.0, k)


def _methods():
    """Each curve by each method; bisection looks at the values of a curve alone."""
    for options in CURVES:
        scanned = options["curve"] in ("exp", "laplace", "clip")
        for method in ["newton", "bisect", *["scan"] * scanned]:
            some = ["laplace"] if method == "bisect" else operators.OF_EVERY_KIND
            alike = options["curve"] not in some or options.get("alpha") == 3.0
            marks = [pytest.mark.slow] * alike
            label = "-".join(map(str, (*options.values(), method)))
            yield pytest.param(options, method, id=label, marks=marks)


@pytest.mark.parametrize(("options", "method"), list(_methods()))
@dtypes
def test_thretopk_tends_to_the_hard_top_k(options, method, dtype):
    for row in map(np.array, ROWS):
        for scale, tau in COLD[dtype]:
            x = (row * scale).astype(dtype)
            for k in (1e-3, 0.5, 1.5, 2.0, 3.7, 4.2, len(x) - 0.01):
                p = stk.thretopk(x, k, temperature=tau, method=method, **options)
                near(p, hard_with_ties(x, k), k)


@pytest.mark.parametrize("options", operators.slow_unless([{"curve": "clip"}], CURVES), ids=str)
@dtypes
def test_potential_tends_to_the_sum_of_the_largest(options, dtype):
    """The temperature may be 0 in the type of x."""
    for row in map(np.array, ROWS):
        for scale, tau in COLD[dtype]:
            x = (row * scale).astype(dtype)
            for k in (0.5, 2.0, len(x) - 1.5):
                phi = stk.thretopk.potential(x, k, temperature=tau, **options)
                whole = (hard_with_ties(x, k) * x.astype(np.longdouble)).sum()
                bound = 1e-6 if dtype == np.float32 else 1e-12
                assert abs(phi - whole) <= bound * scale + 100 * tau


@pytest.mark.parametrize("name", ["gradtopk", "itertopk", "softmax"])
@dtypes
def test_others_tend_to_the_hard_top_k(name, dtype):
    op = getattr(stk, name)
    for row in map(np.array, ROWS if name != "itertopk" else ROWS[:2]):  # it does not share ties
        for scale, tau in COLD[dtype]:
            x = (row * scale).astype(dtype)
            for k in (1,) if name == "softmax" else (1, 2, 4):
                p = op(x, *(() if name == "softmax" else (k,)), temperature=tau)
                near(p, hard_with_ties(x, k), k)


@every
@dtypes
def test_hot_rows_are_uniform(op, options, dtype):
    """But for the hard top-k, which no temperature changes."""
    most = np.finfo(dtype).max
    wide = np.array([-most, most, 0.0, 1.0, most / 2], dtype)
    for tau in (1e300, 1.7e308) if dtype == np.float32 else (1.7e308,):
        x = wide if dtype == np.float32 else (wide * 1e-20).astype(dtype)
        p = op(x, 2, temperature=tau, **options)
        if isinstance(op, Differentiable):
            near(p, np.full(5, 0.4), 2)
            along_k = {"dk": 1.0} if op.real_k else {}
            _, dp = op.jvp(x, 2, x, **along_k, temperature=tau, **options)
            expected = 0.2 if op.real_k else 0.0
            np.testing.assert_allclose(dp, np.full(5, expected), rtol=0, atol=1e-5)
        else:
            same(p, op(x, 2, **options))
        near(stk.softmax(x, temperature=tau), np.full(5, 0.2), 1)


def test_differences_that_overflow():
    """Rows that span nearly all numbers, at temperatures of their size."""
    for dtype, end, tau in ((np.float64, 8e307, 1.7e308), (np.float32, 3e38, 3.3e38)):
        x, small = np.array([end, -end, end / 3], dtype), np.array([1.0, -1.0, 1 / 3])
        ratio = tau / end
        for options in CURVES:
            p = stk.thretopk(x, 1.5, temperature=tau, **options)
            near(p, stk.thretopk(small, 1.5, temperature=ratio, **options), 1.5)
        for name in ("gradtopk", "itertopk", "wsoftmaxtopk"):
            op = getattr(stk, name)
            near(op(x, 2, temperature=tau), op(small, 2, temperature=ratio), 2)
        near(stk.softmax(x, temperature=tau), stk.softmax(small, temperature=ratio), 1)


SHIFTS = {np.float32: (-120, -61, 70, 120), np.float64: (-1010, -501, 510, 1015)}


@smooth
@dtypes
def test_a_power_of_two_changes_nothing(op, options, dtype, rng):
    """p(2^s x, 2^s tau) = p(x, tau), and what has the units of x is multiplied by 2^s."""
    x, v = rng.normal(size=(2, 2, 40)).astype(dtype)
    arguments = {"dtemperature": 0.3, **({"dk": 0.2} if op.real_k else {}), **options}
    p, dp = op.jvp(x, 5, v, temperature=0.7, **arguments)
    g = op.vjp(x, 5, temperature=0.7, **options)[1](v)
    tight = 2e-6 if dtype == np.float32 else 1e-13
    for shift in SHIFTS[dtype]:
        y, tau = np.ldexp(x, shift), float(np.ldexp(0.7, shift))
        # Directions in x and the temperature of their size, so that dp is what it was.
        moved = arguments | {"dtemperature": float(np.ldexp(0.3, shift))}
        q, dq = op.jvp(y, 5, np.ldexp(v, shift), temperature=tau, **moved)
        np.testing.assert_allclose(q, p, rtol=0, atol=tight)
        np.testing.assert_allclose(dq, dp, rtol=0, atol=10 * tight)
        h = op.vjp(y, 5, temperature=tau, **options)[1](v)
        np.testing.assert_allclose(np.ldexp(h.x, shift), g.x, rtol=0, atol=10 * tight)
        grown = np.ldexp(h.temperature, shift)
        np.testing.assert_allclose(grown, g.temperature, rtol=0, atol=100 * tight)
        for name in ("potential", "threshold"):
            if hasattr(op, name):
                of = getattr(op, name)
                now = np.ldexp(of(y, 5, temperature=tau, **options), -shift)
                expected = of(x, 5, temperature=0.7, **options)
                np.testing.assert_allclose(now, expected, rtol=tight, atol=tight)


@dtypes
def test_a_power_of_two_changes_nothing_of_the_top_one_family(dtype, rng):
    x, v = rng.normal(size=(2, 2, 40)).astype(dtype)
    tight = 2e-6 if dtype == np.float32 else 1e-13
    for op in (stk.softmax, stk.log_softmax, stk.logsumexp):
        has_units = op is stk.logsumexp
        g0 = v[:, 0] if has_units else v
        value, tangent = op.jvp(x, v, dtemperature=0.3, temperature=0.7)
        g = op.vjp(x, temperature=0.7)[1](g0)
        for shift in SHIFTS[dtype]:
            y, tau = np.ldexp(x, shift), float(np.ldexp(0.7, shift))
            along = {"dtemperature": float(np.ldexp(0.3, shift)), "temperature": tau}
            now, moved = op.jvp(y, np.ldexp(v, shift), **along)
            h = op.vjp(y, temperature=tau)[1](g0)
            of_x, of_tau = h.x, h.temperature
            if has_units:
                now, moved = np.ldexp(now, -shift), np.ldexp(moved, -shift)
            else:
                of_x, of_tau = np.ldexp(of_x, shift), np.ldexp(of_tau, shift)
            np.testing.assert_allclose(now, value, rtol=tight, atol=tight)
            np.testing.assert_allclose(moved, tangent, rtol=0, atol=10 * tight)
            np.testing.assert_allclose(of_x, g.x, rtol=0, atol=10 * tight)
            np.testing.assert_allclose(of_tau, g.temperature, rtol=0, atol=100 * tight)


@smooth
@dtypes
def test_temperatures_of_other_rows_move_no_bit(op, options, dtype, rng):
    x, v = rng.normal(size=(2, 3, 12)).astype(dtype)
    taus, along = np.array([1e-300, 0.7, 1e300]), {"dk": 0.2} if op.real_k else {}
    p, dp = op.jvp(x, 4, v, dtemperature=0.3, temperature=taus, **along, **options)
    gx = op.vjp(x, 4, temperature=taus, **options)[1](v).x
    for i, tau in enumerate(taus):
        q, dq = op.jvp(x[i], 4, v[i], dtemperature=0.3, temperature=tau, **along, **options)
        g = op.vjp(x[i], 4, temperature=tau, **options)[1](v[i])
        for got, alone in ((p, q), (dp, dq), (gx, g.x)):
            same(got[i], alone)
