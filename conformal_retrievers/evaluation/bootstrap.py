"""The bootstrap over queries: a measure's interval is its spread over resampled queries.

In a resample each of n queries occurs as often as n draws with replacement have it. What is
compared is resampled together, which makes differences paired. A difference d is significant with
the power 0.8 at 5 % from n (2.80 se / d)² queries on, where se is the standard error on n of them.
"""

import math

import numpy as np
from numpy.typing import NDArray

CHUNK = 100  # resamples at a time, at most,
CELLS = 10**7  # and numbers at a time, which bounds the memory
SHOWS = 1.960 + 0.842  # standard errors: the normal quantiles of 0.975 and of the power 0.8
FEWEST = 10  # queries: the bootstrap of fewer has intervals that are far too short


def resampled(table: NDArray[np.float64], resamples: int = 2000) -> NDArray[np.float64]:
    """Return the sums (resamples, c) of a table (n, c) over resampled rows, each time the same."""
    n, rng = len(table), np.random.default_rng(0)
    chunk = max(1, min(CHUNK, CELLS // n))

    def drawn(some: int) -> NDArray[np.float64]:
        draws = (rng.integers(n, size=n) for _ in range(some))
        return np.stack([np.bincount(rows, minlength=n).astype(np.float64) for rows in draws])

    done = range(0, resamples, chunk)
    return np.concatenate([drawn(min(chunk, resamples - i)) @ table for i in done])


def spans(drawn: NDArray[np.float64], level: float) -> list[tuple[float, float]]:
    """Return the ends of the middle share `level` of each column of resamples (r, c)."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def n_to_tell(drawn: NDArray[np.float64], n: int, difference: float) -> float:
    """Return how many queries show a difference from 0, from its resamples (r,) on n queries.

    It is a multiple of 10, and NaN below 10 queries, where no resample differs, and for 0.
    """
    error = float(np.std(drawn))
    if n < FEWEST or not min(error, abs(difference)) > 1e-12:
        return math.nan
    return 10 * math.ceil(n * (SHOWS * error / difference) ** 2 / 10)
