"""Judged queries in files of JSON lines: one query per line, compressed if the name ends in .gz."""

import gc
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from conformal_retrievers.data import files
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.wording import say

T = TypeVar("T", bound=BaseModel)


class Row(BaseModel):
    """A JSON object whose fields are known: an unknown one is more often misspelt than harmless."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)


class EvidenceRow(Row):
    """Characters of a document that answer a query."""

    document: str
    start: Any = None  # JudgedQuery checks both
    end: Any = None
    text: str | None = None  # in place of both


def _row_of(field: Field[Any]) -> Any:
    """Return the type and the default of a field in a line; JudgedQuery checks all but texts."""
    kind = TYPES[field.name] if TYPES[field.name] in (str, str | None) else Any
    return kind, ... if field.default is MISSING else field.default


TYPES = get_type_hints(JudgedQuery)
_FIELDS = {f.name: _row_of(f) for f in fields(JudgedQuery)}
del _FIELDS["relevant"], _FIELDS["snippets"]  # these are last, with their judgements
_FIELDS["evidence"] = (tuple[EvidenceRow, ...] | None, ())
_FIELDS["relevant_ids"] = (tuple[str, ...] | None, ())  # in place of snippets
_FIELDS["snippets"] = (list[Snippet] | None, None)  # required without relevant_ids
# A line of a file: one judged query.
QueryRow: Any = create_model("QueryRow", __base__=Row, **{"id": _FIELDS["id"], **_FIELDS})


def read_jsonl(path: str | Path) -> list[JudgedQuery]:
    """Read judged queries from a file of JSON lines: the list of what `iter_jsonl` yields."""
    collects = gc.isenabled()
    gc.disable()  # it looks for cycles, of which there are none, in all that was read, many times
    try:
        return list(iter_jsonl(path))
    finally:
        if collects:
            gc.enable()


def iter_jsonl(path: str | Path) -> Iterator[JudgedQuery]:
    """Yield judged queries from a file of JSON lines, one query per line, as they are read.

    A line is {"id", "query", "group", "missed", "retriever", "k", "split", "answerable",
    "evidence": [{"document", "start", "end"}], "snippets": [{"id", "text", "relevant", "document",
    "position", "retrieval_score", "hits": [{"retriever", "rank", "score"}]}]}; "query", "snippets",
    "text" and "relevant" are required, of a hit all but "score", and all of evidence, where "text"
    may stand in place of "start" and "end". "missed" is the number of known relevant snippets that
    were not retrieved: 0 if there are none, absent if that is unknown. "retriever" is a name that
    its user chose, or {"name", "framework", "filtered"} as "LangChain" or "LlamaIndex" has it, the
    last true with a metadata filter, or, of several at once, {name: {"retriever", "k"}}. "split"
    names what cut the snippets into sentences. "answerable" is false if nothing in the corpus
    answers the query. "relevant_ids", or "evidence", stands in place of "snippets" before anything
    is retrieved, see `JudgedQuery.from_ids`. Ranks count from 0, the best; the order of the
    snippets is not taken for ranks. Blank lines are skipped. Raises ValueError naming the file, the
    line and the field.
    """
    for place, line in placed_lines(path):
        yield judged_query(place, parsed_json(place, line))


def judged_query(place: str, value: Any) -> JudgedQuery:
    """Return the judged query that a JSON value is; raise ValueError, naming its place.

    The judgements of its snippets are taken apart first: a `Snippet` has none.
    """
    rows = value.get("snippets") if isinstance(value, dict) else None
    relevant: list[Any] = []
    if isinstance(rows, list):
        rows = [dict(row) if isinstance(row, dict) else row for row in rows]
        relevant = [row.pop("relevant", MISSING) for row in rows if isinstance(row, dict)]
        value = {**value, "snippets": rows}
    row = row_of(place, value, QueryRow)
    if MISSING in relevant:
        i = relevant.index(MISSING)
        raise ValueError(f"{place}: snippets.{i}.relevant is missing; give true or false")
    if row.snippets is None and not (row.relevant_ids or row.evidence):
        what = "snippets, relevant_ids and evidence"
        raise ValueError(f"{place}: {what} are missing or empty; give one")
    given = {name: value for name, value in row if value is not None}  # null is unknown
    given["evidence"] = [tuple(v for _, v in e if v is not None) for e in row.evidence or ()]
    try:
        return JudgedQuery(relevant=relevant, **{"snippets": (), **given})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from None


def write_jsonl(queries: Iterable[JudgedQuery], path: str | Path) -> None:
    """Write judged queries as JSON lines that `read_jsonl` reads back; embeddings are left out.

    Raises ValueError for a score that is not finite, which JSON does not have, and OSError if the
    file cannot be written. An old file then stays as it was.
    """
    text = "".join([_line(query) for query in all_of(JudgedQuery, queries, "queries")]).encode()
    zipped = Path(path).suffix == ".gz"
    files.write_whole(path, gzip.compress(text) if zipped else text, what="judged queries")


def _line(query: JudgedQuery) -> str:
    given: dict[str, Any] = {field.name: getattr(query, field.name) for field in fields(query)}
    given["evidence"] = [piece._asdict() for piece in query.evidence]
    relevant, names = given.pop("relevant"), [f.name for f in fields(Snippet) if f.compare]
    given["snippets"] = [{name: getattr(s, name) for name in names} for s in query.snippets]
    row = row_of(query.name, given, QueryRow)  # of numpy's numbers, Python's
    line = row.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    line["snippets"] = [
        {"relevant": mark, **written, **({"hits": hits_of(s.hits)} if s.hits else {})}
        for mark, written, s in zip(relevant, line["snippets"], row.snippets, strict=True)
    ]
    if query.relevant_ids:
        del line["snippets"]
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n"


def hits_of(hits: tuple[Hit, ...]) -> list[dict[str, Any]]:
    """Return hits as JSON objects."""
    named = [hit._asdict().items() for hit in hits]
    return [{name: value for name, value in hit if value is not None} for hit in named]


def rows(path: str | Path, model: type[T]) -> Iterator[tuple[str, T]]:
    """Yield the lines of a file of JSON lines as objects of a pydantic model, after their places.

    Raises ValueError, naming file, line and field, for a line that is not such an object, or that
    has a field twice; OSError if the file cannot be read.
    """
    for place, line in placed_lines(path):
        yield place, row_of(place, parsed_json(place, line), model)


def row_of(place: str, value: Any, model: type[T]) -> T:
    """Return a JSON value as an object of a pydantic model; raise ValueError as `rows`."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{place}: {files.explain(error)}") from None


def parsed_json(place: str, text: str) -> Any:
    """Return the value of a text of JSON; raise ValueError, naming its place, for another text."""
    try:
        return json.loads(text, object_pairs_hook=files.without_repetition)
    except (ValueError, RecursionError) as error:
        remedy = "give one object a line, or export the file again"
        raise ValueError(f"{place}: it is not JSON ({error}); {remedy}") from None


def placed_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a UTF-8 text file, .gz or not, that are not blank, after their places.

    A place is such as "judged.jsonl, line 3". Raises ValueError, naming the file, if it is not such
    text, and OSError if it cannot be read.
    """
    with opened(path) as file:
        parts = (line.splitlines() if b"\r" in line else (line,) for line in file)
        for number, line in enumerate(chain.from_iterable(parts), start=1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if text.strip():
                yield f"{path}, line {number}", text


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file of text, unpacked if its name ends in .gz.

    Raises ValueError, naming it, if it is not complete UTF-8 text, and OSError if it cannot be
    read.
    """
    opener = gzip.open if Path(path).suffix == ".gz" else open
    try:
        with opener(path, "rb") as raw, io.BufferedReader(raw, 1 << 20) as file:
            yield file
    except (*files.DAMAGED, UnicodeDecodeError) as error:  # one of these is an OSError
        raise ValueError(say("not complete", path=path, error=error)) from None
    except OSError as error:
        files.cannot_read("file", path, error)
