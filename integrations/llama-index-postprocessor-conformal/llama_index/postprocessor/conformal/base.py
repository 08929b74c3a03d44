"""The conformal filter as a LlamaIndex node postprocessor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llama_index.core import Settings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel, ConfigDict, Field
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers import Calibration, ConformalFilter, Scorer
from llama_index.postprocessor.conformal.nodes import kept_nodes, to_snippets
from llama_index.postprocessor.conformal.scorers import embedding_scorer, llm_scorer

dispatcher = get_dispatcher(__name__)


class ConformalPostprocessor(BaseNodePostprocessor):
    """Drops the nodes that the filter drops; the rest come back in order, as they were.

    Snippets are scored against the query's text, `query_str`. What the filter promises, it promises
    of nodes as the calibrated retriever returns them: put the postprocessor first in the list, and
    set `similarity_top_k` to the depth that was calibrated at.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", validate_assignment=True
    )

    filter: ConformalFilter = Field(description="The scorer with its calibration.", exclude=True)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex knows the class by."""
        return "ConformalPostprocessor"

    def __getstate__(self) -> dict[str, Any]:
        # BaseComponent's own deletes what it cannot pickle from the living object, and goes on
        # without it: a filter must not be lost in silence. The callback manager is made anew.
        state = BaseModel.__getstate__(self)
        fields = {k: v for k, v in state["__dict__"].items() if k != "callback_manager"}
        return {**state, "__dict__": fields}

    @classmethod
    def from_calibration(
        cls,
        path: str | Path,
        *,
        embed_model: BaseEmbedding | None = None,
        llm: LLM | None = None,
        scorer: Scorer | None = None,
    ) -> ConformalPostprocessor:
        """Return the postprocessor of a calibration file and the model that was calibrated with.

        That is `scorer`, `llm` or `embed_model`, or else `Settings.embed_model`. Raises TypeError
        if more than one is given, `CalibrationMismatch` if it is not what the calibration was made
        with, and what `Calibration.load` raises.
        """
        if sum(given is not None for given in (embed_model, llm, scorer)) > 1:
            raise TypeError(
                "give one of embed_model=, llm= and scorer=, the one that was calibrated with"
            )
        calibration = Calibration.load(path)
        if llm is not None:
            scorer = llm_scorer(llm)
        elif scorer is None:
            scorer = embedding_scorer(embed_model or Settings.embed_model)
        return cls(filter=ConformalFilter(scorer, calibration))

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return kept_nodes(nodes, self.filter(_query_of(query_bundle), to_snippets(nodes)))

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        filtered = await self.filter.acall(_query_of(query_bundle), to_snippets(nodes))
        return kept_nodes(nodes, filtered)


def _query_of(query_bundle: QueryBundle | None) -> str:
    if query_bundle is None:
        raise ValueError(
            "query is missing, and snippets are scored against it: give query_str= or "
            "query_bundle= to postprocess_nodes"
        )
    return query_bundle.query_str
