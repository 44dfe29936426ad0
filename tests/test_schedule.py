"""Sharing out work: every piece is done, and done once."""

from __future__ import annotations

import threading

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
    assert len(calls) == min(count, threads)
    if calls:
        assert any(thread is threading.current_thread() for _, _, thread in calls)


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
    assert sorted(done) == [0, 1, 2, 3]


def test_without_new_threads_the_caller_does_it_all(monkeypatch):
    class Exhausted:
        def submit(self, *args):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_schedule, "thread_count", lambda: 4)
    monkeypatch.setattr(_schedule, "_helpers", lambda count: Exhausted())
    seen = []
    _schedule.over(10, 1 << 30, lambda lo, hi: seen.append((lo, hi)))
    assert seen == [(0, 10)]


def test_thread_count_is_at_least_one(monkeypatch):
    assert _schedule.thread_count() >= 1
    monkeypatch.setattr(_schedule.config, "NUMBA_NUM_THREADS", 1)
    assert _schedule.thread_count() == 1
