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

_ROUNDING = 64 * np.finfo(np.float64).eps  # least damping, of a diagonal of ones


class Schur(NamedTuple):
    """The matrix, of the columns that are free, scaled to a diagonal of ones."""

    scaled: Array  # (free, free), with a projection on its kernel added: it is positive definite
    root: Array  # (free,), the roots of the diagonal; 0 for a column without weight
    free: Array  # (n,) bool, columns whose threshold moves
    label: Array  # (free,), the component of each
    loose: Array  # (components,) bool, whether a constant is in the kernel

    def solve(self, right: Array, damping: float = 0.0) -> Array:
        """The d of (S + damping diag S) d = right, of sum 0 over each loose component; 0 if fixed.

        What cannot be solved for is left out of the right-hand side: its mean on such a component,
        and columns without weight.
        """
        free, root = self.free, self.root
        d = np.zeros(len(free))
        there = root > 0.0
        if not there.any():
            return d
        given = np.where(there, right[free], 0.0)
        given = given - self._means(given, there)
        matrix = self.scaled + max(damping, _ROUNDING) * np.eye(len(root))
        scale = np.where(there, root, 1.0)
        found = linalg.cho_solve(linalg.cho_factor(matrix, lower=True), given / scale) / scale
        d[free] = np.where(there, found - self._means(found, there), 0.0)
        return d

    def _means(self, values: Array, there: Array) -> Array:
        """For each column the mean of the values over its component, 0 if that is not loose."""
        count = np.bincount(self.label, there, len(self.loose))
        total = np.bincount(self.label, np.where(there, values, 0.0), len(self.loose))
        mean = np.where(self.loose, total / np.maximum(count, 1.0), 0.0)
        found: Array = np.where(there, mean[self.label], 0.0)
        return found


def schur(v: Array, free: Array) -> Schur:
    """The matrix for v = u/sqrt(r), where the thresholds of columns that are not `free` stay."""
    w = (v.T @ v).astype(np.float64)
    np.fill_diagonal(w, 0.0)
    total, inner = w.sum(axis=0)[free], w[np.ix_(free, free)]
    root = np.sqrt(total)
    there = root > 0.0
    scale = np.where(there, root, 1.0)
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
