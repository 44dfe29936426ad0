"""Recall@k as a loss: which part of the relevant items is among the k first."""

import torch
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
queries, items = torch.randn(256, 16), torch.randn(500, 16)
hidden = torch.randn(16, 16) / 4
relevant = stk.hardtopk(queries @ hidden @ items.T, 5)  # five items for each query
bilinear = nn.Parameter(torch.zeros(16, 16))
descent = torch.optim.Adam([bilinear], lr=0.01)
for step in range(151):
    scores = queries @ bilinear @ items.T
    width = scores.detach().std(-1) + 1e-3  # a temperature in the units of each row's scores
    p = stk.thretopk(scores, 10, temperature=0.3 * width)
    soft = (p * relevant).sum(-1) / relevant.sum(-1)
    if step % 50 == 0:
        hard = (stk.hardtopk(scores, 10) * relevant).sum(-1) / relevant.sum(-1)
        print(f"step {step}: recall@10 {hard.mean().item():.3f}, soft {soft.mean().item():.3f}")
    descent.zero_grad()
    (1 - soft.mean()).backward()
    descent.step()
