"""Attention with a budget: each query attends to four keys, under a causal and a padding mask."""

import torch
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
batch, heads, length, width, k = 8, 4, 24, 32, 4
tokens, lengths = torch.randint(0, 16, (batch, length)), torch.randint(12, length + 1, (batch,))
inside = torch.arange(length) < lengths[:, None]
there = torch.ones(length, length).tril().bool() & inside[:, None, None, :]
embed, project, last = nn.Embedding(16, width), nn.Linear(width, 3 * width), nn.Linear(width, 16)
place = nn.Parameter(0.1 * torch.randn(length, width))
descent = torch.optim.Adam([place, *nn.ModuleList([embed, project, last]).parameters()], lr=0.01)
told = inside & (torch.arange(length) >= 2)
for step in range(201):
    inner = project(embed(tokens) + place).view(batch, length, heads, -1).transpose(1, 2)
    q, key, value = inner.chunk(3, -1)
    scores = q @ key.mT / q.shape[-1] ** 0.5
    # Rows with fewer keys than k take all that they have, and rows without a key nothing.
    weights = stk.thretopk(scores, k, temperature=0.5, where=there, clamp_k=True)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    output = last((weights @ value).transpose(1, 2).flatten(2))
    loss = nn.functional.cross_entropy(output[told], tokens.roll(2, 1)[told])  # two places before
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
    descent.zero_grad()
    loss.backward()
    descent.step()
