"""Drawing from softmax by Gumbel noise: one index, a relaxed one, or k without replacement."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._api import arguments, fronts, host_arrays, typed
from .._api.call import Array, Call
from .._api.operator import Name, chosen
from .._threads.parts import AT_A_TIME, parts
from .operator import from_largest, softmax
from .sampling import check, check_rng, check_size, give_back, scores


@functools.cache
def _device() -> Any:
    """The module for draws on a device, imported with the first such array."""
    return importlib.import_module(".device_draws", __package__)


@typed.indices
def gumbel_max(
    x: typed.Numbers,
    /,
    size: typed.Size = None,
    *,
    rng: typed.Rng = None,
    temperature: typed.Numbers = 1.0,
    axis: int = -1,
    where: typed.Numbers | None = None,
) -> Any:
    """Draw indices with the probabilities softmax(x / temperature), as an argmax with noise.

    The index is argmax_i (x_i / temperature + G_i), with independent standard Gumbel numbers G.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1, of any type that `softmax` takes. Computed in float64.
    size : int or tuple of int, default=None
        How many draws from each row. By default one, without an axis for it.
    rng : numpy.random.Generator, int or None, default=None
        Where the randomness comes from: whatever ``numpy.random.default_rng`` takes. A generator is
        advanced; an int is a seed; None draws a new seed from the operating system.
    temperature : float or array_like, default=1.0
        In the units of x; broadcast against x's shape without the axis.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that can be drawn.

    Returns
    -------
    index : array of int, of shape batch + size
        Positions along the axis; batch is x's shape without the axis. A scalar if that is empty.

    Raises
    ------
    TypeError
        x, size, rng, temperature, axis or where of a wrong type.
    ValueError
        A row with a NaN or without an entry above -inf, a negative size, a temperature that is
        not positive and finite, an axis without entries or out of range, a shape that does not
        fit.

    See Also
    --------
    sample_categorical : the same distribution with one random number for each draw.
    gumbel_topk : the k largest instead of the largest.

    Notes
    -----
    *Holds*: the distribution is softmax; an excluded entry is never drawn; entries at +inf are
    drawn with equal probability. *Does not hold*: Gumbel numbers in float64 lie between -3.7 and
    36.8, so that an entry some 40 temperatures below the largest is never drawn. *Cost*: O(n) time
    and memory, and n random numbers, for each draw.

    *On a device* noise comes from a counter (Philox 4x32-10), whose key is one number taken from
    rng: the draws of a seed are not those of the CPU, and a row's depend on its place and not on
    how many rows there are. Noise and sums are of the type that softmax is computed in; in float32
    it lies between -2.9 and 22.9. Nothing is waited for, so that a row with a NaN or without an
    entry above -inf gives the index -1 instead of an error.

    Source: "Softmax demystified"; the trick is Gumbel's (1954).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> draws = stk.gumbel_max(np.log([0.7, 0.2, 0.1]), 10_000, rng=0)
    >>> (np.bincount(draws) / 10_000).round(2)
    array([0.69, 0.2 , 0.1 ])
    """
    x, shape = fronts.values(x), check_size(size)
    generator = check_rng(rng)
    if host_arrays.on_device(x):
        return _device().draw(x, None, size, shape, generator, temperature, axis, where)
    call = check(x, temperature, axis, where)
    z, draws = scores(call), math.prod(shape)
    index = np.empty(len(z) * draws, np.int64)
    for some, noisy in _perturbed_in_parts(z, draws, generator):
        index[some] = noisy.argmax(axis=1)
    return give_back(call, index, shape)


@typed.function
def gumbel_softmax(
    x: typed.Scores,
    /,
    *,
    rng: typed.Rng = None,
    temperature: typed.Numbers = 1.0,
    axis: int = -1,
    where: typed.Numbers | None = None,
) -> Any:
    """Draw a relaxed one-hot vector: softmax((x + G) / temperature), G Gumbel noise.

    As the temperature (kappa in Su, 2024) goes to 0, the vector becomes a one-hot one with the
    probabilities softmax(x). Here the temperature does not change those probabilities: it says how
    far a draw is from one-hot, and not, as in `gumbel_max`, how random it is.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1. float16, float32 and float64 keep their type; integers and bools give
        float64.
    rng : numpy.random.Generator, int or None, default=None
        Where the randomness comes from: whatever ``numpy.random.default_rng`` takes. A generator is
        advanced; an int is a seed; None draws a new seed from the operating system.
        A `torch.Generator` for a tensor of PyTorch, whose draws are differentiable then, as they
        are with None; a key of `jax.random` for an array of JAX, likewise.
    temperature : float or array_like, default=1.0
        In the units of x; broadcast against x's shape without the axis.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that take part; the others get 0.

    Returns
    -------
    p : array of x's shape and type
        Between 0 and 1, summing to 1 along the axis. One draw for each row; for more, broadcast x.

    Raises
    ------
    TypeError
        x, rng, temperature, axis or where of a wrong type.
    ValueError
        A temperature that is not positive and finite, an axis without entries or out of range, a
        shape that does not fit.

    See Also
    --------
    gumbel_max : the limit of temperature 0.
    gumbel_topk : k entries instead of one.

    Notes
    -----
    *Holds*: the largest entry of p has the distribution softmax(x), at every temperature. *Does
    not hold*: the mean of p is not softmax(x), except in the limit. Scores of -inf, +inf and NaN
    count as in `softmax`. *Cost*: O(n). Noise is drawn and added in float64; on a device, as in
    `gumbel_max`.

    For derivatives in x, draw the noise yourself: ``softmax.vjp(x + rng.gumbel(size=x.shape))``.

    Source: "Softmax demystified"; Jang, Gu and Poole (2017), Maddison, Mnih and Teh (2017).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.log([0.7, 0.2, 0.1])
    >>> stk.gumbel_softmax(x, rng=1, temperature=1.0).round(3)
    array([0.579, 0.039, 0.381])
    >>> stk.gumbel_softmax(x, rng=1, temperature=0.1).round(3)
    array([0.985, 0.   , 0.015])
    """
    if front := fronts.drawing("gumbel_softmax", x, rng):
        return front(x, temperature=temperature, axis=axis, where=where)
    generator = check_rng(rng)
    if host_arrays.on_device(x):
        return _device().noisy_softmax(x, generator, temperature, axis, where)
    call = check(x, temperature, axis, where)
    # Shifted by the largest score, which does not change softmax, so that the noise is not rounded
    # away.
    rows, tau = call.rows
    z = from_largest(rows.astype(np.float64), np.ones_like(tau))[1]
    return call.give_back(softmax(_perturbed(z, generator), temperature=tau))


@typed.indices
def gumbel_topk(
    x: typed.Numbers,
    /,
    k: typed.Numbers,
    size: typed.Size = None,
    *,
    rng: typed.Rng = None,
    relax: Callable[..., Any] | Name | None = None,
    temperature: typed.Numbers = 1.0,
    axis: int = -1,
    where: typed.Numbers | None = None,
) -> Any:
    """Draw k different indices one after the other, or a relaxed mask of k entries.

    Without `relax`, the positions of the k largest x_i / temperature + G_i, G Gumbel noise, the
    largest first. This is the order of k draws without replacement from softmax(x / temperature):
    the Plackett-Luce distribution.

    With `relax`, an operator of this package, the mask ``relax(x + G, k, temperature=...)``. It is
    largest at the k entries that the same noise draws from softmax(x); here the temperature does
    not change which, but says how far the mask is from 0 and 1, as in `gumbel_softmax`.

    Parameters
    ----------
    x : array_like, shape (..., n, ...)
        Scores, n >= 1. Noise is drawn and added in float64.
    k : int
        How many, 0 <= k <= n. With `relax`, whatever it takes: it may be an array that broadcasts
        against x's shape without the axis, and real if the operator's k may be.
    size : int or tuple of int, default=None
        How many draws from each row. By default one, without an axis for it.
    rng : numpy.random.Generator, int or None, default=None
        Where the randomness comes from: whatever ``numpy.random.default_rng`` takes. A generator is
        advanced; an int is a seed; None draws a new seed from the operating system.
        A `torch.Generator` for a tensor of PyTorch, whose draws are differentiable then, as they
        are with None; a key of `jax.random` for an array of JAX, likewise.
    relax : callable or str, default=None
        ``thretopk``, ``hardtopk``, the name of such an operator, or any callable of that signature;
        it is called with rows of scores along the last axis, shifted so that the largest finite one
        of x is 0. To fix its own options, wrap it:
        ``lambda x, k, **a: stk.thretopk(x, k, curve="exp", **a)``.
    temperature : float or array_like, default=1.0
        In the units of x; broadcast against x's shape without the axis.
    axis : int, default=-1
        The axis of the scores.
    where : array_like of bool, default=None
        Entries that can be drawn.

    Returns
    -------
    index : array of int, of shape batch + size + (k,)
        Positions along the axis, in the order drawn; batch is x's shape without the axis.
    p : array of x's type, with `relax`
        Of x's shape; if size is given, of shape batch + size + (n,).

    Raises
    ------
    TypeError
        x, k, size, rng, relax, temperature, axis or where of a wrong type.
    ValueError
        k outside [0, n]; without `relax`, a row with a NaN or with fewer than k entries above -inf;
        a negative size, a temperature that is not positive and finite, an axis without entries or
        out of range, a shape that does not fit.

    See Also
    --------
    gumbel_max : k = 1.

    Notes
    -----
    *Holds*: the first index has the distribution softmax(x / temperature), and each later one that
    of softmax over what is left; an excluded entry is never drawn. *Does not hold*: the probability
    of a *set* of k indices is not proportional to exp(sum of its scores); the mean of a relaxed
    mask is not the probability of being drawn. *Cost*: O(n + k log k) for each draw; with `relax`,
    that of relax.

    With `relax`, infinities and NaN have the meaning that relax gives them.

    *On a device* noise is that of `gumbel_max` there, k is a number on the host unless relax takes
    another, and a draw costs O(nk): the largest entry is looked for k times. A row with a NaN has
    the index -1 everywhere; in one with fewer than k entries above -inf the missing ones are -1.

    Source: "Softmax demystified"; Kool, van Hoof and Welling (2019).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> x = np.log([0.4, 0.3, 0.2, 0.1])
    >>> stk.gumbel_topk(x, 2, size=3, rng=0)
    array([[3, 2],
           [0, 2],
           [3, 0]])
    >>> p = stk.gumbel_topk(x, 2, rng=0, relax=stk.thretopk, temperature=0.1)
    >>> p.round(3)
    array([0., 0., 1., 1.])
    """
    if front := fronts.drawing("gumbel_topk", x, rng):
        named: Any = {"temperature": temperature, "axis": axis, "where": where}
        return front(x, k, size, relax=relax, **named)
    shape = check_size(size)
    generator = check_rng(rng)
    if relax is not None:
        if isinstance(relax, str):
            relax = chosen(relax, "relax")
        if not callable(relax):
            raise TypeError(f"relax is {arguments.show(relax)}; expected an operator or None")
        if host_arrays.on_device(x):
            return _device().relaxed(x, k, size, shape, generator, relax, temperature, axis, where)
        call = check(x, temperature, axis, where)
        return _relaxed(call, k, size, shape, generator, relax)
    x, given = fronts.values(x), arguments.real_array(k, "k")
    if given.ndim != 0 or given.dtype.kind not in "iu":
        raise TypeError(f"k is {arguments.show(k)}; expected an integer")
    k = int(given)
    if host_arrays.on_device(x):
        return _device().draw(x, k, size, shape, generator, temperature, axis, where)
    call = check(x, temperature, axis, where)
    z = scores(call)
    arguments.check_range_of_k(given, z.shape[1], call.batch)
    fewest = np.min(np.sum(z > -np.inf, axis=1), initial=z.shape[1])
    if fewest < k:
        raise ValueError(f"k is {k}; expected at most {fewest}, as a row has no more above -inf")
    draws = math.prod(shape)
    drawn = np.empty((len(z) * draws, k), np.int64)
    for some, noisy in _perturbed_in_parts(z, draws, generator):
        keys = -noisy
        index = _smallest(keys, k) if k else drawn[some]
        order = np.argsort(np.take_along_axis(keys, index, axis=1), axis=1)
        drawn[some] = np.take_along_axis(index, order, axis=1)
    return give_back(call, drawn, (*shape, k))


def _smallest(keys: Array, k: int) -> Array:
    """The positions of the k smallest of each row, in any order; long rows are cut in parts."""
    found: list[Array] = []
    for _, part in parts((1, keys.shape[1])):
        some = keys[:, part]
        most = min(k, some.shape[1])
        found.append(part.start + np.argpartition(some, most - 1, axis=1)[:, :most])
    if len(found) == 1:
        return found[0]
    index = np.concatenate(found, axis=1)
    best = np.argpartition(np.take_along_axis(keys, index, axis=1), k - 1, axis=1)[:, :k]
    result: Array = np.take_along_axis(index, best, axis=1)
    return result


def _relaxed(
    call: Call,
    k: Any,
    size: Any,
    shape: tuple[int, ...],
    generator: np.random.Generator,
    relax: Callable[..., Any],
) -> Any:
    given = arguments.real_array(k, "k")
    x, draws = call.rows.x, math.prod(shape)
    arguments.check_range_of_k(given, x.shape[1], call.batch)
    z, several = np.empty(x.shape), max(1, AT_A_TIME // x.shape[1])
    for first in range(0, len(x), several):
        some = slice(first, first + several)
        z[some] = _from_largest_finite(x[some].astype(np.float64))
    lowest = np.finfo(x.dtype).min
    noisy = np.empty((len(x) * draws, x.shape[1]), x.dtype)
    for some, part in _perturbed_in_parts(z, draws, generator):
        finite = np.isfinite(x[np.arange(some.start, some.stop) // draws])
        noisy[some] = np.where(finite, np.maximum(part, lowest), part)
    ones = (1,) * len(shape)
    rows = noisy.reshape(*call.batch, *shape, x.shape[1])
    stretched = np.broadcast_to(given, call.batch).reshape(call.batch + ones)
    tau = call.rows.temperature.reshape(call.batch + ones)
    p = np.asarray(relax(rows, stretched, temperature=tau))
    if p.shape != rows.shape:
        raise ValueError(f"relax returned shape {p.shape}; expected {rows.shape}, that of its x")
    if size is None:
        return call.give_back(p.reshape(x.shape))
    return host_arrays.like(call.given, host_arrays.cast(p, call.dtype))


def _from_largest_finite(x: Array) -> Array:
    """Rows less their largest finite entry, so that noise is not rounded away.

    Infinities stay, since for an operator +inf uses up one of k.
    """
    finite = np.isfinite(x)
    top = np.max(x, axis=1, keepdims=True, where=finite, initial=np.finfo(np.float64).min)
    with np.errstate(all="ignore"):
        z: Array = np.where(finite, x - top, x)
    return z


def _perturbed(z: Array, generator: np.random.Generator) -> Array:
    """The rows plus Gumbel noise."""
    noise = np.empty(z.shape)
    for some, noisy in _perturbed_in_parts(z, 1, generator):
        noise[some] = noisy
    return noise


def _perturbed_in_parts(
    z: Array, draws: int, generator: np.random.Generator
) -> Iterator[tuple[slice, Array]]:
    """Yield (slice of the draws, rows + noise), `draws` of them for each row in turn."""
    n = z.shape[1]
    several = max(1, AT_A_TIME // n)
    for first in range(0, len(z) * draws, several):
        some = slice(first, min(first + several, len(z) * draws))
        rows, noise = np.arange(first, some.stop) // draws, np.empty((some.stop - first, n))
        for these, part in parts(noise.shape):
            noise[these, part] = generator.gumbel(size=noise[these, part].shape)
            noise[these, part] += z[rows[these], part]
        yield some, noise
