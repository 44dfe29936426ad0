"""Print digests of what every operator and verb answers: to compare two commits to the bit.

    python tests/digest.py > before.txt; ...; python tests/digest.py | diff before.txt -

Bits depend on the processor that code is compiled for: compare on one machine. The last line is a
digest of all the others.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from operators import CURVES

import softtopk_nb as stk
from softtopk_nb._api.operator import registry

LENGTHS = (64, 1024, 5000, 1_000_000)
TEMPERATURES = (1.0, 0.07)
WITHOUT_K = ("softmax", "log_softmax", "logsumexp")


def rows_of(n: int) -> dict[str, np.ndarray]:
    """One batch of every kind of row."""
    rng = np.random.default_rng(n)
    count = 1 if n > 10_000 else 3
    shape = count, n
    return {
        "normal": rng.normal(size=shape),
        "heavy": rng.standard_cauchy(shape),
        "clusters": rng.choice([-3.0, 0.0, 4.0], shape) + 0.01 * rng.normal(size=shape),
        "ties": np.round(rng.normal(size=shape), 1),
        "outlier": np.where(np.arange(n) == n // 2, 1e6, rng.normal(size=shape)),
        "infinite": np.where(rng.random(shape) < 0.1, -np.inf, rng.normal(size=shape)),
    }


def options_of(name: str) -> list[dict[str, Any]]:
    if name == "thretopk":
        plain = list(CURVES.values())
        return [*plain, {"curve": "exp", "method": "scan"}, {"curve": "clip", "method": "bisect"}]
    return [{}]


def verbs_of(op: Any, has_k: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Name and call of each verb; a call gets x, k, options and gives arrays."""

    def arguments(x: np.ndarray, k: int) -> tuple[Any, ...]:
        return (x, k) if has_k else (x,)

    def direction(x: np.ndarray) -> np.ndarray:
        return np.random.default_rng(7).normal(size=x.shape).astype(x.dtype)

    def pull(x: np.ndarray, k: int, **options: Any) -> list[Any]:
        p, pullback = op.vjp(*arguments(x, k), **options)
        g = np.random.default_rng(8).normal(size=p.shape).astype(p.dtype)
        return [p, *(part for part in pullback(g) if part is not None)]

    yield "value", lambda x, k, **o: [op(*arguments(x, k), **o)]
    if hasattr(op, "jvp"):
        yield "jvp", lambda x, k, **o: list(op.jvp(*arguments(x, k), direction(x), **o))
        yield "vjp", pull
    for verb in ("potential", "threshold"):
        if hasattr(op, verb):
            yield verb, lambda x, k, verb=verb, **o: [getattr(op, verb)(*arguments(x, k), **o)]


def lines(lengths: tuple[int, ...]) -> Iterator[str]:
    operators = {name: (op, True) for name, op in sorted(registry.items())}
    operators |= {name: (getattr(stk, name), False) for name in WITHOUT_K}
    for n in lengths:
        kinds = rows_of(n)
        for name, (op, has_k) in operators.items():
            few = 8 if name in ("itertopk", "wsoftmaxtopk") else n // 16
            for options in options_of(name):
                for verb, call in verbs_of(op, has_k):
                    for dtype in (np.float32, np.float64):
                        whole = hashlib.sha256()
                        for x in kinds.values():
                            for temperature in TEMPERATURES:
                                with np.errstate(all="ignore"):
                                    answer = call(
                                        x.astype(dtype), few, temperature=temperature, **options
                                    )
                                for part in answer:
                                    whole.update(np.ascontiguousarray(part).tobytes())
                        said = " ".join(map(str, (name, *options.values(), verb)))
                        yield f"{said} {np.dtype(dtype)} {n} {whole.hexdigest()[:16]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__ or ""))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    total = hashlib.sha256()
    for line in lines(tuple(parser.parse_args().lengths)):
        total.update(line.encode())
        print(line)
        sys.stdout.flush()
    print("all", total.hexdigest()[:16])


if __name__ == "__main__":
    main()
