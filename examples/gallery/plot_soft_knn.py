"""
Soft nearest neighbours in a compiled loop
==========================================

How sure is a nearest-neighbour classifier of its digit?

The share of the k nearest neighbours that vote for a class is a forecast. With k = 2 it has three
values: 0, 1/2 and 1. A smooth top-k over minus the squared distances gives every neighbour a weight
in [0, 1], and the weights still sum to k. A neighbour that is nearly as close as the k-th counts
nearly as much. The Brier score, the mean squared error of the forecast, tells which is better.
"""

import matplotlib.pyplot as plt
import numpy as np
from numba import njit, prange
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_limits

from softtopk_nb import nopython as stkn

SEEDS, KS = 8, (1, 2, 3, 5, 8)
temperatures = np.array([1.0, 5, 10, 20, 30, 50, 80, 120, 180, 260, 400])
threadpool_limits(limits=1)  # for scikit-learn: the matrices are small
X, y = load_digits(return_X_y=True)

# %%
# A row function inside ``@njit``
# -------------------------------
# ``softtopk_nb.nopython`` has the operators as functions of one row, which compiled code can call.
# Each thread computes the distances of one image, weighs the neighbours, adds up their votes, and
# overwrites the row for the next image: the matrix of all distances never exists.


@njit
def squared_distance(a, b):
    """Return the squared distance of two images."""
    total = 0.0
    for pixel in range(len(a)):
        total += (a[pixel] - b[pixel]) ** 2
    return total


@njit(parallel=True)
def votes(train, labels, images, k, temperatures):
    """Return the share of the k nearest neighbours in each class, for each temperature."""
    n, share = len(train), np.zeros((len(temperatures), len(images), 10))
    for i in prange(len(images)):
        row, weight = np.empty(n), np.empty(n)
        for j in range(n):
            row[j] = -squared_distance(images[i], train[j])
        for t in range(len(temperatures)):
            stkn.thretopk(row, k, temperatures[t], stkn.laplace, weight)
            for j in range(n):
                share[t, i, labels[j]] += weight[j] / k
    return share


def brier(share, labels):
    """Return the Brier score: 0 is perfect, and 2 is the worst."""
    return np.mean(np.sum((share - np.eye(10)[labels]) ** 2, axis=-1), axis=-1)


# %%
# Baselines
# ---------
# ``KNeighborsClassifier`` with equal votes, with votes by 1 / distance, and with a Gaussian kernel
# on the 50 nearest. Every method has its k, its temperature or its bandwidth chosen by the Brier
# score of the same 5-fold cross-validation on the training part.


def gaussian(bandwidth):
    """Return a weight function; the distance of the nearest is taken off against underflow."""
    return lambda d: np.exp((d[:, :1] ** 2 - d**2) / bandwidth)


def score(model, images, labels):
    """Return minus the Brier score, as scikit-learn's searches maximise."""
    return -brier(model.predict_proba(images), labels)


baselines = {
    "Gaussian kernel": {"n_neighbors": [50], "weights": [gaussian(b) for b in (30, 50, 80, 120)]},
    "1 / distance": {"n_neighbors": KS, "weights": ["distance"]},
    "equal votes": {"n_neighbors": KS},
}
curves, results = [], {}
for seed in range(SEEDS):
    A, B, a, b = train_test_split(X, y, stratify=y, random_state=seed)
    folds = list(StratifiedKFold(5, shuffle=True, random_state=seed).split(A, a))
    inner = np.zeros((len(KS), len(temperatures)))
    for fit, held in folds:
        inner += [brier(votes(A[fit], a[fit], A[held], k, temperatures), a[held]) for k in KS]
    curves.append(np.array([brier(votes(A, a, B, k, temperatures), b) for k in KS]))
    results.setdefault("soft top-k", []).append(curves[-1].flat[inner.argmin()])
    for name, grid in baselines.items():
        model = GridSearchCV(KNeighborsClassifier(algorithm="brute"), grid, scoring=score, cv=folds)
        results.setdefault(name, []).append(-model.fit(A, a).score(B, b))

# %%
# Result
# ------

blue, orange, green = "#0072B2", "#D55E00", "#009E73"
left, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(2))
for k, color in ((2, blue), (5, green), (8, orange)):
    curve = 1000 * np.array(curves)[:, KS.index(k)]
    mean, deviation = curve.mean(axis=0), curve.std(axis=0, ddof=1)
    left.fill_between(temperatures, mean - deviation, mean + deviation, color=color, alpha=0.15)
    left.plot(temperatures, mean, color=color, label=f"k = {k}")
left.set(title="Soft top-k on test images", xlabel="temperature", xscale="log", xlim=(1, 260))
left.set(ylabel="Brier score × 1000", ylim=(10, 60))
left.legend(loc="upper left")
for position, name in enumerate(("1 / distance", "Gaussian kernel", "soft top-k")):
    less = 1000 * np.subtract(results[name], results["equal votes"])
    color = blue if name == "soft top-k" else orange
    deviation = less.std(ddof=1)
    right.errorbar(less.mean(), position, xerr=deviation, fmt="o", color=color, capsize=4)
    right.plot(less, np.full(SEEDS, position - 0.2), "|", color=color)
    right.text(0.02, position + 0.15, name, transform=right.get_yaxis_transform())
right.axvline(0, color="#8a9099", ls="--")
right.set(title="Beside equal votes, split by split", yticks=[], ylim=(-0.5, 2.5))
right.set(xlabel="difference of the Brier score × 1000 (below 0: better)")

print(f"Brier score, mean and standard deviation over {SEEDS} splits")
print("                 on test images         less equal votes' score")
for name, values in results.items():
    less = np.subtract(values, results["equal votes"])
    print(f"{name:15}{np.mean(values):8.4f} ±{np.std(values, ddof=1):7.4f}", end="")
    print(f"{np.mean(less):16.4f} ±{np.std(less, ddof=1):7.4f}" if less.any() else "")

# %%
# At a low temperature the vote is that of ``KNeighborsClassifier``. The score is lowest where the
# temperature is about 80, for k = 2: neighbours that are a little further away than the second
# still say something. With k = 8 the vote is spread already, and the temperature adds little.
#
# **Where it loses.** Above 100 far neighbours vote too, and the forecast is soon worse than that of
# any hard k: an untuned temperature is a risk that an untuned k is not. A Gaussian kernel needs no
# top-k, gives the same kind of weights and is as good here, or better: if the weights are all you
# need, use it. The smooth top-k is for the case in which k has a meaning, or has to be
# differentiated: the weights sum to k in every row, however dense its neighbourhood is.
