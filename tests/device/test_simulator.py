"""The simulator finds what a device would not forgive: else its tests would prove little."""

from __future__ import annotations

import numpy as np
import pytest
from numba import config, cuda, float64

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not config.ENABLE_CUDASIM, reason="of the simulator itself"),
]
FULL = 0xFFFFFFFF


def launch(function, blocks=1, threads=64):
    """What each thread has written to its place in `out`, 7 where it has not."""
    out = cuda.to_device(np.full(blocks * threads, 7.0))
    cuda.jit(function)[blocks, threads](out)
    return out.copy_to_host().reshape(blocks, threads)


def test_barriers_that_cannot_be_completed():
    def apart(out):
        if cuda.threadIdx.x <= 32:
            cuda.syncthreads()
        else:
            cuda.syncwarp(FULL)

    with pytest.raises(RuntimeError, match=r"deadlock: .* 32: None, 33: \(32, 33, "):
        launch(apart)


def test_lanes_that_have_returned():
    def gone(out):
        if cuda.threadIdx.x != 3:
            out[cuda.threadIdx.x] = cuda.shfl_xor_sync(FULL, 1.0, 1)

    with pytest.raises(RuntimeError, match=r"threads \[3\] have returned"):
        launch(gone)


def test_lanes_that_are_not_in_their_own_mask():
    def outside(out):
        cuda.syncwarp(0x7)

    with pytest.raises(RuntimeError, match="thread 3 is not in its own mask 0x7"):
        launch(outside)


def test_a_launch_after_one_that_failed():
    def fails(out):
        cuda.syncthreads()
        if cuda.threadIdx.x == 5:
            raise ValueError("on purpose")
        cuda.syncthreads()

    def writes(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = cuda.threadIdx.x

    with pytest.raises(ValueError, match="on purpose"):
        launch(fails)
    np.testing.assert_array_equal(launch(writes)[0], np.arange(64))
    with pytest.raises(AttributeError, match="threadIdx"):
        cuda.threadIdx.x  # noqa: B018


def test_memory_is_poisoned_in_each_block():
    def reads(out):
        shared = cuda.shared.array(64, float64)
        own = cuda.local.array(2, float64)
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        out[i] = 0 if np.isnan(shared[cuda.threadIdx.x]) and np.isnan(own[1]) else 1
        shared[cuda.threadIdx.x] = own[1] = 1

    assert not launch(reads, blocks=2).any()


def test_what_is_not_waited_for_is_not_seen():
    def races(out):
        shared = cuda.shared.array(64, float64)
        shared[cuda.threadIdx.x] = 1
        out[cuda.threadIdx.x] = shared[63 - cuda.threadIdx.x]

    def waits(out):
        shared = cuda.shared.array(64, float64)
        shared[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        out[cuda.threadIdx.x] = shared[63 - cuda.threadIdx.x]

    assert np.isnan(launch(races)).sum() == 32
    assert (launch(waits) == 1).all()


def test_shuffles_and_votes():
    def moves(out):
        i = cuda.threadIdx.x
        lane = i % 32
        total = cuda.shfl_xor_sync(FULL, i, 3) == i ^ 3
        total += cuda.shfl_sync(FULL, i, 5, 8) == i // 8 * 8 + 5
        total += cuda.shfl_up_sync(FULL, i, 2) == (i - 2 if lane >= 2 else i)
        total += cuda.shfl_down_sync(FULL, i, 2) == (i + 2 if lane < 30 else i)
        total += cuda.ballot_sync(FULL, lane in (1, 4)) == 0b10010
        total += cuda.syncthreads_count(i < 40) == 40
        out[i] = total

    assert (launch(moves) == 6).all()
