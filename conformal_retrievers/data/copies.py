"""Copies among judged queries, which count once: a guarantee needs queries that are independent.

    copy        has the text of another query, up to case and white space, and half of its snippets
                or more
    near copy   shares three in five of its runs of four characters with another query, all
                numbers, and a relevant snippet

One question about many documents, such as each of many contracts, is no copy: what is retrieved for
it differs.
"""

import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from unicodedata import normalize

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.wording import say

Pairs = list[tuple[JudgedQuery, JudgedQuery]]  # a copy, and the query before it that it copies
RUN = 4  # characters
ALIKE = 0.6  # of the runs that either of two queries has
MANY = 0.01  # share of near copies above which they are worth a warning


def folded(query: str) -> str:
    """Return a query's text, the same whatever its case, white space and NFC form.

    >>> folded("who  WROTE it?")
    'who wrote it?'
    """
    return " ".join(normalize("NFC", query).casefold().split())


def copies_in(judged: Sequence[JudgedQuery]) -> Pairs:
    """Return the queries that are copies of one before them.

    >>> queries = [JudgedQuery(text, ["a"], [True]) for text in ("Who?", "who?", "Where is it?")]
    >>> [(query.query, of.query) for query, of in copies_in(queries)]
    [('who?', 'Who?')]
    """
    pairs: Pairs = []
    having = defaultdict[tuple[str | None, ...], list[int]](list)  # queries that are no copies
    names = [_names(query) or {""} for query in judged]
    for i, (query, own) in enumerate(zip(judged, names, strict=True)):
        keys = [(folded(query.query), name) for name in own]
        shared = Counter(chain.from_iterable(having[key] for key in keys))
        alike = (j for j in sorted(shared) if 2 * shared[j] >= max(len(own), len(names[j])))
        if (original := next(alike, None)) is not None:
            pairs.append((query, judged[original]))
            continue
        for key in keys:
            having[key].append(i)
    return pairs


def near_copies_in(judged: Sequence[JudgedQuery]) -> Pairs:
    """Return the queries that are near copies of one before them, which may be copies.

    >>> texts = ("Who wrote Hamlet?", "Say who wrote Hamlet!", "Who wrote Faust?")
    >>> [(query, of)] = near_copies_in([JudgedQuery(text, ["a"], [True]) for text in texts])
    >>> query.query
    'Say who wrote Hamlet!'
    """
    texts = [f" {folded(query.query)} " for query in judged]
    runs = [{text[i : i + RUN] for i in range(max(1, len(text) + 1 - RUN))} for text in texts]
    relevant = [_names(query, only_relevant=True) for query in judged]
    times = Counter(chain.from_iterable(runs))
    having = defaultdict[tuple[str, ...], list[int]](list)  # queries that are copies of none
    pairs: Pairs = []
    for i, own in enumerate(runs):
        # Two that are alike share one of their rarest runs, so that few are compared.
        rare = sorted(own, key=lambda run: (times[run], run))[: int((1 - ALIKE) * len(own)) + 1]
        numbers = re.findall(r"\d+", texts[i])
        keys = [(name, run, *numbers) for name in relevant[i] for run in rare]
        some = sorted(set(chain.from_iterable(having[key] for key in keys)))
        alike = (j for j in some if len(own & runs[j]) >= ALIKE * len(own | runs[j]))
        if (original := next(alike, None)) is not None:
            pairs.append((judged[i], judged[original]))
            continue
        for key in keys:
            having[key].append(i)
    return pairs


def _names(query: JudgedQuery, only_relevant: bool = False) -> set[str | None]:
    """Return the texts of a query's snippets, whatever their ids, or what is to be retrieved."""
    pairs = zip(query.snippets, query.relevant, strict=True)
    names = {s.text.strip() or s.id for s, r in pairs if r or not only_relevant}
    return names or {*query.relevant_ids, *(piece.document for piece in query.evidence)}


def without_copies(judged: Sequence[JudgedQuery]) -> tuple[list[JudgedQuery], str, str]:
    """Return the queries that are no copies, and a text on copies and one on near copies, or ""."""
    copies = copies_in(judged)
    left_out = {id(query) for query, _ in copies}
    kept = [query for query in judged if id(query) not in left_out]
    near, exact_text, near_text = near_copies_in(kept), "", ""
    if copies:
        pair = " of ".join(dict.fromkeys(query.name for query in copies[0]))
        exact_text = say("copies", n=len(copies), total=len(judged), pair=pair)
    if len(near) > MANY * len(kept):
        shown = [repr(q.query[:60]) + (f" ({q.id})" if q.id else "") for q in near[0]]
        near_text = say("near copies", n=len(near), total=len(kept), pair=" of ".join(shown))
    return kept, exact_text, near_text


def check_copies(judged: Sequence[JudgedQuery]) -> None:
    """Raise ValueError for copies, and warn of near copies."""
    _, copies, near = without_copies(judged)
    if copies:
        raise ValueError(say("copies given", copies=copies))
    if near:
        warnings.warn(near, stacklevel=3)
