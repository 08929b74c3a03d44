"""LlamaIndex data sets: `save_json` of `EmbeddingQAFinetuneDataset` and of `LabelledRagDataset`.

Releases of LlamaIndex up to 0.14.20 write them. Neither holds what a retriever returned: both give
queries with their relevant snippets, for `judge_retriever`.
"""

from typing import Any

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.readers.documents import judged_by, warn_of_synthetic
from conformal_retrievers.data.readers.records import Record, placed, records_of


def fits(names: set[str]) -> bool:
    """Return whether fields are those of a data set."""
    return {"queries", "corpus", "relevant_docs"} <= names or "examples" in names


def read_llama_index(source: Any) -> list[JudgedQuery]:
    """Read the judged queries of a LlamaIndex data set: a file, or what it holds.

    Of an `EmbeddingQAFinetuneDataset`, queries and snippets have their ids. Of a
    `LabelledRagDataset`, the snippets are the reference contexts, without ids. Raises ValueError
    for a query without relevant documents or reference contexts, a document that is not in the
    corpus, a corpus of images, and broken fields.
    """
    return [
        query
        for record in records_of(source)
        for query in (_labelled(record) if "examples" in record.fields else _embedding(record))
    ]


def _embedding(record: Record) -> list[JudgedQuery]:
    if record.get("mode") not in (None, "text"):
        raise record.fault("mode", "give a data set of texts")
    texts, corpus = (_inside(record, name) for name in ("queries", "corpus"))
    relevant = _inside(record, "relevant_docs")
    if extra := [id for id in relevant.fields if id not in texts.fields]:
        raise ValueError(f"{relevant.place} has {extra[0]!r:.60}, which is not in queries; add it")
    queries = []
    for id in texts.fields:
        if not (ids := relevant.names(id)):
            remedy = "give the ids of its relevant documents, or leave the query out"
            raise relevant.fault(id, remedy)
        if lacking := [one for one in ids if one not in corpus.fields]:
            raise relevant.fault(id, f"{lacking[0]!r:.60} is not in the corpus, add it there")
        documents = [Snippet(corpus.text(one), id=one) for one in ids]
        queries.append(judged_by(record, texts.text(id), None, documents, id=id))
    return queries


def _inside(record: Record, name: str) -> Record:
    if not isinstance(record.get(name), dict):
        raise record.fault(name, "give an object from ids to what they name")
    return Record(f"{record.place}: {name}", record.get(name))


def _labelled(record: Record) -> list[JudgedQuery]:
    queries: list[JudgedQuery] = []
    by_llm = 0
    examples = enumerate(record.items("examples") or ())
    for one in placed((f"{record.place}: examples[{i}]", example) for i, example in examples):
        contexts = one.texts("reference_contexts")
        if not contexts:
            raise one.fault(
                "reference_contexts",
                "give the texts that answer the query, or retrieve for it and label_by_llm",
            )
        relevant = [Snippet(text) for text in contexts]
        queries.append(judged_by(one, one.text("query"), None, relevant, id=None))
        by_llm += one.mapping("query_by").get("type") == "ai"
    warn_of_synthetic(by_llm, len(queries), "query_by")
    return queries
