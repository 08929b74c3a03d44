"""The filter of claims: a scorer and its calibration; a claim is kept iff R(c) > threshold.

filtered = ClaimFilter(scorer, calibration)(query, claims, documents)
filtered.kept_claims
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.claims.scores import ClaimScorer
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.results import Decision


@dataclass(frozen=True, eq=False)
class FilteredClaims(Decision):
    """What a filter decided about the p claims of one answer, in their order."""

    claims: tuple[str, ...] = ()

    @property
    def relevance(self) -> NDArray[np.float64]:
        """The relevances (p,), NaN for a claim that could not be scored."""
        return self.scores

    @property
    def kept_claims(self) -> tuple[str, ...]:
        """The kept claims."""
        return tuple(self.claims[i] for i in self.kept)


@dataclass(frozen=True)
class ClaimFilter:
    """Keeps the claims of an answer whose relevance is above the threshold of the calibration.

    `group_of` gives the group of a query from its text, for calibrations by group. Nothing is kept
    for a query without a group or of an unknown one, with a warning.

    Raises `CalibrationMismatch` for the calibration of another scorer or subject.
    """

    scorer: ClaimScorer
    calibration: Calibration
    group_of: Callable[[str], str | None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.check_subject(self.calibration, CLAIMS)
        needed = "an object with a name and relevance(query, claims, documents): ClaimRelevance(…)"
        checks.check_type(ClaimScorer, needed, scorer=self.scorer)
        checks.check_same_scorer(self.scorer.name, calibrated=self.calibration.scorer)

    def __call__(
        self,
        query: str,
        claims: Iterable[str],
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredClaims:
        """Score the p claims of an answer to a query and decide which to keep.

        `documents` are the texts or snippets that the answer was written from, and `group` is that
        of the query, by default what `group_of` returns. Without claims the scorer is not called.
        """
        checks.check_query(query)
        claims, documents = all_of(str, claims, "claims"), as_snippets(documents, "documents")
        relevance = self.scorer.relevance(query, claims, documents) if claims else np.empty(0)
        return self.decide(query, claims, relevance, group)

    async def acall(
        self,
        query: str,
        claims: Iterable[str],
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredClaims:
        """As `__call__`, without blocking the event loop."""
        checks.check_query(query)
        claims, documents = all_of(str, claims, "claims"), as_snippets(documents, "documents")
        in_thread: Callable[..., Any] = asyncio.to_thread
        arelevance = getattr(self.scorer, "arelevance", partial(in_thread, self.scorer.relevance))
        relevance = await arelevance(query, claims, documents) if claims else np.empty(0)
        return self.decide(query, claims, relevance, group)

    def decide(
        self, query: str, claims: Iterable[str], relevance: ArrayLike, group: str | None = None
    ) -> FilteredClaims:
        """As `__call__`, from known relevances (p,); raises ValueError for another number."""
        claims = tuple(all_of(str, claims, "claims"))
        name = f"relevances of {self.scorer.name!r}"
        r = np.array(as_scores(relevance, name, len(claims), "claims"))
        if group is None and self.group_of is not None:
            group = self.group_of(query)
        if claims:
            self.calibration.warn_if_unknown(group, "no claim is kept")
        return FilteredClaims(r, self.calibration.keep(r, group), self.calibration, group, claims)
