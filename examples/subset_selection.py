"""Which 4 of 30 measurements of a tumour are worth making?

scikit-learn's breast cancer data hold 30 measurements for each of 569 tumours, benign or malignant.
Here the choice of 4 is a random subset: one score per measurement, and P(S) proportional to
exp(sum of the scores in S / temperature), which is ``KSubset``. Every step of training draws 16
subsets exactly. The classifier only ever sees hard ones, exactly 4 measurements, no more and no
less, so that there is no soft mask to round in the end.

A draw has no derivative, so the scores learn by one of two estimates:

* straight through: the gradient in the mask that was drawn goes back as if it were the gradient in
  the marginals p, through the pullback of ``gradtopk``. Biased, with little noise;
* score function (REINFORCE): how much better than the others a subset did, times the gradient of
  its log-probability, (mask - p) / temperature. Unbiased, with much noise.

The four highest scores, the likeliest subset, are then judged like any other choice: by logistic
regression on those measurements alone, on tumours that took no part. Five folds, four times over;
the splits overlap, so 20 runs say less than 20 independent ones would.

    python examples/subset_selection.py [--out FIGURE.png]
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import SelectKBest, f_classif, mutual_info_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

K = 4  # measurements to make
SEED = 0
FOLDS, REPEATS = 5, 4
RANDOM_DRAWS = 4  # random choices per split

# Settings, the same for every split and both estimates.
STEPS = 300
DRAWS = 16  # subsets per step
RATE = 0.1
WEIGHT_RATE, WEIGHT_DECAY = 0.05, 1e-3
HOT, COLD = 1.0, 0.1  # the temperature falls from one to the other, geometrically
SHOWN = (0, 40, 100, STEPS)  # steps in the figure


# --- the main job: learn a distribution of subsets ------------------------------------


class Adam:
    """Adam (Kingma and Ba, 2015) on one array, in place."""

    def __init__(self, param):
        self.param = param
        self.m, self.v, self.t = np.zeros_like(param), np.zeros_like(param), 0

    def step(self, gradient, rate):
        self.t += 1
        self.m += 0.1 * (gradient - self.m)
        self.v += 0.001 * (gradient**2 - self.v)
        scale = np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8
        self.param -= rate * self.m / (1 - 0.9**self.t) / scale


def learn_scores(x, y, estimate, rng):
    """Train scores and a logistic classifier together; return the scores and what happened.

    y is -1 or 1. The last weight is the intercept.
    """
    n = x.shape[1]
    scores, weights = np.zeros(n), np.zeros(n + 1)  # nothing is preferred at the start
    adam_scores, adam_weights = Adam(scores), Adam(weights)
    history = []
    for step in range(STEPS + 1):
        temperature = HOT * (COLD / HOT) ** (step / STEPS)
        p, pullback = stk.gradtopk.vjp(scores, K, temperature=temperature)
        subsets = stk.KSubset(scores, K, temperature)

        # forward: hard subsets -> one column of margins for each
        masks = subsets.sample(DRAWS, rng)
        margins = y[:, None] * (x @ (masks * weights[:-1]).T + weights[-1])
        losses = np.logaddexp(0, -margins).mean(axis=0)
        history.append({"temperature": temperature, "p": p, "loss": losses.mean(), "of": subsets})

        # backward, to the classifier
        d_logits = -y[:, None] / (1 + np.exp(margins)) / len(y)
        d_products = d_logits.T @ x  # the gradient in mask * weights, one row for each subset
        d_weights = (d_products * masks).mean(axis=0) + WEIGHT_DECAY * weights[:-1]
        d_intercept = d_logits.sum() / DRAWS

        # backward, to the scores
        if estimate == "straight-through":
            d_scores = pullback((d_products * weights[:-1]).mean(axis=0)).x
        else:
            # Each subset is compared with the mean of the others, which keeps this unbiased.
            worse = (losses - losses.mean()) * DRAWS / (DRAWS - 1)
            d_scores = worse @ (masks - p) / (DRAWS * temperature)
        adam_weights.step(np.append(d_weights, d_intercept), WEIGHT_RATE)
        # The scores slow down and stand still for the last third: from there cooling decides.
        adam_scores.step(d_scores, RATE * max(0.0, 1.0 - 1.5 * step / STEPS))
    return scores, history


# --- the judge: the same for every contender ------------------------------------------


def judge(chosen, train, test):
    (x, y), (xt, yt) = train, test
    model = LogisticRegression(max_iter=1000).fit(x[:, chosen], y)
    return model.score(xt[:, chosen], yt)


def mutual_information(x, y):
    return mutual_info_classif(x, y, random_state=SEED)


def run():
    data = load_breast_cancer()
    x, y = data.data, 2.0 * data.target - 1
    n = x.shape[1]
    rng = np.random.default_rng(SEED)
    splits = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=SEED)
    results = {name: [] for name in LABELS}
    histories, chosen = {}, {}
    for split, (train, test) in enumerate(splits.split(x, y)):
        mean, scale = x[train].mean(axis=0), x[train].std(axis=0)
        parts = [((x[i] - mean) / scale, y[i]) for i in (train, test)]
        picks = {"all": [np.arange(n)]}
        for estimate in ("straight-through", "score function"):
            scores, history = learn_scores(*parts[0], estimate, rng)
            picks[estimate] = [np.flatnonzero(stk.hardtopk(scores, K))]
            if split == 0:
                histories[estimate] = history
        for name, score in (("f_classif", f_classif), ("mutual_info", mutual_information)):
            picks[name] = [SelectKBest(score, k=K).fit(*parts[0]).get_support(indices=True)]
        picks["random"] = [rng.permutation(n)[:K] for _ in range(RANDOM_DRAWS)]
        for name, choices in picks.items():
            results[name] += [judge(choice, *parts) for choice in choices]
        if split == 0:
            chosen = {name: choices[0] for name, choices in picks.items()}
    return data.feature_names, results, histories, chosen


LABELS = {
    "all": "all 30 measurements",
    "straight-through": f"{K} learned, straight through",
    "score function": f"{K} learned, score function",
    "f_classif": f"{K} by SelectKBest(f_classif)",
    "mutual_info": f"{K} by SelectKBest(mutual_info)",
    "random": f"{K} at random",
}


def likeliest(entry):
    """The probability of the likeliest subset."""
    top = stk.hardtopk(entry["p"], K) > 0
    return math.exp(entry["of"].log_prob(top))


def print_results(names, results, histories, chosen):
    print("straight through, first split\n")
    print("step   temperature   mean loss   subsets (e^entropy)   likeliest subset")
    history = histories["straight-through"]
    for step in range(0, STEPS + 1, 50):
        e = history[step]
        print(
            f"{step:>4}{e['temperature']:>14.2f}{e['loss']:>12.3f}"
            f"{math.exp(e['of'].entropy()):>22.1f}{likeliest(e):>19.1%}"
        )
    print("\nmeasurements made                test accuracy   spread   runs")
    for name, values in results.items():
        print(
            f"{LABELS[name]:<32} {np.mean(values):>13.1%}   {np.std(values, ddof=1):>6.1%}"
            f"   {len(values):>4}"
        )
    for name in ("straight-through", "score function"):
        pairs = list(zip(results[name], results["f_classif"], strict=True))
        ahead, behind = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
        print(
            f"{name}: ahead of SelectKBest(f_classif) in {ahead} of {len(pairs)} splits, "
            f"behind in {behind}"
        )
    print("\nfirst split:")
    for name in ("straight-through", "score function", "f_classif"):
        print(f"  {name:<18}{', '.join(names[chosen[name]])}")


# --- the figure -----------------------------------------------------------------------


def draw(path, names, results, histories):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    blue, orange, grey = "#0072B2", "#D55E00", "#595959"
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure = plt.figure(figsize=(14.5, 10.5), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, hspace=0.03)
    figure.suptitle(
        f"Choosing {K} of 30 measurements: a distribution of subsets, learned from exact draws",
        fontsize=15,
    )
    # Rows on their own, so that the long names of one do not push the other aside.
    axes = np.array([row.subplots(1, 2) for row in figure.subfigures(2, 1)])
    history = histories["straight-through"]
    p = np.array([e["p"] for e in history])
    order = np.argsort(-p[-1], kind="stable")

    # the marginals over training
    ax = axes[0, 0]
    for i in order[::-1]:
        top = i in order[:K]
        ax.plot(p[:, i], color=blue if top else "0.72", lw=2.4 if top else 1.0, zorder=2 + top)
    ends = p[-1, order[:K]].copy()
    ends[np.argsort(-ends)] = np.linspace(ends.max(), ends.max() - 0.06 * (K - 1), K)
    for i, height in zip(order[:K], ends, strict=True):
        ax.annotate(
            names[i], (STEPS, p[-1, i]), (STEPS + 8, height), color=blue, va="center", fontsize=10
        )
    ax.plot([0, STEPS], [K / 30] * 2, color=grey, lw=1, ls=":")
    ax.text(STEPS, K / 30 + 0.015, "4/30", color=grey, ha="right")
    at = SHOWN[1]
    ax.axvline(at, ymax=0.97, color=grey, lw=1, ls=":")
    ax.text(at + 3, 1.02, f"step {at}: see below", color=grey, va="bottom", fontsize=10)
    ax.set(
        title="Marginals over training: they always sum to 4",
        xlabel=f"step (the temperature falls from {HOT:g} to {COLD:g})",
        ylabel="probability of being chosen",
        xlim=(0, STEPS * 1.32),
        xticks=range(0, STEPS + 1, 50),
        ylim=(-0.02, 1.09),
    )

    # draws at several steps
    ax = axes[0, 1]
    rows = 8
    rng = np.random.default_rng(SEED)
    for block, step in enumerate(SHOWN):
        masks = history[step]["of"].sample(rows, rng)[:, order]
        top = block * (rows + 1.6)
        for row, column in zip(*np.nonzero(masks), strict=True):
            colour = blue if column < K else orange
            ax.add_patch(
                plt.Rectangle((column - 0.44, top + row - 0.42), 0.88, 0.84, facecolor=colour)
            )
        ax.add_patch(
            plt.Rectangle((-0.6, top - 0.6), 30.2, rows + 0.2, fill=False, color="0.75", lw=1)
        )
        ax.text(-1.2, top + rows / 2 - 0.5, f"step {step}", va="center", ha="right", fontsize=11)
    ax.set(
        title="Eight draws each: a row is a subset of exactly 4",
        xlabel="the 30 measurements, by p at the end (blue: the four highest)",
        xlim=(-5.5, 30),
        ylim=(len(SHOWN) * (rows + 1.6) - 1.6, -1),
        xticks=[],
        yticks=[],
    )
    ax.spines[:].set_visible(False)

    # Correlations of the indicators: negative, because the size is fixed. They are the law's own,
    # and know nothing of which measurements say the same.
    ax = axes[1, 0]
    entry = history[SHOWN[1]]
    keep = np.argsort(-entry["p"], kind="stable")[:12]
    pairs, q = entry["of"].pair_marginals(), entry["p"]
    deviation = np.sqrt(q * (1 - q))
    correlation = ((pairs - np.outer(q, q)) / np.outer(deviation, deviation))[np.ix_(keep, keep)]
    np.fill_diagonal(correlation, np.nan)
    ax.set_facecolor("0.92")
    image = ax.imshow(correlation, cmap="Blues_r", vmax=0, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="correlation (grey: with itself)", ticks=MaxNLocator(5))
    ax.set_yticks(range(len(keep)), names[keep], fontsize=10)
    ax.set_xticks(range(len(keep)), [f"{q[i]:.2f}" for i in keep], fontsize=10)
    ax.set(
        title=f"Pairs at step {SHOWN[1]}: one that is chosen leaves less room",
        xlabel="p of the twelve likeliest, in the order of the rows",
    )

    # the comparison
    ax = axes[1, 1]
    order = list(results)[::-1]
    for position, name in enumerate(order):
        values = 100 * np.array(results[name])
        colour = {"straight-through": blue, "score function": blue, "f_classif": orange}.get(
            name, grey
        )
        jitter = np.random.default_rng(position).uniform(-0.12, 0.12, len(values))
        ax.plot(values, position + jitter, "o", color=colour, alpha=0.3, ms=5, mew=0)
        ax.plot(values.mean(), position, "D", color=colour, ms=8, mec="white")
        ax.annotate(
            f"{values.mean():.1f}",
            (values.mean(), position),
            (0, 13),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontweight="bold",
        )
    ax.set(
        title="The same classifier on what was chosen",
        xlabel="test accuracy in % (dots: runs; diamond: mean)",
        yticks=range(len(order)),
        yticklabels=[LABELS[name].replace("by ", "by\n") for name in order],
        ylim=(-0.5, len(order) - 0.3),
        xlim=(72, 101),
    )
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    for ax in (axes[0, 0], axes[1, 1]):
        ax.spines[["top", "right"]].set_visible(False)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "output" / "subset_selection.png"
    parser.add_argument("--out", type=Path, default=default, help="where the figure goes")
    args = parser.parse_args()

    start = time.perf_counter()
    # Matrices this small are faster on one thread of the linear algebra library, and one thread
    # rounds alike everywhere.
    with threadpool_limits(limits=1, user_api="blas"):
        names, results, histories, chosen = run()
    print_results(names, results, histories, chosen)
    draw(args.out, names, results, histories)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
