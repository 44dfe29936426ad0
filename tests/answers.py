"""What the reference answers to the 60-digit cases where their files hold nothing.

    python tests/answers.py         write data/answers/float32.json and float64.json: two minutes

The files of cases hold p and its derivatives for rows of float64. In float32 the exact answers are
those of the rounded x. Second derivatives, and first derivatives along the reversed direction, are
in neither. Each is a number of float64, and `test_reference.py` compares a sample.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
from typing import Any

import numpy as np
import reference
from reference import to_float64

DATA = pathlib.Path(__file__).parent / "data"
DTYPES = ("float32", "float64")
#: Operators with a symmetric Jacobian, so that a row of it is also a column; they have second
#: derivatives as well.
SYMMETRIC = ("thretopk", "gradtopk")
REAL_K = ("thretopk",)


def cases() -> list[dict[str, Any]]:
    """All cases of the files, in the order of the files' names."""
    return [
        case
        for path in sorted(DATA.glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))
    ]


@functools.cache
def stored(dtype: str) -> dict[str, dict[str, Any]]:
    """The answers for rows of this type, by the names of the cases."""
    return json.loads((DATA / "answers" / f"{dtype}.json").read_text(encoding="utf-8"))


def directions(
    operator: str, tangent: np.ndarray
) -> tuple[tuple[np.ndarray, float, float], tuple[np.ndarray, float, float]]:
    """Two directions in x, k and the temperature; they move k only where it may be real."""
    along_k = (0.25, -0.75) if operator in REAL_K else (0.0, 0.0)
    return (tangent, along_k[0], -0.5), (np.roll(tangent, 1), along_k[1], 0.375)


def answer(case: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The answers to a case for rows of this type, from their definitions."""
    operator = case["op"]
    value, jvp = (getattr(reference, operator + suffix) for suffix in ("", "_jvp"))
    row = np.array(case["x"], dtype), case["k"]
    options = {"temperature": case["temperature"]}
    options |= {"curve": case["curve"]} if "curve" in case else {}
    found: dict[str, Any] = {}
    if dtype != "float64":
        solution = value(*row, **options)
        found["p"] = to_float64(solution.p).tolist()
        found |= {
            name: float(getattr(solution, name))
            for name in ("threshold", "potential")
            if name in case
        }
    if "tangent" not in case:
        return found
    tangent = np.array(case["tangent"], dtype)
    if dtype != "float64":
        found["dp"] = to_float64(jvp(*row, tangent, **options)).tolist()
    if operator in SYMMETRIC:
        found["dp_reversed"] = to_float64(jvp(*row, tangent[::-1], **options)).tolist()
        both = directions(operator, tangent)
        second = reference.second_by_difference(value, *row, *both, **options)
        found["second"] = to_float64(second).tolist()
    return found


def main() -> None:
    """Write the answers of all cases, one a line."""
    (DATA / "answers").mkdir(exist_ok=True)
    every = cases()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for dtype in DTYPES:
            found = pool.map(answer, every, itertools.repeat(dtype))
            named = zip(every, found, strict=True)
            lines = [f"{json.dumps(case['name'])}: {json.dumps(of)}" for case, of in named if of]
            text = "{\n" + ",\n".join(lines) + "\n}\n"
            (DATA / "answers" / f"{dtype}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
