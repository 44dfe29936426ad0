"""Sharing out work: every range is done, and done once, by whichever threads there are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest
from numba import njit

import softtopk_nb as stk
from softtopk_nb._compile.pipeline import KernelCompiler
from softtopk_nb._threads import jobs
from softtopk_nb._threads import pool as schedule

MUCH = 1 << 30  # nanoseconds of work, so that all threads are asked
over_ranges = njit(nogil=True, pipeline_class=KernelCompiler)


@over_ranges
def mark(lo, hi, times, spins):
    """Note each unit, after some work that the compiler cannot leave out."""
    for i in range(lo, hi):
        v = np.float64(i)
        for _ in range(spins):
            v = np.sqrt(v + 1.0)
        times[i] += 1.0 + 0.0 * v


@over_ranges
def fail(lo, hi, times, bad):
    for i in range(lo, hi):
        if i == bad:
            raise ArithmeticError("no such unit")
        times[i] += 1.0


@over_ranges
def note_cores(lo, hi, cores, get_core):
    for i in range(lo, hi):
        cores[i] = get_core()


@pytest.fixture
def new_pool(monkeypatch):
    """Helpers of the test's own."""
    pool = schedule._Pool()
    monkeypatch.setattr(schedule, "_pool", pool)
    yield pool
    pool.close()


def use_threads(monkeypatch, threads):
    monkeypatch.setattr(schedule, "thread_count", lambda: threads)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000, 54321])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_unit_is_done_once(monkeypatch, new_pool, count, threads):
    use_threads(monkeypatch, threads)
    times = np.zeros(count)
    for repeat in range(1, 6):
        schedule.over(count, MUCH, mark, times, 20)
        assert (times == repeat).all()
    assert new_pool.made <= threads - 1
    assert len(new_pool.idle) == new_pool.made


def test_little_work_stays_in_the_calling_thread():
    seen = []
    schedule.over(10, 1000, lambda lo, hi: seen.append((lo, hi, threading.current_thread())))
    assert seen == [(0, 10, threading.current_thread())]


def test_helpers_take_part(monkeypatch, new_pool):
    """Ten calls: a helper that wakes late in one is awake in the next."""
    use_threads(monkeypatch, 2)
    times = np.zeros(10000)
    start = time.process_time(), time.thread_time()
    for _ in range(10):
        schedule.over(len(times), 50_000_000, mark, times, 1000)
    in_all, here = time.process_time() - start[0], time.thread_time() - start[1]
    assert (times == 10).all()
    assert in_all - here > 0.1 * here


def test_short_rows_are_taken_by_the_lanes_full(monkeypatch, new_pool):
    """Kernels work on 16 short rows side by side: a range of 15 would take as long as one of 16."""
    use_threads(monkeypatch, 2)
    units, record = [], schedule._Helper.record
    monkeypatch.setattr(
        schedule._Helper, "record", lambda self, *given: units.append(given) or record(self, *given)
    )
    for rows, n in ((65536, 64), (8192, 128), (1000, 1000), (64, 65536)):
        schedule.over(rows, rows * n, mark, np.zeros(rows), 1)
    assert units == [(0, 65536, 256, 2), (0, 8192, 128, 2), (0, 1000, 32, 2), (0, 64, 1, 2)]


@pytest.mark.parametrize("bad", [0, 1, 500, 999])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_in_any_range_is_raised_once_all_have_ended(monkeypatch, new_pool, bad, threads):
    use_threads(monkeypatch, threads)
    times = np.zeros(1000)
    for _ in range(5):
        with pytest.raises(ArithmeticError, match="no such unit"):
            schedule.over(1000, MUCH, fail, times, bad)
    assert times[bad] == 0
    found = times.copy()
    time.sleep(0.02)
    assert (times == found).all()  # nothing goes on behind the caller's back
    schedule.over(1000, MUCH, fail, times, -1)  # and the helpers are as before
    assert (times == found + 1).all()


def test_a_helper_that_does_not_come_is_not_waited_for(monkeypatch, new_pool):
    use_threads(monkeypatch, 2)
    gate = threading.Event()
    monkeypatch.setattr(schedule, "serve", lambda box, patience: gate.wait(10))
    times = np.zeros(1000)
    for _ in range(3):
        schedule.over(1000, MUCH, mark, times, 20)
    assert (times == 3).all()
    (helper,) = new_pool.idle
    assert helper._memory[jobs.STATE // jobs.WORD] == jobs.IDLE  # the offer was taken back
    gate.set()


def test_without_new_threads_the_caller_does_it_all(monkeypatch, new_pool):
    def exhausted():
        raise RuntimeError("can't start new thread")

    use_threads(monkeypatch, 4)
    monkeypatch.setattr(schedule, "_Helper", exhausted)
    times = np.zeros(1000)
    schedule.over(1000, MUCH, mark, times, 20)
    assert (times == 1).all()
    assert new_pool.made == 0


def test_a_closed_pool_has_no_helper(new_pool):
    """At the end of the process, when no thread may be in machine code any more."""
    assert new_pool.helper(1) is not None
    new_pool.close()
    assert new_pool.helper(2) is None


def test_thread_count_is_at_least_one(monkeypatch):
    assert schedule.thread_count() >= 1
    monkeypatch.setattr(schedule.config, "NUMBA_NUM_THREADS", 1)
    assert schedule.thread_count() == 1


def test_no_more_threads_than_there_may_be(monkeypatch, new_pool):
    """Also where several threads call at once: those that find no helper work alone."""
    use_threads(monkeypatch, 3)
    done = np.zeros((6, 400))

    def call(i):
        for _ in range(20):
            schedule.over(400, MUCH, mark, done[i], 2000)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert (done == 20).all()
    assert 1 <= new_pool.made <= 2
    assert len(set(new_pool.idle)) == len(new_pool.idle) == new_pool.made


def test_a_helper_sleeps_when_there_is_no_more_to_do(monkeypatch, new_pool):
    """It looks out for some 100 microseconds after a call, and then costs nothing."""
    use_threads(monkeypatch, 4)
    times = np.zeros(10000)
    schedule.over(10000, MUCH, mark, times, 20)
    time.sleep(0.01)
    start = time.process_time()
    time.sleep(0.1)
    assert time.process_time() - start < 0.02
    assert all(helper._asleep for helper in new_pool.idle)


@pytest.mark.skipif(schedule._core is None, reason="threads cannot be told their cores here")
def test_a_helper_is_kept_off_the_core_that_wakes_it(monkeypatch, new_pool):
    """And neither the caller nor any other thread loses one."""
    use_threads(monkeypatch, 2)
    mine = os.sched_getaffinity(0)
    if len(mine) == 1:
        pytest.skip("this process has one core: there is no other to send a helper to")
    times = np.zeros(1000)
    for core in sorted(mine)[:3]:
        os.sched_setaffinity(0, {core, *sorted(mine - {core})[:1]})
        monkeypatch.setattr(schedule, "_core", lambda core=core: core)
        given = os.sched_getaffinity(0)
        try:
            schedule.over(1000, MUCH, mark, times, 20)
            assert os.sched_getaffinity(0) == given
            (helper,) = new_pool.idle
            assert os.sched_getaffinity(helper._id) == given - {core}
            helper.settle()  # where it is told, it is on its way to sleep or asleep
        finally:
            os.sched_setaffinity(0, mine)


@pytest.mark.skipif(schedule._core is None, reason="threads cannot be told their cores here")
def test_cores_that_cannot_be_given_are_no_error(monkeypatch, new_pool):
    use_threads(monkeypatch, 2)

    def refuse(thread, cores):
        refused.append((thread, cores))
        raise OSError(22, "Invalid argument")

    refused, times = [], np.zeros(1000)
    monkeypatch.setattr(schedule, "_other_cores", lambda: {1 << 9})
    monkeypatch.setattr(schedule.os, "sched_setaffinity", refuse)
    schedule.over(1000, MUCH, mark, times, 20)
    assert (times == 1).all()
    assert len(refused) == 1
    assert refused[0][0] != threading.get_native_id()


def test_a_helper_keeps_nothing_alive(monkeypatch, new_pool):
    """Memory that a call has used is free at once, for the next one to use again."""
    use_threads(monkeypatch, 2)
    for _ in range(20):
        times = np.zeros(1000)
        gone = weakref.ref(times)
        schedule.over(1000, MUCH, mark, times, 20)
        del times
        assert gone() is None


def in_a_process(body, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(body), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout


def test_a_call_at_the_very_end_of_the_process_returns():
    """Helpers are daemons, and none wakes once the interpreter has begun to end."""
    out = in_a_process(
        """
        import builtins
        import numpy as np
        from numba import njit
        from softtopk_nb._compile.pipeline import KernelCompiler
        from softtopk_nb._threads import pool
        pool.thread_count = lambda: 2
        @njit(nogil=True, pipeline_class=KernelCompiler)
        def mark(lo, hi, times):
            times[lo:hi] += 1
        times = np.zeros(1000)
        pool.over(1000, 1 << 30, mark, times)  # makes the helper
        class Late:
            def __del__(self, over=pool.over, mark=mark, times=times, print=print):
                over(1000, 1 << 30, mark, times)
                print(set(times.tolist()))
        builtins.kept_to_the_end = Late()
        """
    )
    assert out == "{2.0}\n"


def test_a_process_may_end_right_after_a_call():
    """While a helper still looks out for work, the code that it looks with must not go."""
    for _ in range(5):
        out = in_a_process(
            """
            import numpy as np
            from softtopk_nb import hardtopk
            from softtopk_nb._threads import pool
            pool.thread_count = lambda: 4
            print(hardtopk(np.arange(1e5).reshape(100, 1000), 7).sum())
            """
        )
        assert out == "700.0\n"


def test_a_kernel_is_called_where_it_was_compiled(monkeypatch, new_pool):
    """One copy of its machine code, whoever calls: sums cannot come out in another order."""
    use_threads(monkeypatch, 2)
    times = np.zeros(1000)
    mark(0, 0, times, 1)
    (compiled,) = (mark.overloads[kinds] for kinds in mark.signatures if len(kinds) == 4)
    name = compiled.fndesc.llvm_func_name
    address = compiled.library.get_pointer_to_function(name)
    assert schedule.code_of(mark, (times, 1)).address == address
    assert schedule.code_of(mark, (times, 1)).address == address  # from the notes


def test_a_kernel_that_cannot_be_shared_is_refused(monkeypatch, new_pool):
    use_threads(monkeypatch, 2)
    plain = njit(nogil=True)(lambda lo, hi, times: None)
    with pytest.raises(TypeError, match="no kernel over ranges"):
        schedule.over(1000, MUCH, plain, np.zeros(1000))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_interrupt_is_seen_before_the_call_ends(threads):
    """Ctrl-C: signals are handled between slices, so costly rows must be known.

    The call would take seconds. After it everything is as before: helpers, locks, results.
    """
    out = in_a_process(
        """
        import _thread, signal, sys, threading, time
        import numpy as np
        from softtopk_nb import gradtopk
        from softtopk_nb._threads import pool
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job ignores it
        pool.thread_count = lambda: int(sys.argv[1])
        x = np.random.default_rng(0).normal(size=(1200, 1000)).astype(np.float32)
        def call(rows):
            return gradtopk(rows, 500, method="recursion", temperature=100.0)
        expected = call(x[:64])
        sent = []
        def interrupt():
            time.sleep(0.3)
            sent.append(time.perf_counter())
            _thread.interrupt_main()
        threading.Thread(target=interrupt).start()
        try:
            call(x)
            print("too late", end=" ")
            time.sleep(1)
        except KeyboardInterrupt:
            print(time.perf_counter() - sent[0], end=" ")
        helpers = pool._pool
        print(len(helpers.idle) == helpers.made == int(sys.argv[1]) - 1, end=" ")
        print((call(x[:64]) == expected).all())
        """,
        threads,
    )
    seconds, *rest = out.split()
    assert rest == ["True", "True"]
    assert float(seconds) < 1


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("exp", lambda x: stk.sinkhorn(x.reshape(1500, 2000), temperature=5.0, tol=0.1)),
        ("power", lambda x: stk.gradual.vjp(np.abs(x) / 10, 2.5)[0]),
        ("logaddexp", lambda x: stk.KSubset(x, 9).log_prob(x >= np.sort(x)[-9])),
        ("log1p", lambda x: stk.KSubset(x, 9).entropy()),
        ("argpartition", lambda x: stk.gumbel_topk(x, 9, rng=0)),
    ],
    ids=["sinkhorn", "gradual", "log_prob", "entropy", "gumbel_topk"],
)
def test_no_step_of_numpy_is_long(step, call, monkeypatch):
    """Ctrl-C: signals are handled between these steps, of a row or a matrix of any size."""
    sizes, function = [], getattr(np, step)

    def noted(*arrays, **options):
        sizes.append(max(map(np.size, arrays)))
        return function(*arrays, **options)

    x = np.random.default_rng(0).normal(size=3_000_000)
    call(x)  # Numba, which may have to be loaded, looks at functions of NumPy as well
    monkeypatch.setattr(np, step, noted)
    call(x)
    assert 1 < max(sizes) <= 1 << 20
