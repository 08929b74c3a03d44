"""How much less context is kept at the same guarantee when scorers are combined.

Each data set's queries are dealt at random into thirds, 100 times: one trains, one calibrates
("query-recall"), one is filtered. On the filtered third, as mean ± sd over the deals, in %,

    kept       share of snippets kept: pooled over snippets / mean over queries of a query's share
    cut        1 − kept by the combination / kept by plain cosine, in the same two ways
    share      of the cut by a perfect ranking, all relevant snippets first, the cut of this one
    coverage   mean over queries of the share of their relevant snippets kept

Pooled figures alone flatter on lists of unequal length. The sets: passages of a BM25 run (scifact,
nq-open, pubmedqa: sections of abstracts), scored by the run's BM25; all sentences of a query's own
pages (wice, wice-titled, ragbench-hotpotqa), scored by BM25 among these sentences; in wice-titled
the page's title stands before each. Cosines: all-MiniLM-L6-v2.

    python -m benchmarks.combinations --data FOLDER [--sets scifact …] [--tables learned …]
        [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.halvings import minilm
from conformal_retrievers import (
    Calibration,
    JudgedQuery,
    LearnedScorer,
    RetrievalScorer,
    ScoredQuery,
    Scorer,
    Snippet,
    __version__,
    score_queries,
)
from conformal_retrievers.data import read_beir
from conformal_retrievers.scoring import TieBreak
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.features import Features, feature_names, features
from conformal_retrievers.scoring.learned import weighted
from conformal_retrievers.scoring.overlap import OVERLAPS
from conformal_retrievers.scoring.sources import Context, Sources, context_of
from conformal_retrievers.scoring.stages import fit_stages

RESULTS = Path(__file__).parent / "results" / "combinations.md"

Scores = Sequence[NDArray[np.float64]]  # (n,) of each query's snippets


def main() -> None:
    arguments = parsed_arguments()
    rows: dict[str, list[str]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.sets:
            data = ALL_SETS[name](arguments.data / name, arguments.cache or Path(temporary))
            deals = dealt(len(data.judged), arguments.deals, arguments.seed)
            for table in arguments.tables:
                for cells in TABLES[table].rows(data, deals):
                    rows[table].append(f"| {' | '.join((name, *cells))} |")
                    print(rows[table][-1], flush=True)
    text = (
        f"# Context kept by combined scorers\n\n{arguments.deals} deals into thirds (seed "
        f"{arguments.seed}), guarantee query-recall, in %, mean ± sd; conformal_retrievers "
        f"{__version__}. `benchmarks/combinations.py` says what the columns are.\n"
    )
    for name in arguments.tables:
        title, columns, _ = TABLES[name]
        heading = f"| set | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}"
        text += f"\n## {title}\n\n" + "\n".join([heading, *rows[name]]) + "\n"
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.combinations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=data,
        required=data is None,
        help="folder that holds the data sets, one folder each; default: $CONFORMAL_DATA",
    )
    parser.add_argument("--sets", nargs="+", default=list(ALL_SETS), choices=ALL_SETS)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--deals", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps embeddings; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


# --- one deal -------------------------------------------------------------------------------------


class Deal(NamedTuple):
    """The numbers of the queries that train, calibrate and are filtered."""

    training: NDArray[np.intp]
    calibrating: NDArray[np.intp]
    filtered: NDArray[np.intp]


def dealt(n: int, deals: int, seed: int) -> list[Deal]:
    rng = np.random.default_rng(seed)
    return [Deal(*np.array_split(rng.permutation(n), 3)) for _ in range(deals)]


@dataclass(frozen=True)
class Outcome:
    """What was measured on each deal's filtered third, (deals,)."""

    pooled: NDArray[np.float64]
    by_query: NDArray[np.float64]
    coverage: NDArray[np.float64]
    dropped: NDArray[np.float64]  # share of snippets with the score +inf
    relevant_dropped: NDArray[np.float64]

    def kept(self) -> list[str]:
        return [spread(self.pooled), spread(self.by_query)]

    def cut(self, plain: Outcome) -> list[str]:
        """Return how much less is kept than in the other outcome, deal by deal."""
        pooled, by_query = self.pooled / plain.pooled, self.by_query / plain.by_query
        return [spread(1 - pooled), spread(1 - by_query)]


def over_deals(
    data: Data, deals: list[Deal], scores_of: Callable[[Deal], Scores], alpha: float = 0.1
) -> Outcome:
    """Calibrate and filter in each deal with the scores that are had from its training third."""
    measures = []
    for deal in deals:
        scores = scores_of(deal)
        calibration = Calibration.from_scores(
            [ScoredQuery(scores[i], data.relevant[i]) for i in deal.calibrating],
            alpha=alpha,
            scorer="scored beforehand",
        )
        keeps = [calibration.keep(scores[i]) for i in deal.filtered]
        relevant = [data.relevant[i] for i in deal.filtered]
        infinite = [np.isinf(scores[i]) for i in deal.filtered]
        measures.append(
            (
                np.concatenate(keeps).mean(),
                np.mean([k.mean() for k in keeps]),
                np.mean([k[r].mean() for k, r in zip(keeps, relevant, strict=True) if r.any()]),
                np.concatenate(infinite).mean(),
                np.concatenate(infinite)[np.concatenate(relevant)].mean(),
            )
        )
    return Outcome(*np.array(measures).T)


def spread(values: NDArray[np.float64]) -> str:
    return f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}"


# --- the tables -----------------------------------------------------------------------------------


def learned_rows(data: Data, deals: list[Deal]) -> Iterator[list[str]]:
    plain = over_deals(data, deals, lambda deal: data.cosines)
    yield ["cosine", *plain.kept(), "", "", "", spread(plain.coverage)]
    perfect = over_deals(data, deals, lambda deal: data.perfect)
    best = 1 - np.mean(perfect.by_query / plain.by_query)
    check_against_the_library(data, deals[0])
    for label, tables in learned_tables(data).items():
        outcome = over_deals(data, deals, learned(data, tables))
        share = f"{100 * np.mean(1 - outcome.by_query / plain.by_query) / best:.0f}"
        yield [label, *outcome.kept(), *outcome.cut(plain), share, spread(outcome.coverage)]
    yield ["perfect", *perfect.kept(), *perfect.cut(plain), "100", spread(perfect.coverage)]


def size_rows(data: Data, deals: list[Deal]) -> Iterator[list[str]]:
    deals = deals[::2]
    plain = over_deals(data, deals, lambda deal: data.cosines)
    for label, tables in learned_tables(data).items():
        cuts = []
        for size in SIZES:
            fewer = [deal._replace(training=deal.training[:size]) for deal in deals]
            enough = len(deals[0].training) >= size
            outcome = over_deals(data, fewer, learned(data, tables)) if enough else None
            cuts.append(outcome.cut(plain)[1] if outcome else "")
        yield [label, *cuts]


def learned_tables(data: Data) -> dict[str, list[Features]]:
    """Return the features of each query by what they are made of, from little to much."""
    tables = {"cosine + BM25": data.features("none")}
    if data.context != "none":
        known = data.context.replace("+", " and ")
        tables[f"cosine + BM25 + {known}"] = data.features(data.context)
    last = [*tables][-1]
    return tables | {f"{last} + overlap": data.features(data.context, overlap=True)}


SIZES = (40, 100, 150, 300)


def feature_rows(data: Data, deals: list[Deal]) -> Iterator[list[str]]:
    deals = deals[::4]  # ten fits a deal take long, and the spread is there to be seen
    plain = over_deals(data, deals, lambda deal: data.cosines)
    names = [name.split(" by ")[0] for name in feature_names(data.sources(data.context))]
    chosen: list[int] = []
    for label, group in FEATURE_GROUPS.items():
        added = [i for i, name in enumerate(names) if name in group]
        if added:
            chosen = sorted(chosen + added)
            tables = [
                of_query._replace(table=of_query.table[:, chosen])
                for of_query in data.features(data.context)
            ]
            outcome = over_deals(data, deals, learned(data, tables))
            yield [label, str(len(chosen)), *outcome.cut(plain), spread(outcome.coverage)]


FEATURE_GROUPS = {
    "scores": ["score"],
    "+ gap to best, z-score, share of best": ["gap to best", "z-score", "share of best"],
    "+ log rank": ["log rank"],
    "+ log length, log number of snippets": ["log length", "log number of snippets"],
    "+ log size of document": ["log size of document"],
    "+ best and mean of document, gap to its best": [
        "best of document",
        "mean of document",
        "gap to best of document",
    ],
    "+ log rank of document": ["log rank of document"],
    "+ relative position": ["relative position"],
    "+ one neighbour on either side": ["score before", "score after"],
    "+ two neighbours on either side": ["score two before", "score two after"],
}


def tie_rows(data: Data, deals: list[Deal]) -> Iterator[list[str]]:
    cosine, bm25 = Named("cosine", data.cosine), Named("BM25", data.bm25)
    for alpha in (0.05, 0.1):
        for scorer in (bm25, TieBreak(bm25, then=cosine), cosine):
            yield tie_row(data, deals, scorer, alpha)
    for levels in (11, 5):
        rating = Named(f"cosine in {levels} levels", Coarse(data.cosine, levels))
        for scorer in (rating, TieBreak(rating, then=bm25), TieBreak(rating, then=cosine)):
            yield tie_row(data, deals, scorer, 0.1)


def tie_row(data: Data, deals: list[Deal], scorer: Scorer, alpha: float) -> list[str]:
    scores = data.scored(scorer)
    outcome = over_deals(data, deals, lambda deal: scores, alpha)
    return [scorer.name, f"{100 * (1 - alpha):g}", spread(outcome.coverage), *outcome.kept()]


def cascade_rows(data: Data, deals: list[Deal]) -> Iterator[list[str]]:
    """BM25 passes on what scores at most the 98 % quantile of the training third's relevant."""

    def cascade(deal: Deal) -> Scores:
        known = np.concatenate([data.bm25s[i][data.relevant[i]] for i in deal.training])
        below = np.quantile(known, 0.98, method="higher")
        pairs = zip(data.bm25s, data.cosines, strict=True)
        return [np.where(cheap <= below, costly, np.inf) for cheap, costly in pairs]

    plain = over_deals(data, deals, lambda deal: data.cosines)
    yield ["cosine", "", "", *plain.kept(), spread(plain.coverage)]
    outcome = over_deals(data, deals, cascade)
    saved = [spread(outcome.dropped), spread(outcome.relevant_dropped)]
    yield ["BM25, then cosine", *saved, *outcome.kept(), spread(outcome.coverage)]


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: Callable[[Data, list[Deal]], Iterator[list[str]]]


KEPT, CUT = ["kept, pooled", "kept, by query"], ["cut, pooled", "cut, by query"]
TABLES = {
    "learned": Table(
        "Learned, alpha = 0.1",
        ["scores", *KEPT, *CUT, "share of the achievable cut by query", "coverage"],
        learned_rows,
    ),
    "sizes": Table(
        "Cut by query after a fit to so many queries, alpha = 0.1, every other deal",
        ["scores", *map(str, SIZES)],
        size_rows,
    ),
    "features": Table(
        "Features added one group after the other, alpha = 0.1, every fourth deal",
        ["features", "number", *CUT, "coverage"],
        feature_rows,
    ),
    "ties": Table("Ties", ["score", "target", "coverage", *KEPT], tie_rows),
    "cascade": Table(
        "A cascade, alpha = 0.1",
        ["scores", "cosines saved", "relevant dropped by BM25", *KEPT, "coverage"],
        cascade_rows,
    ),
}


# --- scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Judged queries, and two scorers of their snippets."""

    judged: list[JudgedQuery]
    cosine: Scorer
    bm25: Scorer

    def scored(self, scorer: Scorer) -> Scores:
        return [query.scores for query in score_queries(scorer, self.judged)]

    def sources(self, context: Context, overlap: bool = False) -> Sources:
        names = [self.cosine.name, self.bm25.name, *(OVERLAPS if overlap else ())]
        return Sources((), tuple(names), context)

    def features(self, context: Context, overlap: bool = False) -> list[Features]:
        sources = self.sources(context, overlap)
        columns = [self.cosines, self.bm25s, *(self.overlaps if overlap else ())]
        scores = zip(*columns, strict=True)
        pairs = zip(scores, self.judged, strict=True)
        return [features(sources, of_query, query.snippets) for of_query, query in pairs]

    @cached_property
    def overlaps(self) -> list[Scores]:
        return [self.scored(scorer) for scorer in OVERLAPS.values()]

    @cached_property
    def perfect(self) -> Scores:
        """Relevant snippets first, those and the others in a random order."""
        rng = np.random.default_rng(0)
        return [rng.random(len(relevant)) - relevant for relevant in self.relevant]

    @cached_property
    def cosines(self) -> Scores:
        return self.scored(self.cosine)

    @cached_property
    def bm25s(self) -> Scores:
        return self.scored(self.bm25)

    @cached_property
    def relevant(self) -> list[NDArray[np.bool_]]:
        return [np.array(query.relevant, dtype=bool) for query in self.judged]

    @cached_property
    def context(self) -> Context:
        return context_of([snippet for query in self.judged for snippet in query.snippets])


def learned(data: Data, tables: list[Features]) -> Callable[[Deal], Scores]:
    """Return the scores that are learned on the training thirds, as `LearnedScorer` learns them.

    The features are computed once for all deals.
    """

    def scores_of(deal: Deal) -> Scores:
        training = [tables[i] for i in deal.training]
        relevant = [data.relevant[i] for i in deal.training]
        stages = fit_stages(training, relevant, alpha=0.1, trees=True)
        means = fit_stages([t.consensus for t in training], relevant, alpha=0.1, trees=False)
        pairs = [(stages.log_odds(t), means.log_odds(t.consensus)) for t in tables]
        return [-weighted(*pair, len(training)) for pair in pairs]

    return scores_of


def check_against_the_library(data: Data, deal: Deal) -> None:
    parts = [data.cosine, data.bm25]
    scorer = LearnedScorer.fit([data.judged[i] for i in deal.training], parts, alpha=0.1)
    here = learned(data, data.features(data.context))(deal)
    for i in deal.filtered[:50]:
        query = data.judged[i]
        if not np.array_equal(here[i], scorer.score(query.query, query.snippets)):
            raise AssertionError(f"{query.id}: the benchmark does not score as LearnedScorer does")


@dataclass(frozen=True)
class Named:
    """A scorer under a shorter name."""

    name: str
    scorer: Scorer

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        return np.asarray(self.scorer.score(query, snippets))


@dataclass(frozen=True)
class Coarse:
    """Distances rounded to as many levels from 0 to 1, as an LLM's ratings are."""

    scorer: Scorer
    levels: int
    name: str = "coarse"

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        steps = self.levels - 1
        return np.round(np.clip(self.scorer.score(query, snippets), 0, 1) * steps) / steps


class OwnBM25:
    """BM25 in the corpus of the query's own snippets; 0 where these hold no words at all."""

    name = "BM25 among the query's own sentences"

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        return BM25Scorer([snippet.text for snippet in snippets]).score(query, snippets)


# --- data -----------------------------------------------------------------------------------------


def passages(folder: Path, cache: Path) -> Data:
    """Passages that stand for themselves."""
    judged = [
        with_snippets(query, [Snippet(s.text, s.id, None, None, s.retrieval_score)
                              for s in query.snippets])
        for query in read_beir(folder, "run-bm25.tsv")
    ]  # fmt: skip
    return Data(judged, minilm(judged, cache), RUN)


def passages_of_pages(folder: Path, cache: Path) -> Data:
    """Passages whose page is known by its title."""
    titles = {row["_id"]: row["title"] for row in json_rows(folder / "corpus.jsonl.gz")}
    judged = [
        with_snippets(query, [Snippet(s.text, s.id, titles[str(s.id)], None, s.retrieval_score)
                              for s in query.snippets])
        for query in read_beir(folder, "run-bm25.tsv")
    ]  # fmt: skip
    return Data(judged, minilm(judged, cache), RUN)


def abstract_sections(folder: Path, cache: Path) -> Data:
    """Sections in the order of their abstract."""
    documents, positions = {}, {}
    sizes: dict[str, int] = defaultdict(int)
    for row in json_rows(folder / "corpus.jsonl.gz"):
        documents[row["_id"]], positions[row["_id"]] = row["doc"], sizes[row["doc"]]
        sizes[row["doc"]] += 1
    judged = [
        with_snippets(
            query,
            [
                Snippet(s.text, s.id, documents[str(s.id)], positions[str(s.id)], s.retrieval_score)
                for s in query.snippets
            ],
        )
        for query in read_beir(folder, "run-bm25.tsv")
    ]
    return Data(judged, minilm(judged, cache), RUN)


def page_sentences(folder: Path, cache: Path, titled: bool = False) -> Data:
    """All sentences of a claim's page in their order, each after the page's title or without it."""
    corpus = {row["_id"]: row for row in json_rows(folder / "corpus.jsonl.gz")}
    judged = [
        with_snippets(
            query,
            [
                Snippet(s.text if titled else row["text"], s.id, row["title"], i)
                for i, s in enumerate(query.snippets)
                for row in [corpus[str(s.id)]]
            ],
        )
        for query in read_beir(folder, "candidates.tsv")
    ]
    return Data(judged, minilm(judged, cache), OwnBM25())


def titled_page_sentences(folder: Path, cache: Path) -> Data:
    return page_sentences(folder.with_name("wice"), cache, titled=True)


def document_sentences(folder: Path, cache: Path) -> Data:
    """All sentences of a question's documents, in their order."""
    snippets: dict[str, list[Snippet]] = defaultdict(list)
    relevant: dict[str, list[bool]] = defaultdict(list)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for row in json_rows(folder / "snippets.jsonl.gz"):
        query, document = row["query_id"], row["corpus_id"]
        position = sizes[query, document]
        sizes[query, document] += 1
        snippets[query].append(Snippet(row["text"], f"{document}:{position}", document, position))
        relevant[query].append(bool(row["relevant"]))
    judged = [
        JudgedQuery(row["text"], snippets[row["_id"]], relevant[row["_id"]], id=row["_id"])
        for row in json_rows(folder / "queries.jsonl.gz")
        if row["_id"] in snippets
    ]
    return Data(judged, minilm(judged, cache), OwnBM25())


def with_snippets(query: JudgedQuery, snippets: list[Snippet]) -> JudgedQuery:
    return JudgedQuery(query.query, snippets, query.relevant, id=query.id, missed=query.missed)


def json_rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


RUN = RetrievalScorer()
SETS: dict[str, Callable[[Path, Path], Data]] = {
    "scifact": passages,
    "wice": page_sentences,
    "nq-open": passages_of_pages,
    "pubmedqa": abstract_sections,
    "ragbench-hotpotqa": document_sentences,
}
ALL_SETS = {**SETS, "wice-titled": titled_page_sentences}


if __name__ == "__main__":
    main()
