"""ThreTopK: one test for each theorem of docs/math/thretopk.md, named in the test's docstring.

Rows are judged at the accuracy that is promised: with R = (max x - min x)/temperature,
|p - exact| <= 1e-13 + 4 eps R and |sum p - k| <= 1e-12 max(1, k) in float64, and 1e-6 in the
place of both constants in float32.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from operators import slow_unless
from reference import mp, to_float64
from scipy import special
from worst_place import largest

import softtopk_nb as stk

CURVES = {
    **{name: {"curve": name} for name in reference.CURVES},
    "entmax-1.2": {"curve": "entmax", "alpha": 1.2},
    "entmax-1.5": {"curve": "entmax", "alpha": 1.5},
}
SCANNED = ("exp", "laplace", "clip")
SUPPORTED = ("clip", "entmax-1.2", "entmax-1.5")  # f' has bounded support
KNOWN = {name: reference.curve_of(**options) for name, options in CURVES.items()}
FAR = 100.0
# f(t) + f(c - t) = 1, with c = 1 for clip.
SYMMETRIC = ["clip", *(name for name, f in KNOWN.items() if abs(f.cdf(-1) + f.cdf(1) - 1) < 1e-50)]

every_curve = pytest.mark.parametrize("name", CURVES)
# Bisection, with which the others are compared, looks at the values of a curve alone.
a_curve_by_every_method = pytest.mark.parametrize("name", slow_unless(["laplace"], CURVES))
EPS = {np.float64: 2.0**-52, np.float32: 2.0**-23}


def spread(x, tau):
    x = np.asarray(x, dtype=np.float64)
    return float(np.max(x) - np.min(x)) / tau


def tolerance(x, tau, dtype=np.float64):
    return (1e-13 if dtype is np.float64 else 1e-6) + 4 * EPS[dtype] * spread(x, tau)


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=atol)


def mass_error(p, k):
    return float(abs(np.sum(p, dtype=np.longdouble) - k)) / max(1.0, k)


def thretopk_matrix(x, k, tau, name, **more):
    """J, column by column, from jvp on the unit vectors."""
    n = len(x)
    rows = np.broadcast_to(x, (n, n))
    return stk.thretopk.jvp(rows, k, np.eye(n), temperature=tau, **CURVES[name], **more)[1].T


def methods(name):
    """Those that differ: see test_auto_is_newton."""
    return ["auto", "bisect"] + ["scan"] * (name in SCANNED)


# ------------------------------------------------------------------------------ generated rows


class Problem(NamedTuple):
    x: np.ndarray
    k: float
    tau: float
    kind: str
    seed: int
    scale: float
    offset: float

    def __repr__(self):
        """All but the entries, which follow from the rest (see `problems`)."""
        x, *rest = zip(self._fields, self, strict=True)
        return f"Problem(n={x[1].size}, {', '.join(f'{name}={v!r}' for name, v in rest)})"


KINDS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, size=n),
    "ties": lambda rng, n: np.round(2 * rng.normal(size=n)),
    "clusters": lambda rng, n: rng.integers(3, size=n) + 1e-4 * rng.normal(size=n),
    "outlier": lambda rng, n: np.append(rng.normal(size=n - 1), rng.choice([-1e3, 1e3])),
    "magnitudes": lambda rng, n: rng.normal(size=n) * 10.0 ** rng.uniform(-6, 6, size=n),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "near-constant": lambda rng, n: 1 + 2.0**-52 * rng.integers(8, size=n),
}
SHORT = (2, 3, 5, 7, 13)
MEDIUM = (*SHORT, 31, 33, 100, 257, 1000)
LONG = (2**16 + 1, 70_001, 100_003)


@st.composite
def problems(draw, lengths=MEDIUM):
    """A row of one of KINDS at a scale of 1e-9..1e9 and an offset to 1e6, with k and temperature.

    The temperature follows the scale, so that R runs from 1e-2 to 1e9 and not to 1e18.
    """
    kind = draw(st.sampled_from(sorted(KINDS)))
    n = draw(st.sampled_from(lengths))
    seed = draw(st.integers(0, 2**32 - 1))
    scale = 10.0 ** draw(st.integers(-9, 9))
    offset = draw(st.sampled_from([0.0, 1.0, -1e3, 1e6]))
    x = scale * KINDS[kind](np.random.default_rng(seed), n) + offset
    kind_of_k = draw(st.sampled_from(["integer", "real", "near 0", "near n"]))
    if kind_of_k == "integer" and n > 1:
        k = draw(st.integers(1, n - 1))
    elif kind_of_k.startswith("near"):
        k = 2.0 ** -draw(st.integers(1, 40))
        k = k if kind_of_k == "near 0" else n - k
    else:
        k = n * draw(st.floats(0.001, 0.999))
    tau = scale * 10.0 ** draw(st.floats(-2, 2))
    return Problem(x, k, tau, kind, seed, scale, offset)


def test_generated_rows_vary():
    """The strategy is not stuck: kinds, lengths, scales, offsets, k and the entries all vary."""
    seen = []

    @settings(max_examples=300)
    @given(problems())
    def collect(problem):
        seen.append(problem)

    collect()
    assert {p.kind for p in seen} == set(KINDS)
    assert {p.x.size for p in seen} == set(MEDIUM)
    assert min(p.scale for p in seen) <= 1e-8
    assert max(p.scale for p in seen) >= 1e8
    assert {p.offset for p in seen} == {0.0, 1.0, -1e3, 1e6}
    assert sum(p.k != int(p.k) for p in seen) > 50
    assert sum(p.k == int(p.k) for p in seen) > 50
    assert sum(min(p.k, p.x.size - p.k) < 1e-6 for p in seen) > 30
    assert len({p.x.tobytes() for p in seen}) > 200
    spreads = [spread(p.x, p.tau) for p in seen]
    assert sum(r == 0 for r in spreads) > 10
    assert sum(r > 100 for r in spreads) > 10
    assert sum(0.1 < r < 100 for r in spreads) > 50
    # Most rows of random kinds hold many values, and none is the same one over and over.
    for p in seen:
        if p.kind in ("normal", "uniform", "outlier") and p.scale >= 1e-3 * abs(p.offset):
            assert np.unique(p.x).size > 0.9 * p.x.size


# ----------------------------------------------------------------------------------- definition


@every_curve
@settings(max_examples=25)
@given(problems(SHORT))
def test_threshold_exists_and_p_is_unique(name, problem):
    """thm-existence: some threshold gives the sum k, and whichever it is, p is the same."""
    x, k, tau = problem[:3]
    exact = reference.thretopk(x, k, temperature=tau, **CURVES[name])
    p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
    assert_close(p, to_float64(exact.p), tolerance(x, tau))

    lam = stk.thretopk.threshold(x, k, temperature=tau, **CURVES[name])
    assert np.isfinite(lam)
    again = reference.cdf_float64((x - lam) / tau, **CURVES[name])
    # lam is rounded to float64 where it stands, which moves p by eps |lam|/tau.
    assert_close(again, p, tolerance(x, tau) + EPS[np.float64] * (abs(lam) + abs(x).max()) / tau)


@every_curve
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@settings(max_examples=80)
@given(problems((1, *MEDIUM)))
def test_range_and_sum(name, dtype, problem):
    """thm-range: 0 <= p <= 1 and sum p = k."""
    x = problem.x.astype(dtype)
    p = stk.thretopk(x, problem.k, temperature=problem.tau, **CURVES[name])
    assert p.dtype == dtype
    assert np.all((p >= 0) & (p <= 1))
    assert mass_error(p, problem.k) <= (1e-12 if dtype is np.float64 else 1e-6)


@every_curve
@pytest.mark.parametrize("n", LONG)
def test_range_and_sum_of_long_rows(name, n):
    """thm-range, past 2^16 entries, where p is known as well."""
    rng = np.random.default_rng(n)
    x, k, tau = rng.normal(size=n), n / 7.3, 0.4
    p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
    assert np.all((p >= 0) & (p <= 1))
    assert mass_error(p, k) <= 1e-12
    assert_close(
        p, reference.thretopk_float64(x, k, temperature=tau, **CURVES[name]), tolerance(x, tau)
    )


@every_curve
@settings(max_examples=40)
@given(problems())
def test_monotone(name, problem):
    """thm-monotone: x_i >= x_j implies p_i >= p_j, up to the last bits of the exponential."""
    x, k, tau = problem[:3]
    p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
    order = np.argsort(x, kind="stable")
    assert np.all(np.diff(p[order]) >= -4 * EPS[np.float64])
    equal = np.diff(x[order]) == 0
    assert np.all(np.diff(p[order])[equal] == 0)


def test_converse_of_monotone_only_for_strict_curves():
    """thm-monotone, thm-range: p_i >= p_j implies x_i >= x_j for strict curves; others saturate."""
    x = np.array([9.0, 8.0, 0.5, 0.0, -8.0, -9.0])
    for name in ("sigmoid", "laplace", "normal", "cauchy"):
        p = stk.thretopk(x, 3, temperature=4.0, **CURVES[name])
        assert np.all(np.diff(p) < 0)
        assert p[-1] > 0
        assert p[0] < 1
    p = stk.thretopk(x, 3, **CURVES["exp"])
    assert p[0] == p[1] == 1
    for name in ("clip", "entmax-1.5"):
        p = stk.thretopk(x, 3, **CURVES[name])
        assert p[0] == p[1] == 1
        assert p[4] == p[5] == 0


@every_curve
@settings(max_examples=30)
@given(problems(), st.integers(-(2**30), 2**30))
def test_shift_invariance(name, problem, shift):
    """thm-invariance: p(x + c) = p(x), for integers x and c, whose sum is exact; p(ax; a tau)."""
    unit = problem.scale / 1024
    x, tau = np.round((problem.x - problem.offset) / unit), problem.tau / unit
    p = stk.thretopk(x, problem.k, temperature=tau, **CURVES[name])
    shifted = stk.thretopk(x + shift, problem.k, temperature=tau, **CURVES[name])
    assert_close(shifted, p, 2 * tolerance(x, tau))
    scaled = stk.thretopk(8 * x, problem.k, temperature=8 * tau, **CURVES[name])
    assert_close(scaled, p, 2 * tolerance(x, tau))


@every_curve
@settings(max_examples=30)
@given(problems(), st.integers(0, 2**32 - 1))
def test_permutation_equivariance(name, problem, seed):
    """thm-invariance: permuting x permutes p."""
    x, k, tau = problem[:3]
    order = np.random.default_rng(seed).permutation(x.size)
    p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
    permuted = stk.thretopk(x[order], k, temperature=tau, **CURVES[name])
    assert_close(permuted, p[order], 2 * tolerance(x, tau))


def assert_rows_are_independent(name, x, dx):
    options = {"temperature": 0.5, **CURVES[name]}
    k = 0.3 * x.shape[1]
    together = stk.thretopk(x, k, **options)
    _, dp = stk.thretopk.jvp(x, k, dx, **options)
    _, pullback = stk.thretopk.vjp(x, k, **options)
    gradient = pullback(dx).x
    backwards = stk.thretopk(x[::-1], k, **options)[::-1]
    for i in range(x.shape[0]):
        np.testing.assert_array_equal(stk.thretopk(x[i], k, **options), together[i])
        np.testing.assert_array_equal(backwards[i], together[i])
        np.testing.assert_array_equal(stk.thretopk.jvp(x[i], k, dx[i], **options)[1], dp[i])
        np.testing.assert_array_equal(stk.thretopk.vjp(x[i], k, **options)[1](dx[i]).x, gradient[i])
    assert np.isnan(together[0]).all()
    assert not np.isnan(together[1:]).any()


@every_curve
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@settings(max_examples=8)
@given(st.sampled_from([1, 3, 17, 64, 257, 1000]), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_rows_are_independent(name, dtype, n, batch, seed):
    """A row's value and derivatives have the same bits alone, in any batch, at any place in it."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(batch, n)) * 10.0 ** rng.integers(-3, 4, size=(batch, 1))).astype(dtype)
    x[0, 0] = np.nan
    assert_rows_are_independent(name, x, rng.normal(size=(batch, n)).astype(dtype))


@every_curve
def test_long_rows_are_independent(name):
    """The same where a batch is shared out to threads, past 2^16 entries."""
    rng = np.random.default_rng(25)
    x, dx = rng.normal(size=(2, 5, 2**16 + 3))
    x[0, 0] = np.nan
    assert_rows_are_independent(name, x, dx)


# ---------------------------------------------------------------------------------- convergence


@every_curve
def test_convergence_rate(name):
    """thm-convergence: how fast p approaches T_k as the temperature falls."""
    rng = np.random.default_rng(5)
    n = 20
    for k in (1, 7, 10, 19):
        for _ in range(5):
            x = rng.normal(size=n)
            ordered = np.sort(x)[::-1]
            gap = ordered[k - 1] - ordered[k]
            for ratio in (0.2, 1.1, 2.0, 5.1, 12.0, 25.0):
                tau = gap / ratio
                p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
                distance = np.abs(p - reference.hardtopk(x, k)).sum()
                assert distance <= KNOWN[name].rate(n, k, gap, tau) + n * tolerance(x, tau)

    # The rate is the right one: two clusters come close to it, and laplace attains it.
    x = np.repeat([1.0, 0.0], 10)
    for tau in (0.5, 0.2, 0.1):
        p = stk.thretopk(x, 10, temperature=tau, **CURVES[name])
        distance = np.abs(p - reference.hardtopk(x, 10)).sum()
        bound = KNOWN[name].rate(20, 10, 1.0, tau)
        if name == "laplace":
            assert distance == pytest.approx(bound, abs=1e-12)
        elif bound < math.inf:
            assert distance >= 0.1 * bound
    # Above the temperature at which p is T_k for the first time, it is not.
    for alpha in (CURVES[name].get("alpha", 2.0),) if name in SUPPORTED else ():
        p = stk.thretopk(x, 10, temperature=1.25 * (alpha - 1), **CURVES[name])
        assert np.abs(p - reference.hardtopk(x, 10)).sum() > 1e-3


@every_curve
@settings(max_examples=30)
@given(problems())
def test_limits(name, problem):
    """thm-convergence: T_k as the temperature falls, its ties in equal parts; k/n as it rises."""
    x, k, _ = problem[:3]
    n = x.size
    v = np.sort(x)[::-1][math.ceil(k) - 1]
    gaps, width = np.abs(x[x != v] - v), np.ptp(x)
    if gaps.size:
        tau = gaps.min() / (2 * FAR)  # what the others can be off by all together
        off = n * float(KNOWN[name].cdf(-FAR) + 1 - KNOWN[name].cdf(FAR))
        share = (k - np.sum(x > v)) / np.sum(x == v)
        p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
        assert_close(p, np.where(x == v, share, x > v), tolerance(x, tau) + off)
        assert mass_error(p, k) <= 1e-12  # at any R
    if width > 0:
        tau = width * 1e12
        p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
        # The slope of every curve is at most 1 where it is not saturated, alpha <= 2.
        assert_close(p, np.full(n, k / n), 2e-12)


@every_curve
def test_rate_at_ties(name):
    """thm-ties: both bounds, which rows of three values come near, and the whole gap's rate."""
    curve, nearest, rates = KNOWN[name], 0.0, []

    def quantile(level):
        low, high = -1e3, 1e3
        while low < (middle := 0.5 * (low + high)) < high:
            low, high = (middle, high) if curve.cdf(mp.mpf(middle)) < level else (low, middle)
        return low

    for a, b, rest, k in ((2, 3, 4, 3.0), (0, 1, 5, 0.4), (3, 1, 0, 3.5), (5, 2, 30, 6.0)):
        n = a + b + rest
        x = np.repeat([1.3, 0.0, -1.0], [a, b, rest])
        limit = np.repeat([1.0, (k - a) / b, 0.0], [a, b, rest])
        low, high = quantile((k - a) / (n - a)), quantile(k / (a + b))
        for tau in (2.0, 0.5, 0.2, 0.1):
            p = to_float64(reference.thretopk(x, k, temperature=tau, **CURVES[name]).p)
            off = np.abs(p - limit).sum()
            above, below = mp.mpf(1.3 / tau + low), mp.mpf(high - 1 / tau)
            lacks = a * (1 - curve.cdf(above)), rest * curve.cdf(below)
            most = 2 * float(max(lacks))
            assert off <= most * (1 + 1e-9) + 1e-12
            nearest = max(nearest, off / most if most > 1e-9 else 0.0)
            if name == "sigmoid":
                up = a * (n - k) / (k - a) * math.exp(-1.3 / tau)
                down = rest * k / (a + b - k) * math.exp(-1.0 / tau)
                assert off <= 2 * max(up, down)
                rates.append(off / math.exp(-1.0 / tau))
    assert nearest > (0.03 if name in SUPPORTED else 0.3)
    assert name != "sigmoid" or 1e-3 < min(rates) < max(rates) < 1e3


@every_curve
def test_infinite_scores(name):
    """thm-infinite: what a score without bound leaves to the others, and what infinity returns."""
    rng, tau, at = np.random.default_rng(91), 0.7, 2
    others = rng.normal(size=6)

    def value(x, k):
        return to_float64(reference.thretopk(x, k, temperature=tau, **CURVES[name]).p)

    moved = 0.0
    for k in (0.3, 1, 1.5, 3, 5.8, 6, 6.6):
        for far, mine, left in (
            (1e12, min(1, k), max(0, k - 1)),
            (-1e12, max(0, k - 6), min(k, 6)),
        ):
            p = value(np.insert(others, at, far), k)
            limit = np.insert(value(others, left), at, mine)
            assert_close(p, limit, 1e-11)
            moved = max(moved, abs(value(np.insert(others, at, 0.0), k) - limit).max())
            if 1 <= k <= 6:
                p = stk.thretopk(
                    np.insert(others, at, far * np.inf), k, temperature=tau, **CURVES[name]
                )
                assert_close(p, limit, tolerance(others, tau))
    assert moved > 0.5


@every_curve
def test_the_inverse(name):
    """thm-inverse: rows made for a given p have it, at every threshold."""
    rng = np.random.default_rng(92)
    for n in (2, 7, 40):
        # f at numbers between its corners, whose inverses they are.
        upper = 1.0 / (CURVES[name]["alpha"] - 1) if "alpha" in CURVES[name] else 1.0
        low, high = (0.05, 0.95) if name in SUPPORTED else (-4.0, -0.02)
        t = rng.uniform(low, high, n) * (upper if name in SUPPORTED else 1.0)
        q = to_float64([KNOWN[name].cdf(mp.mpf(float(v))) for v in t])
        assert 0 < q.min() <= q.max() < 1
        for lam, tau in ((0.0, 1.0), (-3.0, 0.2), (50.0, 7.0)):
            x = lam + tau * t
            p = stk.thretopk(x, q.sum(), temperature=tau, **CURVES[name])
            slack = 4 * EPS[np.float64] * (abs(lam) / tau + 10)
            assert_close(p, q, tolerance(x, tau) + slack)


# --------------------------------------------------------------------------- potential, duality


def potential_scale(x, k, phi):
    return max(1.0, abs(phi), k * np.abs(x).max())


@every_curve
def test_potential_gradient_is_p(name):
    """thm-potential, thm-no-mean: grad phi = p; and phi is the reference's."""
    rng, omega = np.random.default_rng(11), KNOWN[name].omega
    for n, k, tau in ((6, 2, 0.5), (9, 4.5, 1.0), (12, 11, 3.0)):
        x = rng.normal(size=n)
        options = {"temperature": tau, **CURVES[name]}
        phi = stk.thretopk.potential(x, k, **options)
        exact = float(reference.thretopk(x, k, **options).potential)
        assert abs(phi - exact) <= 1e-13 * potential_scale(x, k, exact)
        h = 1e-4 * np.eye(n)
        up, down = (stk.thretopk.potential(x + s * h, k, **options) for s in (1, -1))
        # Truncation h^2 / tau^2 / 6 (h where f' jumps, in one entry), rounding eps phi / h.
        assert_close((up - down) / 2e-4, stk.thretopk(x, k, **options), 2e-8 if tau >= 1 else 1e-7)
        # phi(x + c) = phi(x) + kc, and the two ends.
        assert stk.thretopk.potential(x + 3.0, k, **options) == pytest.approx(
            phi + 3 * k, rel=1e-13
        )
        nothing, all_of_them = (
            s - tau * n * omega(e) for e, s in ((0.0, 0.0), (1.0, math.fsum(x)))
        )
        assert stk.thretopk.potential(x, 0, **options) == pytest.approx(nothing)
        assert stk.thretopk.potential(x, n, **options) == pytest.approx(all_of_them, rel=1e-13)


@every_curve
def test_duality(name):
    """thm-duality, thm-no-mean: phi = max <x, q> - tau Omega(q), attained at p alone."""
    rng, omega = np.random.default_rng(12), KNOWN[name].omega
    for n, k, tau in ((5, 2, 0.7), (8, 3.5, 1.5), (20, 19, 1.0)):
        x = rng.normal(size=n)
        options = {"temperature": tau, **CURVES[name]}
        phi = stk.thretopk.potential(x, k, **options)
        p = stk.thretopk(x, k, **options)
        attained = x @ p - tau * omega(p).sum()
        assert abs(phi - attained) <= 1e-12 * potential_scale(x, k, phi)
        others = [np.full(n, k / n)]
        for _ in range(50):  # other points of the capped simplex
            noise = x + rng.normal(size=n)
            others.append(reference.thretopk_float64(noise, k, "clip", rng.uniform(0.5, 5)))
        for q in others:
            below = phi - (x @ q - tau * omega(q).sum())
            # Omega is strongly convex on [0, 1]: omega'' = 1/f'(f^-1(p)) >= 1.
            assert below >= tau * np.sum((p - q) ** 2) / 2 - 1e-12 * potential_scale(x, k, phi)


@every_curve
@settings(max_examples=40)
@given(problems())
def test_potential_bounds(name, problem):
    """prop-bounds: s_k - tau k omega(1) <= phi <= s_k - tau n omega(k/n); left for integer k."""
    x, k, tau = problem[:3]
    n, s_k, omega = x.size, reference.sum_of_largest(x, k), KNOWN[name].omega
    phi = stk.thretopk.potential(x, k, temperature=tau, **CURVES[name])
    slack = 1e-12 * max(potential_scale(x, k, phi), tau * n)
    upper = s_k - tau * n * float(omega(k / n))
    assert phi <= upper + slack
    if k == int(k):
        assert phi >= s_k - tau * k * float(omega(1.0)) - slack
    if np.ptp(x) == 0:  # the upper bound is attained
        assert abs(phi - upper) <= slack


# --------------------------------------------------------------------------------- closed forms


def closed_form_rows(name):
    """(sorted z, k, lam/tau of the package, m = #{z >= lam/tau}) for rows of every kind of m."""
    rng = np.random.default_rng(13)
    for n, k in ((6, 1), (6, 2), (9, 4.5), (40, 13), (40, 39), (100, 99), (100, 0.25)):
        for tau in (0.1, 1.0, 10.0):
            z = np.sort(rng.normal(size=n))[::-1] / tau
            lam = stk.thretopk.threshold(tau * z, k, temperature=tau, **CURVES[name])
            yield z, k, float(lam) / tau, int((z >= float(lam) / tau).sum())


def assert_threshold(lam, expected, total):
    """The threshold is determined to (error of p) / (mean weight)."""
    assert abs(lam - expected) <= 1e-12 * max(1.0, abs(expected)) / min(1.0, total)


def test_closed_form_exp():
    """thm-closed-form-exp: lam = log sum_rest e^z - log(k - m), m < k."""
    seen = set()
    for z, k, lam, m in closed_form_rows("exp"):
        assert m < k
        assert_threshold(lam, special.logsumexp(z[m:]) - math.log(k - m), k - m)
        seen.add(m)
    assert len(seen) > 5


def test_closed_form_laplace():
    """thm-closed-form-laplace: A e^{2 lam} + 2 (k - m) e^lam - B = 0, for m = 0..n."""
    seen = set()
    for z, k, lam, m in closed_form_rows("laplace"):
        a = np.exp(-z[:m]).sum()  # A, B of the theorem
        b = np.exp(z[m:]).sum()
        if m == 0:
            expected = math.log(b) - math.log(2 * k)
        elif k - m >= 0:
            expected = math.log(b) - math.log(math.sqrt((k - m) ** 2 + a * b) + (k - m))
        else:
            expected = math.log(math.sqrt((k - m) ** 2 + a * b) - (k - m)) - math.log(a)
        assert_threshold(lam, expected, math.fsum(np.exp(-np.abs(z - lam)) / 2))
        seen.add((m == 0) - (m == z.size))
    assert seen == {-1, 0, 1}


def test_closed_form_clip():
    """thm-closed-form-clip: lam = (m1 + sum of the entries partly chosen - k) / their number."""
    seen = set()
    for z, k, lam, _ in closed_form_rows("clip"):
        ones, partly = z - lam >= 1, (z - lam > 0) & (z - lam < 1)
        if partly.any():
            expected = (ones.sum() + z[partly].sum() - k) / partly.sum()
            assert_threshold(lam, expected, partly.sum())
            seen.add(int(partly.sum()))
        else:  # every threshold between the two groups will do
            assert ones.sum() == k
    assert len(seen) > 5


def scan_of_the_source(x, k):
    """The source's scan for laplace over m = 0..n-1: the thresholds that pass their own test."""
    ordered = np.sort(x)
    lse1 = np.logaddexp.accumulate(ordered)
    lse2 = np.append(np.logaddexp.accumulate(-ordered[::-1])[::-1], -np.inf)[1:]
    rest = k - np.arange(x.size - 1, -1, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        lam = lse1 - np.log(np.sqrt(rest**2 + np.exp(lse1 + lse2)) + rest)
    return lam[(lam <= np.append(ordered[1:], np.inf)) & (lam >= ordered)]


def test_scan_needs_m_equal_n():
    """prop-scan: for laplace the threshold may lie below every entry, m = n."""
    rng = np.random.default_rng(14)
    assert scan_of_the_source(rng.normal(size=100), 10).size == 1
    for x in rng.normal(size=(20, 100)):
        assert scan_of_the_source(x, 99).size == 0
        lam = stk.thretopk.threshold(x, 99, curve="laplace", method="scan")
        assert lam < x.min()
        p = stk.thretopk(x, 99, curve="laplace", method="scan")
        assert_close(p, reference.thretopk_float64(x, 99), tolerance(x, 1.0))

    # lam <= min x if and only if n - k <= sum e^-(z - min z) / 2.
    outcomes = []
    for n, tau in itertools.product((3, 10, 50), (0.1, 1.0, 10.0)):
        x = rng.normal(size=n)
        half = 0.5 * np.exp(-(x - x.min()) / tau).sum()
        for k in (n / 4, n / 2, n - 1, n - 0.6, n - half - 1e-3, n - half + 1e-3):
            lam = stk.thretopk.threshold(x, k, temperature=tau, method="scan")
            assert (lam <= x.min()) == (n - k <= half)
            outcomes.append(bool(lam <= x.min()))
    assert 10 < sum(outcomes) < len(outcomes) - 10


# ---------------------------------------------------------------------------------- derivatives


def smooth_rows():
    """Rows whose entries keep away from the kinks of every curve at the temperatures used."""
    rng = np.random.default_rng(15)
    for n, k, tau in ((2, 1, 2.0), (5, 2, 1.0), (7, 3.25, 0.5), (12, 11, 2.0), (12, 0.5, 30.0)):
        yield rng.normal(size=n), k, tau


@every_curve
def test_jacobian_is_a_graph_laplacian(name):
    """thm-jacobian: J = (Diag(w) - w w^T / W)/tau."""
    for x, k, tau in smooth_rows():
        jacobian = thretopk_matrix(x, k, tau, name)
        w = to_float64(reference.weights(x, k, temperature=tau, **CURVES[name])[0])
        expected = (np.diag(w) - np.outer(w, w) / w.sum()) / tau if w.any() else 0 * jacobian
        assert_close(jacobian, expected, 1e-12 * max(1, 1 / tau))
        assert_close(reference.jacobian(x, k, temperature=tau, **CURVES[name]), expected, 1e-13)


@every_curve
@settings(max_examples=40)
@given(problems(SHORT), st.integers(0, 2**32 - 1))
def test_jacobian_properties(name, problem, seed):
    """thm-jacobian: J = J^T >= 0, zero row sums, no positive entry off the diagonal; vjp = jvp."""
    x, k, tau = problem[:3]
    n = x.size
    jacobian = tau * thretopk_matrix(x, k, tau, name)
    atol = 1e-12 + 16 * EPS[np.float64] * spread(x, tau)
    assert_close(jacobian, jacobian.T, atol)
    assert_close(jacobian.sum(axis=0), np.zeros(n), n * atol)
    assert_close(jacobian.sum(axis=1), np.zeros(n), n * atol)
    assert np.all(jacobian[~np.eye(n, dtype=bool)] <= atol)
    assert np.linalg.eigvalsh((jacobian + jacobian.T) / 2).min() >= -n * atol

    u, v = np.random.default_rng(seed).normal(size=(2, n))
    options = {"temperature": tau, **CURVES[name]}
    _, dp = stk.thretopk.jvp(x, k, v, **options)
    _, pullback = stk.thretopk.vjp(x, k, **options)
    assert_close(tau * dp, jacobian @ v, n * atol * np.abs(v).max())
    assert_close(tau * pullback(u).x, jacobian.T @ u, n * atol * np.abs(u).max())
    pairing = tau * (u @ dp - pullback(u).x @ v)
    assert abs(pairing) <= n * atol * np.abs(u).max() * np.abs(v).max()


def test_derivatives_where_all_weights_vanish():
    """thm-jacobian: 0 where f' is continuous and vanishes; at corners there are two slopes.

    The first by bisection for the curve 3 t^2 - 2 t^3, the second by clip at x = (1, 0).
    """

    def smooth(t):
        t = min(max(t, mp.mpf(0)), mp.mpf(1))
        return t * t * (3 - 2 * t)

    def p_of(x):
        low, high = min(x) - 1, max(x)
        for _ in range(400):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(smooth(v - middle) for v in x) > 1 else (low, middle)
        return [smooth(v - low) for v in x]

    for move in (mp.mpf(10) ** -3, mp.mpf(10) ** -6):
        for x in ([1 - move, mp.mpf(0)], [1 + move, -move], [1 - move, mp.mpf(0), mp.mpf(-3)]):
            p = p_of(x)
            assert abs(p[0] - 1) <= move**2
            assert abs(p[1]) <= move**2
    for h in (2.0**-4, 2.0**-20):
        p, dp = stk.thretopk.jvp([1.0, 0.0], 1, [1.0, 0.0], curve="clip")
        np.testing.assert_array_equal(p, [1, 0])
        np.testing.assert_array_equal(dp, [0, 0])  # as is returned
        np.testing.assert_allclose(
            stk.thretopk([1.0 - h, 0.0], 1, curve="clip"), [1 - h / 2, h / 2], rtol=1e-12
        )
        np.testing.assert_array_equal(stk.thretopk([1.0 + h, 0.0], 1, curve="clip"), [1, 0])


def rows_of_all_kinds(seed, lengths=SHORT):
    """A few rows of every kind, with a k and a temperature."""
    rng = np.random.default_rng(seed)
    for kind, make in KINDS.items():
        for n in lengths:
            tau = float(10.0 ** rng.uniform(-1, 1))
            yield kind, make(rng, n), float(rng.choice([1, n - 1, n / 2.5])), tau


@every_curve
def test_temperature_and_k(name):
    """thm-temperature: majorisation as tau falls, the limit of high tau, k, and convexity."""
    options, loose = CURVES[name], 1e-12
    slope = float(largest_slope(name))
    moved = 0.0
    for _, x, k, tau in rows_of_all_kinds(71):
        n, order = x.size, np.argsort(-x, kind="stable")
        p, cold = (stk.thretopk(x, k, temperature=t, **options)[order] for t in (tau, 0.7 * tau))
        assert (np.cumsum(cold - p) >= -loose * n).all()
        assert ((cold**2).sum() - (p**2).sum()) >= -loose * n
        moved = max(moved, np.cumsum(cold - p).max())
        assert (abs(p - k / n) <= slope * spread(x, tau) + loose).all()
        more = stk.thretopk(x, k + 0.25 * (n - k), temperature=tau, **options)[order]
        assert (more - p >= -loose).all()
        assert abs(more - p).sum() == pytest.approx(0.25 * (n - k), abs=n * loose)
        other = x[::-1] + 0.3 * tau
        ends = (x, k, tau), (other, k, 2 * tau), (x, 0.5 * k, tau)
        phi = [stk.thretopk.potential(v, q, temperature=t, **options) for v, q, t in ends]
        between = stk.thretopk.potential(0.5 * (x + other), k, temperature=1.5 * tau, **options)
        size = n * (np.abs(x).max() + 3 * tau)
        assert between <= 0.5 * (phi[0] + phi[1]) + loose * size
        half = stk.thretopk.potential(x, 0.75 * k, temperature=tau, **options)
        assert half >= 0.5 * (phi[0] + phi[2]) - loose * size
    assert moved > 0.02
    # One entry beside many equal ones, at the steepest place: L R (1 - 1/n), to first order.
    n, h = 200, 1e-4
    k = n * float(KNOWN[name].cdf(mp.mpf(steepest_place(name))))
    p = stk.thretopk(h * (np.arange(n) == 0), k, **options)
    assert 0.98 * slope * h < abs(p[0] - k / n) <= slope * h


def steepest_place(name):
    """Where f' is L, or next to it, on the side of the corner where it is."""
    if name in SUPPORTED and name != "clip":
        return 1 / (CURVES[name]["alpha"] - 1) - 1e-3
    return {"exp": -1e-3, "clip": 0.5}.get(name, 0.0)


def largest_slope(name):
    """L of the table of curves, by the steepest place of the pdf."""
    curve = KNOWN[name]
    edge = 1.0 / (CURVES[name].get("alpha", 2.0) - 1.0)
    top = edge if name in SUPPORTED else 1.0
    places = [mp.mpf(top) * j / 400 for j in range(401)]
    small = mp.mpf(10) ** -12
    return max(max(curve.pdf(t), curve.pdf(-t)) for t in [*places, small, mp.mpf(top) - small])


@every_curve
def test_lipschitz_constants(name):
    """thm-lipschitz: <dp, dx> >= tau/L |dp|^2, by rows far apart and next to each other.

    Two equal entries at the steepest place attain it; and what a row of |J| sums to.
    """
    options, slope = CURVES[name], float(largest_slope(name))
    rng = np.random.default_rng(72)
    for _, x, k, tau in rows_of_all_kinds(73):
        far = float(10.0 ** rng.uniform(-3, 1))
        other = x + far * tau * rng.normal(size=x.size)
        p, q = (stk.thretopk(v, k, temperature=tau, **options) for v in (x, other))
        dp, dx = p - q, (x - other) / tau
        assert dp @ dp <= slope * (dp @ dx) + 1e-12
        assert abs(dp).max() <= 2 * slope * abs(dx).max() + 1e-12
    k, h = 2 * float(KNOWN[name].cdf(mp.mpf(steepest_place(name)))), 1e-8
    moved = stk.thretopk([h, -h], k, **options) - stk.thretopk([0.0, 0.0], k, **options)
    assert np.linalg.norm(moved) == pytest.approx(slope * math.sqrt(2) * h, rel=3e-3)
    for x, k, tau in smooth_rows():
        w = to_float64(reference.weights(x, k, temperature=tau, **options)[0])
        if w.any():
            sums = abs(thretopk_matrix(x, k, tau, name)).sum(axis=1)
            assert_close(sums, 2 / tau * w * (1 - w / w.sum()), 1e-12 * max(1, 1 / tau))


@pytest.mark.parametrize("name", ["exp", "clip", "entmax-1.5"])
def test_the_jacobian_at_kinks(name):
    """thm-kinks: it is that of rows next to it, on the flat sides of the corners.

    Or on the steep sides, where rounding puts the threshold there.
    """
    upper = {"exp": 0.0, "clip": 1.0, "entmax-1.5": 2.0}[name]
    options = {"temperature": 1.0, **CURVES[name]}
    at = np.array([upper, upper - 0.5, upper - 0.75, 0.0 if name != "exp" else -1.0, upper])
    k = float(sum(KNOWN[name].cdf(mp.mpf(t)) for t in at))
    assert_close(stk.thretopk.threshold(at, k, **options), 0.0, 1e-15)
    kinks = np.where(at == upper, 1.0, np.where((at == 0) & (name != "exp"), -1.0, 0.0))
    beside = at + 2.0**-30 * kinks
    found, near = (thretopk_matrix(x, k, 1.0, name) for x in (at, beside))
    steep = thretopk_matrix(at - 2.0**-30 * kinks, k, 1.0, name)
    assert np.abs(near).max() > 0.1
    assert np.abs(near - steep).max() > 0.1
    apart = [np.abs(found - each).max() for each in (near, steep)]
    assert min(apart) < 1e-6
    assert name != "clip" or apart[0] == 0  # where no rounding is in the way


@every_curve
def test_no_other_curve_is_softmax(name):
    """thm-k1-only-exp: a row of three whose ratio of two p is not e^((x_1 - x_2)/tau)."""
    apart = 0.0
    for x in ([0.3, 0.0, -0.4], [2.0, 0.0, 0.0], [0.0, -4.0], [1.0, 0.9, 0.2, -1.0]):
        p = stk.thretopk(x, 1, **CURVES[name])
        apart = max(apart, np.abs(p - special.softmax(x)).max())
    assert (apart < 1e-15) == (name == "exp")
    assert name == "exp" or apart > 0.01


def test_error_budget():
    """thm-budget: kappa by its worst place, the proved bounds, and errors of rows below them."""
    for name, most in (("sigmoid", 2.0), ("laplace", 1.0), ("normal", math.sqrt(math.pi / 2))):
        curve = KNOWN[name]
        kappa, _ = largest(
            lambda s, f=curve: float(f.cdf(mp.mpf(-s)) / f.pdf(mp.mpf(-s))), 1e-9, 30.0, points=60
        )
        assert kappa == pytest.approx(most, rel=1e-8)
    eps = EPS[np.float64]

    def proved(eta, sigma, left, eps):  # for `sigmoid` and `laplace` L kappa is 1/2
        return 0.5 * (eta + sigma) + 0.25 * left + eta + eps / 4 + 2 * eps

    most = proved(2.4 * eps, (514 + 1e6 / 1024) * eps / 2, eps / 7, eps)
    assert 0.8e-13 < most < 1e-13
    single = EPS[np.float32]
    eta = 1.7 * single
    assert 0.8e-5 < proved(eta, 258 * single / 2, single / 7, single) < 1e-5
    assert 1.5e-6 < proved(eta, 34 * single / 2, single / 7, single) < 1.6e-6
    rng, nearest = np.random.default_rng(76), 0.0
    for name, slope in (("sigmoid", 0.25), ("laplace", 0.5)):
        for n, k, tau in ((7, 3, 0.3), (100, 60.5, 1.0), (600, 10, 0.2)):
            x = rng.normal(size=n) + 40.0
            exact = to_float64(reference.thretopk(x, k, temperature=tau, **CURVES[name]).p)
            p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
            reach = 4 * eps * (spread(x, tau) + 0.25 * abs(math.log(k / n)))
            bound = slope * reach + proved(2.4 * eps, (514 + n / 1024) * eps / 2, eps / 7, eps)
            assert abs(p - exact).max() <= bound
            nearest = max(nearest, abs(p - exact).max() / eps)
    assert nearest > 0.3


def test_budget_of_normal_and_cauchy():
    """prop-budget-tails: its constants by their worst places, and errors of rows below it."""
    eps = EPS[np.float64]

    def density(t):
        return math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)

    most, _ = largest(lambda t: math.atan2(1, t) ** 2 / math.pi * (1 + t * t), 1e-9, 1e6)
    assert most == pytest.approx(math.pi / 4, rel=1e-8)
    rate, _ = largest(lambda t: density(t) / special.ndtr(-t) - t, 1e-9, 36.0)
    assert 0.79 < rate < 0.8
    negative, where = largest(lambda t: -t * t * (density(0) + 1e6 * density(t)), 1.5, 30.0)
    assert 5.7 < where < 5.8
    assert 14.0 < -negative < 14.1
    cube = eps / 8  # of the longest last step
    assert 1.25 * 0.2 + (1.25 + 0.25 + 0.564) * 1.0 < 8 * 0.26 + 8 * (0.24 - 1 / 47)
    moments = -negative, density(0)
    left = (0.26 * moments[0] + 0.24 * moments[1]) * eps
    tails = 0.25 * math.sqrt(moments[0] * moments[1]) * eps
    assert 4.2 * eps < left + tails < 4.4 * eps
    d = 0.5 * (1 + 0.73)
    assert 1.2 * cube < (d + 1 / 3 + 0.73**2 / 6) * cube < eps / 6

    def sums(n):
        return (2 + min(n, 1024) / 2 + n / 1024) * eps / 2

    def proved(name, n):
        if name == "normal":  # a tail is at most 1/2, and its error largest there
            return 0.5 * (12 * eps + sums(n)) + 4.4 * eps + 6 * eps + eps / 29 + 2 * eps
        in_tails = 0.5 * math.sqrt(n) * (3.6 * eps + sums(n)) + eps / 18
        return in_tails + 1.8 * eps + eps / 29 + 2 * eps

    assert 0.8e-13 < proved("normal", 1e6) + 0.4 * 38 * eps < 1e-13
    for n, most in ((200, 1e-13), (1000, 1e-12), (1e6, 1e-10)):
        assert 0.8 * most < proved("cauchy", n) < most
    rng, nearest = np.random.default_rng(77), 0.0
    for name in ("normal", "cauchy"):
        for n, k, tau in ((7, 3, 0.3), (100, 60.5, 1.0)):
            x = rng.normal(size=n) + 40.0
            exact = to_float64(reference.thretopk(x, k, temperature=tau, **CURVES[name]).p)
            p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
            u = k / n
            middle = abs(special.ndtri(u) if name == "normal" else 1 / math.tan(math.pi * u))
            bound = 0.4 * eps * (4 * spread(x, tau) + middle) + proved(name, n)
            assert abs(p - exact).max() <= bound
            nearest = max(nearest, abs(p - exact).max() / eps)
    assert nearest > 0.3


def test_products_of_score_and_slope():
    """What the page on ThreTopK says of |t| f'(t), which is how a rounded t moves p."""
    for name, most in (
        ("sigmoid", 0.224),
        ("laplace", 0.184),
        ("exp", 0.368),
        ("normal", 0.242),
        ("cauchy", 0.16),
        ("clip", 1.0),
        ("entmax-1.5", 2.0),
    ):
        curve = KNOWN[name]
        edge = 1.0 / (CURVES[name].get("alpha", 2.0) - 1.0)
        sign = -1.0 if name == "exp" else 1.0  # to the right of 0 it is flat
        found, _ = largest(
            lambda t, f=curve.pdf, sign=sign: t * float(f(mp.mpf(sign * t))),
            1e-2,
            np.nextafter(edge, 0.0) if name in SUPPORTED else 30.0,
            points=60,
        )
        assert 0.99 * most <= found <= most


@every_curve
def test_derivatives_in_k_and_temperature(name):
    """thm-derivatives-k-tau: against central differences of the 60-digit bisection."""
    rng = np.random.default_rng(16)
    moved = 0
    for x, k, tau in smooth_rows():
        n = x.size
        options = {"temperature": tau, **CURVES[name]}
        if not sum(reference.weights(x, k, **options)[0]):
            continue  # p stays 0 or 1 in a neighbourhood of tau; in k it has two slopes
        moved += 1
        in_k = to_float64(reference.thretopk_jvp_by_difference(x, k, 0 * x, dk=1.0, **options))
        in_tau = to_float64(
            reference.thretopk_jvp_by_difference(x, k, 0 * x, dtemperature=1.0, **options)
        )
        scale = max(1.0, np.abs(in_k).max(), np.abs(in_tau).max())
        assert_close(stk.thretopk.jvp(x, k, 0 * x, dk=1.0, **options)[1], in_k, 1e-12 * scale)
        assert_close(
            stk.thretopk.jvp(x, k, 0 * x, dtemperature=1.0, **options)[1], in_tau, 1e-12 * scale
        )
        assert math.fsum(in_k) == pytest.approx(1.0, abs=1e-14)

        dx, u = rng.normal(size=(2, n))
        together = stk.thretopk.jvp(x, k, dx, dk=0.3, dtemperature=-0.2, **options)[1]
        in_x = to_float64(reference.thretopk_jvp(x, k, dx, **options))
        assert_close(together, in_x + 0.3 * in_k - 0.2 * in_tau, 1e-11 * scale)

        gradients = stk.thretopk.vjp(x, k, **options)[1](u)
        assert gradients.k == pytest.approx(u @ in_k, abs=1e-11 * scale)
        assert gradients.temperature == pytest.approx(u @ in_tau, abs=1e-11 * scale)
    assert moved >= 3


def test_gradients_have_the_shape_of_their_arguments():
    """thm-derivatives-k-tau, over a batch: one k or temperature for many rows adds their parts."""
    rng = np.random.default_rng(17)
    x, u = rng.normal(size=(2, 2, 3, 6))
    tau = np.array([[0.5], [2.0]])
    k = np.array([1.0, 2.5, 4.0])
    gradients = stk.thretopk.vjp(x, k, temperature=tau)[1](u)
    each = [
        [stk.thretopk.vjp(x[i, j], k[j], temperature=tau[i, 0])[1](u[i, j]) for j in range(3)]
        for i in range(2)
    ]
    assert gradients.x.shape == x.shape
    assert gradients.k.shape == k.shape
    assert gradients.temperature.shape == tau.shape
    for i in range(2):
        for j in range(3):
            np.testing.assert_array_equal(gradients.x[i, j], each[i][j].x)
    assert_close(gradients.k, np.array([[g.k for g in row] for row in each]).sum(axis=0), 1e-13)
    in_tau = np.array([[g.temperature for g in row] for row in each])
    assert_close(gradients.temperature, in_tau.sum(axis=1, keepdims=True), 1e-13)

    scalar = stk.thretopk.vjp(x, 2.5, temperature=0.5)[1](u)
    assert np.shape(scalar.k) == np.shape(scalar.temperature) == ()


@every_curve
def test_stop_gradient_identity(name):
    """prop-stop-gradient: lam = x.sg[grad lam] + sg[lam - x.grad lam] gives the gradient of p.

    With lam held fixed p = f((x - lam)/tau) has the gradient w u/tau; the identity adds what flows
    through lam, whose gradient w/W is taken here from differences of the package's own threshold.
    """
    rng = np.random.default_rng(18)
    for x, k, tau in smooth_rows():
        options = {"temperature": tau, **CURVES[name]}
        w = to_float64(reference.weights(x, k, **options)[0])
        if w.sum() < 1e-3:
            continue  # lam is not determined
        h = 1e-5 * np.eye(x.size)
        up, down = (stk.thretopk.threshold(x + s * h, k, **options) for s in (1, -1))
        gradient_of_lam = (up - down) / 2e-5
        assert_close(gradient_of_lam, w / w.sum(), 1e-8)
        u = rng.normal(size=x.size)
        through_lam = -np.sum(w * u / tau) * gradient_of_lam
        pullback = stk.thretopk.vjp(x, k, **options)[1]
        assert_close(pullback(u).x, w * u / tau + through_lam, 1e-7)


# --------------------------------------------------------------------------------- special cases


@settings(max_examples=60)
@given(problems())
def test_k1_exp_is_softmax(problem):
    """thm-k1-exp: p = softmax(x/tau), lam = tau logsumexp(x/tau), phi = lam + tau."""
    x, _, tau = problem[:3]
    z = (x - x.max()) / tau
    p = stk.thretopk(x, 1, curve="exp", temperature=tau)
    assert_close(p, special.softmax(z), tolerance(x, tau))
    lam = x.max() + tau * special.logsumexp(z)
    threshold = stk.thretopk.threshold(x, 1, curve="exp", temperature=tau)
    # Where softmax is 1 in one entry, min(1, e^t) no longer tells thresholds below it apart.
    if p.max() < 1 - 1e-3:
        atol = tau * tolerance(x, tau) * (1 + math.log(x.size)) + 1e-15 * abs(lam)
        assert abs(threshold - lam) <= atol
    phi = stk.thretopk.potential(x, 1, curve="exp", temperature=tau)
    assert abs(phi - (lam + tau)) <= 1e-13 * max(abs(lam) + tau, np.abs(x).max())


def test_k1_laplace_is_softmax_iff():
    """thm-k1-laplace: laplace is softmax at k = 1 if and only if no softmax exceeds 1/2."""
    counts = {True: 0, False: 0}
    rng = np.random.default_rng(19)
    for n in (2, 3, 5, 17):
        for tau in (0.3, 1.0, 3.0):
            for x in rng.normal(size=(10, n)):
                p = stk.thretopk(x, 1, curve="laplace", temperature=tau)
                softmax = special.softmax(x / tau)
                spread_out = bool(softmax.max() <= 0.5)
                counts[spread_out] += 1
                if spread_out:
                    assert_close(p, softmax, tolerance(x, tau))
                else:  # with b = (1 - s)/s < 1: p = 1 - sqrt(b)/2 < 1/(1 + b) = s
                    s = softmax.max()
                    b = np.exp(np.sort(x)[:-1] / tau - x.max() / tau).sum()
                    assert p.max() == pytest.approx(1 - math.sqrt(b) / 2, abs=tolerance(x, tau))
                    gap = math.sqrt(b) * (0.5 - math.sqrt(b) / (1 + b))
                    assert s - p.max() == pytest.approx(gap, abs=2 * tolerance(x, tau))
                    assert p.max() < s or gap < 1e-12
                    rest = np.arange(n) != x.argmax()
                    shares = softmax[rest] / softmax[rest].sum()
                    assert_close(p[rest], (1 - p.max()) * shares, tolerance(x, tau))
    assert min(counts.values()) > 10

    p = stk.thretopk(np.array([2.0, 0.0, 0.0]), 1, curve="laplace")
    np.testing.assert_allclose(p[0], 1 - math.exp(-1) / math.sqrt(2), rtol=0, atol=1e-13)
    assert round(p[0], 4) == 0.7399
    assert round(special.softmax([2.0, 0.0, 0.0])[0], 4) == 0.7870
    # On the boundary the two still agree.
    half = np.log([2.0, 1.0, 1.0])
    p = stk.thretopk(half, 1, curve="laplace")
    assert_close(p, [0.5, 0.25, 0.25], tolerance(half, 1.0))


@settings(max_examples=40)
@given(problems())
def test_k1_clip_is_sparsemax(problem):
    """thm-k1-clip: clip at k = 1 is sparsemax, here by its sorted support."""
    x, _, tau = problem[:3]
    z = (x - x.max()) / tau
    ordered = np.sort(z)[::-1]
    excess = np.cumsum(ordered) - 1
    size = np.arange(1, z.size + 1)
    support = size[size * ordered > excess].max()
    expected = np.maximum(z - excess[support - 1] / support, 0)
    p = stk.thretopk(x, 1, curve="clip", temperature=tau)
    assert_close(p, expected, 2 * tolerance(x, tau))


@pytest.mark.parametrize("name", SYMMETRIC)
@settings(max_examples=40)
@given(problems())
def test_complement(name, problem):
    """thm-complement: p(x, k) + p(-x, n - k) = 1 if f(t) + f(c - t) = 1 for some c."""
    x, k, tau = problem[:3]
    p = stk.thretopk(x, k, temperature=tau, **CURVES[name])
    q = stk.thretopk(-x, x.size - k, temperature=tau, **CURVES[name])
    assert_close(p + q, np.ones(x.size), 2 * tolerance(x, tau))


@pytest.mark.parametrize("name", SYMMETRIC)
def test_complement_of_thresholds(name):
    """thm-complement: lam(x, k) = -lam(-x, n - k) - c tau."""
    rng = np.random.default_rng(24)
    for n, k, tau in ((5, 2, 1.0), (12, 4.5, 0.6), (40, 39.5, 3.0)):
        x = rng.normal(size=n)
        lam = stk.thretopk.threshold(x, k, temperature=tau, **CURVES[name])
        mirrored = stk.thretopk.threshold(-x, n - k, temperature=tau, **CURVES[name])
        assert lam == pytest.approx(-mirrored - (name == "clip") * tau, abs=1e-12)


def test_complement_fails_for_exp():
    """thm-complement: the symmetry of the curve is needed."""
    x = np.array([1.0, 0.0, -0.5])
    both = stk.thretopk(x, 1, curve="exp") + stk.thretopk(-x, 2, curve="exp")
    assert np.abs(both - 1).max() > 0.01


# -------------------------------------------------------------------------------------- solvers


@every_curve
def test_auto_is_newton(name):
    """One plan, so that whatever is tested of the one holds for the other."""
    auto, newton = (
        stk.thretopk.check_options({**CURVES[name], "method": m}) for m in ("auto", "newton")
    )
    assert auto == newton
    assert type(auto.method) is type(newton.method)


@a_curve_by_every_method
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@settings(max_examples=50)
@given(problems())
def test_methods_agree(name, dtype, problem):
    """prop-solver: every method ends at the same p."""
    x, tau = problem.x.astype(dtype), problem.tau
    answers = [
        stk.thretopk(x, problem.k, temperature=tau, method=method, **CURVES[name])
        for method in methods(name)
    ]
    for p in answers:
        assert_close(p, answers[0].astype(np.float64), 2 * tolerance(x, tau, dtype))
        assert mass_error(p, problem.k) <= (1e-12 if dtype is np.float64 else 1e-6)


@a_curve_by_every_method
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_methods_end_on_hard_rows(name, dtype):
    """prop-solver: range and sum k from every method, where no model of the row is of use.

    Short rows over a dozen orders of magnitude, R to 1e12, k to 2^-40 from 0 and from n.
    """
    rng = np.random.default_rng(26)
    for n in (2, 3, 5, 8):
        x = rng.normal(size=(1000, n)) * 10.0 ** rng.uniform(-6, 6, size=(1000, n))
        k = np.exp2(rng.uniform(-40, math.log2(n), size=1000))
        k[::2] = n - k[::2]
        k[::5] = rng.integers(1, n, size=200)
        tau = 10.0 ** rng.uniform(-6, 3, size=1000)
        for method in methods(name):
            p = stk.thretopk(x.astype(dtype), k, temperature=tau, method=method, **CURVES[name])
            assert np.all((p >= 0) & (p <= 1))
            error = np.abs(p.sum(axis=1, dtype=np.longdouble) - k) / np.maximum(1, k)
            worst = int(error.argmax())
            assert error[worst] <= (1e-12 if dtype is np.float64 else 1e-6), (
                f"{method}: sum p is off by {float(error[worst]):.1e} max(1, k) on "
                f"{int(np.sum(error > 1e-6))} of 1000 rows, at worst for "
                f"x={x[worst].tolist()}, k={k[worst]!r}, temperature={tau[worst]!r}"
            )


@pytest.mark.parametrize("n", [10_000, 100_000, 1_000_000])
def test_bisect_stops_on_mass(n):
    """prop-mass: a bracket of 1e-4 on lam leaves an error of the sum that grows with n."""
    rng = np.random.default_rng(20)
    x, k = rng.normal(size=n), n // 10
    p = stk.thretopk(x, k, curve="sigmoid", method="bisect")
    assert mass_error(p, k) <= 1e-12

    low, high = x.min() - special.logit(k / n), x.max() - special.logit(k / n)
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if special.expit(x - middle).sum() < k else (middle, high)
    undecided = special.expit(x - low).sum() - special.expit(x - high).sum()
    assert undecided > 3e-6 * n  # against a promised 1e-13 n


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["laplace", "clip", "sigmoid"])
def test_mass_at_ten_million(name, dtype):
    """prop-mass: the sum is k to the promised accuracy for n up to 1e7."""
    n = 10_000_000
    x = np.random.default_rng(21).normal(size=n).astype(dtype)
    for k in (1234.5, n // 3):
        p = stk.thretopk(x, k, temperature=0.2, **CURVES[name])
        assert p.min() >= 0
        assert p.max() <= 1
        assert mass_error(p, k) <= (1e-12 if dtype is np.float64 else 1e-6)


# ----------------------------------------------------------------------------------- own curves


def cauchy_cdf(t):
    return 0.5 + math.atan(t) / math.pi


def cauchy_pdf(t):
    return 1 / (math.pi * (1 + t * t))


def algebraic_cdf(t):
    return 0.5 + 0.5 * t / math.sqrt(1 + t * t)


def algebraic_pdf(t):
    return 0.5 / ((1 + t * t) * math.sqrt(1 + t * t))


OWN = {
    "cauchy": (
        stk.Curve(cauchy_cdf, cauchy_pdf, name="cauchy"),
        reference.Curve(
            lambda t: mp.mpf(1) / 2 + mp.atan(t) / mp.pi, lambda t: 1 / mp.pi / (1 + t * t)
        ),
    ),
    "algebraic": (
        stk.Curve(algebraic_cdf, algebraic_pdf, name="algebraic"),
        reference.Curve(
            lambda t: (1 + t / mp.sqrt(1 + t * t)) / 2, lambda t: (1 + t * t) ** mp.mpf(-1.5) / 2
        ),
    ),
}


@pytest.mark.parametrize("own", OWN)
def test_own_curve(own):
    """thm-existence and thm-jacobian hold for any CDF that Numba can compile."""
    curve, exact = OWN[own]
    rng = np.random.default_rng(22)
    for n, k, tau in ((2, 1, 1.0), (7, 2.5, 0.3), (12, 11, 2.0), (13, 0.1, 0.5)):
        x, dx = rng.normal(size=(2, n))
        p, dp = stk.thretopk.jvp(x, k, dx, curve=curve, temperature=tau)
        solution = reference.thretopk(x, k, exact, tau)
        assert_close(p, to_float64(solution.p), tolerance(x, tau))
        assert mass_error(p, k) <= 1e-12
        expected = to_float64(reference.thretopk_jvp(x, k, dx, exact, tau))
        assert_close(dp, expected, 1e-12 * max(1.0, np.abs(expected).max()))
        gradient = stk.thretopk.vjp(x, k, curve=curve, temperature=tau)[1](dx).x
        assert_close(gradient, expected, 1e-12 * max(1.0, np.abs(expected).max()))
        lam = stk.thretopk.threshold(x, k, curve=curve, temperature=tau)
        assert float(lam) == pytest.approx(float(solution.threshold), rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("own", OWN)
def test_own_curve_in_float32_and_long_rows(own):
    curve, _ = OWN[own]
    rng = np.random.default_rng(23)
    for dtype in (np.float64, np.float32):
        x = rng.normal(size=70_001).astype(dtype)
        p = stk.thretopk(x, 700, curve=curve, temperature=0.5)
        f = {
            "cauchy": lambda t: 0.5 + np.arctan(t) / np.pi,
            "algebraic": lambda t: 0.5 + 0.5 * t / np.sqrt(1 + t * t),
        }[own]
        assert p.dtype == dtype
        assert_close(p, reference.thretopk_float64(x, 700, f, 0.5), tolerance(x, 0.5, dtype))
        assert mass_error(p, 700) <= (1e-12 if dtype is np.float64 else 1e-6)
