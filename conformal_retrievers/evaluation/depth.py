"""How deep to retrieve, and with which retrievers: what each depth can reach, and what it costs.

At depth K, each retriever of a union is asked for K snippets. With N_q the known relevant snippets
of a query and F_q(K) those of them that the union finds,

    recall within reach = mean over queries of F_q(K) / N_q,

which no filter can exceed. What a filter passes on at a given end-to-end recall is measured with
the score that `calibrate` learns, cross-validated on the same queries.

The guarantee stays exact only if other queries calibrate, so a third is measured here, whose `ids`
are to be left out. They are the fit part of `calibrate`, which leaves them out by itself where it
chooses a score on that part: with 60 queries or more, an alpha that leaves enough others, and not
by group.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.candidates import (
    Candidate,
    can_learn,
    cross_validated,
    of_sentences,
    words_of,
)
from conformal_retrievers.calibration.choosing import FEWEST, by_default, split
from conformal_retrievers.calibration.costs import Aim
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation.baselines import threshold_on
from conformal_retrievers.evaluation.bootstrap import Estimate
from conformal_retrievers.evaluation.equal_recall import at_recall, estimates, known_relevant
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.tables import Scale, aligned, filled
from conformal_retrievers.llm.ask import with_bar
from conformal_retrievers.scoring.scorer import judged_queries
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import check_probability

Array = NDArray[np.float64]
DEPTHS = (5, 10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Setting:
    """Some retrievers, asked for K snippets each: what they can reach, and what is passed on."""

    retrievers: tuple[str, ...]
    k: int
    recall: Share  # of the known relevant snippets, the mean share of a query's that is found
    found: float  # snippets per query
    passed: Estimate | None  # snippets per query at the wanted recall; None if it is out of reach


@dataclass(frozen=True)
class Depths:
    """What `depth` measured, by retrievers and K."""

    wanted: float  # end-to-end recall
    settings: tuple[Setting, ...]
    ids: tuple[str | None, ...]  # of the queries that were measured, for other ones to calibrate
    n_queries: int  # of the fit part, with a known relevant snippet
    n_judged: int
    end_to_end: bool  # whether missed snippets count; if unknown, recall is of what was retrieved
    learned: bool  # whether the filter's score is learned; else it is the rank, or the fusion
    items: str = "snippets"  # or sentences

    @property
    def enough(self) -> bool:
        """Whether there are as many queries as `calibrate` needs to set a fit part aside."""
        return self.n_queries >= FEWEST

    @property
    def smallest(self) -> dict[tuple[str, ...], Setting | None]:
        """The smallest K of each union of retrievers that reaches the recall; None for none."""
        reached: dict[tuple[str, ...], Setting | None] = {}
        for setting in self.settings:
            at_most = reached.setdefault(setting.retrievers, None)
            if at_most is None and setting.recall.estimate >= self.wanted:
                reached[setting.retrievers] = setting
        return reached

    def __str__(self) -> str:
        """Write the smallest K, then a table, in lines of at most 80 characters."""
        wanted = percent(self.wanted, exact=True)
        deepest = {s.retrievers: s.k for s in self.settings}
        answers = [
            f"{_named(union)}: {wanted} "
            + (f"is reached at K = {found.k}" if found else f"takes more than K = {deepest[union]}")
            for union, found in self.smallest.items()
        ]
        scale = Scale.of("snippets", [s.passed for s in self.settings if s.passed])
        rows = [
            [
                _named(s.retrievers),
                f"{s.k}",
                s.recall.interval.written(unit=""),
                f"{s.found:.1f}",
                "–" if s.passed is None else scale.written({"snippets": s.passed}),
            ]
            for s in self.settings
        ]
        head = ["", "K", "within reach, %", "found", f"passed at {wanted}"]
        first, *others = map(filled, self.notes)
        lines = [*answers, "", *aligned(head, rows), ""]
        return "\n".join([*lines, first, *others] if self.enough else [first, *lines, *others])

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know, in sentences."""
        of = f"{self.n_queries} of {self.n_judged} judged queries"
        score = "the learned score" if self.learned else "the mean z-score"
        notes = [
            f"Measured on {of}. Leave these out when you calibrate (`ids`), so that the choice of "
            f"K costs no guarantee. K is that of each retriever. Found and passed: {self.items} "
            f"per query, passed by {score}."
        ]
        if not self.enough:
            notes = [
                f"Too few queries: {of} are measured, and calibrate() sets a fit part aside from "
                f"{3 * FEWEST} judged queries on. Judge more, or leave these out when you "
                "calibrate (`ids`)."
            ]
        if not self.end_to_end:
            notes.append(
                "No query has `missed`: recall is the share of what all retrievers found together."
            )
        return notes


def depth(judged: Iterable[JudgedQuery], *, recall: float = 0.9, progress: bool = False) -> Depths:
    """Measure which depth K, of which retrievers, reaches an end-to-end recall, and what it costs.

    The judged queries have hits, from lists that are as deep as any K of interest. `progress` shows
    a bar. Raises ValueError for snippets without hits, for no relevant snippet in the fit part, and
    for a recall outside (0, 1).
    """
    check_probability("recall", recall, "an end-to-end recall")
    queries = judged_queries(judged)
    for query in queries:
        if query.snippets and not all(snippet.hits for snippet in query.snippets):
            raise ValueError(
                f"{query.name}: a snippet has no hits, so its depth is unknown; judge with "
                "judge_retriever or --run, or mark lists in the retriever's order by with_hits"
            )
    fit = split(queries).fit
    stated = any(query.missed is not None for query in fit)  # then recall is over these queries
    some = [q for q in fit if _known(q) and not (stated and q.missed is None)]
    if not some:
        raise ValueError(
            f"judged has {len(queries)} queries, of which the {len(fit)} that are measured have no "
            "known relevant snippet; judge more queries"
        )
    learned = sum(any(query.relevant) for query in some) >= FEWEST and can_learn(some)
    return Depths(
        wanted=recall,
        settings=tuple(_settings(some, recall, learned, progress)),
        ids=tuple(query.id for query in some),
        n_queries=len(some),
        n_judged=len(queries),
        end_to_end=stated,
        learned=learned,
        items="sentences" if of_sentences(queries) else "snippets",
    )


def _settings(
    judged: Sequence[JudgedQuery], wanted: float, learned: bool, progress: bool
) -> Iterator[Setting]:
    """Yield the depths of each union of retrievers, the smallest that reaches the recall too."""
    names = sorted({name for query in judged for name in query.hits})
    sizes = sorted({1, 2, len(names)})
    tried = []
    for union in (some for size in sizes for some in combinations(names, size)):
        found = _Found.of(judged, union)
        steps = range(1, found.deepest)
        reaching = next((k for k in steps if found.at(k).mean() >= wanted), found.deepest)
        grid = {k for k in DEPTHS if k < found.deepest}
        tried += [(union, found, k) for k in sorted({*grid, reaching, found.deepest})]
    for union, found, k in with_bar(tried, "depth") if progress else tried:
        recall = Share.of_clusters(found.at(k), np.ones(len(judged)))
        reached = recall.estimate >= wanted
        cut = [_cut(query, union, k) for query in judged] if reached else []
        yield Setting(
            retrievers=union,
            k=k,
            recall=recall,
            found=found.snippets(k),
            passed=_passed(cut, union, wanted, learned) if reached else None,
        )


class _Found(NamedTuple):
    """The best rank of each snippet, from 0, with the retrievers of a union."""

    ranks: list[Array]  # (n,) of each query
    relevant: list[NDArray[np.bool_]]
    known: Array  # relevant snippets of each query

    @classmethod
    def of(cls, judged: Sequence[JudgedQuery], union: Sequence[str]) -> "_Found":
        """Return the ranks of the snippets of judged queries."""
        ranks = []
        for query in judged:
            of_each = [query.hits[name].ranks for name in union if name in query.hits]
            ranks.append(np.min([np.full(len(query.snippets), np.inf), *of_each], axis=0))
        relevant = [np.array(query.relevant, dtype=bool) for query in judged]
        return cls(ranks, relevant, np.array([_known(query) for query in judged], dtype=np.float64))

    @property
    def deepest(self) -> int:
        """The number of snippets in the longest list, 1 or more."""
        ranks = np.concatenate(self.ranks)
        return int(ranks[np.isfinite(ranks)].max(initial=0)) + 1

    def at(self, k: int) -> Array:
        """Return the share of each query's relevant snippets that is found at a depth."""
        of_each = zip(self.ranks, self.relevant, strict=True)
        return np.array([(ranks[relevant] < k).sum() for ranks, relevant in of_each]) / self.known

    def snippets(self, k: int) -> float:
        """Return the snippets per query that are found at a depth."""
        return float(np.mean([(ranks < k).sum() for ranks in self.ranks]))


def _cut(query: JudgedQuery, union: Sequence[str], k: int) -> JudgedQuery:
    """Return the query as the retrievers of a union return it when they are asked for k."""
    hits = [tuple(h for h in s.hits if h.retriever in union and h.rank < k) for s in query.snippets]
    places = [i for i, of_snippet in enumerate(hits) if of_snippet]
    lost = sum(r and not hits[i] for i, r in enumerate(query.relevant))
    snippets = query.snippets
    return replace(
        query,
        snippets=tuple(
            snippets[i] if hits[i] == snippets[i].hits else replace(snippets[i], hits=hits[i])
            for i in places
        ),
        relevant=tuple(query.relevant[i] for i in places),
        missed=(query.missed or 0) + lost,
        k=None,
    )


def _passed(
    judged: Sequence[JudgedQuery], union: Sequence[str], wanted: float, learned: bool
) -> Estimate:
    """Return how many snippets per query a threshold passes on at an end-to-end recall."""
    if learned and can_learn(judged):
        candidate = Candidate(_named(union), None, texts=words_of(judged))
    else:
        aim = Aim("query-recall", 1 - wanted)
        candidate = Candidate(_named(union), by_default(judged, (), aim))
    scores = cross_validated(candidate, judged)
    scored = [
        ScoredQuery(of_query, np.array(query.relevant, dtype=bool), missed=query.missed)
        for query, of_query in zip(judged, scores, strict=True)
    ]
    queries = ScoredQueries.of(scored)
    known, _ = known_relevant(queries)
    way = threshold_on(queries.scores, queries.relevant, "the filter")
    drawn, _, _ = at_recall(way, queries, known, np.full(1, wanted))
    return estimates(drawn, 0.95)["snippets"]


def _known(query: JudgedQuery) -> int:
    """Return how many relevant snippets of a query are known."""
    return sum(query.relevant) + (query.missed or 0)


def _named(retrievers: Sequence[str]) -> str:
    return " + ".join(retrievers)
