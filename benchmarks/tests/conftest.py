"""Random numbers for the tests of the benchmarks."""

from __future__ import annotations

import zlib

import numpy as np
import pytest


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name and on nothing else."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
