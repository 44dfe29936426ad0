"""Recorded verbs of rows on a device: what `array_calls` is in memory, for arrays of a front.

A front that compiles (JAX) knows shapes and types long before there is memory, and calls with
addresses later. The arguments of a verb are x, k, the temperature, the state, and directions or a
cotangent, in this order, which is also that of their slots. The numbers of a row (k, the
temperature, directions in them) are float64.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from .._cuda.arrays import Argument, Buffer
from .._cuda.copying import new_buffer
from .._cuda.interop import nothing
from .._cuda.program import Block, Memory, Number, Place, Program, Recording
from .._cuda.program import replay as replay
from . import array_calls, device_call

# Slots: arguments, results, memory that is not kept.
X, K, TEMPERATURE, STATE, FIRST, OTHER = 0, 1, 2, 3, 4, 7
NUMBERS = {K, TEMPERATURE, FIRST + 1, FIRST + 2, OTHER + 1, OTHER + 2}
RESULTS, SCRATCH, SLOTS = 10, 13, 14

# Forms of a number: one in memory for each row, or one for all that each call has its own of. A
# number itself is a constant of the program.
IN_MEMORY, OF_CALL = "in memory", "of the call"


class Problem(NamedTuple):
    """What the launches of a verb follow from."""

    op: Any
    options: tuple[tuple[str, Any], ...]
    shape: tuple[int, int]  # rows and their length
    dtype: Any  # np.float32 or np.float64
    forms: tuple[tuple[int, Any], ...]  # (slot, form) of each number that the verb takes


class Recorded(NamedTuple):
    """The program of a verb, and its results: arrays, or None where nothing is written."""

    program: Program
    results: tuple[Memory | None, ...]


class _Verbs:
    """The verbs on memory that is not there; each returns its results."""

    def __init__(self, problem: Problem, recording: Recording) -> None:
        self.problem, self.recording, self._forms = problem, recording, dict(problem.forms)
        options = dict(problem.options)
        self._constant = options.pop("constant", True)  # of a loss
        self._call = device_call.check(
            problem.op, self._array(X), 0, 1.0, -1, True, None, None, options
        )
        k, temperature = self._number(K), self._number(TEMPERATURE)
        rows = self._call.rows._replace(k=k, temperature=temperature)
        self._call = self._call._replace(rows=rows)

    def _array(self, slot: int) -> Memory:
        problem = self.problem
        return Memory(self.recording.kind, Block(slot), problem.shape, problem.dtype)

    def _number(self, slot: int) -> Argument:
        form = self._forms.get(slot, 0.0)
        if form == IN_MEMORY:
            return Argument(Place(Block(slot)), 0.0, 1)
        value = Number(1.0, slot) if form == OF_CALL else float(form)
        return Argument(nothing(np.float64).pointer, value, 0)

    def _direction(self, slot: int) -> device_call.Direction:
        direction = self._call.direction(self._array(slot), (None, None))
        return direction._replace(numbers=(self._number(slot + 1), self._number(slot + 2)))

    def _state(self) -> Any:
        """The state that `solve` has left, or one that is solved for here."""
        problem = self.problem
        if not keeps(problem):
            return self._call.state()
        place = Place(Block(STATE))
        return Buffer(place, None, place) if _state_width(*_row(problem)) else None

    def _results(self, gradients: Any) -> list[Any]:
        """Gradients as results; None in a k that has none."""
        gx, numbers = gradients
        fixed = self.problem.op.fixed
        return [gx.finish(), *[None] * fixed, *(each.owner for each in numbers[fixed:])]

    def value(self) -> list[Any]:
        """The value alone."""
        return [self._call.value()]

    def solve(self) -> list[Any]:
        """The value, and the state if it is kept."""
        if not keeps(self.problem):
            return [self._call.value(), None]
        p, state = self._call.solve()
        return [self._call.give_back(p), getattr(state, "owner", None)]

    def jvp(self) -> list[Any]:
        """The derivative along a direction."""
        return [self._call.jvp(self._state(), self._direction(FIRST))]

    def vjp(self) -> list[Any]:
        """The gradients of <cotangent, value>, those in numbers one per row."""
        return self._results(self._call.vjp_of_rows(self._state(), self._array(FIRST)))

    def vjp_of_jvp(self) -> list[Any]:
        """The gradients of <cotangent, derivative along a direction>."""
        given = self._direction(FIRST), self._direction(OTHER)
        return self._results(self._call.second_of_rows(self._state(), *given))

    def jvp_of_jvp(self) -> list[Any]:
        """The derivative along two directions, one of which moves x alone.

        It is the gradient of <one, derivative along the other>, as p is a gradient itself.
        """
        order = [FIRST, OTHER]
        if not self._moves_x_alone(OTHER):
            order.reverse()
        if not self._moves_x_alone(order[1]):
            raise NotImplementedError("no derivative along k or the temperature twice on a device")
        given = map(self._direction, order)
        return [self._call.second_of_rows(self._state(), *given)[0].finish()]

    def _moves_x_alone(self, slot: int) -> bool:
        return not (self._forms[slot + 1] or self._forms[slot + 2])

    def _number_of_row(self, name: str) -> list[Any]:
        call = self._call
        out = new_buffer(self.recording.kind, call.given.rows, np.float64)
        getattr(call.engine, name)(call.rows, call.options, out)
        return [out.owner]

    def potential(self) -> list[Any]:
        """The potential of each row."""
        return self._number_of_row("potential")

    def threshold(self) -> list[Any]:
        """The threshold of each row."""
        return self._number_of_row("threshold")

    def surplus(self) -> list[Any]:
        """The potential of each row less <x, value>."""
        return self._number_of_row("surplus")

    def loss(self) -> list[Any]:
        """The Fenchel-Young loss of each row against a target; NaN where it is none."""
        call = self._call
        y = device_call.tangent(call.given, self._array(FIRST), "target")
        return [call.engine.losses(call.rows, call.options, y, self._constant, None).owner]


def _row(problem: Problem) -> tuple[Any, ...]:
    return problem.op, problem.options, problem.shape[-1], problem.dtype


@functools.cache
def _state_width(op: Any, options: Any, n: int, dtype: Any) -> int:
    """Number of float64 in the state of a row, as a device has it."""
    forms = (K, IN_MEMORY), (TEMPERATURE, IN_MEMORY)
    verbs = _Verbs(Problem(op, options, (1, n), dtype, forms), Recording(SCRATCH))
    state = verbs._call.solve()[1]
    return 0 if state is None else int(state.owner.view.size)


def keeps(problem: Problem) -> bool:
    """Whether the state of `solve` is kept for derivatives, which otherwise solve again.

    Its width is that of the CPU on every platform: a program may be compiled for several at once.
    """
    op, options, n, _ = _row(problem)
    return _state_width(*_row(problem)) == array_calls.state_width(op, dict(options), n)


def record(verb: str, problem: Problem) -> Recorded:
    """Record a verb on rows; results have the slots from RESULTS on."""
    recording = Recording(SCRATCH)
    results = getattr(_Verbs(problem, recording), verb)()
    own = ((each, RESULTS + i) for i, each in enumerate(results) if each is not None)
    return Recorded(recording.program(*own), tuple(results))
