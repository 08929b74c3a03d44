"""Query scores from what is known already: the scores of a query's snippets, and the hits.

Of the finite scores s_1 ≤ … ≤ s_n of a query's snippets, `ScoreSummary` is one number:

    best                 s_1
    best against mean    s_1 − mean(s_2, …, s_n)
    margin               s_1 − s_2
    share of best        −(s_n − s_1) / Σ_i (s_n − s_i), and −1/n if all are equal

"best" alone is absolute: the others compare the best snippet with those around it, need two finite
scores, and cannot see that all snippets are far away. `RankAgreement` is, for two retrievers,

    −1/10 Σ_{d = 1}^{10} |the first d of both| / d

and for more the mean over their pairs (the average overlap of Fagin, Kumar and Sivakumar 2003).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import JsonValue

from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.hits import hits_in
from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.scoring.answerability import CombinedQueryScorer
from conformal_retrievers.scoring.hits import Columns, check_found, named_in, retrievers_of
from conformal_retrievers.scoring.scorer import Scorer, Scores, check_scorer, reference

Number = Literal["best", "best against mean", "margin", "share of best"]
DEPTH = 10  # of the lists that are compared


@dataclass(frozen=True)
class ScoreSummary(CombinedQueryScorer):
    """Scores a query by one number of its snippets' scores, see above; NaN if there are too few.

    Where the scores are those of a retriever that found nothing and others did, it is +inf. Raises
    ValueError for another number.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> [ScoreSummary(length, n).score_query("q", ["abc", "abcde", "a"]) for n in NUMBERS]
    [1.0, -3.0, -2.0, -0.6666666666666666]
    """

    scorer: Scorer
    number: Number

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        if self.number not in NUMBERS:
            known = ", ".join(map(repr, NUMBERS))
            raise ValueError(f"number is {self.number!r:.60}; give one of {known}")

    @property
    def name(self) -> str:
        """The number, and the scorer whose scores it summarises."""
        return f"{self.number}({self.scorer.name})"

    @property
    def parts(self) -> tuple[Scorer]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `query_scorer_of` makes it from."""
        return {"kind": "summary", "number": self.number, "scorer": reference(self.scorer)}

    def combine(self, query: str, found: Sequence[Scores], snippets: Sequence[Snippet]) -> float:
        """Return the number of the scores (n,), +inf if they are of a retriever without a hit."""
        read, known = retrievers_of(self.scorer), hits_in(snippets)
        if read and known and known.keys().isdisjoint(read):
            return np.inf
        return summary(found[0], self.number)


def summary(scores: ArrayLike, number: Number) -> float:
    """Return one number of the finite scores (n,), see above.

    >>> summary([0.2, np.nan, 0.8, np.inf], "margin").__round__(6)
    -0.6
    """
    s = as_scores(scores, "scores")
    s = np.sort(s[np.isfinite(s)])  # sums of floats depend on the order
    return float(NUMBERS[number](s)) if len(s) >= (1 if number == "best" else 2) else np.nan


def _share_of_best(s: Scores) -> float:
    below = s[-1] - s
    return float(-below[0] / below.sum() if below[0] > 0 else -1 / len(s))


NUMBERS: dict[Number, Callable[[Scores], float]] = {
    "best": lambda s: s[0],
    "best against mean": lambda s: s[0] - s[1:].mean(),
    "margin": lambda s: s[0] - s[1],
    "share of best": _share_of_best,
}


@dataclass(frozen=True, init=False)
class RankAgreement:
    """Scores a query by how far several retrievers agree on the first places, see above: −1 to 0.

    It is 0 if one of them found nothing. Raises ValueError for fewer than two
    retrievers, and if the snippets do not have their hits.

    >>> from conformal_retrievers.data.hits import Hit
    >>> same = [Snippet(str(i), hits=(Hit("bm25", i), Hit("dense", i))) for i in range(10)]
    >>> RankAgreement(["dense", "bm25"]).score_query("q", same)
    -1.0
    """

    retrievers: tuple[str, ...]  # in alphabetical order, whatever order is given

    def __init__(self, retrievers: Iterable[str]) -> None:
        names = named_in(retrievers)
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(f"retrievers is {names!r}; give two or more names, each once")
        check_names("RankAgreement", retrievers=", ".join(names))
        object.__setattr__(self, "retrievers", names)

    @property
    def name(self) -> str:
        """The retrievers, marked as their agreement."""
        return f"agreement({', '.join(self.retrievers)})"

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `query_scorer_of` makes it from."""
        return {"kind": "agreement", "retrievers": [*self.retrievers]}

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the score of a query."""
        known = hits_in(as_snippets(snippets))
        check_found(repr(self.name), self.retrievers, known)
        return self.of_columns(known)

    def of_columns(self, columns: Columns) -> float:
        """Return the score from the hits of each retriever."""
        if not all(name in columns for name in self.retrievers):
            return 0.0
        ranks = [columns[name].ranks for name in self.retrievers]
        both = [np.maximum(a, b) for a, b in combinations(ranks, 2)]
        return 0.0 - float(np.mean([_WORTH[np.minimum(m, DEPTH).astype(int)].sum() for m in both]))


# A snippet that both have among their first r + 1, and not among fewer, is in the terms from there.
_WORTH = np.append(np.cumsum(1 / np.arange(DEPTH, 0.0, -1))[::-1], 0.0) / DEPTH
