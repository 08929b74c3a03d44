"""The score of a query: hits, words and any scorers as one number, −log-odds of being answerable.

`query_features.py` has the features. Their coefficients begin with what other collections say
(`prior.py`), and are fitted to queries of both kinds (`regression.py`), of which none is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.files import short_hash
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hit_features import Sources, Values
from conformal_retrievers.scoring.learned.features import Column
from conformal_retrievers.scoring.learned.prior import prior_of
from conformal_retrievers.scoring.learned.query_features import (
    Unit,
    columns,
    in_units,
    query_features,
    units_of,
)
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.learned.score import Learned, Stored, check_sources, stored
from conformal_retrievers.scoring.query_scorer import CombinedQueryScorer, QueryScorer, query_scores
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.wording import say

FORMAT, VERSION = "conformal-retrievers/learned-query-score", 4


class StoredQueryScorer(Stored):
    """The fields of a provenance of a `LearnedQueryScorer`."""

    query_scorers: list[str]
    middles: list[pydantic.FiniteFloat]
    scales: list[Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]]


@dataclass(frozen=True)
class LearnedQueryScorer(Learned, CombinedQueryScorer):
    """Scores a query by −log-odds of being answerable, learned from other collections and queries.

    `calibrate_gate` makes one. The score is NaN if a query scorer does not know, or if no snippet
    has all scores; ValueError if no snippet has the hits.
    """

    scorers: tuple[Scorer, ...]
    query_scorers: tuple[QueryScorer, ...]
    sources: Sources
    units: tuple[Unit, ...]  # of each source, and of each query scorer
    coefficients: tuple[float, ...] = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    prior: str
    relative_to_query: ClassVar[bool] = True  # its numbers are of the whole list

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
        fields = stored(StoredQueryScorer, provenance, needed)
        sources = Sources(tuple(fields.retrievers.items()), tuple(fields.scorers), fields.context)
        names = [*map(str, columns(sources, fields.query_scorers))]
        n = len(sources.names) + len(fields.query_scorers)
        if [*fields.coefficients] != names or {len(fields.middles), len(fields.scales)} != {n}:
            raise ValueError(say("other units"))
        units = tuple(map(Unit, fields.middles, fields.scales))
        coefficients = tuple(fields.coefficients.values())
        digests = frozenset(fields.fitted_on)
        return cls(of_snippets, of_queries, sources, units, coefficients, digests, fields.prior)

    @property
    def parts(self) -> tuple[Scorer | QueryScorer, ...]:
        """The scorers of snippets, in order, and then those of queries."""
        return (*self.scorers, *self.query_scorers)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: sources, units, coefficients, queries."""
        return self.stored(FORMAT, VERSION, self._columns) | {
            "query_scorers": [part.name for part in self.query_scorers],
            "middles": [unit.middle for unit in self.units],
            "scales": [unit.scale for unit in self.units],
        }

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), "words"]
        read += [part.name for part in self.parts]
        return f"answerable({', '.join(read)}; fit={short_hash(self.provenance)})"

    def combine(self, query: str, found: Sequence[Any], snippets: Retrieved) -> float:
        """Return −log-odds from the scores of the snippets (n,) each, and those of the query."""
        row = query_features(self.sources, query, found, snippets)
        return -float((in_units(self._columns, self.units, row) * self.coefficients).sum())

    @cached_property
    def _columns(self) -> list[Column]:
        return columns(self.sources, [part.name for part in self.query_scorers])


def fitted_queries(
    sources: Sources,
    scorers: Sequence[Scorer | QueryScorer],
    answerable: Sequence[JudgedQuery],
    *unanswerable: Sequence[JudgedQuery],
) -> LearnedQueryScorer:
    """Return the scorer of these sources after some queries, of which none is needed.

    All answerable queries count as much as all unanswerable ones, and of these each source as much
    as another. Queries without a relevant snippet do not count as answerable, and those whose score
    would be NaN do not enter. Without queries of both kinds the prior alone scores, and answerable
    ones give only the units. Raises ValueError if there are neither hits nor scorers, and if
    scorers share a name.
    """
    of_snippets, of_queries = by_kind(scorers)
    check_sources(sources, [part.name for part in scorers], needed=True)
    sources = sources._replace(scorers=tuple(part.name for part in of_snippets), context="none")
    kinds = [[query for query in answerable if any(query.relevant)], *unanswerable]
    own = columns(sources, [part.name for part in of_queries])
    tables = [table_of(sources, of_snippets, of_queries, queries) for queries in kinds]
    units, prior = units_of(own, tables[0]), prior_of("queries")
    coefficients, sd = prior.of(own)
    known = [in_units(own, units, table) for table in tables]
    known = [table[~np.isnan(table).any(axis=1)] for table in known]
    if len(known[0]) and any(map(len, known[1:])):
        labels = np.arange(sum(map(len, known))) < len(known[0])
        weights = weights_of([*map(len, known)])
        coefficients = most_probable(np.concatenate(known), labels, coefficients, sd, weights)
    digests = frozenset(query_digest(query.query) for queries in kinds for query in queries)
    numbers = tuple(coefficients.tolist())
    return LearnedQueryScorer(of_snippets, of_queries, sources, units, numbers, digests, prior.name)


def by_kind(scorers: Iterable[Any]) -> tuple[tuple[Scorer, ...], tuple[QueryScorer, ...]]:
    """Return the scorers of snippets and those of queries, each in order."""
    given = [*scorers]
    of_queries = tuple(scorer for scorer in given if isinstance(scorer, QueryScorer))
    return tuple(scorer for scorer in given if not isinstance(scorer, QueryScorer)), of_queries


def weights_of(sizes: Sequence[int]) -> Values:
    """Return weights of mean 1 of so many answerable queries, and of those of each other source.

    The answerable ones weigh as much as all others, and of these each source as much as another.

    >>> weights_of([2, 1, 0, 1])
    array([1., 1., 1., 1.])
    """
    others = [n for n in sizes[1:] if n]
    weights = [np.full(sizes[0], len(others) / sizes[0]), *(np.full(n, 1 / n) for n in others)]
    return np.concatenate(weights) * sum(sizes) / (2 * len(others))


def table_of(
    sources: Sources,
    scorers: Sequence[Scorer],
    query_scorers: Sequence[QueryScorer],
    judged: Sequence[JudgedQuery],
) -> Values:
    """Return the features (n, d) of queries, not in units; NaN where what one needs is unknown."""
    numbers = np.array([query_scores(scorer, judged) for scorer in query_scorers]).T
    rows = [np.empty((0, len(columns(sources)) + len(query_scorers)))]
    for i, query in enumerate(judged):
        text, given = query.query, query.retrieved
        scores: list[Any] = [score_snippets(s, text, given) for s in scorers]
        scores += numbers[i].tolist() if query_scorers else []
        rows.append(query_features(sources, text, scores, given)[np.newaxis])
    return np.concatenate(rows)
