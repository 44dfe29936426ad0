"""Which 16 of the 64 pixels of a digit are worth reading?

Every image of scikit-learn's digits has 8 x 8 pixels. One score per pixel goes through
``thretopk``, which answers with a soft mask p: 64 numbers between 0 and 1 that sum to 16. The mask
multiplies the pixels, a softmax classifier reads what is left, and one gradient trains scores and
classifier together. While the temperature falls, p becomes a choice of exactly 16 pixels.

The choice is then judged like any other: a new classifier is trained on those 16 pixels alone and
tested on images that nobody has seen, beside classifiers of the same kind with the same training
on all 64 pixels, on 16 random ones, and on the 16 that ``SelectKBest`` picks.

    python examples/quickstart.py [--out FIGURE.png]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.feature_selection import SelectKBest, f_classif, mutual_info_classif
from sklearn.model_selection import StratifiedKFold, train_test_split
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

K = 16  # pixels to read
SEED = 0
FOLDS = 5
RANDOM_DRAWS = 4  # random masks per fold

# Settings, the same for every fold and every contender.
LEARNING_RATE = 0.05
WEIGHT_DECAY = 1e-3
FIT_STEPS = 500
SEARCH_STEPS = 1000
HOT, COLD = 30.0, 0.003  # the temperature falls from one to the other, geometrically


# --- a softmax classifier and its gradient --------------------------------------------


def class_probabilities(x, weights, bias):
    logits = x @ weights + bias
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def cross_entropy(prob, y):
    return -np.log(prob[np.arange(len(y)), y] + 1e-300).mean()


def accuracy(x, y, weights, bias):
    return float(np.mean((x @ weights + bias).argmax(axis=1) == y))


class Adam:
    """Adam (Kingma and Ba, 2015) on a list of arrays, in place."""

    def __init__(self, params):
        self.params = params
        self.m = [np.zeros_like(q) for q in params]
        self.v = [np.zeros_like(q) for q in params]
        self.t = 0

    def step(self, grads, rate=LEARNING_RATE):
        self.t += 1
        for q, g, m, v in zip(self.params, grads, self.m, self.v, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            q -= rate * (m / (1 - 0.9**self.t)) / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-8)


# --- the main job: learn the pixels ---------------------------------------------------


def learn_pixels(train, valid, report=None):
    """Train pixel scores and a classifier together; return the scores and what happened."""
    x, y = train
    xv, yv = valid
    onehot = np.eye(10)[y]
    scores = np.zeros(x.shape[1])  # nothing is preferred at the start: p = 16/64 everywhere
    weights, bias = np.zeros((x.shape[1], 10)), np.zeros(10)
    adam_scores, adam_classifier = Adam([scores]), Adam([weights, bias])
    history = []

    for step in range(SEARCH_STEPS + 1):
        temperature = HOT * (COLD / HOT) ** (step / SEARCH_STEPS)

        # forward: scores -> p -> masked pixels -> class probabilities
        p, vjp = stk.thretopk.vjp(scores, K, curve="laplace", temperature=temperature)
        xm = x * p
        prob = class_probabilities(xm, weights, bias)

        if step % 20 == 0:
            hard = stk.hardtopk(scores, K)
            entry = {
                "temperature": temperature,
                "loss": cross_entropy(prob, y),
                "soft": accuracy(xv * p, yv, weights, bias),
                "hard": accuracy(xv * hard, yv, weights, bias),
                "p": p.copy(),
            }
            history.append(entry)
            if report and step % 200 == 0:
                report(entry)

        # backward: the same road in the other direction; vjp takes the step through thretopk
        d_logits = (prob - onehot) / len(y)
        d_p = ((d_logits @ weights.T) * x).sum(axis=0)
        d_scores = vjp(d_p).x
        d_weights = xm.T @ d_logits + WEIGHT_DECAY * weights
        adam_classifier.step([d_weights, d_logits.sum(axis=0)])

        # The scores learn ever more slowly and stand still from half-time on. From there cooling
        # alone decides between the last few pixels; scores still on the move would make up for it.
        adam_scores.step([d_scores], LEARNING_RATE * max(0.0, 1.0 - 2.0 * step / SEARCH_STEPS))

    return scores, history


# --- the judge: the same for every contender ------------------------------------------


def judge(pixels, train, valid, test):
    """Test accuracy of a classifier trained on these pixels; `valid` says when to stop."""
    (x, y), (xv, yv), (xt, yt) = ((a[:, pixels], b) for a, b in (train, valid, test))
    onehot = np.eye(10)[y]
    weights, bias = np.zeros((x.shape[1], 10)), np.zeros(10)
    adam = Adam([weights, bias])
    best_loss, best = np.inf, None
    for step in range(1, FIT_STEPS + 1):
        d_logits = (class_probabilities(x, weights, bias) - onehot) / len(y)
        adam.step([x.T @ d_logits + WEIGHT_DECAY * weights, d_logits.sum(axis=0)])
        if step % 10 == 0:
            loss = cross_entropy(class_probabilities(xv, weights, bias), yv)
            if loss < best_loss:
                best_loss, best = loss, (weights.copy(), bias.copy())
    return accuracy(xt, yt, *best)


def select_k_best(score, train):
    with warnings.catch_warnings():
        # Some pixels at the border are always 0; f_classif says so and ranks them last.
        warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="sklearn")
        return SelectKBest(score, k=K).fit(*train).get_support()


def mutual_information(x, y):
    return mutual_info_classif(x, y, random_state=SEED)


# --- five folds: every image is a test image once -------------------------------------


def run():
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    rng = np.random.default_rng(SEED)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(images, labels)

    results = {name: [] for name in ("all", "learned", "f_classif", "mutual_info", "random")}
    masks = {name: [] for name in ("learned", "f_classif", "mutual_info")}
    histories = []
    for fold, (rest, test) in enumerate(folds):
        train, valid = train_test_split(
            rest, test_size=0.25, stratify=labels[rest], random_state=SEED
        )
        mean = images[train].mean(axis=0)
        parts = [(images[i] - mean, labels[i]) for i in (train, valid, test)]
        if fold == 0:
            sizes = " / ".join(str(len(i)) for i in (train, valid, test))
            print(f"{FOLDS} folds, train / validation / test = {sizes} images\n")
            print("fold 1: learning the pixels (accuracy on validation images)")
            print("  temperature    loss   soft mask   hard mask   undecided pixels")

        def report(e):
            undecided = int(np.sum((e["p"] > 0.01) & (e["p"] < 0.99)))
            print(
                f"  {e['temperature']:11.3f} {e['loss']:7.3f} {e['soft']:11.1%} {e['hard']:11.1%}"
                f" {undecided:18d}",
                flush=True,
            )

        scores, history = learn_pixels(*parts[:2], report if fold == 0 else None)
        histories.append(history)
        masks["learned"].append(stk.hardtopk(scores, K) == 1.0)
        masks["f_classif"].append(select_k_best(f_classif, parts[0]))
        masks["mutual_info"].append(select_k_best(mutual_information, parts[0]))

        for name, chosen in masks.items():
            results[name].append(judge(chosen[-1], *parts))
        results["all"].append(judge(np.ones(64, bool), *parts))
        for _ in range(RANDOM_DRAWS):
            draw = np.isin(np.arange(64), rng.choice(64, K, replace=False))
            results["random"].append(judge(draw, *parts))
        print(
            f"{'' if fold else chr(10)}fold {fold + 1}: test accuracy with {K} pixels: "
            f"learned {results['learned'][-1]:.1%}, SelectKBest {results['f_classif'][-1]:.1%}",
            flush=True,
        )
    return images, results, masks, histories


LABELS = {
    "all": "all 64 pixels",
    "learned": f"{K} learned with thretopk",
    "f_classif": f"{K} by SelectKBest(f_classif)",
    "mutual_info": f"{K} by SelectKBest(mutual_info)",
    "random": f"{K} at random",
}


def print_results(results, masks):
    print("\npixels read                      test accuracy  std dev   runs")
    for name, values in results.items():
        print(
            f"{LABELS[name]:<32} {np.mean(values):>13.1%}   {np.std(values, ddof=1):>6.1%}"
            f"   {len(values):>4}"
        )
    ahead = sum(a > b for a, b in zip(results["learned"], results["f_classif"], strict=True))
    print(f"learned pixels ahead of SelectKBest(f_classif) in {ahead} of {FOLDS} folds")

    print("\nfold 1    learned            SelectKBest(f_classif)")
    for left, right in zip(
        masks["learned"][0].reshape(8, 8), masks["f_classif"][0].reshape(8, 8), strict=True
    ):
        rows = ["  ".join(" ") + " ".join("#" if v else "." for v in r) for r in (left, right)]
        print(f"         {rows[0]}   {rows[1]}")


# --- the figure -----------------------------------------------------------------------


def draw(path, images, results, masks, histories):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072B2", "#D55E00", "#595959"
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(2, 3, figsize=(14.5, 9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.05)
    figure.suptitle(
        f"Reading {K} of 64 pixels: a choice learned by gradient descent through a soft top-k",
        fontsize=15,
    )

    # first row: what the pixels are
    mean = images.mean(axis=0).reshape(8, 8)
    chosen = {"learned": masks["learned"][0], "f_classif": masks["f_classif"][0]}
    panels = [
        ("The mean of all digits", None, grey),
        (f"{K} pixels learned with thretopk", chosen["learned"], blue),
        (f"{K} pixels of SelectKBest (f_classif)", chosen["f_classif"], orange),
    ]
    for ax, (title, mask, colour) in zip(axes[0], panels, strict=True):
        ax.imshow(mean, cmap="gray_r", vmin=0, vmax=1.0 if mask is None else 2.0)
        if mask is not None:
            for index in np.flatnonzero(mask):
                row, column = divmod(int(index), 8)
                ax.add_patch(
                    plt.Rectangle(
                        (column - 0.44, row - 0.44), 0.88, 0.88, facecolor=colour, alpha=0.85
                    )
                )
        ax.set(title=title, xticks=[], yticks=[])
    axes[0, 0].set_xlabel("darker = more ink")
    axes[0, 1].set_xlabel("chosen together, for the classifier (first fold)")
    axes[0, 2].set_xlabel("scored one by one (first fold)")

    # accuracy against temperature
    ax = axes[1, 0]
    temperature = [e["temperature"] for e in histories[0]]
    for key, colour, style, label in (
        ("soft", blue, "-", "soft mask p"),
        ("hard", orange, "--", "hard mask in its place"),
    ):
        curves = 100 * np.array([[e[key] for e in h] for h in histories])
        ax.fill_between(
            temperature, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, lw=0
        )
        ax.plot(temperature, curves.mean(axis=0), style, color=colour, lw=2.2, label=label)
    ax.set(
        title="Soft and hard mask meet as it cools",
        xscale="log",
        xlabel="temperature (training runs from left to right)",
        ylabel="validation accuracy in %",
        ylim=(75, 100),
    )
    ax.invert_xaxis()
    ticks = [30, 3, 0.3, 0.03, 0.003]
    ax.axvline(np.sqrt(HOT * COLD), ymin=0.3, color=grey, lw=1, ls=":")
    ax.text(np.sqrt(HOT * COLD) * 0.85, 98.7, "scores\nstand still", color=grey, va="center")
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.legend(loc="lower right", title="mean and range over five folds", frameon=False)

    # p turning into the hard mask
    ax = axes[1, 1]
    rank = np.arange(1, 65)
    shown = [
        min(histories[0], key=lambda e: abs(np.log(e["temperature"] / t)))
        for t in (20, 7, 3, 1, 0.1, COLD)
    ]
    colours = plt.get_cmap("viridis")(np.linspace(0.88, 0.0, len(shown)))
    for e, colour in zip(shown, colours, strict=True):
        ax.plot(
            rank,
            np.sort(e["p"])[::-1],
            color=colour,
            lw=2.2,
            marker=".",
            markersize=5,
            label=f"{e['temperature']:.2g}",
        )
    ax.axvline(K + 0.5, color=grey, lw=1, ls=":")
    ax.text(K + 1.2, 0.93, f"{K} pixels", color=grey, va="center")
    ax.set(
        title="p becomes a 0/1 mask; its sum is always 16",
        xlabel="pixels, sorted by p",
        ylabel="p",
        xticks=[1, 16, 32, 48, 64],
        ylim=(-0.03, 1.03),
    )
    ax.legend(title="temperature", loc="upper right", frameon=False, bbox_to_anchor=(1, 0.9))

    # the comparison
    ax = axes[1, 2]
    names = list(results)[::-1]
    for position, name in enumerate(names):
        values = 100 * np.array(results[name])
        colour = {"learned": blue, "f_classif": orange}.get(name, grey)
        ax.plot(values, np.full(len(values), position), "o", color=colour, alpha=0.35, ms=6, mew=0)
        ax.plot(values.mean(), position, "D", color=colour, ms=8)
        ax.annotate(
            f"{values.mean():.1f}",
            (values.mean(), position),
            (0, 11),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontweight="bold",
        )
    short = {
        "all": "all 64",
        "learned": f"{K} learned",
        "f_classif": f"{K} SelectKBest\n(f_classif)",
        "mutual_info": f"{K} SelectKBest\n(mutual_info)",
        "random": f"{K} random",
    }
    ax.set(
        title="Same classifier, same training",
        xlabel="test accuracy in % (dots: runs; diamond: mean)",
        yticks=range(len(names)),
        yticklabels=[short[name] for name in names],
        ylim=(-0.5, len(names) - 0.4),
    )
    ax.grid(axis="x", color="0.9")
    ax.set_axisbelow(True)
    for ax in axes[1]:
        ax.spines[["top", "right"]].set_visible(False)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "output" / "quickstart.png"
    parser.add_argument("--out", type=Path, default=default, help="where the figure goes")
    args = parser.parse_args()

    start = time.perf_counter()
    # Matrices this small are faster on one thread of the linear algebra library, above all on a
    # busy machine; the same number of threads everywhere also means the same rounding.
    with threadpool_limits(limits=1, user_api="blas"):
        images, results, masks, histories = run()
    print_results(results, masks)
    draw(args.out, images, results, masks, histories)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
