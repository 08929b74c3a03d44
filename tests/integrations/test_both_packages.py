"""What both packages share: survivors, `from_calibration`, `judge_retriever`, names and errors."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
from frameworks import (
    MODEL,
    K,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    Reversed,
    halves,
    langchain_retriever,
    snippets,
    vector_index,
)
from frameworks import judged as all_judged
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.tools import RetrieverTool
from llama_index.postprocessor import conformal as llama_index_conformal
from lookup import LookupScorer

import langchain_conformal
from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    LearnedScorer,
    ScoredQuery,
    calibrate,
)
from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.scoring import BestScore, FusionScorer, RetrievalScorer
from langchain_conformal import ConformalCompressor, ConformalRetriever
from langchain_conformal.documents import to_snippets
from llama_index.postprocessor.conformal import ConformalPostprocessor

NAME = "cosine(all-MiniLM-L6-v2)"
QUERY = JudgedQuery("q", ["near", "far"], [True, False], id="1")
FOUND = RunnableLambda(lambda query: [Document("near"), Document("far")])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "calibration.json"
    queries = [ScoredQuery([i / 20], [True]) for i in range(20)]
    Calibration.from_scores(queries, alpha=0.1, scorer=NAME).save(path)
    return path


@pytest.fixture(scope="module")
def conformal_filter():
    calibration = Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer="lookup")
    return ConformalFilter(LookupScorer({"near": 0.1, "far": 0.9}), calibration)


def compressor_from(path, **options):
    return ConformalCompressor.from_calibration(path, **options)


def retriever_from(path, **options):
    return ConformalRetriever.from_calibration(path, retriever=FOUND, **options)


def postprocessor_from(path, **options):
    if "embeddings" in options:
        options["embed_model"] = options.pop("embeddings")
    return ConformalPostprocessor.from_calibration(path, **options)


EACH = pytest.mark.parametrize(
    ("made_from", "embeddings"),
    [
        (compressor_from, MiniLMEmbeddings),
        (retriever_from, MiniLMEmbeddings),
        (postprocessor_from, MiniLMEmbedding),
    ],
)


# --- survivors ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("guarantee", ["query-recall", "snippet"])
async def test_both_frameworks_keep_the_same_snippets(tmp_path, alpha, guarantee):
    judged = langchain_conformal.judge_retriever(langchain_retriever(), halves()[0])
    path = tmp_path / "calibration.json"
    scorer = langchain_conformal.embedding_scorer(MiniLMEmbeddings())
    calibrate(judged, scorer, alpha=alpha, guarantee=guarantee).save(path)
    retriever = ConformalRetriever.from_calibration(
        path, retriever=langchain_retriever(), embeddings=MiniLMEmbeddings()
    )
    compressor = ConformalCompressor.from_calibration(path, embeddings=MiniLMEmbeddings())
    postprocessor = ConformalPostprocessor.from_calibration(path, embed_model=MiniLMEmbedding())
    engine = vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=K, node_postprocessors=[postprocessor]
    )
    other = llama_index_conformal.embedding_scorer(MiniLMEmbedding())
    core = ConformalFilter(other, Calibration.load(path))
    by_text = {s.text: s for s in snippets()}
    for query in halves()[1]:
        question = query.query
        found = langchain_retriever().invoke(question)
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


def by_words(query):
    """Return snippets by the words that they share with a query, with their numbers."""
    words = set(query.casefold().split())
    counts = {s: len(words & set(s.text.casefold().split())) for s in snippets()}
    return sorted(counts.items(), key=lambda item: -item[1])[:K]


class Words(BaseRetriever):
    similarity_top_k = K

    def _retrieve(self, query_bundle):
        found = by_words(query_bundle.query_str)
        return [NodeWithScore(node=node_of(s), score=float(n)) for s, n in found]


def node_of(snippet):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=snippet.document)}
    return TextNode(text=snippet.text, id_=snippet.id, relationships=source)


@pytest.mark.slow
@pytest.mark.parametrize("learned", [False, True])
async def test_a_calibration_from_hits_is_all_that_either_needs(tmp_path, learned):
    def words(query):
        fields = [{"source": s.document, "relevance_score": n} for s, n in by_words(query)]
        found = zip(by_words(query), fields, strict=True)
        return [Document(s.text, id=s.id, metadata=f) for (s, _), f in found]

    index = VectorStoreIndex([node_of(s) for s in snippets()], embed_model=MiniLMEmbedding())
    dense = index.as_retriever(similarity_top_k=K)
    one = langchain_conformal.HybridRetriever(
        {"dense": langchain_retriever(), "words": RunnableLambda(words)}
    )
    other = llama_index_conformal.HybridRetriever({"dense": dense, "words": Words()})
    path = tmp_path / "calibration.json"
    queries = langchain_conformal.judge_retriever(one, all_judged()[:70])
    if learned:
        calibrate(queries[30:], LearnedScorer.fit(queries[:30]), alpha=0.1).save(path)
    else:
        calibrate(queries, alpha=0.1).save(path)
    filtered = ConformalRetriever.from_calibration(path, retriever=one)
    engine = RetrieverQueryEngine.from_args(
        other, llm=MockLLM(), node_postprocessors=[ConformalPostprocessor.from_calibration(path)]
    )
    kept = found = 0
    for query in all_judged()[70:]:
        survivors = [d.id for d in filtered.invoke(query.query)]
        assert [d.id for d in await filtered.ainvoke(query.query)] == survivors
        assert [n.node_id for n in engine.query(query.query).source_nodes] == survivors
        assert [n.node_id for n in (await engine.aquery(query.query)).source_nodes] == survivors
        kept, found = kept + len(survivors), found + len(one.invoke(query.query))
    assert 0 < kept < found


@pytest.mark.slow
@pytest.mark.parametrize(
    "scorer",
    [
        None,
        BestScore(RetrievalScorer("dense", higher_is_better=True)),
    ],
    ids=["default", "best"],
)
async def test_both_frameworks_are_silent_on_the_same_queries(tmp_path, scorer):
    def index(k):
        return vector_index().as_retriever(similarity_top_k=k)

    one = langchain_conformal.HybridRetriever(
        {"dense": langchain_retriever(20), "short": langchain_retriever(5)}
    )
    other = llama_index_conformal.HybridRetriever({"dense": index(20), "short": index(5)})
    queries = langchain_conformal.judge_retriever(one, all_judged()[:60])
    without = langchain_conformal.without_answers(one, all_judged()[:60])
    gate = calibrate_gate(queries, {"removed": without}, scorer, alpha=0.3)
    path = tmp_path / "calibration.json"
    calibrate(queries, FusionScorer(["dense", "short"]), alpha=0.5, gate=gate).save(path)
    filtered = ConformalRetriever.from_calibration(path, retriever=one)
    engine = RetrieverQueryEngine.from_args(
        other, llm=MockLLM(), node_postprocessors=[ConformalPostprocessor.from_calibration(path)]
    )
    silent = 0
    questions = [query.query for query in all_judged()[60:]]
    for question in [*questions, "zebra opera", "how long does rice boil"]:
        survivors = [d.id for d in filtered.invoke(question)]
        assert [d.id for d in await filtered.ainvoke(question)] == survivors
        assert [n.node_id for n in engine.query(question).source_nodes] == survivors
        assert [n.node_id for n in (await engine.aquery(question)).source_nodes] == survivors
        decided = gate(question, to_snippets(one.invoke(question)))
        assert decided.silent is (survivors == [])
        silent += decided.silent
    assert 0 < silent < len(questions)


# --- many calls -----------------------------------------------------------------------------------

TEXTS = [str(i) for i in range(20)]


def same(query, texts):
    return [float(text != query) for text in texts]


def same_text(query, kept):
    return [getattr(one, "page_content", None) or one.text for one in kept] == [query]


BOTH = pytest.mark.parametrize(
    ("component", "method", "given", "asked"),
    [
        (ConformalCompressor, "compress_documents", [Document(t) for t in TEXTS], str),
        (
            ConformalPostprocessor,
            "postprocess_nodes",
            [NodeWithScore(node=TextNode(text=t)) for t in TEXTS],
            QueryBundle,
        ),
    ],
)


@pytest.fixture
def keeps_the_same():
    one = Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer="same")
    return ConformalFilter(FunctionScorer(same, "same"), one)


@pytest.mark.slow
@BOTH
async def test_32_threads_and_200_tasks_do_not_mix_their_queries(
    component, method, given, asked, keeps_the_same
):
    made = component(filter=keeps_the_same)
    queries = TEXTS * 320

    def kept(query):
        return same_text(query, getattr(made, method)(given, asked(query)))

    async def akept(query):
        return same_text(query, await getattr(made, f"a{method}")(given, asked(query)))

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(kept, queries))
    assert all(await asyncio.gather(*map(akept, queries[:200])))


@pytest.mark.filterwarnings("ignore:of the last 10 queries")
@pytest.mark.slow
@BOTH
async def test_memory_does_not_grow_with_calls(component, method, given, asked, keeps_the_same):
    made = component(filter=keeps_the_same)

    async def memory_after(calls):
        for i in range(calls):
            getattr(made, method)(given, asked(f"query {i} of {calls}"))
            await getattr(made, f"a{method}")(given, asked(f"query {i} of {calls}"))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before, after = await memory_after(200), await memory_after(500)
    tracemalloc.stop()
    assert after - before < 20_000  # 20 bytes a call


# --- from_calibration -----------------------------------------------------------------------------


@EACH
def test_options_of_the_filter_and_another_alpha_can_be_given(made_from, embeddings, file):
    usual = made_from(file, embeddings=embeddings()).filter
    assert (usual.on_empty, usual.on_unscorable, usual.group_of) == ("allow", "keep", None)
    other = made_from(
        Calibration.load(file),
        embeddings=embeddings(),
        alpha=0.2,
        on_empty="raise",
        on_unscorable="raise",
        group_of=len,
    ).filter
    assert (other.on_empty, other.on_unscorable, other.group_of) == ("raise", "raise", len)
    assert (usual.calibration.alpha, other.calibration.alpha) == (0.1, 0.2)
    assert other.calibration.threshold() < usual.calibration.threshold()
    with pytest.raises(ValueError, match="alpha"):
        made_from(file, embeddings=embeddings(), alpha=1.5)


@EACH
def test_an_unknown_option_is_named(made_from, embeddings, file):
    with pytest.raises(TypeError, match="'on_emty'"):
        made_from(file, embeddings=embeddings(), on_emty="raise")


def test_a_retriever_shows_the_alpha_that_it_was_made_with(file):
    assert retriever_from(file, embeddings=MiniLMEmbeddings(), alpha=0.7).alpha == 0.7
    assert retriever_from(file, embeddings=MiniLMEmbeddings()).alpha is None


@EACH
def test_a_model_may_be_given_as_the_scorer(made_from, embeddings, file):
    assert made_from(file, scorer=embeddings()).filter.scorer.name == NAME
    scorer = FunctionScorer(len, NAME)
    assert made_from(file, scorer=scorer).filter.scorer is scorer


@EACH
def test_a_missing_model_is_named(made_from, embeddings, file, monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", MockEmbedding(embed_dim=4))  # another one
    with pytest.raises((CalibrationMismatch, ValueError), match=re.escape(NAME)):
        made_from(file)


@EACH
def test_a_wrong_model_is_refused(made_from, embeddings, file):
    wrong = MiniLMEmbedding if embeddings is MiniLMEmbeddings else MiniLMEmbeddings
    for options in ({"embeddings": "MiniLM"}, {"embeddings": wrong()}, {"scorer": len}):
        with pytest.raises(TypeError, match="model is"):
            made_from(file, **options)
    with pytest.raises(TypeError, match=r"model .*is a int"):
        made_from(file, llm=5)
    with pytest.raises((TypeError, AttributeError), match=embeddings.__name__):
        made_from(file, llm=embeddings())


@EACH
def test_another_model_than_the_calibrated_one_is_refused(made_from, embeddings, file):
    other = embeddings()
    other.model_name = "another-model"
    with pytest.raises(CalibrationMismatch, match=r"all-MiniLM-L6-v2.*another-model"):
        made_from(file, embeddings=other)
    with pytest.raises(CalibrationMismatch):
        made_from(file, scorer=FunctionScorer(len, "rating(a model)"))


@EACH
def test_a_model_without_a_name_needs_one(made_from, embeddings, file):
    nameless = embeddings()
    nameless.model_name = "unknown"
    with pytest.raises(ValueError, match=r"scorer=embedding_scorer\(.*name=") as refused:
        made_from(file, embeddings=nameless)
    assert embeddings.__name__ in str(refused.value)
    package = langchain_conformal if embeddings is MiniLMEmbeddings else llama_index_conformal
    scorer = package.embedding_scorer(nameless, name=NAME)
    assert made_from(file, scorer=scorer).filter.scorer is scorer


# --- judging --------------------------------------------------------------------------------------


def index():
    return VectorStoreIndex([TextNode(text="near")], embed_model=MockEmbedding(embed_dim=4))


class Slow(BaseRetriever):
    """Returns a node, once as many others are asked as the barrier waits for."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def _retrieve(self, query_bundle):
        self.barrier.wait()
        return [NodeWithScore(node=TextNode(text="near"), score=0.5)]


def test_both_judge_queries_concurrently_and_in_order():
    queries = [JudgedQuery(f"q{i}", ["near", "far"], [True, True], id=str(i)) for i in range(6)]
    barrier = threading.Barrier(3, timeout=30)  # broken unless three run at a time

    def found(query):
        barrier.wait()
        return [Document("near")]

    for package, retriever in (
        (langchain_conformal, RunnableLambda(found)),
        (llama_index_conformal, Slow(barrier)),
    ):
        judged = package.judge_retriever(retriever, queries, name="mine", max_concurrency=3)
        assert [query.id for query in judged] == [query.id for query in queries]
        assert {(q.relevant, q.missed, q.retriever) for q in judged} == {((True,), 1, "mine")}


def test_a_local_model_has_the_same_name_in_any_folder(tmp_path, monkeypatch):
    (tmp_path / "models" / MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for path in (f"/models/{MODEL}", f"models/{MODEL}/"):
        local, other = MiniLMEmbeddings(), MiniLMEmbedding(model_name=path)
        local.model_name = path
        store = InMemoryVectorStore(local).as_retriever(search_kwargs={"k": K})
        store.vectorstore.add_documents([Document("a")])
        index = VectorStoreIndex([TextNode(text="a")], embed_model=other).as_retriever()
        for package, model, one in (
            (langchain_conformal, local, store),
            (llama_index_conformal, other, index),
        ):
            (judged,) = package.judge_retriever(one, ["q"])
            assert f"({MODEL}, " in judged.retriever or f", {MODEL})" in judged.retriever
            assert package.as_scorer(model).name == NAME


def test_judging_takes_what_is_returned_and_counts_what_is_missed():
    before = halves()[0][:10]
    index = vector_index().as_retriever(similarity_top_k=K)
    one = langchain_conformal.judge_retriever(langchain_retriever(), before)
    other = llama_index_conformal.judge_retriever(index, before, max_concurrency=1)
    for old, judged, also in zip(before, one, other, strict=True):
        found = langchain_retriever().invoke(old.query)
        relevant = {s.id for s, r in zip(old.snippets, old.relevant, strict=True) if r}
        for new in (judged, also):
            assert [s.id for s in new.snippets] == [d.id for d in found]
            assert list(new.relevant) == [d.id in relevant for d in found]
            assert new.missed == len(relevant) - sum(new.relevant)
            assert (new.id, new.query, new.k) == (old.id, old.query, K)
        assert all(s.retrieval_score is not None for s in also.snippets)
    assert any(query.missed for query in one)


def filtered_by(conformal_filter):
    return ConformalRetriever(retriever=FOUND, filter=conformal_filter)


def compressing(conformal_filter, *more):
    compressor = ConformalCompressor(filter=conformal_filter)
    if more:
        compressor = DocumentCompressorPipeline(transformers=[*more, compressor])
    return ContextualCompressionRetriever(base_compressor=compressor, base_retriever=FOUND)


@pytest.mark.parametrize(
    "make",
    [
        filtered_by,
        lambda f: filtered_by(f).configurable_fields(alpha=ConfigurableField(id="alpha")),
        lambda f: filtered_by(f).with_config(tags=["ours"]),
        lambda f: filtered_by(f).with_retry(),
        compressing,
        lambda f: compressing(f, Reversed()),
    ],
)
def test_a_filtered_retriever_is_refused(conformal_filter, make):
    filtered = make(conformal_filter)
    with pytest.raises(ValueError, match=r"\.retriever or \.base_retriever"):
        langchain_conformal.judge_retriever(filtered, [QUERY])
    with pytest.raises(ValueError, match=r"\.retriever or \.base_retriever"):
        ConformalRetriever(retriever=filtered, filter=conformal_filter)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        (langchain_conformal, lambda: InMemoryVectorStore(DeterministicFakeEmbedding(size=4))),
        (langchain_conformal, lambda: len),
        (llama_index_conformal, index),
        (llama_index_conformal, lambda: index().as_query_engine(llm=MockLLM())),
        (llama_index_conformal, lambda: RetrieverTool.from_defaults(index().as_retriever())),
    ],
    ids=["store", "function", "index", "engine", "tool"],
)
def test_anything_but_a_retriever_is_refused(package, make, conformal_filter):
    given = make()
    with pytest.raises(TypeError, match="retriever"):
        package.judge_retriever(given, [QUERY])
    if package is langchain_conformal:
        with pytest.raises(TypeError, match="as_retriever"):
            ConformalRetriever(retriever=given, filter=conformal_filter)


@pytest.mark.parametrize(
    ("judged", "named"),
    [
        ("q", "judged is"),
        ([QUERY, {"query": "q"}], r"judged\[1\]"),
        ({"q": ["1"]}, r"judged is a dict; give .*JudgedQuery\.from_ids"),
    ],
)
def test_what_is_neither_a_judged_query_nor_a_question_is_named(judged, named):
    with pytest.raises(TypeError, match=named):
        langchain_conformal.judge_retriever(FOUND, judged)
    with pytest.raises(TypeError, match=named):
        llama_index_conformal.judge_retriever(index().as_retriever(), judged)
