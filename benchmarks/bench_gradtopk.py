"""GradTopK: its three methods beside a dynamic program of logs and SciPy's softmax; KSubset.

    pytest benchmarks/bench_gradtopk.py                      # measure
    pytest benchmarks/bench_gradtopk.py --benchmark-disable  # run everything once

`gradtopk_table.py` measures ratios and says which promises are met. `recursion` is timed whether or
not its results are finite; at k = 500 they are not.
"""

from __future__ import annotations

import log_domain
import numpy as np
import pytest
from scipy.special import softmax

import softtopk_nb as stk

SHAPES = {
    "1x1000 k=16": (1, 1000, 16),
    "1x1000 k=500": (1, 1000, 500),
    "1024x1024 k=32": (1024, 1024, 32),
    "1x1e6 k=16": (1, 10**6, 16),
    "1x1e6 k=5e5": (1, 10**6, 500_000),
}
SHORT = [name for name, (rows, n, k) in SHAPES.items() if rows * n * k <= 10**6]


def problem(shape):
    rows, n, k = SHAPES[shape]
    return np.random.default_rng(0).normal(size=(rows, n)), k


@pytest.mark.parametrize("shape", SHAPES)
def bench_contour(benchmark, shape):
    x, k = problem(shape)
    benchmark.group = f"value {shape} float64"
    out = np.empty_like(x)
    stk.gradtopk(x, k, out=out)  # compiles
    benchmark(stk.gradtopk, x, k, out=out)


@pytest.mark.parametrize("method", ["dp", "recursion"])
@pytest.mark.parametrize("shape", SHORT)
def bench_quadratic(benchmark, shape, method):
    x, k = problem(shape)
    benchmark.group = f"value {shape} float64"
    stk.gradtopk(x[:, :9], 2, method=method)  # compiles
    benchmark(stk.gradtopk, x, k, method=method)


@pytest.mark.parametrize("shape", SHORT)
def bench_log_domain(benchmark, shape):
    x, k = problem(shape)
    benchmark.group = f"value {shape} float64"
    p = log_domain.marginals(x[0], k)  # compiles
    np.testing.assert_allclose(p, stk.gradtopk(x[0], k), rtol=0, atol=1e-11)
    benchmark(log_domain.marginals, x[0], k)


@pytest.mark.parametrize("shape", SHAPES)
def bench_scipy_softmax(benchmark, shape):
    x, _ = problem(shape)
    benchmark.group = f"value {shape} float64"
    benchmark(softmax, x, axis=-1)


@pytest.mark.parametrize("shape", SHAPES)
def bench_pullback(benchmark, shape):
    x, k = problem(shape)
    benchmark.group = f"pullback {shape} float64"
    _, pullback = stk.gradtopk.vjp(x, k)
    pullback(x)  # compiles
    benchmark(pullback, x)


@pytest.mark.parametrize("shape", ["1x1000 k=16", "1x1000 k=500", "1x1e6 k=16"])
def bench_sample(benchmark, shape):
    """One subset of a row whose distribution is at hand."""
    x, k = problem(shape)
    benchmark.group = f"sample {shape}"
    distribution = stk.KSubset(x[0], k)
    rng = np.random.default_rng(1)
    distribution.sample(rng=rng)  # compiles
    benchmark(distribution.sample, rng=rng)
