"""itertopk and wsoftmaxtopk: a test for each statement of docs/math/iterative.md."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import to_float64

import softtopk_nb as stk
from softtopk_nb.iterative.cpu import long, rows
from softtopk_nb.iterative.cpu.steps import FADED

OPERATORS = {"itertopk": stk.itertopk, "wsoftmaxtopk": stk.wsoftmaxtopk}
EPS = 2.0**-52

both = pytest.mark.parametrize("name", OPERATORS)


# -------------------------------------------------------------- the definitions, written plainly


def softmax(y):
    e = np.exp(y - y.max())
    return e / e.sum()


def share(name, p, z):
    """What one step adds to p."""
    if name == "itertopk":
        return softmax((1 - p) * (z - z.min()))
    u = (1 - p) * np.exp(z - z.max())
    return u / u.sum()


def states(name, x, k, tau=1.0):
    """p before every step, and at the end."""
    result = [np.zeros(len(x))]
    for _ in range(k):
        result.append(result[-1] + share(name, result[-1], x / tau))
    return result


def reverse_loop(name, x, k, g, tau):
    """Gradients in x and tau of <g, p> by going back over all k stored states."""
    z, lowest = x / tau, np.argmin(x)
    y, gz, adj = z - z[lowest], np.zeros(len(x)), g.copy()
    for p in states(name, x, k, tau)[-2::-1]:
        s = share(name, p, z)
        b = adj - s @ adj
        if name == "itertopk":
            gy = s * b
            gz += (1 - p) * gy
            gz[lowest] -= ((1 - p) * gy).sum()
            adj = adj - y * gy
        else:
            e = np.exp(z - z.max())
            gz += s * b
            adj = adj - e / ((1 - p) @ e) * b
    return gz / tau, -(gz @ z) / tau


def exact(name, x, k, tau=1.0):
    return to_float64(getattr(reference, name)(x, k, temperature=tau).p)


@st.composite
def problems(draw):
    """(x, k, tau): short rows, some with ties, k up to n, spreads of 0.01 to 1000 temperatures."""
    n = draw(st.integers(1, 12))
    x = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=n)
    if draw(st.booleans()):
        x = np.round(x)
    return x, draw(st.integers(0, n)), 10.0 ** draw(st.floats(-2, 2))


def test_generated_rows_vary():
    seen = []

    @settings(max_examples=100)
    @given(problems())
    def collect(problem):
        seen.append(problem)

    collect()
    assert len({len(x) for x, _, _ in seen}) > 8
    assert len({k for _, k, _ in seen}) > 8
    assert any(len(set(x)) < len(x) for x, _, _ in seen)
    assert min(tau for *_, tau in seen) < 0.1 < 10 < max(tau for *_, tau in seen)


# ---------------------------------------------------------------------------------- what holds


@both
@pytest.mark.parametrize("n", [2, 7, 100, 70_001])
def test_value_is_the_loop(name, n, rng):
    x = rng.normal(size=(3, n))
    for k in (1, 2, min(n, 6)):
        p = OPERATORS[name](x, k, temperature=1.3)
        expected = [states(name, row, k, 1.3)[-1] for row in x]
        np.testing.assert_allclose(p, expected, rtol=0, atol=1e-12)
    assert np.ptp(x) > 1


@both
def test_sum_and_sign(name):
    """Theorem thm-iter-sum: p sums to k; itertopk is never negative, wsoftmaxtopk not to k = 2."""

    @settings(max_examples=300)
    @given(problems())
    def check(problem):
        x, k, tau = problem
        p = OPERATORS[name](x, k, temperature=tau)
        assert abs(math.fsum(p) - k) <= 1e-12 * max(1, k, np.abs(p).max())
        if name == "itertopk" or k <= 2:
            assert (p >= 0).all()
        if name == "wsoftmaxtopk" and k <= 2:
            assert (np.diff(p[np.argsort(x)]) >= -1e-13).all()

    check()


@both
def test_shifts_and_permutations(name, rng):
    """Theorem thm-iter-invariance, and softmax at k = 1."""
    x = rng.integers(-(2**20), 2**20, size=(40, 9)) / 2.0**18  # the shifted row is exact
    order = rng.permutation(9)
    op = OPERATORS[name]
    for k in (1, 3, 9):
        p = op(x, k)
        np.testing.assert_array_equal(op(x + 1024.0, k), p)
        size = np.maximum(1, np.abs(p).max(axis=1, keepdims=True))
        assert (np.abs(op(x[:, order], k) - p[:, order]) <= 1e-11 * size**2).all()
        np.testing.assert_allclose(
            op(2.5 * x, k, temperature=2.5), p, rtol=0, atol=1e-11 * size.max() ** 2
        )
    np.testing.assert_allclose(op(x, 1), [softmax(row) for row in x], rtol=0, atol=1e-15)
    assert np.ptp(x) > 4


def test_hard_limit(rng):
    """Theorem thm-iter-limit: itertopk hardens if k < n and the k + 1 largest are distinct."""
    x = rng.permuted(np.tile(np.arange(8.0), (20, 1)), axis=1)
    x[:, :] += 0.3 * rng.random(x.shape)
    for k in range(1, 8):
        errors = [
            np.abs(stk.itertopk(x, k, temperature=tau) - stk.hardtopk(x, k)).max()
            for tau in (0.1, 0.02, 0.005)
        ]
        assert errors[-1] < 1e-12
        assert errors[0] > errors[1] >= errors[2]
    # A tie above the gap: both halves are multiplied by 1/2, and the next entry overtakes.
    p = stk.itertopk([5.0, 5.0, 4.0, 0.0], 2, temperature=0.01)
    np.testing.assert_allclose(p, [0.5, 0.5, 1, 0], atol=1e-12)


def test_errors_grow_by_a_factor(rng):
    """Proposition prop-iter-error: a step of itertopk magnifies errors of p by at most 1 + R/2."""
    worst = []
    for _ in range(300):
        z = rng.normal(size=6) * 10 ** rng.uniform(-1, 1.5)
        p, d = rng.random(6), rng.normal(size=6)
        d = 1e-6 * (d - d.mean())
        after = d + share("itertopk", p + d, z) - share("itertopk", p, z)
        growth = np.abs(after).sum() / np.abs(d).sum()
        worst.append(growth / (1 + np.ptp(z) / 2))
    assert max(worst) <= 1 + 1e-3
    # Two entries of equal scores far above a third, half of the error each: 1 - 4/(2 + R).
    z, d = np.array([200.0, 200.0, 0.0]), 1e-6 * np.array([0.5, -0.5, 0.0])
    after = d + share("itertopk", d, z) - share("itertopk", 0 * d, z)
    assert 0.97 < np.abs(after).sum() / np.abs(d).sum() / (1 + 100) < 1


@pytest.mark.parametrize("gap", [0.5, 5.0, 39.0, 41.0, 42.0, 43.0, 50.0, 300.0, 1e4])
def test_an_old_maximum_serves(gap):
    """Proposition prop-iter-maximum, on both sides of where it no longer does."""
    x = gap * np.array([3.0, 0.0, 2.0, 5.0, 1.0, 4.0])
    g = np.array([0.3, -1.0, 0.7, 0.2, -0.4, 0.9])
    for k in (2, 3, 5):
        p, pullback = stk.itertopk.vjp(x, k)
        expected = to_float64(reference.itertopk(x, k).p)
        assert np.abs(p - expected).max() < 1e-12 * (1 + gap)
        _, dp = stk.itertopk.jvp(x, k, g)
        # Both derivatives run the steps anew, the pullback from several p on its way back.
        assert np.dot(g, dp) == pytest.approx(np.dot(pullback(g).x, g), rel=1e-9, abs=1e-12)


def test_scores_never_rise(rng):
    """Proposition prop-iter-maximum: of the rounded numbers; and the worst sum, of equal terms."""
    x = rng.normal(size=(50, 9)) * rng.choice([0.1, 3.0, 100.0], size=(50, 1))
    z, p = x - x.min(axis=1, keepdims=True), np.zeros_like(x)
    scores = z
    for _ in range(8):
        p = p + softmax_rows(scores)
        assert ((1 - p) * z <= scores).all()
        scores = (1 - p) * z
    least = 2.0**-60
    assert least == FADED
    for n in (2, 7, 1000):
        terms = np.full(n, least / n)
        assert 0.99 < math.exp(-708.0) / terms.max() / (2.0**60 * n * math.exp(-708.0)) <= 1


def softmax_rows(y):
    e = np.exp(y - y.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@both
def test_exact_to_rounding(name):
    """Proposition prop-iter-maxima: maxima far ahead, tied or not, cost no digits."""
    rows = [
        ([1.0, 1.0, 0.0], 3),
        ([1.0, 1.0, 0.0, -0.5], 3),
        ([0.0, 1.0, -2.0, 1.0, 0.5, 1.0], 5),
        ([3.0, 1.0, 0.5, 0.0, -1.0], 4),
    ]
    for x, k in rows:
        for tau in (1.0, 0.1, 0.02, 0.005):
            p = OPERATORS[name](x, k, temperature=tau)
            np.testing.assert_allclose(
                p, exact(name, x, k, tau), rtol=0, atol=1e-13 + 4 * EPS * np.ptp(x) / tau
            )


def test_maxima_out_of_sight():
    """Proposition prop-iter-maxima: where e^-gap underflows, p is at its limit."""
    for gap in (450.0, 700.0, 1e4, 1e300):
        p = stk.wsoftmaxtopk([0.0, 0.0, -gap], 3)
        np.testing.assert_allclose(p, [1.3, 1.3, 0.4], rtol=0, atol=1e-12)
        p = stk.wsoftmaxtopk([0.0, -gap, -gap - 1.0], 2)
        low = softmax(np.array([0.0, -1.0])) / 2
        np.testing.assert_allclose(p, [1.5, *low], rtol=0, atol=1e-12 + 4 * EPS * gap)


# ------------------------------------------------------------------------------ what does not


def random_rows():
    """20000 rows of 2 to 11 entries, N(0, s^2), log10 s uniform on [-1, 2]; k from 1 to n."""
    rng = np.random.default_rng(2024)
    n = rng.integers(2, 12, size=20_000)
    k = rng.integers(1, n + 1)
    x = rng.normal(size=(20_000, 11)) * 10 ** rng.uniform(-1, 2, size=(20_000, 1))
    return np.where(np.arange(11) < n[:, None], x, -np.inf), k


def test_range_fails():
    """Proposition prop-iter-range: (1, 0) at k = 2, and nearly half of random rows."""
    np.testing.assert_allclose(stk.itertopk([1.0, 0.0], 2), [1.2979, 0.7021], atol=5e-5)
    e = math.e
    a = e / (1 + e)  # the first step; the second is the sigmoid of 1 - a
    assert stk.itertopk([1.0, 0.0], 2)[0] == pytest.approx(a + 1 / (1 + math.exp(a - 1)))
    x, k = random_rows()
    outside = (stk.itertopk(x, k) > 1 + 1e-9).any(axis=1)
    assert 0.46 < outside.mean() < 0.49
    assert not outside[k == 1].any()


def test_the_second_largest_can_win():
    """Proposition prop-iter-monotone: (0, 0, 5, 6) at k = 2, and a quarter of random rows."""
    p = stk.itertopk([0.0, 0.0, 5.0, 6.0], 2)
    np.testing.assert_allclose(p, [0.0236, 0.0236, 1.1135, 0.8394], atol=5e-5)
    x, k = random_rows()
    p = stk.itertopk(x, k)
    order = np.argsort(x, axis=1)
    steps = np.diff(np.take_along_axis(p, order, axis=1), axis=1)
    present = np.isfinite(np.take_along_axis(x, order, axis=1))[:, :-1]
    broken = ((steps < -1e-9) & present).any(axis=1)
    assert 0.26 < broken.mean() < 0.28
    assert not broken[k == 1].any()


def test_no_limit_at_k_equal_n():
    """Proposition prop-iter-convergence: the last step at k = n is a uniform one."""
    p = stk.itertopk(100 * np.array([3.0, 2.0, 1.0, 4.0]), 4)
    np.testing.assert_allclose(p, [1.25, 1.25, 0.25, 1.25], atol=1e-12)
    x = np.arange(6.0)
    limit = np.full(6, 1 + 1 / 6)
    limit[0] = 1 / 6
    np.testing.assert_allclose(stk.itertopk(x, 6, temperature=1e-3), limit, atol=1e-12)


def test_weighted_iteration_has_the_wrong_limit():
    """Proposition prop-iter-weighted: 1.5 and 0.5, then k - 1/2, order and sign lost from k = 3."""
    x = np.array([3.0, 2.0, 1.0, 4.0])
    for tau in (0.02, 1e-3, 1e-300):
        p = stk.wsoftmaxtopk(x, 2, temperature=tau)
        np.testing.assert_allclose(p, [0.5, 0, 0, 1.5], atol=1e-12)
        for k in (3, 4):
            p = stk.wsoftmaxtopk(x, k, temperature=tau)
            np.testing.assert_allclose(p, [0.5, 0, 0, k - 0.5], atol=1e-12)
    p = stk.wsoftmaxtopk([2.0, 1.0, 0.0], 3)
    np.testing.assert_allclose(p, [0.1116, 1.7879, 1.1005], atol=5e-5)
    p = stk.wsoftmaxtopk([3.0, 2.0, 0.0], 3)
    np.testing.assert_allclose(p, [7.1808, -2.8582, -1.3226], atol=5e-5)


def jacobian(name, x, k):
    n = len(x)
    return OPERATORS[name].jvp(np.broadcast_to(x, (n, n)), k, np.eye(n))[1].T


@both
def test_jacobian_is_not_symmetric(name):
    """Proposition prop-iter-asymmetric: p is the gradient of nothing; at k = 1 it is softmax."""
    x = np.array([2.0, 1.0, 0.0])
    J = jacobian(name, x, 3)
    assert np.abs(J - J.T).max() > 0.05
    np.testing.assert_allclose(J.sum(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(J.sum(axis=1), 0, atol=1e-14)
    J = jacobian(name, x, 1)
    s = softmax(x)
    np.testing.assert_allclose(J, np.diag(s) - np.outer(s, s), atol=1e-15)


def test_weighted_pairs_are_softmax_and_half_gradtopk(rng):
    """Identity id-iter-pairs: wsoftmaxtopk at k = 2."""
    x = rng.normal(size=(50, 9))
    for tau in (0.05, 1.0):
        s = np.array([softmax(row / tau) for row in x])
        pairs = stk.wsoftmaxtopk(x, 2, temperature=tau)
        # GradTopK: of all pairs i != j, weighted by e^(x_i + x_j), those that hold i.
        z = (x - x.max(axis=1, keepdims=True)) / tau
        weight = np.exp(z[:, :, None] + z[:, None, :]) * (1 - np.eye(9))
        gradtopk = 2 * weight.sum(axis=2) / weight.sum(axis=(1, 2))[:, None]
        np.testing.assert_allclose(pairs, s + gradtopk / 2, rtol=0, atol=1e-12)
    assert np.abs(s - gradtopk / 2).max() > 0.1
    J = jacobian("wsoftmaxtopk", x[0], 2)
    np.testing.assert_allclose(J, J.T, rtol=0, atol=1e-15)
    J = jacobian("itertopk", x[0], 2)
    assert np.abs(J - J.T).max() > 0.01


def test_zero_crossing_stays_in_its_row():
    """Where sum(w e^z) crosses 0, p is huge of both signs: in that row, and with the right sum."""
    z = np.array([2.0, 1.0, 0.0])
    lo, hi = 0.0, 1.0  # of z[1]: the sum before the third step changes sign

    def total(middle):
        z[1] = middle
        return ((1 - states("wsoftmaxtopk", z, 2)[-1]) * np.exp(z)).sum()

    assert total(lo) * total(hi) < 0
    for _ in range(40):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if total(middle) * total(lo) > 0 else (lo, middle)
    z[1] = lo
    calm = np.array([1.0, 0.5, 0.0])
    p = stk.wsoftmaxtopk([z, calm], 3)
    assert np.abs(p[0]).max() > 1e9
    assert p[0].min() < 0
    assert abs(p[0].sum() - 3) < 8 * EPS * np.abs(p[0]).max()
    np.testing.assert_array_equal(p[1], stk.wsoftmaxtopk(calm, 3))


# -------------------------------------------------------------------------------- derivatives


@both
def test_derivatives_are_those_of_the_loop(name, rng):
    """Theorem thm-iter-derivatives, in x and in the temperature, against 60 digits."""
    for x, k, tau in [
        (rng.normal(size=5), 2, 0.1),
        (rng.normal(size=6), 6, 0.7),
        (np.array([1.0, 1.0, 0.0, -0.5]), 3, 0.03),
        (np.array([1.0, 0.0, -1.0]), 2, 0.004),
    ]:
        v, dtau = rng.normal(size=len(x)), 0.3
        _, dp = OPERATORS[name].jvp(x, k, v, dtemperature=dtau, temperature=tau)
        expected = to_float64(getattr(reference, f"{name}_jvp")(x, k, v, tau, dtau))
        scale = max(1.0, np.abs(expected).max())
        tolerance = (1e-11 + 16 * EPS * np.ptp(x) / tau) * scale
        np.testing.assert_allclose(dp, expected, rtol=0, atol=tolerance)
        assert np.abs(expected).max() > 1e-6 or tau < 0.1
        g = rng.normal(size=len(x))
        gradients = OPERATORS[name].vjp(x, k, temperature=tau)[1](g)
        left, right = g @ dp, gradients.x @ v + gradients.temperature * dtau
        assert left == pytest.approx(right, abs=100 * tolerance * (1 + np.abs(v).max() / tau))


def test_equal_minima_share_the_derivative(rng):
    """The slope of itertopk at a kink of min x is the mean of those on both sides."""
    x = np.array([0.0, 1.5, 0.0, 0.7])
    v, h = rng.normal(size=4), 1e-6
    _, dp = stk.itertopk.jvp(x, 2, v)
    slope = (stk.itertopk(x + h * v, 2) - stk.itertopk(x - h * v, 2)) / (2 * h)
    np.testing.assert_allclose(dp, slope, atol=1e-6)
    assert abs(v[0] - v[2]) > 0.01


@both
@pytest.mark.parametrize("k", [1, 2, 3, 10, 37, 100])
def test_vjp_is_the_reverse_loop(name, k, rng):
    """Proposition prop-iter-checkpoint: checkpoints change the memory, not the gradient."""
    x, g = rng.normal(size=(2, 4, 150))
    gradients = OPERATORS[name].vjp(x, k, temperature=np.full(4, 0.8))[1](g)
    for i in range(4):
        gx, gtau = reverse_loop(name, x[i], k, g[i], 0.8)
        scale = max(1.0, np.abs(gx).max())
        np.testing.assert_allclose(gradients.x[i], gx, rtol=0, atol=1e-10 * scale)
        assert gradients.temperature[i] == pytest.approx(gtau, abs=1e-9 * scale)
    assert np.ptp(gradients.x) > 0.01


@pytest.mark.parametrize("k", [1, 10, 100, 1000])
def test_vjp_takes_the_memory_of_the_square_root_of_k(k, monkeypatch):
    """Proposition prop-iter-checkpoint: 3m + 8 rows of memory."""
    n, taken = 5000, []

    def empty(shape):
        taken.append(np.empty(shape))
        return taken[-1]

    counted = SimpleNamespace(empty=empty, empty_like=lambda like: empty(like.shape))
    monkeypatch.setattr(rows, "np", counted)
    monkeypatch.setattr(rows, "borrowed", lambda given: given)
    monkeypatch.setattr(rows, "vjp_row", lambda *given: 0.0)
    x, one = np.empty((1, n)), np.ones(1)
    rows.vjp.py_func(0, 1, x, np.array([k]), one, None, x, np.empty_like(x), np.empty(1))
    found = sum(each.size for each in taken) / n
    assert 0.97 < found / (3 * math.ceil(math.sqrt(k)) + 8) < 1.03


@both
def test_rows_of_one_batch_take_different_numbers_of_steps(name, rng):
    x, g = rng.normal(size=(2, 6, 30))
    k = np.array([0, 1, 30, 4, 9, 17])
    gradients = OPERATORS[name].vjp(x, k)[1](g)
    for i in range(6):
        one = OPERATORS[name].vjp(x[i], k[i])[1](g[i])
        np.testing.assert_array_equal(gradients.x[i], one.x)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_take_long_have_the_same_bits(name, dtype, monkeypatch, rng):
    """Ctrl-C: signals are handled between calls of kernels, each on few steps of such a row."""
    n, at_once = 300, 700
    x, v = rng.normal(size=(2, 8, n)).astype(dtype)
    x[1:6, :3] = [[-np.inf] * 3, [np.inf] * 3, [np.nan] * 3, [0] * 3, [9] * 3]
    k = np.array([7, 11, 13, 9, n, 3, 1, 0])
    dtau = np.linspace(-1, 1, 8)

    def answers():
        p, dp = OPERATORS[name].jvp(x, k, v, dtemperature=dtau, temperature=0.3)
        gradients = OPERATORS[name].vjp(x, k, temperature=0.3)[1](v)
        return p, dp, gradients.x, gradients.temperature

    def noted(kernel):
        def call(kind, *args):
            first, last = [a for a in args if isinstance(a, int)][-3:-1]
            steps.append(last - first)
            return kernel(kind, *args)

        return call

    expected, steps = answers(), []
    monkeypatch.setattr(long, "AT_ONCE", at_once)
    for step in ("_iterate", "_move", "_retrace", "_go_back"):
        monkeypatch.setattr(long, step, noted(getattr(long, step)))
    for found, whole in zip(answers(), expected, strict=True):
        np.testing.assert_array_equal(found, whole)
    assert set(steps) == {1, 2}


@both
def test_overflow_is_held(name, rng):
    """Spreads up to the largest float: p is finite with the right sum, derivatives are not NaN."""
    seen = set()
    for trial in range(200):
        dtype = (np.float32, np.float64)[trial % 2]
        big, tiny = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
        choices = [-big, big, 0.0, tiny, -tiny, 1.0, 2.0, -1.0, big / 2, rng.normal()]
        x = rng.choice(choices, size=rng.integers(2, 7)).astype(dtype)
        k = int(rng.integers(1, len(x) + 1))
        tau = float(rng.choice([1e-320, 1e-300, 1e-30, 1.0, 1e30, 1e300, 1.7e308]))
        v = rng.normal(size=len(x))
        p, dp = OPERATORS[name].jvp(x, k, v, dtemperature=1.0, temperature=tau)
        assert np.isfinite(p).all()
        assert p.sum(dtype=float) == pytest.approx(k, abs=1e-5)
        assert not np.isnan(dp).any()
        gradients = OPERATORS[name].vjp(x, k, temperature=tau)[1](v)
        assert not np.isnan(gradients.x).any()
        assert not np.isnan(gradients.temperature)
        seen.add((k, tau))
    assert len(seen) > 30


@both
def test_float32_is_float64_rounded(name, rng):
    x = rng.normal(size=(5, 20)).astype(np.float32)
    p = OPERATORS[name](x, 7, temperature=0.5)
    wide = OPERATORS[name](x.astype(np.float64), 7, temperature=0.5)
    np.testing.assert_array_equal(p, wide.astype(np.float32))


@pytest.mark.parametrize("k", [1.0, 1.5, True, None])
@both
def test_k_is_an_integer(name, k):
    with pytest.raises(TypeError, match=r"^k is "):
        OPERATORS[name]([1.0, 2.0, 3.0], k)
