"""The k-subset distribution, whose inclusion probabilities are GradTopK."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, cast, overload

import numpy as np
import numpy.typing as npt

from .. import _threshold
from .._api import arguments, host_arrays, typed
from .._api.call import check
from .._api.typed import A, F
from .._curves.registry import CURVES
from .._nonfinite import WITH_INFINITIES
from .._threads import pool
from .._threads.parts import AT_A_TIME, parts
from .._threshold.methods import METHODS
from .._threshold.records import REST, C, D
from .cpu.conditional_bernoulli import (
    draw,
    draw_rows,
    log_probability_of_count,
    sums_of_count,
)
from .cpu.contour import MOST_IN_CORE
from .cpu.pairs import LINES, pair_marginals
from .operator import gradtopk
from .records import CODE, LOG_P, SUMS

Array = npt.NDArray[Any]

TABLE = 1 << 21  # entries of the table that a kernel of `conditional_bernoulli` may fill
NUMBERS_AT_A_TIME = 1 << 22  # uniform random numbers drawn at a time


class KSubset(Generic[A]):
    """The random k-subset S of n entries, P(S) proportional to exp(sum of x_i/temperature over S).

    Independent Bernoulli variables with log-odds x_i/temperature, given that exactly k of them are
    1: the conditional Bernoulli distribution. Its inclusion probabilities are `gradtopk`.

    Parameters
    ----------
    x : array_like, shape (..., n)
        Scores, or log-odds. -inf is never chosen, +inf always.
    k : int or array_like of int
        Size of the subset, 0 <= k <= n; broadcast against the batch shape, x's without its last
        axis.
    temperature : float or array_like, default=1.0
        Broadcast as k.

    Raises
    ------
    TypeError
        x, k or temperature of a wrong type.
    ValueError
        k outside [0, n], a temperature that is not positive and finite, a NaN in x, more entries
        at +inf than k, or fewer than k entries above -inf.

    See Also
    --------
    gradtopk : the marginals, as an operator with derivatives.

    Notes
    -----
    Everything is computed in float64 from one solve, O(n) for each row, when the object is made.
    Source: Su (2024) for the marginals; Chen, Dempster and Liu, "Weighted finite population
    sampling to maximize entropy" (1994), for the distribution.

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> subsets = stk.KSubset([3.0, 2.0, 1.0, 4.0], 2)
    >>> subsets.marginals().round(3)
    array([0.694, 0.306, 0.119, 0.881])
    >>> round(float(np.exp(subsets.log_prob([True, False, False, True]))), 3)
    0.586
    >>> round(float(subsets.entropy()), 3)
    1.198
    >>> subsets.sample(3, np.random.default_rng(0)).sum(axis=-1)
    array([2, 2, 2])
    """

    @overload
    def __init__(
        self: KSubset[npt.NDArray[F]],
        x: npt.NDArray[F],
        k: int | typed.Arrays,
        temperature: typed.Numbers = 1.0,
    ) -> None: ...
    @overload
    def __init__(
        self: KSubset[A],
        x: typed.Foreign[A],
        k: int | typed.Arrays,
        temperature: typed.Numbers = 1.0,
    ) -> None: ...
    @overload
    def __init__(
        self: KSubset[Array],
        x: typed.ArrayLike,
        k: int | typed.Arrays,
        temperature: typed.Numbers = 1.0,
    ) -> None: ...
    def __init__(self, x: Any, k: int | typed.Arrays, temperature: typed.Numbers = 1.0) -> None:
        call = check(gradtopk, x, k, temperature, -1, True, None, None, {})
        self._call = call
        self._rows = call.rows._replace(x=call.rows.x.astype(np.float64))
        values, sizes = self._rows.x, self._rows.k
        if np.isnan(values).any():
            raise ValueError("x holds NaN; expected numbers")
        always = np.count_nonzero(values == np.inf, axis=1)
        possible = np.count_nonzero(values > -np.inf, axis=1)
        for wrong, what in (
            (always > sizes, "at most k entries of +inf"),
            (possible < sizes, "at least k entries above -inf"),
        ):
            if wrong.any():
                i = int(np.flatnonzero(wrong)[0])
                found = always[i] if what.startswith("at most") else possible[i]
                raise ValueError(f"x has {found} such entries for k = {sizes[i]}; expected {what}")
        self._p = np.empty_like(values)
        self._state = gradtopk.cpu.linearize(self._rows, "contour", self._p).solution

    def __repr__(self) -> str:
        k = arguments.show(np.asarray(self._call.numbers[0]).tolist())
        return f"KSubset(x of shape {self._call.shape}, k = {k})"

    def marginals(self) -> A:
        """P(i in S), of x's shape and type: `gradtopk` of x.

        Returns
        -------
        p : array of x's shape and type
            The probability of each entry to be in S.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> stk.KSubset([3.0, 2.0, 1.0, 4.0], 2).marginals().round(3)
        array([0.694, 0.306, 0.119, 0.881])
        """
        p = host_arrays.cast(self._shaped(self._p), self._call.dtype).copy()
        return cast("A", host_arrays.like(self._call.given, p))

    def pair_marginals(self) -> npt.NDArray[np.float64]:
        """P(i in S and j in S), from the Jacobian, which is the covariance of the indicator.

        Returns
        -------
        pairs : array, shape (..., n, n), float64
            Symmetric, with the marginals on the diagonal. O(n^2) for each row.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> stk.KSubset([3.0, 2.0, 1.0, 4.0], 2).pair_marginals()[0].round(3)
        array([0.694, 0.079, 0.029, 0.586])
        """
        x, _, tau = self._rows
        count, n = x.shape
        pairs = np.empty((count, n, n))
        blocks = count * -(-n // LINES)
        pool.over(blocks, 4 * pairs.size, pair_marginals, x, tau, self._state, self._p, pairs)
        return pairs.reshape((*self._call.batch, n, n))

    def log_prob(self, mask: typed.ArrayLike) -> npt.NDArray[np.float64]:
        """Log P(S) of the subsets that `mask` shows.

        Parameters
        ----------
        mask : array_like, shape ``(..., *x.shape)``
            Which entries are in S, as bool or as the numbers 0 and 1; exactly k in each row.
            Leading axes are a batch of subsets.

        Returns
        -------
        log_p : float64 array, of mask's shape without the last axis
            -inf where an entry at -inf is chosen or one at +inf is not.

        Raises
        ------
        TypeError
            `mask` is neither bool nor of real numbers.
        ValueError
            `mask` has another shape, holds other numbers, or has a row with another count than k.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> log_p = stk.KSubset([3.0, 2.0, 1.0, 4.0], 2).log_prob([True, False, False, True])
        >>> round(float(log_p), 3)
        -0.535
        """
        given = host_arrays.as_numpy(mask, "mask")
        if given.dtype.kind not in "biuf":
            raise TypeError(f"mask has dtype {given.dtype}; expected bool, or the numbers 0 and 1")
        given, numbers = given == 1, given
        if (wrong := numbers[given != numbers]).size:
            raise ValueError(f"mask holds {wrong[0]}; expected nothing but 0 and 1")
        shape = self._call.shape
        if given.shape[given.ndim - len(shape) :] != shape:
            raise ValueError(f"mask has shape {given.shape}; expected (..., *x.shape) = {shape}")
        leading = given.shape[: given.ndim - len(shape)]
        chosen = given.reshape((math.prod(leading), *self._rows.x.shape))
        counts = chosen.sum(axis=-1)
        if (counts != self._rows.k).any():
            at = np.argwhere(counts != self._rows.k)[0]
            raise ValueError(
                f"mask chooses {counts[tuple(at)]} entries in a row; expected k = "
                f"{self._rows.k[at[1]]}"
            )
        log_p = np.zeros(counts.shape)
        x = self._rows.x
        impossible = (chosen & (x == -np.inf)) | (~chosen & (x == np.inf))
        for rows, present in self._alike():
            t = self._tilted(rows, present)
            log_out, log_in = (-_in_parts(_log_of_one_and, each) for each in (t, -t))
            several = max(1, NUMBERS_AT_A_TIME // t.size)
            for first in range(0, len(chosen), several):
                some = slice(first, first + several)
                picked = chosen[some][:, rows]
                if t.size < present.size:  # a copy, which takes time
                    picked = picked[:, present]
                picked = picked.reshape(-1, *t.shape)
                terms = np.ascontiguousarray(np.where(picked, log_in, log_out))
                # To -inf: too small for float64; or a term that is 0 beside the others.
                with np.errstate(over="ignore", under="ignore"):
                    log_p[some, rows] = terms.sum(axis=-1) - self._state[rows, LOG_P]
        log_p[impossible.any(axis=-1)] = -np.inf
        return log_p.reshape(given.shape[:-1])[()]

    def entropy(self) -> npt.NDArray[np.float64]:
        """-sum of P(S) log P(S), in nats.

        Returns
        -------
        h : float64 array of the batch shape, or a scalar
            Between 0 and log(n choose k); log Z_k - <x, p>/temperature.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> round(float(stk.KSubset([3.0, 2.0, 1.0, 4.0], 2).entropy()), 3)
        1.198
        """
        h = np.zeros(len(self._rows.x))
        for rows, present in self._alike():
            t, p = self._tilted(rows, present), self._p[rows][present].reshape(len(rows), -1)
            tails = _in_parts(_tails, t, p)
            with np.errstate(under="ignore"):
                h[rows] = np.maximum(tails.sum(axis=-1) + self._state[rows, LOG_P], 0.0)
        return h.reshape(self._call.batch)[()]

    def sample(
        self, size: int | tuple[int, ...] | None = None, rng: typed.Rng = None
    ) -> npt.NDArray[np.bool_]:
        """Draw subsets, exactly and independently.

        Parameters
        ----------
        size : int or tuple of int, default=None
            How many subsets of each row; one by default.
        rng : numpy.random.Generator or int, default=None
            The source of randomness, or a seed for a new one; a fresh one by default.

        Returns
        -------
        mask : bool array, shape ``(*size, *x.shape)``
            Exactly k entries of each row are True. O(n min(k, n - k)) for a row that is short
            enough for a table, and O(n) in expectation for each draw.

        Raises
        ------
        TypeError
            `size` is not an integer or a tuple of such.
        ValueError
            `size` is negative.

        Notes
        -----
        A seed gives the same subsets with the same version of this package and of NumPy. The rows
        are drawn one after the other from one stream: the draws of a row depend on the rows before
        it and on `size`, and not on the rows after it.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> stk.KSubset([3.0, 2.0, 1.0, 4.0], 2).sample(rng=0)
        array([ True, False,  True, False])
        """
        shape = _check_size(size)
        generator = np.random.default_rng(rng)
        out = np.empty((math.prod(shape), *self._rows.x.shape), np.bool_)
        if len(out):
            self._draw(generator, out)
        return out.reshape((*shape, *self._call.shape))

    def _draw(self, rng: np.random.Generator, out: Array) -> None:
        """Draw from one row after the other, from short ones many at a time."""
        x = self._rows.x
        left = self._rows.k - np.count_nonzero(x == np.inf, axis=1)
        finite = np.count_nonzero(np.isfinite(x), axis=1)
        few = np.minimum(left, finite - left)
        numbers = np.where(few > 0, len(out) * finite, 0)
        alone = ((finite + 1) * (few + 1) > TABLE) | (numbers > NUMBERS_AT_A_TIME)
        ends = np.append(np.flatnonzero(alone), len(x))
        before = np.append(0, np.cumsum(numbers))  # of each row
        i = 0
        while i < len(x):
            if alone[i]:
                entries = np.flatnonzero(np.isfinite(x[i]))
                t = self._log_odds(slice(i, i + 1))[0, entries]
                out[:, i] = x[i] == np.inf
                out[:, i, entries] = _draws(t, int(left[i]), len(out), rng)
                i += 1
                continue
            most = np.searchsorted(before, before[i] + NUMBERS_AT_A_TIME, side="right") - 1
            some = slice(i, min(int(most), int(ends[np.searchsorted(ends, i)])))
            first = before[some] - before[i]
            uniform = rng.random(before[some.stop] - before[i])
            work = int((finite[some] * (8 + few[some])).sum()) + 4 * len(out) * x[some].size
            problem = x[some], self._log_odds(some), left[some], uniform, first, out[:, some]
            pool.over(some.stop - i, work, draw_rows, *problem)
            i = some.stop

    def _alike(self) -> Iterator[tuple[Array, Array]]:
        """Yield (indices, finite mask) of rows with equally many finite entries and a choice.

        They are limited in number. A sum over them has the same bits as that of a row alone.
        """
        present = np.isfinite(self._rows.x)
        counts = np.where(
            self._state[:, CODE] > WITH_INFINITIES, 0, np.count_nonzero(present, axis=1)
        )
        for count in np.unique(counts[counts > 0]):
            these, several = np.flatnonzero(counts == count), max(1, AT_A_TIME // int(count))
            for first in range(0, len(these), several):
                rows = these[first : first + several]
                yield rows, present[rows]

    def _tilted(self, rows: Array, present: Array) -> Array:
        """The tilted log-odds of the finite entries, equally many in each of the rows."""
        t: Array = self._log_odds(rows)[present].reshape(len(rows), -1)
        return t

    def _log_odds(self, some: Any) -> Array:
        """The tilted log-odds of some of the rows."""
        x, _, tau = (each[some] for each in self._rows)
        c, d = self._state[some, C, None], self._state[some, D, None]
        # They may overflow to infinity, which is as certain; a row without a choice may have no
        # tilt.
        # Half of a difference of finite numbers does not overflow.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            t: Array = 2.0 * ((0.5 * x - 0.5 * c) / tau[:, None]) - d
        return t

    def _shaped(self, rows: Array) -> Array:
        return rows.reshape(self._call.shape)


def _in_parts(function: Callable[..., Array], *arrays: Array) -> Array:
    """A function of entries, applied in parts, between which Python handles signals."""
    out = np.empty(arrays[0].size)
    flat = [each.reshape(-1) for each in arrays]
    for some in parts(out.shape):
        with np.errstate(under="ignore"):  # of exponentials, to 0
            out[some] = function(*(each[some] for each in flat))
    return out.reshape(arrays[0].shape)


def _log_of_one_and(t: Array) -> Array:
    """log(1 + e^t)."""
    return np.logaddexp(0.0, t)


def _tails(t: Array, p: Array) -> Array:
    """log(1 + e^t) - t p, without cancellation."""
    far = np.minimum(np.abs(t), np.finfo(np.float64).max)  # infinity times 0 is NaN
    tails: Array = np.log1p(np.exp(-far)) + far * np.where(t > 0, 1.0 - p, p)
    return tails


def _check_size(size: Any) -> tuple[int, ...]:
    if size is None:
        return ()
    shape = size if isinstance(size, tuple) else (size,)
    for length in shape:
        if isinstance(length, (bool, np.bool_)) or not isinstance(length, (int, np.integer)):
            raise TypeError(f"size is {size!r}; expected an integer or a tuple of integers")
        if length < 0:
            raise ValueError(f"size is {size!r}; expected no negative number")
    return tuple(int(length) for length in shape)


def _draws(t: Array, k: int, count: int, rng: np.random.Generator) -> Array:
    """Masks of `count` draws of k of the entries with log-odds t, 0 < k < n."""
    n = len(t)
    if 2 * k > n:
        return ~_draws(-t, n - k, count, rng)
    out = np.empty((count, n), np.bool_)
    if (n + 1) * (k + 1) <= TABLE:
        step = max(1, NUMBERS_AT_A_TIME // n)
        for first in range(0, count, step):
            part = out[first : first + step]
            draw(t, k, rng.random(part.shape), part)
        return out
    for mask in out:
        _draw_in_steps(t, k, rng, mask)
    return out


def _draw_in_steps(t: Array, k: int, rng: np.random.Generator, mask: Array) -> None:
    """Draw from a long row: three quarters independently, and a quarter that makes up the count."""
    n = len(t)
    if k in (0, n):
        mask[:] = k > 0
        return
    if (n + 1) * (min(k, n - k) + 1) <= TABLE:
        mask[:] = _draws(t, k, 1, rng)[0]
        return
    # Tilted so that k is the mean: then most draws leave a count that the quarter can make up.
    target, tau = np.array([float(k)]), np.ones(1)
    nothing = np.empty((1, 0))
    (tilt,) = _threshold.solve(t[None], target, tau, CURVES["sigmoid"], METHODS["newton"], nothing)
    t = (t - tilt[C]) - (tilt[D] + tilt[REST])
    # At random, so that it has about a quarter of the variance however the row is ordered.
    kept = rng.random(n) < 0.25
    rest, free = t[kept], t[~kept]
    sums, core = np.empty(SUMS), np.empty(MOST_IN_CORE)
    found = sums_of_count(rest, sums, core)
    chances = 1.0 / (1.0 + np.exp(-rest))
    mean = math.floor(chances.sum())
    # The likeliest count is within 1 of the mean (Darroch).
    likeliest = max(
        log_probability_of_count(len(rest), b, sums, core, found) for b in (mean, mean + 1)
    )
    chance = 1.0 / (1.0 + np.exp(-free))
    while True:
        chosen = rng.random(len(free)) < chance
        left = k - int(np.count_nonzero(chosen))
        if (
            math.log1p(-rng.random())
            < log_probability_of_count(len(rest), left, sums, core, found) - likeliest
        ):
            break
    made_up = np.empty(len(rest), np.bool_)
    _draw_in_steps(rest, left, rng, made_up)
    mask[~kept], mask[kept] = chosen, made_up
