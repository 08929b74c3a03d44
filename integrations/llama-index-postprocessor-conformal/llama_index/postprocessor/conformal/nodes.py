"""Nodes to snippets, and what a filter decided about snippets back to nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore

from conformal_retrievers import Filtered, Snippet


def as_nodes(nodes: object) -> list[NodeWithScore]:
    """Return the nodes as a list, to be gone through more than once.

    Raises TypeError for anything else than NodeWithScore objects.
    """
    if isinstance(nodes, (str, NodeWithScore)) or not isinstance(nodes, Iterable):
        raise TypeError(
            f"nodes is a {type(nodes).__name__}, {nodes!r:.60}; give a list of NodeWithScore "
            "objects, as retrievers return them"
        )
    listed = list(nodes)
    for i, node in enumerate(listed):
        if not isinstance(node, NodeWithScore):
            raise TypeError(
                f"nodes[{i}] is a {type(node).__name__}; give NodeWithScore objects, as retrievers "
                "return them"
            )
    return listed


def to_snippets(nodes: Iterable[NodeWithScore]) -> list[Snippet]:
    """Return a snippet for each node: its text without metadata, its id and the retriever's score.

    Raises TypeError as `as_nodes` does.
    """
    return [_to_snippet(node.node, node.score) for node in as_nodes(nodes)]


def kept_nodes(nodes: Sequence[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
    """Return copies of the nodes that are kept, in the retriever's order, scores as they were.

    Nothing is written into a node: its metadata is a part of the prompt in LlamaIndex.
    """
    return [_copy(nodes[i]) for i in filtered.kept.tolist()]


def _to_snippet(node: BaseNode, score: float | None) -> Snippet:
    return Snippet(
        node.get_content(MetadataMode.NONE),
        id=node.node_id,
        document=node.ref_doc_id,
        retrieval_score=score,
        embedding=node.embedding,
    )


def _copy(node: NodeWithScore) -> NodeWithScore:
    if type(node) is NodeWithScore:  # made anew it takes a third of the time of a copy
        return NodeWithScore(node=node.node, score=node.score)
    return node.model_copy()
