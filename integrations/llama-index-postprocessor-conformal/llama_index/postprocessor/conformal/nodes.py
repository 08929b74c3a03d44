"""Nodes to snippets, and what a filter decided about snippets back to nodes."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.schema import MetadataMode, NodeWithScore

from conformal_retrievers import Filtered, Snippet


def to_snippets(nodes: Sequence[NodeWithScore]) -> list[Snippet]:
    """Return a snippet for each node: its text without metadata, its id and the retriever's score.

    Raises TypeError for anything that is not a NodeWithScore.
    """
    return [_to_snippet(i, node) for i, node in enumerate(nodes)]


def kept_nodes(nodes: Sequence[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
    """Return copies of the nodes that are kept, in the retriever's order, scores as they were.

    Nothing is written into a node: its metadata is a part of the prompt in LlamaIndex.
    """
    return [nodes[i].model_copy() for i in filtered.kept]


def _to_snippet(i: int, node: NodeWithScore) -> Snippet:
    if not isinstance(node, NodeWithScore):
        raise TypeError(
            f"nodes[{i}] is a {type(node).__name__}; give NodeWithScore objects, as retrievers "
            "return them"
        )
    return Snippet(
        node.node.get_content(MetadataMode.NONE),
        id=node.node.node_id,
        document=node.node.ref_doc_id,
        retrieval_score=node.score,
        embedding=node.node.embedding,
    )
