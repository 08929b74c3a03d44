"""Nodes to snippets with hits, and a filter's decision about snippets back to nodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, TextNode
from numpy.typing import NDArray

from conformal_retrievers import Filtered, Snippet
from conformal_retrievers.data import Hit
from conformal_retrievers.data.hits import RETRIEVER, HitColumns, hit_columns, listed
from conformal_retrievers.data.models import with_fields
from conformal_retrievers.data.retrieval import Hybrid, Retrieval, difference
from conformal_retrievers.data.snippets import Retrieved, column
from conformal_retrievers.data.union import check_asked
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.scoring import retrievers_of
from conformal_retrievers.sentence_filter import FilteredSentences
from llama_index.postprocessor.conformal.wording import say

KEPT = "conformal_kept"  # in the metadata of nodes in shadow


class Named:
    """A class whose name in LlamaIndex is its own."""

    @classmethod
    def class_name(cls) -> str:
        """Return the class's name in LlamaIndex."""
        return cls.__name__


class NodeWithHits(Named, NodeWithScore):
    """A node with what several retrievers know of it; its score is their fusion.

    Nothing is written into its metadata, because they are part of the prompt in LlamaIndex.
    """

    hits: tuple[Hit, ...]  # of each retriever that found it
    failed: tuple[str, ...] = ()  # retrievers that were left out
    asked: tuple[str, ...] = ()  # all that were asked; none if unknown
    retriever: Hybrid | None = None  # what they are


def as_nodes(nodes: Any) -> list[NodeWithScore]:
    """Return the nodes as a list; raise TypeError for anything but NodeWithScore objects."""
    listed = list(nodes) if isinstance(nodes, Iterable) else [nodes]
    known = {*map(type, listed)} <= {NodeWithScore, NodeWithHits}
    for i, node in enumerate(() if known else listed):
        if not isinstance(node, NodeWithScore):
            raise TypeError(say("no nodes", i=i, kind=type(node)))
    return listed


def to_snippets(nodes: Iterable[NodeWithScore]) -> list[Snippet]:
    """Return a snippet for each node: its text without metadata, id, hits and retriever's score.

    `document` is the id of the node's source, and `position` its `start_char_idx` there, None where
    it is counted from a parent node. Raises TypeError as `as_nodes` does.
    """
    listed = as_nodes(nodes)
    return [
        Snippet(
            text_of(node.node),
            id=node.node.node_id,
            document=node.node.ref_doc_id,
            position=_start_of(node.node),
            retrieval_score=node.score,
            hits=hits,
            embedding=node.node.embedding,
        )
        for node, hits in zip(listed, hits_of(listed), strict=True)
    ]


def _start_of(node: BaseNode) -> int | None:
    """Return where a node begins in its source; one of a parent node is counted from that."""
    return None if node.parent_node else getattr(node, "start_char_idx", None)


def text_of(node: BaseNode) -> str:
    """Return a node's text without metadata."""
    if type(node) is TextNode:  # its `get_content` returns the same, after much else
        return node.text
    return node.get_content(MetadataMode.NONE)


def hits_of(nodes: Sequence[NodeWithScore]) -> list[tuple[Hit, ...]]:
    """Return the hits of nodes: those that they carry, or else those of one retriever."""
    if _with_hits(nodes):
        return [getattr(node, "hits", ()) for node in nodes]
    # NaN is not equal to itself.
    scores = [None if node.score != node.score else node.score for node in nodes]
    return [(Hit(RETRIEVER, rank, score),) for rank, score in enumerate(scores)]


def _with_hits(nodes: Sequence[Any]) -> list[NodeWithHits]:
    # By type: `isinstance` takes long for pydantic's models.
    kinds = {k for k in {*map(type, nodes)} - {NodeWithScore} if issubclass(k, NodeWithHits)}
    return [node for node in nodes if type(node) in kinds] if kinds else []


def check_origin(conformal_filter: RetrievalFilter[Any], nodes: RetrievedNodes) -> None:
    """Raise ValueError if a `HybridRetriever` did not ask a retriever whose hits a score reads.

    Warns if it asked another store or model than a calibrated one.
    """
    for first in nodes.with_hits[:1]:
        for own in conformal_filter.deciding:
            if first.asked:
                check_asked(retrievers_of(own.scorer), first.asked)
            known = own.calibration.retriever
            if first.retriever is None or not isinstance(known, Hybrid):
                continue
            if text := difference(Retrieval(first.retriever), Retrieval(known)):
                warnings.warn(text, stacklevel=2)  # Python shows a repeated warning once


class RetrievedNodes(Retrieved):
    """Nodes in columns."""

    given: Sequence[NodeWithScore]

    @column
    def snippets(self) -> tuple[Snippet, ...]:
        """A snippet for each."""
        return tuple(to_snippets(self.given))

    @column
    def with_hits(self) -> list[NodeWithHits]:
        """Those that carry hits."""
        return _with_hits(self.given)

    @column
    def ranks(self) -> list[tuple[int, NDArray[np.float64]]]:
        """As of any snippets; none of nodes whose order is all that is known."""
        return super().ranks if self.with_hits else []

    @column
    def hits(self) -> Mapping[str, HitColumns]:
        """The hits of each retriever, by its name."""
        if self.with_hits:
            return hit_columns(hits_of(self.given))
        return listed([node.score for node in self.given])

    @column
    def failed(self) -> Sequence[str]:
        """The retrievers that failed and were left out."""
        return sorted({name for node in self.with_hits for name in node.failed})

    @column
    def texts(self) -> tuple[str, ...]:
        """The texts without metadata."""
        return tuple([text_of(node.node) for node in self.given])

    @column
    def documents(self) -> Sequence[str | None]:
        """The ids of their sources."""
        return [node.node.ref_doc_id for node in self.given]

    @column
    def positions(self) -> Sequence[int | None]:
        """Where they start in these."""
        return [_start_of(node.node) for node in self.given]

    @column
    def embeddings(self) -> Sequence[Any]:
        """Their vectors, None where there is none."""
        return [node.node.embedding for node in self.given]


def kept_nodes(nodes: Sequence[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
    """Return copies of the kept nodes, in the retriever's order and with its scores.

    Nothing is written into a node, because its metadata is part of the prompt in LlamaIndex. Of
    sentences, the node is a copy with the passage of the kept ones as its text. In shadow, all
    nodes are kept, as copies with "conformal_kept" in the metadata that no prompt shows.
    """
    texts: dict[int, str | None] = dict.fromkeys(filtered.kept.tolist())
    if isinstance(filtered, FilteredSentences):
        texts = {passage.document: passage.text for passage in filtered.passages}
    if filtered.shadow:
        return [with_fields(n, node=_marked(n.node, i in texts)) for i, n in enumerate(nodes)]
    return [with_fields(nodes[i], node=with_text(nodes[i].node, text)) for i, text in texts.items()]


def _marked(node: BaseNode, kept: bool) -> BaseNode:
    """Return a copy of a node whose metadata have KEPT, which no prompt or embedding has."""
    keys = ("excluded_llm_metadata_keys", "excluded_embed_metadata_keys")
    hidden = {key: [*getattr(node, key), KEPT] for key in keys}
    return with_fields(node, metadata={**node.metadata, KEPT: kept}, **hidden)


def with_text(node: BaseNode, text: str | None) -> BaseNode:
    """Return a copy of a node with another text, or the node for None, its own, or none to set.

    Its embedding is None, because it was of the whole text. `start_char_idx` and `end_char_idx`
    remain those of the whole: between them, the source has the passage and what was cut.
    """
    if text is None or text == text_of(node):
        return node
    twin = node.model_copy(update={"embedding": None})
    twin.set_content(text)
    return twin if text_of(twin) == text else node
