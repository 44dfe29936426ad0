"""The primitives: their shapes, batching, and lowering.

Each takes arrays of rows, with any number of leading axes, and the *call*, a key that names the
operator and its options. On the CPU XLA calls the handlers (`foreign`), on CUDA devices the one
that repeats launches (`device`); elsewhere, and where its interface is not known, JAX calls Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from . import device, foreign, host
from .arguments import computed_in
from .calls import Call

Avals = list[Any]


def of_rows(x: Any, *shape: int, dtype: Any = None) -> Any:
    """An abstract array of x's batch shape and `shape`, on the devices that x is on."""
    dtype = x.dtype if dtype is None else dtype
    spec = (*x.sharding.spec[: x.ndim - 1], *(None for _ in shape))
    apart = NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
    return x.update(shape=(*x.shape[:-1], *shape), dtype=dtype, sharding=apart, weak_type=False)


def _like_x(call: Call, x: Any, *_: Any) -> Avals:
    return [of_rows(x, x.shape[-1])]


def _like_value(call: Call, x: Any, *_: Any) -> Avals:
    return [of_rows(x)] if call.op.reduces else [of_rows(x, x.shape[-1])]


def _with_state(call: Call, x: Any, *_: Any) -> Avals:
    width = host.state_width(call.op, call.options, x.shape[-1])
    return [*_like_value(call, x), of_rows(x, width, dtype=np.uint32)]


def _like_problem(call: Call, x: Any, *_: Any) -> Avals:
    dtype = computed_in(x.dtype)
    return [of_rows(x, x.shape[-1]), of_rows(x, dtype=dtype), of_rows(x, dtype=dtype)]


def _number(call: Call, x: Any, *_: Any) -> Avals:
    return [of_rows(x)]


@functools.cache
def _compiled(primitive: Primitive, call: Call) -> Any:
    def one(*arrays: Any) -> Any:
        return primitive.bind(*arrays, call=call)

    one.__name__ = one.__qualname__ = primitive.name
    # Marked as JAX marks its own primitives, so that its search for a NaN ends here.
    one._apply_primitive = True  # type: ignore[attr-defined]
    return jax.jit(one)


def _evaluated(primitive: Primitive, *arrays: Any, call: Call) -> Any:
    """Compile and run a primitive that is called alone, also where `jit` is disabled."""
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        with jax.disable_jit(False):
            return _compiled(primitive, call)(*arrays)
    return _compiled(primitive, call)(*arrays)


def batched(primitive: Primitive, arrays: Any, axes: Any, **known: Any) -> Any:
    """The batching rule: the axis of `vmap` becomes the first axis of the batch."""
    size = next(a.shape[i] for a, i in zip(arrays, axes, strict=True) if i is not None)
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if i is None else jnp.moveaxis(a, i, 0)
        for a, i in zip(arrays, axes, strict=True)
    ]
    results = primitive.bind(*moved, **known)
    return results, [0] * len(results)


def _anywhere(
    primitive: Primitive, verb: str, shapes: Callable[..., Avals], *arrays: Any, call: Call
) -> Any:
    """Compute by a callback to Python, which takes a hundred times as long on a short row.

    Rows of bfloat16 are converted to float32, wherever they are computed then.
    """
    if arrays[0].dtype == jnp.bfloat16:
        wide = [a.astype(jnp.float32) if a.dtype == jnp.bfloat16 else a for a in arrays]
        found = primitive.bind(*wide, call=call)
        avals = shapes(call, *map(jax.typeof, arrays))
        return [f.astype(each.dtype) for f, each in zip(found, avals, strict=True)]
    results = [
        jax.ShapeDtypeStruct(each.shape, each.dtype)
        for each in shapes(call, *map(jax.typeof, arrays))
    ]

    def compute(*given: Any) -> Any:
        found = call.compute(verb, *map(np.asarray, given))
        return [np.asarray(f, r.dtype) for f, r in zip(found, results, strict=True)]

    return jax.pure_callback(compute, results, *arrays, vmap_method="broadcast_all")


def _lowered_for_cpu(verb: str, anywhere: Any, context: Any, *operands: Any, call: Call) -> Any:
    target = foreign.target(verb, call, context.avals_in[0]) if foreign.is_known() else None
    if target is None:
        return anywhere(context, *operands, call=call)
    rank = context.avals_in[0].ndim
    pairs = zip(operands, context.avals_in, strict=True)
    given = [_scalar(*each) if each[1].ndim < rank else each for each in pairs]
    values, avals = zip(*given, strict=True)
    context = context.replace(avals_in=avals)
    rule = jax.ffi.ffi_lowering(target, extra_attributes=_divisible(context))
    return rule(context, *values, call=call.key)


def _lowered_for_cuda(verb: str, anywhere: Any, context: Any, *operands: Any, call: Call) -> Any:
    found = device.lowered(verb, call, context, operands)
    return anywhere(context, *operands, call=call) if found is None else found


def _scalar(operand: Any, aval: Any) -> tuple[Any, Any]:
    """A number of each row, or the scalar that it was broadcast from, which saves 0.5 us."""
    operation = operand.owner
    if getattr(operation, "name", "") == "stablehlo.broadcast_in_dim":
        number = operation.operands[0]
        if number.type.rank == 0:
            return number, jax.core.ShapedArray((), aval.dtype)
    return operand, aval


def _divisible(context: Any) -> dict[str, Any]:
    """Attributes that let the compiler divide the rows among devices."""
    batch = context.avals_in[0].shape[:-1]
    divisible = {
        # For targets that are registered as batch partitionable.
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(len(batch))}),
    }
    if not foreign.are_known(batch):  # the notation cannot express a symbolic size
        return divisible
    sizes = [*batch]  # of the axes that differ: those of the batch, and each array's own
    sides = []
    for side in (context.avals_in, context.avals_out):
        arrays = []
        for each in side:
            axes = [*range(len(batch))] if each.ndim else []
            if each.ndim > len(batch):
                axes.append(len(sizes))
                sizes.append(each.shape[-1])
            arrays.append(f"[{', '.join(map(_symbol, axes))}]")
        sides.append(f"({', '.join(arrays)})")
    named = ", ".join(f"{_symbol(axis)}={size}" for axis, size in enumerate(sizes))
    rule = f"#sdy.op_sharding_rule<{' -> '.join(sides)} {{{named}}}, custom>"
    return {**divisible, "sdy.sharding_rule": mlir.ir.Attribute.parse(rule)}


def _symbol(axis: int) -> str:
    """The compiler's symbol for an axis: i to z, then z_1 and so on."""
    letter = "ijklmnopqrstuvwxyz"[min(axis, 17)]
    return letter if axis < 18 else f"{letter}_{axis - 17}"


def _primitive(verb: str, shapes: Callable[..., Avals]) -> Primitive:
    primitive = Primitive(f"softtopk_nb_{verb}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *given, call: shapes(call, *given))
    primitive.def_impl(functools.partial(_evaluated, primitive))
    batching.primitive_batchers[primitive] = functools.partial(batched, primitive)
    anywhere = mlir.lower_fun(functools.partial(_anywhere, primitive, verb, shapes))
    rules = {
        "cpu": functools.partial(_lowered_for_cpu, verb, anywhere),
        "cuda": functools.partial(_lowered_for_cuda, verb, anywhere),
    }
    for_several = Primitive(f"softtopk_nb_{verb}_for_several")
    for_several.multiple_results = True
    for_several.def_abstract_eval(lambda *given, call: shapes(call, *given))
    mlir.register_lowering(for_several, anywhere)
    for platform, rule in rules.items():
        mlir.register_lowering(for_several, rule, platform=platform)
    # Not kept for a later call, so that a rule sees which operands are constants.
    lowered = functools.partial(_lowered, rules, anywhere, for_several)
    mlir.register_lowering(primitive, lowered, cacheable=False)
    return primitive


def _lowered(
    rules: Any, anywhere: Any, for_several: Primitive, context: Any, *operands: Any, call: Call
) -> Any:
    """Lower by the platform's rule; JAX chooses where it compiles for several at once."""
    platforms = context.platforms or context.module_context.platforms
    if len(platforms) == 1:
        return rules.get(platforms[0], anywhere)(context, *operands, call=call)
    return mlir.lower_fun(for_several.bind)(context, *operands, call=call)


# The problem is (x, k, temperature), a direction likewise, also where an operator has no k and does
# not look at it; `host` defines each verb.
mark = _primitive("mark", _like_x)
solve = _primitive("solve", _with_state)
jvp = _primitive("jvp", _like_value)
vjp = _primitive("vjp", _like_problem)
jvp_of_jvp = _primitive("jvp_of_jvp", _like_x)
vjp_of_jvp = _primitive("vjp_of_jvp", _like_problem)
potential = _primitive("potential", _number)
threshold = _primitive("threshold", _number)
surplus = _primitive("surplus", _number)
loss = _primitive("loss", _number)
