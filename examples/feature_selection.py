"""Features selected by a smooth top-k, beside scikit-learn's selectors, on four of its data sets.

Each selector stands in a pipeline: scale, select k features, fit a linear model. The table has the
score on data that neither has seen (accuracy; R^2 of the diabetes set), its spread over seeds, and
the seconds of a fit.

    python examples/feature_selection.py [--seeds N]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.feature_selection import RFE, SelectFromModel, SelectKBest, f_classif, f_regression
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from softtopk_nb.sklearn import SoftSelectKBest

FOLDS = 5
SETS = {
    "digits": (load_digits, (8, 16)),
    "breast cancer": (load_breast_cancer, (3, 5, 10)),
    "wine": (load_wine, (2, 5)),
    "diabetes": (load_diabetes, (2, 5)),
}


def selectors(k, numeric, seed):
    """The selectors of k features, by name."""
    if numeric:
        score, model, sparse = f_regression, Ridge(), Lasso(alpha=0.01, max_iter=20000)
    else:
        score, model = f_classif, LogisticRegression(max_iter=300)
        sparse = LogisticRegression(penalty="l1", solver="saga", C=0.1, max_iter=500, tol=1e-3)
    return {
        "SoftSelectKBest": SoftSelectKBest(k, random_state=seed),
        "SelectKBest": SelectKBest(score, k=k),
        "RFE": RFE(model, n_features_to_select=k),
        "L1": SelectFromModel(sparse, max_features=k, threshold=-np.inf),
    }


def compare(load, k, seeds):
    """(mean, standard deviation over the seeds, seconds of a fit) by selector."""
    x, y = load(return_X_y=True)
    numeric = load is load_diabetes
    scores, seconds = {}, {}
    for seed in range(seeds):
        folds = (KFold if numeric else StratifiedKFold)(FOLDS, shuffle=True, random_state=seed)
        for name, selector in selectors(k, numeric, seed).items():
            last = Ridge() if numeric else LogisticRegression(max_iter=2000)
            model, start = make_pipeline(StandardScaler(), selector, last), time.perf_counter()
            scores.setdefault(name, []).append(cross_val_score(model, x, y, cv=folds).mean())
            seconds.setdefault(name, []).append((time.perf_counter() - start) / FOLDS)
    return {
        name: (np.mean(each), np.std(each), np.median(seconds[name]))
        for name, each in scores.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with threadpool_limits(limits=1, user_api="blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of features that never change, of solvers that stop
        for name, (load, counts) in SETS.items():
            for k in counts:
                found = compare(load, k, options.seeds)
                line = "  ".join(
                    f"{selector} {mean:.3f} ± {spread:.3f} ({seconds:.1f} s)"
                    for selector, (mean, spread, seconds) in found.items()
                )
                print(f"{name}, {k}: {line}", flush=True)


if __name__ == "__main__":
    main()
