"""Every kernel compiled, for devices that need not be there: `kernels.KERNELS` has the list.

Rows must lie in registers, memory must be read 16 bytes at a time, and the arithmetic done for each
entry of a float32 row must be float32.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import ptx
import pytest
from numba import float64, from_dtype, int64

import softtopk_nb
from softtopk_nb._curves.registry import NAMES

pytestmark = pytest.mark.ptx

if ptx.usable() is None:
    import kernels
    from kernels import KERNELS, NEWEST

    from softtopk_nb import nopython
    from softtopk_nb._cuda.launch import MANY, Kernel, pointer_to
    from softtopk_nb._cuda.target import cuda
    from softtopk_nb._cuda.thread_groups import Span, ThreadGroup, tools
    from softtopk_nb._curves.base import split
    from softtopk_nb._threshold.newton import polish

    CASES = list(kernels.cases())
    IN_FLOAT32 = kernels.checked_for_float64()
else:
    CASES, IN_FLOAT32 = [], []


@pytest.fixture(scope="module")
def ahead(request):
    """The compilations that the chosen tests need, on all cores."""
    wanted = {}
    for item in request.session.items:
        given = getattr(item, "callspec", None) and item.callspec.params
        if item.path == request.path and given:
            if "case" in given:
                wanted.setdefault(given["case"], False)
            elif "of_float32" in given:
                wanted[given["of_float32"]] = True
    compiler = kernels.Ahead(wanted)
    yield compiler
    compiler.close()


KINDS = ("Kernel", "RowKernel", "PartKernel", "GroupKernel", "Staged")


def makers(source):
    """The functions in a module that make a `Kernel`, of any of the KINDS."""
    return {
        function.name
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and getattr(call.func, "id", None) in KINDS
    }


def module(file):
    """The path of a module within the package."""
    return file.parent.parts if file.name == "__init__.py" else file.with_suffix("").parts


def test_every_kernel_of_the_package_is_compiled():
    package = Path(softtopk_nb.__file__).parent
    made = {
        (".".join(("softtopk_nb", *module(file.relative_to(package)))), name)
        for file in package.rglob("*.py")
        if file.name != "row_kernels.py"  # what makes kernels of what others give it
        for name in makers(file.read_text(encoding="utf-8"))
    }
    compiled = {
        (entry.factory.__module__, entry.factory.__qualname__) for entry in KERNELS.values()
    }
    assert len(made) > 20
    assert compiled == made


def test_kernels_are_compiled_for_both_types_and_all_devices():
    assert {case.label for case in CASES} == set(KERNELS)
    for some in (CASES, [case for case in CASES if KERNELS[case.label].often]):
        assert {case.T for case in some} == {np.float32, np.float64}
        assert {case.capability for case in some} == set(ptx.CAPABILITIES)


def faults(report, threads, reads=0, writes=0):
    """What is wrong with a compiled kernel, in words."""
    found = []
    if report.registers > min(255, 65536 // threads):
        found.append(f"{report.registers} registers do not leave room for {threads} threads")
    if report.stack or report.spilled:
        found.append(f"{report.stack} bytes of stack, {report.spilled} moved by spilling")
    if report.count(r"\.local\b"):
        found.append("an array of a thread lies in memory")
    for operation, expected in (("LDG", reads), ("STG", writes)):
        if expected and report.wide(operation) < expected:
            found.append(f"{report.wide(operation)} wide {operation}, {expected} expected")
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{case.label}: {case.name}" for case in CASES])
def test_rows_lie_in_registers_and_are_read_wide(case, ahead):
    entry = KERNELS[case.label]
    groups = case.group.held * np.dtype(case.T).itemsize // 16 if case.group else 0
    report = ahead.result(case).report
    found = faults(report, case.kernel.threads, entry.reads * groups, entry.writes * groups)
    assert not found, "; ".join(found)


@pytest.mark.parametrize("of_float32", IN_FLOAT32, ids=lambda case: f"{case.label}: {case.name}")
def test_no_float64_for_each_entry_of_a_float32_row(of_float32, ahead):
    counts = ahead.result(of_float32).doubles
    assert not kernels.leaks(counts), f"instructions on float64, by entries in a thread: {counts}"


REAL = np.float32


def split_probe(curve):
    def kernel(x, out):
        i = int64(cuda.grid(1))
        u, a, b, w = split(curve, x[i])
        out[i] = (u - a) + (b + w)

    return kernel


def polish_probe(curve):
    def kernel(x, out):
        i = int64(cuda.grid(1))
        out[i] = polish(curve, x[i], x[i + 1], x[i + 1])

    return kernel


def group_probe(lanes):
    """Registers filled and written, sums and extremes within a warp."""
    t = tools(REAL, ThreadGroup(lanes, 8))
    zero = REAL(0)

    def kernel(x, out):
        regs = cuda.local.array(8, REAL)
        room = cuda.shared.array(128, REAL)
        t.load(Span(x, int64(0), int64(10**6), True), 0, zero, regs)
        s = zero
        for j in range(8):
            s += regs[j]
        a, b, c, d = t.totals(s, s * s, zero, zero, room)
        lo, hi = t.extremes(s, s, room)
        total = REAL(a) + REAL(b) + REAL(c) + REAL(d) + REAL(t.total(s, room))
        for j in range(8):
            regs[j] = (regs[j] - lo) * total + hi
        t.store(regs, Span(out, int64(0), int64(10**6), True), 0)

    return kernel


PROBES = {
    **{f"split, {name}": (split_probe, name) for name in NAMES},
    **{f"polish, {name}": (polish_probe, name) for name in NAMES},
    "8 lanes": (group_probe, 8),
    "a warp": (group_probe, 32),
}


def as_kernel(function, threads=128):
    return Kernel(function, (pointer_to(REAL), pointer_to(REAL)), threads)


@pytest.mark.parametrize("name", PROBES)
def test_building_blocks_have_no_float64_at_all(name):
    make, argument = PROBES[name]
    kernel = as_kernel(make(kernels.curve_of(argument) if argument in NAMES else argument))
    assert ptx.doubles(ptx.compile_for(kernel, NEWEST)) == 0


def held_by_each(held, factor):
    """Sum and product of a row: 0.5 is a float64, REAL(0.5) is not."""
    t = tools(REAL, ThreadGroup(32, held))
    zero, one = REAL(0), REAL(1)

    def kernel(x, out):
        regs = cuda.local.array(held, REAL)
        t.load(Span(x, int64(0), int64(10**6), True), 0, zero, regs)
        product = one
        for j in range(held):
            product *= REAL(one + factor * regs[j])
        out[cuda.threadIdx.x] = product

    return as_kernel(kernel)


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize(("factor", "leaking"), [(0.3, True), (REAL(0.3), False)])
def test_a_float64_in_a_loop_is_found(factor, leaking, size):
    code = ptx.compile_for(held_by_each(size, factor), NEWEST)
    counts = kernels.count_doubles(lambda held: held_by_each(held, factor), size, code)
    assert kernels.leaks(counts) is leaking


def in_ones_own_kernel(name, T, lanes):
    """A user's kernel that calls a function of `nopython.device`, told how large its blocks are."""
    operator, size = nopython.device(name, T, lanes=lanes), nopython.SHARED + 64 + 2 * lanes
    rows, numbers = from_dtype(np.dtype(T))[:, ::1], float64[::1]

    def kernel(x, k, tau, out):
        shared = cuda.shared.array(size, float64)
        row = int64(cuda.blockIdx.x)
        operator(x[row], k[row], tau[row], out[row], shared)

    return Kernel(kernel, (rows, numbers, numbers, rows), lanes, MANY)


@pytest.mark.parametrize("lanes", [32, 512])
@pytest.mark.parametrize("T", kernels.REALS if CASES else [])
@pytest.mark.parametrize("name", ["thretopk", "gradtopk"])
def test_functions_for_ones_own_kernels_lie_in_registers(name, T, lanes):
    assert not faults(ptx.report(in_ones_own_kernel(name, T, lanes)), lanes)


def test_an_array_in_memory_and_narrow_reads_are_found():
    def kernel(x, out):
        held = cuda.local.array(16, REAL)
        for j in range(int64(x[0])):
            held[j & 15] = x[j]
        for j in range(int64(x[1])):
            out[j] = held[(7 * j) & 15]

    report = ptx.report(as_kernel(kernel))
    found = faults(report, 128, reads=4)
    assert len(found) == 3, found


def test_spilled_registers_are_found():
    def kernel(x, out):
        i = int64(cuda.threadIdx.x)
        some, more = cuda.local.array(32, REAL), cuda.local.array(32, REAL)
        for j in range(32):
            some[j] = x[i + 1024 * j]
            more[j] = x[i + 1024 * (32 + j)]
        cuda.syncthreads()
        for j in range(32):
            out[i + 1024 * j] = some[j]
            out[i + 1024 * (32 + j)] = more[j]

    report = ptx.report(as_kernel(kernel, 1024))
    assert report.spilled > 0
    assert any("spilling" in fault for fault in faults(report, 1024))
    assert not faults(ptx.report(as_kernel(kernel, 128)), 128)
