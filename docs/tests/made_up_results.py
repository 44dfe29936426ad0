"""Files of results with figures that nobody measured, to test what is drawn from them."""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

CPU = "made-up CPU (test data, nothing was measured)"
GPU = "made-up GPU (test data, nothing was measured)"
SHAPES = ((65536, 64, 8), (1024, 1024, 32), (1024, 4096, 64), (64, 65536, 64), (1, 10**6, 1000))
CASES = (  # operator, curve, method, ratio
    ("thretopk", "laplace", "newton", 1.5),
    ("thretopk", "exp", "newton", 1.3),
    ("thretopk", "clip", "newton", 1.1),
    ("thretopk", "sigmoid", "newton", 2.2),
    ("thretopk", "laplace", "scan", 60.0),
    ("gradtopk", None, "auto", 3.6),
    ("hardtopk", None, None, 2.1),
    ("torch.softmax", None, None, 1.0),
    ("torch.topk", None, None, 8.0),
    ("np.partition", None, None, 2.05),
    ("np.copyto", None, None, 0.3),
    ("entmax budget_bisect", "clip", None, 90.0),
    ("LapSum (sort)", "laplace", None, 120.0),
    ("LML (bracketing)", "sigmoid", None, 500.0),
)


def result(case: tuple, shape: tuple, what: str, dtype: str, data: str, factor: float) -> Any:
    operator, curve, method, base = case
    rows, n, k = shape
    ratio = base * factor * (1.0 if operator == "torch.softmax" else 1 + 3 / n**0.25)
    unit = 1e-9 * rows * n * {"float32": 0.3, "float64": 0.6}[dtype]
    return {
        "operator": operator,
        "curve": curve,
        "method": method,
        "what": what,
        "rows": rows,
        "n": n,
        "k": k,
        "dtype": dtype,
        "data": data,
        "device": "cpu",
        "seconds": ratio * unit,
        "unit_seconds": unit,
        "ratio": ratio,
        "low": 0.95 * ratio,
        "high": 1.1 * ratio,
        "rounds": 15,
    }


def content(
    date: str, device: str = "cpu", factor: float = 1.0, host: str = "newer-core"
) -> dict[str, Any]:
    """A file as the benchmarks write it."""
    kinds = itertools.product(CASES, SHAPES, ("value", "pullback"), ("float32", "float64"))
    results = [result(*kind, "normal", factor) for kind in kinds]
    main = (1024, 4096, 64)
    results += [result(c, main, "value", "float32", "heavy", 1.2 * factor) for c in CASES]
    for k in (1, 16, 256, 1024, 4095):
        results += [result(c, (*main[:2], k), "value", "float32", "normal", factor) for c in CASES]
    results = [{**r, "device": device} for r in results]
    machine = {"cpu": CPU, "host": host, "cores": 2, "simd": "no SIMD", "device": device}
    return {
        "schema": 1,
        "machine": machine if device == "cpu" else {**machine, "gpu": GPU},
        "versions": {"softtopk_nb": "0.0", "numba": "0.0", "torch": "0.0"},
        "threads": 2,
        "date": date,
        "results": results,
        "startup": {
            "import softtopk_nb over numba": 0.05,
            "first call of thretopk, cold cache": 2.5,
        },
    }


def write(folder: pathlib.Path) -> None:
    """Four files: two dates of a CPU, another CPU of the same name, and a GPU."""
    folder.mkdir(parents=True)
    files = {
        "cpu-old": content("2001-01-01", factor=1.4),
        "cpu-new": content("2001-02-01"),
        "cpu-other": content("2001-01-01", factor=1.2, host="older-core"),
        "gpu": content("2001-02-02", device="cuda", factor=0.9),
    }
    for name, value in files.items():
        (folder / f"made-up-{name}.json").write_text(json.dumps(value), encoding="utf-8")
