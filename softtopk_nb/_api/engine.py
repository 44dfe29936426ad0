"""The protocol between an operator and the layers above it.

An operator is a public object (`OP/operator.py`: names, documentation, its own options) and engines
that compute. An engine is a package or module that has the functions below, by these names, with
these parameters and in this order, as far as its operator needs them: without a potential no
`losses`, without a k no `dk`.

* `OP/cpu` works on arrays in memory, on all cores;
* `OP/cuda` works on a device: it launches kernels, and reads no number there;
* `OP/cpu/chunks.py` works on one row whose chunks are in different places (`ChunkedEngine`).

All layers above use these functions: a checked call in memory (`call`) and on a device
(`device_call`), `long_row` for a row in chunks, and the losses. Fronts use a checked call, as the
operators' own methods do (`verbs`), or arrays (`array_calls`). Only `nopython` and the handlers of
JAX's compiled programs call kernels themselves.

`rows` is a checked problem. `rows.x` has the scores, contiguous row by row, float32 or float64, of
shape (rows, n); `rows.temperature`, and `rows.k` where there is a k, have a float64 for each row
(int64 for a k that must be an integer). `options` is the result of checking the operator's own
options. Results are written to arrays that are given, of the shape and type of `rows.x` for numbers
of entries, float64 of shape (rows,) for numbers of rows. On a device arrays are buffers, and
numbers of rows may be one number for all (`_cuda.arrays`).

A function may assume that all of this has been checked. It raises for options alone, before it
writes. Rows with NaN or infinities follow `_nonfinite`, and no row affects another.
"""

from __future__ import annotations

from typing import Any, Protocol

#: The functions that only an engine of arrays in memory has.
IN_MEMORY = {"few", "few_vjp", "pack", "unpack"}


class Engine(Protocol):
    """The functions that compute an operator, in memory or on a device."""

    def value(self, rows: Any, options: Any, out: Any) -> None:
        """Write the value."""

    def linearize(self, rows: Any, options: Any, out: Any) -> Any:
        """Write the value; returns the state, with which derivatives need not solve again."""

    def few(self, rows: Any, options: Any) -> Any:
        """A function (rows, out) that does the same for few rows like these, or None.

        It takes a tuple of x and numbers that are the same for all rows. It calls the kernels that
        most rows need, on this thread, and returns the state as `pack` does; or None for rows that
        need others, and then `out` has no meaning.
        """

    def jvp(
        self, rows: Any, options: Any, state: Any, dx: Any, dk: Any, dtau: Any, out: Any
    ) -> None:
        """Write the derivative along dx and directions in the numbers of rows."""

    def vjp(self, rows: Any, options: Any, state: Any, g: Any, gx: Any, gk: Any, gtau: Any) -> None:
        """Write the gradients of <g, value>; g has a number per row if the value has."""

    def few_vjp(self, rows: Any, options: Any) -> Any:
        """A function (rows, state, g, gx) that writes the gradient in x of rows `few` has solved.

        Here None, as there, for `vjp`.
        """

    def second(
        self, rows: Any, options: Any, state: Any, v: Any, a: Any, moves: Any, out: Any, sums: Any
    ) -> None:
        """Write the derivative along v and a, and to `sums` the gradients in k and temperature.

        `moves` are the directions in k and temperature that belong to v and then to a, as columns;
        on a device those of v alone. `sums` has a column for each number; it is a gradient only if
        a is a cotangent.
        """

    def potential(self, rows: Any, options: Any, out: Any) -> None:
        """Write the potential of each row; its gradient in x is the value."""

    def threshold(self, rows: Any, options: Any, out: Any) -> None:
        """Write the threshold of each row, the derivative of the potential in k."""

    def losses(self, rows: Any, options: Any, y: Any, constant: bool, out: Any) -> Any:
        """Each row's loss potential(x) + conjugate(y) - <x, y>, conjugate only if `constant`.

        The value is written to `out`, unless that is None. On a device a row is NaN whose y is no
        target: with numbers outside [0, 1], or another sum than k.
        """

    def surplus(self, rows: Any, options: Any, out: Any) -> None:
        """Write the potential less <x, value>, by a sum in which nothing large cancels.

        By the temperature it is the potential's derivative in the temperature.
        """

    def state_width(self, n: int, options: Any) -> int:
        """Number of float64 per row in the packed state, the form in which fronts keep it.

        On a device the state is such an array, or None if it has no columns.
        """

    def pack(self, rows: Any, options: Any, state: Any) -> Any:
        """The state as an array of shape (rows, `state_width`)."""

    def unpack(self, rows: Any, options: Any, packed: Any) -> Any:
        """The state from its packed form."""


class ChunkedEngine(Protocol):
    """The functions that compute one row whose chunks are in different places.

    `seen` is the result of a scan of all chunks, `look` that of the entries which are solved, and
    `solved` a solved row. x, v, g and out are entries in chunks, all of them finite: functions on
    these are generators of passes (`_threads.long_rows`). A *kind* is one of `_nonfinite` for a row
    that needs no solving, or -1.
    """

    def ends(self, options: Any) -> tuple[float, float]:
        """The values at entries of +inf and of -inf."""

    def kind(self, n: int, seen: Any, *numbers: Any) -> tuple[int, bool, tuple[Any, ...]]:
        """(kind of a row, whether only the finite entries are solved, the numbers for these)."""

    def constant(self, found: int, seen: Any, *numbers: Any) -> Any:
        """The values at finite entries, at +inf and at -inf in a row of this kind."""

    def unmoved(self, options: Any, solved: Any) -> float | None:
        """The derivative of a row that is constant; None for any other row."""

    def value(self, x: Any, numbers: Any, options: Any, look: Any, out: Any) -> Any:
        """Write the value; returns the state."""

    def jvp(self, x: Any, options: Any, solved: Any, v: Any, moves: Any, out: Any) -> Any:
        """Write the derivative along v and `moves`; returns it if it is a single number."""

    def vjp(self, x: Any, options: Any, solved: Any, g: Any, out: Any) -> Any:
        """Write the gradient in x; returns those in the numbers."""

    def number(self, name: str, x: Any, options: Any, solved: Any) -> Any:
        """The potential or the threshold, as `name` says, or the value if it is a single number."""

    def number_of_few(self, name: str, options: Any, rows: Any, solved: Any) -> float:
        """The same number for a row of few entries, as `rows` in memory."""

    def number_of_constant(self, name: str, options: Any, solved: Any, total: float) -> float:
        """The same number for a row that needs no solving, whose finite entries sum to `total`."""
