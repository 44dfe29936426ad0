"""The record of a row for its derivatives."""

from __future__ import annotations

RECORD = 2  # of a row: its largest entry, and sum exp z - 1 with z = (x - largest)/tau
TOP, EXCESS = range(RECORD)
