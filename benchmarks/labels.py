"""What labels by source and reference answer agree with, by beta, on sets in the BEIR layout.

    .venv/bin/python -m benchmarks.labels --data FOLDER

`FOLDER` holds pubmedqa (long answers; documents are abstracts of about three passages) and nq-open
(answers of a few words; documents are Wikipedia pages), each with queries that have an `answer`, a
corpus whose passages name their document, qrels, and a BM25 run, of which the ten best are taken.
A passage of the right document holds the answer if the answer is in its text, letter for letter.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from conformal_retrievers import Snippet
from conformal_retrievers.data import read_beir
from conformal_retrievers.labels.labeling import AnsweredQuery, label_by_source

K = 10
DOCUMENT = {"pubmedqa": "doc", "nq-open": "title"}
BETAS = (0, 0.5, 0.9, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    shown = Table(box=box.MARKDOWN)
    for heading in (
        *("set", "beta", "ROUGE-L ≥", "relevant", "queries with one, %"),
        *("kept of those holding the answer, %", "holding it of those kept, %"),
    ):
        shown.add_column(heading, no_wrap=True)
    for name, document in DOCUMENT.items():
        queries = answered(data / name, document, K)
        for beta in BETAS:
            shown.add_row(name, *row(queries, beta))
    Console(width=150).print(shown)


def answered(folder: Path, document: str, k: int) -> list[AnsweredQuery]:
    rows = by_id(folder / "queries.jsonl.gz")
    corpus = by_id(folder / "corpus.jsonl.gz")
    right = defaultdict(set)
    with gzip.open(folder / "qrels.tsv.gz", "rt", encoding="utf-8") as file:
        for line in list(file)[1:]:
            query, passage = line.split("\t")[:2]
            right[query].add(corpus[passage][document])
    queries = []
    for judged in read_beir(folder, "run-bm25.tsv.gz", k=k):
        answer = rows[str(judged.id)]["answer"]
        snippets = [
            Snippet(s.text, id=s.id, document=corpus[str(s.id)][document]) for s in judged.snippets
        ]
        queries.append(
            AnsweredQuery(
                judged.query,
                snippets,
                answer if isinstance(answer, str) else answer[0],
                documents=right[str(judged.id)],
                id=judged.id,
            )
        )
    return queries


def by_id(path: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {row["_id"]: row for row in map(json.loads, file)}


def row(queries: list[AnsweredQuery], beta: float) -> list[str]:
    labelled = label_by_source(queries, beta=beta)
    pairs = [
        (relevant, str(query.answer).lower() in snippet.text.lower())
        for query, judged in zip(queries, labelled.judged, strict=True)
        for snippet, relevant in zip(query.snippets, judged.relevant, strict=True)
        if snippet.document in query.documents
    ]
    relevant = sum(label for label, _ in pairs)
    holding = sum(holds for _, holds in pairs)
    both = sum(label and holds for label, holds in pairs)
    threshold = labelled.labels.get("rouge_l_threshold")
    some = sum(any(judged.relevant) for judged in labelled.judged)
    return [
        f"{beta:g}",
        "" if threshold is None else f"{threshold:.3f}",
        f"{relevant:,} of {len(pairs):,}",
        f"{100 * some / len(queries):.1f}",
        f"{100 * both / holding:.1f}" if holding else "",
        f"{100 * both / relevant:.1f}" if holding else "",
    ]


if __name__ == "__main__":
    main()
