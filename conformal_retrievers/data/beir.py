"""Judged queries from a folder in the BEIR layout and a run file.

The layout is that of Thakur et al. 2021 (arXiv 2104.08663): corpus, queries and qrels.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conformal_retrievers.data.jsonl import numbered_lines
from conformal_retrievers.data.queries import JudgedQuery, Snippet

QRELS = ("qrels.tsv", "qrels/test.tsv")
FILES = tuple(
    f"{name}{ending}"
    for name in ("corpus.jsonl", "queries.jsonl", *QRELS)
    for ending in ("", ".gz")
)  # what a folder may hold


def read_beir(
    folder: str | Path, run: str | Path, *, k: int | None = None, min_score: int = 1
) -> list[JudgedQuery]:
    """Read a folder in the BEIR layout, with the retrieved snippets from a run file.

    The folder holds corpus.jsonl, queries.jsonl and qrels.tsv (or qrels/test.tsv), each also as
    .gz. `run` is a path, inside the folder or not, of tab-separated lines
    query-id, corpus-id, rank, score (score may be empty) or of TREC's six columns. The `k` best by
    rank are kept, all of them by default. A snippet is relevant from a qrels score of `min_score`;
    relevant ones that the run does not hold are counted in `missed`. Queries come in the order of
    queries.jsonl, also those for which the run holds nothing. Text is title and text, as in BEIR.
    Raises FileNotFoundError or ValueError naming the file and the line.
    """
    if k is not None and k < 1:
        raise ValueError(f"k is {k!r}; give how many snippets to keep of each query, 1 or more")
    folder = Path(folder)
    corpus = read_corpus(folder)
    qrels = _read_qrels(_existing(folder, *QRELS))
    ranked = _read_run(Path(run) if Path(run).exists() else _existing(folder, str(run)))
    queries = []
    for query_id, (place, row) in _by_id(_existing(folder, "queries.jsonl")).items():
        hits = sorted(ranked.pop(query_id, []), key=lambda hit: hit[0])[:k]
        unknown = [document for _, document, _ in hits if document not in corpus]
        if unknown:
            raise ValueError(
                f"{run}: query {query_id!r} retrieves {unknown[0]!r}, which the corpus does not "
                "hold; run and corpus belong to different collections"
            )
        relevant = {d for d, score in qrels.pop(query_id, {}).items() if score >= min_score}
        queries.append(
            JudgedQuery(
                _field(row, "text", place),
                [
                    Snippet(corpus[d], id=d, document=d, retrieval_score=score)
                    for _, d, score in hits
                ],
                [d in relevant for _, d, _ in hits],
                id=query_id,
                group=None if row.get("group") is None else str(row["group"]),
                missed=len(relevant - {d for _, d, _ in hits}),
            )
        )
    for source, left in ((run, ranked), ("qrels", qrels)):
        if left:
            raise ValueError(
                f"{source} names {len(left)} queries that queries.jsonl does not hold, such as "
                f"{next(iter(left))!r}; remove them or take the queries.jsonl that they belong to"
            )
    return queries


def read_corpus(path: str | Path) -> dict[str, str]:
    """Read the texts of a corpus by their ids, from corpus.jsonl or the BEIR folder that holds it.

    Raises FileNotFoundError or ValueError naming the file and the line.
    """
    file = Path(path)
    rows = _by_id(_existing(file, "corpus.jsonl") if file.is_dir() else file)
    return {document: _text_of(row, place) for document, (place, row) in rows.items()}


def _by_id(path: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    rows: dict[str, tuple[str, dict[str, Any]]] = {}
    for place, row in _json_rows(path):
        if rows.setdefault(_field(row, "_id", place), (place, row)) != (place, row):
            raise ValueError(f"{place}: _id {row['_id']!r} occurs a second time; remove one")
    return rows


def _text_of(row: Mapping[str, Any], place: str) -> str:
    return f"{row.get('title') or ''} {_field(row, 'text', place)}".strip()


def _read_qrels(path: Path) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = defaultdict(dict)
    for place, columns in _tsv_rows(path, {3, 4}):
        # TREC's qrels have a second column that nobody uses.
        query_id, document, score = columns if len(columns) == 3 else (columns[0], *columns[2:])
        qrels[query_id][document] = int(_number(score, "score", place))
    return dict(qrels)


def _read_run(path: Path) -> dict[str, list[tuple[float, str, float | None]]]:
    run: dict[str, list[tuple[float, str, float | None]]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for place, columns in _tsv_rows(path, {4, 6}):
        trec = len(columns) == 6
        query_id = columns[0]
        document, rank, score = columns[2:5] if trec else columns[1:4]
        value = _number(score, "score", place) if score.strip() else None
        hit = (_number(rank, "rank", place), document, value)
        if (query_id, document) in seen:
            raise ValueError(
                f"{place}: query {query_id!r} retrieves {document!r} a second time; remove one"
            )
        seen.add((query_id, document))
        run[query_id].append(hit)
    return dict(run)


def _number(text: str, column: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: {column} is {text!r}; a number was expected")
    return value


def _field(row: Mapping[str, Any], name: str, place: str) -> str:
    if name not in row:
        raise ValueError(f"{place}: field {name!r} is missing; it has {', '.join(map(str, row))}")
    return str(row[name])


def _existing(folder: Path, *names: str) -> Path:
    candidates = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    for path in candidates:
        if path.exists():
            return path
    listed = ", ".join(str(path) for path in candidates)
    raise FileNotFoundError(f"no file {listed}; a BEIR folder holds corpus, queries and qrels")


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in numbered_lines(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: an object was expected, not {row!r:.60}")
        yield f"{path}, line {number}", row


def _tsv_rows(path: Path, widths: set[int]) -> Iterator[tuple[str, list[str]]]:
    for number, line in numbered_lines(path):
        columns = line.rstrip("\r\n").split("\t")
        if len(columns) == 1:  # TREC separates by blanks
            columns = line.split()
        if number == 1 and columns[0] in ("query-id", "query_id", "qid"):
            continue
        if len(columns) not in widths:
            expected = " or ".join(map(str, sorted(widths)))
            raise ValueError(
                f"{path}, line {number}: {len(columns)} columns; {expected} were expected"
            )
        yield f"{path}, line {number}", columns
