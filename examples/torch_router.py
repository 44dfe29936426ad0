"""A router that sends every input to 2 of 16 experts: a smooth top-k beside a noisy hard one.

A mixture of experts is sparse: a router scores 16 small networks, and the 2 with the highest
scores see the input. The choice has no derivative. Two ways to train through it:

* noisy (Shazeer and others, 2017): scores with noise, as large as a second layer says, which the
  2 highest are taken of; their weights are a softmax. An expert that was not chosen learns nothing
  of what it would have done, and the noise is there to try it now and then;
* smooth: ``thretopk(scores, 2, hard=True)``. Forward it is the same mask of exactly 2; backward it
  is the smooth top-2, so that every score moves, whether its expert was chosen or not. (So all
  experts are computed in training, as the derivative of a mask needs them; in use only 2 are.)

Each with and without a loss that asks for equal load: the squared coefficient of variation of the
experts' shares, as in the same paper, of the weights or of the smooth mask.

The task: scikit-learn's handwritten digits, of 8 x 8 pixels, shifted by up to one pixel each way as
they are drawn for training. An expert is a network with 4 hidden units, too small for ten digits.
Six runs, with weights and splits of their own, are trained side by side as one more axis of every
array.

    python examples/torch_router.py [--steps STEPS] [--out FIGURE.png]
"""

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional

import softtopk_nb.torch as stt

EXPERTS, CHOSEN, HIDDEN = 16, 2, 4
RUNS, SEED = 6, 0
TRAINED = 1200  # of 1797 digits; the others are for the test

# Settings, the same for both routers.
STEPS, BATCH, RATE = 1000, 128, 3e-3
BALANCE = 0.1  # the weight of the loss that asks for equal load
TEMPERATURE = 0.5  # of the smooth mask
EVERY = 50  # steps from one look at the test to the next

SETTINGS = {
    "noisy": ("noisy", 0.0),
    "noisy, balanced": ("noisy", BALANCE),
    "smooth": ("smooth", 0.0),
    "smooth, balanced": ("smooth", BALANCE),
}


# --- the main job: a router, and its experts ------------------------------------------


class Routed(NamedTuple):
    weights: torch.Tensor  # of the experts, 0 for those that are not chosen: they sum to 1
    shares: torch.Tensor  # what the load is balanced by
    mask: torch.Tensor  # who is chosen


class Mixture(torch.nn.Module):
    """16 experts and their router; every parameter and input has one axis of runs in front."""

    def __init__(self, router, pixels=64, digits=10):
        super().__init__()

        def parameter(*shape, scale=0.0):
            return torch.nn.Parameter(scale * torch.randn(RUNS, *shape))

        self.router = router
        self.scores = parameter(pixels, EXPERTS, scale=1 / math.sqrt(3 * pixels))
        self.noise = parameter(pixels, EXPERTS)
        self.into = parameter(EXPERTS, pixels, HIDDEN, scale=1 / math.sqrt(pixels))
        self.out = parameter(EXPERTS, HIDDEN, digits, scale=1 / math.sqrt(HIDDEN))
        self.into_bias, self.out_bias = parameter(EXPERTS, HIDDEN), parameter(EXPERTS, digits)

    def route(self, x):
        scores = x @ self.scores
        if self.router == "smooth":
            p = stt.thretopk(scores, CHOSEN, temperature=TEMPERATURE)
            mask = stt.thretopk(scores, CHOSEN, temperature=TEMPERATURE, hard=True)
            weights = mask * p
            return Routed(weights / weights.sum(-1, keepdim=True), p / CHOSEN, mask.detach())
        if self.training:
            deviation = functional.softplus(x @ self.noise)
            scores = scores + deviation * torch.randn_like(scores)
        mask = stt.hardtopk(scores, CHOSEN)
        weights = scores.masked_fill(mask == 0, -math.inf).softmax(-1)
        return Routed(weights, weights, mask)

    def forward(self, x):
        routed = self.route(x)
        hidden = torch.einsum("rbi,reih->rbeh", x, self.into) + self.into_bias[:, None]
        logits = torch.einsum("rbeh,reho->rbeo", hidden.relu(), self.out) + self.out_bias[:, None]
        return (routed.weights[..., None] * logits).sum(-2), routed


def losses(logits, labels):
    """The cross-entropy of each run."""
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view(labels.shape).mean(-1)


def unevenness(shares):
    """The squared coefficient of variation of the experts' shares, of each run."""
    load = shares.mean(1)
    return load.var(-1, unbiased=False) / load.mean(-1) ** 2


def shifted(x):
    """Each digit moved by up to a pixel both ways."""
    runs, rows, _ = x.shape
    padded = functional.pad(x.view(runs * rows, 8, 8), (1, 1, 1, 1))
    windows = padded.unfold(1, 8, 1).unfold(2, 8, 1)
    down, right = torch.randint(3, (2, runs * rows))
    return windows[torch.arange(runs * rows), down, right].reshape(x.shape)


def train(setting, data, steps):
    """Train all runs; return what was seen of the test on the way."""
    router, balance = SETTINGS[setting]
    (x, labels), test = data
    torch.manual_seed(SEED)
    model = Mixture(router)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    runs = torch.arange(RUNS)[:, None]
    seen = []
    for step in range(steps + 1):
        if step % EVERY == 0:
            seen.append(look(model, *test))
        rows = torch.randint(TRAINED, (RUNS, BATCH))
        logits, routed = model(shifted(x[runs, rows]))
        total = losses(logits, labels[runs, rows]) + balance * unevenness(routed.shares)
        optimizer.zero_grad()
        total.sum().backward()
        optimizer.step()
    return {name: np.stack([each[name] for each in seen]) for name in seen[0]}


@torch.no_grad()
def look(model, x, labels):
    """What the test says of each run."""
    model.eval()
    logits, routed = model(x)
    model.train()
    load = routed.mask.mean(1) / CHOSEN
    entropy = -torch.special.xlogy(load, load).sum(-1)
    right = (logits.argmax(-1) == labels).double().mean(-1)
    found = {"loss": losses(logits, labels), "right": right, "load": load, "used": entropy.exp()}
    return {name: each.numpy() for name, each in found.items()}


def digits():
    """((x, labels) to train on, (x, labels) to test), one split for each run."""
    data = load_digits()
    x, labels = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    generator = torch.Generator().manual_seed(SEED)
    order = torch.stack([torch.randperm(len(x), generator=generator) for _ in range(RUNS)])
    return [(x[part], labels[part]) for part in (order[:, :TRAINED], order[:, TRAINED:])]


def print_results(results):
    print(f"{RUNS} runs: mean (standard error) on digits that took no part\n")
    print("router              test loss        accuracy   experts used   most loaded expert")
    for name, seen in results.items():
        loss, error = seen["loss"][-1], seen["loss"][-1].std(ddof=1) / RUNS**0.5
        print(
            f"{name:<18}{loss.mean():8.3f} ({error:.3f}){seen['right'][-1].mean():13.1%}"
            f"{seen['used'][-1].mean():15.1f}{seen['load'][-1].max(-1).mean():17.1%}"
        )
    print(f"\nexperts used: e^entropy of the load, at most {EXPERTS}; an equal load is 6.2% each")


# --- the figure -----------------------------------------------------------------------


def draw(path, results, steps):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    blue, orange, grey = "#0072B2", "#D55E00", "#595959"
    styles = dict(
        zip(SETTINGS, ((orange, "--"), (orange, "-"), (blue, "--"), (blue, "-")), strict=True)
    )
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(1, 3, figsize=(16.5, 5.2), layout="constrained")
    looks = EVERY * np.arange(steps // EVERY + 1)

    for name, seen in results.items():
        colour, line = styles[name]
        for ax, what in zip(axes, ("loss", "used"), strict=False):
            ax.plot(looks, seen[what], color=colour, lw=0.6, alpha=0.25)
            ax.plot(looks, seen[what].mean(1), color=colour, ls=line, lw=2.4, label=name)
        # Experts have no names: the load of the most used one of each run, the next, and so on.
        load = -np.sort(-seen["load"][-1], axis=-1)
        ranks = np.arange(1, EXPERTS + 1)
        axes[2].plot(ranks, 100 * load.T, color=colour, lw=0.6, alpha=0.25)
        axes[2].plot(ranks, 100 * load.mean(0), color=colour, ls=line, lw=2.4, marker="o", ms=4)
    axes[0].set(
        title="Loss on the test digits",
        xlabel="step",
        ylabel="cross-entropy (thin: runs; thick: their mean)",
        yscale="log",
    )
    axes[0].set_yticks([0.2, 0.3, 0.5, 1.0, 2.0], ["0.2", "0.3", "0.5", "1", "2"])
    axes[0].minorticks_off()
    axes[0].legend(frameon=False)
    axes[1].set(
        title="Experts used",
        xlabel="step",
        ylabel="e to the entropy of the load",
        ylim=(0, EXPERTS + 0.5),
    )
    axes[1].axhline(EXPERTS, color=grey, lw=1, ls=":")
    axes[1].text(0, EXPERTS - 0.5, "all 16 alike", color=grey, va="top")
    axes[2].axhline(100 / EXPERTS, color=grey, lw=1, ls=":")
    axes[2].text(EXPERTS, 100 / EXPERTS + 0.3, "equal load", color=grey, ha="right")
    axes[2].set(
        title="Load per expert at the end",
        xlabel="expert, the most used one of each run first",
        ylabel="share of what is sent, in %",
        ylim=(0, None),
    )
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parent / "output" / "torch_router.png"
    parser.add_argument("--steps", type=int, default=STEPS, help="of training")
    parser.add_argument("--out", type=Path, default=default, help="where the figure goes")
    args = parser.parse_args()

    start = time.perf_counter()
    data = digits()
    results = {setting: train(setting, data, args.steps) for setting in SETTINGS}
    print_results(results)
    draw(args.out, results, args.steps)
    print(f"\nfigure: {args.out}\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
