"""The JAX front: every operator of the registry under every transform, and its arguments."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import pickle
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from operators import every_once, smooth, smooth_once

import softtopk_nb as stk
from softtopk_nb._api import without_k
from softtopk_nb._api.operator import registry

jax = pytest.importorskip("jax")
stj = pytest.importorskip("softtopk_nb.jax")

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from softtopk_nb.jax import calls, foreign, operators  # noqa: E402

pytestmark = pytest.mark.jax
K = 3
WITH_POTENTIAL = [name for name, op in registry.items() if op.has_potential]
BOTH = ("fwd", "rev")
# JAX chooses: the first where the program is called, the other where its result is handed on.
ERRORS = jax.errors.JaxRuntimeError, ValueError

if hasattr(jax, "enable_x64"):  # from JAX 0.8 on
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64


@pytest.fixture(autouse=True)
def _float64():
    with enable_x64(True):
        yield


def front(op):
    return operators.OPERATORS[op.__name__]


def scores(rng, *shape, dtype=jnp.float64):
    return jnp.asarray(rng.normal(size=shape), dtype)


def problem(op, rng):
    """x, and k and the temperature of each row."""
    k = jnp.array([1.5, 3.25, 4.25]) if op.real_k else jnp.array([1, 3, 4])
    return scores(rng, 3, 7), k, jnp.array([0.5, 1.0, 2.0])


def function_of_reals(op, options, given):
    """(function, its arguments), of all that is differentiated."""
    x, k, tau = given
    if op.real_k:
        return lambda x, k, tau: front(op)(x, k, temperature=tau, **options), (x, k, tau)
    return lambda x, tau: front(op)(x, k, temperature=tau, **options), (x, tau)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


# Values and derivatives


@smooth
def test_gradients_are_those_of_numpy(op, options, rng):
    given = problem(op, rng)
    g = scores(rng, 3, 7)
    arrays = [np.asarray(each) for each in (*given, g)]
    _, pullback = op.vjp(*arrays[:2], temperature=arrays[2], **options)
    expected = pullback(arrays[3])
    function, reals = function_of_reals(op, options, given)
    found = jax.jit(lambda *reals: jax.vjp(function, *reals)[1](g))(*reals)
    wanted = [each for each in expected if each is not None]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@smooth
@pytest.mark.parametrize("temperature", [0.5, 2.0**-200, 2.0**200])
@pytest.mark.parametrize("shape", [(8, 40), (8, 700), (264, 512)], ids=str)
def test_rows_of_every_kind(op, options, shape, temperature, rng):
    """To the bit as NumPy's: on one thread and on several, in machine code and by way of Python."""
    x, v, g = (rng.normal(size=shape) for _ in range(3))
    x[1, 3], x[2, 3], x[3], x[4, 5:30] = np.inf, -np.inf, 1.0, 0.25
    x[5] *= 2.0**200
    x[6, 7] = np.nan
    for some in (slice(None), slice(7, None)):  # all of them, and those without surprises
        _check_rows_of(op, options, temperature, x[some], v[some], g[some])


def test_long_rows_with_few_entries_left(rng):
    """To the bit as NumPy's, where padding or a mask makes them short ones of gradtopk."""
    x, v, g = rng.normal(size=(3, 4, 700))
    x[1, 60:] = x[2, 40:600] = x[2, 650:] = -np.inf
    _check_rows_of(stk.gradtopk, {}, 0.5, x, v, g)


def _check_rows_of(op, options, temperature, x, v, g):
    numbers = {"temperature": temperature}
    expected, along = op.jvp(x, K, v, **numbers, **options)
    _, pullback = op.vjp(x, K, **numbers, **options)

    def function(x):
        return front(op)(x, K, **numbers, **options)

    found = jax.jit(lambda x, v: jax.jvp(function, (x,), (v,)))(x, v)
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_array_equal(found[1], along)
    (back,) = jax.jit(lambda x, g: jax.vjp(function, x)[1](g))(x, g)
    np.testing.assert_array_equal(back, pullback(g).x)


@pytest.mark.parametrize("name", registry)
def test_subnormal_numbers_are_kept(name, rng):
    """XLA's threads take them for 0: those of x, of p and of what is computed on the way."""
    op, own = operators.OPERATORS[name], registry[name]
    tiny = np.finfo(np.float32).smallest_normal / 2
    for shape, scale, tau in (((3, 9), tiny, 2e-38), ((300, 200), 40.0, 1.0)):
        x = (scale * rng.normal(size=shape)).astype(np.float32)
        found = jax.jit(lambda x, tau: op(x, K, temperature=tau))(x, jnp.float32(tau))
        np.testing.assert_array_equal(found, own(x, K, temperature=np.float32(tau)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="temperature is 0"):
        jax.jit(lambda tau: op(x, K, temperature=tau))(0.0)


def refuse(*_, **__):
    raise AssertionError("Python was called")


@pytest.mark.parametrize("name", registry)
def test_ordinary_rows_do_not_touch_python(name, rng, monkeypatch):
    monkeypatch.setattr(calls.Call, "compute", refuse)

    def square(x):
        return jnp.square(operators.OPERATORS[name](x, K)).sum()

    for n in (40, 700):
        x = scores(rng, 8, n, dtype=jnp.float32)
        assert jnp.isfinite(jax.jit(jax.grad(square))(x)).all()
        assert jnp.isfinite(jax.jit(lambda x: jax.jvp(square, (x,), (x,))[1])(x))


UNUSUAL = {
    "mostly 0": lambda rng, shape: np.maximum(rng.normal(size=shape) - 1.5, 0),
    "heavy tails": lambda rng, shape: 4 * rng.standard_t(1, size=shape),
    "lognormal": lambda rng, shape: np.exp(2 * rng.normal(size=shape)),
    "0 or 9": lambda rng, shape: np.where(rng.normal(size=shape) > 1.5, 9, 0),
    "one far below": lambda rng, shape: with_entries(rng, shape, -300),
    "one excluded": lambda rng, shape: with_entries(rng, shape, -np.inf),
    "one infinite": lambda rng, shape: with_entries(rng, shape, np.inf),
    "one NaN": lambda rng, shape: with_entries(rng, shape, np.nan),
    "all excluded": lambda rng, shape: with_entries(rng, shape, -np.inf, slice(None)),
    "few left": lambda rng, shape: with_entries(rng, shape, -np.inf, slice(20, -5)),
    "k left": lambda rng, shape: with_entries(rng, shape, -np.inf, slice(1, 1 - K)),
}


def with_entries(rng, shape, value, where=5):
    """Rows of which the second and the last have this value there."""
    x = rng.normal(size=shape)
    x[[1, -1], where] = value
    return x


def one_of_each(rng, shape):
    """A row of every kind, and ordinary ones."""
    x = rng.normal(size=shape)
    for i, make in enumerate(UNUSUAL.values()):
        x[i] = make(rng, shape)[1]
    return x


KINDS = [*UNUSUAL, "one of each"]
BATCHES = [
    *itertools.product(["thretopk"], [(16, 64), (264, 512)], [K], KINDS),
    *itertools.product(["gradtopk"], [(16, 64), (800, 90), (264, 512), (16, 200)], [K], KINDS),
    # By nodes, of a length of which other rows are short.
    *itertools.product(["gradtopk"], [(16, 200)], [25], KINDS),
]


@pytest.mark.parametrize(("name", "shape", "k", "rows"), BATCHES, ids=str)
def test_rows_touch_python_no_second_time(name, shape, k, rows, rng, monkeypatch):
    """Once the kernels that they want are compiled; on one thread and on several."""
    x = UNUSUAL.get(rows, one_of_each)(rng, shape).astype(np.float32)
    v, g = rng.normal(size=(2, *shape)).astype(np.float32)
    op, own = operators.OPERATORS[name], registry[name]

    @jax.jit
    def found(x):
        value, pullback = jax.vjp(lambda x: op(x, k), x)
        along = jax.jvp(lambda x: op(x, k), (x,), (v,))[1]
        return value, along, *pullback(g)

    jax.block_until_ready(found(x))
    jax.block_until_ready(found(np.full_like(x, np.nan)))  # what is not written shows, mostly
    monkeypatch.setattr(calls.Call, "compute", refuse)
    _, along = own.jvp(x, k, v)
    value, pullback = own.vjp(x, k)
    for one, other in zip(found(x), (value, along, pullback(g).x), strict=True):
        np.testing.assert_array_equal(one, other)


@smooth
def test_arrays_of_one_number_in_a_program(op, options, rng):
    """Scores, directions and cotangents that the compiler knows as a number that is repeated."""
    x, own = scores(rng, 3, 7), front(op)

    @jax.jit
    def found(x):
        ones = jnp.ones_like(x)
        _, pullback = jax.vjp(lambda x: own(x, K, **options), x)
        along = jax.jvp(lambda x: own(x, K, **options), (x,), (ones,))[1]
        return own(ones, K, **options), along, *pullback(ones)

    ones = np.ones((3, 7))
    _, pullback = op.vjp(x, K, **options)
    expected = op(ones, K, **options), op.jvp(x, K, ones, **options)[1], pullback(ones).x
    for one, other in zip(found(x), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@smooth
def test_derivatives(op, options, rng):
    """In x, k and the temperature, in both modes, as often as there are formulas."""
    given = problem(op, rng)
    function, reals = function_of_reals(op, options, given)
    check_grads(function, reals, order=2 if op.has_second else 1, modes=BOTH)


@pytest.mark.parametrize("name", without_k.registry)
def test_operators_without_a_k(name, rng):
    """Derivatives in both modes, batches and a temperature that the program finds out of range."""
    op, x, tau = getattr(stj, name), scores(rng, 3, 7), jnp.array([0.5, 1.0, 2.0])
    check_grads(lambda x, tau: op(x, temperature=tau), (x, tau), order=1, modes=BOTH)
    close(jax.vmap(jax.jacrev(op))(x), jax.vmap(jax.jacfwd(op))(x))
    one_by_one = jax.vmap(lambda x, tau: op(x, temperature=tau))(x, tau)
    np.testing.assert_array_equal(one_by_one, op(x, temperature=tau))
    with pytest.raises(NotImplementedError, match=f"{name} has no second derivative"):
        jax.hessian(lambda x: op(x).sum())(x)
    with pytest.raises(ERRORS, match=r"temperature is -1\.0"):
        jax.block_until_ready(jax.jit(lambda tau: op(x, temperature=tau))(-1.0))
    half = x.astype(jnp.bfloat16)
    expected = op(half.astype(jnp.float32)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(op(half), expected)


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_cotangents_of_second_derivatives(name, rng):
    """What is linear in two directions is transposed in each."""
    x, v, a, g = (scores(rng, 7) for _ in range(4))

    def function(x):
        return operators.OPERATORS[name](x, K)

    def along(v, a):
        return jax.jvp(lambda x: jax.jvp(function, (x,), (v,))[1], (x,), (a,))[1]

    def of_gradient(v, g):
        return jax.jvp(lambda x: jax.vjp(function, x)[1](g)[0], (x,), (v,))[1]

    for each, given in ((along, (v, a)), (of_gradient, (v, g))):
        check_grads(each, given, order=1, modes=BOTH)
        close(
            jax.linear_transpose(lambda v, f=each, o=given[1]: f(v, o), v)(g)[0] @ v,
            each(*given) @ g,
        )


# Transforms


@smooth_once
def test_transforms(op, options, rng):
    x = scores(rng, 4, 7)

    def function(x):
        return front(op)(x, K, **options)

    def total(x):
        return jnp.square(function(x)).sum()

    close(jax.vmap(function)(x), function(x))
    close(jax.vmap(function, in_axes=1, out_axes=1)(x.T), function(x).T)
    close(jax.vmap(jax.vmap(function))(x[None]), function(x)[None])
    taus = jnp.array([0.5, 2.0])
    of_tau = jax.vmap(lambda x, tau: front(op)(x, K, temperature=tau, **options), (None, 0))
    close(of_tau(x[0], taus), front(op)(x[:1].repeat(2, 0), K, temperature=taus, **options))
    jacobian = jax.jacrev(function)(x[0])
    close(jax.jacfwd(function)(x[0]), jacobian)
    close(jax.vmap(jax.jacrev(function))(x)[0], jacobian)
    value, gradient = jax.jit(jax.value_and_grad(total))(x[0])
    close(value, total(x[0]))
    close(gradient, 2 * jacobian.T @ function(x[0]))
    close(jax.vmap(jax.grad(total))(x)[0], gradient)
    close(jax.grad(jax.checkpoint(total))(x[0]), gradient)
    along = functools.partial(lambda x, v: jax.jvp(function, (x,), (v,))[1], x[0])
    close(jax.linear_transpose(along, x[0])(x[1])[0], jacobian.T @ x[1])

    def step(carry, _):
        return function(carry), carry.sum()

    def scanned(x):
        return jax.lax.scan(step, x, jnp.arange(3))[0][1]

    def repeated(x):
        return function(function(function(x)))[1]

    close(jax.jit(jax.grad(scanned))(x[0]), jax.grad(repeated)(x[0]))
    donated = jax.jit(function, donate_argnums=0)(x + 0.0)
    close(donated, function(x))


@smooth_once
def test_hessians(op, options, rng):
    x = scores(rng, 3, 7)

    def total(x):
        return jnp.square(front(op)(x, K, **options)).sum()

    if not op.has_second:
        with pytest.raises(NotImplementedError, match=f"{op.__name__} has no second derivative"):
            jax.hessian(total)(x[0])
        return
    with pytest.raises(NotImplementedError, match="no third derivative"):
        jax.jacfwd(jax.hessian(total))(x[0])
    expected = jax.hessian(total)(x[0])
    close(jax.jit(jax.jacfwd(jax.jacfwd(total)))(x[0]), expected)
    close(jax.jacrev(jax.jacrev(total))(x[0]), expected)
    close(jax.jacrev(jax.jacfwd(total))(x[0]), expected)
    close(jax.vmap(jax.hessian(total))(x)[0], expected)


@every_once
def test_layouts(op, options, rng):
    x = scores(rng, 4, 6)
    expected = front(op)(x, K, **options)
    close(front(op)(x.T, K, axis=0, **options).T, expected)
    assert front(op)(x[:0], K, **options).shape == (0, 6)
    assert front(op)(scores(rng, 3, 0), 0, **options).shape == (3, 0)
    assert front(op)(np.asarray(x), K, **options).dtype == x.dtype


@every_once
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_types_are_computed_in_float32(op, options, dtype, rng):
    x = scores(rng, 4, 6, dtype=dtype)
    found = front(op)(x, K, **options)
    assert found.dtype == dtype
    assert (found == front(op)(x.astype(jnp.float32), K, **options).astype(dtype)).all()
    numbers = [jnp.asarray(K, dtype)] * op.real_k or [K]
    for warm in (dtype(0.5), jnp.asarray(0.5, dtype)):  # known, in both kinds
        p = front(op)(x, *numbers, temperature=warm, **options)
        assert (p == front(op)(x, K, temperature=0.5, **options)).all()
    gradient = jax.grad(lambda x: front(op)(x, K, **options).astype(jnp.float32)[0, 0])(x)
    assert gradient.dtype == dtype
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(600, 512), (2, 3, 50_000)], ids=str)
@pytest.mark.parametrize("name", registry)
def test_large_arrays_of_bfloat16_are_not_copied(name, shape, rng):
    """They are converted piece by piece, to the bit as all at once; of several ranks, odd rows."""
    op = operators.OPERATORS[name]
    x, v, g = (scores(rng, *shape, dtype=jnp.bfloat16) for _ in range(3))
    for place, value in ((1, math.nan), (2, -math.inf), (3, math.inf), (4, 1e-39)):
        x = x.at[..., -1, place :: 7 * place].set(value)
    k = rng.integers(0, K, shape[:-1])

    def function(x, tau):
        return op(x, k, temperature=tau, hard=name == "thretopk")

    def everything(x, v, g, tau):
        p, pullback = jax.vjp(function, x, tau)
        return p, jax.jvp(function, (x, tau), (v, tau))[1], *pullback(g)

    tau = jnp.float32(0.5)
    found = jax.jit(everything)(x, v, g, tau)
    wide = (each.astype(jnp.float32) for each in (x, v, g))
    for one, other in zip(found, everything(*wide, tau), strict=True):
        rounded = other.astype(one.dtype)
        np.testing.assert_array_equal(*map(np.float32, (one, rounded)))
    memory = jax.jit(lambda x: op(x, K)).lower(x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < x.nbytes


@smooth_once
def test_without_float64_everything_is_float32(op, options, rng):
    with enable_x64(False):
        x = jnp.asarray(rng.normal(size=(4, 6)))
        assert x.dtype == jnp.float32

        def function(x, tau):
            return jnp.square(front(op)(x, K, temperature=tau, **options)).sum()

        gradients = jax.jit(jax.grad(function, (0, 1)))(x, 0.5)
    assert {each.dtype for each in gradients} == {jnp.dtype("float32")}
    expected = jax.grad(function, (0, 1))(x.astype(jnp.float64), 0.5)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_mask_of_more_than_is_there():
    """A row is NaN where its soft form is, also where k would be rounded to what is there."""
    x = jnp.array([[2.0, 1.0, -jnp.inf], [2.0, 1.0, 0.0], [jnp.nan, 1.0, 0.0]])
    for k in (2.4, jnp.array([1.6, 2.4, 2.4])):
        masks = jax.jit(functools.partial(stj.thretopk, k=k, hard=True))
        soft = np.isnan(stj.thretopk(x, k)).any(axis=1)
        for _ in range(2):  # in Python, and compiled
            np.testing.assert_array_equal(np.isnan(masks(x)).all(axis=1), soft)
            np.testing.assert_array_equal(masks(x)[1], [1.0, 1.0, 0.0])


@pytest.mark.parametrize("hard", [False, True])
@smooth_once
def test_straight_through(op, options, hard, rng):
    x, weights = scores(rng, 4, 7), scores(rng, 4, 7)
    p, pullback = jax.vjp(lambda x: front(op)(x, K, hard=hard, **options), x)
    soft, of_soft = jax.vjp(lambda x: front(op)(x, K, **options), x)
    np.testing.assert_array_equal(p, stk.hardtopk(np.asarray(x), K) if hard else soft)
    np.testing.assert_array_equal(pullback(weights)[0], of_soft(weights)[0])


@pytest.mark.parametrize("name", ["thretopk", "gradtopk"])
def test_a_mask_alone_takes_no_search(name, rng, monkeypatch):
    """Nor a second array: the soft operator is computed where it is differentiated."""
    op = operators.OPERATORS[name]
    x = scores(rng, 40, 30, dtype=jnp.float32)
    x = x.at[0, 3].set(math.nan)
    program = jax.jit(lambda x, k: op(x, k, hard=True)).lower(x, K).compile()
    assert len(re.findall(r" custom-call\(", program.as_text())) == 1
    assert program.memory_analysis().temp_size_in_bytes < x.nbytes
    monkeypatch.setattr(calls.Call, "compute", refuse)
    np.testing.assert_array_equal(program(x, K), stk.hardtopk(np.asarray(x), K))


_ON_TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import softtopk_nb.jax
from softtopk_nb.jax.operators import OPERATORS

jax.config.update("jax_enable_x64", True)
x = jax.random.normal(jax.random.key(0), (6, 9))
k, tau = 2, jnp.float64(0.7)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(kind,))
    jax.set_mesh(mesh)
    apart = jax.device_put(x, NamedSharding(mesh, P("rows")))
    for name, op in OPERATORS.items():
        def function(x, tau):
            return op(x, k, temperature=tau)
        def loss(f):
            return lambda x, tau: jnp.square(f(x, tau)).sum()
        mapped = jax.jit(jax.shard_map(function, in_specs=(P("rows"), P()), out_specs=P("rows")))
        def same(a, b):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        same(mapped(apart, tau), function(x, tau))
        for i in (0, 1):
            expected = jax.grad(loss(function), i)(x, tau)
            same(jax.grad(loss(mapped), i)(apart, tau), expected)
            same(jax.jit(jax.grad(loss(function), i))(apart, tau), expected)
        compiled = jax.jit(function).lower(apart, tau).compile()
        assert "all-gather" not in compiled.as_text(), name
        found = compiled(apart, tau)
        same(found, function(x, tau))
        assert found.sharding.spec[0] == "rows", (name, kind, found.sharding)
print("ok")
"""


def test_rows_on_two_devices():
    """Under `shard_map`, and where the compiler divides the work itself."""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    assert _printed(_ON_TWO_DEVICES, environment).endswith("ok\n")


def _printed(code, environment=None, timeout=None):
    return subprocess.run(
        [sys.executable, "-c", code],
        timeout=timeout,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(environment or {})},
    ).stdout


# Potentials and losses


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_potentials_and_losses(name, rng):
    op, own = operators.OPERATORS[name], registry[name]
    x, k, tau = problem(own, rng)
    arrays = [np.asarray(each) for each in (x, k, tau)]
    np.testing.assert_array_equal(
        jax.jit(op.potential)(x, k, temperature=tau),
        own.potential(*arrays[:2], temperature=arrays[2]),
    )
    np.testing.assert_array_equal(
        op.potential(x, k, largest=False), own.potential(*arrays[:2], largest=False)
    )
    check_grads(lambda x, t: op.potential(x, K, temperature=t), (x, tau), order=2, modes=BOTH)
    labels = jnp.array([[0, 4], [3, 1], [6, 2]])
    y = jnp.zeros((3, 7)).at[jnp.arange(3)[:, None], labels].set(1.0)

    def loss(x, tau, y=y):
        return stj.fenchel_young(op, x, y, 2, temperature=tau)

    expected = stk.fenchel_young(own, arrays[0], np.asarray(y), 2, temperature=arrays[2])
    np.testing.assert_array_equal(loss(x, tau), expected)
    np.testing.assert_array_equal(jax.jit(jax.vmap(loss))(x, tau, y), expected)
    close(stj.fenchel_young(op, x, labels, 2, temperature=tau), expected)
    close(stj.fenchel_young(op, x.T, labels.T, 2, temperature=tau, axis=0), expected)
    several = jnp.array([[0, 4], [3, -1], [6, -1]]), jnp.array([2, 1, 1])
    arrays = [np.asarray(each) for each in (x, *several)]
    close(stj.fenchel_young(op, x, *several), stk.fenchel_young(own, *arrays))
    check_grads(loss, (x, tau), order=2, modes=BOTH)


@pytest.mark.parametrize("name", WITH_POTENTIAL)
def test_the_operator_of_a_loss_by_name(name, rng):
    x, labels = jnp.asarray(rng.normal(size=(3, 6))), jnp.arange(3)
    expected = stj.fenchel_young(getattr(stj, name), x, labels, 1)
    np.testing.assert_array_equal(stj.fenchel_young(name, x, labels, 1), expected)


def test_potential_along_k(rng):
    x, k, tau = problem(stk.thretopk, rng)

    def potential(x, k, tau):
        return stj.thretopk.potential(x, k, temperature=tau)

    def threshold(x, tau):
        return jax.grad(lambda k: potential(x, k, tau).sum())(k)

    check_grads(lambda k: potential(x, k, tau), (k,), order=1, modes=BOTH)
    check_grads(threshold, (x, tau), order=1, modes=BOTH)
    with pytest.raises(NotImplementedError, match="no second derivative along k twice"):
        jax.hessian(lambda k: potential(x, k, tau).sum())(k)


def test_cross_entropy(rng):
    theta, labels = scores(rng, 6, 9), jnp.asarray(rng.integers(9, size=6))
    found = stj.fenchel_young(stj.thretopk, theta, labels, 1, curve="exp")
    close(found, -jax.nn.log_softmax(theta)[jnp.arange(6), labels])


# Subsets


def test_k_subset(rng):
    x, tau = scores(rng, 3, 6), jnp.array([0.5, 1.0, 2.0])
    subsets = stj.KSubset(x, 2, tau)
    own = stk.KSubset(np.asarray(x), 2, np.asarray(tau))
    listed = np.array(
        [[i in pair for i in range(6)] for pair in itertools.combinations(range(6), 2)]
    )
    listed = jnp.broadcast_to(listed[:, None], (15, 3, 6))
    log_p = subsets.log_prob(listed)
    close(log_p, own.log_prob(np.asarray(listed)))
    close(jnp.exp(log_p).sum(0), jnp.ones(3))
    close(subsets.mean, own.marginals())
    close(subsets.entropy(), own.entropy())
    check_grads(lambda x, tau: stj.KSubset(x, 2, tau).log_prob(listed), (x, tau), 1, BOTH)
    check_grads(lambda x, tau: stj.KSubset(x, 2, tau).entropy(), (x, tau), 1, BOTH)
    key = jax.random.key(1)
    drawn = jax.jit(lambda subsets, key: subsets.sample(key, (4000,)))(subsets, key)
    np.testing.assert_array_equal(drawn, subsets.sample(key, (4000,)))
    assert (drawn.sum(-1) == 2).all()
    assert abs(drawn.mean(0) - subsets.mean).max() < 0.04
    each = jax.vmap(lambda key: subsets.sample(key))(jax.random.split(key, 3))
    np.testing.assert_array_equal(each[1], subsets.sample(jax.random.split(key, 3)[1]))
    close(jax.vmap(lambda subsets: subsets.entropy())(subsets), subsets.entropy())
    gradient = jax.grad(lambda x: (stj.KSubset(x, 2).sample(key) * x).sum())(x)
    np.testing.assert_array_equal(gradient, stj.KSubset(x, 2).sample(key))


def test_assignments(rng):
    """In reverse mode, in batches; the compiled program says what is wrong."""
    s, tau = scores(rng, 2, 3, 4), jnp.array([0.5, 1.0])

    def plan(s, tau):
        return stj.sinkhorn(s, temperature=tau, tol=1e-14)

    check_grads(plan, (s, tau), 1, ("rev",))
    np.testing.assert_array_equal(jax.vmap(plan)(s, tau), plan(s, tau))
    jacobian = jax.vmap(jax.jacrev(stj.sinkhorn))(s)
    close(jacobian[1], jax.jacrev(stj.sinkhorn)(s[1]))
    with pytest.raises(NotImplementedError, match="sinkhorn has no second derivative"):
        jax.jacrev(jax.jacrev(stj.sinkhorn))(s[0])
    with pytest.raises(ERRORS, match="did not converge"):
        jax.block_until_ready(jax.jit(lambda s: stj.sinkhorn(s, max_iter=1))(s))
    with pytest.raises(stk.ConvergenceError, match="did not converge"):
        stj.sinkhorn(s, max_iter=1)
    for given in ({"temperature": -1.0}, {"tol": 0}, {"rows": jnp.array([1.0, -2.0, 1.0])}):
        with pytest.raises(ValueError, match=r"^(temperature|tol|rows) .*; expected"):
            jax.jit(lambda s, given=given: stj.sinkhorn(s, **given))(s)
    assert stj.sinkhorn(s.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("bound", [False, True])
def test_balanced_topk_along_directions(bound, rng):
    """First derivatives in both modes; a direction in k as NumPy has it. Others say what is not."""
    x, load = 5.0 + scores(rng, 2, 6, 4), jnp.array([2.0, 3.0, 1.5, 3.5]) * (1.0 + 0.2 * bound)
    options = {"at_most": bound, "where": jnp.arange(6)[:, None] < 5, "clamp_k": True, "tol": 1e-13}

    def chosen(x, tau, k=2.0, load=load):
        return stj.balancedtopk(x, k, load, temperature=tau, **options).p

    tau = jnp.array([0.5, 0.7])
    check_grads(jax.jit(chosen), (x, tau), 1, BOTH, rtol=1e-5)
    dx, dk, dload, dtau = (scores(rng, *shape) for shape in ((2, 6, 4), (6,), (4,), (2,)))
    moves = {"dk": dk, "dload": dload, "dtemperature": dtau}
    _, expected = stk.balancedtopk.jvp(
        np.asarray(x), 2.0, dx, load, temperature=np.asarray(tau), **moves, **options
    )
    given = x, tau, jnp.full(6, 2.0), load
    for function in (chosen, jax.jit(chosen)):
        close(jax.jvp(function, given, (dx, dtau, dk, dload))[1], expected)
    jacobian = jax.vmap(jax.jacfwd(chosen))(x, tau)
    close(jacobian, jax.vmap(jax.jit(jax.jacrev(chosen)))(x, tau))
    for second in (jax.hessian, lambda f: jax.grad(lambda x: jax.grad(f)(x).sum())):
        with pytest.raises(NotImplementedError, match="balancedtopk has no second derivative"):
            second(lambda x: chosen(x, 0.5)[0, 0])(x[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 5}, "k is 5; expected 0 <= k <= n = 4, the number of columns"),
        ({"k": jnp.array([1, 1, 1, 1, 1, -1])}, "k is -1; expected"),
        ({"k": True}, "k is True"),
        ({"load": 1.0}, "load sums to 4 and k to 12, which differs by 8; expected the same total"),
        ({"load": np.full(4, 7)}, "load is 7; expected 0 <= load <= m = 6"),
        ({"temperature": 0.0}, "temperature is 0.0; expected a positive finite number"),
        ({"where": np.arange(6)[:, None] < 5}, "leaves 0 entries in row 5, .* or clamp_k=True"),
        ({"max_iter": 0}, "max_iter is 0; expected at least 1"),
        ({"clamp_k": "yes"}, "clamp_k is 'yes'; expected True or False"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_bad_arguments_of_balancedtopk(change, message, rng):
    """As NumPy says it where it is known while JAX traces; by the program in these words alone."""
    x, given = scores(rng, 6, 4, dtype=jnp.float32), {"k": 2, **change}
    with pytest.raises((ValueError, TypeError), match=message) as numpys:
        stk.balancedtopk(np.asarray(x), **given)
    for call in (jax.jit, jax.grad, lambda f: f):
        with pytest.raises(type(numpys.value)) as caught:
            call(lambda x: stj.balancedtopk(x, **given).p.sum())(x)
        assert str(caught.value) == str(numpys.value)
    ((name, value),) = change.items()
    if name not in ("max_iter", "clamp_k") and value is not True:
        traced = jax.jit(lambda v: stj.balancedtopk(x, **{**given, name: v}).p)
        with pytest.raises(ERRORS) as caught:
            jax.block_until_ready(traced(value))
        words = str(caught.value).removeprefix("INVALID_ARGUMENT: ")
        assert words.replace(".0", "") == str(numpys.value).replace(".0", "")


def test_a_balanced_topk_that_fails_in_a_program(rng):
    """What only the scores tell: in the words of NumPy's errors alone."""
    x = 3.0 * scores(rng, 6, 4)
    call = jax.jit(lambda x, t: stj.balancedtopk(x, 2, temperature=t, max_iter=1).p)
    with pytest.raises(ERRORS, match=r"^(ABORTED: )?balancedtopk did not converge: after 1 steps"):
        jax.block_until_ready(call(x, 0.1))
    with pytest.raises(stk.ConvergenceError):
        stj.balancedtopk(x, 2, temperature=0.1, max_iter=1)
    low = x.at[1].set(-jnp.inf)
    assert jnp.isnan(call(low, 1e9)).all()
    draw = jax.jit(lambda x: stj.KSubset(x, 2).sample(jax.random.key(0)))
    with pytest.raises(ERRORS, match=r"^(INVALID_ARGUMENT: )?x holds NaN; expected numbers"):
        jax.block_until_ready(draw(x.at[0].set(jnp.nan)))


def test_subsets_along_an_axis_and_with_a_mask(rng):
    x, there = scores(rng, 6, 3), rng.random((6, 3)) < 0.7
    there[:2] = True
    subsets = stj.KSubset(x, 2, axis=0, where=there)
    np.testing.assert_array_equal(subsets.mean, stj.gradtopk(x, 2, axis=0, where=there))
    drawn = subsets.sample(jax.random.key(0), (50,))
    assert drawn.shape == (50, 6, 3)
    assert (drawn.sum(1) == 2).all()
    assert not (drawn * ~there).any()
    listed = stj.KSubset(x[there[:, 0], 0], 2)
    close(subsets.entropy()[0], listed.entropy())
    close(subsets.log_prob(drawn)[:, 0], listed.log_prob(drawn[:, there[:, 0], 0]))
    gradient = jax.grad(lambda x: stj.KSubset(x, 2, axis=0, where=there).log_prob(drawn).sum())(x)
    np.testing.assert_array_equal(gradient != 0, there)
    with pytest.raises(ValueError, match="k is 7"):
        stj.KSubset(x, 7, axis=0)
    half = stj.KSubset(x.astype(jnp.bfloat16), 2)
    assert half.entropy().dtype == half.sample(jax.random.key(0)).dtype == jnp.bfloat16


# Arguments


def test_bad_arguments_are_refused():
    x = jnp.zeros((2, 4))
    wrong = [
        ((x, 5), {}, ValueError, r"k is 5.*expected 0 <= k <= n = 4"),
        ((x, jnp.array(-1.0)), {}, ValueError, r"k is -1"),
        ((x, jnp.zeros(3)), {}, ValueError, r"k has shape \(3,\); expected one that broadcasts"),
        ((x, True), {}, TypeError, r"k is True of dtype bool"),
        ((x, 2), {"temperature": math.nan}, ValueError, r"temperature is nan"),
        ((x, 2), {"temperature": jnp.array(0.0)}, ValueError, r"temperature is 0"),
        ((x.astype(complex), 2), {}, TypeError, r"x has dtype complex128; expected float32"),
        ((x + 0j, 2), {}, TypeError, r"x has dtype complex128"),
        (("x", 2), {}, TypeError, r"x is a str; expected an array"),
        ((jnp.array(1.0), 1), {}, ValueError, r"x is 0-dimensional"),
        ((x, 2), {"axis": 2}, IndexError, r"axis 2 is out of bounds"),
        ((x, 2), {"where": jnp.ones(4)}, TypeError, r"where has dtype float64; expected bool"),
        ((x, 2), {"where": jnp.ones(3, bool)}, ValueError, r"where has shape \(3,\)"),
        ((x, 2), {"out": x}, TypeError, r"unexpected keyword argument 'out'"),
        ((x, 2), {"curve": "step"}, ValueError, r"curve is 'step'"),
        ((x, 2), {"largest": 1}, TypeError, r"largest is 1; expected True or False"),
    ]
    for arguments, options, kind, message in wrong:
        with pytest.raises(kind, match=message):
            stj.thretopk(*arguments, **options)
    with pytest.raises(TypeError, match=r"k is .*expected integers"):
        stj.gradtopk(x, 2.0)
    with pytest.raises(TypeError, match="k has dtype float64; expected integers"):
        jax.jit(stj.gradtopk)(x, 2.0)
    with pytest.raises(ValueError, match=r"k has shape \(3,\)"):
        jax.jit(stj.thretopk)(x, jnp.zeros(3))
    one = jnp.array([0, 1])
    for op, kind in ((stj.itertopk, TypeError), ("itertopk", ValueError)):
        with pytest.raises(kind, match=r"op is .*itertopk.*with a potential or its name"):
            stj.fenchel_young(op, x, one, 1)
    with pytest.raises(ValueError, match=r"target has shape \(3,\) and dtype int64"):
        stj.fenchel_young(stj.thretopk, x, jnp.arange(3), 1)
    with pytest.raises(TypeError, match="k is differentiated"):
        jax.grad(lambda k: stj.fenchel_young(stj.thretopk, x, one, k).sum())(1.0)


def test_numbers_that_are_not_known_are_checked_when_they_are():
    x = jnp.zeros((2, 4))
    wrong = [
        (lambda k: stj.thretopk(x, k), 9.0, r"k is 9.0; expected 0 <= k <= n = 4"),
        (lambda k: stj.thretopk(x, k, hard=True), 4.25, "k is 4.25"),
        (lambda k: stj.gradtopk(x, k), -1, "k is -1"),
        (lambda tau: stj.thretopk(x, 2, temperature=tau), 0.0, "temperature is 0.0"),
        (lambda tau: stj.itertopk(x, 2, temperature=tau), math.inf, "temperature is inf"),
        (lambda y: stj.fenchel_young(stj.thretopk, x, y, 1), jnp.array([0, 4]), "target sums to 0"),
    ]
    for function, value, message in wrong:
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: {message}"):
            jax.jit(function)(value)
        with pytest.raises(ERRORS, match=f"INVALID_ARGUMENT: {message}"):
            jax.block_until_ready(jax.jit(function)(value) + 1.0)


@pytest.mark.parametrize("name", registry)
def test_numbers_that_are_nan_make_rows_of_nan(name, rng):
    """And end no other rows; likewise of derivatives, potentials and losses."""
    own, op = registry[name], operators.OPERATORS[name]
    x, k, tau = problem(own, rng)

    def value(x, k, tau, hard=False):
        return op(x, k, temperature=tau, hard=hard)

    def derivatives(x, k, tau):
        along = jax.jvp(lambda x, tau: value(x, k, tau), (x, tau), (x, tau))[1]
        return along, *jax.vjp(lambda x, tau: value(x, k, tau), x, tau)[1](x)

    def loss(x, k, tau):
        return stj.fenchel_young(op, x, jnp.arange(3), 1 + 0 * k, temperature=tau)

    problems = [(k, tau.at[1].set(math.nan))]
    if own.real_k:
        problems.append((k.at[1].set(math.nan), tau))
    for lost in problems:
        results = [jax.jit(jax.vmap(value))(x, *lost)]
        if name != "hardtopk":
            results.append(jax.jit(functools.partial(value, hard=True))(x, *lost))
            results += jax.jit(derivatives)(x, *lost)
        if own.has_potential:
            results.append(jax.jit(lambda x, k, tau: op.potential(x, k, temperature=tau))(x, *lost))
            results.append(jax.jit(loss)(x, *lost))
        for each in results:
            assert jnp.isnan(each[1]).all()
            assert jnp.isfinite(each[::2]).all()


def test_what_a_program_of_another_process_calls_is_refused():
    with pytest.raises(ValueError, match="'thretopk curve=3' was compiled in another process"):
        calls.find("thretopk curve=3")


def test_a_curve_of_ones_own(rng):
    curve = stk.Curve(
        lambda t: 0.5 + t / (2 * math.sqrt(1 + t * t)), lambda t: 0.5 / (1 + t * t) ** 1.5
    )
    x = scores(rng, 3, 7)
    check_grads(lambda x: stj.thretopk(x, 2.5, curve=curve), (x,), order=1, modes=BOTH)
    close(stj.thretopk(x, 2.5, curve=curve), stk.thretopk(np.asarray(x), 2.5, curve=curve))


@pytest.mark.parametrize("name", registry)
def test_without_jit(name, rng):
    """Also where JAX, in search of a NaN, disables it."""
    operator, x = operators.OPERATORS[name], scores(rng, 2, 6)
    expected = operator(x, K)
    with jax.disable_jit():
        np.testing.assert_array_equal(operator(x, K), expected)
        jax.grad(lambda x: operator(x, K)[0, 0])(x)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(operator(x, K), expected)
        with pytest.raises(FloatingPointError, match="nan"):
            operator(x.at[0, 0].set(jnp.nan), K)


def test_pickling():
    assert pickle.loads(pickle.dumps(stj.gradtopk)) is stj.gradtopk


# How it is computed


@pytest.mark.parametrize(
    ("claimed", "sizes", "said"),
    [((9, 9), foreign.EXPECTED, r"API version \(9\.9\)"), ((0, 1), (), "sizes")],
)
def test_an_interface_that_is_not_known(claimed, sizes, said, rng, monkeypatch, caplog):
    """XLA refuses a handler, or has another call frame: JAX calls Python, and one line says so."""
    x = scores(rng, 3, 7)

    def results():
        function = jax.jit(lambda x: jnp.square(stj.thretopk(x, 2.5)).sum())
        return jax.grad(function)(x), jax.hessian(function)(x), jax.vmap(jax.grad(function))(x)

    expected = results()
    monkeypatch.setattr(foreign, "_FIRST", f"softtopk_nb.{claimed}")
    monkeypatch.setattr(foreign, "CLAIMED", claimed)
    monkeypatch.setattr(foreign, "EXPECTED", sizes)
    monkeypatch.setattr(foreign, "is_known", functools.cache(foreign.is_known.__wrapped__))
    jax.clear_caches()
    try:
        with caplog.at_level(logging.INFO, "softtopk_nb"):
            for one, other in zip(results(), expected, strict=True):
                np.testing.assert_array_equal(one, other)
        lines = [each.message for each in caplog.records if "foreign" in each.message]
        assert len(lines) == 1
        assert re.search(said, lines[0])
        for op in (stj.thretopk, lambda x, k: stj.balancedtopk(x, k).p):
            with pytest.raises(jax.errors.JaxRuntimeError, match="k is 9"):
                jax.block_until_ready(jax.jit(lambda k, op=op: op(x, k))(9.0))
    finally:
        monkeypatch.undo()
        jax.clear_caches()


def test_export_for_any_number_of_rows(rng):
    rows = jax.ShapeDtypeStruct(export.symbolic_shape("b, 64"), jnp.float32)

    def of_square(x):
        return jnp.square(stj.thretopk(x, 2.0)).sum()

    for function in (jax.jit(lambda x: stj.thretopk(x, 2.0)), jax.jit(jax.grad(of_square))):
        function.lower(rows)
        names = [export.DisabledSafetyCheck.custom_call(each) for each in foreign._handlers]
        exported = export.export(function, disabled_checks=names)(rows)
        for b in (3, 2000):  # on one thread, and on several
            x = scores(rng, b, 64, dtype=jnp.float32)
            np.testing.assert_array_equal(exported.call(x), function(x))
    with pytest.raises(ValueError, match="x has size b along axis 0; expected a known number"):
        export.export(jax.jit(lambda x: stj.thretopk(x, 2.0, axis=0)))(rows)


def test_calls_side_by_side(rng):
    """Compiled programs in several threads, and operators of NumPy beside them."""
    x = scores(rng, 300, 400, dtype=jnp.float32)
    given = np.asarray(x)
    function = jax.jit(jax.value_and_grad(lambda x: jnp.square(stj.thretopk(x, 20.0)).sum()))
    expected, array = function(x), stk.thretopk(given, 20.0)
    failures = []

    def by_jax():
        for _ in range(20):
            if not (function(x)[1] == expected[1]).all():
                failures.append("jax")

    def by_numpy():
        for _ in range(40):
            if not np.array_equal(stk.thretopk(given, 20.0), array):
                failures.append("numpy")

    threads = [
        threading.Thread(target=each, daemon=True) for each in (by_jax, by_jax, by_numpy, by_numpy)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=60)
        assert not each.is_alive()
    assert not failures


_ENDS_BEFORE_ITS_PROGRAMS = """
import time
import jax
import softtopk_nb.jax as stj
from softtopk_nb.jax import host

now = host.loss

def slow(*arrays):
    time.sleep(0.2)
    print("called", flush=True)
    return now(*arrays)

host.loss = slow
x = jax.random.normal(jax.random.key(0), (1000, 1000))
busy = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda i, x: x @ x / 30, x)).lower(x).compile()
labels = jax.numpy.zeros(16, int)
loss = jax.jit(lambda x: stj.fenchel_young(stj.gradtopk, x[:16, :8], labels, 1)).lower(x).compile()
loss(busy(x))
print("the end", flush=True)
"""


def test_python_ends_after_the_programs_that_call_it():
    """XLA waits forever for a thread that Python has ended."""
    printed = _printed(_ENDS_BEFORE_ITS_PROGRAMS, timeout=120)
    assert printed.split("\n")[-3:] == ["the end", "called", ""]


_CHILD_ENDS = """
import atexit, os, sys
import jax
import softtopk_nb.jax as stj

parent = os.getpid()
# It is called after the functions registered later, and before JAX's own, which crash in a child.
atexit.register(lambda: os.getpid() == parent or os._exit(3))
loss = stj.fenchel_young(stj.gradtopk, jax.numpy.ones((2, 3)), jax.numpy.zeros(2, int), 1)
loss.block_until_ready()
child = os.fork()
if child == 0:
    sys.exit()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_ends():
    """It has none of the threads that would compute what it waited for."""
    assert _printed(_CHILD_ENDS, timeout=120) == "3\n"


def test_without_jax_the_import_says_what_to_install():
    code = """
import sys
sys.modules["jax"] = None
import softtopk_nb
try:
    import softtopk_nb.jax
except ImportError as error:
    print(error)
"""
    assert "pip install softtopk_nb[jax]" in _printed(code)
