"""Which features explain each answer (L2X), in JAX, by a relaxed random subset."""

import jax
import jax.numpy as jnp

import softtopk_nb as stk

x = jax.random.normal(jax.random.key(0), (2000, 10))
place = jnp.where(x[:, :1] > 0, jnp.array([[1, 2, 3]]), jnp.array([[4, 5, 6]]))
y = jnp.take_along_axis(x, place, 1).sum(1)  # which features count depends on the row
shapes = (10, 32), (32, 10), (20, 64), (64,)
params = [0.2 * jax.random.normal(jax.random.key(i), s) for i, s in enumerate(shapes)]


def loss(params, key, temperature):
    scores = jax.nn.relu(x @ params[0]) @ params[1]
    noise = temperature * jax.random.gumbel(key, x.shape)
    p = stk.thretopk(scores + noise, 4, temperature=0.2)
    hidden = jax.nn.relu(jnp.concatenate([x * p, p], 1) @ params[2])
    return jnp.square(hidden @ params[3] - y).mean() / y.var(), scores


slope, sizes = jax.jit(jax.value_and_grad(loss, has_aux=True)), [0.0] * 4
for t in range(601):
    (value, scores), change = slope(params, jax.random.key(t), 0.5 * 0.1 ** (t / 600))
    sizes = [0.99 * m + 0.01 * jnp.square(g) for m, g in zip(sizes, change, strict=True)]
    steps = [0.01 * g / (jnp.sqrt(m) + 1e-4) for g, m in zip(change, sizes, strict=True)]
    params = [each - step for each, step in zip(params, steps, strict=True)]
hits = (stk.topk(scores, 4).indices[:, :, None] == place[:, None, :]).any(1).mean()
print(f"unexplained variance {value:.3f}; {hits:.0%} of what counts is among the 4 chosen")
