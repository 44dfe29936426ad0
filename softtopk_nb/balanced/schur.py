"""The matrix of Newton's step on the thresholds of the columns: a weighted Laplacian.

S = diag(u^T 1) - u^T diag(1/r) u. Off the diagonal it is -w, w = v^T v >= 0 with v = u/sqrt(r), and
its rows sum to 0: computed from w alone, S is positive semidefinite whatever w was rounded to. Its
kernel are the vectors that are constant on each component of the graph of w (lem-balanced-schur).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.sparse import csgraph

from .._api.base import Array
from .kernels import FAINTEST

_ROUNDING = 64 * np.finfo(np.float64).eps  # least damping, of a diagonal of ones


class Schur(NamedTuple):
    """The matrix, of the columns that are free, scaled to a diagonal of ones."""

    scaled: Array  # (free, free), with a projection on its kernel added: it is positive definite
    root: Array  # (free,), the roots of the diagonal; 0 for a column that no other shares rows with
    free: Array  # (n,) bool, columns whose threshold moves
    label: Array  # (free,), the component of each
    loose: Array  # (components,) bool, whether a constant is in the kernel

    def solve(self, right: Array, damping: float = 0.0) -> Array:
        """The d of (S + damping diag S) d = right, of sum 0 over each loose component; 0 if fixed.

        What cannot be solved for is left out of the right-hand side: its mean on such a component.
        NaN for all that are not fixed if the right-hand side is not finite.
        """
        free, root = self.free, self.root
        d = np.zeros(len(free))
        if not len(root):
            return d
        given = right[free]
        if not np.isfinite(given).all():
            d[free] = np.nan
            return d
        matrix = self.scaled + max(damping, _ROUNDING) * np.eye(len(root))
        scale = np.where(root > 0.0, root, 1.0)
        given = (given - self._means(given)) / scale
        found = linalg.cho_solve(linalg.cho_factor(matrix, lower=True), given) / scale
        d[free] = found - self._means(found)
        return d

    def shares(self, right: Array) -> Array:
        """What `solve` leaves out: the part of |right| that has no sum 0 on loose components.

        A component that moves as a whole changes nothing until it meets another, or a column that
        is not free: how far, S does not say.
        """
        d = np.zeros(len(self.free))
        if len(self.loose) > 1 or not self.free.all():
            total = np.bincount(self.label, right[self.free], len(self.loose))
            size = abs(right).sum()
            d[self.free] = np.where(self.loose, total / size, 0.0)[self.label] if size else 0.0
        return d

    def _means(self, values: Array) -> Array:
        """For each column the mean of the values over its component, 0 if that is not loose."""
        count = np.bincount(self.label, minlength=len(self.loose))
        total = np.bincount(self.label, values, len(self.loose))
        found: Array = np.where(self.loose, total / count, 0.0)[self.label]
        return found


def schur(w: Array, free: Array) -> Schur:
    """The matrix for w, which is written, where the thresholds of columns not `free` stay."""
    np.fill_diagonal(w, 0.0)
    w[w < FAINTEST] = 0.0
    total, inner = w.sum(axis=0)[free], w[np.ix_(free, free)]
    root = np.sqrt(total)
    scale = np.where(root > 0.0, root, 1.0)
    label = np.zeros(len(inner), np.int64)
    if len(inner) and np.count_nonzero(inner) < inner.size - len(inner):
        label = csgraph.connected_components(inner > 0.0, directed=False)[1].astype(np.int64)
    parts = int(label.max(initial=-1)) + 1
    held = np.bincount(label, w[np.ix_(free, ~free)].sum(axis=1), parts)
    loose = held == 0.0
    scaled = -inner / scale / scale[:, None]
    np.fill_diagonal(scaled, 1.0)
    for part in np.flatnonzero(loose):
        kernel = np.where(label == part, root, 0.0)
        length = np.linalg.norm(kernel)
        if length > 0.0:
            scaled += np.outer(kernel, kernel) / length / length
    return Schur(scaled, root, free, label, loose)
