"""The random k-subset as a distribution."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch.distributions import Distribution, constraints, register_kl

from .._api.homogeneous import in_temperature
from ..gradtopk.ksubset import KSubset as Subsets
from . import carry
from .arguments import computed
from .heights import finite
from .operators import fenchel_young, gradtopk

Tensor = torch.Tensor
MOST_LISTED = 1 << 20  # subsets that `enumerate_support` makes at most


class _Subsets(constraints.Constraint):
    """0/1 vectors with k ones."""

    is_discrete = True
    event_dim = 1

    def __init__(self, k: Tensor) -> None:
        self._k = k

    def check(self, value: Tensor) -> Tensor:
        """Whether each vector is one."""
        ones = ((value == 0) | (value == 1)).all(-1)
        return ones & (value.sum(-1) == self._k)


class KSubset(Distribution):
    """The random k-subset S of n entries, P(S) proportional to exp(sum of x_i/temperature over S).

    A sample is a vector of n zeros and ones, k of them ones. The mean is `gradtopk`.

    Parameters
    ----------
    x : Tensor, shape (..., n)
        Scores: float32 or float64.
    k : int or Tensor of int
        Size of the subset, 0 <= k <= n; broadcast against x's shape without its last dimension.
    temperature : float or Tensor, optional
        Broadcast as k; 1 by default.
    validate_args : bool, optional
        As for every distribution of PyTorch.

    Raises
    ------
    TypeError, ValueError
        As in a call of `gradtopk`.

    Notes
    -----
    `log_prob`, `entropy`, `mean`, `variance` and `torch.distributions.kl_divergence` of two of them
    with one k are differentiable in x and the temperature. Samples are not; `has_rsample` is False.
    Draws follow ``torch.manual_seed``.

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

    def __init__(
        self, x: Tensor, k: Any, temperature: Any = 1.0, *, validate_args: bool | None = None
    ) -> None:
        p = gradtopk(x.detach(), k, temperature=temperature)  # checks them all
        batch = x.shape[:-1]
        self.x = x
        self.k = torch.as_tensor(k, device=x.device).expand(batch)
        self.temperature = torch.as_tensor(temperature, dtype=x.dtype, device=x.device).expand(
            batch
        )
        super().__init__(batch, x.shape[-1:], validate_args=False)
        if self._validate_args_wanted(validate_args) and p.isnan().any():
            raise ValueError("x holds NaN, or fewer than k entries above -inf; expected k numbers")
        self._validate_args = self._validate_args_wanted(validate_args)

    @staticmethod
    def _validate_args_wanted(given: bool | None) -> bool:
        return Distribution._validate_args if given is None else given

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """What the parameters must be."""
        return {
            "x": constraints.real_vector,
            "temperature": constraints.positive,
            "k": constraints.nonnegative_integer,
        }

    @property
    def support(self) -> Any:
        """0/1 vectors with k ones."""
        return _Subsets(self.k)

    def expand(self, batch_shape: Any, _instance: Any = None) -> KSubset:
        """The same with more batch dimensions."""
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
        """Of each entry's indicator."""
        p = self.mean
        return p * (1.0 - p)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draw subsets, exactly and independently.

        Parameters
        ----------
        sample_shape : torch.Size or tuple of int, optional
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
        shape = torch.Size(sample_shape)
        seed = int(torch.randint(2**63 - 1, ()))
        given = [carry.array(computed(each)) for each in (self.x, self.k, self.temperature)]
        with torch.no_grad():
            drawn = Subsets(*given).sample(tuple(shape), np.random.default_rng(seed))
        return carry.tensor(drawn).to(self.x.dtype)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Refuse: a draw of 0 and 1 has no derivative."""
        raise NotImplementedError(
            "rsample: draws of a KSubset are discrete and not reparametrised; use mean, which is "
            "differentiable, or thretopk(x + noise, k) of softtopk_nb.torch with Gumbel noise"
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Give the logarithm of the probability of each subset.

        Parameters
        ----------
        value : Tensor, shape (..., n)
            0/1 vectors with k ones, broadcastable to the batch.

        Returns
        -------
        Tensor, shape (...)
            The values of log P(S), differentiable in x and the temperature.

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
        x = self.x.expand(*batch, *self._event_shape)
        y = value.expand(*batch, *self._event_shape)
        temperature, k = self.temperature.expand(batch), self.k.expand(batch)
        return -fenchel_young(gradtopk, x, y, k, temperature=temperature) / temperature

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
        phi = gradtopk.potential(self.x, self.k, temperature=self.temperature)
        return in_temperature(phi, finite(self.x), self.mean, self.temperature)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All subsets, in the order of their members; k and n may not be large.

        Parameters
        ----------
        expand : bool, optional
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


@register_kl(KSubset, KSubset)
def _kl(p: KSubset, q: KSubset) -> Tensor:
    """The loss of q against p's marginals, less p's entropy."""
    if not torch.equal(*torch.broadcast_tensors(p.k, q.k)):
        raise ValueError("the two have different k; expected one, or the divergence is infinite")
    target = p.mean
    phi = gradtopk.potential(q.x, q.k, temperature=q.temperature)
    return in_temperature(phi, finite(q.x), target, q.temperature) - p.entropy()
