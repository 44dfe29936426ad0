"""The operators as layers of a network: a mask, a gate for experts, a loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from .._api.arguments import check_bool, show, unexpected, whole
from .._api.base import TopK
from .._api.front import Choice
from .._api.operator import chosen
from ..selection import Own
from .balanced import balancedtopk
from .operators import OPERATORS, Reduction, check_reduction, fenchel_young
from .selection import topk

Tensor = torch.Tensor


class LayerOptions(Own, total=False):
    """What a layer hands on to its operator."""

    largest: bool
    clamp_k: bool


def _check_temperature(value: Any) -> float:
    """The temperature as a positive number."""
    number = _number(value, "temperature", "a positive finite number")
    if not 0.0 < number < float("inf"):
        raise ValueError(f"temperature is {value!r}; expected a positive finite number")
    return number


def _number(value: Any, name: str, expected: str) -> float:
    """The argument `name` as a number."""
    try:
        if not isinstance(value, (bool, str)):
            return float(value)
    except (TypeError, ValueError, RuntimeError):  # as PyTorch has it of several numbers
        pass
    raise TypeError(f"{name} is {show(value)}; expected {expected}")


def _operator_name(
    layer: nn.Module,
    op: Any,
    options: Mapping[str, Any],
    *known: str,
    with_potential: bool = False,
) -> Any:
    """The name of a layer's operator, of which all options are checked before the first call.

    `known` are those of them that every operator takes, which are True or False.
    """
    inner: Any = chosen(op, with_potential=with_potential)
    own = {name: each for name, each in options.items() if name not in known}
    for name, each in options.items():
        if name in known:
            check_bool(each, name)
        elif name not in inner.known_options:
            of_layer = [*inspect.signature(type(layer)).parameters][:-1]  # the last is `options`
            knows = (*of_layer, *inner.known_options, *known)
            raise unexpected(f"{type(layer).__name__} of {inner.__name__}", name, knows)
    inner.check_options(own)
    return inner.__name__


class _Temperature(nn.Module):
    """A layer with a temperature, which is a buffer, or a parameter's exponential."""

    fixed_temperature: Tensor

    def __init__(self, temperature: float, *, learnt: bool = False) -> None:
        super().__init__()
        number = torch.tensor(_check_temperature(temperature))
        self.learn_temperature = learnt
        if learnt:
            self.log_temperature = nn.Parameter(number.log())
        else:
            self.register_buffer("fixed_temperature", number)

    @property
    def temperature(self) -> Tensor:
        """The temperature, a tensor without dimensions; it may be set to a number."""
        return self.log_temperature.exp() if self.learn_temperature else self.fixed_temperature

    @temperature.setter
    def temperature(self, value: float | Tensor) -> None:
        number = _check_temperature(value)
        with torch.no_grad():
            if self.learn_temperature:
                self.log_temperature.fill_(number).log_()
            else:
                self.fixed_temperature.fill_(number)


class SoftTopK(_Temperature):
    """Smooth top-k as a layer.

    Parameters
    ----------
    k : int or float, default=None
        How much to choose along `dim`; a real number for `thretopk` alone.
    temperature : float, default=1.0
        Width of the transition, in the units of the scores.
    op : str or operator, default="thretopk"
        "thretopk", "gradtopk", "itertopk" or "wsoftmaxtopk", or the operator itself; the layer
        keeps the name.
    fraction : float, default=None
        In place of k: which part of the scores to choose, in (0, 1). Rounded, and at least 1, where
        k must be an integer.
    learn_temperature : bool, default=False
        Whether the logarithm of the temperature is a parameter, `log_temperature`.
    learn_k : bool or tuple of two numbers, default=False
        Whether k is learned; of `thretopk`. The parameter is `shift`, 0 at the start: what is added
        to the log-odds of k between its bounds, which it can come close to and never reach. The
        bounds are 0 and the number of scores, or the two that are given; of the fraction, if that
        is given.
    dim : int, default=-1
        The dimension of the scores.
    hard : bool, default=False
        Straight-through: the 0/1 mask forward, the soft operator's derivatives backward.
    **options
        What the operator takes: `curve`, `alpha`, `method`, `largest`, `clamp_k`.

    Raises
    ------
    TypeError, ValueError
        Neither or both of k and `fraction`; an unknown operator or what is none, or an option that
        it does not have; a temperature that is not positive; a k that is learned but must be an
        integer, or does not lie within its bounds. Whether k fits is checked when the layer is
        called.

    Notes
    -----
    The temperature can be set, as in ``layer.temperature = 0.1``: annealing is a line of a training
    loop. It is in the state that is saved, and so are, where k is learned, what it began at and
    `shift`. Setting it compiles nothing anew under `torch.compile`.

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

    k: Any
    learn_k: Any
    start: Tensor

    def __init__(
        self,
        k: float | None = None,
        temperature: float = 1.0,
        op: Choice = "thretopk",
        *,
        fraction: float | None = None,
        learn_temperature: bool = False,
        learn_k: bool | tuple[float, float] = False,
        dim: int = -1,
        hard: bool = False,
        **options: Unpack[LayerOptions],
    ) -> None:
        check_bool(learn_temperature, "learn_temperature")
        check_bool(hard, "hard")
        super().__init__(temperature, learnt=learn_temperature)
        self.op = _operator_name(self, op, options, "largest", "clamp_k")
        self.dim, self.hard, self.options = dim, hard, options
        if (k is None) == (fraction is None):
            raise TypeError(f"k is {k!r} and fraction is {fraction!r}; expected one of them")
        if fraction is not None:
            part = _number(fraction, "fraction", "a number between 0 and 1")
            if not 0.0 < part < 1.0:
                raise ValueError(f"fraction is {fraction!r}; expected a number between 0 and 1")
        self.k, self.fraction, self.learn_k = k, fraction, learn_k
        if learn_k is not False:
            self._learn(k if fraction is None else fraction)

    def _learn(self, start: Any) -> None:
        """Make k a parameter that begins at `start`."""
        if not OPERATORS[self.op].real_k:
            raise TypeError(f"learn_k is {self.learn_k!r}, but {self.op} takes an integer k")
        name = "k" if self.fraction is None else "fraction"
        bounds = (0.0, float("inf")) if self.learn_k is True else self.learn_k
        if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
            raise TypeError(
                f"learn_k is {show(self.learn_k)}; expected True, False or two bounds (low, high)"
            )
        low, high = (_number(each, "a bound of learn_k", "a number") for each in bounds)
        if not 0.0 <= low < _number(start, name, "a number, for it is learned") < high:
            raise ValueError(
                f"{name} is {start!r} and learn_k is {self.learn_k!r}; expected bounds, 0 or more, "
                f"with {name} between them"
            )
        self.register_buffer("start", torch.tensor(float(start)))
        self.shift = nn.Parameter(torch.zeros(()))

    def chosen_k(self, n: int) -> float | Tensor:
        """The k of n scores: a number, or a tensor where k is learned."""
        unit = 1.0 if self.fraction is None else n
        if self.learn_k is not False and self.fraction is None and self.k >= n:
            raise ValueError(f"k begins at {self.k} and is learned; expected less than n = {n}")
        if self.learn_k is False:
            if self.fraction is None:
                return self.k
            real = OPERATORS[self.op].real_k
            return self.fraction * n if real else max(1, round(self.fraction * n))
        low, high = (0.0, n / unit) if self.learn_k is True else self.learn_k
        low, high = unit * float(low), min(unit * float(high), float(n))
        eps = torch.finfo(self.shift.dtype).eps
        part = ((unit * self.start - low) / (high - low)).clamp(eps, 1.0 - eps)
        part = torch.sigmoid(torch.logit(part) + self.shift).clamp(eps, 1.0 - eps)
        return low + (high - low) * part

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, where: Tensor | None = None) -> Tensor:
            """As `forward`."""

    def forward(self, x: Tensor, where: Tensor | None = None) -> Tensor:
        """The soft mask of x, of its shape and type.

        Parameters
        ----------
        x : Tensor
            Scores.
        where : Tensor of bool, default=None
            Entries that take part, broadcastable to x's shape; the others get 0.
        """
        k = self.chosen_k(x.shape[self.dim])
        given: dict[str, Any] = {"temperature": self.temperature, "dim": self.dim, "where": where}
        return OPERATORS[self.op](x, k, **given, hard=self.hard, **self.options)

    def extra_repr(self) -> str:
        """A description of the layer's arguments, for its repr."""
        k = f"k={self.k}" if self.fraction is None else f"fraction={self.fraction}"
        learned = "" if self.learn_k is False else f", learn_k={self.learn_k}"
        options = "".join(f", {name}={each!r}" for name, each in self.options.items())
        temperature = float(self.temperature.detach())
        return f"{k}, temperature={temperature:g}, op={self.op!r}{learned}, dim={self.dim}{options}"


class TopKGate(_Temperature):
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
        With a number from 0 up to 1, say 0.9, the experts are loaded equally, without an auxiliary
        loss: in training the weights are those of `balancedtopk` over all tokens of the call. Its
        thresholds of the experts are averaged, where an older average keeps this part, and in
        evaluation the average is taken off the scores. It needs the operator `thretopk`.
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
        With `balance`, what is taken off the scores in evaluation; it is in the saved state.

    Raises
    ------
    TypeError, ValueError
        k is not a whole number from 1 to `experts`; an unknown operator or what is none, or an
        option that it does not have; a temperature that is not positive.

    Notes
    -----
    A mixture that computes all experts takes all weights, ``stt.thretopk(gate.scores(x), k)``.

    It is the weights that `balance` makes equal in sum; of the k experts that are chosen for each
    token `load` says how far they are. A mask with `balance` may leave out experts and tokens; of
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
        self.k, self.op = whole(k), _operator_name(self, op, options)
        self.hard, self.options = hard, options
        if not 1 <= self.k <= experts:
            raise ValueError(f"k is {self.k}; expected 1 to {experts}, the number of experts")
        self.normalize, self.balance = normalize, balance
        self.scores = nn.Linear(features, experts, bias=bias)
        self.register_buffer("load", torch.zeros(experts), persistent=False)
        if balance is None:
            return
        if not 0.0 <= _number(balance, "balance", "a number from 0 up to 1") < 1.0:
            raise ValueError(f"balance is {balance!r}; expected a number from 0 up to 1")
        if self.op != "thretopk" or "method" in options:
            what = f"op is {self.op!r}" if self.op != "thretopk" else "method was given"
            raise TypeError(f"{what} and balance is {balance!r}; expected thretopk, no method")
        self.register_buffer("thresholds", torch.zeros(experts))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

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
        scores = self.scores(x)
        if self.balance is None or not self.training:
            weights, indices = self._chosen(scores, where)
        else:
            weights, indices = self._balanced(scores, where)
        taken = torch.ones_like(indices, dtype=self.load.dtype)
        if where is not None:
            taken = where.expand(scores.shape).gather(-1, indices).to(taken.dtype)
        count = torch.zeros_like(self.load).scatter_add(0, indices.flatten(), taken.flatten())
        self.load = count / taken.sum().clamp(min=1)
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
        load = mask = None
        if where is not None:
            mask = where.expand(scores.shape).reshape(tokens.shape)
            k = mask.sum(-1).clamp(max=self.k)
            up = mask.any(0)
            load = (up * k.sum()) / up.sum().clamp(min=1)
        given: dict[str, Any] = {"temperature": self.temperature, "where": mask, **self.options}
        p, _, columns = balancedtopk(tokens, k, load, **given)
        columns = columns.detach()
        _, indices = topk(
            tokens.detach() - columns, self.k, op="hardtopk", where=mask, clamp_k=mask is not None
        )
        with torch.no_grad():
            self.calls += 1
            part = (1.0 / self.calls).clamp(min=1.0 - float(self.balance or 0.0))
            moved = self.thresholds.lerp(columns.to(self.thresholds.dtype), part.to(columns.dtype))
            # An expert that no token may see has no threshold.
            self.thresholds.copy_(torch.where(columns.isfinite(), moved, self.thresholds))
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


class FenchelYoungLoss(nn.Module):
    """The Fenchel-Young loss of scores as a layer: see `fenchel_young`.

    Parameters
    ----------
    op : str or operator
        `thretopk` or `gradtopk`, or its name.
    k : int or float
        As for the operator.
    reduction : {"mean", "sum", "none"}, default="mean"
        What is returned: the mean over all rows, their sum, or the loss of each.
    constant : bool, default=True
        False leaves out the conjugate of the target, which does not depend on the scores.
    temperature : float or Tensor, default=1.0
        As in a call of the operator.
    dim : int, default=-1
        The dimension of the scores.
    **options
        What the operator takes: `curve`, `alpha`, `method`, `largest`, `clamp_k`.

    Raises
    ------
    TypeError, ValueError
        An unknown operator, one without a potential, or an option that it does not have; an unknown
        reduction. Other arguments are checked when the layer is called.

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> loss = stt.FenchelYoungLoss("gradtopk", 2)
    >>> loss(torch.tensor([[3.0, 2.0, 1.0, 4.0]]), torch.tensor([[0, 3]]))
    tensor(0.5345)
    """

    def __init__(
        self,
        op: Choice,
        k: float | Tensor,
        reduction: Reduction = "mean",
        *,
        constant: bool = True,
        temperature: float | Tensor = 1.0,
        dim: int = -1,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        self.op = _operator_name(self, op, options, "largest", "clamp_k", with_potential=True)
        check_reduction(reduction)
        check_bool(constant, "constant")
        self.k, self.reduction, self.constant = k, reduction, constant
        self.temperature, self.dim, self.options = temperature, dim, options

    if TYPE_CHECKING:

        def __call__(self, theta: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
            """As `forward`."""

    def forward(self, theta: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        """The loss of scores against the mask, the labels or the weights that they should give.

        Parameters
        ----------
        theta, target : Tensor
            As in `fenchel_young`.
        where : Tensor of bool, default=None
            Entries that take part, broadcastable to theta's shape.
        """
        return fenchel_young(
            self.op,
            theta,
            target,
            self.k,
            constant=self.constant,
            temperature=self.temperature,
            dim=self.dim,
            where=where,
            reduction=self.reduction,
            **self.options,
        )

    def extra_repr(self) -> str:
        """A description of the layer's arguments, for its repr."""
        return f"{self.op!r}, k={self.k}, reduction={self.reduction!r}"
