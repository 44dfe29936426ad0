"""The top 1000 of one vector in chunks, longer than memory if need be."""

import sys

import dask.array as da

import softtopk_nb as stk

n = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000
# Multiples of 65536 give the bits of one process; a chunk of 64 MB keeps the scheduler's share low.
x = da.random.default_rng(0).normal(size=n, chunks=128 * 65536)
p = stk.thretopk(x, 1000, temperature=0.1)
print(type(p).__name__, p.numblocks, "sum", round(float(p.sum().compute()), 6))
