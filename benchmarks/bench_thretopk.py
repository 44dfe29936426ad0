"""Value and pullback of the operators, beside what NumPy and SciPy offer.

    pytest benchmarks                      # measure
    pytest benchmarks --benchmark-disable  # run everything once

Figures are comparable within one run only; `ratios.py` measures ratios.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import softtopk_nb as stk

SHAPES = {"65536x64": (65536, 64, 8), "1024x4096": (1024, 4096, 64), "1x1e6": (1, 10**6, 1000)}
CURVES = ("laplace", "exp", "clip", "sigmoid", "normal")


@pytest.fixture(params=SHAPES)
def problem(request):
    rows, n, k = SHAPES[request.param]
    x = np.random.default_rng(0).normal(size=(rows, n)).astype(np.float32)
    return request.param, x, k


@pytest.mark.parametrize("curve", CURVES)
def bench_value(benchmark, problem, curve):
    shape, x, k = problem
    benchmark.group = f"value {shape} float32"
    out = np.empty_like(x)
    stk.thretopk(x[:1], k, curve=curve, out=out[:1])  # compiles
    benchmark(stk.thretopk, x, k, curve=curve, out=out)


@pytest.mark.parametrize("curve", CURVES)
def bench_pullback(benchmark, problem, curve):
    shape, x, k = problem
    benchmark.group = f"pullback {shape} float32"
    _, pullback = stk.thretopk.vjp(x, k, curve=curve)
    pullback(x)  # compiles
    benchmark(pullback, x)


def bench_scan(benchmark, problem):
    shape, x, k = problem
    benchmark.group = f"value {shape} float32"
    stk.thretopk(x[:1, :100], 1, method="scan")  # compiles
    benchmark(stk.thretopk, x, k, method="scan")


def bench_hardtopk(benchmark, problem):
    shape, x, k = problem
    benchmark.group = f"value {shape} float32"
    stk.hardtopk(x[:1], k)  # compiles
    benchmark(stk.hardtopk, x, k)


def bench_numpy_partition(benchmark, problem):
    shape, x, k = problem
    benchmark.group = f"value {shape} float32"
    benchmark(np.partition, x, x.shape[1] - k, axis=-1)


def bench_scipy_softmax(benchmark, problem):
    shape, x, _ = problem
    benchmark.group = f"value {shape} float32"
    benchmark(softmax, x, axis=-1)


def bench_numpy_copy(benchmark, problem):
    shape, x, _ = problem
    benchmark.group = f"value {shape} float32"
    benchmark(np.copyto, np.empty_like(x), x)
