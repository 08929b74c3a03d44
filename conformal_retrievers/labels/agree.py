"""How much two people agree who judged the same retrieved snippets.

Cohen's kappa is κ = (p − e)/(1 − e), with p the share of snippets that both judge alike, and
e = ab + (1 − a)(1 − b) that of two people who call shares a and b of them relevant at random
(Cohen 1960, Educational and Psychological Measurement 20).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformal_retrievers.data.jsonl import read_jsonl
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.labels.record import read_labels, read_seen
from conformal_retrievers.theory.intervals import Interval, cluster_interval

Key = tuple[str | None, str, int]  # an id, a text, and how many before have both


@dataclass(frozen=True)
class Difference:
    """A snippet that two people judge differently."""

    query: JudgedQuery
    snippet: Snippet
    relevant: bool  # by the first of them


@dataclass(frozen=True)
class Agreement:
    """The judgements of two people, of the snippets that both saw."""

    names: tuple[str, str]  # of the people, or of their files
    queries: int  # that both judged
    only_one: int  # others: one did not judge them, was unsure, or saw other snippets
    snippets: int  # that both saw
    alike: Interval  # the share of these on which they agree, with the query as the unit
    kappa: float  # NaN if both give all snippets the same judgement
    differences: tuple[Difference, ...]


def agreement(one: str | Path, other: str | Path) -> Agreement:
    """Compare the judgements of two files, such as two people made in the judging page.

    Queries and snippets are recognised by id and text, equal ones by their order. Where a file has
    the record of what a person saw beside it, only that counts. Raises ValueError if no snippet is
    in both.
    """
    first, second = _marks(one), _marks(other)
    alike, both, marks, differences = [], [], [], []
    for key in first:
        query, mine = first[key]
        _, theirs = second.get(key, (query, {}))
        common = [(s, mark, theirs[of][1]) for of, (s, mark) in mine.items() if of in theirs]
        if common:
            alike.append(sum(a == b for _, a, b in common))
            both.append(len(common))
        marks += [(a, b) for _, a, b in common]
        differences += [Difference(query, s, a) for s, a, b in common if a != b]
    if not marks:
        raise ValueError(
            f"{one} and {other} have no judged snippet in common; give two of one file"
        )
    one_relevant, other_relevant = np.mean(marks, axis=0)
    return Agreement(
        names=(_name(one), _name(other)),
        queries=len(both),
        only_one=len({*first} | {*second}) - len(both),
        snippets=len(marks),
        alike=cluster_interval(alike, both),
        kappa=kappa(one_relevant, other_relevant, sum(alike) / len(marks)),
        differences=tuple(differences),
    )


def kappa(one: float, other: float, alike: float) -> float:
    """Return Cohen's kappa of two shares of relevant snippets and the share of equal judgements.

    >>> kappa(0.5, 0.5, 0.75)
    0.5
    """
    chance = one * other + (1 - one) * (1 - other)
    return math.nan if chance == 1 else float((alike - chance) / (1 - chance))


def _marks(path: str | Path) -> dict[Key, tuple[JudgedQuery, dict[Key, tuple[Snippet, bool]]]]:
    """Return the queries of a file, and the judgements of what was seen of each."""
    judged, seen = read_jsonl(path), read_seen(path)
    found = {}
    for i, key in enumerate(_numbered((query.id, query.query) for query in judged)):
        query = judged[i]
        snippets = [*_numbered((s.id, s.text) for s in query.snippets)]
        places = range(len(snippets)) if seen is None else seen[i]["seen"]
        found[key] = query, {snippets[j]: (query.snippets[j], query.relevant[j]) for j in places}
    return found


def _numbered(names: Iterable[tuple[str | None, str]]) -> Iterator[Key]:
    before = Counter[tuple[str | None, str]]()
    for name in names:
        yield *name, before[name]
        before[name] += 1


def _name(path: str | Path) -> str:
    by = (read_labels(path) or {}).get("by")
    return str(by) if by else Path(path).name
