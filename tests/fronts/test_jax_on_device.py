"""The JAX front for CUDA without a device: what is lowered, and what its handler launches."""

from __future__ import annotations

import re

import pytest
from fake_driver import run

from softtopk_nb._api.operator import Differentiable, registry

pytestmark = pytest.mark.ptx
jax = pytest.importorskip("jax")
stj = pytest.importorskip("softtopk_nb.jax")

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

from softtopk_nb.jax import device, foreign  # noqa: E402
from softtopk_nb.jax.operators import OPERATORS  # noqa: E402

K = 3
X = jax.ShapeDtypeStruct((4, 16), jnp.float32)
PER_ROW = jax.ShapeDtypeStruct((4,), jnp.float32)


def lowered(function, *given):
    checks = [export.DisabledSafetyCheck.custom_call(device.TARGET)]
    found = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=checks)
    return found(*given).mlir_module()


def verbs(op, front):
    """(label, function of x, a temperature for each row and a direction in x) for each verb."""

    def value(x, tau, v):
        return front(x, K, temperature=tau)

    yield "value", value
    yield "mask", lambda x, tau, v: front(x, K, temperature=tau, hard=True)
    if not isinstance(op, Differentiable):
        return

    def moved(x, tau, v):
        return jax.jvp(lambda x: value(x, tau, v), (x,), (v,))[1]

    yield "jvp", moved
    yield "vjp", lambda x, tau, v: jax.vjp(lambda x, tau: value(x, tau, v), x, tau)[1](v)
    if op.has_second:
        yield "vjp of jvp", lambda x, tau, v: jax.vjp(lambda x: moved(x, tau, v), x)[1](v)
        yield "jvp of jvp", lambda x, tau, v: jax.jvp(lambda x: moved(x, tau, v), (x,), (v,))
    if op.has_potential:
        yield "potential", lambda x, tau, v: front.potential(x, K, temperature=tau)

        def loss(x, tau, v):
            y = jnp.broadcast_to(jnp.arange(16) < K, x.shape)
            return stj.fenchel_young(front, x, y, K, temperature=tau)

        yield "loss", loss
        to_x = jax.grad(lambda x, tau: front.potential(x, K, temperature=tau).sum())
        yield "gradient of the potential", lambda x, tau, v: to_x(x, tau)


CASES = [
    pytest.param(function, id=f"{name}-{label}")
    for name, op in registry.items()
    for label, function in verbs(op, OPERATORS[name])
]


@pytest.mark.parametrize("function", CASES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_nothing_calls_back(function, dtype):
    """Whatever JAX makes of an operator for CUDA calls the handler, and Python nowhere."""
    x = X.update(dtype=dtype)
    text = lowered(function, x, PER_ROW, x)
    assert f"@{device.TARGET}(" in text
    assert {*re.findall(r"custom_call @([\w.]+)", text)} == {device.TARGET}


def test_numbers_that_are_known_are_constants_of_the_call():
    """They are no arguments, and other numbers need no other program."""
    texts = [lowered(lambda x, k=k: stj.thretopk(x, k, temperature=0.5), X) for k in (2.0, 2.5)]
    keys = {re.search(r"key = (-?\d+)", text)[1] for text in texts}
    assert len(keys) == 1
    assert all("(tensor<4x16xf32>) ->" in text for text in texts)
    assert all("temperature = 5.000000e-01" in text for text in texts)
    (other,) = re.findall(
        r"key = (-?\d+)", lowered(lambda x: stj.thretopk(x, 2.0), X.update(shape=(5, 16)))
    )
    assert other not in keys


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x, tau: stj.gradtopk(x, K, method="dp"), "method 'dp' runs on the CPU only"),
        (
            jax.jacfwd(jax.jacfwd(lambda x, tau: stj.thretopk(x, K, temperature=tau), 1), 1),
            "the temperature twice",
        ),
    ],
)
def test_what_has_no_kernels_is_computed_on_the_host(function, said, caplog):
    """By a callback, which JAX lowers only where there is a device."""
    with (
        caplog.at_level("INFO", "softtopk_nb"),
        pytest.raises(ValueError, match="different from the lowering platform cuda"),
    ):
        lowered(function, X, jax.ShapeDtypeStruct((), jnp.float32))
    assert said in caplog.text


# XLA's own frames on the CPU, with a stream that it has not there; and the rules for CUDA.
PRETEND = """
import ctypes, functools
import jax, jax.numpy as jnp, numpy as np
from jax.interpreters import mlir
from numba import cuda
import fake_driver
import softtopk_nb as stk, softtopk_nb.jax as stj
from softtopk_nb._api import array_calls
from softtopk_nb._api.operator import Differentiable, registry
from softtopk_nb.gradtopk.records import SHORT_32
from softtopk_nb.jax import device, foreign, primitives

STREAM, WORD = 4660, 8
driver = fake_driver.Driver()

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
def stream(words):
    words[3] = STREAM

handle = foreign.Handler(device.handler())

@foreign.Handler
def with_a_stream(address):
    frame = address.contents
    if frame.extension:
        return handle(address)
    known = ctypes.cast(frame.api, ctypes.POINTER(ctypes.c_int64))
    own = (ctypes.c_int64 * (known[0] // WORD))(*known[: known[0] // WORD])
    own[device.handlers.STREAM_GET // WORD] = ctypes.cast(stream, ctypes.c_void_p).value
    frame.api = ctypes.cast(own, type(frame.api))
    try:
        return handle(address)
    finally:
        frame.api = ctypes.cast(known, type(frame.api))

jax.ffi.register_ffi_target(device.TARGET, jax.ffi.pycapsule(with_a_stream), platform="cpu")
verbs = "mark", "solve", "jvp", "vjp", "jvp_of_jvp", "vjp_of_jvp", "potential", "threshold", "loss"
for verb in verbs:
    rule = functools.partial(primitives._lowered_for_cuda, verb, None)
    mlir.register_lowering(getattr(primitives, verb), rule, platform="cpu", cacheable=False)
rng = np.random.default_rng(0)
"""


def test_the_handler_launches_what_the_operators_do(driver):
    """Word for word but for addresses, on XLA's stream; and copies nothing."""
    program = """
kept, device_array = [], cuda.device_array

def keeping(*arguments, **options):
    "Memory that no later array gets."
    kept.append(device_array(*arguments, **options))
    return kept[-1]

cuda.device_array = keeping

def asked(call, names, most=1000):
    "The last launches of a call but for copies and sums, with a name for each address."
    driver.reset()
    names[address(call()[0])] = "result"
    found = []
    for launch in [each for each in driver.launches if "copying" not in each.name][-most:]:
        words = []
        for word in launch.parameters:
            value = int.from_bytes(word, "little")
            if 1 << 22 < value < 1 << 48:
                words.append(names.setdefault(value, f"scratch {len(names)}"))
            else:
                words.append(word)
        found.append((launch.name, launch.grid, launch.shared, words))
    return found

def address(array):
    if isinstance(array, jax.Array):
        return array.unsafe_buffer_pointer()
    return array.__cuda_array_interface__["data"][0]

def calls(op, name, per_row, keeps):
    "(by JAX, by the operator) for each verb; beside a state the value too, for its own memory."
    front, fixed = getattr(stj, name), () if per_row else (3.0 if op.real_k else 3, 0.25)
    def given(kt):
        k, tau = kt or fixed
        return (k,), {"temperature": tau}
    def value(x, *kt):
        return front(x, *given(kt)[0], **given(kt)[1])
    def moved(x, v, *kt):
        return jax.jvp(lambda x: value(x, *kt), (x,), (v,))[::-1]
    def results(found, p):
        return [found, p] if keeps else [found]
    def vjp(x, v, *kt):
        p, pull = jax.vjp(lambda x: value(x, *kt), x)
        return results(pull(v)[0], p)
    def vjp_of_jvp(x, v, *kt):
        _, pull, p = jax.vjp(lambda x: moved(x, v, *kt), x, has_aux=True)
        return results(pull(v)[0], p)
    def jvp_of_jvp(x, v, *kt):
        _, second, p = jax.jvp(lambda x: moved(x, v, *kt), (x,), (v,), has_aux=True)
        return results(second, p)
    def long(verb, directions):
        def call(x, v, *kt):
            return verb(x, *given(kt)[0], *[v] * directions, **given(kt)[1])
        return call
    longs = lambda *a: [long(op.vjp, 0)(*a)[0] if keeps else long(op, 0)(*a)]
    yield lambda x, v, *kt: [value(x, *kt)], longs
    if not isinstance(op, Differentiable):
        return
    yield lambda *a: results(*moved(*a)), lambda *a: [long(op.jvp, 1)(*a)[1]]
    yield vjp, lambda x, v, *kt: [long(op.vjp, 0)(x, v, *kt)[1](v).x]
    if op.has_second:
        yield vjp_of_jvp, lambda *a: [long(op.hvp, 2)(*a).x]
        yield jvp_of_jvp, lambda *a: [long(op.hvp, 2)(*a).x]
    if op.has_potential and per_row:  # numbers reach it through a function, not as constants
        number = lambda x, v, *kt: [front.potential(x, *given(kt)[0], **given(kt)[1])]
        yield number, lambda *a: [long(op.potential, 0)(*a)]
        loss = lambda x, v, *kt: [stj.fenchel_young(front, x, v, kt[0], temperature=kt[1])]
        yield loss, lambda x, v, *kt: [array_calls.check(op, {}, (x, *kt)).losses(v, True)]

count = 0
for name, op in registry.items():
    for n in (64, 5000):
        x, v = (rng.normal(size=(3, n)).astype(np.float32) for _ in range(2))
        width = isinstance(op, Differentiable) and array_calls.state_width(op, {}, n)
        keeps = width > 0 and (name != "gradtopk" or n > SHORT_32.always)
        for per_row in (False, True):
            kind = np.float32 if op.real_k else np.int32
            kt = (np.array([1, 2, 3], kind), np.array([0.5, 1, 2], np.float32)) if per_row else ()
            here, there = [*map(jnp.asarray, (x, v, *kt))], [*map(cuda.to_device, (x, v, *kt))]
            for ours, longs in calls(op, name, per_row, keeps):
                function, known = jax.jit(ours), []
                for arrays in (here, there):
                    known.append({address(a): f"given {i}" for i, a in enumerate(arrays[:2])})
                jax.block_until_ready(function(*here))  # loads kernels
                one = asked(lambda: jax.block_until_ready(function(*here)), known[0])
                launches = driver.launches
                assert {launch.stream for launch in launches} == {STREAM}
                assert not [each for each in launches if "copying" in each.name]
                other = asked(lambda: longs(*there), known[1], 1000 if width else len(one))
                assert len(one) == len(other) > 0, (name, n, len(one), len(other))
                for pair in zip(one, other):
                    assert pair[0] == pair[1], (name, n, per_row, pair)
                count += 1
print(count)
"""
    assert int(run(PRETEND + program, {**driver, "JAX_PLATFORMS": "cpu"})) > 60


def test_calls_that_were_not_recorded_are_refused(driver):
    """A key of another process, other rows than were recorded, and memory that is not aligned."""
    program = """
x = jnp.asarray(rng.normal(size=(3, 64)), jnp.float32)
jax.block_until_ready(jax.jit(lambda x: stj.hardtopk(x, 3))(x))
((key, known),) = device._programs.known.items()

def refused(x, key):
    call = jax.ffi.ffi_call(device.TARGET, jax.ShapeDtypeStruct(x.shape, x.dtype))
    given = {"k": np.float64(3), "key": np.int64(key), "temperature": np.float64(1)}
    driver.reset()
    try:
        jax.block_until_ready(jax.jit(lambda x: call(x, **given))(x))
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition(",")[0], len(driver.launches))

refused(x, key + 2)
refused(x[:2], key)
refused(jnp.tile(x, (2, 1)), key)
refused(x, key)
"""
    lines = run(PRETEND + program, {**driver, "JAX_PLATFORMS": "cpu"}).splitlines()
    assert "compiled in another process" in lines[0]
    assert "recorded for arrays of [192] entries and is called on [128]" in lines[1]
    assert "recorded for arrays of [192] entries and is called on [384]" in lines[2]
    assert len(lines) == 3


def test_rows_on_several_devices(driver):
    """`shard_map` records what each device launches; otherwise each gets all rows, and not some."""
    program = """
from jax.sharding import NamedSharding, PartitionSpec

mesh, rows = jax.make_mesh((4,), ("rows",)), PartitionSpec("rows")
x = jax.device_put(rng.normal(size=(8, 64)).astype(np.float32), NamedSharding(mesh, rows))
select = lambda x: stj.hardtopk(x, 3)
mapped = jax.shard_map(select, mesh=mesh, in_specs=rows, out_specs=rows)
for function in (mapped, select):
    for _ in range(2):
        driver.reset()
        jax.block_until_ready(jax.jit(function)(x))
    print(sorted({int.from_bytes(each.parameters[1], "little") for each in driver.launches}))
"""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    assert run(PRETEND + program, {**driver, **devices}) == "[2]\n[8]\n"


def test_where_xla_cannot_call_the_handler_python_gets_the_stream(driver):
    """The same launches by `buffer_callback`, with the addresses that JAX passes on."""
    program = """
from jax.experimental import buffer_callback

real = buffer_callback.buffer_callback

class OnDevice:
    stream = STREAM

    def __init__(self, buffer):
        self.__cuda_array_interface__ = {"data": (np.asarray(buffer).ctypes.data, False)}

def on_device(compute, *given, **options):
    def called(context, results, *arguments):
        compute(OnDevice, [*map(OnDevice, results)], *map(OnDevice, arguments))
    return real(called, *given, **options)

x = jnp.asarray(rng.normal(size=(3, 64)), jnp.float32)
launches = []
for known in (True, False):
    buffer_callback.buffer_callback = on_device
    foreign.is_known = lambda: known
    jax.clear_caches()
    function = jax.jit(lambda x, tau: stj.thretopk(x, 2.5, temperature=tau))
    for _ in range(2):
        driver.reset()
        p = jax.block_until_ready(function(x, 0.5))
    (launch,) = driver.launches
    addresses = [int.from_bytes(launch.parameters[i], "little") for i in (0, -2)]
    assert addresses == [x.unsafe_buffer_pointer(), p.unsafe_buffer_pointer()]
    launches.append(launch._replace(parameters=launch.parameters[1:7]))
assert launches[0] == launches[1] and launches[0].stream == STREAM
"""
    run(PRETEND + program, {**driver, "JAX_PLATFORMS": "cpu"})


def test_several_platforms_at_once():
    """A program exported for the CPU and for CUDA has both calls."""
    names = [device.TARGET, *foreign._handlers]

    def exported():
        checks = map(export.DisabledSafetyCheck.custom_call, names)
        function = jax.jit(lambda x: stj.thretopk(x, 2.0))
        both = export.export(function, platforms=["cpu", "cuda"], disabled_checks=[*checks])
        return both(X).mlir_module()

    jax.jit(lambda x: stj.thretopk(x, 2.0)).lower(X)
    names += foreign._handlers
    assert {*re.findall(r"custom_call @softtopk_nb\.(\w+)", exported())} == {"recorded", "solve"}


def test_without_the_cpu_the_interface_is_taken_as_known(monkeypatch):
    """JAX_PLATFORMS=cuda: then nobody can register a handler there to look at."""

    def none(**options):
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax, "local_devices", none)
    assert foreign._obstacle() == ""
