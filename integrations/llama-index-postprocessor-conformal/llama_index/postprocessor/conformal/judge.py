"""Queries, judged by their user or an LLM, as a LlamaIndex retriever returns their nodes."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore
from typing_extensions import Unpack

from conformal_retrievers import LLM, JudgedQuery
from conformal_retrievers.data.matching import JudgeOptions, Returned, retrieve_and_judge
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.data.union import failure, judging
from conformal_retrievers.labels import Labelled, label_questions
from conformal_retrievers.labels.questions import QuestionOptions
from llama_index.postprocessor.conformal.hybrid import retrieval_of
from llama_index.postprocessor.conformal.nodes import to_snippets
from llama_index.postprocessor.conformal.wording import say


def judge_retriever(
    retriever: BaseRetriever,
    judged: Iterable[JudgedQuery] | Iterable[str],
    **options: Unpack[JudgeOptions],
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
        of which none came back. "evidence" takes a node for relevant that has half of a piece of
        evidence, or is half evidence, and counts the other pieces as missed.
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
        If nothing retrieved has more than half of ten relevant ids or more, those of a third of the
        queries, or any of fewer than ten; if one differs in case or punctuation only; and if an id
        is that of several snippets, so that `missed` counts documents.
    """
    return retrieve_and_judge(judged, partial(retrieve, retriever), **options)


def label_retriever(
    retriever: BaseRetriever, questions: Iterable[str], llm: LLM, **options: Unpack[QuestionOptions]
) -> Labelled:
    """Retrieve for each question, and let an LLM judge each of the nodes.

    Calibrate on `judged` of the result, with its `labels`, which say where the judgements come
    from: `calibrate(labelled.judged, alpha=0.1, labels=labelled.labels)`. The guarantee is then
    about what the LLM calls relevant. The queries have their questions as ids, and the snippets
    their hits, as those of `judge_retriever`.

    Parameters
    ----------
    retriever
        The unfiltered retriever, as in `judge_retriever`.
    questions
        The texts of different questions, as users ask them.
    llm
        The judge, such as `as_llm(model)`. It is asked once about each node of a question.
    options
        `name` and `max_concurrency`, as in `judge_retriever`. `answers`, the reference answer to
        each question, None where there is none: nodes are judged by whether they support it, and
        by whether they answer the question where it is None. `split`, `prompt`, `concurrency` and
        `cache`, as in `label_by_llm`: with a cache, an interrupted or repeated run asks only for
        what it lacks. `progress`, by default True, prints the number of calls before the first, and
        shows a progress bar, which needs the extra `cli` of `conformal-retrievers`; otherwise the
        number is logged. If more calls are needed than `most_calls`, ValueError is raised with
        their number, and none is made: give 0 to learn it.

    Raises
    ------
    TypeError
        For anything but a retriever, texts and an LLM.
    ValueError
        For a question that is blank or occurs twice, another number of answers, more calls than
        `most_calls`, and as in `judge_retriever` and `label_by_llm`.
    """
    return label_questions(questions, partial(retrieve, retriever), llm, **options)


def retrieve(retriever: BaseRetriever, questions: Sequence[str], **options: Any) -> Returned:
    """Return the snippets for each question, with their metadata, and what was asked for them.

    Options and errors are those of `nodes_for`.
    """
    retrieved, asked = nodes_for(retriever, questions, **options)
    snippets = [[*zip(to_snippets(nodes), map(_fields, nodes), strict=True)] for nodes in retrieved]
    return snippets, asked


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
        raise TypeError(say("no retriever", kind=type(retriever)))

    def ask(text: str) -> list[NodeWithScore]:
        try:
            return retriever.retrieve(text)
        except Exception as error:
            raise failure(text, error) from error

    with judging(), ThreadPoolExecutor(max_concurrency) as threads:
        # Each in a copy of the context, which holds LlamaIndex's current span.
        running = [threads.submit(copy_context().run, ask, text) for text in questions]
        retrieved = [future.result() for future in running]
    return retrieved, retrieval_of(retriever).returned(retrieved, name)


def _fields(found: NodeWithScore) -> dict[str, Any]:
    node = found.node
    return {"id": node.node_id, "ref_doc_id": node.ref_doc_id, **node.metadata}
