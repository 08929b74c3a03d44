"""What labels by source and reference answer agree with, by beta, on sets in the BEIR layout.

With a reference answer r and the documents d(r) that contain it, a snippet c is relevant by its
source (Geissler et al. 2026, arXiv 2605.05244, eq. 1) iff

    d(c) ∈ d(r)  and  ROUGE-L(c, r) ≥ P_β({ROUGE-L(c', r') : d(c') ∉ d(r')})

with the β-quantile P_β over the snippets of all queries: β is the share of the snippets from wrong
documents whose ROUGE-L is exceeded.

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import regex
from rich import box
from rich.console import Console
from rich.table import Table
from rouge_score.rouge_scorer import RougeScorer

from conformal_retrievers import Snippet
from conformal_retrievers.data import read_beir

K = 10
DOCUMENT = {"pubmedqa": "doc", "nq-open": "title"}
BETAS = (0, 0.5, 0.9, 0.99)
# In scripts without spaces between words, a character with its marks is one.
ALONE = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}\p{N}]]"
WORD = regex.compile(rf"{ALONE}\p{{M}}*+|(?:(?!{ALONE})[\p{{L}}\p{{N}}\p{{M}}])++", regex.VERSION1)


@dataclass(frozen=True)
class Answered:
    """A query with its snippets, its reference answer and the documents that contain it."""

    snippets: list[Snippet]
    answer: str
    documents: set[str]


class Words:
    """The tokenizer of ROUGE-L: the words of any script, without stemming."""

    def tokenize(self, text: str) -> list[str]:
        return list(WORD.findall(normalize("NFC", text.lower())))


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


def answered(folder: Path, document: str, k: int) -> list[Answered]:
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
        first = answer if isinstance(answer, str) else answer[0]
        queries.append(Answered(snippets, first, right[str(judged.id)]))
    return queries


def by_id(path: Path) -> dict[str, dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {row["_id"]: row for row in map(json.loads, file)}


def by_source(queries: list[Answered], beta: float) -> tuple[list[list[bool]], float | None]:
    """Return which snippets of each query are relevant, and the ROUGE-L that they need."""
    right = [[s.document in query.documents for s in query.snippets] for query in queries]
    if beta == 0:
        return right, None
    score = RougeScorer(["rougeL"], tokenizer=Words()).score
    overlap = [[score(q.answer, s.text)["rougeL"].fmeasure for s in q.snippets] for q in queries]
    both = [list(zip(r, o, strict=True)) for r, o in zip(right, overlap, strict=True)]
    wrong = [value for query in both for is_right, value in query if not is_right]
    threshold = float(np.quantile(wrong, beta))
    return [[is_right and value >= threshold for is_right, value in q] for q in both], threshold


def row(queries: list[Answered], beta: float) -> list[str]:
    labelled, threshold = by_source(queries, beta)
    pairs = [
        (relevant, query.answer.lower() in snippet.text.lower())
        for query, marks in zip(queries, labelled, strict=True)
        for snippet, relevant in zip(query.snippets, marks, strict=True)
        if snippet.document in query.documents
    ]
    relevant = sum(label for label, _ in pairs)
    holding = sum(holds for _, holds in pairs)
    both = sum(label and holds for label, holds in pairs)
    some = sum(map(any, labelled))
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
