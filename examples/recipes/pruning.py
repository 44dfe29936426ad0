"""Pruning: of 64 000 weights 5 % stay, by a mask that turns into 0 and 1 in training."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
images, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
x, y = (images / 16).float(), labels.long()
train, test = torch.arange(len(x)) % 4 > 0, torch.arange(len(x)) % 4 == 0
hidden, last = nn.Linear(64, 1000), nn.Linear(1000, 10)
importance = hidden.weight.detach().abs().log().requires_grad_()
descent = torch.optim.Adam([importance, *hidden.parameters(), *last.parameters()], lr=2e-3)
steps, share = 150, 0.05
for step in range(steps + 1):
    left = 1 - step / steps
    k = hidden.weight.numel() * (share + (1 - share) * left**3)  # the cubic schedule
    p = stk.thretopk(importance.flatten(), k, temperature=0.02 + 0.5 * left, curve="clip")
    weight = hidden.weight * p.view_as(importance)
    output = last(torch.relu(nn.functional.linear(x, weight, hidden.bias)))
    loss = nn.functional.cross_entropy(output[train], y[train])
    if step % 50 == 0:
        right = (output[test].argmax(1) == y[test]).float().mean().item()
        print(f"step {step}: {k:.0f} weights, {(p > 0).sum()} not 0, test accuracy {right:.3f}")
    descent.zero_grad()
    loss.backward()
    descent.step()
