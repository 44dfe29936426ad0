"""What got slower or faster from one results file to another, beyond noise.

    python benchmarks/compare.py OLD.json NEW.json

Beyond noise means that the ratio moved by more than a tenth and that its quartiles in the two files
do not overlap. Ends with code 1 if an operator of the package got slower; what it is compared with
is listed too, but is not this package's to mend.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import record
from cases import is_ours

__all__ = ["Change", "changes", "report"]

ENOUGH = 1.1

Record = dict[str, Any]


class Change(NamedTuple):
    """A case whose ratio moved."""

    key: tuple[Any, ...]
    old: float
    new: float

    @property
    def slower(self) -> bool:
        return self.new > self.old

    @property
    def counts(self) -> bool:
        """Whether it is a loss of the package."""
        return self.slower and is_ours(self.key[0])

    def __str__(self) -> str:
        name = " ".join(str(part) for part in self.key if part is not None)
        word = "slower" if self.slower else "faster"
        note = "" if is_ours(self.key[0]) else "  (a baseline)"
        return (
            f"{word}  {self.old:8.2f} -> {self.new:8.2f}  x {self.new / self.old:.2f}  {name}{note}"
        )


def changes(old: Record, new: Record) -> list[Change]:
    """What moved beyond noise, the largest loss first."""
    before = {record.key(result): result for result in old["results"]}
    found = []
    for after in new["results"]:
        result = before.get(record.key(after))
        if result is None:
            continue
        moved = max(after["ratio"] / result["ratio"], result["ratio"] / after["ratio"])
        apart = after["low"] > result["high"] or after["high"] < result["low"]
        if moved > ENOUGH and apart:
            found.append(Change(record.key(after), result["ratio"], after["ratio"]))
    return sorted(found, key=lambda change: change.old / change.new)


def report(old: Record, new: Record) -> list[str]:
    """The lines to print."""
    lines = [
        f"{name}: {old[name]} and {new[name]}; differences may be the machine's"
        for name in ("machine", "threads")
        if old[name] != new[name]
    ]
    keys = [{record.key(result) for result in one["results"]} for one in (old, new)]
    found = changes(old, new)
    lines += map(str, found)
    lines.append(
        f"{len(keys[0] & keys[1])} cases in both: {sum(c.slower for c in found)} slower, "
        f"{sum(not c.slower for c in found)} faster beyond noise; "
        f"{len(keys[0] - keys[1])} only in the first, {len(keys[1] - keys[0])} only in the second"
    )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    options = parser.parse_args()
    old, new = record.read(options.old), record.read(options.new)
    print(*report(old, new), sep="\n")
    return int(any(change.counts for change in changes(old, new)))


if __name__ == "__main__":
    raise SystemExit(main())
