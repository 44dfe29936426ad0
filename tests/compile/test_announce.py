"""The line for whoever waits while a call compiles."""

from __future__ import annotations

import io
import itertools
import logging
import sys
import types

import numpy as np
import pytest
from numba import njit

from softtopk_nb._compile import announce
from softtopk_nb._compile.decorators import in_memory


class Terminal(io.StringIO):
    def isatty(self):
        return True


class OutStream(io.StringIO):
    """As Jupyter's kernels replace `sys.stderr`."""


OutStream.__module__ = "ipykernel.iostream"


class Operator:
    __name__ = "anytopk"

    def __call__(self, seconds, kind="float32", kept=True, x=None):
        """Compile two kernels, each for this time."""
        for _ in range(2):
            with announce.waiting("a.kernel", kind, kept):
                self.clock.now += seconds
        return self.stderr.getvalue()


@pytest.fixture
def call(monkeypatch):
    """Calls an operator that compiles, and returns what is on the terminal then."""
    operator, operator.stderr = Operator(), Terminal()
    operator.clock = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(announce, "clock", lambda: operator.clock.now)
    monkeypatch.setattr(announce, "_announced", set())
    monkeypatch.setattr(announce, "_waits", announce._Waits())
    # pytest replaces `sys.stderr` itself between this and the test.
    operator.sys = types.SimpleNamespace(stderr=operator.stderr, _getframe=sys._getframe)
    monkeypatch.setattr(announce, "sys", operator.sys)
    monkeypatch.setitem(globals(), "__name__", "softtopk_nb.tests")  # as its frames have it
    monkeypatch.delenv(announce.QUIET, raising=False)
    return operator


def test_one_line_says_what_is_compiled_and_how_to_do_it_ahead(call):
    line = call(0.6)
    assert line.startswith("softtopk_nb: compiling anytopk for float32, about ")
    assert "once on this machine; `python -m softtopk_nb compile`" in line
    assert line.count("\n") == 1
    call.clock.now += 100
    assert call(0.6) == line  # not twice
    assert call(0.6, "float64").count("\n") == 1  # nor for two types in one call
    call.clock.now += 100
    assert (
        call(0.6, "float64")
        .splitlines()[1]
        .startswith("softtopk_nb: compiling anytopk for float64")
    )


def test_calls_at_once_after_another_are_announced_too(call):
    assert call(0.6).count("\n") == 1
    assert call(0.6, "float64", x=np.zeros(1)).count("\n") == 2
    other = Operator()
    vars(other).update(vars(call), __name__="othertopk")
    lines = other(0.6).splitlines()
    assert [line.split()[2] for line in lines] == ["anytopk", "anytopk", "othertopk"]
    assert [line.split()[4] for line in lines] == ["float32,", "float64,", "float32,"]


def test_what_no_disk_keeps_is_compiled_for_the_process(call):
    assert call(2.0, kept=False).endswith("for this process\n")


def test_a_short_wait_is_not_announced(call):
    for _ in range(5):
        assert call(0.4) == ""
        call.clock.now += 5


def test_it_comes_while_a_kernel_is_compiling(call, monkeypatch):
    """As soon as the next function that becomes part of it is compiled."""
    ticks = itertools.count(step=1.2)
    monkeypatch.setattr(announce, "clock", lambda: next(ticks))
    seen = []

    @njit
    def part(x):
        return x + 1.0

    def kernel(x):
        x[0] = part(x[0])

    compiled = in_memory(njit(kernel))
    compile_now = compiled._compiler._compile_core

    def compile_and_look(args, return_type):
        result = compile_now(args, return_type)
        seen.append(call.stderr.getvalue())
        return result

    monkeypatch.setattr(compiled._compiler, "_compile_core", compile_and_look)
    compiled(np.zeros(1, np.float32))
    (line,) = seen
    assert line.startswith("softtopk_nb: compiling a function for float32")


@pytest.mark.parametrize("way", ["level", "variable", "no terminal", "closed", "none"])
def test_it_is_silent(call, monkeypatch, way):
    stream = {"no terminal": io.StringIO(), "closed": Terminal(), "none": None}
    if way == "level":
        monkeypatch.setattr(announce, "_LOG", logging.Logger("softtopk_nb", logging.ERROR))
    elif way == "variable":
        monkeypatch.setenv(announce.QUIET, "1")
    else:
        call.sys.stderr = stream[way]
        if way == "closed":
            call.sys.stderr.close()
    assert call(2.0) == ""
    assert way != "no terminal" or call.sys.stderr.getvalue() == ""


def test_a_notebook_shows_it(call):
    call.sys.stderr = OutStream()
    call(2.0)
    assert call.sys.stderr.getvalue().startswith("softtopk_nb: compiling anytopk")


def test_whoever_follows_is_told_instead(call):
    names = []
    with announce.followed_by(names.append):
        assert call(2.0) == ""
    assert names == ["a.kernel"] * 2
