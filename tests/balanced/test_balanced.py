"""balancedtopk: 60 digits, its theorems, symmetries, derivatives, and edges."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import softtopk_nb as stk
from softtopk_nb.balanced import solve as search

#: Curves of each kind: with kinks, smooth, saturating, of heavy tails, with a parameter.
CURVES = {
    "laplace": {"curve": "laplace"},
    "sigmoid": {"curve": "sigmoid"},
    "exp": {"curve": "exp"},
    "clip": {"curve": "clip"},
    "normal": {"curve": "normal"},
    "cauchy": {"curve": "cauchy"},
    "entmax": {"curve": "entmax", "alpha": 1.5},
}
SYMMETRIC = "laplace", "sigmoid", "normal", "cauchy"
LARGE_OFFSETS = [(kind, bound) for kind in ("common", "rows") for bound in (False, True)]
LARGE_OFFSETS += [("columns", False), ("both", False)]
every_curve = pytest.mark.parametrize("options", CURVES.values(), ids=CURVES)
some_curves = pytest.mark.parametrize("options", [CURVES["laplace"], CURVES["clip"]])


def problem(rng, m=12, n=4, skew=1.0):
    """x, k and loads that some matrix within (0, 1) has."""
    x = rng.normal(size=(m, n)) + skew * rng.normal(size=n)
    p = rng.uniform(0.05, 0.95, size=(m, n))
    assert np.unique(x).size == x.size
    return x, p.sum(axis=1), p.sum(axis=0)


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


def assert_balanced(found, k, load, tol=1e-10):
    """The sums of rows as those of `thretopk`, of columns to tol."""
    assert np.all(abs(found.p.sum(axis=-1) - k) <= 1e-12 * np.maximum(1, k))
    assert np.all(abs(found.p.sum(axis=-2) - load) <= tol * np.maximum(1, load))
    assert found.p.min() >= 0
    assert found.p.max() <= 1


# --------------------------------------------------------------------------------------- accuracy


@every_curve
@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize("at_most", [False, True])
def test_value_to_60_digits(options, temperature, at_most, rng):
    """thm-balanced: the thresholds that the dual gives, and p."""
    x, k, load = problem(rng, 5, 3)
    load = load * rng.uniform(1.0, 1.3, 3) if at_most else load
    kept = {**options, "temperature": temperature, "at_most": at_most}
    p, a, b = stk.balancedtopk(x, k, load, tol=1e-14, **kept)
    expected = reference.balancedtopk(x, k, load, **kept)
    assert_close(p, [[float(v) for v in row] for row in expected.p], 1e-12)
    reach = np.ptp(x) / temperature
    assert_close(b, reference.to_float64(expected.columns), 1e-12 * reach)
    assert_close(a, reference.to_float64(expected.rows), 1e-12 * reach)
    assert p.std() > 0.1


@every_curve
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
def test_sums(options, temperature, rng):
    """Rows as thretopk's, which they are; columns to tol."""
    x, k, load = problem(rng, 150, 6)
    found = stk.balancedtopk(x, k, load, temperature=temperature, **options)
    assert_balanced(found, k, load)
    assert abs(found.columns.mean()) <= 1e-12 * np.ptp(x)
    rows = stk.thretopk(x - found.columns, k, temperature=temperature, **options)
    assert_close(found.p, rows, 1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_float32(temperature, rng):
    x = (rng.normal(size=(5000, 16)) + rng.normal(size=16)).astype(np.float32)
    p, a, b = stk.balancedtopk(x, 2, temperature=temperature)
    assert p.dtype == a.dtype == b.dtype == np.float32
    wide = stk.balancedtopk(x.astype(np.float64), 2, temperature=temperature)
    assert_close(p, wide.p, 1e-5)
    load, reach = 5000 * 2 / 16, np.ptp(x) / temperature
    limit = (1e-6 + 4 * np.finfo(np.float32).eps * reach) * load
    assert_close(p.sum(axis=0, dtype=np.float64), load, limit)
    assert_close(p.sum(axis=1, dtype=np.float64), 2, 2e-6)


def test_float16_and_integers(rng):
    x = rng.integers(-3, 4, size=(9, 4))
    wide = stk.balancedtopk(x, 2)
    assert wide.p.dtype == np.float64
    half = stk.balancedtopk(x.astype(np.float16), 2)
    assert half.p.dtype == half.columns.dtype == np.float16
    assert_close(half.p, wide.p, 1e-3)


def test_a_curve_of_ones_own(rng):
    curve = stk.Curve(
        lambda t: 0.5 + 0.5 * t / (2 + t * t) ** 0.5, lambda t: (2 + t * t) ** -1.5, name="student"
    )
    x, k, load = problem(rng)
    found = stk.balancedtopk(x, k, load, curve=curve, temperature=0.3)
    assert_balanced(found, k, load)
    check_derivatives(rng, x, k, load, {"curve": curve, "temperature": 0.3})


@pytest.mark.parametrize("alpha", [1.01, 3.0])
def test_entmax_of_other_exponents(alpha, rng):
    x, k, load = problem(rng, 40, 5)
    found = stk.balancedtopk(x, k, load, curve="entmax", alpha=alpha, temperature=0.5)
    assert_balanced(found, k, load)
    short = stk.balancedtopk(x.astype(np.float32), k, load, curve="entmax", alpha=alpha, tol=1e-5)
    assert short.p.dtype == np.float32


@pytest.mark.parametrize("temperature", [1e-200, 1e-8, 1e8, 1e200])
def test_extreme_temperatures(temperature, rng):
    x, k, load = problem(rng)
    found = stk.balancedtopk(x * temperature, k, load, temperature=temperature)
    same = stk.balancedtopk(x, k, load)
    assert_close(found.p, same.p, 1e-9)
    assert_close(found.columns / temperature, same.columns, 1e-8)


@pytest.mark.parametrize("at_most", [False, True])
@pytest.mark.parametrize(
    ("T", "size", "temperature"),
    [(np.float64, 1.0, 1e-300), (np.float64, 1.7e308, 1.0), (np.float32, 3.4e38, 1.0)],
    ids=str,
)
def test_scores_many_temperatures_apart(T, size, temperature, at_most, rng):
    """thm-balanced-limit at the ends of the range: the transportation problem, and no warning."""
    x = rng.normal(size=(12, 4)) + rng.normal(size=4)
    x /= abs(x).max()
    given = {"temperature": temperature, "at_most": at_most}
    for curve in ("laplace", "clip"):
        p = stk.balancedtopk((x * size).astype(T), 2, 6.0, curve=curve, **given).p
        np.testing.assert_array_equal(p, transport(x, np.full(12, 2.0), np.full(4, 6.0), at_most))
    # Ties this far apart need thresholds between numbers of the type: an error, not other sums.
    ties = (np.sign(rng.normal(size=(12, 4))) * size).astype(T)
    with pytest.raises(stk.ConvergenceError):
        stk.balancedtopk(ties, 1, **given)


@pytest.mark.parametrize("at_most", [False, True])
def test_a_subnormal_k(at_most, rng):
    """Its loads are not checked against it: they were not given."""
    found = stk.balancedtopk(rng.normal(size=(7, 3)), 5e-324, at_most=at_most)
    assert 0 <= found.p.min() <= found.p.max() < 1e-100


# ------------------------------------------------------------------------------------- symmetries


@every_curve
def test_loads_of_thretopk_need_no_thresholds(options, rng):
    """prop-balanced-thretopk: then p is thretopk's, and columns are 0 where p is unique in them."""
    x = rng.normal(size=(30, 5))
    p = stk.thretopk(x, 2, **options)
    found = stk.balancedtopk(x, 2, p.sum(axis=0), tol=1e-13, **options)
    assert_close(found.p, p, 1e-11)
    assert_close(found.columns, 0, 1e-10)
    assert_close(found.rows, stk.thretopk.threshold(x, 2, **options), 1e-10)


@every_curve
def test_transposition(options, rng):
    """prop-balanced-symmetries: rows and columns may exchange their parts."""
    x, k, load = problem(rng, 9, 6)
    found = stk.balancedtopk(x, k, load, tol=1e-13, **options)
    other = stk.balancedtopk(x.T, load, k, tol=1e-13, **options)
    assert_close(other.p.T, found.p, 1e-11)
    swapped = stk.balancedtopk(x, load, k, axis=(1, 0), tol=1e-13, **options)
    np.testing.assert_array_equal(swapped.p, other.p.T)


@some_curves
@pytest.mark.parametrize("at_most", [False, True])
def test_permutation_and_shifts(options, at_most, rng):
    """prop-balanced-symmetries: order and numbers added to rows do not matter; to columns neither
    where the load is met.
    """
    x, k, load = problem(rng)
    load = 1.1 * load if at_most else load
    kept = {**options, "at_most": at_most, "tol": 1e-13}
    found = stk.balancedtopk(x, k, load, **kept)
    i, j = rng.permutation(12), rng.permutation(4)
    other = stk.balancedtopk(x[i][:, j], k[i], load[j], **kept)
    assert_close(other.p, found.p[i][:, j], 1e-11)
    rows, columns = rng.normal(size=(12, 1)) * 1e3, rng.normal(size=4) * 1e3
    columns -= columns.mean()
    columns = np.zeros(4) if at_most else columns
    moved = stk.balancedtopk(x + rows + columns, k, load, **kept)
    assert_close(moved.p, found.p, 1e-9)
    assert_close(moved.columns, found.columns + columns, 1e-9)


@pytest.mark.parametrize(("kind", "at_most"), LARGE_OFFSETS)
@pytest.mark.parametrize(
    ("T", "size", "grid"), [(np.float32, 1e6, 0.25), (np.float64, 1e12, 2.0**-10)], ids=str
)
def test_large_offsets(T, size, grid, kind, at_most, rng):
    """prop-balanced-symmetries: offsets that are exact in the type of the scores change nothing."""
    m, n = 40, 5
    x, rows, columns = rng.normal(size=(m, n)), np.zeros((m, 1)), np.zeros(n)
    x = (x / grid).round() * grid
    if kind != "columns":
        rows[:] = size if kind == "common" else rng.uniform(-size, size, (m, 1)).round()
    if kind in ("columns", "both"):
        columns = rng.uniform(-size, size, n).round()
    shifted, g = (x + rows + columns).astype(T), rng.normal(size=(m, n))
    np.testing.assert_array_equal(shifted.astype(np.float64) - rows - columns, x)
    where = rng.random((m, n)) < 0.8
    where[:, 0] = True
    bound = 1e-5 if T is np.float32 else 1e-8
    for curve, mask, k in (("laplace", None, 2.0), ("clip", None, 1.9), ("laplace", where, 0.9)):
        load = k * m / n * (1.05 if at_most else 1.0)
        given = {"curve": curve, "at_most": at_most, "where": mask, "temperature": 0.5}
        expected, vjp = stk.balancedtopk.vjp(x, k, load, tol=1e-13, **given)
        found, pull = stk.balancedtopk.vjp(shifted, k, load, **given)
        assert_close(found.p, expected.p, bound)
        assert_close(found.rows, expected.rows + rows[:, 0] + columns.mean(), 1e-6 * size)
        assert_close(found.columns, expected.columns + columns - columns.mean(), 1e-6 * size)
        for one, other in zip(pull(g), vjp(g), strict=True):
            assert_close(one, other, 10 * bound * max(1.0, abs(other).max()))


@pytest.mark.parametrize("curve", SYMMETRIC)
def test_complement(curve, rng):
    """prop-balanced-symmetries: what is left, where f(-t) = 1 - f(t)."""
    x, k, load = problem(rng)
    found = stk.balancedtopk(x, k, load, curve=curve, tol=1e-13)
    rest = stk.balancedtopk(-x, 4 - k, 12 - load, curve=curve, tol=1e-13)
    assert_close(rest.p, 1 - found.p, 1e-11)
    assert_close(rest.columns, -found.columns, 1e-10)


def test_scores_and_temperature_in_other_units(rng):
    x, k, load = problem(rng)
    found = stk.balancedtopk(x, k, load, temperature=0.5)
    other = stk.balancedtopk(8 * x, k, load, temperature=4.0)
    assert_close(other.p, found.p, 1e-12)
    assert_close(other.columns, 8 * found.columns, 1e-10)


# ----------------------------------------------------------------------------------------- limits


@some_curves
@pytest.mark.parametrize("at_most", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_many_rows(options, at_most, temperature, rng, monkeypatch):
    """They begin at the solution of a sample, with its matrix, and end where all rows do."""
    x, k, load = problem(rng, 4 * search.SAMPLE + 5, 6)
    load = load * rng.uniform(1.0, 1.2, 6) if at_most else load
    kept = {**options, "temperature": temperature, "at_most": at_most, "tol": 1e-12}
    counts, chord = [], search._Search.chord

    def counted(*arguments):
        counts.append(1)
        return chord(*arguments)

    monkeypatch.setattr(search._Search, "chord", counted)
    found = stk.balancedtopk(x, k, load, **kept)
    assert len(counts) >= 2
    monkeypatch.setattr(search, "SAMPLE", len(x))
    whole = stk.balancedtopk(x, k, load, **kept)
    assert_close(found.p, whole.p, 1e-9)
    assert_close(found.columns, whole.columns, 1e-9)
    if not at_most:
        assert_balanced(found, k, load, 1e-12)


def transport(x, k, load, at_most=False):
    """The transportation problem with entries in [0, 1] and row sums k."""
    m, n = x.shape
    rows, columns = np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))
    if at_most:
        found = linprog(-x.ravel(), A_ub=columns, b_ub=load, A_eq=rows, b_eq=k, bounds=(0, 1))
    else:
        sums = np.vstack([rows, columns])
        found = linprog(-x.ravel(), A_eq=sums, b_eq=np.r_[k, load], bounds=(0, 1))
    assert found.status == 0
    return found.x.reshape(m, n)


@every_curve
@pytest.mark.parametrize("at_most", [False, True])
def test_tends_to_the_transportation_problem(options, at_most, rng):
    """thm-balanced-limit: the hard top-k with these loads, where that is unique."""
    x = rng.normal(size=(12, 4)) + 2 * rng.normal(size=4)
    load = np.array([8.0, 8.0, 7.0, 6.0]) if at_most else 6.0
    best = transport(x, np.full(12, 2.0), np.broadcast_to(load, 4), at_most)
    assert_close(best, best.round(), 1e-9)
    distance = []
    for temperature in (1.0, 0.1, 0.01):
        kept = {**options, "temperature": temperature, "at_most": at_most, "tol": 1e-8}
        p = stk.balancedtopk(x, 2, load, **kept).p
        assert np.sum(p * x) <= np.sum(best * x) + 1e-6
        distance.append(np.sum((best - p) * x))
    assert distance[0] > distance[1] > distance[2] - 1e-9
    assert distance[2] < max(0.1, distance[1] / 5)  # heavy tails fall with the temperature
    alone = stk.thretopk(x, 2, temperature=0.01).sum(axis=0)
    assert np.ptp(alone) > 4


@every_curve
def test_is_optimal(options, rng):
    """thm-balanced: no matrix with these sums has a larger regularised value."""
    x, k, load = problem(rng, 6, 4)
    curve, alpha = options["curve"], options.get("alpha")
    omega = reference.curve_of(curve, alpha).omega
    p = stk.balancedtopk(x, k, load, tol=1e-13, **options).p
    for _ in range(20):
        q = stk.balancedtopk(rng.normal(size=x.shape), k, load, **options).p
        best, other = (np.sum(each * x) - np.sum(omega(each)) for each in (p, q))
        assert best > other
        assert abs(q - p).max() > 1e-2


@every_curve
def test_upper_bounds(options, rng):
    """thm-balanced-bounds: b >= 0, and 0 where a column stays below its bound."""
    x, k, load = problem(rng, 40, 6, skew=2.0)
    load *= rng.uniform(1.0, 1.2, 6)
    p, _, b = stk.balancedtopk(x, k, load, temperature=0.3, at_most=True, tol=1e-12, **options)
    sums = p.sum(axis=0)
    assert_close(p.sum(axis=1), k, 1e-11)
    assert np.all(sums <= load * (1 + 1e-11))
    assert b.min() == 0
    assert_close(np.where(b > 0, sums - load, 0), 0, 1e-10)
    assert 0 < np.count_nonzero(b) < 6
    rows = stk.thretopk(x - b, k, temperature=0.3, **options)
    assert_close(p, rows, 1e-12)
    for bound in (len(x), np.inf, [len(x) + 0.5, np.inf, *6 * [1e300]][: len(load)]):
        loose, vjp = stk.balancedtopk.vjp(x, k, bound, at_most=True, **options)
        np.testing.assert_array_equal(loose.p, stk.thretopk(x, k, **options))
        np.testing.assert_array_equal(loose.columns, 0)
        np.testing.assert_array_equal(vjp(x).load, 0)


def test_bounds_that_are_all_used_up(rng):
    """Then they are loads, and the lowest threshold is 0."""
    x, k, load = problem(rng)
    load *= k.sum() / load.sum()
    met = stk.balancedtopk(x, k, load, tol=1e-12)
    bound = stk.balancedtopk(x, k, load * (1 + 1e-15), at_most=True, tol=1e-12)
    assert_close(bound.p, met.p, 1e-9)
    assert_close(bound.columns, met.columns - met.columns.min(), 1e-8)


# ------------------------------------------------------------------------------------ derivatives


def check_derivatives(rng, x, k, load, options, rtol=1e-6):
    """jvp against a central difference along everything, and vjp as its transpose."""
    m, n = x.shape
    met = load is not None and not options.get("at_most")
    dx, dk, dtau = rng.normal(size=(m, n)), 0.1 * rng.normal(size=m), 0.1
    dload = None if load is None else 0.1 * rng.normal(size=n)
    tau, h = options["temperature"], 1e-5
    options = {name: value for name, value in options.items() if name != "temperature"}

    def moved(s):
        budget = None if load is None else load + s * dload
        if met:
            budget = budget * ((k + s * dk).sum() / budget.sum())
        kept = {**options, "temperature": tau + s * dtau, "tol": 1e-14}
        return stk.balancedtopk(x + s * dx, k + s * dk, budget, **kept).p

    directions = {"dk": dk, "dload": dload, "dtemperature": dtau}
    found, dp = stk.balancedtopk.jvp(
        x, k, dx, load, temperature=tau, tol=1e-13, **directions, **options
    )
    slope = (moved(h) - moved(-h)) / (2 * h)
    scale = abs(slope).max()
    assert scale > 1e-2
    assert_close(dp, slope, rtol * scale)
    g = rng.normal(size=(m, n))
    other, vjp = stk.balancedtopk.vjp(x, k, load, temperature=tau, tol=1e-13, **options)
    np.testing.assert_array_equal(other.p, found.p)
    gradients = vjp(g)
    along = np.sum(gradients.x * dx) + np.sum(gradients.k * dk) + gradients.temperature * dtau
    if load is not None:
        along += np.sum(gradients.load * dload)
        if met:
            assert abs(gradients.load @ load) <= 1e-10 * abs(gradients.load).max() * load.sum()
    else:
        assert gradients.load is None
    assert abs(along - np.sum(g * dp)) <= 1e-10 * np.sum(abs(g * dp))


@every_curve
@pytest.mark.parametrize("at_most", [False, True])
def test_derivatives(options, at_most, rng):
    """thm-balanced-derivative."""
    x, k, load = problem(rng, 9, 5)
    load *= k.sum() / load.sum()
    load = load * rng.uniform(1.05, 1.3, 5) if at_most else load
    check_derivatives(rng, x, k, load, {**options, "temperature": 0.7, "at_most": at_most})


@pytest.mark.parametrize("at_most", [False, True])
def test_derivatives_without_loads(at_most, rng):
    """The loads move with k, also where an infinity takes a part of one."""
    x, k, _ = problem(rng, 9, 5)
    k = np.full(9, 1.5) + 0.1 * rng.normal(size=9)
    given = {"temperature": 0.7, "at_most": at_most}
    check_derivatives(rng, x, k, None, given)
    x[2, 1] = np.inf
    check_derivatives(rng, x, k, None, given)
    jvp = functools.partial(stk.balancedtopk.jvp, x, k, np.zeros_like(x))
    with pytest.raises(TypeError, match="dload was given, but no load"):
        jvp(dload=1.0)


def test_gradients_have_the_shapes_of_their_arguments(rng):
    x = rng.normal(size=(3, 7, 4)).astype(np.float32)
    tau = np.full((3,), 0.5)
    found, vjp = stk.balancedtopk.vjp(x, 2, np.full(4, 3.5), temperature=tau)
    gradients = vjp(x)
    assert gradients.x.shape == x.shape
    assert gradients.x.dtype == np.float32
    assert np.shape(gradients.k) == ()
    assert gradients.load.shape == (4,)
    assert gradients.temperature.shape == (3,)
    one, pullback = stk.balancedtopk.vjp(x[1], 2, np.full(4, 3.5), temperature=0.5)
    np.testing.assert_array_equal(found.p[1], one.p)
    np.testing.assert_array_equal(pullback(x[1]).x, gradients.x[1])
    assert np.count_nonzero(gradients.x) > 50


@pytest.mark.parametrize("at_most", [False, True])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e300])
def test_a_cotangent_or_direction_that_is_not_finite(bad, at_most, rng):
    """In x's type: it gives NaN for its matrix, without an error or a warning, and for no other."""
    x, load = rng.normal(size=(2, 6, 4)).astype(np.float32), np.array([2.0, 2, 1, 1])
    given = {"at_most": at_most, "tol": 1e-4}
    g = rng.normal(size=x.shape)
    found, vjp = stk.balancedtopk.vjp(x, np.ones((2, 6)), np.stack([load, load]), **given)
    good = vjp(g)
    g[0, 2, 1] = bad
    gradients = vjp(g)
    assert np.isfinite(found.p).all()
    assert np.isnan(gradients.x[0]).all()
    assert np.isnan(gradients.k[0]).all()
    for each, expected in zip(gradients[:3], good[:3], strict=True):
        np.testing.assert_array_equal(each[1], expected[1])
    jvp = functools.partial(stk.balancedtopk.jvp, x, 1.0)
    still, moved = np.zeros_like(x), np.array([bad, 0.5])
    _, dp = jvp(g, load, **given)
    assert np.isnan(dp[0]).all()
    assert np.isfinite(dp[1]).all()
    for name, axes in (("dk", 1), ("dload", 1), ("dtemperature", 0)):
        _, dp = jvp(still, load, **{name: moved[(slice(None), *[None] * axes)]}, **given)
        assert not np.isfinite(dp[0]).all()
        assert np.isfinite(dp[1]).all()


# ------------------------------------------------------------------------------- shapes and edges


def test_axes(rng):
    x = rng.normal(size=(4, 2, 9))
    k, load = np.full(9, 2.0), np.full(4, 4.5)
    found = stk.balancedtopk(x, k, load, axis=(2, 0))
    assert found.p.shape == x.shape
    assert found.rows.shape == (2, 9)
    assert found.columns.shape == (2, 4)
    for i in range(2):
        one = stk.balancedtopk(x[:, i].T, k, load)
        np.testing.assert_array_equal(found.p[:, i], one.p.T)
    g = rng.normal(size=x.shape)
    gx = stk.balancedtopk.vjp(x, k, load, axis=(2, 0))[1](g).x
    one = stk.balancedtopk.vjp(x[:, 1].T, k, load)[1](g[:, 1].T).x
    np.testing.assert_array_equal(gx[:, 1], one.T)


def test_empty_batch():
    found = stk.balancedtopk(np.empty((0, 3, 2)), 1)
    assert found.p.shape == (0, 3, 2)
    assert found.rows.shape == (0, 3)


def test_masked_entries_are_as_if_they_were_not_there(rng):
    x, _, _ = problem(rng, 10, 5)
    where = rng.uniform(size=x.shape) < 0.7
    p = np.where(where, rng.uniform(0.1, 0.9, size=x.shape), 0)
    k, load = p.sum(axis=1), p.sum(axis=0)
    x[~where] = rng.choice([np.nan, np.inf, 1e300, 0.0], size=np.count_nonzero(~where))
    found, vjp = stk.balancedtopk.vjp(x, k, load, where=where)
    assert_balanced(found, k, load)
    np.testing.assert_array_equal(found.p[~where], 0)
    gradients = vjp(np.where(where, 1.0 + p, np.nan))
    np.testing.assert_array_equal(gradients.x[~where], 0)
    assert np.isfinite(gradients.x).all()
    lowered = np.where(where, x, -np.inf)
    np.testing.assert_array_equal(stk.balancedtopk(lowered, k, load).p, found.p)
    # A row and a column that are masked whole.
    more = np.pad(np.where(where, x, 0.0), ((0, 1), (1, 0)), constant_values=7.0)
    there = np.pad(where, ((0, 1), (1, 0)))
    wide = stk.balancedtopk(more, np.r_[k, 0], np.r_[0, load], where=there)
    np.testing.assert_array_equal(wide.p[:-1, 1:], found.p)
    np.testing.assert_array_equal(wide.rows[-1], np.inf)
    np.testing.assert_array_equal(wide.columns[0], np.inf)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", [2, np.int8(2), np.float32(2.5)], ids=repr)
def test_clamp_k_takes_what_rows_have(k, dtype, rng):
    """As the k that each row has room for, with the derivative 0 in a k that is not taken."""
    x = (7.0 + rng.normal(size=(2, 9, 4))).astype(dtype)
    where = np.ones(x.shape, bool)
    where[0, 7:], where[1, 2, 1:], x[1, 4], x[0, 1, 1] = False, False, -np.inf, -np.inf
    where[0, 0], x[0, 0] = False, np.nan
    room = (where & (x != -np.inf)).sum(axis=2)
    taken = np.minimum(room, k)
    load = np.array([1.0, 1.0, 1.0, 1.2]) * taken.sum(axis=1, keepdims=True) / 4
    options = {"at_most": True, "temperature": 0.3, "where": where}
    found, pull = stk.balancedtopk.vjp(x, k, load, clamp_k=True, **options)
    expected, same = stk.balancedtopk.vjp(x, taken, load, **options)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(found.p.sum(axis=2), taken, rtol=1e-5)
    g = rng.normal(size=x.shape)
    full = stk.balancedtopk.vjp(x, np.full((2, 9), k), load, clamp_k=True, **options)[1](g)
    np.testing.assert_array_equal(full.x, same(g).x)
    assert pull(g).x.shape == x.shape
    assert not full.k[taken < k].any()
    assert full.k[taken == k].all()
    direction = rng.normal(size=(2, 9))
    _, dp = stk.balancedtopk.jvp(x, k, 0.0, load, dk=direction, clamp_k=True, **options)
    np.testing.assert_allclose((g * dp).sum(), (full.k * direction).sum(), rtol=1e-4)
    equal = stk.balancedtopk(x[0], k, where=where[0], at_most=False, clamp_k=True)
    np.testing.assert_allclose(equal.p.sum(axis=0), taken[0].sum() / 4, rtol=1e-5)
    bad = np.where(np.arange(9)[:, None] == 3, np.nan, x[1])
    both = stk.balancedtopk(np.stack([x[1], bad]), k, load[1], clamp_k=True, **options)
    assert np.isnan(both.p[1]).all()
    assert np.isfinite(both.p[0]).all()


@some_curves
def test_edges_are_exact(options, rng):
    """k and loads of 0 and of all there is, and what they leave to the others."""
    x = rng.normal(size=(6, 4))
    k = np.array([0.0, 4.0, 2.0, 1.0, 1.5, 2.5])
    load = np.array([1.0, 6 - 1.0, 2.5, 2.5])
    found, vjp = stk.balancedtopk.vjp(x, k, load, **options)
    np.testing.assert_array_equal(found.p[0], 0)
    np.testing.assert_array_equal(found.p[1], 1)
    # The first column is used up by the second row, the second one needs all the others.
    np.testing.assert_array_equal(found.p[:, 0], [0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(found.p[:, 1], [0, 1, 1, 1, 1, 1])
    assert found.rows[0] == np.inf
    assert found.rows[1] == -np.inf
    assert found.columns[0] == np.inf
    assert found.columns[1] == -np.inf
    assert_balanced(found, k, load)
    gradients = vjp(rng.normal(size=x.shape))
    np.testing.assert_array_equal(gradients.x[:, :2], 0)
    assert np.count_nonzero(gradients.x[2:, 2:]) > 0 or options["curve"] == "clip"
    for each in (0, 4):
        np.testing.assert_array_equal(stk.balancedtopk(x, each).p, each / 4)


def test_nothing_harms_another_matrix(rng):
    """NaN makes its matrix NaN; +inf is 1 and uses up one of both budgets."""
    x, k, load = problem(rng)
    good = stk.balancedtopk(x, k, load)
    bad = x.copy()
    bad[3, 2] = np.nan
    high = x.copy()
    high[4, 1] = np.inf
    k[4] += 1
    load[1] += 1
    low = x.copy()
    low[5] = -np.inf
    found, vjp = stk.balancedtopk.vjp(np.stack([bad, x, high, low]), k, load)
    for part in (0, 3):
        assert np.isnan(found.p[part]).all()
        assert np.isnan(found.rows[part]).all()
        assert np.isnan(found.columns[part]).all()
    k[4] -= 1
    load[1] -= 1
    rest = stk.balancedtopk(x, k, load, where=np.isfinite(high))
    assert found.p[2, 4, 1] == 1
    mask = np.isfinite(high)
    assert_close(found.p[2][mask], rest.p[mask], 1e-10)
    gradients = vjp(np.ones((4, 12, 4)) * x)
    assert np.isnan(gradients.x[[0, 3]]).all()
    assert gradients.x[2, 4, 1] == 0
    assert np.isfinite(gradients.x[1:3]).all()
    assert good.p.std() > 0.1


def test_a_matrix_has_the_same_bits_in_any_batch(rng):
    x = rng.normal(size=(3, 20, 5))
    found = stk.balancedtopk(x, 2, temperature=0.2)
    for i in range(3):
        np.testing.assert_array_equal(stk.balancedtopk(x[i], 2, temperature=0.2).p, found.p[i])


@settings(max_examples=60)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_any_shape(m, n, seed, at_most):
    """thm-balanced-feasible: sums, range and form for random budgets, with ties."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, size=(m, n)).astype(float)
    p = rng.uniform(size=(m, n)).round(1)
    k, load = p.sum(axis=1), p.sum(axis=0)
    found = stk.balancedtopk(x, k, load, temperature=0.5, at_most=at_most, tol=1e-8)
    assert_close(found.p.sum(axis=1), k, 1e-7)
    assert np.all(found.p.sum(axis=0) <= load + 1e-6)
    if not at_most:
        assert_close(found.p.sum(axis=0), load, 1e-6)
    assert found.p.min(initial=0) >= 0
    assert found.p.max(initial=0) <= 1


def test_is_an_object_like_a_ufunc():
    assert pickle.loads(pickle.dumps(stk.balancedtopk)) is stk.balancedtopk
    assert repr(stk.balancedtopk) == "<function balancedtopk of softtopk_nb>"


@every_curve
def test_steps(options, rng):
    """thm-balanced-convergence: a few steps where alternating rows and columns is far off."""
    x, k, load = problem(rng, 60, 8, skew=2.0)
    kept = {**options, "temperature": 0.1}
    found = stk.balancedtopk(x, k, load, max_iter=12, tol=1e-12, **kept)
    assert_balanced(found, k, load, 1e-11)
    b = np.zeros(8)
    for _ in range(12):
        a = stk.thretopk.threshold(x - b, k, **kept)
        b = stk.thretopk.threshold((x - a[:, None]).T, load, **kept)
    alternating = stk.thretopk(x - b, k, **kept).sum(axis=0)
    assert abs(alternating - load).max() > 1e-6
