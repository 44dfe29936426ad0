"""Features chosen together, by gradient descent through a smooth top-k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..hardtopk.operator import hardtopk
from ..softmax import softmax
from ..thretopk.operator import CurveChoice, thretopk

Array = npt.NDArray[np.float64]

_SPAN = 50.0  # what a score learns in all steps, if each has moved it by the whole rate
_SPREAD = 1e-3  # of the scores at the start: features that are alike begin apart
_KEPT = 100  # points of the path
_WHOLE = int, np.integer
_REAL = float, np.floating, *_WHOLE
_LOSSES = "auto", "log_loss", "squared_error"


class Path(NamedTuple):
    """What has happened while the temperature fell, at about a hundred steps of the fit."""

    temperature: Array  # (points,)
    loss: Array  # (points,), of the soft choice, without the penalty
    p: Array  # (points, features)


class SoftSelectKBest(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Select the k features that a linear model predicts best from, together.

    One score for each feature goes through `thretopk`, which gives weights between 0 and 1 that
    sum to k; they multiply the features, and a linear model (softmax regression for classes,
    least squares for numbers) predicts the target. Scores and model are trained together by
    gradient descent while the temperature falls, until the weights are 0 and 1.

    Parameters
    ----------
    k : int, float or "all", default=0.5
        How many features to select: a whole number from 1 to the number of features, or a fraction
        of them, in (0, 1), rounded, and at least one feature.
    loss : {"auto", "log_loss", "squared_error"}, default="auto"
        "log_loss" takes the target for classes, "squared_error" for numbers. "auto" is the second
        if the target has numbers that are not whole, or more than one column, else the first: for
        whole numbers that are not classes, as counts, name the second.
    curve : str or Curve, default="laplace"
        Of `thretopk`.
    temperature : tuple of two floats, default=(30.0, 0.003)
        The first and the last temperature; it falls geometrically. Scores end some ten units apart.
    max_iter : int, default=1000
        Steps of gradient descent. Fewer take larger steps in the scores.
    learning_rate : float, default=0.05
        Of the linear model, for Adam.
    alpha : float, default=0.001
        Half the squared coefficients times this is added to the loss.
    batch_size : int or None, default=None
        Samples of each step, in a new order in each pass over them; None takes all of them. With
        batches, a sample of weight 2 is not quite the same as two of weight 1.
    standardize : bool, default=True
        Whether features are divided by their standard deviations; their means are always taken
        away. Without it, features on a larger scale are preferred.
    random_state : int, RandomState instance or None, default=None
        For the order of batches and for the scores at the start, which differ by some thousandths.
    verbose : int, default=0
        Whether to print ten lines while fitting.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,)
        The learned scores: those of the k selected features are the largest.
    k_ : int
        How many features are selected.
    path_ : Path
        `temperature`, `loss` and `p` (points, n_features) at about a hundred steps of the fit.
    n_iter_ : int
        Steps that were done: `max_iter`.
    classes_ : ndarray
        The classes, if the target has classes.
    n_features_in_ : int
        Features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, where X has names that are all strings.

    Notes
    -----
    A step costs O(samples features outputs): in all, `max_iter` times the cost of one gradient of
    the linear model. A fit is deterministic for a given `random_state`. The choice is a local
    optimum: another seed may end at other features of about the same use. What it finds is useful
    to a linear model; features of which only products or thresholds matter are not seen.
    scikit-learn's `SelectKBest` scores each feature alone, which is faster, and blind to features
    that say the same; its `RFE` removes features step by step.

    The relaxation is that of [1]_, with one threshold for all features; choosing features by
    gradient descent through a relaxed choice goes back to [2]_.

    References
    ----------
    .. [1] Łukasz Struski, Michał B. Bednarczyk, Igor T. Podolak, Jacek Tabor (2025), LapSum: one
       method to differentiate them all, https://arxiv.org/abs/2503.06242
    .. [2] Muhammed Fatih Balın, Abubakar Abid, James Zou (2019), Concrete Autoencoders,
       https://arxiv.org/abs/1901.09346

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from softtopk_nb.sklearn import SoftSelectKBest
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> select = SoftSelectKBest(k=5, max_iter=300, random_state=0).fit(X, y)
    >>> select.transform(X).shape
    (569, 5)
    """

    def __init__(
        self,
        k: float = 0.5,
        *,
        loss: Literal["auto", "log_loss", "squared_error"] = "auto",
        curve: CurveChoice = "laplace",
        temperature: tuple[float, float] = (30.0, 0.003),
        max_iter: int = 1000,
        learning_rate: float = 0.05,
        alpha: float = 1e-3,
        batch_size: int | None = None,
        standardize: bool = True,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.k = k
        self.loss = loss
        self.curve = curve
        self.temperature = temperature
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.alpha = alpha
        self.batch_size = batch_size
        self.standardize = standardize
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
    ) -> SoftSelectKBest:
        """Learn which features to select.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features: finite real numbers.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Classes, or numbers; see `loss`.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the samples in the loss, in the means and in the standard deviations; not
            negative.

        Returns
        -------
        self : SoftSelectKBest
            The fitted selector.

        Raises
        ------
        ValueError, TypeError
            If an argument is out of range, X or y has NaN or infinities, lengths differ, or there
            is one class alone.

        Examples
        --------
        >>> import numpy as np
        >>> from softtopk_nb.sklearn import SoftSelectKBest
        >>> X = np.random.default_rng(0).normal(size=(100, 6))
        >>> select = SoftSelectKBest(2, max_iter=300, random_state=0)
        >>> select.fit(X, 2.0 * X[:, 1] - X[:, 4]).get_support(indices=True)
        array([1, 4])
        """
        options = {"multi_output": True, "y_numeric": self.loss == "squared_error"}
        x, given = validate_data(self, X, y, dtype=np.float64, **options)
        self._check()
        self.k_ = self._count(x.shape[1])
        weight = _check_sample_weight(sample_weight, x, dtype=np.float64, ensure_non_negative=True)
        weight = weight / weight.sum()
        target, classes = self._target(given, weight)
        x = x - weight @ x
        if self.standardize:
            x /= _scale(x, weight)
        random = check_random_state(self.random_state)
        self.scores_, self.path_ = self._descend(x, target, weight, classes, random)
        self.n_iter_ = self.max_iter
        return self

    def _check(self) -> None:
        """Refuse parameters that are out of range."""
        if self.loss not in _LOSSES:
            raise ValueError(f"loss is {self.loss!r}; expected one of {', '.join(_LOSSES)}")
        pair: Any = self.temperature
        two = isinstance(pair, (tuple, list)) and len(pair) == 2
        two = two and all(isinstance(each, _REAL) for each in pair)
        if not two or not 0.0 < pair[1] <= pair[0] < np.inf:
            raise ValueError(f"temperature is {pair!r}; expected two positive numbers that fall")
        if not isinstance(self.standardize, (bool, np.bool_)):
            raise ValueError(f"standardize is {self.standardize!r}; expected True or False")
        if not isinstance(self.verbose, _WHOLE):
            raise ValueError(f"verbose is {self.verbose!r}; expected a whole number")
        for name in ("max_iter", "batch_size"):
            count = getattr(self, name)
            if name == "batch_size" and count is None:
                continue
            if not isinstance(count, _WHOLE) or count < 1:
                raise ValueError(f"{name} is {count!r}; expected a whole number from 1 on")
        for name in ("learning_rate", "alpha"):
            value = getattr(self, name)
            if not isinstance(value, _REAL) or not 0.0 <= value < np.inf:
                raise ValueError(f"{name} is {value!r}; expected a finite number, 0 or more")

    def _count(self, n: int) -> int:
        """How many of n features to select."""
        k: Any = self.k
        if isinstance(k, str) and k == "all":
            return n
        if isinstance(k, _WHOLE) and not isinstance(k, bool) and 1 <= k <= n:
            return int(k)
        if isinstance(k, _REAL) and not isinstance(k, _WHOLE) and 0.0 < k < 1.0:
            return max(1, round(float(k) * n))
        raise ValueError(
            f"k is {k!r}; expected a whole number from 1 to {n}, the number of features, a "
            "fraction of them between 0 and 1, or 'all'"
        )

    def _target(self, y: Any, weight: Array) -> tuple[Array, bool]:
        """(the target as a column for each output, whether these are classes)."""
        loss = self.loss
        if loss == "auto":
            kind = type_of_target(y, input_name="y")
            loss = "squared_error" if kind.startswith("continuous") or y.ndim > 1 else "log_loss"
        if loss == "squared_error":
            y = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
            y = y - weight @ y
            return y / _scale(y, weight), False
        check_classification_targets(y)
        if y.ndim > 1:
            raise ValueError(f"y has shape {y.shape}; expected one class for each sample")
        self.classes_, of_sample = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]}; expected at least two classes")
        return np.eye(len(self.classes_))[of_sample], True

    def _descend(
        self, X: Array, target: Array, weight: Array, classes: bool, random: Any
    ) -> tuple[Array, Path]:
        """(the scores, the path) of the gradient descent."""
        scores = _SPREAD * random.standard_normal(X.shape[1])
        coefficients = np.zeros((X.shape[1], target.shape[1]))
        bias = np.zeros(target.shape[1])
        model, choice = _Adam(coefficients, bias), _Adam(scores)
        temperatures = np.geomspace(*self.temperature, self.max_iter)
        every, found = -(-self.max_iter // _KEPT), []
        batches = _batches(len(X), self.batch_size, random)
        for step, temperature in enumerate(temperatures):
            batch = next(batches)
            p, vjp = thretopk.vjp(scores, self.k_, temperature=temperature, curve=self.curve)
            x, y, w = X[batch], target[batch], weight[batch]
            output = x @ (p[:, None] * coefficients) + bias
            loss, d_output = _loss(output, y, w / max(w.sum(), 1e-300), classes)
            by_feature = x.T @ d_output
            d_p = (by_feature * coefficients).sum(axis=1)
            # The scores learn ever more slowly and stand still from half-time on. From there
            # cooling alone decides between the last few; scores on the move would make up for it.
            slower = max(0.0, 1.0 - 2.0 * step / self.max_iter)
            decayed = p[:, None] * by_feature + self.alpha * coefficients
            model.step(self.learning_rate, decayed, d_output.sum(axis=0))
            choice.step(_SPAN / self.max_iter * slower, vjp(d_p).x)
            if step % every == 0 or step == self.max_iter - 1:
                found.append((temperature, loss, p))
            if self.verbose and step % max(1, self.max_iter // 10) == 0:
                print(f"[SoftSelectKBest] {_line(step, temperature, loss, p)}", flush=True)
        columns = zip(*found, strict=True)
        return scores, Path(*(np.array(column) for column in columns))

    def _get_support_mask(self) -> npt.NDArray[np.bool_]:
        check_is_fitted(self)
        chosen: npt.NDArray[np.bool_] = hardtopk(self.scores_, self.k_) == 1.0
        return chosen

    def __sklearn_tags__(self) -> Tags:
        """What scikit-learn asks of an estimator."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags


class _Adam:
    """Adam (Kingma and Ba, 2015) on arrays, in place."""

    def __init__(self, *arrays: Array) -> None:
        self._arrays = arrays
        self._means = [np.zeros_like(each) for each in arrays]
        self._squares = [np.zeros_like(each) for each in arrays]
        self._steps = 0

    def step(self, rate: float, *gradients: Array) -> None:
        self._steps += 1
        of_mean, of_square = 1.0 - 0.9**self._steps, 1.0 - 0.999**self._steps
        known = zip(self._arrays, gradients, self._means, self._squares, strict=True)
        for array, gradient, mean, square in known:
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            array -= rate * (mean / of_mean) / (np.sqrt(square / of_square) + 1e-8)


def _scale(X: Array, weight: Array) -> Array:
    """Standard deviations of centred columns, 1 for those that are constant."""
    deviation = np.sqrt(weight @ (X * X))
    return np.where(deviation > 0.0, deviation, 1.0)


def _batches(n: int, size: int | None, random: Any) -> Iterator[Any]:
    """Slices or indices of the samples of each step, without end."""
    while True:
        if size is None or size >= n:
            yield slice(None)
            continue
        order = random.permutation(n)
        yield from (order[i : i + size] for i in range(0, n, size))


def _loss(output: Array, y: Array, weight: Array, classes: bool) -> tuple[float, Array]:
    """(the mean loss of the samples, its gradient in the output)."""
    if classes:
        probability = softmax(output)
        of_class = np.maximum((probability * y).sum(axis=1), 1e-300)
        return float(-weight @ np.log(of_class)), weight[:, None] * (probability - y)
    off = output - y
    return float(0.5 * weight @ (off * off).sum(axis=1)), weight[:, None] * off


def _line(step: int, temperature: float, loss: float, p: Array) -> str:
    """A line of progress."""
    undecided = int(np.sum((p > 0.01) & (p < 0.99)))
    return (
        f"step {step}: temperature {temperature:.3g}, loss {loss:.4f}, {undecided} of {len(p)} "
        "features undecided"
    )
