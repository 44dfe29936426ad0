"""The PyTorch front: every operator of the registry under every transform, and its arguments."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from operators import every, every_once, smooth, smooth_once

import softtopk_nb as stk
from softtopk_nb._api.operator import Differentiable, registry

torch = pytest.importorskip("torch")
stt = pytest.importorskip("softtopk_nb.torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap  # noqa: E402

from softtopk_nb.torch import leaves, operators  # noqa: E402

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


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_those_of_numpy(op, options, dtype, rng):
    x = scores(rng, 4, 9, 5, dtype=dtype)
    there = torch.tensor(rng.random((9, 5)) < 0.8)
    for more in ({}, {"largest": False}, {"temperature": 0.25}):
        found = front(op)(x, 2, dim=1, **more, **options)
        assert found.dtype == dtype
        assert found.shape == x.shape
        expected = op(x.numpy(), 2, axis=1, **more, **options)
        np.testing.assert_array_equal(found.numpy(), expected)
    masked = front(op)(x, 2, axis=1, where=there, **options)
    np.testing.assert_array_equal(
        masked.numpy(), op(x.numpy(), 2, axis=1, where=there.numpy(), **options)
    )


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


@smooth_once
def test_compiled(op, options, rng):
    """One graph: forward, backward and the transforms that the compiler takes."""
    torch._dynamo.reset()
    x = scores(rng, 4, 7)

    def function(x):
        return front(op)(x, K, **options)

    def total(x):
        return function(x).square().sum()

    def compiled(f):
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    close(compiled(function)(x), function(x))
    close(compiled(vmap(function))(x), function(x))
    close(compiled(grad(total))(x), grad(total)(x))
    close(compiled(jacrev(function))(x[0]), jacrev(function)(x[0]))
    close(compiled(jacfwd(function))(x[0]), jacfwd(function)(x[0]))
    close(compiled(lambda x: jvp(function, (x,), (x,))[1])(x), jvp(function, (x,), (x,))[1])
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


def test_compiled_once_for_any_number_of_rows(rng):
    torch._dynamo.reset()
    graphs = []

    def count(module, inputs):
        graphs.append(module)
        return module.forward

    compiled = torch.compile(lambda x: stt.thretopk(x, K), fullgraph=True, backend=count)
    for rows in (3, 5, 7, 11):
        compiled(scores(rng, rows, 9))
    assert len(graphs) == 2  # the first number as it is, the second for all others


def test_compiled_with_a_number_that_changes(rng):
    """From the second value on the compiler knows it by a name."""
    torch._dynamo.reset()
    x = scores(rng, 3, 7)

    def function(x, alpha):
        return stt.thretopk(x, K, curve="entmax", alpha=alpha)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for alpha in (1.5, 1.25, 2, np.float64(1.75)):
        assert torch.equal(compiled(x, alpha), function(x, alpha))


@pytest.mark.parametrize("kind", ["potential", "loss"])
@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_compiled_potentials_and_losses(name, kind, rng):
    torch._dynamo.reset()
    op, x, y = operators.OPERATORS[name], scores(rng, 4, 7), torch.eye(7)[:4]

    def compiled(f):
        return torch.compile(f, fullgraph=True, backend="aot_eager")

    def function(x):
        return op.potential(x, K) if kind == "potential" else stt.fenchel_young(op, x, y, 1)

    def total(x):
        return function(x).sum()

    close(compiled(function)(x), function(x))
    close(compiled(grad(total))(x), grad(total)(x))
    close(compiled(lambda x: jvp(function, (x,), (x,))[1])(x), jvp(function, (x,), (x,))[1])


@smooth_once
def test_custom_operators(op, options, rng):
    """PyTorch's own checks of an operator that it cannot look into."""
    x, k, tau = (each.detach() for each in problem(op, rng))
    x, how = x.float(), leaves._words(op, options)  # another type than that of its numbers
    p, state = leaves._solve(x, k, tau, *how)
    still = torch.zeros(3, dtype=torch.float64)
    direction = p, still, still
    calls = [
        (leaves._solve, (x, k, tau, *how)),
        (leaves._push, (x, k, tau, state, *direction, *how)),
        (leaves._pull, (x, k, tau, state, p, *how)),
    ]
    if op.has_second:
        calls.append((leaves._second, (x, k, tau, state, *direction, *direction, *how)))
        calls.append((leaves._height, (x, k, tau, None, *how)))
    if op.real_k:
        calls.append((leaves._threshold, (x, k, tau, *how)))
    for operator, arguments in calls:
        torch.library.opcheck(operator, arguments)


def test_export(rng):
    x = scores(rng, 4, 9)
    layer = stt.SoftTopK(K, temperature=0.5, learn_temperature=True)
    exported = torch.export.export(layer, (x,))
    close(exported.module()(x), layer(x))


# Potentials, losses, subsets, modules


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


def test_module(rng):
    x = scores(rng, 4, 7, dtype=torch.float32)
    layer = stt.SoftTopK(2.5, temperature=0.5, learn_temperature=True, learn_k=True, curve="exp")
    p = layer(x)
    torch.testing.assert_close(p, stt.thretopk(x, 2.5, temperature=0.5, curve="exp"))
    p.square().sum().backward()
    assert {name for name, each in layer.named_parameters() if each.grad is not None} == {
        "k",
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
    with pytest.raises(ValueError, match=r"op is 'topk'; expected an operator or its name: grad"):
        stt.SoftTopK(2, op="topk")
    with pytest.raises(TypeError, match=r"op is None; expected an operator or its name"):
        stt.SoftTopK(2, op=None)
    with pytest.raises(ValueError, match="temperature is 0; expected a positive"):
        stt.SoftTopK(2, temperature=0)
    with pytest.raises(TypeError, match="gradtopk takes an integer k"):
        stt.SoftTopK(2, op="gradtopk", learn_k=True)


@pytest.mark.parametrize("op", [stt.gradtopk, stk.gradtopk], ids=["torch", "numpy"])
def test_module_of_an_operator_as_an_object(op, rng):
    x = scores(rng, 4, 7, dtype=torch.float32)
    layer, named = stt.SoftTopK(2, 0.5, op, largest=False), stt.SoftTopK(2, 0.5, "gradtopk")
    p = stt.gradtopk(x, 2, temperature=0.5, largest=False)
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(each(x), p)
        assert "op='gradtopk'" in repr(each)
    assert layer.state_dict().keys() == named.state_dict().keys()


def test_k_that_is_learnt_comes_back_from_beyond_its_range(rng):
    x = scores(rng, 4, 6, dtype=torch.float32)
    layer = stt.SoftTopK(1, temperature=0.5, learn_k=True)
    for beyond in (-3.0, 0.0, 6.0, 9.0):
        with torch.no_grad():
            layer.k.fill_(beyond)
        layer.zero_grad()
        (layer(x).sum(-1) - 3).square().mean().backward()
        assert layer.k.grad.item() == pytest.approx(6 * np.sign(beyond - 3), rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_and_distributions_of_half_types(dtype, rng):
    layer = stt.SoftTopK(2, temperature=0.5, learn_temperature=True, learn_k=True).to(dtype)
    x = scores(rng, 4, 6, dtype=dtype, grad=True)
    layer(x).square().sum().backward()
    for each in (x, *layer.parameters()):
        assert each.grad.dtype == dtype
        assert each.grad.abs().min() > 0
    subsets = stt.KSubset(x.detach(), 2, torch.tensor(0.5, dtype=dtype))
    drawn = subsets.sample((3,))
    assert drawn.dtype == subsets.log_prob(drawn).dtype == subsets.entropy().dtype == dtype
    assert (drawn.sum(-1) == 2).all()


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
    assert gradcheck(lambda x: stt.KSubset(x, 2, tau).entropy(), (x,))
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
    with pytest.raises(NotImplementedError, match=r"draws .* are discrete .* use mean"):
        subsets.rsample((2,))
    with pytest.raises(ValueError, match="different k"):
        torch.distributions.kl_divergence(subsets, stt.KSubset(x, 3))


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
        ((x, True), {}, TypeError, r"k is True, a bool; expected a number or a tensor"),
        ((x, [1, 2]), {}, TypeError, r"k is \[1, 2\], a list"),
        ((x, torch.tensor([True, False])), {}, TypeError, r"k has dtype torch.bool"),
        ((x, 2), {"temperature": math.nan}, ValueError, r"temperature is nan"),
        ((x, 2), {"temperature": torch.tensor(0.0)}, ValueError, r"temperature is 0"),
        ((x.numpy(), 2), {}, TypeError, r"x is a ndarray; expected a torch.Tensor"),
        ((x.long(), 2), {}, TypeError, r"x has dtype torch.int64; expected float32, float64"),
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
            r"where is torch.float32; expected a tensor of",
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
        with pytest.raises(TypeError, match=r"k is 2.0; expected an integer"):
            getattr(stt, name)(x, 2.0)
    with pytest.raises(ValueError, match="target sums to 2 in row 0; expected k = 1"):
        stt.fenchel_young(stt.thretopk, x, torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]), 1)
    padded = torch.tensor([[0, 2, -1, -1], [3, -1, -1, -1]])
    with pytest.raises(ValueError, match=r"target holds 2 .* fewer than n = 4 along axis 1"):
        stt.fenchel_young(stt.thretopk, x, padded, torch.tensor([2, 1]))
    with pytest.raises(ValueError, match="target has the label 4; expected 0 to 3"):
        stt.fenchel_young(stt.thretopk, x, torch.tensor([0, 4]), 1)


def test_a_number_out_of_range_in_a_graph_raises_when_it_runs():
    compiled = torch.compile(lambda x, k: stt.thretopk(x, k), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="k is 9"):
        compiled(torch.zeros(2, 4), torch.tensor(9.0))


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
