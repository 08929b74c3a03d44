"""LangChain models as scorers: embeddings, cross-encoders, rerankers, chat models.

`decisions.py` has the scorer of decision models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from langchain_core.documents import BaseDocumentCompressor, Document
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
    Snippet,
    filtering,
    llm,
)
from conformal_retrievers.llm import wire as servers
from langchain_conformal.decisions import decision_scorer, is_decision_model
from langchain_conformal.naming import told_name

if TYPE_CHECKING:
    from langchain_core.decisions import BaseDecisionModel


@runtime_checkable
class CrossEncoder(Protocol):
    """LangChain's BaseCrossEncoder, which has lived in more than one of its packages."""

    def score(self, text_pairs: list[tuple[str, str]]) -> Sequence[float]:
        """Return a number for each pair of query and text, higher = more relevant."""


# In quotes: langchain-core has decision models from 1.8 on.
AnyScorer: TypeAlias = (
    "Scorer | Embeddings | CrossEncoder | BaseChatModel | BaseDocumentCompressor"
    " | BaseDecisionModel"
)


def as_scorer(model: AnyScorer, *, name: str | None = None) -> Scorer:
    """Return the scorer of embeddings, a cross-encoder, a chat or decision model, or a reranker.

    That is `embedding_scorer`, `cross_encoder_scorer`, `llm_scorer`, `decision_scorer` or
    `compressor_scorer` of it; a scorer is returned as it is. `FunctionScorer` makes one of a plain
    function. Raises TypeError for anything else.
    """
    if isinstance(model, Embeddings):
        return embedding_scorer(model, name=name)
    if isinstance(model, BaseChatModel):
        return llm_scorer(model, name=name)
    if is_decision_model(model):
        return decision_scorer(model, name=name)
    if isinstance(model, BaseDocumentCompressor):
        return compressor_scorer(model, name=name)
    if isinstance(model, Scorer) and name is None:
        return model
    if isinstance(model, CrossEncoder) and not isinstance(model, Scorer):
        return cross_encoder_scorer(model, name=name)
    raise TypeError(
        f"scorer is {model!r:.80}; give embeddings, a cross-encoder, a chat or decision model, "
        "a compressor that writes relevance_score, or a scorer, such as "
        "FunctionScorer(function, name='…')"
    )


def embedding_scorer(embeddings: Embeddings, *, name: str | None = None) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of LangChain embeddings, synchronous and asynchronous.

    Its name is "cosine(<model>)" with the model's name as the embeddings tell it, so that the same
    model has the same name in LlamaIndex; a `name` that is given is the scorer's, whole. Raises
    TypeError for anything but LangChain's Embeddings, and ValueError where they do not tell the
    model's name and no `name` is given.
    """
    check_embeddings(embeddings)
    told = name or told_name(
        embeddings, "embedding_scorer(embeddings, name='cosine(<model name>)')"
    )
    return EmbeddingScorer(
        embeddings.embed_documents,
        name or f"cosine({told})",
        embed_query=embeddings.embed_query,
        aembed=embeddings.aembed_documents,
        aembed_query=embeddings.aembed_query,
    )


def check_embeddings(embeddings: object) -> None:
    """Raise TypeError, saying what may be given instead, for what is no Embeddings."""
    if not isinstance(embeddings, Embeddings):
        raise TypeError(
            f"embeddings is a {type(embeddings).__name__}; give LangChain's Embeddings, or as "
            "scorer= another model's EmbeddingScorer(embed, name='cosine(<model name>)')"
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
    name in LlamaIndex and in `openai_llm`. Settings that JSON can tell are in it. Functions,
    clients and other objects are not: where yours change what it answers, give a `name` that says
    so.

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
            with servers.unanswered_without_reply():
                return _reply(chat_model.invoke(messages(request), **arguments(request)))
        except Exception as error:
            return _ended(error)

    async def acomplete(request: llm.Request) -> llm.Reply:
        try:
            with servers.unanswered_without_reply():
                return _reply(await chat_model.ainvoke(messages(request), **arguments(request)))
        except Exception as error:
            return _ended(error)

    temperature = getattr(chat_model, "temperature", 0)
    return llm.LLM(
        complete,
        name
        or servers.name_of(
            told_name(chat_model, "llm_scorer(chat_model, name='…')"),
            temperature=temperature,
            options=options,
            settings=servers.settings_of(chat_model),
        ),
        acomplete,
    )


def cross_encoder_scorer(
    cross_encoder: CrossEncoder, *, name: str | None = None
) -> CrossEncoderScorer:
    """Return the scorer −score of a LangChain cross-encoder.

    Its name is "cross-encoder(<model>)" with the model's name as the cross-encoder tells it. Raises
    ValueError where it does not tell it and no `name` is given. A cross-encoder that returns
    probabilities instead of logits may round the highest ones to 1, so that they tie.
    """
    told = name or told_name(
        cross_encoder, "cross_encoder_scorer(cross_encoder, name='cross-encoder(<model name>)')"
    )
    return CrossEncoderScorer(cross_encoder.score, name or f"cross-encoder({told})")


def compressor_scorer(
    compressor: BaseDocumentCompressor, *, name: str | None = None
) -> CompressorScorer:
    """Return the scorer −relevance_score of a compressor that writes it, as rerankers do.

    Its name is "reranker(<model>)" with the model's name as the compressor tells it. Raises
    ValueError where it does not tell it and no `name` is given.
    """
    told = name or told_name(
        compressor, "compressor_scorer(compressor, name='reranker(<model name>)')"
    )
    return CompressorScorer(compressor, name or f"reranker({told})")


@dataclass(frozen=True)
class CompressorScorer:
    """Scores by −metadata["relevance_score"] as a compressor writes it.

    A blank text, and a relevance score that is None or NaN, cannot be scored: NaN. What the
    compressor does not return scores +inf, which no threshold keeps: give it a top_n of at least
    the retriever's depth. Raises ValueError where it returns documents without a relevance score,
    or other documents than it was given.
    """

    compressor: BaseDocumentCompressor
    name: str
    relative_to_query: ClassVar[bool] = True  # a reranker may compare the documents of a query

    def score(self, query: str, snippets: Sequence[Snippet]) -> list[float]:
        """Return −relevance_score of each snippet, (n,)."""
        documents = _placed(snippets)
        returned = self.compressor.compress_documents(documents, query) if documents else []
        return self._scores(snippets, returned)

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> list[float]:
        """Return what `score` returns, without blocking the event loop."""
        documents = _placed(snippets)
        returned = await self.compressor.acompress_documents(documents, query) if documents else []
        return self._scores(snippets, returned)

    def _scores(self, snippets: Sequence[Snippet], returned: Sequence[Document]) -> list[float]:
        scores = [math.inf if snippet.text.strip() else math.nan for snippet in snippets]
        for document in returned:
            if not {PLACE, "relevance_score"} <= document.metadata.keys():
                raise ValueError(
                    f"{type(self.compressor).__name__} returned a document whose metadata "
                    f"({', '.join(document.metadata)}) lacks relevance_score or what tells the "
                    "document; give a compressor that writes relevance_score and keeps metadata"
                )
            relevance = document.metadata["relevance_score"]
            scores[document.metadata[PLACE]] = math.nan if relevance is None else -float(relevance)
        return scores


PLACE = "conformal_place"  # the metadata that tells a reranked document: few rerankers keep its id


def _placed(snippets: Sequence[Snippet]) -> list[Document]:
    return [
        Document(snippet.text, id=snippet.id, metadata={PLACE: i})
        for i, snippet in enumerate(snippets)
        if snippet.text.strip()
    ]


def load_filter(
    path: str | Path | Calibration,
    *,
    embeddings: Embeddings | None = None,
    chat_model: BaseChatModel | None = None,
    scorer: AnyScorer | None = None,
    on_empty: filtering.OnEmpty = "allow",
    on_unscorable: filtering.OnUnscorable = "keep",
) -> ConformalFilter:
    """Return the filter of a calibration, or of its file, and one of the models.

    Raises TypeError unless exactly one of them is given, and is what its argument says,
    `CalibrationMismatch` if it is not what the calibration was made with, and what
    `Calibration.load` raises.
    """
    if sum(given is not None for given in (embeddings, chat_model, scorer)) != 1:
        raise TypeError(
            "give one of embeddings=, llm= and scorer=, the one that was calibrated with"
        )
    if embeddings is not None:
        check_embeddings(embeddings)
    if chat_model is not None and not isinstance(chat_model, BaseChatModel):
        raise TypeError(
            f"llm is a {type(chat_model).__name__}; give a BaseChatModel, or another model as "
            "scorer="
        )
    given = next(model for model in (embeddings, chat_model, scorer) if model is not None)
    return ConformalFilter(
        as_scorer(given),
        path if isinstance(path, Calibration) else Calibration.load(path),
        on_empty=on_empty,
        on_unscorable=on_unscorable,
    )


def _reply(message: BaseMessage) -> llm.Reply:
    told = message.response_metadata
    refusal = message.additional_kwargs.get("refusal")
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    return llm.Reply(
        str(message.text) or str(refusal or ""),
        "refusal" if refusal else servers.finish_of(servers.reason_in(told)),
        servers.first_token_in(told.get("logprobs")),
        servers.tokens_in(servers.part_of(usage, "input_tokens")),
        servers.tokens_in(servers.part_of(usage, "output_tokens")),
    )


def _ended(error: Exception) -> llm.Reply:
    """Return the reply that OpenAI's client raises, where it was asked for a schema."""
    reasons = {
        "LengthFinishReasonError": "length",
        "ContentFilterFinishReasonError": "content_filter",
    }
    if type(error).__name__ not in reasons:
        raise error
    return llm.Reply("", servers.finish_of(reasons[type(error).__name__]))
