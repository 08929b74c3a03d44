"""LangChain models as scorers: embeddings, cross-encoders, rerankers and chat models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable
from typing_extensions import Self, Unpack

from conformal_retrievers import Calibration, EmbeddingScorer, FunctionScorer, Scorer
from conformal_retrievers.calibration.scorer import given_scorers
from conformal_retrievers.data.files import short_hash
from conformal_retrievers.llm import LLM, Reply, Request, wire
from conformal_retrievers.llm.deadlines import framework_llm
from conformal_retrievers.scoring import CrossEncoderScorer, LLMScorer, QueryScorer
from conformal_retrievers.scoring.reranker import Placed, Reranking
from conformal_retrievers.sentence_filter import OpenOptions, open_filter
from langchain_conformal.wording import say

Options = Callable[[Request], Mapping[str, Any]]


@runtime_checkable
class CrossEncoder(Protocol):
    """LangChain's BaseCrossEncoder, which is in several of its packages."""

    def score(self, text_pairs: list[tuple[str, str]]) -> Sequence[float]:
        """Return a number for each pair of query and text, higher = more relevant."""


AnyScorer: TypeAlias = Scorer | Embeddings | CrossEncoder | BaseChatModel | BaseDocumentCompressor


def as_scorer(model: AnyScorer, *, name: str | None = None) -> Scorer:
    """Return the scorer of embeddings, a cross-encoder, a chat model or a reranker.

    A scorer is returned as it is; `FunctionScorer` makes one of a function. The score of a chat
    model is that of `LLMScorer(as_llm(model))`, and a reranker's −relevance_score, with the default
    name "reranker(<model name>)". A cross-encoder that returns probabilities may round the highest
    ones to 1, so that they tie. Of a CrossEncoderReranker, which writes no relevance_score, the
    cross-encoder in it scores. Raises TypeError for anything else, and ValueError if there is no
    `name` and the model's is unknown.
    """
    if isinstance(model, Embeddings):
        return embedding_scorer(model, name=name)
    if isinstance(model, BaseChatModel):
        return LLMScorer(as_llm(model, name=name))
    if isinstance(model, Scorer) and name is None:
        return model
    inner = getattr(model, "model", None) if isinstance(model, BaseDocumentCompressor) else model
    if isinstance(inner, CrossEncoder) and not isinstance(inner, Scorer):
        name = name or wire.scorer_name("cross-encoder", inner, "as_scorer")
        return CrossEncoderScorer(inner.score, name)
    if isinstance(model, BaseDocumentCompressor):
        return RerankerScorer(model, name or wire.scorer_name("reranker", model, "as_scorer"))
    raise TypeError(say("no model", model=model))


def embedding_scorer(embeddings: Embeddings, *, name: str | None = None) -> EmbeddingScorer:
    """Return the scorer 1 − cosine of LangChain embeddings, synchronous and asynchronous.

    The default name is "cosine(<model name>)", as for the same model in LlamaIndex; ValueError if
    the model's name is unknown, and TypeError for anything but the model itself.
    """
    if not hasattr(embeddings, "embed_documents"):
        raise TypeError(f"embeddings is {embeddings!r:.60}; give the embedding model itself")
    return EmbeddingScorer(
        embeddings.embed_documents,
        name or wire.scorer_name("cosine", embeddings, "embedding_scorer"),
        embed_query=embeddings.embed_query,
        aembed=embeddings.aembed_documents,
        aembed_query=embeddings.aembed_query,
    )


def as_llm(
    chat_model: BaseChatModel, *, options: Options | None = None, name: str | None = None
) -> LLM:
    """Return a LangChain chat model as an `LLM`, with its own retries, sync and async.

    All its tries together take at most `timeout` for each, if the model's is a number.

    `options` turns a request into arguments of the model's `invoke`. Give `openai_options` for a
    model with OpenAI's Chat Completions; without it a reply's schema, length and log-probabilities
    are not requested. The default name is the model's with its settings, and is the same in
    LlamaIndex and in `openai_llm`. Functions and clients are not part of it: give a `name` if yours
    change the answers.

    Raises TypeError for anything but a chat model, such as one with fallbacks; ValueError if the
    model's name is unknown, or `options` is your own function, and there is no `name`.
    """
    if not isinstance(chat_model, BaseChatModel):
        raise TypeError(say("no chat model", kind=type(chat_model)))
    calls, settings = (chat_model.invoke, chat_model.ainvoke), wire.settings_of(chat_model)
    return framework_llm(chat_model, calls, _messages, _reply, options, name, settings)


def _messages(request: Request) -> list[BaseMessage]:
    return [SystemMessage(request.system), HumanMessage(request.user)]


def _reply(message: BaseMessage) -> Reply:
    metadata = message.response_metadata
    refusal = message.additional_kwargs.get("refusal")
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    return Reply(
        str(message.text) or str(refusal or ""),
        "refusal" if refusal else wire.finish_of(wire.reason_in(metadata)),
        wire.first_token_in(metadata.get("logprobs")),
        wire.tokens_in(wire.part_of(usage, "input_tokens")),
        wire.tokens_in(wire.part_of(usage, "output_tokens")),
    )


QUESTION = "Does the text have information that answers the query?"


def decision_scorer(
    model: Runnable[Any, Any],
    *,
    question: str = QUESTION,
    name: str | None = None,
    max_concurrency: int | None = 16,
) -> FunctionScorer:
    """Return the scorer 1 − the probability of yes from a decision model, of each text.

    It needs langchain-core 1.8 or newer. A text whose request fails is unscorable; if all fail, the
    first error is raised. The default name is "decision(<model name>)": give the name of a version
    instead of an alias that the provider may move, so that another one is refused.

    Parameters
    ----------
    model
        A `BaseDecisionModel`. Its state is {"query": …, "text": …}.
    question
        The yes-no question about each text. Another than the default is part of the name.
    name, max_concurrency
        The scorer's name, and the largest number of requests that run at a time.
    """
    from langchain_core.decisions import Noul

    asked = {"relevant": Noul(instructions=question)}
    options: Any = {"config": {"max_concurrency": max_concurrency}, "return_exceptions": True}
    of_question = "" if question == QUESTION else f", question={short_hash(question)}"
    name = name or wire.scorer_name("decision", model, "decision_scorer") + of_question

    def requests(query: str, texts: list[str]) -> list[Any]:
        return [{"state": {"query": query, "text": t}, "questions": asked} for t in texts]

    def scores(answers: list[Any]) -> list[float]:
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        return [nan if isinstance(a, Exception) else 1 - a.nouls["relevant"].noul for a in answers]

    def score(query: str, texts: list[str]) -> list[float]:
        return scores(model.batch(requests(query, texts), **options))

    async def ascore(query: str, texts: list[str]) -> list[float]:
        return scores(await model.abatch(requests(query, texts), **options))

    return FunctionScorer(score, name, ascore)


PLACE = "conformal_place"  # the metadata that identifies a reranked document: few keep the id


@dataclass(frozen=True)
class RerankerScorer(Reranking):
    """Scores by −metadata["relevance_score"] as a compressor writes it, NaN for None.

    A snippet that the compressor does not return scores +inf, which no threshold keeps: set its
    top_n to at least the retriever's depth. Raises ValueError if the compressor does not write
    a number as relevance_score, or does not keep a document's other metadata.
    """

    compressor: BaseDocumentCompressor
    name: str

    def _rerank(self, query: str, snippets: Placed) -> dict[int, Any]:
        return self._relevance(self.compressor.compress_documents(_documents(snippets), query))

    async def _arerank(self, query: str, snippets: Placed) -> dict[int, Any]:
        documents = _documents(snippets)
        return self._relevance(await self.compressor.acompress_documents(documents, query))

    def _relevance(self, returned: Sequence[Document]) -> dict[int, Any]:
        known = [document.metadata or {} for document in returned]
        for metadata in known:
            if not {PLACE, "relevance_score"} <= metadata.keys():
                raise ValueError(say("lost", name=self.name, metadata=metadata))
        return {metadata[PLACE]: metadata["relevance_score"] for metadata in known}


def _documents(snippets: Placed) -> list[Document]:
    return [Document(snippet.text, id=snippet.id, metadata={PLACE: i}) for i, snippet in snippets]


class ComponentOptions(OpenOptions, total=False):
    """The options of `from_calibration`: those of `open_filter`, and fields of the component."""

    retriever: RetrieverLike
    metadata_prefix: str | None
    name: str | None
    tags: list[str] | None
    metadata: dict[str, Any] | None


class FromCalibration:
    """Makes a compressor or retriever from a calibration, and the models that it needs."""

    @classmethod
    def from_calibration(
        cls,
        calibration: str | Path | Calibration,
        *,
        embeddings: Embeddings | None = None,
        llm: BaseChatModel | None = None,
        scorer: AnyScorer | QueryScorer | list[AnyScorer | QueryScorer] | None = None,
        **options: Unpack[ComponentOptions],
    ) -> Self:
        """Return the component for a calibration, or for its file.

        Parameters
        ----------
        calibration
            The calibration, or the path of its file.
        embeddings, llm, scorer
            The models that the scores of the calibration and of the gate need, none if these hold
            all of them, as those made from hits do. `scorer` is anything that `as_scorer` accepts,
            a scorer of queries, or a list.
        options
            `alpha`, another risk than the calibration's, in (0, 1). `split`, "sentences" or the
            function that the calibration was cut with, keeps sentences of documents instead of
            whole ones, with `neighbours`, as in `SentenceFilter`. `on_empty`, `on_unscorable`,
            `shadow` and `group_of`, as in `ConformalFilter`. `gate`, in front, or its file; a
            calibration that was made behind a gate brings it. And the component's other fields:
            `metadata_prefix`, and the `retriever` of a `ConformalRetriever`.

        Raises
        ------
        TypeError
            For a model of another type than the argument's.
        CalibrationMismatch
            If a model or the splitter is missing, naming it, or is another than the calibration's.
        """

        asked = None if llm is None else as_llm(llm)
        given = partial(given_scorers, models=[embeddings, scorer], as_scorer=as_scorer, llm=asked)
        component: Any = cls
        known: dict[str, Any] = {**options}
        own = {*component.model_fields} - {*OpenOptions.__annotations__}
        fields = {name: known.pop(name) for name in options if name in own}
        made = open_filter(calibration, given, **known)
        if known.get("gate") is not None:
            fields["gate"] = made.gate
        if known.get("alpha") is not None and "alpha" in component.model_fields:
            fields["alpha"] = known["alpha"]
        return cast(Self, component(filter=made, **fields))
