"""One name for every array: what the functions of `softtopk_nb` do with those of other libraries.

A function that is added to `softtopk_nb.__all__` needs an entry of CALLS here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import softtopk_nb as stk

OPERATORS = "thretopk", "gradtopk", "hardtopk", "itertopk", "wsoftmaxtopk"
# Calls of each public function of scores, which are a square matrix between 0 and 1.
CALLS = {
    **{name: lambda f, x: f(x, 2) for name in (*OPERATORS, "topk", "balancedtopk", "KSubset")},
    **dict.fromkeys(("softmax", "log_softmax", "logsumexp", "energy_score"), lambda f, x: f(x)),
    **dict.fromkeys(("sinkhorn", "gumbel_max", "sample_categorical"), lambda f, x: f(x)),
    "gumbel_softmax": lambda f, x: f(x),
    "gumbel_topk": lambda f, x: f(x, 2),
    "gradual": lambda f, x: f(x, 2.0),
    "fenchel_young": lambda f, x: f("thretopk", x, x > 1.0, 0),
}
NO_FUNCTIONS = {
    *("Balanced", "BalancedGradients", "ConvergenceError", "Curve", "Gradients"),
    *("GradientsWithCost", "PowerGradients", "TopK", "__version__", "show_versions"),
}
# What a message names that refuses an array: another function, or how to hand the values on.
WAYS_OUT = {
    "torch": ("softtopk_nb.torch", ".detach()"),
    "jax": ("softtopk_nb.jax",),
    "dask": ("softtopk_nb.dask", ".compute()", "numpy.asarray(x)"),
}


def scores():
    return np.random.default_rng(0).random((4, 4))


def _torch_answers(call):
    import torch

    x = torch.tensor(scores(), requires_grad=True)
    found = call(x)
    first = found[0] if isinstance(found, tuple) else found
    if not isinstance(first, torch.Tensor):
        assert type(first).__module__.startswith("softtopk_nb.torch")
    else:  # indices and masks have no derivatives
        assert first.requires_grad or (first == first.to(torch.int64)).all()


def _jax_answers(call):
    import jax

    with jax.enable_x64(True):
        jax.jit(lambda x: jax.tree.leaves(call(x)) and None)(jax.numpy.asarray(scores()))


def _dask_answers(call):
    import dask.array

    found = call(dask.array.from_array(scores(), chunks=(2, 4)))
    assert isinstance(found, dask.array.Array)


def refusal(call):
    """What the call says that refuses an array; None if it answers."""
    try:
        call()
    except TypeError as error:
        return str(error)
    return None


ANSWERS = {"torch": _torch_answers, "jax": _jax_answers, "dask": _dask_answers}
# Where a library is missing, there is nothing to test.
INSTALLED = [
    pytest.param(each, marks=getattr(pytest.mark, each))
    for each in WAYS_OUT
    if importlib.util.find_spec(each)
]
libraries = pytest.mark.parametrize("library", INSTALLED)


def test_every_public_function_is_called():
    assert {*CALLS} | NO_FUNCTIONS == {*stk.__all__}


@libraries
@pytest.mark.parametrize("name", CALLS)
def test_a_function_answers_or_names_what_to_call(library, name):
    said = refusal(lambda: ANSWERS[library](lambda x: CALLS[name](getattr(stk, name), x)))
    if said is not None:
        assert any(way in said for way in WAYS_OUT[library])
        there = getattr(importlib.import_module(f"softtopk_nb.{library}"), name, None)
        # A class is imported from its front, and JAX draws from keys alone.
        assert there is None or name == "KSubset" or name.startswith("gumbel")


@libraries
@pytest.mark.parametrize("verb", ["vjp", "jvp", "hvp"])
def test_a_verb_names_what_to_call(library, verb):
    more = {"vjp": (), "jvp": (scores(),), "hvp": (scores(), scores())}[verb]
    said = refusal(lambda: ANSWERS[library](lambda x: getattr(stk.thretopk, verb)(x, 2, *more)))
    assert any(way in said for way in WAYS_OUT[library])


@pytest.mark.torch
def test_draws_from_a_generator_have_gradients():
    torch, stt = map(pytest.importorskip, ("torch", "softtopk_nb.torch"))
    x = torch.tensor(scores(), requires_grad=True)
    for f, more in (("gumbel_softmax", ()), ("gumbel_topk", (2, 3))):
        options = {"relax": "thretopk"} if more else {}
        found, expected = (
            getattr(module, f)(
                x, *more, **{name: torch.Generator().manual_seed(0)}, temperature=0.5, **options
            )
            for module, name in ((stk, "rng"), (stt, "generator"))
        )
        assert torch.equal(found, expected)
        assert found.requires_grad
    # A seed is one of NumPy's: draws without a gradient, of the kind of x.
    assert torch.equal(
        stk.gumbel_softmax(x.detach(), rng=1), torch.from_numpy(stk.gumbel_softmax(scores(), rng=1))
    )


@pytest.mark.jax
def test_draws_from_a_key_have_gradients():
    jax, stj = map(pytest.importorskip, ("jax", "softtopk_nb.jax"))
    key, x = jax.random.key(0), jax.numpy.asarray(scores(), "float32")
    one = jax.jit(jax.grad(lambda x: stk.gumbel_softmax(x, rng=key)[0, 0]))(x)
    other = jax.grad(lambda x: stj.gumbel_softmax(key, x)[0, 0])(x)
    np.testing.assert_array_equal(one, other)
    assert abs(np.asarray(one)).max() > 0.0


@pytest.mark.torch
def test_two_names_for_the_axis_are_refused():
    torch = pytest.importorskip("torch")
    x = torch.tensor(scores())
    calls = [
        lambda **both: stk.thretopk(x, 2, **both),
        lambda **both: stk.topk(x, 2, **both),
        lambda **both: stk.thretopk.potential(x, 2, **both),
        lambda **both: stk.fenchel_young("thretopk", x, x > 0.5, 2, **both),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="dim is 0 and axis is 1; expected one of them"):
            call(dim=0, axis=1)


def rules():
    """The rows of the guide's table: (arguments after x, error, message)."""
    page = pathlib.Path(__file__).parents[2] / "docs" / "guide" / "errors.md"
    return re.findall(r"^`(.*)` \| `(\w+): (.*)`$", page.read_text(encoding="utf-8"), re.M)


def array_of(library, values):
    if library == "torch":
        return importlib.import_module("torch").tensor(values)
    if library == "jax":
        return importlib.import_module("jax.numpy").asarray(values)
    if library == "dask":
        return importlib.import_module("dask.array").from_array(values, chunks=(1, 4))
    return values


def test_the_guide_has_rules():
    assert len(rules()) > 15


@pytest.mark.parametrize("library", [None, *INSTALLED])
@pytest.mark.parametrize(("given", "error", "message"), rules(), ids=[each[0] for each in rules()])
def test_a_wrong_call_is_refused_as_the_guide_says(library, given, error, message):
    x = array_of(library, scores()[:2].astype(np.float32))
    with pytest.raises((TypeError, ValueError)) as caught:
        eval(f"thretopk(x, {given})", {"thretopk": stk.thretopk, "x": x})
    assert type(caught.value).__name__ == error
    assert str(caught.value) == message


# Each call in a child of its own, in which `softtopk_nb.torch` has not been imported before.
FIRST_CALLS = """
import os, sys
import torch, torch._dynamo, torch.export
from torch.fx.experimental.proxy_tensor import make_fx
import softtopk_nb as stk

x, y = torch.rand(4, 4), torch.eye(4)
calls = {
    "thretopk": lambda x: stk.thretopk(x, 2),
    "with a cost": lambda x: stk.thretopk(x, 2, cost=torch.ones(4)),
    "a number of each row": lambda x: stk.thretopk.potential(x, 2),
    "softmax": lambda x: stk.softmax(x),
    "topk": lambda x: stk.topk(x, 2).values,
    "sinkhorn": lambda x: stk.sinkhorn(x),
    "fenchel_young": lambda x: stk.fenchel_young("thretopk", x, y, 1),
}

class Module(torch.nn.Module):
    def forward(self, x):
        return stk.gradtopk(x, 2)

traced = {
    **{name: (call, lambda call: torch.compile(call, fullgraph=True, backend="eager"))
       for name, call in calls.items()},
    "export": (Module(), lambda module: torch.export.export(module, (x,)).module()),
    "make_fx": (Module(), lambda module: make_fx(module)(x)),
}
assert "softtopk_nb.torch" not in sys.modules
for name, (call, trace) in traced.items():
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            assert torch.equal(trace(call)(x), call(x))
            print(name)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
assert "softtopk_nb.torch" not in sys.modules
print(len(traced))
"""


@pytest.mark.torch
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each call is made in a fork")
def test_any_function_may_be_the_first_call_and_traced():
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", "-c", FIRST_CALLS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    *named, count = done.stdout.split("\n")[:-1]
    assert len(named) == int(count) > 5, done.stderr
