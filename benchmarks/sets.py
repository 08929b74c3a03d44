"""Labelled sets: as lists of snippets with two scores, and one of code that is made here.

`reproduction.py` measures on the lists, and `prior.py` learns from the code, too.

Passages of a BM25 run (scifact, nq-open, pubmedqa: sections of abstracts), scored by the run's
BM25; all sentences of a query's own pages (wice, ragbench-hotpotqa), scored by BM25 among these
sentences. Cosines: all-MiniLM-L6-v2.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.halvings import minilm
from conformal_retrievers import JudgedQuery, RetrievalScorer, Scorer, Snippet, score_queries
from conformal_retrievers.data import read_beir
from conformal_retrievers.scoring.bm25 import BM25Scorer

Scores = Sequence[NDArray[np.float64]]  # (n,) of each query's snippets


@dataclass(frozen=True)
class Data:
    """Judged queries, and two scorers of their snippets."""

    judged: list[JudgedQuery]
    cosine: Scorer
    bm25: Scorer

    def scored(self, scorer: Scorer) -> Scores:
        return [query.scores for query in score_queries(scorer, self.judged)]

    @cached_property
    def cosines(self) -> Scores:
        return self.scored(self.cosine)

    @cached_property
    def bm25s(self) -> Scores:
        return self.scored(self.bm25)

    @cached_property
    def relevant(self) -> list[NDArray[np.bool_]]:
        return [np.array(query.relevant, dtype=bool) for query in self.judged]


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


def page_sentences(folder: Path, cache: Path) -> Data:
    """All sentences of a claim's page in their order."""
    corpus = {row["_id"]: row for row in json_rows(folder / "corpus.jsonl.gz")}
    judged = [
        with_snippets(
            query,
            [
                Snippet(row["text"], s.id, row["title"], i)
                for i, s in enumerate(query.snippets)
                for row in [corpus[str(s.id)]]
            ],
        )
        for query in read_beir(folder, "candidates.tsv")
    ]
    return Data(judged, minilm(judged, cache), OwnBM25())


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


# --- code -----------------------------------------------------------------------------------------

N_QUESTIONS, N_FUNCTIONS = 600, 5000
PACKAGES = ("numpy", "scipy", "sklearn")


def functions(folder: Path) -> Path:
    """Write the functions of numpy, scipy and scikit-learn in the BEIR layout; return the folder.

    A question is the first paragraph of a docstring, and relevant is the function whose it is, of
    which the corpus has the source without docstrings, in the order of its file. Which ones are
    there depends on the versions of the packages.
    """
    sources, questions = dict[str, str](), dict[str, str]()
    root = Path(find_spec("numpy").origin).parents[1]  # type: ignore[union-attr, arg-type]
    for path in sorted(path for name in PACKAGES for path in (root / name).rglob("*.py")):
        if "tests" not in path.parts:
            for line, question, source in functions_in(path):
                id = f"{path.relative_to(root)}:{line}"
                if len(source) < 80 or source in sources.values():
                    continue
                sources[id] = source
                if 20 <= len(question) <= 200:
                    questions.setdefault(question, id)
    asked = dict(sorted(questions.items(), key=lambda pair: digest(pair[0]))[:N_QUESTIONS])
    others = [id for id in sorted(sources, key=digest) if id not in asked.values()]
    corpus = {*asked.values(), *others[: N_FUNCTIONS - len(asked)]}
    folder.mkdir(parents=True, exist_ok=True)
    rows = {
        "corpus": [
            {"_id": id, "text": sources[id], "doc": id.rpartition(":")[0]}
            for id in sorted(corpus, key=place_of)
        ],
        "queries": [{"_id": f"q:{id}", "text": text} for text, id in asked.items()],
    }
    for name, of in rows.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in of)
    lines = ["query-id\tcorpus-id\tscore", *(f"q:{id}\t{id}\t1" for id in asked.values())]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def place_of(id: str) -> tuple[str, int]:
    path, _, line = id.rpartition(":")
    return path, int(line)


def functions_in(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each function, its docstring's first paragraph, and its source without."""
    try:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError):
        return
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node) or ""
            body = node.body[1:] if documented else node.body
            if body:
                head = lines[node.lineno - 1 : node.body[0].lineno - 1]
                source = [*head, *lines[body[0].lineno - 1 : node.end_lineno]]
                first = " ".join(documented.strip().split("\n\n")[0].split())
                yield node.lineno, first, textwrap.dedent("\n".join(source))[:1000]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
