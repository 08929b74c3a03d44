"""One function that reads judged queries from what other tools write, whatever it is.

A folder is BEIR. A file or a table is what its first line, or the names of its fields, say.
"""

import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from conformal_retrievers.data import files
from conformal_retrievers.data.beir import Runs, read_beir
from conformal_retrievers.data.copies import without_copies
from conformal_retrievers.data.jsonl import judged_query, read_jsonl
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.readers import langsmith, openinference, ragas, table, trec
from conformal_retrievers.data.readers.records import Record, columns, first_line, records_of
from conformal_retrievers.data.wording import say


class Format(NamedTuple):
    """A format of records."""

    name: str
    fits: Callable[[set[str]], bool]  # recognises it by the names of its fields
    reader: Callable[..., list[JudgedQuery]]  # its parameters are the options that it takes


def _fits(names: Collection[str]) -> bool:
    """Return whether the names are those of judged queries, and not of a table of snippets."""
    unretrieved = "relevant" not in names and ("relevant_ids" in names or "evidence" in names)
    return "query" in names and ("snippets" in names or unretrieved)


FORMATS = (
    Format("judged queries", _fits, lambda given: [judged_query(r.place, r.known) for r in given]),
    Format("RAGAS", ragas.fits, ragas.read_ragas),
    Format("LangSmith", langsmith.fits, langsmith.read_langsmith),
    Format("OpenInference", openinference.fits, openinference.read_openinference),
    Format("a table", table.fits, table.read_frame),
)
CALLED = {  # as others call the columns of a table
    **dict.fromkeys(("question", "user_input"), "query"),
    **dict.fromkeys(("label", "relevance"), "relevant"),
    **dict.fromkeys(("passage", "content", "context", "page_content"), "text"),
    **dict.fromkeys(("doc_id", "document_id", "docid"), "id"),
    **{name: name for name in ("query", "relevant", "text", "id", "snippets")},
}
OF_RUNS = ("run", "k", "min_score")  # the options of BEIR folders and qrels


def read(
    source: Any,
    run: Runs | None = None,
    *,
    k: int | None = None,
    min_score: float | None = None,
    query: str | None = None,
    relevant: str | None = None,
) -> list[JudgedQuery]:
    """Read judged queries from what other tools write, and recognise what it is by its content.

    A folder is BEIR; lines "qid 0 docid relevance" are TREC qrels. Parquet is as `write_parquet`
    has it. Of JSON lines, a JSON file, a CSV file, a pandas frame or a list of objects, the names
    of all fields count: "query" and "snippets", "relevant_ids" or "evidence" are judged queries
    as in `iter_jsonl`; "user_input", RAGAS; "inputs" and "outputs", LangSmith; "attributes" or
    "document_position", OpenInference; "query" with "id" or "text", a table with a row for each
    snippet. What holds relevant documents and nothing retrieved gives queries whose snippets are
    all relevant, for `judge_retriever`. Copies of a query are left out with a warning, and near
    copies warned of.

    Parameters
    ----------
    source
        A path, a frame, or a list of objects of these tools.
    run
        What a retriever returned for BEIR and TREC, one file or several, as in `read_beir`.
    k
        How many snippets to keep of each query and run; all by default.
    min_score
        The score from which on a document is relevant, where scores are not 1 and 0.
    query, relevant
        The fields with the query and with what says what is relevant, of LangSmith and of tables;
        `relevant` is also the name of OpenInference annotations.

    Raises
    ------
    ValueError
        For an unknown format, for an option that the format has not, for data in which nothing is
        judged, or that a conformal filter has judged; naming file, line and field for broken data.
    OSError
        If a file cannot be read.
    """
    given = {"run": run, "k": k, "min_score": min_score, "query": query, "relevant": relevant}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    kept, copies, near = without_copies(_read(source, options))
    for told in (copies and f"{copies}. Copies are left out, and the first stays", near):
        if told:
            warnings.warn(told, stacklevel=2)
    return kept


def _read(source: Any, options: dict[str, Any]) -> list[JudgedQuery]:
    if isinstance(source, (str, Path)):
        if Path(source).is_dir():
            _check_options("a BEIR folder", options, OF_RUNS)
            if "run" not in options:
                raise ValueError(f"{source} is a folder; give the run of a retriever: run=FILE")
            return read_beir(source, **options)
        if _is_parquet(source):
            _check_options("Parquet of judged queries", options, ())
            from conformal_retrievers.data.parquet import iter_parquet

            return list(iter_parquet(source))
        line = first_line(source)
        if trec.fits(line):
            _check_options("qrels", options, OF_RUNS)
            return trec.read_trec(source, **options)
        if _is_ours(line) or (not line and ".jsonl" in Path(source).suffixes):
            _check_options("JSON lines of judged queries", options, ())
            return read_jsonl(source)
    records = records_of(source)
    kind = _recognised(records, options)
    _check_options(kind.name, options, signature(kind.reader).parameters)
    return kind.reader(records, **options)


def takes_runs(path: str | Path) -> bool:
    """Return whether a path is what `read` takes runs for: a BEIR folder, or qrels."""
    return Path(path).is_dir() or (not _is_parquet(path) and trec.fits(first_line(path)))


def _is_parquet(path: str | Path) -> bool:
    if Path(path).is_fifo():  # it can be read once, and this would be the first time
        raise ValueError(f"{path} is a pipe; write it to a file, and give that")
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        files.cannot_read("file", path, error)


def _recognised(records: Sequence[Record], options: Mapping[str, Any]) -> Format:
    query = options.get("query")
    names = columns(records)
    asked = names | {"query"} if query in names else names
    for kind in FORMATS:
        if kind.fits(asked):
            return kind
    place = records[0].place
    if str(records[0].get("format")).startswith("conformal-retrievers/"):
        raise ValueError(say("own file", place=place))
    if "query" in asked and options.get("relevant", "relevant") in names:
        raise ValueError(say("no column of snippets", place=place))
    new = {name: CALLED.get(name.lower(), name) for name in sorted(names)}
    near = ", ".join(f"{own} for {name}" for name, own in new.items() if own not in names)
    fields = f"{', '.join([*new][:12]) or 'none':.200}"
    if near and any(kind.fits({*new.values()}) for kind in FORMATS):
        raise ValueError(say("other names", place=place, fields=fields, near=near))
    raise ValueError(say("unknown format", place=place, fields=fields))


def _check_options(name: str, options: Mapping[str, Any], allowed: Collection[str]) -> None:
    for option, value in options.items():
        if option not in allowed:
            raise ValueError(say("not taken", option=option, value=value, name=name))


def _is_ours(line: str) -> bool:
    """Return whether a line is a judged query as `write_jsonl` writes it."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and _fits(fields)
