"""Judged queries of sentences, or of whole chunks, from the ranges of text that answer them.

    relevant   a sentence that shares three visible characters or more with the evidence of its
               query, or all that it has; if none does, the one that shares the most
    missed     a piece of evidence of which ten characters or more were not retrieved: it counts as
               one sentence, because the number of sentences in it is unknown

A chunk is relevant if it has half of a piece of evidence, or is half evidence, and a piece of
which no chunk that was retrieved has so much is missed. Ranges are often a character or two off,
and between two chunks white space may be lost, so that 45 % is half.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from itertools import chain

from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.judged import check_retrieved
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.ranges import Evidence, Quote, Range
from conformal_retrievers.data.sentences.cutting import Split, Splitter, cut, splitter
from conformal_retrievers.data.wording import say

FEWEST = 3  # visible characters that a sentence shares with evidence
HALF = 0.45  # of the characters of a piece of evidence, or of a chunk
COMPARED = 200  # characters, at most, of two texts that state one place
BETWEEN = 10  # characters that were not retrieved; fewer may be white space between two chunks
NEAR = 0.8  # of a quote is in a passage, which is then it, with an error
MANY, LEAST = 1 / 3, 10  # a warning needs more than this share, of so many or more


def by_sentence(judged: Iterable[JudgedQuery], split: Split) -> list[JudgedQuery]:
    """Return judged queries whose snippets are the sentences of the ones given.

    Queries that have been cut in the same way stay as they are. Evidence of a query is dropped, and
    `missed` is how many pieces of it were not wholly retrieved, or that of the query if it is more.

    >>> query = JudgedQuery("Who?", [Snippet("It rains. Ann did.", id="d")], [True],
    ...     evidence=[Evidence("d", 10, 13)])
    >>> (cut_one,) = by_sentence([query], "sentences")
    >>> [s.text for s in cut_one.snippets], cut_one.relevant, cut_one.missed
    (['It rains.', 'Ann did.'], (False, True), 0)

    Raises ValueError for a query with relevant snippets and no evidence; for evidence that is not
    in the text it names, or is in a document whose retrieved snippets have no position; if ten
    documents or more are named, and none was retrieved; for a query that was cut in another way, or
    is not retrieved yet. Warns if over a third of the documents that evidence names, or all of two
    to nine, were retrieved for no query.
    """
    cuts, queries = splitter(split), all_of(JudgedQuery, judged, "judged")
    check_retrieved(queries)
    queries = located(queries, [query.snippets for query in queries])
    of_sentences = [_cut(query, cuts) for query in queries]
    _report(queries)
    return of_sentences


def _report(judged: Sequence[JudgedQuery]) -> None:
    """Warn if many documents that evidence names are unknown.

    Raises ValueError if ten or more are named, and all are unknown.
    """
    named = {piece.document for query in judged for piece in query.evidence}
    known = {name for query in judged for s in query.snippets for name in (s.id, s.document)}
    unknown = sorted(named - known)
    enough = len(named) >= LEAST
    if unknown and len(unknown) > (len(named) * MANY if enough else max(1, len(named) - 1)):
        near = get_close_matches(unknown[0], [*filter(None, known)][:5000], 1)
        nearest = f" (nearest: {near[0]!r:.60})" if near else ""
        facts = {"n": len(unknown), "total": len(named), "first": unknown[0], "nearest": nearest}
        message = say("documents not retrieved", **facts)
        if known and enough and len(unknown) == len(named):
            raise ValueError(message)
        warnings.warn(f"{message}; as it is, they count as missed", stacklevel=3)


def _cut(query: JudgedQuery, cuts: Splitter) -> JudgedQuery:
    if query.split == cuts.name:
        return query
    if query.split is not None:
        raise ValueError(say("cut otherwise", query=query, cuts=cuts))
    if not query.evidence and (any(query.relevant) or query.missed):
        raise ValueError(say("no evidence of sentences", query=query))
    sentences = cut(query.snippets, cuts)
    relevant: list[bool] = []
    left = {piece: {*range(piece.start, piece.end)} for piece in query.evidence}  # not retrieved
    for snippet, ranges in zip(query.snippets, sentences.ranges, strict=True):
        evidence = list(_within(query.name, snippet, query.evidence))
        for piece, (first, last) in evidence:
            before = piece.start - first  # of this text in what the evidence counts from
            left[piece] -= {*range(before + max(0, first), before + min(len(snippet.text), last))}
        marked = [_marked(snippet.text, ranges, within, piece) for piece, within in evidence]
        relevant += map(any, zip(*marked, strict=True)) if marked else [False] * len(ranges)
    missed = sum(len(chars) >= min(BETWEEN, e.end - e.start) for e, chars in left.items())
    return replace(
        query,
        snippets=sentences.snippets,
        relevant=tuple(relevant),
        missed=max(missed, query.missed or 0),
        evidence=(),
        split=sentences.split,
    )


def located(
    judged: Sequence[JudgedQuery], retrieved: Sequence[Sequence[Snippet]]
) -> list[JudgedQuery]:
    """Return queries with their quotes as ranges of documents; one that nothing has stays.

    Warns of quotes that stand there more than once, of which the first place counts. Raises
    ValueError, naming the query, for evidence that ends beyond a snippet with the id that it names,
    and for a quote that is not in it, or in part only in what is retrieved of a document; and for a
    document that has two texts at one place.
    """
    named = {piece.document for query in judged for piece in query.evidence}
    pieces: dict[str, set[tuple[int, str]]] = {}
    for s in chain.from_iterable(retrieved):
        if s.document in named and s.position is not None:
            pieces.setdefault(s.document, set()).add((s.position, s.text))
    wholes = {s.id: s.text for s in chain.from_iterable(retrieved) if s.id in named}
    texts = {name: _joined(name, parts) for name, parts in pieces.items()} | wholes
    quotes = [(q.name, e) for q in judged for e in q.evidence if isinstance(e, Quote)]
    if several := [(n, q) for n, q in quotes if _occurs_again(q.text, texts.get(q.document, ""))]:
        name, quote = several[0]
        facts = {"n": len(several), "total": len(quotes), "name": name, "quote": quote}
        warnings.warn(say("several places", **facts), stacklevel=4)
    return [
        replace(q, evidence=tuple(_located(q.name, piece, texts, wholes) for piece in q.evidence))
        if q.evidence
        else q
        for q in judged
    ]


def _occurs_again(quote: str, text: str) -> bool:
    first = text.find(quote)
    return first >= 0 and text.find(quote, first + 1) >= 0


def _joined(document: str, pieces: Iterable[tuple[int, str]]) -> str:
    """Return what is known of a document, with NUL for other characters.

    Raises ValueError if two pieces state one place, and have other texts there: over half of the
    second, since a heading that was put before it may stand there.

    >>> _joined("d", [(0, "Warranty: Ann did it in"), (10, "Warranty: on Monday, in the rain.")])
    'Warranty: Warranty: on Monday, in the rain.'
    """
    text = ""
    for start, piece in sorted(pieces):
        known = text[start : start + min(len(piece), COMPARED)]
        both = known, piece[: len(known)]
        alike = both[0] == both[1] or SequenceMatcher(None, *both, autojunk=False).ratio() > HALF
        if len(text) - start > max(BETWEEN, HALF * len(piece)) and not alike:
            raise ValueError(say("two texts", name=document, start=start, texts=both))
        text = text[:start].ljust(start, "\0") + piece + text[start + len(piece) :]
    return text


def _located(
    where: str, one: Evidence | Quote, texts: Mapping[str, str], wholes: Collection[str | None]
) -> Evidence | Quote:
    text, whole = texts.get(one.document, ""), one.document in wholes
    if isinstance(one, Evidence):
        if whole and not (text[one.start : one.end].strip() and one.end <= len(text)):
            raise ValueError(say("range outside", where=where, piece=one, n=len(text)))
        return one
    if (start := text.find(one.text)) >= 0:
        return Evidence(one.document, start, start + len(one.text))
    if (part := _start_of_part(text, one.text)) is not None:
        return Evidence(one.document, part, part + len(one.text))
    # By the longest run of its words that is there, since to align whole texts takes long.
    words, within, start = one.text.casefold().split(), text.casefold(), 0
    runs = (words[i : i + n] for n in (8, 4, 2, 1) for i in range(len(words) - n + 1))
    if run := next((run for run in map(" ".join, runs) if run in within), ""):
        start = max(0, within.find(run) - one.text.casefold().find(run))
    nearest = text[start : start + len(one.text)]
    if whole or SequenceMatcher(None, nearest, one.text).ratio() > NEAR:
        facts = {"document": one.document, "text": one.text[:80], "nearest": nearest[:80]}
        raise ValueError(say("quote not there", where=where, **facts))
    return one


def _start_of_part(text: str, quote: str) -> int | None:
    """Return where a quote begins that is in part in what is known of a document, None if not.

    A fifth of the quote, and ten characters or more, must end or begin what is known around them.
    """
    for known in re.finditer(r"[^\0]+", text):
        if known.group() in quote:
            return max(0, known.start() - quote.index(known.group()))
        for n in range(len(quote) - 1, max(9, len(quote) // 5), -1):
            if known.group().endswith(quote[:n]):
                return known.end() - n
            if known.group().startswith(quote[-n:]) and known.start() + n >= len(quote):
                return known.start() + n - len(quote)
    return None


def by_chunk(query: JudgedQuery, snippets: Sequence[Snippet]) -> JudgedQuery:
    """Return a query with the snippets that were retrieved, relevant where they have its evidence.

    >>> query = JudgedQuery("Who?", [], [], evidence=[Evidence("d", 10, 13), Evidence("d", 80, 90)])
    >>> found = by_chunk(query, [Snippet("It rains. Ann did.", document="d", position=0)])
    >>> found.relevant, found.missed
    ((True,), 1)

    Raises ValueError for a query with relevant snippets and no evidence, and for evidence as
    `by_sentence` does.
    """
    if query.split or (query.answerable and not query.evidence):
        raise ValueError(say("no evidence of chunks", query=query))
    left, relevant = {*query.evidence}, []
    for snippet in snippets:
        has = set()
        for piece, (first, last) in _within(query.name, snippet, query.evidence):
            shared = snippet.text[max(0, first) : max(0, last)]
            enough = HALF * min(piece.end - piece.start, len(snippet.text))
            if shared.strip() and len(shared) >= enough:
                has.add(piece)
        relevant.append(bool(has))
        left -= has
    return replace(
        query,
        snippets=tuple(snippets),
        relevant=tuple(relevant),
        missed=max(len(left), query.missed or 0),
        relevant_ids=(),
    )


def _marked(text: str, ranges: Sequence[Range], within: Range, piece: Evidence) -> Iterator[bool]:
    """Yield whether each sentence shares enough with evidence, `within` this range of the text."""
    first, last = max(0, within.start), max(0, within.end)
    shared = [_visible(text[max(start, first) : min(end, last)]) for start, end in ranges]
    most = max(*shared, piece.end - piece.start - len(text[first:last]))
    for n, (start, end) in zip(shared, ranges, strict=True):
        yield n > 0 and n >= min(FEWEST, most, _visible(text[start:end]))


def _visible(text: str) -> int:
    return len("".join(text.split()))


def _within(
    where: str, snippet: Snippet, evidence: Iterable[Evidence | Quote]
) -> Iterator[tuple[Evidence, Range]]:
    """Yield the evidence that a snippet may have, each with its range from the snippet's start."""
    for piece in evidence:
        position = 0 if piece.document == snippet.id else snippet.position
        if piece.document in (snippet.id, snippet.document):
            if position is None:
                raise ValueError(say("no position", where=where, piece=piece))
            if isinstance(piece, Evidence):  # a quote that is left is in nothing retrieved
                yield piece, Range(piece.start - position, piece.end - position)
