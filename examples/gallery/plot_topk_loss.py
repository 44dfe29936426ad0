"""
A top-k loss for images with two labels
=======================================

Which two digits could this be?

Two people read a digit and disagree; their answers are kept as a set of two labels. Here the first
is the digit, and the second is its lookalike: the class of the nearest image of another digit. A
classifier has to name both. The Fenchel-Young loss of ``gradtopk`` with k = 2 is the negative
log-likelihood of the set: no order, exactly two labels, scores as many as there are classes.
"""

# sphinx_gallery_thumbnail_number = 2
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

import softtopk_nb as stk

SEEDS, STEPS, DECAYS = 8, 200, (3e-4, 1e-3, 3e-3, 1e-2)
threadpool_limits(limits=1, user_api="blas")  # the matrices are small: one thread is faster
images, digit = load_digits(return_X_y=True)
distance = pairwise_distances(images)
distance[digit[:, None] == digit] = np.inf
labels = np.stack([digit, digit[distance.argmin(axis=1)]], axis=1)
X = np.c_[(images - images.mean(axis=0)) / 16, np.ones(len(images))]

# %%
# The losses
# ----------
# Each function returns the derivative of a loss with respect to the scores. ``fenchel_young`` takes
# the two labels as they are. The baselines are cross-entropy with probability 1/2 for either label,
# a binary cross-entropy for each class, which does not know that there are two, and cross-entropy
# over the 45 pairs of digits, which has a score for each pair. Finally, cross-entropy on the digit
# alone has been told which of the two labels is right.

eye, (first, second) = np.eye(10), np.triu_indices(10, 1)
pairs = eye[first] + eye[second]
losses = {
    "Fenchel-Young": lambda s, y: stk.fenchel_young.vjp(stk.gradtopk, s, y, 2)[1](1.0).x,
    "cross-entropy, halves": lambda s, y: stk.softmax(s) - eye[y].mean(axis=1),
    "binary cross-entropy": lambda s, y: 1 / (1 + np.exp(-s)) - eye[y].sum(axis=1),
    "45 pairs": lambda s, y: stk.softmax(s) - (eye[y].sum(axis=1) @ pairs.T == 2),
    "cross-entropy, digit": lambda s, y: stk.softmax(s) - eye[y[:, 0]],
}


def fit(X, y, derivative, classes, decay):
    """Return the weights of a linear classifier, trained by Adam."""
    weights, mean, square = np.zeros((3, X.shape[1], classes))
    for step in range(1, STEPS + 1):
        gradient = X.T @ derivative(X @ weights, y) / len(X) + decay * weights
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        size = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        weights -= 0.05 * (1 - step / (STEPS + 1)) * mean / (1 - 0.9**step) / size
    return weights


def judge(scores, y):
    """Return in how many rows both labels are named, and in how many the digit is."""
    named = stk.hardtopk(scores, 2) if scores.shape[1] == 10 else pairs[scores.argmax(axis=1)]
    right = np.take_along_axis(named, y, axis=1) > 0
    return np.mean(right.all(axis=1)), np.mean(right[:, 0])


# %%
# Training
# --------
# A third of the images trains, a sixth chooses the weight decay for each loss, half are the test.

curves = {name: np.zeros((SEEDS, len(DECAYS), 2)) for name in losses}
chosen = {name: np.zeros((SEEDS, 2)) for name in losses}
for seed in range(SEEDS):
    X_rest, X_test, y_rest, y_test = train_test_split(X, labels, test_size=0.5, random_state=seed)
    A, V, a, v = train_test_split(X_rest, y_rest, test_size=1 / 3, random_state=seed)
    for name, derivative in losses.items():
        classes = 45 if name == "45 pairs" else 10
        weights = [fit(A, a, derivative, classes, decay) for decay in DECAYS]
        curves[name][seed] = [judge(X_test @ w, y_test) for w in weights]
        best = np.argmax([judge(V @ w, v)[name == "cross-entropy, digit"] for w in weights])
        chosen[name][seed] = curves[name][seed, best]

# %%
# Result
# ------

blue, orange, green, grey, pink = "#0072B2", "#D55E00", "#009E73", "#8a9099", "#CC79A7"
colors = dict(zip(losses, (blue, orange, green, pink, grey), strict=True))
left, middle, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(3))
shown = np.array([12, 5, 8, 129, 69, 9, 37, 28, 95]).reshape(3, 3)
left.imshow(
    np.block([[np.pad(images[i].reshape(8, 8), 2) for i in row] for row in shown]), "gray_r"
)
for (row, column), i in np.ndenumerate(shown):
    text = f"{labels[i, 0]} or {labels[i, 1]}"
    left.text(12 * column + 5.5, 12 * row + 11.2, text, ha="center", color=blue)
left.set(title="Images and their labels", xticks=[], yticks=[], ylim=(36.5, -0.5))
for name in ("45 pairs", "Fenchel-Young", "binary cross-entropy", "cross-entropy, halves"):
    runs, color = 100 * curves[name][..., 0], colors[name]
    mean, deviation = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    middle.fill_between(DECAYS, mean - deviation, mean + deviation, color=color, alpha=0.1)
    middle.plot(DECAYS, mean, "o-", color=color, label=name)
middle.set(title="Both labels named", xscale="log", xlabel="weight decay", ylim=(55, 71))
middle.set(ylabel="test images in %")
middle.legend(ncols=2, fontsize="small", loc="upper center")
for name, runs in chosen.items():
    (x, y), (dx, dy) = 100 * runs.mean(axis=0), 100 * runs.std(axis=0, ddof=1)
    right.errorbar(x, y, xerr=dx, yerr=dy, fmt="o", color=colors[name], capsize=3, label=name)
right.set(title="Weight decay chosen by validation", xlabel="both labels named in %")
right.set(ylabel="digit among the two in %")
right.legend(fontsize="small", loc="lower left")

print(f"test images, mean and standard deviation over {SEEDS} splits")
print("                        both labels   less Fenchel-Young's   digit among the two")
for name, runs in chosen.items():
    mean, deviation = runs.mean(axis=0), runs.std(axis=0, ddof=1)
    less = runs[:, 0] - chosen["Fenchel-Young"][:, 0]
    difference = f"{less.mean():+10.1%} ±{less.std(ddof=1):5.1%}" if less.any() else " " * 17
    print(f"{name:22}{mean[0]:7.1%} ±{deviation[0]:5.1%}{difference}", end="")
    print(f"{mean[1]:14.1%} ±{deviation[1]:5.1%}")

# %%
# Halves ask for two scores that are equal, whereas a set is likely as soon as both are high: the
# Fenchel-Young loss names more pairs in every setting of the weight decay.
#
# **Where it ties, and where it loses.** A binary cross-entropy for each class comes within a
# standard deviation, although it does not know k. A softmax over the pairs is better: a score for
# each pair says which digits go together, and 10 scores cannot. It grows with the number of
# subsets, though: 45 here, 4950 for 2 of 100 classes, 75 million for 5 of 100. Whoever knows which
# label is the digit, and wants the digit, takes plain cross-entropy.
#
# With one label for each image, minus the logarithm of the label's entry of ``gradtopk(scores, 2)``
# is a top-2 loss. In the same kind of comparison it ties with cross-entropy in top-2 accuracy, and
# loses some 3 percentage points in top-1 accuracy: there cross-entropy is the better choice.
