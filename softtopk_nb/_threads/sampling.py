"""A sample of a long row: entries spaced evenly over all of it."""

from __future__ import annotations

from .._compile.decorators import scalar

LARGEST_SAMPLE = 65536
FRACTIONS = 1 << 20  # of a position, the unit of a sample's stride


@scalar
def sample_size(n):
    """The size of the sample of a row of n entries."""
    return n // 16 if n // 16 < LARGEST_SAMPLE else LARGEST_SAMPLE


@scalar
def sample_places(start, end, n, size):
    """(first, stop): the range of a row's sample that lies at its positions start .. end."""
    stride = n * FRACTIONS // size
    first, stop = -(-start * FRACTIONS // stride), -(-end * FRACTIONS // stride)
    return first if first < size else size, stop if stop < size else size


@scalar
def sample(x, start, n, size, out):
    """Copy to `out` the entries of a row's sample that lie in x, its entries from `start` on.

    The sample's `size` of n entries are spaced evenly over the row. A whole stride would leave out
    the end, where a sorted row has its greatest entries.
    """
    stride = n * FRACTIONS // size
    first, stop = sample_places(start, start + x.shape[0], n, size)
    for j in range(first, stop):
        out[j - first] = x[j * stride // FRACTIONS - start]
