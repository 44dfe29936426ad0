"""Fenchel-Young losses: of scores against the hard, soft or labelled mask that they should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from ._api import arguments, fronts, host_arrays, operator, typed
from ._api.base import Gradients
from ._api.call import Call, check
from ._api.front import Choice
from ._threshold.loss import NEAR
from .selection import OfRows, Own

Array = npt.NDArray[Any]

NO_LABEL = -1  # fills the rows that have fewer labels than others


class FenchelYoung:
    """Fenchel-Young loss of scores: potential(theta) + conjugate(target) - <theta, target>.

    One loss for each row; 0 where ``op(theta, k)`` is the target, and positive elsewhere. It is
    convex in theta, with the gradient ``op(theta, k) - target``.

    Parameters
    ----------
    op : operator or str
        `thretopk` or `gradtopk`, whose potential it is, or its name.
    theta : array_like, shape (..., n, ...)
        Scores, as the operator takes them.
    target : array_like
        One of three. Hard, of theta's shape: 0/1 vectors (bool, int or float) with k ones. Labels:
        integers, along the axis the k indices of each row, where -1 fills up rows with fewer; with
        k = 1 the axis may be left out, as in cross-entropy. Soft, of theta's shape: real numbers in
        [0, 1] that sum to k. Integers of theta's shape are 0/1 vectors.
    k : int, float or array_like
        As for the operator; it may differ from row to row.
    constant : bool, default=True
        False leaves out the conjugate of the target, which does not depend on theta: the loss is
        then potential(theta) - <theta, target>, which may be negative. `gradtopk` needs it for soft
        targets, whose conjugate has no formula.
    temperature, axis, largest, where, clamp_k, **options
        As in a call of the operator. Where `where` is False the target must be 0.

    Returns
    -------
    loss : array of the batch shape, or a scalar
        In the units of theta and of its type (float64 for integers).

    Raises
    ------
    TypeError
        `op` is no operator or has no potential; theta, target, k or another argument is of a wrong
        type.
    ValueError
        A target whose sum is not k, with an entry outside [0, 1], a label out of range or twice in
        a row; a soft target of `gradtopk` without ``constant=False``; a name of no such operator;
        what the operator refuses.

    Notes
    -----
    With ``curve="exp"`` and k = 1 this is cross-entropy, with ``curve="clip"`` and k = 1 the
    sparsemax loss, and with `gradtopk` the smooth top-k SVM of Berrada, Zisserman and Kumar (2018)
    up to its margin, in O(n) where theirs is O(n k). A loss is a sum of positive terms, one for
    each entry, for `gradtopk` plus the logarithm of a probability that is not small; each has an
    error of rounding, 2e-16 times the temperature and itself, however large theta is. So is its
    derivative in the temperature. A distribution without a mean (``curve="cauchy"``) has an
    infinite conjugate at 0 and 1: with hard targets pass ``constant=False``.

    Source: Blondel, Martins and Niculae, "Learning with Fenchel-Young losses" (2020).

    Examples
    --------
    >>> import numpy as np
    >>> import softtopk_nb as stk
    >>> theta = np.array([[3.0, 2.0, 1.0, 4.0], [0.0, 0.0, 1.0, 0.5]])
    >>> stk.fenchel_young(stk.thretopk, theta, [3, 2], 1, curve="exp").round(3)
    array([0.44 , 0.851])
    >>> stk.fenchel_young(stk.gradtopk, theta, [[0, 3], [2, -1]], [2, 1]).round(3)
    array([0.535, 0.851])
    >>> loss, vjp = stk.fenchel_young.vjp(stk.gradtopk, theta, [[0, 3], [2, -1]], [2, 1])
    >>> vjp(1.0).x.round(3)
    array([[-0.306,  0.306,  0.119, -0.119],
           [ 0.157,  0.157, -0.573,  0.259]])
    """

    def __repr__(self) -> str:
        return "<function fenchel_young of softtopk_nb>"

    def __reduce__(self) -> str:
        return "fenchel_young"

    @typed.loss
    def __call__(
        self,
        op: Choice,
        theta: typed.Numbers,
        target: typed.Numbers,
        k: typed.Numbers,
        *,
        constant: bool = True,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[OfRows],
    ) -> Any:
        """The loss of each row: see the class."""
        if front := fronts.function("fenchel_young", theta):
            numbers = {"temperature": temperature, "largest": largest, "where": where}
            named = fronts.named(options, axis, constant=constant, clamp_k=clamp_k, **numbers)
            return front(op, theta, target, k, **named)
        inner = operator.chosen(op, with_potential=True)
        k = arguments.clamped(k, clamp_k)
        given = theta, k, temperature, axis, largest, where, None, options
        call, y = _checked(inner, target, constant, given)
        losses = inner.cpu.losses(call.rows, call.options, y, constant, None)
        return call.give_back(losses)

    @typed.loss_vjp
    def vjp(
        self,
        op: Choice,
        theta: typed.Numbers,
        target: typed.Numbers,
        k: typed.Numbers,
        *,
        constant: bool = True,
        temperature: typed.Numbers = 1.0,
        axis: int = -1,
        largest: bool = True,
        where: typed.Numbers | None = None,
        clamp_k: bool = False,
        **options: Unpack[Own],
    ) -> tuple[Any, Callable[[typed.Numbers], Gradients[Any]]]:
        """Loss and VJP function (reverse mode).

        Parameters
        ----------
        op, theta, target, k, constant, temperature, axis, largest, where, clamp_k, **options
            As in a call.

        Returns
        -------
        loss : array of the batch shape, or a scalar
            One for each row.
        vjp : callable
            ``vjp(g)``, g broadcastable to the batch shape, returns `Gradients` of
            sum(g * loss): in theta g (p - target), in the temperature, and None in k, which the
            target fixes.

        Examples
        --------
        >>> import softtopk_nb as stk
        >>> loss, vjp = stk.fenchel_young.vjp(stk.thretopk, [3.0, 2.0, 1.0, 4.0], [0, 3], 2)
        >>> vjp(1.0).x.round(3)
        array([-0.303,  0.303,  0.112, -0.112])
        """
        inner = operator.chosen(op, with_potential=True)
        k = arguments.clamped(k, clamp_k)
        given = theta, k, temperature, axis, largest, where, None, options
        call, y = _checked(inner, target, constant, given)
        x = call.rows.x
        p = np.empty(x.shape, x.dtype)
        losses = inner.cpu.losses(call.rows, call.options, y, constant, p)
        gradient = p - y
        in_tau = _in_temperature(inner, call, y, constant)
        result = call.give_back(losses)

        def vjp_function(g: typed.Numbers, /) -> Gradients[Any]:
            cotangent = arguments.real_array(g, "the cotangent").astype(np.float64)
            arguments.check_broadcast(cotangent, call.batch, "the cotangent")
            each = arguments.per_row(cotangent, call.batch, len(x))
            # An infinite cotangent times a gradient of 0 is NaN, and no error of the caller.
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                rows, rates = each[:, None] * gradient * call.sign, each * in_tau
            in_x = call.give_back(host_arrays.cast(rows, call.dtype), is_value=False)
            total = call.sum_to_given(rates, call.numbers[-1])
            return Gradients(in_x, None, total)

        return result, vjp_function


def _in_temperature(op: Any, call: Call, y: Array, constant: bool) -> Array:
    """The derivative in the temperature: that of the potential, and the conjugate if `constant`."""
    rows, options, surplus = call.rows, call.options, np.empty(len(y))
    op.cpu.surplus(rows, options, surplus)
    in_tau: Array = surplus / rows.temperature
    if constant and op.has_conjugate:
        # The conjugate is the same for any scores; near equal ones nothing large cancels.
        level = np.where(np.isfinite(rows.x), rows.x.dtype.type(0), rows.x)
        flat = rows._replace(x=level, temperature=np.ones(len(y)))
        with_it, without = (op.cpu.losses(flat, options, y, each, None) for each in (True, False))
        in_tau += with_it - without
    return in_tau


def _checked(op: Any, target: Any, constant: bool, given: tuple[Any, ...]) -> tuple[Call, Array]:
    """The checked call, and the target as rows of float64."""
    check_constant(constant)
    host_arrays.compute_dtype(host_arrays.as_numpy(given[0], "theta").dtype, "theta")
    call = check(op, *given)
    values = host_arrays.as_numpy(target, "target")
    if values.shape == call.shape:
        y = _vectors(call, values)
    else:
        y = _vectors_of_labels(call, values)
    total, k = y.sum(axis=1), call.rows.k
    wrong = ~(np.abs(total - k) <= NEAR * np.maximum(1.0, k))
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        raise ValueError(f"target sums to {total[i]:.10g} in row {i}; expected k = {k[i]:.10g}")
    if call.present is not None and (y[np.broadcast_to(~call.present, y.shape)] != 0.0).any():
        raise ValueError("target is not 0 at an entry where `where` is False; expected 0 there")
    return call, y


def check_constant(constant: Any) -> bool:
    """The `constant` of a loss, which must be a bool."""
    if not isinstance(constant, (bool, np.bool_)):
        raise TypeError(f"constant is {constant!r}; expected True or False")
    return bool(constant)


def _vectors(call: Call, values: Array) -> Array:
    """The rows of a target that has theta's shape."""
    if values.dtype.kind not in "biuf":
        raise TypeError(f"target has dtype {values.dtype}; expected bool, integers or real numbers")
    rows = host_arrays.to_rows(values, call.axis, np.float64, call.rows.x.shape)
    outside = ~((rows >= 0.0) & (rows <= 1.0))
    if outside.any():
        if values.dtype.kind in "iu":
            raise ValueError(no_vectors(int(rows[outside][0]), call.shape, call.axis))
        raise ValueError(f"target holds {rows[outside][0]}; expected numbers between 0 and 1")
    return rows


def no_vectors(found: int, shape: tuple[int, ...], axis: int) -> str:
    """The message for an integer target of theta's shape that holds another number than 0 and 1."""
    return (
        f"target holds {found} and has theta's shape {shape}; expected 0 and 1, or labels: "
        f"k of each row, fewer than n = {shape[axis]} along axis {axis}"
    )


def check_labels(labels: Array, n: int) -> None:
    """Refuse labels, a row of them for each row of scores, out of range or twice in a row."""
    wrong = (labels < NO_LABEL) | (labels >= n)
    if wrong.any():
        raise ValueError(f"target has the label {labels[wrong][0]}; expected 0 to {n - 1}, or -1")
    ordered = np.sort(labels, axis=1)
    again = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_LABEL)
    if again.any():
        i, j = np.argwhere(again)[0]
        raise ValueError(
            f"target has the label {ordered[i, j]} twice in row {i}; expected k different ones"
        )


def _vectors_of_labels(call: Call, values: Array) -> Array:
    """The 0/1 vectors with ones at the labels, as rows."""
    n, expected = call.rows.x.shape[1], f"theta's shape {call.shape}, or integer labels"
    if values.shape == call.batch:
        values = np.expand_dims(values, call.axis)
    axis = call.axis
    if (
        values.ndim != len(call.shape)
        or values.shape[:axis] + values.shape[axis + 1 :] != call.batch
    ):
        raise ValueError(
            f"target has shape {values.shape}; expected {expected} in place of its axis {axis}"
        )
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"target has shape {values.shape} and dtype {values.dtype}; expected {expected}"
        )
    table = len(call.rows.x), values.shape[axis]
    labels = host_arrays.to_rows(values, axis, np.int64, table)
    check_labels(labels, n)
    rows = np.zeros((len(labels), n + 1))
    for column in labels.T:
        rows[np.arange(len(rows)), column] += 1.0  # NO_LABEL is the last column, which is dropped
    return np.ascontiguousarray(rows[:, :n])


fenchel_young = FenchelYoung()
