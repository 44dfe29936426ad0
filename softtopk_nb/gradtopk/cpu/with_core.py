"""GradTopK on the rows of lo .. hi that have a core: entries treated one by one at every node.

A row has one where the variance of the count is small (`contour`). These kernels do what `rows`
leaves to them, and are compiled when a row first needs them.
"""

from __future__ import annotations

from ..._compile.array_intrinsics import borrowed, empty, window, workspace
from ..._compile.decorators import kernel
from ..._compile.permute import unpack
from ..._nonfinite import (
    FINITE,
    WITH_INFINITIES,
    length,
    taking_part,
    with_infinities,
    without_infinities,
)
from ..._threshold.newton import inverse_temperature
from ..nodes import CAPACITY, DEGREE, FIELDS, NODES
from ..records import (
    CODE,
    CORE_AND_INFINITIES,
    CORE_LIMIT,
    DIRECTION_SUMS,
    MARGINAL_FIELDS,
    MARGINAL_POLYNOMIALS,
    STEPS,
    SUMS,
    TANGENT_FIELDS,
    TANGENT_POLYNOMIALS,
    TILT_ABOVE,
    TILT_VARIANCE,
    WITH_CORE,
    C,
    D,
)
from .chebyshev_tangent import pair_with_t
from .contour import MOST_IN_CORE, power_sums, power_sums_scratch, quadrature
from .marginals import marginal_coefficients, marginals, marginals_scratch
from .moments import TiltSums, choose_series, tilted_probabilities
from .rows import level_of, load_nodes, store_nodes, store_tilt
from .tangent import direction_sums, tangent_coefficients, tangent_scratch, write_tangent


@kernel
def solve(lo, hi, x, k, tau, tilt, out, solution):
    """Solve the rows that `rows.solve` has left as their core needs it.

    Where p of a finite row is wanted, `out` holds 2 r of its entries, as found at the tilt.
    """
    T, wide = x.dtype.type, solution.shape[1] > 0
    work, scratch = power_sums_scratch(x), marginals_scratch(x)
    sums, core = empty(SUMS), empty(MOST_IN_CORE)
    nodes, table = empty((FIELDS, CAPACITY)), empty((MARGINAL_FIELDS, NODES))
    polynomials = empty((MARGINAL_POLYNOMIALS, DEGREE), x.dtype)
    apart = workspace(x, 2, x.shape[1])
    x, tilt, out, solution = borrowed(x), borrowed(tilt), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        finite = tilt[i, CODE] == WITH_CORE
        if not finite and tilt[i, CODE] != CORE_AND_INFINITIES:
            continue
        inv, whole = inverse_temperature(tau[i], x), window(x[i], 0, length(x[i]))
        p = window(out[i], 0, whole.shape[0] if out.shape[1] > 0 else 0)
        present, left = whole, k[i]
        if not finite:
            present, left = without_infinities(whole, k[i], apart[0])
        n, c, d = present.shape[0], T(tilt[i, C]), T(tilt[i, D])
        tilt[i, CODE] = FINITE if finite else WITH_INFINITIES
        values = window(p if p.shape[0] > 0 and finite else apart[1], 0, n)
        if p.shape[0] == 0 or not finite:
            tilted_probabilities(present, c, inv, d, values)
        seen = TiltSums(tilt[i, TILT_ABOVE], 0.0, 0.0, tilt[i, TILT_VARIANCE], 0.0)
        limit, _ = choose_series(seen.variance, inv)
        found = power_sums(values, seen, inv, limit, work, sums, core)
        size, used, log_p = quadrature(n, left, inv, 0, sums, core, found, nodes)
        if wide:
            store_nodes(nodes, size, used, log_p, solution[i])
            store_tilt(c, d, limit, 0, solution[i])
        if p.shape[0] > 0:
            marginal_coefficients(nodes, used, polynomials, table)
            marginals(present, c, inv, d, limit, table, used, polynomials, scratch, values, values)
            if not finite:
                with_infinities(whole, values, k[i] - left, p)


@kernel
def jvp(lo, hi, x, tau, solution, v, dtau, out, gtau):
    """Write dp of the rows that `rows.jvp` has left as their core needs it."""
    T = x.dtype.type
    work, sums = tangent_scratch(x), empty(DIRECTION_SUMS)
    nodes, q_re, q_im = empty((FIELDS, CAPACITY)), empty(NODES), empty(NODES)
    polynomials = empty((TANGENT_POLYNOMIALS, DEGREE), x.dtype)
    table = empty((TANGENT_FIELDS, NODES))
    apart = workspace(x, 3, x.shape[1])
    x, v, out, solution = borrowed(x), borrowed(v), borrowed(out), borrowed(solution)
    for i in range(lo, hi):
        n, answer, code = length(x[i]), solution[i], int(solution[i, CODE])
        if code > WITH_INFINITIES or answer[STEPS] > 0:
            continue
        entries, dp = window(x[i], 0, n), window(out[i], 0, n)
        c, inv, d = level_of(x, tau[i], answer)
        xs, vs, target = taking_part(entries, window(v[i], 0, n), dp, code, apart)
        used = load_nodes(answer, nodes)
        at = dtau[i], c, inv, d, answer[CORE_LIMIT]
        direction_sums(xs, vs, *at, nodes, used, work, sums)
        tangent_coefficients(nodes, used, 0, sums, q_re, q_im, polynomials, table)
        write_tangent(xs, vs, *at, table, used, polynomials, work, target)
        if gtau.shape[1] > 0:
            gtau[i, 0] = -pair_with_t(xs, target, c, inv, d)
        if code == WITH_INFINITIES:
            unpack(entries, target, T(0), dp)
