"""Which 16 of the 64 pixels of a digit are worth reading?

Every image of scikit-learn's digits has 8 x 8 pixels. `SoftSelectKBest` gives each pixel a score;
``thretopk`` makes of them a soft mask p: 64 numbers between 0 and 1 that sum to 16. The mask
multiplies the pixels, a linear classifier reads what is left, and one gradient trains scores and
classifier together. While the temperature falls, p becomes a choice of exactly 16 pixels.

The choice is then judged like any other: a new classifier is trained on those 16 pixels alone and
tested on images that nobody has seen, beside classifiers of the same kind on all 64 pixels, on 16
random ones, and on the 16 that scikit-learn's selectors pick.

    python examples/quickstart.py [--out FIGURE.png]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.feature_selection import RFE, SelectKBest, f_classif, mutual_info_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from softtopk_nb.sklearn import SoftSelectKBest

K = 16  # pixels to read
SEED = 0
FOLDS = 5
RANDOM_DRAWS = 4  # random masks per fold


def classifier():
    return LogisticRegression(max_iter=2000)


def mutual_information(x, y):
    return mutual_info_classif(x, y, random_state=SEED)


SELECTORS = {
    "learned": lambda: SoftSelectKBest(K, random_state=SEED),
    "rfe": lambda: RFE(classifier(), n_features_to_select=K),
    "f_classif": lambda: SelectKBest(f_classif, k=K),
    "mutual_info": lambda: SelectKBest(mutual_information, k=K),
}


# --- five folds: every image is a test image once -------------------------------------


def run():
    """The images; accuracies, chosen pixels and paths of the fits, a list entry for each fold."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(SEED)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(images, labels)
    results = {name: [] for name in ("all", *SELECTORS, "random")}
    masks, paths = {name: [] for name in SELECTORS}, []
    print(f"test accuracy with {K} pixels")
    for fold, (train, test) in enumerate(folds):

        def judge(pixels, train=train, test=test):
            """Test accuracy of a classifier that reads these pixels alone."""
            model = make_pipeline(StandardScaler(), classifier())
            model.fit(images[train][:, pixels], labels[train])
            return model.score(images[test][:, pixels], labels[test])

        scaled = StandardScaler().fit_transform(images[train])
        for name, make in SELECTORS.items():
            selector = make().fit(scaled, labels[train])
            masks[name].append(selector.get_support())
            results[name].append(judge(masks[name][-1]))
            if name == "learned":
                paths.append(selector.path_)
        results["all"].append(judge(np.ones(64, bool)))
        for _ in range(RANDOM_DRAWS):
            results["random"].append(judge(rng.choice(64, K, replace=False)))
        found = (f"{name} {results[name][-1]:.1%}" for name in SELECTORS)
        print(f"  fold {fold + 1}: {', '.join(found)}", flush=True)
    return images / 16.0, results, masks, paths


LABELS = {
    "all": "all 64 pixels",
    "learned": f"{K} by SoftSelectKBest",
    "rfe": f"{K} by RFE",
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
    print(f"SoftSelectKBest ahead of SelectKBest(f_classif) in {ahead} of {FOLDS} folds")

    print("\nfold 1    SoftSelectKBest    SelectKBest(f_classif)")
    for left, right in zip(
        masks["learned"][0].reshape(8, 8), masks["f_classif"][0].reshape(8, 8), strict=True
    ):
        rows = ["  ".join(" ") + " ".join("#" if v else "." for v in r) for r in (left, right)]
        print(f"         {rows[0]}   {rows[1]}")


# --- the figure -----------------------------------------------------------------------


def draw(path, images, results, masks, paths):
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
        (f"{K} pixels of SoftSelectKBest", chosen["learned"], blue),
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

    # each pixel's weight while the temperature falls
    ax = axes[1, 0]
    temperature, p = paths[0].temperature, paths[0].p
    for weight, is_chosen in zip(p.T, chosen["learned"], strict=True):
        style = {"color": blue, "lw": 1.4} if is_chosen else {"color": "0.6", "lw": 0.7}
        ax.plot(temperature, weight, **style)
    ax.set(
        title="The weights of the 64 pixels as it cools",
        xscale="log",
        xlabel="temperature (training runs from left to right)",
        ylabel="p (blue: the 16 that are chosen)",
        ylim=(-0.03, 1.03),
    )
    ax.invert_xaxis()
    ticks = [30, 3, 0.3, 0.03, 0.003]
    middle = np.sqrt(temperature[0] * temperature[-1])
    ax.axvline(middle, color=grey, lw=1, ls=":")
    on_white = {"boxstyle": "square,pad=0.1", "fc": "white", "ec": "none", "alpha": 0.8}
    ax.text(0.85 * middle, 0.9, "scores stand still", color=grey, va="center", bbox=on_white)
    ax.set_xticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()

    # p turning into the hard mask
    ax = axes[1, 1]
    rank, wanted = np.arange(1, 65), (20, 7, 3, 1, 0.1, 0.003)
    colours = plt.get_cmap("viridis")(np.linspace(0.88, 0.0, len(wanted)))
    for t, colour in zip(wanted, colours, strict=True):
        at = np.abs(np.log(temperature / t)).argmin()
        style = {"color": colour, "lw": 2.2, "marker": ".", "markersize": 5}
        ax.plot(rank, np.sort(p[at])[::-1], **style, label=f"{temperature[at]:.2g}")
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
        "learned": f"{K} SoftSelectKBest",
        "rfe": f"{K} RFE",
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
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        # Some pixels at the border are always 0; f_classif says so and ranks them last.
        warnings.filterwarnings("ignore", module="sklearn")
        images, results, masks, paths = run()
    print_results(results, masks)
    draw(args.out, images, results, masks, paths)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
