"""Fenchel-Young losses: against 60 digits, the losses that they are, and bad targets."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
import reference
from operators import VARIANTS, dtypes
from reference import mp
from scipy import special

import softtopk_nb as stk
from softtopk_nb._api.operator import registry

OPTIONS = [
    pytest.param(op, options, id="-".join([name, *map(str, options.values())]))
    for name, op in registry.items()
    if op.has_potential
    for options in VARIANTS[name]
]
with_potential = pytest.mark.parametrize(("op", "options"), OPTIONS)


def hard(rng, rows, n, k):
    """0/1 vectors with k ones, and the labels that say the same."""
    labels = np.stack([rng.permutation(n)[:k] for _ in range(rows)])
    y = np.zeros((rows, n))
    np.put_along_axis(y, labels, 1.0, axis=1)
    return y, labels


def infinite_conjugate(options):
    return options.get("curve") == "cauchy"


@with_potential
@dtypes
def test_hard_targets_at_60_digits(op, options, dtype, rng):
    """thm-fenchel-young, by the potential at 60 digits."""
    theta, (y, _) = rng.normal(size=(3, 7)).astype(dtype), hard(rng, 3, 7, 3)
    constant = not infinite_conjugate(options)
    found = stk.fenchel_young(op, theta, y, 3, temperature=0.5, constant=constant, **options)
    assert found.dtype == dtype
    own = {key: value for key, value in options.items() if key != "method"}
    solve = getattr(reference, op.__name__)
    for row, target, loss in zip(theta, y, found, strict=True):
        expected = solve(row, 3, temperature=0.5, **own).potential
        expected -= reference.dot(reference.exact(row), reference.exact(target))
        if constant and op is stk.thretopk:
            curve = reference.curve_of(options["curve"], options.get("alpha"))
            expected -= mp.mpf(0.5) * 3 * curve.excess  # omega(1) is -lim F(t) - t
        accuracy = 1e-13 if dtype == np.float64 else 1e-6
        assert float(loss) == pytest.approx(float(expected), rel=accuracy)


@with_potential
@dtypes
def test_far_scores_at_60_digits(op, options, dtype, rng):
    """thm-fenchel-young where scores are up to 1e6 temperatures, beside a common offset too.

    The derivative in the temperature is that of the potential, which is homogeneous, and omega(y).
    """
    row, k = np.sort(np.round(256 * rng.normal(size=7)) / 256), 3
    x = np.stack([row, row + 4096.0]).astype(dtype)
    x[0, 3] = x[0, 4]
    own = {key: value for key, value in options.items() if key != "method"}
    constant, solve = not infinite_conjugate(options), getattr(reference, op.__name__)
    eps = np.finfo(dtype).eps
    for tau in (2.0**-20, 2.0**-6):
        for y in (np.arange(7) < 3, np.arange(7) > 3):
            given = {"constant": constant, "temperature": tau, **options}
            losses, pull = stk.fenchel_young.vjp(op, x, np.stack([y, y]), k, **given)
            slopes = [pull(one).temperature for one in np.eye(2)]
            for theta, loss, slope in zip(x, losses, slopes, strict=True):
                solved, scores = solve(theta, k, temperature=tau, **own), reference.exact(theta)
                exact = (solved.potential - reference.dot(scores, y.astype(float))) / tau
                rate = (solved.potential - reference.dot(scores, solved.p)) / tau
                if constant and op is stk.thretopk:
                    curve = reference.curve_of(options["curve"], options.get("alpha"))
                    exact, rate = exact - k * curve.excess, rate - k * curve.excess
                # The threshold is correct to eps temperatures and eps times itself.
                off = 16 * eps * (1 + abs(float(exact)))
                assert abs(float(loss) / tau - float(exact)) <= off
                assert abs(float(slope) - float(rate)) <= 64 * eps * (1 + abs(float(rate)))


@with_potential
def test_a_loss_is_the_gap_of_a_convex_function(op, options, rng):
    """thm-fenchel-young: 0 at the target, positive elsewhere, and its gradient is p - target."""
    constant = op is stk.thretopk
    theta, other = rng.normal(size=(2, 4, 9))
    k = np.array([1, 3, 5, 8])
    soft = op(other, k, **options)
    given = {"constant": constant, **options}
    loss, pullback = stk.fenchel_young.vjp(op, theta, soft, k, **given)
    np.testing.assert_array_equal(loss, stk.fenchel_young(op, theta, soft, k, **given))
    least = stk.fenchel_young(op, other, soft, k, **given)
    assert (loss > least).all()
    if constant:
        np.testing.assert_allclose(least, 0.0, atol=1e-13)
    g = rng.normal(size=4)
    np.testing.assert_allclose(
        pullback(g).x, g[:, None] * (op(theta, k, **options) - soft), rtol=0, atol=1e-14
    )
    assert pullback(g).k is None
    step = 1e-6
    higher, lower = (
        stk.fenchel_young(op, theta, soft, k, temperature=1.0 + h, **given) for h in (step, -step)
    )
    expected = g @ (higher - lower) / (2 * step)
    assert pullback(g).temperature == pytest.approx(expected, rel=1e-7)


@with_potential
def test_every_way_to_say_the_target(op, options, rng):
    theta, (y, labels) = rng.normal(size=(5, 8)), hard(rng, 5, 8, 3)
    given = {"constant": not infinite_conjugate(options), **options}
    expected = stk.fenchel_young(op, theta, y, 3, **given)
    for target in (y.astype(bool), y.astype(int), y.astype(np.float32), labels, labels.tolist()):
        np.testing.assert_array_equal(stk.fenchel_young(op, theta, target, 3, **given), expected)
    in_columns = stk.fenchel_young(op, theta.T, labels.T, 3, axis=0, **given)
    np.testing.assert_array_equal(in_columns, expected)
    smallest = stk.fenchel_young(op, -theta, y, 3, largest=False, **given)
    np.testing.assert_array_equal(smallest, expected)
    several = np.where(np.arange(3) < [[1], [2], [3], [1], [2]], labels, -1)
    counts = (several >= 0).sum(axis=1)
    found = stk.fenchel_young(op, theta, several, counts, **given)
    for row, label, k, loss in zip(theta, labels, counts, found, strict=True):
        assert loss == stk.fenchel_young(op, row, label[:k], int(k), **given)
    for row, label, loss in zip(theta[:1], labels, found, strict=False):
        assert loss == stk.fenchel_young(op, row, label[0], 1, **given)


@with_potential
def test_masked_entries_are_removed(op, options, rng):
    theta, there = rng.normal(size=(4, 9)), np.arange(9) % 3 != 1
    y, _ = hard(rng, 4, 6, 2)
    spread = np.zeros((4, 9))
    spread[:, there] = y
    given = {"constant": not infinite_conjugate(options), **options}
    expected, pull = stk.fenchel_young.vjp(op, theta[:, there], y, 2, **given)
    found, pull_masked = stk.fenchel_young.vjp(op, theta, spread, 2, where=there, **given)
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    np.testing.assert_allclose(pull_masked(1.0).x[:, there], pull(1.0).x, rtol=0, atol=1e-15)
    assert not pull_masked(1.0).x[:, ~there].any()
    with pytest.raises(ValueError, match="target is not 0 at an entry where"):
        stk.fenchel_young(op, theta, np.eye(9)[[0, 1, 2, 3]], 1, where=there, **given)


@with_potential
def test_a_clamped_k_is_that_of_the_target(op, options, rng):
    """Rows of nothing, of fewer entries than k, and of more; a temperature with the axis kept."""
    theta, counts = rng.normal(size=(3, 9)), np.array([0, 2, 9])
    there, target = np.arange(9) < counts[:, None], np.arange(9) < np.minimum(counts, 4)[:, None]
    given = {"constant": not infinite_conjugate(options), "where": there, **options}
    given["temperature"] = np.array([[0.5], [1.0], [2.0]])
    found, pull = stk.fenchel_young.vjp(op, theta, target, 4, clamp_k=True, **given)
    expected, other = stk.fenchel_young.vjp(op, theta, target, np.minimum(counts, 4), **given)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        stk.fenchel_young(op, theta, target, 4, clamp_k=True, **given), found
    )
    np.testing.assert_array_equal(pull(1.0).x, other(1.0).x)
    assert np.isfinite(pull(1.0).x).all()
    assert pull(1.0).temperature.shape == (3, 1)


@with_potential
def test_infinite_scores(op, options):
    """An entry of +inf is chosen and one of -inf is not: no loss if the target says so."""
    if infinite_conjugate(options):
        assert stk.fenchel_young(op, [1.0, 2.0, 0.0], [1, 0, 0], 1, **options) == np.inf
        return
    rest = stk.fenchel_young(op, [1.0, 2.0, 0.0], [1, 0, 0], 1, **options)
    theta = np.array([[1.0, np.inf, 2.0, -np.inf, 0.0]])
    for target, expected in (
        ([[1, 1, 0, 0, 0]], rest),
        ([[1, 0, 1, 0, 0]], np.inf),
        ([[0, 1, 0, 1, 0]], np.inf),
    ):
        assert stk.fenchel_young(op, theta, target, 2, **options) == pytest.approx(expected)
    assert np.isnan(stk.fenchel_young(op, [1.0, np.nan], [1, 0], 1, **options))
    assert stk.fenchel_young(op, [1.0, 3.0], [1, 1], 2, **options) == 0.0


def test_cross_entropy(rng):
    """id-cross-entropy: exp with k = 1; a small loss has an error of rounding."""
    theta, labels = 20 * rng.normal(size=(50, 10)), rng.integers(10, size=50)
    found = stk.fenchel_young(stk.thretopk, theta, labels, 1, curve="exp")
    behind = theta - theta[np.arange(50), labels, None]
    others = np.where(np.arange(10) == labels[:, None], -np.inf, behind)
    expected = np.log1p(np.exp(others).sum(axis=1))
    assert expected.min() < 1e-6
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-15)
    subsets = stk.fenchel_young(stk.gradtopk, theta, labels, 1)
    np.testing.assert_allclose(subsets, found, rtol=0, atol=1e-12)


def test_sparsemax_loss(rng):
    """id-sparsemax-loss: clip with k = 1, by its definition (Martins and Astudillo, 2016)."""
    theta, labels = rng.normal(size=(20, 6)), rng.integers(6, size=20)
    found = stk.fenchel_young(stk.thretopk, theta, labels, 1, curve="clip")
    for row, label, loss in zip(theta, labels, found, strict=True):
        ordered = np.sort(row)[::-1]
        support = max(j for j in range(1, 7) if 1 + j * ordered[j - 1] > ordered[:j].sum())
        level = (ordered[:support].sum() - 1) / support
        chosen = row[row > level]
        expected = -row[label] + 0.5 * (chosen**2 - level**2).sum() + 0.5
        assert loss == pytest.approx(expected, rel=1e-12)


def smooth_svm(scores, label, k, margin, temperature):
    """The smooth top-k SVM of Berrada, Zisserman and Kumar (2018), a sum over all k-subsets."""
    total, right = [], []
    for subset in itertools.combinations(range(len(scores)), k):
        mean = sum(scores[j] for j in subset) / k
        total.append((mean + margin * (label not in subset)) / temperature)
        if label in subset:
            right.append(mean / temperature)
    return temperature * (special.logsumexp(total) - special.logsumexp(right))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_smooth_top_k_svm(k, rng):
    """id-smooth-svm: a difference of two losses of gradtopk, and one of them at k = 1."""
    n, margin, tau = 7, 1.0, 0.5
    for label in range(n):
        scores = rng.normal(size=n)
        theta = scores / k
        theta[label] -= margin
        subset = np.eye(n)[[label, *(j for j in range(n) if j != label)][:k]].sum(axis=0)
        found = stk.fenchel_young(stk.gradtopk, theta, subset, k, temperature=tau)
        if k > 1:
            subset[label] = 0
            there = np.arange(n) != label
            given = {"where": there, "temperature": tau}
            found -= stk.fenchel_young(stk.gradtopk, scores / k, subset, k - 1, **given)
        assert found == pytest.approx(smooth_svm(scores, label, k, margin, tau), rel=1e-12)


def test_bad_targets_are_refused():
    theta = np.zeros((2, 4))
    for target, k, message in (
        ([[1, 0, 0, 0], [1, 1, 0, 0]], 1, r"target sums to 2 in row 1; expected k = 1"),
        ([[2.0, 0, 0, 0], [1, 0, 0, 0]], 1, r"target holds 2.0; expected numbers between 0 and 1"),
        ([[np.nan, 0, 0, 0], [1, 0, 0, 0]], 1, r"target holds nan"),
        (
            [[0, 2, -1, -1], [3, -1, -1, -1]],
            [2, 1],
            r"target holds 2 and has theta's shape \(2, 4\); .* fewer than n = 4 along axis 1$",
        ),
        ([[0, -1, -1, -1], [1, -1, -1, -1]], 1, r"target holds -1 and .* labels: k of each row"),
        ([0, 4], 1, r"target has the label 4; expected 0 to 3, or -1"),
        ([-2, 0], 1, r"target has the label -2"),
        ([[1, 1], [0, 1]], 2, r"target has the label 1 twice in row 0"),
        ([[0, 1, 2]], 3, r"target has shape \(1, 3\); expected theta's shape \(2, 4\), or integer"),
        ([[0.5, 0.5, 0, 0]] * 2, 1, r"constant=False"),
        ([[0], [1]], 5, r"k is 5"),
    ):
        with pytest.raises(ValueError, match=message):
            stk.fenchel_young(stk.gradtopk, theta, target, k)
    for target in ([0.5, 1.0], [[1j, 0, 0, 0]] * 2, [["a"] * 4] * 2):
        with pytest.raises(TypeError, match="target"):
            stk.fenchel_young(stk.gradtopk, theta, target, 1)
    with pytest.raises(TypeError, match="constant is 1; expected True or False"):
        stk.fenchel_young(stk.gradtopk, theta, [0, 1], 1, constant=1)


def test_the_operator_is_an_object_or_a_name(rng):
    theta = rng.normal(size=(3, 6))
    for op in (stk.thretopk, stk.gradtopk):
        loss, vjp = stk.fenchel_young.vjp(op.__name__, theta, [0, 1, 2], 1)
        expected, same_vjp = stk.fenchel_young.vjp(op, theta, [0, 1, 2], 1)
        np.testing.assert_array_equal(loss, expected)
        np.testing.assert_array_equal(vjp(1.0).x, same_vjp(1.0).x)
        np.testing.assert_array_equal(stk.fenchel_young(op.__name__, theta, [0, 1, 2], 1), expected)
    expected = r"expected an operator with a potential or its name: gradtopk, thretopk"
    for op, kind in (("topk", ValueError), ("itertopk", ValueError), (stk.itertopk, TypeError)):
        with pytest.raises(kind, match=rf"^op is .*topk'.*; {expected}"):
            stk.fenchel_young(op, theta, [0, 1, 2], 1)
    with pytest.raises(TypeError, match=rf"^op is None; {expected}"):
        stk.fenchel_young(None, theta, [0, 1, 2], 1)


def test_a_loss_of_a_curve_of_ones_own(rng):
    theta, (y, _) = rng.normal(size=(3, 6)), hard(rng, 3, 6, 2)
    own = stk.Curve(
        lambda t: 1 / (1 + math.exp(-t)),
        lambda t: 0.25 / math.cosh(0.5 * min(max(t, -700.0), 700.0)) ** 2,
        integral=lambda t: max(t, 0.0) + math.log1p(math.exp(-abs(t))),
    )
    found = stk.fenchel_young(stk.thretopk, theta, y, 2, curve=own)
    expected = stk.fenchel_young(stk.thretopk, theta, y, 2, curve="sigmoid")
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_fenchel_young_pickles():
    assert pickle.loads(pickle.dumps(stk.fenchel_young)) is stk.fenchel_young
