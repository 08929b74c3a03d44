"""What two papers report about conformal filters, measured on other labelled data.

"Principled Context Engineering for RAG" (Chakraborty et al. 2025, arXiv 2511.17908) plots coverage
and removal over alpha, and gives the coverage of top k and of fixed cosine thresholds. Here, for
passages (scifact, nq-open, pubmedqa) and sentences (wice, ragbench-hotpotqa), each scored by BM25
and by the cosine of all-MiniLM-L6-v2, queries are halved at random, `--splits` times: one half
calibrates, the other is filtered. `benchmarks/sets.py` says what each set retrieves.

"Towards Dependable RAG Using Factual Confidence Prediction" (Geissler et al. 2026, arXiv
2605.05244) gives m1 and m2 of BM25's ten best chunks at alpha = 0.1 (Table 1a), and over alpha with
and without reranking (Figure 4), both with the pooled threshold, "snippet" here. The rankings:

    BM25                     the ten best of the BM25 run, scored by BM25
    the same ten, MiniLM     these, scored by the cosine
    reranked by MiniLM       the ten of highest cosine among all of the run (20, nq-open 30)

A pretrained cross-encoder, as the paper reranks with, is not at hand: the cosine stands in for it.

Everything is a mean and an sd over the splits, in results/reproduction.json: the sd is the spread
of one split, the standard error of the mean is sd / √splits (`benchmarks/halvings.py` says why).
`benchmarks/pictures.py` draws them.

    python -m benchmarks.reproduction --data FOLDER [--sets scifact …] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import labels
from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.halvings import minilm
from benchmarks.quantile import conformal_quantile
from benchmarks.sets import RUN, SETS
from conformal_retrievers import (
    Calibration,
    JudgedQuery,
    ScoredQuery,
    __version__,
    evaluate,
    score_queries,
)
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.data import read_beir
from conformal_retrievers.theory.ranks import Masses, mass_threshold

ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
GUARANTEES: tuple[Guarantee, ...] = ("query-recall", "snippet")
SIMILARITIES = tuple(round(0.05 * i, 2) for i in range(-1, 20))  # of the fixed thresholds
DEPTH = 10  # K of the factual-confidence paper
BETA = 0.99  # of its ROUGE-L labels, on Natural Questions
MEASURES = (
    "coverage",  # mean over queries of the share of their relevant snippets kept
    "coverage_std",  # sd of that share across queries
    "coverage_pooled",  # share of all relevant snippets kept
    "removed",  # share of all snippets dropped
    "m1",  # share of queries with a snippet kept
    "m2",  # mean share of a query's snippets kept
    "relevant_kept",  # share of queries with a relevant snippet kept; m1 less this keep others only
)
RESULTS = Path(__file__).parent / "results" / "reproduction.json"

Floats = NDArray[np.float64]
Rule = Callable[["Table", NDArray[np.bool_], float], float]


def main() -> None:
    arguments = parsed_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        filters: dict[str, Any] = {}
        at_depth: dict[str, Any] = {}
        for name in arguments.sets:
            folder = arguments.data / name
            filters[name] = filter_results(folder, cache, arguments)
            at_depth |= depth_results(folder, cache, arguments)
            print(f"{name}: {held(filters[name], arguments.splits)}", flush=True)
    results = {
        "conformal_retrievers": __version__,
        "splits": arguments.splits,
        "seed": arguments.seed,
        "alphas": ALPHAS,
        "filters": filters,
        "at_depth_10": at_depth,
    }
    if arguments.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.reproduction", __doc__)
    add_data(parser)
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    add_cache(parser)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


def held(results: dict[str, Any], splits: int) -> str:
    """Say for how many alphas, by score, mean coverage is ≥ 1 − alpha − 3 standard errors."""
    words = []
    for score in ("BM25", "MiniLM"):
        for guarantee in GUARANTEES:
            mean, sd = (np.array(results[score][guarantee]["coverage"][k]) for k in ("mean", "sd"))
            holds = mean >= 1 - np.array(ALPHAS) - 3 * sd / math.sqrt(splits)
            words.append(f"{score}, {guarantee} {holds.sum()} of {len(holds)}")
    return "; ".join(words)


# --- snippets of all queries, side by side --------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """S scored snippets of Q queries, query after query, so that a split is arithmetic."""

    scores: Floats  # (S,), unscorable ones −inf: they are always kept
    relevant: NDArray[np.bool_]  # (S,)
    sizes: NDArray[np.intp]  # (Q,)

    @classmethod
    def of(cls, scores: Sequence[Floats], relevant: Sequence[NDArray[np.bool_]]) -> Table:
        joined = np.concatenate(scores)
        sizes = np.array([len(part) for part in scores])
        return cls(np.where(np.isnan(joined), -np.inf, joined), np.concatenate(relevant), sizes)

    @cached_property
    def query_of(self) -> NDArray[np.intp]:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def relevant_counts(self) -> NDArray[np.intp]:
        return np.bincount(self.query_of[self.relevant], minlength=len(self.sizes))

    @cached_property
    def relevant_snippets(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.relevant)

    @cached_property
    def ranks(self) -> NDArray[np.intp]:
        """The rank of each snippet among its query's by score, ties in the order given, (S,)."""
        order = np.lexsort((np.arange(len(self.scores)), self.scores, self.query_of))
        starts = np.cumsum(self.sizes) - self.sizes
        ranks = np.empty(len(order), dtype=np.intp)
        ranks[order] = np.arange(len(order)) - starts[self.query_of]
        return ranks

    def count(self, kept: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return how many are kept of each query, (Q, A), of masks (S, A)."""
        sums = np.zeros((len(kept) + 1, kept.shape[1]), dtype=np.intp)
        np.cumsum(kept, axis=0, out=sums[1:])
        ends = np.cumsum(self.sizes)
        return np.asarray(sums[ends] - sums[ends - self.sizes])

    def measures(self, kept: NDArray[np.bool_], queries: NDArray[np.bool_]) -> Floats:
        """Return `MEASURES` of the queries (Q,) chosen, for masks (S, A): (measures, A)."""
        snippets = queries[self.query_of]
        part = Table(self.scores[snippets], self.relevant[snippets], self.sizes[queries])
        kept = kept[snippets]
        all_kept, hits = part.count(kept), part.count(kept & part.relevant[:, None])
        some = part.relevant_counts > 0
        shares = hits[some] / part.relevant_counts[some, None]
        return np.array(
            [
                shares.mean(axis=0),
                shares.std(axis=0),
                hits.sum(axis=0) / part.relevant_counts.sum(),
                1 - all_kept.sum(axis=0) / part.sizes.sum(),
                (all_kept > 0).mean(axis=0),
                (all_kept / np.maximum(part.sizes, 1)[:, None]).mean(axis=0),
                (hits > 0).mean(axis=0),
            ]
        )


def query_recall(table: Table, queries: NDArray[np.bool_], alpha: float) -> float:
    known = table.relevant_snippets[queries[table.query_of[table.relevant_snippets]]]
    sizes = table.relevant_counts[table.query_of[known]]
    return mass_threshold(table.scores[known], Masses.of(sizes), alpha)


def snippet(table: Table, queries: NDArray[np.bool_], alpha: float) -> float:
    known = table.relevant_snippets[queries[table.query_of[table.relevant_snippets]]]
    return conformal_quantile(table.scores[known], alpha)


RULES: dict[Guarantee, Rule] = {"query-recall": query_recall, "snippet": snippet}


# --- splits ---------------------------------------------------------------------------------------


def over_splits(table: Table, guarantee: Guarantee, splits: int, seed: int) -> dict[str, Any]:
    """Calibrate on one half and filter the other, and return the measures over all splits."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(splits):
        calibrating = np.zeros(len(table.sizes), dtype=bool)
        calibrating[rng.permutation(len(table.sizes))[: len(table.sizes) // 2]] = True
        thresholds = [RULES[guarantee](table, calibrating, alpha) for alpha in ALPHAS]
        kept = table.scores[:, None] <= np.array(thresholds)
        rows.append(table.measures(kept, ~calibrating))
        if i == 0:
            check_against_the_library(table, calibrating, guarantee, thresholds, rows[0])
    mean, sd = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
    return {
        name: {"mean": rounded(mean[i]), "sd": rounded(sd[i])} for i, name in enumerate(MEASURES)
    }


def check_against_the_library(
    table: Table,
    calibrating: NDArray[np.bool_],
    guarantee: Guarantee,
    thresholds: list[float],
    measures: Floats,
) -> None:
    ends = np.cumsum(table.sizes)[:-1]
    parts = zip(np.split(table.scores, ends), np.split(table.relevant, ends), strict=True)
    queries = [
        ScoredQuery(np.where(np.isneginf(scores), np.nan, scores), relevant)
        for scores, relevant in parts
    ]
    calibration = Calibration.from_scores(
        [query for query, chosen in zip(queries, calibrating, strict=True) if chosen],
        alpha=ALPHAS[0],
        guarantee=guarantee,
        scorer="scored beforehand",
    )
    held_out = [query for query, chosen in zip(queries, calibrating, strict=True) if not chosen]
    e = evaluate(calibration, held_out)
    theirs = [
        e.coverage["query-recall"].estimate,
        e.coverage_std,
        e.coverage["snippet"].estimate,
        e.removal.estimate,
        e.m1.estimate,
        e.m2.estimate,
    ]
    if [calibration.at(alpha).threshold() for alpha in ALPHAS] != thresholds or not np.allclose(
        theirs, measures[: len(theirs), 0], rtol=1e-9
    ):
        raise AssertionError(f"the benchmark does not filter as the library does: {theirs}")


# --- the context-filtering paper ------------------------------------------------------------------


def filter_results(folder: Path, cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return coverage and removal over alpha, and of the baselines, by score."""
    data = SETS[folder.name](folder, cache)
    results: dict[str, Any] = {}
    for score, scores in (("BM25", data.bm25s), ("MiniLM", data.cosines)):
        table = Table.of(scores, data.relevant)
        results[score] = {
            guarantee: over_splits(table, guarantee, arguments.splits, arguments.seed)
            for guarantee in GUARANTEES
        }
        results[score]["top k"] = top_k(table)
    results["MiniLM"]["similarity at least"] = fixed_thresholds(table)
    retrieved = table.relevant_counts
    return {
        "queries": len(table.sizes),
        "with a relevant snippet": int(np.count_nonzero(retrieved)),
        "snippets": len(table.scores),
        "relevant": int(retrieved.sum()),
        **results,
    }


def top_k(table: Table) -> dict[str, Any]:
    most = int(table.sizes.max())
    ks = sorted({*range(1, min(most, 30) + 1), *map(round, np.geomspace(1, most, 40))})
    return baseline(table, "k", ks, table.ranks[:, None] < np.array(ks))


def fixed_thresholds(table: Table) -> dict[str, Any]:
    kept = table.scores[:, None] <= 1 - np.array(SIMILARITIES)
    return baseline(table, "similarity", SIMILARITIES, kept)


def baseline(
    table: Table, name: str, values: Sequence[float], kept: NDArray[np.bool_]
) -> dict[str, Any]:
    """Measure masks (S, A) on all queries: nothing is calibrated, so nothing is split."""
    measured = table.measures(kept, np.ones(len(table.sizes), dtype=bool))
    return {name: list(values), **{m: rounded(measured[i]) for i, m in enumerate(MEASURES)}}


# --- the factual-confidence paper -----------------------------------------------------------------


def depth_results(folder: Path, cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return m1 and m2 over alpha of ten snippets a query, by ranking, for each kind of label."""
    judged = read_beir(folder, "run-bm25.tsv")
    cosines = [query.scores for query in score_queries(minilm(judged, cache), judged)]
    bm25s = [query.scores for query in score_queries(RUN, judged)]
    ten = [np.arange(len(scores))[:DEPTH] for scores in bm25s]
    best = [np.argsort(scores, kind="stable")[:DEPTH] for scores in cosines]
    rankings = {
        "BM25": (bm25s, ten),
        "the same ten, MiniLM": (cosines, ten),
        "reranked by MiniLM": (cosines, best),
    }
    results: dict[str, Any] = {}
    for name, relevant in labelled(folder, judged).items():
        results[name] = {}
        for ranking, (scores, chosen) in rankings.items():
            table = Table.of(cut(scores, chosen), cut(relevant, chosen))
            results[name][ranking] = {
                "with a relevant snippet": round(float((table.relevant_counts > 0).mean()), 4),
                "relevant share": round(float(table.relevant.mean()), 4),
                **over_splits(table, "snippet", arguments.splits, arguments.seed),
            }
    return results


def labelled(folder: Path, judged: list[JudgedQuery]) -> dict[str, list[NDArray[np.bool_]]]:
    """Return which snippets of each query are relevant, by the name of the labels."""
    by_document = {folder.name: [np.array(query.relevant, dtype=bool) for query in judged]}
    if folder.name != "nq-open":
        return by_document
    depth = max(len(query.snippets) for query in judged)
    by_answer, _ = labels.by_source(labels.answered(folder, "title", depth), BETA)
    name = f"nq-open, ROUGE-L, β = {BETA}"
    return {**by_document, name: [np.array(marks, dtype=bool) for marks in by_answer]}


def cut(parts: Sequence[NDArray[Any]], chosen: Sequence[NDArray[np.intp]]) -> list[NDArray[Any]]:
    return [part[order] for part, order in zip(parts, chosen, strict=True)]


def rounded(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]


if __name__ == "__main__":
    main()
