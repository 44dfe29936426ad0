"""`thretopk` with costs in PyTorch, JAX and Dask."""

import numpy as np
import pytest

import softtopk_nb as stk


@pytest.fixture
def given(rng):
    x, cost = rng.normal(size=(3, 12)), rng.uniform(0.5, 3.0, size=12)
    return x, np.array([4.0, 5.0, 6.0]), 0.7, cost, rng.normal(size=(3, 12))


def expected(given):
    x, k, tau, cost, g = given
    p, vjp = stk.thretopk.vjp(x, k, temperature=tau, cost=cost)
    return p, vjp(g)


def alike(found, answer):
    for each, other in zip(found, answer, strict=True):
        np.testing.assert_allclose(np.asarray(each), other, rtol=1e-12, atol=1e-14)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_torch(given):
    """Autograd in all four arguments, forward mode, vmap, a compiled graph, and masks."""
    torch = pytest.importorskip("torch")
    import softtopk_nb.torch as stt

    p, gradients = expected(given)
    x, k, cost, g = (torch.tensor(given[i], requires_grad=i < 4) for i in (0, 1, 3, 4))
    tau = torch.tensor(given[2], dtype=torch.float64, requires_grad=True)

    def value(x, k, tau, cost):
        return stt.thretopk(x, k, temperature=tau, cost=cost)

    found = value(x, k, tau, cost)
    alike([found.detach()], [p])
    alike(torch.autograd.grad((found * g).sum(), (x, k, tau, cost)), gradients)
    assert torch.autograd.gradcheck(value, (x, k, tau, cost), check_forward_ad=True)
    compiled = torch.compile(value, backend="aot_eager", fullgraph=True)
    alike(torch.autograd.grad((compiled(x, k, tau, cost) * g).sum(), (x, k, tau, cost)), gradients)
    by_row = torch.func.vmap(value, in_dims=(0, 0, None, None))(x, k, tau, cost)
    alike([by_row.detach()], [p])
    twice = torch.autograd.grad((value(x, k, tau, cost) * g).sum(), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="no second derivative where a cost is given"):
        twice.sum().backward()
    there = np.arange(12) < 9
    masked = stk.thretopk(
        -given[0].T, 4.0, axis=0, largest=False, cost=given[3][:, None], where=there[:, None]
    )
    other = {"dim": 0, "largest": False, "where": torch.tensor(there)[:, None]}
    alike([stt.thretopk(-x.T, 4.0, cost=cost[:, None], **other).detach()], [masked])
    assert stt.thretopk(x.float(), 4, cost=cost).dtype == torch.float32
    alike(
        [stk.thretopk(x.detach(), 4.0, cost=given[3])], [stk.thretopk(given[0], 4.0, cost=given[3])]
    )
    with pytest.raises(ValueError, match=r"^cost has shape \(5,\); .*\(3, 12\)"):
        stt.thretopk(x, 4.0, cost=torch.ones(5))
    with pytest.raises(ValueError, match=r"^cost is -1"):
        stt.thretopk(x, 4.0, cost=-1.0)
    for refused in (stt.thretopk.potential, stt.thretopk.threshold):
        with pytest.raises(NotImplementedError, match=r"^cost was given"):
            refused(x, 4.0, cost=cost)
    for more in ({"hard": True}, {"clamp_k": True}):
        with pytest.raises(NotImplementedError, match=r"^cost was given"):
            stt.thretopk(x, 4.0, cost=cost, **more)


@pytest.mark.jax
def test_jax(given):
    """jit, grad in all four arguments, vmap; in float32, JAX's own."""
    jax = pytest.importorskip("jax")
    import softtopk_nb.jax as stj

    p, gradients = expected(given)
    x, k, tau, cost, g = map(jax.numpy.asarray, given)

    def close(found, answer):
        for each, other in zip(found, answer, strict=True):
            np.testing.assert_allclose(np.asarray(each), other, rtol=2e-4, atol=2e-5)

    def value(x, k, tau, cost):
        return stj.thretopk(x, k, temperature=tau, cost=cost)

    close([value(x, k, tau, cost), jax.jit(value)(x, k, tau, cost)], [p, p])
    found = jax.jit(jax.grad(lambda *v: (value(*v) * g).sum(), argnums=(0, 1, 2, 3)))(
        x, k, tau, cost
    )
    close(found, gradients)
    close([jax.vmap(value, in_axes=(0, 0, None, None))(x, k, tau, cost)], [p])
    turned = stj.thretopk(-x.T, k, axis=0, largest=False, temperature=tau, cost=cost[:, None])
    close([turned], [p.T])
    close([stk.thretopk(x, k, temperature=0.7, cost=cost)], [p])
    with pytest.raises(NotImplementedError, match="no second derivative where a cost is given"):
        jax.hessian(lambda x: value(x, k, tau, cost)[0, 0])(x)
    with pytest.raises(ValueError, match=r"^cost has shape \(5,\); .*\(3, 12\)"):
        stj.thretopk(x, 4.0, cost=jax.numpy.ones(5))
    with pytest.raises(Exception, match="cost is -1"):
        stj.thretopk(x, 4.0, cost=-1.0).block_until_ready()
    for refused in (stj.thretopk.potential, stj.thretopk.threshold):
        with pytest.raises(NotImplementedError, match=r"^cost was given"):
            refused(x, 4.0, cost=cost)


@pytest.mark.dask
def test_dask_refuses_a_cost():
    da = pytest.importorskip("dask.array")
    with pytest.raises(NotImplementedError, match=r"^cost was given, which a Dask array"):
        stk.thretopk(da.ones((2, 3), chunks=1), 1, cost=1.0)
