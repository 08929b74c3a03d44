"""What `calibrate` gives by default on two retrievers, against top k at equal end-to-end recall.

Each data set is a folder in the BEIR layout, of which the runs are not read; queries retrieve from
their lines of candidates.tsv, if there are any. A dense retriever (all-MiniLM-L6-v2 over the whole
corpus) and BM25 (bm25s) return 50 snippets each, and their union is judged. Queries with a known
relevant snippet, without copies, are halved at random, 100 times: one half is given to
`calibrate(…, alpha=1 - recall, count_missed=True)`, which chooses and learns the score on a third
of it, and the other half is filtered. That third follows from hashes of the queries' texts, so each
halving adds a number of its own to them: otherwise all would learn from the same third of the set.

    snippets at recall r   snippets that a query keeps at the lowest threshold, or the lowest k, at
                           which the mean share of its known relevant snippets that is kept is at
                           least r on the filtered half
    interpolated           the same at exactly r, between two thresholds, or between two k
    of                     the mean number of snippets over that of the top k of dense, or of
                           reciprocal rank fusion
    coverage               mean share of a query's known relevant snippets, also those that were
                           not retrieved, that the calibration keeps; "holds" if ≥ recall − 3 se
                           over the halvings, with the choice included

The planted set has 8 retrievers of pure noise. Its second row is what is wrong: the score that
costs least on the calibration queries themselves, with the threshold that those give.

    python -m benchmarks.default --data FOLDER [--sets scifact nq-open] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.halvings import encoded
from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    JudgedQuery,
    ScoredQuery,
    Scorer,
    Snippet,
    __version__,
    calibrate,
    evaluate,
    score_queries,
)
from conformal_retrievers.calibration.candidates import candidates_of, cross_validated
from conformal_retrievers.calibration.choosing import pick
from conformal_retrievers.calibration.costs import Aim, FitPart
from conformal_retrievers.data import read_beir
from conformal_retrievers.data.beir import read_corpus, read_runs, read_texts
from conformal_retrievers.data.copies import without_copies
from conformal_retrievers.data.hits import fuse
from conformal_retrievers.scoring import FusionScorer, RankScorer
from conformal_retrievers.scoring.bm25 import BM25Scorer

SETS = {"scifact": 0.8, "pubmedqa": 0.8, "nq-open": 0.9, "ragbench-hotpotqa": 0.8}  # recalls
RECALL = 0.8  # of other sets
TARGETS = {"scifact": (0.40, 0.60), "pubmedqa": (0.88, 0.75), "nq-open": (0.60, 0.60)}  # of ratios
DEPTH = 50
ALPHA = 0.1
TOP_K = {"dense top k": RankScorer("dense"), "fusion top k": FusionScorer(["bm25", "dense"])}
RESULTS = Path(__file__).parent / "results" / "default.md"


def main() -> None:
    arguments = parsed_arguments()
    console = Console(record=True, width=170)
    for part in sections(arguments):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        RESULTS.parent.mkdir(exist_ok=True)
        lines = (line.rstrip() for line in console.export_text().splitlines())
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.default",
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
    parser.add_argument("--sets", nargs="*", default=[*SETS], help="folders in it, also your own")
    parser.add_argument("--halvings", type=int, default=100)
    parser.add_argument("--judged", type=int, help="queries given to calibrate; default: half")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps embeddings; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


def sections(arguments: argparse.Namespace) -> Iterator[str | Table]:
    """Yield the facts and the tables of each data set, and then those of the planted set."""
    yield (
        f"# The default score, against top k\n\nOver {arguments.halvings} random halvings (seed "
        f"{arguments.seed}), mean ± sd; union of dense and BM25, {DEPTH} snippets each; "
        f"conformal_retrievers {__version__}. `benchmarks/default.py` says what the columns are."
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.sets:
            judged = united(arguments.data / name, arguments.cache or Path(temporary))
            halvings = [
                halving(judged, SETS.get(name, RECALL), rng, arguments.judged)
                for rng in generators(arguments)
            ]
            yield f"\n## {name}\n\n{described(judged)}"
            yield from of_set(name, halvings)
    yield f"\n## Planted: {PLANTED} retrievers of noise\n"
    yield planted(arguments)


def generators(arguments: argparse.Namespace) -> list[np.random.Generator]:
    return np.random.default_rng(arguments.seed).spawn(arguments.halvings)


# --- the data -------------------------------------------------------------------------------------


def united(folder: Path, cache: Path) -> list[JudgedQuery]:
    """Return queries with a known relevant snippet and what both retrievers return for them."""
    with tempfile.TemporaryDirectory() as runs:
        paths = {name: Path(runs) / f"{name}.tsv" for name in ("dense", "bm25")}
        corpus = read_corpus(folder)
        queries, only = read_texts(folder), candidates_in(folder)
        write_run(paths["dense"], corpus, queries, cosines(corpus, queries, cache), only)
        bm25 = BM25Scorer(corpus.values())
        place = {text: i for i, text in enumerate(bm25.corpus)}
        places = [place[text] for text in corpus.values()]
        similarities = (bm25.similarities(query)[places] for query in queries.values())
        write_run(paths["bm25"], corpus, queries, similarities, only)
        judged = read_beir(folder, paths)
    return without_copies([q for q in judged if any(q.relevant) or q.missed])[0]


def candidates_in(folder: Path) -> dict[str, set[str]]:
    """Return what each query may retrieve, such as one contract, where candidates.tsv has it."""
    if not any(folder.glob("candidates.tsv*")):
        return {}
    ((_, ranked),) = read_runs(folder, "candidates.tsv", None).values()
    return {id: {document for document, _ in found} for id, found in ranked.items()}


def cosines(
    corpus: dict[str, str], queries: dict[str, str], cache: Path
) -> Iterator[NDArray[np.float64]]:
    vectors = [
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (encoded([*texts.values()], cache) for texts in (corpus, queries))
    ]
    for vector in vectors[1]:
        yield (vectors[0] @ vector).astype(np.float64)


def write_run(
    path: Path,
    corpus: dict[str, str],
    queries: dict[str, str],
    similarities: Iterator[NDArray],
    only: dict[str, set[str]],
) -> None:
    ids = [*corpus]
    with path.open("w", encoding="utf-8") as file:
        for id, similarity in zip(queries, similarities, strict=True):
            if id in only:
                similarity = np.where([one in only[id] for one in ids], similarity, 0)
            best = np.argsort(-similarity, kind="stable")[:DEPTH]
            for rank, place in enumerate(best[similarity[best] > 0].tolist(), start=1):
                file.write(f"{id}\t{ids[place]}\t{rank}\t{float(similarity[place])!r}\n")


def described(judged: list[JudgedQuery]) -> str:
    retrieved = np.array([sum(query.relevant) for query in judged])
    missed = np.array([query.missed for query in judged])
    return (
        f"{len(judged)} queries, {np.mean([len(q.snippets) for q in judged]):.0f} snippets each. "
        f"Recall of the union: {np.mean(retrieved / (retrieved + missed)):.1%} per query."
    )


# --- one halving ----------------------------------------------------------------------------------


class Halving(NamedTuple):
    """What one halving gave."""

    chosen: str
    n_fit: int
    snippets: dict[str, tuple[float, float]]  # at the recall, and interpolated, by row
    coverage: float
    kept: float  # snippets a query


def halving(
    judged: list[JudgedQuery], recall: float, rng: np.random.Generator, n: int | None
) -> Halving:
    order = rng.permutation(len(judged))
    half = len(order) // 2
    own = f" {rng.integers(2**60)}"
    given = [replace(judged[i], query=judged[i].query + own) for i in order[:half][:n]]
    calibration = calibrate(given, alpha=round(1 - recall, 9), count_missed=True)
    filtered = [judged[i] for i in order[half:]]
    scorer = ConformalFilter.of(calibration).scorer
    scored = score_queries(scorer, filtered)
    keeps = [calibration.keep(q.scores) for q in scored]
    choice = calibration.scorer_provenance["choice"]
    rows = {"the filter": scored, **{n: score_queries(s, filtered) for n, s in TOP_K.items()}}
    return Halving(
        choice["chosen"],
        choice["n_fit"],
        {
            name: snippets_at(recall, in_order(queries, by_rank=name in TOP_K))
            for name, queries in rows.items()
        },
        float(np.mean([share(q, keep) for q, keep in zip(scored, keeps, strict=True)])),
        float(np.mean([keep.sum() for keep in keeps])),
    )


def share(query: ScoredQuery, keep: NDArray[np.bool_]) -> float:
    """Return the share of the known relevant snippets of a query that is kept."""
    return float((keep & query.relevant).sum() / (query.relevant.sum() + query.n_missed))


def in_order(scored: list[ScoredQuery], by_rank: bool) -> list[ScoredQuery]:
    """Return the queries, with places in place of scores if it is their order that counts."""
    if not by_rank:
        return scored
    places = [np.argsort(np.argsort(q.scores, kind="stable")).astype(float) for q in scored]
    return [
        ScoredQuery(place, q.relevant, id=q.id, missed=q.missed)
        for place, q in zip(places, scored, strict=True)
    ]


def snippets_at(recall: float, scored: Sequence[ScoredQuery]) -> tuple[float, float]:
    """Return how many snippets a query keeps at a mean end-to-end recall, and interpolated."""
    scores = np.concatenate([q.scores for q in scored])
    gains = np.concatenate([q.relevant / max(1, q.relevant.sum() + q.n_missed) for q in scored])
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    last = np.flatnonzero([*(ordered[1:] != ordered[:-1]), True])  # of equal scores
    recalls = np.concatenate([[0], np.cumsum(gains[order])[last]]) / len(scored)
    kept = np.concatenate([[0], last + 1]) / len(scored)
    if recalls[-1] < recall:
        return math.nan, math.nan
    i = int(np.searchsorted(recalls, recall))
    part = (recall - recalls[i - 1]) / (recalls[i] - recalls[i - 1])
    return float(kept[i]), float(kept[i - 1] + part * (kept[i] - kept[i - 1]))


# --- tables ---------------------------------------------------------------------------------------


def of_set(name: str, halvings: list[Halving]) -> Iterator[str | Table]:
    recall = SETS.get(name, RECALL)
    rows = {row: np.array([h.snippets[row] for h in halvings]) for row in halvings[0].snippets}
    table = Table(box=box.MARKDOWN)
    headings = (f"snippets at recall {recall:g}", *(f"of {row}" for row in TOP_K))
    for heading in ("", *headings, "interpolated", *headings[1:]):
        table.add_column(heading, no_wrap=True)
    for row, pair in rows.items():
        cells = []
        for i in range(2):
            ratios = [pair[:, i].mean() / rows[other][:, i].mean() for other in TOP_K]
            cells += [f"{pair[:, i].mean():.2f} ± {pair[:, i].std(ddof=1):.2f}"]
            cells += [f"{ratio:.2f}" for ratio in ratios]
        table.add_row(row, *cells)
    yield table
    found = [rows["the filter"][:, 0].mean() / rows[other][:, 0].mean() for other in TOP_K]
    for other, ratio, target in zip(TOP_K, found, TARGETS.get(name, ()), strict=False):
        yield f"- {ratio:.2f} of {other}; target {target:.2f}: {'yes' if ratio <= target else 'NO'}"
    yield coverage_line(np.array([h.coverage for h in halvings]), recall)
    yield f"- {np.mean([h.kept for h in halvings]):.1f} snippets a query kept by the calibration"
    yield f"- chosen on {halvings[0].n_fit} queries: " + ", ".join(
        f"{chosen} ({times})" for chosen, times in Counter(h.chosen for h in halvings).most_common()
    )


def coverage_line(coverage: NDArray[np.float64], target: float = 1 - ALPHA) -> str:
    se = coverage.std(ddof=1) / math.sqrt(len(coverage))
    holds = coverage.mean() >= target - 3 * se
    return (
        f"- coverage {100 * coverage.mean():.1f} ± {100 * coverage.std(ddof=1):.1f} %, se "
        f"{100 * se:.2f}; holds: {'yes' if holds else 'NO'}"
    )


# --- the planted set ------------------------------------------------------------------------------

PLANTED, N_JUDGED, N_SNIPPETS = 8, 90, 20


def noise(n: int, rng: np.random.Generator) -> list[JudgedQuery]:
    """Return queries of 8 retrievers that return the same snippets in random orders."""
    return [
        JudgedQuery(
            f"query {rng.integers(2**60)}",
            [
                Snippet(str(key), hits=hits)
                for key, hits in fuse(
                    {
                        f"r{i}": [
                            (int(key), float(score))
                            for key, score in zip(
                                rng.permutation(N_SNIPPETS),
                                np.sort(rng.random(N_SNIPPETS))[::-1],
                                strict=True,
                            )
                        ]
                        for i in range(PLANTED)
                    }
                ).items()
            ],
            rng.permutation(N_SNIPPETS) == 0,
        )
        for _ in range(n)
    ]


def planted(arguments: argparse.Namespace) -> str:
    """Return the coverage of the default, and of choosing on the calibration queries."""
    ours, wrong = [], []
    for rng in generators(arguments):
        judged, new = noise(N_JUDGED, rng), noise(100, rng)
        calibration = calibrate(judged, alpha=ALPHA)
        ours.append(coverage_of(calibration, ConformalFilter.of(calibration).scorer, new))
        scorer = best_on(judged)
        calibration = calibrate(judged, scorer, alpha=ALPHA)
        wrong.append(coverage_of(calibration, scorer, new))
    return "\n".join(
        f"{what}:\n{coverage_line(np.array(coverage))}"
        for what, coverage in (
            ("chosen on the fit part", ours),
            ("chosen on the calibration queries", wrong),
        )
    )


def best_on(judged: list[JudgedQuery]) -> Scorer:
    """Return the simple score that costs least on these queries."""
    simple = [c for c in candidates_of(judged, [], "query-recall") if c.scorer is not None]
    fit = FitPart(judged)
    scores = [cross_validated(candidate, judged) for candidate in simple]
    _, logs = fit.compared(scores, Aim("query-recall", ALPHA, n=len(judged)))
    scorer = simple[pick(logs)[0]].scorer
    assert scorer is not None
    return scorer


def coverage_of(calibration: Calibration, scorer: Scorer, new: list[JudgedQuery]) -> float:
    measured = evaluate(calibration, score_queries(scorer, new))
    return measured.coverage["query-recall"].estimate


if __name__ == "__main__":
    main()
