"""From judged queries to a gate: `calibrate_gate`.

    fit part           a third of the questions, by a hash of their texts, if 20 are answerable and
                       10 of one source are not: changes what other collections say of the query
                       score (`scoring/learned`)
    calibration part   the other answerable queries give the threshold, or all below that; the other
                       unanswerable ones show how often the gate speaks on them

A question that is on both sides, once with its answers and once without, is in one part only.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.file_schema import Choice, Unanswerable
from conformal_retrievers.calibration.fitting import FEWEST, MOST, provenance_with
from conformal_retrievers.calibration.fitting import split as split_by_hash
from conformal_retrievers.calibration.gates.gate import Gate
from conformal_retrievers.calibration.guarantees import n_needed
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.columns import IN_ONE_WAY, ScoredQueries, the_same
from conformal_retrievers.data.copies import check_copies, without_copies
from conformal_retrievers.data.judged import check_not_only_relevant, retrieved
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring.hit_features import sources_of
from conformal_retrievers.scoring.learned.queries import LearnedQueryScorer, fitted_queries
from conformal_retrievers.scoring.learned.query_features import ENOUGH
from conformal_retrievers.scoring.query_scorer import QueryScorer, query_scores
from conformal_retrievers.scoring.scorer import (
    Scorer,
    check_not_fitted_on,
    check_scorer,
    judged_queries,
    query_digest,
)
from conformal_retrievers.theory.ranks import exact_alpha

SHARE = 3  # the fit part is one of so many
JUDGED = "judged unanswerable"  # the source of queries with answerable=False among the others
Queries = Mapping[str, Sequence[JudgedQuery]]  # unanswerable ones, by source


def calibrate_gate(
    answerable: Iterable[JudgedQuery],
    unanswerable: Iterable[JudgedQuery] | Mapping[str, Iterable[JudgedQuery]] = (),
    scorer: QueryScorer | Sequence[Scorer | QueryScorer] | None = None,
    *,
    alpha: float,
    delta: float | None = None,
    by_group: bool = False,
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    progress: bool = False,
) -> Gate:
    """Return the gate for which P(silent | answerable) ≤ alpha.

    Without a scorer, the query score is learned from the snippets' hits: on other collections, and
    on a third of the questions, which do not calibrate. With few of either kind, it is not fitted
    to them; without unanswerable queries, how often the gate speaks on them stays unknown.

    Parameters
    ----------
    answerable
        Judged queries, as the retriever returns snippets for them. Those with a relevant snippet
        are answerable; those with `answerable=False` are unanswerable; others are not used.
    unanswerable
        Queries that what was retrieved does not answer, such as `without_answers` returns; or lists
        of them by the name of their source. Sources are never mixed.
    scorer
        The score of a query; lower = looks answered. From a list of scorers, of queries or of
        snippets, it is learned, and from the hits.
    alpha
        False silence: the probability, in (0, 1), that the gate is silent on an answerable query.
    delta
        Share of calibrations, in (0, 1), that may fall short of alpha; None: it holds on average.
    by_group
        As in `calibrate`: the guarantee within each group of queries.
    retrieval, labels
        Facts about the retrieval and the judgements, written into the file.
    progress
        Whether to show a progress bar.

    Raises
    ------
    ValueError
        For an argument out of range, no answerable query, too few for delta, an unanswerable query
        with a relevant snippet, copies among the answerable ones, queries of different retrievers
        or depths, or not retrieved yet, or one that the scorer was fitted on.

    Warns
    -----
    UserWarning
        If alpha or delta is above 0.5, which looks like a share that is to hold, and for copies
        among unanswerable queries.

    Notes
    -----
    The threshold is the k-th smallest score of n answerable queries, k = ⌈(n + 1)(1 − α)⌉.
    """
    exact_alpha(alpha)
    checks.check_flags(by_group=by_group)
    given = judged_queries(answerable, "answerable")
    check_copies(given)
    sources = by_source(given, unanswerable)
    given = [query for query in given if query.answerable]
    everything = _all(given, sources)
    split = the_same("split", {query.split for query in everything} or {None}, IN_ONE_WAY)
    retrieval = checks.with_split(checks.with_retrieval(everything, retrieval), split)
    check_not_only_relevant(given)
    fit = set[str]()
    if not isinstance(scorer, QueryScorer):
        groups = [query.group for query in given] if by_group else None
        fit = _fit_part(given, sources, n_needed("all", alpha, delta), groups)
    left = {
        name: [query for query in queries if query_digest(query.query) not in fit]
        for name, queries in [("", given), *sources.items()]
    }
    calibrating = left.pop("")
    if emptied := [name for name, queries in left.items() if not queries]:
        raise ValueError(say("all fit", name=emptied[0]))
    known = [query for query in calibrating if any(query.relevant)]
    unknown = [query for query in calibrating if not any(query.relevant)]
    made = partial(
        Calibration,
        alpha,
        "all",  # with one score a query, every guarantee has the same rank
        subject=QUERIES,
        delta=delta,
        by_group=bool(by_group),
        n_without_relevant=len(unknown),
        other_ids=tuple(query.id for query in unknown if query.id),
        retrieval=retrieval,
        labels=checks.json_copy("labels", labels),
    )
    # Before anything is paid for: refuses what would be refused afterwards.
    unscored = made("none yet", ScoredQueries.of_units(np.zeros(len(known)), known))
    checks.warn_if_large(alpha=unscored.alpha, delta=unscored.delta)
    own, choice = scorer, None
    if not isinstance(own, QueryScorer):
        own, choice = _learned(given, sources, fit, scorer)
    check_not_fitted_on(own, _all(calibrating, left))
    scores = query_scores(own, known, title="Scoring: answerable", progress=progress)
    if np.isnan(scores).all():
        raise ValueError(say("no query score", n=len(known), scorer=own.name))
    calibration = made(
        own.name,
        ScoredQueries.of_units(scores, known).relevant_only(),
        lowest_scores=tuple(np.sort(scores[np.isfinite(scores)]).tolist()),
        scorer_provenance=checks.json_copy("scorer_provenance", provenance_with(own, choice)),
        details={
            "unanswerable": {
                name: _stored(
                    of_source,
                    query_scores(own, of_source, title=f"Scoring: {name}", progress=progress),
                )
                for name, of_source in left.items()
            },
            "answerable": [*sorted({query_digest(query.query) for query in known})],
        },
    )
    return Gate(own, calibration)


def by_source(
    given: Sequence[JudgedQuery],
    unanswerable: Iterable[JudgedQuery] | Mapping[str, Iterable[JudgedQuery]],
) -> dict[str, list[JudgedQuery]]:
    """Return unanswerable queries by source.

    Raises ValueError for one with a relevant snippet, and for one without snippets, retriever and
    k where answerable ones have them. Warns of copies.
    """
    named = unanswerable if isinstance(unanswerable, Mapping) else {"unanswerable": unanswerable}
    sources = {JUDGED: [query for query in given if not query.answerable]}
    for name, queries in named.items():
        check_names("unanswerable", source=name)
        listed = judged_queries(queries, f"unanswerable[{name!r}]")
        if not name or (not listed and isinstance(unanswerable, Mapping)):
            raise ValueError(say("empty source", name=name, n=len(listed)))
        sources.setdefault(name, []).extend(listed)
    sources = {name: queries for name, queries in sources.items() if queries}
    answers = {
        query_digest(q.query): {s.text for s, r in zip(q.snippets, q.relevant, strict=True) if r}
        for q in given
    }
    known_k = any(query.k or query.retriever for query in given)
    for name, queries in sources.items():
        checks.check_unique_ids(query.id for query in queries)
        _, copies, _ = without_copies(queries)
        if copies:
            warnings.warn(say("copies", name=name, copies=copies), stacklevel=3)
        for query in queries:
            known = answers.get(query_digest(query.query), set())
            if known & {snippet.text for snippet in query.snippets}:
                raise ValueError(say("still answered", name=name, query=query))
            if any(query.relevant):
                raise ValueError(say("answered", name=name, query=query))
            if known_k and not query.snippets and not retrieved(query):
                raise ValueError(say("never retrieved", name=name, query=query))
    return sources


def _all(given: Sequence[JudgedQuery], sources: Queries) -> list[JudgedQuery]:
    return [*given, *(query for queries in sources.values() for query in queries)]


def _fit_part(
    given: Sequence[JudgedQuery], sources: Queries, needed: int, groups: Sequence[str | None] | None
) -> set[str]:
    """Return the digests of the questions that fit the score.

    A question that a source shares with the others is where it is there. If these are too few, they
    are answerable ones that give the units of the prior: ten of 60, or one if it can be spared.
    """
    fitting = split_by_hash(given, needed=needed, groups=groups, share=SHARE).fit
    relevant = [query_digest(query.query) for query in fitting if any(query.relevant)]
    fit = {query_digest(query.query) for query in fitting}
    known = {query_digest(query.query) for query in given}
    of_sources = [{query_digest(query.query) for query in queries} for queries in sources.values()]
    most = 0
    for digests in of_sources:
        new = sorted(digests - known)
        chosen = new[: min(len(new) // SHARE, MOST)]
        n = len(chosen) + len(digests & fit)
        if n >= FEWEST // 2:  # fewer would not be fitted on
            fit.update(chosen)
        most = max(most, n)
    if len(relevant) >= FEWEST and most >= FEWEST // 2:
        return fit
    alone = {digest for digests in of_sources if len(digests) == 1 for digest in digests}
    spared = ENOUGH if len(relevant) >= FEWEST else 1
    return {*[digest for digest in relevant if digest not in alone][:spared]}


def _learned(
    given: Sequence[JudgedQuery], sources: Queries, fit: Collection[str], scorer: Any
) -> tuple[LearnedQueryScorer, Choice]:
    """Return the score that is learned on the fit part, or, without one, the prior alone."""
    if isinstance(scorer, Scorer):
        raise TypeError(say("scores snippets", scorer=scorer))
    checks.check_scorers(scorer)
    scorers = [*(scorer or ())]
    for part in scorers:
        check_not_fitted_on(part, _all(given, sources))  # before it scores anything
        if not isinstance(part, QueryScorer):
            check_scorer(part)
    fits = {
        name: [query for query in queries if query_digest(query.query) in fit]
        for name, queries in [("", given), *sources.items()]
    }
    fitted = {query_digest(query.query): query.id for queries in fits.values() for query in queries}
    answerable, *others = fits.values()
    enough = [queries for queries in others if len(queries) >= FEWEST // 2]
    learned = fitted_queries(sources_of(_all(given, sources)), scorers, answerable, *enough)
    choice = Choice(
        chosen=learned.name,
        given=[part.name for part in scorers],
        n_fit=len(fitted),
        fit_ids=[id for id in fitted.values() if id is not None],
        fit_digests=[*fitted],
    )
    return learned, choice


def _stored(queries: Sequence[JudgedQuery], scores: NDArray[np.float64]) -> JsonValue:
    """Return what a calibration has of one source; without a score, a query passes: −inf."""
    return Unanswerable(
        scores=np.where(np.isnan(scores), -np.inf, scores).tolist(),
        groups=[query.group for query in queries],
        questions=[query_digest(query.query) for query in queries],
    ).model_dump(mode="json")
