"""Judged queries as a LlamaIndex retriever returns their nodes."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore

from conformal_retrievers import JudgedQuery
from conformal_retrievers.data.matching import Returned, retrieve_and_judge
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.data.union import failure, judging
from llama_index.postprocessor.conformal.hybrid import retrieval_of
from llama_index.postprocessor.conformal.nodes import to_snippets


def judge_retriever(
    retriever: BaseRetriever,
    judged: Iterable[JudgedQuery] | Iterable[str],
    *,
    name: str | None = None,
    key: str | None = None,
    max_concurrency: int | None = None,
    split: Split | None = None,
) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: the guarantee is about
    what it returns. A node is recognised by its id, or by its text if the judged snippet has no id
    or the node's was not judged for the query, as in a store that assigns ids of its own. Unknown
    nodes count as irrelevant; relevant ones that are not returned are counted in `missed`. Relevant
    ids that nothing retrieved has are reported with those that are most like them. Snippets have
    the hits of the retriever, or of each one in a `HybridRetriever`: rank and score.

    Parameters
    ----------
    retriever
        The retriever. Engines and tools are refused, because they may be filtered already:
        calibrated on what it kept, a filter loses more each time.
    judged
        The judged queries, or plain questions, for a person or an LLM to judge what is returned.
    name
        The retriever's name in the calibration, by default its class, store and embedding model.
    key
        The field of the metadata, such as "file_name", "page_label" or "url", or "ref_doc_id", that
        has the relevant ids, as str: all of its nodes are relevant, and `missed` counts documents
        of which none came back. "text" recognises nodes by text alone. "evidence" takes a node for
        relevant that has half of a piece of evidence, or is half evidence, and counts the other
        pieces as missed.
    max_concurrency
        The largest number of queries that run at a time, in threads.
    split
        "sentences", or a function from a text to ranges, returns the sentences of the nodes. A
        sentence is relevant if it has `evidence` of its query: characters of a node, by its id, or
        of its source, by `ref_doc_id`, where `start_char_idx` says what was cut from where.

    Raises
    ------
    TypeError
        For anything but a retriever, and judged queries or questions.
    ValueError
        For a key that no metadata have; if nothing that was retrieved has any of ten relevant ids
        or more. With `split` or key="evidence", for a query with relevant nodes and no evidence, or
        evidence that does not fit what is retrieved.
    RuntimeError
        If a retriever fails, also one that a `HybridRetriever` would skip; it names the query.

    Warns
    -----
    UserWarning
        If nothing retrieved has more than half of ten relevant ids or more, or any of fewer; and if
        an id is that of several snippets, so that `missed` counts documents.
    """
    ask = partial(retrieve, retriever, name=name, max_concurrency=max_concurrency)
    return retrieve_and_judge(judged, ask, key=key, split=split)


def retrieve(retriever: BaseRetriever, questions: Sequence[str], **options: Any) -> Returned:
    """Return the snippets for each question, with their metadata, and what was asked for them.

    Options and errors are those of `nodes_for`.
    """
    retrieved, asked = nodes_for(retriever, questions, **options)
    found = [[*zip(to_snippets(nodes), map(_fields, nodes), strict=True)] for nodes in retrieved]
    return found, asked


def nodes_for(
    retriever: BaseRetriever,
    questions: Sequence[str],
    name: str | None = None,
    max_concurrency: int | None = None,
) -> tuple[list[list[NodeWithScore]], Retrieval]:
    """Return the nodes for each question, and what was asked for them.

    Raises TypeError for anything but a retriever, and RuntimeError, naming the query, if one of
    the retrievers fails.
    """
    if not isinstance(retriever, BaseRetriever):
        raise TypeError(
            f"retriever is a {type(retriever).__name__}; give the retriever that the engine or "
            "tool asks, such as index.as_retriever(similarity_top_k=20)"
        )

    def ask(text: str) -> list[NodeWithScore]:
        try:
            return retriever.retrieve(text)
        except Exception as error:
            raise failure(text, error) from error

    with judging(), ThreadPoolExecutor(max_concurrency) as threads:
        # Each in a copy of the context, which holds LlamaIndex's current span.
        running = [threads.submit(copy_context().run, ask, text) for text in questions]
        retrieved = [one.result() for one in running]
    asked = retrieval_of(retriever)
    # A node that stands for several is returned as those: more than were asked for.
    k = None if asked.k is None else max([asked.k, *map(len, retrieved)])
    return retrieved, Retrieval(name or asked.retriever, k)


def _fields(found: NodeWithScore) -> dict[str, Any]:
    node = found.node
    return {"id": node.node_id, "ref_doc_id": node.ref_doc_id, **node.metadata}
