"""The reference is right: it gives the published numbers, and it satisfies its own definition."""

import answers
import numpy as np
import pytest
import reference
from reference import mp

ALL_CASES = answers.cases()
CASES = [case for case in ALL_CASES if case["op"] == "thretopk"]
OTHERS = [case for case in ALL_CASES if case["op"] != "thretopk"]
# The reference changes seldom, and all of them take a minute.
EACH = [pytest.param(c, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, c in enumerate(CASES)]
CURVES = [(name, None) for name in reference.CURVES]
CURVES += [("entmax", 1.3), ("entmax", 1.5), ("entmax", 2.0), ("entmax", 3.0)]
# Kinks of f are a set of measure zero that these entries keep away from, whatever the curve.
X = [0.31, -1.27, 2.05, 0.94, -0.48, 0.115]
DX = [0.7, -0.2, 0.4, -1.1, 0.9, 0.3]
DIGITS_40 = mp.mpf(10) ** -40


def row(case):
    return case["x"], case["k"], case["curve"], case["temperature"]


def largest(values):
    return max(abs(v) for v in values)


@pytest.mark.parametrize("case", EACH, ids=lambda c: c["name"])
def test_public_vectors(case):
    """p, potential and dp of every published case, to the last digit of float64."""
    solution = reference.thretopk(*row(case))
    np.testing.assert_allclose(reference.to_float64(solution.p), case["p"], rtol=1e-15, atol=1e-17)
    assert float(solution.potential) == pytest.approx(case["potential"], rel=1e-15, abs=1e-40)
    x, k, curve, tau = row(case)
    w, _ = reference.weights(x, k, curve, tau)
    # An ill-conditioned threshold is judged by p, above; a well-conditioned one also directly.
    if sum(w) > 1e-20:
        assert float(solution.threshold) == pytest.approx(case["threshold"], rel=1e-15, abs=1e-38)
    if "dp" in case:
        dp = reference.thretopk_jvp(x, k, case["tangent"], curve, tau)
        scale = max(1.0, *np.abs(case["dp"]))
        np.testing.assert_allclose(
            reference.to_float64(dp), case["dp"], rtol=1e-15, atol=1e-16 * scale
        )


def test_there_are_public_vectors():
    assert {case["curve"] for case in CASES} == set(reference.CURVES)
    assert sum("dp" in case for case in CASES) >= 50


@pytest.mark.parametrize("case", EACH, ids=lambda c: c["name"])
def test_sums_to_k(case):
    """The definition itself, and that p is made of the threshold that is returned."""
    x, k, curve, tau = row(case)
    solution = reference.thretopk(x, k, curve, tau)
    assert abs(mp.fsum(solution.p) - k) < DIGITS_40
    f = reference.curve_of(curve).cdf
    again = [f((v - solution.threshold) / mp.mpf(tau)) for v in reference.exact(x)]
    assert largest(a - b for a, b in zip(again, solution.p, strict=True)) < DIGITS_40


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "alpha"), CURVES)
@pytest.mark.parametrize("spread", [1e-9, 1.0, 1e9, 1e18])
def test_sums_to_k_at_any_spread(curve, alpha, spread):
    x = [spread * v for v in X]
    # For alpha > 2 the slope of f is unbounded at 0: f(t) = (2t)^(1/2) halves the digits of t.
    bound = DIGITS_40 if alpha is None or alpha <= 2 else mp.mpf(10) ** -27
    for k in (0.25, 1, 3, 4.5, 5.999):
        p = reference.thretopk(x, k, curve, 1.0, alpha).p
        assert abs(mp.fsum(p) - mp.mpf(k)) < bound
        assert all(0 <= v <= 1 for v in p)


@pytest.mark.parametrize(("curve", "alpha"), CURVES)
def test_curves_are_consistent(curve, alpha):
    """F' = f, F(-inf) = 0 and F(t) - t -> excess, or F(0) = 0; and f' is the slope of f."""
    f = reference.curve_of(curve, alpha)
    h = reference.STEP
    for t in map(mp.mpf, (-7.3, -1.1, -0.3, 0.21, 0.43, 1.9, 6.7)):
        assert abs((f.integral(t + h) - f.integral(t - h)) / (2 * h) - f.cdf(t)) < 1e-35
        assert abs((f.cdf(t + h) - f.cdf(t - h)) / (2 * h) - f.pdf(t)) < 1e-35
    if f.excess is None:
        assert f.integral(mp.mpf(0)) == 0
        assert f.integral(mp.mpf(-(10**50))) < -1
    else:
        assert abs(f.integral(mp.mpf(-200))) < DIGITS_40
        assert abs(f.integral(mp.mpf(200)) - 200 - f.excess) < DIGITS_40


@pytest.mark.parametrize(("curve", "alpha"), CURVES)
def test_entropies(curve, alpha):
    """omega' = f^-1, and omega(q) = q t - F(t) where f(t) = q."""
    f = reference.curve_of(curve, alpha)
    for t in map(mp.mpf, (-2.3, -0.4, 0.21, 0.43, 0.8, 1.9)):
        if (q := float(f.cdf(t))) < 1 and f.pdf(t) > 0:
            expected = float(mp.mpf(q) * t - f.integral(t))
            assert float(f.omega(np.float64(q))) == pytest.approx(expected, abs=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "alpha"), CURVES)
@pytest.mark.parametrize("k", [1, 2.5, 5])
def test_two_jvps_agree(curve, alpha, k):
    """The implicit function theorem and a central difference, in x, k and the temperature."""
    for dk, dtau in ((0.0, 0.0), (0.6, 0.0), (0.0, -0.8)):
        arguments = (X, k, DX, curve, 4.0, alpha, dk, dtau)
        dp = reference.thretopk_jvp(*arguments)
        difference = reference.thretopk_jvp_by_difference(*arguments)
        assert largest(dp) > 1e-3
        assert largest(a - b for a, b in zip(dp, difference, strict=True)) < 1e-33


@pytest.mark.parametrize(("curve", "alpha"), CURVES)
def test_potential_has_gradient_p(curve, alpha):
    for i in range(len(X)):
        h = mp.mpf(10) ** -15
        up, down = reference.exact(X), reference.exact(X)
        up[i], down[i] = up[i] + h, down[i] - h
        slope = (
            reference.thretopk(up, 2.5, curve, 0.7, alpha).potential
            - reference.thretopk(down, 2.5, curve, 0.7, alpha).potential
        ) / (2 * h)
        assert abs(slope - reference.thretopk(X, 2.5, curve, 0.7, alpha).p[i]) < 1e-25


@pytest.mark.parametrize(("curve", "alpha"), CURVES)
def test_edges_are_limits(curve, alpha):
    """k = 0 and k = n: p exactly, and a potential that nearby k approach."""
    for edge, near in ((0, 1e-9), (6, 6 - 1e-9)):
        solution = reference.thretopk(X, edge, curve, 0.7, alpha)
        assert solution.p == [edge / 6] * 6
        nearby = float(reference.thretopk(X, near, curve, 0.7, alpha).potential)
        if reference.curve_of(curve, alpha).excess is None:
            assert solution.potential == -mp.inf
            assert nearby < reference.thretopk(X, 3, curve, 0.7, alpha).potential - 10
        else:
            assert float(solution.potential) == pytest.approx(nearby, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("curve", "alpha"), CURVES)
def test_float64_reference_agrees(curve, alpha):
    rng = np.random.default_rng(2)
    for n, k, tau in ((5, 2, 0.3), (40, 11.5, 1.0), (200, 199, 4.0)):
        x = rng.normal(size=n)
        p = reference.to_float64(reference.thretopk(x, k, curve, tau, alpha).p)
        np.testing.assert_allclose(
            reference.thretopk_float64(x, k, curve, tau, alpha), p, rtol=0, atol=2e-14
        )


def test_hardtopk_by_hand():
    assert reference.hardtopk([3, 2, 1, 4], 2).tolist() == [1, 0, 0, 1]
    assert reference.hardtopk([1, 2, 2, 2], 2).tolist() == [0, 1, 1, 0]
    assert reference.hardtopk([0.0, -0.0], 1).tolist() == [1, 0]
    assert reference.sum_of_largest([3, 2, 1, 4], 2) == 7
    assert reference.sum_of_largest([3, 2, 1, 4], 2.5) == 8
    assert reference.sum_of_largest([3, 2], 0) == 0


# ------------------------------------------------------------------- gradtopk and the iterations


def assert_same(actual, expected, digits):
    """Equal to so many digits behind the point."""
    assert len(actual) == len(expected)
    assert largest(a - b for a, b in zip(actual, expected, strict=True)) < mp.mpf(10) ** -digits


@pytest.mark.parametrize("case", OTHERS, ids=lambda c: c["name"])
def test_other_public_vectors(case):
    """p, potential and dp of every published case, to the last digit of float64."""
    x, k, tau = case["x"], case["k"], case["temperature"]
    solution = getattr(reference, case["op"])(x, k, temperature=tau)
    np.testing.assert_allclose(reference.to_float64(solution.p), case["p"], rtol=1e-15, atol=1e-17)
    if "potential" in case:
        assert float(solution.potential) == pytest.approx(case["potential"], rel=1e-15, abs=1e-40)
    dp = getattr(reference, case["op"] + "_jvp")(x, k, case["tangent"], temperature=tau)
    scale = max(1.0, *np.abs(case["dp"]))
    np.testing.assert_allclose(reference.to_float64(dp), case["dp"], rtol=1e-15, atol=1e-16 * scale)


def test_there_are_other_public_vectors():
    assert {case["op"] for case in OTHERS} == {"gradtopk", "itertopk", "wsoftmaxtopk"}
    for case in OTHERS:
        assert "dp" in case
        assert ("potential" in case) == (case["op"] == "gradtopk")


@pytest.mark.parametrize("tau", [0.02, 0.5, 30.0])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_gradtopk_by_enumeration(n, tau):
    """The recurrences and the list of all subsets: p, potential and pairs, for every k."""
    x = np.random.default_rng(n).normal(size=n)
    for k in range(n + 1):
        listed = reference.gradtopk_by_enumeration(x, k, tau)
        solution = reference.gradtopk(x, k, tau)
        assert_same(solution.p, listed.p, 70)
        assert abs(solution.potential - listed.potential) < 1e-70
        assert abs(mp.fsum(solution.p) - k) < 1e-70
        for row, expected in zip(reference.gradtopk_pairs(x, k, tau), listed.pairs, strict=True):
            assert_same(row, expected, 70)
        # Every digit counts, however small p is.
        assert all(abs(p - q) <= 1e-60 * q for p, q in zip(solution.p, listed.p, strict=True) if k)


def test_gradtopk_by_hand():
    """Weights 1, 2, 3: Z_2 = 2 + 3 + 6 = 11."""
    x = [mp.log(v) for v in (1, 2, 3)]
    solution = reference.gradtopk(x, 2)
    assert_same(solution.p, [mp.mpf(v) / 11 for v in (5, 8, 9)], 70)
    assert abs(solution.potential - mp.log(11)) < 1e-70
    # A mass of 1/C(n, k) for every subset of a constant row.
    solution = reference.gradtopk([0.25] * 200, 100)
    assert_same(solution.p, [mp.mpf(1) / 2] * 200, 70)
    assert abs(solution.potential - 25 - mp.log(mp.binomial(200, 100))) < 1e-70


def test_gradtopk_keeps_small_digits():
    """k entries far above the rest: a loser replaces a winner, at the cost of the gap."""
    n, k, gap = 30, 7, 900
    solution = reference.gradtopk([gap] * k + [0] * (n - k), k)
    # One loser in S: k (n - k) subsets of weight e^-gap each, and two losers weigh e^-2gap.
    ratio = mp.exp(-gap)
    expected = k * ratio / (1 + k * (n - k) * ratio)
    assert abs(solution.p[-1] / expected - 1) < 1e-60
    mirrored = reference.gradtopk([-gap] * k + [0] * (n - k), n - k)
    assert_same([p + q for p, q in zip(solution.p, mirrored.p, strict=True)], [1] * n, 70)
    assert abs(mirrored.p[0] / ((n - k) * ratio) - 1) < 1e-60


@pytest.mark.parametrize("k", [0, 1, 3, 5, 6])
@pytest.mark.parametrize("operator", ["gradtopk", "itertopk", "wsoftmaxtopk"])
def test_two_jvps_of_the_others_agree(operator, k):
    """Pair marginals, or the loop differentiated, and a central difference."""
    jvp = getattr(reference, operator + "_jvp")
    by_difference = getattr(reference, operator + "_jvp_by_difference")
    for tau, dtau in ((0.7, 0.0), (0.7, -0.8), (4.0, 0.3)):
        dp = jvp(X, k, DX, tau, dtau)
        assert_same(dp, by_difference(X, k, DX, tau, dtau), 30)
        assert abs(mp.fsum(dp)) < DIGITS_40
        assert (largest(dp) > 1e-3) == (k > 0 and (k < len(X) or operator != "gradtopk"))


def test_jvp_by_difference_at_a_lowest_entry():
    """In itertopk the least entry moves every z, so its own tangent must count in every entry."""
    lowest = np.eye(len(X))[int(np.argmin(X))]
    dp = reference.itertopk_jvp(X, 3, lowest)
    assert_same(dp, reference.itertopk_jvp_by_difference(X, 3, lowest), 30)
    assert min(abs(v) for v in dp) > 1e-4


def test_gradtopk_potential_has_gradient_p():
    for i in range(len(X)):
        h = mp.mpf(10) ** -15
        up, down = reference.exact(X), reference.exact(X)
        up[i], down[i] = up[i] + h, down[i] - h
        slope = (
            reference.gradtopk(up, 2, 0.7).potential - reference.gradtopk(down, 2, 0.7).potential
        ) / (2 * h)
        assert abs(slope - reference.gradtopk(X, 2, 0.7).p[i]) < 1e-25


def test_iterations_by_hand():
    """What the two iterations are known to do, to the digits in which it was published."""
    np.testing.assert_allclose(
        reference.to_float64(reference.itertopk([1.0, 0.0], 2).p), [1.2979, 0.7021], atol=5e-5
    )
    np.testing.assert_allclose(
        reference.to_float64(reference.itertopk([0.0, 0.0, 5.0, 6.0], 2).p),
        [0.0236, 0.0236, 1.1135, 0.8394],
        atol=5e-5,
    )
    # Weighted softmaxes tend to 3/2 and 1/2 on the two largest: 1 - p is as small as e^-x.
    p = reference.to_float64(reference.wsoftmaxtopk([3.0, 1.0, 0.0], 2, temperature=0.002).p)
    np.testing.assert_allclose(p, [1.5, 0.5, 0.0], atol=1e-12)
    for operator in (reference.itertopk, reference.wsoftmaxtopk):
        assert_same(operator(X, 1).p, reference.gradtopk(X, 1).p, 60)
        assert operator(X, 0).p == [0] * len(X)
        assert abs(mp.fsum(operator(X, 4, 0.3).p) - 4) < DIGITS_40


# ----------------------------------------------------------------------------- stored answers


@pytest.mark.parametrize("dtype", answers.DTYPES)
def test_stored_answers_are_those_of_the_reference(dtype):
    """Every case has one; of each operator and curve, one case that the seed chooses."""
    kinds = {}
    for case in answers.cases():
        assert (case["name"] in answers.stored(dtype)) == bool(
            dtype != "float64" or ("tangent" in case and case["op"] in answers.SYMMETRIC)
        )
        if case["name"] in answers.stored(dtype):
            kinds.setdefault((case["op"], case.get("curve")), []).append(case)
    rng = np.random.default_rng(41)
    for some in kinds.values():
        case = some[rng.integers(len(some))]
        found = answers.answer(case, dtype)
        stored = answers.stored(dtype)[case["name"]]
        assert found.keys() == stored.keys()
        for name, value in found.items():
            np.testing.assert_allclose(stored[name], value, rtol=1e-15, atol=1e-24)
