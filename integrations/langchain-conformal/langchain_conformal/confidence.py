"""Answers with a confidence, as a LangChain Runnable: the model must run here, in transformers."""

from __future__ import annotations

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
    llm: object, flag: flagging.FactualityFlag, *, max_new_tokens: int
) -> Runnable[QuestionInput, AIMessage]:
    """Return a Runnable from {"question", "context"} to an answer with its confidence.

    `llm` is a HuggingFacePipeline of langchain-huggingface, a ChatHuggingFace around one, or a
    `LocalModel`, which then has the name that the flag was made for. It answers the prompt of
    `RagPrompt`, the one that the flag was calibrated with. response_metadata["factuality"] holds
    "confidence" (None for an answer without a token) and "flagged". Raises TypeError for a model
    that does not run here: nobody can see its attention; ValueError for a context without
    documents.
    """
    local = _local(llm)

    def answer(given: QuestionInput) -> AIMessage:
        chunks = [
            one.page_content if isinstance(one, Document) else one for one in given["context"]
        ]
        prompt = huggingface.RagPrompt(given["question"], tuple(chunks))
        [generated] = local.generate([prompt], max_new_tokens=max_new_tokens)
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
    return huggingface.LocalModel(pipeline.model, pipeline.tokenizer)
