"""Pruning: of 10^6 weights 5 % stay, by a mask that turns into 0 and 1 in training."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
x, y = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
x, y, rows = (x / 16).float(), y.long(), torch.arange(len(x))
train, test = rows[rows % 4 > 0], rows[rows % 4 == 0]
first, hidden, last = nn.Linear(64, 1000), nn.Linear(1000, 1000), nn.Linear(1000, 10)
importance = hidden.weight.detach().abs().log().requires_grad_()
network = nn.ModuleList([first, hidden, last])
descent = torch.optim.Adam([importance, *network.parameters()], lr=1e-3)
for step in range(151):
    left = 1 - step / 150
    k = importance.numel() * (0.05 + 0.95 * left**3)  # the cubic schedule
    p = stk.thretopk(importance.flatten(), k, temperature=0.02 + 0.5 * left, curve="clip")
    some = test if step % 50 == 0 else train[torch.randint(len(train), (256,))]
    weight = hidden.weight * p.view_as(importance)
    output = last(nn.functional.linear(first(x[some]).relu(), weight, hidden.bias).relu())
    if step % 50 == 0:
        right = (output.argmax(1) == y[test]).float().mean().item()
        print(f"step {step}: {k:.0f} weights, {(p > 0).sum()} not 0, test accuracy {right:.3f}")
        continue
    descent.zero_grad()
    nn.functional.cross_entropy(output, y[some]).backward()
    descent.step()
