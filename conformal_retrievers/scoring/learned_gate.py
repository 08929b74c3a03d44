"""Hits and scorers as one query score, weighed by logistic regression: −log-odds of answerable.

    log-odds = intercept + Σ_j coefficient_j (feature_j − mean_j) / scale_j

Each source (`sources.py`), but for the fusion, gives the snippets of a query the values
v_1 ≤ … ≤ v_n, lower = more relevant, and has three features, or four if there are several:

    best            v_1
    last            v_n
    fall            (v_10 − v_1) / (1 + log(1 + w)) in a query of w words
    best elsewhere  log(1 + rank) of its best snippet by another source, the mean over these

Best and last are absolute: they alone can see that everything is far away. The others are the best
by fusion, if there is one; the share of the query's words that the first five snippets have, by the
fusion, else the first source, else as retrieved; and each given score of the query. Nothing else of
the query counts: its length alone would give away the source of a question. A retriever that found
nothing has the features that speak least for an answer in the fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.hits import C, texts_in
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.scoring.answerability import (
    CombinedQueryScorer,
    QueryScorer,
    score_query,
)
from conformal_retrievers.scoring.learned.regression import Regression, StoredRegression, regress
from conformal_retrievers.scoring.learned.score import stored
from conformal_retrievers.scoring.overlap import STOP_WORDS, WORD
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.sources import Kind, Sources, Values, numbers_of, sources_of

FORMAT, VERSION = "conformal-retrievers/learned-query-score", 1
OF_SOURCES = ("best", "last", "fall")
TENTH = 10
FIRST = 5


class Stored(StoredRegression):
    """The fields of a provenance of a `LearnedQueryScorer`."""

    format: str
    version: int
    retrievers: dict[str, Kind]
    scorers: list[str]
    features: list[str]
    fitted_on: list[str]
    query_scorers: list[str]
    least: Sequence[pydantic.FiniteFloat]


@dataclass(frozen=True)
class LearnedQueryScorer(CombinedQueryScorer):
    """Scores a query by −log-odds of being answerable, learned from queries of both kinds.

    `fit` makes one. The score is NaN if a query scorer does not know, or if no snippet has all
    scores; ValueError if no snippet has the hits.
    """

    scorers: tuple[Scorer, ...]
    query_scorers: tuple[QueryScorer, ...]
    sources: Sources
    regression: Regression = field(repr=False)
    least: tuple[float, ...] = field(repr=False)  # of each feature, what speaks least for an answer
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries

    @classmethod
    def fit(
        cls,
        answerable: Iterable[JudgedQuery],
        unanswerable: Mapping[str, Sequence[JudgedQuery]],
        scorers: Iterable[Scorer | QueryScorer] = (),
    ) -> LearnedQueryScorer:
        """Return the scorer that is learned from hits, and from scorers of snippets and queries.

        All answerable queries count as much as all unanswerable ones, and of these each source, by
        its name, as much as another. Queries without a relevant snippet do not count as answerable,
        and those whose score would be NaN do not enter. Raises TypeError for unanswerable queries
        without sources; ValueError if there are neither hits nor scorers, if scorers share a name,
        if an unanswerable query has a relevant snippet, and unless there are queries of both kinds.
        """
        if not isinstance(unanswerable, Mapping):
            raise TypeError(
                f"unanswerable is {unanswerable!r:.60}; give queries by the name of their source, "
                'such as {"answers removed": queries}'
            )
        of_snippets, of_queries = by_kind(scorers)
        kinds = [[q for q in answerable if any(q.relevant)], *unanswerable.values()]
        everything = [query for queries in kinds for query in queries]
        names = [part.name for part in (*of_snippets, *of_queries)]
        sources = read_in(everything, of_snippets)
        if len(set(names)) < len(names) or not (sources.names or names):
            raise ValueError(
                f"scorers are {names}, hits are of {len(sources.retrievers)} retrievers; give each "
                "scorer once, and one or more if the snippets have no hits"
            )
        for name, queries in unanswerable.items():
            for query in queries:
                if any(query.relevant):
                    raise ValueError(
                        f"unanswerable[{name!r}]: {query.name} has a relevant snippet; give "
                        "queries that nothing retrieved answers, such as without_answers returns"
                    )
        tables = [table_of(sources, of_snippets, of_queries, queries) for queries in kinds]
        digests = frozenset(query_digest(query.query) for query in everything)
        regression = regress_kinds(tables)
        least = tuple(least_of(regression, tables).tolist())
        return cls(of_snippets, of_queries, sources, regression, least, digests)

    @classmethod
    def from_provenance(
        cls, provenance: Mapping[str, JsonValue], scorers: Iterable[Scorer | QueryScorer] = ()
    ) -> LearnedQueryScorer:
        """Return the scorer with this `provenance`, bit for bit, from its parts in their order.

        Raises ValueError, naming the field, if another version wrote the provenance, if the parts
        are not those that it was fitted with, and for a field of another type or length.
        """
        of_snippets, of_queries = by_kind(scorers)
        needed = {
            "format": FORMAT,
            "version": VERSION,
            "scorers": [part.name for part in of_snippets],
            "query_scorers": [part.name for part in of_queries],
        }
        fields = stored(Stored, provenance, needed)
        sources = Sources(tuple(fields.retrievers.items()), tuple(fields.scorers), "none")
        d = len(feature_names(sources, fields.query_scorers))
        regression, least = fields.regression(d), tuple(fields.least)
        if {len(least), len(fields.features)} != {d}:
            raise ValueError(
                f"scorer_provenance: least has {len(least)} and features {len(fields.features)} of "
                f"{d}; calibrate again"
            )
        return cls(of_snippets, of_queries, sources, regression, least, frozenset(fields.fitted_on))

    @property
    def parts(self) -> tuple[Scorer | QueryScorer, ...]:
        """The scorers of snippets, in order, and then those of queries."""
        return (*self.scorers, *self.query_scorers)

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The names of the retrievers whose hits it reads."""
        return tuple(name for name, _ in self.sources.retrievers)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: sources, features, coefficients, queries."""
        query_scorers = [part.name for part in self.query_scorers]
        return {
            "format": FORMAT,
            "version": VERSION,
            "retrievers": dict(self.sources.retrievers),
            "scorers": [*self.sources.scorers],
            "query_scorers": [*query_scorers],
            "features": [*feature_names(self.sources, query_scorers)],
            **asdict(self.regression),
            "least": [*self.least],
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), *(p.name for p in self.parts)]
        return f"answerable({', '.join(read)}; fit={short_hash(self.provenance)})"

    def combine(self, query: str, found: Sequence[Any], snippets: Sequence[Snippet]) -> float:
        """Return −log-odds from the scores of the snippets (n,) each, and those of the query."""
        row = query_features(self.sources, query, found, snippets)[np.newaxis]
        row = filled(row, np.array(self.least), len(self.query_scorers))
        return -float(self.regression.log_odds(row)[0])


def by_kind(
    scorers: Iterable[Scorer | QueryScorer],
) -> tuple[tuple[Scorer, ...], tuple[QueryScorer, ...]]:
    """Return the scorers of snippets and those of queries, each in order."""
    of_snippets: list[Scorer] = []
    of_queries: list[QueryScorer] = []
    for scorer in scorers:
        if isinstance(scorer, QueryScorer):
            of_queries.append(scorer)
        else:
            of_snippets.append(scorer)
    return tuple(of_snippets), tuple(of_queries)


def read_in(judged: Sequence[JudgedQuery], scorers: Sequence[Scorer]) -> Sources:
    """Return the sources that queries have, with scorers of their snippets."""
    return sources_of(judged, [scorer.name for scorer in scorers])._replace(context="none")


def table_of(
    sources: Sources,
    scorers: Sequence[Scorer],
    query_scorers: Sequence[QueryScorer],
    judged: Iterable[JudgedQuery],
) -> Values:
    """Return the features (n, d) of queries; NaN where what one needs is unknown."""
    rows = [np.empty((0, len(feature_names(sources, [q.name for q in query_scorers]))))]
    for query in judged:
        if query.snippets:
            found: list[Any] = [score_snippets(s, query.query, query.snippets) for s in scorers]
            found += [score_query(s, query.query, query.snippets) for s in query_scorers]
            row = query_features(sources, query.query, found, query.snippets)
        else:
            row = np.full(rows[0].shape[1], np.nan)
        rows.append(row[np.newaxis])
    return np.concatenate(rows)


def regress_kinds(tables: Sequence[Values]) -> Regression:
    """Fit a regression to the features (n, d) of answerable queries, and of each other source.

    Rows with NaN do not count. The answerable ones weigh as much as all others, and of these each
    source as much as another. Raises ValueError unless there are queries of both kinds.
    """
    known = [table[~np.isnan(table).any(axis=1)] for table in tables]
    answerable, *others = known
    others = [table for table in others if len(table)]
    if not (len(answerable) and others):
        raise ValueError(
            f"answerable has {len(answerable)} queries that can be scored, unanswerable has "
            f"{sum(map(len, others))}; give judged queries of both kinds"
        )
    shares = [1.0, *(1 / len(others) for _ in others)]
    sizes = [len(answerable), *map(len, others)]
    weights = np.concatenate([np.full(n, w / n) for n, w in zip(sizes, shares, strict=True)])
    labels = np.arange(sum(sizes)) < len(answerable)
    return regress(np.concatenate([answerable, *others]), labels, weights / weights.mean())


def least_of(regression: Regression, tables: Sequence[Values]) -> Values:
    """Return the value of each feature (d,) that speaks least for an answer, of those in a fit."""
    known, rising = np.concatenate(tables), np.array(regression.coefficients) > 0
    return np.asarray(np.where(rising, np.nanmin(known, axis=0), np.nanmax(known, axis=0)))


def filled(table: Values, least: Values, query_scorers: int) -> Values:
    """Return features (n, d) with the least (d,) for those of retrievers that found nothing.

    A row stays as it is if all of it is unknown, or one of the last columns, the query scores.

    >>> filled(np.array([[1.0, np.nan], [np.nan, np.nan]]), np.array([8.0, 9.0]), 0)
    array([[ 1.,  9.],
           [nan, nan]])
    """
    unknown = np.isnan(table)
    lost = unknown.all(axis=1) | unknown[:, table.shape[1] - query_scorers :].any(axis=1)
    return np.where(unknown & ~lost.reshape(-1, 1), least, table)


# --- features -------------------------------------------------------------------------------------


def feature_names(sources: Sources, query_scorers: Sequence[str] = ()) -> list[str]:
    """Return the names of `query_features`.

    >>> feature_names(Sources((), ("s",), "none"), ["v"])
    ['best by s', 'last by s', 'fall by s', 'words found', 'v']
    """
    names = [name for name, _ in sources.retrievers] + [*sources.scorers]
    of_each = [*OF_SOURCES, *(["best elsewhere"] if len(names) > 1 else [])]
    fusion = ["best by fusion"] if len(sources.retrievers) > 1 else []
    of_names = [f"{feature} by {name}" for feature in of_each for name in names]
    return [*of_names, *fusion, "words found", *query_scorers]


def query_features(
    sources: Sources, query: str, found: Sequence[Any], snippets: Sequence[Snippet]
) -> Values:
    """Return the features (d,) of a query; NaN if unknown, and of retrievers that found nothing.

    `found` are the scores of the snippets by each scorer of these, (n,), and then the query scores.

    >>> sources, scores = Sources((), ("s",), "none"), np.array([0.2, 0.4])
    >>> query_features(sources, "red", [scores], [Snippet("a red a"), Snippet("b")]).round(2)
    array([0.2 , 0.4 , 0.12, 1.  ])
    """
    m, r = len(sources.scorers), len(sources.retrievers)
    known, numbers = numbers_of(sources, found[:m], snippets)
    if not known.any():
        return np.full(len(feature_names(sources)) + len(found) - m, np.nan)
    values, ranks = numbers.values, np.log1p(numbers.ranks)
    fusion = np.empty(0)
    of_order = values[0] if len(values) else np.arange(len(snippets), dtype=np.float64)
    if r > 1:
        of_order = -(numbers.found / (C + 1 + numbers.ranks[:r])).sum(axis=0)
        fusion = of_order.min(keepdims=True)
    words = [*dict.fromkeys(w for w in WORD.findall(query.lower()) if w not in STOP_WORDS)]
    ordered = numbers.ordered
    best, last = ordered[:, 0], ordered[:, -1]
    fall = (ordered[:, :TENTH][:, -1] - best) / (1 + np.log1p(len(words)))
    elsewhere = _elsewhere(values, ranks) if len(values) > 1 else np.empty(0)
    first = np.flatnonzero(known)[of_order <= np.sort(of_order)[:FIRST][-1]]  # and equal ones
    texts = texts_in(snippets)
    text = "\n".join([texts[i] for i in first]).lower()
    share = sum(word in text for word in words) / len(words) if words else 1.0
    if not (lists := numbers.found.any(axis=1)).all():
        empty = np.append(~lists, np.zeros(m, dtype=bool))
        best, last, fall = (np.where(empty, np.nan, each) for each in (best, last, fall))
        elsewhere = np.full(len(elsewhere), np.nan)
    return np.concatenate([best, last, fall, elsewhere, fusion, [share, *found[m:]]])


def _elsewhere(values: Values, ranks: Values) -> Values:
    """Return the mean log rank by others of what is best by each, (m,), from (m, n) of both."""
    bests = values == values.min(axis=1, keepdims=True)
    lowest = np.where(bests[:, np.newaxis], ranks, np.inf).min(axis=2)
    return np.asarray((lowest.sum(axis=1) - lowest.diagonal()) / (len(values) - 1))
