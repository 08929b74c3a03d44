"""Answers with a confidence, as a LangChain Runnable: the model must run here, in transformers."""

from __future__ import annotations

from collections.abc import Callable

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic wants this one below Python 3.12

from conformal_retrievers import flagging, huggingface, lookback


class QuestionInput(TypedDict):
    """What `confidence_runnable` takes: `context` are the retrieved documents, in their order."""

    question: str
    context: list[Document] | list[str]
    group: NotRequired[str]


def confidence_runnable(
    llm: object,
    flag: flagging.FactualityFlag,
    *,
    max_new_tokens: int,
    generation: huggingface.GenerationConfig | None = None,
    prompt: Callable[[str, tuple[str, ...]], huggingface.RagPrompt] = huggingface.RagPrompt,
) -> Runnable[QuestionInput, AIMessage]:
    """Return a Runnable from {"question", "context"} to an answer with its confidence.

    `llm` is a HuggingFacePipeline of langchain-huggingface, a ChatHuggingFace around one, or a
    `LocalModel`, which then has the name that the flag was made for. Only its model and tokenizer
    are used: what the flag promises is for answers made as those that it was calibrated on, by
    `LocalModel.generate` with this `generation` from this `prompt` of question and chunks, and not
    as the pipeline is set. response_metadata["factuality"] holds "confidence" (None for an answer
    without a token) and "flagged". Raises TypeError for a model that does not run here: nobody can
    see its attention; ValueError for `pipeline_kwargs` where there is no `generation`, and for a
    context without documents.
    """
    local = _local(llm)
    if generation is None:
        _check_settings(llm)

    def answer(given: QuestionInput) -> AIMessage:
        chunks = [
            one.page_content if isinstance(one, Document) else one for one in given["context"]
        ]
        [generated] = local.generate(
            [prompt(given["question"], tuple(chunks))],
            max_new_tokens=max_new_tokens,
            generation=generation,
        )
        said = flag(lookback.lookback_ratios(generated.attention), given.get("group"))
        return AIMessage(generated.text, response_metadata={"factuality": said.details})

    return RunnableLambda(answer, name="factuality").with_types(input_type=QuestionInput)


def _local(llm: object) -> huggingface.LocalModel:
    if isinstance(llm, huggingface.LocalModel):
        return llm
    pipeline = getattr(getattr(llm, "llm", llm), "pipeline", None)
    if pipeline is None:
        raise TypeError(
            f"llm is a {type(llm).__name__}, whose attention cannot be seen from here; give a "
            "HuggingFacePipeline, a ChatHuggingFace around one, or a LocalModel"
        )
    tokenizer = getattr(llm, "tokenizer", None)  # a chat model may have its own, with a template
    return huggingface.LocalModel(pipeline.model, tokenizer or pipeline.tokenizer)


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation that would be dropped without a word."""
    given = getattr(getattr(llm, "llm", llm), "pipeline_kwargs", None) or {}
    others = {k: v for k, v in given.items() if k not in ("max_new_tokens", "return_full_text")}
    if others:
        raise ValueError(
            f"llm.pipeline_kwargs is {others!r:.120}, which does not enter here; give the "
            "generation=GenerationConfig(…) that the flag was calibrated with"
        )
