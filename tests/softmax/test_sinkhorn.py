"""Sinkhorn's soft assignment: marginals, optimality, limits, convergence, errors."""

import itertools
import math
import pickle

import numpy as np
import pytest
from scipy import special
from scipy.optimize import linear_sum_assignment, linprog

import softtopk_nb as stk


def problems(rng):
    """(scores, rows, columns, temperature), square and rectangular."""
    for (n, m), tau in itertools.product(((1, 1), (3, 3), (2, 5), (6, 4), (20, 20)), (0.3, 1, 5)):
        s = rng.normal(size=(n, m))
        assert np.unique(s).size == n * m
        r, c = rng.uniform(0.1, 2, size=n), rng.uniform(0.1, 2, size=m)
        yield s, r, c * (r.sum() / c.sum()), tau


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


# --------------------------------------------------------------------------------------- theorems


def test_marginals_and_form(rng):
    """thm-sinkhorn: the sums are the given ones, and log P = (S - a_i - b_j)/tau."""
    for s, r, c, tau in problems(rng):
        p = stk.sinkhorn(s, r, c, temperature=tau, tol=1e-12)
        assert np.abs(p.sum(axis=1) - r).sum() <= 2e-12 * r.sum()
        assert_close(p.sum(axis=0), c, 1e-13 * r.sum())
        assert p.min() > 0
        # What is left of log P - S/tau has rank one as a sum: every second difference vanishes.
        rest = np.log(p) - s / tau
        assert_close(rest - rest[:1] - rest[:, :1] + rest[0, 0], 0, 1e-11)


def test_is_optimal(rng):
    """thm-sinkhorn: no other coupling has a larger objective; it falls short by tau KL."""
    for s, r, c, tau in problems(rng):
        if min(s.shape) == 1:
            continue
        p = stk.sinkhorn(s, r, c, temperature=tau, tol=1e-13, max_iter=5000)
        best = np.sum(p * s) + tau * special.entr(p).sum()
        others = 0
        for _ in range(20):
            # Another coupling with these marginals, from other scores.
            q = stk.sinkhorn(rng.normal(size=s.shape), r, c, tol=1e-13, max_iter=5000)
            value = np.sum(q * s) + tau * special.entr(q).sum()
            assert best - value == pytest.approx(tau * special.rel_entr(q, p).sum(), abs=1e-9)
            others += best - value > 1e-4
        assert others == 20


def test_tends_to_the_best_assignment(rng):
    """prop-sinkhorn-limit: within tau T H(c/T) of the linear program; at its vertex if alone."""
    s = rng.uniform(size=(5, 5)) + 2 * np.eye(5)[[2, 0, 3, 4, 1]]
    i, j = linear_sum_assignment(s, maximize=True)
    best = np.zeros((5, 5))
    best[i, j] = 1
    distance = []
    for tau in (1.0, 0.3, 0.1):
        p = stk.sinkhorn(s, temperature=tau, tol=1e-5, max_iter=20_000)
        short = s[i, j].sum() - np.sum(p * s)
        assert -1e-5 * 5 * np.ptp(s) <= short <= tau * 5 * math.log(5)
        distance.append(np.abs(p - best).max())
    assert np.all(np.diff(distance) < 0)
    assert distance[-1] < 1e-4
    # Rectangular, against the linear program.
    s, r, c = rng.normal(size=(3, 4)), np.array([0.5, 1.0, 0.7]), np.array([0.6, 0.3, 0.9, 0.4])
    sums = np.vstack([np.kron(np.eye(3), np.ones(4)), np.kron(np.ones(3), np.eye(4))])
    exact = linprog(-s.ravel(), A_eq=sums, b_eq=np.r_[r, c]).x.reshape(3, 4)
    p = stk.sinkhorn(s, r, c, temperature=0.05, max_iter=20_000)
    assert_close(p, exact, 0.01)
    assert np.abs(p - np.outer(r, c) / 2.2).max() > 0.1


def error_after(sweeps, s, r, c, tau):
    with pytest.raises(stk.ConvergenceError) as caught:
        stk.sinkhorn(s, r, c, temperature=tau, tol=1e-300, max_iter=sweeps)
    assert caught.value.iterations == sweeps
    return caught.value.error


def test_convergence(rng):
    """thm-sinkhorn-convergence: the error never rises, and keeps below the bound."""
    for tau in (0.05, 0.3, 1.0):
        s = rng.normal(size=(6, 8))
        r, c = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(8))
        errors = [error_after(t, s, r, c, tau) for t in range(1, 25)]
        assert len(set(errors)) > 5
        assert np.all(np.diff(errors) <= 1e-15)
        capacity = np.ptp(s) / tau + math.log(8) - special.entr(c).sum()
        bound = np.sqrt(2 * capacity / np.arange(1, 25))
        assert np.all(errors <= bound)
        assert errors[0] > 1e-3


def test_two_columns_are_the_sigmoid_threshold(rng):
    """id-sinkhorn-sigmoid: with the columns n - k and k the second one is thretopk's sigmoid."""
    for n, k, tau in ((4, 1, 1.0), (10, 3.5, 0.5), (30, 22, 2.0)):
        x = rng.normal(size=n)
        scores = np.stack([np.zeros(n), x], axis=1)
        p = stk.sinkhorn(scores, columns=[n - k, k], temperature=tau, tol=1e-13, max_iter=20_000)
        expected = stk.thretopk(x, k, curve="sigmoid", temperature=tau)
        assert_close(p[:, 1], expected, 1e-11)
        assert_close(p[:, 0], 1 - expected, 1e-11)
        assert expected.std() > 0.05


def test_one_row_is_softmax_of_weighted_scores(rng):
    """With free columns it would be softmax; one column, or one row, leaves no choice."""
    r = rng.uniform(0.5, 2, size=4)
    assert_close(stk.sinkhorn(rng.normal(size=(4, 1)), r)[:, 0], r, 1e-13)
    assert_close(stk.sinkhorn(rng.normal(size=(1, 4)), columns=r)[0], r, 1e-13)


# -------------------------------------------------------------------------------- what comes in


def test_default_marginals(rng):
    s = rng.normal(size=(4, 4))
    p = stk.sinkhorn(s)
    assert_close(p.sum(axis=0), 1, 1e-12)
    assert_close(p.sum(axis=1), 1, 1e-8)
    s = rng.normal(size=(3, 5))
    p = stk.sinkhorn(s)
    assert_close(p.sum(axis=0), 0.6, 1e-12)
    assert_close(p.sum(axis=1), 1, 1e-8)
    p = stk.sinkhorn(s, rows=[1, 2, 3])
    assert_close(p.sum(axis=0), 1.2, 1e-12)
    p = stk.sinkhorn(s, columns=[1, 2, 3, 4, 5])
    assert_close(p.sum(axis=1), 5, 1e-7)
    p = stk.sinkhorn(s, columns=np.full(5, 0.2), rows=np.full(3, 1 / 3))
    assert p.sum() == pytest.approx(1)
    # Totals that differ by rounding are made equal, so that a tighter tolerance can be met.
    p = stk.sinkhorn(s, rows=[1, 2, 3], columns=np.full(5, 1.2 * (1 + 5e-10)), tol=1e-13)
    assert_close(p.sum(axis=1), [1, 2, 3], 1e-12)


def test_invariances(rng):
    s = rng.normal(size=(5, 5))
    p = stk.sinkhorn(s, tol=1e-13)
    a, b = rng.normal(size=(2, 5)) * 10
    assert_close(stk.sinkhorn(s + a[:, None] + b, tol=1e-13, max_iter=5000), p, 1e-11)
    assert_close(stk.sinkhorn(s.T, tol=1e-13).T, p, 1e-11)
    assert_close(stk.sinkhorn(8 * s, temperature=8, tol=1e-13), p, 1e-13)
    assert_close(stk.sinkhorn(s + 1e6, tol=1e-13), p, 1e-9)


def test_batches_do_not_influence_each_other(rng):
    s = rng.normal(size=(3, 4, 5, 6)) * np.array([0.1, 1, 2, 3])[:, None, None]
    tau = np.array([[1.0], [0.5], [2.0]])
    rows = rng.dirichlet(np.ones(5), size=4)
    columns = rng.dirichlet(np.ones(6), size=(3, 1))
    together = stk.sinkhorn(s, rows, columns, temperature=tau)
    for i, j in itertools.product(range(3), range(4)):
        alone = stk.sinkhorn(s[i, j], rows[j], columns[i, 0], temperature=tau[i, 0])
        np.testing.assert_array_equal(together[i, j], alone)
    assert stk.sinkhorn(np.empty((0, 3, 3))).shape == (0, 3, 3)
    assert stk.sinkhorn(np.empty((2, 0, 3, 3)), rows=[1, 1, 1]).shape == (2, 0, 3, 3)
    before = s.copy()
    view = s[::-1, :, ::-1]
    np.testing.assert_array_equal(stk.sinkhorn(view), stk.sinkhorn(np.ascontiguousarray(view)))
    np.testing.assert_array_equal(s, before)


def test_types(rng):
    s = rng.normal(size=(3, 3))
    for dtype in (np.float16, np.float32):
        p = stk.sinkhorn(s.astype(dtype))
        assert p.dtype == dtype
        np.testing.assert_array_equal(p, stk.sinkhorn(s.astype(dtype).astype(float)).astype(dtype))
    assert stk.sinkhorn([[1, 0], [0, 1]]).dtype == np.float64


def test_no_mass_and_forbidden_pairs(rng):
    s = rng.normal(size=(4, 3))
    p = stk.sinkhorn(s, [1, 0, 1, 1], [0, 2, 1])
    assert np.all(p[1] == 0)
    assert np.all(p[:, 0] == 0)
    assert_close(p[np.ix_([0, 2, 3], [1, 2])], stk.sinkhorn(s[[0, 2, 3], 1:], columns=[2, 1]), 1e-8)
    s = rng.normal(size=(4, 4))
    s[0, 1:3] = s[2, 3] = -np.inf
    p = stk.sinkhorn(s, tol=1e-11)
    assert np.all((p == 0) == np.isinf(s))
    assert_close(p.sum(axis=1), 1, 1e-10)
    # A row without mass may have no pair at all.
    s[1] = -np.inf
    p = stk.sinkhorn(s, [1, 0, 1, 1], np.full(4, 0.75), tol=1e-9)
    assert np.all(p[1] == 0)
    assert_close(p.sum(axis=0), 0.75, 1e-12)


def test_extreme_scores():
    s = np.array([[1e300, -1e300], [-1e300, 1e300]])
    np.testing.assert_array_equal(stk.sinkhorn(s, temperature=1e-3), np.eye(2))
    assert_close(stk.sinkhorn(np.full((3, 3), 1e300), temperature=1e-3), 1 / 3, 1e-14)
    assert_close(stk.sinkhorn(np.eye(3), temperature=1e300), 1 / 3, 1e-14)


# ---------------------------------------------------------------------------------------- errors


def test_it_says_so_when_it_does_not_converge(rng):
    s = rng.normal(size=(2, 6, 6)) * np.array([1e-9, 1])[:, None, None]
    with pytest.raises(stk.ConvergenceError, match=r"after 3 iterations .* in 1 of 2") as caught:
        stk.sinkhorn(s, temperature=0.02, max_iter=3)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert error.iterations == 3
    assert 1e-9 < error.error < 1
    assert "max_iter, tol or temperature" in str(error)
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.error, copied.iterations) == (str(error), error.error, 3)
    # Two rows that can only go to the same column: no such matrix exists.
    s = np.array([[0.0, -np.inf, -np.inf], [0.0, -np.inf, -np.inf], [0.0, 0.0, 0.0]])
    with pytest.raises(stk.ConvergenceError, match="or allow more pairs"):
        stk.sinkhorn(s)


def test_bad_arguments():
    s = np.zeros((3, 2))
    nan = np.array([[0.0, np.nan], [0.0, 0.0]])
    shut = np.array([[-np.inf, -np.inf], [0.0, 0.0]])
    for error, match, call in (
        (ValueError, r"^scores has shape \(3,\).*two axes", lambda: stk.sinkhorn(np.zeros(3))),
        (ValueError, r"^scores has shape \(0, 2\)", lambda: stk.sinkhorn(np.zeros((0, 2)))),
        (TypeError, "^scores has dtype complex", lambda: stk.sinkhorn(s * 1j)),
        (ValueError, "^scores hold nan", lambda: stk.sinkhorn(nan)),
        (ValueError, "^scores hold inf", lambda: stk.sinkhorn([[np.inf, 0.0]])),
        (ValueError, "^scores forbid every pair of row 0", lambda: stk.sinkhorn(shut)),
        (ValueError, "^scores forbid every pair of column 0", lambda: stk.sinkhorn(shut.T)),
        (ValueError, "^rows sum to 3 and columns to 4", lambda: stk.sinkhorn(s, [1] * 3, [2, 2])),
        (ValueError, "^rows sum to 0", lambda: stk.sinkhorn(s, [0, 0, 0])),
        (ValueError, "^rows holds -1", lambda: stk.sinkhorn(s, [1, -1, 1])),
        (ValueError, "^columns holds nan", lambda: stk.sinkhorn(s, columns=[1, np.nan])),
        (ValueError, "^columns holds inf", lambda: stk.sinkhorn(s, columns=[1, np.inf])),
        (ValueError, r"^columns has shape \(3,\)", lambda: stk.sinkhorn(s, columns=[1, 1, 1])),
        (ValueError, r"^rows has shape \(\)", lambda: stk.sinkhorn(s, rows=1.0)),
        (ValueError, r"^rows has shape \(2, 3\)", lambda: stk.sinkhorn(s, np.ones((2, 3)))),
        (TypeError, "^rows is", lambda: stk.sinkhorn(s, "abc")),
        (ValueError, "^temperature is 0", lambda: stk.sinkhorn(s, temperature=0)),
        (
            ValueError,
            r"^temperature has shape \(3,\)",
            lambda: stk.sinkhorn(s, temperature=[1] * 3),
        ),
        (ValueError, "^tol is 0", lambda: stk.sinkhorn(s, tol=0)),
        (ValueError, "^tol is nan", lambda: stk.sinkhorn(s, tol=math.nan)),
        (TypeError, "^max_iter is 2.5", lambda: stk.sinkhorn(s, max_iter=2.5)),
        (ValueError, "^max_iter is 0", lambda: stk.sinkhorn(s, max_iter=0)),
    ):
        with pytest.raises(error, match=match):
            call()
