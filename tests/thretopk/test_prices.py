"""ThreTopK with costs, sum c p = k: a test for each theorem of docs/math/prices.md, and the rules.

Rows are judged at the accuracy that is promised: with R = max |x|/temperature + k max |dp/dk|,
|p - exact| <= 1e-13 + 4 eps R and |sum c p - k| <= 1e-12 max(1, k) in float64, and 1e-6 in the
place of both constants in float32.
"""

import math

import numpy as np
import pytest
import reference
from operators import OF_EVERY_KIND, dtypes, same, slow_unless
from reference import mp, to_float64

import softtopk_nb as stk
from softtopk_nb._threads import pool

CURVES = {
    **{name: {"curve": name} for name in reference.CURVES},
    "entmax": {"curve": "entmax", "alpha": 1.5},
    "entmax-1.2": {"curve": "entmax", "alpha": 1.2},
}
every_curve = pytest.mark.parametrize("name", slow_unless(OF_EVERY_KIND, CURVES))
EPS = {np.float64: 2.0**-52, np.float32: 2.0**-23}
# Number of entries, decimal orders of the costs either way, offset, temperature, share of the sum.
ROWS = [
    (12, 0.3, 0.0, 0.1, 0.5),
    (9, 6.0, 0.0, 0.5, 0.6),
    (9, 6.0, 0.0, 1.0, 1e-3),
    (12, 0.01, 1e4, 0.01, 0.9),
    (7, 2.0, -10.0, 1.0, 1e-9),
]


def row(n, orders, offset, share, dtype=np.float64, seed=1):
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=n) + offset).astype(dtype)
    cost = (10.0 ** rng.uniform(-orders, orders, size=n)).astype(dtype)
    return x, cost, share * math.fsum(cost.astype(float))


def rows(rng, shape=(3, 40)):
    """Ordinary scores and costs, a third of whose sum may be spent."""
    x, cost = rng.normal(size=shape), rng.uniform(0.5, 3.0, size=shape)
    return x, cost, cost.sum(-1) / 3


@every_curve
@dtypes
@pytest.mark.parametrize("given", ROWS)
def test_sixty_digits(name, dtype, given):
    """thm-prices: p, the threshold and the potential."""
    n, orders, offset, tau, share = given
    options = CURVES[name]
    x, cost, k = row(n, orders, offset, share, dtype)
    exact = reference.priced(x, k, cost, temperature=tau, **options)
    common = {"cost": cost, "temperature": tau, **options}
    p = stk.thretopk(x, k, **common).astype(float)
    pdf, lam = reference.curve_of(**options).pdf, exact.threshold
    c, x = cost.astype(float), x.astype(float)
    t = [(mp.mpf(v) - lam * mp.mpf(each)) / mp.mpf(tau) for v, each in zip(x, c, strict=True)]
    w = to_float64(map(pdf, t))
    in_k = c * w / max(np.sum(c * c * w), 1e-300)
    r = np.abs(x).max() / tau + k * in_k.max()
    bound = (1e-13 if dtype is np.float64 else 1e-6) + 4 * EPS[dtype] * r
    np.testing.assert_allclose(p, to_float64(exact.p), rtol=0, atol=bound)
    sums = 1e-12 if dtype is np.float64 else 1e-6
    assert abs(math.fsum(p * c) - k) <= sums * max(1, k)
    if dtype is np.float64:
        found = stk.thretopk.threshold(x, k, **common)
        assert abs(found - lam) <= 1e-12 * (abs(lam) + tau / (c * w).max())
        phi = stk.thretopk.potential(x, k, **common)
        assert abs(phi - exact.potential) <= 1e-13 * (abs(x).sum() + n * tau + abs(k * lam))


@every_curve
def test_gradients_are_differences(name, rng):
    """thm-prices-derivatives: in x, k, the temperature and the costs; and of the potential."""
    options, tau, h = CURVES[name], 0.7, 1e-6
    x, cost, k = rows(rng)
    g, dx, dcost = rng.normal(size=(3, *x.shape))
    dk, dtau = rng.normal(size=(2, 3))
    p, vjp = stk.thretopk.vjp(x, k, cost=cost, temperature=tau, **options)
    found = vjp(g)
    moves = {"dk": dk, "dtemperature": dtau, "dcost": dcost}
    same_p, dp = stk.thretopk.jvp(x, k, dx, cost=cost, temperature=tau, **moves, **options)
    same(same_p, p)

    def at(s, verb=stk.thretopk):
        given = {"cost": cost + s * dcost, "temperature": tau + s * dtau}
        return verb(x + s * dx, k + s * dk, **given, **options)

    np.testing.assert_allclose(dp, (at(h) - at(-h)) / (2 * h), rtol=0, atol=2e-7)
    along = [(found.x, dx), (found.k, dk), (found.temperature, dtau), (found.cost, dcost)]
    assert [np.shape(a) for a, _ in along[1::2]] == [(3,), x.shape]
    assert np.shape(found.temperature) == ()
    # The temperature is one for all rows: its gradient is the sum over them.
    rowwise = stk.thretopk.vjp(x, k, cost=cost, temperature=np.full(3, tau), **options)[1](g)
    total = sum(np.sum(np.asarray(a) * b) for a, b in along if a is not found.temperature)
    assert rowwise.temperature.sum() == pytest.approx(found.temperature, rel=1e-12)
    assert total + rowwise.temperature @ dtau == pytest.approx(np.sum(g * dp), rel=1e-10)
    potential = stk.thretopk.potential
    lam = stk.thretopk.threshold(x, k, cost=cost, temperature=tau, **options)
    dtau = np.zeros(3)  # its gradient in the temperature is not asked for
    expected = (p * dx).sum(-1) + lam * dk - lam * (p * dcost).sum(-1)
    np.testing.assert_allclose(
        (at(h, potential) - at(-h, potential)) / (2 * h), expected, rtol=0, atol=1e-7
    )


def test_gradients_have_the_shape_of_their_arguments(rng):
    """Also where costs are one for all, one an entry or one a row, along any axis."""
    x, g = rng.normal(size=(2, 4, 6, 5))
    for shape in ((), (5,), (6, 1), (4, 6, 5), (1, 1, 5), (4, 1, 1), (4, 6, 1)):
        cost = rng.uniform(1.0, 2.0, size=shape)
        whole = np.broadcast_to(cost, x.shape)
        for axis in (-1, 1):
            p, vjp = stk.thretopk.vjp(x, 2.0, cost=cost, axis=axis)
            expected, other = stk.thretopk.vjp(x, 2.0, cost=whole.copy(), axis=axis)
            same(p, expected)
            np.testing.assert_allclose((p * whole).sum(axis), 2.0, rtol=1e-14)
            found, full = vjp(g).cost, other(g).cost
            assert np.shape(found) == shape
            extra = x.ndim - len(shape)
            stretched = tuple(extra + i for i, n in enumerate(shape) if n == 1)
            summed = full.sum(axis=(*range(extra), *stretched)).reshape(shape)
            np.testing.assert_allclose(found, summed, rtol=1e-12, atol=1e-14)
    plain = stk.thretopk.vjp(x, 2.0)[1](g)
    assert plain.cost is None
    assert len(plain) == 3


@every_curve
@dtypes
def test_one_price_is_k_divided_by_it(name, dtype, rng):
    x, tolerance = rng.normal(size=(3, 50)).astype(dtype), 1e-13 if dtype is np.float64 else 1e-6
    options = {"temperature": 0.3, **CURVES[name]}
    for cost in (1.0, 3.0, 1e-30, 1e30):
        p = stk.thretopk(x, 7.0 * cost, cost=cost, **options)
        expected = stk.thretopk(x, 7.0, **options)
        np.testing.assert_allclose(p, expected, rtol=0, atol=20 * tolerance)
        lam = stk.thretopk.threshold(x, 7.0 * cost, cost=cost, **options)
        plain = stk.thretopk.threshold(x, 7.0, **options)
        np.testing.assert_allclose(lam * cost, plain, rtol=0, atol=40 * tolerance)


@dtypes
def test_other_units(dtype, rng):
    """Costs and k in another unit, and entries in another order, give the same p.

    A power of two gives the same bits. Scores that rise in proportion to the costs raise lambda.
    """
    x, cost, k = rows(rng)
    x, cost = x.astype(dtype), cost.astype(dtype)
    p, small = stk.thretopk(x, k, cost=cost), 1e-14 if dtype is np.float64 else 2e-6
    for unit in (2.0**40, 2.0**-40):
        same(stk.thretopk(x, k * unit, cost=cost * dtype(unit)), p)
    np.testing.assert_allclose(stk.thretopk(x, k * 3, cost=cost * dtype(3)), p, atol=small)
    order = rng.permutation(x.shape[1])
    moved = stk.thretopk(x[:, order], k, cost=cost[:, order])
    np.testing.assert_allclose(moved, p[:, order], rtol=0, atol=small)
    twice = stk.thretopk(np.tile(x, 2), 2 * k, cost=np.tile(cost, 2))
    np.testing.assert_allclose(twice, np.tile(p, 2), rtol=0, atol=small)
    if dtype is np.float64:
        raised = stk.thretopk(x + 100 * cost, k, cost=cost)
        np.testing.assert_allclose(raised, p, rtol=0, atol=1e-12)
        lam = stk.thretopk.threshold(x + 100 * cost, k, cost=cost)
        np.testing.assert_allclose(lam, stk.thretopk.threshold(x, k, cost=cost) + 100, rtol=1e-13)


@every_curve
def test_limit_is_the_fractional_knapsack(name, rng):
    """Theorem thm-knapsack: p tends to the optimum, and <x, p> to its value at the rate given.

    An entry may be split into two of half the value and half the cost: the value stays.
    """
    x, cost = rng.uniform(0.5, 2.0, size=12), rng.uniform(0.5, 3.0, size=12)
    k, tau = cost.sum() / 2.7, 1e-7
    greedy = reference.knapsack(x, k, cost)
    assert ((greedy > 0) & (greedy < 1)).sum() == 1
    options = CURVES[name]
    p = stk.thretopk(x, k, cost=cost, temperature=tau, **options)
    np.testing.assert_allclose(p, greedy, rtol=0, atol=1e-5)
    halves = np.repeat(x / 2, 2), np.repeat(cost / 2, 2)
    split = stk.thretopk(halves[0], k, cost=halves[1], temperature=tau, **options)
    assert split @ halves[0] == pytest.approx(greedy @ x, abs=1e-5)
    lam = stk.thretopk.threshold(x, k, cost=cost, temperature=tau, **options)
    (last,) = np.flatnonzero((greedy > 0) & (greedy < 1))
    assert lam == pytest.approx(x[last] / cost[last], abs=1e-5)
    omega = reference.curve_of(**options).omega
    for tau in (1.0, 0.1, 0.01):
        p = stk.thretopk(x, k, cost=cost, temperature=tau, **options)
        lost = greedy @ x - p @ x
        assert -1e-13 <= lost <= tau * (omega(greedy) - omega(p)).sum() + 1e-13


# Rows that are not ordinary


@dtypes
def test_edges_are_exact(dtype, rng):
    """k = 0 gives zeros, and the sum of the costs, however it was added up, ones."""
    for n in (1, 7, 3000):
        x = rng.normal(size=(2, n)).astype(dtype)
        cost = rng.uniform(0.1, 3.0, size=n).astype(dtype)
        same(stk.thretopk(x, 0, cost=cost), np.zeros_like(x))
        for total in (cost.sum(), math.fsum(cost.astype(float)), np.cumsum(cost[::-1])[-1]):
            if dtype is np.float64 or total is not np.cumsum(cost[::-1])[-1]:
                same(stk.thretopk(x, float(total), cost=cost), np.ones_like(x))
        assert (stk.thretopk.threshold(x, 0, cost=cost) == np.inf).all()
        assert (stk.thretopk.threshold(x, float(cost.sum()), cost=cost) == -np.inf).all()
    x, whole = rng.normal(size=6).astype(dtype), {"cost": [1.0, 2, 3, 4, 5, 6]}
    assert stk.thretopk.potential(x, 21, **whole) == pytest.approx(x.sum(), rel=1e-5)
    assert stk.thretopk.potential(x, 0, **whole) == 0.0
    gradients = stk.thretopk.vjp(x, 21, **whole)[1](x)
    assert not any(np.any(each) for each in gradients)
    empty = np.empty((2, 0), dtype)
    same(stk.thretopk(empty, 0, cost=1.0), empty)
    same(stk.thretopk(np.empty((0, 4), dtype), 1, cost=1.0), np.empty((0, 4), dtype))


@dtypes
def test_infinities_and_nan(dtype, rng):
    x = rng.normal(size=(5, 9)).astype(dtype)
    cost = rng.uniform(0.5, 2.0, size=9).astype(dtype)
    x[0, 2], x[1, [3, 5]], x[2, 4], x[3, :7] = np.nan, -np.inf, np.inf, np.inf
    k, g = 0.5 * float(cost[:7].sum()), rng.normal(size=x.shape).astype(dtype)
    p, vjp = stk.thretopk.vjp(x, k, cost=cost, temperature=0.4)
    found = vjp(g)
    assert np.isnan(p[0]).all()
    assert np.isnan(found.x[0]).all()
    common = {"temperature": 0.4}
    for i, there in ((1, np.isfinite(x[1])), (2, np.isfinite(x[2]))):
        left = k - (float(cost[4]) if i == 2 else 0.0)
        alone, other = stk.thretopk.vjp(x[i, there], left, cost=cost[there], **common)
        same(p[i, there], alone)
        expected = other(g[i, there])
        np.testing.assert_allclose(found.x[i, there], expected.x, rtol=1e-5)
        each = stk.thretopk.vjp(x[i], k, cost=cost, **common)[1](g[i])
        np.testing.assert_allclose(each.cost[there], expected.cost, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(each.cost[~there], -each.k if i == 2 else 0.0, rtol=1e-6)
    same(p[1, [3, 5]], np.zeros(2, dtype))
    assert p[2, 4] == 1
    np.testing.assert_allclose(p[3, :7], 0.5, rtol=1e-6)  # they share k
    same(p[3, 7:], np.zeros(2, dtype))
    moved = np.zeros_like(x)
    moved[2, 4] = 1.0
    _, dp = stk.thretopk.jvp(x, k, moved, cost=cost, dcost=moved, **common)
    expected = stk.thretopk.jvp(x[2], k, np.zeros(9), cost=cost, dk=-1.0, **common)[1]
    np.testing.assert_allclose(dp[2], expected, rtol=1e-5, atol=1e-7)
    lam = stk.thretopk.threshold(x, k, cost=cost, **common)
    assert np.isnan(lam[0])
    assert np.isfinite(lam[[1, 2, 4]]).all()
    assert lam[3] == np.inf
    phi = stk.thretopk.potential(x, k, cost=cost, **common)
    assert np.isnan(phi[0])
    assert (phi[2:4] == np.inf).all()


@dtypes
def test_where_is_as_if_removed(dtype, rng):
    x, cost, _ = rows(rng, (2, 30))
    x, cost = x.astype(dtype), cost.astype(dtype)
    there = rng.random((2, 30)) < 0.7
    x[~there] = np.nan
    p = stk.thretopk(x, 5.0, cost=cost, where=there)
    for i in range(2):
        same(p[i, there[i]], stk.thretopk(x[i, there[i]], 5.0, cost=cost[i, there[i]]))
    same(p[~there], np.zeros((~there).sum(), dtype))
    few = {"cost": cost, "where": np.arange(30) < 3}
    assert np.isnan(stk.thretopk(x, 9.5, **few)).all()
    x[:] = rng.normal(size=x.shape)
    clamped, vjp = stk.thretopk.vjp(x, 1e6, clamp_k=True, **few)
    same(clamped, np.broadcast_to(few["where"], x.shape).astype(dtype))
    assert vjp(x).k == 0
    same(stk.thretopk(x, 1.0, clamp_k=True, **few), stk.thretopk(x, 1.0, **few))


@dtypes
def test_forms_of_arguments(dtype, rng):
    """Layouts, axes, the smallest, `out`, other types and kept axes: the same bits."""
    x, cost, k = rows(rng, (4, 12))
    x, cost = x.astype(dtype), cost.astype(dtype)
    p = stk.thretopk(x, k, cost=cost)
    same(stk.thretopk(x.T, k, cost=cost.T, axis=0), p.T)
    same(stk.thretopk(-x, k, cost=cost, largest=False), p)
    same(
        stk.thretopk.threshold(-x, k, cost=cost, largest=False),
        -stk.thretopk.threshold(x, k, cost=cost),
    )
    smallest = stk.thretopk.vjp(-x, k, cost=cost, largest=False)[1](x)
    largest = stk.thretopk.vjp(x, k, cost=cost)[1](x)
    same(smallest.x, -largest.x)
    same(smallest.cost, largest.cost)
    same(stk.thretopk(x, k[:, None], cost=cost), p)
    same(stk.thretopk(np.asfortranarray(x), k, cost=np.repeat(cost, 2, 1)[:, ::2]), p)
    whole = np.stack([stk.thretopk(x[i], k[i], cost=cost[i]) for i in range(4)])
    same(whole, p)
    with pool.one_thread():
        same(stk.thretopk(x, k, cost=cost), p)
    assert stk.thretopk(x.astype(np.float16), 2, cost=cost[0]).dtype == np.float16
    same(stk.thretopk(x.astype(int), 2, cost=[1] * 12), stk.thretopk(x.astype(int), 2.0, cost=1))
    for shared in (np.empty_like(x), x.copy(), cost.copy()):
        scores, price = (shared if np.array_equal(shared, each) else each for each in (x, cost))
        found, vjp = stk.thretopk.vjp(scores, k, cost=price, out=shared)
        assert found is shared
        same(found, p)
        same(vjp(x).cost, largest.cost)
    scaled = stk.thretopk(x * dtype(2.0**-90), k, cost=cost, temperature=2.0**-90)
    same(scaled, p)


def test_own_curve_has_costs(rng):
    own = stk.Curve(
        lambda t: 1 / (1 + math.exp(-t)),
        lambda t: math.exp(-abs(t)) / (1 + math.exp(-abs(t))) ** 2,
        name="own",
    )
    x, cost, k = rows(rng)
    for dtype in (np.float64, np.float32):
        given = x.astype(dtype), k
        p = stk.thretopk(*given, cost=cost, curve=own, temperature=0.2)
        expected = stk.thretopk(*given, cost=cost, curve="sigmoid", temperature=0.2)
        np.testing.assert_allclose(p, expected, atol=1e-13 if dtype is np.float64 else 2e-6)
    jump = stk.Curve(lambda t: 0.5 + 0.5 * t / (1 + abs(t)), lambda t: 0.5 / (1 + abs(t)) ** 2)
    p, vjp = stk.thretopk.vjp(x, k, cost=cost, curve=jump)
    np.testing.assert_allclose((p * cost).sum(-1), k, rtol=1e-13)
    assert vjp(x).cost.shape == x.shape


@pytest.mark.parametrize("method", ["auto", "newton", "bisect"])
def test_methods_agree(method, rng):
    x, cost, k = rows(rng)
    p = stk.thretopk(x, k, cost=cost, method=method, temperature=0.1)
    np.testing.assert_allclose(p, stk.thretopk(x, k, cost=cost, temperature=0.1), atol=1e-12)


@dtypes
@pytest.mark.parametrize("name", ["laplace", "clip"])
def test_hard_rows_end(name, dtype, rng):
    """Equal entries, extreme spreads of scores and costs, and temperatures that resolve nothing."""
    n = 64
    x = np.stack([np.full(n, 3.0), rng.standard_cauchy(n) * 1e6, np.sign(rng.normal(size=n)) * 1e9])
    cost = np.stack([np.full(n, 2.0), 10.0 ** rng.uniform(-6, 6, n), 10.0 ** rng.uniform(-2, 2, n)])
    x, cost = x.astype(dtype), cost.astype(dtype)
    k = cost.sum(-1, dtype=float) * [0.3, 0.5, 0.01]
    for tau in (1e-12, 1.0, 1e12):  # abs(x)/tau up to 1e21, as the page says
        p = stk.thretopk(x, k, cost=cost, temperature=tau, curve=name)
        assert ((p >= 0) & (p <= 1)).all()
        spent = (p.astype(float) * cost).sum(-1)
        np.testing.assert_allclose(spent, k, rtol=1e-12 if dtype is np.float64 else 2e-6)


@dtypes
@pytest.mark.parametrize("curve", ["laplace", "clip"])
def test_subnormal_costs(curve, dtype, rng):
    """Costs and a budget that are the least numbers of the type times integers."""
    least, x, g = float(np.finfo(dtype).smallest_subnormal), rng.normal(size=9), rng.normal(size=9)
    cost = rng.integers(1, 9, size=9)
    given = {"curve": curve, "temperature": 0.5}
    expected, pull = stk.thretopk.vjp(x.astype(dtype), 12.0, cost=cost.astype(dtype), **given)
    with np.errstate(all="raise"):
        p, pull_small = stk.thretopk.vjp(
            x.astype(dtype), 12 * least, cost=(cost * least).astype(dtype), **given
        )
        found = pull_small(g)
    eps = 16 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(p, expected, rtol=0, atol=eps)
    np.testing.assert_allclose(found.x, pull(g).x, rtol=0, atol=eps)
    assert found.temperature == pytest.approx(pull(g).temperature, abs=eps)
    assert not np.isnan(found.cost).any()
    single = stk.thretopk([3.0, 2.0, 1.0], 1.5e-310, cost=[1e-310] * 3)
    np.testing.assert_allclose(single, stk.thretopk([3.0, 2.0, 1.0], 1.5), rtol=1e-12)
