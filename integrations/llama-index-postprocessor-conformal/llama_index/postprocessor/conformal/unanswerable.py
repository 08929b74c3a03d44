"""Judged queries as a LlamaIndex retriever returns them if nothing answers them."""

from collections.abc import Iterable
from copy import copy

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import QueryFusionRetriever

from conformal_retrievers import JudgedQuery
from conformal_retrievers.data import unanswerable
from conformal_retrievers.data.retrieved import queries_to_judge
from conformal_retrievers.data.sentences import Split
from llama_index.postprocessor.conformal.hybrid import HybridRetriever
from llama_index.postprocessor.conformal.judge import judge_retriever


def without_answers(
    retriever: BaseRetriever,
    judged: Iterable[JudgedQuery],
    *,
    deeper: BaseRetriever | None = None,
    name: str | None = None,
    key: str | None = None,
    max_concurrency: int | None = None,
    split: Split | None = None,
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
    name, key, max_concurrency, split
        As in `judge_retriever`.

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

    def judge(one: BaseRetriever) -> list[JudgedQuery]:
        return judge_retriever(
            one, queries, name=name, key=key, max_concurrency=max_concurrency, split=split
        )

    if fused := _fused_in(retriever):
        raise ValueError(unanswerable.FUSED.format(fused))
    queries = queries_to_judge(judged)
    retrieved = judge(retriever)
    if deeper is not None:
        deep = judge(deeper)
        return unanswerable.without_answers(queries, retrieved, lambda more: deep)
    return unanswerable.without_answers(
        queries, retrieved, lambda more: judge(_deepened(retriever, more))
    )


def _fused_in(retriever: object) -> str | None:
    """Return the name of a class in a retriever that fuses lists."""
    if isinstance(retriever, QueryFusionRetriever):
        return type(retriever).__name__
    for field in getattr(retriever, "__dict__", {}).values():
        parts = [*field.values()] if isinstance(field, dict) else field
        for part in parts if isinstance(parts, list | tuple) else [parts]:
            if isinstance(part, BaseRetriever) and (found := _fused_in(part)):
                return found
    return None


def _deepened(retriever: BaseRetriever, more: int) -> BaseRetriever:
    """Return a copy of a retriever that is asked for so many more nodes.

    Raises ValueError if its depth cannot be set.
    """
    twin = copy(retriever)
    if isinstance(twin, HybridRetriever):
        twin.retrievers = {name: _deepened(part, more) for name, part in twin.retrievers.items()}
        return twin
    for name in ("similarity_top_k", "_similarity_top_k"):
        if isinstance(k := getattr(twin, name, None), int):
            setattr(twin, name, k + more)
            return twin
    raise ValueError(
        f"retriever is a {type(retriever).__name__}, whose depth cannot be set; give the same one, "
        "which returns more nodes, as deeper="
    )
