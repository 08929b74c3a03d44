"""The filter of an answer's claims as a LlamaIndex query engine around another."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers.calibration.checks import check_type
from conformal_retrievers.claims import AnswerFilter, FilteredAnswer
from llama_index.postprocessor.conformal.events import claims_events
from llama_index.postprocessor.conformal.nodes import to_snippets
from llama_index.postprocessor.conformal.wording import say

dispatcher = get_dispatcher(__name__)
EMPTY = "Empty Response"  # what LlamaIndex answers, without an LLM, if there are no nodes


class ClaimFilterQueryEngine(BaseQueryEngine):
    """Asks a query engine, and keeps the claims of its answer that the filter keeps.

    The response has the engine's `source_nodes`, which the claims are compared with, and its
    metadata, with "conformal_claims" added: the kept and the removed claims with their relevances
    and p-values as plain values (`FilteredAnswer.details`). A streaming answer is completed first,
    since only a complete one can be filtered, and streams as one piece. "Empty Response", which is
    the answer without nodes, stays as it is and has no claims. Each filtering emits two events, see
    events.py. Raises TypeError for answers that are not texts.
    """

    def __init__(self, engine: BaseQueryEngine, filter: AnswerFilter) -> None:
        needed = "an AnswerFilter: AnswerFilter(claim_filter, as_llm(model))"
        check_type(AnswerFilter, needed, filter=filter)
        self.engine, self.filter = engine, filter
        super().__init__(engine.callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the engine retrieves."""
        return self.engine.retrieve(query_bundle)

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Return the filtered answer that the engine makes of nodes."""
        response = self.engine.synthesize(query_bundle, nodes, additional_source_nodes)
        return self._filter_claims(query_bundle, response)

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Return what `synthesize` returns, without blocking the event loop."""
        response = await self.engine.asynthesize(query_bundle, nodes, additional_source_nodes)
        return await self._afilter_claims(query_bundle, response)

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._filter_claims(query_bundle, self.engine.query(query_bundle))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await self._afilter_claims(query_bundle, await self.engine.aquery(query_bundle))

    @dispatcher.span
    def _filter_claims(self, query_bundle: QueryBundle, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
        whole = response.get_response() if isinstance(response, StreamingResponse) else response
        text, documents = _text(whole), to_snippets(whole.source_nodes)
        with claims_events(query_bundle.query_str, self.filter) as outcome:
            outcome.filtered = self.filter(query_bundle.query_str, text, documents)
        return _with(response, outcome.filtered)

    @dispatcher.span
    async def _afilter_claims(
        self, query_bundle: QueryBundle, response: RESPONSE_TYPE
    ) -> RESPONSE_TYPE:
        whole: RESPONSE_TYPE = response
        if isinstance(response, AsyncStreamingResponse):
            whole = await response.get_response()
        elif isinstance(response, StreamingResponse):
            whole = await asyncio.to_thread(response.get_response)
        text, documents = _text(whole), to_snippets(whole.source_nodes)
        with claims_events(query_bundle.query_str, self.filter) as outcome:
            outcome.filtered = await self.filter.acall(query_bundle.query_str, text, documents)
        return _with(response, outcome.filtered)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"query_engine": self.engine}


def _text(response: RESPONSE_TYPE) -> str:
    if not isinstance(response, Response):
        raise TypeError(say("no text", kind=type(response)))
    text = response.response or ""
    return "" if text == EMPTY and not response.source_nodes else text  # an LLM would divide it


def _with(response: RESPONSE_TYPE, filtered: FilteredAnswer) -> RESPONSE_TYPE:
    nodes = response.source_nodes
    metadata = {**(response.metadata or {}), "conformal_claims": filtered.details}
    text = filtered.text if nodes or filtered.answer else EMPTY
    if isinstance(response, StreamingResponse):
        return StreamingResponse((text for text in [text]), nodes, metadata)
    if isinstance(response, AsyncStreamingResponse):
        return AsyncStreamingResponse(_one(text), nodes, metadata)
    return Response(text, nodes, metadata)


async def _one(text: str) -> AsyncGenerator[str, None]:
    yield text
