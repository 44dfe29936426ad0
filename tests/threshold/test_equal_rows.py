"""Class of fault: float32 sums whose rounding errors all have one sign.

Where entries are equal, or repeat, every addition to a partial sum is rounded the same way, and how
many there are depends on how wide the processor's vectors are. The contract holds for such rows
whatever their length, offset, temperature and k: |sum p - k| <= 1e-6 max(1, k) and
|p - p*| <= 1e-6 + 4 eps R in float32, 1e-12 and 1e-13 in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
from operators import OF_EVERY_KIND

import softtopk_nb as stk
from softtopk_nb._curves.registry import NAMES

ALPHAS = 1 + 1e-9, 1.01, 1.3, 1.5, 1.9
KINDS = "equal", "nearly", "two values", "cycle"


def a_row(rng, kind, n, tau):
    """A float32 row of equal or nearly equal entries, or of a few values that repeat."""
    offset = rng.choice([0.0, 1.0, -30.0, 1e3]) * rng.uniform(0.5, 1.0)
    if kind == "equal":
        x = np.zeros(n)
    elif kind == "nearly":
        x = tau * 10 ** rng.uniform(-7, -1) * rng.normal(size=n)
    elif kind == "two values":
        x = tau * rng.choice([0.0, rng.uniform(0, 3)], size=n)
    else:
        x = tau * np.resize(rng.normal(size=4), n)
    return (offset + x).astype(np.float32)


def lengths(rng, count):
    """Lengths from 2 to 20 000, each decade alike, and two of a million: one solved in parts."""
    return [*np.exp(rng.uniform(np.log(2), np.log(2e4), count)).astype(int), 990_001, 1_010_003]


def keeps_the_contract(p, exact, k, x, tau, type_of_row):
    """Whether p is near enough to the exact one, and sums to k."""
    spread = (float(x.max()) - float(x.min())) / tau
    mass, entry = (1e-6, 1e-6) if type_of_row == np.float32 else (1e-12, 1e-13)
    assert abs(p.sum(dtype=np.float64) - k) <= mass * max(1.0, k)
    if exact is not None:
        assert abs(p - exact).max() <= entry + 4 * np.finfo(type_of_row).eps * spread


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("curve", "bisects"),
    [
        pytest.param(name, bisects, marks=[] if name in some else [pytest.mark.slow])
        for bisects, some in ((False, OF_EVERY_KIND), (True, ["laplace"]))
        for name in NAMES
    ],
)
def test_thretopk(curve, bisects, kind, rng):
    scans = curve in ("exp", "laplace", "clip")
    methods = ["bisect"] if bisects else ["newton", *["scan"] * scans]
    for turn, n in enumerate(lengths(rng, 36)):
        options = {"curve": curve, **({"alpha": ALPHAS[turn % 5]} if curve == "entmax" else {})}
        tau = 10 ** rng.uniform(-2, 2)
        x = a_row(rng, kind, n, tau)
        share = rng.uniform() if turn % 2 else 10 ** rng.uniform(-4, 0)
        k, method = float(n * share), methods[turn % len(methods) if n < 10**5 else 0]
        wide = stk.thretopk(x.astype(np.float64), k, temperature=tau, **options)
        p = stk.thretopk(x, k, temperature=tau, method=method, **options)
        keeps_the_contract(wide, None, k, x, tau, np.float64)
        keeps_the_contract(p, wide, k, x, tau, np.float32)
        if kind == "equal":
            keeps_the_contract(wide, np.full(n, k / n), k, x, tau, np.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gradtopk", "softmax", "itertopk", "wsoftmaxtopk"])
def test_other_operators(name, kind, rng):
    for n in lengths(rng, 18):
        tau = 10 ** rng.uniform(-1, 2)
        x = a_row(rng, kind, n, tau)
        k = 1 if name == "softmax" else int(rng.integers(1, n))
        if name in ("itertopk", "wsoftmaxtopk"):
            k = min(k, 6)
            if n > 10**5:
                continue
        rest = () if name == "softmax" else (k,)
        op = getattr(stk, name)
        wide = op(x.astype(np.float64), *rest, temperature=tau)
        keeps_the_contract(wide, None, k, x, tau, np.float64)
        keeps_the_contract(op(x, *rest, temperature=tau), wide, k, x, tau, np.float32)
        if kind == "equal":
            keeps_the_contract(wide, np.full(n, k / n), k, x, tau, np.float64)
