"""The hot loops are vectorised: read off the machine code, lest an upgrade undo it unseen.

A loop that falls back to one entry at a time gives the same numbers, some ten times slower.
"""

from __future__ import annotations

import math
import platform
import re

import numpy as np
import pytest
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, typeof

import softtopk_nb as stk
from softtopk_nb._compile.decorators import in_memory
from softtopk_nb._curves.base import kernel_for
from softtopk_nb._curves.entmax import Entmax
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._threshold import records
from softtopk_nb._threshold.cpu import lanes
from softtopk_nb._threshold.cpu import rows as threshold
from softtopk_nb._threshold.cpu.passes import pass_scratch, tally
from softtopk_nb._threshold.methods import METHODS
from softtopk_nb.gradtopk.cpu import poisson_binomial as counts
from softtopk_nb.gradtopk.cpu import poisson_binomial_tangent as counts_tangent
from softtopk_nb.gradtopk.cpu import rows as subsets
from softtopk_nb.gradtopk.cpu import with_core
from softtopk_nb.gradtopk.records import FLAGS, NONE_SHORT
from softtopk_nb.gradtopk.records import SOLUTION as SUBSET
from softtopk_nb.hardtopk.cpu import rows as hard
from softtopk_nb.iterative.cpu import rows as iterated
from softtopk_nb.iterative.formulas import Plain, Weighted
from softtopk_nb.thretopk.cpu import rows as thretopk

pytestmark = [
    pytest.mark.slow,  # kernels are compiled anew: the disk cache keeps no assembly
    pytest.mark.skipif(
        platform.machine().lower() not in ("x86_64", "amd64"),
        reason=f"knows the instructions of x86-64, not those of {platform.machine()}",
    ),
]

ROWS, N = 2, 64


def machine_code(kernel, *arguments):
    """The assembly of a kernel for these arguments; what comes from the disk cache has none."""
    given = 0, ROWS, *arguments
    signature = tuple(map(typeof, given))
    kernel(*given)
    if not kernel.stats.cache_misses[signature]:
        kernel = in_memory(kernel)
        kernel(*given)
    return kernel.inspect_asm(signature)


def packed(assembly, dtype):
    """How many instructions do arithmetic on a whole vector of this type."""
    letter = "s" if dtype == np.float32 else "d"
    return len(re.findall(rf"\bv?(?:mul|add|sub|fn?madd\d*|fn?msub\d*)p{letter}\b", assembly))


def compiled_for(feature):
    """Whether kernels may use this; of a processor that NUMBA_CPU_NAME names it is not known."""
    return config.CPU_NAME is None and f"+{feature}" in get_host_cpu_features().flatten()


def is_wide(assembly):
    """Whether it uses 64-byte registers, or there are none."""
    return "zmm" in assembly or not compiled_for("avx512f")


def library_calls(assembly):
    """Functions of the C library that compute one number at a time."""
    return set(re.findall(r"\b(expf?|erfcf?|erff?|powf?|expm1f?)\b", assembly))


def problem(dtype):
    x = np.random.default_rng(0).normal(size=(ROWS, N)).astype(dtype)
    assert len(np.unique(x)) == ROWS * N
    return x, np.full(ROWS, 5.0), np.ones(ROWS)


@pytest.mark.parametrize(("name", "dtype"), [("sigmoid", np.float32), ("entmax", np.float64)])
def test_threshold(name, dtype):
    """The robust search, whose passes are those of the fast one."""
    x, k, tau = problem(dtype)
    curve = Entmax(1.5) if name == "entmax" else CURVES[name]
    solution = np.full((ROWS, records.SOLUTION), records.UNSOLVED)
    code = machine_code(
        threshold.solve, x, k, tau, curve, METHODS["newton"], np.empty_like(x), solution
    )
    # The pass over the row and the one that writes p, some ten instructions each at the least.
    assert packed(code, dtype) >= 30
    # entmax's bracket takes one power for each row, less 1.
    assert library_calls(code) <= ({"expm1"} if name == "entmax" else set())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*CURVES, "entmax"])
def test_rows_side_by_side(name, dtype):
    x, k, tau = problem(dtype)
    curve = Entmax(1.5) if name == "entmax" else CURVES[name]
    solution = np.empty((ROWS, records.SOLUTION))
    numbers = k, tau, curve, METHODS["newton"]
    flags = np.zeros(records.FLAGS, np.bool_)
    code = machine_code(lanes.solve, x, *numbers, np.empty_like(x), solution, flags)
    assert packed(code, dtype) >= 30
    # The steps of the searches, in float64 whatever the type of the rows.
    assert len(re.findall(r"\bv?divpd\b", code)) >= 2
    assert is_wide(code)
    assert not library_calls(code)


@njit
def keeping(lo, hi, x, curve, out, slopes, sums):
    T, room = x.dtype.type, pass_scratch(curve, x, x.shape[1])
    for i in range(lo, hi):
        found = tally(x[i], T(0), T(1), T(0.5), curve, out[i], slopes[i], room)
        m, a, b, w, v, v3, v4, clear = found
        bent = v + v3 + v4
        sums[i] = m - a + b + w + clear + (bent if bent == bent else 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CURVES)
def test_a_pass_that_keeps_p(name, dtype):
    """By itself: in a kernel with a pass that keeps nothing it would not be missed."""
    x, _, _ = problem(dtype)
    code = machine_code(
        keeping, x, CURVES[name], np.empty_like(x), np.empty_like(x), np.empty(ROWS)
    )
    assert packed(code, dtype) >= 8
    assert is_wide(code)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_derivatives(dtype):
    x, _, tau = problem(dtype)
    solution = np.zeros((ROWS, records.SOLUTION))
    sums = np.empty(ROWS), np.empty(ROWS)
    rows = x, tau, CURVES["laplace"], solution
    code = machine_code(thretopk.vjp, *rows, x, np.empty_like(x), *sums, np.zeros(1, np.bool_))
    assert packed(code, dtype) >= 40
    assert not library_calls(code)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hard_top_k(dtype):
    x, _, _ = problem(dtype)
    code = machine_code(hard.solve, x, np.full(ROWS, 5), np.empty_like(x))
    assert packed(code, dtype) >= 8


@pytest.mark.parametrize("kind", [Plain(), Weighted()], ids=["itertopk", "wsoftmaxtopk"])
def test_iterations(kind):
    x, k, tau = problem(np.float32)
    code = machine_code(iterated.solve, x, k.astype(np.int64), tau, kind, np.empty_like(x))
    assert packed(code, np.float64) >= (40 if kind.lowest else 15)  # an exponential, or none
    assert not library_calls(code)


def test_gradtopk():
    x, k, tau = problem(np.float32)
    tilt = np.full((ROWS, records.SOLUTION), records.UNSOLVED)
    flags = np.zeros(FLAGS, np.bool_)
    given = x, k.astype(np.int64), tau, tilt
    arrays = np.empty_like(x), np.empty((ROWS, SUBSET))
    code = machine_code(subsets.solve, *given, NONE_SHORT, *arrays, flags)
    assert packed(code, np.float32) >= 60  # series, and the polynomials of the marginals
    code = machine_code(with_core.solve, *given, *arrays)
    assert packed(code, np.float32) >= 60  # power sums, and the polynomials of the marginals
    assert packed(code, np.float64) >= 60  # the core, node by node
    assert "vpcompress" not in code  # into memory: a hundred cycles on some machines
    assert "vpmovzxbq" in code or not compiled_for("avx2")  # `seek`


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradtopk_of_short_rows(dtype):
    x, _, tau = problem(dtype)
    tilt = np.zeros((ROWS, records.SOLUTION))
    k, sizes = np.full(ROWS, 5), counts.scratch_sizes(x.shape[1], x.dtype)
    flag = np.zeros(1, np.bool_)
    code = machine_code(
        counts.solve, x, k, tau, tilt, sizes, np.empty_like(x), np.empty(ROWS), flag
    )
    assert packed(code, dtype) >= 30  # the odds
    assert packed(code, np.float64) >= 30  # the distribution of the counts, and the division
    assert is_wide(code)
    assert library_calls(code) <= {"exp"}  # of entries whose odds underflow
    target, gtau = np.empty_like(x), np.empty((ROWS, 1))
    code = machine_code(counts_tangent.jvp, x, k, tau, tilt, sizes, x, tau, target, gtau, flag)
    assert packed(code, np.float64) >= 60
    assert is_wide(code)
    assert not library_calls(code)


def test_curve_of_ones_own():
    """Written with functions of `math`, which do not stay calls, unless it is compiled already."""
    x, k, tau = problem(np.float64)

    def cdf(t):
        return 0.5 * math.erfc(-t)

    def pdf(t):
        return math.exp(-t * t) / math.sqrt(math.pi)

    for written in (True, False):
        curve = (stk.Curve(cdf, pdf) if written else stk.Curve(njit(cdf), njit(pdf))).compiled
        solution = np.full((ROWS, records.SOLUTION), records.UNSOLVED)
        kernel = kernel_for(curve, threshold.solve)
        code = machine_code(kernel, x, k, tau, curve, METHODS["newton"], np.empty_like(x), solution)
        assert bool(library_calls(code)) != written
        assert packed(code, np.float64) >= 100 or not written
