"""
Random subsets: straight-through against score function
=======================================================

Which 4 of 30 measurements of a tumour predict best whether it is malignant?

The choice is a random subset of exactly 4, a :class:`~softtopk_nb.KSubset` with one score for each
measurement. Each step of the training draws 16 subsets, so the classifier sees hard subsets only. A
draw has no derivative. Two estimators of the gradient of the expected loss train the scores:
*straight-through* passes the gradient with respect to the drawn mask to the marginals; the *score
function* weights the gradient of each draw's log-probability with its loss.
"""

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.feature_selection import SelectKBest, SequentialFeatureSelector, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

K, SEEDS, STEPS, DRAWS = 4, 10, 300, 16
temperatures = np.geomspace(1.0, 0.1, STEPS)
threadpool_limits(limits=1, user_api="blas")  # the matrices are small: one thread is faster
data = load_breast_cancer()

# %%
# Learning from draws
# -------------------
# The classifier is a logistic regression that trains with the scores, on the same draws. The
# straight-through estimator uses ``gradtopk.vjp``: ``gradtopk`` gives the marginals. The score
# function compares the loss of each draw with the mean of the others, which lowers its variance
# and keeps it unbiased.


def adam(gradient, state, step):
    """Return one update of Adam at rate 1, and change the state."""
    state[0] += 0.1 * (gradient - state[0])
    state[1] += 0.001 * (gradient**2 - state[1])
    return state[0] / (1 - 0.9**step) / (np.sqrt(state[1] / (1 - 0.999**step)) + 1e-8)


def learn(X, y, estimator, rng):
    """Return the likeliest subset and, for the figure, the mean loss of each step's draws."""
    scores, weights, history = np.zeros(30), np.zeros(30), []
    states, sign = np.zeros((2, 2, 30)), 2 * y[:, None] - 1
    for step, temperature in enumerate(temperatures, start=1):
        marginals, vjp = stk.gradtopk.vjp(scores, K, temperature=temperature)
        masks = stk.KSubset(scores, K, temperature).sample(DRAWS, rng)
        margins = sign * (X @ (masks * weights).T)
        losses = np.logaddexp(0, -margins).mean(axis=0)
        to_products = (-sign / (1 + np.exp(margins))).T @ X / len(y)  # one row for each draw
        if estimator == "straight-through":
            to_scores = vjp((to_products * weights).mean(axis=0)).x
        else:
            excess = (losses - losses.mean()) / (DRAWS - 1)
            to_scores = excess @ (masks - marginals) / temperature
        weights -= 0.05 * adam((to_products * masks).mean(axis=0) + 1e-3 * weights, states[0], step)
        scores -= 0.1 * max(0, 1 - 1.5 * step / STEPS) * adam(to_scores, states[1], step)
        history.append(losses.mean())
    return stk.hardtopk(scores, K) > 0, history


# %%
# Baselines
# ---------
# ``SelectKBest`` scores each measurement on its own. ``SequentialFeatureSelector`` adds one
# measurement at a time, the one that helps a cross-validated logistic regression most. A new
# logistic regression judges every choice, on tumours that took no part in it.

model = LogisticRegression()
results, histories = {}, {"straight-through": [], "score function": []}
for seed in range(SEEDS):
    X, X_test, y, y_test = train_test_split(
        data.data, data.target, stratify=data.target, test_size=0.3, random_state=seed
    )
    scaler, rng = StandardScaler().fit(X), np.random.default_rng(seed)
    X, X_test = scaler.transform(X), scaler.transform(X_test)
    choices = {"all 30": np.ones(30, bool)}
    for estimator, runs in histories.items():
        choices[estimator], history = learn(X, y, estimator, rng)
        runs.append(history)
    forward = SequentialFeatureSelector(model, n_features_to_select=K, cv=3)
    choices["sequential"] = forward.fit(X, y).get_support()
    choices["SelectKBest"] = SelectKBest(f_classif, k=K).fit(X, y).get_support()
    choices["random"] = rng.permutation(30) < K
    for name, chosen in choices.items():
        right = model.fit(X[:, chosen], y).score(X_test[:, chosen], y_test)
        results.setdefault(name, []).append(right)

# %%
# Result
# ------

blue, orange, green, grey = "#0072B2", "#D55E00", "#009E73", "#8a9099"
colors = {"straight-through": blue, "score function": green, "all 30": grey}
left, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(2))
for estimator, runs in histories.items():
    mean, deviation = np.mean(runs, axis=0), np.std(runs, axis=0, ddof=1)
    left.fill_between(
        range(STEPS), mean - deviation, mean + deviation, color=colors[estimator], alpha=0.2
    )
    left.plot(mean, color=colors[estimator], label=estimator)
left.set(title="Training", xlabel="step", yscale="log", ylabel=f"mean loss of {DRAWS} draws")
left.set_yticks([0.1, 0.2, 0.4, 0.6], ["0.1", "0.2", "0.4", "0.6"])
left.minorticks_off()
left.legend()
for position, (name, values) in enumerate(reversed(results.items())):
    error, color = 100 * np.std(values, ddof=1), colors.get(name, orange)
    right.errorbar(100 * np.mean(values), position, xerr=error, fmt="o", color=color, capsize=4)
right.set(title=f"Choices of {K} measurements", xlabel="test accuracy in %")
right.set_yticks(range(len(results)), reversed(results))

print(f"test accuracy, mean and standard deviation over {SEEDS} splits")
for name, values in results.items():
    print(f"{name:18}{np.mean(values):7.1%} ±{np.std(values, ddof=1):5.1%}")

# %%
# Straight-through is biased, and has the lower variance: it reaches a lower loss and a better
# choice than the score function with as many draws. The score function needs the value of the
# loss alone, and so works for a loss that has no gradient.
#
# **Where it loses.** All 30 measurements are better than any 4. ``SequentialFeatureSelector`` is
# as good as straight-through, with a smaller standard deviation, and takes a second: with 30
# features and k = 4, use it. It fits a model for each feature, step and fold, here 342, so its
# cost grows with the number of features times k. The random subset trains one model.
