"""Balanced top-k of tensors, with autograd; compilers see it as one opaque function."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import Function
from torch.library import custom_op

from ..balanced import Balanced, call
from ..balanced.checks import check_axes
from . import arguments, calls
from .custom_ops import is_tracing, read, with_one_more_axis, written
from .functions import Rowwise

Tensor = torch.Tensor
Three = tuple[Tensor, Tensor, Tensor]
NO_SECOND = "balancedtopk has no second derivative here"


def balancedtopk(
    x: Tensor,
    k: Any,
    load: Any = None,
    *,
    temperature: Any = 1.0,
    curve: Any = "laplace",
    alpha: float | None = None,
    dim: tuple[int, int] | None = None,
    axis: tuple[int, int] | None = None,
    at_most: bool = False,
    where: Tensor | None = None,
    clamp_k: bool = False,
    tol: float = 1e-10,
    max_iter: int = 100,
) -> Balanced:
    """Smooth top-k of rows whose columns have a load: `softtopk_nb.balancedtopk` of tensors.

    Parameters
    ----------
    x : Tensor, shape (..., m, n)
        Scores.
    k : float or Tensor
        The sum of each row: a number, or a tensor that broadcasts to the shape (..., m).
    load : float or Tensor, default=None
        The sum of each column, or with `at_most` a bound on it; broadcast to the shape (..., n).
        None gives each column an equal part of the sum of k.
    temperature : float or Tensor, default=1.0
        The smoothing, in the units of the scores; broadcast over the batch.
    curve : str or Curve, default="laplace"
        As for `thretopk`.
    alpha : float, default=None
        As for `thretopk`.
    dim, axis : tuple of two int, default=None
        The dimensions of rows and of columns; both names say the same, None for the last two.
    at_most : bool, default=False
        Whether the load is a bound.
    where : Tensor of bool, default=None
        Entries that take part, all if None; broadcast to x's shape.
    clamp_k : bool, default=False
        True takes min(k, entries that take part) in each row, with the gradient 0 in k where that
        is less than k.
    tol : float, default=1e-10
        As in `softtopk_nb.balancedtopk`.
    max_iter : int, default=100
        As in `softtopk_nb.balancedtopk`.

    Returns
    -------
    Balanced
        `p`, of x's shape, type and device, differentiable in x, k, the load and the temperature;
        and the thresholds of the rows and of the columns, without a gradient.

    Raises
    ------
    TypeError, ValueError, IndexError, ConvergenceError
        As `softtopk_nb.balancedtopk`.

    Notes
    -----
    The gradient is that of the solution, by one system of n equations for each matrix. There is no
    second derivative. A CUDA tensor is solved on its device, by steps for which the host waits;
    k, the load and the temperature are copied to the host.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> scores = torch.tensor([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    >>> p = stt.balancedtopk(scores.requires_grad_(), 1, temperature=0.5).p
    >>> p.sum(0).round(decimals=4).tolist()
    [1.0, 1.0, 1.0]
    >>> p[0, 0].backward()
    """
    x = arguments.check_tensor(x, "x")
    if axis is not None and dim is not None:
        raise TypeError(f"dim is {dim!r} and axis is {axis!r}; expected one of them")
    name, pair = ("axis", axis) if dim is None else ("dim", dim)
    at = check_axes((-2, -1) if pair is None else pair, x, name)
    matrices = arguments.computed(x).movedim(at, (-2, -1))
    *leading, m, n = matrices.shape
    batch = tuple(leading)
    given = ("k", k, (*batch, m)), ("temperature", temperature, batch), ("load", load, (*batch, n))
    of_rows = (None if v is None else _numbers(v, name, to, x) for name, v, to in given)
    present = None if where is None else arguments.mask(where, x).movedim(at, (-2, -1))
    options: dict[str, Any] = {"curve": curve, "alpha": alpha, "at_most": at_most}
    options |= {"clamp_k": clamp_k, "tol": tol, "max_iter": max_iter}
    function = Solve if is_tracing(x) else ForwardSolve
    p, rows, columns = function.apply(None, options, matrices, *of_rows, present)
    p = p.movedim((-2, -1), at).to(x.dtype)
    return Balanced(p, rows.to(x.dtype), columns.to(x.dtype))


def _numbers(value: Any, name: str, shape: tuple[int, ...], x: Tensor) -> Tensor:
    """A number or a tensor as a tensor of this shape."""
    if not isinstance(value, Tensor):
        value = arguments.beside(value, name, x, torch.float64)
    return arguments.spread(value, shape, name, x)


def _checked(options: dict[str, Any], *problem: Any) -> Any:
    """The checked call; after the problem there may be the thresholds of the columns."""
    x, k, temperature, load, where, *start = problem
    x, where = calls.given(x, where)
    k, temperature, load, *start = map(_on_host, (k, temperature, load, *start))
    known = {"axis": (-2, -1), "where": where, "alpha": None, **options}
    return call.check(x, k, load, temperature, known, *start)


def _on_host(numbers: Tensor | None) -> Any:
    """Numbers of rows or columns as an array of NumPy, from a device too."""
    return None if numbers is None else calls.array(numbers.cpu())


def _as_tensors(x: Tensor, arrays: Any) -> tuple[Tensor, ...]:
    """Contiguous tensors on x's device."""
    tensors = (each if isinstance(each, Tensor) else calls.tensor(each) for each in arrays)
    return tuple(each.contiguous().to(x.device) for each in tensors)


def _solve(options: dict[str, Any], *problem: Any) -> tuple[Tensor, ...]:
    """p and both thresholds."""
    return _as_tensors(problem[0], _checked(options, *problem).value())


def _vjp(options: dict[str, Any], *problem: Any) -> tuple[Tensor, ...]:
    """The gradients in x, k, the temperature and the load; that is empty if there is none."""
    *solved, g = problem
    _, gradients = _checked(options, *solved).vjp()
    gx, gk, gload, gtau = gradients(calls.given(g)[0])
    x, k, temperature, load, *_ = solved
    found = zip((gx, gk, gtau), (x, k, temperature), strict=True)
    in_load = x.new_empty(0) if load is None else _as_tensors(x, [gload])[0].to(load.dtype)
    return *(_as_tensors(x, [each])[0].to(of.dtype) for each, of in found), in_load


@custom_op("softtopk_nb::balancedtopk", mutates_args=())
def _solve_op(
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    load: Tensor | None,
    where: Tensor | None,
    name: str,
    numbers: list[float],
) -> tuple[Tensor, Tensor, Tensor]:
    p, rows, columns = _solve(_read(name, numbers), x, k, temperature, load, where)
    return p, rows, columns


@custom_op("softtopk_nb::balancedtopk_gradients", mutates_args=())
def _vjp_op(
    x: Tensor,
    k: Tensor,
    temperature: Tensor,
    load: Tensor | None,
    where: Tensor | None,
    columns: Tensor,
    g: Tensor,
    name: str,
    numbers: list[float],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gx, gk, gtau, gload = _vjp(_read(name, numbers), x, k, temperature, load, where, columns, g)
    return gx, gk, gtau, gload


def _read(name: str, numbers: list[float]) -> dict[str, Any]:
    options = read(name, numbers)[1]
    return {**options, "max_iter": int(options["max_iter"])}


_solve_op.register_fake(
    lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.shape[:-1]), _columns_of(x))
)
_vjp_op.register_fake(
    lambda x, k, temperature, load, *_: (
        x.new_empty(x.shape),
        k.new_empty(k.shape),
        temperature.new_empty(temperature.shape),
        x.new_empty(0) if load is None else load.new_empty(load.shape),
    )
)
for _each in (_solve_op, _vjp_op):
    _each.register_vmap(functools.partial(with_one_more_axis, _each))


def _columns_of(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1]))


def _words(options: dict[str, Any]) -> tuple[str, list[float]]:
    return written("balancedtopk", {key: v for key, v in options.items() if v is not None})


class Solve(Function):
    """(x, k, temperature, load or None, mask or None) -> (p, both thresholds)."""

    @staticmethod
    def forward(
        op: Any,
        options: Any,
        x: Tensor,
        k: Tensor,
        temperature: Tensor,
        load: Tensor | None,
        where: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Solve."""
        if is_tracing(x):
            words = _words(options)
            found: tuple[Tensor, ...] = _solve_op(x, k, temperature, load, where, *words)
            return found
        return _solve(options, x, k, temperature, load, where)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and its solution; the thresholds are not differentiable."""
        _, ctx.options, *tensors = inputs
        _, rows, columns = output
        ctx.mark_non_differentiable(rows, columns)
        ctx.save_for_backward(*tensors, columns)
        ctx.save_for_forward(*tensors, columns)

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Any, ...]:
        """The gradients in x, k, the temperature and the load."""
        gx, gk, gtau, gload = Gradients.of(None, ctx.options, *ctx.saved_tensors, g)
        has_load = ctx.saved_tensors[3] is not None
        return None, None, gx, gk, gtau, gload if has_load else None, None


class ForwardSolve(Rowwise):
    """The same under transforms and forward mode, whose functions a compiler refuses."""

    forward = Solve.forward
    setup_context = Solve.setup_context
    backward = Solve.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> tuple[Any, None, None]:
        """The derivative of p along a direction."""
        moving = zip(ctx.saved_tensors[:4], tangents[:4], strict=True)  # a mask does not move
        moves = [
            torch.zeros_like(of) if move is None and of is not None else move for of, move in moving
        ]
        return Along.of(None, ctx.options, *ctx.saved_tensors, *moves), None, None


class Gradients(Rowwise):
    """(problem, thresholds of the columns, cotangent) -> the gradients."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The gradients of <cotangent, p>."""
        if is_tracing(tensors[0]):
            found: tuple[Tensor, ...] = _vjp_op(*tensors, *_words(options))
            return found
        return _vjp(options, *tensors)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(NO_SECOND)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError(NO_SECOND)


class Along(Rowwise):
    """(problem, thresholds of the columns, direction) -> the derivative along it."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> Tensor:
        """The derivative of p along (x, k, temperature, load)."""
        *solved, move, dk, dtau, dload = tensors
        (dx,), (dk, dtau, dload) = calls.given(move), map(_on_host, (dk, dtau, dload))
        _, dp = _checked(options, *solved).jvp(dx, dk, dload, dtau)
        return _as_tensors(tensors[0], [dp])[0]

    backward = Gradients.backward
    jvp = Gradients.jvp
