"""Checked calls whose entries have costs: k is the sum of costs times the value.

A call with ``cost=`` is checked as one without, but for the range of k; then its costs are laid out
as rows. Its operator is the `priced` one of that called, whose engine reads them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import arguments, host_arrays, scaling
from . import call as _call
from .base import Array, GradientsWithCost

#: Relative rounding errors of a sum of costs: a k so close to it is that sum.
NEAR_32, NEAR_64 = 2.0**-21, 2.0**-46


class Costs(NamedTuple):
    """The costs of rows, as an engine takes them: a row for each, or one for all of them."""

    table: Array  # (rows or 1, n), contiguous, of the type of x
    total: Array  # the sum of each row
    unit: Array  # 2^s, which brings the largest of each row between 1/2 and 1, or near 0.1 eps


class Rows(NamedTuple):
    """A checked problem: one row of `x` for each entry of `k` and `temperature`, and its costs."""

    x: Array
    k: Array
    temperature: Array
    cost: Costs = Costs(*np.empty((3, 0, 0)))  # those of a call that is not checked yet


class Move(NamedTuple):
    """A checked direction in x, k, the temperature and the costs."""

    rows: Array
    numbers: tuple[Array, ...]
    cost: Array


class PricedCall(_call.Call):
    """A checked call with costs; `numbers` are k, the temperature and the costs as given."""

    __slots__ = ()

    def direction(
        self, dx: Any, numbers: tuple[Any, ...], name: str = "dx", *, cotangent: bool = False
    ) -> Any:
        """A checked direction in x, k, the temperature and the costs; None means 0."""
        dk, dtau, dcost = numbers
        rows = self._rows_of(dx, name)
        each = [
            arguments.direction(d, self.batch, self.axis, f"d{of}")
            for of, d in (("k", dk), ("temperature", dtau))
        ]
        costs = self._rows_of(0.0 if dcost is None else dcost, "dcost")
        costs = costs if self.out is None else costs.copy()  # `out` is written before it is read
        return Move(-rows if self.sign < 0 else rows, tuple(each), costs)

    def jvp(self, state: Any, direction: Any) -> Any:
        """The derivative along a direction."""
        x = self.rows.x

        def along(dx: Array, *numbers: Array) -> Array:
            dp = self._empty()
            self.op.cpu.jvp(self.rows, self.options, state, dx, *numbers, dcost, dp)
            return dp

        still = np.zeros_like(x)
        plain = arguments.Direction(x, direction.rows, *direction.numbers)
        dcost = still
        dp = plain.back(scaling.along(along, self.shift, plain.rows, *plain.numbers))
        if direction.cost.any():
            costs = arguments.Direction(x, direction.cost)
            dcost, nothing = costs.rows, np.zeros(len(x))
            dp = dp + costs.back(along(still, nothing, nothing))
        return self.give_back(dp, is_value=False)

    def _gradients(self, state: Any, g: Any) -> tuple[Array, list[Array]]:
        """The gradients in x, k, the temperature (one per row), and the costs, as rows."""
        x = self.rows.x
        cotangent = arguments.Direction(x, self._cotangent(g))
        gx, gcost = np.empty(x.shape, x.dtype), np.empty(x.shape, x.dtype)
        gk, gtau = np.empty(len(x)), np.empty(len(x))
        self.op.cpu.vjp(self.rows, self.options, state, cotangent.rows, gx, gk, gtau, gcost)
        gx, gk, gtau, gcost = map(cotangent.back, (gx, gk, gtau, gcost))
        if self.shift is not None:
            gx, gtau = scaling.scaled(gx, self.shift), scaling.scaled(gtau, self.shift)
        if self.sign < 0:
            np.negative(gx, out=gx)
        return gx, [gk, gtau, gcost]

    def _summed(self, gx: Array, numbers: list[Array]) -> GradientsWithCost:
        """Gradients in the shapes of their arguments, summed over broadcast axes."""
        gk, gtau, gcost = numbers
        k, temperature, cost = self.numbers
        in_k, in_tau = self.sum_to_given(gk, k), self.sum_to_given(gtau, temperature)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            entries = host_arrays.from_rows(gcost, self.shape, self.axis)
            extra = entries.ndim - cost.ndim
            stretched = (
                extra + i for i, n in enumerate(cost.shape) if n == 1 != entries.shape[extra + i]
            )
            axes = (*range(extra), *stretched)
            total = entries.sum(axis=axes, dtype=np.float64) if axes else entries
            in_cost = host_arrays.cast(np.asarray(total).reshape(cost.shape), self.dtype)
        in_x = self.give_back(gx, is_value=False)
        return GradientsWithCost(in_x, in_k, in_tau, in_cost if cost.ndim else in_cost[()])


def are_given(arguments: tuple[Any, ...]) -> bool:
    """Whether the arguments of a verb have a cost among their options, which are the last."""
    return arguments[-1].get("cost") is not None


def check(op: Any, x: Any, *given: Any) -> PricedCall:
    """Check a call with a cost among its options."""
    k, temperature, *order, out, options = given
    own = {name: each for name, each in options.items() if name != "cost"}
    if op.priced is None:
        op.check_options(options)  # raises: it has no cost
    if host_arrays.on_device(x):
        raise NotImplementedError(
            f"cost was given for x on a CUDA device ({type(x).__name__}); expected x in memory: "
            "there is no kernel with costs for a device"
        )
    # The range of k depends on the costs, and is checked when they are known.
    checked = _call.check(op.priced, x, 0.0, temperature, *order, out, own)
    shape, axis = checked.shape, checked.axis
    cost = arguments.real_array(options["cost"], "cost")
    arguments.check_broadcast(cost, shape, "cost")
    x = checked.rows.x
    spread = np.broadcast_to(cost, shape)
    costs = _costs(arguments.entries_as_rows(spread, axis, x.dtype.type, x.shape, out))
    number, of_rows = _budgets(k, costs, checked)
    rows = Rows(x, of_rows, checked.rows.temperature, costs)
    return PricedCall(*checked)._replace(rows=rows, numbers=[number, checked.numbers[1], cost])


def _costs(table: Array) -> Costs:
    """The checked costs."""
    least, most = table.min(axis=1, initial=np.inf), table.max(axis=1, initial=0.0)
    if not ((least > 0.0) & (most < np.inf)).all():
        arguments.check_costs(table)
    # The inverse of a subnormal number may overflow: such costs stay small, and normal.
    exponent = np.finfo(table.dtype).maxexp - 1
    unit = np.ldexp(1.0, np.minimum(-np.frexp(most.astype(np.float64))[1], exponent))
    return Costs(table, table.sum(axis=1, dtype=np.float64), unit)


def _budgets(value: Any, costs: Costs, checked: Any) -> tuple[Any, Array]:
    """(k as given, k of each row), which is at most the sum of the row's costs."""
    clamps = type(value) is arguments.Clamped
    value = value.k if clamps else value
    given = arguments.real_array(value, "k").astype(np.float64)
    arguments.check_per_row(given, checked.batch, checked.axis, "k")
    x, table = checked.rows.x, costs.table
    k = arguments.per_row(given, checked.batch, len(x), checked.axis)
    with np.errstate(over="ignore", under="ignore"):
        most = costs.total * (1.0 + (NEAR_32 if x.dtype == np.float32 else NEAR_64))
    wrong = ~((k >= 0.0) & ((k <= most) | clamps))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        total = np.broadcast_to(costs.total, k.shape)[row]
        raise ValueError(
            f"k is {k[row]:.10g}; expected 0 <= k <= {total:.10g}, the sum of the costs"
        )
    if clamps:
        # Where this is less than k all derivatives are 0, that in k too.
        present = np.where(x != checked.op.excluded, table, 0.0).sum(axis=1, dtype=np.float64)
        np.minimum(k, present, out=k)
    return given, k
