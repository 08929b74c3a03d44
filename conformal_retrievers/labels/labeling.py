"""Relevance labels from an LLM, which judges whether each snippet contains or supports a fact.

As in Chakraborty et al. 2025, arXiv 2511.17908. LLMs err.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from conformal_retrievers.data.checks import all_of, query_name
from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.data.sentences.cutting import Sentences, Split, cut
from conformal_retrievers.labels.sentences import ask_numbers
from conformal_retrievers.labels.wording import say
from conformal_retrievers.llm.ask import LLM, announce, ask_verdicts
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import VERDICT, Usage

logger = logging.getLogger("conformal_retrievers")


@dataclass(frozen=True)
class AnsweredQuery:
    """A query with its retrieved snippets, in the retriever's order, and its reference answer.

    Its parameters are its fields; a snippet may be given as a text. Raises as `JudgedQuery`.
    """

    query: str
    snippets: Sequence[Snippet]
    answer: str | None = None  # or the fact to be supported; without one, the query is the fact
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "snippets", tuple(as_snippets(self.snippets)))
        self.judged([False] * len(self.snippets))  # checks the rest before a label is paid for

    def judged(self, relevant: Iterable[bool], sentences: Sentences | None = None) -> JudgedQuery:
        """Return the query with a judgement for each snippet, or for each sentence of these."""
        snippets = self.snippets if sentences is None else sentences.snippets
        split = None if sentences is None else sentences.split
        marks = tuple(relevant)
        return JudgedQuery(self.query, snippets, marks, id=self.id, group=self.group, split=split)


@dataclass(frozen=True)
class Labelled:
    """Judged queries with the origin of their labels."""

    judged: tuple[JudgedQuery, ...]
    labels: Mapping[str, JsonValue]  # the origin, for `calibrate(labels=)`
    unlabelled: tuple[tuple[AnsweredQuery, Mapping[int, str]], ...] = ()  # why, by snippet's place
    usage: Usage = field(default_factory=Usage)


def label_by_llm(
    queries: Iterable[AnsweredQuery],
    llm: LLM,
    *,
    split: Split | None = None,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
    most_calls: int | None = None,
) -> Labelled:
    """Let an LLM judge whether each snippet contains or supports the query's answer.

    A query with a cut-off, refused or unreadable reply is in `unlabelled`. A blank snippet is
    irrelevant, and the LLM is not asked about it; equal texts of a query are asked about once. If
    none of the first 8 calls is answered, no further one is made.

    `prompt` has the fields $query, $fact and $snippet, or, with `split`, $query, $fact and
    $sentences. `split` cuts the snippets: the LLM is asked once a snippet for the numbers of the
    sentences that count, or several times where there are more than 50, and the judged queries are
    of sentences.

    `concurrency`, `cache` and `progress` are as for `ask`. With a cache, a repeated run asks only
    for what is unlabelled. The number of calls is logged before the first, or printed on stderr
    above the progress bar. If it is above `most_calls`, none is made; give 0 to learn the number.

    Raises TypeError for other objects than `AnsweredQuery`, such as queries that are judged
    already, and ValueError for a prompt with other fields, for a blank answer, naming its query,
    and for more calls than `most_calls`, with their number.
    """
    queries = all_of(AnsweredQuery, queries, "queries")
    prompt = prompt or Prompt.load("label_sentences" if split else "label")

    def before(n: int, missing: int) -> None:
        snippets = sum(len(query.snippets) for query in queries)
        text = (
            f"{len(queries):,} questions with {snippets:,} snippets take {n:,} calls of "
            f"{llm.name}, {n - missing:,} of them in the cache"
        )
        if most_calls is not None and missing > most_calls:
            raise ValueError(say("more calls", most=most_calls, text=text, missing=missing))
        announce(text, progress)

    options: dict[str, Any] = {"concurrency": concurrency, "cache": cache, "progress": progress}
    options |= {"before": before, "give_up": True}
    cuts = [cut(query.snippets, split) for query in queries] if split else []
    facts = [_fields(query) for query in queries]
    verdicts: Sequence[bool | str | list[bool]]
    if split:
        documents = [
            (fields, [document.text[start:end] for start, end in ranges])
            for fields, sentences in zip(facts, cuts, strict=True)
            for document, ranges in zip(sentences.documents, sentences.ranges, strict=True)
            if document.text.strip()
        ]
        verdicts, usage = ask_numbers(llm, prompt, documents, **options)
    else:
        requests = [
            prompt.request({**fields, "snippet": s.text}, schema=VERDICT)
            for fields, query in zip(facts, queries, strict=True)
            for s in query.snippets
            if s.text.strip()
        ]
        verdicts, usage = ask_verdicts(llm, requests, **options)
    judged, unlabelled = [], []
    verdict = iter(verdicts)
    for i, query in enumerate(queries):
        given = [s.text.strip() != "" and next(verdict) for s in query.snippets]
        if reasons := {i: value for i, value in enumerate(given) if isinstance(value, str)}:
            unlabelled.append((query, reasons))
        else:
            marks = [mark if isinstance(mark, list) else [mark is True] for mark in given]
            relevant = [mark for of_snippet in marks for mark in of_snippet]
            judged.append(query.judged(relevant, cuts[i] if split else None))
    if unlabelled:
        logger.warning("%s", say("no verdict", n=len(unlabelled), of=len(queries)))
    labels: dict[str, JsonValue] = {"source": "LLM", "llm": llm.name, "prompt": prompt.hash}
    labels |= {"queries": len(judged), "queries_without_verdict": len(unlabelled)}
    return Labelled(tuple(judged), labels, tuple(unlabelled), usage)


def _fields(query: AnsweredQuery) -> dict[str, str]:
    name, fact = ("query", query.query) if query.answer is None else ("answer", query.answer)
    if not fact.strip():
        where = query_name(query.id, query.query)
        raise ValueError(f"{where}: {name} is {fact!r:.60}; give the fact to be supported")
    return {"query": query.query, "fact": fact}
