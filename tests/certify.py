"""Worst errors of the curves' tails and slopes: `python tests/certify.py` writes what it finds.

float32: over every argument from 2^-30 on, and at the ends of each binade below, where f has one
value; beside float64. The process runs itself for processors that fuse a product with a sum and for
those that round it first. float64: the exponential, the sine and the cosine by interval arithmetic,
from the coefficients of their kernels; what follows from them is added up in docs/math, Theorems
thm-budget and thm-grad-budget.

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

import numpy as np
from mpmath import iv
from numba import njit, types
from scipy import special

from softtopk_nb._curves.base import split
from softtopk_nb._curves.registry import CURVES
from softtopk_nb._math import elementary

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


def exponential_in_float64(fused: bool, pieces: int = 256) -> float:
    """A bound on the relative error of float64's `exp_neg`, in units of eps, by intervals.

    r is t - n log 2 but for its rounding and what the two parts of log 2 lack; the polynomial is
    compared with Taylor's on pieces of [-log(2)/2, log(2)/2]; each operation of Horner's scheme
    adds its rounding, two where a product is rounded before it is added.
    """
    iv.prec = 120
    u = iv.mpf(2) ** -53
    cells = constants_of(elementary._exponential(types.float64, 1.0))
    (hi, lo), c = exactly((-cells["minus_hi"], -cells["minus_lo"])), exactly(cells["c"])
    most = iv.mpf(1022)
    # n times the first part is exact, and so is the difference; then a rounding, and the rest.
    reach = iv.log(2) / 2 + iv.mpf(2) ** -40
    off_r = u * reach + (0 if fused else u * most * abs(lo)) + most * abs(hi + lo - iv.log(2))
    worst_of_all = iv.mpf(0)
    # The polynomial less Taylor's, by its value in the middle of a piece and its slope.
    both, terms = [iv.mpf(1), iv.mpf(1), *c], 24
    lacks = [
        (both[i] if i < len(both) else iv.mpf(0)) - 1 / iv.mpf(math.factorial(i))
        for i in range(terms + 1)
    ]
    for j in range(-pieces, pieces):
        r = reach * iv.mpf([j, j + 1]) / pieces
        size = iv.mpf([0, max(abs(r.a), abs(r.b))])
        _, lost = rounded_horner(both, r, size, fused)
        middle = iv.mpf(r.mid)
        slope = horner([i * a for i, a in enumerate(lacks)][1:], r)
        difference = horner(lacks, middle) + slope * (r - middle)
        remainder = 2 * size ** (terms + 1) / math.factorial(terms + 1)  # of Taylor's
        error = (abs(difference) + remainder + lost) / iv.exp(r) + off_r * iv.exp(off_r)
        worst_of_all = iv.mpf([0, max(worst_of_all.b, error.b)])
    return float(worst_of_all.b) / 2.0**-52


def horner(coefficients: list[Any], r: Any) -> Any:
    """The polynomial with these coefficients, the constant first, at r."""
    value = iv.mpf(0)
    for a in reversed(coefficients):
        value = value * r + a
    return value


def rounded_horner(coefficients: list[Any], r: Any, size: Any, fused: bool) -> tuple[Any, Any]:
    """(the polynomial at r, the rounding error of Horner's scheme), where |r| is in `size`."""
    u = iv.mpf(2) ** -53
    value, lost = coefficients[-1], iv.mpf(0)
    for a in coefficients[-2::-1]:
        lost = lost * size + (0 if fused else u * abs(value) * size)
        value = value * r + a
        lost += u * (abs(value) + lost)
    return value, lost


def circle_in_float64(fused: bool, pieces: int = 256) -> dict[str, float]:
    """Bounds on the errors of float64's `circular` for |t| <= 1000, in units of eps, by intervals.

    Absolute errors of cosine and sine; and the relative error of the sine up to pi/4, where t is
    not reduced.
    """
    iv.prec = 120
    u, most = iv.mpf(2) ** -53, iv.mpf(638)  # quarters of the circle
    cells = constants_of(elementary._circular(types.float64))
    cosine, sine = exactly(cells["c"]), exactly(cells["s"][1:])
    parts = exactly(cells[f"part_{i}"] for i in (1, 2, 3))
    for part in parts[:2]:  # products with the quarter are exact, and so is the first difference
        assert (float(part.a) * 2.0**32 / 2.0 ** math.floor(math.log2(float(part.a)))).is_integer()
    reach = iv.pi / 4 + iv.mpf(2) ** -40
    off_r = 2 * u * reach + u * most * parts[2] + most * abs(sum(parts) - iv.pi / 2)
    found = {"cosine": iv.mpf(0), "sine": iv.mpf(0), "relative sine": iv.mpf(0)}
    for j in range(pieces):
        r = reach * iv.mpf([j, j + 1]) / pieces
        z, size = r * r, iv.mpf([0, (r * r).b])
        off_z = u * size
        value, lost = rounded_horner(cosine, z, size, fused)
        slope = abs(horner([i * a for i, a in enumerate(cosine)][1:], z))
        off_cosine = lost + slope * off_z + lacks_of_series(cosine, 0, size)
        value, lost = rounded_horner(sine, z, size, fused)
        slope = abs(horner([i * a for i, a in enumerate(sine)][1:], z))
        off_series = lost + slope * off_z + lacks_of_series(sine, 1, size)  # of (sin r - r)/r^3
        # r z times the series plus r, over r: products of r and z, with the series, and the sum.
        off_sine = size * off_series + (2 if fused else 3) * u * size * abs(value)
        off_sine += u * abs(1 + value * z)
        relative = off_sine / (iv.sin(r) / r if j else 1 - size / 6)
        for kind, error in (
            ("cosine", off_cosine + off_r * iv.sin(r)),
            ("sine", off_sine * r + off_r),
            ("relative sine", relative),
        ):
            found[kind] = iv.mpf([0, max(found[kind].b, error.b)])
    return {kind: float(error.b) / 2.0**-52 for kind, error in found.items()}


def lacks_of_series(coefficients: list[Any], odd: int, size: Any) -> Any:
    """What these coefficients of cos r, or of (sin r - r)/r^3 (`odd`), lack; r^2 is in `size`."""
    lacks = iv.mpf(0)
    first = 3 * odd
    for i, a in enumerate(coefficients):
        exact = (-1) ** (i + odd) / iv.mpf(math.factorial(2 * i + first))
        lacks += abs(a - exact) * size**i
    terms = len(coefficients)
    return lacks + 2 * size**terms / math.factorial(2 * terms + first)


def exactly(numbers: Any) -> list[Any]:
    """These floats as intervals."""
    return [iv.mpf(float(v)) for v in numbers]


def constants_of(function: Any) -> dict[str, Any]:
    """The numbers that a function which Numba compiles is closed over, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells}


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
            "float64 exponential": exponential_in_float64(fused),
            "float64 circle": circle_in_float64(fused),
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
