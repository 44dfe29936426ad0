"""A router in a training loop: autocast, clipped gradients, compiled, and its saved state."""

import torch
from torch import nn

import softtopk_nb.torch as stt

torch.manual_seed(0)
tokens, target = torch.randn(512, 16), torch.randn(512, 4)
target[:, 0] = (tokens[:, 0] > 0) * tokens[:, 1]
gate, experts = stt.TopKGate(16, 8, 2, temperature=0.5), nn.Linear(16, 8 * 4)
parameters = [*gate.parameters(), *experts.parameters()]
descent = torch.optim.AdamW(parameters, lr=1e-2)
compiled = torch.compile(gate, fullgraph=True, backend="aot_eager")  # the default takes longer
for step in range(151):
    gate.temperature = 0.5 * 0.1 ** (step / 150)
    with torch.autocast("cpu", torch.bfloat16):
        weights, chosen = compiled(tokens)
        outputs = experts(tokens).unflatten(-1, (8, 4))
        mixture = torch.take_along_dim(outputs, chosen[..., None], 1) * weights[..., None]
        loss = (mixture.sum(1) - target).float().square().mean()
    descent.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    descent.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}, highest load {gate.load.max().item():.2f}")
print("saved:", *gate.state_dict())  # the temperature as well
