"""The PyTorch front on CUDA tensors, in the simulator: which kernels are launched, and on what.

The simulator has no CUDA tensors. A tensor of the host that says that it is one stands in.
"""

from __future__ import annotations

import contextlib
import importlib
import types

import fake_driver
import numpy as np
import pytest
from numba import config
from operators import VARIANTS

import softtopk_nb as stk

torch = pytest.importorskip("torch")
stt = pytest.importorskip("softtopk_nb.torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from softtopk_nb._api.operator import Differentiable, registry  # noqa: E402
from softtopk_nb._cuda import long_rows, row_kernels  # noqa: E402
from softtopk_nb._cuda.thread_groups import ThreadGroup  # noqa: E402
from softtopk_nb.torch import custom_ops  # noqa: E402
from softtopk_nb.torch.operators import OPERATORS  # noqa: E402

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="stands in for CUDA in simulation"),
]


every = pytest.mark.parametrize("name", registry)
smooth = pytest.mark.parametrize(
    "name", [name for name, op in registry.items() if isinstance(op, Differentiable)]
)


with_potential = pytest.mark.parametrize(
    "name", [name for name, op in registry.items() if op.has_potential]
)


class CudaTensor(torch.Tensor):
    """A tensor of the host that says that it lies on a device."""

    is_cuda = True

    def detach(self):
        # In the functions of autograd, PyTorch forgets the class.
        return super().detach().as_subclass(CudaTensor)

    @property
    def __cuda_array_interface__(self):
        with torch._C.DisableTorchFunctionSubclass():
            described = super().detach().numpy().__array_interface__
        return {**described, "version": 3, "stream": 1}


CudaTensor.__module__ = "torch"


@pytest.fixture
def streams(monkeypatch):
    """The streams that the front asks for."""
    asked = []

    def current_stream(device=None):
        asked.append(device)
        return types.SimpleNamespace(cuda_stream=7)

    def there(make):
        return lambda *args, **kwargs: make(*args, **kwargs).as_subclass(CudaTensor)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    for name in ("empty", "full"):
        monkeypatch.setattr(torch, name, there(getattr(torch, name)))
    return asked


def on(x):
    return torch.from_numpy(np.array(x, order="C")).as_subclass(CudaTensor)


def close(found, expected):
    with torch._C.DisableTorchFunctionSubclass():
        found = found.detach().as_subclass(torch.Tensor).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)


@every
def test_values(name, rng, streams):
    op = registry[name]
    x = rng.normal(size=(2, 5, 6))
    expected = op(x, 2, axis=1)
    for given in (on(x), on(x.swapaxes(1, 2)).transpose(1, 2)):
        found = OPERATORS[name](given, 2, dim=1)
        assert type(found) is CudaTensor
        close(found, expected)
    assert streams  # it was asked on which stream


@smooth
def test_gradients(name, rng, streams):
    op = registry[name]
    x, g = rng.normal(size=(2, 3, 6))
    tau = rng.uniform(0.5, 1.5, size=(3, 1))
    k = rng.integers(1, 4, size=(3, 1)) + (0.5 if op.real_k else 0)
    expected = op.vjp(x, k[:, 0], temperature=tau[:, 0])[1](g)
    given = on(x).requires_grad_(), on(k), on(tau).requires_grad_()
    if op.real_k:
        given[1].requires_grad_()
    p = OPERATORS[name](given[0], given[1][:, 0], temperature=given[2][:, 0])
    p.backward(on(g))
    close(given[0].grad, expected.x)
    close(given[2].grad[:, 0], expected.temperature)
    if op.real_k:
        close(given[1].grad[:, 0], expected.k)


@pytest.mark.parametrize("name", [name for name, op in registry.items() if op.has_second])
def test_second_gradients(name, rng, monkeypatch):
    """Of what a backward pass gives, in x and the temperature."""
    x, g, v = rng.normal(size=(3, 3, 6))
    tau = rng.uniform(0.5, 1.5, size=3)
    expected = registry[name].hvp(x, 2, v, g, temperature=tau)
    fake_driver.pretend_cuda(torch, monkeypatch.setattr)
    given = [torch.from_numpy(each).requires_grad_() for each in (x, tau)]
    p = OPERATORS[name](given[0], 2, temperature=given[1])
    (gx,) = torch.autograd.grad(p, given[0], torch.from_numpy(g), create_graph=True)
    found = torch.autograd.grad(gx, given, torch.from_numpy(v))
    monkeypatch.undo()
    np.testing.assert_allclose(found[0].numpy(), expected.x, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(found[1].numpy(), expected.temperature, rtol=1e-10, atol=1e-11)


@pytest.fixture
def pretended(monkeypatch):
    """Tensors say that they lie on a device, until the function that is returned is called."""
    fake_driver.pretend_cuda(torch, monkeypatch.setattr)
    return monkeypatch.undo


def verbs_of(op, device="cpu"):
    """Each verb as compilers see it, with arguments."""
    x, tau = torch.randn(3, 7, device=device), torch.ones(3, device=device)
    k = torch.full((3,), 2, device=device)
    still, how = tau.double(), custom_ops.written(op.__name__, {})
    verbs = torch.ops.softtopk_nb
    p, state = verbs.solve(x, k, tau, *how)
    yield verbs.solve, (x, k, tau, *how)
    yield verbs.jvp, (x, k, tau, state, p, still, still, *how)
    yield verbs.vjp, (x, k, tau, state, p, *how)
    if op.has_second:
        yield verbs.hvp, (x, k, tau, state, p, still, still, p, *how)
    if op.has_potential:
        yield verbs.potential, (x, k, tau, *how)
        none, with_constant = torch.zeros_like, custom_ops.written(op.__name__, {"constant": True})
        yield verbs.loss, (x, none(k), tau, none(x), *with_constant)
    if op.real_k:
        yield verbs.threshold, (x, k, tau, *how)


def tensors(result):
    return result if isinstance(result, tuple) else (result,)


@smooth
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_custom_operators(name, pretended, request):
    """By PyTorch's own checks; and without data they give shapes, types and the device.

    New memory is NaN, so a result of which a part is never written differs from itself.
    """
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    computed = []
    for verb, arguments in verbs_of(registry[name]):
        torch.library.opcheck(verb, arguments)
        computed.append(verb(*arguments))
    pretended()
    with FakeTensorMode():
        shown = [verb(*arguments) for verb, arguments in verbs_of(registry[name], "cuda")]
    for one, other in zip(map(tensors, computed), map(tensors, shown), strict=True):
        assert [(a.shape, a.dtype) for a in one] == [(b.shape, b.dtype) for b in other]
        assert {b.device.type for b in other} == {"cuda"}


@smooth
def test_transforms(name, rng, pretended):
    """The state is a tensor there: nothing is solved again, and `vmap` may turn it around."""
    own, op, front = registry[name], registry[name], OPERATORS[name]
    x, v = rng.normal(size=(2, 2, 3, 6))
    given = torch.from_numpy(x), torch.from_numpy(v)
    solved = []
    engine = importlib.import_module("..cuda", op.cpu.__name__)

    def counted(*arguments):
        solved.append(arguments)
        return linearize(*arguments)

    linearize = engine.linearize
    engine.linearize = counted
    _, moved = torch.func.jvp(lambda x: front(x, 2), given[:1], given[1:])
    _, pull = torch.func.vjp(torch.vmap(lambda x: front(x, 2), in_dims=1, out_dims=1), given[0])
    (gx,) = pull(given[1])
    engine.linearize = linearize
    pretended()
    close(moved, own.jvp(x, 2, v)[1])
    close(gx, own.vjp(x, 2)[1](v).x)
    assert len(solved) == 2


@with_potential
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses(name, dtype, rng, pretended):
    """Values and gradients as NumPy's, from labels and from vectors."""
    own, op, n = registry[name], OPERATORS[name], 7
    x, g = rng.normal(size=(3, n)).astype(dtype), rng.normal(size=3).astype(dtype)
    tau = rng.uniform(0.5, 1.5, size=3).astype(dtype)
    labels = np.array([[0, 4], [3, -1], [6, 2]])
    k = (labels >= 0).sum(axis=1)
    y = np.zeros((3, n + 1))
    np.put_along_axis(y, labels, 1.0, axis=1)
    expected, pull = stk.fenchel_young.vjp(own, x, y[:, :n], k, temperature=tau)
    wanted = pull(g)
    theta, heat = (torch.from_numpy(each).requires_grad_() for each in (x, tau))
    found = []
    for target in (torch.from_numpy(labels), torch.from_numpy(y[:, :n])):
        loss = stt.fenchel_young(op, theta, target, torch.from_numpy(k), temperature=heat)
        found.append((loss, *torch.autograd.grad(loss, (theta, heat), torch.from_numpy(g))))
    soft = own(x[::-1].copy(), k)
    open_loss = stt.fenchel_young(
        op, theta, torch.from_numpy(soft), torch.from_numpy(k), temperature=heat, constant=False
    )
    pretended()
    accuracy = 1e-6 if dtype is np.float32 else 1e-12
    for each in found:
        for one, other in zip(each, (expected, wanted.x, wanted.temperature), strict=True):
            np.testing.assert_allclose(one.detach().numpy(), other, rtol=accuracy, atol=accuracy)
    np.testing.assert_allclose(
        open_loss.detach().numpy(),
        stk.fenchel_young(own, x, soft, k, temperature=tau, constant=False),
        rtol=accuracy,
        atol=accuracy,
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id="-".join([name, *map(str, options.values())]))
        for name, op in registry.items()
        if op.has_potential
        for options in VARIANTS[name]
        if options.get("method") != "dp"  # of memory alone
    ],
)
def test_losses_of_every_curve(name, options, rng, pretended):
    """Of 0/1 vectors and of soft targets, whose conjugate gradtopk has no formula for."""
    own = registry[name]
    x, other = rng.normal(size=(2, 3, 7))
    hard, soft = stk.hardtopk(other, 2), own(other, 2, **options)
    found = [
        stt.fenchel_young(name, *map(torch.from_numpy, (x, y)), 2, temperature=0.5, **options)
        for y in (hard, soft)
    ]
    pretended()
    close(found[0], stk.fenchel_young(own, x, hard, 2, temperature=0.5, **options))
    if own.real_k:
        close(found[1], stk.fenchel_young(own, x, soft, 2, temperature=0.5, **options))
    else:
        assert found[1].isnan().all()


@with_potential
def test_losses_in_parts(name, rng, monkeypatch, pretended):
    """Each part of a row has a block, as where rows are long."""
    parts = long_rows.Parts(ThreadGroup(64, 4, True), 2, 256)
    monkeypatch.setattr(row_kernels, "is_long", lambda rows: True)
    monkeypatch.setattr(row_kernels, "parts_of", lambda rows: parts)
    x, y = rng.normal(size=(2, 300)), np.zeros((2, 300))
    y[0, [3, 299]] = y[1, [100, 280]] = 1.0
    loss = stt.fenchel_young(OPERATORS[name], torch.from_numpy(x), torch.from_numpy(y), 2)
    pretended()
    close(loss, stk.fenchel_young(registry[name], x, y, 2))


@with_potential
def test_a_small_loss_keeps_its_digits(name, pretended):
    """To 1e-7 of the temperature; the potential less <theta, y> has none of them in float32."""
    x = np.array([[1003.0, 1000.0, 980.0, 985.0]], np.float32)
    loss = stt.fenchel_young(OPERATORS[name], torch.from_numpy(x), torch.tensor([[0, 1]]), 2)
    pretended()
    expected = stk.fenchel_young(registry[name], x, [[0, 1]], 2)
    assert 0.0 < expected[0] < 1e-3
    np.testing.assert_allclose(loss.numpy(), expected, rtol=0, atol=1e-7)


@with_potential
def test_infinite_scores_have_the_losses_of_memory(name, pretended):
    x = np.array([[1.0, np.inf, 2.0, -np.inf, 0.0]] * 3 + [[np.nan] + [0.0] * 4] + [[1.0] * 5])
    y = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 1, 0, 0, 0], [1] * 5])
    k = np.array([2, 2, 2, 2, 5])
    given = (torch.from_numpy(each) for each in (x, y, k))
    loss = stt.fenchel_young(OPERATORS[name], *given)
    pretended()
    expected = stk.fenchel_young(registry[name], x, y, k)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12, atol=1e-12)


@with_potential
def test_a_target_that_is_none_makes_its_row_nan(name, pretended):
    """Nobody waits for a device to see it: a label out of range, twice, or too few; numbers."""
    x = torch.zeros(6, 4, requires_grad=True)
    labels = torch.tensor([[0, 1], [0, 4], [2, 2], [1, -1], [-5, 3], [2, 3]])
    lost = stt.fenchel_young(OPERATORS[name], x, labels, 2)
    (gx,) = torch.autograd.grad(lost.sum(), x)
    y = torch.tensor([[1.0, 1.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0], [-0.5, 1.0, 1.0, 0.5]] * 2)
    others = stt.fenchel_young(OPERATORS[name], x, y, 2)
    pretended()
    assert lost.isnan().tolist() == [False, True, True, True, True, False]
    assert gx.isnan().all(-1).tolist() == lost.isnan().tolist()
    assert others.isnan().tolist() == [False, True, True] * 2


@with_potential
def test_potentials(name, rng, pretended):
    """With gradients in x, k where it is real, and the temperature, and the second derivative."""
    own = registry[name]
    x, v = rng.normal(size=(2, 3, 6))
    tau, k = rng.uniform(0.5, 1.5, size=3), np.array([1.0, 2.0, 3.0])
    k = k + 0.5 if own.real_k else k.astype(int)
    given = [torch.from_numpy(each) for each in (x, k, tau)]
    wanted = [each.requires_grad_() for each in given if each.is_floating_point()]
    phi = OPERATORS[name].potential(given[0], given[1], temperature=given[2])
    gradients = torch.autograd.grad(phi.sum(), wanted, create_graph=True)
    (hv,) = torch.autograd.grad(gradients[0], given[0], torch.from_numpy(v))
    pretended()
    step = 1e-6

    def along(tau, k):
        return own.potential(x, k, temperature=tau)

    close(phi, along(tau, k))
    close(gradients[0], own(x, k, temperature=tau))
    close(hv, own.jvp(x, k, v, temperature=tau)[1])
    slopes = [along(tau + step, k) - along(tau - step, k)]
    if own.real_k:
        slopes.insert(0, along(tau, k + step) - along(tau, k - step))
    for found, each in zip(gradients[1:], slopes, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), each / (2 * step), rtol=1e-6)


def test_k_subset(rng, pretended):
    """All but draws, as on the CPU; nobody looks whether two have one k."""
    x, other = (torch.from_numpy(each).requires_grad_() for each in rng.normal(size=(2, 3, 6)))
    tau = torch.tensor([0.5, 1.0, 2.0]).double()
    y = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]).double()

    def measured(k):
        one, two = stt.KSubset(x, 2, tau), stt.KSubset(other, k)
        divergence = torch.distributions.kl_divergence(one, two)
        found = one.log_prob(y), one.entropy(), one.mean, one.variance, divergence
        return *found, *torch.autograd.grad(sum(each.sum() for each in found[:3]), x)

    found, apart = measured(2), measured(3)[4]
    with pytest.raises(NotImplementedError, match=r"KSubset\(x.cpu\(\), k\).sample\(\)"):
        stt.KSubset(x, 2).sample()
    pretended()
    for one, two in zip(found, measured(2), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)
    assert apart.isposinf().all()


@smooth
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_under_autocast(name, dtype, rng, pretended):
    """As on the CPU: computed in float32, and of x's type."""
    x = torch.from_numpy(rng.normal(size=(3, 6))).to(dtype).requires_grad_()

    def both():
        with torch.autocast("cpu", torch.bfloat16):
            p = OPERATORS[name](x, 2)
            return p, *torch.autograd.grad(p.float().square().sum(), x)

    found = both()
    pretended()
    for one, two in zip(found, both(), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, two)


def test_balancedtopk(rng, monkeypatch):
    """Solved on the device with all derivatives; k and the load may lie there too."""
    x, g = rng.normal(size=(2, 6, 4))
    p = rng.uniform(0.1, 0.9, size=x.shape)
    k, load, options = p.sum(axis=1), p.sum(axis=0), {"temperature": 0.5, "tol": 1e-13}
    expected, pull = stk.balancedtopk.vjp(x, k, load, **options)
    gradients, (_, dp) = pull(g), stk.balancedtopk.jvp(x, k, g, load, **options)
    engine, made = importlib.import_module("softtopk_nb.balanced.cuda"), []
    store = engine.Store

    def counted(*arguments):
        made.append(1)
        return store(*arguments)

    monkeypatch.setattr(engine, "Store", counted)
    fake_driver.pretend_cuda(torch, monkeypatch.setattr)
    given = [torch.from_numpy(each).requires_grad_() for each in (x, k, load)]
    found = stt.balancedtopk(*given, **options)
    in_each = torch.autograd.grad(found.p, given, torch.from_numpy(g))
    plain = [each.detach() for each in given]
    _, along = torch.func.jvp(
        lambda x: stt.balancedtopk(x, *plain[1:], **options).p, (plain[0],), (torch.from_numpy(g),)
    )
    value, vjp = stk.balancedtopk.vjp(plain[0], k, load, **options)
    same = vjp(torch.from_numpy(g)).x
    monkeypatch.undo()
    assert len(made) == 5
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    for one, other in zip(in_each, (gradients.x, gradients.k, gradients.load), strict=True):
        close(one, other)
    close(along, dp)
    close(value.p, expected.p)
    close(same, gradients.x)
