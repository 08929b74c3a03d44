"""Several LlamaIndex retrievers as one, whose nodes have the hits of each."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers.data.hits import fusion
from conformal_retrievers.data.retrieval import Described, Hybrid, Retrieval
from conformal_retrievers.data.union import Item, OnError, aask, ask, check_retrievers, unite
from conformal_retrievers.llm import wire
from llama_index.postprocessor.conformal.nodes import NodeWithHits, text_of


class HybridRetriever(BaseRetriever):
    """Asks several retrievers at once, and returns what they find in the order of rank fusion.

    A node is recognised by its id, or else by its text. It comes as a `NodeWithHits`: `hits` has
    the rank and score of each retriever that found it, and `score` is their fusion.

    >>> HybridRetriever({"dense": index.as_retriever(), "bm25": bm25})  # doctest: +SKIP

    Parameters
    ----------
    retrievers
        The retrievers by name. Keep the names: the calibration has them.
    on_error
        "raise", or "skip": a retriever that fails is left out, and named in each node's `failed`;
        the error is logged, and raised if the others find nothing. A score that reads its hits
        keeps all nodes of the query.
    options
        Those of LlamaIndex's `BaseRetriever`.

    Raises
    ------
    TypeError, ValueError
        For retrievers or names that are invalid, and for another `on_error`.
    """

    def __init__(
        self,
        retrievers: Mapping[str, BaseRetriever],
        *,
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        example = "index.as_retriever(similarity_top_k=20)"
        check_retrievers(retrievers, on_error, BaseRetriever, example)
        super().__init__(**options)
        self.retrievers, self.on_error = dict(retrievers), on_error
        self._logged: set[object] = set()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        calls = {  # each with its own bundle: a retriever writes the query's embedding into it
            name: partial(retriever.retrieve, replace(query_bundle))
            for name, retriever in self.retrievers.items()
        }
        return self._united(ask(calls, self.on_error, self._logged))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        calls = {
            name: retriever.aretrieve(replace(query_bundle))
            if type(retriever)._aretrieve is not BaseRetriever._aretrieve
            else asyncio.to_thread(retriever.retrieve, replace(query_bundle))  # it would block
            for name, retriever in self.retrievers.items()
        }
        return self._united(await aask(calls, self.on_error, self._logged))

    def _united(self, found: Mapping[str, list[NodeWithScore]]) -> list[NodeWithScore]:
        asked, retriever = tuple(self.retrievers), hybrid_of(self)
        failed = tuple(name for name in asked if name not in found)
        lists = {
            name: [Item(node.node_id, text_of(node.node), node.score) for node in nodes]
            for name, nodes in found.items()
        }
        united = unite(lists)
        columns = zip(united, united.values(), fusion(united.values()), strict=True)
        return [
            NodeWithHits(
                node=found[name][place].node,
                score=score,
                hits=hits,
                failed=failed,
                asked=asked,
                retriever=retriever,
            )
            for (name, place), hits, score in columns
        ]


def hybrid_of(retriever: HybridRetriever) -> Hybrid:
    """Return what its retrievers are, and how many nodes each is asked for."""
    return Hybrid({name: retrieval_of(part) for name, part in retriever.retrievers.items()})


def retrieval_of(retriever: BaseRetriever) -> Retrieval:
    """Return what the retriever is, and how many nodes it is asked for, None if unknown."""
    if isinstance(retriever, HybridRetriever):
        hybrid = hybrid_of(retriever)
        return Retrieval(hybrid, hybrid.k)
    store = getattr(retriever, "_vector_store", None)
    model = wire.portable(wire.model_name(getattr(retriever, "_embed_model", None)) or "")
    how = (getattr(retriever, "_vector_store_query_mode", None) or "").replace("default", "")
    inside = ", ".join(part for part in (store and type(store).__name__, model, how) if part)
    name, k = f"{type(retriever).__name__}({inside})", getattr(retriever, "similarity_top_k", None)
    filtered = bool(getattr(getattr(retriever, "_filters", None), "filters", None))
    described = Described(name=name, framework="LlamaIndex", filtered=filtered)
    return Retrieval(described, k if type(k) is int and k > 0 else None)
