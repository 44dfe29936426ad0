"""The operators as layers of a network: a mask, and a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from .._api.arguments import check_bool, show, whole
from .._api.front import Choice
from .arguments import check_dim, check_tensor
from .layers import LayerOptions, Temperature, number_of, operator_name
from .operators import OPERATORS, Reduction, check_reduction, fenchel_young

Tensor = torch.Tensor


class SoftTopK(Temperature):
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

    A layer that is converted to float16 or bfloat16, by `half()` or ``to(torch.bfloat16)``, keeps
    these numbers in float32: a small temperature would be 0 there, and a k of 1000 be 996. Its
    result has the type of the scores that come in.

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
        self.op = operator_name(self, op, options, "largest", "clamp_k")
        self.dim, self.hard, self.options = whole(dim, "dim", "an integer"), hard, options
        if (k is None) == (fraction is None):
            raise TypeError(f"k is {k!r} and fraction is {fraction!r}; expected one of them")
        if fraction is not None:
            part = number_of(fraction, "fraction", "a number between 0 and 1")
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
        low, high = (number_of(each, "a bound of learn_k", "a number") for each in bounds)
        if not 0.0 <= low < number_of(start, name, "a number, for it is learned") < high:
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
        check_tensor(x, "x")
        k = self.chosen_k(x.shape[check_dim(x.ndim, self.dim, None)])
        given: dict[str, Any] = {"temperature": self.temperature, "dim": self.dim, "where": where}
        return OPERATORS[self.op](x, k, **given, hard=self.hard, **self.options)

    def extra_repr(self) -> str:
        """A description of the layer's arguments, for its repr."""
        k = f"k={self.k}" if self.fraction is None else f"fraction={self.fraction}"
        learned = "" if self.learn_k is False else f", learn_k={self.learn_k}"
        options = "".join(f", {name}={each!r}" for name, each in self.options.items())
        temperature = float(self.temperature.detach())
        return f"{k}, temperature={temperature:g}, op={self.op!r}{learned}, dim={self.dim}{options}"


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
        self.op = operator_name(self, op, options, "largest", "clamp_k", with_potential=True)
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
