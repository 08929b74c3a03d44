"""Answers with a confidence, as a LlamaIndex query engine: the model must run here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers.lookback.flag import WITHOUT_CONFIDENCE, FactualityFlag, check_flag
from conformal_retrievers.lookback.prompt import RagPrompt
from conformal_retrievers.lookback.ratios import lookback_ratios
from llama_index.postprocessor.conformal.nodes import to_snippets

_EMPTY = "Empty Response"  # the answer of LlamaIndex's own engines without nodes


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
        one that the flag was made for: the name that the model was loaded by, or that of
        `LocalModel(model, tokenizer, name=…)`.
    flag
        The classifier and its calibration.
    max_new_tokens
        The largest number of tokens of an answer.
    generation
        The transformers.GenerationConfig of the calibration, if there was one.
    prompt
        Makes the prompt from question and chunks, as for the calibration.
    group
        Returns the group of a question, for a flag with groups.

    Raises
    ------
    TypeError
        For a model that does not run here, since its attention is hidden, and for arguments of
        another type.
    CalibrationMismatch
        If the flag is for another model.
    ValueError
        For `max_new_tokens` below 1; for a HuggingFaceLLM with generate_kwargs or stopping_ids if
        there is no `generation`, or with a prompt of its own if there is no `prompt`.
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
        group: Callable[[str], str] | None = None,
    ) -> None:
        from conformal_retrievers.lookback.model import check_answering  # loads torch

        if group is not None and not callable(group):
            raise TypeError(
                f"group is the {type(group).__name__} {group!r:.60}; give a function from a "
                "question's text to the name of its group"
            )
        self.engine = engine
        self.local = _local(llm)
        check_flag(flag, self.local)
        check_answering(max_new_tokens, generation)
        if generation is None:
            _check_settings(llm)
        if prompt is RagPrompt:
            _check_prompt(llm)
        self.flag = flag
        self.max_new_tokens = max_new_tokens
        self.generation = generation
        self.prompt = prompt
        self.group = group
        super().__init__(engine.callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the engine retrieves."""
        return self.engine.retrieve(query_bundle)

    def _query(self, query_bundle: QueryBundle) -> Response:
        nodes = self.engine.retrieve(query_bundle)
        if not nodes:
            return Response(_EMPTY, [], {"factuality": WITHOUT_CONFIDENCE.details})
        chunks = tuple(snippet.text for snippet in to_snippets(nodes))
        question = query_bundle.query_str
        [generated] = self.local.generate(
            [self.prompt(question, chunks)],
            max_new_tokens=self.max_new_tokens,
            generation=self.generation,
        )
        group = None if self.group is None else self.group(question)
        confidence = self.flag(lookback_ratios(generated.attention), group)
        return Response(generated.text, nodes, {"factuality": confidence.details})

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return await asyncio.to_thread(self._query, query_bundle)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"query_engine": self.engine}


def _local(llm: object) -> Any:
    """Return the `LocalModel` of an LLM."""
    from conformal_retrievers.lookback.model import LocalModel  # loads torch

    if isinstance(llm, LocalModel):
        return llm
    model, tokenizer = getattr(llm, "_model", None), getattr(llm, "_tokenizer", None)
    if model is None or tokenizer is None:
        raise TypeError(
            f"llm is a {type(llm).__name__}, whose attention is hidden; give a HuggingFaceLLM or a "
            "LocalModel"
        )
    return LocalModel(model, tokenizer)


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation that would be dropped silently."""
    for name in ("generate_kwargs", "stopping_ids"):
        if value := getattr(llm, name, None):
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which is not used here; give the "
                "generation=GenerationConfig(…) that the flag was calibrated with (an id that "
                "stops is an eos_token_id)"
            )


def _check_prompt(llm: object) -> None:
    """Raise ValueError for texts around a question that would be dropped silently."""
    wrapper = getattr(llm, "query_wrapper_prompt", None)
    template = "{query_str}" if wrapper is None else wrapper.get_template()
    functions = {
        "completion_to_prompt": default_completion_to_prompt,
        "messages_to_prompt": getattr(llm, "_tokenizer_messages_to_prompt", None),
    }
    found = {
        "system_prompt": getattr(llm, "system_prompt", None),
        "query_wrapper_prompt": template if template != "{query_str}" else None,
        **{n: given for n, own in functions.items() if (given := getattr(llm, n, own)) != own},
    }
    for name, value in found.items():
        if value:
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which is not used here; give the prompt= that the "
                "flag was calibrated with, from question and chunks to a RagPrompt"
            )
