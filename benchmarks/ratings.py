"""A real LLM's ratings as the score, beside the default score, which calls no model.

Of 150 questions of each set, the 20 best snippets of the fusion of dense (all-MiniLM-L6-v2) and
BM25 have: the default score, whose prior is made without the set; 1 − P(YES) by `LLMScorer` of a
model; and, where it was asked, 1 − its rating, which is "nan" if its reply cannot be read. With
`--base-url`, a server is asked for P(YES), or for ratings with `--by rating`, where it was not
before; `--by default` computes the default score again. Without them, the tables are made from
results/ratings.jsonl.gz.

    AUC        of a question's relevant snippets against its others, mean over the questions
    pooled     AUC over all snippets: whether one threshold serves all questions
    coverage   share of a question's retrieved relevant snippets that a calibration on half of the
               questions at alpha = .1 keeps of the others, mean over 200 halvings, in %
    removed    share of their snippets that it removes, in %
    values     different scores among all snippets; few values are ties
    unread     snippets without a score, which are kept, in %

    python -m benchmarks.ratings [--write]
    python -m benchmarks.ratings --data FOLDER --set nq-open --base-url URL --model NAME
        [--by rating]
    python -m benchmarks.ratings --data FOLDER --set nq-open --by default
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata

from benchmarks.answers import Row, read_rows, write_rows
from benchmarks.arguments import parser_of
from conformal_retrievers import Calibration, LLMScorer, ScoredQuery, Snippet, __version__
from conformal_retrievers.llm import openai_llm

K, QUESTIONS, ALPHA, HALVINGS = 20, 150, 0.1, 200
HEADINGS = ("score", "snippets", "AUC", "pooled", "coverage", "removed", "values", "unread")
FIELDS = {"probability-of-yes": "yes", "rating": "rating", "default": "default"}  # of a row
RESULTS = Path(__file__).parent / "results"
RATINGS, TABLE = RESULTS / "ratings.jsonl.gz", RESULTS / "ratings.md"


def main() -> None:
    parser = parser_of("benchmarks.ratings", __doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("CONFORMAL_DATA"))
    parser.add_argument("--cache", type=Path, default=Path("cache"), help="keeps embeddings")
    parser.add_argument("--set", default="nq-open")
    parser.add_argument("--base-url", help="an OpenAI-compatible server; asks it")
    parser.add_argument("--model", default="model", help="the server's name for the model")
    parser.add_argument("--by", choices=FIELDS, default="probability-of-yes")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="of the set, the first")
    parser.add_argument("--write", action="store_true", help=f"also write {TABLE.name}")
    arguments = parser.parse_args()
    if arguments.base_url or arguments.by == "default":
        rows = read_rows(RATINGS)
        for _ in scored(rows, arguments):
            write_rows(RATINGS, rows)
    console = Console(record=True, width=120)
    for part in sections(read_rows(RATINGS)):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        lines = (line.rstrip() for line in console.export_text().splitlines())
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def scored(rows: list[Row], arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield each question's row, which has its new scores, and is in the list."""
    data, name, cache = arguments.data, arguments.set, arguments.cache
    from benchmarks.default import united
    from benchmarks.prior import prior_without
    from conformal_retrievers.scoring import FusionScorer
    from conformal_retrievers.scoring.hit_features import sources_of
    from conformal_retrievers.scoring.learned import score as learned
    from conformal_retrievers.scoring.scorer import score_snippets

    prior = prior_without(name, "snippets", data, cache)
    judged = united(data / name, cache)
    with patch.object(learned, "prior_of", lambda item: prior):
        default = learned.fitted(sources_of(judged), (), [], "snippets")
    known = {
        row["id"]: row for row in rows if row["set"] == name and row["model"] == arguments.model
    }
    for query in judged[: arguments.questions]:
        fused = score_snippets(FusionScorer(["bm25", "dense"]), query.query, query.snippets)
        own = score_snippets(default, query.query, query.snippets)
        top = np.argsort(fused, kind="stable")[:K].tolist()
        relevant = [bool(query.relevant[i]) for i in top]
        if query.id not in known:
            missed = query.missed + sum(query.relevant) - sum(relevant)
            known[query.id] = {"set": name, "id": query.id, "relevant": relevant, "missed": missed}
            known[query.id]["model"] = arguments.model
            rows.append(known[query.id])
        row = known[query.id]
        row["default"] = [round(float(own[i]), 6) for i in top]
        field = FIELDS[arguments.by]
        if field not in row:
            url = arguments.base_url
            scorer = LLMScorer(
                openai_llm(arguments.model, base_url=url, timeout=900), by=arguments.by
            )
            given: list[Snippet] = [query.snippets[i] for i in top]
            row[field] = [
                "nan" if np.isnan(score) else round(float(score), 6)
                for score in scorer.score(query.query, given)
            ]
        yield row


def sections(rows: Sequence[Row]) -> Iterator[str | Table]:
    """Yield the facts, and a table of each set."""
    yield (
        "# A real LLM's ratings as the score\n\n"
        f"{QUESTIONS} questions of a set, {K} snippets each; conformal_retrievers {__version__}. "
        "`benchmarks/ratings.py` says what is what."
    )
    for name in dict.fromkeys(row["set"] for row in rows):
        table = Table(box=box.MARKDOWN)
        for heading in HEADINGS:
            table.add_column(heading, no_wrap=True)
        models = dict.fromkeys(row["model"] for row in rows)
        of_model = {m: [r for r in rows if (r["set"], r["model"]) == (name, m)] for m in models}
        scored = {"default": [(r["default"], r["relevant"]) for r in of_model[next(iter(models))]]}
        for model, queries in of_model.items():
            scored[f"P(YES), {model}"] = [(r["yes"], r["relevant"]) for r in queries]
        for label, queries in scored.items():
            add_row(table, label, queries)
        for model, queries in of_model.items():
            if all("rating" in row for row in queries):
                rated = [(row["rating"], row["relevant"]) for row in queries]
                add_row(table, f"rating, {model}", rated)
        yield f"\n## {name}\n"
        yield table


def add_row(table: Table, label: str, queries: Sequence[tuple[list[float], list[bool]]]) -> None:
    scores = [np.array(s, dtype=float) for s, _ in queries]
    relevant = [np.array(r, dtype=bool) for _, r in queries]
    each = [auc(s, r) for s, r in zip(scores, relevant, strict=True)]
    whole = np.concatenate(scores)
    kept = np.array(
        [halving(scores, relevant, np.random.default_rng(i)) for i in range(HALVINGS)]
    ).mean(axis=0)
    table.add_row(
        label,
        f"{len(whole)}",
        f"{np.nanmean(each):.2f}",
        f"{auc(whole, np.concatenate(relevant)):.2f}",
        f"{100 * kept[0]:.0f}",
        f"{100 * kept[1]:.0f}",
        f"{len(np.unique(whole[np.isfinite(whole)].round(6)))}",
        f"{100 * np.mean(~np.isfinite(whole)):.0f}",
    )


def auc(scores: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    """Return P(relevant scores lower) + P(equal) / 2; of snippets that have a score."""
    finite = np.isfinite(scores)
    scores, relevant = scores[finite], relevant[finite]
    n = relevant.sum()
    if n in (0, len(relevant)):
        return np.nan
    ranks = rankdata(-scores)[relevant].sum() - n * (n + 1) / 2
    return float(ranks / (n * (len(relevant) - n)))


def halving(
    scores: Sequence[NDArray[np.float64]],
    relevant: Sequence[NDArray[np.bool_]],
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return the coverage of new questions, and the share of their snippets that is removed."""
    order = rng.permutation(len(scores))
    queries = [ScoredQuery(scores[i], relevant[i]) for i in order if len(scores[i])]
    half = len(queries) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a weak model's score is no better than a guess
        calibration = Calibration.from_scores(
            queries[:half], alpha=ALPHA, scorer="score", on_unscorable="keep"
        )
    keeps = [calibration.keep(query.scores) for query in queries[half:]]
    shares = [
        keep[query.relevant].mean()
        for keep, query in zip(keeps, queries[half:], strict=True)
        if query.relevant.any()
    ]
    return float(np.mean(shares)), float(1 - np.mean(np.concatenate(keeps)))


if __name__ == "__main__":
    main()
