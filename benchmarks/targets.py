"""The targets for speed, and whether a results file meets them.

    python benchmarks/targets.py [FILE.json]

Without a file, the newest in `results/`. Every figure that a target speaks of is shown, met or not;
a target of which the file has no figure does not appear.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import record
from cases import ONE_OF_64, SPREADS, Case, is_ours

__all__ = ["Verdict", "judge", "table"]

Record = dict[str, Any]
Result = dict[str, Any]

# Value, as a multiple of torch.softmax on the same array: (n at least 1024, n = 64).
SIMPLE, HARDER, SUBSET = (1.5, 2.0), (2.5, 3.0), (4.0, 6.0)
VALUE = {
    ("thretopk", "clip"): SIMPLE,
    ("thretopk", "exp"): SIMPLE,
    ("thretopk", "laplace"): SIMPLE,
    ("thretopk", "sigmoid"): HARDER,
    ("thretopk", "normal"): HARDER,
    ("gradtopk", None): SUBSET,
}
DERIVATIVE = 1.5, 2.0  # times softmax's backward pass, after the value
STEP = 1.0, 1.5  # itertopk and wsoftmaxtopk: for each of k steps
ITERATIONS = ("itertopk", "wsoftmaxtopk")
DEFAULTS = ("newton", "auto", None)  # the methods of which the figures above speak

FLAT = 1.3  # slowest over fastest k of one row of 1e6
LINEAR = 12.0  # for ten times as many entries
# What ordinary use may cost, in plain calls (`bench_ordinary.py`).
ORDINARY = {
    "all True": 1.15,
    "random mask": 2.0,
    "one mask": 1.6,
    "padded": 1.6,
    "-inf at random": 2.0,
    "axis 0": 2.0,
    "Fortran order": 2.0,
    "float16": 2.5,
    "integers": 2.5,
    "potential": 1.3,
    "the chosen method": 1.1,
    "costs": 4.0,
    "costs and vjp": 4.0,
    "loads": 8.0,
    "loads and vjp": 12.0,
    **dict.fromkeys(("clusters", "ties", "Cauchy", "skewed", "outlier"), 3.0),
}
CALL = 20e-6  # seconds: 1 x 64
STARTUP = {
    "import softtopk_nb over numba": 0.3,
    **{
        f"first call of {operator}, {cache} cache": limit
        for operator in ("thretopk", "gradtopk", "hardtopk", "itertopk")
        for cache, limit in (("cold", 3.0), ("warm", 0.3))
    },
}
SLACK = (
    4 * 2**20
)  # bytes beside the rows that threads work on: blocks, and the allocator's rounding
SPEEDUP = 0.7  # times the threads, of one long row over what one thread takes

GPU_VALUE = {("thretopk", "laplace"): 1.3, ("thretopk", "exp"): 1.3, ("thretopk", "clip"): 1.3}
GPU_VALUE[("gradtopk", None)] = 4.0
GPU_LONGEST = 16384  # rows up to here are read once
GPU_OF_COPY = 0.7  # at 1 GiB


class Verdict(NamedTuple):
    """One figure beside its target."""

    target: str
    case: str
    figure: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.figure <= self.limit if self.at_most else self.figure >= self.limit

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least"
        verdict = "met" if self.met else "NOT MET"
        return f"  {self.case:<72} {self.figure:9.3g}  {bound} {self.limit:<7.3g} {verdict}"


def name(result: Result) -> str:
    return Case(*(result[field] for field in Case._fields)).name


def _label(text: str, result: Result) -> str:
    """Low temperatures have a line of their own: the design's targets do not speak of them."""
    return f"{text}, at low temperatures" if result["data"] in SPREADS else text


def _column(result: Result, pair: tuple[float, float]) -> float | None:
    """The target for the result's length, if there is one."""
    if result["n"] >= 1024:
        return pair[0]
    return pair[1] if result["n"] == 64 and result["rows"] > 1 else None


def _value_limit(result: Result) -> float | None:
    kind = result["operator"], result["curve"]
    if result["device"] == "cuda":
        short = result["n"] <= GPU_LONGEST and result["dtype"] == "float32"
        return GPU_VALUE.get(kind) if short else None
    if result["operator"] in ITERATIONS:
        pair = result["k"] * STEP[0], result["k"] * STEP[1]
    elif kind in VALUE:
        pair = VALUE[kind]
    else:
        return None
    return _column(result, pair)


def _ratios(results: list[Result]) -> Iterator[Verdict]:
    for result in results:
        if result["method"] not in DEFAULTS:
            continue
        if result["what"] == "value":
            limit = _value_limit(result)
            if limit is not None:
                label = _label("value, times torch.softmax", result)
                yield Verdict(label, name(result), result["ratio"], limit)
            continue
        limit = _column(result, DERIVATIVE) if result["device"] == "cpu" else None
        if limit is None or (result["operator"], result["curve"]) not in VALUE:
            continue
        figure = result.get("after_value") if result["what"] == "jvp" else result["ratio"]
        if figure is None:
            continue
        label = f"{result['what']} after the value, times softmax's backward pass"
        yield Verdict(label, name(result), figure, limit)


def _against(results: list[Result]) -> Iterator[Verdict]:
    """Pairs of contenders on the same array, each a ratio to the same unit."""
    by_key = {record.key(result): result for result in results}
    for result in results:
        if result["what"] != "value" or result["operator"] != "thretopk":
            continue
        if result["method"] == "scan" and result["curve"] == "laplace":
            baseline, label = ("LapSum (sort)", "laplace"), "scan, times LapSum by sorting"
        elif result["method"] == "newton" and result["rows"] * result["n"] > ONE_OF_64[1]:
            baseline, label = ("torch.topk", None), _label("value, times torch.topk", result)
        else:
            continue
        wanted = {**result, "operator": baseline[0], "curve": baseline[1], "method": None}
        other = by_key.get(record.key(wanted))
        if other is not None:
            yield Verdict(label, name(result), result["ratio"] / other["ratio"], 1.0)


def _growth(entries: list[Record]) -> Iterator[Verdict]:
    """Cost flat in k and linear in n: each entry is a ratio of two sizes that took turns."""
    flat: dict[str, list[Record]] = {}
    for entry in entries:
        kind = entry["operator"], entry["curve"], entry["dtype"]
        label = f"{' '.join(word for word in kind if word)} {entry['rows']}x{entry['n']}"
        if entry["n"] == entry["over_n"]:
            flat.setdefault(label, []).append(entry)
        else:
            case = f"{label} k={entry['k']}, over n={entry['over_n']}"
            yield Verdict("linear in n", case, entry["ratio"], LINEAR)
    for label, found in flat.items():
        # All of them are ratios to the same k.
        ratios = [1.0, *(entry["ratio"] for entry in found)]
        ks = sorted({found[0]["over_k"], *(entry["k"] for entry in found)})
        yield Verdict("flat in k", f"{label}, k of {ks}", max(ratios) / min(ratios), FLAT)


def _ordinary(entries: list[Record]) -> Iterator[Verdict]:
    """Masks, layouts and types, as multiples of the plain call that took turns with them."""
    for entry in entries:
        use, _, number = entry["use"].partition(", ")
        use = entry["what"] if use == "plain" else use
        case = f"{entry['operator']} {entry['what']} {entry['rows']}x{entry['n']}"
        case += f", {number}" if number else ""
        case += f", temperature {entry['temperature']}" if "temperature" in entry else ""
        yield Verdict(f"{use}, in plain calls", case, entry["ratio"], ORDINARY[use])


def _waits(found: Record) -> Iterator[Verdict]:
    for result in found["results"]:
        shape = result["rows"], result["n"], result["k"]
        if shape == ONE_OF_64 and result["device"] == "cpu" and is_ours(result["operator"]):
            yield Verdict("a call on 1 x 64, in seconds", name(result), result["seconds"], CALL)
    startup = found.get("startup", {})
    for case, limit in STARTUP.items():
        if case in startup:
            yield Verdict("startup, in seconds", case, startup[case], limit)


def _footprint(found: Record) -> Iterator[Verdict]:
    threads = found["threads"]
    for entry in found.get("footprint", []):
        rows, n = entry["rows"], entry["n"]
        row = n * entry["itemsize"]
        case = f"{entry['operator']} {entry['what']} {rows}x{n}"
        label = "memory beyond input and output, in bytes"
        yield Verdict(label, case, entry["extra_bytes"], min(threads, rows) * row + SLACK)
        if rows == 1 and threads > 1 and "speedup" in entry:  # older files lack it
            label = "one row with all threads, over one"
            yield Verdict(label, case, entry["speedup"], SPEEDUP * threads, at_most=False)


def _bandwidth(results: list[Result]) -> Iterator[Verdict]:
    for result in results:
        large = 4 * result["rows"] * result["n"] >= 2**30 and result["n"] <= GPU_LONGEST
        kind = result["operator"], result["curve"]
        promised = kind in GPU_VALUE and kind[0] == "thretopk" and result["what"] == "value"
        if "of_copy" in result and large and promised:
            label = "part of the bandwidth of a copy"
            yield Verdict(label, name(result), result["of_copy"], GPU_OF_COPY, at_most=False)


def judge(found: Record) -> list[Verdict]:
    """Every figure of the record that a target speaks of."""
    results = found["results"]
    return [
        *_ratios(results),
        *_bandwidth(results),
        *_against(results),
        *_growth(found.get("growth", [])),  # older files lack it
        *_ordinary(found.get("ordinary", [])),  # likewise
        *_waits(found),
        *_footprint(found),
    ]


def table(found: Record) -> str:
    """The verdicts as they are printed, by target."""
    machine, where = found["machine"], record.machine_name(found)
    if "gpu" not in machine:
        where += f", {machine['simd']}, {found['threads']} threads"
    verdicts = judge(found)
    lines = [f"{where}, {found['date']}"]
    for target in dict.fromkeys(verdict.target for verdict in verdicts):
        lines += ["", target, *(str(v) for v in verdicts if v.target == target)]
    met = sum(verdict.met for verdict in verdicts)
    return "\n".join([*lines, "", f"{met} met, {len(verdicts) - met} NOT MET"])


def newest() -> Record:
    """The file to speak of: of one day the fullest, of those that are equally full the last."""
    found = [record.read(path) for path in sorted(record.RESULTS.glob("*.json"))]
    if not found:
        sys.exit("there are no results yet: python benchmarks/run.py --full")
    return sorted(found, key=record.age)[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path)
    file = parser.parse_args().file
    print(table(record.read(file) if file else newest()))


if __name__ == "__main__":
    main()
