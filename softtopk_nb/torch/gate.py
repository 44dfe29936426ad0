"""A gate for a mixture of experts as a layer of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from .._api.arguments import check_bool, whole
from .._api.base import TopK
from .._api.front import Choice
from ..selection import Own
from .arguments import check_tensor, mask
from .balanced import balancedtopk
from .layers import Temperature, number_of, operator_name
from .selection import topk

Tensor = torch.Tensor


class TopKGate(Temperature):
    """A gate for a mixture of experts: which k experts see a token, and with which weights.

    Parameters
    ----------
    features : int
        Numbers of a token.
    experts : int
        How many experts there are.
    k : int
        How many of them see a token.
    op : str or operator, default="thretopk"
        The operator that gives the weights, or its name.
    temperature : float, default=1.0
        Width of the transition, in the units of the scores; it may be set.
    hard : bool, default=False
        Straight-through: the weights are equal, with the soft operator's derivatives.
    normalize : bool, default=True
        Whether the weights of a token are divided by their sum, so that this is 1.
    bias : bool, default=False
        Whether the scores are linear in the token with a bias.
    balance : float, default=None
        With a number from 0 up to 1, say 0.9, the experts get weights of equal sums, without an
        auxiliary loss: in training the weights are those of `balancedtopk` over all tokens of the
        call. Its thresholds of the experts are averaged, where an older average keeps this part,
        and in evaluation the average is taken off the scores. How many tokens choose an expert is
        nearly equal then, and not equal: see the notes. It needs the operator `thretopk`.
    **options
        What the operator takes: `curve`, `alpha`, `method`; with `balance` no `method`.

    Attributes
    ----------
    scores : nn.Linear
        The layer that scores the experts, from `features` to `experts` numbers.
    load : Tensor of shape (experts,)
        Which part of the choices of the last call fell on each expert, without a gradient: 1 over
        `experts` each if they are loaded equally. It sums to 1, and is not in the saved state.
    thresholds : Tensor of shape (experts,)
        With `balance`, what is taken off the scores in evaluation; it is in the saved state, with
        `calls`, how many calls each was averaged over.

    Raises
    ------
    TypeError, ValueError
        k is not a whole number from 1 to `experts`; an unknown operator or what is none, or an
        option that it does not have; a temperature that is not positive.

    Notes
    -----
    A call without tokens leaves the load and the thresholds as they are, and one with a NaN the
    thresholds. The temperature, the load and the thresholds stay in float32, or wider, in a module
    that is converted to a half type.

    A mixture that computes all experts takes all weights, ``stt.thretopk(gate.scores(x), k)``.

    It is the weights that `balance` makes equal in sum, over all experts and in training, before
    `normalize`. How many of the choices fall on an expert is what `load` says, and that is the
    nearer to equal the lower the temperature is. With 8 experts, 2 chosen, and scores of normal
    tokens with means from 0 to 1 and deviations from 0.5 to 1.5, the most loaded expert had 0.233
    of the choices without `balance`, where 0.125 is equal; with it, in training, 0.140 at the
    temperature 1 and 0.129 at 0.1, and in evaluation 0.145 and 0.141 (512 tokens, means of ten
    runs). A mask with `balance` may leave out experts and tokens; of
    other masks some have no weights with equal sums, which is a ValueError in training.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> gate = stt.TopKGate(10, 8, 2)
    >>> weights, experts = gate(torch.randn(32, 10))
    >>> weights.shape, experts.shape, round(gate.load.sum().item(), 4)
    (torch.Size([32, 2]), torch.Size([32, 2]), 1.0)
    """

    load: Tensor
    thresholds: Tensor
    calls: Tensor

    def __init__(
        self,
        features: int,
        experts: int,
        k: int,
        op: Choice = "thretopk",
        temperature: float = 1.0,
        *,
        hard: bool = False,
        normalize: bool = True,
        bias: bool = False,
        balance: float | None = None,
        **options: Unpack[Own],
    ) -> None:
        super().__init__(temperature)
        for name, value in (("hard", hard), ("normalize", normalize), ("bias", bias)):
            check_bool(value, name)
        for name, size in (("features", features), ("experts", experts)):
            if whole(size, name, "a whole number") < 1:
                raise ValueError(f"{name} is {size}; expected 1 or more")
        self.k, self.op = whole(k), operator_name(self, op, options)
        self.hard, self.options = hard, options
        if not 1 <= self.k <= experts:
            raise ValueError(f"k is {self.k}; expected 1 to {experts}, the number of experts")
        self.normalize, self.balance = normalize, balance
        self.scores = nn.Linear(features, experts, bias=bias)
        self.register_buffer("load", torch.zeros(experts), persistent=False)
        if balance is None:
            return
        if not 0.0 <= number_of(balance, "balance", "a number from 0 up to 1") < 1.0:
            raise ValueError(f"balance is {balance!r}; expected a number from 0 up to 1")
        if self.op != "thretopk" or "method" in options:
            what = f"op is {self.op!r}" if self.op != "thretopk" else "method was given"
            raise TypeError(f"{what} and balance is {balance!r}; expected thretopk, no method")
        self.register_buffer("thresholds", torch.zeros(experts))
        self.register_buffer("calls", torch.zeros(experts, dtype=torch.int64))

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, where: Tensor | None = None) -> TopK[Tensor]:
            """As `forward`."""

    def forward(self, x: Tensor, where: Tensor | None = None) -> TopK[Tensor]:
        """(weights, indices) of the experts of each token, the largest weight first.

        Both have x's shape but for k along the last dimension.

        Parameters
        ----------
        x : Tensor, shape (..., features)
            Tokens.
        where : Tensor of bool, default=None
            Which experts a token may see, broadcastable to (..., experts): of shape (experts,),
            False where one is down; of shape (..., 1), False at tokens that fill up a batch. A
            token with fewer than k has the weight 0 for the rest, which do not count as load.
        """
        check_tensor(x, "x")
        features = self.scores.in_features
        if x.ndim == 0 or x.shape[-1] != features:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (..., {features}), of tokens")
        scores = self.scores(x)
        where = None if where is None else mask(where, scores)
        if self.balance is None or not self.training or not scores.numel():
            weights, indices = self._chosen(scores, where)
        else:
            weights, indices = self._balanced(scores, where)
        if indices.numel():
            taken = torch.ones_like(indices)
            if where is not None:
                taken = where.gather(-1, indices).to(taken.dtype)
            count = torch.zeros_like(self.load, dtype=taken.dtype)
            count = count.scatter_add(0, indices.flatten(), taken.flatten())
            self.load = count.to(self.load.dtype) / taken.sum().clamp(min=1)
        if self.normalize:
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total == 0, 1, total)  # 0 where there is no expert
        return TopK(weights, indices)

    def _chosen(self, scores: Tensor, where: Tensor | None) -> TopK[Tensor]:
        """The choice for each token by itself."""
        if self.balance is not None:
            scores = scores - self.thresholds.to(scores.dtype)
        given: dict[str, Any] = {"temperature": self.temperature, "hard": self.hard, "where": where}
        given |= self.options
        return topk(scores, self.k, op=self.op, clamp_k=where is not None, **given)

    def _balanced(self, scores: Tensor, where: Tensor | None) -> TopK[Tensor]:
        """The choice for all tokens together, whose thresholds of experts are averaged."""
        tokens = scores.reshape(-1, scores.shape[-1])
        k: Any = self.k
        load = present = None
        if where is not None:
            present = where.reshape(tokens.shape)
            k = present.sum(-1).clamp(max=self.k)
            up = present.any(0)
            load = (up * k.sum()) / up.sum().clamp(min=1)
        given: dict[str, Any] = {"temperature": self.temperature, "where": present, **self.options}
        p, _, columns = balancedtopk(tokens, k, load, **given)
        columns = columns.detach()
        chosen: dict[str, Any] = {"where": present, "clamp_k": present is not None}
        _, indices = topk(tokens.detach() - columns, self.k, op="hardtopk", **chosen)
        with torch.no_grad():
            # An expert that no token may see has no threshold, and none has one beside a NaN.
            found, columns = columns.isfinite(), columns.to(self.thresholds.dtype)
            self.calls += found
            part = (1.0 / self.calls).clamp(min=1.0 - float(self.balance or 0.0))
            moved = self.thresholds.lerp(columns, part.to(columns.dtype))
            self.thresholds.copy_(torch.where(found, moved, self.thresholds))
        weights = p.gather(-1, indices)
        if self.hard:
            weights = (weights > 0.0).to(p.dtype) + (weights - weights.detach())
        shape = *scores.shape[:-1], self.k
        return TopK(weights.reshape(shape), indices.reshape(shape))

    def extra_repr(self) -> str:
        """A description of the layer's arguments, for its repr."""
        options = {**self.options, **({} if self.balance is None else {"balance": self.balance})}
        listed = "".join(f", {name}={each!r}" for name, each in options.items())
        temperature = float(self.temperature.detach())
        return f"k={self.k}, temperature={temperature:g}, op={self.op!r}, hard={self.hard}{listed}"
