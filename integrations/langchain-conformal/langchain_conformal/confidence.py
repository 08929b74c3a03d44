"""Answers with a confidence, as a LangChain Runnable: the model must run here, in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic requires these below Python 3.12

from conformal_retrievers.lookback.flag import FactualityFlag, check_flag
from conformal_retrievers.lookback.prompt import RagPrompt
from conformal_retrievers.lookback.ratios import kind_of, lookback_ratios


class QuestionInput(TypedDict):
    """The input of `confidence_runnable`: `context` has the retrieved documents in their order."""

    question: str
    context: list[Document] | list[str]
    group: NotRequired[str]


def confidence_runnable(
    llm: object,
    flag: FactualityFlag,
    *,
    max_new_tokens: int,
    generation: Any = None,
    prompt: Callable[[str, tuple[str, ...]], RagPrompt] = RagPrompt,
) -> Runnable[QuestionInput, AIMessage]:
    """Return a Runnable from {"question", "context"} to an answer with its confidence.

    response_metadata["factuality"] of the message has "confidence" (None for an answer without a
    token) and "flagged". Only the model and the tokenizer of `llm` are used: the guarantee is about
    answers that `LocalModel.generate` makes as for the calibration, not as the pipeline is set.

    Parameters
    ----------
    llm
        A HuggingFacePipeline of langchain-huggingface, a ChatHuggingFace around one, or a
        `LocalModel`. Its name must be the one that the flag was made for: the name that the model
        was loaded by, or that of `LocalModel(model, tokenizer, name=…)`.
    flag
        The classifier and its calibration.
    max_new_tokens
        The largest number of tokens of an answer.
    generation
        The transformers.GenerationConfig of the calibration, if there was one.
    prompt
        Makes the prompt from question and chunks, as for the calibration.

    Raises
    ------
    TypeError
        For a model that does not run here, since its attention is hidden; for arguments of another
        type; and for a context that is one text.
    CalibrationMismatch
        If the flag is for another model.
    ValueError
        For `max_new_tokens` below 1; for a pipeline, chat model or binding with generation settings
        if there is no `generation`; and for an empty context.
    """
    from conformal_retrievers.lookback.model import check_answering  # loads torch

    local = _local(llm)
    check_flag(flag, local)
    check_answering(max_new_tokens, generation)
    if generation is None:
        _check_settings(llm)

    def answer(given: QuestionInput) -> AIMessage:
        _check_input(given)
        [generated] = local.generate(
            [prompt(given["question"], _texts(given["context"]))],
            max_new_tokens=max_new_tokens,
            generation=generation,
        )
        confidence = flag(lookback_ratios(generated.attention), given.get("group"))
        return AIMessage(generated.text, response_metadata={"factuality": confidence.details})

    return RunnableLambda(answer, name="factuality").with_types(input_type=QuestionInput)


def _texts(context: object) -> tuple[str, ...]:
    if isinstance(context, (str, Document)) or not isinstance(context, Sequence):
        raise TypeError(
            f"context is {kind_of(context)}; give a list of Documents or texts, one a chunk"
        )
    if not context:
        raise ValueError(
            "context is empty, so an answer has nothing to follow; filter with "
            'on_empty="keep_best", or do not ask'
        )
    return tuple(_text(i, one) for i, one in enumerate(context))


def _text(number: int, one: object) -> str:
    text = one.page_content if isinstance(one, Document) else one
    if not isinstance(text, str):
        raise TypeError(f"context[{number}] is {kind_of(one)}; give a Document or a text")
    return text


def _check_input(given: object) -> None:
    form = 'give {"question": …, "context": […]}'
    if not isinstance(given, Mapping):
        raise TypeError(f"the input is {kind_of(given)}; {form}")
    for key in ("question", "context"):
        if key not in given:
            raise ValueError(f"{key!r} is missing from the input; {form}")


def _layers(llm: object) -> list[object]:
    """Return a model and what is inside it: a binding, a chat model, a pipeline."""
    inner = llm.bound if isinstance(llm, RunnableBinding) else getattr(llm, "llm", None)
    return [llm] if inner is None else [llm, *_layers(inner)]


def _local(llm: object) -> Any:
    """Return the `LocalModel` of an LLM."""
    from conformal_retrievers.lookback.model import LocalModel  # loads torch

    *around, innermost = _layers(llm)
    if isinstance(innermost, LocalModel):
        return innermost
    pipeline = getattr(innermost, "pipeline", None)
    if pipeline is None:
        raise TypeError(
            f"llm is a {type(innermost).__name__}, whose attention is hidden; give a "
            "HuggingFacePipeline, a ChatHuggingFace around one, or a LocalModel"
        )
    own = [getattr(one, "tokenizer", None) for one in around]  # a chat model's, with a template
    return LocalModel(pipeline.model, next(filter(None, own), pipeline.tokenizer))


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation that would be dropped silently."""
    for one in _layers(llm):
        for name, value in _settings(one).items():
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which is not used here; give the "
                "generation=GenerationConfig(…) that the flag was calibrated with"
            )


def _settings(llm: object) -> dict[str, object]:
    """Return a layer's settings of generation, except the length of answers."""
    bound = isinstance(llm, RunnableBinding)
    given = {name: getattr(llm, name, None) for name in _NAMES}
    if isinstance(llm, RunnableBinding):
        given = dict(llm.kwargs)
    of_pipeline = given.pop("pipeline_kwargs", None) or {}
    given["pipeline_kwargs"] = {k: v for k, v in of_pipeline.items() if k not in _LENGTHS} or None
    found = {f"bind({name})" if bound else name: value for name, value in given.items()}
    pipeline = getattr(llm, "pipeline", None)
    for settings in ("_generate_kwargs", "_forward_params"):  # transformers has no public ones
        for name, value in getattr(pipeline, settings, {}).items():
            found[f"pipeline({name})"] = None if name in _LENGTHS else value
    return {name: value for name, value in found.items() if value is not None}


_LENGTHS = ("max_new_tokens", "return_full_text")
_NAMES = (
    *("pipeline_kwargs", "temperature", "top_p", "stop", "seed", "n", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
)
