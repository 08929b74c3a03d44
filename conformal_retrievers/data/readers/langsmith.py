"""LangSmith: examples of data sets, runs, and feedback.

What `list_examples`, `list_runs` and `list_feedback` return. Documents that a run returned are
judged by feedback on it, `value={id or place of a document: 1 or 0, …}`, for all documents; or else
by the outputs of the example that the run refers to. Examples without runs give queries for
`judge_retriever`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.readers import documents as given
from conformal_retrievers.data.readers.documents import judged_by, made, snippet_of
from conformal_retrievers.data.readers.records import Record, as_relevant, columns, records_of
from conformal_retrievers.data.wording import say

QUERIES = ("query", "question", "input", "user_input")
DOCUMENTS = ("documents", "contexts", "output", "retrieved_contexts", "context")
RELEVANT = ("relevant_ids", "reference_contexts", "documents", "contexts")


def fits(names: set[str]) -> bool:
    """Return whether fields are those of examples, runs or feedback."""
    return {"inputs", "outputs"} <= names or {"run_id", "key"} <= names


def read_langsmith(
    source: Any, *, query: str | None = None, relevant: str | None = None
) -> list[JudgedQuery]:
    """Read the judged queries of a LangSmith export: a file, a frame, or a list of its objects.

    The source has examples; or runs, with feedback on them or the examples that they refer to.
    Documents are recognised by id, or else by text. Relevant ones that a run did not return are
    counted in `missed`. Runs that nothing judges are left out with a warning.

    `query` is the field of the inputs with the text of the query: by default "query", "question",
    or the only text. `relevant` is the field of an example's outputs with the relevant documents,
    as ids if its name ends in "id" or "ids", or else as texts or documents: by default one such as
    "relevant_ids", "reference_contexts" or "documents". Of feedback, it is the key.

    Raises ValueError for runs of a conformal filter, or documents that it kept; where
    nothing is known to be relevant, or it is ambiguous what is; for feedback that leaves out a
    document. Warns if more than half of ten references or more were not returned.
    """
    records = records_of(source)
    # By values: a frame of several kinds has the columns of all.
    kinds: dict[str, list[Record]] = {"run": [], "feedback": [], "example": []}
    for record in records:
        names = columns([record])
        kind = "feedback" if names >= {"run_id", "key"} else "example"
        kinds["run" if "run_type" in names else kind].append(record)
    runs, feedback, examples = kinds.values()
    if not runs and feedback:
        raise feedback[0].fault("run_id", "give the runs of the feedback too, from list_runs")
    if not runs:
        return [
            judged_by(
                example,
                _query(example, query),
                None,
                _relevant(example, relevant),
                id=example.name("id"),
            )
            for example in examples
        ]
    references = {id: example for example in examples if (id := example.name("id")) is not None}
    of_run = _by_run(feedback, relevant)
    queries, left_out = [], []
    for run in runs:
        marks = of_run.get(run.name("id"))
        example = references.get(run.name("reference_example_id") or "")
        documents = _documents(run) if marks or example else None
        if documents is None:
            if run.get("run_type") == "retriever":
                left_out.append(run)
            continue
        if mark := _filter_in(run):
            raise given.refused(run.place, mark)
        text = _query(run, query)
        if marks:
            queries.append(_marked(run, text, documents, marks))
        elif example is not None:
            known = _relevant(example, relevant)
            queries.append(judged_by(run, text, documents, known, id=run.name("id")))
    if not queries:
        raise ValueError(say("no judged run", run=runs[0], n=len(runs)))
    given.warn_of(left_out, len(queries), "runs of retrievers", "are not judged, and left out")
    given.warn_of_missed(queries)
    return queries


def _filter_in(run: Record) -> str | None:
    extra = run.mapping("extra") if run.get("run_type") == "retriever" else {}
    return given.filter_in(run.get("name"), extra.get("metadata"))


def _by_run(feedback: Iterable[Record], key: str | None) -> dict[str | None, Record]:
    """Return the feedback on the documents of each run."""
    of_run: dict[str | None, Record] = {}
    for record in feedback:
        if key is not None and record.get("key") != key:
            continue
        if not isinstance(record.get("value"), Mapping):
            continue  # on the run as a whole
        before = of_run.setdefault(record.name("run_id"), record)
        if before is not record:
            keys = [feedback.get("key") for feedback in (before, record)]
            raise ValueError(say("two feedbacks", record=record, keys=keys))
    return of_run


def _marked(run: Record, query: str, documents: Sequence[Snippet], feedback: Record) -> JudgedQuery:
    """Return a run's documents as feedback on them judges each."""
    marks, relevant = feedback.mapping("value"), []
    for i, document in enumerate(documents):
        name = document.id if document.id in marks else str(i)
        if name not in marks:
            raise feedback.fault("value", f"give 1 or 0 for documents[{i}] of the run too")
        where = f"{feedback.place}: value[{name!r:.60}]"
        relevant.append(as_relevant(where, marks.pop(name), None))
    if marks:
        raise feedback.fault("value", f"{next(iter(marks))!r:.60} is not a document of the run")
    return made(run, JudgedQuery, query, with_hits(documents), relevant, id=run.name("id"))


def _query(record: Record, name: str | None) -> str:
    inputs = record.mapping("inputs")
    texts = [key for key, value in inputs.items() if isinstance(value, str) and value.strip()]
    names = [name] if name is not None else [key for key in QUERIES if key in texts] or texts
    if len(names) != 1 or names[0] not in texts:
        raise ValueError(say("no field of the query", record=record, inputs=[*inputs]))
    return str(inputs[names[0]])


def _relevant(record: Record, name: str | None) -> list[Snippet]:
    """Return the relevant documents of an example."""
    outputs = record.mapping("outputs")
    fields = Record(f"{record.place}: outputs", outputs)
    names = [key for key in (RELEVANT if name is None else (name,)) if fields.get(key) is not None]
    if len(names) != 1:
        which = f"both {names[0]} and {names[1]}" if names else f"the fields {[*outputs]!s:.200}"
        raise ValueError(say("no field of relevant ones", fields=fields, which=which))
    if names[0].endswith(("id", "ids")):
        return [Snippet("", id=id) for id in fields.names(names[0]) or ()]
    return [snippet_of(fields, names[0], document) for document in fields.items(names[0]) or ()]


def _documents(run: Record) -> list[Snippet] | None:
    """Return the documents that a run returned, None if it returned none."""
    fields = Record(f"{run.place}: outputs", run.mapping("outputs"))
    name = next((key for key in DOCUMENTS if fields.get(key) is not None), "")
    if not name or (isinstance(text := fields.get(name), str) and text.lstrip()[:1] != "["):
        return None  # such as the answer of a chain
    return [snippet_of(fields, name, document) for document in fields.items(name) or []]
