"""Draws from softmax: distributions by chi-square at fixed seeds, edges exactly.

A chi-square statistic is compared with its 1 - 1e-4 quantile; seeds are fixed, so that a test
either always passes or always fails. Each test that relies on this also shows that the statistic
refuses another distribution with the same draws.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import softtopk_nb as stk

DRAWS = 40_000
SAMPLERS = {"sample_categorical": stk.sample_categorical, "gumbel_max": stk.gumbel_max}
every = pytest.mark.parametrize("draw", [pytest.param(f, id=n) for n, f in SAMPLERS.items()])


def topk(x, k=1, **arguments):
    return stk.gumbel_topk(x, k, **arguments)


all_four = pytest.mark.parametrize(
    "draw",
    [
        *(pytest.param(f, id=n) for n, f in SAMPLERS.items()),
        pytest.param(topk, id="gumbel_topk"),
        pytest.param(stk.gumbel_softmax, id="gumbel_softmax"),
    ],
)


def fits(counts, probabilities):
    """Whether the counts could come from these probabilities."""
    assert counts.sum() > 1000
    expected = counts.sum() * np.asarray(probabilities) / np.sum(probabilities)
    assert expected.min() > 5
    return stats.chisquare(counts, expected).pvalue > 1e-4


# ---------------------------------------------------------------------------------- distributions


@every
def test_distribution_is_softmax(draw):
    """thm-gumbel-max and prop-inverse-cdf: indices have the probabilities softmax(x/tau)."""
    x = np.array([1.0, 1.0, 2.0, 3.4, -0.1, 3.0, 1.6])
    for seed, tau in enumerate((0.5, 1.0, 4.0)):
        counts = np.bincount(draw(x, DRAWS, rng=seed, temperature=tau), minlength=7)
        assert fits(counts, stk.softmax(x, temperature=tau))
        assert not fits(counts, stk.softmax(x, temperature=1.25 * tau))


@every
def test_distribution_of_every_row(draw, rng):
    x = rng.normal(size=(3, 5, 2))
    tau = np.array([[0.7], [1.0], [2.0]])
    index = draw(x, (100, 100), rng=3, temperature=tau, axis=1)
    assert index.shape == (3, 2, 100, 100)
    p = stk.softmax(x, temperature=tau, axis=1)
    for i, j in itertools.product(range(3), range(2)):
        counts = np.bincount(index[i, j].ravel(), minlength=5)
        assert fits(counts, p[i, :, j])
        assert not fits(counts, p[i - 1, :, 1 - j])


def test_order_has_the_plackett_luce_distribution():
    """thm-plackett-luce: softmax for the first, then softmax over what is left."""
    x, k = np.log([0.4, 0.25, 0.2, 0.15]), 3
    index = stk.gumbel_topk(x, k, DRAWS, rng=0)
    assert index.shape == (DRAWS, k)
    w = np.exp(x)
    orders = list(itertools.permutations(range(4), k))
    distribution = [
        math.prod(w[o[j]] / (w.sum() - w[list(o[:j])].sum()) for j in range(k)) for o in orders
    ]
    assert sum(distribution) == pytest.approx(1)
    code = index @ 4 ** np.arange(k)
    counts = np.array([np.sum(code == np.array(o) @ 4 ** np.arange(k)) for o in orders])
    assert counts.sum() == DRAWS
    assert fits(counts, distribution)
    assert fits(np.bincount(index[:, 0], minlength=4), w)
    # The order matters: backwards the distribution is another one.
    assert not fits(counts, [distribution[orders.index(o[::-1])] for o in orders])


def test_sets_do_not_have_the_distribution_of_their_total_score():
    """prop-plackett-luce-set: P(S) is not proportional to exp(sum of the scores in S)."""
    w = np.array([2.0, 1.0, 1.0])
    index = np.sort(stk.gumbel_topk(np.log(w), 2, DRAWS, rng=1), axis=1)
    counts = np.array([np.sum(np.all(index == s, axis=1)) for s in ((0, 1), (0, 2), (1, 2))])
    assert counts.sum() == DRAWS
    assert fits(counts, [5 / 12, 5 / 12, 1 / 6])
    assert not fits(counts, [2 / 5, 2 / 5, 1 / 5])


def test_gumbel_topk_at_temperature(rng):
    x = rng.normal(size=5)
    index = stk.gumbel_topk(x, 2, DRAWS, rng=5, temperature=0.5)
    assert fits(np.bincount(index[:, 0], minlength=5), stk.softmax(x, temperature=0.5))
    assert np.all(index[:, 0] != index[:, 1])
    # One seed, one noise: the first of k, for each k, is the answer of gumbel_max.
    same = stk.gumbel_max(x, DRAWS, rng=5, temperature=0.5)
    for k in (1, 2, 5):
        longer = stk.gumbel_topk(x, k, DRAWS, rng=5, temperature=0.5)
        np.testing.assert_array_equal(longer[:, 0], same)
        assert longer.shape == (DRAWS, k)
    assert np.all(np.sort(longer, axis=1) == np.arange(5))


def test_relaxed_one_hot():
    """thm-gumbel-max: a relaxed draw is largest at an entry with the distribution softmax(x)."""
    x = np.array([0.5, 1.5, -0.3, 0.9])
    rows = np.broadcast_to(x, (DRAWS, 4))
    hard = stk.gumbel_max(rows, rng=7)
    distance = []
    for kappa in (0.01, 0.1, 1.0, 10.0):
        p = stk.gumbel_softmax(rows, rng=7, temperature=kappa)
        assert p.sum(axis=1) == pytest.approx(1, abs=1e-13)
        np.testing.assert_array_equal(p.argmax(axis=1), hard)
        distance.append(np.mean(1 - p.max(axis=1)))
    assert fits(np.bincount(hard, minlength=4), stk.softmax(x))
    assert distance[0] < 0.02
    assert np.all(np.diff(distance) > 0)
    # It is softmax of the same noise, added before the temperature divides.
    noise = np.random.default_rng(7).gumbel(size=rows.shape)
    p = stk.gumbel_softmax(rows, rng=7, temperature=0.7)
    np.testing.assert_allclose(p, stk.softmax(rows + noise, temperature=0.7), rtol=0, atol=1e-13)
    # Its mean is not softmax(x).
    assert np.abs(p.mean(axis=0) - stk.softmax(x)).max() > 0.02


# ----------------------------------------------------------------------------------- relaxed masks


def exp_curve(x, k, **arguments):
    return stk.thretopk(x, k, curve="exp", **arguments)


def test_relaxed_masks(rng):
    """The operators mark what gumbel_topk draws with the same noise; thretopk comes close."""
    x = rng.normal(size=(6, 9))
    index = stk.gumbel_topk(x, 3, rng=2)
    mask = stk.gumbel_topk(x, 3, rng=2, relax=stk.hardtopk)
    assert mask.shape == x.shape
    np.testing.assert_array_equal(np.flatnonzero(mask[2]), np.sort(index[2]))
    assert np.all(np.take_along_axis(mask, index, axis=1) == 1)
    assert np.all(mask.sum(axis=1) == 3)
    assert len(np.unique(mask, axis=0)) > 1
    soft = stk.gumbel_topk(x, 3, rng=2, relax=stk.thretopk, temperature=0.5)
    noise = np.random.default_rng(2).gumbel(size=x.shape)
    expected = stk.thretopk(x + noise, 3, temperature=0.5)
    np.testing.assert_allclose(soft, expected, rtol=0, atol=1e-12)
    cold = stk.gumbel_topk(x, 3, rng=2, relax=stk.thretopk, temperature=1e-4)
    assert np.abs(cold - mask).max() < 1e-3
    named = stk.gumbel_topk(x, 3, rng=2, relax="thretopk", temperature=0.5)
    np.testing.assert_array_equal(named, soft)
    # k = 1 with the curve exp is gumbel_softmax.
    one = stk.gumbel_topk(x, 1, rng=2, relax=exp_curve, temperature=0.3)
    soft = stk.gumbel_softmax(x, rng=2, temperature=0.3)
    np.testing.assert_allclose(one, soft, rtol=0, atol=1e-12)


def test_relaxed_masks_of_any_shape(rng):
    x = rng.normal(size=(4, 5, 3)).astype(np.float32)
    p = stk.gumbel_topk(x, 2, rng=0, relax=stk.thretopk, axis=1)
    assert p.shape == x.shape
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(axis=1), 2, rtol=0, atol=1e-5)
    k, tau = np.array([1, 2, 4]), np.array([[0.1], [0.2], [0.5], [1.0]])
    p = stk.gumbel_topk(x, k, (6, 7), rng=0, relax=stk.thretopk, axis=1, temperature=tau)
    assert p.shape == (4, 3, 6, 7, 5)
    np.testing.assert_allclose(p.sum(axis=-1)[:, 2], 4, rtol=0, atol=1e-5)
    sharp = np.abs(p - p.round()).mean(axis=(1, 2, 3, 4))
    assert np.all(np.diff(sharp) > 0)
    assert stk.gumbel_topk(x, 2, 3, rng=0, relax=stk.hardtopk).shape == (4, 5, 3, 3)
    real = stk.gumbel_topk(x, 1.5, rng=0, relax=stk.thretopk)
    np.testing.assert_allclose(real.sum(axis=-1), 1.5, rtol=0, atol=1e-5)
    half = stk.gumbel_topk(x.astype(np.float16), 2, 3, rng=0, relax=stk.thretopk)
    assert half.dtype == np.float16
    assert half.shape == (4, 5, 3, 3)


def test_relaxed_masks_of_infinite_scores():
    x = np.array([[np.inf, 0.0, 1.0, -np.inf], [np.nan, 0.0, 1.0, 2.0]])
    p = stk.gumbel_topk(x, 2, rng=0, relax=stk.thretopk)
    assert p[0, 0] == 1
    assert p[0, 3] == 0
    assert p[0].sum() == pytest.approx(2)
    assert np.isnan(p[1]).all()
    # A score as far below the others as can be is still there.
    for top, dtype in ((1.7e308, np.float64), (3.4e38, np.float32)):
        x = np.array([top, -top, -np.inf, np.inf], dtype)
        p = stk.gumbel_topk(x, 3, rng=0, relax=stk.hardtopk)
        np.testing.assert_array_equal(p, np.array([1, 1, 0, 1], dtype))


# ----------------------------------------------------------------------------------------- edges


@all_four
def test_shapes_and_seeds(draw, rng):
    x = rng.normal(size=(3, 4, 50))
    first = draw(x, rng=np.random.default_rng(8))
    np.testing.assert_array_equal(first, draw(x, rng=8))
    np.testing.assert_array_equal(first, draw(x, rng=np.int64(8)))
    assert len(np.unique(first)) > 3
    generator = np.random.default_rng(8)
    a, b = draw(x, rng=generator), draw(x, rng=generator)
    assert np.any(a != b)
    assert np.any(draw(x) != draw(x))
    if draw is stk.gumbel_softmax:
        assert first.shape == x.shape
        return
    more = (1,) if draw is topk else ()
    assert first.shape == (3, 4, *more)
    assert first.dtype == np.int64
    assert draw(x, size=(), rng=8).shape == (3, 4, *more)
    assert draw(x, size=2, rng=8).shape == (3, 4, 2, *more)
    assert draw(x, size=[2, 5], rng=8).shape == (3, 4, 2, 5, *more)
    assert draw(x, size=(2, 0), rng=8).shape == (3, 4, 2, 0, *more)
    assert draw(x, axis=0, rng=8).shape == (4, 50, *more)
    assert draw(np.empty((0, 4)), rng=8).shape == (0, *more)
    assert np.shape(draw(x[0, 0], rng=8)) == more
    assert draw([[5]], size=3, rng=8).sum() == 0


def test_gumbel_topk_of_none():
    assert stk.gumbel_topk(np.zeros((3, 4)), 0, 2, rng=0).shape == (3, 2, 0)
    assert stk.gumbel_topk([-np.inf], 0, relax=stk.hardtopk, rng=0)[0] == 0


@all_four
def test_excluded_entries_are_never_drawn(draw):
    """prop-inverse-cdf: an entry of probability 0 is not drawn, at either end of the row."""
    x = np.array([-np.inf, -1e9, 1.0, -np.inf, 1.5, -np.inf])
    rows = np.broadcast_to(x, (2000, 6))
    mask = np.isfinite(x)
    masked = np.where(mask, x, np.nan)
    for y, where in ((rows, None), (np.broadcast_to(masked, (2000, 6)), mask)):
        drawn = draw(y, rng=4, where=where)
        if draw is stk.gumbel_softmax:
            assert np.all(drawn[:, ~mask] == 0)
            drawn = drawn.argmax(axis=1)
        assert set(np.unique(drawn)) == {2, 4}


def test_excluded_entries_are_not_drawn_even_last():
    """An entry so low that its score is cut off still comes before one that is excluded."""
    x = np.array([-np.inf, -1.7e308, 1.7e308])
    index = stk.gumbel_topk(np.broadcast_to(x, (500, 3)), 2, rng=0)
    assert np.all(index == [2, 1])


@every
def test_offsets_do_not_drown_the_noise(draw):
    """Scores of 1e300 are drawn as evenly as zeros are."""
    counts = np.bincount(draw(np.full(4, 1e300), 20_000, rng=0), minlength=4)
    assert fits(counts, np.ones(4))
    counts = np.bincount(draw([1e17, 1e17 + 16], 20_000, rng=0, temperature=16), minlength=2)
    assert fits(counts, [1, math.e])
    counts = np.bincount(draw([np.inf, 5, np.inf], 20_000, rng=0), minlength=3)
    assert counts[1] == 0
    assert fits(counts[[0, 2]], np.ones(2))
    p = stk.gumbel_softmax(np.full((1000, 4), 1e300), rng=0)
    assert len(np.unique(p)) == 4000
    p = stk.gumbel_topk(np.full((1000, 4), 1e300), 2, rng=0, relax=stk.thretopk)
    assert len(np.unique(p)) > 3900


class Outermost(np.random.Generator):
    """A generator whose uniform numbers are its smallest and its largest."""

    def random(self, size):
        return np.resize([0.0, 1 - 2.0**-53], size)


def test_inverse_cdf_at_the_ends():
    """prop-inverse-cdf: u = 0 and u = 1 - 2^-53 give entries of positive probability."""
    generator = Outermost(np.random.PCG64(0))
    rng = np.random.default_rng(1)
    for n in (1, 2, 3, 10, 1000):
        x = rng.normal(size=(200, n)) * 3
        x[:, : n // 3] = -np.inf
        x[:, n - n // 3 :] = -1e4
        x = np.concatenate([x, np.full((200, 1), -np.inf)], axis=1)
        index = stk.sample_categorical(x, 2, rng=generator)
        assert np.all(index[:, 0] == n // 3)
        assert np.all(np.take_along_axis(stk.softmax(x), index, axis=1) > 0)


@all_four
def test_bad_arguments(draw):
    x = np.zeros((2, 3))
    cases = [
        (TypeError, "^rng is True", lambda: draw(x, rng=True)),
        (ValueError, "^rng is -1.*seed", lambda: draw(x, rng=-1)),
        (TypeError, "^rng is 'a'", lambda: draw(x, rng="a")),
        (ValueError, "^x is 0-dimensional", lambda: draw(1.0, rng=0)),
        (ValueError, "^x has shape", lambda: draw(np.empty((2, 0)), rng=0)),
        (TypeError, "^x has dtype", lambda: draw(x * 1j, rng=0)),
        (ValueError, "^temperature is -1", lambda: draw(x, rng=0, temperature=-1)),
        (TypeError, "^where has dtype", lambda: draw(x, rng=0, where=[1, 0, 1])),
        (ValueError, "axis is 3; expected", lambda: draw(x, rng=0, axis=3)),
    ]
    if draw is not stk.gumbel_softmax:
        cases += [
            (ValueError, "^x holds a NaN", lambda: draw([[0.0, np.nan], [0, 1]], rng=0)),
            (ValueError, "^x has a row", lambda: draw([[0, 0], [-np.inf, -np.inf]], rng=0)),
            (ValueError, "^x has a row", lambda: draw(x, rng=0, where=[[True], [False]])),
            (TypeError, "^size is 2.5", lambda: draw(x, size=2.5, rng=0)),
            (TypeError, "^size is True", lambda: draw(x, size=True, rng=0)),
            (ValueError, "^size is -1", lambda: draw(x, size=-1, rng=0)),
            (ValueError, r"^size is \(2, -1\)", lambda: draw(x, size=(2, -1), rng=0)),
        ]
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()


def wrong_shape(x, k, **arguments):
    return x[..., :1]


def test_bad_k_and_relax():
    x = np.array([[0.0, 1.0, 2.0], [-np.inf, 1.0, -np.inf]])
    soft = {"relax": stk.thretopk, "rng": 0}
    for error, match, call in (
        (ValueError, "^k is 2; expected at most 1", lambda: stk.gumbel_topk(x, 2, rng=0)),
        (ValueError, "^k is 4; expected 0 <= k <= n = 3", lambda: stk.gumbel_topk(x, 4, rng=0)),
        (ValueError, "^k is -1", lambda: stk.gumbel_topk(x, -1, rng=0)),
        (TypeError, "^k is 1.5", lambda: stk.gumbel_topk(x, 1.5, rng=0)),
        (TypeError, "^k is True", lambda: stk.gumbel_topk(x, True, rng=0)),
        (TypeError, r"^k is \[1, 2\]", lambda: stk.gumbel_topk(x, [1, 2], rng=0)),
        (ValueError, "^k is 4", lambda: stk.gumbel_topk(x, 4, **soft)),
        (ValueError, r"^k has shape \(3,\)", lambda: stk.gumbel_topk(x, [1, 1, 1], **soft)),
        (TypeError, "^k is", lambda: stk.gumbel_topk(x, 1.5, rng=0, relax=stk.hardtopk)),
        (ValueError, "^relax is 'soft'", lambda: stk.gumbel_topk(x, 1, rng=0, relax="soft")),
        (TypeError, "^relax is 1", lambda: stk.gumbel_topk(x, 1, rng=0, relax=1)),
        (ValueError, "^relax returned", lambda: stk.gumbel_topk(x, 1, rng=0, relax=wrong_shape)),
    ):
        with pytest.raises(error, match=match):
            call()


class _Noted(np.random.Generator):
    """A generator that notes how many numbers are drawn at a time."""

    def random(self, size):
        self.most = max(getattr(self, "most", 0), np.prod(size))
        return super().random(size)

    def gumbel(self, *, size):
        self.most = max(getattr(self, "most", 0), np.prod(size))
        return super().gumbel(size=size)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: stk.sample_categorical(np.zeros(3), 3_000_000, rng=rng),
        lambda rng: stk.gumbel_max(np.zeros(64), 40_000, rng=rng),
        lambda rng: stk.gumbel_topk(np.zeros(64), 2, 20_000, rng=rng),
        lambda rng: stk.gumbel_softmax(np.zeros((40_000, 64)), rng=rng),
        lambda rng: stk.gumbel_max(np.zeros(3_000_000), rng=rng),
    ],
    ids=["sample_categorical", "gumbel_max", "gumbel_topk", "gumbel_softmax", "one row"],
)
def test_draws_can_be_interrupted(draw):
    """Ctrl-C: Python handles signals between calls of NumPy, of which none may take long."""
    generator = _Noted(np.random.PCG64(0))
    draw(generator)
    assert 1 < generator.most <= 1 << 20


def test_relaxed_draws_can_be_interrupted(monkeypatch):
    """What is done to the scores and the noise, too, is done to some rows at a time."""
    sizes, isfinite = [], np.isfinite
    monkeypatch.setattr(np, "isfinite", lambda x: sizes.append(np.size(x)) or isfinite(x))
    relax = lambda x, k, temperature: np.zeros_like(x)  # noqa: E731
    p = stk.gumbel_topk(np.zeros((40_000, 64), np.float32), 2, rng=0, relax=relax)
    assert p.shape == (40_000, 64)
    assert 1 < max(sizes) <= 1 << 20
