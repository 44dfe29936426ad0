"""Rows of docs/guide/migrating.md, against the libraries or by their definitions."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest
import scipy.special

import softtopk_nb as stk

K = 3


@pytest.fixture
def x(rng):
    return rng.normal(size=(5, 12))


def close(found, expected, tolerance=1e-12):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


@pytest.mark.torch
def test_hard_choices_of_torch(x):
    torch = pytest.importorskip("torch")
    t = torch.from_numpy(x)
    for largest in (True, False):
        m = stk.hardtopk(x, K, largest=largest)
        places = np.nonzero(m)[-1].reshape(*m.shape[:-1], K)
        expected = torch.topk(t, K, largest=largest).indices.sort(-1).values
        np.testing.assert_array_equal(places, expected)
    close(
        stk.thretopk.potential(x, K, temperature=1e-3), torch.topk(t, K).values.sum(-1), 12 * 1e-3
    )


@pytest.mark.jax
def test_hard_choice_of_jax(x):
    jax = pytest.importorskip("jax")
    mask = np.zeros_like(x)
    np.put_along_axis(mask, np.asarray(jax.lax.top_k(x, K)[1]), 1, axis=-1)
    np.testing.assert_array_equal(stk.hardtopk(x, K), mask)


def test_threshold_is_not_the_value_at_rank_k(x):
    assert (abs(stk.thretopk.threshold(x, K) - np.partition(x, -K)[..., -K]) > 1e-3).all()


@pytest.mark.torch
def test_entmax(x):
    entmax, torch = pytest.importorskip("entmax"), pytest.importorskip("torch")
    t = torch.from_numpy(x)
    close(stk.thretopk(x, 1, curve="clip"), entmax.sparsemax(t, -1))
    close(stk.thretopk(x, 1, curve="entmax", alpha=1.5), entmax.entmax15(t, -1))
    close(stk.thretopk(x, 1, curve="entmax", alpha=1.7), entmax.entmax_bisect(t, alpha=1.7, dim=-1))
    close(stk.thretopk(x, K, curve="clip"), entmax.budget_bisect(t, budget=K, dim=-1))


@pytest.mark.torch
def test_lapsum_and_lml_as_their_papers_have_them(x, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parents[1] / "benchmarks")
    import lapsum
    import lml

    t = torch.from_numpy(x)
    close(stk.thretopk(x, K, temperature=0.3), lapsum.soft_topk(t / 0.3, K))
    close(stk.thretopk(x, K, curve="sigmoid"), lml.soft_topk(t, K))


def test_simple_by_counting_subsets():
    chances = np.array([0.3, 0.6, 0.5, 0.2])
    p, total = np.zeros(4), 0.0
    for subset in map(list, itertools.combinations(range(4), 2)):
        weight = np.prod(chances[subset] / (1 - chances[subset]))
        p[subset] += weight
        total += weight
    close(stk.gradtopk(np.log(chances / (1 - chances)), 2), p / total)
    assert (stk.KSubset(np.log(chances), 2).sample(5, rng=0).sum(-1) == 2).all()


def relaxed_subset(x, k, tau):
    """The sum of k softmax vectors; after each, log(1 - p) is added to the scores."""
    taken = [scipy.special.softmax(x / tau)]
    while len(taken) < k:
        x = x + np.log(np.maximum(1 - taken[-1], np.finfo(np.float32).tiny))
        taken.append(scipy.special.softmax(x / tau))
    return sum(taken)


def test_relaxed_subset(rng):
    x = 3 * rng.permutation(12) + rng.uniform(0, 1, 12)
    close(relaxed_subset(x, K, 0.1), stk.hardtopk(x, K), 1e-4)
    assert relaxed_subset(x, K, 1.0).max() > 1 > stk.thretopk(x, K).max()


@pytest.mark.jax
def test_mask_of_ott(x):
    soft_sort = pytest.importorskip("ott.tools.soft_sort", reason="needs the extra 'compare'")
    given = {"k": K, "axis": -1, "epsilon": 0.5, "squashing_fun": lambda row: row}
    mask = soft_sort.topk_mask(np.float32(x), threshold=1e-6, max_iterations=5000, **given)
    close(stk.thretopk(x, K, curve="sigmoid", temperature=0.25), mask, 1e-4)


@pytest.mark.torch
def test_optimal_transport(x, rng):
    ot = pytest.importorskip("ot")
    n, e, exact = x.shape[1], 0.5, {"numItermax": 100_000, "stopThr": 1e-14}
    for row in x:
        cost = (row[:, None] - np.array([0.0, 1.0])) ** 2
        plan = ot.sinkhorn(np.full(n, 1 / n), np.array([1 - K / n, K / n]), cost, e, **exact)
        close(stk.thretopk(row, K, curve="sigmoid", temperature=e / 2), n * plan[:, 1], 1e-9)
    a, b, cost = np.full(4, 0.25), np.array([0.1, 0.2, 0.3, 0.4]), rng.random((4, 4))
    close(stk.sinkhorn(-cost, a, b, temperature=0.1), ot.sinkhorn(a, b, cost, 0.1, **exact), 1e-9)
