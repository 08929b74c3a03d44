"""LlamaIndex models as scorers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.generic_utils import messages_to_prompt
from llama_index.core.llms import LLM, ChatMessage, ChatResponse, CustomLLM, MessageRole
from llama_index.core.llms.llm import default_completion_to_prompt

from conformal_retrievers import Cache, EmbeddingScorer, LLMScorer, llm
from conformal_retrievers.llm import wire as servers


def embedding_scorer(
    embed_model: BaseEmbedding, *, name: str | None = None, reuse_embeddings: bool = False
) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of a LlamaIndex embedding model, synchronous and asynchronous.

    Its name is "cosine(<model>)" with the model's `model_name`, so that the same model has the same
    name in LangChain. With `reuse_embeddings` a node's own embedding is taken where it has one: say
    so only where this model made it, from the text without metadata, which is what is scored here
    and in a calibration. A `name` that is given is the scorer's, whole. Raises TypeError for
    anything but LlamaIndex's BaseEmbedding, and ValueError where the model's name is unknown and no
    `name` is given.
    """
    if not isinstance(embed_model, BaseEmbedding):
        raise TypeError(
            f"embed_model is a {type(embed_model).__name__}; give LlamaIndex's BaseEmbedding, or "
            "as scorer= another model's EmbeddingScorer(embed, name='cosine(<model name>)')"
        )
    return EmbeddingScorer(
        embed_model.get_text_embedding_batch,
        name or f"cosine({_model_name(embed_model)})",
        embed_query=embed_model.get_query_embedding,
        aembed=embed_model.aget_text_embedding_batch,
        aembed_query=embed_model.aget_query_embedding,
        reuse_embeddings=reuse_embeddings,
    )


def llm_scorer(
    model: LLM,
    *,
    options: Callable[[llm.Request], Mapping[str, Any]] | None = None,
    name: str | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
) -> LLMScorer:
    """Return the scorer 1 − rating of a LlamaIndex LLM, see `LLMScorer` and `as_llm`."""
    return LLMScorer(
        as_llm(model, options=options, name=name), concurrency=concurrency, cache=cache
    )


def as_llm(
    model: LLM,
    *,
    options: Callable[[llm.Request], Mapping[str, Any]] | None = None,
    name: str | None = None,
) -> llm.LLM:
    """Return a LlamaIndex LLM as an `LLM` of the core, with its own `chat`, `achat` and retries.

    `options` turns a request into arguments of `chat`: a model that speaks OpenAI's Chat
    Completions takes `openai_options`, without which a reply's schema, its length and
    log-probabilities are not asked for. The name is the model's, with its temperature unless that
    is 0, and "as text" without options, so that the same model asked in the same way has the same
    name in LangChain and in `openai_llm`. Settings that JSON can tell are in it. Functions, clients
    and other objects are not: where yours change what it answers, give a `name` that says so.

    Raises ValueError where the model does not tell its name, is asked with options of your own, or
    chats by completing what a `messages_to_prompt` or `completion_to_prompt` of your own writes,
    and no `name` is given; and for `openai_options` where its metadata say that it is asked for a
    completion of text instead (`is_chat_model` is False, the default), which does not know them.
    """
    if options is servers.openai_options and not model.metadata.is_chat_model:
        raise ValueError(
            f"options is openai_options, but the metadata of {type(model).__name__} have "
            "is_chat_model=False, so that it is asked for a completion, which does not know them; "
            "if its chat takes them, say is_chat_model=True, of the model or in the LLMMetadata of "
            "a class of your own, or else leave options out"
        )

    def messages(request: llm.Request) -> list[ChatMessage]:
        return [
            ChatMessage(request.system, role=MessageRole.SYSTEM),
            ChatMessage(request.user, role=MessageRole.USER),
        ]

    def arguments(request: llm.Request) -> Mapping[str, Any]:
        return {} if options is None else options(request)

    def complete(request: llm.Request) -> llm.Reply:
        with servers.unanswered_without_reply():
            return _reply(model.chat(messages(request), **arguments(request)))

    async def acomplete(request: llm.Request) -> llm.Reply:
        with servers.unanswered_without_reply():
            return _reply(await model.achat(messages(request), **arguments(request)))

    if name is None:
        temperature = getattr(model, "temperature", 0)
        name = servers.name_of(
            _llm_name(model), temperature=temperature, options=options, settings=_settings(model)
        )
    return llm.LLM(complete, name, acomplete)


def _reply(response: ChatResponse) -> llm.Reply:
    # What LlamaIndex does not carry over is read from the server's own answer, an object or a dict.
    message = servers.part_of(servers.first_of(response.raw, "choices"), "message")
    refusal = servers.part_of(message, "refusal")
    usage = response.additional_kwargs
    first = {"top_logprobs": servers.first_of(response, "logprobs")}
    return llm.Reply(
        response.message.content or str(refusal or ""),
        "refusal" if refusal else servers.finish_of(servers.reason_in(response.raw)),
        servers.first_token_in({"content": [first]}),
        servers.tokens_in(usage.get("prompt_tokens")),
        servers.tokens_in(usage.get("completion_tokens")),
    )


def _settings(model: LLM) -> Mapping[str, Any]:
    """Return what may change the answers of a model's `chat`, and which endpoint that asks.

    `is_chat_model` chooses between the endpoints of a server, neither the default of all classes,
    so it is told wherever it is False; an endpoint for chat cuts nothing off at `context_window`.
    A `CustomLLM`, such as one of Hugging Face, completes its own chat template whatever is said.
    Raises ValueError where a function that is neither the default's nor the model's own writes it.
    """
    if isinstance(model, CustomLLM) or not model.metadata.is_chat_model:
        _check_prompts(model)
    chats = getattr(model, "is_chat_model", None)
    if isinstance(model, CustomLLM) or chats is None:
        return servers.settings_of(model, without={"is_chat_model"})
    if chats:
        return servers.settings_of(model, without={"is_chat_model", "context_window"})
    return {**servers.settings_of(model, without={"is_chat_model"}), "is_chat_model": False}


def _check_prompts(model: LLM) -> None:
    defaults = {
        "messages_to_prompt": messages_to_prompt,
        "completion_to_prompt": default_completion_to_prompt,
    }
    for field, default in defaults.items():
        function = getattr(model, field)
        if function is not default and getattr(function, "__self__", None) is not model:
            raise ValueError(
                f"{field} of {type(model).__name__} is {function!r:.80}, and another prompt may be "
                "another score: give scorer=llm_scorer(model, name='…'), whose name tells it, "
                "instead of the model"
            )


def _llm_name(model: LLM) -> str:
    name = model.metadata.model_name
    if name in ("", "unknown"):  # "unknown" is the field's default
        raise ValueError(
            f"{type(model).__name__} has no model_name, which identifies the scorer: give "
            "scorer=llm_scorer(model, name='…') instead of the model"
        )
    return name


def _model_name(embed_model: BaseEmbedding) -> str:
    if embed_model.model_name in ("", "unknown"):  # "unknown" is the field's default
        raise ValueError(
            f"{type(embed_model).__name__} has no model_name, which identifies the scorer: give "
            "scorer=embedding_scorer(embed_model, name='cosine(<model name>)') instead of the model"
        )
    return embed_model.model_name
