"""An answer's text in, its factual claims out: divide, filter, and merge if wanted.

    filtered = AnswerFilter(claim_filter, llm)(query, answer, documents)
    filtered.text, filtered.claims.kept, filtered.claims.dropped

What is promised is about the kept claims, which `text` states one after the other. An LLM can merge
them into one text, which is then outside the guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import JsonValue

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.claims.dividing import Decomposition, adecompose, decompose
from conformal_retrievers.claims.filter import ClaimFilter, FilteredClaims
from conformal_retrievers.claims.merging import Merged, amerge, joined, merge
from conformal_retrievers.claims.texts import as_documents, check_text
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.filtering import NothingKept
from conformal_retrievers.llm.ask import LLM, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.monitoring.events import json_number


@dataclass(frozen=True)
class FilteredAnswer:
    """What was kept of an answer: `text`, the abstention where nothing was.

    `undivided` says why the answer could not be divided into claims, so that nothing of it is kept:
    "unanswered", "refused", "cut off" or "unreadable"; None where it was. `merged` is what an LLM
    made of the kept claims, if one was to. `usage` is what dividing and merging took.
    """

    answer: str
    text: str
    claims: FilteredClaims = field(repr=False)
    undivided: str | None
    merged: Merged | None
    usage: Usage

    @property
    def calibration(self) -> Calibration:
        """The calibration that the claims were filtered by."""
        return self.claims.calibration

    @property
    def guaranteed(self) -> bool:
        """Whether the guarantee is about the text: whether it is the kept claims, and no more.

        It is True for the abstention as well, of which nothing is kept, also where the answer was
        not divided: nothing of the answer is stated, and so nothing that is not factual.
        """
        return self.merged is None or self.merged.guaranteed

    @property
    def details(self) -> dict[str, JsonValue]:
        """The decision as plain values: each claim kept or removed, with relevance and p-value.

        A relevance is None for a claim that could not be scored, a threshold "keep_none" where it
        is +inf and "keep_all" where it is −inf.
        """
        c = self.claims
        entries: list[JsonValue] = [
            {"claim": claim, "relevance": json_number(r), "p_value": json_number(p)}
            for claim, r, p in zip(c.claims, c.relevance.tolist(), c.p_values.tolist(), strict=True)
        ]
        return {
            "kept": [entries[i] for i in c.kept],
            "removed": [entries[i] for i in c.dropped],
            "threshold": c.calibration.subject.threshold_name(c.threshold),
            "alpha": c.calibration.alpha,
            "scorer": c.calibration.scorer,
            "guaranteed": self.guaranteed,
            "undivided": self.undivided,
        }


@dataclass(frozen=True)
class AnswerFilter:
    """Divides an answer into claims with an LLM, and keeps those that `filter` keeps.

    `llm` and `prompt` (as in `decompose`) are to be those that the calibration's answers were
    divided with. `merge_with` is the LLM that merges the kept claims, None to leave them as they
    are. `abstention` is the text of an answer of which nothing is kept: one that has no claims,
    none above the threshold, or that could not be divided, which only keeping nothing preserves the
    guarantee of. Raises TypeError for a filter, an LLM or an abstention of another kind.
    """

    filter: ClaimFilter
    llm: LLM
    prompt: Prompt | None = field(default=None, kw_only=True)
    merge_with: LLM | None = field(default=None, kw_only=True)
    abstention: str = field(default="I cannot answer this reliably.", kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.filter, ClaimFilter):
            raise TypeError(
                f"filter is a {type(self.filter).__name__}, {self.filter!r:.60}; give a "
                "ClaimFilter: ClaimFilter(scorer, calibration)"
            )
        check_llm(self.llm)
        if self.merge_with is not None:
            check_llm(self.merge_with, "merge_with")
        check_text("abstention", self.abstention, "the text of an answer of which nothing is kept")

    def __call__(
        self,
        query: str,
        answer: str,
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredAnswer:
        """Return what is kept of an answer that was written from documents.

        `documents` are texts or snippets. Raises TypeError for a query, an answer or documents of
        another kind, and what calling `filter` does: `NothingKept`, if it was told to, also where
        the answer could not be divided.
        """
        documents = as_documents(documents)  # before anything is asked and paid for
        divided = decompose(self.llm, query, answer, prompt=self.prompt, cache=self.cache)
        try:
            claims = self.filter(query, divided.claims, documents, group)
        except NothingKept as error:
            if not error.of(self.filter.calibration):
                raise
            raise self._nothing_kept(str(error), answer, divided, error.filtered) from None
        self._check(answer, divided, claims)
        merged = None
        if self.merge_with is not None:
            merged = merge(self.merge_with, query, claims.kept_claims, cache=self.cache)
        return self._filtered(answer, divided, claims, merged)

    async def acall(
        self,
        query: str,
        answer: str,
        documents: Iterable[Snippet | str],
        group: str | None = None,
    ) -> FilteredAnswer:
        """Do what calling the filter does, without blocking the event loop."""
        documents = as_documents(documents)
        divided = await adecompose(self.llm, query, answer, prompt=self.prompt, cache=self.cache)
        try:
            claims = await self.filter.acall(query, divided.claims, documents, group)
        except NothingKept as error:
            if not error.of(self.filter.calibration):
                raise
            raise self._nothing_kept(str(error), answer, divided, error.filtered) from None
        self._check(answer, divided, claims)
        merged = None
        if self.merge_with is not None:
            merged = await amerge(self.merge_with, query, claims.kept_claims, cache=self.cache)
        return self._filtered(answer, divided, claims, merged)

    def _check(self, answer: str, divided: Decomposition, claims: FilteredClaims) -> None:
        if divided.reason is not None and self.filter.on_empty == "raise":
            said = (
                f"nothing is kept of an answer that {self.llm.name!r} did not divide into claims: "
                f"{divided.reason}"
            )
            raise self._nothing_kept(said, answer, divided, claims)

    def _nothing_kept(
        self, said: str, answer: str, divided: Decomposition, claims: FilteredClaims
    ) -> NothingKept:
        return NothingKept(said, self._filtered(answer, divided, claims, None))

    def _filtered(
        self, answer: str, divided: Decomposition, claims: FilteredClaims, merged: Merged | None
    ) -> FilteredAnswer:
        text = joined(claims.kept_claims) if merged is None else merged.text
        usage = divided.usage if merged is None else divided.usage + merged.usage
        return FilteredAnswer(
            answer, text or self.abstention, claims, divided.reason, merged, usage
        )
