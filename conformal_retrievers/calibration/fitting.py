"""The default score: learned on judged queries that do not calibrate.

    fit part           a quarter of the judged queries, by a hash of their texts, at most 200, if
                       there are 20: changes what other collections say (`scoring/learned`)
    calibration part   the others, or all below 20: give the threshold

The guarantee is exact, because the calibration part never sees the fit. What the score keeps on the
fit part is found by cross-validation, and stands in the statement beside what a top k keeps. If the
fit part is too small to tell, this is found on the calibration part, and changes nothing there.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration.file_schema import Added, Choice
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.hits import unknown_hits
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.extras import with_bar
from conformal_retrievers.scoring.hit_features import Sources, Values, sources_of, warn_if_some_lack
from conformal_retrievers.scoring.hits import FusionScorer, RetrievalScorer
from conformal_retrievers.scoring.learned.prior import Item
from conformal_retrievers.scoring.learned.score import contributions, fitted, item_of
from conformal_retrievers.scoring.scorer import (
    Named,
    Scorer,
    check_not_fitted_on,
    check_scorer,
    provenance_of,
    query_digest,
    reference,
    score_snippets,
)
from conformal_retrievers.theory.intervals import ordered_pairs

Judged = Sequence[JudgedQuery]
FEWEST = 20  # judged queries with a relevant snippet, of which some fit
SHARE = 4  # the fit part is one of so many
MOST = 200  # queries in the fit part
FOLDS = 5
COMPARED = 10  # queries of the fit with a relevant snippet: what fewer keep misleads
REVERSED = 0.4  # the AUC below which a scorer beside others seems upside down
RESAMPLES, SURE = 100, 0.9  # of queries; in this share a top k must keep fewer, too


class Parts(NamedTuple):
    """Judged queries that fit, in the order of their hashes, and those that calibrate."""

    fit: list[JudgedQuery]
    calibration: list[JudgedQuery]


def split(
    judged: Sequence[JudgedQuery],
    *,
    needed: int = 0,
    groups: Sequence[str | None] | None = None,
    share: int = SHARE,
) -> Parts:
    """Return the fit part, one of `share` queries, and the calibration part.

    Which is which depends on the queries' texts only, not on their order. Queries of equal text
    stay together. The fit part leaves `needed` queries with a relevant snippet in each of the
    `groups`, one for each query, if there are as many.

    >>> judged = [JudgedQuery(text, ["a"], [True]) for text in ("red", "blue", "green")]
    >>> parts = split(judged, share=3)
    >>> [query.query for query in parts.fit], [query.query for query in parts.calibration]
    (['blue'], ['red', 'green'])
    """
    digests = [query_digest(query.query) for query in judged]
    members: dict[str | None, list[int]] = {}
    for i in sorted(range(len(judged)), key=lambda i: (digests[i], judged[i].id or "")):
        members.setdefault(groups[i] if groups else None, []).append(i)
    chosen: set[str] = set()
    for of_group in members.values():
        spare = sum(any(judged[i].relevant) for i in of_group) - needed
        n = min(len(of_group) // share, MOST * len(of_group) // len(judged), max(0, spare))
        for digest, times in Counter(digests[i] for i in of_group).items():
            if times <= n:  # a question about many documents may be too many for the fit part
                chosen.add(digest)
                n -= times
    fit = [i for of_group in members.values() for i in of_group if digests[i] in chosen]
    calibration = [i for i, digest in enumerate(digests) if digest not in chosen]
    fit.sort(key=lambda i: (digests[i], judged[i].id or ""))
    return Parts([judged[i] for i in fit], [judged[i] for i in calibration])


def n_that_fit(n: int, needed: int) -> int:
    """Return how many of n judged queries fit the score, each with a relevant snippet.

    >>> [n_that_fit(n, needed=9) for n in (10, 20, 40, 1000)]
    [0, 5, 10, 200]
    """
    return min(n // SHARE, MOST, max(0, n - needed)) if n >= FEWEST else 0


def parts_of(judged: list[JudgedQuery], rule: Thresholds) -> Parts:
    """Return which judged queries fit the default score, and which calibrate it by a rule."""
    if rule.guarantee == "snippet" or sum(any(q.relevant) for q in judged) < FEWEST:
        return Parts([], judged)
    groups = [query.group for query in judged] if rule.by_group else None
    return split(judged, needed=rule.n_needed, groups=groups)


def provenance_with(scorer: Named, choice: Choice | None) -> Mapping[str, JsonValue] | None:
    """Return how a scorer is made again, and how it was chosen."""
    if choice is None:
        return provenance_of(scorer)
    return {"score": reference(scorer), "choice": choice.model_dump()}


def choose(
    judged: Sequence[JudgedQuery],
    parts: Parts,
    scorer: Scorer | Sequence[Scorer] | None,
    guarantee: Guarantee,
    alpha: float,
    *,
    progress: bool = False,
) -> tuple[Scorer, Choice | None]:
    """Return the score that the user gives, or one that is learned on the fit part, and how.

    A list of scorers adds features to those of the hits; each of them scores a query once. For
    "snippet" the score is that of the only retriever; ValueError if there are several.
    """
    if isinstance(scorer, Scorer):
        return scorer, None
    given = [*(scorer or ())]
    names = [part.name for part in given]
    sources, item = sources_of(judged, names), item_of(judged)
    if guarantee == "snippet":
        own = _absolute(sources)
        return own, Choice(chosen=own.name, given=names)
    warn_if_some_lack(judged)
    fit, enough = parts.fit, _enough(parts.fit)
    asked = fit if enough or not given else [*fit, *parts.calibration]
    in_order = np.zeros((len(given), 2))  # pairs of a relevant and an irrelevant one, and all
    for query in with_bar(asked, "Fitting the score") if progress and asked else asked:
        marks = np.array(query.relevant, np.bool_)
        for i, part in enumerate(given):
            scores = score_snippets(part, query.query, query.retrieved)
            in_order[i] += ordered_pairs(scores[marks], scores[~marks])
    for name, (ordered, pairs) in zip(names, in_order, strict=True):
        if ordered < REVERSED * pairs:
            warnings.warn(say("scorer reversed", name=name, area=ordered / pairs), stacklevel=3)
    learned = fitted(sources, given, fit, item)
    on = fit if enough else parts.calibration
    choice = Choice(
        chosen=learned.name,
        given=names,
        on="fit" if enough else "calibration",
        # Of fewer, it is chance.
        contributions=contributions(learned, fit) if len(fit) >= COMPARED else {},
        n_fit=len(fit),
        fit_ids=[query.id for query in fit if query.id is not None],
        fit_digests=[query_digest(query.query) for query in fit],
    )
    if not _enough(on):
        return learned, choice
    compared = _compared(sources, given, fit, on, item)
    return learned, choice.model_copy(update=_costs(compared, alpha))


def _enough(queries: Judged) -> bool:
    return sum(any(query.relevant) for query in queries) >= COMPARED


class Compared(NamedTuple):
    """Queries of one part, scored by what is learned and by what it is compared with."""

    learned: list[ScoredQuery]
    without: dict[str, list[ScoredQuery]]  # each given scorer
    top: dict[str, list[ScoredQuery]]  # k of each retriever, and of their fusion


LEARNED = "learned"  # the name of its cost


def _costs(compared: Compared, alpha: float) -> dict[str, Any]:
    """Return what of `Choice` says how many snippets each score keeps of a query."""

    def cost(queries: Sequence[ScoredQuery]) -> float:
        return float(kept(queries, alpha).mean())

    own = cost(compared.learned)
    tops = {name: n for name, queries in compared.top.items() if (n := cost(queries)) < np.inf}
    better = [name for name in tops if _better(compared.top[name], compared.learned, alpha)]
    best = min(better, key=tops.__getitem__, default=LEARNED)
    without = {name: cost(queries) for name, queries in compared.without.items()}
    adds = {name: Added(with_it=own, without=n) for name, n in without.items()}
    unreached = [name for name in compared.top if name not in tops]
    costs = {LEARNED: own, **tops}
    return {"alpha": alpha, "costs": costs, "best": best, "adds": adds, "unreached": unreached}


def _better(top: Sequence[ScoredQuery], own: Sequence[ScoredQuery], alpha: float) -> bool:
    """Return whether a top k keeps fewer snippets than what is learned, by more than the noise.

    It does in most resamples of the queries, too: each of them has thresholds of its own.
    """

    def fewer(drawn: Iterable[int]) -> bool:
        costs = [kept([scored[i] for i in drawn], alpha).mean() for scored in (top, own)]
        return bool(costs[0] < costs[1])

    n = len(own)
    drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n)).tolist()
    return fewer(range(n)) and float(np.mean([fewer(places) for places in drawn])) > SURE


def check_given(judged: Sequence[JudgedQuery], given: Sequence[Scorer]) -> None:
    """Raise unless every query has hits, or there are scorers, each once and not fitted on it."""
    for scorer in given:
        check_scorer(scorer)
        check_names("scorer", name=scorer.name)
        check_not_fitted_on(scorer, judged)
    names = [scorer.name for scorer in given]
    names += sorted({name for query in judged for name in query.hits})
    if len(set(names)) < len(names):
        raise ValueError(f"scorers and retrievers are {names}; give each once, with its own name")
    without = [query for query in judged if query.snippets and not query.hits]
    with_hits = len(without) < sum(bool(query.snippets) for query in judged)
    if with_hits and without:
        raise ValueError(say("some without hits", query=without[0]))
    if not with_hits and not given and item_of(judged) == "snippets":
        raise ValueError(say("no hits"))


def _absolute(sources: Sources) -> Scorer:
    """Return the one score that does not depend on the query's other snippets."""
    scored = [(name, kind) for name, kind in sources.retrievers if kind != "rank"]
    if len(scored) != 1 or sources.scorers:
        names = [*sources.scorers, *(name for name, _ in sources.retrievers)]
        raise ValueError(say("no single score", names=names))
    ((name, kind),) = scored
    return RetrievalScorer(name, kind == "similarity")


# --- what it keeps --------------------------------------------------------------------------------


def passing(alpha: float, kept: Sequence[int]) -> dict[str, float]:
    """Return what of `Choice` says how many snippets of each query a threshold keeps."""
    return {"alpha": alpha, "passes": float(np.mean(kept)), "none_pass": kept.count(0) / len(kept)}


def _compared(
    sources: Sources, given: Sequence[Scorer], fit: Judged, on: Judged, item: Item
) -> Compared:
    """Return queries of one part, scored.

    By what is learned with all scorers, and without each, in the fit part by cross-validation, and
    by a top k of each retriever and of their fusion; +inf for what a retriever did not return.
    """
    without = {}
    for scorer in given:
        others = [other for other in given if other is not scorer]
        fewer = sources._replace(scorers=tuple(scorer.name for scorer in others))
        if fewer.names:
            without[scorer.name] = _not_fitted_on(fewer, others, fit, on, item)
    return Compared(_not_fitted_on(sources, given, fit, on, item), without, _top(sources, on))


def _top(sources: Sources, on: Judged) -> dict[str, list[ScoredQuery]]:
    """Return queries scored by their places in the list of each retriever, and in the fusion."""
    names = [name for name, _ in sources.retrievers]
    top: dict[str, list[ScoredQuery]] = {}
    for query in on:
        n, own = len(query.snippets), query.document_of
        # Of sentences, those of a document share its place.
        document = np.arange(n) if own is None else own
        lists = {name: query.hits.get(name, unknown_hits(n)).ranks for name in names}
        if len(names) > 1:
            lists["the fusion"] = score_snippets(FusionScorer(names), query.query, query.retrieved)
        for name, scores in lists.items():
            order = np.lexsort((document, scores))
            place = np.zeros(n)
            place[order[1:]] = np.cumsum(np.diff(document[order]) != 0)
            ks = np.where(scores < np.inf, place, np.inf)
            top.setdefault(f"top k of {name}", []).append(ScoredQuery(ks, np.array(query.relevant)))
    return top


def _not_fitted_on(
    sources: Sources, given: Sequence[Scorer], fit: Judged, on: Judged, item: Item
) -> list[ScoredQuery]:
    """Return queries of one part with scores, each by a score that was not fitted on its fold."""
    k = FOLDS if on is fit else 1
    folds = [
        fitted(sources, given, [q for i, q in enumerate(fit) if k == 1 or i % k != fold], item)
        for fold in range(k)
    ]
    return [
        ScoredQuery(score_snippets(folds[i % k], q.query, q.retrieved), np.array(q.relevant))
        for i, q in enumerate(on)
    ]


def kept(scored: Sequence[ScoredQuery], alpha: float) -> Values:
    """Return how many snippets of each query have a score up to t, (n,).

    t is the lowest score at which a share 1 − alpha of the relevant snippets have one, on average
    over queries that have any. One without a score, NaN, is kept. All are +inf if t is: what has
    the score +inf was not returned, so no t keeps that share.
    """
    known = [np.where(np.isnan(query.scores), -np.inf, query.scores) for query in scored]
    relevant = [scores[query.relevant] for scores, query in zip(known, scored, strict=True)]
    masses = np.concatenate([np.full(len(scores), 1 / max(1, len(scores))) for scores in relevant])
    pooled = np.concatenate(relevant)
    order = np.argsort(pooled, kind="stable")
    reached = np.searchsorted(np.cumsum(masses[order]), (1 - alpha - 1e-9) * masses.sum())
    t = pooled[order][min(int(reached), len(pooled) - 1)] if len(pooled) else -np.inf
    return np.array([np.count_nonzero(s <= t) if t < np.inf else np.inf for s in known])
