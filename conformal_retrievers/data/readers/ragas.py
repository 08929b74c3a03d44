"""RAGAS evaluation sets: `EvaluationDataset.to_jsonl`, `to_csv`, and rows of its tables.

A sample's `retrieved_contexts` are judged by its `reference_contexts`: by
`retrieved_context_ids` and `reference_context_ids` if it has both, else by equal texts. Their order
is that of the retriever.
"""

import re
from typing import Any

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.readers.documents import judged_by, warn, with_ids
from conformal_retrievers.data.readers.records import Record, records_of

HOP = re.compile(r"<\d+-hop>\n\n")  # what the test set generator puts before a context
FIELDS = ("reference_contexts", "reference_context_ids")


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
    """
    records = records_of(source)
    queries = [_judged(record) for record in records]
    by_llm = sum(record.get("synthesizer_name") is not None for record in records)
    if by_llm:
        warn(
            f"{by_llm} of {len(records)} questions are an LLM's, as synthesizer_name says. Have "
            "the statement say so: calibrate(judged, labels={'questions': 'synthetic'}), or "
            "--synthetic"
        )
    retrieved = [query.missed is not None for query in queries]
    if any(retrieved) and not all(retrieved):
        record = records[retrieved.index(False)]
        raise record.fault(
            "retrieved_contexts", "give those of each sample, an empty list for none, or of none"
        )
    if any(retrieved) and not any(any(query.relevant) for query in queries):
        raise ValueError(
            f"{records[0].place}: no retrieved context of the {len(queries)} samples is a "
            "reference context, so that their chunks seem to differ. Give retrieved_context_ids "
            "and reference_context_ids, or the references alone to judge_retriever"
        )
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
        raise ValueError(
            f"{record.place}: {' and '.join(FIELDS)} are missing, so that nothing is known to be "
            "relevant. Give one of them, or label the retrieved texts with label_by_llm"
        )
    return judged_by(record, query, retrieved, relevant, id=record.name("id"))
