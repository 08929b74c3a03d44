"""Judged queries from a folder in the BEIR layout (Thakur et al. 2021, arXiv 2104.08663)."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from conformal_retrievers.data.checks import check_count
from conformal_retrievers.data.hits import RETRIEVER, fuse
from conformal_retrievers.data.jsonl import placed_lines, rows
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.text import number_in
from conformal_retrievers.data.wording import say

CORPUS = "corpus.jsonl"
Runs: TypeAlias = str | Path | Sequence[str | Path] | Mapping[str, str | Path]
Ranked: TypeAlias = dict[str, list[tuple[str, float | None]]]  # documents and scores, best first


class Run(NamedTuple):
    """What a retriever returned for each query, by its id."""

    path: str | Path
    ranked: Ranked


class _Row(BaseModel):
    # A line of corpus.jsonl or queries.jsonl, which may have more fields.
    model_config = ConfigDict(coerce_numbers_to_str=True)
    id: str = Field(alias="_id")
    text: str
    title: str | None = None
    group: str | None = None


def read_beir(
    folder: str | Path, run: Runs, *, k: int | None = None, min_score: float = 1
) -> list[JudgedQuery]:
    """Read the judged queries of a folder in the BEIR layout, retrieved as in one run or several.

    They have the order of queries.jsonl, also those without a line in a run. Snippets have a hit
    for each run that retrieves them, and several runs are united by reciprocal rank fusion.
    Relevant snippets that no run has are counted in `missed`. A snippet's text is title and text.

    Parameters
    ----------
    folder
        Has corpus.jsonl, queries.jsonl (with "group", if known) and qrels.tsv (or qrels/test.tsv),
        each also as .gz.
    run
        A path, inside the folder or not, of tab-separated lines query-id, corpus-id, rank, score
        (score may be empty), or of TREC's six columns. Several are given in a list, and named by
        `run_name` in the hits, or in a mapping from their names. The hits of a single path have
        the name "retriever".
    k
        How many snippets to keep of each query and run, the best by rank; all by default.
    min_score
        The qrels score from which on a snippet is relevant.

    Raises
    ------
    FileNotFoundError, ValueError
        For a missing file and a broken line, where the error names the file and the line, and for
        two runs with one name.
    """
    folder = Path(folder)
    runs, corpus = read_runs(folder, run, k), read_corpus(folder)
    qrels = read_qrels(_existing(folder, "qrels.tsv", "qrels/test.tsv"))
    queries = []
    for query_id, row in _by_id(_existing(folder, "queries.jsonl")).items():
        relevant = {d for d, score in qrels.pop(query_id, {}).items() if score >= min_score}
        judged = judged_by_qrels(row.text, runs, relevant, corpus, id=query_id, k=k)
        queries.append(judged if row.group is None else replace(judged, group=row.group))
    left_over: list[tuple[object, Mapping[str, object]]] = [("qrels", qrels), *runs.values()]
    for source, left in left_over:
        if left:
            raise ValueError(say("queries left", source=source, n=len(left), id=next(iter(left))))
    return queries


def judged_by_qrels(
    query: str,
    runs: Mapping[str, Run],
    relevant: Collection[str],
    corpus: Mapping[str, str] | None,
    *,
    id: str,
    k: int | None,
) -> JudgedQuery:
    """Return a query with what runs retrieved for it, united and judged by document id.

    It is taken out of the runs, which were cut to k. Texts are "" without a corpus.
    """
    lists = {name: ranked.pop(id, []) for name, (_, ranked) in runs.items()}
    for name, ranked in lists.items():
        check_found(f"{runs[name].path}: query {id!r:.60}", [d for d, _ in ranked], corpus)
    united = fuse(lists)
    snippets = []
    for document, hits in united.items():
        text, source = ("", None) if corpus is None else (corpus[document], document)
        score = None if len(runs) > 1 else hits[0].score
        snippets.append(Snippet(text, document, source, None, score, hits))
    marks, missed = [d in relevant for d in united], len({*relevant} - united.keys())
    return JudgedQuery(query, snippets, marks, id=id, missed=missed, k=k and k * len(runs))


def run_name(path: str | Path) -> str:
    """Return the name of a run in hits: that of its file without folder and endings.

    >>> run_name("runs/bm25.tsv.gz")
    'bm25'
    """
    return Path(Path(path).name.removesuffix(".gz")).stem


def read_runs(folder: Path, run: Runs, k: int | None) -> dict[str, Run]:
    """Read one run or several, cut to k documents a query, by the names that they have in hits."""
    if k is not None:
        check_count(k, "k")
    if isinstance(run, Mapping):
        named = dict(run)
    else:
        paths = [run] if isinstance(run, (str, Path)) else list(run)
        named = {RETRIEVER if len(paths) == 1 else run_name(path): path for path in paths}
        if not paths or len(named) < len(paths):
            raise ValueError(say("runs of one name", run=[str(path) for path in paths]))
    return {name: Run(path, _read_run(folder, path, k)) for name, path in named.items()}


def check_found(where: str, documents: Sequence[str], corpus: Mapping[str, str] | None) -> None:
    """Raise ValueError for a document that is not in a known corpus, or occurs twice."""
    seen: set[str] = set()
    for document in documents:
        if corpus is not None and document not in corpus:
            raise ValueError(say("not in corpus", where=where, document=document))
        if document in seen:
            raise ValueError(f"{where} retrieves {document!r:.60} twice; remove a line")
        seen.add(document)


def read_texts(path: str | Path, name: str = "queries.jsonl") -> dict[str, str]:
    """Read texts by their ids: of a file in a BEIR folder, of JSON lines, or of id, tab and text.

    The text of a row with a title is title and text.
    """
    path = _existing(Path(path), name) if Path(path).is_dir() else path
    if next((line for _, line in placed_lines(path)), "").lstrip().startswith("{"):
        rows, clean = _by_id(Path(path)).items(), str.strip if name == CORPUS else str
        return {id: clean(f"{row.title} {row.text}" if row.title else row.text) for id, row in rows}
    texts: dict[str, str] = {}
    for place, line in placed_lines(path):
        id, tab, text = line.rstrip("\r\n").partition("\t")
        if not tab or id in texts:
            raise ValueError(f"{place} is {line!r:.60}; give a new id, a tab and the text")
        texts[id] = text
    return texts


def read_corpus(path: str | Path) -> dict[str, str]:
    """Read the texts of a corpus by their ids, as `read_texts` does.

    Those of JSON lines are without the blanks around them, as BEIR has them.
    """
    return read_texts(path, CORPUS)


def _by_id(path: Path) -> dict[str, _Row]:
    by_id: dict[str, _Row] = {}
    for place, row in rows(path, _Row):
        if row.id in by_id:
            raise ValueError(f"{place}: _id {row.id!r:.60} occurs twice; remove one")
        by_id[row.id] = row
    return by_id


def read_qrels(path: Path) -> dict[str, dict[str, float]]:
    """Read the score of each judged document, by query id and document id.

    Raises ValueError for a document that is judged twice for a query, in two ways.
    """
    qrels: dict[str, dict[str, float]] = defaultdict(dict)
    for place, columns in _tsv_rows(path, {3, 4}):  # TREC's second column is unused
        query_id, document, score = columns[0], *columns[-2:]
        value = _number(score, "score", place)
        if (before := qrels[query_id].setdefault(document, value)) != value:
            raise ValueError(say("judged twice", place=place, id=document, scores=(before, value)))
    return qrels


def _read_run(folder: Path, run: str | Path, k: int | None) -> Ranked:
    path = Path(run) if Path(run).exists() else _existing(folder, str(run))
    by_query: dict[str, list[tuple[float, str, float | None]]] = defaultdict(list)
    for place, columns in _tsv_rows(path, {4, 6}):
        document, rank, score = columns[2:5] if len(columns) == 6 else columns[1:4]
        value = _number(score, "score", place) if score.strip() else None
        by_query[columns[0]].append((_number(rank, "rank", place), document, value))
    for lines in by_query.values():
        lines.sort(key=lambda line: (line[0], -(line[2] or 0.0)))  # by rank, then by score
    return {id: [line[1:] for line in lines[:k]] for id, lines in by_query.items()}


def _number(text: str, column: str, place: str) -> float:
    value = number_in(text)
    if math.isnan(value):
        raise ValueError(f"{place}: {column} is {text!r:.60}; give a number")
    return value


def _existing(folder: Path, *names: str) -> Path:
    candidates = [folder / f"{name}{ending}" for name in names for ending in ("", ".gz")]
    path = next((path for path in candidates if path.exists()), None)
    if path is None:
        raise FileNotFoundError(say("no such file", files=", ".join(map(str, candidates))))
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
            raise ValueError(say("columns", place=place, n=len(columns), allowed=allowed))
        yield place, columns
