"""Write the 60-digit vectors of a curve, from its definition in `reference`, to data/CURVE.json.

    python tests/vectors.py CURVE

Rows, k, temperatures and directions are those of the published vectors for `laplace`, and so is the
way: thresholds by bisection, derivatives by a central difference, rounded to float64 at the end.
Then come the answers for float32 and the second derivatives, of `answers`.
"""

from __future__ import annotations

import json
import pathlib
import sys

import answers
import reference
from reference import to_float64

DATA = pathlib.Path(__file__).parent / "data"


def main(curve: str) -> None:
    cases = []
    for case in json.loads((DATA / "public.json").read_text(encoding="utf-8")):
        if case.get("curve") != "laplace":
            continue
        row = case["x"], case["k"]
        kind = {"curve": curve, "temperature": case["temperature"]}
        solution = reference.thretopk(*row, **kind)
        name = case["name"].replace("laplace", curve)
        found = {**case, **kind, "name": name, "p": to_float64(solution.p).tolist()}
        found |= {"threshold": float(solution.threshold), "potential": float(solution.potential)}
        if "dp" in case:
            dp = reference.thretopk_jvp_by_difference(*row, case["tangent"], **kind)
            found["dp"] = to_float64(dp).tolist()
        cases.append(found)
    (DATA / f"{curve}.json").write_text(json.dumps(cases) + "\n", encoding="utf-8")
    answers.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
