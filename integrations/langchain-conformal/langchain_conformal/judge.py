"""Queries, judged by their user or an LLM, as a LangChain retriever returns their documents."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
from typing_extensions import Unpack

from conformal_retrievers import LLM, JudgedQuery, Scorer
from conformal_retrievers.data.hits import RETRIEVER
from conformal_retrievers.data.matching import JudgeOptions, Returned, retrieve_and_judge
from conformal_retrievers.data.retrieval import Described, Hybrid, Retrieval
from conformal_retrievers.data.union import check_asked, failure, judging
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.labels import Labelled, label_questions
from conformal_retrievers.labels.questions import QuestionOptions
from conformal_retrievers.llm import wire
from conformal_retrievers.scoring import QueryScorer, retrievers_of
from langchain_conformal.around import with_scores
from langchain_conformal.documents import to_snippets
from langchain_conformal.hybrid import HybridRetriever
from langchain_conformal.wording import say

# What stores call a condition on metadata, such as a tenant's.
FILTERS = ("filter", "filters", "expr", "pre_filter", "where", "where_document")


def judge_retriever(
    retriever: RetrieverLike,
    judged: Iterable[JudgedQuery] | Iterable[str],
    **options: Unpack[JudgeOptions],
) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: the guarantee is about
    what it returns. A document is recognised by its id, or by its text if either side has no id or
    its id was not judged for the query, as in a store that assigns ids of its own. Unknown
    documents count as irrelevant; relevant ones that are not returned are counted in `missed`.
    Relevant ids that nothing retrieved has are reported with those that are most like them.
    Snippets have the hits of the retriever, or of each one in a `HybridRetriever`: the rank, and
    the score where a vector store returns it, or metadata["relevance_score"] has it.

    Parameters
    ----------
    retriever
        The unfiltered retriever: calibrated on what it kept, a filter loses more every time.
    judged
        The judged queries, or plain questions, for a person or an LLM to judge what is returned.
    name
        The retriever's name in the calibration, by default its class, or store and model.
    key
        The field of the metadata, such as "source", "page" or "url", that has the relevant ids, as
        str: all of its chunks are relevant, and `missed` counts documents of which none came back.
        "evidence" takes a chunk for relevant that has half of a piece of evidence, or is half
        evidence, and counts the other pieces as missed.
    max_concurrency
        The largest number of queries that run at a time.
    split
        "sentences", or a function from a text to ranges, returns the sentences of the documents. A
        sentence is relevant if it has `evidence` of its query: characters of a document, by its id,
        or of metadata["source"], where metadata["start_index"] says what was cut from where.

    Raises
    ------
    TypeError
        For anything but a retriever, and judged queries or questions.
    ValueError
        For a retriever that is filtered already; for a key that no metadata have; if nothing that
        was retrieved has any of ten relevant ids or more. With `split` or key="evidence", for a
        query with relevant documents and no evidence, or evidence that does not fit what is
        retrieved.
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
    retriever: RetrieverLike, questions: Iterable[str], llm: LLM, **options: Unpack[QuestionOptions]
) -> Labelled:
    """Retrieve for each question, and let an LLM judge each of the documents.

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
        The judge, such as `as_llm(chat_model)`. It is asked once about each document of a question.
    options
        `name` and `max_concurrency`, as in `judge_retriever`. `answers`, the reference answer to
        each question, None where there is none: documents are judged by whether they support it,
        and by whether they answer the question where it is None. `split`, `prompt`, `concurrency`
        and `cache`, as in `label_by_llm`: with a cache, an interrupted or repeated run asks only
        for what it lacks. `progress`, by default True, prints the number of calls before the first,
        and shows a progress bar, which needs the extra `cli` of `conformal-retrievers`; otherwise
        the number is logged. If more calls are needed than `most_calls`, ValueError is raised with
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


def retrieve(retriever: RetrieverLike, questions: Sequence[str], **options: Any) -> Returned:
    """Return the snippets for each question, with their metadata, and what was asked for them.

    Options and errors are those of `documents_for`.
    """
    retrieved, asked = documents_for(retriever, questions, **options)
    snippets = [[*zip(to_snippets(some), map(_fields, some), strict=True)] for some in retrieved]
    return snippets, asked


def documents_for(
    retriever: RetrieverLike,
    questions: Sequence[str],
    name: str | None = None,
    max_concurrency: int | None = None,
) -> tuple[list[list[Document]], Retrieval]:
    """Return the documents for each question, and what was asked for them.

    Raises TypeError for anything but a retriever, ValueError for a filtered one, and RuntimeError,
    naming the query, if one of the retrievers fails.
    """
    check_retriever(retriever)
    check_unfiltered(retriever)
    with judging():
        retrieved: list[Any] = with_scores(retriever).batch(
            list(questions), {"max_concurrency": max_concurrency}, return_exceptions=True
        )
    for text, outcome in zip(questions, retrieved, strict=True):
        if isinstance(outcome, Exception):
            raise failure(text, outcome) from outcome
    # A function may return a generator.
    retrieved = [[*given] if isinstance(given, Iterator) else given for given in retrieved]
    return retrieved, retrieval_of(retriever).returned(retrieved, name)


def _fields(document: Document) -> dict[str, Any]:
    return {"id": document.id, **(document.metadata or {})}


def check_retriever(retriever: object) -> None:
    """Raise TypeError for anything but a retriever."""
    if not isinstance(retriever, Runnable):
        raise TypeError(say("no retriever", kind=type(retriever)))


def check_unfiltered(retriever: RetrieverLike) -> None:
    """Raise ValueError for a retriever that filters already."""
    within, _ = unbound(retriever)
    for inner in (*parts_of(within).values(), *_held(within)):
        check_unfiltered(inner)
    compressor = getattr(within, "base_compressor", None)
    for part in (within, compressor, *getattr(compressor, "transformers", ())):
        if isinstance(getattr(part, "filter", None), RetrievalFilter):
            raise ValueError(say("filters already", kind=type(within)))


def check_hits(scorer: Scorer | QueryScorer, retriever: RetrieverLike) -> None:
    """Raise ValueError if a retriever is known not to give hits that a scorer reads."""
    within, _ = unbound(retriever)
    if isinstance(within, HybridRetriever | VectorStoreRetriever):
        check_asked(retrievers_of(scorer), [*parts_of(within)] or [RETRIEVER])


def retrieval_of(asked: RetrieverLike) -> Retrieval:
    """Return what a retriever is, and how many documents it is asked for, None if unknown.

    A vector store is named with its model and how it searches, another retriever by its class and
    the retrievers or the store in it, as in "TavilySearchRetriever()", and a function by its own
    name.
    """
    within, bound = unbound(asked)
    if parts := parts_of(within):
        hybrid = Hybrid({name: retrieval_of(part) for name, part in parts.items()})
        return Retrieval(hybrid, hybrid.k)
    settings = {**(getattr(within, "search_kwargs", None) or {}), **bound}
    k = bound.get("k", getattr(within, "k", settings.get("k")))
    store, of_store = getattr(within, "vectorstore", None), ""
    if isinstance(store, VectorStore):
        how = getattr(within, "search_type", "similarity")
        of_store = f"{type(store).__name__}({', '.join([_model(store), how])})"
    if isinstance(within, VectorStoreRetriever):
        name = of_store
        if k is None:  # the default of its store
            known = signature(within.vectorstore.similarity_search).parameters.get("k")
            k = None if known is None else known.default
    else:
        name = f"{type(within).__name__}({_inside(within, of_store)})"
    filtered = any(map(settings.get, FILTERS))
    own = Described(name=name, framework="LangChain", filtered=filtered)
    retriever = own if isinstance(within, BaseRetriever) else within.get_name()
    return Retrieval(retriever, k if type(k) is int and k > 0 else None)


def _model(store: VectorStore) -> str:
    try:
        model = store.embeddings
    except Exception:  # as Qdrant's raises where vectors are sparse alone
        return "?"
    return wire.portable(wire.model_name(model) or type(model).__name__)


def _inside(retriever: object, store: str) -> str:
    """Return what a retriever is made of: a store, others with their depth, how they are merged."""
    # By name, as this is asked at each query: the fields of others may hold a whole corpus.
    known = map(retrieval_of, _held(retriever))
    parts = [*(f"{of.retriever}, k = {of.k or '?'}" for of in known), *[store] * bool(store)]
    if compressor := getattr(retriever, "base_compressor", None):
        parts.append(type(compressor).__name__)
    weights = getattr(retriever, "weights", None)
    return "; ".join([*parts, *([f"weights {weights}"] if weights and parts else [])])


def _held(retriever: object) -> list[RetrieverLike]:
    """Return the retrievers that another one asks, its fallbacks, or the steps of a sequence."""
    names = ("retriever", "base_retriever", "retrievers", "steps", "runnable", "fallbacks")
    held = [getattr(retriever, name, None) for name in names]
    lists = [part if isinstance(part, list | tuple) else [part] for part in held]
    return [part for parts in lists for part in parts if isinstance(part, Runnable)]


def parts_of(retriever: RetrieverLike) -> Mapping[str, RetrieverLike]:
    """Return the retrievers in a `HybridRetriever`, by name; none for another retriever."""
    return retriever.retrievers if isinstance(retriever, HybridRetriever) else {}


def unbound(retriever: RetrieverLike) -> tuple[RetrieverLike, Mapping[str, Any]]:
    """Return the retriever inside retries, bindings and configurations, and its bound arguments."""
    within: Any = retriever
    config, bound = RunnableConfig(), dict[str, Any]()
    while isinstance(within, RunnableBindingBase | DynamicRunnable):
        if isinstance(within, RunnableBindingBase):
            config, bound = merge_configs(within.config, config), {**within.kwargs, **bound}
            within = within.bound
        else:
            within, config = within.prepare(config)
    if parts := parts_of(within):  # which are configured as it is
        own = RunnableConfig(configurable=config.get("configurable", {}))
        parts = {k: RunnableBinding(bound=r, kwargs=bound, config=own) for k, r in parts.items()}
        within = within.model_copy(update={"retrievers": parts})
    return within, bound
