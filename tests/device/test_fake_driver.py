"""What the host asks of a device, seen by a driver that has none: launches, bytes, waiting."""

from __future__ import annotations

import pytest
from fake_driver import run

pytestmark = pytest.mark.ptx

# Every verb of every operator on rows of three lengths; `calls` has them by name.
CALLS = """
import numpy as np
from numba import cuda
import fake_driver
import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable, registry

driver = fake_driver.Driver()
rng = np.random.default_rng(0)

def put(array):
    return cuda.to_device(np.ascontiguousarray(array))

def verbs(op, x, g, k, where):
    yield lambda: op(x, k, where=where)
    if not isinstance(op, Differentiable):
        return
    tau = put(np.full(x.shape[:1], 0.5))
    yield lambda: op.jvp(x, k, g, dtemperature=1.0, temperature=tau)
    yield lambda: op.vjp(x, k, temperature=tau, largest=False)[1](g)
    if op.has_second:
        yield lambda: op.hvp(x, k, g, g, temperature=tau)
    if op.has_potential:
        yield lambda: op.potential(x, k)

calls = []
for n in (64, 5000):
    x, g = (put(rng.normal(size=(3, n)).astype(np.float32)) for _ in range(2))
    where = put(rng.random((3, n)) < 0.9)
    for name, op in registry.items():
        calls += verbs(op, x, g, 2, where)
    calls.append(lambda x=x, where=where: stk.topk(x, 2, where=where))
"""


def test_launches_have_the_bytes_of_numbas_own(driver):
    """Parameters are packed here; Numba's launch, which looks at every type, is asked beside it."""
    program = """
from softtopk_nb._cuda import launch

ours = launch.Kernel.__call__
compared = set()

def both(kernel, blocks, stream, *arguments):
    ours(kernel, blocks, stream, *arguments)
    numbas = kernel.compiled(cuda.get_current_device().compute_capability)
    numbas._specialized = True  # to be given addresses for arrays
    numbas[blocks, kernel.threads, stream](*arguments)
    one, other = driver.launches[-2:]
    assert one == other, (kernel.function.__qualname__, one, other)
    assert len(one.parameters) > 2
    compared.add(one.name)

launch.Kernel.__call__ = both
for call in calls:
    call()
print(len(compared))
"""
    assert int(run(CALLS + program, driver)) > 20


def test_nothing_waits_for_the_device(driver):
    """No verb copies to the host or waits, once its kernels are loaded."""
    program = """
for call in calls:
    call()
driver.reset()
for call in calls:
    call()
print(driver.waits, len(driver.launches) > len(calls))
"""
    assert run(CALLS + program, driver) == "0 True\n"


@pytest.mark.parametrize("name", ["thretopk", "gradtopk"])
def test_a_pass_and_its_backward_pass_are_two_launches(name, driver):
    """The backward pass solves nothing, sums nothing unasked, and keeps the state alone."""
    pytest.importorskip("torch")
    program = f"""
import torch
import fake_driver
import softtopk_nb.torch as stt
from softtopk_nb.{name}.cuda import SOLUTION

driver = fake_driver.Driver()
fake_driver.pretend_cuda(torch)
x, g = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
asked, empty = [], torch.Tensor.new_empty
torch.Tensor.new_empty = lambda x, size, **kind: (asked.append(size), empty(x, size, **kind))[1]

def step():
    return torch.autograd.grad(stt.{name}(x, 8), x, g)

step()
driver.reset()
asked.clear()
step()
print(driver.waits, len(driver.launches), max(asked) == 64 * 8 * SOLUTION)
"""
    assert run(program, driver) == "0 2 True\n"


def test_the_short_way_launches_what_the_long_way_does(driver):
    """Word for word but for addresses, which are told apart by what they are of.

    With other numbers and tensors than those that the programs were recorded with.
    """
    pytest.importorskip("torch")
    program = """
import itertools, struct
import torch
import fake_driver
import softtopk_nb as stk
import softtopk_nb.torch as stt
from softtopk_nb._api import device_programs, verbs

driver = fake_driver.Driver()
fake_driver.pretend_cuda(torch)
kept, empty, empty_like = [], torch.empty, torch.empty_like

def keeping(make):
    def made(*arguments, **options):
        kept.append(make(*arguments, **options))
        return kept[-1]
    return made

torch.empty, torch.empty_like = keeping(empty), keeping(empty_like)

def asked(call, x, g, numbers):
    "The launches of a call, with a name for each address of what was given or returned."
    driver.reset()
    results = call()
    names = {}
    for name, each in (("x", x), ("g", g), *numbers.items(), *enumerate(results)):
        if isinstance(each, torch.Tensor):
            names.setdefault(each.data_ptr(), name)
    found = []
    for launch in driver.launches:
        words = []
        for word in launch.parameters:
            value = int.from_bytes(word, "little")
            if 1 << 22 < value < 1 << 48:  # an address; no other number is as large
                words.append(names.setdefault(value, f"scratch {len(names)}"))
            else:
                words.append(word)
        found.append((launch.name, launch.grid, launch.shared, launch.stream, words))
    return found

def calls(name, options):
    op = getattr(stk, name)
    front = getattr(stt, name) if op.names[0] == "k" else None
    for (n, dtype), largest in itertools.product(ROWS, (True, False)):
        if front is None and not largest:
            continue
        more = dict(options) if front is None else dict(options, largest=largest)
        for seed, tensors in ((0, False), (1, False), (0, True), (1, True)):
            torch.manual_seed(seed)
            x, g = torch.randn(3, n, dtype=dtype), torch.randn(3, n, dtype=dtype)
            k, tau = 2 + seed, 0.5 + seed
            if tensors:
                k, tau = torch.full((3,), k), torch.full((3,), tau)
            own = {"temperature": tau} if front is None else {"k": k, "temperature": tau}
            yield lambda x=x: [op(x, **own, **more)], x, g, own
            if front is not None and name != "hardtopk":
                leaf = x.clone().requires_grad_()
                def both(leaf=leaf, g=g, own=own, more=more):
                    p = front(leaf, **own, **more)
                    (gx,) = torch.autograd.grad(p, leaf, g)
                    return [p, gx]
                yield both, leaf, g, own

# Rows that a group holds, and that are read again; longer ones are cut.
ROWS = (64, torch.float32), (64, torch.float64), (5000, torch.float32)
count, short = 0, verbs.begin
for name, options in (
    ("thretopk", {}), ("thretopk", {"curve": "exp", "method": "scan"}), ("gradtopk", {}),
    ("hardtopk", {}), ("softmax", {}), ("log_softmax", {}),
):
    for case in calls(name, options):
        verbs.begin = short
        asked(*case)  # records, compiles
        one = asked(*case)
        verbs.begin = verbs.check
        other = asked(*case)
        assert len(one) == len(other) > 0, (name, options, len(one), len(other))
        for each in zip(one, other):
            assert each[0] == each[1], (name, options, each)
        count += 1
print(count, device_programs._recorded.cache_info().hits > 100)
"""
    count, hits = run(program, driver).split()
    assert int(count) > 100
    assert hits == "True"


def test_pytorch_waits_for_nothing(driver):
    """Of all derivatives, potentials and losses, by the driver and by what PyTorch is asked."""
    pytest.importorskip("torch")
    program = """
import torch
import fake_driver
import softtopk_nb.torch as stt
from softtopk_nb._api.operator import Differentiable, registry
from softtopk_nb.torch.operators import OPERATORS

driver = fake_driver.Driver()
fake_driver.pretend_cuda(torch)
x, g, v = torch.randn(3, 64, requires_grad=True), torch.randn(3, 64), torch.randn(3, 64)
tau, k = torch.ones(3, requires_grad=True), torch.full((3,), 2)
there, labels, y = g > -3.0, torch.tensor([[0, 1]] * 3), torch.zeros(3, 64)

def smooth(name, op):
    p = op(x, k, temperature=tau, where=there)
    if not registry[name].has_second:
        return torch.autograd.grad(p, (x, tau), g)
    (gx,) = torch.autograd.grad(p, x, g, create_graph=True)
    return torch.autograd.grad(gx, (x, tau), v)

def potential(op):
    phi = op.potential(x, k, temperature=tau)
    (gx,) = torch.autograd.grad(phi.sum(), x, create_graph=True)
    return torch.autograd.grad(gx, (x, tau), v)

def loss(op, target):
    found = stt.fenchel_young(op, x, target, k, temperature=tau)
    (gx,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    return torch.autograd.grad(gx, (x, tau), v)

def subsets():
    one = stt.KSubset(x, 2, tau, validate_args=False)
    found = one.log_prob(y), one.entropy(), one.mean
    return torch.autograd.grad([each.sum() for each in found], x)

calls = [subsets]
for name, op in OPERATORS.items():
    calls.append(lambda op=op: op(x, 2, hard=True))
    if isinstance(registry[name], Differentiable):
        calls.append(lambda name=name, op=op: smooth(name, op))
        calls.append(lambda op=op: torch.func.jvp(lambda x: op(x, k), (g,), (v,)))
    if registry[name].has_potential:
        calls.append(lambda op=op: potential(op))
        calls.extend(lambda op=op, target=target: loss(op, target) for target in (labels, y))
for call in calls:
    call()
driver.reset()
with fake_driver.without_waits(torch):
    for call in calls:
        call()
print(driver.waits, len(driver.launches) > 2 * len(calls))
"""
    assert run(program, driver) == "0 True\n"


def test_streams_devices_and_graphs(driver):
    """Launches go to the current stream of x's device, and a graph holds kernels that are there."""
    pytest.importorskip("torch")
    program = """
import torch
import fake_driver
import softtopk_nb as stk
import softtopk_nb.torch as stt

driver = fake_driver.Driver()
said = fake_driver.pretend_cuda(torch, driver=driver)
x, g, k = torch.randn(4, 64), torch.randn(4, 64), torch.full((4,), 8)

def launched(x, k=8, g=g):
    leaf = x.clone().requires_grad_()
    said.move(leaf, said.place(x))
    driver.reset()
    torch.autograd.grad(stt.thretopk(leaf, k), leaf, g)
    stk.thretopk.jvp(x, k, said.move(torch.ones(x.shape), said.place(x)))
    return driver.launches

def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(words)

assert {(each.device, each.stream) for each in launched(x)} == {(0, 0)}
said.stream = 7
assert {(each.device, each.stream) for each in launched(x)} == {(0, 7)}
other = said.move(torch.randn(4, 64), 1)
beside = said.move(torch.randn(4, 64), 1)
assert {(each.device, each.stream) for each in launched(other, g=beside)} == {(1, 7)}
assert said.current == 0
away = said.move(k.clone(), 1)
refused(lambda: stk.thretopk(x, away), ValueError, "k is on device 1; x is on device 0")
refused(lambda: stk.thretopk(x, 8, out=other), ValueError, "out is on device 1")
masked = said.move(torch.ones(4, 64, dtype=torch.bool), 1)
refused(lambda: stk.thretopk(x, 8, where=masked), ValueError, "where is on device 1")
refused(lambda: stk.thretopk.jvp(x, 8, other), ValueError, "dx is on device 1")

driver.capture(7)
asked = [(each.name, each.stream) for each in launched(x)]
assert asked and {stream for _, stream in asked} == {7}
refused(lambda: launched(torch.randn(4, 700)), RuntimeError, "make the call once", "capture")
driver.capture(0)
launched(torch.randn(4, 700), g=torch.randn(4, 700))
driver.capture(7)
launched(torch.randn(4, 700), g=torch.randn(4, 700))

# Another number of rows gets launches of its own.
for rows in (4, 9, 4):
    for each in launched(torch.randn(rows, 64), g=torch.randn(rows, 64)):
        assert int.from_bytes(each.parameters[1], "little") == rows
print("done")
"""
    assert run(program, driver) == "done\n"


def test_balancedtopk_copies_no_matrix_to_the_host(driver):
    """Each pass is a kernel, and the largest copy has a number for each row."""
    program = """
import re
import numpy as np
from numba import cuda
import fake_driver
import softtopk_nb as stk
from softtopk_nb.balanced import call

driver = fake_driver.Driver()
m, n = 5000, 40
x, start = cuda.to_device(np.ones((m, n), np.float32)), np.zeros(n)
options = {"curve": "laplace", "alpha": None, "axis": (0, 1), "at_most": False, "where": None}
options |= {"clamp_k": False, "tol": 1e-6, "max_iter": 1}
asked = call.check(x, 1, None, 1.0, options, start)

def run():
    try:
        asked.value()
    except stk.ConvergenceError:  # of kernels that do nothing
        return

run()
driver.reset()
run()
names = [re.search("make_([a-z_]*)|RowKernel", each.name) for each in driver.launches]
print(driver.largest_to_host == 8 * m, {each[1] or "row" for each in names if each})
"""
    printed = run(program, driver)
    assert printed.startswith("True")
    for name in ("survey", "less", "row", "column_sums", "sum", "products", "threshold"):
        assert f"'{name}'" in printed
