"""The operators: one object for each of the registry, called like `torch.nn.functional.softmax`."""

from __future__ import annotations

from typing import Any

import torch

from .._api.operator import Differentiable, chosen, registry
from . import arguments, functions, heights

Tensor = torch.Tensor

_DOC = """`softtopk_nb.{name}` of tensors, with autograd.

Parameters
----------
x : Tensor, shape (..., n, ...)
    Scores: float32 or float64; float16 and bfloat16 are computed in float32.
k : {k_type} or Tensor
    As in `softtopk_nb.{name}`: a number, or a tensor that broadcasts to x's shape without `dim`.
temperature : float or Tensor, optional
    Likewise, positive; 1 by default.
dim, axis : int, optional
    The dimension of the scores, the last by default. Both names say the same.
largest : bool, optional
    False takes the k smallest instead.
where : Tensor of bool, optional
    Entries that take part, broadcastable to x's shape; the others get 0.
hard : bool, optional
    Straight-through: the value is the 0/1 mask of the k largest entries (of round(k), where k is
    real), the derivatives are those of the soft operator.
**options
    The operator's own: see `softtopk_nb.{name}`.

Returns
-------
p : Tensor of x's shape, type and device
    {result}

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


class Operator:
    """An operator of the registry, on tensors."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self._known = tuple(op._known)
        self.__name__ = op.__name__
        second = "first and second" if op.has_second else "first"
        to = "x, k and the temperature" if op.real_k else "x and the temperature"
        soft = isinstance(op, Differentiable)
        self.__doc__ = _DOC.format(
            name=op.__name__,
            k_type="float" if op.real_k else "int",
            result="It sums to k along `dim`.",
            derivatives=f"Derivatives: {second}, in {to}." if soft else "There is no derivative.",
        )

    @property
    def real_k(self) -> bool:
        """Whether k may be any real number, and has a derivative."""
        return bool(self._op.real_k)

    def __repr__(self) -> str:
        return f"<operator {self.__name__!r} of softtopk_nb.torch>"

    def __reduce__(self) -> str:
        return self.__name__

    def __call__(
        self,
        x: Tensor,
        k: Any,
        *,
        temperature: Any = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        largest: bool = True,
        where: Tensor | None = None,
        hard: bool = False,
        **options: Any,
    ) -> Tensor:
        """The value: see the class."""
        self._check_names(options)
        x, layout = arguments.laid_out(x, dim, axis, largest, where)
        k, temperature = arguments.numbers(k, temperature, x, layout.batch, self.real_k)
        function = functions.value if isinstance(self._op, Differentiable) else functions.constant
        p = function(self._op, options, x, k, temperature, layout=layout)
        if hard:
            mask = functions.constant(registry["hardtopk"], {}, x, _whole(k), 1.0, layout=layout)
            p = mask + (p - p.detach())
        return p if p.dtype == layout.dtype else p.to(layout.dtype)

    def _check_names(self, options: dict[str, Any]) -> None:
        for name in options:
            if name not in self._known:
                known = ", ".join(self._known) or "none of its own"
                raise TypeError(
                    f"{self.__name__} got an unexpected keyword argument {name!r}; it knows {known}"
                )

    def potential(
        self,
        x: Tensor,
        k: Any,
        *,
        temperature: Any = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        largest: bool = True,
        where: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The smoothed sum of the k largest entries, whose gradient in x is the operator itself.

        Parameters
        ----------
        x, k, temperature, dim, axis, largest, where, **options
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
        _check_potential(self._op)
        self._check_names(options)
        x, layout = arguments.laid_out(x, dim, axis, largest, where)
        rows = layout.rows(x)
        k, temperature = arguments.numbers(k, temperature, x, layout.batch, self.real_k)
        phi = heights.potential(self._op, options, rows, k, temperature).to(layout.dtype)
        return phi if largest else -phi


def _whole(k: Any) -> Any:
    """k as an integer."""
    if isinstance(k, Tensor):
        return k.detach().round().to(torch.int64) if k.dtype.is_floating_point else k
    return round(k) if isinstance(k, float) else k


def _check_potential(op: Any) -> None:
    if not op.has_potential:
        raise TypeError(f"{op.__name__} is the gradient of no potential")


def fenchel_young(
    op: Any,
    theta: Tensor,
    target: Tensor,
    k: Any,
    *,
    constant: bool = True,
    temperature: Any = 1.0,
    dim: int | None = None,
    axis: int | None = None,
    largest: bool = True,
    where: Tensor | None = None,
    **options: Any,
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
    k, temperature, dim, axis, largest, where, **options
        As in a call of the operator.
    constant : bool, optional
        False leaves out the conjugate of the target, which does not depend on theta.

    Returns
    -------
    loss : Tensor of theta's shape without `dim`
        One for each row; differentiable in theta and the temperature.

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
    theta, layout = arguments.laid_out(theta, dim, axis, largest, where, "theta")
    rows = layout.rows(theta)
    y = heights.vectors(target, rows, layout)
    k, temperature = arguments.numbers(k, temperature, theta, layout.batch, inner.real_k)
    loss = heights.loss(inner, {"constant": constant, **options}, rows, k, temperature, y)
    return loss.to(layout.dtype)


OPERATORS = {name: Operator(op) for name, op in registry.items()}
hardtopk, thretopk, gradtopk = (OPERATORS[name] for name in ("hardtopk", "thretopk", "gradtopk"))
itertopk, wsoftmaxtopk = OPERATORS["itertopk"], OPERATORS["wsoftmaxtopk"]
