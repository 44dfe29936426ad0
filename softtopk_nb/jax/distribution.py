"""The k-subset distribution of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..gradtopk.ksubset import KSubset as Subsets
from . import on_host
from .arguments import computed_in
from .operators import Array, call_of, checked, fenchel_young, gradtopk
from .potentials import in_temperature


@jax.tree_util.register_pytree_node_class
class KSubset:
    """The random k-subset S of n entries, P(S) proportional to exp(sum of x_i/temperature over S).

    A sample is a vector of n zeros and ones, k of them ones. The mean is `gradtopk`.

    Parameters
    ----------
    logits : array, shape (..., n, ...)
        Scores x, of any type that `gradtopk` takes.
    k : int or array of int
        Size of the subset, 0 <= k <= n; broadcast against the shape of the logits without `axis`.
    temperature : float or array, default=1.0
        Broadcast as k.
    axis : int, default=-1
        The axis of the scores.
    where : array of bool, default=None
        Entries that take part, broadcastable to the logits' shape; the others are never chosen.

    Raises
    ------
    TypeError, ValueError, jax.errors.JaxRuntimeError
        As in a call of `gradtopk`.

    Notes
    -----
    It is a pytree: it passes through `jit`, `vmap` over leading axes, and `scan`. `log_prob`,
    `entropy` and `mean` are differentiable in the logits and the temperature; draws are not.

    Source: Chen, Dempster and Liu, "Weighted finite population sampling to maximize entropy"
    (1994).

    Examples
    --------
    >>> import jax
    >>> import softtopk_nb.jax as stj
    >>> subsets = stj.KSubset(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2)
    >>> subsets.sample(jax.random.key(0), (3,)).sum(-1).tolist()
    [2.0, 2.0, 2.0]
    >>> round(float(subsets.entropy()), 3)
    1.198
    """

    def __init__(
        self,
        logits: ArrayLike,
        k: int | Array,
        temperature: ArrayLike = 1.0,
        axis: int = -1,
        where: ArrayLike | None = None,
    ) -> None:
        x, layout = checked(gradtopk._op, "logits", logits, k, temperature, axis, True, where)
        self._axis = layout.axis - x.ndim  # from the end, as `vmap` takes axes from the front
        self._x = layout.rows(x, where, x.dtype)
        batch = self._x.shape[:-1]
        self._k = jnp.broadcast_to(jnp.asarray(k, jnp.int32), batch)
        self._tau = jnp.broadcast_to(jnp.asarray(temperature, computed_in(x.dtype)), batch)

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        """The arrays, and the axis of the scores."""
        return (self._x, self._k, self._tau), self._axis

    @classmethod
    def tree_unflatten(cls, axis: int, arrays: Any) -> KSubset:
        """Undo `tree_flatten`."""
        made = object.__new__(cls)
        made._x, made._k, made._tau = arrays
        made._axis = axis
        return made

    def __repr__(self) -> str:
        return f"KSubset(logits of shape {self._back(self._x).shape}, k = {self._k})"

    def _back(self, rows: Any) -> Any:
        return jnp.moveaxis(rows, -1, self._axis)

    @property
    def mean(self) -> jax.Array:
        """P(i in S), of the logits' shape and type: `gradtopk`.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> float(stj.KSubset(jax.numpy.zeros(4), 2).mean[0])
        0.5
        """
        return jnp.asarray(self._back(gradtopk(self._x, self._k, temperature=self._tau)))

    def log_prob(self, mask: ArrayLike) -> jax.Array:
        """Log P(S) of the subsets that `mask` shows.

        Parameters
        ----------
        mask : array, shape ``(..., *logits.shape)``
            Which entries are in S, as bool or as the numbers 0 and 1; exactly k in each row.
            Leading axes are a batch of subsets.

        Returns
        -------
        log_p : array of mask's shape without the axis of the scores
            Differentiable in the logits and the temperature.

        Raises
        ------
        ValueError, jax.errors.JaxRuntimeError
            As `fenchel_young` for a target.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> subsets = stj.KSubset(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2)
        >>> mask = jax.numpy.array([1.0, 0.0, 0.0, 1.0])
        >>> round(float(subsets.log_prob(mask)), 3)
        -0.535
        """
        chosen = jnp.moveaxis(jnp.asarray(mask), self._axis, -1).astype(self._tau.dtype)
        x = jnp.broadcast_to(self._x.astype(self._tau.dtype), chosen.shape)
        loss = fenchel_young(gradtopk, x, chosen, self._k, temperature=self._tau)
        return (-loss / self._tau).astype(self._x.dtype)

    def entropy(self) -> jax.Array:
        """-sum of P(S) log P(S), in nats.

        Returns
        -------
        h : array of the logits' shape without the axis of the scores
            Differentiable in the logits and the temperature.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> round(float(stj.KSubset(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2).entropy()), 3)
        1.198
        """
        x = self._x.astype(self._tau.dtype)
        h = in_temperature(x, self._k, self._tau, call_of(gradtopk._op, {}))
        return jnp.asarray(h.astype(self._x.dtype))

    def sample(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draw subsets, exactly and independently.

        Parameters
        ----------
        key : jax.Array
            A key of `jax.random`.
        shape : tuple of int, default=()
            How many subsets of each row; one by default.

        Returns
        -------
        mask : array, shape ``(*shape, *logits.shape)``
            0/1 vectors with k ones, of the logits' type.

        Raises
        ------
        ValueError, jax.errors.JaxRuntimeError
            A NaN among the logits, more entries at +inf than k or fewer than k above -inf; the
            second, with INVALID_ARGUMENT, from a compiled program.

        Notes
        -----
        The key seeds a generator of NumPy, with which `softtopk_nb.KSubset` draws on the host, for
        one matrix after the other under `vmap`.

        Examples
        --------
        >>> import jax
        >>> import softtopk_nb.jax as stj
        >>> subsets = stj.KSubset(jax.numpy.array([3.0, 2.0, 1.0, 4.0]), 2)
        >>> jax.jit(lambda key: subsets.sample(key, (5,)))(jax.random.key(1)).shape
        (5, 4)
        """
        seed = jax.random.bits(key, (4,), np.uint32)
        kind = jax.ShapeDtypeStruct((*shape, *self._x.shape), np.bool_)
        given = map(jax.lax.stop_gradient, (self._x.astype(self._tau.dtype), self._k, self._tau))
        options = (("shape", tuple(shape)),)
        drawn = on_host.call(_draw, options, kind, seed, *given, vmap_method="sequential")
        return jnp.asarray(self._back(drawn).astype(self._x.dtype))


def _draw(options: Any, seed: Any, *given: Any) -> Any:
    """Draws of NumPy's distribution."""
    return Subsets(*given).sample(options["shape"], np.random.default_rng(seed))
