"""A sample of a long row: entries spaced evenly all over it."""

from __future__ import annotations

from .._compile.decorators import scalar

LARGEST_SAMPLE = 65536
FRACTIONS = 1 << 20  # of a place, in which the stride of a sample is counted


@scalar
def sample_size(n):
    """How many entries of a row of n are its sample."""
    return n // 16 if n // 16 < LARGEST_SAMPLE else LARGEST_SAMPLE


@scalar
def sample_places(start, end, n, size):
    """(first, stop): which entries of a row's sample lie at its places start .. end."""
    stride = n * FRACTIONS // size
    first, stop = -(-start * FRACTIONS // stride), -(-end * FRACTIONS // stride)
    return first if first < size else size, stop if stop < size else size


@scalar
def sample(x, start, n, size, out):
    """Copy to `out` what of a row's sample lies in x, its entries from place `start` on.

    A sample of so many of the n entries is spaced evenly all over the row. Whole strides would
    leave out the end, where a sorted row has its greatest entries.
    """
    stride = n * FRACTIONS // size
    first, stop = sample_places(start, start + x.shape[0], n, size)
    for j in range(first, stop):
        out[j - first] = x[j * stride // FRACTIONS - start]
