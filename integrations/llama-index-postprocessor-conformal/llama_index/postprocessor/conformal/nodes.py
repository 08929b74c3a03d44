"""Nodes to snippets, and a filter's decision about snippets back to nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llama_index.core.schema import MetadataMode, NodeWithScore

from conformal_retrievers import Filtered, Snippet


def as_nodes(nodes: object) -> list[NodeWithScore]:
    """Return the nodes as a list; raise TypeError for anything but NodeWithScore objects."""
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
    return [
        Snippet(
            node.node.get_content(MetadataMode.NONE),
            id=node.node.node_id,
            document=node.node.ref_doc_id,
            retrieval_score=node.score,
            embedding=node.node.embedding,
        )
        for node in as_nodes(nodes)
    ]


def kept_nodes(nodes: Sequence[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
    """Return copies of the kept nodes, in the retriever's order and with its scores.

    Nothing is written into a node, because its metadata is part of the prompt in LlamaIndex.
    """
    return [_copy(nodes[i]) for i in filtered.kept.tolist()]


def _copy(node: NodeWithScore) -> NodeWithScore:
    if type(node) is NodeWithScore:  # this takes a third of the time of a copy
        return NodeWithScore(node=node.node, score=node.score)
    return node.model_copy()
