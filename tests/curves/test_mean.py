"""The mean of a curve's distribution, where everything is selected, and potentials without one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference

import softtopk_nb as stk
from softtopk_nb._compile.decorators import scalar
from softtopk_nb._curves.base import (
    Traits,
    excess,
    has_mean,
    mean_of_distribution,
    no_mean,
    register,
)
from softtopk_nb._curves.entmax import Entmax
from softtopk_nb._curves.registry import CURVES

EVERY: dict[str, Any] = {
    **CURVES, "entmax 1.2": Entmax(1.2), "entmax 1.5": Entmax(1.5), "entmax 3": Entmax(3.0)
}  # fmt: skip


class Algebraic(NamedTuple):
    """f(t) = (1 + t/(1 + |t|))/2, whose distribution has no mean."""


@scalar
def _split(curve, t):
    tail = 0.5 / (1.0 + abs(t))
    return (1.0, tail, 0.0, 2 * tail * tail) if t >= 0 else (0.0, 0.0, tail, 2 * tail * tail)


@scalar
def _excess(curve, t):
    return -0.5 * math.log1p(abs(t))


@scalar
def _quantile(curve, u):
    return 1.0 - 0.5 / u if u < 0.5 else 0.5 / (1.0 - u) - 1.0


@scalar
def _moments(curve):
    return 0.0, 1.0, 0.0


register(
    Algebraic,
    Traits(
        split=_split,
        excess=_excess,
        quantile=_quantile,
        moments=_moments,
        mean=no_mean,
        shifts_by_value_alone=False,
        has_exponential_tails=False,
        cached=False,
    ),
)
ALGEBRAIC = object.__new__(stk.Curve)
ALGEBRAIC.compiled, ALGEBRAIC.name = Algebraic(), "algebraic"
# Newton's kernel is kept on disk whatever the curve, and the type of this one ends with the test.
OWN = {"curve": ALGEBRAIC, "method": "bisect"}


def omega(q):
    """max over t of q t - F(t), at t = f^-1(q); infinite at 0 and at 1."""
    with np.errstate(divide="ignore"):
        t = 0.5 / np.minimum(q, 1 - q) - 1.0
    least = np.minimum(q, 1 - q)
    return np.where(least > 0, 0.5 * np.log1p(t) - least * np.where(least > 0, t, 0), np.inf)


@pytest.mark.parametrize("name", EVERY)
def test_the_mean_is_the_limit(name):
    """F(t) - t -> -mean."""
    curve = EVERY[name]
    if has_mean(curve):
        assert excess(curve, 1e9) == pytest.approx(-mean_of_distribution(curve), abs=1e-15)
    else:
        assert mean_of_distribution(curve) == np.inf
        assert excess(curve, 0.0) == 0.0


def test_a_potential_without_a_mean():
    """thm-no-mean: grad phi = p, d phi/dk = lambda, d phi/d tau = -Omega(p); -inf at the ends."""
    rng = np.random.default_rng(0)
    for n, k, tau in ((6, 2, 0.5), (9, 4.5, 1.0), (12, 11, 3.0)):
        x, options = rng.normal(size=n), OWN
        p = stk.thretopk(x, k, temperature=tau, **options)
        phi = stk.thretopk.potential(x, k, temperature=tau, **options)
        assert phi == pytest.approx(x @ p - tau * omega(p).sum(), abs=1e-12)
        h = 1e-5 * np.eye(n)
        up, down = (
            stk.thretopk.potential(x + s * h, k, temperature=tau, **options) for s in (1, -1)
        )
        np.testing.assert_allclose((up - down) / 2e-5, p, atol=1e-8)
        more, less = (
            stk.thretopk.potential(x, k + s * 1e-5, temperature=tau, **options) for s in (1, -1)
        )
        lam = stk.thretopk.threshold(x, k, temperature=tau, **options)
        assert (more - less) / 2e-5 == pytest.approx(float(lam), abs=1e-8)
        hot, cold = (
            stk.thretopk.potential(x, k, temperature=tau + s * 1e-5, **options) for s in (1, -1)
        )
        assert (hot - cold) / 2e-5 == pytest.approx(-omega(p).sum(), abs=1e-7)
        # Below s_k by what Omega lacks to 0, at least by what it does where all p are equal.
        assert phi <= reference.sum_of_largest(x, k) - tau * n * omega(k / n) + 1e-12
        for end in (0, n):
            assert stk.thretopk.potential(x, end, temperature=tau, **options) == -np.inf


def test_ends_and_infinities_without_a_mean():
    """thm-no-mean: -inf counts as excluded; an empty row has nothing to fall."""
    x = np.array([1.0, -np.inf, 0.3, 2.0])
    whole = stk.thretopk.potential(x, 1.5, **OWN)
    assert whole == stk.thretopk.potential(x[np.isfinite(x)], 1.5, **OWN)
    assert stk.thretopk.potential(x, 3, **OWN) == -np.inf
    assert stk.thretopk.potential(np.full(3, -np.inf), 0, **OWN) == 0
    assert stk.thretopk.potential(np.empty(0), 0, **OWN) == 0
    assert stk.thretopk.potential([np.inf, 1.0, 2.0], 0, **OWN) == -np.inf
    assert stk.thretopk.potential([np.inf, 1.0, 2.0], 2, **OWN) == np.inf


def test_a_users_own_distribution_tells_its_mean():
    """Student's t with two degrees of freedom: F(t) - t -> 0 as slowly as 1/t."""
    own = stk.Curve(
        lambda t: 0.5 + 0.5 * t / math.sqrt(2 + t * t),
        lambda t: (2 + t * t) ** -1.5,
        integral=lambda t: 0.5 * (t + math.sqrt(2 + t * t)),
    )
    assert stk.thretopk.potential([1.0, 2.0, 3.0, 4.0], 4, curve=own) == 10.0
    assert mean_of_distribution(own.compiled) == 0.0
    assert has_mean(own.compiled)
