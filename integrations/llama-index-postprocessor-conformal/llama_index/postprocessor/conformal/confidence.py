"""Answers with a confidence, as a LlamaIndex query engine: the model must run here."""

import asyncio
from collections.abc import Callable
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers.lookback import WITHOUT_CONFIDENCE, Answering, FactualityFlag, RagPrompt
from conformal_retrievers.lookback.answering import local_model
from llama_index.postprocessor.conformal.nodes import to_snippets
from llama_index.postprocessor.conformal.wording import say


class ConfidenceQueryEngine(BaseQueryEngine):
    """Answers from the nodes that a query engine retrieves, with a confidence and a flag.

    metadata["factuality"] of the response has "confidence" (None for an answer without a token) and
    "flagged". Without nodes the answer is "Empty Response", flagged and without a confidence. Only
    the model and the tokenizer of `llm` are used: the guarantee is about answers that
    `LocalModel.generate` makes as for the calibration, not as the HuggingFaceLLM is set.

    Parameters
    ----------
    engine
        Retrieves and postprocesses the nodes.
    llm
        A HuggingFaceLLM of llama-index-llms-huggingface, or a `LocalModel`. Its name must be the
        one that the flag was made for, see `LocalModel`.
    flag
        The classifier and its calibration.
    max_new_tokens
        The largest number of tokens of an answer.
    generation
        The transformers.GenerationConfig of the calibration, if there was one.
    prompt
        Makes the prompt from question and chunks, as for the calibration.
    group_of
        Returns the group of a question, for a flag with groups.

    Raises
    ------
    TypeError
        For a model that does not run here, since its attention is hidden.
    CalibrationMismatch
        If the flag is for another model.
    ValueError
        For a HuggingFaceLLM with settings that are not used here.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        llm: object,
        flag: FactualityFlag,
        *,
        max_new_tokens: int,
        generation: Any = None,
        prompt: Callable[[str, tuple[str, ...]], RagPrompt] = RagPrompt,
        group_of: Callable[[str], str | None] | None = None,
    ) -> None:
        self.engine, self.group_of = engine, group_of
        parts = getattr(llm, "_model", None), getattr(llm, "_tokenizer", None)
        local = local_model(llm, *parts, "a HuggingFaceLLM")
        self.answering = Answering(local, flag, max_new_tokens, generation, prompt)
        _check_settings(llm, generation, prompt)
        super().__init__(engine.callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the engine retrieves."""
        return self.engine.retrieve(query_bundle)

    def _query(self, query_bundle: QueryBundle) -> Response:
        nodes = self.engine.retrieve(query_bundle)
        if not nodes:
            # The answer of LlamaIndex's own engines without nodes.
            return Response("Empty Response", [], {"factuality": WITHOUT_CONFIDENCE.details})
        question, texts = query_bundle.query_str, [snippet.text for snippet in to_snippets(nodes)]
        group = None if self.group_of is None else self.group_of(question)
        text, metadata = self.answering(question, texts, group)
        return Response(text, nodes, metadata)

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return await asyncio.to_thread(self._query, query_bundle)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"query_engine": self.engine}


def _check_settings(llm: object, generation: object, prompt: object) -> None:
    """Raise ValueError for settings of a model that would be dropped silently."""
    for name, argument, given in (
        ("generate_kwargs", "generation=GenerationConfig(…)", generation is not None),
        ("stopping_ids", "generation=GenerationConfig(eos_token_id=…)", generation is not None),
        ("system_prompt", "prompt=", prompt is not RagPrompt),
    ):
        if (value := getattr(llm, name, None)) and not given:
            raise ValueError(say("not used", name=name, value=value, argument=argument))
