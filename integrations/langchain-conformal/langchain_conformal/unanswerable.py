"""Judged queries as a LangChain retriever returns them if nothing answers them."""

from collections.abc import Iterable
from functools import partial

from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from typing_extensions import Unpack

from conformal_retrievers import JudgedQuery
from conformal_retrievers.data import unanswerable
from conformal_retrievers.data.matching import JudgeOptions
from langchain_conformal.hybrid import HybridRetriever
from langchain_conformal.judge import judge_retriever, retrieval_of
from langchain_conformal.wording import say

FUSES = "EnsembleRetriever"  # of LangChain, in packages that need not be installed


def without_answers(
    retriever: RetrieverLike,
    judged: Iterable[JudgedQuery],
    *,
    deeper: RetrieverLike | None = None,
    **options: Unpack[JudgeOptions],
) -> list[JudgedQuery]:
    """Return judged queries as the retriever returns them if nothing answers them.

    The retriever is asked as it is, and deeper. What is relevant is taken out of the deeper lists,
    and others with the text of it; then they are cut to the length that they have as it is. Ranks
    have no gap, scores are unchanged, and `answerable` is False: calibrate a gate on the result,
    beside `judge_retriever(retriever, judged)`, which has its name and k.

    The score of a document must not depend on the other documents: fused and scaled scores show
    that others were there. A store whose own search fuses is not recognised.

    Parameters
    ----------
    retriever, judged
        As in `judge_retriever`. All relevant documents of a query must be among its snippets.
    deeper
        The same retriever, set to return more documents. It is needed only if the depth is not `k`
        or search_kwargs["k"] of the retriever itself, as inside retries, bindings and
        configurations.
    options
        `name`, `key`, `max_concurrency` and `split`, as in `judge_retriever`.

    Raises
    ------
    TypeError
        For anything but a retriever and judged queries.
    ValueError
        As in `judge_retriever`; for an `EnsembleRetriever`, also inside another retriever; for one
        whose depth cannot be set, without `deeper`; and for a query with missed snippets, which
        cannot be recognised.

    Warns
    -----
    UserWarning
        If some lists are shorter, as those of a small corpus are.
    """
    judge = partial(judge_retriever, **options)
    return unanswerable.judged_without_answers(retriever, judged, judge, _fused, _deepened, deeper)


def _fused(runnable: object, config: RunnableConfig | None = None) -> str | None:
    """Return the name of a class in a retriever, as it is configured, that fuses lists."""
    if isinstance(runnable, DynamicRunnable):
        return _fused(*runnable.prepare(config))
    if isinstance(runnable, RunnableBindingBase):
        config = merge_configs(runnable.config, config)
    if any(kind.__name__ == FUSES for kind in type(runnable).__mro__):
        return type(runnable).__name__
    parts = unanswerable.parts_of(runnable, Runnable)
    return next((name for part in parts if (name := _fused(part, config))), None)


def _deepened(retriever: RetrieverLike, more: int) -> RetrieverLike:
    """Return a copy of a retriever that is asked for so many more documents.

    Raises ValueError if its depth cannot be set.
    """
    if isinstance(retriever, HybridRetriever):
        deep = {name: _deepened(part, more) for name, part in retriever.retrievers.items()}
        return retriever.model_copy(update={"retrievers": deep})
    known = retrieval_of(retriever)
    if known.k is None or not isinstance(retriever, BaseRetriever):
        raise ValueError(say("no depth", retriever=known.retriever))
    settings, depth = getattr(retriever, "search_kwargs", None), {"k": known.k + more}
    fields = depth if settings is None else {"search_kwargs": {**settings, **depth}}
    return retriever.model_copy(update=fields)
