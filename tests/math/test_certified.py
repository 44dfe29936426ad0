"""What `tests/certify.py` has found, in part: no tail or slope is worse than its certificate."""

from __future__ import annotations

import json

import certify
import certify_float64
import numpy as np
import pytest
import reference
from fused import FUSED
from reference import mp

FOUND = json.loads(certify.RESULT.read_text(encoding="utf-8"))
HERE = FOUND["fused" if FUSED else "rounded"]
AROUND = 1 << 12  # float32 numbers on either side of a worst place


@pytest.mark.parametrize("name", certify.KNOWN)
def test_errors_are_certified(name, rng):
    """thm-budget: around the worst places, which have the errors that the file says; elsewhere."""
    kernel, certified = certify.kernel_of(name), HERE["float32"][name]
    low, high = certify.bits_of(certify.LEAST), certify.bits_of(certify.KNOWN[name][1])
    anywhere = rng.integers(low, high, 200_000).astype(np.int32).view(np.float32)
    for kind, (most, place) in certified.items():
        at = certify.bits_of(place)
        bits = np.arange(max(low, at - AROUND), min(high, at + AROUND) + 1, dtype=np.int32)
        near = dict(
            zip(certified, certify.errors(name, bits.view(np.float32), kernel), strict=True)
        )
        # The reference is float64, whose own last digits are the library's.
        assert near[kind].max() == pytest.approx(most, abs=1e-4)
        found = dict(zip(certified, certify.errors(name, anywhere, kernel), strict=True))
        assert found[kind].max() <= most + 1e-4


def test_the_exponential_in_float64():
    """thm-budget: 1.1 and 1.4 units, by intervals; eta of what is made of it."""
    for rounding, most in (("fused", 1.1), ("rounded", 1.4)):
        certified = FOUND[rounding]["float64 exponential"]
        assert 0.95 * most < certified < most
    again = certify_float64.exponential(True, pieces=64)  # on wider intervals
    assert FOUND["fused"]["float64 exponential"] < again < 1.25
    # e/(1 + e): the sum and the quotient add a rounding each.
    assert FOUND["rounded"]["float64 exponential"] + 1.0 < 2.4


def test_the_circle_in_float64():
    """thm-grad-budget: cosine and sine to 1.4 units, by intervals; relative ones of small sines."""
    for rounding in ("fused", "rounded"):
        certified = FOUND[rounding]["float64 circle"]
        assert 1.2 < max(certified["cosine"], certified["sine"]) < 1.4
        assert 1.0 <= certified["relative sine"] < 1.001
    again = certify_float64.circle(True, pieces=64)  # on wider intervals
    for kind, most in FOUND["fused"]["float64 circle"].items():
        assert most < again[kind] < 1.3


@pytest.mark.parametrize(("name", "most"), [("normal", 12.0), ("cauchy", 3.6)])
def test_curves_in_float64(name, most, rng):
    """thm-budget: certificates of tails and slopes, and errors here beside 50 digits below them."""
    for rounding in ("fused", "rounded"):
        certified = FOUND[rounding][f"float64 {name}"]
        assert 0.8 * most < certified["tail"] < most
        assert 1.0 < certified["slope"] < 2.7
    assert FOUND["fused"]["float64 normal"]["tail"] < 10.0
    again = getattr(certify_float64, name)(True, pieces=96)  # on wider intervals
    assert FOUND["fused"][f"float64 {name}"]["tail"] < again["tail"] < 1.2 * most
    last = 37.5 if name == "normal" else 1e6
    s = np.concatenate([rng.uniform(0, min(last, 40.0), 400), np.geomspace(1e-9, last, 400)[:-1]])
    tail, slope = np.empty_like(s), np.empty_like(s)
    certify.kernel_of(name)(s, tail, slope)
    known, nearest = reference.curve_of(name), 0.0
    for t, *found in zip(s, tail, slope, strict=True):
        for kind, value in zip(("tail", "slope"), found, strict=True):
            exact = (known.cdf if kind == "tail" else known.pdf)(mp.mpf(-float(t)))
            off = float(abs(mp.mpf(float(value)) / exact - 1)) / 2.0**-52
            certified = HERE[f"float64 {name}"][kind]
            certified += t * t / 4 if name == "normal" and not FUSED else 0.0
            nearest = max(nearest, off / certified)
    assert 0.25 < nearest <= 1.0


def test_sums_of_equal_numbers():
    """What the page on ThreTopK says: 8.5 roundings for 32, of every float32."""
    assert 8.4 < FOUND["roundings of the sum of 32 equal numbers"] < 8.5
    assert certify.sum_of_equal(8) == pytest.approx(2.5, abs=1e-3)
