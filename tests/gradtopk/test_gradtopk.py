"""GradTopK: one test for each theorem of docs/math/gradtopk.md, named in the test's docstring.

Rows are judged at the accuracy that is promised: with R = (max x - min x)/temperature,
|p - exact| <= 1e-13 + 4 eps R and |sum p - k| <= 1e-12 max(1, k) in float64, and 1e-6 in the
place of both constants in float32. In float64 small p and small 1 - p are also held to 1e-10 of
themselves. What the contour method rests on is tested first as mathematics, on sums of independent
coins, and knows nothing of the package.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
import reference
from budgets import FARTHEST, LEAST_VARIANCE, accepted, loss_of_tilt, rarest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import mp, to_float64
from scipy import special
from worst_place import jumps, largest

import softtopk_nb as stk
from softtopk_nb.gradtopk import formulas
from softtopk_nb.gradtopk.cpu import contour, marginals, moments, rows
from softtopk_nb.gradtopk.nodes import DEGREE, FEW, NODES

EPS = {np.float64: 2.0**-52, np.float32: 2.0**-23}
TINY = float(np.finfo(np.float64).tiny)  # below it a float64 has lost digits

every_method = pytest.mark.parametrize("method", ["auto", "contour", "dp"])
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f64", "f32"])


def spread(x, tau):
    x = np.asarray(x, dtype=np.float64)
    return float(np.max(x) - np.min(x)) / tau


def tolerance(x, tau, dtype=np.float64):
    return (1e-13 if dtype is np.float64 else 1e-6) + 4 * EPS[dtype] * spread(x, tau)


def mass_tolerance(dtype=np.float64):
    return 1e-12 if dtype is np.float64 else 1e-6


def tangent_tolerance(x, tau, dtype=np.float64):
    """For tau dp, a difference of numbers of the size of its direction."""
    return (1e-12 if dtype is np.float64 else 2e-6) + 16 * EPS[dtype] * spread(x, tau)


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=atol)


def assert_relatively_close(actual, expected, x, tau):
    """To 1e-10 of itself wherever the expected value is a normal number."""
    normal = expected >= TINY
    rtol = 1e-10 + 4 * EPS[np.float64] * spread(x, tau)
    np.testing.assert_allclose(actual[normal], expected[normal], rtol=rtol, atol=0)
    assert np.all(actual[~normal] <= 2 * TINY)


def mass_error(p, k):
    return float(abs(np.sum(p, dtype=np.longdouble) - k)) / max(1.0, k)


def matrix(x, k, tau, method="auto"):
    """tau J, column by column, from jvp on the unit vectors."""
    n = len(x)
    rows = np.broadcast_to(x, (n, n))
    return tau * stk.gradtopk.jvp(rows, k, np.eye(n), temperature=tau, method=method)[1].T


# -------------------------------------------------------------------------- rows known exactly


class Row(NamedTuple):
    x: np.ndarray
    k: int
    tau: float


def _rows():
    rng = np.random.default_rng(31)
    normal = rng.normal(size=200)
    clusters = rng.integers(3, size=100) + 1e-4 * rng.normal(size=100)
    near = 1 + 2.0**-52 * rng.integers(8, size=60)
    wide = rng.uniform(0, 800, size=120)
    magnitudes = rng.normal(size=90) * 10.0 ** rng.uniform(-6, 2, size=90)
    rows = {f"normal-tau{tau:g}": Row(normal, 77, tau) for tau in (1e-3, 0.1, 1.0, 30.0, 1e3)}
    rows |= {f"normal-k{k}": Row(normal, k, 0.5) for k in (1, 2, 100, 198, 199)}
    rows |= {f"spread-800-k{k}": Row(wide, k, 1.0) for k in (1, 37, 119)}
    rows |= {f"clusters-k{k}": Row(clusters, k, 0.02) for k in (5, 33, 50, 99)}
    rows |= {f"near-constant-k{k}": Row(near, k, 1.0) for k in (1, 25, 59)}
    rows |= {f"magnitudes-k{k}": Row(magnitudes, k, 0.3) for k in (1, 40, 89)}
    for sign in (1, -1):
        row = np.append(rng.normal(size=63), sign * 500.0)
        rows |= {f"outlier{sign:+d}-k{k}": Row(row, k, 1.0) for k in (1, 20, 63)}
    rows["spread-800-cold"] = Row(wide, 60, 1e-3)
    rows["pair"] = Row(np.array([0.3, -0.4]), 1, 0.1)
    rows["long"] = Row(rng.normal(size=1000), 500, 0.3)
    rows["steep"] = Row(np.sort(rng.normal(size=400))[::-1] * 40, 120, 1.0)
    return rows


ROWS = _rows()
SHORTER = [name for name in ROWS if name != "long"]  # whose reference takes seconds
every_shorter_row = pytest.mark.parametrize("name", SHORTER)


@functools.cache
def known(name, dtype=np.float64, mirrored=False):
    """The row in that type, and its exact p; mirrored, -x and n - k, whose exact p is 1 - p."""
    x, k, tau = ROWS[name]
    x = x.astype(dtype)
    x, k = (-x, x.size - k) if mirrored else (x, k)
    return x, k, tau, to_float64(reference.gradtopk(x, k, tau).p)


def test_rows_differ():
    """Short and long, cold and warm, and of every degree of decision."""
    assert len({row.x.tobytes() for row in ROWS.values()}) >= 9
    assert {row.k for row in ROWS.values()} > {1, 2, 20, 100, 500}
    assert sum(row.k == row.x.size - 1 for row in ROWS.values()) >= 5
    assert {row.tau for row in ROWS.values()} >= {1e-3, 1e3}
    assert max(spread(row.x, row.tau) for row in ROWS.values()) > 1e5
    tiny = undecided = 0
    for name in SHORTER:
        p = known(name)[-1]
        tiny += int(np.sum((p > 0) & (p < 1e-20)))
        undecided += int(np.sum((p > 0.05) & (p < 0.95)))
    assert tiny > 500
    assert undecided > 500


@functools.cache
def enumerated(n, k, tau):
    return reference.gradtopk_by_enumeration(_short_row(n), k, tau)


def _short_row(n):
    return np.random.default_rng(n).normal(size=n)


@every_method
@pytest.mark.parametrize("tau", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 9, 12])
def test_enumeration(n, tau, method):
    """The definition: p, the potential and the Jacobian from a list of all subsets, for every k."""
    x = _short_row(n)
    for k in range(n + 1):
        listed = enumerated(n, k, tau)
        p = stk.gradtopk(x, k, temperature=tau, method=method)
        assert_close(p, to_float64(listed.p), tolerance(x, tau))
        phi = stk.gradtopk.potential(x, k, temperature=tau, method=method)
        scale = max(1.0, abs(float(listed.potential)), k * np.abs(x).max())
        assert abs(phi - float(listed.potential)) <= 1e-13 * scale
        pairs = np.array([to_float64(row) for row in listed.pairs])
        exact = to_float64(listed.p)
        covariance = pairs - np.outer(exact, exact)
        assert_close(matrix(x, k, tau, method), covariance, tangent_tolerance(x, tau))
        if k in (0, n):
            np.testing.assert_array_equal(p, np.full(n, k / n))


@every_method
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, np.float64) for name in ROWS), *((n, np.float32) for n in SHORTER)]
)
def test_value(name, dtype, method):
    """p against 80 digits; in float32 against those of the rounded row."""
    x, k, tau, exact = known(name, dtype)
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    assert p.dtype == dtype
    assert_close(p, exact, tolerance(x, tau, dtype))
    assert mass_error(p, k) <= mass_tolerance(dtype)


@every_method
@every_shorter_row
def test_small_p_and_small_rest(name, method):
    """thm-grad-marginals: p and, as gradtopk(-x, n - k), 1 - p keep their digits when small."""
    for mirrored in (False, True):
        x, k, tau, exact = known(name, np.float64, mirrored)
        p = stk.gradtopk(x, k, temperature=tau, method=method)
        assert_relatively_close(p, exact, x, tau)


@every_method
def test_smallest_normal_numbers(method):
    """thm-grad-marginals: p keeps its digits down to the end of the normal numbers."""
    depths = np.linspace(-709.5, -700.0, 96)
    x = np.stack([np.zeros(96), np.full(96, 0.3), np.full(96, -1.0), depths, depths + 1e-3], 1)
    for k in (1, 2, 3):
        p, smallest = stk.gradtopk(x, k, method=method), 0
        for row, values in zip(x, p, strict=True):
            exact = to_float64(reference.gradtopk(row, k).p)
            assert_relatively_close(values, exact, row, 1.0)
            smallest += np.count_nonzero((exact >= TINY) & (exact < 3 * TINY))
        assert smallest > 5


@every_method
@pytest.mark.parametrize("gap", [5.0, 40.0, 150.0, 300.0])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (9, 4), (60, 20), (300, 7), (300, 293)])
def test_big_gap(n, k, gap, method):
    """k entries stand apart, so a loser enters at the cost of the whole gap: p about e^-2gap.

    It is there that a threshold in mid-gap, pi = e^-gap, leaves half of p to P(N = k).
    """
    rng = np.random.default_rng(n + k)
    far = np.concatenate([np.full(k, gap), np.full(n - k, -gap)])
    scattered = far + rng.normal(size=n)
    partly_lost = np.where(rng.random(n) < 0.5, far, np.minimum(far, 2 * far))
    assert np.unique(scattered).size == n
    for x in (far, scattered, partly_lost):
        exact = to_float64(reference.gradtopk(x, k).p)
        p = stk.gradtopk(x, k, method=method)
        assert_close(p, exact, tolerance(x, 1.0))
        assert_relatively_close(p, exact, x, 1.0)
        mirrored = stk.gradtopk(-x, n - k, method=method)
        exact = to_float64(reference.gradtopk(-x, n - k).p)
        assert_relatively_close(mirrored, exact, x, 1.0)
    if gap >= 40:
        assert 0 < stk.gradtopk(far, k, method=method)[-1] < 1e-30


# ------------------------------------------------------------------------------ generated rows


class Problem(NamedTuple):
    x: np.ndarray
    k: int
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
}
SHORT = (2, 3, 5, 7, 13, 31)
MEDIUM = (*SHORT, 33, 100, 257, 1000)


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
    k = draw(st.sampled_from([1, n - 1]) | st.integers(1, n - 1))
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
    assert sum(p.k == 1 for p in seen) > 30
    assert sum(p.k == p.x.size - 1 for p in seen) > 30
    assert sum(1 < p.k < p.x.size - 1 for p in seen) > 50
    assert len({p.x.tobytes() for p in seen}) > 180
    spreads = [spread(p.x, p.tau) for p in seen]
    assert sum(r == 0 for r in spreads) > 10
    assert sum(r > 100 for r in spreads) > 10
    assert sum(0.1 < r < 100 for r in spreads) > 30


@every_method
@settings(max_examples=40)
@given(problems(SHORT))
def test_generated_rows(method, problem):
    """p against 80 digits on rows of every kind, small p by their own digits."""
    x, k, tau = problem[:3]
    exact = to_float64(reference.gradtopk(x, k, tau).p)
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    assert_close(p, exact, tolerance(x, tau))
    assert_relatively_close(p, exact, x, tau)


@every_method
@both_dtypes
@settings(max_examples=60)
@given(problems())
def test_range_and_sum(dtype, method, problem):
    """thm-grad-range: 0 <= p <= 1 and sum p = k; strictly between where float64 can say so."""
    x, k, tau = problem.x.astype(dtype), problem.k, problem.tau
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    assert p.dtype == dtype
    assert np.all((p >= 0) & (p <= 1))
    assert mass_error(p, k) <= mass_tolerance(dtype)
    if x.size > 1 and spread(x, tau) < 15 and dtype is np.float64:
        assert np.all(p > 0)
        assert np.all(p[x < x.max()] < 1)


@every_method
@both_dtypes
def test_range_and_sum_of_many_rows(dtype, method):
    """thm-grad-range on decided rows: where p is 0 or 1, rounding goes past neither.

    Quotients of sums come to 1 + eps in one row of ten thousand; these seeds hold a few of them.
    """
    for n, seed in ((5, 234), (13, 1), (38, 86)):
        rng = np.random.default_rng(seed)
        x = 300 * rng.uniform(-1, 1, size=(2000, n))
        k = rng.integers(1, n, size=2000)
        p = stk.gradtopk(x.astype(dtype), k, method=method)
        assert p.min() >= 0
        assert p.max() <= 1
        assert np.all(np.abs(p.sum(axis=1, dtype=np.float64) - k) <= mass_tolerance(dtype) * k)


@every_method
@settings(max_examples=60)
@given(problems())
def test_monotone(method, problem):
    """thm-grad-monotone: x_i >= x_j implies p_i >= p_j, to a few units of the last place."""
    x, k, tau = problem[:3]
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    order = np.argsort(x, kind="stable")
    ordered = p[order]
    slack = 32 * EPS[np.float64] * np.maximum(ordered[1:], ordered[:-1])
    assert np.all(np.diff(ordered) >= -slack)
    equal = np.diff(x[order]) == 0
    assert np.all(np.abs(np.diff(ordered))[equal] <= slack[equal])


def test_strictly_monotone():
    """thm-grad-monotone: the converse holds too, no curve saturates; odds differ by no more."""
    x = np.array([9.0, 8.0, 0.5, 0.0, -8.0, -9.0])
    for k in range(1, 6):
        p = stk.gradtopk(x, k, temperature=4.0)
        assert np.all(np.diff(p) < 0)
        odds = np.log(p) - np.log1p(-p)
        # P(i, not j) = e^(z_i - z_j) P(j, not i): the logits of p are further apart than z is.
        assert np.all(-np.diff(odds) >= -np.diff(x) / 4.0 - 1e-12)


@every_method
@settings(max_examples=40)
@given(problems(), st.integers(-(2**30), 2**30))
def test_shift_invariance(method, problem, shift):
    """thm-grad-invariance: p(x + c) = p(x), for integers, whose sum is exact; p(ax; a tau)."""
    unit = problem.scale / 1024
    x, tau = np.round((problem.x - problem.offset) / unit), problem.tau / unit
    options = {"method": method}
    p = stk.gradtopk(x, problem.k, temperature=tau, **options)
    shifted = stk.gradtopk(x + shift, problem.k, temperature=tau, **options)
    assert_close(shifted, p, 2 * tolerance(x, tau))
    scaled = stk.gradtopk(8 * x, problem.k, temperature=8 * tau, **options)
    assert_close(scaled, p, 2 * tolerance(x, tau))


@every_method
@settings(max_examples=40)
@given(problems(), st.integers(0, 2**32 - 1))
def test_permutation_equivariance(method, problem, seed):
    """thm-grad-invariance: permuting x permutes p."""
    x, k, tau = problem[:3]
    order = np.random.default_rng(seed).permutation(x.size)
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    permuted = stk.gradtopk(x[order], k, temperature=tau, method=method)
    assert_close(permuted, p[order], 2 * tolerance(x, tau))


@both_dtypes
@settings(max_examples=60)
@given(problems())
def test_methods_agree(dtype, problem):
    """contour and dp, which share no formula, end at the same p and the same potential."""
    x, k, tau = problem.x.astype(dtype), problem.k, problem.tau
    both = [stk.gradtopk(x, k, temperature=tau, method=m) for m in ("contour", "dp")]
    assert_close(both[0], both[1].astype(np.float64), 2 * tolerance(x, tau, dtype))
    phi = [stk.gradtopk.potential(x, k, temperature=tau, method=m) for m in ("contour", "dp")]
    scale = max(k * float(np.abs(x).max()), k * tau * (1 + spread(x, tau)))
    assert abs(float(phi[0]) - float(phi[1])) <= mass_tolerance(dtype) * scale


def test_infinite_scores():
    """thm-infinite: what a score without bound leaves to the others, and what infinity returns."""
    others, at = np.random.default_rng(93).normal(size=6), 2
    for k in range(1, 7):
        for sign, left in ((1, k - 1), (-1, k)):
            limit = np.insert(to_float64(reference.gradtopk(others, left).p), at, k - left)
            p = to_float64(reference.gradtopk(np.insert(others, at, 90.0 * sign), k).p)
            np.testing.assert_allclose(p, limit, rtol=0, atol=1e-15)
            p = stk.gradtopk(np.insert(others, at, np.inf * sign), k)
            np.testing.assert_allclose(p, limit, rtol=0, atol=tolerance(others, 1.0))


@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_convergence_rate(kind):
    """thm-grad-convergence: ||p - T_k||_1 <= 2 k (n - k) e^(-g/tau), and so p -> T_k if g > 0."""
    rng = np.random.default_rng(5)
    n = 20
    gaps = 0
    for k in (1, 7, 10, 19):
        for _ in range(8):
            x = KINDS[kind](rng, n)
            ordered = np.sort(x)[::-1]
            gap = ordered[k - 1] - ordered[k]
            if gap == 0:
                continue
            gaps += 1
            for ratio in (1.1, 5.1, 12.0, 25.0, 60.0):
                tau = gap / ratio
                distance = np.abs(
                    stk.gradtopk(x, k, temperature=tau) - reference.hardtopk(x, k)
                ).sum()
                bound = 2 * k * (n - k) * math.exp(-ratio)
                assert distance <= bound + n * tolerance(x, tau)
    assert gaps >= 8
    # Two clusters show that neither the rate nor its constant can be improved.
    x = np.repeat([1.0, 0.0], [7, 13])
    distance = np.abs(stk.gradtopk(x, 7, temperature=1 / 20) - x).sum()
    assert distance == pytest.approx(2 * 7 * 13 * math.exp(-20), rel=1e-4)


# ------------------------------------------------------------------------------ the potential


def test_potential_does_not_depend_on_the_method():
    """To the bit, so that the tests of the potential need not try each."""
    x = np.random.default_rng(35).normal(size=(3, 40))
    for k in (1, 20, 39):
        phi = stk.gradtopk.potential(x, k)
        for method in ("contour", "dp"):
            np.testing.assert_array_equal(stk.gradtopk.potential(x, k, method=method), phi)


@settings(max_examples=60)
@given(problems())
def test_bounds_of_potential(problem):
    """thm-grad-potential: s_k <= phi <= s_k + tau log C(n, k)."""
    x, k, tau = problem[:3]
    phi = stk.gradtopk.potential(x, k, temperature=tau)
    lower = reference.sum_of_largest(x, k)
    subsets = special.gammaln(x.size + 1) - special.gammaln(k + 1) - special.gammaln(x.size - k + 1)
    rounding = 1e-12 * max(k * np.abs(x).max(), tau * x.size)
    assert lower - rounding <= phi <= lower + tau * subsets + rounding
    if problem.kind == "constant":  # attained: every subset weighs the same
        assert phi == pytest.approx(lower + tau * subsets, abs=rounding)


@both_dtypes
@every_shorter_row
def test_potential(name, dtype):
    """thm-grad-potential: phi = tau log Z_k against 80 digits, log Z_k itself at temperature 1."""
    x, k, tau = known(name, dtype)[:3]
    exact = float(reference.gradtopk(x, k, tau).potential)
    phi = stk.gradtopk.potential(x, k, temperature=tau)
    assert phi.dtype == dtype
    scale = max(1.0, abs(exact), k * float(np.abs(x).max()))
    assert abs(float(phi) - exact) <= (1e-13 if dtype is np.float64 else 1e-6) * scale
    if tau == 1.0 and spread(x, tau) < 100:
        shift = float(x.mean())
        total = reference.elementary_symmetric([float(v) - shift for v in x], k)
        assert float(mp.log(total) + k * shift) == pytest.approx(exact, abs=1e-12 * scale)


@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (11, 4), (40, 39), (130, 61)])
def test_potential_has_gradient_p(n, k, tau):
    """thm-grad-potential: grad phi = p, by central differences."""
    x = np.random.default_rng(n).normal(size=n)
    h = 1e-4 * tau
    up, down = (stk.gradtopk.potential(x + s * h * np.eye(n), k, temperature=tau) for s in (1, -1))
    # h^2 phi'''/6 is below h^2/(6 tau^2); phi is rounded at eps |phi|/h.
    assert_close((up - down) / (2 * h), stk.gradtopk(x, k, temperature=tau), 1e-8)


def test_potential_is_a_maximum():
    """thm-grad-potential: phi = max over distributions Q of k-subsets of <x, marginals> + tau H(Q).

    Attained by the k-subset distribution alone, whose entropy is dphi/dtau.
    """
    rng = np.random.default_rng(57)
    for n, k, tau in ((5, 2, 0.7), (6, 3, 0.2), (4, 1, 2.0)):
        x = rng.normal(size=n)
        members = np.array(
            [[i in s for i in range(n)] for s in itertools.combinations(range(n), k)]
        )
        phi = stk.gradtopk.potential(x, k, temperature=tau)
        for _ in range(50):
            distribution = rng.dirichlet(np.full(len(members), rng.choice([0.1, 1.0, 10.0])))
            entropy = float(special.entr(distribution).sum())
            assert distribution @ members @ x + tau * entropy < phi
        distribution = special.softmax(members @ x / tau)
        entropy = float(special.entr(distribution).sum())
        assert distribution @ members @ x + tau * entropy == pytest.approx(phi, abs=1e-13)
        h = 1e-5 * tau
        up, down = (stk.gradtopk.potential(x, k, temperature=tau + s * h) for s in (1, -1))
        assert (up - down) / (2 * h) == pytest.approx(entropy, abs=1e-8)


# ------------------------------------------------------------------------------- derivatives


SMOOTH = [
    (2, 1, 1.0),
    (5, 3, 0.3),
    (13, 12, 2.0),
    (33, 1, 0.5),
    (40, 11, 0.2),
    (64, 32, 1.0),
    (64, 60, 50.0),
]
every_smooth_row = pytest.mark.parametrize(("n", "k", "tau"), SMOOTH)


@every_method
@both_dtypes
@every_smooth_row
def test_jvp(n, k, tau, dtype, method):
    """thm-grad-jacobian: tau J v = Cov(S) v, from exact pair marginals."""
    rng = np.random.default_rng(n + k)
    x, dx = rng.normal(size=(2, n)).astype(dtype)
    p, dp = stk.gradtopk.jvp(x, k, dx, temperature=tau, method=method)
    assert p.dtype == dp.dtype == dtype
    np.testing.assert_array_equal(p, stk.gradtopk(x, k, temperature=tau, method=method))
    expected = tau * to_float64(reference.gradtopk_jvp(x, k, dx, tau))
    assert np.abs(expected).max() > 1e-3
    atol = tangent_tolerance(x, tau, dtype) * max(1.0, float(np.abs(dx).max()))
    assert_close(tau * dp.astype(np.float64), expected, atol)
    pulled = stk.gradtopk.vjp(x, k, temperature=tau, method=method)[1](dx)
    assert_close(tau * pulled.x.astype(np.float64), expected, atol)
    assert pulled.k is None


@every_method
@every_smooth_row
def test_derivative_in_temperature(n, k, tau, method):
    """thm-grad-jacobian: dp/dtau = -J z, alone, together with dx, and pulled back."""
    x, dx, u = np.random.default_rng(n * k).normal(size=(3, n))
    options = {"temperature": tau, "method": method}
    in_tau = to_float64(reference.gradtopk_jvp(x, k, 0 * x, tau, 1.0))
    difference = to_float64(reference.gradtopk_jvp_by_difference(x, k, 0 * x, tau, 1.0))
    assert_close(in_tau, difference, 1e-15 * max(1.0, np.abs(in_tau).max()))
    in_x = to_float64(reference.gradtopk_jvp(x, k, dx, tau))
    scale = max(1.0, np.abs(in_x).max(), np.abs(in_tau).max())
    atol = 10 * tangent_tolerance(x, tau) * scale
    assert_close(stk.gradtopk.jvp(x, k, 0 * x, dtemperature=1.0, **options)[1], in_tau, atol)
    together = stk.gradtopk.jvp(x, k, dx, dtemperature=-0.2, **options)[1]
    assert_close(together, in_x - 0.2 * in_tau, atol)
    pulled = stk.gradtopk.vjp(x, k, **options)[1](u)
    assert pulled.temperature == pytest.approx(u @ in_tau, abs=atol * np.abs(u).sum())


def test_temperature_moves_generated_rows():
    """dp/dtau is of some size in the rows above, so that agreeing with it means something."""
    sizes = []
    for n, k, tau in SMOOTH:
        x = np.random.default_rng(n * k).normal(size=(3, n))[0]
        sizes.append(tau * np.abs(to_float64(reference.gradtopk_jvp(x, k, 0 * x, tau, 1.0))).max())
    assert sum(size > 1e-2 for size in sizes) >= 5


@every_method
@settings(max_examples=30)
@given(problems((2, 3, 7, 13, 33, 60)), st.integers(0, 2**32 - 1))
def test_jacobian(method, problem, seed):
    """thm-grad-jacobian: symmetric, positive semidefinite, rows sum to 0, off the diagonal <= 0.

    The last says that the events i in S repel each other.
    """
    x, k, tau = problem[:3]
    n = x.size
    jacobian = matrix(x, k, tau, method)
    atol = tangent_tolerance(x, tau)
    assert_close(jacobian, jacobian.T, atol)
    assert_close(jacobian.sum(axis=0), np.zeros(n), n * atol)
    assert_close(jacobian.sum(axis=1), np.zeros(n), n * atol)
    assert np.all(jacobian[~np.eye(n, dtype=bool)] <= atol)
    assert np.linalg.eigvalsh((jacobian + jacobian.T) / 2).min() >= -n * atol
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    assert_close(np.diag(jacobian), p * (1 - p), atol)

    u, v = np.random.default_rng(seed).normal(size=(2, n))
    _, dp = stk.gradtopk.jvp(x, k, v, temperature=tau, method=method)
    _, pullback = stk.gradtopk.vjp(x, k, temperature=tau, method=method)
    pairing = tau * (u @ dp - pullback(u).x @ v)
    assert abs(pairing) <= n * atol * np.abs(u).max() * np.abs(v).max()


@every_method
@pytest.mark.parametrize("n", [5, 33, 257])
def test_jvp_by_difference(n, method):
    """thm-grad-jacobian on rows too long for pair marginals: the package's own p, differenced."""
    rng = np.random.default_rng(n)
    for k in (1, n // 3, n - 1):
        x, dx = rng.normal(size=(2, n))
        h = 1e-5
        up, down = (stk.gradtopk(x + s * h * dx, k, method="dp") for s in (1, -1))
        dp = stk.gradtopk.jvp(x, k, dx, method=method)[1]
        assert_close(dp, (up - down) / (2 * h), 3e-9)


def test_conditioning():
    """prop-grad-conditioning: sum_j |d log p_i/dz_j| = 2 (1 - p_i), so p is known as well as z is.

    First on exact pairs; then an error of d in every z moves log p by less than 2 d.
    """
    for n, k in ((5, 2), (12, 7), (30, 29)):
        x = np.random.default_rng(n).normal(size=n) * 3
        p, pairs = reference.gradtopk(x, k).p, reference.gradtopk_pairs(x, k)
        for i in range(n):
            moved = mp.fsum(abs(pairs[i][j] / p[i] - p[j]) for j in range(n))
            assert abs(moved - 2 * (1 - p[i])) < 1e-60

    rng = np.random.default_rng(41)
    largest = 0.0
    for n, k, scale in ((10, 3, 1.0), (100, 60, 10.0), (400, 5, 30.0)):
        x, error = scale * rng.normal(size=n), 1e-3 * rng.choice([-1.0, 1.0], size=n)
        p, q = stk.gradtopk(x, k), stk.gradtopk(x + error, k)
        normal = p > TINY
        change = np.abs(np.log(q[normal] / p[normal]))
        largest = max(largest, change.max())
        assert np.all(change <= 2e-3 + 1e-10)
    assert largest > 1e-3


# ------------------------------------------------------------------------------- special cases


@every_method
@settings(max_examples=60)
@given(problems())
def test_k1_is_softmax(method, problem):
    """prop-grad-k1: softmax at k = 1, and log Z_1 is logsumexp."""
    x, _, tau = problem[:3]
    z = (x - x.max()) / tau
    p = stk.gradtopk(x, 1, temperature=tau, method=method)
    expected = special.softmax(z)
    # An error of z by eps R moves log p by as much, twice.
    assert_close(p, expected, 1e-15 + 4 * EPS[np.float64] * min(spread(x, tau), 750.0))
    phi = stk.gradtopk.potential(x, 1, temperature=tau, method=method)
    exact = x.max() + tau * special.logsumexp(z)
    assert abs(phi - exact) <= 1e-13 * max(abs(exact), np.abs(x).max(), tau)


def test_conditional_bernoulli():
    """id-conditional-bernoulli: gradtopk of log-odds is P(coin i up | k up), by listing tosses."""
    rng = np.random.default_rng(58)
    tosses = np.array(list(itertools.product([False, True], repeat=9)))
    for k in (1, 4, 8):
        q = rng.uniform(0.02, 0.98, size=9)
        distribution = np.where(tosses, q, 1 - q).prod(axis=1) * (tosses.sum(axis=1) == k)
        assert_close(
            stk.gradtopk(special.logit(q), k), distribution @ tosses / distribution.sum(), 1e-13
        )


@every_method
@settings(max_examples=60)
@given(problems())
def test_complement(method, problem):
    """prop-grad-complement: p(x, k) + p(-x, n - k) = 1."""
    x, k, tau = problem[:3]
    p = stk.gradtopk(x, k, temperature=tau, method=method)
    q = stk.gradtopk(-x, x.size - k, temperature=tau, method=method)
    assert_close(p + q, np.ones(x.size), 2 * tolerance(x, tau))
    phi = stk.gradtopk.potential(x, k, temperature=tau, method=method)
    mirrored = stk.gradtopk.potential(-x, x.size - k, temperature=tau, method=method)
    # Z_k(z) = e^(sum z) Z_(n-k)(-z): leaving out is choosing.
    scale = x.size * max(np.abs(x).max(), tau)
    assert abs(phi - mirrored - math.fsum(x)) <= 1e-12 * scale


@pytest.mark.parametrize("curve", ["sigmoid", "laplace", "normal"])
@settings(max_examples=40)
@given(problems())
def test_complement_thretopk(curve, problem):
    """thm-complement in float32: the same symmetry of the threshold operator's odd curves."""
    x, k, tau = problem.x.astype(np.float32), problem.k, problem.tau
    p = stk.thretopk(x, k, temperature=tau, curve=curve)
    q = stk.thretopk(-x, x.size - k, temperature=tau, curve=curve)
    assert_close(p.astype(np.float64) + q, np.ones(x.size), 2 * tolerance(x, tau, np.float32))


@every_method
def test_largest_false(method):
    """The k smallest are the k largest of -x."""
    x = np.random.default_rng(42).normal(size=50)
    p = stk.gradtopk(x, 12, largest=False, method=method)
    np.testing.assert_array_equal(p, stk.gradtopk(-x, 12, method=method))


def test_unknown_method():
    with pytest.raises(ValueError, match=r"method.*'newton'"):
        stk.gradtopk(np.ones(3), 1, method="newton")


# ------------------------------------------------------------------------------ the recursion


def test_recursion_on_easy_rows():
    """prop-grad-recursion: right for small k and a small spread."""
    rng = np.random.default_rng(43)
    x = 0.5 * rng.normal(size=(20, 30))
    for k in (1, 2, 3, 5):
        p = stk.gradtopk(x, k, method="recursion")
        assert_close(p, stk.gradtopk(x, k), 1e-12)


def test_a_step_of_the_recursion_multiplies_errors_by_the_odds():
    """prop-grad-recursion: by -p/(1 - p), but for a number common to all entries; p rises."""
    rng, size = np.random.default_rng(44), 1e-7
    x = 1.5 * rng.normal(size=12)

    def step(p):
        following = np.exp(x) * (1 - p)
        return following / following.sum()

    before = np.zeros(12)
    for m in range(1, 11):
        p = stk.gradtopk(x, m)
        assert (p > before).all()
        errors = size * rng.normal(size=12)
        found = np.log(step(p * (1 + errors)) / step(p)) / size
        expected = -p / (1 - p) * errors / size
        off = found - found[0] - (expected - expected[0])
        assert abs(off).max() < 1e-3 * abs(expected).max()
        before = p


def test_recursion_fails_where_contour_does_not():
    """prop-grad-recursion: NaN, or finite and far off, on rows of no special kind."""
    x = 3 * np.random.default_rng(100).normal(size=(100, 100))
    wrong = 0
    for k, least_lost in ((10, 1), (20, 50)):
        p = stk.gradtopk(x, k, method="recursion")
        right = stk.gradtopk(x, k, method="contour")
        finite = np.isfinite(p).all(axis=1)
        assert np.sum(~finite) >= least_lost
        off = np.where(finite, np.abs(np.nan_to_num(p) - right).max(axis=1), 0.0)
        for i in np.flatnonzero(off > 0.1):
            wrong += 1
            exact = to_float64(reference.gradtopk(x[i], k).p)
            assert np.abs(p[i] - exact).max() > 0.1
            assert_close(right[i], exact, tolerance(x[i], 1.0))
    assert wrong >= 3


# ------------------------------------------------------------- what the contour method rests on


def pmf(pi):
    """The distribution of N, a sum of independent coins, from sums of positive terms."""
    distribution = np.ones(1)
    for probability in pi:
        distribution = np.convolve(distribution, [1 - probability, probability])
    return distribution


def tilted(z, mean, counts=1):
    """pi = sigmoid(z - l) with sum pi = mean, and l; every entry counts so many times."""
    low, high = z.min() - 60.0, z.max() + 60.0
    while low < (middle := 0.5 * (low + high)) < high:
        total = np.sum(counts * special.expit(z - middle))
        low, high = (middle, high) if total >= mean else (low, middle)
    return special.expit(z - low), low


def coins():
    """(pi, k) of many sums of coins of mean k - 1/2, from nearly certain to undecided."""
    rng = np.random.default_rng(44)
    for n in (1, 2, 3, 8, 40, 300):
        for scale in (1e-3, 1.0, 5.0, 50.0):
            for k in sorted({1, (n + 1) // 2, n}):
                yield tilted(scale * rng.normal(size=n), k - 0.5)[0], k
    for k in (1, 5):  # nearly Poisson, and its mirror image
        pi = np.full(4000, (k - 0.5) / 4000)
        yield pi, k
        yield 1 - pi, 4000 - k + 1
    yield np.array([1 - 1e-12] * 6 + [1e-12] * 20 + [0.5]), 7


def test_coins_vary():
    variances = [float(np.sum(pi * (1 - pi))) for pi, _ in coins()]
    assert min(variances) < 0.26
    assert max(variances) > 50
    assert len({round(v, 6) for v in variances}) > 30


def test_tilt():
    """thm-grad-tilt: given N = k, coins of odds e^(z - l) are the k-subset, whatever l is.

    p_i = pi_i P(N - coin i = k - 1)/P(N = k), and the weights are as stated.
    """
    x = np.random.default_rng(45).normal(size=14) * 2
    z = reference.exact(x)
    for k in (1, 5, 13):
        exact = reference.gradtopk(x, k)
        for l in (mp.mpf(-3), mp.mpf(0), mp.mpf("0.7"), mp.mpf(9)):
            pi = [1 / (1 + mp.exp(l - v)) for v in z]
            at_k = _coins_mp(pi)[k]
            for i, p in enumerate(exact.p):
                rest = _coins_mp(pi[:i] + pi[i + 1 :])
                assert abs(pi[i] * rest[k - 1] / at_k / p - 1) < 1e-60
            weights = mp.fsum(mp.log1p(mp.exp(v - l)) for v in z)
            assert abs(k * l + weights + mp.log(at_k) - exact.potential) < 1e-60


def _coins_mp(pi):
    distribution = [reference.ONE]
    for q in pi:
        distribution = [
            (distribution[a] * (1 - q) if a < len(distribution) else 0)
            + (distribution[a - 1] * q if a else 0)
            for a in range(len(distribution) + 1)
        ]
    return distribution


def test_mass_at_k():
    """thm-grad-mass: if sum pi = k - 1/2, then P(N = k)/P(N = k - 1) lies in [1/3, 3].

    Hence P(N = k) is a third of the largest at least, and that is 1/sqrt(1 + 12 v) at least, with
    v = sum pi (1 - pi) >= 1/4; it is attained by a certain count, and nearly by many coins.
    """
    ratios, closest = [], 1.0
    for pi, k in coins():
        distribution, v = pmf(pi), float(np.sum(pi * (1 - pi)))
        assert float(pi.sum()) == pytest.approx(k - 0.5, abs=1e-9)
        assert v >= 0.25 - 1e-12
        ratios.append(distribution[k] / distribution[k - 1])
        assert 1 / 3 - 1e-12 <= ratios[-1] <= 3 + 1e-12
        assert distribution.max() == pytest.approx(
            max(distribution[k], distribution[k - 1]), rel=1e-12
        )
        assert distribution.max() >= 1 / math.sqrt(1 + 12 * v)
        assert distribution[k] >= 1 / (3 * math.sqrt(1 + 12 * v))
    assert min(ratios) < 0.6
    assert max(ratios) > 1.7
    for v in (1e-6, 1e-3, 0.1, 0.25):  # one coin, the mean anywhere
        pi = 0.5 - math.sqrt(0.25 - v)
        closest = min(closest, (1 - pi) * math.sqrt(1 + 12 * v))
        assert 1 - pi >= 1 / math.sqrt(1 + 12 * v)
    assert closest < 1.0 + 1e-5


def test_neighbours_of_any_mean():
    """thm-grad-mass, part 2: mu >= k - 1 + a gives a P(k - 1) <= (1 + a) P(k), and mirrored.

    One coin beside many of small chances comes near: N - (k - 1) is nearly geometric or a coin.
    """
    rng, closest = np.random.default_rng(60), np.inf
    for n in (1, 2, 5, 30, 400):
        for _ in range(60):
            z = rng.choice([0.1, 2.0, 9.0]) * rng.normal(size=n)
            k = int(rng.integers(1, n + 1))
            a = float(rng.choice([0.02, 0.3, 0.5, 0.8, 1.0]))
            if k - 1 + a >= n:
                continue
            for sign in (1, -1):
                pi, _ = tilted(z, k - 1 + a if sign > 0 else n - (k - 1 + a))
                distribution = pmf(pi)[::sign]
                quotient = distribution[k] * (1 + a) / (distribution[k - 1] * a)
                assert quotient >= 1 - 1e-9
                closest = min(closest, quotient)
    pi = np.full(100_000, 0.5 / 100_000)
    poisson = math.log(1 - pi[0]) * pi.size
    first = math.exp(poisson) * pi.size * pi[0] / (1 - pi[0])
    assert first * 1.5 / (math.exp(poisson) * 0.5) < 1.51
    assert closest < 1.2


def coefficients(pi, k, nodes):
    """w_j and c_j = w_j^-k prod(1 + pi (w_j - 1))/M at the M-th roots of 1."""
    theta = 2 * np.pi * np.arange(nodes) / nodes
    w = np.exp(1j * theta)
    product = np.ones(nodes, dtype=complex)
    for probability in pi:
        product *= 1 + probability * (w - 1)
    return theta, w, np.exp(-1j * k * theta) * product / nodes


def test_aliasing():
    """thm-grad-aliasing: M nodes give sum_r P(N = k + r M); the rest is what Bernstein allows.

    With t = M - 1/2, the distance from the mean: at most 2 exp(-t^2/(2 (v + t/3))).
    """
    closest = 0.0
    for pi, k in coins():
        distribution, v = pmf(pi), float(np.sum(pi * (1 - pi)))
        for nodes in (1, 2, 5, 12, 40, len(pi) + 1):
            _, _, c = coefficients(pi, k, nodes)
            folded = distribution[k % nodes :: nodes].sum()
            assert abs(c.sum() - folded) <= 1e-12
            aliased = np.delete(distribution, k)[
                np.delete(np.arange(distribution.size), k) % nodes == k % nodes
            ]
            t = nodes - 0.5
            bound = 2 * math.exp(-(t**2) / (2 * (v + t / 3)))
            assert aliased.sum() <= bound
            if bound > 1e-300:
                closest = max(closest, aliased.sum() / bound)
            if nodes == len(pi) + 1:
                assert aliased.size == 0
    assert closest > 0.1


def nodes_for(v, eps):
    """How many nodes the theorems call for: M for aliasing below eps P(N = k), and those kept."""
    exponent = math.log(2 / eps) + math.log(4 * (1 + 4 * math.sqrt(v)))
    count = math.ceil(0.5 + exponent / 3 + math.sqrt(exponent**2 / 9 + 2 * exponent * v))
    kept = sum(
        2 * v * math.sin(math.pi * j / count) ** 2 <= exponent
        for j in range(min(count // 2, 200) + 1)
    )
    return count, kept, exponent


def test_nodes():
    """thm-grad-nodes: |1 + pi (w - 1)|^2 = 1 - 4 pi (1 - pi) sin^2(theta/2), so most nodes vanish.

    |c_j| <= exp(-2 v sin^2(theta_j/2))/M; what is left is at most 32 nodes for every n, k and v.
    """
    rng = np.random.default_rng(46)
    pi, theta = rng.random(1000), rng.uniform(-np.pi, np.pi, size=1000)
    modulus = np.abs(1 + pi * (np.exp(1j * theta) - 1)) ** 2
    assert_close(modulus, 1 - 4 * pi * (1 - pi) * np.sin(theta / 2) ** 2, 1e-14)
    for pi, k in coins():
        v = float(np.sum(pi * (1 - pi)))
        theta, _, c = coefficients(pi, k, 64)
        assert np.all(np.abs(c) <= np.exp(-2 * v * np.sin(theta / 2) ** 2) / 64 * (1 + 1e-12))
    for eps, most in ((2.0**-52, 32), (2.0**-23, 18)):

        def nodes(v, eps=eps):
            return nodes_for(v, eps)

        also = jumps(lambda v, nodes=nodes: nodes(v)[0], 0.25, 1e3)
        assert largest(lambda v, nodes=nodes: nodes(v)[1], 0.25, 1e14, also=also)[0] <= most
        _, kept, exponent = nodes(1e14)
        assert kept <= exponent / math.pi + 2


def test_nodes_suffice():
    """thm-grad-aliasing with thm-grad-nodes: P(N = k) to eps from the nodes that are called for."""
    fewer = 0
    for pi, k in coins():
        distribution, v = pmf(pi), float(np.sum(pi * (1 - pi)))
        count, _, exponent = nodes_for(v, 2.0**-52)
        theta, _, c = coefficients(pi, k, count)
        kept = 2 * v * np.sin(theta / 2) ** 2 <= exponent
        fewer += int(not kept.all())
        # Every coin is one more rounding.
        assert abs(c[kept].sum() - distribution[k]) <= (pi.size + 10) * 2.0**-52 * distribution[k]
    assert fewer >= 3


def test_marginals():
    """thm-grad-marginals: p = pi + pi (1 - pi) sum_j [A - B + g B pi]/[1 - g pi (1 - pi)].

    And the sum is what the complex one is: p = sum_j c pi w/(1 + pi (w - 1)), c of sum 1.
    """
    rng = np.random.default_rng(47)
    for n, k, scale in ((3, 1, 1.0), (20, 9, 2.0), (80, 79, 1.0), (120, 50, 0.3)):
        z = scale * rng.normal(size=n)
        exact = to_float64(reference.gradtopk(z, k).p)
        pi, _ = tilted(z, k - 0.5)
        theta, w, c = coefficients(pi, k, n + 1)
        c = c / c.sum().real
        direct = (c * pi[:, None] * w / (1 + pi[:, None] * (w - 1))).sum(axis=1)
        assert_close(direct.imag, np.zeros(n), 1e-12)
        assert_close(direct.real, exact, 1e-12)
        g, s, upper = 2 * (1 - np.cos(theta)), (pi * (1 - pi))[:, None], pi[:, None]
        # A node at -1 meets a coin of 1/2 in 0/0: c holds the same factor. None is there.
        terms = ((c * w).real - c.real + g * c.real * upper) / (1 - g * s)
        assert_close(pi + (s * terms).sum(axis=1), exact, 1e-12)
        # Node by node: (w - 1)/(1 + pi (w - 1)), its real part with the weight c.
        single = c * (w - 1) / (1 + upper * (w - 1))
        assert_close(terms, single.real, 1e-10)


def test_counts_are_log_concave():
    """thm-grad-mass: N's distribution is log-concave; p/pi >= 1/3, and p/pi <= 6 where pi <= 1/2.

    Where pi >= 1/2, (1 - p)/(1 - pi) <= 6.
    """
    factors = []
    for pi, k in coins():
        distribution = pmf(pi)
        assert np.all(distribution[1:-1] ** 2 >= distribution[:-2] * distribution[2:] * (1 - 1e-12))
        if k < len(pi):
            for i in {0, len(pi) // 2, len(pi) - 1}:
                rest = pmf(np.delete(pi, i))
                factor = rest[k - 1] / distribution[k]
                assert pi[i] < 0.5 or rest[k] / distribution[k] <= 6 + 1e-12
                assert 1 / 3 - 1e-12 <= factor <= (6 if pi[i] <= 0.5 else 1 / pi[i]) + 1e-12
                factors.append(factor)
    assert len(factors) > 100
    assert min(factors) < 1.05
    assert max(factors) > 1.9


def test_inexact_tilt():
    """thm-grad-mass: a tilt that is off k - 1/2 costs log P(N = k) at most what it says.

    On the way the variance changes by no more than the mean. Two coins of which one is all but
    certain come nearest.
    """
    rng = np.random.default_rng(55)
    losses, nearest = [], 0.0
    for n, k, scale in ((5, 2, 3.0), (40, 17, 1.0), (400, 100, 1.0), (2000, 1990, 2.0)):
        z = scale * rng.normal(size=n)
        pi, l = tilted(z, k - 0.5)
        exact = math.log(pmf(pi)[k])
        for move in (-0.3, -0.02, -1e-3, 1e-3, 0.02, 0.3):
            moved = special.expit(z - l - move)
            off, v = float(moved.sum()) - (k - 0.5), float(np.sum(moved * (1 - moved)))
            assert abs(off) < v
            assert abs(v - float(np.sum(pi * (1 - pi)))) <= abs(off) + 1e-9
            loss = exact - math.log(pmf(moved)[k])
            most = loss_of_tilt(v, abs(off))
            assert loss <= most + 1e-11
            losses.append(loss)
            nearest = max(nearest, loss / most)
    assert max(losses) > 1
    assert min(losses) < -1e-4
    assert nearest > 0.95


def test_level():
    """prop-grad-level: 2 e^-L <= 1.6 eps P(N = k), by the worst variance and error of the mean.

    And the sums without one variable, which the same nodes serve, have 4.5 times that at most.
    """
    assert rows.NEAR_ENOUGH == FARTHEST

    def plain(v):
        return 3 * math.sqrt(1 + 12 * v) / (16 * math.sqrt(v) + 4)

    most, _ = largest(plain, 0.25, 1e12)
    assert 0.645 < most < 0.65

    def beside(v, off):
        return rarest(v, off) / (16 * math.sqrt(v) + 4)

    def level(v):
        return max(beside(v, off) * math.exp(-(off**2) / v) for off in accepted(v))

    most, place = largest(level, LEAST_VARIANCE, 1e12)
    assert 1.49 < most < 1.505
    assert place == pytest.approx(0.497, abs=1e-3)
    assert largest(lambda v: max(beside(v, o) for o in accepted(v)), 2.77, 1e12)[0] <= 1.0

    def without_one(v, one):
        worst = 0.0
        for off in accepted(v):
            exponent = float(formulas.exponent(v, one)) + off**2 / v
            t = formulas.bernstein_radius(exponent, v) - min(2 * off, 1.0)
            worst = max(worst, exponent - t**2 / (2 * (v + t / 3)))
        return math.exp(worst)

    for one in (np.float64(1), np.float32(1)):
        assert 4.3 < largest(functools.partial(without_one, one=one), LEAST_VARIANCE, 1e12)[0] < 4.5
    # What they say of sums of coins, at the tilts that are accepted.
    rng, nearest = np.random.default_rng(61), 0.0
    for n, k, scale in ((2, 1, 30.0), (5, 2, 3.0), (40, 17, 1.0), (400, 100, 1.0)):
        z = scale * rng.normal(size=n)
        for off in (-0.41, -0.25, -0.1, 0.1, 0.25, 0.41):
            pi, _ = tilted(z, k - 0.5 + off)
            v = float(np.sum(pi * (1 - pi)))
            if off**2 <= FARTHEST * v:
                nearest = max(nearest, 1 / (pmf(pi)[k] * rarest(v, abs(off))))
    assert 0.4 < nearest <= 1.0


# By what factor the variance may exceed what `core_limit` is told: a tilt may be off by 0.09
# temperatures and what a step of third order adds.
SLACK = math.exp(2 * 0.094)


def test_core_fits():
    """prop-grad-core: polynomials serve up to g s = RATIO below `core_limit`, and the core fits.

    Fewer than v/cut entries have s > cut, and none where the cut is 1/4, the largest s.
    """
    most = {}
    for one in (np.float64(1), np.float32(1)):

        def in_core(weight, one=one):
            cut, found = formulas.core_limit(moments.SURE * weight, one), 0.0
            for v in (max(weight, 0.25), max(weight * SLACK, 0.25)):
                level = formulas.exponent(v, one) + 0.34
                assert min(4.0, 2 * level / v) * cut <= formulas.ratio_of(one) * (1 + 1e-12)
                found = max(found, v / cut if cut < 0.25 else 0.0)
            return found

        most[type(one)], _ = largest(
            in_core,
            0.25 / SLACK,
            1e12,
            also=jumps(
                lambda weight, one=one: int(
                    formulas.core_limit(moments.SURE * weight, one) >= 0.25
                ),
                0.25 / SLACK,
                1e12,
            ),
        )
    assert 7000 < most[np.float64] < 7200 < contour.MOST_IN_CORE
    assert 420 < most[np.float32] < 450


def series_bounds(v, one, order, off, weight_of_v):
    """What the two series leave out at most, relative to P(N = k), for every row of variance v.

    `off`: the error of the mean; `weight_of_v`: V/v but for the factor of 0.945.
    """
    size, used = code_nodes(v, one, off)
    g = 4 * np.sin(np.pi * np.arange(used) / size) ** 2
    weight = np.where(np.arange(used) == 0, 1, 2) * np.exp(-v * g / 2) / size
    limit = formulas.ratio_of(one)
    top = limit / formulas.core_limit(moments.SURE * v * weight_of_v, one)
    ratio = min(2 * limit / math.sqrt(top), math.sqrt(top) / 2) * np.sqrt(g / top)
    assert ratio.max() <= math.sqrt(limit) + 1e-12
    powers = ratio ** (order - 1) * v * g / ((order + 1) * (1 - ratio))
    share = np.minimum(limit * g / top, g / 4)
    geometric = share**DEGREE / (1 - share)
    return (weight * powers).sum() * rarest(v, off), (weight * geometric).sum() * rarest(v, off)


def worst_series(which, one, order):
    """The largest of `series_bounds` over variances, errors of the mean and cuts; and its place."""

    def bound(v):
        return max(
            series_bounds(v, one, order, off, weight)[which]
            for off in accepted(v, 4)
            for weight in (1.0, 1 / SLACK)
        )

    return largest(bound, LEAST_VARIANCE, 1e8, points=150)


def code_nodes(v, one, off=0.0):
    """How many nodes there are and how many are used, as in `quadrature` for a long row."""
    level = float(formulas.exponent(v, one)) + off**2 / v
    size = int(level / 3 + math.sqrt(level**2 / 9 + 2 * level * v) + 0.5 + abs(off) + 1) | 1
    used = size // 2 + 1
    if 2 * v > level:
        used = min(used, int(size * math.asin(math.sqrt(0.5 * level / v)) / math.pi) + 1)
    return size, used


def test_series():
    """prop-grad-series: what ORDER and DEGREE leave out at the worst variance, and on one row.

    On the row, at the cut, the polynomials are compared with the sums node by node.
    """
    for one, order, most in (
        (np.float64(1), contour.ORDER, (3e-17, 9e-15)),
        (np.float32(1), contour.ORDER_32, (5.3e-9, 1.7e-7)),
    ):
        for which in (0, 1):
            left, place = worst_series(which, one, order)
            assert 0.94 * most[which] < left < most[which]
            if which == 1:
                assert place == pytest.approx(0.497, abs=1e-3)
            else:
                assert place == pytest.approx(1460 if order == contour.ORDER else 92, rel=0.01)

    # The power series is left out as it is bounded: r of all sizes up to the cut, some node.
    rng = np.random.default_rng(56)
    for top in (4.0, 0.5, 1 / 16, 1 / 40):
        limit = min(formulas.RATIO / top, 0.25)
        s = limit * rng.random(300) ** 2
        r = 0.5 - np.sqrt(0.25 - s)
        for g in top * np.array([0.01, 0.3, 1.0]):
            u = -g / 2 + 1j * math.sqrt(g - g * g / 4)
            m = np.arange(contour.ORDER + 1, 200)[:, None]
            left_out = abs(np.sum((-1.0) ** (m + 1) * (r * u) ** m / m))
            ratio = math.sqrt(g / top) / 8
            bound = ratio ** (contour.ORDER - 1) * s.sum() * g / (13 * (1 - ratio))
            assert left_out <= bound

    # Two coins at the cut and one undecided: v near 1/4, where the polynomials are at their worst.
    r = 0.5 - math.sqrt(0.25 - formulas.RATIO / 4)
    pi = np.array([r, 1 - r, 0.5])
    theta, w, c = coefficients(pi, 2, 27)
    g, c, s = 4 * np.sin(theta / 2) ** 2, c / c.sum().real, r * (1 - r)
    terms = (c * w).real * (1 - r) + c.real * r
    share = float(np.sum(terms / (1 - g * s)))
    left_out = float(np.sum(terms * (g * s) ** DEGREE / (1 - g * s)))
    assert 1e-17 < abs(left_out) / share < 1e-15


def test_blocks_of_small_chances():
    """prop-grad-series: what fewer terms leave out of them, at the worst variance."""

    def left_out(v, one, few):
        most = 0.0
        for off in accepted(v, 4):
            size, used = code_nodes(v, one, off)
            y = 2 * v * np.sin(np.pi * np.arange(used) / size) ** 2
            weight = np.where(np.arange(used) == 0, 1, 2) * np.exp(-y) / size
            most = max(most, rarest(v, off) * (4 * few) ** FEW / (1 - 4 * few) * weight.sum())
        return most

    for one, few, bound in (
        (np.float64(1), marginals.FAINT, 1.7e-15),
        (np.float32(1), marginals.FAINT_32, 1.8e-7),
    ):
        assert (
            0.94 * bound
            < largest(lambda v, a=one, b=few: left_out(v, a, b), LEAST_VARIANCE, 1e8)[0]
            < bound
        )


def test_nodes_of_the_code():
    """thm-grad-nodes: 30 nodes at most in float64 and 16 in float32, 32 with an inexact tilt."""
    for one, most in ((np.float64(1), 30), (np.float32(1), 16)):
        # |off| <= e^0.15 sqrt(v)/2 for the longest rows.
        for part, found in ((0.0, most), (0.59, most + 1)):

            def nodes(v, one=one, part=part):
                return code_nodes(v, one, part * math.sqrt(v))

            # Of circles of one size the worst has the least variance.
            also = jumps(lambda v, nodes=nodes: nodes(v)[0], 0.25, 1e4, 2)
            used, place = largest(lambda v, nodes=nodes: nodes(v)[1], 0.25, 1e13, also=also)
            assert used == found <= NODES
            assert place < 1e3


def test_temperature_and_k():
    """thm-grad-temperature: majorisation as tau falls, high tau, k, convexity and Lipschitz."""
    rng, loose, moved = np.random.default_rng(74), 1e-12, 0.0
    for kind, make in KINDS.items():
        for n in (2, 5, 13, 31):
            x, k = make(rng, n), int(rng.integers(1, n))
            tau = float(10.0 ** rng.uniform(-1, 1)) * (1e3 if kind == "magnitudes" else 1.0)
            order = np.argsort(-x, kind="stable")
            p, cold = (stk.gradtopk(x, k, temperature=t)[order] for t in (tau, 0.7 * tau))
            assert (np.cumsum(cold - p) >= -loose * n).all()
            moved = max(moved, np.cumsum(cold - p).max())
            assert (abs(p - k / n) <= spread(x, tau) / 4 + loose).all()
            more = stk.gradtopk(x, k + 1, temperature=tau)[order]
            assert (more - p >= -loose).all()
            assert abs(more - p).sum() == pytest.approx(1.0, abs=n * loose)
            other = x[::-1] + tau * rng.normal(size=n)
            far, dx = stk.gradtopk(other, k, temperature=tau), (x - other) / tau
            dp = stk.gradtopk(x, k, temperature=tau) - far
            assert 2 * (dp @ dp) <= dp @ dx + loose

            def phi(x, k, tau):
                return stk.gradtopk.potential(x, k, temperature=tau)

            size = n * (np.abs(x).max() + 3 * tau)
            between = phi(0.5 * (x + other), k, 1.5 * tau)
            assert between <= 0.5 * (phi(x, k, tau) + phi(other, k, 2 * tau)) + loose * size
            beside = phi(x, k - 1, tau) + phi(x, k + 1, tau)
            assert beside <= 2 * phi(x, k, tau) + loose * size
    assert moved > 0.02
    h = 1e-8
    dp = stk.gradtopk([h, -h], 1) - stk.gradtopk([0.0, 0.0], 1)
    assert np.linalg.norm(dp) == pytest.approx(math.sqrt(2) * h / 2, rel=1e-6)
    dp = stk.gradtopk([h, 0.0], 1) - 0.5  # half of the range, R/4 and not less
    assert abs(dp).max() == pytest.approx(h / 4, rel=1e-6)


def test_beside_sigmoid():
    """thm-grad-sigmoid: the constant 1.64 by the worst v, and both bounds on rows."""
    half = (np.arange(4000) + 0.5) * (math.pi / 8000)

    def apart(v):
        most = 0.0
        for rest in (max(v - 0.25, 0.0), max(v - 0.1, 0.0), v):
            phase = np.minimum(1, half + 4 * rest * (np.tan(half) - half))
            modulus = np.exp(-2 * rest * np.sin(half) ** 2)
            difference = (modulus * phase * np.sin(half)).sum() * (half[1] - half[0])
            most = max(most, min(1.0, 4 / math.pi * difference))
        return most * v * math.sqrt(1 + 12 * v)

    most, place = largest(apart, 1e-4, 1e4, points=150)
    assert 1.63 < most < 1.64
    assert place == pytest.approx(1.52, abs=0.01)
    assert apart(1e5) == pytest.approx(math.sqrt(6 / math.pi), abs=0.01)

    rng, nearest, lost = np.random.default_rng(75), 0.0, 0.0
    for n in (2, 7, 40, 400):
        for tau in (0.05, 0.3, 1.0, 30.0):
            x, k = rng.normal(size=n), int(rng.integers(1, n))
            p = stk.gradtopk(x, k, temperature=tau)
            q = stk.thretopk(x, k, curve="sigmoid", temperature=tau)
            s = q * (1 - q)
            v = float(s.sum())
            assert (abs(p - q) <= 1.64 * s / v + 1e-13).all()
            nearest = max(nearest, (abs(p - q)[s > 1e-6] * v / s[s > 1e-6]).max(initial=0.0))
            gap = stk.thretopk.potential(x, k, curve="sigmoid", temperature=tau)
            gap -= stk.gradtopk.potential(x, k, temperature=tau)
            assert -1e-12 <= gap <= tau / 2 * math.log(1 + 12 * v) + 1e-12 * n
            lost = max(lost, gap / (tau / 2 * math.log(1 + 12 * v)))
    assert nearest > 0.4
    assert lost > 0.8


def test_split_is_exact():
    """prop-grad-sampling: draw some variables, keep the draw with P(rest make up the count)/max.

    Then the rest given its count: the distribution of all given k, listed. A draw is kept with
    probability P(N = k)/max P(N_rest = b), at least 0.46 sqrt(v_rest)/sqrt(v + 1/12) for mean k.
    """
    rng = np.random.default_rng(59)
    for n, k in ((6, 2), (9, 5), (10, 9)):
        pi, _ = tilted(2 * rng.normal(size=n), float(k))
        tosses = np.array(list(itertools.product([False, True], repeat=n)))
        up = tosses.sum(axis=1)
        distribution = np.where(tosses, pi, 1 - pi).prod(axis=1)
        kept = np.arange(n) % 4 == 1
        rest, free = pmf(pi[kept]), tosses[:, ~kept]
        assert rest.argmax() in (math.floor(pi[kept].sum()), math.floor(pi[kept].sum()) + 1)
        left = k - free.sum(axis=1)
        possible = (left >= 0) & (left < rest.size)
        chance = np.where(possible, rest[np.clip(left, 0, rest.size - 1)], 0.0)
        tossed = np.where(free, pi[~kept], 1 - pi[~kept]).prod(axis=1)
        made_up = np.where(tosses[:, kept], pi[kept], 1 - pi[kept]).prod(axis=1)
        # The free coins fell like this, were kept, and then the rest like this, given its count.
        drawn = np.where(up == k, tossed * chance / rest.max() * made_up / chance.clip(1e-300), 0)
        assert_close(
            drawn / drawn.sum(),
            np.where(up == k, distribution, 0) / distribution[up == k].sum(),
            1e-14,
        )
        assert drawn.sum() == pytest.approx(pmf(pi)[k] / rest.max(), rel=1e-12)

    for n in (10, 100, 1000):
        for k in (1, n // 3, n - 1):
            pi, _ = tilted(3 * rng.normal(size=n), float(k))
            quarter = pi[np.arange(n) % 4 == 2]
            v, v_rest = (float(np.sum(q * (1 - q))) for q in (pi, quarter))
            rate = pmf(pi)[k] / pmf(quarter).max()
            assert rate >= 0.46 * math.sqrt(v_rest) / math.sqrt(v + 1 / 12) - 1e-12
            assert pmf(quarter).max() <= math.sqrt(math.pi / (8 * v_rest))


# --------------------------------------------------------------------------------- long rows


@functools.cache
def few_values(values, counts, k):
    """E N_g and Var N_g for each of the two or three values of a row: hypergeometric sums.

    N_g entries of group g are chosen with P ~ prod_g C(n_g, N_g) e^(N_g z_g), and p_g = E N_g/n_g.
    Log weights are running sums of log ratios, in long double, kept to e^-50 of the largest.
    """
    values = np.asarray(values, dtype=np.longdouble)
    tilt = tilted(values.astype(np.float64), k, np.array(counts))[1]
    distributions = []
    for value, count in zip(values, counts, strict=True):
        j = np.arange(count, dtype=np.longdouble)
        steps = np.log((count - j) / (j + 1)) + (value - tilt)
        logs = np.concatenate([[np.longdouble(0)], np.cumsum(steps)])
        kept = np.flatnonzero(logs > logs.max() - 50)
        weights = np.exp(logs[kept[0] : kept[-1] + 1] - logs.max())
        distributions.append((int(kept[0]), np.asarray(weights, dtype=np.float64)))
    means, variances = [], []
    for g, (first, weights) in enumerate(distributions):
        start, others = 0, np.ones(1)
        for h, (offset, distribution) in enumerate(distributions):
            if h != g:
                start, others = start + offset, np.convolve(others, distribution)
        chosen = first + np.arange(weights.size)
        rest = k - chosen - start
        inside = (rest >= 0) & (rest < others.size)
        joint = weights[inside] * others[rest[inside]]
        joint /= joint.sum()
        means.append(np.sum(joint * chosen[inside]))
        variances.append(np.sum(joint * (chosen[inside] - means[-1]) ** 2))
    return np.array(means), np.array(variances)


def covariance_of_few_values(values, counts, k, v):
    """Cov(S) v for a row of few values.

    Entries of a group differ in nothing, so Cov(S) takes what v has beyond its mean over the group
    by p - P(two of the group), and those means by the covariance of the N_g, of which sum N_g = k.
    """
    mean, variance = few_values(values, counts, k)
    count = np.array(counts, dtype=np.float64)
    ends = np.cumsum(counts)[:-1]
    means_of_v = np.array([part.mean() for part in np.split(v, ends)])
    # N_1 + N_2 = k - N_3, and so on; of two groups, the third is empty.
    total = variance.sum()
    pairs = total / 2 - np.add.outer(variance, variance)
    np.fill_diagonal(pairs, variance)
    between = pairs @ means_of_v / count
    within = (mean * (count - mean) - variance) / (count * (count - 1))
    return np.repeat(within, counts) * (v - np.repeat(means_of_v, counts)) + np.repeat(
        between, counts
    )


def test_few_values_by_enumeration():
    """The closed form that long rows are judged by, against all subsets."""
    v = np.random.default_rng(53).normal(size=11)
    for values, counts in (((0.0, 1.5), (4, 6)), ((-2.0, 0.5, 1.0), (3, 4, 4))):
        x = np.repeat(values, counts)
        for k in (1, 5, x.size - 1):
            listed = reference.gradtopk_by_enumeration(x, k, 1.0)
            exact = to_float64(listed.p)
            p = few_values(values, counts, k)[0] / counts
            assert_close(np.repeat(p, counts), exact, 1e-15)
            pairs = np.array([to_float64(row) for row in listed.pairs])
            expected = (pairs - np.outer(exact, exact)) @ v[: x.size]
            given = covariance_of_few_values(values, counts, k, v[: x.size])
            assert_close(given, expected, 1e-14)


GROUPS = {
    "two-close": ((0.0, 0.7), (600_000, 400_001)),
    "two-apart": ((0.0, 14.0), (999_000, 1003)),
    "three": ((-1.0, 0.3, 2.5), (500_003, 300_000, 200_000)),
    # A handful of undecided entries among many that are nearly decided.
    "few-undecided": ((-22.0, 0.0, 22.0), (300_000, 11, 1000)),
    "some-undecided": ((-18.0, 0.0, 18.0), (300_000, 700, 1000)),
    "many-undecided": ((-14.0, 0.0, 14.0), (300_000, 20_000, 1000)),
    # About as many as can be undecided before each of them alone is of little weight.
    "3000-undecided": ((-16.0, 0.0, 16.0), (60_000, 3000, 500)),
    "5900-undecided": ((-16.0, 0.0, 16.0), (60_000, 5900, 500)),
}
every_group = pytest.mark.parametrize("name", GROUPS)


def grouped(name, dtype):
    """A shuffled row, the order that it was given, its values in that type, counts and some k."""
    values, counts = GROUPS[name]
    values = np.asarray(values, dtype=dtype)
    order = np.random.default_rng(48).permutation(sum(counts))
    undecided = counts[-1] + counts[1] // 2 if len(counts) == 3 else counts[1]
    return np.repeat(values, counts)[order], order, tuple(map(float, values)), counts, undecided


@both_dtypes
@every_group
def test_long_rows_of_few_values(name, dtype):
    """thm-grad-marginals and thm-grad-nodes up to n = 1e6, against hypergeometric sums."""
    x, order, values, counts, undecided = grouped(name, dtype)
    for k in (1000, undecided):
        exact = np.repeat(few_values(values, counts, k)[0] / counts, counts)
        p = stk.gradtopk(x, k)
        assert p.dtype == dtype
        assert_close(p, exact[order], tolerance(x, 1.0, dtype))
        assert mass_error(p, k) <= mass_tolerance(dtype)


@both_dtypes
@every_group
def test_derivative_of_long_rows_of_few_values(name, dtype):
    """thm-grad-jacobian up to n = 1e6, against the covariance of hypergeometric counts."""
    x, order, values, counts, k = grouped(name, dtype)
    v = np.random.default_rng(54).normal(size=x.size).astype(dtype)
    v += x / 16  # a part that moves mass from group to group
    unshuffled = np.empty(x.size)
    unshuffled[order] = v
    expected = covariance_of_few_values(values, counts, k, unshuffled)[order]
    assert np.abs(expected).max() > 0.1
    atol = tangent_tolerance(x, 1.0, dtype) * float(np.abs(v).max())
    assert_close(stk.gradtopk.jvp(x, k, v)[1], expected, atol)
    assert_close(stk.gradtopk.vjp(x, k)[1](v).x, expected, atol)


@both_dtypes
def test_long_constant_rows(dtype):
    """p = k/n for every k."""
    n = 1_000_000
    for k in (1, 1000, 500_000, n - 1):
        p = stk.gradtopk(np.full(n, 2.75, dtype=dtype), k, temperature=0.3)
        assert_close(p, np.full(n, k / n), tolerance(p, 1.0, dtype))
        np.testing.assert_allclose(p, k / n, rtol=1e-10 if dtype is np.float64 else 2e-6)
        assert mass_error(p, k) <= mass_tolerance(dtype)


@both_dtypes
def test_mass_at_one_million(dtype):
    """thm-grad-range at n = 1e6: the sum is k; softmax at k = 1, 1 - softmax(-x) at k = n - 1."""
    n = 1_000_003
    x = np.random.default_rng(49).normal(size=n).astype(dtype)
    wide = x.astype(np.float64) / 0.2
    for k in (1, 1000, 500_000, n - 1):
        p = stk.gradtopk(x, k, temperature=0.2)
        assert p.min() >= 0
        assert p.max() <= 1
        assert mass_error(p, k) <= mass_tolerance(dtype)
        if k == 1:
            assert_close(p, special.softmax(wide), tolerance(x, 0.2, dtype))
        if k == n - 1:
            assert_close(p, 1 - special.softmax(-wide), tolerance(x, 0.2, dtype))


@both_dtypes
def test_mass_at_ten_million(dtype):
    """thm-grad-range: the sum is k to the promised accuracy for n up to 1e7."""
    n = 10_000_000
    x = np.random.default_rng(50).normal(size=n).astype(dtype)
    k = n // 3 if dtype is np.float64 else 12_345
    p = stk.gradtopk(x, k, temperature=0.2)
    assert p.min() >= 0
    assert p.max() <= 1
    assert mass_error(p, k) <= mass_tolerance(dtype)


def by_recurrence(z, k):
    """p of a long row for a small k in float64: prefixes and suffixes, every term positive."""
    y = np.exp(z - special.logsumexp(z))
    before, after = np.zeros((2, z.size + 1, k + 1))
    before[0, 0] = after[-1, 0] = 1.0
    for i in range(z.size):
        before[i + 1] = before[i]
        before[i + 1, 1:] += y[i] * before[i, :-1]
        after[-2 - i] = after[-1 - i]
        after[-2 - i, 1:] += y[-1 - i] * after[-1 - i, :-1]
    others = np.einsum("ia,ia->i", before[:-1, :k], after[1:, k - 1 :: -1])
    return y * others / before[-1, k]


@both_dtypes
def test_long_rows_of_many_values(dtype):
    """p of rows past 2^16 entries, none of them equal, for few and for all but few."""
    n, k, tau = 70_001, 12, 0.5
    x = np.random.default_rng(51).normal(size=n).astype(dtype)
    assert np.unique(x).size > 0.9 * n
    exact = by_recurrence(x.astype(np.float64) / tau, k)
    assert math.fsum(exact) == pytest.approx(k, abs=1e-10)
    p = stk.gradtopk(x, k, temperature=tau)
    assert_close(p, exact, tolerance(x, tau, dtype))
    np.testing.assert_allclose(p, exact, rtol=1e-10 if dtype is np.float64 else 1e-4)
    mirrored = stk.gradtopk(-x, n - k, temperature=tau)
    assert_close(mirrored, 1 - exact, tolerance(x, tau, dtype))


@both_dtypes
def test_derivative_of_long_rows(dtype):
    """thm-grad-jacobian past 2^16: exact on a constant row; symmetry and sum 0 on another."""
    n, k = 70_001, 20_000
    rng = np.random.default_rng(52)
    v, u = rng.normal(size=(2, n)).astype(dtype)
    p, dp = stk.gradtopk.jvp(np.zeros(n, dtype=dtype), k, v)
    # Subsets of equal weight: a variance of q (1 - q), shared out evenly among the others.
    q = k / n
    wide = v.astype(np.float64)
    expected = q * (1 - q) * (wide - (wide.sum() - wide) / (n - 1))
    atol = tangent_tolerance(p, 1.0, dtype) * float(np.abs(v).max())
    assert_close(dp, expected, atol)

    x = rng.normal(size=n).astype(dtype)
    _, dp = stk.gradtopk.jvp(x, k, v, temperature=0.5)
    _, pullback = stk.gradtopk.vjp(x, k, temperature=0.5)
    dp, gradient = dp.astype(np.float64), pullback(u).x.astype(np.float64)
    scale = np.abs(u).sum() * np.abs(v).max()
    assert abs(u @ dp - gradient @ v) <= tangent_tolerance(x, 0.5, dtype) * scale
    assert abs(math.fsum(dp)) <= tangent_tolerance(x, 0.5, dtype) * np.abs(v).sum()
    assert np.abs(dp).max() > 0.1
