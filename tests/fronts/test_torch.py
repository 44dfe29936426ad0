"""The PyTorch front: every operator of the registry under every transform, and its arguments."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import reference
from operators import every_once, smooth, smooth_once
from reference import mp

import softtopk_nb as stk
from softtopk_nb._api import without_k
from softtopk_nb._api.operator import Differentiable, registry

torch = pytest.importorskip("torch")
stt = pytest.importorskip("softtopk_nb.torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402

from softtopk_nb.torch import custom_ops, operators  # noqa: E402

# PyTorch's own: its checks compile in a deprecated way, its compiler makes a function's object,
# and quantized tensors are to go.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]
K = 3
WITH_POTENTIAL = [name for name, op in registry.items() if op.has_potential]


@pytest.fixture(autouse=True)
def _seeded():
    """Weights of layers are drawn by PyTorch's own generator."""
    torch.manual_seed(1)


def front(op):
    return operators.OPERATORS[op.__name__]


def scores(rng, *shape, dtype=torch.float64, grad=False):
    return torch.tensor(rng.normal(size=shape), dtype=dtype, requires_grad=grad)


def problem(op, rng):
    """x, and k and the temperature of each row, that require gradients where there are any."""
    x = scores(rng, 3, 7, grad=True)
    k = torch.tensor([1.5, 3.25, 4.25], dtype=torch.float64, requires_grad=True)
    if not op.real_k:
        k = torch.tensor([1, 3, 4])
    return x, k, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)


def function_of_reals(op, options, k):
    """(function, which of the problem it takes), for checks that differentiate all."""
    if op.real_k:
        return lambda x, k, tau: front(op)(x, k, temperature=tau, **options), (0, 1, 2)
    return lambda x, tau: front(op)(x, k, temperature=tau, **options), (0, 2)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


# Values and first derivatives


@smooth
def test_gradients(op, options, rng):
    """To x, k and the temperature, by backward and by forward mode."""
    given = problem(op, rng)
    function, taken = function_of_reals(op, options, given[1])
    assert gradcheck(function, [given[i] for i in taken], check_forward_ad=True)


@smooth
def test_second_gradients(op, options, rng):
    given = problem(op, rng)
    function, taken = function_of_reals(op, options, given[1])
    inputs = [given[i] for i in taken]
    if op.has_second:
        assert gradgradcheck(function, inputs, check_fwd_over_rev=True)
        (gx,) = torch.autograd.grad(function(*inputs).square().sum(), inputs[0], create_graph=True)
        (ggx,) = torch.autograd.grad(gx.square().sum(), inputs[0], create_graph=True)
        with pytest.raises(NotImplementedError, match="no third derivative"):
            ggx.sum().backward()
    else:
        (gx,) = torch.autograd.grad(function(*inputs).square().sum(), inputs[0], create_graph=True)
        with pytest.raises(NotImplementedError, match=f"{op.__name__} has no second derivative"):
            gx.sum().backward()


@pytest.mark.parametrize("name", without_k.registry)
def test_operators_without_a_k(name, rng):
    """Derivatives in both modes, transforms, and compiled."""
    op, x, tau = getattr(stt, name), scores(rng, 3, 7, grad=True), torch.tensor([0.5, 1.0, 2.0])
    tau = tau.double().requires_grad_()
    assert gradcheck(lambda x, tau: op(x, temperature=tau), (x, tau), check_forward_ad=True)
    jacobian = vmap(jacrev(op))(x.detach())
    close(jacobian, vmap(jacfwd(op))(x.detach()))
    close(jacobian, torch.stack([torch.autograd.functional.jacobian(op, each) for each in x]))

    def loss(x, tau):
        return op(x.T, temperature=tau, dim=0).square().sum()

    expected = torch.autograd.grad(loss(x, tau), (x, tau))
    found = torch.autograd.grad(torch.compile(loss, fullgraph=True)(x, tau), (x, tau))
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    (gx,) = torch.autograd.grad(loss(x, tau), x, create_graph=True)
    with pytest.raises(NotImplementedError, match=f"{name} has no second derivative"):
        gx.sum().backward()
    half = op(x.detach().to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, op(x.detach().to(torch.bfloat16).float()).to(torch.bfloat16))


# Transforms


@smooth_once
def test_vmap_and_jacobians(op, options, rng):
    x = scores(rng, 4, 7)

    def function(x):
        return front(op)(x, K, **options)

    close(vmap(function)(x), function(x))
    close(vmap(function, in_dims=1)(x.T), function(x))
    close(vmap(vmap(function))(x[None]), function(x)[None])
    close(
        vmap(lambda tau: front(op)(x[0], K, temperature=tau, **options))(torch.ones(2).double()),
        function(x[0]).expand(2, 7),
    )
    jacobian = torch.autograd.functional.jacobian(function, x[0])
    close(jacrev(function)(x[0]), jacobian)
    close(jacfwd(function)(x[0]), jacobian)
    close(vmap(jacrev(function))(x)[0], jacobian)
    close(jvp(function, (x[0],), (x[1],))[1], jacobian @ x[1])
    weights = scores(rng, 7)
    close(grad(lambda x: function(x) @ weights)(x[0]), weights @ jacobian)


@smooth_once
def test_hessians(op, options, rng):
    if not op.has_second:
        with pytest.raises(NotImplementedError, match="no second derivative"):
            hessian(lambda x: front(op)(x, K).square().sum())(scores(rng, 7))
        return
    x = scores(rng, 3, 7)

    def function(x):
        return front(op)(x, K, **options).square().sum()

    expected = torch.autograd.functional.hessian(function, x[0])
    for each in (hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacrev(f))):
        close(each(function)(x[0]), expected)
    close(vmap(hessian(function))(x)[0], expected)
    close(torch.autograd.functional.hvp(function, x[0], x[1])[1], expected @ x[1])
    close(torch.autograd.functional.vhp(function, x[0], x[1])[1], expected @ x[1])


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_second_derivatives_of_what_is_linear_in_p(name, rng):
    """Where a cotangent has no direction of its own, PyTorch makes zeros without a memory."""
    x, weights = scores(rng, 7), scores(rng, 7)

    def function(x):
        return operators.OPERATORS[name](x, K) @ weights

    expected = jacrev(grad(function))(x)
    for each in (hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f))):
        close(each(function)(x), expected)
    close(grad(lambda x: jvp(function, (x,), (weights,))[1])(x), expected @ weights)


@every_once
def test_layouts_and_modes(op, options, rng):
    x = scores(rng, 4, 6)
    expected = front(op)(x, K, **options)
    close(front(op)(x.T, K, dim=0, **options).T, expected)
    close(front(op)(torch.stack([x, x], -1)[..., 0], K, **options), expected)
    close(front(op)(x.flip(1), K, **options).flip(1), expected)
    leaf = x.clone().requires_grad_()
    with torch.no_grad():
        assert not front(op)(leaf, K, **options).requires_grad
    with torch.inference_mode():
        close(front(op)(x.clone(), K, **options), expected)
    assert front(op)(leaf, K, **options).requires_grad == isinstance(op, Differentiable)
    assert front(op)(x[:0], K, **options).shape == (0, 6)
    assert front(op)(scores(rng, 3, 0), 0, **options).shape == (3, 0)


@every_once
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(op, options, dtype, rng):
    x = scores(rng, 4, 6, dtype=dtype)
    found = front(op)(x, K, **options)
    assert found.dtype == dtype
    assert torch.equal(found, front(op)(x.float(), K, **options).to(dtype))
    numbers = [torch.tensor(K, dtype=dtype)] * op.real_k or [K]
    warm = torch.tensor(0.5, dtype=dtype)
    assert torch.equal(
        front(op)(x, *numbers, temperature=warm, **options),
        front(op)(x, K, temperature=0.5, **options),
    )
    if isinstance(op, Differentiable):
        leaf = x.clone().requires_grad_()
        front(op)(leaf, K, **options).float().square().sum().backward()
        assert leaf.grad.dtype == dtype
        assert leaf.grad.isfinite().all()


@smooth_once
def test_checkpoint_autocast_and_saved_tensors(op, options, rng):
    from torch.utils.checkpoint import checkpoint

    x = scores(rng, 4, 6, dtype=torch.float32, grad=True)

    def function(x):
        return front(op)(x, K, **options).square().sum()

    (expected,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(checkpoint(function, x, use_reentrant=False), x)
    torch.testing.assert_close(found, expected)
    checkpoint(function, x, use_reentrant=True).backward()
    torch.testing.assert_close(x.grad, expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert front(op)(x, K, **options).dtype == torch.float32
    with torch.autograd.graph.save_on_cpu():
        (found,) = torch.autograd.grad(function(x), x)
    torch.testing.assert_close(found, expected)
    changed = x * 1.0
    total = front(op)(changed, K, **options).sum()
    changed.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("dim", [0, 1])
def test_masked_entries_are_left_out_of_gradients(dim, rng):
    """To the bit as where they are -inf, which takes as long; and all True is as no mask."""
    x, g, there = scores(rng, 5, 6), scores(rng, 5, 6), torch.rand(5, 6) < 0.8
    there[0] = there[:, 0] = True
    for mask, excluded in ((there, x.masked_fill(~there, -torch.inf)), (there | True, x)):
        masked, plain = x.clone().requires_grad_(), excluded.clone().requires_grad_()
        stt.thretopk(masked, 1, dim=dim, where=mask).backward(g)
        stt.thretopk(plain, 1, dim=dim).backward(g)
        assert torch.equal(masked.grad, plain.grad)
        assert masked.grad[~mask].eq(0).all()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_call_is_one_step_of_the_graph(dim, largest, rng):
    """Mask, dimension and order go to the operator itself; gradients lie as x does."""
    x, g, there = scores(rng, 5, 6, grad=True), scores(rng, 5, 6), torch.rand(5, 6) < 0.8
    there[0] = there[:, 0] = True

    def function(x):
        return stt.thretopk(
            x, 1, dim=dim, largest=largest, where=there, curve="sigmoid", temperature=0.5
        )

    p = function(x)
    assert type(p.grad_fn.next_functions[0][0]).__name__ == "AccumulateGrad"
    (gx,) = torch.autograd.grad(p, x, g)
    assert gx.is_contiguous()
    assert gradcheck(function, x, check_forward_ad=True)
    assert gradgradcheck(function, x)


# Compilers


def compiled(function):
    """One graph of it."""
    return torch.compile(function, fullgraph=True, backend="aot_eager")


takes_transforms = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11),
    reason="PyTorch takes transforms of custom functions within a graph from 2.11 on",
)


@smooth_once
def test_compiled(op, options, rng):
    """Forward and backward, to x, k and the temperature."""
    torch._dynamo.reset()
    x = scores(rng, 4, 7)

    def function(x):
        return front(op)(x, K, **options)

    close(compiled(function)(x), function(x))
    given = problem(op, rng)
    of_reals, taken = function_of_reals(op, options, given[1])
    inputs = [given[i] for i in taken]
    found = torch.autograd.grad(compiled(lambda *a: of_reals(*a).square().sum())(*inputs), inputs)
    for one, other in zip(
        found, torch.autograd.grad(of_reals(*inputs).square().sum(), inputs), strict=True
    ):
        close(one, other)
    half = x.bfloat16()
    assert torch.equal(compiled(function)(half), function(half))


@takes_transforms
@smooth_once
def test_compiled_transforms(op, options, rng):
    torch._dynamo.reset()
    x = scores(rng, 4, 7)

    def function(x):
        return front(op)(x, K, **options)

    def total(x):
        return function(x).square().sum()

    close(compiled(vmap(function))(x), function(x))
    close(compiled(grad(total))(x), grad(total)(x))
    close(compiled(jacrev(function))(x[0]), jacrev(function)(x[0]))
    close(compiled(jacfwd(function))(x[0]), jacfwd(function)(x[0]))
    close(compiled(lambda x: jvp(function, (x,), (x,))[1])(x), jvp(function, (x,), (x,))[1])


def test_compiled_once_for_any_number_of_rows(rng):
    torch._dynamo.reset()
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module.forward

    counted = torch.compile(lambda x: stt.thretopk(x, K), fullgraph=True, backend=count)
    for rows in (3, 5, 7, 11):
        counted(scores(rng, rows, 9))
    assert len(graphs) == 2  # the first number as it is, the second for all others


def test_compiled_with_a_number_that_changes(rng):
    """From the second value on the compiler knows it by a name."""
    torch._dynamo.reset()
    x = scores(rng, 3, 7)

    def function(x, alpha):
        return stt.thretopk(x, K, curve="entmax", alpha=alpha)

    once = compiled(function)
    for alpha in (1.5, 1.25, 2, np.float64(1.75)):
        assert torch.equal(once(x, alpha), function(x, alpha))


def potential_or_loss(name, kind):
    op, y = operators.OPERATORS[name], torch.eye(7)[:4]
    if kind == "potential":
        return lambda x: op.potential(x, K)
    return lambda x: stt.fenchel_young(op, x, y, 1)


@pytest.mark.parametrize("kind", ["potential", "loss"])
@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_compiled_potentials_and_losses(name, kind, rng):
    torch._dynamo.reset()
    x, function = scores(rng, 4, 7), potential_or_loss(name, kind)
    close(compiled(function)(x), function(x))


@takes_transforms
@pytest.mark.parametrize("kind", ["potential", "loss"])
@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_compiled_transforms_of_potentials_and_losses(name, kind, rng):
    torch._dynamo.reset()
    x, function = scores(rng, 4, 7), potential_or_loss(name, kind)

    def total(x):
        return function(x).sum()

    close(compiled(grad(total))(x), grad(total)(x))
    close(compiled(lambda x: jvp(function, (x,), (x,))[1])(x), jvp(function, (x,), (x,))[1])


def test_a_graph_of_other_sources_is_another_graph(monkeypatch):
    """So PyTorch does not take what it compiled for them, and still reads what they exported."""
    options = {"curve": "entmax", "alpha": 1.5}
    text, numbers = custom_ops.written("thretopk", options)
    monkeypatch.setattr(custom_ops, "_STAMP", "another")
    assert custom_ops.written("thretopk", options)[0] != text
    assert custom_ops.read(text, numbers) == ("thretopk", options)


@smooth_once
def test_custom_operators(op, options, rng):
    """PyTorch's own checks of an operator that it cannot look into."""
    x, k, tau = (each.detach() for each in problem(op, rng))
    x, how = (
        x.float(),
        custom_ops.written(op.__name__, options),
    )  # another type than that of its numbers
    verbs = torch.ops.softtopk_nb
    p, state = verbs.solve(x, k, tau, *how)
    still = torch.zeros(3, dtype=torch.float64)
    direction = p, still, still
    calls = [
        (verbs.solve, (x, k, tau, *how)),
        (verbs.jvp, (x, k, tau, state, *direction, *how)),
        (verbs.vjp, (x, k, tau, state, p, *how)),
    ]
    if op.has_second:
        calls.append((verbs.hvp, (x, k, tau, state, *direction, p, *how)))
        calls.append((verbs.second, (x, k, tau, state, *direction, *direction, *how)))
        calls.append((verbs.potential, (x, k, tau, *how)))
    if op.real_k:
        calls.append((verbs.threshold, (x, k, tau, *how)))
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments)


def test_export(rng):
    x = scores(rng, 4, 9)
    layer = stt.SoftTopK(K, temperature=0.5, learn_temperature=True)
    exported = torch.export.export(layer, (x,))
    close(exported.module()(x), layer(x))


# Potentials, losses, subsets, modules


def test_a_clamped_k_is_compiled_and_moves_no_potential(rng):
    """A temperature with the dimension kept, too; no graph break."""
    x, k = scores(rng, 3, 7), torch.full((3, 1), 4.0, dtype=torch.float64)
    seen, tau = torch.arange(7) < torch.tensor([[0], [2], [6]]), torch.full((3, 1), 0.5)

    def function(x, k):
        return stt.thretopk(x, k, temperature=tau, where=seen, clamp_k=True)

    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(x, k), function(x, k), rtol=0, atol=0)

    def potential(k):
        return stt.thretopk.potential(x.detach(), k, where=seen, clamp_k=True)

    _, along = torch.func.jvp(potential, (k,), (torch.ones_like(k),))
    assert (along[:2] == 0).all()
    assert along[2].isfinite()
    assert along[2] != 0


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_potentials_and_losses(name, rng):
    op, own = operators.OPERATORS[name], registry[name]
    x, k, tau = problem(own, rng)
    np.testing.assert_array_equal(
        op.potential(x, k, temperature=tau).detach().numpy(),
        own.potential(x.detach().numpy(), k.detach().numpy(), temperature=tau.detach().numpy()),
    )
    assert gradcheck(
        lambda x, tau: op.potential(x, K, temperature=tau), (x, tau), check_forward_ad=True
    )
    assert gradgradcheck(lambda x, tau: op.potential(x, K, temperature=tau), (x, tau))
    if own.real_k:
        assert gradcheck(lambda k: op.potential(x, k), (k,), check_forward_ad=True)

        def threshold(x, tau):
            return op.threshold(x, 2.5, temperature=tau)

        assert gradcheck(threshold, (x, tau), check_forward_ad=True)
        expected = torch.autograd.grad(threshold(x, tau).sum(), (x, tau))
        compiled = torch.compile(threshold, fullgraph=True)(x, tau)
        for one, other in zip(torch.autograd.grad(compiled.sum(), (x, tau)), expected, strict=True):
            close(one, other)
        with pytest.raises(NotImplementedError, match="no derivative in k"):
            op.threshold(x, k).sum().backward()
    labels = torch.tensor([[0, 4], [3, 1], [6, 2]])
    y = torch.zeros(3, 7).scatter_(1, labels, 1.0)
    loss = stt.fenchel_young(op, x, y, 2, temperature=tau)
    numbers = tau.detach().numpy()
    expected = stk.fenchel_young(own, x.detach().numpy(), y.numpy(), 2, temperature=numbers)
    np.testing.assert_array_equal(loss.detach().numpy(), expected)
    close(stt.fenchel_young(op, x, labels, 2, temperature=tau), loss)
    close(stt.fenchel_young(op, x.T, labels.T, 2, temperature=tau, dim=0), loss)

    def function(x, tau):
        return stt.fenchel_young(op, x, y, 2, temperature=tau)

    assert gradcheck(function, (x, tau), check_forward_ad=True)
    assert gradgradcheck(function, (x, tau))


def test_cross_entropy(rng):
    theta, labels = scores(rng, 6, 9, grad=True), torch.tensor(rng.integers(9, size=6))
    found = stt.fenchel_young(stt.thretopk, theta, labels, 1, curve="exp")
    close(found, torch.nn.functional.cross_entropy(theta, labels, reduction="none"))


@pytest.mark.parametrize("hard", [False, True])
@smooth_once
def test_straight_through(op, options, hard, rng):
    x = scores(rng, 4, 7, grad=True)
    weights = scores(rng, 4, 7)
    p = front(op)(x, K, hard=hard, **options)
    if hard:
        np.testing.assert_array_equal(p.detach().numpy(), stk.hardtopk(x.detach().numpy(), K))
    (found,) = torch.autograd.grad((p * weights).sum(), x)
    (expected,) = torch.autograd.grad((front(op)(x, K, **options) * weights).sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_numpys_functions_take_dim(rng):
    x = scores(rng, 4, 7)
    labels = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
    for numpys, own, given in (
        (stk.thretopk, stt.thretopk, (x, 2)),
        (stk.topk, lambda *a, **o: stt.topk(*a, **o), (x, 2)),
        (stk.gradtopk.potential, stt.gradtopk.potential, (x, 2)),
        (stk.fenchel_young, stt.fenchel_young, ("gradtopk", x, labels, 1)),
    ):
        found, expected = (each(*given, dim=0) for each in (numpys, own))
        assert all(map(torch.equal, found, expected))


def test_module(rng):
    x = scores(rng, 4, 7, dtype=torch.float32)
    layer = stt.SoftTopK(2.5, temperature=0.5, learn_temperature=True, learn_k=True, curve="exp")
    p = layer(x)
    torch.testing.assert_close(p, stt.thretopk(x, 2.5, temperature=0.5, curve="exp"))
    p.square().sum().backward()
    assert {name for name, each in layer.named_parameters() if each.grad is not None} == {
        "shift",
        "log_temperature",
    }
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), p)
    again = stt.SoftTopK(1, learn_temperature=True, learn_k=True, curve="exp")
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), p)
    layer.share_memory()
    assert torch.equal(layer(x), p)
    assert "thretopk" in repr(layer)
    for op in registry:
        assert stt.SoftTopK(2, op=op)(x).shape == x.shape


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"op": "topk"}, ValueError, "op is 'topk'; expected an operator or its name: grad"),
        ({"op": None}, TypeError, "op is None; expected an operator or its name"),
        ({"temperature": 0}, ValueError, "temperature is 0; expected a positive"),
        ({"op": "gradtopk", "learn_k": True}, TypeError, "gradtopk takes an integer k"),
        ({"k": None}, TypeError, "k is None and fraction is None; expected one"),
        ({"fraction": 0.5}, TypeError, "k is 2 and fraction is 0.5; expected one"),
        ({"k": None, "fraction": 2}, ValueError, "fraction is 2; expected a number between"),
        ({"learn_k": (2, 5)}, ValueError, r"k is 2 and learn_k is \(2, 5\); expected bounds"),
        ({"learn_k": (1, "9")}, TypeError, "a bound of learn_k is '9'; expected a number"),
        ({"learn_k": 3}, TypeError, "learn_k is 3; expected True, False or two bounds"),
        ({"learn_k": True, "k": [2, 3]}, TypeError, r"k is \[2, 3\]; expected a number"),
        ({"k": None, "fraction": "half"}, TypeError, "fraction is 'half'; expected a number betw"),
        ({"temperature": [1, 2]}, TypeError, r"temperature is \[1, 2\]; expected a positive"),
        ({"learn_temperature": 0.5}, TypeError, "learn_temperature is 0.5; expected True or False"),
        ({"hard": 1}, TypeError, "hard is 1; expected True or False"),
        ({"curve": "sharp"}, ValueError, "curve is 'sharp'; expected one of 'exp'"),
        ({"curve": "entmax"}, ValueError, "curve 'entmax' needs alpha"),
        ({"op": "gradtopk", "curve": "clip"}, TypeError, "gradtopk got an unexpected .* 'curve'"),
        ({"largest": None}, TypeError, "largest is None; expected True or False"),
        ({"learned": True}, TypeError, "SoftTopK of thretopk got an .* 'learned'; .* learn_k, "),
    ],
)
def test_bad_arguments_of_a_module_are_named(arguments, error, message):
    """When it is made, before the first call."""
    with pytest.raises(error, match=message):
        stt.SoftTopK(**{"k": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 9}, ValueError, "k is 9; expected 1 to 8, the number of experts"),
        ({"k": 2.0}, TypeError, "k is 2.0; expected one whole number"),
        ({"k": True}, TypeError, "k is True; expected one whole number"),
        ({"features": 0}, ValueError, "features is 0; expected 1 or more"),
        ({"experts": "8"}, TypeError, "experts is '8'; expected a whole number"),
        ({"op": "top"}, ValueError, "op is 'top'; expected an operator or its name"),
        ({"temperature": -1.0}, ValueError, "temperature is -1.0; expected a positive"),
        ({"hard": "yes"}, TypeError, "hard is 'yes'; expected True or False"),
        ({"normalize": 0}, TypeError, "normalize is 0; expected True or False"),
        ({"bias": None}, TypeError, "bias is None; expected True or False"),
        ({"balance": 1.0}, ValueError, "balance is 1.0; expected a number from 0 up to 1"),
        ({"balance": "yes"}, TypeError, "balance is 'yes'; expected a number from 0 up to 1"),
        ({"balance": 0.9, "op": "gradtopk"}, TypeError, "op is 'gradtopk' and balance is 0.9"),
        ({"balance": 0.9, "method": "scan"}, TypeError, "method was given and balance is 0.9"),
        ({"curve": "sharp"}, ValueError, "curve is 'sharp'; expected one of 'exp'"),
        ({"method": "dp"}, ValueError, "method is 'dp'; expected one of 'auto'"),
        ({"largest": False}, TypeError, "thretopk got an unexpected keyword argument 'largest'"),
    ],
)
def test_bad_arguments_of_a_gate_are_named(arguments, error, message):
    """When it is made, before the first call."""
    with pytest.raises(error, match=message):
        stt.TopKGate(**{"features": 5, "experts": 8, "k": 2, **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"op": "hardtopk"}, ValueError, "op is 'hardtopk'; expected an operator with a potential"),
        ({"reduction": "max"}, ValueError, "reduction is 'max'; expected 'none', 'mean' or 'sum'"),
        ({"reduction": None}, ValueError, "reduction is None; expected 'none', 'mean' or 'sum'"),
        ({"constant": 1}, TypeError, "constant is 1; expected True or False"),
        ({"method": "newton"}, ValueError, "method is 'newton'; expected one of 'auto'"),
        ({"alpha": 1.5}, TypeError, "gradtopk got an unexpected keyword argument 'alpha'"),
    ],
)
def test_bad_arguments_of_a_loss_as_a_layer_are_named(arguments, error, message):
    """When it is made, before the first call."""
    with pytest.raises(error, match=message):
        stt.FenchelYoungLoss(**{"op": "gradtopk", "k": 2, **arguments})


@pytest.mark.parametrize("learnt", [False, True])
def test_a_temperature_that_is_set_is_used_and_saved(learnt, rng):
    x = scores(rng, 4, 7)
    layer = stt.SoftTopK(2, learn_temperature=learnt).double()
    layer.temperature = 0.25
    close(layer(x), stt.thretopk(x, 2, temperature=0.25))
    again = stt.SoftTopK(2, learn_temperature=learnt).double()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))
    with pytest.raises(ValueError, match="temperature is -1; expected a positive"):
        layer.temperature = -1


def test_a_fraction_of_the_scores(rng):
    for n in (7, 40):
        x = scores(rng, 3, n)
        close(stt.SoftTopK(fraction=0.3)(x), stt.thretopk(x, 0.3 * n))
        close(stt.SoftTopK(fraction=0.01, op="gradtopk")(x), stt.gradtopk(x, 1))
        learned = stt.SoftTopK(fraction=0.3, learn_k=True)(x)
        torch.testing.assert_close(learned, stt.thretopk(x, 0.3 * n), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bounds", [True, (1.5, 4)])
def test_a_learned_k_moves_and_never_leaves_its_bounds(bounds, rng):
    x = scores(rng, 4, 6, dtype=torch.float32)
    low, high = (0, 6) if bounds is True else bounds
    layer = stt.SoftTopK(2, temperature=0.5, learn_k=bounds)
    assert layer.chosen_k(6).item() == pytest.approx(2)
    for beyond in (-1e4, 1e4):
        with torch.no_grad():
            layer.shift.fill_(beyond)
        assert low < layer.chosen_k(6).item() < high
    # Adam leads it to a target, from either end.
    for start, target in ((-4.0, 3.5), (4.0, 1.8)):
        with torch.no_grad():
            layer.shift.fill_(start)
        descent = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(150):
            descent.zero_grad()
            (layer(x).sum(-1) - target).square().mean().backward()
            descent.step()
        assert layer.chosen_k(6).item() == pytest.approx(target, abs=0.05)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_are_reduced(reduction, rng):
    theta, labels = scores(rng, 5, 7), torch.tensor(rng.integers(7, size=(5, 1)))
    each = stt.fenchel_young("gradtopk", theta, labels, 1)
    expected = each if reduction == "none" else getattr(each, reduction)()
    close(stt.FenchelYoungLoss("gradtopk", 1, reduction)(theta, labels), expected)


def test_a_gate_for_experts(rng):
    gate, tokens = stt.TopKGate(5, 8, 2, temperature=0.5).double(), scores(rng, 3, 10, 5)
    weights, experts = gate(tokens)
    mask = stt.thretopk(gate.scores(tokens), 2, temperature=0.5)
    found = mask.gather(-1, experts)
    close(weights, found / found.sum(-1, keepdim=True))
    assert torch.equal(experts, gate.scores(tokens).topk(2).indices)
    for expert, part in enumerate(gate.load):
        assert part.item() == pytest.approx((experts == expert).double().mean().item())
    weights[..., 0].sum().backward()
    assert gate.scores.weight.grad.abs().min() > 0
    equal = stt.TopKGate(5, 8, 2, hard=True).double()(tokens).values
    close(equal, torch.full_like(equal, 0.5))
    compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(tokens), (weights, experts), strict=True):
        close(one, other)
    assert {*gate.state_dict()} == {"fixed_temperature", "scores.weight"}


def test_a_balanced_gate_loads_experts_equally(rng):
    given = {"temperature": 0.1, "balance": 0.5}
    gate, tokens = stt.TopKGate(5, 8, 2, **given).double(), scores(rng, 3, 40, 5)
    with torch.no_grad():
        gate.scores.weight[0] += 3.0 * torch.sign(gate.scores.weight[0])
    alone = stt.TopKGate(5, 8, 2, temperature=0.1).double()
    alone.scores = gate.scores
    weights, experts = gate(tokens)
    flat = gate.scores(tokens).reshape(120, 8)
    p, _, columns = stt.balancedtopk(flat, 2, temperature=gate.temperature)
    assert (p.sum(0) - 30).abs().max() <= 1e-10 * 30  # the default of `tol`, of the load
    assert torch.equal(experts.reshape(120, 2), (flat - columns).topk(2).indices)
    found = p.gather(-1, experts.reshape(120, 2))
    close(weights.reshape(120, 2), found / found.sum(-1, keepdim=True))
    alone(tokens)
    assert gate.load.std() < 0.5 * alone.load.std()
    close(gate.thresholds, columns.detach())  # the average of one call
    weights[..., 0].sum().backward()
    assert gate.scores.weight.grad.abs().min() > 0
    gate(tokens.flip(-1))
    flat = gate.scores(tokens.flip(-1)).reshape(120, 8)
    other = stt.balancedtopk(flat, 2, temperature=gate.temperature).columns
    close(gate.thresholds, (columns + other).detach() / 2)
    restored = stt.TopKGate(5, 8, 2, **given).double()
    restored.load_state_dict(gate.state_dict())
    for one, other in zip(restored.eval()(tokens), gate.eval()(tokens), strict=True):
        assert torch.equal(one, other)
    shifted = stt.topk(gate.scores(tokens) - gate.thresholds, 2)
    assert torch.equal(gate(tokens).indices, shifted.indices)


def test_a_balanced_gate_leaves_out_experts_and_tokens(rng):
    gate, tokens = stt.TopKGate(5, 4, 2, balance=0.9, hard=True).double(), scores(rng, 30, 5)
    up, inside = torch.tensor([True, False, True, True]), torch.arange(30)[:, None] < 20
    weights, experts = gate(tokens, where=up & inside)
    close(weights[:20], torch.full((20, 2), 0.5).double())
    assert not weights[20:].any()
    assert not (experts[:20] == 1).any()
    assert gate.thresholds.isfinite().all()
    weights.sum().backward(retain_graph=True)
    assert gate.scores.weight.grad.isfinite().all()
    # A loss that overflows gives NaN, by which `GradScaler` knows that it has to skip the step.
    (weights * torch.inf).sum().backward()
    assert gate.scores.weight.grad.isnan().any()


@pytest.mark.parametrize("options", [{}, {"op": "gradtopk"}, {"hard": True}], ids=str)
def test_a_gate_of_which_experts_are_down_and_tokens_pad(options, rng):
    """As one of the experts that are left, and 0 where there are fewer than k."""
    gate, tokens = stt.TopKGate(5, 6, 3, **options).double(), scores(rng, 2, 7, 5).requires_grad_()
    up, token = torch.tensor([True, False, True, True, True, False]), torch.rand(2, 7, 1) < 0.7
    token[0, 0], token[1, 0] = True, False
    weights, experts = gate(tokens, where=up)
    fewer = stt.TopKGate(5, 4, 3, **options).double()
    fewer.scores.weight = torch.nn.Parameter(gate.scores.weight[up].detach())
    expected, places = fewer(tokens)
    close(weights, expected)
    assert torch.equal(experts, torch.tensor([0, 2, 3, 4])[places])
    assert torch.equal(gate.load[~up], torch.zeros(2).double())
    close(gate.load[up], fewer.load)

    padded, _ = gate(tokens, where=up & token)
    assert torch.equal(padded, weights * token)
    assert gate.load.sum().item() == pytest.approx(1)
    (padded * torch.rand_like(padded)).sum().backward()
    assert tokens.grad.isfinite().all()
    assert not (tokens.grad * ~token).any()
    few = torch.tensor([False, True, False, False, False, False])
    weights, experts = gate(tokens, where=few)
    close(weights, torch.tensor([1.0, 0, 0]).double().expand(2, 7, 3))
    assert (experts[..., 0] == 1).all()
    assert torch.equal(gate.load, few.double())


LEARNT = [torch.tensor(1.5, requires_grad=True)] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"load": "a"}, TypeError, "load is 'a'; expected real numbers"),
        (
            {"load": LEARNT},
            TypeError,
            "load is a list with tensors, .*; expected a number or one t",
        ),
        ({"load": [LEARNT]}, TypeError, "load is a list with tensors"),
        ({"load": [None] * 4}, TypeError, r"load is \[None, .* expected real numbers"),
        (
            {"load": [1, 2, 3]},
            ValueError,
            r"load has shape \(3,\); expected one that broadcasts to",
        ),
        ({"k": True}, TypeError, "k is True of dtype bool; expected real numbers"),
        ({"temperature": {}}, TypeError, "temperature is a dict; expected an array of real"),
        ({"temperature": (LEARNT[0],)}, TypeError, "temperature is a tuple with tensors"),
    ],
)
def test_bad_numbers_of_balancedtopk_are_named(arguments, error, message, rng):
    """By both names of the function, which take dim; and numbers of all kinds are taken."""
    x = scores(rng, 4, 6)
    for function in (stt.balancedtopk, stk.balancedtopk):
        with pytest.raises(error, match=message):
            function(x, **{"k": 2, "dim": (1, 0), **arguments})
        found = function(x, [1.0] * 6, (1, 2, 1, 2), dim=(1, 0), temperature=np.float32(0.5))
        sums = torch.tensor([1.0, 2, 1, 2]).double()
        torch.testing.assert_close(found.p.sum(1), sums, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: stt.SoftTopK(2, dim="a"), TypeError, "dim is 'a'; expected an integer"),
        (lambda x: stt.SoftTopK(2, dim=2)(x), IndexError, "dim is 2; expected -2 to 1, as x has"),
        (lambda x: stt.SoftTopK(2)(x[0, 0]), IndexError, "x is 0-dimensional; expected at least"),
        (lambda x: stt.SoftTopK(2)([1.0, 2.0]), TypeError, "x is a list; expected a torch.Tensor"),
        (lambda x: stt.TopKGate(6, 4, 2)(x.numpy()), TypeError, "x is a ndarray; expected a torch"),
        (
            lambda x: stt.TopKGate(5, 4, 2)(x),
            ValueError,
            r"x has shape \(4, 6\); expected \(..., 5",
        ),
        (lambda x: stt.thretopk(x, 2.0, cost="a"), TypeError, "cost is 'a'; expected"),
        (
            lambda x: stt.thretopk(x, 2, cost=LEARNT),
            TypeError,
            "cost is a list with tensors, whose",
        ),
    ],
)
def test_bad_calls_are_named(call, error, message, rng):
    with pytest.raises(error, match=message):
        call(scores(rng, 4, 6))


@pytest.mark.parametrize("balance", [None, 0.9])
def test_a_gate_without_tokens_and_with_a_mask_that_is_none(balance, rng):
    gate, tokens = stt.TopKGate(5, 8, 2, balance=balance).double(), scores(rng, 30, 5)
    gate(tokens)
    before = {name: each.clone() for name, each in gate.named_buffers()}
    for shape in ((0,), (3, 0)):
        weights, experts = gate(torch.zeros(*shape, 5).double())
        assert weights.shape == experts.shape == (*shape, 2)
        weights.sum().backward()
    for name, each in gate.named_buffers():
        assert torch.equal(each, before[name])
    with pytest.raises(ValueError, match=r"where has shape \(7,\); expected .* to \(30, 8\)"):
        gate(tokens, where=torch.ones(7, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"where has dtype float32; expected bool"):
        gate(tokens, where=torch.ones(8))


def test_thresholds_are_averaged_over_calls_that_have_them(rng):
    """Neither a call with a NaN nor one in which an expert is down counts, even the first."""
    gate, tokens = stt.TopKGate(5, 4, 2, balance=0.9).double(), scores(rng, 3, 30, 5)
    lost = tokens[0].clone()
    lost[3, 1] = torch.nan
    gate(lost)
    assert not gate.thresholds.any()
    up = torch.tensor([True, False, True, True])
    gate(tokens[1], where=up)
    one = stt.TopKGate(5, 4, 2, balance=0.9).double()
    one.scores = gate.scores
    one(tokens[1], where=up)
    close(gate.thresholds, one.thresholds)
    gate(tokens[2])
    alone = stt.balancedtopk(gate.scores(tokens[2]), 2).columns.detach()
    close(gate.thresholds[1], alone[1])
    close(gate.thresholds[up], ((one.thresholds + alone) / 2)[up])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_of_half_types_keep_numbers_that_need_digits(dtype, rng):
    """In float32: a small temperature, a large k, counts and averages; also in a state."""
    options = {"temperature": 1e-9, "learn_temperature": True, "learn_k": True}
    layer = stt.SoftTopK(100_000, **options).to(dtype)
    assert layer.chosen_k(200_000).item() == pytest.approx(100_000, rel=1e-5)
    assert layer.temperature.item() == pytest.approx(1e-9, rel=1e-5)
    assert stt.SoftTopK(1001, learn_k=True).to(dtype).chosen_k(4096).item() == pytest.approx(1001)
    again = stt.SoftTopK(100_000, **options)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.chosen_k(200_000), layer.chosen_k(200_000))
    assert {each.dtype for each in layer.double().state_dict().values()} == {torch.float64}
    assert {each.dtype for each in layer.half().state_dict().values()} == {torch.float32}
    assert {each.device.type for each in layer.to("meta", dtype).parameters()} == {"meta"}

    whole = torch.nn.Sequential(
        torch.nn.Linear(5, 6), stt.SoftTopK(2, **options | {"temperature": 1.0})
    )
    whole = whole.to(dtype)
    assert whole[0].weight.dtype == dtype
    descent = torch.optim.AdamW(whole.parameters(), lr=0.1)
    before = [each.clone() for each in whole.parameters()]
    out = whole(scores(rng, 8, 5, dtype=dtype))
    out.square().sum().backward()
    descent.step()
    assert out.dtype == dtype
    for one, other in zip(before, whole.parameters(), strict=True):
        assert one.dtype == other.dtype == other.grad.dtype
        assert not torch.equal(one, other)

    gate = stt.TopKGate(5, 4, 2, temperature=0.5, balance=0.9).to(dtype)
    weights, experts = gate(scores(rng, 3000, 5, dtype=dtype))
    assert weights.dtype == gate.scores.weight.dtype == dtype
    counts = experts.flatten().bincount(minlength=4)
    torch.testing.assert_close(gate.load, counts / 6000, rtol=1e-6, atol=0)
    assert gate.thresholds.dtype == torch.float32


def _loss_of_subsets(x):
    subsets, target = stt.KSubset(x.float(), 2), torch.eye(6)[:2].sum(0).expand(x.shape)
    pairs = subsets.pair_marginals().square().sum() + subsets.rsample().square().sum()
    return 0.1 * pairs - (subsets.log_prob(target) + subsets.entropy()).mean()


TRAINED = {
    "mask": lambda: stt.SoftTopK(2, learn_k=True, learn_temperature=True),
    "gate": lambda: stt.TopKGate(6, 4, 2),
    "balanced gate": lambda: stt.TopKGate(6, 4, 2, balance=0.9),
    "loss": lambda: stt.FenchelYoungLoss("gradtopk", 2),
    "subsets": lambda: _loss_of_subsets,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TRAINED)
def test_training_in_mixed_precision(name, dtype, rng):
    """A gradient that overflows is nothing but a step that the scaler leaves out."""
    module, router = TRAINED[name](), torch.nn.Linear(5, 6)
    own = module.parameters() if isinstance(module, torch.nn.Module) else ()
    parameters = [*router.parameters(), *own]
    descent, scaler = torch.optim.SGD(parameters, lr=0.1), torch.amp.GradScaler("cpu", 2.0**8)
    tokens, target = scores(rng, 8, 5, dtype=torch.float32), torch.tensor([[0, 1]] * 8)
    for factor in (1.0, math.inf, 1.0, math.nan, 1.0):
        before, scale = [each.clone() for each in parameters], scaler.get_scale()
        descent.zero_grad()
        with torch.autocast("cpu", dtype):
            out = module(router(tokens), target) if name == "loss" else module(router(tokens))
        out = out.values if "gate" in name else out
        scaler.scale(out.float().square().mean() * factor).backward()
        scaler.step(descent)
        scaler.update()
        pairs = zip(before, parameters, strict=True)
        moved = [not torch.equal(one, other) for one, other in pairs]
        assert all(moved) if factor == 1.0 else not any(moved)
        assert scaler.get_scale() == (scale if factor == 1.0 else scale / 2)


@pytest.mark.parametrize("op", [stt.gradtopk, stk.gradtopk], ids=["torch", "numpy"])
def test_module_of_an_operator_as_an_object(op, rng):
    x = scores(rng, 4, 7, dtype=torch.float32)
    layer, named = stt.SoftTopK(2, 0.5, op, largest=False), stt.SoftTopK(2, 0.5, "gradtopk")
    p = stt.gradtopk(x, 2, temperature=0.5, largest=False)
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(each(x), p)
        assert "op='gradtopk'" in repr(each)
    assert layer.state_dict().keys() == named.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_and_distributions_of_half_types(dtype, rng):
    layer = stt.SoftTopK(2, temperature=0.5, learn_temperature=True, learn_k=True).to(dtype)
    x = scores(rng, 4, 6, dtype=dtype, grad=True)
    layer(x).square().sum().backward()
    for each in (x, *layer.parameters()):
        assert each.grad.dtype == (dtype if each is x else torch.float32)
        assert each.grad.abs().min() > 0
    subsets = stt.KSubset(x.detach(), 2, torch.tensor(0.5, dtype=dtype))
    drawn = subsets.sample((3,))
    assert drawn.dtype == subsets.log_prob(drawn).dtype == subsets.entropy().dtype == dtype
    assert (drawn.sum(-1) == 2).all()


@pytest.mark.parametrize("name", ["pair_marginals", "rsample", "entropy", "log_prob"])
def test_k_subsets_along_directions(name, rng):
    """In forward mode, in both ways to ask for it, and under `vmap`, as in reverse mode."""
    x, tau, dx = scores(rng, 3, 6), torch.tensor([0.5, 1.0, 2.0]).double(), scores(rng, 3, 6)
    listed = stt.KSubset(x, 2).sample() if name == "log_prob" else None

    def found(x, tau):
        torch.manual_seed(3)
        subsets = stt.KSubset(x, 2, tau, validate_args=False)
        given = () if listed is None else (listed,)
        return getattr(subsets, name)(*given)

    given, moves = (x, tau), (dx, torch.ones(3).double())
    _, expected = torch.autograd.functional.jvp(found, given, moves)
    assert expected.abs().max() > 0
    with torch.autograd.forward_ad.dual_level():
        duals = map(torch.autograd.forward_ad.make_dual, given, moves)
        value, tangent = torch.autograd.forward_ad.unpack_dual(found(*duals))
    torch.testing.assert_close(tangent, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(value, found(*given), rtol=1e-12, atol=1e-15)
    _, tangent = torch.func.jvp(found, given, moves)
    torch.testing.assert_close(tangent, expected, rtol=1e-10, atol=1e-12)
    if name == "pair_marginals":
        assert torch.equal(torch.func.vmap(found)(*given), found(*given))
        ahead, back = (jac(found)(*given) for jac in (torch.func.jacfwd, torch.func.jacrev))
        torch.testing.assert_close(ahead, back, rtol=1e-10, atol=1e-12)


def test_k_subset(rng):
    x, tau = scores(rng, 3, 6, grad=True), torch.tensor([0.5, 1.0, 2.0]).double()
    # Once the compiler has been used in a process, PyTorch validates no more by default.
    subsets = stt.KSubset(x, 2, tau, validate_args=True)
    assert subsets.batch_shape == (3,)
    assert subsets.event_shape == (6,)
    listed = subsets.enumerate_support()
    assert listed.shape == (math.comb(6, 2), 3, 6)
    log_p = subsets.log_prob(listed)
    close(log_p.exp().sum(0), torch.ones(3).double())
    close(subsets.mean, (log_p.exp()[..., None] * listed).sum(0))
    close(subsets.entropy(), -(log_p.exp() * log_p).sum(0))
    close(subsets.variance, subsets.mean * (1 - subsets.mean))
    other = stt.KSubset(x.detach().flip(0), 2)
    close(
        torch.distributions.kl_divergence(subsets, other),
        (log_p.exp() * (log_p - other.log_prob(listed))).sum(0),
    )
    assert gradcheck(lambda x: stt.KSubset(x, 2, tau).log_prob(listed[3]), (x,))
    moved = x, tau.clone().requires_grad_()
    assert gradcheck(lambda x, tau: stt.KSubset(x, 2, tau).entropy(), moved)
    assert gradgradcheck(lambda x, tau: stt.KSubset(x, 2, tau).entropy(), moved)
    assert gradcheck(
        lambda x, tau: torch.distributions.kl_divergence(
            stt.KSubset(x, 2, tau), stt.KSubset(x.flip(0) * tau[:, None], 2, 2 * tau)
        ),
        moved,
    )
    torch.manual_seed(1)
    drawn = subsets.sample((5, 2))
    assert drawn.shape == (5, 2, 3, 6)
    assert (drawn.sum(-1) == 2).all()
    torch.manual_seed(1)
    assert torch.equal(subsets.sample((5, 2)), drawn)
    frequency = subsets.sample((4000,)).mean(0)
    assert (frequency - subsets.mean).abs().max() < 0.04
    wider = subsets.expand((4, 3))
    assert wider.sample().shape == (4, 3, 6)
    assert wider.log_prob(drawn[0, 0]).shape == (4, 3)
    with pytest.raises(ValueError, match="support"):
        subsets.log_prob(torch.ones(3, 6))
    with pytest.raises(ValueError, match="k is 7"):
        stt.KSubset(x, 7)
    with pytest.raises(NotImplementedError, match="k differs between rows"):
        stt.KSubset(x, torch.tensor([1, 2, 3])).enumerate_support()
    with pytest.raises(ValueError, match="different k"):
        torch.distributions.kl_divergence(subsets, stt.KSubset(x, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_divergences_of_subsets_near_each_other(dtype, rng):
    """By enumeration at 60 digits, where x is few and many temperatures, with a common offset."""
    tau = np.array([1e-5, 1e-2, 1.0, 1e3], np.float32)
    row = np.round(256 * rng.normal(size=6)) / 256
    x = torch.tensor(np.tile(row, (4, 1)) + 4).to(dtype)
    other = torch.tensor(np.tile(row, (4, 1)) * tau[:, None] ** 0.01 + 4).to(dtype)
    found = torch.distributions.kl_divergence(
        *(stt.KSubset(v, 3, torch.tensor(tau)) for v in (x, other))
    )
    assert found.dtype == dtype
    for one, two, t, divergence in zip(x, other, tau, found, strict=True):
        p, q = (reference.entropy_of_subsets(v.numpy(), 3, t).log_p for v in (one, two))
        expected = float(sum(mp.exp(a) * (a - b) for a, b in zip(p, q, strict=True)))
        eps = torch.finfo(dtype).eps
        assert abs(float(divergence) - expected) <= 4 * eps * expected + max(
            1e-14, torch.finfo(dtype).smallest_normal * eps
        )


def test_draws_of_subsets_with_the_gradient_of_the_marginals(rng):
    x, tau = scores(rng, 3, 6, grad=True), torch.tensor([0.5, 1.0, 2.0]).double().requires_grad_()
    g, subsets = scores(rng, 4, 3, 6), stt.KSubset(x, 2, tau)
    torch.manual_seed(1)
    drawn = subsets.rsample((4,))
    torch.manual_seed(1)
    assert torch.equal(drawn, subsets.sample((4,)))
    found = torch.autograd.grad(drawn, (x, tau), g)
    expected = torch.autograd.grad(subsets.marginals(), (x, tau), g.sum(0))
    for one, other in zip(found, expected, strict=True):
        close(one, other)


def test_pair_marginals(rng):
    x, tau = scores(rng, 3, 6, grad=True), torch.tensor([0.5, 1.0, 2.0]).double().requires_grad_()
    k = torch.tensor([2, 3, 5])
    own = stk.KSubset(x.detach().numpy(), k.numpy(), tau.detach().numpy())
    np.testing.assert_array_equal(
        stt.KSubset(x, k, tau).pair_marginals().detach().numpy(), own.pair_marginals()
    )
    assert gradcheck(lambda x, tau: stt.KSubset(x, k, tau).pair_marginals(), (x, tau))
    assert gradcheck(lambda tau: stt.KSubset(x.detach(), k, tau).pair_marginals(), (tau,))


def test_subsets_along_a_dimension_and_with_a_mask(rng):
    x, there = scores(rng, 6, 3, grad=True), torch.tensor(rng.random((6, 3)) < 0.7)
    there[:2] = True
    subsets = stt.KSubset(x, 2, dim=0, where=there)
    assert (subsets.batch_shape, subsets.event_shape) == ((3,), (6,))
    close(subsets.marginals().T, stt.gradtopk(x, 2, dim=0, where=there))
    drawn = subsets.rsample((50,))
    assert (drawn.sum(-1) == 2).all()
    assert not drawn[:, ~there.T].any()
    left = x.detach()[there[:, 0], 0]
    listed = stt.KSubset(left, 2)
    close(subsets.entropy()[0], listed.entropy())
    close(subsets.log_prob(drawn)[:, 0], listed.log_prob(drawn[:, 0, there[:, 0]]))
    (gx,) = torch.autograd.grad(subsets.log_prob(drawn).sum() + subsets.entropy().sum(), x)
    assert (gx[there] != 0).all()
    assert (gx[~there] == 0).all()


def test_assignments(rng):
    """In both modes, under transforms and compiled."""
    s, tau = scores(rng, 2, 3, 4, grad=True), torch.tensor([0.5, 1.0]).double().requires_grad_()

    def plan(s, tau):
        return stt.sinkhorn(s, temperature=tau, tol=1e-14)

    assert gradcheck(plan, (s, tau), check_forward_ad=True)
    expected = torch.autograd.grad(plan(s, tau)[0, 0, 0], (s, tau))
    compiled = torch.compile(plan, fullgraph=True)(s, tau)
    for one, other in zip(torch.autograd.grad(compiled[0, 0, 0], (s, tau)), expected, strict=True):
        assert torch.equal(one, other)
    jacobian = vmap(jacrev(stt.sinkhorn))(s.detach())
    close(jacobian, torch.stack([jacfwd(stt.sinkhorn)(each) for each in s.detach()]))
    (gs,) = torch.autograd.grad(plan(s, tau)[0, 0, 0], s, create_graph=True)
    with pytest.raises(NotImplementedError, match="sinkhorn has no second derivative"):
        gs.sum().backward()
    with pytest.raises(TypeError, match="rows requires a gradient"):
        stt.sinkhorn(s, torch.ones(3, requires_grad=True))
    assert stt.sinkhorn(s.to(torch.bfloat16)).dtype == torch.bfloat16


# Arguments


@pytest.mark.parametrize("op", ["itertopk", stt.hardtopk, stt.itertopk, None])
def test_a_loss_needs_an_operator_with_a_potential(op):
    kind = ValueError if isinstance(op, str) else TypeError
    with pytest.raises(kind, match=r"op is .*; expected an operator with a potential or its name"):
        stt.fenchel_young(op, torch.zeros(4), torch.tensor([0, 1]), 2)


@pytest.mark.parametrize("target", [[1, 0, 1, 0], [2, 0]])
def test_a_loss_of_integers_under_vmap(target, rng):
    """Vectors or labels."""
    x, y = scores(rng, 2, 3, 4), torch.tensor(target).expand(2, 3, -1)
    loss = vmap(lambda x, y: stt.fenchel_young(stt.gradtopk, x, y, 2))(x, y)
    vectors = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(2, 3, 4)
    assert torch.equal(loss, stt.fenchel_young(stt.gradtopk, x, vectors, 2))


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_the_operator_of_a_loss_by_name(name, rng):
    x, labels = scores(rng, 3, 6), torch.tensor([0, 1, 2])
    expected = stt.fenchel_young(getattr(stt, name), x, labels, 1)
    assert torch.equal(stt.fenchel_young(name, x, labels, 1), expected)
    assert torch.equal(stt.fenchel_young(getattr(stk, name), x, labels, 1), expected)


def test_bad_arguments_are_refused():
    x = torch.zeros(2, 4)
    meta, sparse = torch.zeros(2, 4, device="meta"), torch.zeros(2, 4).to_sparse()
    quantized = torch.quantize_per_tensor(torch.zeros(2, 4), 0.1, 0, torch.qint8)
    wrong = [
        ((x, 5), {}, ValueError, r"k is 5.*expected 0 <= k <= n = 4"),
        ((x, torch.tensor(-1.0)), {}, ValueError, r"k is -1"),
        ((x, torch.zeros(3)), {}, ValueError, r"k has shape \(3,\); expected one that broadcasts"),
        ((x, True), {}, TypeError, r"k is True of dtype bool; expected real numbers"),
        ((x, torch.tensor([True, False])), {}, TypeError, r"k has dtype torch.bool"),
        ((x, 2), {"temperature": math.nan}, ValueError, r"temperature is nan"),
        ((x, 2), {"temperature": torch.tensor(0.0)}, ValueError, r"temperature is 0"),
        ((x.numpy(), 2), {}, TypeError, r"x is a ndarray; expected a torch.Tensor"),
        ((x.cfloat(), 2), {}, TypeError, r"x has dtype torch.complex64; expected float32"),
        ((x + 0j, 2), {}, TypeError, r"x has dtype torch.complex64"),
        ((sparse, 2), {}, NotImplementedError, r"x is a torch.sparse_coo tensor"),
        ((quantized, 2), {}, NotImplementedError, r"x is a quantized tensor"),
        ((meta, 2), {}, NotImplementedError, r"x is on the device meta"),
        (
            (x, torch.zeros(2, device="meta")),
            {},
            RuntimeError,
            r"k is on meta; expected x's device",
        ),
        ((torch.tensor(1.0), 1), {}, IndexError, r"x is 0-dimensional"),
        ((x, 2), {"dim": 2}, IndexError, r"dim is 2; expected -2 to 1"),
        ((x, 2), {"dim": 0, "axis": 1}, TypeError, r"dim is 0 and axis is 1"),
        ((x, 2), {"dim": 0.5}, TypeError, r"dim is 0.5; expected an integer"),
        (
            (x, 2),
            {"where": torch.ones(4)},
            TypeError,
            r"where has dtype float32; expected bool",
        ),
        ((x, 2), {"where": torch.ones(3).bool()}, ValueError, r"where has shape \(3,\)"),
        ((x, 2), {"out": x}, TypeError, r"unexpected keyword argument 'out'"),
        ((x, 2), {"curve": "step"}, ValueError, r"curve is 'step'"),
        ((x, 2), {"largest": 1}, TypeError, r"largest is 1; expected True or False"),
    ]
    for arguments, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            stt.thretopk(*arguments, **options)
    for name in ("gradtopk", "hardtopk", "itertopk"):
        with pytest.raises(TypeError, match=r"k has dtype torch.float32; .*: call k.long\(\)"):
            getattr(stt, name)(x, torch.tensor([2.0, 1.0]))
        with pytest.raises(TypeError, match=r"k is 2.0 of dtype float64; expected integers"):
            getattr(stt, name)(x, 2.0)
    with pytest.raises(ValueError, match="target sums to 2 in row 0; expected k = 1"):
        stt.fenchel_young(stt.thretopk, x, torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]), 1)
    padded = torch.tensor([[0, 2, -1, -1], [3, -1, -1, -1]])
    with pytest.raises(ValueError, match=r"target holds 2 .* fewer than n = 4 along axis 1"):
        stt.fenchel_young(stt.thretopk, x, padded, torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="target has the label 4; expected 0 to 3"):
        stt.fenchel_young(stt.thretopk, x, torch.tensor([0, 4]), 1)


def test_a_number_out_of_range_in_a_graph_raises_when_it_runs():
    once = compiled(lambda x, k: stt.thretopk(x, k))
    with pytest.raises(ValueError, match="k is 9"):
        once(torch.zeros(2, 4), torch.tensor(9.0))


def test_default_device_and_dtype_do_not_matter(rng):
    x = scores(rng, 2, 5)
    expected = stt.thretopk(x, 2)
    with torch.device("meta"):
        close(stt.thretopk(x, 2), expected)
    torch.set_default_dtype(torch.float64)
    try:
        assert stt.thretopk(x.float(), 2).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_thread_that_flushes_subnormal_numbers(rng):
    """Bits do not depend on which thread has the row, and the caller's mode stays as it is."""
    x = torch.tensor(30 * rng.normal(size=(1100, 64)), dtype=torch.float32)
    expected = stt.thretopk(x, 8).numpy()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    try:
        found = [stt.thretopk(x, 8), stt.thretopk(x, 8), stt.thretopk(x[:9], 8)]
        assert torch.tensor(2.0**-149).mul(2.0) == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert ((expected > 0) & (expected < 2.0**-126)).any()
    for p in found:
        np.testing.assert_array_equal(p.numpy(), expected[: len(p)])


class Selected(torch.utils.data.Dataset):
    """Rows that a worker has selected from."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return stt.gradtopk(torch.arange(6.0) * i, 2)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(start):
    expected = torch.stack([Selected()[i] for i in range(8)])
    loader = torch.utils.data.DataLoader(
        Selected(), batch_size=4, num_workers=2, multiprocessing_context=start
    )
    assert torch.equal(torch.cat(list(loader)), expected)


def test_without_pytorch_the_import_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
import softtopk_nb
try:
    import softtopk_nb.torch
except ImportError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "pip install softtopk_nb[torch]" in said
