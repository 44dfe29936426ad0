"""KSubset: log-probabilities, entropy and pairs by enumeration, samples by chi-square.

Distributions of short rows come from a list of all subsets in `reference`'s arithmetic. A statistic
of draws is compared with its 1 - 1e-4 quantile; seeds are fixed, so that a test either always
passes or always fails. Each test that relies on this also shows that the statistic refuses another
distribution with the same draws.
"""

import itertools
import math

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import mp, to_float64
from scipy import stats

import softtopk_nb as stk
from softtopk_nb._threads import parts, pool
from softtopk_nb.gradtopk import ksubset
from softtopk_nb.gradtopk.cpu import conditional_bernoulli, contour

KSubset = stk.KSubset


def subsets(n, k):
    """All masks of k of n, one in each row."""
    masks = np.zeros((math.comb(n, k), n), np.bool_)
    for mask, chosen in zip(masks, itertools.combinations(range(n), k), strict=True):
        mask[list(chosen)] = True
    return masks


def probabilities(x, k, tau=1.0):
    """log P of the rows of `subsets`, and P."""
    z = [v / mp.mpf(float(tau)) for v in reference.exact(x)]
    weights = [mp.fsum(z[i] for i in s) for s in itertools.combinations(range(len(z)), k)]
    total = mp.log(mp.fsum(mp.exp(w) for w in weights))
    return to_float64([w - total for w in weights]), to_float64(
        [mp.exp(w - total) for w in weights]
    )


def tolerance(x, tau):
    """Of a sum of n logarithms, each known as well as x/tau is."""
    spread = float(np.ptp(x)) / tau
    return len(x) * (1e-14 + 4 * 2.0**-52 * spread)


def fits(counts, probabilities):
    """Whether the counts could come from these probabilities; rare cells are one together."""
    assert counts.sum() > 1000
    expected = counts.sum() * np.asarray(probabilities) / np.sum(probabilities)
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert len(expected) > 1
    return stats.chisquare(counts, expected).pvalue > 1e-4


def count_subsets(masks, k):
    """How often each row of `subsets` occurs."""
    n = masks.shape[1]
    codes, listed = masks @ 2 ** np.arange(n), subsets(n, k) @ 2 ** np.arange(n)
    counts = np.array([np.sum(codes == code) for code in listed])
    assert counts.sum() == len(masks)
    return counts


def marginals_fit(masks, p, pairs):
    """Whether the mean of the masks could be p: chi-square with the covariance of the indicator."""
    covariance = pairs - np.outer(p, p)
    off = np.sqrt(len(masks)) * (masks.mean(axis=0) - p)[:-1]  # the last follows from the others
    statistic = off @ np.linalg.solve(covariance[:-1, :-1], off)
    return statistic < stats.chi2(len(p) - 1).isf(1e-4)


def pairs_fit(masks, pairs):
    """Whether the frequencies of pairs could be `pairs`: none is off by too much."""
    count, n = masks.shape
    i, j = np.triu_indices(n, 1)
    expected = pairs[i, j]
    assert count * expected.min() > 20
    seen = (masks.T.astype(float) @ masks)[i, j] / count
    z = (seen - expected) / np.sqrt(expected * (1 - expected) / count)
    return np.abs(z).max() < stats.norm.isf(1e-4 / len(z))


# ------------------------------------------------------------------------------- by enumeration


@pytest.mark.parametrize("tau", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("n", range(1, 9))
def test_enumeration(n, tau):
    """The definition, for every k: log P, the entropy, marginals and pairs from all subsets."""
    x = np.random.default_rng(n).normal(size=n)
    assert np.unique(x).size == n
    atol = tolerance(x, tau)
    for k in range(n + 1):
        log_p, p = probabilities(x, k, tau)
        distribution = KSubset(x, k, tau)
        given = distribution.log_prob(subsets(n, k))
        assert given.shape == log_p.shape
        assert given.dtype == np.float64
        np.testing.assert_allclose(given, log_p, rtol=4 * 2.0**-52, atol=atol)
        assert np.exp(given).sum() == pytest.approx(1, abs=atol)
        # P = 0 takes part with 0 log 0 = 0.
        entropy = -np.sum(p * log_p)
        assert isinstance(distribution.entropy(), float)
        assert distribution.entropy() == pytest.approx(entropy, abs=(1 + entropy) * atol)
        assert 0 <= distribution.entropy() <= math.log(math.comb(n, k)) + atol
        listed = reference.gradtopk_by_enumeration(x, k, tau)
        np.testing.assert_allclose(distribution.marginals(), to_float64(listed.p), atol=atol)
        np.testing.assert_allclose(np.exp(given) @ subsets(n, k), to_float64(listed.p), atol=atol)
        pairs = np.array([to_float64(row) for row in listed.pairs])
        np.testing.assert_allclose(distribution.pair_marginals(), pairs, rtol=0, atol=10 * atol)


def test_entropy_is_log_z_less_the_mean():
    """The entropy is log Z_k - <x, p>/tau, with log Z_k from the potential, on longer rows too."""
    rng = np.random.default_rng(3)
    seen = []
    for n, k, tau in [(8, 3, 0.5), (100, 20, 1.0), (1000, 999, 2.0), (1000, 400, 0.2)]:
        x = rng.normal(size=n)
        p = stk.gradtopk(x, k, temperature=tau)
        log_z = stk.gradtopk.potential(x, k, temperature=tau) / tau
        entropy = KSubset(x, k, tau).entropy()
        assert entropy == pytest.approx(log_z - x @ p / tau, rel=1e-11)
        seen.append(entropy)
    assert np.unique(np.round(seen)).size == 4
    # A constant row: all subsets are alike.
    for n, k in [(6, 3), (300, 120)]:
        log_count = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        assert KSubset(np.full(n, 7.0), k).entropy() == pytest.approx(log_count, rel=1e-12)


@pytest.mark.parametrize(("n", "k", "tau"), [(20, 3, 1.0), (20, 17, 0.3), (24, 12, 0.1)])
def test_pair_marginals(n, k, tau):
    """Pairs against 80 digits; symmetric, each row summing to k p_i, never above p_i p_j."""
    x = np.random.default_rng(n + k).normal(size=n)
    distribution = KSubset(x, k, tau)
    pairs, p = distribution.pair_marginals(), distribution.marginals()
    exact = np.array([to_float64(row) for row in reference.gradtopk_pairs(x, k, tau)])
    np.testing.assert_allclose(pairs, exact, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pairs, pairs.T, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(np.diag(pairs), p)
    np.testing.assert_allclose(pairs.sum(axis=1), k * p, rtol=0, atol=1e-11)
    product = np.outer(p, p)
    apart = ~np.eye(n, dtype=bool)
    assert np.all(pairs[apart] <= product[apart] + 1e-15)
    assert np.any(pairs[apart] < product[apart] - 1e-3)
    assert pairs.min() >= 0


def test_pair_marginals_of_many_rows(monkeypatch):
    """No step of Python for each row; longer rows as by the Jacobian, one column at a time."""
    calls, over = [], pool.over
    monkeypatch.setattr(pool, "over", lambda *arguments: calls.append(1) or over(*arguments))
    rng = np.random.default_rng(8)
    many = KSubset(rng.normal(size=(300, 5)), rng.integers(0, 6, 300))
    calls.clear()
    many.pair_marginals()
    assert len(calls) == 1
    x, k, tau = 3 * rng.normal(size=(2, 600)), np.array([250, 3]), np.array([2.0, 0.3])
    x[0, 5], x[0, 7] = np.inf, -np.inf
    distribution = KSubset(x, k, tau)
    pairs, p = distribution.pair_marginals(), distribution.marginals()
    for i in (0, 5, 7, 300, 599):
        unit = np.zeros(600)
        unit[i] = 1.0
        _, dp = stk.gradtopk.jvp(x, k, unit, temperature=tau, method="contour")
        column = tau[:, None] * dp + p[:, i, None] * p
        column[:, i] = p[:, i]
        np.testing.assert_allclose(pairs[:, i], column, rtol=0, atol=1e-13)


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.floats(-1.5, 1.5), st.data())
def test_conditional_structure(n, seed, log_tau, data):
    """Given that i is in S, the rest of S is a (k-1)-subset of the other entries."""
    rng = np.random.default_rng(seed)
    x, tau = rng.normal(size=n), 10.0**log_tau
    assert np.unique(x).size == n
    k = data.draw(st.integers(1, n))
    i = data.draw(st.integers(0, n - 1))
    masks = subsets(n, k)
    log_p = KSubset(x, k, tau).log_prob(masks)
    atol = 10 * tolerance(x, tau)
    with_i = masks[:, i]
    chance = np.exp(log_p[with_i]).sum()
    np.testing.assert_allclose(chance, KSubset(x, k, tau).marginals()[i], rtol=0, atol=atol)
    others = KSubset(np.delete(x, i), k - 1, tau)
    conditional = others.log_prob(np.delete(masks[with_i], i, axis=1))
    log_chance = np.logaddexp.reduce(log_p[with_i])
    np.testing.assert_allclose(log_p[with_i] - log_chance, conditional, rtol=1e-14, atol=atol)
    # The entries left out are the (n-k)-subset of -x, and a shift of x changes nothing.
    left_out = KSubset(-x, n - k, tau).log_prob(~masks)
    np.testing.assert_allclose(log_p, left_out, rtol=1e-14, atol=atol)
    shifted = KSubset(np.ldexp(np.round(x * 64), -6) + 8, k, tau).log_prob(masks)
    rounded = KSubset(np.ldexp(np.round(x * 64), -6), k, tau).log_prob(masks)
    np.testing.assert_allclose(shifted, rounded, rtol=1e-14, atol=atol)


# ------------------------------------------------------------------------------------- samples


def test_table_sampling():
    """prop-grad-sampling: draws from the table have the k-subset's distribution, pairs and all."""
    x = np.random.default_rng(6).normal(size=7)
    for seed, (n, k, tau) in enumerate([(6, 2, 1.0), (6, 3, 0.7), (7, 3, 2.0), (7, 5, 1.5)]):
        masks = KSubset(x[:n], k, tau).sample(40_000, seed)
        counts = count_subsets(masks, k)
        assert fits(counts, probabilities(x[:n], k, tau)[1])
        assert not fits(counts, probabilities(x[:n], k, 1.25 * tau)[1])
    constant = count_subsets(KSubset(np.zeros(6), 3).sample(40_000, 9), 3)
    assert fits(constant, np.ones(20))
    _distribution_of_a_longer_row(
        KSubset(np.random.default_rng(20).normal(size=20), 8, 2.0), 40_000
    )


def _distribution_of_a_longer_row(distribution, count):
    """Marginals and pairs of draws."""
    p, pairs = distribution.marginals(), distribution.pair_marginals()
    masks = distribution.sample(count, 11)
    assert np.all(masks.sum(axis=1) == round(p.sum()))
    assert marginals_fit(masks, p, pairs)
    assert pairs_fit(masks, pairs)
    # Other distributions: marginals of a row turned around, and pairs that are independent.
    assert not marginals_fit(masks, p[::-1], pairs[::-1, ::-1])
    assert not pairs_fit(masks, np.outer(p, p))
    assert len(np.unique(masks, axis=0)) > 100


def _never(*arguments):
    raise AssertionError("no table was to be made")


@pytest.mark.parametrize(("n", "k", "tau"), [(6, 2, 1.0), (7, 4, 0.7)])
def test_split_sampling(n, k, tau, monkeypatch):
    """prop-grad-sampling: splitting down to single entries gives the same distribution."""
    monkeypatch.setattr(ksubset, "TABLE", 0)
    monkeypatch.setattr(ksubset, "draw", _never)
    x = np.random.default_rng(n).normal(size=n)
    masks = KSubset(x, k, tau).sample(4000, n)
    counts = count_subsets(masks, k)
    assert fits(counts, probabilities(x, k, tau)[1])
    assert not fits(counts, probabilities(x, k, 1.5 * tau)[1])


def test_split_sampling_down_to_a_table(monkeypatch):
    """prop-grad-sampling: a longer row is split until a table is allowed."""
    lengths = []

    def draw(t, k, uniform, out):
        lengths.append(len(t))
        conditional_bernoulli.draw(t, k, uniform, out)

    monkeypatch.setattr(ksubset, "TABLE", 20)
    monkeypatch.setattr(ksubset, "draw", draw)
    _distribution_of_a_longer_row(KSubset(np.random.default_rng(12).normal(size=10), 4, 2.0), 8000)
    assert len(lengths) > 2000
    assert 1 < max(lengths) < 10
    assert len(set(lengths)) > 3


def test_split_sampling_of_an_ordered_row(monkeypatch):
    """prop-grad-sampling: one entry in four is all but decided, wherever they stand."""
    monkeypatch.setattr(ksubset, "TABLE", 3000)
    rng = np.random.default_rng(5)
    x = np.where(np.arange(800) % 4 == 0, -6.0, 0.0) + 0.1 * rng.normal(size=800)
    rare = x < -3
    distribution = KSubset(x, 300)
    p, pairs = distribution.marginals(), distribution.pair_marginals()
    masks = distribution.sample(400, 3)
    assert np.all(masks.sum(axis=1) == 300)
    # How many of the rare ones were chosen: mean, and variance from the pairs.
    seen = masks[:, rare].sum(axis=1)
    mean = p[rare].sum()
    variance = pairs[np.ix_(rare, rare)].sum() - mean**2
    assert abs(seen.mean() - mean) < 4 * math.sqrt(variance / 400)
    assert 0.75 < seen.var() / variance < 1.3
    assert np.unique(seen).size > 3


@pytest.mark.parametrize(
    ("n", "scale", "shift"),
    [
        *((0, 1, 0), (1, 30, 0), (5, 2, 0), (50, 4, 0), (50, 50, 0), (400, 1, 0), (3000, 0.01, 0)),
        *((3000, 2, -1), (3000, 0.5, -7), (3000, 0.5, 9), (4000, 0.5, -5.5), (4000, 0.1, -4.6)),
    ],
)
def test_chance_of_a_count(n, scale, shift):
    """prop-grad-sampling: the chance of every count, near the mean or far, right to rounding."""
    t = scale * np.random.default_rng(n).normal(size=n) + shift
    exact = np.ones(1)
    for v in t:
        up, down = 1 / (1 + math.exp(-v)), 1 / (1 + math.exp(v))
        exact = np.append(exact, 0) * down + np.append(0, exact) * up
    sums, core = np.empty(contour.SUMS), np.empty(contour.MOST_IN_CORE)
    found = conditional_bernoulli.sums_of_count(t, sums, core)
    log_p = [
        conditional_bernoulli.log_probability_of_count(n, b, sums, core, found)
        for b in range(-1, n + 2)
    ]
    np.testing.assert_allclose(np.exp(log_p[1:-1]), exact, rtol=0, atol=4e-15)
    assert log_p[0] == log_p[-1] == -np.inf


def test_samples_of_a_very_long_row():
    """300 000 entries: exactly k, and linear statistics within what their variance allows."""
    n, k = 300_000, 100_000
    rng = np.random.default_rng(8)
    x = rng.normal(size=n)
    distribution = KSubset(x, k)
    mask = distribution.sample(rng=12)
    assert mask.shape == (n,)
    assert mask.sum() == k
    other = np.zeros(n, np.bool_)
    other[rng.permutation(n)[:k]] = True  # any k
    for weights in (x, (np.arange(n) % 3 == 0) + 0.0, (np.abs(x) < 0.5) + 0.0, rng.normal(size=n)):
        p, moved = stk.gradtopk.jvp(x, k, weights)
        deviation = math.sqrt(weights @ moved)
        assert abs(weights @ mask - weights @ p) < 4 * deviation
    deviation = math.sqrt(x @ stk.gradtopk.jvp(x, k, x)[1])
    assert abs(x @ other - x @ p) > 100 * deviation
    few = KSubset(x, n - 5).sample(2, 3)
    np.testing.assert_array_equal(few.sum(axis=1), n - 5)
    assert np.any(few[0] != few[1])


def _unlike_rows():
    """Rows of 6 with their own k: plain ones, infinities, and ones that k decides."""
    x = np.random.default_rng(21).normal(size=(8, 6))
    x[2, 0], x[3, 4], x[4, [1, 3]] = np.inf, -np.inf, [np.inf, -np.inf]
    return x, np.array([2, 4, 3, 2, 3, 0, 6, 5])


def test_sampling_of_many_rows(monkeypatch):
    """prop-grad-sampling: each row of a batch has its own distribution, infinities or not."""
    monkeypatch.setattr(ksubset, "draw", _never)  # one row at a time takes 60 times as long
    x, k = _unlike_rows()
    masks = KSubset(x, k, 0.8).sample(20_000, 4)
    for row, size, drawn in zip(x, k, masks.swapaxes(0, 1), strict=True):
        assert np.all(drawn.sum(axis=1) == size)
        assert np.all(drawn[:, row == np.inf])
        assert not np.any(drawn[:, row == -np.inf])
        finite = np.isfinite(row)
        left, n = size - np.count_nonzero(row == np.inf), np.count_nonzero(finite)
        if 0 < left < n:
            counts = count_subsets(drawn[:, finite], left)
            assert fits(counts, probabilities(row[finite], left, 0.8)[1])
            assert not fits(counts, probabilities(row[finite], left, 1.0)[1])


@pytest.mark.parametrize("at_a_time", [ksubset.NUMBERS_AT_A_TIME, 40, 20])
def test_rows_are_drawn_one_after_the_other(at_a_time, monkeypatch):
    """From one stream, however many at a time: as if each were alone."""
    monkeypatch.setattr(ksubset, "NUMBERS_AT_A_TIME", at_a_time)
    x, k = _unlike_rows()
    generator, same = np.random.default_rng(5), np.random.default_rng(5)
    masks = KSubset(x, k).sample(5, generator)
    alone = [KSubset(row, size).sample(5, same) for row, size in zip(x, k, strict=True)]
    np.testing.assert_array_equal(masks, np.stack(alone, axis=1))
    assert generator.random() == same.random()


def test_seeds():
    x = np.random.default_rng(1).normal(size=(2, 9))
    distribution = KSubset(x, 4)
    first = distribution.sample(50, 7)
    np.testing.assert_array_equal(first, distribution.sample(50, 7))
    np.testing.assert_array_equal(first, distribution.sample(50, np.random.default_rng(7)))
    assert np.any(first != distribution.sample(50, 8))
    generator = np.random.default_rng(7)
    distribution.sample(50, generator)
    assert np.any(first != distribution.sample(50, generator))
    assert np.any(distribution.sample(50) != distribution.sample(50))


def test_draws_in_parts(monkeypatch):
    """The draws do not depend on how many are made at a time."""
    distribution = KSubset(np.random.default_rng(1).normal(size=9), 4)
    whole = distribution.sample(50, 7)
    monkeypatch.setattr(ksubset, "NUMBERS_AT_A_TIME", 30)
    np.testing.assert_array_equal(whole, distribution.sample(50, 7))
    assert len(np.unique(whole, axis=0)) > 10


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (None, ()),
        (0, (0,)),
        (1, (1,)),
        (5, (5,)),
        (np.int32(5), (5,)),
        ((), ()),
        ((2, 3), (2, 3)),
        ((2, 0), (2, 0)),
    ],
)
def test_sizes(size, shape):
    for x, k in ((np.arange(4.0), 2), (np.arange(24.0).reshape(2, 3, 4), [[1], [3]])):
        mask = KSubset(x, k).sample(size, 0)
        assert mask.shape == (*shape, *x.shape)
        assert mask.dtype == np.bool_
        np.testing.assert_array_equal(mask.sum(axis=-1) - k, 0)


# ------------------------------------------------------------------------------ batches and types


def test_batches():
    """Rows with their own k and temperature are as good as alone."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 3, 6))
    k, tau = np.array([1, 3, 5]), np.array([[0.5], [2.0]])
    distribution = KSubset(x, k, tau)
    masks = distribution.sample((4, 5), 3)
    assert masks.shape == (4, 5, 2, 3, 6)
    log_p, entropy = distribution.log_prob(masks), distribution.entropy()
    p, pairs = distribution.marginals(), distribution.pair_marginals()
    many = distribution.sample(2000, 4)
    assert log_p.shape == (4, 5, 2, 3)
    assert entropy.shape == (2, 3)
    assert pairs.shape == (2, 3, 6, 6)
    for i, j in itertools.product(range(2), range(3)):
        alone = KSubset(x[i, j], k[j], tau[i, 0])
        np.testing.assert_array_equal(log_p[:, :, i, j], alone.log_prob(masks[:, :, i, j]))
        assert entropy[i, j] == alone.entropy()
        np.testing.assert_array_equal(p[i, j], alone.marginals())
        np.testing.assert_array_equal(pairs[i, j], alone.pair_marginals())
        assert fits(count_subsets(many[:, i, j], k[j]), probabilities(x[i, j], k[j], tau[i, 0])[1])
        assert not fits(
            count_subsets(many[:, i, j], k[j]), probabilities(x[1 - i, j], k[j], tau[i, 0])[1]
        )
    assert np.unique(np.round(entropy, 6)).size == 6
    np.testing.assert_array_equal(log_p[0, 0], distribution.log_prob(masks[0, 0]))


@pytest.mark.parametrize("verb", ["log_prob", "entropy"])
def test_rows_are_computed_together(verb, monkeypatch):
    """Rows with equally many finite entries in one step: one by one takes 20 times as long."""
    x, k = _unlike_rows()
    x, k = np.tile(x, (20, 1)), np.tile(k, 20)
    distribution = KSubset(x, k, 0.8)
    masks = distribution.sample(3, 6)
    given = [masks] if verb == "log_prob" else []
    found, steps, log_odds = getattr(distribution, verb)(*given), [], KSubset._log_odds
    monkeypatch.setattr(KSubset, "_log_odds", lambda *a: steps.append(a) or log_odds(*a))
    for at_once in (parts.AT_A_TIME, 20):
        for module in (ksubset, parts):
            monkeypatch.setattr(module, "AT_A_TIME", at_once)
        np.testing.assert_array_equal(getattr(distribution, verb)(*given), found)
        assert len(steps) == 3 or at_once == 20  # 6, 5 or 4 finite entries
    for i in range(8):
        alone = getattr(KSubset(x[i], k[i], 0.8), verb)(*(each[:, i] for each in given))
        np.testing.assert_array_equal(found[..., i], alone)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.bool_])
def test_types(dtype):
    """Marginals have x's type and are computed in float64; all else is float64."""
    x = 3 * np.random.default_rng(4).normal(size=(3, 8))
    x = x > 0 if dtype is np.bool_ else x.astype(dtype)
    assert np.unique(x, axis=0).shape[0] == 3
    distribution = KSubset(x, 3, 0.8)
    p = distribution.marginals()
    assert p.dtype == (dtype if np.issubdtype(dtype, np.floating) else np.float64)
    exact = stk.gradtopk(x.astype(np.float64), 3, temperature=0.8, method="contour")
    np.testing.assert_array_equal(p, exact.astype(p.dtype))
    eps = np.finfo(p.dtype).eps
    np.testing.assert_allclose(p, stk.gradtopk(x, 3, temperature=0.8), rtol=0, atol=20 * eps)
    assert distribution.entropy().dtype == np.float64
    assert distribution.pair_marginals().dtype == np.float64
    masks = distribution.sample(4, 0)
    np.testing.assert_array_equal(
        distribution.log_prob(masks), KSubset(x.astype(np.float64), 3, 0.8).log_prob(masks)
    )


def test_input_is_not_modified():
    """x and mask may be read-only, of any order or lists; the object keeps nothing of x."""
    x = np.random.default_rng(5).normal(size=(4, 6))
    before = x.copy()
    x.flags.writeable = False
    distribution = KSubset(x, 2)
    expected, masks = distribution.marginals(), distribution.sample(3, 1)
    kept = masks.copy()
    masks.flags.writeable = False
    log_p = distribution.log_prob(masks)
    distribution.entropy()
    distribution.pair_marginals()
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(masks, kept)
    for same in (np.asfortranarray(x), x.tolist(), x[::-1, ::-1].copy()[::-1, ::-1]):
        again = KSubset(same, 2)
        np.testing.assert_array_equal(again.marginals(), expected)
        np.testing.assert_array_equal(again.log_prob(np.asfortranarray(masks)), log_p)
        np.testing.assert_array_equal(again.log_prob(masks.tolist()), log_p)
    own = x.copy()
    distribution = KSubset(own, 2)
    own[:] = 0
    distribution.marginals()[:] = 0.5
    np.testing.assert_array_equal(distribution.marginals(), expected)
    np.testing.assert_array_equal(distribution.log_prob(masks), log_p)
    assert repr(distribution) == "KSubset(x of shape (4, 6), k = 2)"
    assert repr(KSubset(x, [1, 2, 3, 4])) == "KSubset(x of shape (4, 6), k = [1, 2, 3, 4])"


# --------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("n", [1, 2, 5])
def test_extreme_k(n):
    x = np.random.default_rng(n).normal(size=n)
    for k in (0, n):
        distribution = KSubset(x, k)
        only = np.full(n, k == n)
        np.testing.assert_array_equal(distribution.marginals(), only)
        assert distribution.log_prob(only) == 0
        assert distribution.entropy() == 0
        np.testing.assert_array_equal(distribution.pair_marginals(), np.outer(only, only))
        np.testing.assert_array_equal(distribution.sample(3, 0), [only] * 3)
    if n > 1:
        # One of n is softmax; all but one is softmax of -x for the one left out.
        one, rest = KSubset(x, 1), KSubset(x, n - 1)
        counts = one.sample(20_000, 1).sum(axis=0)
        assert fits(counts, stk.softmax(x))
        np.testing.assert_allclose(
            one.log_prob(np.eye(n, dtype=bool)), stk.log_softmax(x), rtol=0, atol=1e-13
        )
        left_out = (~rest.sample(20_000, 2)).sum(axis=0)
        assert fits(left_out, stk.softmax(-x))
        assert not fits(left_out, stk.softmax(x))
        np.testing.assert_allclose(
            rest.log_prob(~np.eye(n, dtype=bool)), stk.log_softmax(-x), rtol=0, atol=1e-13
        )


def test_infinite_entries():
    """+inf is always chosen and uses up one of k; -inf never is."""
    inf = np.inf
    x = np.array([0.3, inf, -inf, 1.0, -0.4, 2.0, inf])
    distribution = KSubset(x, 4)
    finite, plus = np.isfinite(x), x == inf
    alone = KSubset(x[finite], 2)
    masks = distribution.sample(5000, 3)
    assert np.all(masks[:, plus])
    assert not np.any(masks[:, 2])
    assert fits(count_subsets(masks[:, finite], 2), np.exp(alone.log_prob(subsets(4, 2))))
    np.testing.assert_array_equal(distribution.log_prob(masks), alone.log_prob(masks[:, finite]))
    assert distribution.entropy() == alone.entropy()
    assert distribution.entropy() > 0.5
    pairs = distribution.pair_marginals()
    np.testing.assert_array_equal(pairs[np.ix_(finite, finite)], alone.pair_marginals())
    np.testing.assert_array_equal(pairs[1], distribution.marginals())
    np.testing.assert_array_equal(pairs[2], 0)
    # All 35 subsets: what is impossible has log P = -inf.
    every = subsets(7, 4)
    log_p = distribution.log_prob(every)
    possible = every[:, plus].all(axis=1) & ~every[:, 2]
    assert possible.sum() == 6
    np.testing.assert_array_equal(np.isneginf(log_p), ~possible)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-13)


def test_infinite_entries_that_decide():
    inf = np.inf
    for row, k, only in (
        ([inf, 0.0, 1.0, inf], 2, [1, 0, 0, 1]),
        ([-inf, 0.0, 1.0, inf], 3, [0, 1, 1, 1]),
        ([-inf, -inf], 0, [0, 0]),
        ([inf, inf], 2, [1, 1]),
    ):
        distribution, only = KSubset(row, k), np.array(only, np.bool_)
        np.testing.assert_array_equal(distribution.marginals(), only)
        np.testing.assert_array_equal(distribution.sample((2, 2), 0), np.tile(only, (2, 2, 1)))
        assert distribution.log_prob(only) == 0
        assert distribution.entropy() == 0
        np.testing.assert_array_equal(distribution.pair_marginals(), np.outer(only, only))
        if 0 < k < len(row):
            assert distribution.log_prob(~only if k == 2 else np.roll(only, 1)) == -inf


@pytest.mark.parametrize("k", [1, 7, 29])
def test_saturated_rows(k):
    """Temperature 1e-3: one subset has all the probability, and the others keep their logarithm."""
    rng = np.random.default_rng(k)
    x = rng.permutation(np.cumsum(0.1 + rng.random(30)))
    order = np.argsort(x)
    distribution = KSubset(x, k, 1e-3)
    top = np.zeros(30, np.bool_)
    top[order[30 - k :]] = True
    gap = (x[order[30 - k]] - x[order[29 - k]]) / 1e-3
    assert np.all(distribution.sample(100, 0) == top)
    assert gap > 100
    assert abs(distribution.log_prob(top)) <= 1e-14
    assert 0 <= distribution.entropy() <= 1e-14
    second = top.copy()
    second[order[[29 - k, 30 - k]]] = True, False
    assert distribution.log_prob(second) == pytest.approx(-gap, rel=1e-10)
    np.testing.assert_allclose(distribution.pair_marginals(), np.outer(top, top), atol=1e-14)


def test_saturated_ties():
    """A tie at the edge is all that is left to chance, however cold."""
    x = np.array([5.0, 1.0, 1.0, 1.0, -3.0])
    for tau in (1e-3, 1e-300):
        distribution = KSubset(x, 3, tau)
        masks = distribution.sample(6000, 2)
        assert np.all(masks[:, 0])
        assert not np.any(masks[:, 4])
        assert fits(masks[:, 1:4].sum(axis=0), np.ones(3))
        assert distribution.entropy() == pytest.approx(math.log(3), abs=1e-14)
        np.testing.assert_allclose(distribution.log_prob(masks[:5]), -math.log(3), atol=1e-14)


def test_numbers_as_large_as_they_come():
    """Differences of x may overflow; nothing warns."""
    distribution = KSubset([1.7e308, -1.7e308, 0.0], 1)
    np.testing.assert_allclose(distribution.marginals(), [1, 0, 0], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(
        distribution.log_prob(np.eye(3, dtype=bool)), [0, -np.inf, -1.7e308]
    )
    assert distribution.entropy() == 0
    np.testing.assert_array_equal(distribution.sample(2, 0), [[True, False, False]] * 2)
    half = KSubset([1.7e308, 1.7e308, -1.7e308, -1.7e308], 1)
    assert half.entropy() == pytest.approx(math.log(2))
    np.testing.assert_allclose(half.marginals(), [0.5, 0.5, 0, 0], atol=1e-15)


@pytest.mark.parametrize(("shape", "k"), [((0, 3), 1), ((2, 0), 0), ((2, 0, 3), 2), ((0,), 0)])
def test_empty(shape, k):
    distribution = KSubset(np.zeros(shape), k)
    assert distribution.marginals().shape == shape
    assert distribution.pair_marginals().shape == (*shape, shape[-1])
    np.testing.assert_array_equal(distribution.entropy(), np.zeros(shape[:-1]))
    masks = distribution.sample(4, 0)
    assert masks.shape == (4, *shape)
    np.testing.assert_array_equal(distribution.log_prob(masks), np.zeros((4, *shape[:-1])))


# -------------------------------------------------------------------------------------- errors

ROW = [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([0.0, np.nan], 1), ValueError, "x holds NaN; expected numbers"),
        (
            ([0.0, np.inf, np.inf], 1),
            ValueError,
            r"x has 2 .* k = 1; .* at most k entries of \+inf",
        ),
        (
            ([[0.0] * 3, [1.0, -np.inf, -np.inf]], [1, 2]),
            ValueError,
            "x has 1 .* k = 2; .* at least",
        ),
        ((ROW, 1.5), TypeError, r"k is 1\.5 of dtype float64; expected integers"),
        ((ROW, 2.0), TypeError, r"k is 2\.0 of dtype float64; expected integers"),
        ((ROW, True), TypeError, "k is True of dtype bool"),
        ((ROW, 4), ValueError, "k is 4; expected 0 <= k <= n = 3"),
        ((ROW, -1), ValueError, "k is -1; expected 0 <= k <= n = 3"),
        ((ROW, [1, 2]), ValueError, r"k has shape \(2,\)"),
        ((ROW, 1, 0.0), ValueError, r"temperature is 0\.0; expected a positive finite number"),
        ((ROW, 1, np.inf), ValueError, "temperature is inf; expected a positive finite number"),
        ((ROW, 1, "warm"), TypeError, "temperature"),
        ((3.0, 1), ValueError, r"x is 0-dimensional; expected at least one axis"),
        (([1j, 2j], 1), TypeError, "x has dtype complex128; expected float16"),
        ((["a", "b"], 1), TypeError, "x has dtype <U1; expected float16"),
    ],
)
def test_errors(arguments, error, message):
    with pytest.raises(error, match=message):
        KSubset(*arguments)


def test_a_mask_may_be_of_numbers():
    mask, subsets = stk.hardtopk(ROW, 2), KSubset(ROW, 2)
    for dtype in (np.float64, np.float32, np.int8, np.uint64):
        assert subsets.log_prob(mask.astype(dtype)) == subsets.log_prob(mask == 1)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([1j, 1, 0], TypeError, "mask has dtype complex128; expected bool, or the numbers 0"),
        ([1.0, 0.5, 0.0], ValueError, r"mask holds 0\.5; expected nothing but 0 and 1"),
        (np.int8([2, 1, 0]), ValueError, "mask holds 2; expected nothing but 0 and 1"),
        ([True, True], ValueError, r"mask has shape \(2,\); expected .* = \(3,\)"),
        (True, ValueError, r"mask has shape \(\); expected .* = \(3,\)"),
        ([[True], [False]], ValueError, r"mask has shape \(2, 1\); expected .* = \(3,\)"),
        ([True] * 3, ValueError, "mask chooses 3 entries in a row; expected k = 2"),
        (
            [[True, True, False], [False, True, False]],
            ValueError,
            "mask chooses 1 entries in a row; expected k = 2",
        ),
    ],
)
def test_errors_of_a_mask(mask, error, message):
    with pytest.raises(error, match=message):
        KSubset(ROW, 2).log_prob(mask)


def test_error_of_a_mask_names_the_row_s_k():
    distribution = KSubset(np.zeros((2, 3)), [1, 2])
    with pytest.raises(ValueError, match="mask chooses 1 entries in a row; expected k = 2"):
        distribution.log_prob(np.eye(3, dtype=bool)[:2])


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, ValueError),
        ((2, -1), ValueError),
        (1.0, TypeError),
        ((2, 1.5), TypeError),
        ([2], TypeError),
        (True, TypeError),
        ("2", TypeError),
    ],
)
def test_errors_of_a_size(size, error):
    expected = "no negative number" if error is ValueError else "an integer or a tuple of integers"
    with pytest.raises(error, match=f"size is .*; expected {expected}"):
        KSubset(ROW, 2).sample(size, 0)
