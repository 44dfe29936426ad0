"""How many of 30 measurements of a tumour are worth what they cost, and which?

scikit-learn's breast cancer data hold 30 measurements for each of 569 tumours, benign or malignant.
Each measurement has a price, and nobody says how many to make: **k is learned**, by its gradient.
A logistic classifier sees every measurement times its entry of ``thretopk(scores, k)``, a mask in
[0, 1] that sums to k, and training lowers

    mean log-loss + price * k

in the classifier's weights, the scores and k at once, while the temperature falls and the mask
turns into a choice. Twenty splits of the data and six prices are trained side by side: one
``jax.vmap`` in another around one ``jax.lax.scan``, compiled together.

What was learned, round(k) measurements, is judged like any other choice: by logistic regression on
those alone, on tumours that took no part, beside SelectKBest with the same number. The splits
overlap, so 20 runs say less than 20 independent ones would.

    python examples/jax_feature_selection.py [--out FIGURE.png]
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import RepeatedStratifiedKFold

import softtopk_nb.jax as stj

SEED = 0
FOLDS, REPEATS = 5, 4
PRICES = (0.001, 0.002, 0.005, 0.01, 0.03, 0.1)  # of a measurement, in nats of log-loss

# Settings, the same for every split and price.
STEPS = 600
RATE, DECAY = 0.05, 1e-3
HOT, COLD = 1.0, 0.05  # the temperature falls from one to the other, geometrically
SHOWN = 2  # the price whose mask is drawn


# --- the main job: learn scores and k -------------------------------------------------


def objective(params, temperature, price, x, y):
    """What is lowered, and beside it k and the mask. y is -1 or 1."""
    n = x.shape[1]
    k = n * jax.nn.sigmoid(params["k"])
    mask = stj.thretopk(params["scores"], k, temperature=temperature)
    logits = x @ (mask * params["weights"]) + params["intercept"]
    fit = jax.nn.softplus(-y * logits).mean()
    # The decay is what a small mask with large weights would pay.
    return fit + price * k + DECAY * jnp.square(params["weights"]).sum(), (k, mask)


def train(price, x, y):
    """Adam (Kingma and Ba, 2015) from nothing preferred: parameters, and (k, mask) of each step."""
    n = x.shape[1]
    params = {"scores": jnp.zeros(n), "k": 0.0, "weights": jnp.zeros(n), "intercept": 0.0}
    params = jax.tree.map(jnp.asarray, params)
    nothing = jax.tree.map(jnp.zeros_like, params)

    def step(carried, i):
        params, mean, square = carried
        temperature = HOT * (COLD / HOT) ** (i / STEPS)
        rate = RATE * jnp.minimum(1, 2 - 2 * i / STEPS)
        gradient, seen = jax.grad(objective, has_aux=True)(params, temperature, price, x, y)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)

        def moved(param, m, s):
            return param - rate * m / (1 - 0.9 ** (i + 1)) / (
                jnp.sqrt(s / (1 - 0.999 ** (i + 1))) + 1e-8
            )

        return (jax.tree.map(moved, params, mean, square), mean, square), seen

    (params, _, _), history = jax.lax.scan(step, (params, nothing, nothing), jnp.arange(STEPS))
    return params, history


train_all = jax.jit(jax.vmap(jax.vmap(train, (0, None, None)), (None, 0, 0)))


# --- the judge: the same for every contender ------------------------------------------


def judge(chosen, train, test):
    (x, y), (xt, yt) = train, test
    model = LogisticRegression(max_iter=1000).fit(x[:, chosen], y)
    return model.score(xt[:, chosen], yt)


def run():
    data = load_breast_cancer()
    x, y = data.data, 2.0 * data.target - 1
    splits = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=REPEATS, random_state=SEED)
    parts = []
    for train_rows, test_rows in splits.split(x, y):
        mean, scale = x[train_rows].mean(axis=0), x[train_rows].std(axis=0)
        parts.append([((x[i] - mean) / scale, y[i]) for i in (train_rows, test_rows)])
    rows = min(len(train[0]) for train, _ in parts)  # of one length, to be trained side by side
    stacked = [
        jnp.asarray(np.stack([train[i][:rows] for train, _ in parts]), jnp.float32) for i in (0, 1)
    ]
    params, (k, masks) = jax.block_until_ready(train_all(jnp.array(PRICES), *stacked))
    params, k, masks = jax.tree.map(np.asarray, (params, k, masks))

    accuracy = {"learned": [], "SelectKBest": []}  # of each split and price
    for i, (train_part, test_part) in enumerate(parts):
        found, reference = [], []
        for j in range(len(PRICES)):
            count = max(1, round(float(k[i, j, -1])))
            learned = np.argsort(-params["scores"][i, j], kind="stable")[:count]
            best = SelectKBest(k=count).fit(*train_part).get_support(indices=True)
            found.append(judge(learned, train_part, test_part))
            reference.append(judge(best, train_part, test_part))
        accuracy["learned"].append(found)
        accuracy["SelectKBest"].append(reference)
    everything = [judge(np.arange(x.shape[1]), *part) for part in parts]
    return data.feature_names, k, masks, {a: np.array(v) for a, v in accuracy.items()}, everything


def print_results(k, accuracy, everything):
    learned, best = accuracy["learned"], accuracy["SelectKBest"]
    print("price    k learned      test accuracy   SelectKBest    ahead  behind")
    print("         mean (range)                   with that k    in splits")
    for j, price in enumerate(PRICES):
        last = k[:, j, -1]
        print(
            f"{price:<8g}{last.mean():5.1f} ({last.min():.1f}-{last.max():.1f})".ljust(26)
            + f"{learned[:, j].mean():11.1%}{best[:, j].mean():14.1%}"
            f"{(learned[:, j] > best[:, j]).sum():9d}{(learned[:, j] < best[:, j]).sum():8d}"
        )
    print("all 30 measurements".ljust(26) + f"{np.mean(everything):11.1%}")


# --- the figure -----------------------------------------------------------------------


def draw(path, names, k, masks, accuracy, everything):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072B2", "#D55E00", "#595959"
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(1, 3, figsize=(16.5, 5.4), layout="constrained")
    steps = np.arange(STEPS)

    ax = axes[0]
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(PRICES)))
    for j, (price, shade) in enumerate(zip(PRICES, shades, strict=True)):
        ax.plot(steps, k[:, j].T, color=shade, lw=0.6, alpha=0.3)
        middle = np.median(k[:, j], axis=0)
        ax.plot(steps, middle, color=shade, lw=2.2)
        ax.text(STEPS + 8, middle[-1], f"{price:g}", color=shade, va="center", fontsize=10)
    top = np.median(k[:, 0, -1])
    ax.text(STEPS + 8, top + 1.2, "price", color=grey, va="center", fontsize=10)
    ax.set(
        title="k over training, by the price of a measurement",
        xlabel=f"step (the temperature falls from {HOT:g} to {COLD:g})",
        ylabel="k (thin: each split; thick: their median)",
        xlim=(0, STEPS * 1.13),
        ylim=(0, None),
        xticks=range(0, STEPS + 1, 100),
    )

    ax = axes[1]
    mask = masks[0, SHOWN]
    count = max(1, round(float(k[0, SHOWN, -1])))
    order = np.argsort(-mask[-1], kind="stable")
    ends = mask[-1, order[:count]].copy()
    ends[np.argsort(-ends, kind="stable")] = np.linspace(1.0, 1.0 - 0.055 * (count - 1), count)
    for rank, i in enumerate(order[::-1]):
        top = rank >= len(order) - count
        ax.plot(
            steps, mask[:, i], color=blue if top else "0.75", lw=2 if top else 1, zorder=2 + top
        )
    for i, height in zip(order[:count], ends, strict=True):
        ax.annotate(
            names[i],
            (STEPS, mask[-1, i]),
            (STEPS + 12, height),
            color=blue,
            va="center",
            fontsize=9,
        )
    ax.set(
        title=f"The mask, first split, price {PRICES[SHOWN]:g}",
        xlabel="step",
        ylabel=f"entry of the mask (blue: the {count} highest scores)",
        xlim=(0, STEPS * 1.5),
        ylim=(-0.02, 1.05),
        xticks=range(0, STEPS + 1, 100),
    )

    ax = axes[2]
    for (name, values), colour in zip(accuracy.items(), (blue, orange), strict=True):
        at = k[..., -1].mean(axis=0)
        mean, error = (
            100 * values.mean(axis=0),
            100 * values.std(axis=0, ddof=1) / len(values) ** 0.5,
        )
        label = "scores and k learned" if name == "learned" else "SelectKBest, the same numbers"
        ax.errorbar(at, mean, error, color=colour, marker="o", lw=2, capsize=3, label=label)
    ax.axhline(100 * np.mean(everything), color=grey, lw=1, ls=":")
    ax.text(
        k[..., -1].mean(axis=0).max(),
        100 * np.mean(everything) + 0.15,
        "all 30",
        color=grey,
        ha="right",
    )
    ax.set(
        title="The same classifier on what was chosen",
        xlabel="k at the end, mean of the splits",
        ylabel="test accuracy in %, with its standard error",
    )
    ax.legend(frameon=False, loc="lower right")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "output" / "jax_feature_selection.png"
    parser.add_argument("--out", type=Path, default=default, help="where the figure goes")
    args = parser.parse_args()

    start = time.perf_counter()
    names, k, masks, accuracy, everything = run()
    print_results(k, accuracy, everything)
    draw(args.out, names, k, masks, accuracy, everything)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
