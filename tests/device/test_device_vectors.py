"""The published 60-digit vectors through arrays on a device.

In float64 the reference is the published number. In float32 it is the CPU's float64 result for the
rounded x, which test_vectors.py holds to the vectors.
"""

from __future__ import annotations

import numpy as np
import pytest
from numba import config, cuda
from test_vectors import CASES, Problem, check_threshold

pytestmark = pytest.mark.device
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["f8", "f4"])


def cases(key):
    """Every case; in the simulator, which takes a second for each, every eighth of them."""
    chosen = [case for case in CASES if key in case][:: 8 if config.ENABLE_CUDASIM else 1]
    return pytest.mark.parametrize(
        "case", [pytest.param(c, id=f"{c['op']}-{c['name']}") for c in chosen]
    )


class DeviceProblem(Problem):
    """A case in one dtype, with x on the device."""

    def __init__(self, case, dtype):
        super().__init__(case, None, dtype)
        self.wide = self.x.astype(np.float64)
        self.device_x = cuda.to_device(self.x)

    def on_both(self, name, *tangents):
        """(the device's result on the host, the reference) of one of the operator's methods."""
        method = getattr(self.operator, name)
        there = [cuda.to_device(v.astype(self.dtype)) for v in tangents]
        here = [v.astype(self.dtype).astype(np.float64) for v in tangents]
        got = method(self.device_x, self.k, *there, **self.options)
        return got, method(self.wide, self.k, *here, **self.options)


@both_dtypes
@cases("p")
def test_value(case, dtype):
    problem = DeviceProblem(case, dtype)
    p, expected = problem.on_both("__call__")
    if dtype is np.float64:
        expected = np.array(case["p"])
    got = p.copy_to_host()
    assert got.dtype == dtype
    np.testing.assert_allclose(got, expected, rtol=0, atol=problem.tolerance)
    total, k = got.astype(np.float64).sum(), problem.k
    if getattr(problem.operator, "bounded", True):
        assert abs(total - k) <= (1e-12 if dtype is np.float64 else 1e-6) * max(1, k)


@both_dtypes
@cases("potential")
def test_potential(case, dtype):
    problem = DeviceProblem(case, dtype)
    got, expected = problem.on_both("potential")
    scale = max(1.0, abs(expected), problem.k * np.abs(problem.x).max())
    floor = 1e-13 if dtype is np.float64 else 1e-6
    assert abs(float(got.copy_to_host()) - expected) <= floor * scale


@both_dtypes
@cases("threshold")
def test_threshold(case, dtype):
    problem = DeviceProblem(case, dtype)
    got, _ = problem.on_both("threshold")
    check_threshold(problem, got.copy_to_host()[()])


@both_dtypes
@cases("dp")
def test_derivatives(case, dtype):
    problem = DeviceProblem(case, dtype)
    v = problem.tangent()
    (p, dp), (_, expected) = problem.on_both("jvp", v)
    np.testing.assert_allclose(
        p.copy_to_host(), problem.on_both("__call__")[1], rtol=0, atol=problem.tolerance
    )
    tolerance = problem.tangent_tolerance(expected)
    np.testing.assert_allclose(dp.copy_to_host(), expected, rtol=0, atol=tolerance)
    u = v[::-1].copy()
    (_, pullback), (_, reference) = problem.on_both("vjp")
    gradient = pullback(cuda.to_device(u)).x.copy_to_host()
    expected = reference(u.astype(np.float64)).x
    tolerance = max(tolerance, problem.tangent_tolerance(expected))
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance)
