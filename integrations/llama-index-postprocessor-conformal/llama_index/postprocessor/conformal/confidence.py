"""Answers with a confidence, as a LlamaIndex query engine: the model must run here."""

from __future__ import annotations

import asyncio

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers import flagging, huggingface, lookback
from llama_index.postprocessor.conformal.nodes import to_snippets


class ConfidenceQueryEngine(BaseQueryEngine):
    """Answers from what a query engine retrieves, with a confidence and a flag.

    The engine retrieves and postprocesses nodes; the answer is `llm`'s, a HuggingFaceLLM of
    llama-index-llms-huggingface or a `LocalModel`, which then has the name that the flag was made
    for. It answers the prompt of `RagPrompt`, the one that the flag was calibrated with.
    metadata["factuality"] holds "confidence" (None for an answer without a token) and "flagged".
    Raises TypeError for a model that does not run here: nobody can see its attention; ValueError
    where the engine retrieves nothing.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        llm: object,
        flag: flagging.FactualityFlag,
        *,
        max_new_tokens: int,
    ) -> None:
        self.engine = engine
        self.local = _local(llm)
        self.flag = flag
        self.max_new_tokens = max_new_tokens
        super().__init__(engine.callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the engine retrieves."""
        return self.engine.retrieve(query_bundle)

    def _query(self, query_bundle: QueryBundle) -> Response:
        nodes = self.engine.retrieve(query_bundle)
        chunks = tuple(snippet.text for snippet in to_snippets(nodes))
        prompt = huggingface.RagPrompt(query_bundle.query_str, chunks)
        [generated] = self.local.generate([prompt], max_new_tokens=self.max_new_tokens)
        said = self.flag(lookback.lookback_ratios(generated.attention))
        return Response(generated.text, nodes, {"factuality": said.details})

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return await asyncio.to_thread(self._query, query_bundle)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"query_engine": self.engine}


def _local(llm: object) -> huggingface.LocalModel:
    if isinstance(llm, huggingface.LocalModel):
        return llm
    model, tokenizer = getattr(llm, "_model", None), getattr(llm, "_tokenizer", None)
    if model is None or tokenizer is None:
        raise TypeError(
            f"llm is a {type(llm).__name__}, whose attention cannot be seen from here; give a "
            "HuggingFaceLLM or a LocalModel"
        )
    return huggingface.LocalModel(model, tokenizer)
