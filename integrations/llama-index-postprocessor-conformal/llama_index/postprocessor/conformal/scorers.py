"""LlamaIndex models as scorers: embedding models, LLMs and rerankers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM, ChatMessage, ChatResponse, MessageRole
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode

from conformal_retrievers import EmbeddingScorer, LLMScorer, Scorer
from conformal_retrievers import llm as core
from conformal_retrievers.llm import wire
from conformal_retrievers.llm.deadlines import framework_llm
from conformal_retrievers.scoring.reranker import Placed, Reranking
from llama_index.postprocessor.conformal.wording import say

Options = Callable[[core.Request], Mapping[str, Any]]
AnyScorer: TypeAlias = Scorer | BaseEmbedding | LLM | BaseNodePostprocessor


def as_scorer(model: AnyScorer, *, name: str | None = None) -> Scorer:
    """Return the scorer of an embedding model, an LLM or a reranker.

    A scorer is returned as it is; `FunctionScorer` makes one of a function. The score of an LLM is
    that of `LLMScorer(as_llm(model))`, and a reranker's minus the score that it gives a node, with
    the default name "reranker(<model name>)". Raises TypeError for anything else, and ValueError if
    there is no `name` and the model's is unknown.
    """
    if isinstance(model, BaseEmbedding):
        return embedding_scorer(model, name=name)
    if isinstance(model, LLM):
        return LLMScorer(as_llm(model, name=name))
    if isinstance(model, BaseNodePostprocessor):
        return RerankerScorer(model, name or wire.scorer_name("reranker", model, "as_scorer"))
    if name is None and isinstance(model, Scorer):
        return model
    raise TypeError(say("no model", model=model))


def embedding_scorer(
    embed_model: BaseEmbedding, *, name: str | None = None, reuse_embeddings: bool = False
) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of a LlamaIndex embedding model, synchronous and asynchronous.

    The default name is "cosine(<model name>)", as for the same model in LangChain. With
    `reuse_embeddings` a node's own embedding is used if it has one: choose it only if this model
    made it from the text without metadata, which is what is scored. Raises ValueError if the
    model's name is unknown, and TypeError for anything but the model itself.
    """
    if not hasattr(embed_model, "get_text_embedding_batch"):
        raise TypeError(f"embed_model is {embed_model!r:.60}; give the embedding model itself")
    return EmbeddingScorer(
        _Method(embed_model, "get_text_embedding_batch"),
        name or wire.scorer_name("cosine", embed_model, "embedding_scorer"),
        embed_query=_Method(embed_model, "get_query_embedding"),
        aembed=_Method(embed_model, "aget_text_embedding_batch"),
        aembed_query=_Method(embed_model, "aget_query_embedding"),
        reuse_embeddings=reuse_embeddings,
    )


@dataclass(frozen=True, eq=False, repr=False)  # a model may have keys, and no hash
class _Method:
    """A method of a model that can be copied and pickled, as LlamaIndex's wrapped ones cannot."""

    model: BaseEmbedding
    name: str

    def __call__(self, given: Any) -> Any:
        return getattr(self.model, self.name)(given)


def as_llm(model: LLM, *, options: Options | None = None, name: str | None = None) -> core.LLM:
    """Return a LlamaIndex LLM as an `LLM` of the core, with its own `chat`, `achat` and retries.

    All its tries together take at most `timeout` for each, if the model's is a number.

    `options` turns a request into arguments of `chat`. Give `openai_options` for a model with
    OpenAI's Chat Completions; without it a reply's schema, length and log-probabilities are not
    requested. The default name is the model's with its settings, and is the same in LangChain and
    in `openai_llm`. Functions, such as a `messages_to_prompt`, and clients are not part of it: give
    a `name` if yours change the answers.

    Raises TypeError for anything but an LLM; ValueError for `openai_options` if the model's
    metadata have is_chat_model=False, the default, because a completion endpoint does not accept
    them; and, if there is no `name`, for a model whose name is unknown and for `options` of your
    own.
    """
    if not isinstance(model, LLM):
        raise TypeError(f"model (llm=) is a {type(model).__name__}; give an LLM of LlamaIndex")
    if options is core.openai_options and not model.metadata.is_chat_model:
        raise ValueError(say("completion endpoint", kind=type(model)))
    calls, settings, named = (model.chat, model.achat), _settings(model), model.metadata
    return framework_llm(model, calls, _messages, _reply, options, name, settings, named)


def _messages(request: core.Request) -> list[ChatMessage]:
    system = ChatMessage(request.system, role=MessageRole.SYSTEM)
    return [system, ChatMessage(request.user, role=MessageRole.USER)]


def _reply(response: ChatResponse) -> core.Reply:
    # LlamaIndex does not carry everything over from the server's answer, an object or a dict.
    message = wire.part_of(wire.first_of(response.raw, "choices"), "message")
    refusal = wire.part_of(message, "refusal")
    usage = response.additional_kwargs
    return core.Reply(
        response.message.content or str(refusal or ""),
        "refusal" if refusal else wire.finish_of(wire.reason_in(response.raw)),
        wire.first_token_in({"content": [{"top_logprobs": wire.first_of(response, "logprobs")}]}),
        wire.tokens_in(usage.get("prompt_tokens")),
        wire.tokens_in(usage.get("completion_tokens")),
    )


def _settings(model: LLM) -> Mapping[str, Any]:
    """Return the settings that may change the answers of a model's `chat`, and its endpoint.

    `is_chat_model` chooses between the endpoints of a server, and its default differs by class: it
    is included if it is False. A chat endpoint cuts nothing off at `context_window`.
    """
    settings = wire.settings_of(model, without={"is_chat_model", "context_window"})
    completes = getattr(model, "is_chat_model", None) is False
    return {**settings, "is_chat_model": False} if completes else settings


@dataclass(frozen=True)
class RerankerScorer(Reranking):
    """Scores by minus the score that a postprocessor gives a node, NaN without one.

    A snippet that the reranker does not return scores +inf, which no threshold keeps: set its top_n
    to at least the retriever's depth. Raises ValueError if a score is not a number or a node has
    another id.
    """

    reranker: BaseNodePostprocessor
    name: str

    def _rerank(self, query: str, snippets: Placed) -> dict[int, Any]:
        returned = self.reranker.postprocess_nodes(_nodes(snippets), query_str=query)
        return self._relevance(snippets, returned)

    async def _arerank(self, query: str, snippets: Placed) -> dict[int, Any]:
        returned = await self.reranker.apostprocess_nodes(_nodes(snippets), query_str=query)
        return self._relevance(snippets, returned)

    def _relevance(self, snippets: Placed, returned: Sequence[NodeWithScore]) -> dict[int, Any]:
        places = {str(i): i for i, _ in snippets}
        for id in (node.node_id for node in returned if node.node_id not in places):
            raise ValueError(f"{self.name!r} returned a node with the id {id!r}; it must keep ids")
        return {places[node.node_id]: node.score for node in returned}


def _nodes(snippets: Placed) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=snippet.text, id_=str(i))) for i, snippet in snippets]
