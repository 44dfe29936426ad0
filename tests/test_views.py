"""What kernels know of arrays beyond what Numba does."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from softtopk_nb._views import SEEN, seek


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
