"""Published soft top-k operators and the ThreTopK that each of them is.

Every operator is computed here by the method of its own publication, or by a general-purpose
solver, and never through the package. Tests that need another library's operator are marked
``torch``.
"""

import importlib
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special

import softtopk_nb as stk

ROWS = [(5, 2, 0.5), (9, 4, 1.0), (12, 1, 0.3), (30, 29, 2.0), (33, 7, 0.1)]


def rows(seed, real_k=False):
    """(x, k, temperature) for rows of several lengths; k moved off the integers if asked."""
    rng = np.random.default_rng(seed)
    for n, k, tau in ROWS:
        yield rng.normal(size=n), k - 0.4 if real_k else k, tau


def assert_close(actual, expected, atol):
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=0, atol=atol)


# ------------------------------------------------------------------------------------- sigmoid


def sinkhorn_top_k(x, k, eps):
    """n times the transport plan's second column: n points of mass 1/n to {0, 1}, squared cost.

    Xie et al. 2020. The column of 1 holds the mass k/n. Alternating scaling in the log domain.
    """
    n = x.size
    log_kernel = -((x[:, None] - np.array([0.0, 1.0])) ** 2) / eps
    log_rows, log_columns = -math.log(n), np.log([(n - k) / n, k / n])
    f = np.zeros(n)
    for _ in range(200_000):
        g = log_columns - special.logsumexp(log_kernel + f[:, None], axis=0)
        previous, f = f, log_rows - special.logsumexp(log_kernel + g, axis=1)
        if np.abs(f - previous).max() < 1e-15 * max(1.0, np.abs(f).max()):
            break
    plan = np.exp(log_kernel + f[:, None] + g)
    return n * plan[:, 1]


def test_optimal_transport_is_sigmoid():
    """id-optimal-transport: entropic transport at regularisation eps is sigmoid at eps/2."""
    for x, k, tau in rows(31):
        tau = max(tau, 0.3)  # Sinkhorn needs about e^(spread/tau) rounds
        transported = sinkhorn_top_k(x, k, eps=2 * tau)
        assert_close(transported.sum(), k, 1e-10)
        p = stk.thretopk(x, k, curve="sigmoid", temperature=tau)
        assert_close(p, transported, 1e-11)
        other = stk.thretopk(x, k, curve="sigmoid", temperature=2 * tau)
        assert np.abs(other - transported).max() > 1e-2  # eps itself is the wrong temperature


def lml_projection(x, k, branch=100):
    """The bracketing of Amos, Koltun, Kolter 2019: sigmoid(x + nu), the bracket cut in 100."""
    ordered = np.sort(x)[::-1]
    low, high = -ordered[k - 1] - 7.0, -ordered[k] + 7.0
    while True:
        nus = np.linspace(low, high, branch)
        masses = special.expit(x + nus[:, None]).sum(axis=1)
        i = np.searchsorted(masses, k)
        i = min(max(i, 1), branch - 1)
        if not high - low > nus[i] - nus[i - 1] > 1e-15 * max(1.0, abs(high)):
            return special.expit(x + 0.5 * (low + high))
        low, high = nus[i - 1], nus[i]


def test_lml_is_sigmoid():
    """id-lml: argmax <x, y> + the binary entropies of y, sum y = k, is sigmoid."""
    for x, k, tau in rows(32):
        p = stk.thretopk(x, k, curve="sigmoid", temperature=tau)
        assert_close(p, lml_projection(x / tau, k), 1e-12)


def dftopk(x, k, tau):
    """Sigmoids around the middle of the k-th and (k+1)-th largest entries."""
    ordered = np.sort(x)[::-1]
    return special.expit((x - (ordered[k - 1] + ordered[k]) / 2) / tau)


def test_dftopk_does_not_sum_to_k():
    """id-dftopk: a sigmoid whose threshold is not solved for; its sum is not k."""
    x = np.array([3.0, 2.9, 0.0, -2.5, -2.6, -3.0])
    q = dftopk(x, 2, 1.0)
    assert abs(q.sum() - 2) > 0.1
    p = stk.thretopk(x, 2, curve="sigmoid")
    assert_close(p.sum(), 2, 1e-12)
    # The same curve at two thresholds: logit p - logit q is one constant, and not 0.
    shift = special.logit(p) - special.logit(q)
    assert np.ptp(shift) < 1e-12
    assert abs(shift[0]) > 0.1
    # On a row that is symmetric about that middle the two thresholds are the same.
    x = np.array([-2.0, -0.3, 0.3, 2.0])
    assert_close(stk.thretopk(x, 2, curve="sigmoid"), dftopk(x, 2, 1.0), 1e-13)


# ----------------------------------------------------------------------------- entropy programs


def exp_program(p):
    return special.xlogy(p, p) - p, np.log(p)


def sigmoid_program(p):
    return special.xlogy(p, p) + special.xlogy(1 - p, 1 - p), np.log(p) - np.log1p(-p)


def laplace_program(p):
    small = np.minimum(p, 1 - p)
    return special.xlogy(small, 2 * small) - small, np.sign(0.5 - p) * np.log(2 * small)


def clip_program(p):
    return p**2 / 2, p


@pytest.mark.parametrize(
    ("curve", "program"),
    [
        ("exp", exp_program),
        ("sigmoid", sigmoid_program),
        ("laplace", laplace_program),
        ("clip", clip_program),
    ],
)
def test_entropy_programs(curve, program):
    """id-entropy-programs: p = argmax <x, p> - tau Omega(p), by quadratic programming."""
    rng = np.random.default_rng(33)
    for n, k, tau in ((4, 2, 1.0), (6, 2.5, 0.7), (8, 1, 1.5)):
        x = rng.normal(size=n)

        def negative(p, x=x, tau=tau):
            omega, slope = program(p)
            return tau * omega.sum() - x @ p, tau * slope - x

        # omega' is infinite at 0 and 1: keep the iterates inside, where the solution is or next to.
        inside = (0.0, 1.0) if curve == "clip" else (1e-12, 1 - 1e-12)
        solution = optimize.minimize(
            negative,
            np.full(n, k / n),
            jac=True,
            method="SLSQP",
            bounds=[inside] * n,
            constraints={"type": "eq", "fun": lambda p, k=k: p.sum() - k, "jac": np.ones_like},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        p = stk.thretopk(x, k, curve=curve, temperature=tau)
        assert_close(p, solution.x, 1e-6)
        # The maximum is the potential.
        phi = stk.thretopk.potential(x, k, curve=curve, temperature=tau)
        assert_close(phi, -solution.fun, 1e-9)


def test_p_norm_mask_is_entmax():
    """id-p-norm: the mask of Sander et al. 2023, argmax <x, y> - (l/p) |y|_p^p, by programming."""
    rng = np.random.default_rng(45)
    for power, ell, k in ((4 / 3, 2.5, 3), (1.5, 2.0, 2), (2.0, 1.5, 4)):
        x = rng.normal(size=7)

        def negative(y, x=x, power=power, ell=ell):
            y = np.maximum(y, 0)
            return ell / power * (y**power).sum() - x @ y, ell * y ** (power - 1) - x

        solution = optimize.minimize(
            negative,
            np.full(7, k / 7),
            jac=True,
            method="SLSQP",
            bounds=[(0.0, 1.0)] * 7,
            constraints={"type": "eq", "fun": lambda y, k=k: y.sum() - k, "jac": np.ones_like},
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        tau = (power - 1) * ell
        y = stk.thretopk(x, k, curve="entmax", alpha=power, temperature=tau)
        assert ((y > 0) & (y < 1)).sum() >= 2
        assert_close(y, solution.x, 1e-6)


# ---------------------------------------------------------------------------------------- clip


def capped_simplex_projection(y, k):
    """The nearest point of {0 <= p <= 1, sum p = k}: try every number of ones and of zeros.

    The optimality conditions allow p_i = y_i - nu in the middle of the sorted row, ones above and
    zeros below. The projection is unique, so the first consistent guess is it (Wang and Lu 2015).
    """
    order = np.argsort(-y, kind="stable")
    sorted_y, n = y[order], y.size
    for ones, free in itertools.product(range(n + 1), range(n + 1)):
        if ones + free > n or (free == 0 and ones != k):
            continue
        middle = slice(ones, ones + free)
        nu = (sorted_y[middle].sum() + ones - k) / free if free else sorted_y[ones - 1] - 1
        p = np.zeros(n)
        p[:ones] = 1
        p[middle] = sorted_y[middle] - nu
        above, below = sorted_y[:ones], sorted_y[ones + free :]
        if (
            np.all((p >= 0) & (p <= 1))
            and (above.size == 0 or above.min() - nu >= 1)
            and (below.size == 0 or below.max() - nu <= 0)
        ):
            return p[np.argsort(order, kind="stable")]
    raise AssertionError("no guess satisfies the optimality conditions")


@pytest.mark.parametrize("real_k", [False, True])
def test_capped_simplex_is_clip(real_k):
    """id-capped-simplex: clip is the projection of x/tau, as jaxopt's box section is."""
    partly_chosen = 0
    for x, k, tau in rows(34, real_k):
        p = stk.thretopk(x, k, curve="clip", temperature=tau)
        projected = capped_simplex_projection(x / tau, k)
        assert_close(p, projected, 1e-13 + 1e-15 * np.ptp(x) / tau)
        partly_chosen += np.sum((p > 0) & (p < 1))
    assert partly_chosen > 10


def sparsemax(z):
    """Martins and Astudillo 2016, algorithm 1."""
    ordered = np.sort(z)[::-1]
    total = np.cumsum(ordered)
    size = np.flatnonzero(1 + np.arange(1, z.size + 1) * ordered > total)[-1] + 1
    return np.maximum(z - (total[size - 1] - 1) / size, 0)


def test_sparsemax_is_clip_k1():
    """id-sparsemax: sparsemax is clip at k = 1."""
    for x, _, tau in rows(35):
        p = stk.thretopk(x, 1, curve="clip", temperature=tau)
        assert_close(p, sparsemax(x / tau), 1e-13 + 1e-15 * np.ptp(x) / tau)


# ------------------------------------------------------------------------------------- laplace


def lapsum(x, k, alpha):
    """LapSum 2025: the sum of Laplace CDFs at all breakpoints, then one quadratic between two.

    At the breakpoints r_1 <= ... <= r_n the sum is updated from each to the next by its two parts,
    a of the entries above (with e^{-alpha r}) and b of those at or below.
    """
    r = np.sort(x) / alpha
    n = r.size
    gaps = np.exp(-np.diff(r))
    above, below = (
        np.zeros(n),
        np.ones(n),
    )  # sum over i > j of e^{r_j - r_i}; i <= j of e^{r_i - r_j}
    for j in range(1, n):
        below[j] = 1 + below[j - 1] * gaps[j - 1]
    for j in range(n - 2, -1, -1):
        above[j] = (1 + above[j + 1]) * gaps[j]
    sums = (n - 1 - np.arange(n)) - above / 2 + below / 2  # of f(r_i - r_j), decreasing in j
    j = int(np.sum(sums >= k)) - 1  # the threshold lies in [r_j, r_{j+1}]
    if j == -1:  # below every breakpoint: n - (1 + above_0) u/2 = k, u = e^{b - r_0}
        b = r[0] + math.log(2 * (n - k) / (1 + above[0]))
    else:  # (n-1-j) - above_j u/2 + below_j/(2u) = k, u = e^{b - r_j} >= 1
        c = k - (n - 1 - j)
        root = math.sqrt(c * c + above[j] * below[j])
        u = below[j] / (root + c) if c >= 0 else (root - c) / above[j]
        b = r[j] + math.log(u)
    t = x / alpha - b
    return np.where(t < 0, np.exp(-np.abs(t)) / 2, 1 - np.exp(-np.abs(t)) / 2)


@pytest.mark.parametrize("real_k", [False, True])
def test_lapsum_is_laplace(real_k):
    """id-lapsum: LapSum's algorithm gives laplace."""
    for x, k, tau in rows(36, real_k):
        expected = lapsum(x, k, tau)
        assert_close(expected.sum(), k, 1e-12)
        assert_close(stk.thretopk(x, k, temperature=tau), expected, 1e-12)


# ----------------------------------------------------------------------------------------- exp


def test_softmax_is_exp_k1():
    """id-softmax: softmax is exp at k = 1, value and gradient."""
    for x, _, tau in rows(37):
        p = stk.thretopk(x, 1, curve="exp", temperature=tau)
        assert_close(p, special.softmax(x / tau), 1e-13 + 1e-15 * np.ptp(x) / tau)
        u = np.random.default_rng(38).normal(size=x.size)
        gradient = stk.thretopk.vjp(x, 1, curve="exp", temperature=tau)[1](u).x
        assert_close(gradient, p * (u - p @ u) / tau, 1e-12 / tau)


# ----------------------------------------------------------------------- operators of entmax


@pytest.fixture
def entmax():
    """The package entmax; its tests are skipped, with the reason, where it is not installed."""
    for module in ("torch", "entmax"):
        pytest.importorskip(module, reason="needs the extras 'torch' and 'compare'")
    return importlib.import_module("entmax")


def tensor(x):
    return importlib.import_module("torch").tensor(x, requires_grad=True)


def assert_same_operator(published, x, k, tau, **options):
    """Equal values, and equal gradients of <u, p>; published takes and gives tensors."""
    scores = tensor(x)
    theirs = published(scores / tau)
    ours, pullback = stk.thretopk.vjp(x, k, temperature=tau, **options)
    assert_close(ours, theirs.detach().numpy(), 1e-12)
    u = np.random.default_rng(39).normal(size=x.size)
    (theirs * tensor(u).detach()).sum().backward()
    assert_close(pullback(u).x, scores.grad.numpy(), 1e-10 / tau)


@pytest.mark.torch
def test_budget_bisect_is_clip(entmax):
    """id-budget-bisect: entmax's budget_bisect is clip, value and gradient."""
    for x, k, tau in rows(40):
        assert_same_operator(
            lambda z, k=k: entmax.budget_bisect(z, budget=k, n_iter=100), x, k, tau, curve="clip"
        )


@pytest.mark.torch
def test_entmax_sparsemax_is_clip_k1(entmax):
    """id-sparsemax: the package entmax's sparsemax."""
    for x, _, tau in rows(41):
        assert_same_operator(entmax.sparsemax, x, 1, tau, curve="clip")


@pytest.mark.torch
def test_entmax15_is_entmax(entmax):
    """id-entmax: 1.5-entmax is entmax at k = 1."""
    for x, _, tau in rows(42):
        assert_same_operator(entmax.entmax15, x, 1, tau, curve="entmax", alpha=1.5)


@pytest.mark.torch
@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.5, 1.75, 2.0])
def test_entmax_bisect_is_entmax(entmax, alpha):
    """id-entmax: alpha-entmax is entmax at k = 1."""
    for x, _, tau in rows(43):
        assert_same_operator(
            lambda z: entmax.entmax_bisect(z, alpha=alpha, n_iter=100),
            x,
            1,
            tau,
            curve="entmax",
            alpha=alpha,
        )


@pytest.mark.torch
def test_torch_softmax_is_exp_k1(entmax):
    """id-softmax: PyTorch's softmax, value and gradient."""
    torch = importlib.import_module("torch")
    for x, _, tau in rows(44):
        assert_same_operator(lambda z: torch.softmax(z, -1), x, 1, tau, curve="exp")
