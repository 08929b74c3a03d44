"""Unanswerable queries, made of judged ones: the relevant snippets are taken out.

    retrieved deeper than k  →  without the relevant snippets  →  cut to k again

Ranks count from 0 without a gap, and lists are as long as before, so that nothing but the texts
shows that something was taken out: a score must not learn from anything else.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

from conformal_retrievers.data.checks import check_count, check_type
from conformal_retrievers.data.hits import Hit, fuse, fusion
from conformal_retrievers.data.judged import queries_to_judge
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.retrieval import Hybrid, Retrieval
from conformal_retrievers.data.wording import say

# What each retriever found, best first, by its name: snippets, or documents of sentences, by their
# number, with the retriever's scores. Without hits, the order is that of a nameless one.
Lists: TypeAlias = dict[str, list[tuple[int, float | None]]]
NAMELESS = ""


def without_relevant(query: JudgedQuery, k: int) -> JudgedQuery:
    """Return a query that was retrieved deeper than k as it looks if nothing answers it, at k.

    Relevant snippets are taken out, and others with the text of one; the query is to be retrieved
    deeper than k by their number, or more. The list of each retriever has its first k of the rest,
    with new ranks and the same scores, which must not depend on the other snippets, as fused and
    scaled scores do; lists are united in the order of rank fusion. Without hits, the order stays.
    Of sentences, documents with a relevant one go whole. k is the depth of each retriever. Warns,
    once, if a list is shorter than at k before.

    >>> query = JudgedQuery("q", ["a", "b", "c"], [True, False, False], k=3)
    >>> made = without_relevant(query, 2)
    >>> [snippet.text for snippet in made.snippets], made.k, made.answerable
    (['b', 'c'], 2, False)

    Raises TypeError for anything but a judged query, and ValueError for a k that is not a whole
    number from 1.
    """
    check_type(JudgedQuery, "a JudgedQuery", query=query)
    order = _order([query])
    whole, rest = _lists(query, order), _lists(query, order, _answers(query, query))
    retriever = query.retriever
    parts = retriever.root if isinstance(retriever, Hybrid) else {}
    depths = dict.fromkeys(parts or whole, check_count(k, "k"))
    if any(len(rest[name]) < min(len(ranked), k) for name, ranked in whole.items()):
        warnings.warn(say("shorter", which="a query has"), stacklevel=2)
    if parts:
        retriever = Hybrid({name: Retrieval(part.retriever, k) for name, part in parts.items()})
    return replace(_cut(query, rest, depths), retriever=retriever, k=sum(depths.values()))


def without_answers(
    judged: Sequence[JudgedQuery],
    retrieved: Sequence[JudgedQuery],
    deeper: Callable[[int], Sequence[JudgedQuery]],
) -> list[JudgedQuery]:
    """Return queries without their relevant snippets, in lists as long as those retrieved.

    `retrieved` are the judged queries as a retriever returns them; the result has its name and k.
    `deeper` returns them as the retriever returns them so much deeper. Warns if some lists are
    shorter. Raises ValueError for a query with missed snippets, which cannot be recognised.
    """
    for query in judged:
        if query.missed:
            raise ValueError(say("missed texts", query=query))
    lengths = [{name: len(ranked) for name, ranked in _lists(q, ()).items()} for q in retrieved]
    more, n_found = max([1, *(sum(query.relevant) for query in judged)]), -1
    while True:
        deep = deeper(more)
        order = _order([*retrieved, *deep])
        rests = [_lists(q, order, _answers(q, j)) for q, j in zip(deep, judged, strict=True)]
        lacks = [
            max(n - len(rest.get(name, ())) for name, n in own.items())
            for rest, own in zip(rests, lengths, strict=True)
        ]
        n_before, n_found = n_found, sum(len(query.snippets) for query in deep)
        if max(lacks, default=0) <= 0 or n_found <= n_before:
            break
        more *= 2  # for others with the same texts, or more chunks with evidence
    if shorter := sum(lack > 0 for lack in lacks):
        warnings.warn(say("shorter", which=f"{shorter} of {len(deep)} queries have"), stacklevel=4)
    made = [_cut(*parts) for parts in zip(deep, rests, lengths, strict=True)]
    most = max((len(set(_units(query))) for query in made), default=0)
    return [
        # Two lists may have more in common before than after.
        replace(query, retriever=before.retriever, k=before.k and max(before.k, most))
        for query, before in zip(made, retrieved, strict=True)
    ]


def judged_without_answers(
    retriever: Any,
    judged: Iterable[JudgedQuery],
    judge: Callable[..., list[JudgedQuery]],
    fused_in: Callable[[Any], str | None],
    deepened: Callable[[Any, int], Any],
    deeper: Any = None,
) -> list[JudgedQuery]:
    """Return queries `without_answers`, judged by a framework's retriever, and by it `deeper`.

    Raises ValueError for a retriever in which a class fuses lists.
    """
    if fused := fused_in(retriever):
        raise ValueError(say("fused lists", name=fused))
    queries = queries_to_judge(judged)
    retrieved = judge(retriever, queries)
    if deeper is None:
        return without_answers(queries, retrieved, lambda n: judge(deepened(retriever, n), queries))
    deep = judge(deeper, queries)
    return without_answers(queries, retrieved, lambda more: deep)


def parts_of(whole: object, kind: type[Any]) -> Iterator[Any]:
    """Yield the objects of a class in an object's fields, also in lists and dicts there."""
    for value in getattr(whole, "__dict__", {}).values():
        parts = [*value.values()] if isinstance(value, dict) else value
        for part in parts if isinstance(parts, list | tuple) else [parts]:
            if isinstance(part, kind):
                yield part


def _units(query: JudgedQuery) -> list[int]:
    """Return the number of each snippet, or of each sentence's document."""
    of_sentences = query.document_of
    return [*range(len(query.snippets))] if of_sentences is None else of_sentences.tolist()


def _answers(query: JudgedQuery, judged: JudgedQuery) -> set[int]:
    """Return the units that are relevant, or have the text of what is relevant, in either."""
    both = (*query.snippets, *judged.snippets), (*query.relevant, *judged.relevant)
    pairs = zip(*both, strict=True)
    texts = {snippet.text for snippet, relevant in pairs if relevant and snippet.text.strip()}
    columns = zip(_units(query), query.snippets, query.relevant, strict=True)
    return {unit for unit, snippet, relevant in columns if relevant or snippet.text in texts}


def _order(queries: Iterable[JudgedQuery]) -> list[str]:
    """Return the order of the retrievers, which hits have and by which equal sums of fusion go.

    Where no query shows it, as few do for two retrievers of three or more, it is alphabetical.
    """
    before: dict[str, set[str]] = {}
    for query in queries:
        hits_of_each = [snippet.hits for snippet in query.snippets if snippet.hits]
        shown = [[hit.retriever for hit in hits] for hits in hits_of_each]
        sums = fusion(hits_of_each)
        if sums == sorted(sums, reverse=True):
            ties = [i for i, (before_it, other) in enumerate(pairwise(sums)) if before_it == other]
            shown += [[shown[i][0], shown[i + 1][0]] for i in ties]
        for names in shown:
            for i, name in enumerate(names):
                before.setdefault(name, set()).update({*names[:i]} - {name})
    order: list[str] = []
    while left := before.keys() - order:
        order.append(min([name for name in left if before[name].isdisjoint(left)] or left))
    return order


def _lists(query: JudgedQuery, order: Sequence[str], gone: Collection[int] = ()) -> Lists:
    """Return what each retriever found, in their order, but for the units that are gone."""
    names = {hit.retriever for snippet in query.snippets for hit in snippet.hits}
    ranked: dict[str, dict[int, Hit]] = {n: {} for n in (*order, *sorted(names)) if n in names}
    if not ranked:
        units = dict.fromkeys(_units(query))
        return {NAMELESS: [(unit, None) for unit in units if unit not in gone]}
    for unit, snippet in zip(_units(query), query.snippets, strict=True):
        for hit in snippet.hits if unit not in gone else ():
            ranked[hit.retriever][unit] = hit
    return {
        name: [(unit, hit.score) for unit, hit in sorted(hits.items(), key=lambda one: one[1].rank)]
        for name, hits in ranked.items()
    }


def _cut(query: JudgedQuery, lists: Lists, depths: Mapping[str, int]) -> JudgedQuery:
    """Return the query with the first of each list, united."""
    units = fuse({name: ranked[: depths.get(name, 0)] for name, ranked in lists.items()})
    of_unit: dict[int, list[Snippet]] = {}
    for unit, snippet in zip(_units(query), query.snippets, strict=True):
        of_unit.setdefault(unit, []).append(snippet)
    snippets = [
        snippet if NAMELESS in lists else _with_hits(snippet, hits)
        for unit, hits in units.items()
        for snippet in of_unit[unit]
    ]
    return replace(
        query,
        snippets=tuple(snippets),
        relevant=(False,) * len(snippets),
        missed=0,
        k=None,
        evidence=(),
        answerable=False,
    )


def _with_hits(snippet: Snippet, hits: tuple[Hit, ...]) -> Snippet:
    """Return the snippet with other hits; a score that is their fusion is that of the new ones."""
    was, new = fusion([snippet.hits, hits])
    score = new if snippet.retrieval_score == was else snippet.retrieval_score
    return replace(snippet, hits=hits, retrieval_score=score)
