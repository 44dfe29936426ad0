"""Rows on several devices: `shard_map`, here on four that the CPU pretends to have."""

import jax
from jax.sharding import NamedSharding, PartitionSpec

import softtopk_nb as stk

jax.config.update("jax_num_cpu_devices", 4)
mesh, rows = jax.make_mesh((4,), ("rows",)), PartitionSpec("rows")
x = jax.random.normal(jax.random.key(0), (64, 1000))
there = jax.device_put(x, NamedSharding(mesh, rows))
select = jax.shard_map(lambda x: stk.thretopk(x, 20), mesh=mesh, in_specs=rows, out_specs=rows)
p = jax.jit(select)(there)
print("each device has", p.addressable_shards[0].data.shape)
print("as on one device:", bool((jax.device_get(p) == jax.device_get(stk.thretopk(x, 20))).all()))
