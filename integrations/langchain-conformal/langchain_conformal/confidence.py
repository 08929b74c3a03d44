"""Answers with a confidence, as a LangChain Runnable: the model must run here, in transformers."""

from collections.abc import Callable
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic requires these below Python 3.12

from conformal_retrievers.lookback import Answering, FactualityFlag, RagPrompt
from conformal_retrievers.lookback.answering import local_model
from langchain_conformal.documents import check_input
from langchain_conformal.wording import say


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
) -> Runnable[Any, AIMessage]:
    """Return a Runnable from {"question", "context"} to an answer with its confidence.

    response_metadata["factuality"] of the message has "confidence" (None for an answer without a
    token) and "flagged". Only the model and the tokenizer of `llm` are used: the guarantee is about
    answers that `LocalModel.generate` makes as for the calibration, not as the pipeline is set.

    Parameters
    ----------
    llm
        A HuggingFacePipeline of langchain-huggingface, a ChatHuggingFace around one, or a
        `LocalModel`. Its name must be the one that the flag was made for, see `LocalModel`.
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
        For a model that does not run here, since its attention is hidden.
    CalibrationMismatch
        If the flag is for another model.
    ValueError
        For an empty context, and for generation settings of `llm` if there is no `generation`.
    """
    answering = Answering(_local(llm), flag, max_new_tokens, generation, prompt)
    if generation is None:
        _check_settings(llm)

    def answer(given: QuestionInput) -> AIMessage:
        check_input(given, "question", "context")
        context = given["context"]
        if not context:
            raise ValueError('context is empty; filter with on_empty="keep_best", or do not ask')
        texts = [d.page_content if isinstance(d, Document) else d for d in context]
        text, metadata = answering(given["question"], texts, given.get("group"))
        return AIMessage(text, response_metadata=metadata)

    return RunnableLambda(answer, name="factuality").with_types(input_type=QuestionInput)


def _local(llm: object) -> Any:
    pipeline = getattr(getattr(llm, "llm", llm), "pipeline", None)  # a chat model's is inside
    own = getattr(llm, "tokenizer", None)  # a chat model's, with a template
    parts = getattr(pipeline, "model", None), own or getattr(pipeline, "tokenizer", None)
    return local_model(llm, *parts, "a HuggingFacePipeline, a ChatHuggingFace around one")


def _check_settings(llm: object) -> None:
    """Raise ValueError for settings of generation, which would be dropped silently."""
    for model in (llm, getattr(llm, "llm", None)):
        settings = {name: getattr(model, name, None) for name in ("temperature", "top_p", "stop")}
        settings |= getattr(model, "pipeline_kwargs", None) or {}
        for inside in ("_generate_kwargs", "_forward_params"):  # a pipeline shows them nowhere else
            settings |= getattr(getattr(model, "pipeline", None), inside, {})
        for name, value in settings.items():
            if value is not None and name not in ("max_new_tokens", "return_full_text"):
                raise ValueError(say("unused", name=name, value=value))
