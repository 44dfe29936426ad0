"""Sinkhorn's iteration: a softmax over pairs, with given row and column sums."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .._api import arguments, fronts, host_arrays, typed
from .._api.base import Array
from .._threads.parts import parts
from .._threads.transposing import transposed
from .operator import from_largest

_SINGULAR = 1e-13  # eigenvalues that are rounding errors, where the largest is 1


class ConvergenceError(RuntimeError):
    """An iteration did not reach its tolerance within the iterations it was allowed.

    Parameters
    ----------
    message : str
        What to say.
    error : float
        The largest error that was left.
    iterations : int
        How many iterations were made.

    Examples
    --------
    >>> import softtopk_nb as stk
    >>> try:
    ...     stk.sinkhorn([[1.0, 0.0], [0.0, 9.0]], temperature=0.1, max_iter=1)
    ... except stk.ConvergenceError as error:
    ...     error.iterations
    1
    """

    def __init__(self, message: str, error: float, iterations: int) -> None:
        super().__init__(message, error, iterations)
        self.error = error
        self.iterations = iterations

    def __str__(self) -> str:
        return str(self.args[0])


class _Problem(NamedTuple):
    """Matrices that have not yet converged: scores, marginals, and logarithms of the scalings."""

    where: Array  # (matrices,), position in the result
    z: Array  # (matrices, n, m), scores in temperatures
    zt: Array  # (matrices, m, n), so that both sums run along the last axis
    rows: Array  # (matrices, n)
    columns: Array  # (matrices, m)
    f: Array  # (matrices, n)
    g: Array  # (matrices, m)


@typed.function
def sinkhorn(
    scores: typed.Numbers,
    /,
    rows: typed.Numbers | None = None,
    columns: typed.Numbers | None = None,
    *,
    temperature: typed.Numbers = 1.0,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> Any:
    """Soft assignment: the matrix exp((scores - a_i - b_j) / temperature) with given marginals.

    Of all nonnegative matrices P with these row and column sums, it is the one that maximises
    sum P scores - temperature * sum P log P. As the temperature goes to 0 it becomes the best
    assignment, if there is only one.

    Parameters
    ----------
    scores : array_like, shape (..., n, m)
        How well row i and column j go together; n, m >= 1, any type that `softmax` takes. -inf
        forbids a pair. Computed in float64.
    rows, columns : array_like, default=None
        Sums of the rows, shape (..., n), and of the columns, shape (..., m), broadcast over the
        batch; nonnegative, with the same positive total (to 1e-9 of it; columns are then scaled to
        the total of the rows). By default equal parts of the total, and the total is n if neither
        is given: rows sum to 1, and so do the columns of a square matrix.
    temperature : float or array_like, default=1.0
        The smoothing, in the units of the scores; broadcast over the batch.
    tol : float, default=1e-9
        Stop when the L1 error of the row sums is at most this part of the total mass. The column
        sums are then exact up to rounding.
    max_iter : int, default=1000
        How many sweeps over rows and columns to make at most.

    Returns
    -------
    P : array of the scores' shape and type
        The assignment. The marginals hold before it is rounded to a narrower type.

    Raises
    ------
    TypeError
        An argument of a wrong type.
    ValueError
        Scores that are NaN or +inf, a row or column with mass but without a pair that is allowed,
        marginals that are negative, not finite, of a wrong shape, without mass, or of different
        totals; tol, max_iter or a temperature that is not positive and finite.
    ConvergenceError
        A subclass of RuntimeError: the tolerance was not reached. Nothing is returned then.

    See Also
    --------
    softmax : one row, without the condition on columns.

    Notes
    -----
    *Holds*: the marginals (rows to `tol`), and P has the form above to rounding: it is the exact
    solution for row sums that differ from the given ones by at most tol in L1. Matrices of a batch
    do not influence each other. *Does not hold*: P is not close to a permutation unless the
    temperature is small against the gaps between assignments, and then the sweeps are many.

    *Cost*: O(n m) exponentials for each sweep. The error never rises, and after t sweeps is at
    most sqrt(2 (R + log m - H) / t), R = (max - min of the scores)/temperature and H the entropy
    of the columns' shares. Once small it falls geometrically, but the more slowly the nearer P is
    to a permutation: where the temperature is a tenth of the gaps, expect an error of 1e-5 after
    thousands of sweeps, and set `tol` accordingly. With forbidden pairs there may be no solution,
    or one that is approached slowly; then ConvergenceError is raised.

    Rows and columns of mass 0 are 0 in P.

    Source: "Softmax demystified"; Sinkhorn (1964), Cuturi (2013).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> scores = np.array([[3.0, 2.0, 0.0], [3.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    >>> P = stk.sinkhorn(scores, temperature=0.5)
    >>> P.round(3)
    array([[0.306, 0.638, 0.056],
           [0.683, 0.192, 0.125],
           [0.011, 0.17 , 0.819]])
    """
    if front := fronts.function("sinkhorn", scores):
        given = {"temperature": temperature, "tol": tol, "max_iter": max_iter}
        return front(scores, rows, columns, **given)
    values = host_arrays.as_numpy(scores, "scores")
    _, dtype = host_arrays.compute_dtype(values.dtype, "scores")
    if values.ndim < 2:
        raise ValueError(f"scores has shape {values.shape}; expected at least two axes")
    *leading, n, m = values.shape
    batch = tuple(leading)
    if n == 0 or m == 0:
        raise ValueError(f"scores has shape {values.shape}; expected at least one row and column")
    given = arguments.check_positive(temperature, batch, "temperature")
    tau = arguments.per_row(given, batch, math.prod(batch))
    limit, sweeps = check_options(tol, max_iter)
    r, c = marginals(rows, columns, batch, n, m)
    s = np.asarray(values, np.float64).reshape(-1, n, m)
    _check_scores(s, r, c)

    result = np.empty(s.shape)
    todo, plan = _initial_state(s, r, c, tau), np.empty(s.shape)
    for _ in range(sweeps):
        # One sweep: rows, then columns. thm-sinkhorn-convergence: the error never rises.
        f = _log(todo.rows) - _log_sum_exp(todo.z, todo.g)
        g = _log(todo.columns) - _log_sum_exp(todo.zt, f)
        todo = todo._replace(f=f, g=g)
        for some in parts((len(g), n), m):
            with np.errstate(under="ignore"):
                plan[some] = np.exp(todo.z[some] + f[some][:, :, None] + g[some[0], None, :])
        missing = np.abs(plan.sum(axis=2) - todo.rows).sum(axis=1)
        error = missing / todo.rows.sum(axis=1)
        done = error <= limit
        if len(done) > 0 and not done.any():
            continue
        for i in np.flatnonzero(done):
            for (lines,) in parts((n,), m):
                result[todo.where[i], lines] = plan[i, lines]
        todo = _Problem(*(part[~done] for part in todo))
        plan = plan[: len(todo.where)]
        if not len(todo.where):
            return host_arrays.like(scores, host_arrays.cast(result.reshape(values.shape), dtype))
    worst = float(error.max())
    raise ConvergenceError(
        f"sinkhorn did not converge: after {sweeps} iterations the row sums are off by {worst:.1e} "
        f"of the mass in {len(todo.where)} of {len(s)} matrices, and tol is {limit:g}; "
        "raise max_iter, tol or temperature"
        + (", or allow more pairs" if np.isinf(s).any() else ""),
        worst,
        sweeps,
    )


def gradients(plan: Array, scores: Array, temperature: Array, g: Array) -> tuple[Array, Array]:
    """The gradients of <g, P> in the scores and the temperature, for an assignment P.

    A change dS of the scores gives dP = P (dS - u_i - v_j)/temperature, entry by entry, with u and
    v such that no sum of a row or column changes. This map is its own transpose. P depends on the
    ratio of scores and temperature alone. float64, of the shapes of the scores and of the batch.
    """
    if plan.shape[-1] > plan.shape[-2]:  # the system to solve is one of the columns
        one, other, third = (np.swapaxes(each, -1, -2) for each in (plan, scores, g))
        in_scores, in_tau = gradients(one, other, temperature, third)
        return np.swapaxes(in_scores, -1, -2), in_tau
    p, width = plan.astype(np.float64), np.asarray(temperature, np.float64)
    rows, columns = (_inverse_root(p.sum(axis=axis)) for axis in (-1, -2))
    weighted, q = p * g, rows[..., :, None] * p * columns[..., None, :]
    a, b = rows * weighted.sum(axis=-1), columns * weighted.sum(axis=-2)
    # Singular, as a constant may go from v to u; and where P falls into blocks.
    left = np.eye(p.shape[-1]) - np.swapaxes(q, -1, -2) @ q
    right = b - np.einsum("...ij,...i->...j", q, a)
    v = np.einsum("...ij,...j->...i", np.linalg.pinv(left, _SINGULAR, hermitian=True), right)
    u = rows * (a - np.einsum("...ij,...j->...i", q, v))
    centred = weighted - p * (u[..., :, None] + (columns * v)[..., None, :])
    in_scores = centred / width[..., None, None]
    finite = np.where(np.isfinite(scores), scores, 0.0)
    return in_scores, -(in_scores * finite).sum(axis=(-1, -2)) / width


def _inverse_root(mass: Array) -> Array:
    """1/sqrt(mass), 0 where there is none."""
    found: Array = np.where(mass > 0, 1.0 / np.sqrt(np.where(mass > 0, mass, 1.0)), 0.0)
    return found


def _initial_state(s: Array, r: Array, c: Array, tau: Array) -> _Problem:
    count, n, m = s.shape
    z = from_largest(s.reshape(-1, m), np.repeat(tau, n))[1].reshape(s.shape)
    zt = transposed(z)
    return _Problem(np.arange(count), z, zt, r, c, np.zeros((count, n)), np.zeros((count, m)))


def _log(mass: Array) -> Array:
    """The logarithm of masses, -inf for 0."""
    with np.errstate(divide="ignore"):
        result: Array = np.log(mass)
    return result


def _log_sum_exp(z: Array, shift: Array) -> Array:
    """log sum exp along the last axis of z, each matrix of which is shifted by one line.

    It is 0 where every entry is -inf, as such a line has no mass.
    """
    result = np.empty(z.shape[:2])
    for some in parts(z.shape[:2], z.shape[2]):
        v = z[some] + shift[some[0], None, :]
        top = v.max(axis=2, keepdims=True)
        top = np.where(top == -np.inf, 0, top)
        with np.errstate(under="ignore"):
            total = np.exp(v - top).sum(axis=2)
        result[some] = top[:, :, 0] + np.log(np.where(total == 0, 1, total))
    return result


def check_options(tol: Any, max_iter: Any) -> tuple[float, int]:
    """The tolerance and the number of sweeps."""
    return _check_positive(tol, "tol"), _check_count(max_iter, "max_iter")


def marginals(
    rows: Any, columns: Any, batch: tuple[int, ...], n: int, m: int
) -> tuple[Array, Array]:
    """Row and column sums for each matrix, scaled to the same totals."""
    r = None if rows is None else _check_mass(rows, (*batch, n), "rows")
    c = None if columns is None else _check_mass(columns, (*batch, m), "columns")
    if r is None:
        total = float(n) if c is None else c.sum(axis=1, keepdims=True)
        r = np.broadcast_to(total / n, (int(np.prod(batch)), n))
    total = r.sum(axis=1, keepdims=True)
    if c is None:
        return r, np.broadcast_to(total / m, (len(r), m))
    other = c.sum(axis=1, keepdims=True)
    apart = np.abs(total - other) > 1e-9 * total
    if apart.any():
        raise ValueError(
            f"rows sum to {total[apart][0]:.12g} and columns to {other[apart][0]:.12g}; "
            "expected the same total"
        )
    return r, c * (total / other)


def _check_mass(mass: Any, shape: tuple[int, ...], name: str) -> Array:
    given = arguments.real_array(mass, name).astype(np.float64)
    ok = (given >= 0) & (given < np.inf)
    if not ok.all():
        raise ValueError(f"{name} holds {given[~ok].flat[0]}; expected finite numbers >= 0")
    if given.ndim == 0 or given.shape[-1] != shape[-1]:
        raise ValueError(f"{name} has shape {given.shape}; expected one that ends with {shape[-1]}")
    arguments.check_broadcast(given, shape, name)
    full = np.broadcast_to(given, shape).reshape(-1, shape[-1])
    total = full.sum(axis=1)
    if not np.all((total > 0) & (total < np.inf)):
        bad = total[~((total > 0) & (total < np.inf))][0]
        raise ValueError(f"{name} sum to {bad}; expected a positive finite total")
    return full


def _check_scores(s: Array, r: Array, c: Array) -> None:
    ok = s < np.inf
    if not ok.all():
        raise ValueError(f"scores hold {s[~ok].flat[0]}; expected finite numbers or -inf")
    allowed = (s > -np.inf) & (r[:, :, None] > 0) & (c[:, None, :] > 0)
    for mass, pairs, name in ((r, allowed.any(axis=2), "row"), (c, allowed.any(axis=1), "column")):
        stuck = (mass > 0) & ~pairs
        if stuck.any():
            place = int(np.argwhere(stuck)[0, 1])
            raise ValueError(
                f"scores forbid every pair of {name} {place}, whose mass is {mass[stuck][0]:g}; "
                "expected a pair above -inf with mass on the other side"
            )


def _check_positive(value: Any, name: str) -> float:
    given = arguments.real_array(value, name)
    if given.ndim != 0 or not 0 < given < np.inf:
        raise ValueError(f"{name} is {arguments.show(value)}; expected a positive finite number")
    return float(given)


def _check_count(value: Any, name: str) -> int:
    given = arguments.real_array(value, name)
    if given.ndim != 0 or given.dtype.kind not in "iu":
        raise TypeError(f"{name} is {arguments.show(value)}; expected an integer")
    if given < 1:
        raise ValueError(f"{name} is {value}; expected at least 1")
    return int(given)
