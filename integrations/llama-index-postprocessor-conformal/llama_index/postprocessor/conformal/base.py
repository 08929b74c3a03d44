"""The conformal filter as a LlamaIndex node postprocessor."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel, ConfigDict, Field
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import WithJsonSchema, field_serializer

from conformal_retrievers import Calibration, ConformalFilter, Scorer
from conformal_retrievers.calibration import OnUnscorable, needed_scorers
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.filtering import GroupOf, OnEmpty
from conformal_retrievers.pruning import GAP, open_filter
from llama_index.postprocessor.conformal.events import rerank_events
from llama_index.postprocessor.conformal.nodes import as_nodes, kept_nodes, to_score
from llama_index.postprocessor.conformal.scorers import AnyScorer, as_scorer, llm_scorer

dispatcher = get_dispatcher(__name__)


class ConformalPostprocessor(BaseNodePostprocessor):
    """Drops the nodes that the filter drops, and returns copies of the others in their order.

    Give it nodes in the order in which the retriever returns them: their order is their rank. It
    does not know the retriever, so that it cannot notice another one, fewer nodes than were
    calibrated at, nodes in another order, or a postprocessor in front that drops some. With
    `HybridRetriever({"name": retriever})`, also of one retriever, nodes carry the name: a score
    that needs other names says so.

    Nodes are scored against the query's text, `query_str`, even if the query is embedded by other
    texts. The guarantee is about nodes as the calibrated retriever returns them: put the
    postprocessor first in the list, and set `similarity_top_k` to the depth that was calibrated at.

    A filter of sentences (`from_calibration(…, split="sentences")`) returns the nodes with a kept
    sentence. Their text is what is kept. A node that loses text is a copy without an embedding,
    which was of the whole text; its `start_char_idx` and `end_char_idx` remain those of the whole.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", validate_assignment=True
    )

    filter: Annotated[ConformalFilter, WithJsonSchema({"type": "object"})] = Field(
        description="The scorer with its calibration."
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the class's name in LlamaIndex."""
        return "ConformalPostprocessor"

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
        scorer: AnyScorer | list[AnyScorer] | None = None,
        alpha: float | None = None,
        split: Split | None = None,
        neighbours: int = 0,
        gap: str = GAP,
        on_empty: OnEmpty = "allow",
        on_unscorable: OnUnscorable = "keep",
        group_of: GroupOf | None = None,
    ) -> ConformalPostprocessor:
        """Return the postprocessor for a calibration, or for its file.

        Parameters
        ----------
        calibration
            The calibration, or the path of its file.
        embed_model, llm, scorer
            The models that the calibration's score needs, none if it holds all of it, as one that
            is made from hits does. `scorer` is anything that `as_scorer` accepts, or a list. Where
            an embedding is needed, the default is `Settings.embed_model`.
        alpha
            Another risk than the calibration's, in (0, 1).
        split, neighbours, gap
            "sentences", or the function that the calibration was cut with, keeps sentences of nodes
            instead of whole ones; as in `SentenceFilter`.
        on_empty, on_unscorable, group_of
            As in `ConformalFilter`.

        Raises
        ------
        TypeError
            For a model of another type than the argument's.
        CalibrationMismatch
            If a model or the splitter is missing, naming it, or is another than the calibration's.
        """
        if not isinstance(calibration, Calibration):
            calibration = Calibration.load(calibration)
        several = scorer if isinstance(scorer, list) else [scorer]
        given = [as_scorer(one) for one in (embed_model, *several) if one is not None]
        given += [] if llm is None else [llm_scorer(llm)]
        if embed_model is None and scorer is None:
            given += _by_default(calibration, {one.name for one in given})
        made = open_filter(
            calibration,
            given,
            alpha=alpha,
            split=split,
            neighbours=neighbours,
            gap=gap,
            on_empty=on_empty,
            on_unscorable=on_unscorable,
            group_of=group_of,
        )
        return cls(filter=made)

    @field_serializer("filter")
    def _filter_without_models(self, value: ConformalFilter) -> dict[str, str]:
        return {"scorer": value.scorer.name, "calibration": value.calibration.checksum}

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _checked(query_bundle), as_nodes(nodes)
        with rerank_events(query, nodes, self.filter, self.callback_manager) as outcome:
            filtered = self.filter(query.query_str, to_score(self.filter, nodes))
            outcome.filtered, outcome.nodes = filtered, kept_nodes(nodes, filtered)
        return outcome.nodes

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _checked(query_bundle), as_nodes(nodes)
        with rerank_events(query, nodes, self.filter, self.callback_manager) as outcome:
            given = to_score(self.filter, nodes)
            filtered = await self.filter.acall(query.query_str, given)
            outcome.filtered, outcome.nodes = filtered, kept_nodes(nodes, filtered)
        return outcome.nodes


def _by_default(calibration: Calibration, given: Collection[str]) -> list[Scorer]:
    """Return the scorer of `Settings.embed_model` if an embedding is needed and not given."""
    missing = [name for name in needed_scorers(calibration) if name not in given]
    if not any(name.startswith("cosine(") for name in missing):
        return []
    try:
        return [as_scorer(Settings.embed_model)]
    except (ImportError, ValueError) as error:  # LlamaIndex's default is a model of OpenAI
        raise ValueError(
            f"the calibration needs {', '.join(missing)}, and Settings.embed_model is not set; "
            "give embed_model=, llm= or scorer=, the one that was calibrated with"
        ) from error


def _checked(query_bundle: QueryBundle | None) -> QueryBundle:
    if query_bundle is None:
        raise ValueError("query is missing; give query_str= or query_bundle= to postprocess_nodes")
    return query_bundle
