"""The filter of answers: divides an answer into claims, filters these, and merges them if wanted.

    filtered = AnswerFilter(claim_filter, llm)(query, answer, documents)
    filtered.text, filtered.claims.kept_claims

The guarantee is about the kept claims, which `text` states one after the other. An LLM can merge
them into another text, which is outside the guarantee. Events carry what was decided to the
frameworks' callbacks and to a `FilterLog`, like those of snippets (`monitoring/events.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from conformal_retrievers.claims.calibrate import share_of
from conformal_retrievers.claims.filter import ClaimFilter, FilteredClaims
from conformal_retrievers.claims.llm import (
    Decomposition,
    Merged,
    adecompose,
    amerge,
    decompose,
    joined,
    merge,
)
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import LLM, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.monitoring import events


@dataclass(frozen=True)
class FilteredAnswer:
    """What was kept of an answer."""

    answer: str
    text: str  # the kept claims, the merged text, or the abstention
    claims: FilteredClaims = field(repr=False)
    undivided: str | None  # the reason why the answer has no claims; None if it was divided
    merged: Merged | None  # None if the claims were not merged
    usage: Usage  # of dividing and merging

    @property
    def guaranteed(self) -> bool:
        """Whether the text states only the kept claims, or nothing, as an abstention does."""
        return self.merged is None or self.merged.guaranteed

    @property
    def details(self) -> dict[str, JsonValue]:
        """The decision as plain values, like `claims_event_of`, with each claim and p-value."""
        c = self.claims
        entries: list[JsonValue] = [
            {"claim": claim, "relevance": events.json_number(r), "p_value": events.json_number(p)}
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
    """Divides an answer into claims with an LLM, and keeps those that `filter` keeps."""

    filter: ClaimFilter
    llm: LLM  # divides; use the LLM and prompt that divided the calibration's answers
    prompt: Prompt | None = field(default=None, kw_only=True)  # as in `decompose`
    merge_with: LLM | None = field(default=None, kw_only=True)  # merges the kept claims
    abstention: str = field(default="I cannot answer this reliably.", kw_only=True)  # for no claim
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.filter, ClaimFilter):
            raise TypeError(f"filter is {self.filter!r:.60}; give a ClaimFilter")
        for name, llm in (("llm", self.llm), ("merge_with", self.merge_with or self.llm)):
            check_llm(llm, name)

    def __call__(
        self, query: str, answer: str, documents: Iterable[Snippet | str], group: str | None = None
    ) -> FilteredAnswer:
        """Return what is kept of an answer that was written from documents.

        `documents` and `group` are as in `ClaimFilter`.
        """
        documents = as_snippets(documents, "documents")  # before anything is asked and paid for
        divided = decompose(self.llm, query, answer, prompt=self.prompt, cache=self.cache)
        claims = self.filter(query, divided.claims, documents, group)
        merged = None
        if self.merge_with is not None:
            merged = merge(self.merge_with, query, claims.kept_claims, cache=self.cache)
        return self._filtered(answer, divided, claims, merged)

    async def acall(
        self, query: str, answer: str, documents: Iterable[Snippet | str], group: str | None = None
    ) -> FilteredAnswer:
        """As `__call__`, without blocking the event loop."""
        documents = as_snippets(documents, "documents")
        divided = await adecompose(self.llm, query, answer, prompt=self.prompt, cache=self.cache)
        claims = await self.filter.acall(query, divided.claims, documents, group)
        merged = None
        if self.merge_with is not None:
            merged = await amerge(self.merge_with, query, claims.kept_claims, cache=self.cache)
        return self._filtered(answer, divided, claims, merged)

    def _filtered(
        self, answer: str, divided: Decomposition, claims: FilteredClaims, merged: Merged | None
    ) -> FilteredAnswer:
        text = joined(claims.kept_claims) if merged is None else merged.text
        usage = divided.usage if merged is None else divided.usage + merged.usage
        text = text or self.abstention
        return FilteredAnswer(answer, text, claims, divided.reason, merged, usage)


# --- events ---------------------------------------------------------------------------------------


def claims_event_of(filtered: FilteredAnswer, *, query: str | None = None) -> dict[str, Any]:
    """Return what a filter decided about one answer, as plain JSON values.

    `relevance` is in the order of the claims, None for one that could not be scored; `kept` and
    `unscorable` are places in it. `threshold` is "keep_none" for +inf and "keep_all" for −inf.
    `undivided` and `guaranteed` are those of `FilteredAnswer`.
    """
    claims, calibration = filtered.claims, filtered.claims.calibration
    fields = {
        "query": query,
        "share": float(share_of(calibration)),
        "threshold": calibration.subject.threshold_name(claims.threshold),
        "relevance": [events.json_number(r) for r in claims.relevance.tolist()],
        "undivided": filtered.undivided,
        "guaranteed": filtered.guaranteed,
    }
    return events.build_event(events.CLAIMS_EVENT, claims, fields)


def annotate_claims_span(filtered: FilteredAnswer) -> None:
    """Write the decision onto OpenTelemetry's current span: conformal.* attributes and an event."""
    event, claims = claims_event_of(filtered), filtered.claims
    facts = {name: event[name] for name in ("calibration", "alpha", "share", "guaranteed")}
    facts |= {name: len(getattr(claims, name)) for name in ("claims", "kept", "unscorable")}
    facts |= {"threshold": claims.threshold, "undivided": filtered.undivided or ""}
    events.set_on_span(events.CLAIMS_EVENT, lambda: facts)
