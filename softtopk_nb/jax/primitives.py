"""The primitives: shapes, batches, and who computes them.

Each takes arrays of rows, with any number of axes before, and one word, the *call*, that says of
which operator and with which options. On the CPU XLA calls us (`foreign`); elsewhere, and where
XLA's interface is not known, JAX does, by way of Python.
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

from . import foreign, host
from .arguments import computed_in
from .calls import Call

Avals = list[Any]


def _of_rows(x: Any, *shape: int, dtype: Any = None) -> Any:
    """An abstract array of x's batch shape and what follows, on the devices that x is on."""
    dtype = x.dtype if dtype is None else dtype
    spec = (*x.sharding.spec[: x.ndim - 1], *(None for _ in shape))
    apart = NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
    return x.update(shape=(*x.shape[:-1], *shape), dtype=dtype, sharding=apart, weak_type=False)


def _like_x(call: Call, x: Any, *_: Any) -> Avals:
    return [_of_rows(x, x.shape[-1])]


def _with_state(call: Call, x: Any, *_: Any) -> Avals:
    width = host.state_width(call.op, call.options, x.shape[-1])
    return [_of_rows(x, x.shape[-1]), _of_rows(x, width, dtype=np.uint32)]


def _like_problem(call: Call, x: Any, *_: Any) -> Avals:
    dtype = computed_in(x.dtype)
    return [_of_rows(x, x.shape[-1]), _of_rows(x, dtype=dtype), _of_rows(x, dtype=dtype)]


def _number(call: Call, x: Any, *_: Any) -> Avals:
    return [_of_rows(x)]


@functools.cache
def _compiled(primitive: Primitive, call: Call) -> Any:
    def one(*arrays: Any) -> Any:
        return primitive.bind(*arrays, call=call)

    one.__name__ = one.__qualname__ = primitive.name
    # As JAX marks its own primitives, so that its search for a NaN ends here.
    one._apply_primitive = True  # type: ignore[attr-defined]
    return jax.jit(one)


def _evaluated(primitive: Primitive, *arrays: Any, call: Call) -> Any:
    """A primitive is compiled by itself where it is called alone, also where `jit` is disabled."""
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        with jax.disable_jit(False):
            return _compiled(primitive, call)(*arrays)
    return _compiled(primitive, call)(*arrays)


def _batched(primitive: Primitive, arrays: Any, axes: Any, *, call: Call) -> Any:
    """One more leading axis is one more axis of the batch."""
    size = next(a.shape[i] for a, i in zip(arrays, axes, strict=True) if i is not None)
    moved = [
        jnp.broadcast_to(a, (size, *a.shape)) if i is None else jnp.moveaxis(a, i, 0)
        for a, i in zip(arrays, axes, strict=True)
    ]
    results = primitive.bind(*moved, call=call)
    return results, [0] * len(results)


def _anywhere(
    primitive: Primitive, verb: str, shapes: Callable[..., Avals], *arrays: Any, call: Call
) -> Any:
    """By way of Python: what it takes is a hundred times as long on a short row.

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
    given = [_given(*each) for each in zip(operands, context.avals_in, strict=True)]
    values, avals = zip(*given, strict=True)
    context = context.replace(avals_in=avals)
    rule = jax.ffi.ffi_lowering(target, extra_attributes=_divisible(context))
    return rule(context, *values, call=call.word)


def _given(operand: Any, aval: Any) -> tuple[Any, Any]:
    """An operand as it is, or the one number that is all of it: to spread it out takes 0.5 us."""
    operation = operand.owner
    if getattr(operation, "name", "") == "stablehlo.broadcast_in_dim":
        number = operation.operands[0]
        if number.type.rank == 0:
            return number, jax.core.ShapedArray((), aval.dtype)
    return operand, aval


def _divisible(context: Any) -> dict[str, Any]:
    """Tell the compiler that rows may be computed on as many devices as it likes."""
    batch = context.avals_in[0].shape[:-1]
    divisible = {
        # For targets that are registered as batch partitionable.
        "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(len(batch))}),
    }
    if not foreign.are_known(batch):  # the notation has no place for a size's name
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
    """What the compiler's notation calls an axis: i to z, then z_1 and on."""
    letter = "ijklmnopqrstuvwxyz"[min(axis, 17)]
    return letter if axis < 18 else f"{letter}_{axis - 17}"


def _primitive(verb: str, shapes: Callable[..., Avals]) -> Primitive:
    primitive = Primitive(f"softtopk_nb_{verb}")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *given, call: shapes(call, *given))
    primitive.def_impl(functools.partial(_evaluated, primitive))
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    anywhere = mlir.lower_fun(functools.partial(_anywhere, primitive, verb, shapes))
    mlir.register_lowering(primitive, anywhere)
    on_cpu = functools.partial(_lowered_for_cpu, verb, anywhere)
    mlir.register_lowering(primitive, on_cpu, platform="cpu")
    return primitive


# The problem is (x, k, temperature), a direction likewise; `host` says what each does.
mark = _primitive("mark", _like_x)
solve = _primitive("solve", _with_state)
push = _primitive("push", _like_x)
pull = _primitive("pull", _like_problem)
push_twice = _primitive("push_twice", _like_x)
pull_push = _primitive("pull_push", _like_problem)
potential = _primitive("potential", _number)
threshold = _primitive("threshold", _number)
loss = _primitive("loss", _number)
