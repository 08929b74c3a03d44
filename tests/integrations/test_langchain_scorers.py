"""Any LangChain model as a scorer: embeddings, cross-encoder, reranker, chat model, function."""

import math
from functools import cache

import numpy as np
import pytest
from frameworks import MiniLMEmbeddings, halves, langchain_retriever, snippets
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_classic.retrievers.document_compressors.cross_encoder import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document

from conformal_retrievers import CrossEncoderScorer, FunctionScorer, LLMScorer, Snippet, calibrate
from conformal_retrievers.scoring import ascore_snippets, score_snippets
from conformal_retrievers.scoring.bm25 import BM25Scorer
from langchain_conformal import as_llm, as_scorer, embedding_scorer, judge_retriever
from langchain_conformal.documents import to_snippets

QUERY = "cat"


class BM25Reranker(BaseDocumentCompressor):
    """A reranker as they come: the best first, top_n of them, new objects without their ids."""

    model: str = "bm25"
    top_n: int = 1000
    calls: int = 0

    def compress_documents(self, documents, query, callbacks=None):
        self.calls += 1
        relevance = -np.asarray(bm25().score(query, [Snippet(d.page_content) for d in documents]))
        return [
            Document(
                documents[i].page_content,
                metadata={**documents[i].metadata, "relevance_score": np.float32(relevance[i])},
            )
            for i in np.argsort(-relevance, kind="stable")[: self.top_n]
        ]

    async def acompress_documents(self, documents, query, callbacks=None):
        return self.compress_documents(documents, query, callbacks)


@cache
def bm25():
    return BM25Scorer(s.text for s in snippets())


class Encoder(BaseCrossEncoder):
    """Scores by the length of texts; tests/scoring has a model of Sentence Transformers."""

    model_name = "/models/length"

    def score(self, text_pairs):
        return np.array([len(text) for _, text in text_pairs], np.float32)


@pytest.fixture(params=["embeddings", "cross-encoder", "chat model", "reranker", "function"])
def model_and_scorer(request, models):
    """A model as a user has it, and the scorer that it should become."""
    if request.param == "embeddings":
        return MiniLMEmbeddings(), embedding_scorer(MiniLMEmbeddings())
    if request.param == "cross-encoder":
        return Encoder(), CrossEncoderScorer(Encoder().score, "cross-encoder(length)")
    if request.param == "chat model":
        return models()[0], LLMScorer(as_llm(models()[0]))
    if request.param == "reranker":
        return BM25Reranker(), FunctionScorer(float32_bm25, "reranker(bm25)")
    return FunctionScorer(float32_bm25, "mine"), FunctionScorer(float32_bm25, "mine")


def float32_bm25(query, texts):
    return np.asarray(bm25().score(query, [Snippet(t) for t in texts])).astype(np.float32)


async def test_any_model_is_a_scorer_synchronous_and_asynchronous(model_and_scorer):
    model, expected = model_and_scorer
    scorer = as_scorer(model)
    given, query = list(snippets()[:6]), snippets()[3].text
    scores = np.asarray(scorer.score(query, given))
    assert scorer.name == expected.name
    assert scores.tolist() == np.asarray(expected.score(query, given)).tolist()
    assert (await ascore_snippets(scorer, query, given)).tolist() == scores.tolist()
    assert len(set(scores.tolist())) > 1


async def test_documents_are_recognised_even_if_a_reranker_loses_their_ids():
    scorer = as_scorer(BM25Reranker())
    texts = [snippets()[0].text, snippets()[1].text, snippets()[0].text]  # one of them twice
    given = [Snippet(text, id="same") for text in texts]
    expected = float32_bm25(QUERY, texts).tolist()
    assert scorer.score(QUERY, given).tolist() == expected
    assert (await scorer.ascore(QUERY, given)).tolist() == expected


def test_a_snippet_that_a_reranker_does_not_return_scores_infinity():
    scorer = as_scorer(BM25Reranker(top_n=1))
    scores = scorer.score(snippets()[3].text, snippets()[:5])
    assert [math.isfinite(score) for score in scores] == [False, False, False, True, False]
    assert sorted(scores)[1:] == [math.inf] * 4
    calibration = calibrate(judge_retriever(langchain_retriever(), halves()[0]), scorer, alpha=0.01)
    assert calibration.threshold() == math.inf


async def test_a_blank_text_is_not_sent_and_cannot_be_scored():
    reranker = BM25Reranker()
    scorer = as_scorer(reranker)
    assert np.isnan(scorer.score(QUERY, [Snippet(" "), Snippet("")])).all()
    assert np.isnan(await scorer.ascore(QUERY, [Snippet("\n")])).all()
    assert reranker.calls == 0
    first, blank = scorer.score(QUERY, [snippets()[0], Snippet(" ")])
    assert math.isfinite(first)
    assert math.isnan(blank)


class Writing(BaseDocumentCompressor):
    """Returns what it is given with this metadata."""

    written: dict | None

    def compress_documents(self, documents, query, callbacks=None):
        for document in documents:
            document.metadata = self.written and document.metadata | self.written
        return documents


@pytest.mark.parametrize("relevance", [None, math.nan])
def test_a_missing_relevance_scores_nan(relevance):
    scorer = as_scorer(Writing(written={"relevance_score": relevance}), name="odd")
    assert np.isnan(scorer.score(QUERY, [Snippet("a")])).all()


@pytest.mark.parametrize(
    "written", [{}, None, *({"relevance_score": r} for r in (10**400, "abc", "1", [0.5]))]
)
async def test_a_compressor_that_does_not_write_a_number_is_named(written):
    scorer = as_scorer(Writing(written=written), name="odd")
    for texts in ("a", "ab"):
        with pytest.raises(ValueError, match="'odd'"):
            score_snippets(scorer, QUERY, [*map(Snippet, texts)])
    with pytest.raises(ValueError, match="'odd'"):
        await ascore_snippets(scorer, QUERY, [Snippet("a")])


def test_a_relevance_beyond_floats_is_refused():
    with pytest.raises(ValueError, match="relevance_score"):
        to_snippets([Document("a", metadata={"relevance_score": 10**400})])


def test_a_reranker_that_writes_no_relevance_scores_by_its_cross_encoder_whatever_its_top_n():
    scorer = as_scorer(CrossEncoderReranker(model=Encoder(), top_n=1))
    assert scorer.name == "cross-encoder(length)"
    assert len({*scorer.score("q", [Snippet("a"), Snippet("bb")])} - {math.inf}) == 2


def test_a_model_without_a_name_and_a_function_need_one_to_be_a_scorer():
    with pytest.raises(ValueError, match="Writing has no model name.*name="):
        as_scorer(Writing(written={}))
    assert as_scorer(Writing(written={}), name="mine").name == "mine"
    with pytest.raises(TypeError, match=r"give embeddings.*FunctionScorer\(function, name="):
        as_scorer(float32_bm25)
    with pytest.raises(TypeError, match="give embeddings"):
        as_scorer(FunctionScorer(float32_bm25, "mine"), name="other")
