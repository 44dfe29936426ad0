"""A curve of one's own: a soft top-k whose doubt is a Student distribution.

The curve of ``thretopk`` is a cumulative distribution function, and that can be taken at its word.
Suppose that every score carries a symmetric error of known distribution, in units of the
temperature. Then p_i = f((x_i - lambda)/temperature) is the probability that entry i lies above the
line lambda, and lambda is drawn where k entries are expected above it.

Here the scores are the heights of the fourteen mountains above 8000 m and the question is which are
the eight highest, for errors of about 25 m. Normal, Laplace and a logistic curve are built in; a
Student curve with 2 degrees of freedom, for a survey that now and then gets one badly wrong, is
written in two lines. Its far tail is heavier, so it never quite rules a mountain out.

    python examples/user_curve.py
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import t as student

import softtopk_nb as stk

K, ERROR = 8, 25.0

MOUNTAINS = {
    "Everest": 8849,
    "K2": 8611,
    "Kangchenjunga": 8586,
    "Lhotse": 8516,
    "Makalu": 8485,
    "Cho Oyu": 8188,
    "Dhaulagiri": 8167,
    "Manaslu": 8163,
    "Nanga Parbat": 8126,
    "Annapurna": 8091,
    "Gasherbrum I": 8080,
    "Broad Peak": 8051,
    "Gasherbrum II": 8035,
    "Shishapangma": 8027,
}


# Two scalar functions that Numba can compile: the curve and its derivative.
def student2_cdf(t):
    return 0.5 + 0.5 * t / math.sqrt(2.0 + t * t)


def student2_pdf(t):
    return (2.0 + t * t) ** -1.5


def main():
    heights = np.array(list(MOUNTAINS.values()), float)
    curves = {
        "normal": "normal",
        "sigmoid": "sigmoid",
        "laplace": "laplace",
        "student2": stk.Curve(student2_cdf, student2_pdf, name="student2"),
    }
    p = {
        name: stk.thretopk(heights, K, curve=curve, temperature=ERROR)
        for name, curve in curves.items()
    }

    print(f"probability of being among the {K} highest, for errors of about {ERROR:.0f} m\n")
    print(f"{'':<16}{'metres':>7}" + "".join(f"{name:>10}" for name in p))
    for i, (mountain, height) in enumerate(MOUNTAINS.items()):
        print(f"{mountain:<16}{height:>7}" + "".join(f"{v[i]:>10.5f}" for v in p.values()))
    print(f"{'sum':<16}{'':>7}" + "".join(f"{v.sum():>10.5f}" for v in p.values()))
    lines = {
        name: float(stk.thretopk.threshold(heights, K, curve=curve, temperature=ERROR))
        for name, curve in curves.items()
    }
    print(f"{'line drawn at':<16}{'':>7}" + "".join(f"{v:>10.1f}" for v in lines.values()))

    # The same line, found with SciPy alone.
    line = brentq(
        lambda lam: student(2).cdf((heights - lam) / ERROR).sum() - K, 0.0, 1e4, xtol=1e-12
    )
    reference = student(2).cdf((heights - line) / ERROR)
    difference = np.abs(p["student2"] - reference).max()
    print(f"\nstudent2 against SciPy: largest difference {difference:.0e}")

    # A user's curve has all the derivatives: how does a metre on Nanga Parbat change the answer?
    _, vjp = stk.thretopk.vjp(heights, K, curve=curves["student2"], temperature=ERROR)
    i = list(MOUNTAINS).index("Nanga Parbat")
    gradient = vjp(np.eye(len(heights))[i]).x
    print(f"Nanga Parbat: {gradient[i]:+.4f} per metre of its own, ", end="")
    print(f"{gradient[i - 1]:+.4f} per metre of Manaslu, {gradient[0]:+.6f} per metre of Everest")


if __name__ == "__main__":
    main()
