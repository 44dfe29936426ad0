"""
A router that needs no auxiliary loss
=====================================

A mixture of experts computes two of 16 experts for each token, and each expert on a machine of its
own: all should have the same load. But topics of tokens are skewed, and a router sends most tokens
to the experts of the common topics. The usual remedy is a second loss that punishes unequal loads,
whose weight must be found.

:func:`softtopk_nb.balancedtopk` gives each token weights that sum to 2 and each expert weights that
sum to its share of the tokens, with exact gradients. Its thresholds of the experts are averaged in
training; a new token is routed by itself, with the average taken off its scores. That is what
``stt.TopKGate(..., balance=0.9)`` does.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional

import softtopk_nb.torch as stt

SEEDS, EXPERTS, TOPICS, WIDTH = 6, 16, 16, 8
STEPS, BATCH, TEST, RATE = 400, 256, 2048, 0.05
torch.set_num_threads(1)  # the matrices are small: one thread is faster
generator = torch.Generator().manual_seed(0)
topics, maps = torch.randn(2, SEEDS, TOPICS, WIDTH, generator=generator)
common = 1.0 / torch.arange(1, TOPICS + 1)  # as Zipf has it


def sample(n, generator):
    """Return contexts, inputs and targets of tokens; the seeds are the first axis."""
    pair = common.expand(SEEDS * n, TOPICS).multinomial(2, generator=generator)
    code = torch.zeros(SEEDS * n, TOPICS).scatter(-1, pair, 1.0).view(SEEDS, n, TOPICS)
    noise, x = torch.randn(2, SEEDS, n, WIDTH, generator=generator)
    return code @ topics + 0.3 * noise, x, (code * (x @ maps.mT)).sum(-1) / WIDTH**0.5


# %%
# Routers
# -------
# Each router is given the scores of a batch, noise of a learned size, a temperature and the
# thresholds of the experts that it has kept; it returns weights and these thresholds. Each token
# gets two experts, whose weights sum to 2. In a test all but ``expert choice`` see one token at a
# time.


def two_largest(weights):
    """Keep the two largest weights of each token, with the sum 2."""
    top = weights.topk(2)
    kept = 2 * top.values / top.values.sum(-1, keepdim=True).clamp(min=1e-9)
    return torch.zeros_like(weights).scatter(-1, top.indices, kept)


def balanced(scores, noise, temperature, kept, test):
    if test:
        p = stt.thretopk(scores - kept, 2, curve="clip", temperature=temperature)
        return two_largest(p), kept
    p, _, columns = stt.balancedtopk(scores, 2, curve="clip", temperature=temperature, tol=1e-4)
    return two_largest(p), kept.lerp(columns.unsqueeze(-2), 0.1)


def noisy(scores, noise, temperature, kept, test):
    top = (scores + noise).topk(2)
    weights = 2 * top.values.softmax(-1)
    return torch.zeros_like(scores).scatter(-1, top.indices, weights), kept


def expert_choice(scores, noise, temperature, kept, test):
    """Each expert takes its share of the tokens: those with the highest scores for it."""
    share = 2 * scores.shape[-2] // EXPERTS
    chosen = torch.zeros_like(scores).scatter(-2, scores.topk(share, dim=-2).indices, 1.0)
    return 2 * chosen * scores.softmax(-1), kept


def quantiles(scores, noise, temperature, kept, test):
    """Quantile balancing: a bias for each expert, moved by quantiles, without a gradient."""
    with torch.no_grad():
        bias = kept
        share = 2 * scores.shape[-2] // EXPERTS
        for _ in range(0 if test else 8):
            third = (scores - bias).topk(3).values[..., 2:]
            bias = (scores - third).topk(share + 1, dim=-2).values[..., -1:, :]
            bias = bias - bias.mean(-1, keepdim=True)
        chosen = (scores - (kept if test else bias)).topk(2).indices
        kept = kept.lerp(bias, 0.1)
    weights = 2 * scores.gather(-1, chosen).softmax(-1)
    return torch.zeros_like(scores).scatter(-1, chosen, weights), kept


# name: (router, weight of the loss for equal loads)
routers = {
    "balanced": (balanced, 0.0),
    "noisy top-2": (noisy, 0.0),
    "noisy top-2 + loss": (noisy, 0.1),
    "expert choice": (expert_choice, 0.0),
    "quantile balancing": (quantiles, 0.0),
}


def train(router, penalty):
    """Return the weights, the losses and the loads of a test after training."""
    generator = torch.Generator().manual_seed(1)
    gate, size, experts = 0.35 * torch.randn(3, SEEDS, WIDTH, EXPERTS, generator=generator)
    parameters = [p.requires_grad_() for p in (gate, size, experts)]
    optimizer = torch.optim.Adam(parameters, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    kept = torch.zeros(SEEDS, 1, EXPERTS)
    for step in range(STEPS + 1):
        test = step == STEPS
        context, x, y = sample(TEST if test else BATCH, generator)
        scores = context @ gate
        noise = torch.randn(scores.shape, generator=generator) * (not test)
        noise = noise * functional.softplus(context @ size)
        weights, kept = router(scores, noise, 3 ** (1 - step / STEPS), kept, test)
        loss = ((weights * (x @ experts)).sum(-1) - y).square().mean(-1)
        if not test:
            load = weights.mean(1) / 2
            optimizer.zero_grad()
            (loss + penalty * EXPERTS**2 * load.var(-1, unbiased=False)).sum().backward()
            optimizer.step()
            schedule.step()
    return loss.detach(), (weights > 0).detach()


# %%
# Result
# ------
# The loss of new tokens; the variation of the loads, their standard deviation over their mean; and
# the part of tokens that lose an expert if each takes 1.25 times its share, first come, first
# served.

colors = dict(zip(routers, ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#8a9099"), strict=True))
figure, ax = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
print("mean ± standard deviation over 6 seeds")
print(f"{'':20}{'test loss':>14}{'variation':>16}{'dropped':>16}")
for name, (router, penalty) in routers.items():
    loss, taken = train(router, penalty)
    load = taken.float().sum(1)
    variation = load.std(-1, unbiased=False) / load.mean(-1)
    room = int(1.25 * 2 * TEST / EXPERTS)
    served = (taken & (taken.cumsum(1) <= room)).sum(-1)
    dropped = (served < 2).float().mean(-1)
    cells = [f"{v.mean():8.3f} ±{v.std():6.3f}" for v in (loss, variation, 100 * dropped)]
    print(f"{name:20}{''.join(cells)} %")
    ax.scatter(variation, loss, color=colors[name], label=name)
    ax.scatter(variation.mean(), loss.mean(), color=colors[name], marker="+", s=200)
ax.set(xlabel="variation of the loads", ylabel="test loss", ylim=(0, None), xlim=(0, None))
ax.set_title("Six seeds each, and their mean (+)")
ax.legend(fontsize="small")

# %%
# Without any second loss ``balanced`` routes new tokens one by one with a variation of a tenth, and
# drops next to none. Hard top-2 routers send a third of the tokens to experts that are full, with
# the second loss still a quarter: a larger weight loads experts more equally and costs test loss.
# ``expert choice`` has equal loads by construction, and leaves half of the tokens with fewer than
# two experts; it also has to see a batch, which a model that writes text does not have.
#
# **Where it loses.** Quantile balancing is as good: the differences are within a standard
# deviation, and its mean is better. It costs less, and needs no kernel of its own. What the smooth
# router has besides is a gradient in the thresholds, weights that fall to 0 continuously where a
# token changes its experts, and loads of any size, also learned ones.
