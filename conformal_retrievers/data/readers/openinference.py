"""Spans of OpenInference, as Phoenix and OpenTelemetry export them, with document annotations.

A span of a retriever has the query in `input.value` and what was returned in
`retrieval.documents.N.document.id`, `.content` and `.score`; attributes may be nested, or columns
"attributes.…" of a frame. An annotation judges the document at `document_position` of the span
`span_id`, by `result.score` or else `result.label`, as Phoenix's client logs them. Both may be in
one file or list; annotations may also be in a span's field `document_annotations`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.readers.documents import (
    RUN,
    SPAN,
    check_unfiltered,
    filter_in,
    ids_above,
    made,
    refused,
    warn,
)
from conformal_retrievers.data.readers.records import Record, as_name, as_relevant, records_of

INPUT, DOCUMENTS = "input.value", "retrieval.documents."
FIELDS = ("query", "query_bundle.query_str", "query_str", "input", "question")


def fits(names: set[str]) -> bool:
    """Return whether fields are those of spans or of document annotations."""
    spans = any(name == "attributes" or name.startswith("attributes.") for name in names)
    return spans or ("document_position" in names and "document" not in names)


def read_openinference(
    source: Any, *, relevant: str | None = None, min_score: float | None = None
) -> list[JudgedQuery]:
    """Read the judged queries of spans with document annotations: a file, a frame, or a list.

    The id of a query is that of its span. A person's annotation counts before one of an LLM or of
    code. What was not retrieved is unknown, and so is `missed`. Spans of retrievers without any
    annotation are left out with a warning. `relevant` is the name of the annotations that say what
    is relevant, if there are several, and `min_score` the score from which on a document is, where
    scores are not 1 and 0.

    Raises ValueError for documents that a conformal filter kept; for a span with some documents
    annotated and others not; where no document is annotated; for annotations of several names, or
    that contradict each other.
    """
    records = records_of(source)
    given = [one for one in records if one.get("document_position") is not None]
    spans = [_span(one) for one in records if one.get("document_position") is None]
    given += [one for span in spans for one in _inside(span)]
    judgements = _judgements(_chosen(given, relevant), min_score)
    filtered = ids_above((s.get("id"), s.get("parent_id"), _mark(s) is not None) for s in spans)
    queries: list[JudgedQuery] = []
    left_out: list[Record] = []
    for span in spans:
        marks = judgements.pop(str(span.get("id")), None)
        if marks is None:
            left_out += [span] if any(name.startswith(DOCUMENTS) for name in span.fields) else []
            continue
        if mark := _mark(span) or (RUN if span.get("id") in filtered else None):
            raise refused(span.place, mark)
        documents = _documents(span)
        if extra := [i for i in marks if not 0 <= i < len(documents)]:
            raise ValueError(
                f"{span.place}: document_position {extra[0]} is annotated, but the span has "
                f"{len(documents)} documents; positions count from 0"
            )
        if missing := [i for i in range(len(documents)) if i not in marks]:
            raise ValueError(
                f"{span.place}: document_position {missing[0]} has no annotation, and others have "
                "one; annotate each document of a span"
            )
        found = [marks[i] for i in range(len(documents))]
        snippets, id = with_hits(documents), span.name("id")
        queries.append(made(span, JudgedQuery, _query(span), snippets, found, id=id))
    if judgements:
        raise ValueError(
            f"the annotated span {next(iter(judgements))!r:.60} is not given; give the spans too, "
            "from client.spans.get_spans"
        )
    if not queries:
        raise ValueError(
            f"{records[0].place}: none of {len(spans)} spans has documents that are annotated. "
            "Annotate the documents of retriever spans, and give the annotations too"
        )
    if left_out:
        warn(
            f"{len(left_out)} of {len(left_out) + len(queries)} spans with documents, such as "
            f"{left_out[0].place}, have no annotation, and are left out"
        )
    return queries


def _span(record: Record) -> Record:
    """Return a span's flat attributes, with its "id", "parent_id", "name" and "events"."""
    context = record.mapping("context")
    attributes = record.fields.get("attributes")
    flat = dict(_flat("", attributes)) if isinstance(attributes, Mapping) else {}
    for key, cell in record.fields.items():
        if key.startswith("attributes."):
            flat |= _flat(key.removeprefix("attributes."), cell)
    ids = (context.get("span_id"), *map(record.get, ("context.span_id", "span_id", "id")))
    flat["id"] = _hex(as_name(record, "span_id", next(filter(None, ids), None)))
    flat["parent_id"] = _hex(record.name("parent_id"))
    flat["name"] = record.get("name")
    flat["events"] = record.items("events") or ()
    flat["annotations"] = record.items("document_annotations") or ()
    return Record(record.place, flat)


def _hex(id: Any) -> Any:
    return id.removeprefix("0x") if isinstance(id, str) else id  # as OpenTelemetry writes it


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects and lists, with the dotted names that lead to them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) and name in ("retrieval", "retrieval.documents"):
        value = Record(name, {name: value}).items(name) or value
    if isinstance(value, Mapping) and not name.endswith("metadata"):
        for key, one in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), one)
    elif isinstance(value, (list, tuple)):
        for i, one in enumerate(value):
            yield from _flat(f"{name}.{i}", one)
    else:
        yield name, value


def _documents(span: Record) -> list[Snippet]:
    """Return the documents of a retriever's span."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in span.fields.items():
        if name.startswith(DOCUMENTS):
            place, _, field = name.removeprefix(DOCUMENTS).partition(".")
            if not place.isdecimal() or len(place) > 6:
                raise span.fault(name, "give a number after retrieval.documents")
            found.setdefault(int(place), {})[field.removeprefix("document.")] = value
    if not found:
        raise span.fault("retrieval.documents", "the span is annotated, so give its documents too")
    if [*sorted(found)] != [*range(len(found))]:
        raise span.fault(
            "retrieval.documents", f"it has {len(found)} documents and lacks one before the last"
        )
    ids = dict(enumerate(_ids(span, len(found))))
    return [_snippet(span, i, {"id": ids.get(i), **found[i]}) for i in range(len(found))]


def _snippet(span: Record, i: int, fields: Mapping[str, Any]) -> Snippet:
    document = Record(f"{span.place}: retrieval.documents.{i}.document", fields)
    metadata = document.mapping("metadata")
    check_unfiltered(document.place, metadata)
    own, start = Record(document.place, metadata), metadata.get("start_index")
    content = document.get("content")
    if not isinstance(content, str) and document.name("id") is None:
        raise document.fault("content", "give the text of the document, or its id")
    return Snippet(
        content if isinstance(content, str) else "",
        id=document.name("id"),
        document=own.name("source"),
        position=start if type(start) is int else None,
        retrieval_score=document.number("score"),
    )


def _mark(span: Record) -> str | None:
    """Return what says that a span is one of a conformal filter, None for another span."""
    events = [one.get("name") for one in span.get("events") if isinstance(one, Mapping)]
    metadata = span.get("metadata") if span.get("openinference.span.kind") == "RETRIEVER" else None
    if found := filter_in(RUN if RUN in events else span.get("name"), metadata):
        return found
    return next((name for name in span.fields if name.startswith(SPAN)), None)


def _query(span: Record) -> str:
    """Return the text of the query; an input of JSON holds it as a field."""
    text = span.text(INPUT, "give the text of the query")
    if "json" not in str(span.get("input.mime_type")):
        return text
    fields = dict(_flat("", span.mapping(INPUT)))
    texts = [fields[name] for name in FIELDS if isinstance(fields.get(name), str)]
    if not texts:
        raise span.fault(INPUT, f"give the text of the query, or JSON with {FIELDS[0]!r}")
    return str(texts[0])


def _ids(span: Record, n: int) -> list[Any]:
    """Return the ids of n documents of LangChain, which are only in the output; [] for others."""
    output = span.get("output.value")
    if not isinstance(output, str) or not output.startswith('{"documents"'):
        return []
    documents = span.mapping("output.value").get("documents")
    if not isinstance(documents, list) or len(documents) != n:
        return []
    return [one.get("id") if isinstance(one, Mapping) else None for one in documents]


def _inside(span: Record) -> Iterator[Record]:
    """Yield the annotations in a span's own field."""
    for one in span.items("annotations") or ():
        if not isinstance(one, Mapping):
            raise span.fault("annotations", "give a list of objects")
        yield Record(span.place, {"span_id": span.get("id"), **one})


def _chosen(given: Sequence[Record], name: str | None) -> list[Record]:
    """Return the annotations of one name."""
    field = "annotation_name" if any("annotation_name" in one.fields for one in given) else "name"
    names = [*dict.fromkeys(one.name(field) for one in given)]
    if name is None and len(names) > 1:
        raise ValueError(
            f"{given[0].place}: annotations have the names {names[0]!r:.60} and {names[1]!r:.60}; "
            "choose the one that says what is relevant, read_openinference(…, relevant=NAME)"
        )
    return [one for one in given if name is None or one.name(field) == name]


def _judgements(
    annotations: Iterable[Record], min_score: float | None
) -> dict[str, dict[int, bool]]:
    """Return the judgement of each document, by its place, of each span, by its id."""
    found: dict[str, dict[int, tuple[bool, bool]]] = {}
    for one in annotations:
        position = one.number("document_position")
        span = _hex(one.get("span_id") or one.get("context.span_id"))
        if position is None or position % 1 or not isinstance(span, str):
            raise one.fault("document_position", "give a whole number, and a span_id beside it")
        result = Record(one.place, {**one.fields, **one.mapping("result")})
        name = next((key for key in ("score", "label") if result.get(key) is not None), "score")
        relevant = as_relevant(f"{one.place}: {name}", result.get(name), min_score)
        person = one.get("annotator_kind") == "HUMAN"
        before = found.setdefault(span, {}).get(int(position))
        if before is not None and before[1] == person and before[0] != relevant:
            raise one.fault(
                "document_position",
                f"annotations of this document of span {span!r:.60} contradict each other, remove "
                "one",
            )
        if before is None or person:
            found[span][int(position)] = (relevant, person)
    return {
        span: {position: relevant for position, (relevant, _) in marks.items()}
        for span, marks in found.items()
    }
