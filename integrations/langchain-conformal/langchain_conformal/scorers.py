"""LangChain models as scorers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from conformal_retrievers import (
    Cache,
    Calibration,
    ConformalFilter,
    CrossEncoderScorer,
    EmbeddingScorer,
    LLMScorer,
    Scorer,
    llm,
)


def embedding_scorer(embeddings: Embeddings, *, name: str | None = None) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of LangChain embeddings, synchronous and asynchronous.

    Its name is "cosine(<model>)" with the model's name as the embeddings tell it, so that the same
    model has the same name in LlamaIndex. Raises ValueError where they do not tell it and no `name`
    is given.
    """
    return EmbeddingScorer(
        embeddings.embed_documents,
        name or f"cosine({_model_name(embeddings)})",
        embed_query=embeddings.embed_query,
        aembed=embeddings.aembed_documents,
        aembed_query=embeddings.aembed_query,
    )


def llm_scorer(
    chat_model: BaseChatModel,
    *,
    options: Callable[[llm.Request], Mapping[str, Any]] | None = None,
    name: str | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
) -> LLMScorer:
    """Return the scorer 1 − rating of a LangChain chat model, see `LLMScorer` and `as_llm`."""
    return LLMScorer(
        as_llm(chat_model, options=options, name=name), concurrency=concurrency, cache=cache
    )


def as_llm(
    chat_model: BaseChatModel,
    *,
    options: Callable[[llm.Request], Mapping[str, Any]] | None = None,
    name: str | None = None,
) -> llm.LLM:
    """Return a LangChain chat model as an `LLM`, with its own retries, sync and async.

    `options` turns a request into arguments of the model's `invoke`: a model that speaks OpenAI's
    Chat Completions takes `openai_options`, without which a reply's schema, its length and
    log-probabilities are not asked for. The name is the model's, with its temperature unless that
    is 0, and "as text" without options, so that the same model asked in the same way has the same
    name in LlamaIndex and in `openai_llm`.

    Raises TypeError for anything but a chat model, such as one with fallbacks: another model is
    another score. Raises ValueError where the model does not tell its name, or is asked with
    options of your own, and no `name` is given.
    """
    if not isinstance(chat_model, BaseChatModel):
        raise TypeError(
            f"chat_model is a {type(chat_model).__name__}; give the chat model itself: settings "
            "and retries go into it, and a fallback is another model, thus another score"
        )

    def messages(request: llm.Request) -> list[BaseMessage]:
        return [SystemMessage(request.system), HumanMessage(request.user)]

    def arguments(request: llm.Request) -> Mapping[str, Any]:
        return {} if options is None else options(request)

    def complete(request: llm.Request) -> llm.Reply:
        try:
            with llm.unanswered_without_reply():
                return _reply(chat_model.invoke(messages(request), **arguments(request)))
        except Exception as error:
            return _ended(error)

    async def acomplete(request: llm.Request) -> llm.Reply:
        try:
            with llm.unanswered_without_reply():
                return _reply(await chat_model.ainvoke(messages(request), **arguments(request)))
        except Exception as error:
            return _ended(error)

    temperature = getattr(chat_model, "temperature", 0)
    return llm.LLM(
        complete,
        name
        or llm.name_of(
            _model_name(chat_model),
            temperature=temperature,
            options=options,
            settings=llm.settings_of(chat_model),
        ),
        acomplete,
    )


def cross_encoder_scorer(
    cross_encoder: BaseCrossEncoder, *, name: str | None = None
) -> CrossEncoderScorer:
    """Return the scorer −score of a LangChain cross-encoder.

    Its name is "cross-encoder(<model>)" with the model's name as the cross-encoder tells it. Raises
    ValueError where it does not tell it and no `name` is given. A cross-encoder that returns
    probabilities instead of logits may round the highest ones to 1, so that they tie.
    """
    return CrossEncoderScorer(
        cross_encoder.score, name or f"cross-encoder({_model_name(cross_encoder)})"
    )


def load_filter(
    path: str | Path,
    *,
    embeddings: Embeddings | None = None,
    chat_model: BaseChatModel | None = None,
    scorer: Scorer | None = None,
) -> ConformalFilter:
    """Return the filter of a calibration file and one of embeddings, a chat model and a scorer.

    Raises TypeError unless exactly one of them is given, `CalibrationMismatch` if it is not what
    the calibration was made with, and what `Calibration.load` raises.
    """
    if sum(given is not None for given in (embeddings, chat_model, scorer)) != 1:
        raise TypeError(
            "give one of embeddings=, llm= and scorer=, the one that was calibrated with"
        )
    if embeddings is not None:
        scorer = embedding_scorer(embeddings)
    elif chat_model is not None:
        scorer = llm_scorer(chat_model)
    assert scorer is not None
    return ConformalFilter(scorer, Calibration.load(path))


def _model_name(model: Embeddings | BaseChatModel | BaseCrossEncoder) -> str:
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name:
            return name
    raise ValueError(
        f"{type(model).__name__} does not tell its model's name (model_name or model), which "
        "identifies the scorer: give name='…' too"
    )


def _reply(message: BaseMessage) -> llm.Reply:
    told = message.response_metadata
    ended = next(
        (told[k] for k in ("finish_reason", "stop_reason", "done_reason") if k in told), ""
    )
    refusal = message.additional_kwargs.get("refusal")
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    content = (told.get("logprobs") or {}).get("content")
    return llm.Reply(
        str(message.text) or str(refusal or ""),
        "refusal" if refusal else llm.finish_of(ended),
        {top["token"]: top["logprob"] for top in content[0]["top_logprobs"]} if content else None,
        usage["input_tokens"] if usage else 0,
        usage["output_tokens"] if usage else 0,
    )


def _ended(error: Exception) -> llm.Reply:
    """Return the reply that OpenAI's client raises, where it was asked for a schema."""
    reasons = {
        "LengthFinishReasonError": "length",
        "ContentFilterFinishReasonError": "content_filter",
    }
    if type(error).__name__ not in reasons:
        raise error
    return llm.Reply("", llm.finish_of(reasons[type(error).__name__]))
