"""Soft nearest neighbours, written as one's own CUDA kernel.

``nopython.device`` makes device functions for ``@cuda.jit`` kernels: the threads of a group call
them together, each row stays where it was made, and nothing passes through memory but what the
kernel itself writes. As in inside_njit.py, the input is the matrix of distances between
scikit-learn's digits, and it never exists as a whole: each group works out one row of it, turns it
into the weights of the k nearest neighbours, and lets them vote.

    python examples/inside_cuda.py                            # on a GPU
    NUMBA_ENABLE_CUDASIM=1 python examples/inside_cuda.py     # a few images, simulated
"""

import sys
from pathlib import Path

import numpy as np
from numba import config, cuda, float32, float64
from sklearn.datasets import load_digits

import softtopk_nb as stk
from softtopk_nb import nopython as stkn

K, TEMPERATURE = 5, 100.0
LANES = 32  # threads for each image
SHARED = stkn.SHARED
MOST = 2048  # images; their distances lie in shared memory


def make_kernel():
    thretopk = stkn.device("thretopk", np.float32, curve=stkn.laplace, lanes=LANES)

    @cuda.jit
    def votes(images, labels, k, temperature, share):
        row = cuda.shared.array(MOST, float32)
        weights = cuda.shared.array(MOST, float32)
        scratch = cuda.shared.array(SHARED, float64)
        i, rank = cuda.blockIdx.x, cuda.threadIdx.x
        n = images.shape[0]
        for j in range(rank, n, LANES):
            d = float32(0)
            for pixel in range(images.shape[1]):
                difference = images[i, pixel] - images[j, pixel]
                d += difference * difference
            row[j] = -d if i != j else float32(-np.inf)  # an image has no vote on itself
        cuda.syncwarp()
        thretopk(row[:n], k, temperature, weights[:n], scratch)
        for c in range(rank, share.shape[1], LANES):
            total = float32(0)
            for j in range(n):
                total += weights[j] if labels[j] == c else float32(0)
            share[i, c] = total / k

    return votes


def main():
    if config.ENABLE_CUDASIM:  # which has no warps; those of the tests will do
        sys.path.append(str(Path(__file__).parent.parent / "tests"))
        import simulator

        simulator.install()
    elif not cuda.is_available():
        print("no CUDA device was found: nothing was run")
        return
    images, labels = load_digits(return_X_y=True)
    count = 20 if config.ENABLE_CUDASIM else len(images)
    images, labels = images[:count].astype(np.float32), labels[:count]

    votes = make_kernel()
    share = cuda.to_device(np.empty((count, 10), np.float32))
    on_device = cuda.to_device(images), cuda.to_device(labels)
    votes[count, LANES](*on_device, K, TEMPERATURE, share)
    share = share.copy_to_host()
    accuracy = np.mean(share.argmax(axis=1) == labels)
    print(f"{K} nearest neighbours among {count - 1} digits: {accuracy:.1%} are right")

    # The same from the array operator on the CPU, which needs the whole matrix.
    matrix = -((images[:, None].astype(float) - images) ** 2).sum(axis=2)
    np.fill_diagonal(matrix, -np.inf)
    whole = stk.thretopk(matrix, K, temperature=TEMPERATURE) @ np.eye(10)[labels] / K
    print(f"against stk.thretopk on the CPU: largest difference {np.abs(whole - share).max():.0e}")


if __name__ == "__main__":
    main()
