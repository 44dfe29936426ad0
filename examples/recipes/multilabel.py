"""Several labels a row, each row with its own number of them: a Fenchel-Young loss."""

import torch
from torch import nn

import softtopk_nb as stk

torch.manual_seed(0)
x = torch.randn(1000, 20)
k = torch.randint(1, 4, (1000,))  # one to three labels
truth = x @ torch.randn(20, 12)
labels = torch.full((1000, 3), -1)  # -1 fills the rows with fewer
order = truth.argsort(-1, descending=True)
for row, count in enumerate(k):
    labels[row, :count] = order[row, :count]
model = nn.Linear(20, 12)
descent = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(201):
    loss = stk.fenchel_young("gradtopk", model(x), labels, k).mean()
    if step % 100 == 0:
        found = stk.hardtopk(model(x).detach(), k)
        hits = found.gather(1, labels.clamp(min=0)) * (labels >= 0)
        print(f"step {step}: loss {loss.item():.3f}, found {hits.sum().item() / k.sum():.3f}")
    descent.zero_grad()
    loss.backward()
    descent.step()
