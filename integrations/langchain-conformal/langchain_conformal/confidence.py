"""Answers with a confidence, as a LangChain Runnable: the model must run here, in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic wants this one below Python 3.12

from conformal_retrievers.lookback import flag as flagging
from conformal_retrievers.lookback import model as huggingface
from conformal_retrievers.lookback import ratios


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
    `LocalModel`. The model has the name that the flag was made for: it is the one that it was
    loaded by, or `LocalModel(model, tokenizer, name=…)` says it. Only model and tokenizer are used:
    what the flag promises is for answers made as those that it was calibrated on, by
    `LocalModel.generate` with this `generation` from this `prompt` of question and snippets, and
    not as the pipeline is set. response_metadata["factuality"] holds "confidence" (None for an
    answer without a token) and "flagged". Raises TypeError for a model that does not run here:
    nobody can see its attention, for what is no flag, no number of tokens or no GenerationConfig,
    and for a context that is one text; `CalibrationMismatch` for the flag of another model;
    ValueError for `max_new_tokens` below 1, for settings of generation, of the pipeline, the chat
    model or bound to one, where there is no `generation`, and for a context without documents.
    """
    local = _local(llm)
    flagging.check_flag(flag, local)
    huggingface.check_answering(max_new_tokens, generation)
    if generation is None:
        _check_settings(llm)

    def answer(given: QuestionInput) -> AIMessage:
        _check_input(given)
        [generated] = local.generate(
            [prompt(given["question"], _texts(given["context"]))],
            max_new_tokens=max_new_tokens,
            generation=generation,
        )
        said = flag(ratios.lookback_ratios(generated.attention), given.get("group"))
        return AIMessage(generated.text, response_metadata={"factuality": said.details})

    return RunnableLambda(answer, name="factuality").with_types(input_type=QuestionInput)


def _texts(context: object) -> tuple[str, ...]:
    if isinstance(context, (str, Document)) or not isinstance(context, Sequence):
        raise TypeError(f"context is {ratios.kind_of(context)}; give a list of Documents or texts")
    if not context:
        raise ValueError(
            "context is empty, so there is nothing that the answer could follow: give the filter "
            'before it on_empty="keep_best", or do not ask'
        )
    return tuple(_text(i, one) for i, one in enumerate(context))


def _text(number: int, one: object) -> str:
    text = one.page_content if isinstance(one, Document) else one
    if not isinstance(text, str):
        raise TypeError(f"context[{number}] is {ratios.kind_of(one)}; give a Document or a text")
    return text


def _check_input(given: object) -> None:
    form = 'give {"question": …, "context": […]}'
    if not isinstance(given, Mapping):
        raise TypeError(f"the input is {ratios.kind_of(given)}; {form}")
    for name in ("question", "context"):
        if name not in given:
            raise ValueError(f"the input has no {name!r}; {form}")


def _layers(llm: object) -> list[object]:
    """Return what is given, what it is around, and so on: a binding, a chat model, a pipeline."""
    if isinstance(llm, RunnableBinding):
        return [llm, *_layers(llm.bound)]
    inner = getattr(llm, "llm", None)
    return [llm] if inner is None else [llm, *_layers(inner)]


def _local(llm: object) -> huggingface.LocalModel:
    *around, innermost = _layers(llm)
    if isinstance(innermost, huggingface.LocalModel):
        return innermost
    pipeline = getattr(innermost, "pipeline", None)
    if pipeline is None:
        raise TypeError(
            f"llm is a {type(innermost).__name__}, whose attention cannot be seen from here; give "
            "a HuggingFacePipeline, a ChatHuggingFace around one, or a LocalModel"
        )
    own = [getattr(one, "tokenizer", None) for one in around]  # a chat model's, with a template
    return huggingface.LocalModel(pipeline.model, next(filter(None, own), pipeline.tokenizer))


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation that would be dropped without a word."""
    for one in _layers(llm):
        for name, value in _settings(one).items():
            raise ValueError(
                f"llm.{name} is {value!r:.120}, which does not enter here; give the "
                "generation=GenerationConfig(…) that the flag was calibrated with"
            )


def _settings(llm: object) -> dict[str, object]:
    """Return what a layer says about generation, beyond the length of answers."""
    if isinstance(llm, RunnableBinding):
        given, where = dict(llm.kwargs), "bind({})"
    else:
        given, where = {name: getattr(llm, name, None) for name in _NAMES}, "{}"
    of_pipeline = given.pop("pipeline_kwargs", None) or {}
    others = {k: v for k, v in of_pipeline.items() if k not in _OF_NO_INFLUENCE}
    if others:
        given["pipeline_kwargs"] = others
    found = {where.format(name): value for name, value in given.items() if value is not None}
    return found | _settings_within(getattr(llm, "pipeline", None))


def _settings_within(pipeline: object) -> dict[str, object]:
    """Return what a pipeline of transformers was made with, beyond the length of answers."""
    return {
        f"pipeline({name})": value
        for settings in ("_generate_kwargs", "_forward_params")  # it shows them nowhere else
        for name, value in getattr(pipeline, settings, {}).items()
        if name not in _OF_NO_INFLUENCE and value is not None
    }


_OF_NO_INFLUENCE = ("max_new_tokens", "return_full_text")
_NAMES = (
    *("pipeline_kwargs", "temperature", "top_p", "stop", "seed", "n", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
)
