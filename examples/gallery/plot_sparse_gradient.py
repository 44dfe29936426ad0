"""
One long row: a sparse gradient
===============================

Which 1 % of a gradient should a worker send?

In distributed training each worker sends the largest entries of its gradient and keeps the rest
for the next step. The gradient is one row, longer than a task should hold at once: here that of a
weight matrix, whose blocks are products of errors and inputs, made when they are read.
``softtopk_nb.dask.hardtopk`` finds the k largest of the whole row by passes over its chunks. It
sends a few sums from each chunk, whatever k is.
"""

import time
import tracemalloc

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np

import softtopk_nb.dask as std

SEEDS, WIDTH, SHARE, OUTPUTS = 5, 1024, 0.01, (1024, 4096, 16384)
dask.config.set(scheduler="threads")

# %%
# The gradient
# ------------
# Each row of the weight matrix belongs to an output, and a chunk holds 256 of them. Errors and
# inputs have heavy tails, as they do in practice: some examples are hard, and some inputs are rare.


def gradient(outputs, seed):
    """Return the gradient of a layer as one row of float32, lazily."""
    rng = np.random.default_rng(seed)
    errors = da.from_array(rng.standard_t(3, (outputs, 32)).astype("f4"), chunks=(256, 32))
    inputs = rng.lognormal(0, 1, (32, WIDTH)).astype("f4")
    return da.matmul(errors, da.from_array(inputs, chunks=-1)).ravel()


# %%
# Three ways to choose
# --------------------
# ``dask.array.topk`` returns the k largest values, and the last of them is the threshold. Its tasks
# pass on k entries each, or the whole chunk where k is larger. The usual way out is a sample: the
# threshold is a quantile of every 997th entry, and the number of chosen entries is left to chance.


def by_hardtopk(sizes, k):
    return std.hardtopk(sizes, k)


def by_topk(sizes, k):
    return sizes >= da.topk(sizes, k)[-1]


def by_sample(sizes, k):
    return sizes >= np.quantile(sizes[::997].compute(), 1 - k / sizes.size)


methods = {"hardtopk": by_hardtopk, "dask.array.topk": by_topk, "a sample": by_sample}


def measure(method, outputs, seed):
    """Return the length, the entries chosen over k, the peak memory in MiB, and the seconds."""
    sizes = abs(gradient(outputs, seed))
    k = int(SHARE * sizes.size)
    tracemalloc.start()
    start = time.perf_counter()
    count = method(sizes, k).sum().compute()
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return sizes.size, count / k, peak / 2**20, seconds


by_hardtopk(da.ones(100, dtype="f4"), 1).compute()  # compiles, or loads what was compiled
found = {
    name: np.array([[measure(method, n, seed) for seed in range(SEEDS)] for n in OUTPUTS])
    for name, method in methods.items()
}

# %%
# Result
# ------

colors = dict(zip(methods, ("#0072B2", "#D55E00", "#8a9099"), strict=True))
left, middle, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(3))
print(f"k is {SHARE:.0%} of the entries; mean ± standard deviation over {SEEDS} gradients")
print("                     entries     chosen / k     peak memory in MiB        seconds")
for name, runs in found.items():
    mean, deviation = runs.mean(axis=1), runs.std(axis=1, ddof=1)
    style = {"color": colors[name], "marker": "o", "capsize": 3, "label": name}
    left.errorbar(mean[:, 0], mean[:, 2], deviation[:, 2], **style)
    middle.errorbar(mean[:, 0], mean[:, 3], deviation[:, 3], **style)
    right.errorbar(mean[:, 0], mean[:, 1], deviation[:, 1], **style)
    for (n, *values), (_, *spreads) in zip(mean, deviation, strict=True):
        print(f"{name:16}{n:12,.0f}", end="")
        pairs = zip(values, spreads, strict=True)
        print("".join(f"{value:12.2f} ±{spread:5.2f}" for value, spread in pairs))
row = found["hardtopk"][:, 0, 0]
left.plot(row, 4 * row / 2**20, "k:", label="the row itself")
left.set(title="Peak memory", yscale="log", ylabel="MiB")
middle.set(title="Time", yscale="log", ylabel="seconds")
right.set(title="Entries chosen, divided by k")
for ax in (left, middle, right):
    ax.set(xscale="log", xlabel="entries of the row")
    ax.legend()

# %%
# ``hardtopk`` chooses exactly k entries and never holds more than a few chunks. The tasks of
# ``dask.array.topk`` hold more than the whole row: here k entries are most of a chunk. With a
# million outputs, a row of 4 GiB, ``hardtopk`` held 135 MiB and ``dask.array.topk`` 5.7 GiB (one
# run with ``OUTPUTS = (2**20,)``, on two cores of an x86-64 machine).
#
# **Where it loses.** ``dask.array.topk`` reads the row once and is several times faster (twice at 4
# GiB); ``hardtopk`` reads it up to ten times, and each time the products are made anew. Where k is
# small, or the row fits into memory, use ``topk``. Where the number may be off by a tenth, as for
# sending a gradient it may, the sample is as fast as ``topk`` and needs less memory than either.
