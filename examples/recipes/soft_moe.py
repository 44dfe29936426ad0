"""Experts by need: one budget for a batch, and the mean number of experts a token is learned."""

import torch
from torch import nn

import softtopk_nb.torch as stt

torch.manual_seed(0)
count = torch.randint(1, 4, (512, 1))  # a token needs one, two or three of eight experts
need = (torch.rand(512, 8).argsort(1).argsort(1) < count).float()
values, maps = torch.randn(512, 8), torch.randn(8, 8)
target = (need * (values @ maps.T)).sum(1)
tokens = torch.cat([need, values], 1)
router, experts = nn.Linear(16, 8), nn.Linear(16, 8)
layer = stt.SoftTopK(fraction=0.5, learn_k=(0.05, 0.9), hard=True)
parameters = [*router.parameters(), *experts.parameters(), *layer.parameters()]
descent = torch.optim.Adam(parameters, lr=0.02)
for step in range(401):
    layer.temperature = 0.1 ** (step / 400)
    mask = layer(router(tokens).flatten()).view(512, 8)
    k = layer.chosen_k(mask.numel()) / 512  # experts a token
    error = ((mask * experts(tokens)).sum(1) - target).square().mean()
    if step % 100 == 0:
        taken = [mask[count[:, 0] == n].sum(1).mean().item() for n in (1, 2, 3)]
        print(f"step {step}: error {error.item():.3f}, k {k.item():.2f}, of each kind", end=" ")
        print(*(f"{each:.2f}" for each in taken))
    descent.zero_grad()
    (error + 0.3 * k).backward()
    descent.step()
