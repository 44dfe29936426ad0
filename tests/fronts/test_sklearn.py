"""The selector for scikit-learn's pipelines."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from softtopk_nb.sklearn import SoftSelectKBest

pytestmark = pytest.mark.sklearn
USEFUL = [1, 4, 6]


# Says so of a check that needs another library.
@pytest.mark.filterwarnings("ignore:Skipping check")
@parametrize_with_checks([SoftSelectKBest(max_iter=30)])
def test_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture
def features(rng):
    """Of ten features three are of use, and three are what one of these is, with noise."""
    x = rng.normal(size=(300, 10))
    x[:, [2, 3, 5]] = x[:, [1]] + 0.8 * rng.normal(size=(300, 3))
    return x * rng.uniform(0.1, 100.0, size=10)


def outputs(features, count):
    scale = features.std(axis=0)
    weights = np.array([[3.0, 1.5, -1.2], [0.5, -1.5, 1.0], [-1.0, 1.0, 1.5]])[:, :count]
    return (features / scale)[:, USEFUL] @ weights


@pytest.mark.parametrize("loss", ["auto", "squared_error"])
@pytest.mark.parametrize("count", [1, 3])
def test_it_finds_the_features_that_numbers_follow(features, loss, count):
    y = np.squeeze(outputs(features, count) + 5.0)
    select = SoftSelectKBest(3, loss=loss, random_state=0).fit(features, y)
    assert select.get_support(indices=True).tolist() == USEFUL
    assert select.path_.loss[-1] < 1e-3


@pytest.mark.parametrize("curve", ["laplace", "clip"])
@pytest.mark.parametrize("batch_size", [None, 50])
def test_it_finds_the_features_that_classes_follow(features, curve, batch_size):
    names = np.array(["one", "other", "third"])
    y = names[outputs(features, 3).argmax(axis=1)]
    options = {"curve": curve, "batch_size": batch_size, "random_state": 0}
    select = SoftSelectKBest(3, **options).fit(features, y)
    assert select.get_support(indices=True).tolist() == USEFUL
    assert select.classes_.tolist() == sorted(names)
    # The soft choice has become a hard one, and summed to k all the way.
    p = select.path_.p
    np.testing.assert_allclose(p.sum(axis=1), 3.0, atol=1e-10)
    np.testing.assert_allclose(p[-1], select.get_support(), atol=1e-6)
    np.testing.assert_allclose(p[0], 0.3, atol=1e-3)  # nothing is preferred at the start


def test_features_that_are_alike_do_not_stay_undecided(rng):
    x = rng.normal(size=(100, 1)).repeat(4, axis=1)
    p = SoftSelectKBest(1, random_state=0).fit(x, x[:, 0]).path_.p
    np.testing.assert_allclose(np.sort(p[-1]), [0, 0, 0, 1], atol=1e-6)


def test_a_fit_is_that_of_its_seed(features):
    y = outputs(features, 1)[:, 0] > 0
    options = {"max_iter": 40, "batch_size": 64}
    one, same, other = (
        SoftSelectKBest(random_state=seed, **options).fit(features, y).scores_ for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_it_works_in_a_search_through_pipelines(features):
    y = outputs(features, 3).argmax(axis=1)
    model = make_pipeline(SoftSelectKBest(max_iter=200, random_state=0), LogisticRegression())
    search = GridSearchCV(model, {"softselectkbest__k": [1, 3, 0.2]}, cv=3).fit(features, y)
    assert search.best_params_ == {"softselectkbest__k": 3}
    names = search.best_estimator_[0].get_feature_names_out()
    assert names.tolist() == [f"x{i}" for i in USEFUL]


def test_progress_is_printed_where_it_is_asked_for(features, capsys):
    SoftSelectKBest(max_iter=40).fit(features, features[:, 0])
    assert not capsys.readouterr().out
    SoftSelectKBest(max_iter=40, verbose=1).fit(features, features[:, 0])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("[SoftSelectKBest] step 0: temperature 30, loss 0.")
    assert lines[0].endswith("10 of 10 features undecided")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 11}, "k is 11; expected a whole number from 1 to 10"),
        ({"k": 0}, "k is 0; expected"),
        ({"k": 1.5}, "k is 1.5; expected"),
        ({"k": True}, "k is True; expected"),
        ({"k": "most"}, "k is 'most'; expected"),
        ({"k": None}, "k is None; expected"),
        ({"loss": "hinge"}, "loss is 'hinge'; expected one of auto"),
        ({"temperature": (1.0, 2.0)}, r"temperature is \(1.0, 2.0\); expected two"),
        ({"temperature": 1.0}, "temperature is 1.0; expected two"),
        ({"temperature": ("hot", "cold")}, r"temperature is \('hot', 'cold'\); expected two"),
        ({"standardize": "no"}, "standardize is 'no'; expected True or False"),
        ({"verbose": "loud"}, "verbose is 'loud'; expected a whole number"),
        ({"random_state": "seed"}, "'seed' cannot be used to seed"),
        ({"max_iter": 0}, "max_iter is 0; expected a whole number from 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5; expected"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; expected"),
        ({"alpha": float("nan")}, "alpha is nan; expected"),
        ({"curve": "straight"}, "curve is 'straight'; expected"),
    ],
)
def test_bad_parameters_are_named(features, arguments, message):
    with pytest.raises(ValueError, match=message):
        SoftSelectKBest(**arguments).fit(features, features[:, 0])


def test_a_target_of_one_class_is_refused(features):
    with pytest.raises(ValueError, match="y has one class, 1; expected at least two"):
        SoftSelectKBest().fit(features, np.ones(300, int))
