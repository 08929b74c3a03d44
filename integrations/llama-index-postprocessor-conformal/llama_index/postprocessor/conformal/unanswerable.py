"""Judged queries as a LlamaIndex retriever returns them if nothing answers them."""

from collections.abc import Iterable
from copy import copy
from functools import partial

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import QueryFusionRetriever
from typing_extensions import Unpack

from conformal_retrievers import JudgedQuery
from conformal_retrievers.data import unanswerable
from conformal_retrievers.data.matching import JudgeOptions
from llama_index.postprocessor.conformal.hybrid import HybridRetriever
from llama_index.postprocessor.conformal.judge import judge_retriever
from llama_index.postprocessor.conformal.wording import say


def without_answers(
    retriever: BaseRetriever,
    judged: Iterable[JudgedQuery],
    *,
    deeper: BaseRetriever | None = None,
    **options: Unpack[JudgeOptions],
) -> list[JudgedQuery]:
    """Return judged queries as the retriever returns them if nothing answers them.

    The retriever is asked as it is, and deeper. What is relevant is taken out of the deeper lists,
    and others with the text of it; then they are cut to the length that they have as it is. Ranks
    have no gap, scores are unchanged, and `answerable` is False: calibrate a gate on the result,
    beside `judge_retriever(retriever, judged)`, which has the same name and k.

    The score of a node must not depend on the other nodes: fused and scaled scores show that others
    were there. A store whose own search fuses is not recognised.

    Parameters
    ----------
    retriever, judged
        As in `judge_retriever`. All relevant nodes of a query must be among its snippets.
    deeper
        The same retriever, set to return more nodes. It is needed only if the retriever has no
        `similarity_top_k`.
    options
        `name`, `key`, `max_concurrency` and `split`, as in `judge_retriever`.

    Raises
    ------
    TypeError
        For anything but a retriever and judged queries.
    ValueError
        As in `judge_retriever`; for a `QueryFusionRetriever`, also inside another retriever; for
        one whose depth cannot be set, without `deeper`; and for a query with missed snippets, which
        cannot be recognised.

    Warns
    -----
    UserWarning
        If some lists are shorter, as those of a small corpus are.
    """
    judge = partial(judge_retriever, **options)
    return unanswerable.judged_without_answers(retriever, judged, judge, _fused, _deepened, deeper)


def _fused(retriever: object) -> str | None:
    """Return the name of a class in a retriever that fuses lists."""
    if isinstance(retriever, QueryFusionRetriever):
        return type(retriever).__name__
    parts = unanswerable.parts_of(retriever, BaseRetriever)
    return next((name for part in parts if (name := _fused(part))), None)


def _deepened(retriever: BaseRetriever, more: int) -> BaseRetriever:
    """Return a copy of a retriever that is asked for so many more nodes.

    Raises ValueError if its depth cannot be set.
    """
    twin = copy(retriever)
    if isinstance(twin, HybridRetriever):
        twin.retrievers = {name: _deepened(part, more) for name, part in twin.retrievers.items()}
        return twin
    if isinstance(k := getattr(twin, "similarity_top_k", None), int):
        twin.similarity_top_k = k + more  # type: ignore[attr-defined]
        return twin
    raise ValueError(say("no depth", kind=type(retriever)))
