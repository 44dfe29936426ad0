"""Which images show a digit that the classifier has never seen?

A softmax classifier for scikit-learn's digits is trained without one of the ten classes. It is then
shown test images of the nine classes it knows and all images of the one it does not, and every
image gets a score that should tell the two apart: the energy of its logits, -logsumexp, and, for
comparison, how far its largest probability is from 1. Ten classes are left out one after the other.

Both scores are functions of the same logits. The probabilities forget how large the logits are
together; the energy is what they forget. Which of the two is better is an experiment, not a
theorem: the table is what comes out, whichever wins.

    python examples/energy_score.py [--out FIGURE.png]
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

SEED = 0
STEPS = 300
LEARNING_RATE = 0.5
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-3


# --- a softmax classifier, trained through log_softmax ----------------------------------


def train(x, y, classes):
    """Multinomial logistic regression by gradient descent with momentum."""
    onehot = (y[:, None] == classes).astype(float)
    weights = np.zeros((x.shape[1] + 1, len(classes)))
    step = np.zeros_like(weights)
    for _ in range(STEPS):
        log_p, vjp = stk.log_softmax.vjp(logits(x, weights))
        # The loss is -mean of log_p at the labels; its gradient in log_p is -onehot / len(y).
        d_logits = vjp(-onehot / len(y)).x
        gradient = np.vstack([x.T @ d_logits, d_logits.sum(axis=0)])
        gradient[:-1] += WEIGHT_DECAY * weights[:-1]
        step = MOMENTUM * step - LEARNING_RATE * gradient
        weights += step
    return weights, -np.sum(log_p * onehot) / len(y)


def logits(x, weights):
    return x @ weights[:-1] + weights[-1]


# --- one class left out after the other -------------------------------------------------


def scores_of(z):
    """High where an image looks unknown, for each method."""
    return {
        "energy": stk.energy_score(z),
        "probability": 1 - stk.softmax(z).max(axis=1),
    }


def run():
    images, labels = load_digits(return_X_y=True)
    images = images / 16.0
    results = []
    for unknown in range(10):
        classes = np.delete(np.arange(10), unknown)
        known = labels != unknown
        x, xt, y, yt = train_test_split(
            images[known], labels[known], test_size=0.5, stratify=labels[known], random_state=SEED
        )
        mean = x.mean(axis=0)
        weights, loss = train(x - mean, y, classes)
        inside, outside = logits(xt - mean, weights), logits(images[~known] - mean, weights)
        accuracy = np.mean(classes[inside.argmax(axis=1)] == yt)
        truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
        both = scores_of(np.concatenate([inside, outside]))
        auroc = {name: roc_auc_score(truth, score) for name, score in both.items()}
        results.append(
            {
                "unknown": unknown,
                "loss": loss,
                "accuracy": accuracy,
                "auroc": auroc,
                "truth": truth,
                "scores": both,
            }
        )
    return results


def print_results(results):
    print("AUROC of telling test images of nine known digits from images of an unknown one")
    print("(0.5: no better than chance, 1: always right)\n")
    print("unknown digit   test accuracy on the others   energy   largest probability")
    for r in results:
        a = r["auroc"]
        print(
            f"{r['unknown']:>13}{r['accuracy']:>30.1%}{a['energy']:>9.3f}{a['probability']:>22.3f}"
        )
    mean = {name: np.mean([r["auroc"][name] for r in results]) for name in results[0]["auroc"]}
    accuracy = np.mean([r["accuracy"] for r in results])
    print(f"{'mean':>13}{accuracy:>30.1%}{mean['energy']:>9.3f}{mean['probability']:>22.3f}")
    ahead = sum(r["auroc"]["energy"] > r["auroc"]["probability"] for r in results)
    print(f"\nthe energy is ahead for {ahead} of {len(results)} digits")


# --- the figure -------------------------------------------------------------------------


def draw(path, results):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072B2", "#D55E00", "#595959"
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(1, 3, figsize=(14.5, 4.6), layout="constrained")
    figure.suptitle("Recognising a digit that the classifier was not trained on", fontsize=15)

    # Neither the best nor the worst case: the digit in the middle of the differences.
    by_difference = sorted(results, key=lambda r: r["auroc"]["energy"] - r["auroc"]["probability"])
    shown = by_difference[len(results) // 2]
    panels = [
        ("energy", "energy, $-$logsumexp of the logits"),
        ("probability", "1 $-$ largest probability"),
    ]
    for ax, (name, label) in zip(axes, panels, strict=False):
        score, truth = shown["scores"][name], shown["truth"]
        bins = np.linspace(score.min(), score.max(), 40)
        for value, colour, text in (
            (0, blue, "the nine known digits"),
            (1, orange, f"the unknown {shown['unknown']}"),
        ):
            ax.hist(score[truth == value], bins, density=True, color=colour, alpha=0.55, label=text)
        ax.set(title=f"AUROC {shown['auroc'][name]:.3f}", xlabel=label, yticks=[])
        ax.legend(frameon=False)
    axes[0].set_ylabel("share of images")

    ax = axes[2]
    digits = [r["unknown"] for r in results]
    for name, colour, marker, label in (
        ("energy", blue, "o", "energy"),
        ("probability", orange, "s", "largest probability"),
    ):
        values = [r["auroc"][name] for r in results]
        ax.plot(digits, values, marker, color=colour, ms=8, label=label)
        ax.axhline(np.mean(values), color=colour, lw=1, ls="--")
    for r in results:
        ax.plot([r["unknown"]] * 2, list(r["auroc"].values()), color=grey, lw=1, zorder=0)
    ax.set(
        title="Each digit left out in turn (dashed: mean)",
        xlabel="unknown digit",
        ylabel="AUROC",
        xticks=digits,
    )
    ax.legend(frameon=False, loc="best")
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "output" / "energy_score.png"
    parser.add_argument("--out", type=Path, default=default, help="where the figure goes")
    args = parser.parse_args()

    start = time.perf_counter()
    # Matrices this small are faster on one thread of the linear algebra library.
    with threadpool_limits(limits=1, user_api="blas"):
        results = run()
    print_results(results)
    draw(args.out, results)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
