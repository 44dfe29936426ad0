"""The k largest of a row that no worker's memory holds.

A row of float32 scores is made chunk by chunk and written to Zarr. Two worker processes, each with
a memory limit far below the row, then find a smooth top-k of it: the threshold by passes over the
chunks on the disk, and p, chunk by chunk, to Zarr again. At the end the mass of p is read back from
the disk, and every process says how much memory it has had at most.

    python examples/dask_long_row.py [--entries 1000000000]
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import dask.array as da
from distributed import Client, LocalCluster, progress

import softtopk_nb.dask as std


def peak():
    """The most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=5_000_000)
    parser.add_argument("--k", type=float, default=1000.5)
    parser.add_argument("--folder", help="where to put the row and p; a temporary one by default")
    options = parser.parse_args()
    n, chunk = options.entries, min(64, max(2, options.entries // 16 // std.PART)) * std.PART

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        cluster = LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            memory_limit="1GiB",
            dashboard_address=":0",
        )
        with cluster, Client(cluster) as client:
            where = Path(folder)
            row = da.random.default_rng(0).normal(size=n, chunks=chunk).astype("float32")
            row.to_zarr(str(where / "x"))
            x = da.from_zarr(str(where / "x"))
            print(f"row: {n:,} entries, {x.nbytes / 2**30:.2f} GiB, {x.npartitions} chunks")

            start = time.perf_counter()
            p = std.thretopk(x, options.k)
            written = client.compute(p.to_zarr(str(where / "p"), compute=False))
            progress(written, notebook=False)
            written.result()
            print(f"\nsearched and written in {time.perf_counter() - start:.1f} s")

            mass = float(da.from_zarr(str(where / "p")).sum(dtype="float64").compute())
            print(f"mass {mass:.6f}, wanted {options.k}")
            assert abs(mass - options.k) <= 1e-5 * options.k
            for name, most in sorted(client.run(peak).items()):
                print(f"worker {name}: {most:.0f} MiB at most")
            print(f"scheduler and driver: {peak():.0f} MiB at most")


if __name__ == "__main__":
    main()
