"""What may stand as judged queries: questions, and whether a retriever was asked them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from conformal_retrievers.data.checks import all_of, check_no_table
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.wording import say

FULL = 10  # snippets of a query that are rarely all relevant


def queries_to_judge(judged: Iterable[JudgedQuery], name: str = "judged") -> list[JudgedQuery]:
    """Return the queries; TypeError for anything but a JudgedQuery, ValueError for a blank text."""
    queries = all_of(JudgedQuery, judged, name)
    for i, query in enumerate(queries):
        if not query.query.strip():
            raise ValueError(say("blank query", name=name, i=i, query=query))
    return queries


def with_questions(
    judged: Iterable[JudgedQuery] | Iterable[str], name: str = "judged"
) -> list[JudgedQuery]:
    """Return the queries; a plain question becomes an unjudged query whose id is the question.

    Raises what `queries_to_judge` raises, TypeError for a mapping or a table, and ValueError
    for a question that occurs twice.

    >>> from pathlib import Path
    >>> with_questions(Path("questions.txt"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: judged is ...Path('questions.txt'); give a list of questions, or of judged...
    """
    if isinstance(judged, str | Mapping | JudgedQuery | PathLike):  # a mapping loses values
        raise TypeError(say("no questions", name=name, judged=judged))
    check_no_table(judged, name)
    if hasattr(judged, "invoke") or hasattr(judged, "retrieve"):
        raise TypeError(f"retriever and {name} are swapped; give the retriever first")
    given: list[Any] = list(judged)
    places: dict[str, int] = {}
    for i, question in enumerate(given):
        if isinstance(question, str):
            question = question.strip("\ufeff").strip()  # of a file's line
            if (first := places.setdefault(question, i)) < i:
                raise ValueError(say("given twice", name=name, i=i, first=first, question=question))
            given[i] = JudgedQuery(question, [], [], id=question or None)
    return queries_to_judge(given, name)


def check_retrieved(judged: Sequence[JudgedQuery]) -> None:
    """Raise ValueError for a query of `from_ids` that is not retrieved yet, naming it."""
    for query in judged:
        if query.relevant_ids:
            raise ValueError(say("not retrieved", query=query, remedy=say("judge first")))


def check_not_only_relevant(judged: Sequence[JudgedQuery]) -> None:
    """Raise ValueError if no query has snippets, or most have relevant ones alone, as they are
    before they are retrieved. Warns if each of many snippets is relevant.

    A query was retrieved if it has hits, retrieval scores, the retriever's name, or the k that it
    was asked for.
    """
    if not any(query.snippets or retrieved(query) for query in judged):
        raise ValueError(say("none retrieved", n=len(judged), remedy=say("judge first")))
    some = [query for query in judged if query.snippets]
    only = sum(all(query.relevant) and not retrieved(query) for query in some)
    if 2 * only > len(some):
        raise ValueError(say("only relevant", only=only, n=len(some), remedy=say("judge first")))
    full = sum(all(query.relevant) and len(query.snippets) >= FULL for query in some)
    if 2 * full > len(some):
        warnings.warn(say("all relevant"), stacklevel=4)  # without numbers: Python shows it once


def retrieved(query: JudgedQuery) -> bool:
    """Return whether a query looks like one that a retriever was asked."""
    known = query.retriever is not None or query.k is not None
    return known or any(s.hits or s.retrieval_score is not None for s in query.snippets)
