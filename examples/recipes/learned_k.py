"""A learned k: a layer that pays for each score it keeps, within bounds."""

import torch

import softtopk_nb.torch as stt

torch.manual_seed(0)
x = torch.randn(512, 40)
y = x[:, :6].sum(1)  # six of the forty are of use
scores, weights = torch.zeros(40, requires_grad=True), torch.zeros(40, requires_grad=True)
layer = stt.SoftTopK(20, learn_k=(1, 30), hard=True)
descent = torch.optim.Adam([scores, weights, *layer.parameters()], lr=0.05)
for step in range(600):
    layer.temperature = 0.01 ** (step / 600)
    p = layer(scores)
    loss = (x @ (p * weights) - y).square().mean() + 0.05 * layer.chosen_k(40)
    descent.zero_grad()
    loss.backward()
    descent.step()
print(f"k has gone from 20 to {layer.chosen_k(40).item():.2f}; of use are 6")
print("chosen:", stt.topk(scores.detach(), round(layer.chosen_k(40).item())).indices.tolist())
