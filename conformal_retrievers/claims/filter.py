"""The filter of claims: a scorer and its calibration; a claim is kept iff its relevance is above.

filtered = ClaimFilter(scorer, calibration)(query, claims, documents)
[claims[i] for i in filtered.kept]
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_same_scorer, check_subject
from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.claims.calibrate import named
from conformal_retrievers.claims.texts import as_claims, as_documents, check_text
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.filtering import Decision, NothingKept


@runtime_checkable
class ClaimScorer(Protocol):
    """Anything with a name and a relevance of claims.

    The name is its identity, as that of a `Scorer`. It may have an `arelevance`, which returns the
    same without blocking the event loop.
    """

    @property
    def name(self) -> str:
        """The scorer's identity."""

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> ArrayLike:
        """Return one number for each claim, (p,): higher = likelier factual, NaN = not scorable."""


@runtime_checkable
class AsyncClaimScorer(ClaimScorer, Protocol):
    """A scorer of claims that can also wait for its model without holding a thread."""

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> ArrayLike:
        """Return what `relevance` returns."""


@dataclass(frozen=True, eq=False)
class FilteredClaims(Decision):
    """What a filter decided about the p claims of one answer, in their order.

    `relevance` (p,) holds NaN for what could not be scored, which is dropped; `keeps` (p,) says
    what is kept. The `threshold` is what the relevance of a kept claim exceeds, +inf where nothing
    is kept.
    """

    claims: tuple[str, ...]
    relevance: NDArray[np.float64]
    keeps: NDArray[np.bool_]
    calibration: Calibration = field(repr=False)
    group: str | None = None

    @property
    def kept_claims(self) -> tuple[str, ...]:
        """The kept claims."""
        return tuple(self.claims[i] for i in self.kept)

    @property
    def _values(self) -> NDArray[np.float64]:
        return self.relevance


@dataclass(frozen=True)
class ClaimFilter:
    """Keeps the claims of an answer whose relevance is above the threshold of the calibration.

    `on_empty` says what happens when none of an answer's claims is kept: "allow" returns none,
    which abstains, "raise" raises `NothingKept`. The best one is not kept instead: it would be a
    claim that is not factual more often than promised. `group_of` tells the group of a query from
    its text, for calibrations by group whose callers do not name it; of a query without a group,
    or with one that the calibration does not know, nothing is kept then, with a warning.

    Raises `CalibrationMismatch` if the calibration was made with a scorer of another name,
    TypeError for arguments of another kind, and ValueError for another `on_empty`.
    """

    scorer: ClaimScorer
    calibration: Calibration
    on_empty: Literal["allow", "raise"] = field(default="allow", kw_only=True)
    group_of: Callable[[str], str | None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.calibration, Calibration):
            raise TypeError(
                f"calibration is {self.calibration!r:.80}; give a Calibration, from "
                "calibrate_claims(...) or Calibration.load(path)"
            )
        check_subject(self.calibration.subject, CLAIMS)
        if not isinstance(self.scorer, ClaimScorer):
            raise TypeError(
                f"scorer is a {type(self.scorer).__name__}, {self.scorer!r:.80}; give something "
                "with a name and relevance(query, claims, documents), such as "
                "ClaimRelevance(EmbeddingScorer(embed, name='…'))"
            )
        if self.group_of is not None and not callable(self.group_of):
            raise TypeError(
                f"group_of is a {type(self.group_of).__name__}, {self.group_of!r:.60}; give a "
                "function from a query's text to its group, or name the group where you call the "
                "filter: group='…'"
            )
        check_same_scorer(self.scorer.name, calibrated=self.calibration.scorer)
        if self.on_empty not in ("allow", "raise"):
            raise ValueError(
                f"on_empty is {self.on_empty!r}; give 'allow' or 'raise': to keep a claim that is "
                "not above the threshold would break the guarantee"
            )

    def __call__(
        self,
        query: str,
        claims: Iterable[str],
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredClaims:
        """Score the claims of an answer and decide which to keep; no claims, no scoring.

        Raises ValueError where the scorer does not return one number for each claim, TypeError for
        a query, claims or documents that are no texts (documents may be snippets), and
        `NothingKept` where none is kept, if the filter was told to.
        """
        claims, documents = as_claims(claims), as_documents(documents)
        relevance = self.scorer.relevance(query, claims, documents) if claims else np.empty(0)
        return self.decide(query, claims, relevance, group)

    async def acall(
        self,
        query: str,
        claims: Iterable[str],
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredClaims:
        """Do what calling the filter does, without blocking the event loop."""
        claims, documents = as_claims(claims), as_documents(documents)
        relevance: ArrayLike = np.empty(0)
        if claims and isinstance(self.scorer, AsyncClaimScorer):
            relevance = await self.scorer.arelevance(query, claims, documents)
        elif claims:
            relevance = await asyncio.to_thread(self.scorer.relevance, query, claims, documents)
        return self.decide(query, claims, relevance, group)

    def decide(
        self, query: str, claims: Iterable[str], relevance: ArrayLike, group: str | None = None
    ) -> FilteredClaims:
        """Decide from relevances (p,) that are at hand already."""
        claims = as_claims(claims)
        check_text("query", query, "the question's text")
        r = np.array(relevance, dtype=np.float64)
        if r.shape != (len(claims),):
            raise ValueError(
                f"scorer {self.scorer.name!r} returned an array of shape {r.shape} for "
                f"{len(claims)} claims; it must return one number for each"
            )
        if group is None and self.group_of is not None:
            group = self.group_of(query)
        known = self.calibration.groups
        if claims and not self.calibration.knows(group):
            # One text and one place, so that Python says it once, of each such group.
            said = "none" if group is None else f"the group {group!r}, which it does not know"
            warnings.warn(
                f"the calibration is by group, and a query has {said}, so nothing of its answer is "
                f"kept; it knows {named(known)}: give group=, or the filter group_of=",
                stacklevel=1,
            )
        keeps = self.calibration.keep(r, group)
        filtered = FilteredClaims(claims, r, keeps, self.calibration, group)
        if self.on_empty == "raise" and claims and not keeps.any():
            best = "nan" if np.isnan(r).all() else f"{np.nanmax(r):.6g}"
            raise NothingKept(
                f"none of {len(claims)} claims is kept: the best relevance is {best}, the "
                f"threshold {filtered.threshold:.6g}",
                filtered,
            )
        return filtered
