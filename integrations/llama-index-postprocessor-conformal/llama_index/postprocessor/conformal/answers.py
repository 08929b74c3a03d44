"""A LlamaIndex synthesizer or engine and a retriever, for calibration on their answers."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers import JudgedQuery
from conformal_retrievers.answers.chain import Chain
from conformal_retrievers.data.models import with_fields
from llama_index.postprocessor.conformal.judge import nodes_for
from llama_index.postprocessor.conformal.nodes import to_snippets, with_text


def answer_queries(
    retriever: BaseRetriever,
    questions: Iterable[str] | Iterable[JudgedQuery],
    chain: BaseSynthesizer | BaseQueryEngine,
    *,
    name: str,
) -> tuple[list[JudgedQuery], Chain[NodeWithScore]]:
    """Retrieve for each question, and return the queries with the chain that answers them.

    `calibrate_answers(*answer_queries(retriever, questions, chain, name="…"), alpha=0.1)`
    calibrates on its answers, without judged snippets, and `evaluate_answers(filters,
    *answer_queries(…))` compares filters by them.

    Parameters
    ----------
    retriever
        The unfiltered retriever.
    questions
        Different questions; queries that are judged keep their ids and groups alone.
    chain
        A response synthesizer, or a query engine whose `synthesize` answers from nodes; the
        postprocessors of an engine are left out.
    name
        What the chain is called in the file, such as its model and the version of its prompt. A
        cache finds its answers by this name.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `judge_retriever`; TypeError for a chain that is neither.
    """
    if not isinstance(chain, BaseSynthesizer | BaseQueryEngine):
        raise TypeError(f"chain is {chain!r:.60}; give a response synthesizer or a query engine")
    asked = Chain(name, partial(_respond, chain), _cut)
    return asked.with_queries(questions, partial(nodes_for, retriever), to_snippets)


def _respond(chain: Any, question: str, nodes: list[NodeWithScore]) -> str:
    text = str(chain.synthesize(QueryBundle(question), nodes))
    if nodes and text in ("Empty Response", "None"):  # which stand for no text at all
        raise ValueError(f"the chain returned no text from {len(nodes)} nodes")
    return text


def _cut(found: NodeWithScore, text: str) -> NodeWithScore:
    return with_fields(found, node=with_text(found.node, text))
