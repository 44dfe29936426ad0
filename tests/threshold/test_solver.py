"""The solver on rows made to be hard: extreme spreads, ties, clusters, offsets, temperatures.

By Proposition prop-mass the distance of p from the answer is |sum p - k|, so the mass tells all.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from fused import units_without_fma
from numba import njit
from scipy import special
from worst_place import largest

import softtopk_nb as stk
from softtopk_nb._compile.array_intrinsics import APART
from softtopk_nb._curves.base import (
    has_cheap_approximation,
    has_mean,
    moments,
    shift_factors,
    shifts_by_value_alone,
    split,
)
from softtopk_nb._curves.entmax import Entmax
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold import distribution, records
from softtopk_nb._threshold.cpu import batch, rows, start
from softtopk_nb._threshold.cpu.batch import fast_search
from softtopk_nb._threshold.cpu.passes import BLOCK, correct, fill, search_pass, tally
from softtopk_nb._threshold.cpu.scan import scan
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb._threshold.newton import (
    UNKNOWN,
    begin,
    model_step,
    nearest,
    newton_step,
    refined,
    update,
)
from softtopk_nb._threshold.policy import BLUR, CUBE_64, FIFTH_32

HARD = {**CURVES, "entmax-1.5": Entmax(1.5), "entmax-3": Entmax(3.0)}
KINDS = 9


def count_passes(x, k, tau, curve, method):
    solution = np.full((1, records.SOLUTION), records.UNSOLVED)
    one = x[None], np.array([float(k)]), np.array([tau])
    rows.solve(0, 1, *one, curve, method, np.empty((1, 0), x.dtype), solution)
    return solution[0, records.TAKEN]


@njit
def scanned(x, curve, k, tau):
    pivot, d = scan(x, curve, k, 1.0 / tau)
    return pivot + tau * d


def hard_row(rng, dtype):
    """(kind, x, k, tau)."""
    kind = int(rng.integers(0, KINDS))
    n = int(rng.integers(2000, 9000)) if rng.random() < 0.1 else int(rng.integers(2, 200))
    reach = (8, 150) if dtype == np.float64 else (3, 15)
    normal = rng.normal(size=n)
    x = (
        lambda: normal,
        lambda: normal * 10.0 ** rng.uniform(-reach[0], reach[0], n),
        lambda: normal * 10.0 ** rng.uniform(-reach[1], reach[1], n),
        lambda: np.round(normal * 3),
        lambda: rng.choice([-10.0, 10.0], n) + normal * 1e-3,
        lambda: 3.0 + normal * 10.0 ** rng.uniform(-16, -3),
        lambda: np.concatenate([normal, [1e6, -1e6]]),
        lambda: rng.standard_cauchy(n),
        lambda: np.sort(normal) + 1e6,
    )[kind]().astype(dtype)
    n = len(x)
    tau = 10.0 ** (rng.uniform(-9, 9) if rng.random() < 0.5 else rng.uniform(-2, 2))
    k = (float(rng.integers(1, n)), rng.uniform(0, n), n - 1.0)[int(rng.integers(0, 3))]
    if rng.random() < 0.05:
        k = 10.0 ** rng.uniform(-12, 0) * n
    return kind, x, min(max(k, 1e-300), n - 1e-9), tau


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("curve", "method"),
    [(name, "newton") for name in HARD]
    + [pytest.param(n, "bisect", marks=[pytest.mark.slow] * (n != "laplace")) for n in HARD],
)
def test_hard_rows(curve, dtype, method):
    """prop-solver, prop-mass: |sum p - k| within its bound, in a bounded number of passes."""
    rng = np.random.default_rng(5)
    bound = 1e-12 if dtype == np.float64 else 1e-6
    name, _, alpha = curve.partition("-")
    options = {"curve": name, "method": method, **({"alpha": float(alpha)} if alpha else {})}
    kinds, passes = set(), []
    for _ in range(400):
        kind, x, k, tau = hard_row(rng, dtype)
        kinds.add(kind)
        p = stk.thretopk(x, k, temperature=tau, **options)
        assert abs(math.fsum(p.astype(float)) - k) <= bound * max(1, k), (kind, len(x), k, tau)
        assert (p >= 0).all()
        assert (p <= 1).all()
        passes.append(count_passes(x, k, tau, HARD[curve], METHODS[method]))
    assert len(kinds) == KINDS
    assert max(passes) <= 250
    if method == "newton":
        assert np.mean(passes) <= 15


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ordinary_rows_take_few_passes(curve, dtype, rng):
    """What the cost in the documentation rests on."""
    passes = []
    for n in (64, 1000, 4096, 50_000):
        for _ in range(20):
            x = rng.normal(size=n).astype(dtype)
            k, tau = float(rng.integers(1, n // 4)), 10.0 ** rng.uniform(-1, 1)
            passes.append(count_passes(x, k, tau, CURVES[curve], METHODS["newton"]))
    assert np.mean(passes) <= 4
    assert max(passes) <= 25


def searched(x, k, tau, curve):
    """(p, solution) of rows side by side; what is left open keeps p = -1."""
    out, solution = np.full_like(x, -1), np.full((len(x), records.SOLUTION), np.nan)
    problem = np.full(len(x), float(k)), np.full(len(x), tau), curve, METHODS["newton"]
    flags = np.zeros(records.FLAGS, np.bool_)
    batch.search(fast_search(x), x, *problem, out, solution, flags)
    assert flags[records.SOME_UNSOLVED] == (solution[:, records.CODE] == records.UNSOLVED).any()
    return out, solution


@pytest.mark.parametrize("n", [50, 3000, 300_000])
@pytest.mark.parametrize("curve", ["laplace", "exp", "sigmoid", "normal"])
def test_small_k_keeps_its_relative_accuracy(curve, n, rng):
    """Where every p is below what float32 can hold, the search is in float64 throughout."""
    for k in (1e-23, 1e-30, 1e-38, 1e-58):
        # Most entries lie in tails that have vanished in float32, one in a tail that has not.
        x = -np.abs(rng.normal(size=n)) * 10.0 ** rng.uniform(-3, 0)
        x[n // 3] = 0.0
        p = stk.thretopk(x, k, curve=curve)
        assert abs(math.fsum(p) / k - 1) <= 1e-12


@njit
def starts(x, k, tau, curve):
    """Where the search of each row starts, and where its mean and variance alone would have it."""
    found = np.empty((2, len(x)))
    for i in range(len(x)):
        c, d = start.guess(None, None, x[i], curve, k, 1.0 / tau)
        mean, square, _ = start.measure(x[i], 0.0, 1.0 / tau)
        at = distribution.quantile_of_distribution(
            curve, mean, square - mean * mean, 0.0, x.shape[1], k
        )
        found[0, i], found[1, i] = c + tau * d, tau * at
    return found


@njit
def normal_quantile(odds):
    return distribution.normal_quantile(odds)


@njit
def distribution_by_moments(x, pivot):
    mean, square, distance = start.measure(x, pivot, 1.0)
    return distribution.distribution_of(mean, square, distance)[:2], square - mean * mean


def test_rows_with_heavy_tails_start_near(rng):
    """What a few entries far out do to the variance, they do not do to the start of a search."""
    x = rng.standard_t(2, size=(200, 1024)).astype(np.float32)
    for k in (32, 300):
        _, solution = searched(x, k, 1.0, CURVES["sigmoid"])
        threshold = solution[:, records.C] + solution[:, records.D]
        found, by_moments = np.median(abs(starts(x, k, 1.0, CURVES["sigmoid"]) - threshold), axis=1)
        assert found <= 0.2
        assert by_moments >= 0.3
        assert solution[:, records.TAKEN].mean() <= 2.5
    # A normal row is one whose moments say all, wherever its pivot lies.
    row = np.sort(rng.normal(size=1024))
    for pivot in row[[300, 512, 700]]:
        (variance, tail), own = distribution_by_moments(row, pivot)
        assert (variance, tail) == (own, 0.0)


@pytest.mark.parametrize("place", [0, 17, 2047, 4998])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_are_left_open(place, value, rng):
    """Wherever the entry is: in the sample of a long row, or between its entries."""
    x = rng.normal(size=(3, 5000)).astype(np.float32)
    x[1, place] = value
    _, solution = searched(x, 64, 1.0, CURVES["laplace"])
    assert (solution[:, records.CODE] == records.UNSOLVED).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curve", HARD)
def test_ordinary_rows_are_solved_side_by_side(curve, dtype, rng):
    """What the cost in the documentation rests on; and both ways have the same answer."""
    bound = 1e-12 if dtype == np.float64 else 1e-6
    for n, k in ((2, 1), (64, 8), (1000, 500), (5000, 64)):
        for tau in (0.5, 10.0):
            x = rng.normal(size=(20, n)).astype(dtype)
            p, solution = searched(x, k, tau, HARD[curve])
            assert (solution[:, records.CODE] == 0).mean() >= (0.7 if n == 2 else 0.9)
            done = solution[:, records.CODE] == 0
            np.testing.assert_allclose(p[done].sum(1, np.float64), k, atol=bound * k)
            few = 10 if curve.startswith("entmax") else 6  # entmax goes on until rounding stops it
            assert solution[done, records.TAKEN].mean() <= few
            alone, solution = np.empty_like(x), np.full((20, records.SOLUTION), records.UNSOLVED)
            numbers = np.full(20, float(k)), np.full(20, tau)
            newton = METHODS["newton"]
            rows.solve(0, 20, x, *numbers, HARD[curve], newton, alone, solution)
            assert abs(p - alone)[done].sum(1, np.float64).max() <= 2 * bound * k


@pytest.mark.parametrize("n", [1, 7, 64, 300, 1500, 3000])
def test_a_row_has_the_same_bits_in_every_column(n, rng):
    x = np.repeat(rng.normal(size=(1, n)), 37, axis=0)
    x[5:30] = rng.normal(size=(25, n))
    p, solution = searched(x, min(n - 0.5, 5.0), 0.3, CURVES["laplace"])
    same = np.r_[0:5, 30:37]
    np.testing.assert_array_equal(p[same], np.repeat(p[:1], 12, axis=0))
    np.testing.assert_array_equal(solution[same], np.repeat(solution[:1], 12, axis=0))
    assert n == 1 or not (p[5:30] == p[0]).all(1).any()


def test_what_is_left_open_is_left_as_it_was(rng):
    """Infinities but for -inf at the end, NaN, k = 0 and k = n."""
    x = rng.normal(size=(5, 40))
    x[0, 3], x[1, 4], x[2, 5] = np.inf, -np.inf, np.nan
    p, solution = searched(x, 3, 1.0, CURVES["exp"])
    np.testing.assert_array_equal(solution[:, records.CODE], [-1, -1, -1, 0, 0])
    assert (p[:3] == -1).all()
    for k in (0, 40):
        _, solution = searched(x[3:], k, 1.0, CURVES["exp"])
        np.testing.assert_array_equal(solution[:, records.CODE], [-1, -1])
    x[3, 30:] = -np.inf
    p, solution = searched(x[3:], 3, 1.0, CURVES["exp"])
    np.testing.assert_array_equal(solution[:, records.CODE], [0, 0])
    np.testing.assert_array_equal(p[0, :30], searched(x[3:4, :30], 3, 1.0, CURVES["exp"])[0][0])
    assert (p[0, 30:] == 0).all()


@pytest.mark.parametrize("n", [50, 3000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_with_infinities_have_the_bits_of_their_finite_entries(n, dtype, rng):
    x = rng.normal(size=(6, n)).astype(dtype)
    x[0, ::3], x[1, 7], x[2, :], x[3, 2] = -np.inf, np.inf, 1.0, np.nan
    x[4, ::2], x[4, 1] = -np.inf, np.inf
    p = stk.thretopk(x, 5, temperature=0.5)
    assert np.isnan(p[3]).all()
    for row, above in ((0, 0), (1, 1), (2, 0), (4, 1), (5, 0)):
        finite = np.isfinite(x[row])
        alone = stk.thretopk(x[row, finite], 5 - above, temperature=0.5)
        np.testing.assert_array_equal(p[row, finite], alone)
        np.testing.assert_array_equal(p[row, ~finite], x[row, ~finite] > 0)


@njit
def density(curve, t, out):
    for i in range(t.shape[0]):
        _, _, _, out[i] = split(curve, t[i])


@njit
def moments_of_distribution(curve):
    return moments(curve)


@pytest.mark.parametrize("curve", [*HARD, "entmax-1.3"])
def test_moments_of_the_distribution(curve):
    """Of the distribution whose density is f': by the trapezoidal rule, fine enough for kinks."""
    own = HARD.get(curve) or Entmax(1.3)
    if not has_mean(own):
        pytest.skip("the distribution has no moments")
    t = np.linspace(-60, 60, 2_000_001)
    w = np.empty_like(t)
    density(own, t, w)
    w /= w.sum()
    mean, variance, excess = moments_of_distribution(own)
    tolerance = 1e-2 if curve == "entmax-3" else 1e-4  # an infinite density at 0
    assert mean == pytest.approx((w * t).sum(), abs=tolerance)
    t -= (w * t).sum()
    assert variance == pytest.approx((w * t**2).sum(), abs=tolerance)
    assert excess == pytest.approx((w * t**4).sum() / variance**2 - 3, abs=2 * tolerance + 1e-3)


@pytest.mark.parametrize("curve", ["laplace", "exp", "clip"])
def test_scan_alone_finds_the_threshold(curve, rng):
    """prop-scan: before any refinement the scan's own threshold has the right mass."""
    scale = 1.0
    for _ in range(300):
        n = int(rng.integers(2, 60))
        x, scale = rng.normal(size=n) * scale, 10.0 ** rng.uniform(-2, 2)
        k = (float(rng.integers(1, n)), rng.uniform(0, n))[int(rng.integers(0, 2))]
        lam = scanned(x, CURVES[curve], k, 0.7)
        t = (x - lam) / 0.7
        p = {
            "laplace": np.where(t < 0, np.exp(-abs(t)) / 2, 1 - np.exp(-abs(t)) / 2),
            "exp": np.exp(np.minimum(t, 0)),
            "clip": np.clip(t, 0, 1),
        }[curve]
        assert p.sum() == pytest.approx(k, abs=1e-10)


def test_a_row_that_regula_falsi_and_ordinals_both_miss():
    """Midpoints of ordinals can fall outside a bracket whose ends carry a distance of their own."""
    x = [
        *[-5.99988005558467e-06, -4.281070092873853e-06, -2.490436746260803e-07],
        *[4.703900742253447e-08, 4.526342327111699, 1.2666097210542358e-06, 66226.59779113768],
        *[-2.819794160371813e-08, -0.00022208269085555039, 0.046283342657822184],
    ]
    for method in ("newton", "scan", "bisect"):
        p = stk.thretopk(x, 3.77, curve="exp", method=method)
        assert math.fsum(p) == pytest.approx(3.77, abs=1e-12)


@njit
def filled(x, d, step, curve, out):
    fill(x, x.dtype.type(0), x.dtype.type(1), d, step, curve, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curve", HARD)
def test_the_remainder_never_leaves_the_range(curve, dtype):
    """thm-range to the bit, also where the threshold's remainder is larger than the distance."""
    eps = np.finfo(dtype).eps
    steps = (np.arange(-8, 9) * eps / 4).astype(dtype)
    for edge in (0.0, 1.0, 2.0):  # where exp, clip and entmax have their kinks
        x = np.concatenate([steps, np.array([5.0, -5.0], dtype)])
        out = np.empty_like(x)
        for rest in (-4 * eps, 4 * eps):
            filled(x, dtype(-edge), float(rest), HARD[curve], out)
            assert out.min() >= 0
            assert out.max() <= 1
            assert len(np.unique(out)) > 1


@njit
def recorded(x, d, step, curve, out, slopes):
    T = x.dtype.type
    sums = tally(x, T(0), T(1), d, curve, out, slopes)
    below, above = shift_factors(curve, step)
    correct(x, T(0), T(1), d, T(below), T(above), curve, slopes, out)
    return sums, tally(x, T(0), T(1), d, curve)


@pytest.mark.parametrize(
    ("curve", "dtype"),
    [*((curve, np.float32) for curve in HARD), ("laplace", np.float64), ("normal", np.float64)],
)
def test_p_kept_from_a_pass_has_the_bits_of_p_written_anew(curve, dtype, rng):
    """And the pass is a pass: it has the sums of one that keeps nothing."""
    eps = float(np.finfo(dtype).eps)
    for n in (1, 15, 64, 3000):
        x = (4 * rng.normal(size=n)).astype(dtype)
        slopes = np.empty(0 if shifts_by_value_alone(HARD[curve]) else n, dtype)
        for step in (0.0, 4 * eps, -0.5 * math.sqrt(eps), 0.5 * eps ** (1 / 3), 0.7, -0.7):
            kept, anew = np.empty_like(x), np.empty_like(x)
            sums, plain = recorded(x, dtype(0.3), step, HARD[curve], kept, slopes)
            filled(x, dtype(0.3), step, HARD[curve], anew)
            np.testing.assert_array_equal(kept, anew)
            both = [[*found[:5], found[-1]] for found in (sums, plain)]
            np.testing.assert_allclose(*both, rtol=100 * eps, atol=100 * n * eps)


@pytest.mark.parametrize("curve", [c for c in HARD if not shifts_by_value_alone(HARD[c])])
def test_a_pass_does_not_depend_on_where_its_slopes_lie(curve, rng):
    """Beside p, in one block of memory, or far from it."""
    for n in (8, 15, 64):
        x, memory = (4 * rng.normal(size=n)).astype(np.float32), np.empty(2048, np.float32)
        found = []
        for gap in (1024, 0, 1, 4, 16):
            p, slopes = memory[:n], memory[n + gap : 2 * n + gap]
            sums, _ = recorded(x, np.float32(0.3), 0.0, HARD[curve], p, slopes)
            found.append(np.array(sums).tobytes())
        assert {*found} == {found[0]}


CORNERS = {"clip": (0.0, 1.0), "exp": (0.0,), "laplace": (0.0,)}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", HARD)
def test_a_pass_notes_how_far_the_corners_are(name, dtype, rng):
    """prop-last-step: the distance up to which a step is the last."""
    for n in (1, 15, 64, 3000):
        x, curve = (4 * rng.normal(size=n)).astype(dtype), HARD[name]
        slopes = np.empty(0 if shifts_by_value_alone(curve) else n, dtype)
        sums, plain = recorded(x, dtype(0.3), 0.0, curve, np.empty_like(x), slopes)
        t = x - dtype(0.3)
        expected = min(
            (abs(t - dtype(corner)).min() for corner in CORNERS.get(name, ())), default=0
        )
        assert sums[-1] == plain[-1] == expected
        assert (expected > 0) == (name in CORNERS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CORNERS)
def test_a_search_ends_where_no_entry_passes_a_corner(name, dtype, rng):
    """prop-last-step: a step shorter than that is exact, whatever its length, and ends it."""
    newton, eps, curve = METHODS["newton"], float(np.finfo(dtype).eps), CURVES[name]
    none = np.empty(0, dtype)
    for n in (30, 64, 3000):
        x = (4 * rng.normal(size=n)).astype(dtype)
        *sums, clear = recorded(x, dtype(0.3), 0.0, curve, np.empty_like(x), none)[0]
        mass = sums[0] - sums[1] + sums[2]
        for step in (0.5 * clear, -0.5 * clear, 2 * clear, -2 * clear):
            p = np.empty_like(x)
            moved_to = float(dtype(0.3)) + step
            recorded(x, dtype(0.3), step, curve, p, none)
            k = sums[0] - sums[1] * np.exp(step) + sums[2] * np.exp(-step)
            if name == "clip":
                k = mass - step * sums[3]
            _, found, _, _, arrives = newton_step(
                curve, k, tuple(sums), clear, 0.3, dtype(1), newton.modelled, newton.enough
            )
            assert found == pytest.approx(step, rel=1e-5, abs=8 * eps * mass / sums[3])
            small = abs(mass - k) <= k / 2 and abs(step) <= 1
            assert arrives == (abs(step) < clear and small)
            if arrives:
                t = x.astype(np.longdouble) - np.longdouble(moved_to)
                exact = {
                    "clip": np.clip(t, 0, 1),
                    "exp": np.exp(np.minimum(t, 0)),
                    "laplace": np.where(t < 0, np.exp(-abs(t)) / 2, 1 - np.exp(-abs(t)) / 2),
                }[name]
                scale = np.maximum(abs(t), 4) * eps * np.minimum(1, exact + 8 * eps)
                assert (abs(p - exact) <= 4 * scale + (2 * eps if name == "clip" else 0)).all()
    # Where the sums are large beside k, what they lose to rounding is too.
    k, found = 0.5, (0.0, 0.0, 5000.0, 1e4, *UNKNOWN)
    verdict = newton_step(curve, k, found, 50.0, 0.3, dtype(1), newton.modelled, newton.enough)
    assert abs(verdict[1]) < 50
    assert not verdict[4]
    x = rng.normal(size=(200, 64)).astype(dtype)
    p, solution = searched(x, 8, 1.0, curve)
    assert (solution[:, records.CODE] == 0).all()
    assert solution[:, records.TAKEN].mean() < 2.5
    np.testing.assert_allclose(p.sum(1, np.float64), 8, rtol=0, atol=64 * eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["exp", "laplace"])
def test_a_last_step_may_lead_far_away_from_all_entries(name, dtype, rng):
    """prop-last-step: none of them passes a corner then, and small p keep their digits."""
    x, k, curve = rng.normal(size=500).astype(dtype), 1e-3, CURVES[name]
    exact = math.log(np.exp(x.astype(np.longdouble)).sum() / k / (1 if name == "exp" else 2))
    eps, none = float(np.finfo(dtype).eps), np.empty(0, dtype)
    newton = METHODS["newton"]
    for away in (-0.9, 0.5, 3.9, 4.1, -1.1):
        at = float(dtype(exact - away))
        *sums, clear = recorded(x, dtype(at), 0.0, curve, np.empty_like(x), none)[0]
        judged = newton_step(
            curve, k, tuple(sums), clear, at, dtype(1), newton.modelled, newton.enough
        )
        step, arrives = judged[1], judged[4]
        assert step == pytest.approx(exact - at, abs=16 * eps)
        assert arrives == (-1 < away < 4)
        if arrives:
            p = np.empty_like(x)
            recorded(x, dtype(at), step, curve, p, none)
            share = np.exp(x.astype(np.longdouble) - np.longdouble(exact))
            expected = share if name == "exp" else share / 2
            scale = 16 + 2 * abs(x - exact)  # t is rounded
            assert (abs(p - expected) <= scale * eps * expected).all()


@njit
def passed(x, d, curve, near, room):
    T = x.dtype.type
    return search_pass(x, T(0), T(1), T(d), curve, near, None, None, room)


@pytest.mark.parametrize("curve", ["sigmoid", "normal", "entmax-1.5", "entmax-3"])
def test_first_passes_over_float64_rows_are_in_float32(curve, rng):
    """Near enough to steer by, and where a tail is too small for them the search goes on."""
    x, room = 3 * rng.normal(size=3000), np.empty(3000, np.float32)
    light, exact = (passed(x, 0.7, HARD[curve], near, room) for near in (False, True))
    np.testing.assert_allclose(light[:4], exact[:4], rtol=1e-5)
    assert light[1:4] != exact[1:4]
    if curve.startswith("entmax"):
        return
    light, exact = (passed(x, 45.0, HARD[curve], near, room) for near in (False, True))
    if curve == "normal":
        assert light[3] == 0 < exact[3]
    for k in (1e-3, 1e-30, 1e-120):
        p = stk.thretopk(x[:60], k, curve=curve)
        assert math.fsum(p) == pytest.approx(k, rel=1e-12)


@pytest.mark.parametrize("curve", CURVES)
def test_first_passes_over_float32_rows_take_a_short_curve(curve, rng):
    """`normal` is off by less than the bracket is widened for, the others by rounding."""
    room = np.empty(APART + BLOCK, np.float32)
    for away in (-4.0, -0.7, 0.0, 0.7, 4.0, 9.0):
        x = (3 * rng.normal(size=3000)).astype(np.float32)
        light, exact = (passed(x, away, CURVES[curve], near, room) for near in (False, True))
        assert has_cheap_approximation(CURVES[curve]) == (curve in ("sigmoid", "normal"))
        alike = np.allclose(light[1:4], exact[1:4], rtol=4e-6, atol=0)
        assert alike == (curve != "normal")
        off = (light[0] - light[1] + light[2]) - (exact[0] - exact[1] + exact[2])
        assert abs(off) <= BLUR / 2 * exact[3]  # in temperatures, by the slope


def taylor_sums(curve, t):
    """The sums of a pass over t, with all the derivatives, from their formulas."""
    if curve == "sigmoid":
        p, rest = special.expit(t), special.expit(-t)
        w = p * rest
        v = w * (rest - p)
        higher = w * (1 - 6 * w), v * (1 - 12 * w)
    else:
        p, rest = special.ndtr(t), special.ndtr(-t)
        w = np.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
        v = -t * w
        higher = (t**2 - 1) * w, (3 * t - t**3) * w
    up = t >= 0
    return tuple(float(s.sum()) for s in (up * 1.0, rest[up], p[~up], w, v, *higher))


@pytest.mark.parametrize("curve", ["sigmoid", "normal"])
def test_order_of_a_step(curve, rng):
    """prop-solver: half as far from the threshold, a 32nd of the distance is left.

    An eighth, if the pass has not summed the higher derivatives.
    """
    newton, x = METHODS["newton"], rng.normal(size=500)
    for known, at, least, most in ((7, 2.5, 24.0, 42.0), (5, 1.3, 6.0, 10.0)):
        left = []
        m, a, b, *_ = taylor_sums(curve, x - at)
        for away in (0.2, 0.1, 0.05, -0.2, -0.1, -0.05):
            found = (taylor_sums(curve, x - at - away) + UNKNOWN)[:known] + UNKNOWN[: 7 - known]
            args = 0.0, at + away, 1.0, newton.modelled, newton.enough
            left.append(away + newton_step(CURVES[curve], m - a + b, found, *args)[1])
        for i in (0, 1, 3, 4):
            assert least < left[i] / left[i + 1] < most


def test_what_a_step_of_fifth_order_leaves():
    """prop-solver: |s|^5 e^|s|/120 W; of any row, since each entry has |f'''''| <= f'."""
    rng, curve, left = np.random.default_rng(23), CURVES["sigmoid"], []
    newton = METHODS["newton"]
    for _ in range(3000):
        n = int(rng.integers(2, 30))
        x = rng.normal(size=n) * rng.choice([0.3, 1.0, 3.0, 8.0])
        k = special.expit(x - rng.uniform(-0.3, 0.3)).sum()
        found = taylor_sums("sigmoid", x)
        _, step, _, _, arrives = newton_step(
            curve, k, found, 0.0, 0.0, np.float32(1), newton.modelled, newton.enough
        )
        most = abs(step) ** 5 * math.exp(abs(step)) / 120
        if 0.01 < abs(step) < 0.3:
            residual = abs(special.expit(x - step).sum() - k)
            left.append(residual / most / found[3])
        if arrives:
            assert abs(step) <= 1.04 * FIFTH_32
            assert most <= np.finfo(np.float32).eps / 7
    assert len(left) > 1000
    assert 0.3 < max(left) <= 1.0


def test_a_step_of_fifth_order_is_a_short_correction():
    """Not a step to a root of the polynomial that has nothing to do with the residual's."""
    for v3, expected in ((60.0, True), (600.0, False)):
        step, _, third, fifth = refined(0.1, 0.1, 1.0, 1.0, 1.0, (0.0, v3, 0.0), 2.0, False)
        assert third
        assert fifth == expected == (step != 0.1)
        assert abs(step - 0.1) < 0.025


@pytest.mark.parametrize("curve", ["exp", "laplace"])
def test_a_step_does_not_depend_on_the_scale_of_the_sums(curve):
    """Squares of the smallest sums are no numbers any more."""
    m, k, a, b = 2.0, 3.0, 0.4 if curve == "laplace" else 0.0, 0.25

    def step(unit):
        sums = (k, m, a, b, a + b, m - k - a + b, m - a + b)
        return model_step(CURVES[curve], *(unit * each for each in sums), False)

    assert 0.5 < abs(step(1.0)) < 5.0
    for exponent in (-470, -490, -600, -900):
        assert step(2.0**exponent) == pytest.approx(step(1.0), rel=1e-12)


def test_a_threshold_out_of_the_range_goes_to_its_end():
    """The rest of the way there, which no number of the type holds, is forgotten."""
    with np.errstate(over="ignore", invalid="ignore"):
        assert nearest(10.0, 0.0, 1e60, np.float32(1)) == (10.0, 0.0)
        assert nearest(1.5e308, -1.5e308, np.inf, np.float64(1)) == (1.5e308, 0.0)
    assert nearest(10.25, 10.0, 0.5, np.float32(2)) == (10.25, 0.0)


def test_a_search_does_not_end_on_a_cheap_pass():
    """Though its residual is 0: the sums are not exact enough to say so."""
    sums = 2.0, 0.25, 0.25, 0.5, *UNKNOWN, 0.0
    for cheap in (True, False):
        state = np.empty(records.STATE)
        state[records.MIN], state[records.MAX] = -3.0, 3.0
        begin(state, CURVES["sigmoid"], 2.0, 4, 0.0, 0.5, 1.0, True)
        assert update(state, sums, 2.0, CURVES["sigmoid"], 1.0, True, 0.0, cheap) != cheap


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curve", ["sigmoid", "normal"])
def test_sums_of_higher_derivatives(curve, dtype, rng):
    """The third and the fourth in float32 alone."""
    eps = float(np.finfo(dtype).eps)
    x = (2 * rng.normal(size=3000)).astype(dtype)
    slopes = np.empty(0 if shifts_by_value_alone(CURVES[curve]) else len(x), dtype)
    found = recorded(x, dtype(0.4), 0.0, CURVES[curve], np.empty_like(x), slopes)[0]
    known = 7 if dtype == np.float32 else 5
    expected = taylor_sums(curve, x.astype(np.float64) - float(dtype(0.4)))
    np.testing.assert_allclose(found[3:known], expected[3:known], rtol=20 * eps, atol=3000 * eps)
    assert np.isnan(found[known:7]).all()


def test_quantile_of_a_normal_distribution():
    """From the logarithm of the odds, as the starts have it."""
    odds = np.linspace(-10, 10, 401)
    found = np.array([normal_quantile(o) for o in odds])
    off = abs(found - special.ndtri(special.expit(odds)))
    assert off[abs(odds) <= 5].max() < 0.01
    assert off.max() < 0.03


@pytest.mark.parametrize("curve", ["sigmoid", "normal"])
def test_rows_with_light_tails_start_near(curve, rng):
    """So near that one pass is enough, in float32, at temperatures about their spread."""
    for n, k in ((64, 8), (1024, 32), (4096, 64)):
        x = rng.normal(size=(2**16 // n, n)).astype(np.float32)
        even = rng.uniform(-1, 1, size=x.shape).astype(np.float32)
        for some, tau in ((x, 1.0), (even, 1.0), (x, 3.0)):
            _, solution = searched(some, k, tau, CURVES[curve])
            threshold = solution[:, records.C] + tau * (
                solution[:, records.D] + solution[:, records.REST]
            )
            off = (starts(some, k, tau, CURVES[curve])[0] - threshold) / tau
            assert np.quantile(abs(off), 0.9) < 0.06
            assert solution[:, records.TAKEN].mean() <= 1.2


def test_a_long_row_with_entries_far_out_starts_from_its_sample(rng):
    """Moments of the whole row would lead astray, or not be finite."""
    x = rng.normal(size=(40, 4096)).astype(np.float32)
    for far in (1e3, 1e30):
        x[:, 17] = far  # no entry of the sample
        p, solution = searched(x, 64, 1.0, CURVES["sigmoid"])
        assert (solution[:, records.CODE] != records.UNSOLVED).all()
        assert solution[:, records.TAKEN].mean() <= 2.2
        assert (p[:, 17] == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curve", ["sigmoid", "normal"])
def test_the_last_step_by_a_series(curve, dtype, rng):
    """prop-last-step: exact for `sigmoid`; what the series leaves out is below rounding.

    In float64 both are of second order, after shorter steps. For `normal` a step may be 7/4 times
    as long as what the rule bounds, in float64 3/2.
    """
    eps = float(np.finfo(dtype).eps)
    short = dtype == np.float32
    longest = FIFTH_32 if short else CUBE_64
    t = rng.uniform(-12, 12, 2000).astype(dtype)
    out = np.empty_like(t)
    if curve == "normal":
        longest *= 7 / 4 if short else 3 / 2
        weights = (0.0, 1 / 5040, 1 / 336) if short else (1 / 6, 0.0, 1 / 6)
        power = 6 if short else 2

        def left_out(at):
            y, density = longest * at, math.exp(-at * at / 2) / math.sqrt(2 * math.pi)
            terms = weights[0] * y**2 + weights[1] * y**6 + weights[2] * longest**power
            return longest * density * math.exp(y) * terms

        most, place = largest(left_out, 1e-3, 12.0)
        assert 0.98 / (250 if short else 29) < most / eps < 1 / (250 if short else 29)
        assert place == pytest.approx(2.43 if short else 1.0, abs=0.01)
    for length in (1.0, -1.0, 0.3):
        step = length * longest
        filled(t, dtype(0), step, CURVES[curve], out)
        at = t.astype(np.longdouble) - np.longdouble(step)
        if curve == "sigmoid":
            tail = np.exp(-abs(at)) / (1 + np.exp(-abs(at)))
            bound = 0.0 if short else abs(step) ** 3 * tail
        else:
            with mpmath.workdps(25):
                moved = [mpmath.mpf(v) - mpmath.mpf(step) for v in t.tolist()]
                tail = np.array([mpmath.ncdf(-abs(v)) for v in moved], np.longdouble)
            y = abs(step * t)
            density = np.exp(-(t.astype(np.longdouble) ** 2) / 2) / math.sqrt(2 * math.pi)
            bound = abs(step) * density * np.exp(y) * (y**6 / 5040 + step**6 / 336)
            if not short:
                bound = abs(step) * density * np.exp(y) * (y**2 / 6 + step**2 / 6)
            assert bound.max() <= eps / (250 if short else 29)
        exact = np.where(at < 0, tail, 1 - tail)
        units = 4 if curve == "sigmoid" else 8 + units_without_fma(t)
        rounding = units * eps * exact
        assert (abs(out - exact) <= bound + rounding).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("curve", ["laplace", "sigmoid"])
def test_a_short_last_step(curve, dtype, rng):
    """prop-last-step: what it leaves out is small beside p and beside 1 - p."""
    eps = float(np.finfo(dtype).eps)
    t = rng.uniform(-15, 15, 2000).astype(dtype)
    out = np.empty_like(t)
    for rest in (0.5, -0.5, 0.1):
        s = rest * math.sqrt(eps)
        filled(t, dtype(0), s, CURVES[curve], out)
        exact = np.exp(-abs(t.astype(np.longdouble) - np.longdouble(s)))
        exact = exact / 2 if curve == "laplace" else exact / (1 + exact)
        below = t < s
        scale = np.where(below, exact, 1 - exact)
        error = abs(out - np.where(below, exact, 1 - exact))
        bound = eps / 4 * math.exp(2 * abs(s)) * np.minimum(exact, 1 - exact) + 2 * eps * scale
        assert (error <= bound).all()


def test_a_short_last_step_that_passes_the_middle():
    """prop-last-step, part 2: e^(2|s|) eps/4, at the worst place, t = 0, and not e^|s| eps/4."""
    with mpmath.workdps(40):
        for eps in (mpmath.mpf(2) ** -23, mpmath.mpf(2) ** -52):
            s = mpmath.sqrt(eps) / 2
            worst = 0
            for t in (mpmath.mpf(0), s / 2, s * (1 - eps)):  # t - s < 0: the other branch
                least = mpmath.exp(t - s) / 2
                other = 1 - mpmath.exp(s - t) / 2
                worst = max(worst, abs(other - least) / least)
            assert eps / 4 * mpmath.exp(s) < worst <= eps / 4 * mpmath.exp(2 * s)
