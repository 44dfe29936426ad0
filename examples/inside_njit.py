"""Soft nearest neighbours, written as one's own compiled loop.

``softtopk_nb.nopython`` holds the row functions behind the operators. They take arrays and numbers
only and can be called inside ``@njit`` code, so a top-k can sit in the middle of a loop and its
input need not exist as a whole. Here the input is the matrix of distances between all pairs of
scikit-learn's digits: each thread works out one row of it, turns it into the weights of the k
nearest neighbours, lets them vote, and forgets the row.

Every image is classified by the others (leave-one-out). The vote, divided by k, is also a forecast;
its Brier score says how good (0 is perfect).

    python examples/inside_njit.py
"""

import time

import numpy as np
from numba import njit, prange
from sklearn.datasets import load_digits

import softtopk_nb as stk
from softtopk_nb import nopython as stkn

K = 5


@njit
def nearness(images, i, out):
    """Minus the squared distance from image i to each image; -inf, which excludes it, to itself."""
    for j in range(images.shape[0]):
        d = 0.0
        for pixel in range(images.shape[1]):
            d += (images[i, pixel] - images[j, pixel]) ** 2
        out[j] = -d
    out[i] = -np.inf


@njit(parallel=True)
def votes(images, labels, k, temperature):
    """Share of the k nearest neighbours in each class; the k are hard at temperature 0."""
    n = images.shape[0]
    share = np.zeros((n, 10))
    for i in prange(n):
        row, weight = np.empty(n), np.empty(n)
        nearness(images, i, row)
        if temperature > 0.0:
            stkn.thretopk(row, k, temperature, stkn.laplace, weight)
        else:
            stkn.hardtopk(row, k, weight)
        for j in range(n):
            share[i, labels[j]] += weight[j] / k
    return share


def main():
    images, labels = load_digits(return_X_y=True)
    onehot = np.eye(10)[labels]

    start = time.perf_counter()
    votes(images[:20], labels[:20], K, 1.0)
    print(f"compiled in {time.perf_counter() - start:.1f} s\n")

    print(f"{K} nearest neighbours among {len(images) - 1} digits")
    print(f"{'temperature':>14}{'accuracy':>11}{'Brier score':>14}{'seconds':>10}")
    for temperature in (0.0, 10.0, 30.0, 100.0, 300.0):
        start = time.perf_counter()
        share = votes(images, labels, K, temperature)
        seconds = time.perf_counter() - start
        accuracy = np.mean(share.argmax(axis=1) == labels)
        brier = np.mean(np.sum((share - onehot) ** 2, axis=1))
        name = f"{temperature:g}" if temperature else "0 (hard)"
        print(f"{name:>14}{accuracy:>11.2%}{brier:>14.4f}{seconds:>10.2f}")

    # The same from the array operator, which needs the whole matrix.
    squares = np.sum(images**2, axis=1)
    matrix = 2.0 * images @ images.T - squares[:, None] - squares
    np.fill_diagonal(matrix, -np.inf)
    whole = stk.thretopk(matrix, K, temperature=100.0) @ onehot / K
    difference = np.abs(whole - votes(images, labels, K, 100.0)).max()
    print(
        f"\nagainst stk.thretopk on the {matrix.nbytes / 2**20:.0f} MiB matrix of distances: ",
        end="",
    )
    print(f"largest difference {difference:.0e}")


if __name__ == "__main__":
    main()
