"""The same snippets and the same calibration leave the same survivors in both frameworks."""

from __future__ import annotations

import pytest
from frameworks import (
    K,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    halves,
    langchain_retriever,
    snippets,
    vector_index,
)
from llama_index.core.llms import MockLLM

from conformal_retrievers import Calibration, ConformalFilter, calibrate
from conformal_retrievers.scoring.bm25 import BM25Scorer
from langchain_conformal import ConformalCompressor, ConformalRetriever, judge_retriever
from langchain_conformal import embedding_scorer as langchain_scorer
from llama_index.postprocessor.conformal import ConformalPostprocessor
from llama_index.postprocessor.conformal import embedding_scorer as llama_index_scorer


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("guarantee", ["query-recall", "snippet"])
async def test_both_frameworks_keep_the_same_snippets(tmp_path, alpha, guarantee):
    judged = judge_retriever(langchain_retriever(), halves()[0])
    path = tmp_path / "calibration.json"
    scorer = langchain_scorer(MiniLMEmbeddings())
    calibrate(judged, scorer, alpha=alpha, guarantee=guarantee).save(path)

    retriever = ConformalRetriever.from_calibration(
        path, retriever=langchain_retriever(), embeddings=MiniLMEmbeddings()
    )
    compressor = ConformalCompressor.from_calibration(path, embeddings=MiniLMEmbeddings())
    postprocessor = ConformalPostprocessor.from_calibration(path, embed_model=MiniLMEmbedding())
    engine = vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=K, node_postprocessors=[postprocessor]
    )
    core = ConformalFilter(llama_index_scorer(MiniLMEmbedding()), Calibration.load(path))

    for query in halves()[1]:
        question = query.query
        found = langchain_retriever().invoke(question)
        by_text = {s.text: s for s in snippets()}
        decided = core(question, [by_text[d.page_content] for d in found])
        survivors = {
            "core": [found[i].id for i in decided.kept],
            "retriever": [d.id for d in retriever.invoke(question)],
            "retriever, async": [d.id for d in await retriever.ainvoke(question)],
            "compressor": [d.id for d in compressor.compress_documents(found, question)],
            "engine": [n.node_id for n in engine.query(question).source_nodes],
            "engine, async": [n.node_id for n in (await engine.aquery(question)).source_nodes],
        }
        assert len(set(map(tuple, survivors.values()))) == 1, (question, survivors)


def test_both_frameworks_score_alike_and_name_the_model_alike():
    one, other = langchain_scorer(MiniLMEmbeddings()), llama_index_scorer(MiniLMEmbedding())
    assert one.name == other.name
    for query in halves()[1][:5]:
        scores = one.score(query.query, snippets()[:20])
        assert (scores == other.score(query.query, snippets()[:20])).all()


def test_both_frameworks_filter_by_any_scorer(tmp_path):
    bm25 = BM25Scorer(s.text for s in snippets())
    judged = judge_retriever(langchain_retriever(), halves()[0])
    path = tmp_path / "calibration.json"
    calibrate(judged, bm25, alpha=0.3).save(path)
    retriever = ConformalRetriever.from_calibration(
        path, retriever=langchain_retriever(), scorer=bm25
    )
    postprocessor = ConformalPostprocessor.from_calibration(path, scorer=bm25)
    nodes = vector_index().as_retriever(similarity_top_k=K)
    kept = 0
    for query in halves()[1]:
        documents = retriever.invoke(query.query)
        found = postprocessor.postprocess_nodes(nodes.retrieve(query.query), query_str=query.query)
        assert [d.id for d in documents] == [n.node_id for n in found]
        kept += len(documents)
    assert 0 < kept < K * len(halves()[1])
