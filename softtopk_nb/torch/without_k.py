"""softmax, its logarithm and the smoothed maximum of tensors: the operators without a k."""

from __future__ import annotations

import torch

from .._api.front import FrontOperator
from .._api.without_k import registry
from . import arguments, functions

Tensor = torch.Tensor

_DOC = """`softtopk_nb.{name}` of tensors, with autograd.

Parameters
----------
x : Tensor, shape (..., n, ...)
    Scores: float32 or float64; float16 and bfloat16 are computed in float32, integers and bools
    in PyTorch's default type, which the result has then.
temperature : float or Tensor, default=1.0
    As in `softtopk_nb.{name}`: a number, or a tensor that broadcasts to x's shape without `dim`.
dim, axis : int, default=None
    The dimension of the scores: None is the last. Both names say the same.
where : Tensor of bool, default=None
    Entries that take part, broadcastable to x's shape.

Returns
-------
value : Tensor of x's type and device
    As `softtopk_nb.{name}`: {shape}.

Raises
------
TypeError, ValueError, IndexError, RuntimeError, NotImplementedError
    As PyTorch has them: a wrong type; a temperature that is not positive or a shape that does not
    fit; `dim` out of range; tensors on different devices; sparse, quantized and meta tensors.

Notes
-----
{derivatives} Cost: O(n) and no copy of a contiguous tensor; on the CPU memory is shared with NumPy.

Examples
--------
>>> import torch
>>> import softtopk_nb.torch as stt
>>> x = torch.tensor([3.0, 2.0, 1.0, 4.0], requires_grad=True)
>>> stt.{name}(x, temperature=0.5).sum().backward()
>>> x.grad.shape
torch.Size([4])
"""


class WithoutK(FrontOperator):
    """An operator of the registry of those without a k, on tensors."""

    documentation = _DOC

    def __call__(
        self,
        x: Tensor,
        *,
        temperature: float | Tensor = 1.0,
        dim: int | None = None,
        axis: int | None = None,
        where: Tensor | None = None,
    ) -> Tensor:
        """The value: see the class."""
        x, layout = arguments.laid_out(x, dim, axis, True, where)
        _, temperature = arguments.numbers(0, temperature, x, layout, False)
        value = functions.value(self._op, {}, x, 0, temperature, layout=layout)
        return value if value.dtype == layout.dtype else value.to(layout.dtype)


WITHOUT_K = {name: WithoutK(op) for name, op in registry.items()}
softmax = WITHOUT_K["softmax"]
log_softmax = WITHOUT_K["log_softmax"]
logsumexp = WITHOUT_K["logsumexp"]
