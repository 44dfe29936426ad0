"""The operators as modules of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .._api.operator import chosen
from .operators import OPERATORS

Tensor = torch.Tensor


def _held(k: Tensor, n: int) -> Tensor:
    """k, kept strictly between 0 and n, with the gradient of the number that it is held at.

    At 0 and at n no row would move, and a k that had once been there would stay.
    """
    eps = torch.finfo(k.dtype).eps
    return k.detach().clamp(n * eps, n * (1.0 - eps)) + (k - k.detach())


class SoftTopK(nn.Module):
    """Smooth top-k as a layer.

    Parameters
    ----------
    k : int or float
        How much to choose along `dim`; a real number for `thretopk` alone.
    temperature : float, optional
        Width of the transition, in the units of the scores.
    op : str or operator, optional
        "thretopk", "gradtopk", "itertopk" or "wsoftmaxtopk", or the operator itself; the layer
        keeps the name.
    learn_temperature : bool, optional
        Whether the logarithm of the temperature is a parameter, `log_temperature`.
    learn_k : bool, optional
        Whether k is a parameter; of `thretopk`. What is used of it is kept between 0 and the number
        of scores, where gradients lead a parameter back that has left them.
    dim : int, optional
        The dimension of the scores.
    hard : bool, optional
        Straight-through: the 0/1 mask forward, the soft operator's derivatives backward.
    **options
        What the operator takes: `curve`, `alpha`, `method`, `largest`.

    Raises
    ------
    TypeError, ValueError
        An unknown operator or what is none, a temperature that is not positive, a k that is learnt
        but must be an integer. Other arguments are checked when the layer is called.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> layer = stt.SoftTopK(2, temperature=0.5, learn_temperature=True)
    >>> layer(torch.tensor([3.0, 2.0, 1.0, 4.0])).sum().item()
    2.0
    >>> [name for name, _ in layer.named_parameters()]
    ['log_temperature']
    """

    def __init__(
        self,
        k: Any,
        temperature: float = 1.0,
        op: Any = "thretopk",
        *,
        learn_temperature: bool = False,
        learn_k: bool = False,
        dim: int = -1,
        hard: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        op = chosen(op).__name__
        if not 0.0 < temperature < float("inf"):
            raise ValueError(f"temperature is {temperature!r}; expected a positive finite number")
        self.op, self.dim, self.hard, self.options = op, dim, hard, options
        if learn_k and not OPERATORS[op].real_k:
            raise TypeError(f"learn_k is True, but {op} takes an integer k")
        self.k = nn.Parameter(torch.tensor(float(k))) if learn_k else k
        self.learn_temperature = learn_temperature
        if learn_temperature:
            self.log_temperature = nn.Parameter(torch.tensor(float(temperature)).log())
        else:
            self.fixed_temperature = float(temperature)

    @property
    def temperature(self) -> Any:
        """The temperature: a number, or what the parameter says."""
        return self.log_temperature.exp() if self.learn_temperature else self.fixed_temperature

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """The soft mask of x, of its shape and type."""
        k = self.k
        if isinstance(k, Tensor):
            k = _held(k, x.shape[self.dim])
        return OPERATORS[self.op](
            x,
            k,
            temperature=self.temperature,
            dim=self.dim,
            where=where,
            hard=self.hard,
            **self.options,
        )

    def extra_repr(self) -> str:
        """What is not a parameter."""
        k = f"{self.k.item():g} (learnt)" if isinstance(self.k, Tensor) else self.k
        options = "".join(f", {name}={each!r}" for name, each in self.options.items())
        temperature = float(torch.as_tensor(self.temperature).detach())
        return f"{k}, temperature={temperature:g}, op={self.op!r}, dim={self.dim}{options}"
