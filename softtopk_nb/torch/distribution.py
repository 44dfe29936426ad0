"""The k-subset distribution of PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.distributions import Distribution, constraints, register_kl

from ..gradtopk.ksubset import KSubset as Subsets
from . import calls
from .arguments import COMPUTED_IN, computed, laid_out
from .custom_ops import is_transformed
from .functions import Constant, along
from .operators import fenchel_young, gradtopk
from .potentials import distances, in_temperature, level_of

Tensor = torch.Tensor
MOST_LISTED = 1 << 20  # largest number of subsets that `enumerate_support` lists


class _Subsets(constraints.Constraint):
    """The constraint that a vector has k ones and is 0 elsewhere."""

    is_discrete = True
    event_dim = 1

    def __init__(self, k: Tensor) -> None:
        self._k = k

    def check(self, value: Tensor) -> Tensor:
        """Whether each vector satisfies the constraint."""
        ones = ((value == 0) | (value == 1)).all(-1)
        return ones & (value.sum(-1) == self._k)


def _tensor(value: Any, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A number or a tensor as a tensor beside x; a number is not copied there, which would wait."""
    if isinstance(value, Tensor):
        return value.to(dtype=dtype or value.dtype, device=x.device)
    return torch.full((), value, dtype=dtype, device=x.device)


class KSubset(Distribution):
    """The random k-subset S of n entries, P(S) proportional to exp(sum of x_i/temperature over S).

    A sample is a vector of n zeros and ones, k of them ones. The mean is `gradtopk`.

    Parameters
    ----------
    x : Tensor, shape (..., n, ...)
        Scores: float32 or float64.
    k : int or Tensor of int
        Size of the subset, 0 <= k <= n; broadcast against x's shape without `dim`.
    temperature : float or Tensor, default=1.0
        Broadcast as k.
    dim : int, default=-1
        The dimension of the scores. In samples and marginals it is the last,
        as in all distributions of PyTorch.
    where : Tensor of bool, default=None
        Entries that take part, broadcastable to x's shape; the others are never chosen.
    validate_args : bool, default=None
        As for every distribution of PyTorch: on a GPU the host waits for the answer.

    Raises
    ------
    TypeError, ValueError
        As in a call of `gradtopk`.

    Notes
    -----
    `log_prob`, `entropy`, `mean`, `variance` and `torch.distributions.kl_divergence` of two of them
    with one k are differentiable in x and the temperature. `rsample` is the straight-through
    estimator: a draw, with the derivatives of the marginals. Draws follow ``torch.manual_seed``; of
    scores on a GPU there are none: draw from ``x.cpu()``.

    Source: Chen, Dempster and Liu, "Weighted finite population sampling to maximize entropy"
    (1994).

    Examples
    --------
    >>> import torch
    >>> import softtopk_nb.torch as stt
    >>> subsets = stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
    >>> subsets.sample((3,)).sum(-1)
    tensor([2., 2., 2.])
    >>> subsets.log_prob(torch.tensor([1.0, 0.0, 0.0, 1.0])).exp().item() < 0.59
    True
    """

    has_enumerate_support = True
    has_rsample = True

    def __init__(
        self,
        x: Tensor,
        k: int | Tensor,
        temperature: float | Tensor = 1.0,
        *,
        dim: int = -1,
        where: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        _, layout = laid_out(x, dim, None, True, where)
        if layout.where is not None:
            x = x.masked_fill(~layout.where, -math.inf)
        x = layout.turned(x)
        p = gradtopk(x.detach(), k, temperature=temperature)  # checks all arguments
        batch = x.shape[:-1]
        self.x = x
        self.k = _tensor(k, x, None).expand(batch)
        # A half type may not have the temperature, nor a loss in its units.
        self.temperature = _tensor(temperature, x, COMPUTED_IN[x.dtype]).expand(batch)
        super().__init__(batch, x.shape[-1:], validate_args=False)
        if self._validate_args_wanted(validate_args) and p.isnan().any():
            raise ValueError("x holds NaN, or fewer than k entries above -inf; expected k numbers")
        self._validate_args = self._validate_args_wanted(validate_args)

    @staticmethod
    def _validate_args_wanted(given: bool | None) -> bool:
        return Distribution._validate_args if given is None else given

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """The constraints on the parameters."""
        return {
            "x": constraints.real_vector,
            "temperature": constraints.positive,
            "k": constraints.nonnegative_integer,
        }

    @property
    def support(self) -> constraints.Constraint:
        """The constraint that a vector has k ones and is 0 elsewhere."""
        return _Subsets(self.k)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> KSubset:
        """The distribution broadcast to this batch shape."""
        batch = torch.Size(batch_shape)
        x = self.x.expand(*batch, *self.event_shape)
        given = self.k.expand(batch), self.temperature.expand(batch)
        return KSubset(x, *given, validate_args=self._validate_args)

    @property
    def mean(self) -> Tensor:
        """P(i in S): `gradtopk`."""
        return gradtopk(self.x, self.k, temperature=self.temperature)

    @property
    def variance(self) -> Tensor:
        """The variance of each entry's indicator."""
        p = self.mean
        return p * (1.0 - p)

    def sample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw subsets, exactly and independently.

        Parameters
        ----------
        sample_shape : torch.Size or tuple of int, default=()
            How many, for each distribution of the batch: one by default.

        Returns
        -------
        Tensor, shape sample_shape + batch_shape + (n,)
            0/1 vectors with k ones, of x's type.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> subsets = stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        >>> subsets.sample((5,)).shape
        torch.Size([5, 4])
        """
        if self.x.is_cuda:
            raise NotImplementedError(
                "sample: subsets are drawn on the CPU alone; use KSubset(x.cpu(), k).sample() and "
                "copy the result to the device"
            )
        shape = torch.Size(sample_shape)
        seed = int(torch.randint(2**63 - 1, ()))
        drawn = _Draws.apply(tuple(shape), seed, self.x, self.k, self.temperature)
        at = range(len(self.batch_shape), len(self.batch_shape) + len(shape))
        result: Tensor = drawn.movedim(tuple(at), tuple(range(len(shape))))
        return result

    def rsample(self, sample_shape: Sequence[int] = torch.Size()) -> Tensor:
        """Draw subsets with the derivatives of the marginals: the straight-through estimator.

        Parameters
        ----------
        sample_shape : torch.Size or tuple of int, default=()
            How many, for each distribution of the batch: one by default.

        Returns
        -------
        Tensor, shape sample_shape + batch_shape + (n,)
            0/1 vectors with k ones, as `sample`, differentiable as `marginals`. The gradient of an
            expectation that it gives is biased.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> x = torch.tensor([3.0, 2.0, 1.0, 4.0], requires_grad=True)
        >>> stt.KSubset(x, 2).rsample((5,))[:, 0].sum().backward()
        >>> bool(x.grad[0] > 0)
        True
        """
        drawn, p = self.sample(sample_shape), self.mean
        return drawn + (p - p.detach())

    def marginals(self) -> Tensor:
        """P(i in S), which is the mean: `gradtopk`.

        Returns
        -------
        Tensor, shape batch_shape + (n,)
            Differentiable in x and the temperature.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2).marginals()
        tensor([0.6944, 0.3056, 0.1192, 0.8808])
        """
        return self.mean

    def pair_marginals(self) -> Tensor:
        """P(i in S and j in S), as `softtopk_nb.KSubset.pair_marginals`.

        Returns
        -------
        Tensor, shape batch_shape + (n, n), of x's type
            Symmetric, with the marginals on the diagonal; differentiable in x and the temperature.

        Notes
        -----
        O(n^2) for each row, also with gradients.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2).pair_marginals()[0]
        tensor([0.6944, 0.0793, 0.0292, 0.5859])
        """
        pairs: Tensor = _Pairs.apply(None, None, self.x, self.k, self.temperature)
        of_any = self.x.requires_grad or self.temperature.requires_grad
        if not (is_transformed() or (of_any and torch.is_grad_enabled())):
            return pairs
        soft = self._pairs()
        return pairs + (soft - soft.detach())

    def _pairs(self) -> Tensor:
        """The pair marginals by the Jacobian, less exact where they are small, with its graph."""
        n = self.event_shape[0]
        x = self.x[..., None, :].expand(*self.batch_shape, n, n)
        tau = self.temperature[..., None].expand(*self.batch_shape, n)
        problem = computed(x), self.k[..., None].expand_as(tau), computed(tau)
        unit = torch.eye(n, dtype=problem[0].dtype, device=x.device).expand_as(x)
        still = torch.zeros_like(problem[2])
        p, jacobian = along(gradtopk._op, {}, problem, (unit, still, still))
        covariance = tau[..., None] * jacobian
        return (covariance + p.transpose(-1, -2) * p).to(self.x.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Give the logarithm of the probability of each subset.

        Parameters
        ----------
        value : Tensor, shape (..., n)
            0/1 vectors with k ones, broadcastable to the batch.

        Returns
        -------
        Tensor, shape (...)
            The values of log P(S), differentiable in x and the temperature and not in `value`.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> subsets = stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        >>> round(subsets.log_prob(torch.tensor([1.0, 0.0, 0.0, 1.0])).exp().item(), 3)
        0.586
        """
        if self._validate_args:
            self._validate_sample(value)
        batch = torch.broadcast_shapes(value.shape[:-1], self._batch_shape)
        x = computed(self.x).expand(*batch, *self._event_shape)
        y = value.detach().expand(*batch, *self._event_shape)
        temperature, k = self.temperature.expand(batch), self.k.expand(batch)
        loss = fenchel_young(gradtopk, x, y, k, temperature=temperature)
        return (-loss / temperature).to(self.x.dtype)

    def entropy(self) -> Tensor:
        """Entropy of the random subset, in nats.

        Returns
        -------
        Tensor, shape batch_shape
            The sum of -P(S) log P(S), differentiable in x and the temperature.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> subsets = stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        >>> round(subsets.entropy().item(), 3)
        1.198
        """
        given = computed(self.x), self.k, self.temperature
        return in_temperature(gradtopk._op, {}, *given).to(self.x.dtype)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All subsets, in the order of their members; k and n may not be large.

        Parameters
        ----------
        expand : bool, default=True
            False leaves the batch dimensions at 1.

        Returns
        -------
        Tensor, shape (number of subsets,) + batch_shape + (n,)
            0/1 vectors with k ones.

        Raises
        ------
        NotImplementedError
            Where rows have different k.
        ValueError
            Beyond 2^20 subsets.

        Examples
        --------
        >>> import torch
        >>> import softtopk_nb.torch as stt
        >>> subsets = stt.KSubset(torch.tensor([3.0, 2.0, 1.0, 4.0]), 2)
        >>> subsets.enumerate_support().shape
        torch.Size([6, 4])
        """
        sizes = self.k.unique()
        if len(sizes) > 1:
            raise NotImplementedError("k differs between rows: their subsets are not equally many")
        n, k = int(self.event_shape[0]), int(sizes[0]) if len(sizes) else 0
        count = math.comb(n, k)
        if count > MOST_LISTED:
            raise ValueError(f"there are {count} subsets of {k} of {n}; expected at most 2^20")
        listed = torch.zeros(count, n, dtype=self.x.dtype, device=self.x.device)
        members = torch.tensor(list(itertools.combinations(range(n), k)), dtype=torch.int64)
        listed.scatter_(1, members.reshape(count, k).to(self.x.device), 1.0)
        listed = listed.reshape(count, *(1 for _ in self.batch_shape), n)
        return listed.expand(count, *self.batch_shape, n) if expand else listed


class _Pairs(Constant):
    """(x, k, temperature) -> the pair marginals as NumPy has them."""

    @staticmethod
    def forward(_: Any, __: Any, *problem: Tensor) -> Tensor:
        """The pair marginals of rows."""
        return calls.tensor(_subsets(*problem).pair_marginals()).to(problem[0].dtype)


class _Draws(Constant):
    """(shape, seed, x, k, temperature) -> draws of that shape, whose axes follow those of rows."""

    @staticmethod
    def forward(shape: Any, seed: Any, *problem: Tensor) -> Tensor:
        """Draws from rows."""
        drawn = _subsets(*problem).sample(shape, np.random.default_rng(seed))
        back = [*range(-1 - len(shape), -1)]
        behind = np.moveaxis(drawn, [*range(len(shape))], back)
        return calls.tensor(behind).to(problem[0].dtype)


def _subsets(*problem: Tensor) -> Subsets[Any]:
    """The same distribution of arrays."""
    return Subsets(*(calls.array(computed(each)) for each in problem))


@register_kl(KSubset, KSubset)
def _kl(p: KSubset, q: KSubset) -> Tensor:
    """The divergence: the loss of q against p's marginals, less p's entropy."""
    if not p.x.is_cuda and not torch.equal(*torch.broadcast_tensors(p.k, q.k)):
        raise ValueError("the two have different k; expected one, or the divergence is infinite")
    batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(batch), q.expand(batch)
    # In float64: where the two are near each other the difference is far smaller than its terms.
    x, tau, other, other_tau = (each.double() for each in (p.x, p.temperature, q.x, q.temperature))
    target = gradtopk(x, p.k, temperature=tau)
    still = target.detach()
    loss = fenchel_young(gradtopk, other, still, p.k, constant=False, temperature=other_tau)
    level = level_of(other, gradtopk(other.detach(), p.k, temperature=other_tau.detach()))
    moved = (distances(other, level, other_tau) * (target - still)).sum(-1)
    entropy = in_temperature(gradtopk._op, {}, x, p.k, tau)
    found = (loss / other_tau - moved - entropy).to(p.x.dtype)
    return torch.where(p.k == q.k, found, torch.inf) if p.x.is_cuda else found
