"""What `tests/certify.py` has found, in part: no tail or slope is worse than its certificate."""

from __future__ import annotations

import json

import certify
import numpy as np
import pytest
from fused import FUSED

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
    again = certify.exponential_in_float64(True, pieces=64)  # on wider intervals
    assert FOUND["fused"]["float64 exponential"] < again < 1.25
    # e/(1 + e): the sum and the quotient add a rounding each.
    assert FOUND["rounded"]["float64 exponential"] + 1.0 < 2.4


def test_the_circle_in_float64():
    """thm-grad-budget: cosine and sine to 1.4 units, by intervals; relative ones of small sines."""
    for rounding in ("fused", "rounded"):
        certified = FOUND[rounding]["float64 circle"]
        assert 1.2 < max(certified["cosine"], certified["sine"]) < 1.4
        assert 1.0 <= certified["relative sine"] < 1.001
    again = certify.circle_in_float64(True, pieces=64)  # on wider intervals
    for kind, most in FOUND["fused"]["float64 circle"].items():
        assert most < again[kind] < 1.3


def test_sums_of_equal_numbers():
    """What the page on ThreTopK says: 8.5 roundings for 32, of every float32."""
    assert 8.4 < FOUND["roundings of the sum of 32 equal numbers"] < 8.5
    assert certify.sum_of_equal(8) == pytest.approx(2.5, abs=1e-3)
