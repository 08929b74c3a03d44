"""Answers with a confidence, as a LlamaIndex query engine: the model must run here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.llms.llm import default_completion_to_prompt
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle

from conformal_retrievers.lookback import flag as flagging
from conformal_retrievers.lookback import model as huggingface
from conformal_retrievers.lookback import ratios
from llama_index.postprocessor.conformal.nodes import to_snippets

_EMPTY = "Empty Response"  # what LlamaIndex's own engines answer from no nodes


class ConfidenceQueryEngine(BaseQueryEngine):
    """Answers from what a query engine retrieves, with a confidence and a flag.

    The engine retrieves and postprocesses nodes; the answer is `llm`'s, a HuggingFaceLLM of
    llama-index-llms-huggingface or a `LocalModel`. The model has the name that the flag was made
    for: it is the one that it was loaded by, or `LocalModel(model, tokenizer, name=…)` says it.
    Only model and tokenizer are used: what the flag promises is for answers made as those that it
    was calibrated on, by `LocalModel.generate` with this `generation` from this `prompt` of
    question and snippets, and not as the HuggingFaceLLM is set. `group` is a function from a
    question's text to the name of its group, for a flag that has groups. metadata["factuality"]
    holds "confidence" (None for an answer without a token) and "flagged". Where the engine
    retrieves no node the answer is "Empty Response", without confidence and flagged. Raises
    TypeError for a model that does not run here: nobody can see its attention, for what is no flag,
    no number of tokens or no GenerationConfig, and for a `group` that cannot be called;
    `CalibrationMismatch` for the flag of another model; ValueError for `max_new_tokens` below 1,
    for `generate_kwargs` or `stopping_ids` where there is no `generation`, and for a prompt of the
    HuggingFaceLLM's own where there is no `prompt`.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        llm: object,
        flag: flagging.FactualityFlag,
        *,
        max_new_tokens: int,
        generation: huggingface.GenerationConfig | None = None,
        prompt: Callable[[str, tuple[str, ...]], huggingface.RagPrompt] = huggingface.RagPrompt,
        group: Callable[[str], str] | None = None,
    ) -> None:
        if group is not None and not callable(group):
            raise TypeError(
                f"group is the {type(group).__name__} {group!r:.60}; give a function from a "
                "question's text to the name of its group"
            )
        self.engine = engine
        self.local = _local(llm)
        flagging.check_flag(flag, self.local)
        huggingface.check_answering(max_new_tokens, generation)
        if generation is None:
            _check_settings(llm)
        if prompt is huggingface.RagPrompt:
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
            return Response(_EMPTY, [], {"factuality": flagging.WITHOUT_CONFIDENCE.details})
        snippets = tuple(snippet.text for snippet in to_snippets(nodes))
        question = query_bundle.query_str
        [generated] = self.local.generate(
            [self.prompt(question, snippets)],
            max_new_tokens=self.max_new_tokens,
            generation=self.generation,
        )
        group = None if self.group is None else self.group(question)
        said = self.flag(ratios.lookback_ratios(generated.attention), group)
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


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation that would be dropped without a word."""
    for name in ("generate_kwargs", "stopping_ids"):
        value = getattr(llm, name, None)
        if value:
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which does not enter here; give the "
                "generation=GenerationConfig(…) that the flag was calibrated with (an id that "
                "stops is one of its eos_token_id)"
            )


def _check_prompt(llm: object) -> None:
    """Raise ValueError for what would be said around a question, and dropped without a word."""
    wrapper = getattr(llm, "query_wrapper_prompt", None)
    template = "{query_str}" if wrapper is None else wrapper.get_template()
    ways = {
        "completion_to_prompt": default_completion_to_prompt,
        "messages_to_prompt": getattr(llm, "_tokenizer_messages_to_prompt", None),
    }
    said = {
        "system_prompt": getattr(llm, "system_prompt", None),
        "query_wrapper_prompt": template if template != "{query_str}" else None,
        **{n: way for n, own in ways.items() if (way := getattr(llm, n, own)) != own},
    }
    for name, value in said.items():
        if value:
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which does not enter here; give the prompt= that "
                "the flag was calibrated with, from question and snippets to a RagPrompt"
            )
