"""A sparse autoencoder: k of a whole batch, and for inference the threshold of training."""

import torch
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
features = nn.functional.normalize(torch.randn(64, 24), dim=1)  # the truth: 64 directions
x = (torch.rand(1024, 64) < 0.05).float() * torch.rand(1024, 64) @ features
encoder, decoder = nn.Linear(24, 128), nn.Linear(128, 24)
descent = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
per_row, temperature, threshold = 4, 0.01, 0.0
for _ in range(300):
    scores = encoder(x)
    k = per_row * len(x)  # one budget for all rows together
    mask = stk.thretopk(scores.flatten(), k, temperature=temperature, hard=True).view_as(scores)
    loss = (decoder(mask * scores) - x).square().mean() / x.var()
    descent.zero_grad()
    loss.backward()
    descent.step()
    now = stk.thretopk.threshold(scores.detach().flatten().numpy(), k, temperature=temperature)
    threshold = 0.9 * threshold + 0.1 * float(now)
scores = encoder(x)
kept = scores > threshold  # of one row alone, without a batch
error = (decoder(kept * scores) - x).square().mean() / x.var()
print(f"training: unexplained variance {loss.item():.3f} with {per_row} of 128 a row")
print(f"by the threshold alone: {error.item():.3f} with {kept.float().sum(1).mean().item():.2f}")
