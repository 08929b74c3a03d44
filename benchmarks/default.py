"""What `calibrate` gives by default on two retrievers, against top k at equal end-to-end recall.

Each data set is a folder in the BEIR layout, of which the runs are not read; queries retrieve from
their lines of candidates.tsv, if there are any. A dense retriever (all-MiniLM-L6-v2 over the whole
corpus, or the model of `--model`, which the prior has not seen) and BM25 (bm25s) return 50 snippets
each, and their union is judged. Of queries with a known relevant snippet, without copies, at most
600 (by a hash), random halves are drawn: of one half, some are judged and given to `calibrate(…,
alpha=1 - recall, count_missed=True)`, and the other half is filtered. The prior of the score is
made without the set and its relatives, see `benchmarks/prior.py`; of a set that it does not know,
it is the package's, so that your own sets need no others beside them. Which queries fit the score
is drawn anew in each halving.

    snippets   that a query keeps at the lowest threshold at which the mean share of its known
               relevant snippets that is kept is the recall on the filtered half, interpolated
    of         their mean over that of the top k of dense, of reciprocal rank fusion, and of a
               threshold on the cosine, all in hindsight at the same recall
    text       the same of the characters of these snippets
    coverage   mean share of a query's known relevant snippets, also those that were not retrieved,
               that the calibration keeps, in %; "holds" if ≥ recall − 3 se over the halvings

The recall is 80 % (nq-open 90 %), or what the union of both lists reaches less 10 points.
`--alone 20` filters the best 20 of the dense retriever instead, as a plain vector store gives them.
`--places` states the documents of snippets and their places there, where the corpus has `doc`.

    python -m benchmarks.default --data FOLDER [--sets scifact nq-open] [--cache FOLDER]
    python -m benchmarks.default … --write NAME    also writes results/NAME.md; alone, default.md
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.halvings import encoded
from benchmarks.sets import json_rows
from conformal_retrievers import (
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    Scorer,
    __version__,
    calibrate,
    score_queries,
)
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.data import read_beir
from conformal_retrievers.data.beir import read_corpus, read_runs, read_texts
from conformal_retrievers.data.copies import without_copies
from conformal_retrievers.scoring import FusionScorer, RankScorer
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.learned.prior import Prior
from conformal_retrievers.scoring.learned.score import BESIDE
from conformal_retrievers.scoring.shared_scores import shared_in

SETS = (
    "scifact",
    "pubmedqa",
    "nq-open",
    "ragbench-hotpotqa",
    "ragbench-covidqa",
    "hotpotqa-100",
    "musique-100",
    "cuad",
    "tatqa",
    "wice",
)
RECALLS = {"nq-open": 0.9}
RECALL = 0.8  # of other sets
SIZES = (10, 15, 20, 40, 80, 0)  # judged queries; 0 is half of the set
MOST = 600  # queries of a set
DEPTH = 50
OTHERS: dict[str, Scorer] = {
    "dense": RankScorer("dense"),
    "fusion": FusionScorer(["bm25", "dense"]),
    "cosine": RetrievalScorer("dense", higher_is_better=True),
}
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = parsed_arguments()
    BESIDE["snippets"] = arguments.beside
    console = Console(record=True, width=160)
    for part in sections(arguments):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        lines = (line.rstrip() for line in console.export_text().splitlines())
        (RESULTS / f"{arguments.write}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.default", __doc__)
    add_data(parser)
    parser.add_argument("--sets", nargs="*", default=[*SETS], help="folders in it, also your own")
    parser.add_argument("--sizes", nargs="*", type=int, default=[*SIZES], help="0: half of a set")
    parser.add_argument("--halvings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    add_cache(parser)
    parser.add_argument(
        "--prior-of", type=Path, help="as --model; the prior is made of this model, too"
    )
    parser.add_argument(
        "--model", type=Path, help="folder of another sentence-transformers model; needs --cache"
    )
    parser.add_argument(
        "--beside",
        type=float,
        default=BESIDE["snippets"],
        help="characters that a snippet costs beside its text; inf: snippets alone cost",
    )
    parser.add_argument("--alone", type=int, help="so many snippets of the dense retriever alone")
    parser.add_argument("--places", action="store_true", help="state documents and places there")
    parser.add_argument(
        "--write", nargs="?", const="default", help="also write results/NAME.md", metavar="NAME"
    )
    return parser.parse_args()


def sections(arguments: argparse.Namespace) -> Iterator[str | Table]:
    """Yield the facts and the table of each data set, and then the medians over all of them."""
    from benchmarks.prior import coefficients, prior_from, prior_without

    union = f"union of dense and BM25, {DEPTH} snippets each"
    lists = f"{arguments.alone} snippets of dense" if arguments.alone else union
    names = ["dense", "cosine"] if arguments.alone else [*OTHERS]
    yield (
        f"# The default score, against top k\n\nOver {arguments.halvings} random halvings (seed "
        f"{arguments.seed}), mean ± sd; {lists}; conformal_retrievers {__version__}. "
        "`benchmarks/default.py` says what the columns are."
    )
    ratios: dict[int, list[list[float]]] = {size: [] for size in arguments.sizes}
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        if other := arguments.prior_of:
            made = coefficients("snippets", arguments.data, cache)
            made += coefficients("snippets", arguments.data, cache, other, arguments.sets)
        for name in arguments.sets:
            if other:
                prior = prior_from("snippets", made, [name])
            else:
                prior = prior_without(name, "snippets", arguments.data, cache)
            judged = united(arguments.data / name, cache, arguments.model)
            if arguments.places:
                judged = placed(judged, arguments.data / name)
            if arguments.alone:
                judged = [of_dense(query, arguments.alone) for query in judged]
            recall = recall_of(name, judged)
            yield f"\n## {name}, recall {recall:g}\n\n{described(judged)}"
            table = empty_table(names)
            others = {name: in_order(score_queries(OTHERS[name], judged), name) for name in names}
            judged = shared_in(judged)
            for size in arguments.sizes:
                rngs = np.random.default_rng([arguments.seed, size]).spawn(arguments.halvings)
                if size > len(judged) // 2:
                    continue
                halvings = [halving(judged, others, recall, rng, size, prior) for rng in rngs]
                ratios[size].append(add_row(table, size, halvings, recall, names))
            yield table
    yield "\n## Medians over the sets\n"
    for size, found in ratios.items():
        if found:
            of_what = [*names, *(f"the text of {name}" for name in names)]
            columns = zip(of_what, np.array(found).T, strict=True)
            of = (
                f"of {name} {np.median(r):.2f} [{r.min():.2f}, {r.max():.2f}]"
                for name, r in columns
            )
            yield f"- {size or 'half'} judged, {len(found)} sets: {', '.join(of)}"


# --- the data -------------------------------------------------------------------------------------


def united(folder: Path, cache: Path, model: Path | None = None) -> list[JudgedQuery]:
    """Return queries with a known relevant snippet and what both retrievers return for them."""
    with tempfile.TemporaryDirectory() as runs:
        paths = {name: Path(runs) / f"{name}.tsv" for name in ("dense", "bm25")}
        corpus = read_corpus(folder)
        queries, only = read_texts(folder), candidates_in(folder)
        write_run(paths["dense"], corpus, queries, cosines(corpus, queries, cache, model), only)
        bm25 = BM25Scorer(corpus.values())
        place = {text: i for i, text in enumerate(bm25.corpus)}
        places = [place[text] for text in corpus.values()]
        similarities = (bm25.similarities(query)[places] for query in queries.values())
        write_run(paths["bm25"], corpus, queries, similarities, only)
        judged = read_beir(folder, paths)
    some = without_copies([q for q in judged if any(q.relevant) or q.missed])[0]
    some.sort(key=lambda query: hashlib.sha256(query.query.encode()).hexdigest())
    return some[:MOST]


def of_dense(query: JudgedQuery, depth: int) -> JudgedQuery:
    """Return a query with the best snippets of the dense retriever alone."""
    best = query.hits["dense"].ranks < depth
    found = [s for s, among in zip(query.snippets, best, strict=True) if among]
    snippets = [replace(s, hits=[h for h in s.hits if h.retriever == "dense"]) for s in found]
    relevant = [mark for mark, among in zip(query.relevant, best, strict=True) if among]
    missed = query.missed + sum(query.relevant) - sum(relevant)
    fields = {"snippets": snippets, "relevant": relevant, "missed": missed}
    return replace(query, **fields, retriever="dense", k=depth)


def placed(judged: Sequence[JudgedQuery], folder: Path) -> list[JudgedQuery]:
    """Return queries whose snippets state their document and place there, of a corpus with both."""
    rows = [*json_rows(folder / "corpus.jsonl.gz")]
    if not all("doc" in row for row in rows):
        raise SystemExit(f"{folder.name} does not state documents; leave it out, or write it again")
    places = {row["_id"]: {"document": row["doc"], "position": i} for i, row in enumerate(rows)}
    return [
        replace(q, snippets=[replace(s, **places[str(s.id)]) for s in q.snippets]) for q in judged
    ]


def candidates_in(folder: Path) -> dict[str, set[str]]:
    """Return what each query may retrieve, such as one contract, where candidates.tsv has it."""
    if not any(folder.glob("candidates.tsv*")):
        return {}
    ((_, ranked),) = read_runs(folder, "candidates.tsv", None).values()
    return {id: {document for document, _ in found} for id, found in ranked.items()}


def cosines(
    corpus: dict[str, str], queries: dict[str, str], cache: Path, model: Path | None = None
) -> Iterator[NDArray[np.float64]]:
    vectors = [
        v / np.linalg.norm(v, axis=1, keepdims=True)
        for v in (encoded([*texts.values()], cache, model) for texts in (corpus, queries))
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
        f"Recall of what is retrieved: {np.mean(retrieved / (retrieved + missed)):.1%} per query."
    )


# --- one halving ----------------------------------------------------------------------------------


class Halving(NamedTuple):
    """What one halving gave."""

    n_fit: int
    snippets: dict[str, float]  # at the recall, by row
    text: dict[str, float]  # the characters of these
    coverage: float
    kept: float  # snippets a query


def recall_of(name: str, judged: Sequence[JudgedQuery]) -> float:
    reach = np.mean([sum(q.relevant) / (sum(q.relevant) + q.missed) for q in judged])
    wanted = RECALLS.get(name, RECALL)
    return wanted if reach > wanted + 0.03 else round(float(reach) - 0.1, 2)


def halving(
    judged: list[JudgedQuery],
    others: dict[str, list[ScoredQuery]],
    recall: float,
    rng: np.random.Generator,
    n: int,
    prior: Prior,
) -> Halving:
    order = rng.permutation(len(judged))
    half = len(order) // 2
    own = str(rng.integers(2**60))

    def digest(query: str) -> str:  # one question may be about several contracts, in both halves
        return hashlib.sha256((own + query).encode()).hexdigest()

    given = [judged[i] for i in order[:half][: n or None]]
    with (
        patch("conformal_retrievers.scoring.learned.score.prior_of", lambda item: prior),
        patch("conformal_retrievers.calibration.fitting.query_digest", digest),
        patch("conformal_retrievers.scoring.learned.score.query_digest", digest),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # that some are near copies, or too few
        calibration = calibrate(given, alpha=round(1 - recall, 9), count_missed=True)
    filtered = [judged[i] for i in order[half:]]
    scored = score_queries(scorer_for(calibration), filtered)
    keeps = [calibration.keep(q.scores) for q in scored]
    rows = {"filter": scored, **{row: [of[i] for i in order[half:]] for row, of in others.items()}}
    ones = [np.ones(len(q.snippets)) for q in filtered]
    characters = [np.array([len(s.text) for s in q.snippets], dtype=float) for q in filtered]
    return Halving(
        calibration.scorer_provenance["choice"]["n_fit"],
        {row: cost_at(recall, of, ones) for row, of in rows.items()},
        {row: cost_at(recall, of, characters) for row, of in rows.items()},
        float(np.mean([share(q, keep) for q, keep in zip(scored, keeps, strict=True)])),
        float(np.mean([keep.sum() for keep in keeps])),
    )


def share(query: ScoredQuery, keep: NDArray[np.bool_]) -> float:
    """Return the share of the known relevant snippets of a query that is kept."""
    return float((keep & query.relevant).sum() / (query.relevant.sum() + query.n_missed))


def in_order(scored: list[ScoredQuery], name: str) -> list[ScoredQuery]:
    """Return the queries with finite scores, and with places in their place for a top k."""
    return [
        ScoredQuery(
            np.where(np.isfinite(q.scores), q.scores, 9.0)
            if name == "cosine"
            else np.argsort(np.argsort(q.scores, kind="stable")).astype(float),
            q.relevant,
            id=q.id,
            missed=q.missed,
        )
        for q in scored
    ]


def cost_at(
    recall: float, scored: Sequence[ScoredQuery], costs: Sequence[NDArray[np.float64]]
) -> float:
    """Return what a query's kept snippets cost at a mean end-to-end recall, interpolated."""
    scores = np.concatenate([q.scores for q in scored])
    gains = np.concatenate([q.relevant / max(1, q.relevant.sum() + q.n_missed) for q in scored])
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    last = np.flatnonzero([*(ordered[1:] != ordered[:-1]), True])  # of equal scores
    recalls, kept = (
        np.concatenate([[0], np.cumsum(of[order])[last]]) / len(scored)
        for of in (gains, np.concatenate(costs))
    )
    return float(np.interp(recall, recalls, kept, right=math.nan))


# --- tables ---------------------------------------------------------------------------------------


def empty_table(names: Sequence[str]) -> Table:
    table = Table(box=box.MARKDOWN)
    of = [f"of {name}" for name in names]
    text = [f"text {heading}" for heading in of]
    for heading in ("judged", "fit", "snippets", *of, *text, "kept", "coverage", "se", "holds"):
        table.add_column(heading, no_wrap=True)
    return table


def add_row(
    table: Table, size: int, halvings: list[Halving], recall: float, names: Sequence[str]
) -> list[float]:
    """Add the row of so many judged queries, and return its ratios."""
    rows, texts = (
        {row: np.array([of[row] for of in each]) for row in ("filter", *names)}
        for each in ([h.snippets for h in halvings], [h.text for h in halvings])
    )
    ratios = [
        float(of["filter"].mean() / of[name].mean()) for of in (rows, texts) for name in names
    ]
    coverage = np.array([h.coverage for h in halvings])
    se = coverage.std(ddof=1) / math.sqrt(len(coverage))
    table.add_row(
        str(size or "half"),
        str(halvings[0].n_fit),
        f"{rows['filter'].mean():.1f} ± {rows['filter'].std(ddof=1):.1f}",
        *(f"{ratio:.2f}" for ratio in ratios),
        f"{np.mean([h.kept for h in halvings]):.1f}",
        f"{100 * coverage.mean():.1f} ± {100 * coverage.std(ddof=1):.1f}",
        f"{100 * se:.2f}",
        "yes" if coverage.mean() >= recall - 3 * se else "NO",
    )
    return ratios


if __name__ == "__main__":
    main()
