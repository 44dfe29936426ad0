"""What kernels know of arrays beyond what Numba does."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from softtopk_nb._compile.array_intrinsics import SEEN, read_apart, seek, write_apart
from softtopk_nb._compile.decorators import summing
from softtopk_nb._math.elementary import wide_vectors


@njit
def sought(keys, limit, at):
    return seek(keys, limit, at)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, SEEN - 1, SEEN, SEEN + 1, 5 * SEEN, 1000])
def test_seek_finds_what_exceeds_the_limit_in_order(dtype, n, rng):
    for share in (0.0, 0.1, 0.9, 1.0):
        room = rng.random(n + 2).astype(dtype)
        for keys in (room[:n], room[1 : n + 1]):  # wherever they lie
            limit = dtype(1 - share) if share < 1 else dtype(-1)
            keys[: n // 7] = (np.nan, np.inf, -np.inf, limit)[n % 4]
            at = np.full(n + 1, -1)
            found = sought(keys, limit, at)
            assert at[:found].tolist() == np.flatnonzero(keys > limit).tolist()
            assert (at[n:] == -1).all()


@summing
def sum_and_halve(x, out):
    wide_vectors()
    T = x.dtype.type
    total, squares = T(0), T(0)
    for i in range(x.shape[0]):
        value = read_apart(x, i)
        write_apart(out, i, value * T(0.5))
        total += value
        squares += value * value
    return total + squares


@njit
def summed(x, out):
    return sum_and_halve(x, out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_do_not_depend_on_where_the_result_lies(dtype, rng):
    """Next to what is read, or far away: one loop, one order, the same bits.

    With plain reads and writes half of these lengths have two sums.
    """
    room = np.zeros(3000, dtype)
    for n in (5, 8, 10, 12, 17, 20, 24, 50, 60, 63, 100):
        values = rng.normal(size=n).astype(dtype)
        found = set()
        for gap in (0, 1, 3, 8, 17, 64, 400):
            above, below = room[500 + n + gap :][:n], room[-2 * n - gap :][:n]
            for x, out in ((room[500:][:n], above), (room[-n:], below)):
                x[:] = values
                found.add(float(summed(x, out)))
                np.testing.assert_array_equal(out, values / 2)
        assert len(found) == 1
