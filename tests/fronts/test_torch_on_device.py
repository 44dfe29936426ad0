"""The PyTorch front on CUDA tensors, in the simulator: which kernels are launched, and on what.

The simulator has no CUDA tensors. A tensor of the host that says that it is one stands in.
"""

from __future__ import annotations

import contextlib
import types

import numpy as np
import pytest
from numba import config

torch = pytest.importorskip("torch")
stt = pytest.importorskip("softtopk_nb.torch")

from softtopk_nb._api.operator import Differentiable, registry  # noqa: E402
from softtopk_nb.torch.operators import OPERATORS  # noqa: E402

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="stands in for CUDA in simulation"),
]


every = pytest.mark.parametrize("name", registry)
smooth = pytest.mark.parametrize(
    "name", [name for name, op in registry.items() if isinstance(op, Differentiable)]
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
