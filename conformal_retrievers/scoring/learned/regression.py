"""A logistic regression whose coefficients have a Gaussian prior.

    b = argmin  Σ_i w_i log(1 + exp(−(2 y_i − 1) b·x_i))  +  ½ Σ_j ((b_j − m_j) / s_j)²

with features x_i, judgements y_i ∈ {0, 1} and weights w_i, and the prior's means m and standard
deviations s. The sum is convex, and Newton's method goes to its one minimum. Without any x_i, b is
the mean of the prior.
"""

import numpy as np

from conformal_retrievers.scoring.hit_features import Known, Values

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
    # By einsum, not by @: threads of BLAS wait for each other beside a busy core, for matrices that
    # one has multiplied by then, and their number may change the last bits.
    y, w = relevant.astype(np.float64), np.ones(len(table)) if weights is None else weights
    precision = 1 / np.square(sd)

    def total(b: Values) -> float:
        log_odds = np.einsum("ij,j", table, b)
        loss = w @ (np.logaddexp(0, log_odds) - y * log_odds)
        return float(loss + precision @ np.square(b - mean) / 2)

    b, least = mean, total(mean)
    for _ in range(100):
        p = 1 / (1 + np.exp(-np.clip(np.einsum("ij,j", table, b), -500, 500)))
        gradient = np.einsum("ij,i", table, w * (p - y)) + precision * (b - mean)
        curvature = np.einsum("ji,ik", table.T * (w * p * (1 - p)), table) + np.diag(precision)
        step = np.linalg.lstsq(curvature, gradient, rcond=None)[0]
        while (smaller := total(b - step)) > least and np.abs(step).max() > TOLERANCE:
            step = step / 2
        if least - smaller <= TOLERANCE:
            break
        b, least = b - step, smaller
    return b
