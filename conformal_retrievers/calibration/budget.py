"""A calibration at a number of tokens: the threshold is fixed, and the recall is certified.

The fit part gives the threshold t that keeps so many tokens a query. The calibration part does not
see how t was found, so that 1 − alpha, a lower confidence bound of what t reaches, holds for all
calibrations but a share delta:

    "query-recall"    the betting bound of the mean share of relevant snippets with a score ≤ t
    "all", "any"      Clopper and Pearson's bound of the share of queries

`Calibration.at` gives another alpha the threshold that follows from the scores, as usual.
"""

import math
from dataclasses import replace

from pydantic import JsonValue

from conformal_retrievers.calibration.calibration import Calibration

DELTA = 0.1  # by default


def checked(tokens: object, guarantee: str, delta: float | None, *, by_group: bool) -> float:
    """Return delta, by default 0.1; raise unless tokens is positive and can be certified."""
    if isinstance(tokens, bool) or not isinstance(tokens, (int, float)):
        raise TypeError(f"tokens is {tokens!r}; give how many tokens a query may keep on average")
    if not 0 < tokens < math.inf:
        raise ValueError(f"tokens is {tokens!r}; give a number above 0")
    if guarantee == "snippet" or by_group:
        raise ValueError(
            f"tokens is {tokens!r} with guarantee {guarantee!r} and by_group {by_group}; the "
            "recall can be certified for 'query-recall', 'all' and 'any', not by group"
        )
    return DELTA if delta is None else delta


def certified(
    calibration: Calibration, tokens: float, threshold: float, unit: str = "tokens"
) -> Calibration:
    """Return the calibration at a fixed threshold, with the alpha that its scores certify.

    `unit` is "tokens" or "characters", what `tokens` counts. Raises ValueError if the threshold
    keeps everything, or nothing that can be certified.
    """
    if threshold == math.inf:
        raise ValueError(
            f"tokens is {tokens:g}, and all retrieved snippets of the fit part have fewer a query; "
            "retrieve deeper, or give fewer tokens"
        )
    recall = calibration.units().certified(threshold, calibration.delta or DELTA)
    alpha = math.ceil(round(1e4 * (1 - recall), 6)) / 1e4
    if not alpha < 1:
        raise ValueError(
            f"tokens is {tokens:g}, which certifies no recall with {calibration.n_queries} "
            "queries; give more tokens, or judge more queries"
        )
    details: dict[str, JsonValue] = {"tokens": float(tokens), "unit": unit, "threshold": threshold}
    return replace(calibration, alpha=alpha, details=details)
