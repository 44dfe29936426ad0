"""The operators on tensors: one object for each, called like `torch.nn.functional.softmax`."""

from __future__ import annotations

from typing import Any, Generic, Literal, Never, Unpack

import torch

from .._api import typed
from .._api.front import Choice, FrontOperator, check_potential, check_threshold, refuse_cost
from .._api.operator import Differentiable, chosen, registry
from .._api.typed import C, E, K, M, X
from ..gradtopk.operator import Method as OfGradTopK
from ..selection import Own
from ..thretopk.operator import CurveChoice, Method
from . import arguments, functions, potentials, prices

Tensor = torch.Tensor
#: What is returned of the losses of all rows.
Reduction = Literal["none", "mean", "sum"]
_COMMON = "temperature", "dim", "largest", "where", "hard", "clamp_k"

_DOC = """`softtopk_nb.{name}` of tensors, with autograd.

Parameters
----------
x : Tensor, shape (..., n, ...)
    Scores: float32 or float64; float16 and bfloat16 are computed in float32, integers and bools
    in PyTorch's default type, which the result has then.
k : {k_type} or Tensor
    As in `softtopk_nb.{name}`: a number, or a tensor that broadcasts to x's shape without
    `dim`, or with 1 along it.
temperature : float or Tensor, default=1.0
    Likewise, positive.
dim, axis : int, default=None
    The dimension of the scores: None is the last. Both names say the same.
largest : bool, default=True
    False takes the k smallest instead.
where : Tensor of bool, default=None
    Entries that take part, broadcastable to x's shape; the others get 0.
hard : bool, default=False
    Straight-through: the value is the 0/1 mask of the k largest entries (of round(k), where k is
    real), the derivatives are those of the soft operator.
clamp_k : bool, default=False
    True takes min(k, entries that take part) in each row, with the gradient 0 in k where that is
    less than k; a row with fewer entries is NaN otherwise.
**options
    The operator's own: see `softtopk_nb.{name}`.

Returns
-------
p : Tensor of x's shape, type and device
    It sums to k along `dim`.

Raises
------
TypeError, ValueError, IndexError, RuntimeError, NotImplementedError
    As PyTorch has them: a wrong type; k or a temperature out of range or a shape that does not fit;
    `dim` out of range; tensors on different devices; sparse, quantized and meta tensors.

Notes
-----
{derivatives} Cost: O(n) and no copy of a contiguous tensor; on the CPU memory is shared with NumPy.

Examples
--------
>>> import torch
>>> import softtopk_nb.torch as stt
>>> x = torch.tensor([3.0, 2.0, 1.0, 4.0], requires_grad=True)
>>> stt.{name}(x, 2).sum().item() == 2.0
True
"""


class Operator(FrontOperator, Generic[K, C, E, M, X]):
    """An operator of the registry, on tensors."""

    documentation = _DOC
    without_derivatives = "There is no derivative."

    def __call__(
        self,
        x: Tensor,
        k: K | Tensor,
        *,
        temperature: float | Tensor = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        largest: bool = True,
        where: Tensor | None = None,
        hard: bool = False,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> Tensor:
        """The value: see the class."""
        self._op.check_names(options, _COMMON)
        x, layout = arguments.laid_out(x, dim, axis, largest, where)
        if (cost := options.get("cost")) is not None:
            given = k, temperature, cost, hard, clamp_k
            return prices.value(self._op, options, x, layout, *given)
        k, temperature = arguments.numbers(k, temperature, x, layout, self.real_k, clamp_k)
        soft = isinstance(self._op, Differentiable)
        function: Any = functions.value if soft else functions.constant
        p: Tensor = function(self._op, options, x, k, temperature, layout=layout)
        if hard:
            mask = functions.constant(registry["hardtopk"], {}, x, _whole(k), 1.0, layout=layout)
            p = mask + (p - p.detach())
        return p if p.dtype == layout.dtype else p.to(layout.dtype)

    def potential(
        self,
        x: Tensor,
        k: K | Tensor,
        *,
        temperature: float | Tensor = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        largest: bool = True,
        where: Tensor | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> Tensor:
        """The smoothed sum of the k largest entries, whose gradient in x is the operator itself.

        Parameters
        ----------
        x, k, temperature, dim, axis, largest, where, clamp_k, **options
            As in a call.

        Returns
        -------
        phi : Tensor of x's shape without `dim`
            In the units of x.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> stt.thretopk.potential(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        tensor(7.8297)
        """
        check_potential(self._op)
        given = x, k, temperature, dim, axis, largest, where, clamp_k, options
        return self._number(potentials.potential, *given)

    def threshold(
        self,
        x: Tensor,
        k: K | Tensor,
        *,
        temperature: float | Tensor = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        largest: bool = True,
        where: Tensor | None = None,
        clamp_k: bool = False,
        **options: Unpack[typed.Own[C, E, M, X]],
    ) -> Tensor:
        """The threshold lambda of p = f((x - lambda)/temperature), which `thretopk` has.

        Parameters
        ----------
        x, k, temperature, dim, axis, largest, where, clamp_k, **options
            As in a call.

        Returns
        -------
        lam : Tensor of x's shape without `dim`
            In the units of x; differentiable in x and the temperature.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> stt.thretopk.threshold(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        tensor(2.5000)
        """
        check_threshold(self._op)
        given = x, k, temperature, dim, axis, largest, where, clamp_k, options
        return self._number(potentials.threshold, *given)

    def _number(
        self,
        function: Any,
        x: Tensor,
        k: Any,
        temperature: Any,
        dim: int | None,
        axis: int | None,
        largest: bool,
        where: Tensor | None,
        clamp_k: bool,
        options: Any,
    ) -> Tensor:
        """A number of each row in the units of x, by this function of rows."""
        self._op.check_names(options, _COMMON)
        refuse_cost(options, "a potential or threshold of tensors")
        x, layout = arguments.laid_out(x, dim, axis, largest, where)
        rows = layout.rows(x)
        k, temperature = arguments.numbers(k, temperature, x, layout, self.real_k, clamp_k)
        number: Tensor = function(self._op, options, rows, k, temperature).to(layout.dtype)
        return number if largest else -number


def _whole(k: Any) -> Any:
    """k as an integer."""
    if isinstance(k, Tensor):
        return k.detach().round().to(torch.int64) if k.dtype.is_floating_point else k
    return round(k) if isinstance(k, float) else k


def check_reduction(reduction: Any) -> None:
    """Refuse what is no way to reduce losses."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}; expected 'none', 'mean' or 'sum'")


def fenchel_young(
    op: Choice,
    theta: Tensor,
    target: Tensor,
    k: float | Tensor,
    *,
    constant: bool = True,
    reduction: Reduction = "none",
    temperature: float | Tensor = 1.0,
    dim: int | None = None,
    axis: int | None = None,
    largest: bool = True,
    where: Tensor | None = None,
    clamp_k: bool = False,
    **options: Unpack[Own],
) -> Tensor:
    """The Fenchel-Young loss of scores: `softtopk_nb.fenchel_young` of tensors, with autograd.

    Parameters
    ----------
    op : operator or str
        `softtopk_nb.torch.thretopk` or `gradtopk`, whose potential it is, or its name.
    theta : Tensor, shape (..., n, ...)
        Scores.
    target : Tensor
        Of theta's shape: 0/1 vectors with k ones or, for `thretopk` or without the constant,
        numbers in [0, 1] that sum to k. Or int64 labels, k of each row along `dim`, where -1 fills
        up rows with fewer; with k = 1 the dimension may be left out.
    k, temperature, dim, axis, largest, where, clamp_k, **options
        As in a call of the operator.
    constant : bool, default=True
        False leaves out the conjugate of the target, which does not depend on theta.
    reduction : {"none", "mean", "sum"}, default="none"
        Whether the mean or the sum over all rows is returned in place of the loss of each.

    Returns
    -------
    loss : Tensor of theta's shape without `dim`, or without dimensions
        One for each row, or reduced; differentiable in theta and the temperature.

    Raises
    ------
    TypeError, ValueError
        As `softtopk_nb.fenchel_young`; and for a target that requires a gradient.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> theta = torch.tensor([[3.0, 2.0, 1.0, 4.0], [0.0, 0.0, 1.0, 0.5]])
    >>> labels = torch.tensor([[0, 3], [2, -1]])
    >>> stt.fenchel_young(stt.gradtopk, theta, labels, torch.tensor([2, 1]))
    tensor([0.5345, 0.8511])
    """
    inner = chosen(op, with_potential=True)
    check_reduction(reduction)
    theta, layout = arguments.laid_out(theta, dim, axis, largest, where, "theta")
    rows = layout.rows(theta)
    y = potentials.vectors(target, rows, layout)
    real_k = inner.real_k
    k, temperature = arguments.numbers(k, temperature, theta, layout, real_k, clamp_k)
    loss = potentials.loss(inner, {"constant": constant, **options}, rows, k, temperature, y)
    loss = loss.to(layout.dtype)
    return loss if reduction == "none" else getattr(loss, reduction)()


OPERATORS: dict[str, Operator[Any, Any, Any, Any, Any]] = {
    name: Operator(op) for name, op in registry.items()
}
hardtopk: Operator[int, Never, Never, Never, Never] = OPERATORS["hardtopk"]
thretopk: Operator[float, CurveChoice, float, Method, typed.Numbers] = OPERATORS["thretopk"]
gradtopk: Operator[int, Never, Never, OfGradTopK, Never] = OPERATORS["gradtopk"]
itertopk: Operator[int, Never, Never, Never, Never] = OPERATORS["itertopk"]
wsoftmaxtopk: Operator[int, Never, Never, Never, Never] = OPERATORS["wsoftmaxtopk"]
