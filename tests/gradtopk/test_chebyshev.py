"""GradTopK where no entry is kept aside: Chebyshev series in place of power series and a core.

Proposition prop-grad-chebyshev of docs/math/gradtopk.md, then the sums and the rows that rest on
it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit
from numpy.polynomial import Polynomial, chebyshev
from scipy import special
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb.gradtopk import formulas, nodes
from softtopk_nb.gradtopk.cpu import contour, moments, solving
from softtopk_nb.gradtopk.cpu import poisson_binomial as counts
from softtopk_nb.gradtopk.records import Limits

both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


def test_series():
    """prop-grad-chebyshev, parts 1 and 2: both series, at angles and chances of all sizes."""
    for theta in (0.01, 0.5, 1.5, 2.5):
        u, rho, g = np.exp(1j * theta) - 1, math.tan(theta / 4) ** 2, 4 * math.sin(theta / 2) ** 2
        terms = int(40 / -math.log(rho)) + 2
        m = np.arange(1, terms)
        for pi in (0.0, 1e-9, 0.1, 0.4, 0.5, 0.7, 1 - 1e-6, 1.0):
            s, z = pi * (1 - pi), abs(2 * pi - 1)
            kernel = np.concatenate([[1.0], 2 * (-rho) ** m]) / math.cos(theta / 2)
            value = chebyshev.chebval(1 - 8 * s, kernel)
            assert value == pytest.approx(1 / (1 - g * s), rel=1e-13)
            even = np.sum((-rho) ** m / m * (1 - np.cos(m * math.acos(1 - 8 * s))))
            odd_degree = 2 * np.arange(terms) + 1
            signs = (-1.0) ** np.arange(terms)
            falls = 1 - np.cos(odd_degree * math.acos(z))
            odd = np.sum(2 * signs * rho ** (odd_degree / 2) / odd_degree * falls)
            angle = theta - odd if pi >= 0.5 else odd
            assert np.log(1 + pi * u) == pytest.approx(even + 1j * angle, abs=1e-13)


def left_out(v, one, steps, terms):
    """Parts 3 and 4: what is left out at most, relative to P(N = k), at variance v."""
    level = float(formulas.exponent(v, one)) + 0.34
    reach = 2 * math.asin(math.sqrt(min(1.0, 0.5 * level / v)))
    theta = np.linspace(0, reach, 1001)[1:-1]
    root = np.tan(theta / 4)
    m = np.arange(steps + 2, steps + 80)[:, None]
    even = (8 * m * root ** (2 * m)).sum(axis=0)
    m = np.arange(min(steps + 1, contour.ORDER), steps + 80)[:, None]
    odd = (8 * (2 * m + 1) * root ** (2 * m + 1)).sum(axis=0)
    polynomial = 2 * root ** (2 * terms) / (1 - root**2) / np.cos(theta / 2)
    weight = np.exp(-2 * v * np.sin(theta / 2) ** 2) * (theta[1] - theta[0]) / math.pi
    chance = 16 * math.sqrt(v) + 4  # prop-grad-level
    return (weight * v * (even + odd)).sum() * chance, (weight * polynomial).sum() * chance


@both_dtypes
def test_what_is_left_out(dtype):
    """prop-grad-chebyshev, parts 3 and 4, with the numbers of the code, at the worst variance.

    It is one from which on other numbers are used; a variance is at least the weight that chooses.
    """
    one, double = dtype(1), dtype is np.float64
    least, enough = (
        (moments.LEAST, moments.ENOUGH) if double else (moments.LEAST_32, moments.ENOUGH_32)
    )
    assert [moments.choose_series(w, one) for w in (np.nextafter(least, 0.0), least, enough)] == [
        (pytest.approx(0.0, abs=0.24), 0),
        (0.25, 12 if double else 8),
        (0.25, 8 if double else 4),
    ]
    for part, bound, at in zip(
        (0, 1),
        (6e-15, 1.8e-13) if double else (5e-7, 3e-9),
        (enough, least if double else enough),
        strict=True,
    ):

        def left(weight, part=part):
            _, steps = moments.choose_series(weight, one)
            terms = nodes.terms_of(steps)
            return max(left_out(weight * f, one, steps, terms)[part] for f in (1.0, math.exp(0.1)))

        worst, place = largest(left, least, 1e6, points=60, also=(least, enough))
        assert place == at
        assert 0.8 * bound < worst < bound


@njit
def tilted(x, kept):
    T = x.dtype.type
    return moments.tilted_probabilities(x, T(0), T(1), T(0), kept)


@njit
def moments_of(x, steps, sums):
    kept = np.empty_like(x)
    moments.chebyshev_sums(kept, tilted(x, kept), steps, sums)


@both_dtypes
@pytest.mark.parametrize("n", [1, 511, 513, 3000])
def test_tilted_probabilities(n, dtype, rng):
    """What the search for a tilt is told, and what is kept of each entry."""
    t = (rng.normal(size=n) * rng.choice([0.1, 3, 60], size=n)).astype(dtype)
    kept = np.empty_like(t)
    above, upper, lower, slope, skew = tilted(t, kept)
    r, up = special.expit(-abs(t.astype(np.float64))), t >= 0
    s, eps = r * (1 - r), float(np.finfo(dtype).eps)
    np.testing.assert_allclose(kept, np.where(up, -2 * r, 2 * r), rtol=4 * eps, atol=1e-37)
    assert above == np.count_nonzero(up)
    assert upper == pytest.approx(r[up].sum(), abs=20 * eps * r.sum())
    assert lower == pytest.approx(r[~up].sum(), abs=20 * eps * r.sum())
    assert lower - upper == pytest.approx((r * np.where(up, -1, 1)).sum(), abs=2 * eps * r.sum())
    assert slope == pytest.approx(s.sum(), rel=20 * eps)
    assert skew == pytest.approx((s * np.where(up, 2 * r - 1, 1 - 2 * r)).sum(), abs=20 * eps * n)


@both_dtypes
@pytest.mark.parametrize("n", [1, 15, 511, 512, 513, 3000])
def test_moments(n, dtype, rng):
    """The sums of Chebyshev polynomials, against those of NumPy."""
    t = (rng.normal(size=n) * rng.choice([0.1, 3, 60], size=n)).astype(dtype)
    sums = np.empty(contour.SUMS)
    r = 1 / (1 + np.exp(abs(t.astype(np.float64))))
    s, z, side = r * (1 - r), 1 - 2 * r, np.where(t >= 0, -1, 1)
    eps = float(np.finfo(dtype).eps)
    for steps in (8, 12) if dtype is np.float64 else (4, 8):
        moments_of(t, steps, sums)
        assert sums[contour.ABOVE] == np.count_nonzero(t >= 0)
        assert sums[contour.VARIANCE] == pytest.approx(s.sum(), rel=50 * eps)
        for m in range(steps):
            degree = m + 2
            falls = 1 - np.cos(degree * np.arccos(1 - 8 * s))
            slack = 4 * eps * degree**2 * (1 + 0.1 * n)
            assert sums[contour.EVEN + m] == pytest.approx(falls.sum(), abs=slack)
        for m in range(min(steps + 1, contour.ORDER)):
            falls = side * (1 - np.cos((2 * m + 1) * np.arccos(z)))
            slack = 8 * eps * (m + 1) ** 2 * (1 + 0.1 * n)
            assert sums[contour.ODD + m] == pytest.approx(falls.sum(), abs=slack)


def test_small_chances_keep_their_digits():
    """Differences of polynomials are not taken: each is made as its distance from 1."""
    t = np.linspace(-600, -30, 200)
    sums = np.empty(contour.SUMS)
    moments_of(t, 12, sums)
    s = np.exp(t).sum()
    for m in range(12):
        assert sums[contour.EVEN + m] == pytest.approx(8 * (m + 2) ** 2 * s, rel=1e-11)
        assert sums[contour.ODD + m] == pytest.approx(2 * (2 * m + 1) ** 2 * s, rel=1e-11)


def test_shifted_polynomials():
    for m, row in enumerate(nodes.CHEBYSHEV):
        exact = chebyshev.Chebyshev.basis(m)(Polynomial([1.0, -8.0])).coef
        np.testing.assert_allclose(row[: m + 1], exact, rtol=1e-12)


def rows_around(variance, n, rng):
    """Rows whose count has about this variance, of several shapes, k and sides."""
    spread = np.sort(rng.normal(size=n))
    for k in (n // 20, n // 2, n - n // 10):
        for shape in (spread, np.sign(spread - spread[n - k]) + 0.1 * spread, spread**3):
            low, high = 1e-4, 1e4  # the temperature
            for _ in range(30):
                tau = math.sqrt(low * high)
                lam = stk.thretopk.threshold(shape, k - 0.5, curve="sigmoid", temperature=tau)
                p = special.expit((shape - lam) / tau)
                low, high = (low, tau) if (p * (1 - p)).sum() > variance else (tau, high)
            yield shape, k, tau


@both_dtypes
def test_rows_of_every_variance(dtype, monkeypatch, rng):
    """prop-grad-chebyshev: below, between and above the limits, beside the count's distribution."""
    steps = set()
    for variance in (6, 12, 14, 20, 26, 29, 50, 58, 70):
        for x, k, tau in rows_around(variance, 600, rng):
            x = rng.permutation(x).astype(dtype)
            v = rng.normal(size=x.shape).astype(dtype)
            p, dp = stk.gradtopk.jvp(x, k, v, temperature=tau, method="contour")
            with monkeypatch.context() as patch:
                for module in (counts, solving):
                    patch.setattr(module, "SHORT", Limits(600, 600, 0.0))
                wide = x.astype(np.float64), k, v.astype(np.float64)
                exact, moved = stk.gradtopk.jvp(*wide, temperature=tau)
            spread = float(x.max() - x.min()) / tau
            eps = float(np.finfo(dtype).eps)
            loose = (1e-13 if dtype is np.float64 else 1e-6) + 4 * eps * spread
            assert abs(p - exact).max() <= loose
            small = (exact < 1e-3) & (exact > 1e-36)
            assert (abs(p - exact)[small] <= 10 * loose * exact[small]).all()
            tangent = (1e-12 if dtype is np.float64 else 2e-6) + 16 * eps * spread
            assert (tau * abs(dp - moved)).max() <= tangent
            steps.add(moments.choose_series(float((exact * (1 - exact)).sum()), dtype(1))[1])
    assert len(steps) == 3
    assert 0 in steps


@both_dtypes
def test_chances_that_underflow(dtype, rng):
    """Far below the tilt p is proportional to e^(x/tau), in whichever block of a row it lies."""
    deep, rest = (-709.0, -700.0) if dtype is np.float64 else (-88.0, -86.0)
    x = rng.normal(scale=3.0, size=5000).astype(dtype)
    places = [7, 1500, 1501, 2600, 4999]
    p = stk.gradtopk(x, 900)
    tilt = float(np.median(x - special.logit(p.astype(np.float64))))
    x[places] = tilt + rng.uniform(deep, rest, len(places))
    x[3000] = tilt - 30.0
    p = stk.gradtopk(x, 900)
    assert (p[places] > 0).all()
    assert p[places].max() < 10 * np.finfo(dtype).tiny ** 0.98
    gap = x.astype(np.float64) - float(x[3000])
    expected = np.log(float(p[3000])) + gap[places]
    found = np.log(p[places].astype(np.float64))
    loose = 4 * np.finfo(dtype).eps * -deep + 1e-13
    # Below the smallest normal number p has fewer digits.
    steps = np.finfo(dtype).smallest_subnormal / p[places].astype(np.float64)
    assert (abs(found - expected) <= loose + steps).all()


@both_dtypes
@pytest.mark.parametrize(("n", "k"), [(40, 3), (1000, 3), (1000, 300), (5000, 900)])
def test_chances_that_underflow_are_many(n, k, dtype, rng):
    """Rows of few undecided entries and of many: a third of p is near the smallest number."""
    info = np.finfo(dtype)
    x = rng.normal(size=n).astype(dtype)
    anchor, *third = rng.permutation(n)[: n // 3]
    threshold = float(np.sort(np.delete(x, third))[-k])
    least = float(info.smallest_subnormal)
    x[third] = threshold + rng.uniform(math.log(least) - 20, math.log(info.tiny) + 20, len(third))
    x[anchor] = threshold - 30.0
    p = stk.gradtopk(x, k).astype(np.float64)
    gap = x[third].astype(np.float64) - float(x[anchor])
    expected = np.exp(math.log(p[anchor]) - math.log(least) + gap)  # in smallest numbers
    loose = 4 * float(info.eps) * -math.log(least) + 1e-13  # t itself has the rounding of its type
    assert (abs(p[third] / least - expected) <= loose * expected + 0.6).all()
    assert np.count_nonzero(p[third] == 0) > n // 40
    assert np.count_nonzero((p[third] > 0) & (p[third] < info.tiny)) > n // 40
