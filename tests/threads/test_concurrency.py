"""Threads, forks and process pools: right bits, no hang, nothing set in the environment.

Each scenario runs in a process of its own under a time limit, so that a deadlock is a failure
and not the end of the test run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

LIMIT = 120  # seconds; each takes a few

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")

PREAMBLE = """
import hashlib, os, sys, threading, time
import numpy as np
import softtopk_nb as stk
from softtopk_nb._threads import long_rows, pool

def digest(seed):
    # Large enough for several threads, and one long row shared out in parts.
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 1000)).astype(np.float32)
    row = rng.normal(size=long_rows.LONG + 5).astype(np.float32)
    h = hashlib.sha256()
    p, pullback = stk.thretopk.vjp(x, 7, temperature=0.3)
    h.update(p.tobytes())
    h.update(pullback(x).x.tobytes())
    h.update(stk.thretopk(row, 1000.5).tobytes())
    h.update(stk.hardtopk(x, 7).tobytes())
    h.update(stk.hardtopk(row, 1000).tobytes())
    h.update(stk.thretopk.potential(row, 1000.5).tobytes())
    p, pullback = stk.gradtopk.vjp(x, 7)
    h.update(p.tobytes())
    h.update(pullback(x).x.tobytes())
    h.update(stk.gradtopk(row, 1000).tobytes())
    h.update(stk.itertopk(x, 3).tobytes())
    h.update(stk.wsoftmaxtopk(x, 3).tobytes())
    return h.hexdigest()

def in_child(work):
    # Exit code 0 if `work` is true in a forked child.
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "hang"
"""


def run(body: str, *, limit: int = LIMIT, **environment: str) -> str:
    """Run a script after PREAMBLE in a fresh interpreter and return what it prints."""
    result = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            PREAMBLE + textwrap.dedent(body),
        ],
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **environment},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_sixteen_threads_calling_at_once():
    out = run(
        """
        expected = [digest(s) for s in range(4)]
        assert len(set(expected)) == 4
        got = {}
        gate = threading.Barrier(16)
        def work(i):
            gate.wait()
            got[i] = [digest(s) for s in range(4)]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(got) == 16 and all(g == expected for g in got.values())
        print("right")
        """
    )
    assert out == "right"


def test_sixteen_threads_making_the_first_call():
    # Compilation itself must stand being asked for by everyone at once.
    out = run(
        """
        got = {}
        gate = threading.Barrier(16)
        def work(i):
            gate.wait()
            got[i] = digest(0)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(got) == 16 and len(set(got.values())) == 1
        print("right")
        """
    )
    assert out == "right"


@pytest.mark.slow
def test_sixteen_threads_making_the_first_calls(tmp_path):
    """Every verb of an operator of each kind, on a cold cache: one digest and no exception."""
    out = run(
        """
        import functools
        from softtopk_nb._api.operator import registry
        x = np.array([0.3, -1.2, 2.0, 0.7, 0.1])

        def leaves(result):
            for leaf in result if isinstance(result, tuple) else [result]:
                if callable(leaf):
                    yield from leaves(leaf(1.0))
                elif leaf is not None:
                    yield np.asarray(leaf).tobytes()

        more = {"jvp": [x[::-1]], "vjp": [], "potential": [], "threshold": []}
        names = ["thretopk", "hardtopk", "softmax", "logsumexp"]
        calls = {}
        for name in names:
            op, k = getattr(stk, name), [2] if name in registry else []
            calls[name] = functools.partial(op, x, *k)
            for verb in more:
                if hasattr(op, verb):
                    method = getattr(op, verb)
                    calls[name, verb] = functools.partial(method, x, *k, *more[verb])

        got = [None] * 16
        gate = threading.Barrier(16)
        def work(i):
            order = [*calls][i // 4 :] + [*calls][: i // 4]  # four threads begin with each
            gate.wait()
            results = {call: b"".join(leaves(calls[call]())) for call in order}
            got[i] = hashlib.sha256(b"".join(results[call] for call in calls)).hexdigest()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert None not in got
        print(len(names), len(calls), len(set(got)))
        """,
        limit=4 * LIMIT,
        NUMBA_CACHE_DIR=str(tmp_path),
    )
    operators, calls, digests = map(int, out.split())
    assert calls > 2 * operators
    assert digests == 1


def test_bits_do_not_depend_on_the_number_of_threads():
    one = run("print(digest(0))", NUMBA_NUM_THREADS="1")
    assert one == run("print(digest(0))")
    assert one == run("pool.thread_count = lambda: 7\nprint(digest(0))")


@needs_fork
def test_fork_after_use():
    out = run(
        """
        pool.thread_count = lambda: 3
        expected = digest(0)
        for _ in range(3):  # in a child there are no helpers until it makes its own
            code = in_child(lambda: digest(0) == expected and threading.active_count() > 1)
            assert code == 0, code
        assert digest(0) == expected
        # and a child of a child
        code = in_child(lambda: in_child(lambda: digest(0) == expected) == 0)
        assert code == 0, code
        print("right")
        """
    )
    assert out == "right"


@needs_fork
def test_fork_while_other_threads_are_inside_a_kernel():
    out = run(
        """
        expected = digest(0)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                digest(1)
        threads = [threading.Thread(target=work) for _ in range(3)]
        [t.start() for t in threads]
        try:
            for _ in range(8):
                code = in_child(lambda: digest(0) == expected)
                assert code == 0, code
        finally:
            stop.set()
            [t.join() for t in threads]
        assert digest(0) == expected
        print("right")
        """
    )
    assert out == "right"


@pytest.mark.slow
@needs_fork
def test_fork_while_another_thread_compiles():
    out = run(
        """
        expected = digest(0)
        x = np.arange(9.0)
        def work():  # a curve of one's own is compiled in each process
            for j in range(3):
                curve = stk.Curve(lambda t: 0.5 + 0.5 * np.tanh(t), lambda t: 0.5 / np.cosh(t) ** 2)
                stk.thretopk(x, 2, curve=curve)
        thread = threading.Thread(target=work)
        thread.start()
        codes = set()
        while thread.is_alive():
            codes.add(in_child(lambda: digest(0) == expected))
            time.sleep(0.2)
        thread.join()
        assert codes == {0}, codes
        print("right")
        """
    )
    assert out == "right"


@pytest.mark.parametrize(
    "method",
    [pytest.param("fork", marks=needs_fork), pytest.param("spawn", marks=pytest.mark.slow)],
    ids=["fork", "spawn"],
)
def test_process_pool(tmp_path, method):
    script = tmp_path / "pool_script.py"
    script.write_text(
        PREAMBLE
        + textwrap.dedent(
            f"""
            import concurrent.futures as cf, multiprocessing as mp
            if __name__ == "__main__":
                expected = [digest(s) for s in range(4)]
                with cf.ProcessPoolExecutor(3, mp_context=mp.get_context({method!r})) as pool:
                    assert list(pool.map(digest, range(4))) == expected
                print("right")
            """
        )
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "right"


def test_call_while_the_interpreter_shuts_down():
    out = run(
        """
        import atexit
        expected = digest(0)
        atexit.register(lambda: print(digest(0) == expected))
        """
    )
    assert out == "True"


def test_the_gil_is_released():
    out = run(
        """
        x = np.random.default_rng(0).normal(size=(1, long_rows.LONG - 1))
        stk.thretopk(x, 1000, curve="normal")
        ticks = 0
        done = threading.Event()
        def work():
            for _ in range(10):
                stk.thretopk(np.repeat(x, 4, 0), 1000, curve="normal")
            done.set()
        thread = threading.Thread(target=work)
        began = time.perf_counter()
        thread.start()
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)
        elapsed = time.perf_counter() - began
        thread.join()
        # Held for whole calls, the lock would be free for some ten ticks, however fast the machine.
        print(ticks > 250 * elapsed)
        """
    )
    assert out == "True"


def test_no_numba_threading_layer_is_started():
    out = run(
        """
        digest(0)
        import numba
        try:
            print(numba.threading_layer())
        except ValueError:
            print("none")
        """
    )
    assert out == "none"
