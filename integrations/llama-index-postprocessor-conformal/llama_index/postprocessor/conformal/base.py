"""The conformal filter as a LlamaIndex node postprocessor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
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

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    Filtered,
    RetrievalScorer,
    Scorer,
    filtering,
)
from llama_index.postprocessor.conformal.events import Outcome, rerank_events
from llama_index.postprocessor.conformal.nodes import as_nodes, kept_nodes, to_snippets
from llama_index.postprocessor.conformal.scorers import embedding_scorer, llm_scorer

dispatcher = get_dispatcher(__name__)


class ConformalPostprocessor(BaseNodePostprocessor):
    """Drops the nodes that the filter drops; the rest come back in order, as they were.

    Snippets are scored against the query's text, `query_str`, also where the query is embedded by
    other texts. What the filter promises, it promises of nodes as the calibrated retriever returns
    them: put the postprocessor first in the list, and set `similarity_top_k` to the depth that was
    calibrated at.

    What an engine does where no node is kept is up to the filter's `on_empty`. With "allow" it gets
    none: query and chat engines then answer "Empty Response" without asking the LLM, an agent's
    tool returns no text, and `RetrieverEvaluator` raises ValueError. With "keep_best" it gets the
    best one and goes on as ever, and "raise" raises `NothingKept` out of the engine's call, of
    streaming engines before the stream begins. The package's README goes through them all.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", validate_assignment=True
    )

    filter: Annotated[ConformalFilter, WithJsonSchema({"type": "object"})] = Field(
        description="The scorer with its calibration."
    )

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

    # --- made from a file, or from what another one was dumped to ---------------------------------

    @classmethod
    def from_calibration(
        cls,
        path: str | Path | Calibration,
        *,
        embed_model: BaseEmbedding | None = None,
        llm: LLM | None = None,
        scorer: Scorer | None = None,
        on_empty: filtering.OnEmpty = "allow",
        on_unscorable: filtering.OnUnscorable = "keep",
    ) -> ConformalPostprocessor:
        """Return the postprocessor of a calibration, or of its file, and the model used for it.

        That is `scorer`, `llm` or `embed_model`, or else `Settings.embed_model`. `on_empty` and
        `on_unscorable` are those of `ConformalFilter`. Raises TypeError if more than one model is
        given, or one in another's place, `CalibrationMismatch` if it is not what the calibration
        was made with, and what `Calibration.load` raises.
        """
        calibration = path if isinstance(path, Calibration) else Calibration.load(path)
        chosen = _scorer(embed_model, llm, scorer)
        return cls(
            filter=ConformalFilter(
                chosen, calibration, on_empty=on_empty, on_unscorable=on_unscorable
            )
        )

    @field_serializer("filter")
    def _filter_without_models(self, value: ConformalFilter) -> dict[str, Any]:
        group_of = value.group_of
        return {
            "scorer": value.scorer.name,
            "calibration": json.loads(value.calibration.to_json()),
            "on_empty": value.on_empty,
            "on_unscorable": value.on_unscorable,
            "group_of": None if group_of is None else getattr(group_of, "__qualname__", "given"),
        }

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        embed_model: BaseEmbedding | None = None,
        llm: LLM | None = None,
        scorer: Scorer | None = None,
        group_of: Callable[[str], str | None] | None = None,
        **kwargs: Any,
    ) -> ConformalPostprocessor:
        """Return the postprocessor that `to_dict` was called on, with the model that it had.

        The calibration is in `data`, with its checksum; models and functions are not, and are given
        as to `from_calibration` and `ConformalFilter`. Raises ValueError where `group_of` is
        missing, and what `Calibration.from_json`, `from_calibration` and `ConformalFilter` raise.
        """
        dumped = data["filter"]
        if (group_of is None) != (dumped["group_of"] is None):
            raise ValueError(
                f"group_of is {group_of!r}, but was {dumped['group_of']!r} before: give the "
                "function that told the groups then, from_dict(data, group_of=…)"
            )
        made = ConformalFilter(
            _scorer(embed_model, llm, scorer),
            Calibration.from_json(json.dumps(dumped["calibration"])),
            on_empty=dumped["on_empty"],
            on_unscorable=dumped["on_unscorable"],
            group_of=group_of,
        )
        return super().from_dict({**data, "filter": made}, **kwargs)

    # --- filtering --------------------------------------------------------------------------------

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _checked(query_bundle), as_nodes(nodes)
        with self._events(query, nodes) as outcome:
            outcome.filtered = self._known(query, nodes)
            if outcome.filtered is None:
                outcome.filtered = self.filter(query.query_str, to_snippets(nodes))
            outcome.nodes = kept_nodes(nodes, outcome.filtered)
        return outcome.nodes

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, nodes = _checked(query_bundle), as_nodes(nodes)
        with self._events(query, nodes) as outcome:
            outcome.filtered = self._known(query, nodes)
            if outcome.filtered is None:
                outcome.filtered = await self.filter.acall(query.query_str, to_snippets(nodes))
            outcome.nodes = kept_nodes(nodes, outcome.filtered)
        return outcome.nodes

    def _known(self, query: QueryBundle, nodes: list[NodeWithScore]) -> Filtered | None:
        """Decide by the retriever's own scores where they are what is calibrated: no snippets."""
        scorer = self.filter.scorer
        if type(scorer) is not RetrievalScorer:  # a subclass may score by more than the number
            return None
        scores = scorer.from_retrieval_scores([node.score for node in nodes])
        return self.filter.decide(scores, query=query.query_str)

    def _events(
        self, query: QueryBundle, nodes: list[NodeWithScore]
    ) -> AbstractContextManager[Outcome]:
        # Engines set the callback manager after construction: it is read at each call.
        return rerank_events(query, nodes, self.filter, self.callback_manager)


def _scorer(embed_model: BaseEmbedding | None, llm: LLM | None, scorer: Scorer | None) -> Scorer:
    if sum(given is not None for given in (embed_model, llm, scorer)) > 1:
        raise TypeError(
            "give one of embed_model=, llm= and scorer=, the one that was calibrated with"
        )
    if isinstance(scorer, BaseEmbedding):
        kind = type(scorer).__name__
        raise TypeError(f"scorer is a {kind}, an embedding model; give it as embed_model=")
    if isinstance(scorer, LLM):
        raise TypeError(f"scorer is a {type(scorer).__name__}, an LLM; give it as llm=")
    if scorer is not None:
        return scorer
    if llm is not None and not isinstance(llm, LLM):
        raise TypeError(f"llm is a {type(llm).__name__}; give LlamaIndex's LLM")
    if llm is not None:
        return llm_scorer(llm)
    return embedding_scorer(_default_embed_model() if embed_model is None else embed_model)


def _default_embed_model() -> BaseEmbedding:
    try:
        return Settings.embed_model
    except (ImportError, ValueError) as error:  # of OpenAI's model, where nobody has set another
        raise ValueError(
            "no model is given, and Settings.embed_model is not set: give embed_model=, the one "
            "that was calibrated with, or llm= or scorer= if that was one"
        ) from error


def _checked(query_bundle: QueryBundle | None) -> QueryBundle:
    if query_bundle is None:
        raise ValueError(
            "query is missing, and snippets are scored against it: give query_str= or "
            "query_bundle= to postprocess_nodes"
        )
    if not isinstance(query_bundle, QueryBundle):
        raise TypeError(
            f"query_bundle is a {type(query_bundle).__name__}, {query_bundle!r:.60}; give "
            "query_str=, or a QueryBundle"
        )
    return query_bundle
