"""What the source gets wrong: one test for each proposition of docs/math/source.md.

The source's algorithms are written here again from its formulas. Each test shows such an algorithm
or such a statement failing, and the package being right on the same rows.
"""

import itertools
import math

import numpy as np
import pytest
from reference import gradtopk as exact_gradtopk
from reference import to_float64
from scipy import special

import softtopk_nb as stk

EPS = 2.0**-52


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=atol)


# ------------------------------------------------------------------- the source's algorithms


def exp_scan(x, k):
    """The thresholds that pass for `exp`, m = 0, ..., k - 1, both ends included."""
    z = np.concatenate(([np.inf], np.sort(x)[::-1]))
    trials = [np.logaddexp.reduce(z[m + 1 :]) - math.log(k - m) for m in range(k)]
    return [t for m, t in enumerate(trials) if z[m + 1] <= t <= z[m]]


def laplace_trial(x, k, m):
    """The source's formula for `laplace` with m entries above the threshold, as it is written."""
    z = np.sort(x)[::-1]
    log_a, log_b = np.logaddexp.reduce(-z[:m]), np.logaddexp.reduce(z[m:])
    with np.errstate(divide="ignore", under="ignore"):
        return log_b - np.log(np.sqrt((k - m) ** 2 + np.exp(log_a + log_b)) + (k - m))


def laplace_scan(x, k):
    """The thresholds that pass for `laplace`, m = 0, ..., n - 1."""
    z = np.concatenate(([np.inf], np.sort(x)[::-1]))
    trials = [laplace_trial(x, k, m) for m in range(len(x))]
    return [t for m, t in enumerate(trials) if z[m + 1] <= t <= z[m]]


def laplace(t):
    tail = 0.5 * np.exp(-np.abs(t))
    return np.where(t < 0, tail, 1 - tail)


def bisect(x, k, eps=1e-4, rounds=300):
    """(threshold, ends) for `sigmoid`, halved until the ends are eps apart, or `rounds` times."""
    level = special.logit(k / len(x))
    low, high, middle = np.min(x) - level, np.max(x) - level, None
    for _ in range(rounds):
        if not high - low > eps:
            break
        middle = 0.5 * (low + high)
        if special.expit(x - middle).sum() < k:
            high = middle
        else:
            low = middle
    return middle, (low, high)


def recursion(x, k):
    """GradTopK by Z_{i,j} = e^{x_j} (Z_{i-1} - Z_{i-1,j}), in logarithms, on rows."""
    log_part, log_all = x, np.logaddexp.reduce(x, axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in range(2, k + 1):
            log_part = x + log_all + np.log(1 - np.exp(log_part - log_all))
            log_all = np.logaddexp.reduce(log_part, axis=-1, keepdims=True) - math.log(i)
        return np.exp(log_part - log_all)


def enumerated(x, k):
    """GradTopK from its definition: the share of each entry in all subsets of size k."""
    members = np.array(
        [np.isin(range(len(x)), s) for s in itertools.combinations(range(len(x)), k)]
    )
    return special.softmax(members @ x) @ members


# ---------------------------------------------------------------------------- the properties


def test_order_is_no_equivalence():
    """prop-source-monotone: p_i >= p_j does not give x_i >= x_j; at k = n for no operator."""
    x = np.array([6.0, 3.0, 0.0, -3.0, 27.0])
    for curve in ("exp", "clip"):
        p = stk.thretopk(x, 3, curve=curve)
        assert p[0] == p[4] == 1  # equal, so each is >= the other, and their scores differ
    for curve in ("sigmoid", "laplace"):
        p = stk.thretopk(np.sort(x), 3, curve=curve, temperature=2.0)
        assert (np.diff(p) > 0).all()
    x = np.array([3.0, 2.0, 1.0, 4.0])
    for operator in (stk.hardtopk, stk.thretopk, stk.gradtopk):
        np.testing.assert_array_equal(operator(x, 4), np.ones(4))
        np.testing.assert_array_equal(operator(x, 0), np.zeros(4))


def test_gradtopk_is_strictly_inside_only_below_n(rng):
    """prop-source-range: 0 < p < 1 for 0 < k < n, and p = 1 at k = n."""
    x = rng.normal(size=6)
    assert np.ptp(x) > 1
    for k in range(1, 6):
        p = stk.gradtopk(x, k)
        assert_close(p, enumerated(x, k), 1e-14)
        assert ((p > 0) & (p < 1)).all()
    assert_close(enumerated(x, 6), np.ones(6), 1e-15)
    np.testing.assert_array_equal(stk.gradtopk(x, 6), np.ones(6))


def test_exp_never_rises_above_its_threshold(rng):
    """prop-source-limit: the k-th largest entry is at or below the threshold, and tends to it."""
    x = np.array([3.0, 2.0, 1.0, 0.0])
    for tau, bound in ((1.0, 0.5), (0.1, 1e-4), (0.02, 1e-12)):
        (threshold,) = exp_scan(x / tau, 2)
        assert -bound < x[1] / tau - threshold <= 0
    for tau in (1.0, 0.3, 0.1):
        assert stk.thretopk.threshold(x, 2, curve="exp", temperature=tau) >= x[1]
    assert_close(stk.thretopk(x, 2, curve="exp", temperature=0.02), stk.hardtopk(x, 2), 1e-15)
    rows = rng.normal(size=(200, 9))
    assert np.ptp(rows) > 4
    for k in range(1, 9):
        threshold = stk.thretopk.threshold(rows, k, curve="exp")
        assert (threshold >= np.sort(rows, axis=1)[:, -k]).all()


def test_snippets_at_k_equal_n():
    """Minor points: at k = n those of `exp` and GradTopK give ones, the others nothing."""
    x = np.array([1.5, -0.2, 0.7, 0.1])
    (threshold, *more) = exp_scan(x, 4)
    assert all(t == pytest.approx(threshold) for t in more)
    assert_close(np.clip(np.exp(x - threshold), 0, 1), np.ones(4), 1e-15)
    assert_close(recursion(x, 4), np.ones(4), 1e-13)
    assert laplace_scan(x, 4) == []
    assert not np.isfinite(special.logit(1.0))  # the bracket of `sigmoid`


def test_the_mask_is_a_gradient_without_ties(rng):
    """prop-source-gradient: slopes of the sum of the k largest, and two at a tie."""
    x, h = rng.permutation(np.arange(7.0)), 2.0**-20

    def slopes(x, k, s):
        largest = np.sort(x + s * h * np.eye(len(x)), axis=1)[:, -k:].sum(axis=1)
        return (largest - np.sort(x)[-k:].sum()) / (s * h)

    for k in range(1, 7):
        for s in (1, -1):
            np.testing.assert_array_equal(slopes(x, k, s), stk.hardtopk(x, k))
    tied = np.array([2.0, 1.0, 1.0, 0.0])
    np.testing.assert_array_equal(slopes(tied, 2, 1), [1, 1, 1, 0])
    np.testing.assert_array_equal(slopes(tied, 2, -1), [1, 0, 0, 0])


def test_the_formula_for_laplace_far_out():
    """prop-source-laplace-tail: 0 from t = -54 log 2 on, and an error of 2^-55 before."""

    def written(t):
        return (1 - np.exp(-np.abs(t))) * np.sign(t) * 0.5 + 0.5

    end = -54 * math.log(2)
    assert written(end - 1e-6) == 0
    assert written(end + 1e-6) > 0
    t = np.linspace(-40, -30, 20_001)
    error = abs(written(t) - laplace(t))
    assert 0.99 < error.max() * 2.0**55 < 1.01  # e^-|t| has an error of its own
    assert_close(stk.thretopk([0.0, 38.0 * 2], 1)[0] / laplace(-38.0), 1.0, 1e-13)


# ----------------------------------------------------------------------------- the iterations


def iterate(x, k, choose):
    """The source's iteration with any map in the place of softmax."""
    p, z = np.zeros(len(x)), x - np.min(x)
    for _ in range(k):
        p = p + choose((1 - p) * z)
    return p


def test_iteration_leaves_the_set_the_order_and_the_limit(rng):
    """prop-source-iterative: range, order and the limit at k = n fail, the last even undamped."""
    rows = [rng.normal(size=5) * scale for scale in (1, 3, 10) for _ in range(20)]
    assert np.ptp(rows) > 10
    for x in rows:
        for k in (2, 5):
            assert_close(stk.itertopk(x, k), iterate(x, k, special.softmax), 1e-12)
    over = iterate(np.array([1.0, 0.0]), 2, special.softmax)
    assert over[0] > 1.29
    swapped = iterate(np.array([0.0, 0.0, 5.0, 6.0]), 2, special.softmax)
    assert swapped[2] > 1.1 > 0.9 > swapped[3]
    x = np.array([3.0, 2.0, 1.0, 4.0])
    assert_close(iterate(100 * x, 4, special.softmax), [1.25, 1.25, 0.25, 1.25], 1e-12)
    hard = [iterate(x, k, lambda y: np.eye(len(y))[np.argmax(y)]) for k in (3, 4)]
    np.testing.assert_array_equal(hard, [[1, 1, 0, 1], [2, 1, 0, 1]])
    for op in (stk.thretopk, stk.gradtopk):  # the same rows, where range, order and limit hold
        assert op([1.0, 0.0], 2).max() == 1
        p = op([0.0, 0.0, 5.0, 6.0], 2)
        assert 1 > p[3] > p[2]
        np.testing.assert_array_equal(op(100 * x, 4), np.ones(4))


def test_the_weight_left_follows_the_gap():
    """prop-source-weighted: 1 - p of the largest entry is of the order of e^-gap, not of e^-max."""
    x = np.array([3.0, 2.0, 0.0])
    for tau in (0.2, 0.1):
        left = special.softmax(x / tau)[1:].sum()
        assert 0.9 < left / math.exp(-1 / tau) < 1.1
        assert left / math.exp(-3 / tau) > 0.9 * math.exp(2 / tau) > 1e4
    for k in (2, 3, 4):
        p = stk.wsoftmaxtopk([3.0, 2.0, 0.0, -1.0], k, temperature=0.02)
        assert_close(p, [k - 0.5, 0.5, 0, 0], 1e-12)


# ------------------------------------------------------------------------------------ GradTopK


def test_recursion_is_finite_and_wrong(rng):
    """prop-source-recursion: wrong with the right sum, even at small k or small spread."""
    mild = rng.normal(size=(20, 100))
    assert np.ptp(mild) > 4
    assert_close(recursion(mild, 5), stk.gradtopk(mild, 5), 1e-12)  # it is the same operator

    x = np.array([40.0, 0.0, 0.0])
    p = recursion(x, 2)
    assert_close(p, [0, 1, 1], 1e-15)
    assert_close(enumerated(x, 2), [1, 0.5, 0.5], 1e-15)
    assert_close(stk.gradtopk(x, 2), [1, 0.5, 0.5], 1e-15)

    wide = 3 * rng.normal(size=(400, 100))
    p, q = recursion(wide, 10), stk.gradtopk(wide, 10)
    finite = np.isfinite(p).all(axis=1)
    error = np.where(finite, np.abs(p - q).max(axis=1), 0)
    worst = np.argmax(error)
    assert error[worst] > 1
    assert abs(p[finite].sum(axis=1) - 10).max() < 1e-12
    assert_close(q[worst], to_float64(exact_gradtopk(wide[worst], 10).p), 1e-13)

    narrow = 0.1 * rng.normal(size=(20, 100))
    assert not np.isfinite(recursion(narrow, 99)).all(axis=1).any()
    complement = 1 - recursion(-narrow, 1)  # the one left out is a softmax
    assert_close(stk.gradtopk(narrow, 99), complement, 1e-14)


def test_gradtopk_is_well_conditioned(rng):
    """prop-source-conditioning: an entry moves by at most half of what the scores move by."""
    x = 2 * rng.normal(size=(50, 8))
    assert np.ptp(x) > 6
    largest = 0.0
    for k in range(1, 8):
        for tau in (1.0, 0.4):
            jacobian = np.stack(
                [
                    stk.gradtopk.jvp(x, k, np.broadcast_to(e, x.shape), temperature=tau)[1]
                    for e in np.eye(8)
                ],
                axis=-1,
            )
            off = jacobian - jacobian * np.eye(8)
            assert off.max() <= 1e-15
            size = np.abs(jacobian).sum(axis=-1)
            p = stk.gradtopk(x, k, temperature=tau)
            assert_close(size, 2 * p * (1 - p) / tau, 1e-12)
            largest = max(largest, size.max() * tau)
    assert 0.4 < largest <= 0.5 + 1e-12


# ------------------------------------------------------------------------------------ ThreTopK


def test_laplace_is_softmax_only_up_to_one_half(rng):
    """prop-source-laplace-softmax: at k = 1, exactly if no probability exceeds one half."""
    for x in rng.normal(size=(200, 4)) * rng.uniform(0.1, 3, size=(200, 1)):
        softmax = special.softmax(x)
        (threshold,) = laplace_scan(x, 1)
        assert_close(stk.thretopk(x, 1), laplace(x - threshold), 1e-13)
        equal = np.abs(stk.thretopk(x, 1) - softmax).max() < 1e-12
        assert equal == (softmax.max() <= 0.5)
    expected = 1 - 1 / (math.sqrt(2) * math.e)
    assert_close(stk.thretopk([2.0, 0.0, 0.0], 1)[0], expected, 1e-15)
    assert special.softmax([2.0, 0.0, 0.0])[0] - expected > 0.04


def test_laplace_scan_misses_the_last_candidate(rng):
    """prop-source-scan: without m = n no threshold is found, on every row with k = n - 1 here."""
    rows = rng.normal(size=(100, 100))
    assert np.ptp(rows) > 4
    for x in rows:
        assert laplace_scan(x, 99) == []
        threshold = math.log(1 / np.exp(-x).sum()) + math.log(2)  # m = n: sum of e^(l - x) / 2 = 1
        assert threshold <= x.min()
        assert_close(stk.thretopk(x, 99), laplace(x - threshold), 1e-13)
        assert_close(stk.thretopk(x, 99, method="scan"), laplace(x - threshold), 1e-13)


def test_one_form_of_the_root_cancels():
    """prop-source-cancellation: near ties at the threshold lose every digit; far gaps underflow."""
    for distance, mass_error in ((20, 1e-8), (25, 1e-6), (30, 1e-4)):
        x = np.array([0.02, 0.01, 0.0, -float(distance)])
        (threshold,) = laplace_scan(x, 2)
        assert abs(laplace(x - threshold).sum() - 2) > mass_error
        p = stk.thretopk(x, 2)
        assert abs(math.fsum(p) - 2) < 1e-15
        exact = math.log(1 / np.exp(-x[:3]).sum()) + math.log(2)  # m = 3; the last adds about 0
        assert_close(p[:3], laplace(x[:3] - exact), 1e-8)
    far = np.array([0.02, 0.01, 0.0, -40.0])
    assert laplace_trial(far, 2, 3) == np.inf
    assert laplace_scan(far, 2) == []
    assert_close(stk.thretopk(far, 2).sum(), 2, 1e-15)

    x = np.array([2.0, 1.0, 0.0])
    for gap, found in ((100, 1), (700, 1), (800, 0)):
        assert len(laplace_scan(gap * x, 1)) == found
        assert_close(stk.thretopk(gap * x, 1), [1, 0, 0], 1e-15)


def test_closed_tests_pass_twice_or_never(rng):
    """prop-source-ends: two candidates or none, though there is one solution."""
    for x in ([math.log(2), 0.0, 0.0], [40.0, 40.0, 0.0]):
        first, second = exp_scan(np.array(x), 2)
        assert first == second
        p = np.minimum(1, np.exp(np.array(x) - first))
        for method in ("auto", "scan"):
            assert_close(stk.thretopk(x, 2, curve="exp", method=method), p, 1e-15)
    counts = {0: 0, 1: 0, 2: 0}
    for rest in rng.uniform(-1, 1, size=(400, 4)):
        for direction in (-9, 0, 9):
            middle = np.logaddexp.reduce(rest)
            x = np.append(rest, middle if direction == 0 else np.nextafter(middle, direction))
            assert len(set(x)) == 5
            counts[len(exp_scan(x, 2))] += 1
            p = stk.thretopk(x, 2, curve="exp", method="scan")
            assert_close(p, np.append(np.exp(rest - middle), 1), 1e-14)
    assert counts[0] > 10
    assert counts[2] > 10


def test_bisection_stops_on_the_wrong_number(rng):
    """prop-source-bisection: a mass off by whole entries, no threshold at all, and no end."""
    for n in (100, 10_000, 1_000_000):
        x = rng.normal(size=n)
        threshold, (low, high) = bisect(x, n // 10)
        assert high - low <= 1e-4
        error = abs(special.expit(x - threshold).sum() - n // 10)
        assert error <= n * 1e-4 / 4
        p = stk.thretopk(x, n // 10, curve="sigmoid")
        assert abs(p.sum() - n // 10) <= 1e-12 * n
    constant = np.zeros(1_000_001)
    constant[0] = 1.5e-4  # one step, and it ends next to the constant row's threshold
    threshold, _ = bisect(constant, 500_000)
    assert abs(special.expit(constant - threshold).sum() - 500_000) > 10
    assert abs(stk.thretopk(constant, 500_000, curve="sigmoid").sum() - 500_000) < 1e-6

    for x in (np.zeros(5), np.array([0.0, 5e-5, 1e-4])):
        assert bisect(x, 1)[0] is None
        p = stk.thretopk(x, 1, curve="sigmoid")
        assert_close(p.sum(), 1, 1e-15)

    far = 2.0**40 + np.arange(4.0)
    _, (low, high) = bisect(far, 2)
    assert high == np.nextafter(low, np.inf)
    assert high - low > 1e-4
    p = stk.thretopk(far, 2, curve="sigmoid")
    assert_close(p, special.expit(np.arange(4.0) - 1.5), 1e-15)


def test_stop_gradient_has_first_derivatives_only():
    """prop-source-stop-gradient: the first derivatives are right, the second are not."""
    x, k, h = np.array([2.0, 0.0, 0.0]), 1, 1e-3
    threshold = float(stk.thretopk.threshold(x, k, curve="sigmoid"))
    s = special.expit(x - threshold)
    share = s * (1 - s) / (s * (1 - s)).sum()

    def frozen(y):
        return special.expit(y - (share @ y + (threshold - share @ x)))

    def right(y):
        return stk.thretopk(y, k, curve="sigmoid")

    def differences(p, e):
        up, down = p(x + h * e), p(x - h * e)
        return (up - down) / (2 * h), (up - 2 * p(x) + down) / h**2

    assert_close(frozen(x), right(x), 1e-15)
    for e in np.eye(3):
        (slope, curvature), (true_slope, true_curvature) = (
            differences(p, e) for p in (frozen, right)
        )
        assert_close(slope, true_slope, 1e-7)
        assert np.abs(curvature - true_curvature).max() > 1e-3
        assert abs(true_curvature.sum()) < 1e-8 < 1e-3 < abs(curvature.sum())  # the sum is k


# ------------------------------------------------------------------------------ the discussion


def test_ranking_the_first_and_softmax_on_the_rest_jumps():
    """prop-source-split: 1 on the k - 1 largest and softmax on the rest is not continuous."""

    def split(x, k):
        order = np.argsort(-x)
        p = np.ones(len(x))
        p[order[k - 1 :]] = special.softmax(x[order[k - 1 :]])
        return p

    for h in (1e-3, 1e-6, 1e-9):
        above, below = np.array([1 + h, 1, 0.0]), np.array([1 - h, 1, 0.0])
        jump = split(above, 2) - split(below, 2)
        assert_close(jump, [1 - special.expit(1), special.expit(1) - 1, 0], 2 * h)
        for op in (stk.thretopk, stk.gradtopk):
            assert_close(op(above, 2), op(below, 2), 2 * h)
    assert split(np.array([3.0, 1.0, 0.0]), 2).sum() == pytest.approx(2, abs=1e-15)


def test_weighted_sum_is_no_potential():
    """prop-source-weighted-sum: <p, x> can fall when a score rises, and is not convex."""

    def gradients(x):
        p, pullback = stk.thretopk.vjp(x, 1, curve="exp")
        return p + pullback(x).x, p

    weighted, p = gradients(np.array([3.0, 0.0, 0.0]))
    assert weighted[1] < -0.07
    assert (p > 0).all()

    def weighted_sum(d):
        x = np.array([-d, 0.0])
        return float(stk.thretopk(x, 1, curve="exp") @ x)

    def potential(d):
        return float(stk.thretopk.potential([-d, 0.0], 1, curve="exp"))

    assert 2 * weighted_sum(4) > weighted_sum(3) + weighted_sum(5) + 0.01
    assert 2 * potential(4) < potential(3) + potential(5)
    x = np.array([3.0, 0.0, 0.0])
    for i, e in enumerate(np.eye(3)):
        h = 1e-5
        up, down = (stk.thretopk.potential(x + s * h * e, 1, curve="exp") for s in (1, -1))
        assert abs((up - down) / (2 * h) - p[i]) < 1e-9


# ---------------------------------------------------------------------------- the other sources


def test_printed_gumbel_softmax_ignores_the_scores(rng):
    """prop-source-gumbel: with x_i in the denominator the scores cancel."""
    x, noise, kappa = rng.normal(size=7), rng.gumbel(size=7), 0.5

    def printed(x):
        inside = (x[:, None] + noise[None, :]) / kappa
        return np.exp((x + noise) / kappa) / np.exp(inside).sum(axis=1)

    assert np.ptp(x) > 1
    assert_close(printed(x), printed(-3 * x), 1e-14)
    drawn = stk.gumbel_softmax(x, rng=5, temperature=kappa)
    gumbels = np.random.default_rng(5).gumbel(size=7)
    assert_close(drawn, special.softmax((x + gumbels) / kappa), 1e-14)
    assert np.abs(drawn - stk.gumbel_softmax(-3 * x, rng=5, temperature=kappa)).max() > 0.1


def test_a_draw_by_findfirst(rng):
    """prop-source-findfirst: an entry of probability 0 at v = 0, and none at v next to 1."""

    def draw(q, v):
        found = np.flatnonzero(np.cumsum(q) >= v)
        return int(found[0]) if found.size else None

    assert draw(np.array([0.0, 0.5, 0.5]), 0.0) == 0
    last, missing = 1 - 2.0**-53, 0
    for _ in range(200):
        q = special.softmax(rng.normal(size=50))
        missing += draw(q, last) is None
        assert stk.sample_categorical(np.log(q), rng=1) in range(50)
    assert missing > 20
    x = np.array([-np.inf, 0.0, 0.0])
    assert (stk.sample_categorical(np.broadcast_to(x, (500, 3)), rng=2) > 0).all()


def test_subtracting_the_rounded_logsumexp():
    """prop-source-lse: e^((x - lse)/gamma) is off by e^(rounding of lse / gamma)."""
    gamma = 1e-3
    for offset, low, high in ((0.0, 1e-14, 1e-11), (1e6, 1e-9, 1e-6), (1e8, 1e-7, 1e-4)):
        x = offset + np.array([1.0, 2.0, 3.0, 5.0, 5.0])
        lse = 5 + offset + gamma * math.log(2)
        p = np.exp((x - lse) / gamma)
        assert low < abs(p[4] - 0.5) < high
        assert abs(p[4] - 0.5) <= 1.1 * EPS * lse / (2 * gamma) + EPS
        assert_close(stk.softmax(x, temperature=gamma), [0, 0, 0, 0.5, 0.5], 1e-16)
