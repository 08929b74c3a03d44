"""Spans of OpenInference, as Phoenix and OpenTelemetry export them, with document annotations.

A span of a retriever has the query in `input.value` and what was returned in
`retrieval.documents.N.document.id`, `.content` and `.score`; attributes may be nested, or columns
"attributes.…" of a frame. An annotation judges the document at `document_position` of the span
`span_id`, by `result.score` or else `result.label`, as Phoenix's client logs them. Both may be in
one file or list.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.readers import documents as given
from conformal_retrievers.data.readers.records import Record, as_name, as_relevant, records_of
from conformal_retrievers.data.wording import say

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
    annotations = [record for record in records if record.get("document_position") is not None]
    spans = [_span(record) for record in records if record.get("document_position") is None]
    judgements = _judgements(_chosen(annotations, relevant), min_score)
    queries, left_out = list[JudgedQuery](), list[Record]()
    for span in spans:
        marks = judgements.pop(str(span.get("id")), None)
        if marks is None:
            if any(name.startswith(DOCUMENTS) for name in span.fields):
                left_out.append(span)
            continue
        if mark := _mark(span):
            raise given.refused(span.place, mark)
        documents = _documents(span)
        for i in sorted(marks.keys() ^ {*range(len(documents))})[:1]:
            which = "annotated beyond" if i in marks else "not annotated"
            raise ValueError(say(which, span=span, i=i, n=len(documents)))
        relevant_ones = [marks[i][0] for i in range(len(documents))]
        snippets, id = with_hits(documents), span.name("id")
        queries.append(given.made(span, JudgedQuery, _query(span), snippets, relevant_ones, id=id))
    if judgements:
        raise ValueError(say("span not given", id=next(iter(judgements))))
    if not queries:
        raise ValueError(say("no annotated span", record=records[0], n=len(spans)))
    why = "have no annotation, and are left out"
    given.warn_of(left_out, len(queries), "spans with documents", why)
    return queries


def _span(record: Record) -> Record:
    """Return a span's flat attributes, with its "id", "name" and "events"."""
    context = record.mapping("context")
    attributes = record.fields.get("attributes")
    flat = dict(_flat("", attributes)) if isinstance(attributes, Mapping) else {}
    for key, cell in record.fields.items():
        if key.startswith("attributes."):
            flat |= _flat(key.removeprefix("attributes."), cell)
    nested = defaultdict[str, dict[str, Any]](dict)  # Phoenix's client flattens metadata, too
    for name in [name for name in flat if "metadata." in name]:
        owner, _, key = name.partition("metadata.")
        nested[f"{owner}metadata"][key] = flat.pop(name)
    flat |= nested
    ids = (context.get("span_id"), *map(record.get, ("context.span_id", "span_id", "id")))
    flat["id"] = _hex(as_name(record, "span_id", next(filter(None, ids), None)))
    flat["name"] = record.get("name")
    flat["events"] = record.items("events") or ()
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
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _flat(f"{name}.{i}", item)
    else:
        yield name, value


def _documents(span: Record) -> list[Snippet]:
    """Return the documents of a retriever's span."""
    documents: dict[str, dict[str, Any]] = {}
    for name, value in span.fields.items():
        if name.startswith(DOCUMENTS):
            place, _, field = name.removeprefix(DOCUMENTS).partition(".")
            documents.setdefault(place, {})[field.removeprefix("document.")] = value
    if not documents:
        raise span.fault("retrieval.documents", "the span is annotated, so give its documents too")
    places = [*map(str, range(len(documents)))]
    if documents.keys() != {*places}:
        raise span.fault("retrieval.documents", f"number its {len(documents)} documents from 0")
    return [_snippet(span, i, documents[i]) for i in places]


def _snippet(span: Record, i: str, fields: Mapping[str, Any]) -> Snippet:
    document = Record(f"{span.place}: retrieval.documents.{i}.document", fields)
    metadata, content = document.mapping("metadata"), document.get("content")
    given.check_unfiltered(document.place, metadata)
    id = document.name("id")
    if not isinstance(content, str) and id is None:
        raise document.fault("content", "give the text of the document, or its id")
    text, own = content if isinstance(content, str) else "", Record(document.place, metadata)
    return given.with_metadata(own, text, id, document.number("score"))


def _mark(span: Record) -> str | None:
    """Return what says that a span is one of a conformal filter, None for another span."""
    events = [event.get("name") for event in span.get("events") if isinstance(event, Mapping)]
    metadata = span.get("metadata") if span.get("openinference.span.kind") == "RETRIEVER" else None
    name = given.RUN if given.RUN in events else span.get("name")
    own = (field for field in span.fields if field.startswith(given.SPAN))
    return given.filter_in(name, metadata) or next(own, None)


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


def _chosen(annotations: Sequence[Record], name: str | None) -> list[Record]:
    """Return the annotations of one name."""
    renamed = any("annotation_name" in record.fields for record in annotations)
    field = "annotation_name" if renamed else "name"
    names = [*dict.fromkeys(record.name(field) for record in annotations)]
    if name is None and len(names) > 1:
        raise ValueError(say("annotations of two names", record=annotations[0], names=names))
    return [record for record in annotations if name is None or record.name(field) == name]


def _judgements(
    annotations: Iterable[Record], min_score: float | None
) -> dict[str, dict[int, tuple[bool, bool]]]:
    """Return whether each document is relevant, and by a person, by span and by its place."""
    judgements: dict[str, dict[int, tuple[bool, bool]]] = {}
    for record in sorted(annotations, key=lambda record: record.get("annotator_kind") != "HUMAN"):
        position = record.number("document_position")
        span = _hex(record.get("span_id") or record.get("context.span_id"))
        if position is None or position % 1 or not isinstance(span, str):
            raise record.fault("document_position", "give a whole number, and a span_id beside it")
        result = Record(record.place, {**record.fields, **record.mapping("result")})
        name = next((key for key in ("score", "label") if result.get(key) is not None), "score")
        relevant = as_relevant(f"{record.place}: {name}", result.get(name), min_score)
        person = record.get("annotator_kind") == "HUMAN"
        first = judgements.setdefault(span, {}).setdefault(int(position), (relevant, person))
        if first == (not relevant, person):
            raise record.fault("document_position", say("contradiction", span=span))
    return judgements
