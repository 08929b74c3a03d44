"""RAGAS evaluation sets: `EvaluationDataset.to_jsonl`, `to_csv`, and rows of its tables.

A sample's `retrieved_contexts` are judged by its `reference_contexts`: by
`retrieved_context_ids` and `reference_context_ids` if it has both, else by equal texts. Their order
is that of the retriever.
"""

import re
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.readers.documents import judged_by, warn, warn_of_missed, with_ids
from conformal_retrievers.data.readers.records import Record, records_of
from conformal_retrievers.data.wording import say

HOP = re.compile(r"<\d+-hop>\n\n")  # what the test set generator puts before a context


def fits(names: set[str]) -> bool:
    """Return whether fields are those of samples."""
    return "user_input" in names


def read_ragas(source: Any) -> list[JudgedQuery]:
    """Read the judged queries of a RAGAS evaluation set: a file, a frame, or a list of samples.

    References that were not retrieved are counted in `missed`. A set without retrieved contexts
    gives queries for `judge_retriever`, whose snippets are the references. A field "id" or "group"
    is that of the query.

    Raises ValueError for a sample of several turns, one without a reference, or with broken fields;
    if only some samples have retrieved contexts; if no retrieved context of the set is a reference.
    Warns if more than half of ten references or more were not retrieved.
    """
    records = records_of(source)
    queries = [_judged(record) for record in records]
    by_llm = sum(record.get("synthesizer_name") is not None for record in records)
    if by_llm:
        warn(say("questions of an LLM", n=by_llm, total=len(records)))
    retrieved = [query.missed is not None for query in queries]
    if any(retrieved) and not all(retrieved):
        raise records[retrieved.index(False)].fault("retrieved_contexts", say("contexts of some"))
    if any(retrieved) and not any(any(query.relevant) for query in queries):
        raise ValueError(say("no context is a reference", record=records[0], n=len(queries)))
    warn_of_missed(queries)
    return queries


def _judged(record: Record) -> JudgedQuery:
    query = record.text("user_input", "give the text of one question; several turns are not read")
    references = record.texts("reference_contexts")
    relevant = with_ids(
        record,
        references and [HOP.sub("", text, count=1) for text in references],
        record.names("reference_context_ids"),
        "reference",
    )
    contexts, ids = record.texts("retrieved_contexts"), record.names("retrieved_context_ids")
    retrieved = with_ids(record, contexts, ids, "retrieved")
    if not relevant and (retrieved is None or relevant is None):
        raise ValueError(say("no reference", record=record))
    return judged_by(record, query, retrieved, relevant, id=record.name("id"))
