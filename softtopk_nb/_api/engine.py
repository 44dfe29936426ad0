"""The protocol between an operator and everything above it.

An operator is a face (`OP/operator.py`: names, documentation, its own options) and engines that
compute. An engine is a package or module that has the functions below, by these names, with these
parameters and in this order, as far as its operator needs them: without a potential no `losses`,
without a k no `dk`.

* `OP/cpu` works on arrays in memory, on all cores;
* `OP/cuda` works on a device: it launches kernels, and looks at no number there;
* `OP/cpu/chunks.py` works on one row whose entries are in different places (`ChunkedEngine`).

Everything above goes through these: the verbs of `base` and `device_operator`, the losses,
`row_in_pieces` for Dask, and by way of `base` the fronts. Only `nopython` and the handlers of JAX's
compiled programs call kernels themselves.

`rows` is a checked problem. `rows.x` has the scores of each row one after the other, float32 or
float64, of shape (rows, n); `rows.temperature`, and `rows.k` where there is a k, have a float64 for
each row (int64 for a k that must be an integer). `options` is what the operator's own options have
been checked to. What is written goes to arrays that are given, of the shape and type of `rows.x`
for numbers of entries, float64 of shape (rows,) for numbers of rows. On a device arrays are
buffers, and numbers of rows may be one number for all (`_cuda.arrays`).

A function may assume that all of this has been checked. It raises for options alone, before it
writes. Rows with NaN or infinities follow `_nonfinite`, and no row changes another.
"""

from __future__ import annotations

from typing import Any, Protocol

#: The functions that only an engine of arrays in memory has.
IN_MEMORY = {"losses", "state_width", "pack", "unpack"}


class Engine(Protocol):
    """What computes an operator, in memory or on a device."""

    def value(self, rows: Any, options: Any, out: Any) -> None:
        """Write the value."""

    def linearize(self, rows: Any, options: Any, out: Any) -> Any:
        """Write the value; returns the state, with which derivatives need not solve again."""

    def jvp(
        self, rows: Any, options: Any, state: Any, dx: Any, dk: Any, dtau: Any, out: Any
    ) -> None:
        """Write the derivative along dx and directions in the numbers of rows."""

    def vjp(self, rows: Any, options: Any, state: Any, g: Any, gx: Any, gk: Any, gtau: Any) -> None:
        """Write the gradients of <g, value>. If the value is one number, so is g of each row."""

    def second(
        self, rows: Any, options: Any, state: Any, v: Any, a: Any, moves: Any, out: Any, sums: Any
    ) -> None:
        """Write the derivative along v and a, and to `sums` the gradients in k and temperature.

        `moves` are the directions in k and temperature that belong to v and then to a, as columns;
        on a device those of v alone. `sums` has a column each; it means something where a is a
        cotangent.
        """

    def potential(self, rows: Any, options: Any, out: Any) -> None:
        """Write the potential of each row, of which the value is the gradient."""

    def threshold(self, rows: Any, options: Any, out: Any) -> None:
        """Write the threshold of each row, the derivative of the potential in k."""

    def losses(self, rows: Any, options: Any, y: Any, constant: bool, out: Any) -> Any:
        """Potential + conjugate of y - <x, y> of each row; the conjugate if `constant`.

        The value is written to `out`, unless that is None.
        """

    def state_width(self, n: int, options: Any) -> int:
        """How many float64 numbers of a row the packed state has; fronts keep it in that form."""

    def pack(self, rows: Any, options: Any, state: Any) -> Any:
        """The state as an array of shape (rows, `state_width`)."""

    def unpack(self, rows: Any, options: Any, packed: Any) -> Any:
        """The state from this array."""


class ChunkedEngine(Protocol):
    """What computes one row whose entries are in different places.

    `seen` is what a look at all chunks has found, `look` that at the entries which are solved, and
    `solved` a row that was solved. x, v, g and out are entries in chunks, of which all are finite:
    functions that work on them are generators of passes (`_threads.long_rows`). A *kind* is one of
    `_nonfinite` for a row that needs no solving, or -1.
    """

    def ends(self, options: Any) -> tuple[float, float]:
        """The values at entries of +inf and of -inf."""

    def kind(self, n: int, seen: Any, *numbers: Any) -> tuple[int, bool, tuple[Any, ...]]:
        """(kind, whether the finite entries alone are solved, the numbers for these) of a row."""

    def constant(self, found: int, seen: Any, *numbers: Any) -> Any:
        """The values at finite entries, at +inf and at -inf in a row of this kind."""

    def unmoved(self, options: Any, solved: Any) -> float | None:
        """The derivative of a row that nothing moves; None for another row."""

    def value(self, x: Any, numbers: Any, options: Any, look: Any, out: Any) -> Any:
        """Write the value; returns the state."""

    def jvp(self, x: Any, options: Any, solved: Any, v: Any, moves: Any, out: Any) -> Any:
        """Write the derivative along v and `moves`; returns it, if it is one number."""

    def vjp(self, x: Any, options: Any, solved: Any, g: Any, out: Any) -> Any:
        """Write the gradient in x; returns those in the numbers."""

    def number(self, name: str, x: Any, options: Any, solved: Any) -> Any:
        """The potential or the threshold, as `name` says, or a value that is one number."""

    def number_of_few(self, name: str, options: Any, rows: Any, solved: Any) -> float:
        """The same for a row of few entries, as `rows` in memory."""

    def number_of_constant(self, name: str, options: Any, solved: Any, total: float) -> float:
        """The same for a row that needs no solving, whose finite entries sum to `total`."""
