"""The figures of these pages, drawn by the package itself when the pages are built.

``python docs/figures.py FOLDER`` draws them by hand; ``--png`` makes PNG instead of SVG.
"""

from __future__ import annotations

import ast
import decimal
import functools
import sys
import timeit
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import expit, ndtr

import softtopk_nb as stk


class Theme(NamedTuple):
    """Colours: Okabe and Ito's, told apart in every common form of colour blindness."""

    ink: str
    quiet: str
    background: str
    first: str
    second: str
    third: str


THEMES = {
    "light": Theme("#1f2328", "#8a9099", "#ffffff", "#0072B2", "#D55E00", "#009E73"),
    "dark": Theme("#e6e6e6", "#8a9099", "#14181e", "#56B4E9", "#E69F00", "#F0E442"),
}
ROW = np.array([2.6, 1.9, 1.7, 0.9, 0.4, -0.1, -1.0, -1.6])
K = 3


def laplace(t):
    """The Laplace CDF."""
    tail = 0.5 * np.exp(-np.abs(t))
    return np.where(t < 0, tail, 1 - tail)


CURVES = {
    "exp": lambda t: np.exp(np.minimum(t, 0)),
    "sigmoid": expit,
    "laplace": laplace,
    "clip": lambda t: np.clip(t, 0, 1),
    "normal": ndtr,
    "entmax, alpha = 1.5": lambda t: np.clip(t / 2, 0, 1) ** 2,
}


def arguments(curve):
    """What `thretopk` is told about a curve that is called like this in a figure."""
    return {"curve": "entmax", "alpha": 1.5} if curve.startswith("entmax") else {"curve": curve}


def threshold_picture(theme):
    """Left: the curve, slid until the heights of the points sum to k. Right: why one place fits."""
    tau = 0.5
    p = stk.thretopk(ROW, K, temperature=tau)
    lam = float(stk.thretopk.threshold(ROW, K, temperature=tau))
    grid = np.linspace(-2.6, 3.6, 400)

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=[1.5, 1])
    left.plot(grid, laplace((grid - lam) / tau), color=theme.first, lw=1.8)
    left.vlines(ROW, 0, p, color=theme.second, lw=3)
    left.plot(ROW, p, "o", color=theme.second, ms=6)
    left.axvline(lam, color=theme.quiet, lw=1, ls="--")
    left.text(lam, 1.11, r"threshold $\lambda$", ha="center")
    left.text(-2.5, 1.11, f"heights sum to $k = {K}$", color=theme.second)
    left.set(xlabel="score $x$", ylabel="$p$", xlim=(-2.6, 3.6), ylim=(0, 1.08))

    right.plot(grid, laplace((ROW - grid[:, None]) / tau).sum(axis=1), color=theme.first, lw=1.8)
    right.axhline(K, color=theme.second, lw=1.8)
    right.axvline(lam, color=theme.quiet, lw=1, ls="--")
    right.text(-2.5, K - 0.2, f"$k = {K}$", color=theme.second, va="top")
    right.text(lam, len(ROW) * 1.03, r"$\lambda$", ha="center")
    right.set(xlabel="trial threshold", ylabel="sum of heights", xlim=(-2.6, 3.6))
    right.set_ylim(0, len(ROW))
    figure.tight_layout(w_pad=2.5)
    return figure


def curves_picture(theme):
    """Each curve, with the points of the row on it, at three temperatures."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 5.2), sharex=True, sharey=True)
    grid = np.linspace(-2.2, 3.2, 500)
    styles = [(2.0, theme.third, "^", 7), (0.6, theme.second, "s", 5.5), (0.1, theme.first, "o", 4)]
    for axis, (curve, f) in zip(axes.flat, CURVES.items(), strict=True):
        for tau, colour, marker, size in styles:
            given = dict(arguments(curve), temperature=tau)
            p, lam = stk.thretopk(ROW, K, **given), stk.thretopk.threshold(ROW, K, **given)
            axis.plot(grid, f((grid - lam) / tau), color=colour, lw=1.4)
            axis.plot(ROW, p, marker, color=colour, ms=size, label=f"temperature {tau:g}")
        axis.set_title(curve, loc="left", fontsize=10)
        axis.set(xlim=(-2.2, 3.2), ylim=(-0.06, 1.06))
    for axis in axes[:, 0]:
        axis.set_ylabel("$p$")
    for axis in axes[1]:
        axis.set_xlabel("score $x$")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="upper center", ncols=3)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return figure


def convergence_picture(theme):
    """The entries of p against the temperature: k/n on the right, the hard mask on the left."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.5), sharey=True)
    temperatures = np.geomspace(0.03, 30, 300)
    gap = float(ROW[K - 1] - ROW[K])
    for axis, curve in zip(axes, ["laplace", "exp", "clip"], strict=True):
        rows = np.broadcast_to(ROW, (temperatures.size, ROW.size))
        p = stk.thretopk(rows, K, curve=curve, temperature=temperatures)
        for i in range(ROW.size):
            colour, style = (theme.first, "-") if i < K else (theme.second, "--")
            axis.plot(temperatures, p[:, i], style, color=colour, lw=1.4)
        axis.axvline(gap, color=theme.quiet, lw=1, ls=":")
        axis.text(gap * 0.92, 0.5, "gap", rotation=90, ha="right", va="center")
        axis.set_xscale("log")
        axis.set_title(curve, loc="left", fontsize=10)
        axis.set(xlabel=r"temperature $\tau$", xlim=(0.03, 30), ylim=(-0.03, 1.03))
    axes[0].set_ylabel("$p$")
    axes[0].plot([], [], "-", color=theme.first, label="the 3 largest scores")
    axes[0].plot([], [], "--", color=theme.second, label="the other 5")
    figure.legend(loc="upper center", ncols=2)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    return figure


def temperature_picture(theme):
    """What a temperature leaves soft, and how many entries it lets learn, for normal scores."""
    x = np.random.default_rng(0).normal(size=(200, 64))
    hard, temperatures = stk.hardtopk(x, 8), np.geomspace(0.01, 3, 40)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for curve, colour, style in [
        ("laplace", theme.first, "-"),
        ("sigmoid", theme.third, "-."),
        ("clip", theme.second, "--"),
    ]:
        outside, learning = [], []
        for tau in temperatures:
            given = {"curve": curve, "temperature": tau}
            p, share = stk.thretopk.jvp(x, 8, np.zeros_like(x), dk=1.0, **given)
            outside.append(((1 - hard) * p).sum(1).mean() / 8)
            total = (share**2).sum(1)  # 1 for one entry that learns, 1/m for m that share
            learning.append(np.mean(1 / total[total > 0]) * np.mean(total > 0))
        left.plot(temperatures, outside, style, color=colour, lw=1.8, label=curve)
        right.plot(temperatures, learning, style, color=colour, lw=1.8)
    for axis, label in ((left, "share of k outside the k largest"), (right, "entries that learn")):
        axis.axvspan(0.03, 1, color=theme.quiet, alpha=0.15, lw=0)
        axis.set(
            xscale="log", xlabel="temperature / standard deviation of the scores", ylabel=label
        )
    left.legend(loc="upper left")
    figure.tight_layout(w_pad=2.5)
    return figure


def softmax_picture(theme):
    """k = 1: the largest entry of laplace against the largest entry of softmax."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 6)) * np.linspace(0.05, 4, 60)[:, None]
    soft = np.exp(x - x.max(axis=1, keepdims=True))
    soft = (soft / soft.sum(axis=1, keepdims=True)).max(axis=1)

    figure, axis = plt.subplots(figsize=(5.6, 3.8))
    s = np.linspace(1e-3, 1 - 1e-3, 500)
    axis.plot(s, s, color=theme.quiet, lw=1, ls="--", label="equal to softmax")
    formula = np.where(s <= 0.5, s, 1 - 0.5 * np.sqrt((1 - s) / s))
    axis.plot(s, formula, color=theme.first, lw=1.6, label="the theorem")
    top = stk.thretopk(x, 1).max(axis=1)
    axis.plot(soft, top, "o", color=theme.second, ms=4.5, label="thretopk, 60 random rows of 6")
    axis.axvline(0.5, ymax=0.62, color=theme.quiet, lw=1, ls=":")
    axis.set(xlim=(0.15, 1.01), ylim=(0.15, 1.01))
    axis.set(xlabel="largest softmax probability $s$", ylabel="largest $p$, laplace, $k = 1$")
    axis.legend(loc="upper left")
    return figure


def smoothed_maximum_picture(theme):
    """Left: logsumexp of (t, 0) over max(t, 0). Right: its gradient in t, softmax."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.3))
    t = np.linspace(-3, 3, 400)
    rows = np.stack([t, 0 * t], axis=1)
    left.plot(t, np.maximum(t, 0), color=theme.quiet, lw=1, ls="--", label="max")
    right.plot(t, t > 0, color=theme.quiet, lw=1, ls="--")
    styles = [(1.5, theme.third, "-."), (0.6, theme.second, ":"), (0.15, theme.first, "-")]
    for tau, colour, style in styles:
        value, vjp = stk.logsumexp.vjp(rows, temperature=tau)
        left.plot(t, value, style, color=colour, lw=1.8, label=f"temperature {tau:g}")
        right.plot(t, vjp(1.0).x[:, 0], style, color=colour, lw=1.8)
    left.set(xlabel="$t$", title="logsumexp of $(t, 0)$", ylim=(-0.1, 3.3))
    right.set(xlabel="$t$", title="its slope in $t$: softmax", ylim=(-0.03, 1.03))
    left.legend(loc="upper left")
    figure.tight_layout(w_pad=2.5)
    return figure


def gumbel_picture(theme):
    """One row: softmax, and four draws of gumbel_softmax at each of three temperatures."""
    x = np.array([1, 1, 2, 3.4, -0.1, 3, 1.6])
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), sharey=True)
    axes[0].bar(range(7), stk.softmax(x), color=theme.first)
    axes[0].set_title("softmax", fontsize=10)
    for axis, kappa in zip(axes[1:], [3.0, 0.5, 0.05], strict=True):
        p = stk.gumbel_softmax(np.broadcast_to(x, (4, 7)), rng=5, temperature=kappa)
        for j, (row, alpha) in enumerate(zip(p, [1, 0.75, 0.5, 0.35], strict=True)):
            axis.bar(np.arange(7) + 0.2 * j - 0.3, row, 0.2, color=theme.second, alpha=alpha)
        axis.set_title(f"temperature {kappa:g}", fontsize=10)
    for axis in axes:
        axis.set(xticks=range(7), xlabel="entry", ylim=(0, 1.02))
    axes[0].set_ylabel("$p$")
    figure.tight_layout()
    return figure


def sinkhorn_picture(theme):
    """One matrix of scores, and its soft assignments."""
    scores = np.random.default_rng(4).normal(size=(7, 7))
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.6))
    colours = mpl.colors.LinearSegmentedColormap.from_list("one", [theme.background, theme.first])
    axes[0].imshow(scores, cmap=colours)
    axes[0].set_title("scores", fontsize=10)
    for axis, tau in zip(axes[1:], [2.0, 0.5, 0.1], strict=True):
        plan = stk.sinkhorn(scores, temperature=tau, tol=1e-4, max_iter=20_000)
        axis.imshow(plan, cmap=colours, vmin=0, vmax=1)
        axis.set_title(f"temperature {tau:g}", fontsize=10)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    figure.tight_layout()
    return figure


def gradual_picture(theme):
    """The power map and softmax of power times x, from the same values."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True)
    power = np.linspace(1, 20, 200)
    values = np.array([0.2, 0.4, 0.6, 0.8])
    tied = np.array([0.2, 0.4, 0.8, 0.8])
    panels = [
        ("gradual", values, stk.gradual),
        ("gradual, two equal maxima", tied, stk.gradual),
        ("softmax of power times $x$", values, lambda x, p: stk.softmax(x, temperature=1 / p)),
    ]
    for axis, (title, x, f) in zip(axes, panels, strict=True):
        y = f(np.broadcast_to(x, (power.size, 4)), power)
        for i in range(4):
            top = x[i] == x.max()
            colour, style = (theme.first, "-") if top else (theme.second, "--")
            axis.plot(power, y[:, i], style, color=colour, lw=1.5)
            axis.plot(1, x[i], "o", color=colour, ms=5)
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="power", xlim=(0.4, 20), ylim=(-0.03, 1.03), xticks=[1, 5, 10, 15, 20])
    axes[0].set_ylabel("value")
    figure.tight_layout()
    return figure


def iterative_picture(theme):
    """The two iterations and a threshold operator on one row, against the temperature."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.6), sharey=True)
    temperatures = np.geomspace(0.01, 10, 600)
    rows = np.broadcast_to(ROW, (temperatures.size, ROW.size))
    for axis, op in zip(axes, [stk.itertopk, stk.wsoftmaxtopk, stk.thretopk], strict=True):
        p = op(rows, K, temperature=temperatures)
        p[np.abs(p) > 20] = np.nan  # no line from one side of a pole to the other
        axis.axhspan(0, 1, color=theme.quiet, alpha=0.18, lw=0)
        for i in range(ROW.size):
            colour, style = (theme.first, "-") if i < K else (theme.second, "--")
            axis.plot(temperatures, p[:, i], style, color=colour, lw=1.4)
        axis.set_xscale("log")
        axis.set_title(op.__name__, loc="left", fontsize=10)
        axis.set(xlabel=r"temperature $\tau$", xlim=(0.01, 10), ylim=(-1.1, 3.1))
    axes[0].set_ylabel("$p$")
    axes[0].plot([], [], "-", color=theme.first, label="the 3 largest scores")
    axes[0].plot([], [], "--", color=theme.second, label="the other 5")
    figure.legend(loc="upper center", ncols=2)
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    return figure


def count_distribution(pi):
    """The distribution of the number of ones among independent Bernoulli variables."""
    distribution = np.ones(1)
    for probability in pi:
        distribution = np.convolve(distribution, [1 - probability, probability])
    return distribution


def subset_picture(theme):
    """Left: the number of ones of the Bernoulli variables. Right: p against the temperature."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), width_ratios=[1, 1.3])
    tau = 0.4
    lam = float(stk.thretopk.threshold(ROW, K - 0.5, curve="sigmoid", temperature=tau))
    distribution = count_distribution(expit((ROW - lam) / tau))
    colours = [theme.second if m == K else theme.first for m in range(distribution.size)]
    left.bar(range(distribution.size), distribution, color=colours)
    left.axvline(K - 0.5, color=theme.quiet, lw=1, ls="--")
    left.text(K - 0.4, 0.44, "mean $k - 1/2$")
    left.text(K + 0.5, distribution[K], f"$N = k = {K}$", color=theme.second, va="center")
    left.set(xlabel="number of ones, $N$", ylabel="probability", ylim=(0, 0.47))

    temperatures = np.geomspace(0.03, 30, 300)
    p = stk.gradtopk(np.tile(ROW, (temperatures.size, 1)), K, temperature=temperatures)
    for i in range(ROW.size):
        colour, style = (theme.first, "-") if i < K else (theme.second, "--")
        right.plot(temperatures, p[:, i], style, color=colour, lw=1.4)
    right.set_xscale("log")
    right.set(xlabel=r"temperature $\tau$", xlim=(0.03, 30), ylim=(-0.03, 1.03), ylabel="$p$")
    right.plot([], [], "-", color=theme.first, label="the 3 largest scores")
    right.plot([], [], "--", color=theme.second, label="the other 5")
    right.legend(loc="upper right")
    figure.tight_layout(w_pad=2.5)
    return figure


def exact_subset_marginals(x, k, tau):
    """p of GradTopK in 50-digit decimals, from prefixes and suffixes: nothing is subtracted."""
    with decimal.localcontext(prec=50):
        weights = [((Decimal(v) - Decimal(max(x))) / Decimal(tau)).exp() for v in x.tolist()]
        distributions = []
        for row in (weights, weights[::-1]):
            sums = [[Decimal(1)] + [Decimal(0)] * k]
            for y in row:
                before = sums[-1]
                more = [before[m] + y * before[m - 1] for m in range(1, k + 1)]
                sums.append([before[0], *more])
            distributions.append(sums)
        prefix, suffix = distributions[0], distributions[1][::-1]
        ways = [
            sum(prefix[i][m] * suffix[i + 1][k - 1 - m] for m in range(k)) for i in range(len(x))
        ]
        total = prefix[-1][k]
        return np.array([float(y * w / total) for y, w in zip(weights, ways, strict=True)])


METHODS = {"recursion": ("second", "-."), "dp": ("third", "--"), "contour": ("first", "-")}


@functools.cache
def subset_errors():
    """The largest error of each method on one row, against the temperature and against k."""
    x = np.random.default_rng(8).normal(size=60)
    temperatures, sizes = np.geomspace(0.02, 20, 31), np.arange(1, 60, 2)
    panels = []
    for grid, cases in (
        (temperatures, [(12, tau) for tau in temperatures]),
        (sizes, [(int(k), 0.5) for k in sizes]),
    ):
        errors = {method: [] for method in METHODS}
        for k, tau in cases:
            exact = exact_subset_marginals(x, k, float(tau))
            for method, found in errors.items():
                p = stk.gradtopk(x, k, temperature=tau, method=method)
                error = np.abs(p - exact).max()
                found.append(max(error, 1e-17) if np.isfinite(error) else np.nan)
        panels.append((grid, errors))
    return panels


def subset_error_picture(theme):
    """The largest error of p against 50 digits: the recursion's grows, the others' do not."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for axis, (grid, errors) in zip(axes, subset_errors(), strict=True):
        for method, (colour, style) in METHODS.items():
            axis.plot(grid, errors[method], style, color=getattr(theme, colour), label=method)
        axis.set_yscale("log")
    axes[0].set_xscale("log")
    axes[0].set(xlabel=r"temperature $\tau$", ylabel="largest error of $p$", ylim=(1e-17, 100))
    axes[1].set(xlabel="$k$", xlim=(0, 60))
    axes[0].legend(loc="upper right")
    figure.tight_layout(w_pad=2.5)
    return figure


def seconds(call):
    """The best of a few runs, after one that may compile."""
    call()
    return min(timeit.repeat(call, number=1, repeat=5))


@functools.cache
def subset_times():
    """Seconds for one row: every method against k, contour and dp against n."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=3000)
    sizes = [10, 30, 100, 300, 1000, 2990]
    against_k = {
        method: [seconds(functools.partial(stk.gradtopk, x, k, method=method)) for k in sizes]
        for method in METHODS
    }
    lengths = {"contour": [300, 1000, 3000, 10_000, 30_000, 100_000, 300_000]}
    lengths["dp"] = lengths["contour"][:4]
    against_n = {
        method: [
            seconds(functools.partial(stk.gradtopk, rng.normal(size=n), n // 10, method=method))
            for n in given
        ]
        for method, given in lengths.items()
    }
    return sizes, against_k, lengths, against_n


def subset_time_picture(theme):
    """Time of a call on one row: flat in k, linear in n."""
    sizes, against_k, lengths, against_n = subset_times()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for method, (colour, style) in METHODS.items():
        colour = getattr(theme, colour)
        left.plot(sizes, against_k[method], style, color=colour, marker="o", ms=3, label=method)
        if method in against_n:
            right.plot(lengths[method], against_n[method], style, color=colour, marker="o", ms=3)
    for axis, name in ((left, "$k$, for $n = 3000$"), (right, "$n$, for $k = n/10$")):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel(name)
    left.set_ylabel("seconds")
    left.legend(loc="upper left")
    figure.tight_layout(w_pad=2.5)
    return figure


def folder_imports():
    """Which folders and modules of the package each one imports, read from the source."""
    package, found = Path(stk.__file__).parent, {}
    left_out = {"__init__", "__main__", "_versions"}  # they import most of the package, or nothing
    for path in package.rglob("*.py"):
        here = path.relative_to(package).with_suffix("").parts
        # The last one hands calls on to fronts, which it imports when a call asks for one.
        if here[0] in left_out or here == ("_api", "fronts"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                there = (*here[: len(here) - node.level], *(node.module or "").split("."))
                names = [there[0]] if there[0] else [alias.name for alias in node.names]
                found.setdefault(here[0], set()).update(names)
    return {name: sorted(others - {name} - left_out) for name, others in found.items()}


def _floors(imports):
    """The names on each floor, the lowest first: each stands above all that it imports."""

    def height(name):
        return 1 + max((height(other) for other in imports[name]), default=-1)

    floors = {}
    for name in sorted(imports):
        floors.setdefault(height(name), []).append(name)
    return [floors[y] for y in sorted(floors)]


def architecture_picture(theme):
    """The folders of the package on their floors, each arrow from a folder to one it imports.

    An arrow is left out where another folder in between imports the same one.
    """
    imports = folder_imports()
    imports |= {
        other: [] for others in imports.values() for other in others if other not in imports
    }

    def below(name):
        return {*imports[name]}.union(*map(below, imports[name]))

    direct = {name: {*others}.difference(*map(below, others)) for name, others in imports.items()}
    places = {}
    for y, names in enumerate(_floors(imports)):
        # Above the middle of what they import, so that few arrows cross.
        middle = {n: np.mean([places[o][0] for o in direct[n]] or [0.5]) for n in names}
        for i, name in enumerate(sorted(names, key=middle.get)):
            places[name] = (i + 0.5) / len(names) + 0.05 * (y % 2 - 0.5), y
    figure, axis = plt.subplots(figsize=(9, 5.5))
    for name, (x, y) in places.items():
        box = {"boxstyle": "round", "fc": theme.background, "ec": theme.first}
        axis.text(x, y, name, ha="center", va="center", bbox=box, zorder=2)
        for other in direct[name]:
            arrow = {"arrowstyle": "-|>", "color": theme.quiet, "shrinkA": 0, "shrinkB": 0}
            there, floor = places[other]
            axis.annotate("", (there, floor + 0.17), (x, y - 0.17), arrowprops=arrow, zorder=1)
    axis.set(xlim=(-0.05, 1.05), ylim=(-0.4, y + 0.4))
    axis.axis("off")
    figure.tight_layout()
    return figure


PICTURES = {
    "architecture": architecture_picture,
    "threshold": threshold_picture,
    "curves": curves_picture,
    "convergence": convergence_picture,
    "temperature": temperature_picture,
    "laplace-softmax": softmax_picture,
    "iterative": iterative_picture,
    "subset": subset_picture,
    "subset-error": subset_error_picture,
    "subset-time": subset_time_picture,
    "smoothed-maximum": smoothed_maximum_picture,
    "gumbel": gumbel_picture,
    "sinkhorn": sinkhorn_picture,
    "gradual": gradual_picture,
}


def draw(folder: Path, *, suffix: str = "svg", newest_source: float = float("inf")) -> None:
    """Draw each picture in both themes, unless the file is newer than `newest_source`."""
    folder.mkdir(parents=True, exist_ok=True)
    plt.switch_backend("agg")  # no window, whatever the machine has
    for name, picture in PICTURES.items():
        for theme_name, theme in THEMES.items():
            target = folder / f"{name}-{theme_name}.{suffix}"
            if target.exists() and target.stat().st_mtime > newest_source:
                continue
            style = {
                "figure.facecolor": theme.background,
                "axes.facecolor": theme.background,
                "text.color": theme.ink,
                "axes.labelcolor": theme.ink,
                "axes.edgecolor": theme.quiet,
                "xtick.color": theme.ink,
                "ytick.color": theme.ink,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "legend.frameon": False,
                "font.size": 10,
                "svg.hashsalt": name,  # the same input gives the same file
            }
            with mpl.rc_context(style):
                figure = picture(theme)
                metadata = {"Date": None} if suffix == "svg" else {}
                figure.savefig(target, bbox_inches="tight", dpi=130, metadata=metadata)
                plt.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), suffix="png" if "--png" in sys.argv else "svg")
