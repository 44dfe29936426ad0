"""
Robust regression with trimmed least squares
============================================

Least squares minimises the sum of all squared residuals, so a few wrong targets spoil the fit.
Trimmed least squares minimises the sum of the h smallest, and leaves the largest to the outliers.
``thretopk(-residuals**2, h)`` is its smooth form: weights between 0 and 1 that sum to h, near 1 for
the points that fit and near 0 for the others.

The data are scikit-learn's diabetes, 442 patients with 10 measurements. A part of the training
targets is spoiled; the test targets are not.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import HuberRegressor, LinearRegression, RANSACRegressor
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

SEEDS, SHARES = 10, (0.0, 0.1, 0.2, 0.3, 0.4)
threadpool_limits(limits=1, user_api="blas")  # the matrices are small: one thread is faster
X, y = load_diabetes(return_X_y=True)
X, y = X / X.std(axis=0), (y - y.mean()) / y.std()

# %%
# Alternating between weights and fit
# -----------------------------------
# Given the weights, the fit is weighted least squares; given the fit, the weights are a call of
# ``thretopk``. At a fixed temperature each round lowers the smooth sum of the h smallest squares,
# ``-thretopk.potential(-residuals**2, h)``, or leaves it: the potential is convex, so the
# weighted squares bound it from above. The temperature falls in units of the median square.


class TrimmedRegression:
    def __init__(self, share):
        self.share = share

    def fit(self, X, y):
        weights = np.ones(len(y))
        for temperature in np.geomspace(1.0, 0.01, 30):
            self.model = LinearRegression().fit(X, y, sample_weight=weights)
            squares = (y - self.model.predict(X)) ** 2
            temperature *= np.median(squares)
            weights = stk.thretopk(-squares, self.share * len(y), temperature=temperature)
        return self

    def predict(self, X):
        return self.model.predict(X)


# %%
# Baselines
# ---------
# ``HuberRegressor`` bounds the influence of each residual. ``RANSAC`` fits random samples and
# keeps the fit that most points agree with; its sample size and threshold are the best of four
# settings. The outliers are of two kinds: wrong targets, and leverage points, whose two most
# predictive measurements are wrong as well, so that they pull the fit towards themselves.

models = {
    "least squares": LinearRegression(),
    "Huber": HuberRegressor(max_iter=1000),
    "RANSAC": RANSACRegressor(min_samples=20, residual_threshold=2.0, max_trials=300),
    "trimmed, h = 65 %": TrimmedRegression(0.65),
    "trimmed, h = 55 %": TrimmedRegression(0.55),
}


def spoil(X, y, share, kind, rng):
    X, y, bad = X.copy(), y.copy(), rng.permutation(len(y)) < share * len(y)
    if kind == "wrong targets":
        y[bad] += rng.normal(8, 2, bad.sum())
    else:
        X[np.ix_(bad, [2, 8])] += 5
        y[bad] = rng.normal(-5, 1, bad.sum())
    return X, y


def scores(model, share, kind):
    """Return R2 on clean test data, for each seed."""
    found = []
    for seed in range(SEEDS):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=seed)
        if isinstance(model, RANSACRegressor):
            model.set_params(random_state=seed)
        model.fit(*spoil(X_train, y_train, share, kind, np.random.default_rng(seed)))
        found.append(1 - np.mean((model.predict(X_test) - y_test) ** 2) / y_test.var())
    return np.mean(found), np.std(found, ddof=1)


# %%
# Result
# ------

colors = dict(zip(models, ("#8a9099", "#E69F00", "#009E73", "#0072B2", "#56B4E9"), strict=True))
for kind in ("wrong targets", "leverage points"):
    figure, ax = plt.subplots(figsize=(5, 4), layout="constrained")
    print(f"{kind}: R2 on clean test data, mean ± standard deviation over {SEEDS} splits")
    print(" " * 18 + "".join(f"{share:13.0%} " for share in SHARES))
    for offset, (name, model) in enumerate(models.items()):
        mean, deviation = np.transpose([scores(model, share, kind) for share in SHARES])
        place = 100 * np.array(SHARES) + 0.5 * (offset - 2)
        ax.errorbar(place, mean, deviation, color=colors[name], marker="o", capsize=3, label=name)
        rows = zip(mean, deviation, strict=True)
        print(f"{name:18}" + "".join(f"{m:7.2f} ±{d:5.2f}" for m, d in rows))
    ax.set(title=kind.capitalize(), xlabel="outliers in % of the training data", ylim=(-1, 0.6))
    ax.set_ylabel("R2 on clean test data")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")

# %%
# With wrong targets the trimmed fit holds as long as the outliers are fewer than the points left
# out: up to 30 % with h = 65 %, and up to 40 % with h = 55 %. There least squares and Huber have
# failed, and RANSAC fails on some of the splits.
#
# **Where it loses.** Without outliers the trimmed fit is worse than least squares, since it
# leaves out good points, and up to 10 % of wrong targets Huber is better. The share h must be
# known roughly; with more outliers than it allows the fit fails. Leverage points break it from 10
# % on, and it is then worse than least squares: the first fit already goes through them, their
# residuals are small, and good points get the weight 0. None of the five resists leverage points.
# They have to be found in the measurements, before the regression.
