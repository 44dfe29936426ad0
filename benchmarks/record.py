"""The files in `results/`: one for each machine and date. Their schema is in README.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

__all__ = [
    "FIELDS",
    "RESULTS",
    "age",
    "check",
    "file_name",
    "head",
    "key",
    "machine_name",
    "read",
    "write",
]

SCHEMA = 1
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numba", "llvmlite", "numpy", "scipy", "torch", "entmax", "numba-cuda")

Record = dict[str, Any]
Result = dict[str, Any]

#: What each entry of `results` has.
FIELDS: dict[str, Any] = {
    "operator": str,
    "curve": (str, type(None)),
    "method": (str, type(None)),
    "what": str,
    "rows": int,
    "n": int,
    "k": int,
    "dtype": str,
    "data": str,
    "device": str,
    "seconds": float,
    "unit_seconds": float,
    "ratio": float,
    "low": float,
    "high": float,
    "rounds": int,
}
#: What each file has.
HEAD: dict[str, type] = {
    "schema": int,
    "machine": dict,
    "versions": dict,
    "threads": int,
    "date": str,
    "results": list,
}
KEY = tuple(FIELDS)[: tuple(FIELDS).index("seconds")]


def _cpu() -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def head(device: str = "cpu", gpu: str | None = None) -> Record:
    """What a file says about where it was measured, with no results yet."""
    import llvmlite.binding as llvm

    from softtopk_nb import __version__
    from softtopk_nb._threads import pool
    from softtopk_nb._versions import _simd, _version

    now = datetime.datetime.now()
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = {
        "cpu": _cpu(),
        "host": llvm.get_host_cpu_name(),
        "cores": count,
        "simd": _simd(),
        "device": device,
    }
    return {
        "schema": SCHEMA,
        "machine": machine if gpu is None else {**machine, "gpu": gpu},
        "versions": {
            "softtopk_nb": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "threads": pool.thread_count(),
        "date": now.date().isoformat(),
        "time": now.strftime("%H:%M"),
        "results": [],
    }


def file_name(record: Record, part: str = "") -> str:
    """`<host-cpu or gpu>-<date>.json`, with the threads if they are fewer, and the part."""
    machine = record["machine"]
    words = [machine.get("gpu", machine["host"])]
    if record["threads"] != machine["cores"]:
        words.append(f"{record['threads']} threads")
    words += [record["date"], part]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-") + ".json"


def key(result: Result) -> tuple[Any, ...]:
    """What was measured: the same in two files for the same case."""
    return tuple(result[field] for field in KEY)


def _expect(entry: Any, fields: dict[str, Any], where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is {type(entry).__name__}; expected an object")
    for name, kind in fields.items():
        if name not in entry:
            raise ValueError(f"{where} has no {name!r}")
        value = entry[name]
        whole = kind is float and isinstance(value, int)  # 1.0 may come back as 1
        if isinstance(value, bool) or not (whole or isinstance(value, kind)):
            raise ValueError(f"{where}: {name!r} is {value!r}; expected {kind}")


def check(record: Any) -> None:
    """Raise ValueError if this is not a record of the schema."""
    _expect(record, HEAD, "the record")
    if record["schema"] != SCHEMA:
        raise ValueError(f"the record's schema is {record['schema']}; expected {SCHEMA}")
    for i, result in enumerate(record["results"]):
        _expect(result, FIELDS, f"result {i}")
    found = [key(result) for result in record["results"]]
    if len(set(found)) < len(found):
        raise ValueError("the record has two results for the same case")


def read(path: Path | str) -> Record:
    """A file's record, checked."""
    record: Record = json.loads(Path(path).read_text(encoding="utf-8"))
    check(record)
    return record


def machine_name(record: Record) -> str:
    """The device; or the processor, with the compiler's name for it, as its own may say little."""
    machine = record["machine"]
    return str(machine.get("gpu", f"{machine['cpu']} ({machine['host']})"))


def age(record: Record) -> tuple[str, int, str]:
    """What records are ordered by, oldest first: of one day the fullest is the last.

    Of equally full ones that is the one ended last; older files lack the time.
    """
    return record["date"], len(record["results"]), record.get("time", "")


def write(record: Record, path: Path) -> None:
    """Check and write: one result a line, so that files can be compared by eye as well."""
    check(record)
    rest = {name: value for name, value in record.items() if name != "results"}
    lines = ",\n".join(json.dumps(result) for result in record["results"])
    text = f'{json.dumps(rest, indent=1)[:-2]},\n "results": [\n{lines}\n]\n}}\n'
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
