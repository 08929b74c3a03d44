"""Retrieved documents of other tools as snippets, and judgements by comparing two lists of them.

A document is judged relevant if a reference document has its id or, where one has no id, its text.
What a conformal filter kept is refused: it has lost relevant documents, and a filter that is
calibrated on it loses as many again.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.readers.records import Record, literal_in
from conformal_retrievers.data.snippets import as_position
from conformal_retrievers.data.wording import say

MARKS = ("conformal_score", "conformal_p_value", "conformal_ranges")
RUN = "conformal_filter"  # the name of the run, the event and the span of a filter
RETRIEVER = "ConformalRetriever"  # that of a retriever that filters
SPAN = "conformal."  # what attributes of a filter begin with


def refused(place: str, mark: str) -> ValueError:
    """Return the error for documents that a conformal filter kept."""
    return ValueError(say("filtered documents", place=place, mark=mark))


def check_unfiltered(place: str, fields: Iterable[str]) -> None:
    """Raise ValueError if fields are those of a document that a conformal filter kept."""
    names = [*fields]
    for mark in names:
        prefix = mark.removesuffix("p_value")  # a ConformalRetriever may have another one
        if mark in MARKS or (prefix != mark and f"{prefix}score" in names):
            raise refused(place, mark)


def filter_in(name: Any, of_retriever: Any) -> str | None:
    """Return what says that a run or span, by its name, is that of a conformal filter, or None.

    LangChain names the class of a retriever in its metadata, `of_retriever`.
    """
    if name in (RUN, RETRIEVER):
        return str(name)
    metadata = literal_in(of_retriever) if isinstance(of_retriever, str) else of_retriever
    named = isinstance(metadata, Mapping) and metadata.get("ls_retriever_name") == "conformal"
    return RETRIEVER if named else None


def snippet_of(record: Record, name: str, given: Any) -> Snippet:
    """Return a document as a snippet: a text, or LangChain's Document as JSON has it.

    `document`, `position` and `retrieval_score` are those of the metadata's "source",
    "start_index" and "relevance_score", as in LangChain. Raises ValueError for anything else, and
    for what a conformal filter kept.
    """
    if isinstance(given, str):
        return Snippet(given)
    if isinstance(given, Mapping) and isinstance(given.get("kwargs"), Mapping):
        given = given["kwargs"]  # of an object that LangChain serialized
    fields = dict(given) if isinstance(given, Mapping) else {}
    texts = [fields[key] for key in ("page_content", "text", "content") if key in fields]
    if not texts or not isinstance(texts[0], str):
        raise ValueError(say("neither text nor document", record=record, name=name, given=given))
    metadata = fields.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, Mapping) else {}
    check_unfiltered(record.place, metadata)
    own = Record(f"{record.place}: {name}", {**metadata, "id": fields.get("id")})
    return with_metadata(own, texts[0], own.name("id"), own.number("relevance_score"))


def with_metadata(metadata: Record, text: str, id: str | None, score: float | None) -> Snippet:
    """Return a document as a snippet, whose metadata may have its source and its place there."""
    position = as_position(metadata.get("start_index"))
    return Snippet(text, id, metadata.name("source"), position, score)


def judged_by(
    record: Record,
    query: str,
    retrieved: Sequence[Snippet] | None,
    relevant: Sequence[Snippet],
    *,
    id: str | None,
) -> JudgedQuery:
    """Return a query with what was retrieved for it, judged by the documents that answer it.

    The order of what was retrieved is that of the hits, and reference documents that are not there
    are counted in `missed`. Without retrieved documents the reference documents are the snippets,
    or the query has only their ids, as those of `JudgedQuery.from_ids`. All have an id, a text or
    both. Ids that repeat in a query are those of the documents that its snippets were cut from.
    """
    if retrieved is None and not any(s.text for s in relevant):
        return made(record, JudgedQuery.from_ids, query, [s.id or "" for s in relevant], id=id)
    snippets = [*dict.fromkeys(relevant)] if retrieved is None else with_hits(retrieved)
    by_id = all(s.id is not None for s in (*snippets, *relevant))
    if not by_id and any(s.id is not None and not s.text for s in (*snippets, *relevant)):
        raise ValueError(say("ids or texts", record=record))
    keys = [s.id if by_id else s.text.strip() for s in snippets]
    wanted = {s.id if by_id else s.text.strip() for s in relevant} - {""}
    missed = None if retrieved is None else len(wanted.difference(keys))
    if by_id and len({*keys}) < len(keys):  # they name the documents that chunks were cut from
        snippets = [replace(s, id=None, document=s.id) for s in snippets]
    marks = [key in wanted for key in keys]
    return made(record, JudgedQuery, query, snippets, marks, id=id, missed=missed)


def made(
    record: Record, make: Callable[..., JudgedQuery], *values: object, **fields: object
) -> JudgedQuery:
    """Return the query that `make` makes, with the record's group; its errors name the place."""
    try:
        return make(*values, **fields, group=record.name("group"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{record.place}: {error}") from None


def warn_of(left_out: Sequence[Record], n: int, items: str, why: str) -> None:
    """Warn of records that are left out beside n that are not."""
    if left_out:
        which = f"{items}, such as {left_out[0].place}, {why}"
        warnings.warn(f"{len(left_out)} of {len(left_out) + n} {which}", stacklevel=3)


def warn_of_missed(queries: Sequence[JudgedQuery]) -> None:
    """Warn if more than half of the references, of ten or more, are nothing that was retrieved."""
    missed = sum(query.missed or 0 for query in queries)
    n = missed + sum(sum(query.relevant) for query in queries)
    if n >= 10 and missed > n / 2:
        warnings.warn(say("references missed", missed=missed, n=n), stacklevel=3)


def warn(message: str) -> None:
    """Warn at the line that called a reader."""
    warnings.warn(message, stacklevel=3)


def with_ids(
    record: Record, texts: Sequence[str] | None, ids: Sequence[str | None] | None, what: str
) -> list[Snippet] | None:
    """Return snippets of texts, of ids, or of both in the same order; None without either."""
    if texts is None and ids is None:
        return None
    texts, ids = texts or [""] * len(ids or ()), ids or [None] * len(texts or ())
    if len(texts) != len(ids):
        raise ValueError(say("id each", record=record, what=what, n=len(texts), n_ids=len(ids)))
    return [*map(Snippet, texts, ids)]
