"""Judged queries of sentences, from the ranges of text that answer them.

A sentence is relevant if it shares a visible character with the evidence of its query. Evidence of
which no retrieved sentence has any counts as missed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import Evidence, JudgedQuery, Snippet
from conformal_retrievers.data.sentences import Range, Split, Splitter, cut, splitter

__all__ = ["Evidence", "by_sentence"]


def by_sentence(judged: Iterable[JudgedQuery], split: Split) -> list[JudgedQuery]:
    """Return judged queries whose snippets are the sentences of the ones given.

    Queries that have been cut in the same way stay as they are. Evidence of a query is dropped, and
    `missed` is how much of it was not retrieved.

    >>> query = JudgedQuery("Who?", [Snippet("It rains. Ann did.", id="d")], [True],
    ...     evidence=[Evidence("d", 10, 13)])
    >>> (cut_one,) = by_sentence([query], "sentences")
    >>> [s.text for s in cut_one.snippets], cut_one.relevant, cut_one.missed
    (['It rains.', 'Ann did.'], (False, True), 0)

    Raises
    ------
    ValueError
        For a query with relevant snippets and no evidence; for evidence that is not in the text it
        names, or is in a document whose retrieved snippets have no position; for a query that was
        cut in another way.
    """
    cuts = splitter(split)
    return [_cut(query, cuts) for query in all_of(JudgedQuery, judged, "judged")]


def _cut(query: JudgedQuery, cuts: Splitter) -> JudgedQuery:
    if query.split == cuts.name:
        return query
    if query.split is not None:
        raise ValueError(
            f"{query.name}: split is {query.split!r}, but {cuts.name!r} is to cut it; cut the "
            "documents again, or leave split out"
        )
    if not query.evidence and (any(query.relevant) or query.missed):
        raise ValueError(
            f"{query.name}: evidence is empty, so it is unknown which sentences of its relevant "
            "snippets answer the query. Give evidence=[Evidence(document, start, end)], or label "
            "sentences with label_by_answer or label_by_llm(split=)"
        )
    sentences = cut(query.snippets, cuts)
    relevant = [False] * len(sentences.snippets)
    found: set[Evidence] = set()
    place = 0
    for snippet, ranges in zip(query.snippets, sentences.ranges, strict=True):
        evidence = list(_within(query.name, snippet, query.evidence))
        for start, end in ranges:
            for one, (first, last) in evidence:
                if snippet.text[max(start, first) : min(end, last)].strip():
                    relevant[place] = True
                    found.add(one)
            place += 1
    return replace(
        query,
        snippets=sentences.snippets,
        relevant=tuple(relevant),
        missed=len({*query.evidence} - found),
        evidence=(),
        split=sentences.split,
    )


def _within(
    where: str, snippet: Snippet, evidence: Iterable[Evidence]
) -> Iterator[tuple[Evidence, Range]]:
    """Yield the evidence that a snippet may have, each with its range in the snippet's text."""
    for one in evidence:
        document, start, end = one
        if document == snippet.id:
            if not snippet.text[start:end].strip() or end > len(snippet.text):
                raise ValueError(
                    f"{where}: evidence has the range ({start}, {end}) of {document!r}, a text of "
                    f"{len(snippet.text)} characters; give a range in it that is not blank"
                )
            yield one, Range(start, end)
        elif document == snippet.document:
            if snippet.position is None:
                raise ValueError(
                    f"{where}: evidence is in document {document!r}, and a snippet of it has no "
                    "position; give its position, or evidence by the id of the snippet"
                )
            yield one, Range(max(0, start - snippet.position), max(0, end - snippet.position))
