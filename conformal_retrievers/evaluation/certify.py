"""What a threshold promises that is fixed already, from judged queries that it did not look at.

It keeps each unit or loses it: kept units are Binomial, and Clopper and Pearson 1934 bound their
probability from below. Shares of a query are bounded by bets (`tolerance.py`). A threshold that was
calibrated with rank k of n units keeps a number of m new ones that is exactly
BetaBinomial(m; k, n + 1 − k) without ties (Marques 2023, arXiv 2303.02770), which says how
surprising a measured coverage is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import Guarantee, check_guarantee, digest
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.ranks import check_probability, conformal_rank
from conformal_retrievers.theory.tolerance import (
    beta_binomial_cdf,
    betting_lower,
    binomial_lower,
    tolerance_rank,
)


@dataclass(frozen=True)
class Certificate:
    """What `certify` found: `coverage` measured on `n` queries is above `lower` with `confidence`.

    `surprise` is the probability of a coverage this low or lower if the calibration's promise holds
    exactly, None where it is not known exactly.
    """

    guarantee: Guarantee
    n: int
    coverage: float
    lower: float
    confidence: float
    surprise: float | None

    def __str__(self) -> str:
        text = (
            f"coverage {self.coverage:.3f} on {self.n} queries, at least {self.lower:.3f} with "
            f"confidence {self.confidence:g} (guarantee {self.guarantee!r})"
        )
        if self.surprise is not None:
            text += f"; so low or lower with probability {self.surprise:.2g} if the promise holds"
        return text


def certify(
    calibration_or_threshold: Calibration | float,
    scored: Iterable[ScoredQuery],
    *,
    guarantee: Guarantee | None = None,
    confidence: float = 0.9,
    count_missed: bool | None = None,
) -> Certificate:
    """Bound the realised coverage of a threshold from below, on judged queries it did not look at.

    The guarantee, and whether relevant snippets that were not retrieved count as lost, are the
    calibration's own, unless given; a bare threshold needs a guarantee. Raises
    ValueError for "snippet", whose units are not independent, for an unknown guarantee, a
    confidence outside (0, 1), a query whose id is one of the
    calibration's or comes twice, or where no query has a relevant retrieved snippet.
    """
    given = calibration_or_threshold
    calibration = given if isinstance(given, Calibration) else None
    guarantee = guarantee or (calibration.guarantee if calibration is not None else None)
    if guarantee is None:
        raise ValueError("guarantee is missing; name what a bare threshold is certified for")
    check_guarantee(guarantee, None)
    if guarantee == "snippet":
        raise ValueError(
            "guarantee is 'snippet', but snippets of a query are kept and lost together, so that "
            "no bound for single ones holds; certify 'query-recall', 'all' or 'any'"
        )
    delta = 1 - check_probability("confidence", confidence, "how sure the bound is to be", 0.9)
    if count_missed is None:
        count_missed = calibration is not None and calibration.count_missed
    queries = _in_fixed_order(scored)
    if calibration is not None:
        _check_unseen(queries, calibration)
    shares = _shares(queries, _keeper(given), count_missed)
    if guarantee == "query-recall":
        lower = betting_lower(shares, delta)
    else:
        shares = (shares == 1 if guarantee == "all" else shares > 0).astype(np.float64)
        lower = binomial_lower(int(shares.sum()), len(shares), delta)
    return Certificate(
        guarantee,
        len(shares),
        float(shares.mean()),
        lower,
        confidence,
        _surprise(calibration, guarantee, shares),
    )


def _in_fixed_order(scored: Iterable[ScoredQuery]) -> list[ScoredQuery]:
    """Return the queries in the order of a hash of their ids: bets must not depend on scores."""
    queries = list(scored)
    for i, query in enumerate(queries):
        if not isinstance(query, ScoredQuery):
            raise TypeError(
                f"scored[{i}] is {query!r:.60}; give ScoredQuery objects, as "
                "score_queries(scorer, judged) returns them"
            )
    ids = Counter(query.id for query in queries if query.id is not None)
    twice = next((id for id, times in ids.items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"query id {twice!r} occurs {ids[twice]} times; give each query once")
    order = sorted(range(len(queries)), key=lambda i: digest(queries[i].id, i))
    return [queries[i] for i in order]


def _check_unseen(queries: Sequence[ScoredQuery], calibration: Calibration) -> None:
    seen = calibration.ids
    for query in queries:
        if query.id in seen:
            raise ValueError(
                f"{query.name} is one of those that the calibration was made from, by its id; "
                "certify on judged queries that it did not look at"
            )


def _keeper(given: Calibration | float) -> Callable[[ScoredQuery], NDArray[np.bool_]]:
    if isinstance(given, Calibration):
        return lambda query: given.keep(query.scores, query.group)
    threshold = float(given)
    if math.isnan(threshold):
        raise ValueError("threshold is nan; give the largest score that is kept")
    return lambda query: (query.scores <= threshold) | np.isnan(query.scores)


def _shares(
    scored: Iterable[ScoredQuery],
    keep: Callable[[ScoredQuery], NDArray[np.bool_]],
    count_missed: bool,
) -> NDArray[np.float64]:
    """Return the share kept of each query's relevant snippets, of queries that have some."""
    shares = []
    for query in scored:
        known = int(query.relevant.sum()) + query.missed * count_missed
        if known:
            shares.append(float((keep(query) & query.relevant).sum()) / known)
    if not shares:
        raise ValueError("no judged query has a relevant retrieved snippet; judge some that have")
    return np.array(shares)


def _surprise(
    calibration: Calibration | None, guarantee: Guarantee, shares: NDArray[np.float64]
) -> float | None:
    if calibration is None or calibration.by_group or guarantee != calibration.guarantee:
        return None
    if guarantee not in ("all", "any"):
        return None
    n = calibration.n_queries
    k = (
        conformal_rank(n, calibration.alpha)
        if calibration.delta is None
        else tolerance_rank(n, calibration.alpha, calibration.delta)
    )
    if k > n:
        return None
    return float(beta_binomial_cdf(len(shares), k, n + 1 - k)[int(shares.sum())])
