"""
Mixture-of-experts routing with exact zeros
===========================================

A router reads the context of an input and chooses among 8 linear experts. The weights that
``thretopk(scores, 2, curve="clip")`` gives them lie between 0 and 1, sum to 2, and most are exactly
0: an expert with the weight 0 need not be computed. The weights have derivatives, so the router
trains by plain gradient descent, without noise.

The data are synthetic: two of 8 topics are drawn for each input, the context is a noisy sum of the
topics' vectors, and the target is the sum of the outputs of the topics' linear maps. In the first
task both topics count the same; in the second they have unequal weights.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional

import softtopk_nb.torch as stt

SEEDS, EXPERTS, WIDTH, STEPS, BATCH, RATE = 10, 8, 8, 1000, 128, 0.05
torch.set_num_threads(1)  # the matrices are small: one thread is faster
generator = torch.Generator().manual_seed(0)
topics, maps = torch.randn(2, SEEDS, EXPERTS, WIDTH, generator=generator)


def sample(n, spread, generator):
    """Return contexts, inputs and targets; the seeds are the first axis."""
    pair = torch.rand(SEEDS, n, EXPERTS, generator=generator).topk(2).indices
    first = 1 + spread * (2 * torch.rand(SEEDS, n, 1, generator=generator) - 1)
    code = torch.zeros(SEEDS, n, EXPERTS).scatter(-1, pair, torch.cat([first, 2 - first], -1))
    noise, x = torch.randn(2, SEEDS, n, WIDTH, generator=generator)
    return code @ topics + 0.3 * noise, x, (code * (x @ maps.mT)).sum(-1) / WIDTH**0.5


# %%
# Routers
# -------
# Every router gives weights that sum to 2. ``noisy`` is the usual hard top-k: it adds noise of a
# learned size to the scores, keeps the k highest, and takes the softmax of those. ``dense`` takes
# the softmax of all. The temperature of ``clip`` falls from 3 to 1.


def noisy(k):
    def router(scores, noise, temperature):
        top = (scores + noise).topk(k)
        return torch.zeros_like(scores).scatter(-1, top.indices, 2 * top.values.softmax(-1))

    return router


routers = {
    "clip": lambda scores, noise, t: stt.thretopk(scores, 2, curve="clip", temperature=t),
    "noisy top-2": noisy(2),
    "noisy top-4": noisy(4),
    "dense": lambda scores, noise, t: 2 * scores.softmax(-1),
}


def train(router, spread):
    """Return the losses of the training, the test loss, the experts in use and their loads."""
    generator = torch.Generator().manual_seed(1)
    gate, size, experts = 0.35 * torch.randn(3, SEEDS, WIDTH, EXPERTS, generator=generator)
    parameters = [p.requires_grad_() for p in (gate, size, experts)]
    optimizer = torch.optim.Adam(parameters, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    history = []
    for step in range(STEPS + 1):
        test = step == STEPS
        context, x, y = sample(4000 if test else BATCH, spread, generator)
        scores = context @ gate
        noise = torch.randn(scores.shape, generator=generator) * (not test)
        noise = noise * functional.softplus(context @ size)
        weights = router(scores, noise, 3 ** (1 - step / STEPS))
        loss = ((weights * (x @ experts)).sum(-1) - y).square().mean(-1)
        load = weights.mean(1) / 2
        if not test:
            history.append(loss.mean().item())
            optimizer.zero_grad()
            (loss + 0.1 * EXPERTS**2 * load.var(-1, unbiased=False)).sum().backward()
            optimizer.step()
            schedule.step()
    active = (weights > 0).float().sum(-1).mean(-1)
    load = 100 * load.sort(descending=True).values
    return history, *(v.detach().numpy() for v in (loss, active, load))


# %%
# Result
# ------
# All routers have the same rate: of 0.02, 0.05, 0.1 and 0.2 no other improves a test loss by more
# than 5 %. All have the same penalty on an unequal load.

colors = dict(zip(routers, ("#0072B2", "#D55E00", "#CC79A7", "#8a9099"), strict=True))
left, middle, right = (plt.subplots(figsize=(5, 3.6), layout="constrained")[1] for _ in range(3))
for spread, marker, task in ((0.0, "o", "equal"), (0.7, "s", "unequal")):
    print(f"{task} weights: test loss ± standard deviation, experts in use, greatest load")
    for name, router in routers.items():
        history, loss, active, load = train(router, spread)
        mean, deviation, style = (
            loss.mean(),
            loss.std(ddof=1),
            {"color": colors[name], "capsize": 4},
        )
        greatest = load[:, 0].mean()
        print(f"  {name:12}{mean:6.3f} ±{deviation:6.3f}{active.mean():6.1f}{greatest:6.0f} %")
        if task == "equal":
            style["label"] = name
            left.plot(history, color=colors[name], label=name)
            middle.errorbar(range(1, EXPERTS + 1), load.mean(0), load.std(0, ddof=1), **style)
        right.errorbar(active.mean(), mean, deviation, fmt=marker, **style)
left.set(title="Training, equal weights", xlabel="step", ylabel="mean loss", yscale="log")
for ax in (left, middle, right):
    ax.legend(fontsize="small", loc="lower left" if ax is middle else "upper right")
middle.set(title="Load, equal weights", xlabel="expert, by its load", ylabel="share in %")
right.set(title="Equal (dots), unequal (squares)", xlabel="experts in use", ylabel="test loss")
right.set_ylim(0)

# %%
# With equal weights ``clip`` has the lowest loss, with hardly more than two experts in use. Its
# weights saturate: they are exactly 1 for two experts and 0 for the others, and noise in the
# context does not move them. The weights of a softmax always move with the scores, also those of
# ``dense``, which computes all 8 experts.
#
# **Where it loses.** The number of experts in use is not fixed: with unequal weights ``clip``
# uses about 4 of them, since a weight strictly between 0 and 1 needs others that share the sum.
# There it is no better than ``noisy top-4`` and ``dense``: the differences are a fraction of the
# standard deviation. Where at most 2 experts may run, take a hard top-k, or ``hard=True``.
# Saturation does not help where the best weights vary: on a smooth function of two variables,
# with 16 experts and tuned rates, a noisy top-3 had less than half the error of ``clip`` with as
# many experts in use.
