"""Sinkhorn's assignment of tensors, with autograd; compilers see it as one opaque function."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd import Function
from torch.library import custom_op

from ..softmax import assignment
from . import arguments, calls
from .custom_ops import is_tracing, with_one_more_axis
from .functions import Rowwise
from .layout import of_rows
from .potentials import finite

Tensor = torch.Tensor


def sinkhorn(
    scores: Tensor,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    *,
    temperature: float | Tensor = 1.0,
    tol: float = 1e-9,
    max_iter: int = 1000,
) -> Tensor:
    """Soft assignment with given marginals: `softtopk_nb.sinkhorn` of tensors, with autograd.

    Parameters
    ----------
    scores : Tensor, shape (..., n, m)
        How well row i and column j go together; -inf forbids a pair. Computed in float64.
    rows, columns : Tensor, default=None
        Sums of the rows, shape (..., n), and of the columns, shape (..., m), broadcast over the
        batch, as in `softtopk_nb.sinkhorn`. They are not differentiated.
    temperature : float or Tensor, default=1.0
        The smoothing, in the units of the scores; broadcast over the batch.
    tol : float, default=1e-9
        As in `softtopk_nb.sinkhorn`.
    max_iter : int, default=1000
        Likewise.

    Returns
    -------
    P : Tensor of the scores' shape, type and device
        The assignment, differentiable in the scores and the temperature.

    Raises
    ------
    TypeError, ValueError, ConvergenceError
        As `softtopk_nb.sinkhorn`; and for marginals that require a gradient.

    Notes
    -----
    The gradient is that of the assignment at which the sweeps end: a system of min(n, m) equations
    for each matrix, whatever the number of sweeps. There is no second derivative. All of it is
    computed on the CPU.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> scores = torch.tensor([[2.0, 1.0], [1.0, 0.0]], requires_grad=True)
    >>> stt.sinkhorn(scores, temperature=0.5)[0, 0].backward()
    >>> scores.grad
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    scores = arguments.check_tensor(scores, "scores")
    if scores.ndim < 2:
        raise ValueError(f"scores has shape {tuple(scores.shape)}; expected at least two axes")
    *leading, n, m = scores.shape
    batch = tuple(leading)
    masses = _mass(rows, "rows", (*batch, n)), _mass(columns, "columns", (*batch, m))
    x = arguments.computed(scores)
    _, width = arguments.numbers(0, temperature, x, of_rows(x[..., 0]), False)
    if not isinstance(width, Tensor):
        width = torch.full(batch, width, dtype=torch.float64, device=x.device)
    function = Plan if is_tracing(x) else ForwardPlan
    p: Tensor = function.apply(None, (float(tol), max_iter), x, width, *masses)
    return p.to(scores.dtype)


def _mass(mass: Any, name: str, shape: tuple[int, ...]) -> Tensor | None:
    """Sums of rows or columns, for each matrix."""
    if mass is None:
        return None
    mass = arguments.check_tensor(mass, name)
    if mass.requires_grad:
        raise TypeError(f"{name} requires a gradient; expected none: it is not differentiated")
    try:
        return arguments.computed(mass).expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(mass.shape)}; expected one that broadcasts to {shape}"
        ) from None


def _arrays(*tensors: Tensor | None) -> list[Any]:
    return [None if each is None else calls.array(each.cpu()) for each in tensors]


@custom_op("softtopk_nb::sinkhorn", mutates_args=())
def _plan(
    scores: Tensor,
    temperature: Tensor,
    rows: Tensor | None,
    columns: Tensor | None,
    tol: float,
    max_iter: int,
) -> Tensor:
    x, width, *masses = _arrays(scores, temperature, rows, columns)
    p = assignment.sinkhorn(x, *masses, temperature=width, tol=tol, max_iter=max_iter)
    return calls.tensor(p).to(scores.device)


@custom_op("softtopk_nb::sinkhorn_gradients", mutates_args=())
def _gradients(
    plan: Tensor, scores: Tensor, temperature: Tensor, g: Tensor
) -> tuple[Tensor, Tensor]:
    found = assignment.gradients(*_arrays(plan, scores, temperature, g))
    in_scores, in_tau = (calls.tensor(each).contiguous().to(plan.device) for each in found)
    return in_scores.to(scores.dtype), in_tau.to(temperature.dtype)


_plan.register_fake(lambda scores, *_: scores.new_empty(scores.shape))
_gradients.register_fake(
    lambda plan, scores, temperature, g: (
        scores.new_empty(scores.shape),
        temperature.new_empty(temperature.shape),
    )
)
for _each in (_plan, _gradients):
    _each.register_vmap(functools.partial(with_one_more_axis, _each))


class Plan(Function):
    """(scores, temperature, marginals or None) -> the assignment."""

    @staticmethod
    def forward(
        op: Any,
        options: Any,
        scores: Tensor,
        temperature: Tensor,
        rows: Tensor | None,
        columns: Tensor | None,
    ) -> Tensor:
        """The assignment."""
        return _plan(scores, temperature, rows, columns, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the problem and the assignment."""
        _, _, scores, temperature, _, _ = inputs
        ctx.save_for_backward(output, scores, temperature)
        ctx.save_for_forward(output, scores, temperature)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """The gradients in the scores and the temperature."""
        found = Gradients.of(None, None, *ctx.saved_tensors, g)
        return None, None, *found, None, None


class ForwardPlan(Rowwise):
    """The assignment under transforms and forward mode, whose functions a compiler refuses."""

    forward = Plan.forward
    setup_context = Plan.setup_context
    backward = Plan.backward

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Tensor:
        """The derivative along a direction: the map of gradients in the scores, its own transpose.

        The assignment depends on the ratio of scores and temperature alone.
        """
        plan, scores, temperature = ctx.saved_tensors
        dx, dtau = tangents[:2]
        direction = torch.zeros_like(plan) if dx is None else dx
        if dtau is not None:
            direction = direction - finite(scores) * (dtau / temperature)[..., None, None]
        moved: Tensor = Gradients.of(None, None, *ctx.saved_tensors, direction.to(plan.dtype))[0]
        return moved


class Gradients(Rowwise):
    """(assignment, scores, temperature, cotangent) -> the gradients, without their derivatives."""

    @staticmethod
    def forward(op: Any, options: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of <cotangent, assignment>."""
        found: tuple[Tensor, Tensor] = _gradients(*tensors)
        return found

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError("sinkhorn has no second derivative here")

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        """Raise NotImplementedError."""
        raise NotImplementedError("sinkhorn has no second derivative here")
