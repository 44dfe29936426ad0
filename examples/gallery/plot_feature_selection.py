"""
Feature selection with a learned mask
=====================================

Which 16 of the 64 pixels of a digit are worth reading?

Each pixel has a score. ``thretopk(scores, 16)`` turns the scores into a soft mask, 64 numbers
between 0 and 1 that sum to 16. The mask multiplies the pixels, a softmax classifier reads the
result, and one gradient trains scores and classifier together. The temperature falls during the
training, until the mask is hard.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.feature_selection import RFE, SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

K, SEEDS, STEPS = 16, 5, 600
temperatures = np.geomspace(30.0, 0.01, STEPS)
threadpool_limits(limits=1, user_api="blas")  # the matrices are small: one thread is faster
warnings.filterwarnings("ignore", "Features|invalid value")  # pixels white in every image
X, y = load_digits(return_X_y=True)
X = (X - X.mean(axis=0)) / 16

# %%
# Learning the mask
# -----------------
# ``thretopk.vjp`` returns the mask and its VJP function, which turns the gradient with respect to
# the mask into the gradient with respect to the scores. Adam updates the scores and the
# classifier. The rate of the scores falls to 0 in the first half; in the second half only the
# temperature changes the mask.


def adam(gradient, state, step):
    """Return one update of Adam at rate 1, and change the state."""
    state[0] += 0.1 * (gradient - state[0])
    state[1] += 0.001 * (gradient**2 - state[1])
    return state[0] / (1 - 0.9**step) / (np.sqrt(state[1] / (1 - 0.999**step)) + 1e-8)


def learn_mask(X, y, X_test, y_test):
    """Return the learned mask and, for the figure, the test accuracies during the training."""
    scores, weights, onehot = np.zeros(64), np.zeros((64, 10)), np.eye(10)[y]
    states = np.zeros((2, 64)), np.zeros((2, 64, 10))
    accuracies = []
    for step, temperature in enumerate(temperatures, start=1):
        mask, vjp = stk.thretopk.vjp(scores, K, temperature=temperature)
        hard = stk.hardtopk(scores, K)
        accuracies.append(
            [np.mean((X_test * m @ weights).argmax(1) == y_test) for m in (mask, hard)]
        )
        error = (stk.softmax(X * mask @ weights) - onehot) / len(y)
        to_mask = (error @ weights.T * X).sum(axis=0)
        weights -= 0.05 * adam((X * mask).T @ error + 1e-3 * weights, states[1], step)
        scores -= 0.05 * max(0, 1 - 2 * step / STEPS) * adam(vjp(to_mask).x, states[0], step)
    return hard > 0, accuracies


# %%
# Baselines
# ---------
# ``SelectKBest`` scores each pixel on its own. ``L1`` keeps the 16 pixels with the largest
# weights in a logistic regression with an L1 penalty. ``RFE`` fits a logistic regression, removes
# the 4 weakest pixels, and repeats. The same classifier judges every choice: a new logistic
# regression on the chosen pixels alone, tested on images that took no part in the choice.

baselines = {
    "RFE": RFE(LogisticRegression(max_iter=300), n_features_to_select=K, step=4),
    "L1": LogisticRegression(C=0.1, l1_ratio=1, solver="saga", tol=1e-2, max_iter=300),
    "SelectKBest": SelectKBest(f_classif, k=K),
}
histories, results = [], {}
for seed in range(SEEDS):
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=seed)
    learned, history = learn_mask(X_train, y_train, X_test, y_test)
    histories.append(history)
    choices = {"all 64 pixels": np.ones(64, bool), "thretopk": learned}
    for name, baseline in baselines.items():
        fit = baseline.fit(X_train, y_train)
        size = np.abs(fit.coef_).sum(axis=0) if name == "L1" else fit.get_support()
        choices[name] = stk.hardtopk(1.0 * size, K) > 0
    choices["random"] = np.random.default_rng(seed).permutation(64) < K
    for name, pixels in choices.items():
        model = LogisticRegression(max_iter=1000).fit(X_train[:, pixels], y_train)
        results.setdefault(name, []).append(model.score(X_test[:, pixels], y_test))

# %%
# Result
# ------

blue, orange, grey = "#0072B2", "#D55E00", "#8a9099"
left, middle, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(3))
left.imshow(load_digits().data.mean(axis=0).reshape(8, 8), cmap="gray_r", vmax=30)
row, column = np.divmod(np.flatnonzero(learned), 8)
left.plot(column, row, "s", color=blue, ms=14, alpha=0.8)
left.set(title=f"The {K} learned pixels (last seed)", xticks=[], yticks=[])
for curve, color, label in zip(
    100 * np.moveaxis(histories, 2, 0), (blue, orange), ("soft mask", "hard mask"), strict=True
):
    mean, deviation = curve.mean(axis=0), curve.std(axis=0, ddof=1)
    middle.fill_between(temperatures, mean - deviation, mean + deviation, color=color, alpha=0.2)
    middle.plot(temperatures, mean, color=color, label=label)
middle.set(title="Accuracy during the training", xscale="log", xlabel="temperature", ylim=(60, 100))
middle.set(xlim=(30, 0.01), ylabel="test accuracy in %")
middle.legend()
for position, (name, values) in enumerate(reversed(results.items())):
    color = {"thretopk": blue, "all 64 pixels": grey}.get(name, orange)
    deviation = 100 * np.std(values, ddof=1)
    right.errorbar(100 * np.mean(values), position, xerr=deviation, fmt="o", color=color, capsize=4)
right.set(title=f"Choices of {K} pixels", xlabel="test accuracy in %")
right.set_yticks(range(len(results)), reversed(results))

print(f"test accuracy, mean and standard deviation over {SEEDS} splits")
for name, values in results.items():
    print(f"{name:14}{np.mean(values):7.1%} ±{np.std(values, ddof=1):5.1%}")

# %%
# The soft and the hard mask agree once the temperature is low: nothing is lost in rounding. The
# learned pixels are better than those of ``SelectKBest`` and L1, since they are chosen together.
#
# **Where it loses.** All 64 pixels are better than any 16. ``RFE`` chooses together as well, and
# is as good: the difference is a fraction of the standard deviation, and with 8 pixels ``RFE`` is
# ahead by as little. If the model is a logistic regression, ``RFE`` is one line. The learned mask
# is for models that are trained by gradient descent anyway: it needs one training, where ``RFE``
# needs one after each removal.
