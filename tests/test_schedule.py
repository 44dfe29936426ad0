"""Sharing out work: every piece is done, and done once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from softtopk_nb import _schedule


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_piece_is_done_once(monkeypatch, count, threads):
    monkeypatch.setattr(_schedule, "thread_count", lambda: threads)
    times = np.zeros(count, int)
    calls = []

    def kernel(lo, hi, amount):
        calls.append((lo, hi, threading.current_thread()))
        times[lo:hi] += amount

    _schedule.over(count, 1 << 30, kernel, 1)
    assert (times == 1).all()
    assert len(calls) == (min(count, threads * _schedule._PIECES) if threads > 1 else min(count, 1))
    assert len({thread for _, _, thread in calls}) <= threads


def test_little_work_stays_in_the_calling_thread():
    seen = []
    _schedule.over(10, 1000, lambda lo, hi: seen.append((lo, hi, threading.current_thread())))
    assert seen == [(0, 10, threading.current_thread())]


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_an_error_in_any_piece_is_raised_once_all_have_ended(monkeypatch, bad):
    monkeypatch.setattr(_schedule, "thread_count", lambda: 4)
    done = []

    def kernel(lo, hi):
        done.append(lo)
        if lo == bad:
            raise ArithmeticError(str(lo))

    with pytest.raises(ArithmeticError, match=str(bad)):
        _schedule.over(4, 1 << 30, kernel)
    found = list(done)
    assert bad in found
    time.sleep(0.05)
    assert done == found  # nothing goes on behind the caller's back


def test_a_thread_that_is_late_leaves_its_work_to_the_others(monkeypatch):
    monkeypatch.setattr(_schedule, "thread_count", lambda: 2)
    caller, seen = threading.current_thread(), []

    def kernel(lo, hi):
        if threading.current_thread() is not caller:
            time.sleep(0.2)
        seen.append((lo, hi))

    _schedule.over(100, 1 << 30, kernel)
    assert sum(hi - lo for lo, hi in seen) == 100
    assert len(seen) == 2 * _schedule._PIECES


def test_without_new_threads_the_caller_does_it_all(monkeypatch):
    class Exhausted:
        def __init__(self, idle):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_schedule, "thread_count", lambda: 4)
    monkeypatch.setattr(_schedule, "_pool", _schedule._Pool())
    monkeypatch.setattr(_schedule, "_Helper", Exhausted)
    seen = []
    _schedule.over(10, 1 << 30, lambda lo, hi: seen.append((lo, hi)))
    assert seen == [(i, i + 1) for i in range(10)]


def test_thread_count_is_at_least_one(monkeypatch):
    assert _schedule.thread_count() >= 1
    monkeypatch.setattr(_schedule.config, "NUMBA_NUM_THREADS", 1)
    assert _schedule.thread_count() == 1


def test_no_more_threads_than_there_may_be(monkeypatch):
    """Also where several threads call at once: those that find no helper work alone."""
    monkeypatch.setattr(_schedule, "thread_count", lambda: 3)
    pool = _schedule._Pool()  # late helpers of other tests go back to the pool they are of
    monkeypatch.setattr(_schedule, "_pool", pool)
    done = np.zeros((6, 40), int)

    def call(i):
        def kernel(lo, hi):
            time.sleep(1e-3)
            done[i, lo:hi] += 1

        for _ in range(3):
            _schedule.over(40, 1 << 30, kernel)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (done == 3).all()
    assert 1 <= pool.made <= 2
    for _ in range(100):  # a helper lies down a moment after its caller has gone on
        if len(pool.idle) == pool.made:
            break
        time.sleep(0.01)
    assert len(set(pool.idle)) == len(pool.idle) == pool.made


@pytest.mark.skipif(_schedule._core is None, reason="threads cannot be told their cores here")
def test_a_helper_is_kept_off_the_core_that_wakes_it(monkeypatch):
    """And neither the caller nor any other thread loses one."""
    monkeypatch.setattr(_schedule, "thread_count", lambda: 2)
    monkeypatch.setattr(_schedule, "_pool", _schedule._Pool())
    mine, caller = os.sched_getaffinity(0), threading.get_ident()
    if len(mine) == 1:
        pytest.skip("this process has one core: there is no other to send a helper to")
    for core in sorted(mine)[:3]:
        os.sched_setaffinity(0, {core, *sorted(mine - {core})[:1]})
        monkeypatch.setattr(_schedule, "_core", lambda core=core: core)
        given, seen = os.sched_getaffinity(0), []

        def kernel(lo, hi, seen=seen):
            if threading.get_ident() != caller:
                seen.append(os.sched_getaffinity(0))
            time.sleep(5e-3)  # long enough for any helper to wake

        try:
            _schedule.over(40, 1 << 30, kernel)
            assert os.sched_getaffinity(0) == given
        finally:
            os.sched_setaffinity(0, mine)
        assert seen
        assert all(cores == given - {core} for cores in seen)


@pytest.mark.skipif(_schedule._core is None, reason="threads cannot be told their cores here")
def test_cores_that_cannot_be_given_are_no_error(monkeypatch):
    monkeypatch.setattr(_schedule, "thread_count", lambda: 2)
    monkeypatch.setattr(_schedule, "_pool", _schedule._Pool())

    def refuse(thread, cores):
        refused.append((thread, cores))
        raise OSError(22, "Invalid argument")

    refused, seen = [], []
    monkeypatch.setattr(_schedule, "_other_cores", lambda: {1 << 9})
    monkeypatch.setattr(_schedule.os, "sched_setaffinity", refuse)
    _schedule.over(40, 1 << 30, lambda lo, hi: seen.append(hi - lo))
    assert sum(seen) == 40
    assert len(refused) == 1
    assert refused[0][0] != threading.get_native_id()


def test_a_helper_keeps_nothing_alive(monkeypatch):
    monkeypatch.setattr(_schedule, "thread_count", lambda: 2)

    class Kernel:
        def __call__(self, lo, hi):
            time.sleep(1e-3)

    kernel = Kernel()
    gone = weakref.ref(kernel)
    _schedule.over(40, 1 << 30, kernel)
    del kernel
    for _ in range(100):
        if gone() is None:
            break
        time.sleep(0.01)
    assert gone() is None


def test_a_call_at_the_very_end_of_the_process_returns():
    """Helpers are daemons, and none wakes once the interpreter has begun to end."""
    code = """
import builtins
from softtopk_nb import _schedule
_schedule.thread_count = lambda: 2
done = []
_schedule.over(40, 1 << 30, lambda lo, hi: None)  # makes the helper
class Late:
    def __del__(self, over=_schedule.over, done=done, print=print):
        over(40, 1 << 30, lambda lo, hi: done.append(hi - lo))
        print(sum(done))
builtins.kept_to_the_end = Late()
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "40\n"


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 7, 16, 33])
def test_pieces_grow_smaller_towards_the_end(pieces):
    """They are taken from both ends; the last ones decide how long one thread waits for another."""
    ends = _schedule._shares(pieces)
    assert (ends[0], ends[-1], len(ends)) == (0.0, 1.0, pieces + 1)
    sizes = np.diff(ends)
    assert (np.diff(sizes[: (pieces + 1) // 2]) < 0).all()
    np.testing.assert_allclose(sizes, sizes[::-1], rtol=1e-12)
