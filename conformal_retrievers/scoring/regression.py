"""A logistic regression on the features of snippets, and its weights.

    log-odds = intercept + Σ_j coefficient_j (feature_j − mean_j) / scale_j

scikit-learn fits it, and numpy alone scores. Given an alpha, it fits twice: the second time,
snippets count by how near they are to the threshold, since only there the score decides what is
kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import pydantic

from conformal_retrievers.scoring.sources import Known, Values

# The inverse of the L2 penalty on standardised features. Of 0.001, 0.01, 0.1, 1 and 10, tried on
# three data sets with 20, 60 and 200 queries, it kept at most 3 % more context than the best.
C = 0.1


@dataclass(frozen=True)
class Regression:
    """A logistic regression on d standardised features."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float

    def log_odds(self, table: Values) -> Values:
        """Return the log-odds (n,) of features (n, d)."""
        # Row by row, not as a matrix product: no score depends on another, even in its last bit.
        means, weights = self._arrays
        terms = (table - means) * weights
        return np.asarray(terms.sum(axis=1) + self.intercept)

    @cached_property
    def _arrays(self) -> tuple[Values, Values]:
        return np.array(self.means), np.array(self.coefficients) / self.scales


def regress(
    table: Values, relevant: Known, weights: Values | None = None, *, alpha: float | None = None
) -> Regression:
    """Fit a logistic regression with an L2 penalty to features (n, d) and judgements (n,).

    Weights (n,) have the mean 1. With an alpha, a second fit has the weights that `focused` gives.

    >>> table = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> regress(table, np.array([True, True, False, False])).log_odds(table).round(1)
    array([ 0.2,  0.1, -0.1, -0.2])
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    means, scales = table.mean(axis=0), table.std(axis=0)
    scales[np.ptp(table, axis=0) == 0] = 1.0
    # Newton's method to the optimum: other solvers stop on the way, elsewhere on each processor.
    fitted = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-8, max_iter=10_000)
    with warnings.catch_warnings():  # the start may be the optimum: no step is better
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted.fit((table - means) / scales, relevant, sample_weight=weights)
    regression = Regression(
        tuple(means.tolist()),
        tuple(scales.tolist()),
        tuple(fitted.coef_[0].tolist()),
        float(fitted.intercept_[0]),
    )
    if alpha is None:
        return regression
    every = np.ones(len(table)) if weights is None else weights
    return regress(table, relevant, focused(every, regression.log_odds(table), relevant, alpha))


Numbers = Sequence[pydantic.FiniteFloat]


class StoredRegression(pydantic.BaseModel):
    """The fields of a regression in a provenance."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    means: Numbers
    scales: Sequence[Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]]
    coefficients: Numbers
    intercept: pydantic.FiniteFloat

    def regression(self, features: int) -> Regression:
        """Return the regression; ValueError unless it is on so many features."""
        columns = [self.means, self.scales, self.coefficients]
        if {*map(len, columns)} != {features}:
            raise ValueError(
                "scorer_provenance: means, scales and coefficients do not have the length "
                f"{features} that its retrievers give; calibrate again"
            )
        means, scales, coefficients = map(tuple, columns)
        return Regression(means, scales, coefficients, self.intercept)


def weights_of(relevant: Iterable[Known]) -> Values:
    """Return the weight of each snippet in the fit, of mean 1, from the judgements of each query.

    The guarantee counts a relevant snippet as 1 / N_q of its query's N_q, and what is kept counts
    an irrelevant one as 1 / n_q of its n_q.

    >>> weights_of([np.array([True, False, False])])
    array([1.5 , 0.75, 0.75])
    """
    weights = [np.where(r, 1 / max(1, r.sum()), 1 / max(1, (~r).sum())) for r in relevant]
    joined = np.concatenate(weights)
    return np.asarray(joined / joined.mean())


def focused(weights: Values, log_odds: Values, relevant: Known, alpha: float) -> Values:
    """Return the weights (n,) of a second fit, of mean 1, from those and the log-odds of the first.

    With t the threshold, below which a share alpha of the weight of relevant snippets is, weights
    are multiplied by 1 / cosh²((log-odds − t) / 4), and those of relevant ones by exp(−t) too, or
    by e or 1/e if that is nearer to 1: so the second fit has its log-odds 0 nearer to t.

    >>> log_odds, relevant = np.array([-9.0, 0.0, 0.0, 9.0]), np.array([False, False, True, True])
    >>> focused(np.ones(4), log_odds, relevant, alpha=0.1).round(2)
    array([0.08, 1.92, 1.92, 0.08])
    """
    order = np.argsort(log_odds[relevant])
    below = np.cumsum(weights[relevant][order]) / weights[relevant].sum()
    first = int(np.searchsorted(below, alpha, side="right"))
    t = log_odds[relevant][order][min(first, len(order) - 1)]
    near = weights / np.cosh((log_odds - t) / 4) ** 2
    near = np.where(relevant, near * np.exp(np.clip(-t, -1, 1)), near)
    return np.asarray(near / near.mean())
