"""Which features explain each answer (L2X), in PyTorch, by random subsets of exactly four."""

import torch
from torch import nn

import softtopk_nb.torch as stt

torch.manual_seed(0)
x = torch.randn(2000, 10)
place = torch.where(x[:, :1] > 0, torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5, 6]]))
y = x.gather(1, place).sum(1)  # which features count depends on the row
explain = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
answer = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
descent = torch.optim.Adam([*explain.parameters(), *answer.parameters()], lr=0.01)
for step in range(401):
    subsets = stt.KSubset(explain(x), 4)
    mask = subsets.rsample()  # four ones a row, with the derivatives of the marginals
    error = answer(torch.cat([x * mask, mask], 1))[:, 0] - y
    loss = error.square().mean() / y.var()
    if step % 100 == 0:
        spread = subsets.entropy().mean().item()
        print(f"step {step}: unexplained variance {loss.item():.3f}, entropy {spread:.2f}")
    descent.zero_grad()
    loss.backward()
    descent.step()
chosen = stt.topk(explain(x).detach(), 4).indices
hits = (chosen[:, :, None] == place[:, None, :]).any(1).float().mean().item()
print(f"{hits:.0%} of what counts is among the 4 chosen")
