"""Judged queries from a folder in the BEIR layout (Thakur et al. 2021, arXiv 2104.08663)."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from conformal_retrievers.data.jsonl import placed_lines, rows
from conformal_retrievers.data.queries import JudgedQuery, Snippet


class _Row(BaseModel):
    # A line of corpus.jsonl or queries.jsonl, which may have more fields.
    model_config = ConfigDict(coerce_numbers_to_str=True)
    id: str = Field(alias="_id")
    text: str
    title: str | None = None
    group: str | None = None


def read_beir(
    folder: str | Path, run: str | Path, *, k: int | None = None, min_score: int = 1
) -> list[JudgedQuery]:
    """Read the judged queries of a folder in the BEIR layout, retrieved as in a run file.

    They have the order of queries.jsonl, also those without a line in the run. Relevant snippets
    that the run does not have are counted in `missed`. A snippet's text is title and text.

    Parameters
    ----------
    folder
        Has corpus.jsonl, queries.jsonl (with "group", if known) and qrels.tsv (or qrels/test.tsv),
        each also as .gz.
    run
        A path, inside the folder or not, of tab-separated lines query-id, corpus-id, rank, score
        (score may be empty), or of TREC's six columns.
    k
        How many snippets to keep of each query, the best by rank; all by default.
    min_score
        The qrels score from which on a snippet is relevant.

    Raises
    ------
    FileNotFoundError, ValueError
        For a missing file and a broken line; the error names the file and the line.
    """
    if k is not None and k < 1:
        raise ValueError(f"k is {k!r}; give how many snippets to keep per query, 1 or more")
    folder = Path(folder)
    corpus = read_corpus(folder)
    qrels = _read_qrels(_existing(folder, "qrels.tsv", "qrels/test.tsv"))
    ranked = _read_run(Path(run) if Path(run).exists() else _existing(folder, str(run)))
    queries = []
    for query_id, row in _by_id(_existing(folder, "queries.jsonl")).items():
        hits = sorted(ranked.pop(query_id, []), key=lambda hit: hit[0])[:k]
        for _, document, _ in hits:
            if document not in corpus:
                raise ValueError(
                    f"{run}: query {query_id!r} retrieves {document!r}, which is not in the "
                    "corpus; give the run and the corpus of one collection"
                )
        relevant = {d for d, score in qrels.pop(query_id, {}).items() if score >= min_score}
        queries.append(
            JudgedQuery(
                row.text,
                [Snippet(corpus[d], d, d, retrieval_score=score) for _, d, score in hits],
                [d in relevant for _, d, _ in hits],
                id=query_id,
                group=row.group,
                missed=len(relevant - {d for _, d, _ in hits}),
                k=k,
            )
        )
    for source, left in ((run, ranked), ("qrels", qrels)):
        if left:
            raise ValueError(
                f"{source} has {len(left)} queries that are not in queries.jsonl, such as "
                f"{next(iter(left))!r}; remove them, or give the queries.jsonl that has them"
            )
    return queries


def read_corpus(path: str | Path) -> dict[str, str]:
    """Read the texts of a corpus by their ids, from corpus.jsonl or the BEIR folder that has it."""
    file = Path(path)
    found = _by_id(_existing(file, "corpus.jsonl") if file.is_dir() else file)
    return {id: f"{row.title or ''} {row.text}".strip() for id, row in found.items()}


def _by_id(path: Path) -> dict[str, _Row]:
    found: dict[str, _Row] = {}
    for place, row in rows(path, _Row):
        if row.id in found:
            raise ValueError(f"{place}: _id {row.id!r} occurs twice; remove one")
        found[row.id] = row
    return found


def _read_qrels(path: Path) -> dict[str, dict[str, float]]:
    qrels: dict[str, dict[str, float]] = defaultdict(dict)
    for place, columns in _tsv_rows(path, {3, 4}):  # TREC's second column is unused
        query_id, document, score = columns[0], *columns[-2:]
        qrels[query_id][document] = _number(score, "score", place)
    return qrels


def _read_run(path: Path) -> dict[str, list[tuple[float, str, float | None]]]:
    run: dict[str, list[tuple[float, str, float | None]]] = defaultdict(list)
    for place, columns in _tsv_rows(path, {4, 6}):
        document, rank, score = columns[2:5] if len(columns) == 6 else columns[1:4]
        value = _number(score, "score", place) if score.strip() else None
        run[columns[0]].append((_number(rank, "rank", place), document, value))
    return run


def _number(text: str, column: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{place}: {column} is {text!r}; give a number")
    return value


def _existing(folder: Path, *names: str) -> Path:
    candidates = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    path = next((path for path in candidates if path.exists()), None)
    if path is None:
        raise FileNotFoundError(
            f"none of the files {', '.join(map(str, candidates))} exists; a BEIR folder has a "
            "corpus, queries and qrels"
        )
    return path


def _tsv_rows(path: Path, widths: set[int]) -> Iterator[tuple[str, list[str]]]:
    for place, line in placed_lines(path):
        columns = line.rstrip("\r\n").split("\t")
        if len(columns) == 1:  # TREC separates by blanks
            columns = line.split()
        if columns[0] in ("query-id", "query_id", "qid"):  # the header
            continue
        if len(columns) not in widths:
            allowed = " or ".join(map(str, sorted(widths)))
            raise ValueError(f"{place}: {len(columns)} columns; give {allowed}")
        yield place, columns
