"""Formulas of the hard top-k that the CPU and a device share."""

from __future__ import annotations

from .._compile.decorators import scalar


@scalar
def middle_of(lo, hi):
    """The middle of two ordinals, rounded up; their sum can overflow."""
    return type(lo)((lo >> 1) + (hi >> 1) + ((lo | hi) & 1))
