"""A logistic regression whose coefficients have a Gaussian prior.

    b = argmin  Σ_i w_i log(1 + exp(−(2 y_i − 1) b·x_i))  +  ½ Σ_j ((b_j − m_j) / s_j)²

with features x_i, judgements y_i ∈ {0, 1} and weights w_i, and the prior's means m and standard
deviations s. The sum is convex, and Newton's method goes to its one minimum. Without any x_i, b is
the mean of the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import pydantic

from conformal_retrievers.scoring.sources import Known, Values

TOLERANCE = 1e-9  # of the sum: the coefficients are then exact to four digits or more


def most_probable(
    table: Values, relevant: Known, mean: Values, sd: Values, weights: Values | None = None
) -> Values:
    """Return the coefficients (d,) that features (n, d) and judgements (n,) make most probable.

    A standard deviation may be infinite: then the prior says nothing of its coefficient.

    >>> table, relevant = np.array([[1.0], [1.0]]), np.array([True, True])
    >>> most_probable(table, relevant, mean=np.zeros(1), sd=np.ones(1)).round(2)
    array([0.67])
    """
    y, w = relevant.astype(np.float64), np.ones(len(table)) if weights is None else weights
    precision = 1 / np.square(sd)

    def total(b: Values) -> float:
        log_odds = table @ b
        loss = w @ (np.logaddexp(0, log_odds) - y * log_odds)
        return float(loss + precision @ np.square(b - mean) / 2)

    b, least = mean, total(mean)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(table @ b, -500, 500)))
        gradient = table.T @ (w * (p - y)) + precision * (b - mean)
        curvature = (table.T * (w * p * (1 - p))) @ table + np.diag(precision)
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        while (found := total(b - step)) > least and np.abs(step).max() > TOLERANCE:
            step = step / 2
        if least - found <= TOLERANCE:
            break
        b, least = b - step, found
    return b


# --- without a prior ------------------------------------------------------------------------------

SD = 0.1**0.5  # of the coefficients of standardised features


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


def regress(table: Values, relevant: Known, weights: Values) -> Regression:
    """Fit a logistic regression to features (n, d), judgements (n,) and weights (n,) of mean 1.

    >>> table = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> regress(table, np.array([True, True, False, False]), np.ones(4)).log_odds(table).round(1)
    array([ 0.2,  0.1, -0.1, -0.2])
    """
    means, scales = table.mean(axis=0), table.std(axis=0)
    scales[np.ptp(table, axis=0) == 0] = 1.0
    standard = np.hstack([(table - means) / scales, np.ones((len(table), 1))])
    d = table.shape[1]
    sd = np.append(np.full(d, SD), np.inf)
    *coefficients, intercept = most_probable(
        standard, relevant, np.zeros(d + 1), sd, weights
    ).tolist()
    return Regression(tuple(means.tolist()), tuple(scales.tolist()), tuple(coefficients), intercept)


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
