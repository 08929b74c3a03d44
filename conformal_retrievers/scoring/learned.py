"""Hits and scorers as one score, learned from judged queries: score = −log-odds of relevance.

The features (`features.py`) are what each retriever and scorer knows of a snippet, where it stands
among those of the query, and, if documents and positions are known, in its document. A regression
in two stages (`stages.py`) weighs them, with boosted trees (`trees.py`) if there are scorers. Of
many features a few queries teach little, and of one enough. So with n queries

    score = −(n · log-odds from all features + 60 · log-odds from the mean z-score) / (n + 60)

with the mean z-score of all sources as in `zfusion.py`. Hits alone are scored in microseconds.
scikit-learn fits on queries that must not calibrate; numpy alone scores, and asks no model for what
the hits have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.files import explain
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.features import feature_names, features
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.sources import Context, Kind, Sources, Values, sources_of
from conformal_retrievers.scoring.stages import Stages, StoredStages, fit_stages, standing_names
from conformal_retrievers.theory.ranks import exact_alpha

# The consensus counts as so many queries. Of the weights 1/3, 1/2 and 2/3, the nearest one passed
# at most 2 % more snippets than the best, after 25, 60 and 180 queries of two or three data sets.
AS_MANY = 60
FORMAT, VERSION = "conformal-retrievers/learned-scorer", 4


class Stored(StoredStages):
    """The fields of a provenance of a `LearnedScorer`."""

    format: str
    version: int
    retrievers: dict[str, Kind]
    scorers: list[str]
    context: Context
    features: list[str]
    consensus: StoredStages
    fitted_on: list[str]


F = TypeVar("F", bound=pydantic.BaseModel)


def stored(model: type[F], provenance: Mapping[str, JsonValue], needed: Mapping[str, object]) -> F:
    """Return the fields of a provenance; ValueError, naming one, if these are not as needed."""
    for name, value in needed.items():
        if provenance.get(name) != value:
            raise ValueError(
                f"{name} is {provenance.get(name)!r} in the provenance and {value!r} here; give "
                "the scorers of the fit in their order, or fit again"
            )
    try:
        return model.model_validate({**provenance})
    except pydantic.ValidationError as error:
        raise ValueError(f"scorer_provenance: {explain(error)}; calibrate again") from None


@dataclass(frozen=True)
class LearnedScorer(CombinedScorer):
    """Scores by −log-odds of being relevant, learned from judged queries; `fit` makes one.

    A snippet that none of the retrievers found, or that lacks a score, document or position that
    the fit had, or with a part's score that is NaN or infinite, is unscorable: NaN. It does not
    enter the features of the others, but a part that compares snippets reads it. If no snippet has
    the hits, that is a ValueError.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> fit_part = [JudgedQuery("q", with_hits(["a", "b", "c"]), [True, False, False])]
    >>> learned = LearnedScorer.fit(fit_part)
    >>> learned.retrievers, learned.score("r", with_hits(["d", "e"])).argsort()
    (('retriever',), array([0, 1]))
    """

    scorers: tuple[Scorer, ...]
    sources: Sources
    stages: Stages = field(repr=False)
    consensus: Stages = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    relative_to_query: ClassVar[bool] = True

    @classmethod
    def fit(
        cls,
        judged: Iterable[JudgedQuery],
        scorers: Iterable[Scorer] = (),
        *,
        alpha: float | None = None,
    ) -> LearnedScorer:
        """Return the scorer that is learned from hits, from `scorers`, and from where snippets are.

        The fit uses all retrievers of the hits, and documents and positions if every snippet has
        them. It leaves out unscorable snippets. It is best near the threshold that drops a share
        `alpha` of the relevant ones, if given. Raises ValueError for an alpha outside (0, 1), if
        there are neither hits nor scorers, if scorers share a name, and unless there are relevant
        and irrelevant snippets.
        """
        if alpha is not None:
            exact_alpha(alpha)
        judged, parts = list(judged), tuple(scorers)
        names = [part.name for part in parts]
        sources = sources_of(judged, names)
        if len(set(names)) < len(names) or not sources.names:
            raise ValueError(
                f"scorers are {names}, hits are of {len(sources.retrievers)} retrievers; give "
                "each scorer once, and one or more if the snippets of judged have no hits"
            )
        tables, relevant = [], []
        for query in judged:
            columns = [score_snippets(part, query.query, query.snippets) for part in parts]
            tables.append(features(sources, columns, query.snippets))
            relevant.append(np.array(query.relevant, dtype=bool)[tables[-1].known])
        labels = np.concatenate([np.empty(0, dtype=bool), *relevant])
        if len(set(labels.tolist())) < 2:
            raise ValueError(
                f"judged has {labels.sum()} relevant and {(~labels).sum()} irrelevant snippets "
                "that can be scored; give judged queries with both"
            )
        stages = fit_stages(tables, relevant, alpha=alpha, trees=bool(parts))
        of_means = fit_stages([t.consensus for t in tables], relevant, alpha=alpha, trees=False)
        digests = frozenset(query_digest(query.query) for query in judged)
        return cls(parts, sources, stages, of_means, digests)

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
        d, names = len(feature_names(sources)), all_names(sources)
        if fields.features != names:
            raise ValueError(
                f"scorer_provenance: features are not the {len(names)} that its retrievers, "
                "scorers and context give; calibrate again"
            )
        stages = fields.stages(d, len(names))
        of_means = fields.consensus.stages(1, 1 + len(names) - d)
        return cls(parts, sources, stages, of_means, frozenset(fields.fitted_on))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers, in order."""
        return self.scorers

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The names of the retrievers whose hits it reads."""
        return tuple(name for name, _ in self.sources.retrievers)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: sources, features, coefficients, queries."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "retrievers": dict(self.sources.retrievers),
            "scorers": [*self.sources.scorers],
            "context": self.sources.context,
            "features": [*all_names(self.sources)],
            **self.stages.as_json(),
            "consensus": self.consensus.as_json(),
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, the context, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), *self.sources.scorers]
        fit = short_hash(self.provenance)
        return f"learned({', '.join(read)}; context={self.sources.context}, fit={fit})"

    def combine(self, columns: Sequence[Values], snippets: Sequence[Snippet]) -> Values:
        """Return −log-odds of each snippet, (n,)."""
        of_query = features(self.sources, columns, snippets)
        combined = np.full(len(snippets), np.nan)
        own = self.stages.log_odds(of_query)
        means = self.consensus.log_odds(of_query.consensus)
        combined[of_query.known] = -weighted(own, means, len(self.fitted_on))
        return combined


def weighted(own: Values, consensus: Values, n: int) -> Values:
    """Return the log-odds (n_snippets,) of a score that n queries taught, from both its fits'."""
    return (n * own + AS_MANY * consensus) / (n + AS_MANY)


def all_names(sources: Sources) -> list[str]:
    """Return the names of the features of both stages."""
    return [*feature_names(sources), *standing_names(sources.context)]
