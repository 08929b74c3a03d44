"""Hits, words and any scorers as one score: how much of what is relevant a snippet is per text.

    score_i = −log(share_i / cost_i)
    share_i = p_i / (1 + Σ_{j≠i} p_j),   log(p_i / (1 − p_i)) = Σ_j coefficient_j · feature_ij
    cost_i  = 1 + characters_i / c,      c = 500 for snippets, 100 for sentences

p_i is the probability that snippet i of a query is relevant, and the share is about what it is
expected to be of the query's relevant snippets. To keep the highest shares per cost costs the least
for a mean share that is kept. Where many snippets look relevant, one of them is a smaller share,
and a long one has to be a larger share than a short one. c is about as long as a snippet or a
sentence is, so it costs half for being one, with a title and in the place of another, and half for
its text. By text alone, many short ones would pass.

The coefficients start from what other collections say (`prior.py`), and judged queries change them
(`regression.py`), of which ten are worth having and none is needed. It takes a millisecond or
two for a hundred snippets, and asks no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.files import explain, short_hash
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.hit_features import Context, Kind, Sources, Values, sources_of
from conformal_retrievers.scoring.learned.features import WORDS, columns, features, words_of
from conformal_retrievers.scoring.learned.prior import Item, prior_of
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.shared_scores import scored_once
from conformal_retrievers.scoring.wording import say

FORMAT, VERSION = "conformal-retrievers/learned-scorer", 13
BESIDE = {"snippets": 500.0, "sentences": 100.0}  # what one costs beside its text, in characters


class Stored(pydantic.BaseModel):
    """The fields of a provenance of a `LearnedScorer`."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    format: str
    version: int
    prior: str = pydantic.Field(pattern="^(snippets|sentences|queries) ")
    retrievers: dict[str, Kind]
    scorers: list[str]
    context: Context
    coefficients: dict[str, pydantic.FiniteFloat]
    fitted_on: list[str]


F = TypeVar("F", bound=pydantic.BaseModel)


def stored(model: type[F], provenance: Mapping[str, JsonValue], needed: Mapping[str, object]) -> F:
    """Return the fields of a provenance; ValueError, naming one, if these are not as needed."""
    for name, value in needed.items():
        if (known := provenance.get(name)) != value:
            more = ", or give the scorers of the fit in their order" if name == "scorers" else ""
            raise ValueError(say("another fit", name=name, known=known, value=value, more=more))
    try:
        return model.model_validate({**provenance})
    except pydantic.ValidationError as error:
        raise ValueError(f"scorer_provenance: {explain(error)}; calibrate again") from None


class Learned:
    """What is learned of snippets, or of queries: its sources, coefficients and provenance."""

    sources: Sources
    coefficients: tuple[float, ...]
    fitted_on: frozenset[str]
    prior: str

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The names of the retrievers whose hits it reads."""
        return tuple(name for name, _ in self.sources.retrievers)

    def stored(self, format: str, version: int, names: Iterable[object]) -> dict[str, JsonValue]:
        """Return as JSON what it was made of, with the names of the coefficients."""
        return {
            "format": format,
            "version": version,
            "prior": self.prior,
            "retrievers": dict(self.sources.retrievers),
            "scorers": [*self.sources.scorers],
            "context": self.sources.context,
            "coefficients": dict(zip(map(str, names), self.coefficients, strict=True)),
            "fitted_on": [*sorted(self.fitted_on)],
        }


@dataclass(frozen=True)
class LearnedScorer(Learned, CombinedScorer):
    """Scores by the expected share of what is relevant, per text; `fit` learns it from judgements.

    A snippet that none of the retrievers found, or that lacks a score, document or position that
    the fit had, or with a part's score that is NaN or infinite, is unscorable: NaN. It does not
    enter the features of the others, but its text counts where words are weighed, and a part that
    compares snippets reads it. If no snippet has the hits, that is a ValueError; if none has a
    document, each is one of its own.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> fit_part = [JudgedQuery("q", with_hits(["a", "b", "c"]), [True, False, False])]
    >>> learned = LearnedScorer.fit(fit_part)
    >>> learned.retrievers, learned.score("r", with_hits(["d", "e"])).argsort()
    (('retriever',), array([0, 1]))
    """

    scorers: tuple[Scorer, ...]
    sources: Sources
    coefficients: tuple[float, ...] = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    prior: str
    relative_to_query: ClassVar[bool] = True
    same_from: ClassVar[int] = 1  # as in a list of 50

    @classmethod
    def fit(cls, judged: Iterable[JudgedQuery], scorers: Iterable[Scorer] = ()) -> LearnedScorer:
        """Return the scorer that is learned from hits, from `scorers`, and from where snippets are.

        The fit uses all retrievers of the hits, and documents and positions if every snippet has
        them. Snippets that cannot be scored do not enter. Raises ValueError if there are neither
        hits nor scorers, or if scorers share a name.
        """
        judged, parts = [*judged], tuple(scorers)
        names = [part.name for part in parts]
        sources = sources_of(judged, names)
        check_sources(sources, names, needed=not any(query.split for query in judged))
        return fitted(sources, parts, judged, item_of(judged))

    @classmethod
    def from_provenance(
        cls, provenance: Mapping[str, JsonValue], scorers: Iterable[Scorer] = ()
    ) -> LearnedScorer:
        """Return the scorer with this `provenance`, bit for bit, from its parts.

        Raises ValueError, naming the field, if another version wrote the provenance, if the parts
        are not those that it was fitted with, and for a field of another type or length.
        """
        parts = tuple(scorers)
        needed = {"format": FORMAT, "version": VERSION, "scorers": [part.name for part in parts]}
        fields = stored(Stored, provenance, needed)
        sources = Sources(tuple(fields.retrievers.items()), tuple(fields.scorers), fields.context)
        names = [*map(str, columns(sources))]
        if [*fields.coefficients] != names:
            raise ValueError(say("other features", n=len(names)))
        coefficients = tuple(fields.coefficients.values())
        return cls(parts, sources, coefficients, frozenset(fields.fitted_on), fields.prior)

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers, in order."""
        return self.scorers

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: sources, coefficients by feature, queries."""
        return self.stored(FORMAT, VERSION, columns(self.sources))

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, the context, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), "words", *self.sources.scorers]
        fit = short_hash(self.provenance)
        return f"learned({', '.join(read)}; context={self.sources.context}, fit={fit})"

    def combine(self, query: str, scores: Sequence[Values], snippets: Retrieved) -> Values:
        """Return the score of each snippet, (n,)."""
        item, *_ = self.prior.split()
        known, table = features(
            self.sources, query, _words(query, snippets), scores, snippets, item == "sentences"
        )
        combined = np.full(len(snippets), np.nan)
        # Row by row: no sum depends on other snippets, even in its last bit.
        combined[known] = by_share((table * np.array(self.coefficients)[:, np.newaxis]).sum(axis=0))
        return combined + np.log1p(np.array([*map(len, snippets.texts)]) / BESIDE[item])


def by_share(log_odds: Values) -> Values:
    """Return −log(p / (1 + Σ of the others' p)) of a query's snippets (n,) with these log-odds.

    >>> by_share(np.array([0.0, 0.0])).round(3), by_share(np.array([0.0, -99.0])).round(3)
    (array([1.099, 1.099]), array([ 0.693, 99.405]))
    """
    surprise = np.logaddexp(0.0, -log_odds)  # −log p
    p = np.exp(-surprise)
    # Sums of floats depend on the order, scores must not.
    return np.asarray(surprise + np.log1p(np.sort(p).sum() - p))


def fitted(
    sources: Sources, scorers: Sequence[Scorer], judged: Sequence[JudgedQuery], item: Item
) -> LearnedScorer:
    """Return the scorer of these sources after some judged queries, of which none is needed."""
    prior = prior_of(item)
    marks, table = table_of(sources, scorers, judged)
    coefficients = most_probable(table.T, marks, *prior.of(columns(sources)))
    digests = frozenset(query_digest(query.query) for query in judged)
    return LearnedScorer(tuple(scorers), sources, tuple(coefficients.tolist()), digests, prior.name)


def check_sources(sources: Sources, names: Sequence[str], *, needed: bool) -> None:
    """Raise ValueError if scorers share a name, or sources are needed and there are none."""
    if len(set(names)) < len(names) or (needed and not (sources.retrievers or names)):
        raise ValueError(say("sources", names=names, n=len(sources.retrievers)))


def table_of(
    sources: Sources, scorers: Sequence[Scorer], judged: Iterable[JudgedQuery]
) -> tuple[np.ndarray, Values]:
    """Return of all snippets that can be scored whether they are relevant, and features (d, n)."""
    relevant, tables = [np.empty(0, np.bool_)], [np.empty((len(columns(sources)), 0))]
    for query in judged:
        text, given, sentences = query.query, query.retrieved, bool(query.split)
        own = [score_snippets(scorer, text, given) for scorer in scorers]
        known, table = features(sources, text, _words(text, given), own, given, sentences)
        relevant.append(np.array(query.relevant, np.bool_)[known])
        tables.append(table)
    return np.concatenate(relevant), np.concatenate(tables, axis=1)


def _words(query: str, snippets: Retrieved) -> Values:
    """Return the scores of shared words, (5, n)."""
    # By a key that is no text: a scorer may have any name.
    return scored_once(WORDS, query, snippets, lambda: words_of(query, snippets.texts))


def item_of(judged: Iterable[JudgedQuery]) -> Item:
    """Return what the snippets of judged queries are."""
    return "sentences" if any(query.split for query in judged) else "snippets"


def contributions(learned: LearnedScorer, judged: Iterable[JudgedQuery]) -> dict[str, float]:
    """Return how much each retriever and scorer counts, from the snippets of judged queries.

    It is the standard deviation, within a query, of what its features add to the log-odds. So a
    source that tells nothing apart counts nothing. Below 0 if its z-score, lower = more relevant,
    is higher where it adds more.
    """
    counts, of_each, deviations = {}, columns(learned.sources), []
    for query in judged:
        _, table = table_of(learned.sources, learned.scorers, [query])
        deviations.append(table - table.sum(axis=1, keepdims=True) / max(1, table.shape[1]))
    table = np.concatenate(deviations, axis=1)
    for name in learned.sources.names:
        rows = [i for i, column in enumerate(of_each) if column.source == name]
        added = np.array(learned.coefficients)[rows] @ table[rows]
        spread = (np.square(added).sum() / max(1, len(added))) ** 0.5
        counts[name] = float(np.copysign(spread, -added @ table[rows[0]]))
    return counts
