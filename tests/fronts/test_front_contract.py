"""What every front must do: the operators of the registry on its arrays are those of NumPy.

A front is tested by an entry of FRONTS; an operator by being registered. What only one framework
has (transforms, chunks, compilers) is tested in the file of its front.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pathlib

import numpy as np
import pytest
import reference
from numba import config
from operators import every, smooth, smooth_once

import softtopk_nb as stk
from softtopk_nb._api import without_k
from softtopk_nb._api.operator import Differentiable, registry

PAGES = pathlib.Path(__file__).parents[2] / "docs" / "dev"


class Foreign:
    """An array of a library that NumPy knows nothing of, but for DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    @classmethod
    def from_dlpack(cls, array):
        return cls(array)


class Skeleton:
    """The front on the page "Add a framework"."""

    def __init__(self):
        spec = importlib.util.spec_from_file_location("skeleton", PAGES / "front_skeleton.py")
        skeleton = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(skeleton)
        self.operators = skeleton.operators(Foreign)
        self.kind = Foreign

    def array(self, x):
        return Foreign(x)

    def values(self, op, x, **arguments):
        return [op(x, **arguments)]

    def numpy(self, result):
        return np.from_dlpack(result)

    def vjp(self, op, x, g, **arguments):
        p, backward = op.vjp(x, **arguments)
        return p, backward(g)[0]


class Torch:
    """The front of PyTorch."""

    def __init__(self, device="cpu"):
        import torch

        import softtopk_nb.torch as front
        from softtopk_nb.torch.operators import OPERATORS

        self.operators, self.kind, self.front = OPERATORS, torch.Tensor, front
        self.array = functools.partial(torch.tensor, device=device)
        self.softmax = functools.partial(torch.softmax, dim=-1)
        self._torch, self._device = torch, device

    def values(self, op, x, **arguments):
        return [op(x, **arguments)]

    def numpy(self, result):
        return result.detach().cpu().numpy()

    def draw(self, function, *given, **arguments):
        generator = self._torch.Generator(self._device).manual_seed(1)
        return function(*given, generator=generator, **arguments)

    def gradient(self, function, x, g):
        leaf = x.clone().requires_grad_()
        function(leaf).backward(g)
        return leaf.grad

    def vjp(self, op, x, g, **arguments):
        x.requires_grad_()
        p = op(x, **arguments)
        p.backward(g)
        return p, x.grad


class Jax:
    """The front of JAX; calls are compiled too."""

    def __init__(self, device="cpu"):
        import jax

        import softtopk_nb.jax as front
        from softtopk_nb.jax.operators import OPERATORS

        self._jax, self.operators, self.front = jax, OPERATORS, front
        self.kind, self.softmax = jax.Array, jax.nn.softmax
        self.array = functools.partial(jax.numpy.asarray, device=jax.devices(device)[0])

    def values(self, op, x, **arguments):
        return [op(x, **arguments), self._jax.jit(lambda x: op(x, **arguments))(x)]

    def numpy(self, result):
        return np.asarray(result)

    def draw(self, function, *given, **arguments):
        return function(self._jax.random.key(1), *given, **arguments)

    def gradient(self, function, x, g):
        return self._jax.vjp(self._jax.jit(function), x)[1](g)[0]

    def vjp(self, op, x, g, **arguments):
        p, backward = self._jax.vjp(lambda x: op(x, **arguments), x)
        return p, backward(g)[0]


FRONTS = {"skeleton": Skeleton, "torch": Torch, "jax": Jax}
# Where a framework is missing, the tests of its front say so once.
INSTALLED = [name for name in FRONTS if name == "skeleton" or importlib.util.find_spec(name)]


def _gpu():
    """Whether there is a GPU, and not a simulated one."""
    if config.ENABLE_CUDASIM or not importlib.util.find_spec("numba_cuda"):
        return False
    from numba import cuda

    return cuda.is_available()


def _marked():
    """The fronts that are there, on a GPU too."""
    for name in INSTALLED:
        if name == "skeleton":
            yield pytest.param((name,), id=name)
            continue
        own = getattr(pytest.mark, name)
        yield pytest.param((name,), marks=own, id=name)
        if _gpu():
            marks = own, pytest.mark.device
            yield pytest.param((name, "cuda"), marks=marks, id=f"{name} on CUDA")


MARKED = [*_marked()]
fronts = pytest.mark.parametrize("front", MARKED, indirect=True)
# The page's skeleton has the operators alone.
frameworks = pytest.mark.parametrize("front", MARKED[1:], indirect=True)


@pytest.fixture
def front(request):
    name, *device = request.param
    if name != "jax":
        yield FRONTS[name](*device)
        return
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield Jax(*device)
    jax.config.update("jax_enable_x64", before)


@pytest.fixture
def same(request):
    """Whether results are those of NumPy: to the bit, but on a device."""
    on_device = request.node.get_closest_marker("device")
    eps = {np.float32: 4e-6, np.float64: 1e-12}

    def compare(found, expected):
        assert found.dtype == expected.dtype
        few = eps[expected.dtype.type] if on_device else 0
        np.testing.assert_allclose(found, expected, rtol=few, atol=few)

    return compare


@frameworks
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_scores_may_be_integers(front, same, dtype):
    """They are computed in the default type of the framework, as any function of it does."""
    x = np.array([[0, 1, 0, 1], [1, 1, 0, 1]], dtype)
    default = front.numpy(front.softmax(front.array(x) * 1.0))
    for name, more in (("thretopk", (2,)), ("hardtopk", (2,)), ("logsumexp", ())):
        f = getattr(front.front, name)
        found = front.numpy(f(front.array(x), *more))
        same(found, getattr(stk, name)(x.astype(default.dtype), *more))


@fronts
def test_every_operator_is_there(front):
    assert {*registry} <= {*front.operators}


@fronts
@every
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_are_those_of_numpy(front, same, op, options, dtype, rng):
    x, there = rng.normal(size=(4, 9, 5)).astype(dtype), rng.random((9, 5)) < 0.8
    x[1, 2, 3], x[2, 3, 1] = np.nan, -np.inf
    for more in ({}, {"largest": False}, {"temperature": 0.25}):
        arguments = {"k": 2, "axis": 1, **more, **options}
        for found in front.values(front.operators[op.__name__], front.array(x), **arguments):
            assert isinstance(found, front.kind)
            same(front.numpy(found), op(x, **arguments))
    mask, arguments = front.array(np.broadcast_to(there, x.shape).copy()), {"axis": 1, **options}
    masked = front.operators[op.__name__](front.array(x), 2, where=mask, **arguments)
    same(front.numpy(masked), op(x, 2, where=there, **arguments))


@fronts
@smooth
@pytest.mark.parametrize("largest", [True, False])
def test_gradients_are_those_of_numpy(front, same, op, options, largest, rng):
    x, g = rng.normal(size=(2, 3, 9, 4))
    x[0, 2, 3], x[1, 3, 1], x[2, 1, 2] = np.nan, -np.inf, np.inf
    arguments = {"k": 2, "temperature": 0.5, "axis": 1, "largest": largest, **options}
    p, gx = front.vjp(front.operators[op.__name__], front.array(x), front.array(g), **arguments)
    expected, vjp = op.vjp(x, **arguments)
    same(front.numpy(p), expected)
    same(front.numpy(gx), vjp(g).x)


@frameworks
def test_what_has_derivatives_is_there(front):
    """A function with a `vjp` of its own is to be added to every front, or to be named here."""
    soft = {name for name in stk.__all__ if hasattr(getattr(stk, name), "vjp")}
    assert soft - {*front.front.__all__} == {"gradual"}
    assert {"KSubset", "gumbel_softmax", "gumbel_topk", "sinkhorn"} <= {*front.front.__all__}


@frameworks
@pytest.mark.parametrize("name", without_k.registry)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operators_without_a_k_are_those_of_numpy(front, same, name, dtype, rng):
    """Values and gradients; of infinities, NaN, masks and temperatures of rows."""
    op, own = getattr(front.front, name), getattr(stk, name)
    x, there = rng.normal(size=(4, 9, 5)).astype(dtype), rng.random((4, 9, 5)) < 0.8
    x[1, 2, 3], x[2, 3, 1], x[3, 1, 1], there[0, :, 2] = np.nan, -np.inf, np.inf, False
    mask, tau = front.array(there), rng.uniform(0.3, 2.0, size=(4, 5)).astype(dtype)
    for more, given in (
        ({}, {}),
        ({"temperature": 0.25}, {"temperature": 0.25}),
        ({"where": there, "temperature": tau}, {"where": mask, "temperature": front.array(tau)}),
    ):
        expected, vjp = own.vjp(x, axis=1, **more)
        for found in front.values(op, front.array(x), axis=1, **given):
            same(front.numpy(found), expected)
        g = rng.normal(size=expected.shape).astype(dtype)
        found, gx = front.vjp(op, front.array(x), front.array(g), axis=1, **given)
        same(front.numpy(found), expected)
        same(*(np.where(more.get("where", True), each, 0) for each in (front.numpy(gx), vjp(g).x)))
    for given, error, message in (
        ({"temperature": 0.0}, ValueError, "temperature is 0.0"),
        ({"axis": 3}, (ValueError, IndexError), "3"),
    ):
        with pytest.raises(error, match=message):
            op(front.array(x), **given)
    with pytest.raises(ValueError, match="at least one entry along axis 1"):
        op(front.array(x[:, :0]), axis=1)


@frameworks
@pytest.mark.parametrize(
    "name", ["potential", pytest.param("threshold", id="threshold of thretopk")]
)
@pytest.mark.parametrize("largest", [True, False])
def test_numbers_of_rows_are_those_of_numpy(front, same, name, largest, rng):
    x, there = rng.normal(size=(4, 9, 5)), rng.random((4, 9, 5)) < 0.9
    x[1, 2, 3], x[2, 3, 1] = np.nan, -np.inf
    some = registry.values() if name == "potential" else [registry["thretopk"]]
    given = {"axis": 1, "largest": largest, "temperature": 0.5}
    for op in (op for op in some if op.has_potential):
        expected = getattr(op, name)(x, 2, where=there, **given)
        number = getattr(front.operators[op.__name__], name)
        for found in front.values(number, front.array(x), k=2, where=front.array(there), **given):
            same(front.numpy(found), expected)
    for wrong in {*registry.values()} - {*some}:
        with pytest.raises(TypeError, match=f"{wrong.__name__} has no threshold"):
            front.operators[wrong.__name__].threshold(front.array(x), 2)


@frameworks
@pytest.mark.parametrize("curve", ["laplace", "sigmoid"])
def test_the_gradient_of_a_threshold_is_a_derivative_of_the_value(front, curve, rng):
    """By x that of the value by k; in the temperature by differences."""
    x, op = rng.normal(size=(3, 9)), stk.thretopk
    given = {"curve": curve, "temperature": 0.5}
    _, along_k = op.jvp(x, 2.5, 0 * x, dk=1.0, **given)

    def lam(x):
        return front.front.thretopk.threshold(x, 2.5, **given)

    found = front.gradient(lam, front.array(x), front.array(np.ones(3)))
    np.testing.assert_allclose(front.numpy(found), along_k, rtol=1e-9, atol=1e-12)

    def of_temperature(tau):
        return front.front.thretopk.threshold(front.array(x), 2.5, temperature=tau, curve=curve)

    taus = np.full(3, 0.5)
    found = front.gradient(of_temperature, front.array(taus), front.array(np.ones(3)))
    up, down = (op.threshold(x, 2.5, curve=curve, temperature=0.5 + h) for h in (1e-5, -1e-5))
    np.testing.assert_allclose(front.numpy(found), (up - down) / 2e-5, rtol=1e-6, atol=1e-8)


@frameworks
def test_draws_have_the_probabilities_of_softmax(front, rng):
    """The largest entry of a relaxed draw, and two indices without replacement, also by `size`."""
    x, tau, count = rng.normal(size=4), 0.7, 20000
    p, q = stk.softmax(x), stk.softmax(x, temperature=tau)
    rows = front.array(np.broadcast_to(x, (count, 4)).copy())
    relaxed = front.numpy(front.draw(front.front.gumbel_softmax, rows, temperature=tau))
    frequency = np.bincount(relaxed.argmax(1), minlength=4) / count
    np.testing.assert_allclose(frequency, p, atol=0.02)
    draws = front.draw(front.front.gumbel_topk, front.array(x), 2, size=(count,), temperature=tau)
    pairs = front.numpy(draws)
    assert pairs.shape == (count, 2)
    found = np.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16).reshape(4, 4) / count
    expected = q[:, None] * q / (1 - q[:, None]) * (1 - np.eye(4))
    np.testing.assert_allclose(found, expected, atol=0.02)


@frameworks
def test_a_relaxed_draw_has_the_gradient_of_its_noisy_scores(front, rng):
    x, g = rng.normal(size=(5, 6)) + 1e6, rng.normal(size=(5, 6))
    there, tau = rng.random((5, 6)) < 0.8, 0.5
    mask, taus = front.array(there), front.array(np.full(6, tau))

    def relaxed(x):
        given = {"temperature": taus, "axis": 0, "where": mask}
        return front.draw(front.front.gumbel_softmax, x, **given)

    p = front.numpy(relaxed(front.array(x)))
    with np.errstate(divide="ignore"):
        noisy = tau * np.log(p)
    expected = stk.softmax.vjp(noisy, temperature=tau, axis=0, where=there)[1](g).x
    found = front.numpy(front.gradient(relaxed, front.array(x), front.array(g)))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    for relax in ("gradtopk", stk.gradtopk, front.front.gradtopk):

        def mask_of(x, relax=relax):
            return front.draw(front.front.gumbel_topk, x, 2, relax=relax, axis=0)

        chosen = front.numpy(front.draw(front.front.gumbel_topk, front.array(x), 2, axis=0))
        p = front.numpy(mask_of(front.array(x)))
        np.testing.assert_allclose(p.sum(0), 2.0, rtol=1e-12)
        assert np.array_equal(np.sort(p.argsort(0)[-2:].T), np.sort(chosen))
        gradient = front.numpy(front.gradient(mask_of, front.array(x), front.array(g)))
        assert (gradient != 0).all()
    several = {"size": (3,), "relax": "thretopk", "temperature": front.array(np.full(5, 0.5))}
    p = front.draw(front.front.gumbel_topk, front.array(x), front.array(np.full(5, 1.5)), **several)
    np.testing.assert_allclose(front.numpy(p).sum(-1), np.full((5, 3), 1.5), rtol=1e-9)


@frameworks
def test_draws_of_rows_with_infinities(front):
    x = np.array([[0.0, -np.inf, 1.0], [np.inf, 0.0, np.inf], [np.nan, 0.0, 1.0], [-np.inf] * 3])
    index = front.numpy(front.draw(front.front.gumbel_topk, front.array(x), 3))
    assert [*map(sorted, index)] == [[-1, 0, 2], [-1, 0, 2], [-1] * 3, [-1] * 3]
    assert index[0, 2] == index[1, 2] == -1
    for given, error, message in (
        ({"k": 4}, ValueError, "k is 4"),
        ({"k": 1, "temperature": -1.0}, ValueError, "temperature is -1.0"),
        ({"k": 1, "relax": 3}, TypeError, "relax is 3"),
        ({"k": 1, "size": -1}, ValueError, "size is -1"),
    ):
        with pytest.raises(error, match=message):
            front.draw(front.front.gumbel_topk, front.array(x), **given)


@frameworks
@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 3)], ids=str)
def test_assignments_and_their_gradients(front, shape, rng):
    """Values to the bit; gradients against differences, also where pairs are forbidden."""
    scores, g = rng.normal(size=shape), rng.normal(size=shape)
    scores[..., 0, 0] = -np.inf
    r, c = _masses(shape, rng)
    given = {"temperature": 0.5, "tol": 1e-13}

    def plan(x, tau=0.5):
        front_given = {**given, "temperature": tau}
        return front.front.sinkhorn(x, front.array(r), front.array(c), **front_given)

    for found in front.values(plan, front.array(scores)):
        np.testing.assert_array_equal(front.numpy(found), stk.sinkhorn(scores, r, c, **given))
    found = front.numpy(front.gradient(plan, front.array(scores), front.array(g)))
    v, h = np.where(np.isfinite(scores), rng.normal(size=shape), 0.0), 1e-5
    up, down = (stk.sinkhorn(scores + s * h * v, r, c, **given) for s in (1, -1))
    np.testing.assert_allclose((found * v).sum(), (g * (up - down)).sum() / (2 * h), rtol=1e-6)
    assert (found[..., 0, 0] == 0).all()
    batch = np.full(shape[:-2], 0.5)
    found = front.numpy(
        front.gradient(lambda t: plan(front.array(scores), t), front.array(batch), front.array(g))
    )
    up, down = (stk.sinkhorn(scores, r, c, temperature=0.5 + s * h, tol=1e-13) for s in (1, -1))
    np.testing.assert_allclose(found.sum(), (g * (up - down)).sum() / (2 * h), rtol=1e-6)
    with pytest.raises(ValueError, match="rows has shape"):
        front.front.sinkhorn(front.array(scores), front.array(np.ones(9)))


@frameworks
@pytest.mark.parametrize("bound", [False, True])
def test_balanced_topk_and_its_gradients(front, bound, rng):
    """Values to the bit; gradients in every argument are those of NumPy. One row is padding."""
    x, g = rng.normal(size=(2, 3, 6, 4))
    there, load = rng.random((6, 4)) < 0.9, np.array([2.5, 2.0, 1.0, 2.0])
    there[:, 0] = True
    there[-1] = False
    given = {"temperature": 0.5, "at_most": bound, "axis": (1, 2), "tol": 1e-13, "clamp_k": True}
    (p, *thresholds), pull = stk.balancedtopk.vjp(x, 1.5, load, where=there, **given)

    def balanced(x, k=1.5, load=load, temperature=0.5):
        options = {**given, "temperature": temperature, "where": front.array(there)}
        return front.front.balancedtopk(x, k, load, **options)

    def of(name, value):
        found = {"x": front.array(x), "load": front.array(load), name: value}
        return balanced(**found).p

    for found in front.values(lambda x: balanced(x, load=front.array(load)).p, front.array(x)):
        np.testing.assert_array_equal(front.numpy(found), p)
    for found, expected in zip(balanced(front.array(x))[1:], thresholds, strict=True):
        np.testing.assert_array_equal(front.numpy(found), expected)
    gradients = pull(g)
    numbers = {"x": x, "k": np.full((3, 6), 1.5), "load": load, "temperature": np.full(3, 0.5)}
    for name, value in numbers.items():
        found = front.gradient(functools.partial(of, name), front.array(value), front.array(g))
        expected = getattr(gradients, name)
        found = front.numpy(found)
        total = found.sum() if np.ndim(expected) == 0 else found
        np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-12)
    _, pull = stk.balancedtopk.vjp(x, 1.5, where=there, **given)
    in_k = functools.partial(balanced, front.array(x), load=None)
    found = front.gradient(lambda k: in_k(k).p, front.array(numbers["k"]), front.array(g))
    np.testing.assert_allclose(front.numpy(found).sum(), pull(g).k, rtol=1e-9)
    bad = front.array(np.full(g.shape, np.inf))
    found = front.numpy(front.gradient(lambda x: balanced(x).p, front.array(x), bad))
    assert np.isnan(found[gradients.x != 0]).all()  # not of entries that are masked
    with pytest.raises(ValueError, match=r"k has shape \(5,\)"):
        front.front.balancedtopk(front.array(x), front.array(np.ones(5)))
    with pytest.raises(ValueError, match=r"0 entries in row 5 of .*, or clamp_k=True"):
        front.front.balancedtopk(front.array(x), 1.5, where=front.array(there))


def _masses(shape, rng):
    """Sums of rows and of columns with the same total."""
    r, c = (rng.uniform(0.5, 1.0, size=n) for n in shape[-2:])
    return r / r.sum(), c / c.sum()


@frameworks
@smooth
def test_numbers_may_keep_the_axis(front, same, op, options, rng):
    """k and the temperature of x's number of axes, and gradients in their shapes."""
    x, g = rng.normal(size=(2, 3, 9, 4))
    k, tau = rng.integers(1, 4, size=(3, 1, 4)), rng.uniform(0.5, 2, size=(1, 1, 4))
    expected, vjp = op.vjp(x, k, temperature=tau, axis=1, **options)
    gradients = vjp(g)
    own, rows, cotangent = front.operators[op.__name__], front.array(x), front.array(g)

    def value(x, k, tau):
        return own(x, k, temperature=tau, axis=1, **options)

    whole, width = front.array(k), front.array(tau)
    same(front.numpy(value(rows, whole, width)), expected)
    in_tau = front.gradient(lambda tau: value(rows, whole, tau), width, cotangent)
    assert tuple(in_tau.shape) == tau.shape
    np.testing.assert_allclose(front.numpy(in_tau), gradients.temperature, rtol=1e-10)
    if op.real_k:
        real = front.array(k * 1.0)
        in_k = front.gradient(lambda k: value(rows, k, width), real, cotangent)
        assert tuple(in_k.shape) == k.shape
        np.testing.assert_allclose(front.numpy(in_k), gradients.k, rtol=1e-10)
    for shape in ((3, 9, 4), (3, 2, 4), (1, 3, 1, 4)):
        with pytest.raises(ValueError, match=r"^temperature has shape"):
            value(rows, 2, front.array(np.ones(shape)))


@frameworks
@every
def test_k_may_be_clamped(front, same, op, options, rng):
    """Values are those of NumPy; gradients in k are 0 where it binds, and no gradient is NaN."""
    x, g = rng.normal(size=(2, 3, 9, 4))
    there = np.arange(9)[:, None] < np.array([0, 1, 3, 9])
    x[1, 1, 3], x[2, 0, 2] = -np.inf, np.inf
    mask, counts = np.broadcast_to(there, x.shape).copy(), np.array([[0, 1, 3, 9]] * 3)
    counts[1, 3] = 8
    own, rows, cotangent = front.operators[op.__name__], front.array(x), front.array(g)
    common = {"axis": 1, "where": front.array(mask), "clamp_k": True, **options}
    for k in (4, 10**6, np.full((3, 1, 4), 4)):
        smaller = np.minimum(np.squeeze(k), counts)
        expected = op(x, smaller, axis=1, where=there, **options)
        given = front.array(k) if np.ndim(k) else k
        same(front.numpy(own(rows, given, **common)), expected)
        same(front.numpy(own(-rows, given, largest=False, **common)), expected)
    with pytest.raises(TypeError, match=r"^clamp_k is 1"):
        own(rows, 2, clamp_k=1)
    if not isinstance(op, Differentiable):
        return
    gradients = op.vjp(x, np.minimum(4, counts), axis=1, where=there, **options)[1](g)
    in_x = front.gradient(lambda x: own(x, 4, **common), rows, cotangent)
    same(front.numpy(in_x), gradients.x)
    if op.real_k:
        k = front.array(np.full((3, 1, 4), 4.0))
        in_k = front.gradient(lambda k: own(rows, k, **common), k, cotangent)
        same(front.numpy(in_k)[:, 0], gradients.k)
        assert (gradients.k[:, :3] == 0).all()
    if hasattr(op, "potential"):
        some = {name: each for name, each in common.items() if name != "axis"}
        phi = front.gradient(
            lambda x: own.potential(x, 4, axis=1, **some), rows, front.array(np.ones((3, 4)))
        )
        same(front.numpy(phi), op(x, np.minimum(4, counts), axis=1, where=there, **options))


@frameworks
def test_chosen_entries_of_rows_that_have_fewer(front, same, rng):
    x, there = rng.normal(size=(2, 5)), np.array([[False, True, False, True, True], [True] * 5])
    for more in ({}, {"sorted": False}, {"k": 9}):
        given = {"k": 4, "clamp_k": True, **more}
        found = front.front.topk(front.array(x), where=front.array(there), **given)
        expected = stk.topk(x, given.pop("k"), where=there, **given)
        same(front.numpy(found.values), expected.values)
        np.testing.assert_array_equal(front.numpy(found.indices), expected.indices)


@frameworks
@pytest.mark.parametrize("name", ["thretopk", "gradtopk"])
def test_attention_with_a_causal_and_a_padded_mask_trains(front, name, rng):
    """Queries that see fewer than k keys, or none, leave no NaN in the loss or its gradients."""
    tokens, target = (front.array(each) for each in rng.normal(size=(2, 3, 6, 8)))
    lengths = np.array([6, 3, 1])
    there = (np.arange(6)[None] < lengths[:, None])[:, None, None] & np.tri(6, dtype=bool)
    there = there & (np.arange(6)[:, None] < lengths[:, None, None, None])  # padded queries too
    mask = front.array(np.broadcast_to(there, (3, 4, 6, 6)).copy())
    assert not there.any(-1).all()

    def loss(weights):
        q, k, v = ((tokens @ each).reshape(3, 6, 4, 2).swapaxes(1, 2) for each in weights)
        scores = q @ k.swapaxes(-1, -2)
        p = front.operators[name](scores, 4, where=mask, clamp_k=True)
        return (((p / 4) @ v - target.reshape(3, 6, 4, 2).swapaxes(1, 2)) ** 2).mean()

    weights, losses = front.array(rng.normal(size=(3, 8, 8)) / 3), []
    for _ in range(5):
        losses.append(float(loss(weights)))
        gradient = front.gradient(loss, weights, front.array(np.float64(1.0)))
        assert np.isfinite(front.numpy(gradient)).all()
        weights = weights - 0.3 * gradient
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@frameworks
@every
def test_chosen_entries_are_those_of_numpy(front, same, op, options, rng):
    x, there = rng.integers(-3, 4, size=(4, 9, 5)) / 2.0, rng.random((9, 5)) < 0.8
    x[1, 2, 3] = np.nan
    mask = np.broadcast_to(there, x.shape).copy()
    for more in ({}, {"largest": False}, {"sorted": False}):
        arguments = {"op": op.__name__, "axis": 1, **more, **options}
        found = front.front.topk(front.array(x), 2, where=front.array(mask), **arguments)
        expected = stk.topk(x, 2, where=mask, **arguments)
        same(front.numpy(found.values), expected.values)
        np.testing.assert_array_equal(front.numpy(found.indices), expected.indices)


@frameworks
def test_a_sparse_dispatch_has_the_gradient_of_the_dense_one(front, rng):
    """Each of 4 experts is a matrix; the weights of those that are not chosen are left out."""
    scores, tokens = (
        front.array(each) for each in (rng.normal(size=(5, 4)), rng.normal(size=(5, 3)))
    )
    experts, g = front.array(rng.normal(size=(4, 3, 3))), front.array(rng.normal(size=(5, 3)))

    def sparse(scores):
        values, indices = front.front.topk(scores, 2)
        outputs = (tokens[:, None, None, :] * experts[indices]).sum(-1)
        return (values[..., None] * outputs).sum(1)

    def dense(scores):
        p, mask = front.front.thretopk(scores, 2), front.front.hardtopk(scores, 2)
        outputs = (tokens[:, None, None, :] * experts[None]).sum(-1)
        return ((p * mask)[..., None] * outputs).sum(1)

    found, expected = (front.gradient(each, scores, g) for each in (sparse, dense))
    np.testing.assert_allclose(front.numpy(found), front.numpy(expected), rtol=1e-12)
    assert np.abs(front.numpy(found)).max() > 0.01


@frameworks
@every
def test_numpys_functions_answer_as_the_front(front, op, options, rng):
    x = front.array(rng.normal(size=(3, 7)))
    calls = [(op, front.operators[op.__name__], (x, 2), options)]
    calls += [(stk.topk, front.front.topk, (x, 2), {"op": op, **options})]
    if op.has_potential:
        given = front.front.fenchel_young, (op, x, front.array(np.array([[0, 3]] * 3)), 2), options
        calls += [(stk.fenchel_young, *given)]
        calls += [(op.potential, front.operators[op.__name__].potential, (x, 2), options)]
    for one, other, arguments, more in calls:
        results = [each(*arguments, **more) for each in (one, other)]
        found, expected = (each if isinstance(each, tuple) else (each,) for each in results)
        for a, b in zip(found, expected, strict=True):
            assert isinstance(a, front.kind)
            np.testing.assert_array_equal(front.numpy(a), front.numpy(b))


@frameworks
@smooth
def test_numpys_derivatives_are_arrays_of_the_front(front, same, op, options, rng):
    x, g = rng.normal(size=(2, 3, 7))
    there = front.array(x), front.array(g)
    for found, expected in (
        (op.jvp(there[0], 2, there[1], **options), op.jvp(x, 2, g, **options)),
        (op.vjp(there[0], 2, **options)[1](there[1])[:1], op.vjp(x, 2, **options)[1](g)[:1]),
    ):
        for a, b in zip(found, expected, strict=True):
            assert isinstance(a, front.kind)
            same(front.numpy(a), b)


@frameworks
@smooth
def test_numpys_functions_have_gradients_in_a_front(front, op, options, rng):
    x, g = (front.array(rng.normal(size=(3, 7))) for _ in range(2))
    each = (lambda x, f=f: f(x, 2, **options) for f in (op, front.operators[op.__name__]))
    found, expected = (front.gradient(f, x, g) for f in each)
    np.testing.assert_array_equal(front.numpy(found), front.numpy(expected))


@fronts
@pytest.mark.parametrize("name", registry)
def test_bad_arguments_are_named(front, name):
    op, x = front.operators[name], front.array(np.zeros((2, 4)))
    for given, error, message in (
        ({"k": 5}, ValueError, "k is 5"),
        ({"k": 1, "temperature": 0.0}, ValueError, "temperature is 0.0"),
        ({"k": 1, "curl": 2}, TypeError, "unexpected keyword argument 'curl'"),
    ):
        with pytest.raises(error, match=message):
            op(x, **given)


@frameworks
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k": 2.0}, TypeError, "k is 2.0; expected one whole number for all rows"),
        ({"k": True}, TypeError, "k is True; expected one whole number"),
        ({"k": 5}, ValueError, "k is 5; expected 0 <= k <= n = 4"),
        ({"op": "top"}, ValueError, "op is 'top'; expected an operator or its name: gradtopk"),
        ({"op": 2}, TypeError, "op is 2; expected an operator or its name"),
        ({"sorted": 1}, TypeError, "sorted is 1; expected True or False"),
        ({"clamp_k": "yes"}, TypeError, "clamp_k is 'yes'; expected True or False"),
        ({"temperature": 0.0}, ValueError, "temperature is 0.0; expected a positive"),
        ({"curve": "sharp"}, ValueError, "curve is 'sharp'; expected one of"),
    ],
    ids=str,
)
def test_bad_arguments_of_topk_are_named(front, change, error, message):
    with pytest.raises(error, match=message):
        front.front.topk(front.array(np.zeros((2, 4))), **{"k": 2, **change})


@frameworks
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 1], [1, 1]], "the label 1 twice in row 1"),
        ([[0, 1], [4, -1]], "the label 4; expected"),
    ],
)
def test_bad_labels_are_named(front, labels, message):
    x = front.array(np.zeros((2, 4)))
    for f in (front.front.fenchel_young, stk.fenchel_young):
        with pytest.raises(ValueError, match=message):
            f("thretopk", x, front.array(np.array(labels)), 2)


@frameworks
def test_bad_arguments_of_subsets_are_named(front):
    x, name = front.array(np.zeros((2, 4))), "dim" if front.kind.__module__ == "torch" else "axis"
    for given, error, message in (
        ({"k": 5}, ValueError, "k is 5; expected 0 <= k <= n = 4"),
        ({"k": 2.5}, TypeError, "k is 2.5.*; expected (integers|an integer)"),
        ({"k": front.array(np.ones(3, int))}, ValueError, r"k has shape \(3,\)"),
        ({"temperature": -1.0}, ValueError, "temperature is -1.0; expected a positive"),
        ({name: 2}, (ValueError, IndexError), "2"),
        ({name: "last"}, TypeError, "'last'"),
        ({"where": front.array(np.ones((2, 4)))}, TypeError, "where .*float64; expected .*bool"),
        ({"where": front.array(np.ones(3, bool))}, ValueError, r"where has shape \(3,\); expected"),
    ):
        with pytest.raises(error, match=message):
            front.front.KSubset(x, **{"k": 2, **given})


@frameworks
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_of_subsets_at_every_temperature(front, dtype, rng):
    """Entropies, log-probabilities and losses, with derivatives, where x is many temperatures.

    All at 12 decades of temperature, and some of these beside a common offset.
    """
    n, k, wide = 6, 3, np.float64 if dtype == np.float64 else np.float32
    tau = np.tile((10.0 ** np.arange(-6, 7)).astype(wide), 2)
    row = np.sort(np.round(256 * rng.normal(size=n)) / 256)
    x = np.tile(row, (26, 1))
    x[:13, 2] = x[:13, 3]  # two subsets are the likeliest ones
    x[13:] += {np.float16: 0, np.float32: 2**12, np.float64: 2**40}[dtype]
    x = x.astype(dtype)
    masks = np.array([np.isin(range(n), s) for s in itertools.combinations(range(n), k)])
    exact = [reference.entropy_of_subsets(v, k, t) for v, t in zip(x, tau, strict=True)]
    entropy = np.array([float(each.entropy) for each in exact])
    log_p = np.array([[float(v) for v in each.log_p] for each in exact]).T
    assert entropy.max() > 1 > 1e-6 > entropy.min()

    def check(found, expected, loose=1):
        found = front.numpy(found)
        eps, found = loose * np.finfo(found.dtype).eps, found.astype(float)
        fits = np.abs(found - expected) <= 8 * eps * (1 + np.abs(expected))
        far = np.abs(expected) > np.finfo(dtype).max
        assert (fits | far).all()
        assert (found[far] == np.copysign(np.inf, expected[far])).all()

    def subsets(x, tau):
        return front.front.KSubset(x, k, tau)

    given, taus = front.array(x), front.array(tau)
    listed = front.array(np.tile(masks[:, None].astype(wide), (1, 26, 1)))
    check(subsets(given, taus).entropy(), entropy, 2)
    check(subsets(given, taus).log_prob(listed), log_p, 2)
    # Derivatives, in temperatures. Those in x of a half type are rounded to it.
    for at, of, expected in (
        (taus, lambda tau: subsets(given, tau).entropy(), [e.in_temperature for e in exact]),
        (given, lambda x: subsets(x, taus).entropy(), [e.in_x for e in exact]),
    ):
        found = front.numpy(front.gradient(of, at, front.array(np.ones(26, dtype)))).astype(float)
        scale = tau.astype(float) if at is taus else tau[:, None].astype(float)
        eps = np.finfo(dtype if at is given else wide).eps
        exactly = np.array(expected).astype(float)
        far = np.abs(exactly) * eps > 1e-3 if dtype == np.float16 else False
        fits = np.abs(found - exactly) * scale <= 64 * eps * (1 + np.abs(exactly) * scale)
        assert (fits | far).all()
    # So are the derivatives of potentials and losses in the temperature, for any hard target.
    widened, ones = front.array(x.astype(wide)), front.array(np.ones(26, wide))
    targets = [front.array(np.tile(masks[i], (26, 1))) for i in (0, -1)]
    of_thretopk = []
    for v, t in zip(x, tau, strict=True):
        solved = reference.thretopk(v, k, temperature=t, curve="sigmoid")
        gap = solved.potential - reference.dot(reference.exact(v), solved.p)
        of_thretopk.append(gap / reference.exact([t])[0])
    for name, expected in (
        ("gradtopk", entropy),
        ("thretopk", np.array(of_thretopk).astype(float)),
    ):
        given = {"curve": "sigmoid"} if name == "thretopk" else {}
        numbers = [
            functools.partial(front.operators[name].potential, widened, k, **given),
            *(
                functools.partial(front.front.fenchel_young, name, widened, y, k, **given)
                for y in targets
            ),
        ]
        for number in numbers:
            slope = front.gradient(lambda tau, of=number: of(temperature=tau), taus, ones)
            check(slope, expected, 2)


@frameworks
@smooth_once
def test_rows_of_nan_have_gradients_of_nan(front, op, options):
    """Whatever their cotangent, as softmax of the framework has; other rows are not touched."""
    x, g = np.array([[0.0, np.nan, 1.0], [2.0, 0.0, 1.0]]), np.array([[0.0] * 3, [1.0, 0.0, 0.0]])
    own = front.operators[op.__name__]
    found = front.numpy(
        front.gradient(lambda x: own(x, 1, **options), front.array(x), front.array(g))
    )
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], op.vjp(x[1], 1, **options)[1](g[1]).x)
    softmax = front.numpy(front.gradient(front.softmax, front.array(x), front.array(g)))
    np.testing.assert_array_equal(np.isnan(softmax), np.isnan(found))
    # A mask before the call leaves them out, with gradients of 0.
    mask = front.array(np.isfinite(x) & ~np.isnan(x).any(-1, keepdims=True))
    there = front.gradient(
        lambda x: own(x, 1, where=mask, clamp_k=True, **options), front.array(x), front.array(g)
    )
    assert (front.numpy(there)[0] == 0).all()
    np.testing.assert_array_equal(front.numpy(there)[1], found[1])
