"""The score of a query: hits, words and any scorers as one number, −log-odds of being answerable.

Each source (`sources.py`) gives the snippets of a query the values v_1 ≤ … ≤ v_n, lower = more
relevant, and has three features, or four if there are several:

    best            v_1
    last            v_n
    fall            (v_10 − v_1) / (1 + log(1 + w)) in a query of w words
    best elsewhere  log(1 + rank) of its best snippet by another source, the mean over these

Best and last are absolute: they alone can see that everything is far away. So these are counted in
a unit of the source: from the mean of v_1, in means of v_n − v_1, over answerable queries of the
fit, of which one is enough.

The other features are the share of the query's words that the first five snippets have, by rank
fusion, else by the first source, else as retrieved; the most that one snippet has; and each given
score of the query, in standard deviations. Nothing else of the query counts: its length alone would
give away the source of a question. The coefficients begin with a prior (`prior.py`), and are fitted
to queries of both kinds (`regression.py`), of which none is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.hits import C, texts_in
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.scoring.answerability import (
    CombinedQueryScorer,
    QueryScorer,
    query_scores,
)
from conformal_retrievers.scoring.learned.features import GIVEN, Column
from conformal_retrievers.scoring.learned.prior import prior_of
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.learned.score import Stored, stored
from conformal_retrievers.scoring.overlap import STOP_WORDS, WORD
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.sources import Sources, Values, numbers_of, sources_of

FORMAT, VERSION = "conformal-retrievers/learned-query-score", 2
OF_SOURCES = ("best", "last", "fall")
OF_QUERIES = ("words found", "words of one", "intercept")
BEGINS = ("best", "number")  # the first feature of a source, and the only one of a query scorer
TENTH, FIRST = 10, 5
AWAY, BEHIND = 2.0, 3.0  # where a retriever found nothing: units from the mean, log of the rank
UNKNOWN = 0.25  # the scale of numbers of which no two differ, as if they were from 0 to 1


class Unit(NamedTuple):
    """What the numbers of a source are counted from, and in."""

    middle: float
    scale: float


class StoredQueryScorer(Stored):
    """The fields of a provenance of a `LearnedQueryScorer`."""

    query_scorers: list[str]
    middles: list[pydantic.FiniteFloat]
    scales: list[Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]]


@dataclass(frozen=True)
class LearnedQueryScorer(CombinedQueryScorer):
    """Scores a query by −log-odds of being answerable, learned from other collections and queries.

    `fit` makes one. The score is NaN if a query scorer does not know, or if no snippet has all
    scores; ValueError if no snippet has the hits.
    """

    scorers: tuple[Scorer, ...]
    query_scorers: tuple[QueryScorer, ...]
    sources: Sources
    units: tuple[Unit, ...]  # of each source, and of each query scorer
    coefficients: tuple[float, ...] = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    prior: str

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
        and those whose score would be NaN do not enter. Without queries of both kinds the prior
        alone scores, and answerable ones give only the units; one is enough. Raises TypeError for
        unanswerable queries without sources; ValueError if there are neither hits nor scorers, if
        scorers share a name, and if an unanswerable query has a relevant snippet.
        """
        if not isinstance(unanswerable, Mapping):
            raise TypeError(
                f"unanswerable is {unanswerable!r:.60}; give queries by the name of their source, "
                'such as {"answers removed": queries}'
            )
        given, kinds = [*scorers], [[*answerable], *unanswerable.values()]
        for name, queries in unanswerable.items():
            for query in queries:
                if any(query.relevant):
                    raise ValueError(
                        f"unanswerable[{name!r}]: {query.name} has a relevant snippet; give "
                        "queries that nothing retrieved answers, such as without_answers returns"
                    )
        everything = [query for queries in kinds for query in queries]
        return fitted_queries(sources_of(everything), given, *kinds)

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
            raise ValueError(
                "scorer_provenance: coefficients, middles and scales are not those that its "
                "retrievers and scorers give; calibrate again"
            )
        units = tuple(map(Unit, fields.middles, fields.scales))
        coefficients = tuple(fields.coefficients.values())
        digests = frozenset(fields.fitted_on)
        return cls(of_snippets, of_queries, sources, units, coefficients, digests, fields.prior)

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
        """What the scorer was made of, as JSON: sources, units, coefficients, queries."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "prior": self.prior,
            "retrievers": dict(self.sources.retrievers),
            "scorers": [*self.sources.scorers],
            "query_scorers": [part.name for part in self.query_scorers],
            "context": self.sources.context,
            "middles": [unit.middle for unit in self.units],
            "scales": [unit.scale for unit in self.units],
            "coefficients": dict(zip(map(str, self._columns), self.coefficients, strict=True)),
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), "words"]
        read += [part.name for part in self.parts]
        return f"answerable({', '.join(read)}; fit={short_hash(self.provenance)})"

    def combine(self, query: str, found: Sequence[Any], snippets: Sequence[Snippet]) -> float:
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
    """Return the scorer of these sources after some queries, of which none is needed."""
    of_snippets, of_queries = by_kind(scorers)
    names = [part.name for part in scorers]
    if len(set(names)) < len(names) or not (sources.retrievers or names):
        raise ValueError(
            f"scorer has {names}, hits are of {len(sources.retrievers)} retrievers; give each "
            "scorer once, and one or more if the snippets have no hits"
        )
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
    return tuple(scorer for scorer in given if scorer not in of_queries), of_queries


def weights_of(sizes: Sequence[int]) -> Values:
    """Return weights of mean 1 of so many answerable queries, and of those of each other source.

    The answerable ones weigh as much as all others, and of these each source as much as another.

    >>> weights_of([2, 1, 0, 1])
    array([1., 1., 1., 1.])
    """
    others = [n for n in sizes[1:] if n]
    weights = [np.full(sizes[0], len(others) / sizes[0]), *(np.full(n, 1 / n) for n in others)]
    return np.concatenate(weights) * sum(sizes) / (2 * len(others))


# --- features -------------------------------------------------------------------------------------


def columns(sources: Sources, query_scorers: Sequence[str] = ()) -> list[Column]:
    """Return the columns of `query_features`.

    >>> [str(column) for column in columns(Sources((("dense", "rank"),), (), "none"), ["v"])][2:]
    ['fall by dense', 'words found', 'words of one', 'intercept', "scorer's number by v"]
    """
    of_each = [*OF_SOURCES, *(["best elsewhere"] if len(sources.names) > 1 else [])]
    of_names = [Column(f, name) for name, _ in sources.retrievers for f in of_each]
    of_names += [Column(GIVEN + f, name) for name in sources.scorers for f in of_each]
    of_numbers = [Column(f"{GIVEN}number", name) for name in query_scorers]
    return [*of_names, *map(Column, OF_QUERIES), *of_numbers]


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
        found: list[Any] = [score_snippets(s, query.query, query.snippets) for s in scorers]
        found += numbers[i].tolist() if query_scorers else []
        rows.append(query_features(sources, query.query, found, query.snippets)[np.newaxis])
    return np.concatenate(rows)


def query_features(
    sources: Sources, query: str, found: Sequence[Any], snippets: Sequence[Snippet]
) -> Values:
    """Return the features (d,) of a query; NaN if unknown, and of retrievers that found nothing.

    `found` are the scores of the snippets by each scorer of these, (n,), and then the query scores.

    >>> sources, scores = Sources((), ("s",), "none"), np.array([0.2, 0.4])
    >>> query_features(sources, "red", [scores], [Snippet("a red a"), Snippet("b")]).round(2)
    array([0.2 , 0.4 , 0.12, 1.  , 1.  , 1.  ])
    """
    m, r = len(sources.scorers), len(sources.retrievers)
    known = np.zeros(len(snippets), dtype=np.bool_)
    if snippets:
        known, numbers = numbers_of(sources, found[:m], snippets)
    if not known.any():
        return np.full(len(columns(sources)) + len(found) - m, np.nan)
    values, ranks, ordered = numbers.values, np.log1p(numbers.ranks), numbers.ordered
    of_order = values[0] if len(values) else np.arange(len(snippets), dtype=np.float64)
    if r > 1:
        of_order = -(numbers.found / (C + 1 + numbers.ranks[:r])).sum(axis=0)
    words = [*dict.fromkeys(w for w in WORD.findall(query.lower()) if w not in STOP_WORDS)]
    best, last = ordered[:, 0], ordered[:, -1]
    fall = (ordered[:, :TENTH][:, -1] - best) / (1 + np.log1p(len(words)))
    of_sources = [best, last, fall, *([_elsewhere(values, ranks)] if len(values) > 1 else [])]
    table = np.array(of_sources)
    table[:, np.flatnonzero(~numbers.found.any(axis=1))] = np.nan
    texts = [text.lower() for text, k in zip(texts_in(snippets), known.tolist(), strict=True) if k]
    has = np.array([[word in text for word in words] for text in texts]).reshape(len(texts), -1)
    first = of_order <= np.sort(of_order)[:FIRST][-1]  # and equal ones
    n = max(1, len(words))
    shares = [has[first].any(axis=0).sum() / n, has.sum(axis=1).max() / n] if words else [1.0, 1.0]
    return np.concatenate([table.T.ravel(), shares, [1.0], found[m:]])


def _elsewhere(values: Values, ranks: Values) -> Values:
    """Return the mean log rank by others of what is best by each, (m,), from (m, n) of both."""
    bests = values == values.min(axis=1, keepdims=True)
    lowest = np.where(bests[:, np.newaxis], ranks, np.inf).min(axis=2)
    return np.asarray((lowest.sum(axis=1) - lowest.diagonal()) / (len(values) - 1))


# --- units ----------------------------------------------------------------------------------------


def units_of(own: Sequence[Column], table: Values) -> tuple[Unit, ...]:
    """Return the unit of each source and query scorer, from features (n, d) of answerable queries.

    >>> own = columns(Sources((("dense", "similarity"),), (), "none"))
    >>> units_of(own, np.array([[-0.7, -0.2] + [0.0] * 4, [-0.5, -0.2] + [0.0] * 4]))
    (Unit(middle=-0.6, scale=0.4),)
    """
    units = []
    for i, (feature, _) in enumerate(own):
        if (kind := feature.removeprefix(GIVEN)) in BEGINS:
            numbers = table[np.isfinite(table[:, i]), i : i + 2]
            middle, scale = 0.0, 0.0
            if len(numbers):
                middle = float(numbers[:, 0].mean())
                spread = numbers[:, 0].std() if kind == "number" else np.ptp(numbers, axis=1).mean()
                scale = float(spread)
            units.append(Unit(middle, scale or UNKNOWN))
    return tuple(units)


def in_units(own: Sequence[Column], units: Sequence[Unit], table: Values) -> Values:
    """Return features (n, d) or (d,) in the units of their sources.

    >>> own = columns(Sources((("dense", "similarity"),), (), "none"))
    >>> in_units(own, [Unit(-0.5, 0.125)], np.array([-0.75, -0.25, 0.25, 0.5, 0.5, 1.0]))
    array([-2. ,  2. ,  2. ,  0.5,  0.5,  1. ])
    """
    rules, each = [], iter(units)  # subtracted, divided by, and where a retriever found nothing
    for feature, _ in own:
        kind = feature.removeprefix(GIVEN)
        if kind in BEGINS:
            middle, scale = next(each)
        own_rule = {
            "best": (middle, scale, AWAY),
            "last": (middle, scale, AWAY),
            "fall": (0.0, scale, 0.0),
            "best elsewhere": (0.0, 1.0, BEHIND),
            "number": (middle, scale, np.nan),
        }
        rules.append(own_rule.get(kind, (0.0, 1.0, np.nan)))
    middles, scales, nothing = np.array(rules).T
    return np.asarray(np.where(np.isnan(table), nothing, (table - middles) / scales))
