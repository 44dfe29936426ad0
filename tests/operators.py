"""The operators of the registry, and options worth trying apart, for parametrized tests.

A new operator is tested by being registered; VARIANTS only adds option sets. Tests marked
`with_or_without_k` also see the operators without a k, as ones that do not look at it. Compiling
for one more curve takes seconds: of curves that are searched alike all but one are marked `slow`.
"""

from __future__ import annotations

import numpy as np
import pytest

from softtopk_nb._api import without_k
from softtopk_nb._api.operator import Differentiable, registry
from softtopk_nb._curves.registry import NAMES

#: How `thretopk` is asked for each curve of the registry.
CURVES = {name: {"curve": name} for name in NAMES}
CURVES["entmax"]["alpha"] = 1.5
METHODS = {"exp": {"method": "scan"}}
#: An exponential with a kink, a density of bounded support, a smooth one, and one with a parameter.
OF_EVERY_KIND = ("laplace", "clip", "normal", "entmax")
VARIANTS = {
    "thretopk": [
        *({**options, **METHODS.get(name, {})} for name, options in CURVES.items()),
        {"curve": "laplace", "method": "bisect"},
    ],
    "gradtopk": [{"method": "auto"}, {"method": "contour"}, {"method": "dp"}],
}


def _cases(smooth_only: bool = False):
    for name, op in sorted(registry.items()):
        if smooth_only and not isinstance(op, Differentiable):
            continue
        for options in VARIANTS.get(name, [{}]):
            label = "-".join([name, *map(str, options.values())])
            alike = options.get("curve", "laplace") not in OF_EVERY_KIND
            yield pytest.param(op, options, id=label, marks=[pytest.mark.slow] if alike else [])


def _once(smooth_only: bool = False):
    """Of each operator the first options; and a number, and what JAX does by way of Python."""
    seen = set()
    for case in _cases(smooth_only):
        op, options = case.values
        more = "alpha" in options or options.get("method") == "bisect"
        if not case.marks and (more or op not in seen):
            seen.add(op)
            yield case


class _Blind:
    """An operator without a k, called with one."""

    real_k = False

    def __init__(self, op):
        self._op = op

    def __call__(self, x, k, **options):
        return self._op(x, **options)

    def jvp(self, x, k, dx, **options):
        return self._op.jvp(x, dx, **options)

    def vjp(self, x, k, **options):
        return self._op.vjp(x, **options)


def _blind():
    """Those whose result has an entry for each of x."""
    for name, op in without_k.registry.items():
        if not op.reduces:
            yield pytest.param(_Blind(op), {}, id=name)


every = pytest.mark.parametrize(("op", "options"), list(_cases()))
smooth = pytest.mark.parametrize(("op", "options"), list(_cases(smooth_only=True)))
#: For code that hands options on, and does nothing else with them.
every_once = pytest.mark.parametrize(("op", "options"), list(_once()))
smooth_once = pytest.mark.parametrize(("op", "options"), list(_once(smooth_only=True)))
of_real_k = pytest.mark.parametrize(
    ("op", "options"), [case for case in _cases(smooth_only=True) if case.values[0].real_k]
)
with_or_without_k = pytest.mark.parametrize(("op", "options"), [*_cases(), *_blind()])
smooth_with_or_without_k = pytest.mark.parametrize(
    ("op", "options"), [*_cases(smooth_only=True), *_blind()]
)
each_op = pytest.mark.parametrize("op", [pytest.param(o, id=n) for n, o in registry.items()])
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def slow_unless(some, values):
    """The values as parameters, slow but for some of them."""
    return [pytest.param(v, marks=[] if v in some else [pytest.mark.slow]) for v in values]


def same(a, b):
    """Equal to the bit, NaNs included."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a, b)
