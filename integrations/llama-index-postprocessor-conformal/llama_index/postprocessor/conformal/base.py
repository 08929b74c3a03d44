"""The conformal filter as a LlamaIndex node postprocessor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel, ConfigDict, Field
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import WithJsonSchema, field_serializer, model_validator
from typing_extensions import Self, Unpack

from conformal_retrievers import Calibration, Filtered, Scorer
from conformal_retrievers.calibration import Gate
from conformal_retrievers.calibration.scorer import given_scorers
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.scoring import QueryScorer
from conformal_retrievers.sentence_filter import OpenOptions, open_filter
from llama_index.postprocessor.conformal.events import Outcome, rerank_events
from llama_index.postprocessor.conformal.nodes import (
    Named,
    RetrievedNodes,
    as_nodes,
    check_origin,
    kept_nodes,
)
from llama_index.postprocessor.conformal.scorers import AnyScorer, as_llm, as_scorer
from llama_index.postprocessor.conformal.wording import say

dispatcher = get_dispatcher(__name__)


class ConformalPostprocessor(Named, BaseNodePostprocessor):
    """Drops the nodes that the filter drops, and returns copies of the others in their order.

    Give it nodes in the order in which the retriever returns them: their order is their rank. It
    does not know the retriever, so that it cannot notice another one, nodes in another order, or a
    postprocessor in front that drops some; it counts the nodes, and keeps all of a list that is
    clearly shorter than any calibrated one, unless the score means the same in that. With
    `HybridRetriever({"name": retriever})`, also of one retriever, nodes carry what was asked: a
    score that needs another name raises ValueError, and it warns of another store or model, and of
    something in front that drops nodes.

    Nodes are scored against the query's text, `query_str`, even if the query is embedded by other
    texts. The guarantee is about nodes as the calibrated retriever returns them: put the
    postprocessor first in the list, and set `similarity_top_k` to the depth that was calibrated at.

    If its gate is silent on a query, the filter returns no nodes, and a query engine answers "Empty
    Response" without asking the LLM. `gate` replaces the filter's own.

    A filter of sentences (`from_calibration(…, split="sentences")`) returns the nodes with a kept
    sentence. Their text is what is kept. A node that loses text is a copy without an embedding,
    which was of the whole text; its `start_char_idx` and `end_char_idx` remain those of the whole.

    A filter in shadow (`from_calibration(…, shadow=True)`) returns all nodes, with what would be
    kept as "conformal_kept" in the metadata, which it excludes from prompts and embeddings.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", validate_assignment=True
    )

    filter: Annotated[RetrievalFilter[Any], WithJsonSchema({"type": "object"})] = Field(
        description="The scorer with its calibration."
    )
    gate: Annotated[Gate | None, WithJsonSchema({"type": "object"})] = Field(
        default=None, description="A gate in front, in place of the filter's own."
    )

    @model_validator(mode="after")
    def _check_gate(self) -> Self:
        self.filter.with_gate(self.gate)
        return self

    def __getstate__(self) -> dict[str, Any]:
        # BaseComponent's own silently deletes from the living object what it cannot pickle. A
        # filter must not be lost. The callback manager is made anew.
        state = BaseModel.__getstate__(self)
        fields = {k: v for k, v in state["__dict__"].items() if k != "callback_manager"}
        return {**state, "__dict__": fields}

    @classmethod
    def from_calibration(
        cls,
        calibration: str | Path | Calibration,
        *,
        embed_model: BaseEmbedding | None = None,
        llm: LLM | None = None,
        scorer: AnyScorer | QueryScorer | list[AnyScorer | QueryScorer] | None = None,
        **options: Unpack[OpenOptions],
    ) -> ConformalPostprocessor:
        """Return the postprocessor for a calibration, or for its file.

        Parameters
        ----------
        calibration
            The calibration, or the path of its file.
        embed_model, llm, scorer
            The models that the scores of the calibration and of the gate need, none if these hold
            all of them, as those made from hits do. `scorer` is anything that `as_scorer` accepts,
            a scorer of queries, or a list. Where an embedding is needed, the default is
            `Settings.embed_model`.
        options
            `alpha`, another risk than the calibration's, in (0, 1). `split`, "sentences" or the
            function that the calibration was cut with, keeps sentences of nodes instead of whole
            ones, with `neighbours`, as in `SentenceFilter`. `on_empty`, `on_unscorable`, `shadow`
            and `group_of`, as in `ConformalFilter`. `gate`, in front, or its file; a calibration
            that was made behind a gate brings it.

        Raises
        ------
        TypeError
            For a model of another type than the argument's.
        CalibrationMismatch
            If a model or the splitter is missing, naming it, or is another than the calibration's.
        """

        def given(needed: Sequence[str]) -> list[Scorer | QueryScorer]:
            asked = None if llm is None else as_llm(llm)
            scorers = given_scorers(needed, [embed_model, scorer], as_scorer, asked)
            if embed_model is None and scorer is None:
                scorers += _by_default(needed, {own.name for own in scorers})
            return scorers

        made = open_filter(calibration, given, **options)
        return cls(filter=made, gate=None if options.get("gate") is None else made.gate)

    @field_serializer("filter", "gate")
    def _without_models(self, value: RetrievalFilter[Any] | Gate | None) -> dict[str, str] | None:
        if value is None:
            return None
        return {"scorer": value.scorer.name, "calibration": value.calibration.checksum}

    def _opened(
        self, nodes: list[NodeWithScore], query: QueryBundle | None
    ) -> tuple[RetrievalFilter[Any], str, RetrievedNodes, AbstractContextManager[Outcome]]:
        """Return what decides, on what, and the block in which it does, for its outcome."""
        if query is None:
            raise ValueError(say("no query"))
        retrieved, keep = RetrievedNodes(as_nodes(nodes)), self.filter.with_gate(self.gate)
        check_origin(keep, retrieved)
        events = rerank_events(query, retrieved, keep, self._kept, self.callback_manager)
        return keep, query.query_str, retrieved, events

    def _kept(self, nodes: list[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
        return kept_nodes(nodes, filtered)

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        keep, query, given, events = self._opened(nodes, query_bundle)
        with events as outcome:
            outcome.filtered = keep(query, given)
        return outcome.nodes

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        keep, query, given, events = self._opened(nodes, query_bundle)
        with events as outcome:
            outcome.filtered = await keep.acall(query, given)
        return outcome.nodes

    # LlamaIndex's spans read the signature at each call. Without this, Python makes it anew.
    for _method in (_postprocess_nodes, _apostprocess_nodes):
        vars(_method)["__signature__"] = signature(_method)
    del _method


def _by_default(needed: Iterable[str], given: Collection[str]) -> list[Scorer]:
    """Return the scorer of `Settings.embed_model` if an embedding is needed and not given."""
    missing = [name for name in needed if name not in given]
    if not any(name.startswith("cosine(") for name in missing):
        return []
    try:
        return [as_scorer(Settings.embed_model)]
    except (ImportError, ValueError) as error:  # LlamaIndex's default is a model of OpenAI
        raise ValueError(say("no default", names=", ".join(missing))) from error
