"""Worst errors of the curves' tails and slopes: `python tests/certify.py` writes what it finds.

float32: over every argument from 2^-30 on, and at the ends of each binade below, where f has one
value; beside float64. The process runs itself for processors that fuse a product with a sum and for
those that round it first. float64: by interval arithmetic, from the coefficients of the kernels
(`certify_float64`). What follows is added up in docs/math, Theorems thm-budget and thm-grad-budget.

The result is tests/data/certified/errors.json; tests/math/test_certified.py repeats a part of it.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import certify_float64
import numpy as np
from numba import njit
from scipy import special

from softtopk_nb._curves.base import split
from softtopk_nb._curves.registry import CURVES

RESULT = pathlib.Path(__file__).parent / "data" / "certified" / "errors.json"
EPS = 2.0**-23
CHUNK = 1 << 22
LEAST = 2.0**-30  # below it every tail has the value that it has at 0


def laplace(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tail = 0.5 * np.exp(-s)
    return tail, tail


def exponential(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    tail = np.exp(-s)
    return tail, tail


def sigmoid(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    e = np.exp(-s)
    return e / (1 + e), e / (1 + e) ** 2


def normal(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return special.ndtr(-s), np.exp(-0.5 * s * s) / math.sqrt(2 * math.pi)


def cauchy(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arctan2(1.0, s) / math.pi, 1 / (math.pi * (1 + s * s))


# The curve, f(-s) and f'(-s) in float64, and the largest s: beyond, f is 0 or has no new digits.
KNOWN: dict[str, tuple[Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], float]] = {
    "exp": (exponential, 87.2),
    "laplace": (laplace, 86.6),
    "sigmoid": (sigmoid, 87.2),
    "normal": (normal, 12.93),
    "cauchy": (cauchy, 2.0**16),
}


def kernel_of(name: str) -> Callable[..., None]:
    """The compiled `split` of a curve at -s, as passes over a row call it."""
    curve = CURVES[name]

    @njit
    def tails(s: Any, tail: Any, slope: Any) -> None:
        for i in range(s.shape[0]):
            _, _, tail[i], slope[i] = split(curve, -s[i])

    return tails


def bits_of(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def errors(name: str, s: np.ndarray, kernel: Callable[..., None]) -> Iterator[np.ndarray]:
    """The relative errors of tail and slope at these float32 s, in units of eps."""
    tail, slope = np.empty_like(s), np.empty_like(s)
    kernel(s, tail, slope)
    for found, exact in zip((tail, slope), KNOWN[name][0](s.astype(np.float64)), strict=True):
        yield np.abs(found / exact - 1) / EPS


def worst(name: str, low: float, high: float) -> dict[str, list[float]]:
    """The largest errors over every float32 of [low, high], with their places."""
    kernel, found = kernel_of(name), {"tail": [0.0, 0.0], "slope": [0.0, 0.0]}
    for start in range(bits_of(low), bits_of(high) + 1, CHUNK):
        stop = min(start + CHUNK, bits_of(high) + 1)
        s = np.arange(start, stop, dtype=np.int32).view(np.float32)
        for kind, error in zip(found, errors(name, s, kernel), strict=True):
            at = int(error.argmax())
            if error[at] > found[kind][0]:
                found[kind] = [float(error[at]), float(s[at])]
    return found


def small_arguments_are_as_0(name: str) -> bool:
    """Whether tail and slope are the same at both ends of every binade below LEAST."""
    ends = 2.0 ** np.arange(-126, -30)
    s = np.concatenate([ends, np.nextafter(2 * ends.astype(np.float32), np.float32(0))])
    s = s.astype(np.float32)
    tail, slope = np.empty_like(s), np.empty_like(s)
    kernel_of(name)(s, tail, slope)
    return bool((tail == tail[0]).all() and (slope == slope[0]).all())


def float32_part() -> dict[str, Any]:
    """What this process finds, compiled for the processor that it was told of."""
    found = {}
    for name, (_, high) in KNOWN.items():
        assert small_arguments_are_as_0(name), name
        found[name] = worst(name, LEAST, high)
    return found


def sum_of_equal(count: int) -> float:
    """The relative error of a float32 sum of equal numbers, of every number, in units of eps/2."""
    each = np.arange(bits_of(1.0), bits_of(2.0), dtype=np.int32).view(np.float32)
    total = np.zeros_like(each)
    for _ in range(count):
        total += each
    return float(np.abs(total / (count * each.astype(np.float64)) - 1).max() / (EPS / 2))


def assembled(parts: dict[str, Any]) -> dict[str, Any]:
    """The file, from what the processes have found in float32."""
    result: dict[str, Any] = {
        "units": "relative errors in units of eps: 2^-23, in float64 2^-52",
        "rounding": {
            "fused": "products are not rounded before they are added (AVX2, AVX-512, ARM)",
            "rounded": "they are (SSE2)",
        },
        "arguments": {
            name: f"every float32 from 2^-30 to {high}" for name, (_, high) in KNOWN.items()
        },
        "roundings of the sum of 32 equal numbers": sum_of_equal(32),
    }
    for rounding, part in parts.items():
        fused = rounding == "fused"
        result[rounding] = {
            "float32": part,
            "float64 exponential": certify_float64.exponential(fused),
            "float64 circle": certify_float64.circle(fused),
            "float64 normal": certify_float64.normal(fused),
            "float64 cauchy": certify_float64.cauchy(fused),
        }
    return result


def main() -> None:
    """Write RESULT; with `--part`, print what this process finds in float32."""
    if "--part" in sys.argv:
        print(json.dumps(float32_part()))
        return
    parts = {}
    for rounding, cpu in (("fused", ""), ("rounded", "generic")):
        environment = dict(os.environ)
        if cpu:
            cache = environment.get("NUMBA_CACHE_DIR", ".numba_cache") + "_generic"
            environment |= {
                "NUMBA_CPU_NAME": cpu,
                "NUMBA_CPU_FEATURES": "",
                "NUMBA_CACHE_DIR": cache,
            }
        command = [sys.executable, __file__, "--part"]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        parts[rounding] = json.loads(done.stdout)
    RESULT.write_text(json.dumps(assembled(parts), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
