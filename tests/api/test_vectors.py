"""The published 60-digit vectors against every operator that the package has.

The file holds cases of constructions that the package may not have yet; they are tried from the day
their operator exists. In float32 the exact answer is that of the rounded x: `answers` has it from
the reference, where an operator needs a function of its name.
"""

import answers
import numpy as np
import pytest
import reference
from reference import dot, mp, to_float64

import softtopk_nb as stk
from softtopk_nb._curves.registry import CURVES

ALL_CASES = answers.cases()
CASES = [case for case in ALL_CASES if getattr(stk, case["op"], None) is not None]
SCANNED = ("exp", "laplace", "clip")
DTYPES = [np.float64, np.float32]


def methods(case):
    """Those that differ: of thretopk, "newton" is "auto"."""
    if case["op"] == "thretopk":
        return ["auto", "bisect"] + ["scan"] * (case["curve"] in SCANNED)
    return ["auto", "contour", "dp"] if case["op"] == "gradtopk" else [None]


def methods_of_potential(case):
    """That of gradtopk does not depend on the method."""
    return [None] if case["op"] == "gradtopk" else methods(case)


def runs(select, methods=methods):
    """(case, method) pairs with readable ids."""
    return pytest.mark.parametrize(
        ("case", "method"),
        [
            pytest.param(case, method, id=f"{case['op']}-{case['name']}-{method}", marks=marks)
            for case in CASES
            if select(case)
            for method in methods(case)
            # Bisection looks at the values of a curve alone.
            for marks in [[pytest.mark.slow] * (method == "bisect" and case["curve"] != "laplace")]
        ],
    )


every_case = runs(lambda case: True)
cases_with_threshold = runs(lambda case: "threshold" in case)
cases_with_potential = runs(lambda case: "potential" in case, methods_of_potential)
cases_with_tangent = runs(lambda case: "dp" in case)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


class Problem:
    """A case in one dtype: what the operator is given, and how exactly it must answer."""

    def __init__(self, case, method, dtype):
        self.case, self.dtype = case, dtype
        self.operator = getattr(stk, case["op"])
        self.x = np.array(case["x"], dtype=dtype)
        self.k, self.tau = case["k"], case["temperature"]
        self.options = {"temperature": self.tau}
        if "curve" in case:
            self.options["curve"] = case["curve"]
        self.method = {} if method is None else {"method": method}
        self.eps = float(np.finfo(dtype).eps)
        self.spread = float(self.x.max() - self.x.min()) / self.tau

    def exact(self, name):
        """What the reference says of this row: `p`, `threshold`, `potential`, `dp`, ..."""
        if self.dtype is np.float64 and name in self.case:
            return np.array(self.case[name])
        return np.array(answers.stored(self.x.dtype.name)[self.case["name"]][name])

    def tangent(self, key="tangent"):
        return np.array(self.case[key], dtype=self.dtype)

    @property
    def tolerance(self):
        """The accuracy promised for p."""
        return (1e-13 if self.dtype is np.float64 else 1e-6) + 4 * self.eps * self.spread

    def tangent_tolerance(self, dp):
        """dp is a difference of numbers as large as its largest entry."""
        floor = 1e-12 if self.dtype is np.float64 else 2e-6
        return (floor + 16 * self.eps * self.spread) * max(1.0, np.abs(dp).max())

    def jvp(self, dx):
        return self.operator.jvp(self.x, self.k, dx, **self.options, **self.method)

    def vjp(self):
        return self.operator.vjp(self.x, self.k, **self.options, **self.method)


def test_there_are_cases():
    operators = {case["op"] for case in CASES}
    assert "thretopk" in operators
    curves = {case["curve"] for case in CASES if case["op"] == "thretopk"}
    assert curves == set(CURVES)
    assert sum("dp" in case for case in CASES) > 0
    assert len(ALL_CASES) == len({case["name"] for case in CASES}) > 100


@both_dtypes
@every_case
def test_value(case, method, dtype):
    problem = Problem(case, method, dtype)
    p = problem.operator(problem.x, problem.k, **problem.options, **problem.method)
    assert p.dtype == dtype
    assert p.shape == problem.x.shape
    np.testing.assert_allclose(
        p.astype(np.float64), problem.exact("p"), rtol=0, atol=problem.tolerance
    )


@both_dtypes
@cases_with_threshold
def test_threshold(case, method, dtype):
    """By the p that it gives, and directly where it is well-conditioned."""
    problem = Problem(case, method, dtype)
    lam = problem.operator.threshold(problem.x, problem.k, **problem.options, **problem.method)
    assert np.shape(lam) == ()
    assert lam.dtype == dtype
    check_threshold(problem, lam)


def check_threshold(problem, lam):
    """What test_threshold says, of a threshold found in any way."""
    case = problem.case
    exact_lam, tau = mp.mpf(float(lam)), mp.mpf(problem.tau)
    f = reference.curve_of(case["curve"]).cdf
    p = to_float64([f((v - exact_lam) / tau) for v in reference.exact(problem.x)])
    # |f'| <= 1: rounding lam moves every p by at most this.
    rounding = problem.eps * abs(float(lam))
    np.testing.assert_allclose(
        p, problem.exact("p"), rtol=0, atol=problem.tolerance + rounding / problem.tau
    )

    # sum f = k determines lam to (error of the sum) / (slope of the sum). Entries saturated
    # at this accuracy do not count: f may have a kink there.
    expected, margin = float(problem.exact("threshold")), 10 * problem.tolerance
    partly = (margin < problem.exact("p")) & (problem.exact("p") < 1 - margin)
    t = (problem.x[partly].astype(np.float64) - expected) / problem.tau
    total = float(sum(map(reference.curve_of(case["curve"]).pdf, map(mp.mpf, t))))
    if total > 0.1:
        error = problem.tau * problem.tolerance * problem.x.size / total
        assert abs(float(lam) - expected) <= error + rounding


@both_dtypes
@cases_with_potential
def test_potential(case, method, dtype):
    problem = Problem(case, method, dtype)
    phi = problem.operator.potential(problem.x, problem.k, **problem.options, **problem.method)
    assert np.shape(phi) == ()
    assert phi.dtype == dtype
    expected = float(problem.exact("potential"))
    # phi is stationary in lam, so only the rounding of its own terms is left.
    scale = max(1.0, abs(expected), problem.k * np.abs(problem.x).max())
    assert abs(float(phi) - expected) <= (1e-13 if dtype is np.float64 else 1e-6) * scale


@both_dtypes
@cases_with_tangent
def test_jvp(case, method, dtype):
    problem = Problem(case, method, dtype)
    v = problem.tangent()
    p, dp = problem.jvp(v)
    assert p.dtype == dp.dtype == dtype
    np.testing.assert_allclose(
        p.astype(np.float64), problem.exact("p"), rtol=0, atol=problem.tolerance
    )
    expected = problem.exact("dp")
    np.testing.assert_allclose(
        dp.astype(np.float64), expected, rtol=0, atol=problem.tangent_tolerance(expected)
    )


@both_dtypes
@cases_with_tangent
def test_vjp(case, method, dtype):
    """<u, J v> = <J^T u, v>; and J^T u itself where J is symmetric."""
    problem = Problem(case, method, dtype)
    v = problem.tangent()
    u = v[::-1].copy()
    p, pullback = problem.vjp()
    np.testing.assert_allclose(
        p.astype(np.float64), problem.exact("p"), rtol=0, atol=problem.tolerance
    )
    # u on the left of J is u on the right of it where J is symmetric.
    symmetric = case["op"] in answers.SYMMETRIC
    dp = problem.exact("dp")
    for cotangent, row in ((u, "dp_reversed"), (v, "dp")):
        gradient = pullback(cotangent).x
        assert gradient.dtype == dtype
        gradient = gradient.astype(np.float64)
        tolerance = problem.tangent_tolerance(dp)
        if symmetric:
            expected = problem.exact(row)
            tolerance = max(tolerance, problem.tangent_tolerance(expected))
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance)
        paired = float(dot(map(float, cotangent), map(float, dp)))
        error = abs(float(dot(map(float, gradient), map(float, v))) - paired)
        assert error <= 2 * tolerance * np.abs(v).sum()
