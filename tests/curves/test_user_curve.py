"""Curves of one's own: what is refused when one is made, and what calls do with the others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit

import softtopk_nb as stk


@njit(error_model="numpy")
def cauchy_cdf(t):
    return 0.5 + math.atan(t) / math.pi


@njit(error_model="numpy")
def cauchy_pdf(t):
    return 1 / (math.pi * (1 + t * t))


@njit(error_model="numpy")
def cauchy_integral(t):  # which is 0 at 0: there is none that vanishes at -inf
    return 0.5 * t + (t * math.atan(t) - 0.5 * math.log(1 + t * t)) / math.pi


@njit(error_model="numpy")
def student2_cdf(t):
    return 0.5 + 0.5 * t / math.sqrt(2 + t * t)


@njit(error_model="numpy")
def student2_pdf(t):
    return (2 + t * t) ** -1.5


@njit(error_model="numpy")
def student2_integral(t):
    return 0.5 * (t + math.sqrt(2 + t * t))


@njit(error_model="numpy")
def clip_cdf(t):
    return min(1.0, max(0.0, t))


@njit(error_model="numpy")
def clip_pdf(t):
    return 1.0 if 0 < t < 1 else 0.0


@njit(error_model="numpy")
def clip_integral(t):
    return 0.0 if t < 0 else t - 0.5 if t > 1 else 0.5 * t * t


@njit(error_model="numpy")
def tanh_cdf(t):
    return 0.5 + 0.5 * math.tanh(t)


@njit(error_model="numpy")
def tanh_pdf(t):
    return 0.5 / math.cosh(t) ** 2


CAUCHY = stk.Curve(cauchy_cdf, cauchy_pdf, name="cauchy")
STUDENT2 = stk.Curve(student2_cdf, student2_pdf, name="student2", integral=student2_integral)
CLIP = stk.Curve(clip_cdf, clip_pdf, name="own clip", integral=clip_integral)


def same(a, b):
    assert np.asarray(a).dtype == np.asarray(b).dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("curve", "dtype"),
    [
        (STUDENT2, np.float32),
        pytest.param(STUDENT2, np.float16, marks=pytest.mark.slow),
        pytest.param(CAUCHY, np.float32, marks=pytest.mark.slow),
        pytest.param(CAUCHY, np.float16, marks=pytest.mark.slow),
    ],
)
def test_short_types_are_worked_on_in_float64(curve, dtype, rng):
    """Precision: a tail that is a difference from 1 has no digits left in float32."""
    for n, k, tau, offset in (
        (7, 2.5, 0.3, 0),
        (255, 0.032, 1, 0),
        (255, 254.97, 5, 9),
        (3000, 40, 2, -30),
    ):
        x, dx = (rng.normal(size=(2, 2, n)) + offset).astype(dtype)
        wide, kw = x.astype(np.float64), {"curve": curve, "temperature": tau}
        p = stk.thretopk(wide, k, **kw)
        assert abs(p.sum(axis=1) - k).max() <= 1e-12 * max(1, k)
        out = np.empty_like(x)
        assert stk.thretopk(x, k, out=out, **kw) is out
        same(out, p.astype(dtype))
        if dtype == np.float32:
            assert abs(out.sum(axis=1, dtype=np.float64) - k).max() <= 1e-6 * max(1, k)
        _, dp = stk.thretopk.jvp(wide, k, dx, dk=0.5, dtemperature=0.2, **kw)
        found = stk.thretopk.jvp(x, k, dx, dk=0.5, dtemperature=0.2, **kw)
        same(found[0], p.astype(dtype))
        same(found[1], dp.astype(dtype))
        gradients = stk.thretopk.vjp(wide, k, **kw)[1](dx)
        for a, b in zip(stk.thretopk.vjp(x, k, **kw)[1](dx), gradients, strict=True):
            same(a, b.astype(dtype))
        same(
            stk.thretopk.threshold(x, k, **kw), stk.thretopk.threshold(wide, k, **kw).astype(dtype)
        )
        if curve is STUDENT2:
            phi = stk.thretopk.potential(wide, k, **kw)
            same(stk.thretopk.potential(x, k, **kw), phi.astype(dtype))


REFUSED = {
    "not monotone": (
        lambda t: tanh_cdf(t) - 0.5 * math.exp(-((t - 2) ** 2)),
        tanh_pdf,
        None,
        "cdf decreases",
    ),
    "falls": (lambda t: tanh_cdf(-t), tanh_pdf, None, "cdf decreases: .* expected a CDF"),
    "above 1": (lambda t: 0.1 + tanh_cdf(t), tanh_pdf, None, r"cdf\(.*\) is 1\.\d+; .*at most 1"),
    "below 0": (lambda t: tanh_cdf(t) - 0.1, tanh_pdf, None, r"cdf\(.*\) is -0\.\d+; .*at least 0"),
    "not 0 at -inf": (
        lambda t: 0.05 + 0.95 * tanh_cdf(t),
        tanh_pdf,
        None,
        r"cdf\(-1e\+30\) is 0\.05",
    ),
    "not 1 at inf": (lambda t: 0.95 * tanh_cdf(t), tanh_pdf, None, r"cdf\(1e\+30\) is 0\.95"),
    "a number only near 0": (
        lambda t: math.exp(t) / (1 + math.exp(t)),
        lambda t: tanh_pdf(t / 2) / 2,
        None,
        r"cdf\(1000\.0\) is nan",
    ),
    "pdf below 0": (
        tanh_cdf,
        lambda t: -tanh_pdf(t),
        None,
        r"pdf\(.*\) is -.*; expected at least 0",
    ),
    "pdf NaN": (tanh_cdf, lambda t: tanh_pdf(t) + 0 * math.sinh(t), None, r"pdf\(.*\) is nan"),
    "pdf twice the slope": (
        lambda t: tanh_cdf(1000 * t),
        lambda t: 2000 * tanh_pdf(1000 * t),
        None,
        r"pdf\(.*\) is .*; expected about .*, the slope of cdf",
    ),
    "pdf 0": (tanh_cdf, lambda t: 0.0, None, r"pdf\(.*\) is 0\.0; expected about"),
    "integral not one": (
        student2_cdf,
        student2_pdf,
        lambda t: 2 * student2_integral(t),
        "the slope of integral",
    ),
    "integral of another constant": (
        student2_cdf,
        student2_pdf,
        lambda t: student2_integral(t) + 0.01,
        r"integral\(-32\.0\) is .*; expected about 0\.0156",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_no_curve_is_refused(fault):
    """Wrong input: said when the curve is made, with the function, the place and the value."""
    cdf, pdf, integral, message = REFUSED[fault]
    with pytest.raises(ValueError, match=message):
        stk.Curve(cdf, pdf, integral=integral)


def test_what_is_no_function_of_a_number_is_refused():
    for cdf in (lambda t: "0.5", lambda t: 0.5j, lambda t: None):
        with pytest.raises(TypeError, match=r"^cdf\(.*\) is .*; expected a real number"):
            stk.Curve(cdf, tanh_pdf)
    for functions in ({"cdf": 1, "pdf": tanh_pdf}, {"cdf": tanh_cdf, "pdf": None}):
        with pytest.raises(TypeError, match="expected a function of one number"):
            stk.Curve(**functions)


@pytest.mark.parametrize(
    ("cdf", "pdf"),
    [
        pytest.param(
            lambda t: 0.5 * (1 - t) ** -0.1 if t < 0 else 1 - 0.5 * (1 + t) ** -0.1,
            lambda t: 0.05 * (1 + abs(t)) ** -1.1,
            id="heavy tails",
        ),
        pytest.param(clip_cdf, lambda t: 1.0 if 0 <= t <= 1 else 0.0, id="kinks"),
        pytest.param(
            lambda t: math.sqrt(clip_cdf(t)),
            lambda t: 0.5 / math.sqrt(t) if 0 < t < 1 else math.inf if t == 0 else 0.0,
            id="infinite slope",
        ),
        pytest.param(lambda t: tanh_cdf(1e7 * t), lambda t: 1e7 * tanh_pdf(1e7 * t), id="steep"),
        pytest.param(
            lambda t: tanh_cdf(1e-7 * t), lambda t: 1e-7 * tanh_pdf(1e-7 * t), id="shallow"
        ),
        pytest.param(lambda t: tanh_cdf(t - 3e3), lambda t: tanh_pdf(t - 3e3), id="far away"),
        pytest.param(
            lambda t: math.exp(-math.exp(-t)), lambda t: math.exp(-t - math.exp(-t)), id="lopsided"
        ),
    ],
)
def test_unusual_curves_pass(cdf, pdf):
    assert repr(stk.Curve(cdf, pdf, name="mine")) == "Curve('mine')"


@pytest.mark.parametrize("curve", [CLIP, STUDENT2], ids=repr)
def test_any_temperature_and_ties(curve, rng):
    """Range: entries may lie so far away that the square of the distance is no number."""
    for tau in (1e-300, 1e-30, 1e-3, 1.0, 1e6, 1e300):
        for x in (rng.normal(size=40), np.round(rng.normal(size=40))):
            for k in (0.03, 7.5, 39.9):
                p = stk.thretopk(x, k, curve=curve, temperature=tau)
                assert p.sum() == pytest.approx(k, abs=1e-9)


def test_steps_that_lead_astray_are_followed_by_bisection():
    """Convergence: nothing is known of the corners of a user's curve; ties hold the steps up."""
    for n, k, tau in ((3, 1.5, 0.1), (4, 2.7, 0.1), (6, 4.7, 0.1), (401, 133.5, 0.01)):
        x = np.arange(n) % 2.0
        p = stk.thretopk(x, k, curve=CLIP, temperature=tau)
        np.testing.assert_allclose(p, stk.thretopk(x, k, curve="clip", temperature=tau), atol=1e-12)


def test_a_row_that_does_not_reach_its_k_raises():
    """No solution: a jump passes the grid, and the mass of equal entries jumps with it."""
    curve = stk.Curve(
        lambda t: 0.5 * clip_cdf(t + 1) if t < 0.123 else 1.0,
        lambda t: 0.5 if -1 < t < 0 else 0.0,
        name="with a jump",
    )
    x, k = np.zeros((3, 4)), np.array([1.0, 3.0, 2.0])
    message = r"curve 'with a jump' has no threshold at which row 1 has mass k = 3: .*ended at"
    for verb in (stk.thretopk, stk.thretopk.vjp, stk.thretopk.threshold):
        for dtype in (np.float32, np.float64):
            for method in ("newton", "bisect"):
                with pytest.raises(ValueError, match=message):
                    verb(x.astype(dtype), k, curve=curve, method=method)
    same(stk.thretopk(x[0], 1.0, curve=curve), np.full(4, 0.25))
    assert stk.thretopk([0.0, 9.0], 1.25, curve=curve).sum() == pytest.approx(1.25, abs=1e-12)


def test_potential_of_a_whole_row_has_the_mean_of_the_distribution():
    """Limit: where everything is selected F(t) - t is needed at infinity, not far out."""
    x = np.array([1.0, 2.0, 3.0, 4.0])
    for dtype in (np.float32, np.float64):
        for tau in (1.0, 1e-3, 1e3):
            kw = {"temperature": tau}
            heavy = stk.thretopk.potential(x.astype(dtype), 4, curve=STUDENT2, **kw)
            assert float(heavy) == pytest.approx(10.0, abs=1e-12 * tau)
            own = stk.thretopk.potential(x.astype(dtype), 4, curve=CLIP, **kw)
            assert float(own) == pytest.approx(
                10.0 - 2 * tau, rel=1e-7 if dtype == np.float32 else 1e-13
            )
    whole = stk.thretopk.potential(x, 4.0, curve=STUDENT2)
    nearly = stk.thretopk.potential(x, 4.0 - 1e-9, curve=STUDENT2)
    assert whole == pytest.approx(nearly, abs=1e-3)


def test_potential_of_a_distribution_without_a_mean():
    """thm-no-mean: with one heavy tail the potential has the gradient p, and no bound at its end.

    t/(1 + t) for t > 0: I_- = 0, so that the other end is as with a mean.
    """
    curve = stk.Curve(cauchy_cdf, cauchy_pdf, name="cauchy", integral=cauchy_integral)
    with pytest.raises(
        ValueError, match=r"'cauchy' has no potential: .* -inf diverges, .* no mean"
    ):
        stk.thretopk.potential([1.0, 2.0], 1, curve=curve)
    assert stk.thretopk([1.0, 2.0], 1, curve=curve).sum() == pytest.approx(1, abs=1e-12)
    upper = stk.Curve(
        lambda t: 0.0 if t < 0 else t / (1 + t),
        lambda t: 0.0 if t < 0 else (1 + t) ** -2,
        integral=lambda t: 0.0 if t < 0 else t - math.log(1 + t),
    )
    assert stk.thretopk.potential([1.0, 2.0], 2, curve=upper) == -np.inf
    assert stk.thretopk.potential([1.0, 2.0], 0, curve=upper) == 0
    x = np.array([1.0, 2.0, 0.2])
    p, h = stk.thretopk(x, 1.5, curve=upper), 1e-5
    up, down = (stk.thretopk.potential(x + s * h * np.eye(3), 1.5, curve=upper) for s in (1, -1))
    np.testing.assert_allclose((up - down) / (2 * h), p, atol=1e-8)
    nearly = [stk.thretopk.potential(x, 3 - gap, curve=upper) for gap in (1e-2, 1e-4, 1e-6)]
    assert nearly[0] > nearly[1] > nearly[2]
    # omega(q) = -q - log(1 - q): what one more digit of n - k costs.
    assert nearly[1] - nearly[2] == pytest.approx(3 * math.log(100), rel=0.05)
    far = [stk.thretopk.potential(np.append(x, v), 1.5, curve=upper) - v for v in (1e2, 1e4, 1e6)]
    assert far[0] > far[1] + 1
    assert far[1] > far[2] + 1


def test_a_curve_with_its_slope_has_second_derivatives(rng):
    def slope(t):
        return -2.0 * t * math.pi * cauchy_pdf(t) ** 2

    x, v, g = rng.normal(size=(3, 4, 9))
    own = stk.Curve(cauchy_cdf, cauchy_pdf, slope=slope)
    found = stk.thretopk.hvp(x, 2.5, v, g, curve=own, dk=0.5, dtemperature=-0.25)
    expected = stk.thretopk.hvp(x, 2.5, v, g, curve="cauchy", dk=0.5, dtemperature=-0.25)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_a_curve_without_its_slope_says_so():
    own = stk.Curve(cauchy_cdf, cauchy_pdf, name="mine")
    with pytest.raises(ValueError, match=r"curve 'mine' has no second derivative; .* slope="):
        stk.thretopk.hvp([1.0, 2.0], 1, [1.0, 0.0], [0.0, 1.0], curve=own)
    with pytest.raises(ValueError, match=r"slope\(.*\) is .*; expected about .* the slope of pdf"):
        stk.Curve(cauchy_cdf, cauchy_pdf, slope=lambda t: 0.0)
