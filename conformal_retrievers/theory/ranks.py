"""Split conformal prediction over arrays of nonconformity scores (lower = more relevant).

Calibration scores A_1 … A_n come from K queries. A_i is one of the N_q(i) relevant snippets of its
query, so 1/N_q(i) is its share of that query. The threshold is the smallest calibration score with
enough of the calibration at or below it:

    snippet        τ = the k-th smallest of A_1 … A_n,  k = ⌈(n + 1)(1 − α)⌉
    query-recall   τ = min { v :  Σ_{A_i ≤ v} 1/N_q(i)  ≥  (1 − α)(K + 1) }

It is +inf, which keeps everything, if even the largest score does not have enough. The +1 is the
new query, which may score above all others.

α is read as the decimal that the user wrote (0.1 is 1/10, not 0.1000000000000000055…), and ranks
and sums are exact. In floats, some (n, α) get the wrong rank, and a sum depends on its order.

Sources: Vovk, Gammerman, Shafer 2005, "Algorithmic Learning in a Random World"; Angelopoulos et
al. 2024, "Conformal Risk Control" (arXiv 2208.02814; the loss is the dropped share of a query's
relevant snippets); Lee, Barber, Willett 2023 (arXiv 2306.06342; the same threshold as a quantile
over hierarchical data).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_probability(name: str, value: float, meaning: str) -> float:
    """Return a probability in (0, 1) as written; raise TypeError or ValueError for anything else.

    >>> check_probability("alpha", 20, "a risk")
    Traceback (most recent call last):
    ValueError: alpha is 20; give a risk strictly between 0 and 1, for 20 % give 0.2
    """
    _check_number(name, value)
    if not 0 < value < 1:  # NaN fails every comparison
        as_share = f", for {value:g} % give {value / 100:g}" if 1 <= value < 100 else ""
        if name == "alpha" and 50 < value < 100:
            as_share = f", to keep {value:g} % give {1 - value / 100:.3g}"
        remedy = f"give {meaning} strictly between 0 and 1{as_share}"
        raise ValueError(f"{name} is {value!r:.80}; {remedy}")
    return float(str(value))  # as written, at any precision


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise TypeError(f"{name} is {value!r:.80}; give a number")


def exact_alpha(alpha: float) -> Fraction:
    """Return alpha as the decimal that it prints as; raise unless it is a number in (0, 1).

    >>> exact_alpha(0.1)
    Fraction(1, 10)
    """
    check_probability("alpha", alpha, "a risk")
    return Fraction(str(alpha))


def exact_share(share: float) -> Fraction:
    """Return a share as the decimal that it prints as; raise unless it is a number in (0, 1].

    >>> exact_share(0.9)
    Fraction(9, 10)
    """
    _check_number("share", share)
    if not 0 < share <= 1:
        remedy = "give a number above 0 and at most 1, such as 0.9"
        raise ValueError(f"share is {share!r:.80}; {remedy}")
    return Fraction(str(share))


def conformal_rank(n: int, alpha: float) -> int:
    """Return k = ⌈(n + 1)(1 − α)⌉, exactly; n + 1 if no calibration score has that rank.

    >>> conformal_rank(100, 0.1)  # ⌈101 · 0.9⌉
    91
    """
    return n + 1 - math.floor((n + 1) * exact_alpha(alpha))


def queries_needed(alpha: float) -> int:
    """Return the smallest n that allows a finite threshold, k(n, α) ≤ n: ⌈(1 − α)/α⌉.

    >>> queries_needed(0.1)
    9
    """
    a = exact_alpha(alpha)
    return math.ceil((1 - a) / a)


class Masses(NamedTuple):
    """What each calibration score counts, in whole numbers of a common unit, so sums are exact."""

    parts: NDArray[Any]  # (n,), the masses of the scores
    new: int  # that of a new query

    @classmethod
    def of(cls, sizes: ArrayLike) -> Masses:
        """Return the masses 1/N_q(i) of scores whose units have `sizes` N_q, (n,); a new query's 1.

        >>> Masses.of([3, 3, 1])  # two of a query's three scores, and another query's only one
        Masses(parts=array([1, 1, 3]), new=3)
        """
        n_q = np.asarray(sizes, dtype=np.int64)
        occurring = np.flatnonzero(np.bincount(n_q, minlength=2))
        unit = math.lcm(*occurring.tolist())
        # Python's own integers take over where 64 bits do not hold the sum.
        kind = np.int64 if unit * (len(n_q) + 1) < 2**63 else np.object_
        share = np.zeros(occurring.max(initial=1) + 1, dtype=kind)
        share[occurring] = [unit // m for m in occurring.tolist()]
        return cls(share[n_q], unit)


def mass_threshold(scores: ArrayLike, masses: Masses, alpha: float) -> float:
    """Return the first score v with Σ_{A_i ≤ v} mass_i ≥ (1 − α)(Σ mass_i + new mass), or +inf.

    Masses of 1 give the k(n, α)-th smallest score. Masses of 1/N_q give the query-recall threshold:
    the expected share of a new exchangeable query's relevant snippets with a score of at most this
    is ≥ 1 − α.

    >>> # Queries with scores (.1, .3), (.2), (.4, .9): the masses reach .6 · (3 + 1) at .4.
    >>> mass_threshold([0.1, 0.3, 0.2, 0.4, 0.9], Masses.of([2, 2, 1, 2, 2]), alpha=0.4)
    0.4
    """
    v = np.asarray(scores, dtype=np.float64)
    total = int(masses.parts.sum()) + masses.new
    needed = total - math.floor(exact_alpha(alpha) * total)  # ⌈(1 − α) total⌉
    order = np.argsort(v)
    first = int(np.searchsorted(np.cumsum(masses.parts[order]), needed))
    return float(v[order[first]]) if first < len(v) else math.inf


def p_value_steps(masses: Masses) -> NDArray[np.float64]:
    """Return p after 0, 1, …, n of the ordered calibration scores lie strictly below: (n + 1,).

    p = (new mass + Σ_{not below} mass_i) / (new mass + Σ mass_i), correctly rounded from the exact
    fraction. `masses` are in the order of the ascending scores.

    >>> p_value_steps(Masses.of([1, 1, 1]))
    array([1.  , 0.75, 0.5 , 0.25])
    """
    not_below = np.concatenate([np.cumsum(masses.parts[::-1])[::-1], [0]]) + masses.new
    if int(not_below[0]) >= 2**53:  # beyond, a float does not hold every whole number
        not_below = not_below.astype(np.object_)
    return np.asarray(not_below / not_below[0], dtype=np.float64)


def p_values(
    ordered_scores: NDArray[np.float64], steps: NDArray[np.float64], scores: ArrayLike
) -> NDArray[np.float64]:
    """Return the conformal p-value of each of `scores` (m,); NaN stays NaN.

    `ordered_scores` (n,) are the ascending calibration scores and `steps` (n + 1,) what
    `p_value_steps` returns for them. p > α exactly if the score is at most the threshold at α, up
    to rounding if α equals p. A relevant snippet of a new query has p ≤ α with probability at most
    α.

    >>> ordered = np.array([0.1, 0.2, 0.3])
    >>> p_values(ordered, p_value_steps(Masses.of([1, 1, 1])), [0.0, 0.2, 0.25])
    array([1.  , 0.75, 0.5 ])
    """
    s = np.asarray(scores, dtype=np.float64)
    return np.where(np.isnan(s), np.nan, steps[np.searchsorted(ordered_scores, s, side="left")])
