"""What both packages share: survivors, `from_calibration`, `judge_retriever`, names and errors."""

import gc
import re
import threading
import tracemalloc

import pytest
from frameworks import (
    MODEL,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    Reversed,
    compressing,
    each_component,
    each_framework,
    each_package,
    filter_at,
    halves,
    ids_of,
    index_retriever,
    langchain_retriever,
    snippets,
)
from frameworks import judged as all_judged
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import MockEmbedding, Settings, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.core.tools import RetrieverTool
from llama_index.postprocessor import conformal as llama_index_conformal
from lookup import LookupScorer

import langchain_conformal
from conformal_retrievers import ConformalFilter, JudgedQuery, LearnedScorer, ScoredQuery, calibrate
from conformal_retrievers.calibration import Calibration, CalibrationMismatch, calibrate_gate
from conformal_retrievers.scoring import BestScore, FunctionScorer, FusionScorer, RetrievalScorer
from langchain_conformal import ConformalCompressor, ConformalRetriever
from langchain_conformal.documents import to_snippets
from llama_index.postprocessor.conformal import ConformalPostprocessor

NAME = "cosine(all-MiniLM-L6-v2)"
QUERY = JudgedQuery("q", ["near", "far"], [True, False], id="1")
TEXTS = ["near", "far"]
FOUND = RunnableLambda(lambda query: [Document("near"), Document("far")])
CONFORMAL_FILTER = filter_at(LookupScorer({"near": 0.1, "far": 0.9}))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "calibration.json"
    queries = [ScoredQuery([i / 20], [True]) for i in range(20)]
    Calibration.from_scores(queries, alpha=0.1, scorer=NAME).save(path)
    return path


async def kept_in_both(retriever, engine, question):
    """Return the ids that both keep, sync and async."""
    kept = ids_of(retriever.invoke(question))
    assert ids_of(await retriever.ainvoke(question)) == kept
    assert ids_of(engine.query(question).source_nodes) == kept
    assert ids_of((await engine.aquery(question)).source_nodes) == kept
    return kept


def engine_of(retriever, path, **options):
    keep = ConformalPostprocessor.from_calibration(path, **options)
    return RetrieverQueryEngine.from_args(retriever, llm=MockLLM(), node_postprocessors=[keep])


# --- survivors ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("guarantee", ["query-recall", "snippet"])
async def test_both_frameworks_keep_the_same_snippets(path, alpha, guarantee):
    judged = langchain_conformal.judge_retriever(langchain_retriever(), halves()[0])
    scorer = langchain_conformal.embedding_scorer(MiniLMEmbeddings())
    calibrate(judged, scorer, alpha=alpha, guarantee=guarantee).save(path)
    model = {"embeddings": MiniLMEmbeddings()}
    retriever = ConformalRetriever.from_calibration(path, retriever=langchain_retriever(), **model)
    compressor = ConformalCompressor.from_calibration(path, **model)
    engine = engine_of(index_retriever(), path, embed_model=MiniLMEmbedding())
    other = llama_index_conformal.embedding_scorer(MiniLMEmbedding())
    core = ConformalFilter(other, Calibration.load(path))
    by_text = {s.text: s for s in snippets()}
    for query in halves()[1]:
        question = query.query
        found = langchain_retriever().invoke(question)
        decided = core(question, [by_text[d.page_content] for d in found])
        kept = await kept_in_both(retriever, engine, question)
        assert kept == [found[i].id for i in decided.kept]
        assert kept == ids_of(compressor.compress_documents(found, question))


@pytest.mark.slow
@pytest.mark.parametrize("calibrated", ["default", "learned", "behind a gate", "behind the best"])
async def test_a_file_of_hits_and_of_its_gate_is_all_that_either_needs(path, calibrated):
    depths = {"dense": 20, "short": 5}
    one, other = (
        package.HybridRetriever({name: make(k) for name, k in depths.items()})
        for package, make in (
            (langchain_conformal, langchain_retriever),
            (llama_index_conformal, index_retriever),
        )
    )
    queries, scorers, gate = langchain_conformal.judge_retriever(one, all_judged()[:60]), [], None
    if calibrated == "learned":
        scorers, queries = [LearnedScorer.fit(queries[:30])], queries[30:]
    elif calibrated.startswith("behind"):
        without = langchain_conformal.without_answers(one, all_judged()[:60])
        best = BestScore(RetrievalScorer("dense", higher_is_better=True))
        by = best if calibrated == "behind the best" else None
        scorers, gate = [FusionScorer([*depths])], calibrate_gate(queries, without, by, alpha=0.3)
    calibrate(queries, *scorers, alpha=0.5 if gate else 0.1, gate=gate).save(path)
    filtered = ConformalRetriever.from_calibration(path, retriever=one)
    engine = engine_of(other, path)
    silent = kept = found = 0
    questions = [query.query for query in all_judged()[60:]]
    for question in [*questions, "zebra opera", "how long does rice boil"]:
        documents = one.invoke(question)
        survivors = await kept_in_both(filtered, engine, question)
        if gate is not None:
            decided = gate(question, to_snippets(documents))
            assert decided.silent is (survivors == [])
            silent += decided.silent
        kept, found = kept + len(survivors), found + len(documents)
    assert 0 < kept < found
    assert gate is None or 0 < silent < len(questions)


# --- many calls -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the threshold passed")
@pytest.mark.slow
@each_framework
async def test_memory_does_not_grow_with_calls(of):
    made = of.made(TEXTS, filter=CONFORMAL_FILTER)

    async def memory_after(calls):
        for i in range(calls):
            await of.kept(made, TEXTS, f"query {i} of {calls}")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    before, after = await memory_after(200), await memory_after(500)
    tracemalloc.stop()
    assert after - before < 20_000  # 20 bytes a call


# --- from_calibration -----------------------------------------------------------------------------


def opened(of, given, embeddings=None, **options):
    return of.opened(TEXTS, given, **{of.argument: embeddings}, **options)


@each_component
def test_options_of_the_filter_and_another_alpha_can_be_given(of, file):
    usual = opened(of, file, embeddings=of.embeddings()).filter
    assert (usual.on_empty, usual.on_unscorable, usual.group_of) == ("allow", "keep", None)
    options = {"on_empty": "raise", "on_unscorable": "raise", "group_of": len}
    made = opened(of, Calibration.load(file), embeddings=of.embeddings(), alpha=0.2, **options)
    other, alpha = made.filter, getattr(made, "alpha", 0.2)  # a retriever shows its alpha
    assert ({name: getattr(other, name) for name in options}, alpha) == (options, 0.2)
    assert (usual.calibration.alpha, other.calibration.alpha) == (0.1, 0.2)
    assert other.calibration.threshold() < usual.calibration.threshold()
    with pytest.raises(ValueError, match="alpha"):
        opened(of, file, embeddings=of.embeddings(), alpha=1.5)
    with pytest.raises(TypeError, match="'on_emty' is not an option of a filter; give some of"):
        opened(of, file, embeddings=of.embeddings(), on_emty="raise")


@each_component
def test_a_model_may_be_given_as_the_scorer(of, file):
    assert opened(of, file, scorer=of.embeddings()).filter.scorer.name == NAME
    scorer = FunctionScorer(len, NAME)
    assert opened(of, file, scorer=scorer).filter.scorer is scorer


@each_component
def test_a_missing_model_is_named(of, file, monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", MockEmbedding(embed_dim=4))  # another one
    with pytest.raises((CalibrationMismatch, ValueError), match=re.escape(NAME)):
        opened(of, file)


@each_component
def test_a_wrong_model_is_refused(of, file):
    wrong = MiniLMEmbedding if of.embeddings is MiniLMEmbeddings else MiniLMEmbeddings
    for options in ({"embeddings": "MiniLM"}, {"embeddings": wrong()}, {"scorer": len}):
        with pytest.raises(TypeError, match="model is"):
            opened(of, file, **options)
    with pytest.raises(TypeError, match=r"model .*is a int"):
        opened(of, file, llm=5)
    with pytest.raises((TypeError, AttributeError), match=of.embeddings.__name__):
        opened(of, file, llm=of.embeddings())


@each_component
def test_another_model_than_the_calibrated_one_is_refused(of, file):
    other = of.embeddings()
    other.model_name = "another-model"
    with pytest.raises(CalibrationMismatch, match=r"all-MiniLM-L6-v2.*another-model"):
        opened(of, file, embeddings=other)
    with pytest.raises(CalibrationMismatch):
        opened(of, file, scorer=FunctionScorer(len, "rating(a model)"))


@each_component
def test_a_model_without_a_name_needs_one(of, file):
    nameless = of.embeddings()
    nameless.model_name = "unknown"
    with pytest.raises(ValueError, match=r"scorer=embedding_scorer\(.*name=") as refused:
        opened(of, file, embeddings=nameless)
    assert of.embeddings.__name__ in str(refused.value)
    scorer = of.package.embedding_scorer(nameless, name=NAME)
    assert opened(of, file, scorer=scorer).filter.scorer is scorer
    with pytest.raises(TypeError, match="is 'all-MiniLM-L6-v2'; give the embedding model itself"):
        of.package.embedding_scorer("all-MiniLM-L6-v2")


# --- judging --------------------------------------------------------------------------------------


def index():
    return VectorStoreIndex([TextNode(text="near")], embed_model=MockEmbedding(embed_dim=4))


@each_framework
def test_both_judge_queries_concurrently_and_in_order(of):
    queries = [JudgedQuery(f"q{i}", ["near", "far"], [True, True], id=str(i)) for i in range(6)]
    barrier = threading.Barrier(3, timeout=30)  # broken unless three run at a time

    def found(query):
        barrier.wait()
        return of.given(["near"])

    options = {"name": "mine", "max_concurrency": 3}
    judged = of.package.judge_retriever(of.retriever(found), queries, **options)
    assert [query.id for query in judged] == [query.id for query in queries]
    assert {(q.relevant, q.missed, q.retriever) for q in judged} == {((True,), 1, "mine")}


def test_a_local_model_has_the_same_name_in_any_folder(tmp_path, monkeypatch):
    (tmp_path / "models" / MODEL).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for path in (f"/models/{MODEL}", f"models/{MODEL}/"):
        local, other = MiniLMEmbeddings(), MiniLMEmbedding(model_name=path)
        local.model_name = path
        store = InMemoryVectorStore.from_texts(["a"], local).as_retriever()
        index = VectorStoreIndex([TextNode(text="a")], embed_model=other).as_retriever()
        for package, model, one in (
            (langchain_conformal, local, store),
            (llama_index_conformal, other, index),
        ):
            (judged,) = package.judge_retriever(one, ["q"])
            assert re.search(rf"\({MODEL}, |, {MODEL}\)", judged.retriever.name)
            assert package.as_scorer(model).name == NAME


def filtered_by():
    return ConformalRetriever(retriever=FOUND, filter=CONFORMAL_FILTER)


@pytest.mark.parametrize(
    "filtered",
    [
        filtered_by(),
        filtered_by().configurable_fields(alpha=ConfigurableField(id="alpha")),
        filtered_by().with_config(tags=["ours"]),
        filtered_by().with_retry(),
        compressing(FOUND, ConformalCompressor(filter=CONFORMAL_FILTER)),
        compressing(FOUND, Reversed(), ConformalCompressor(filter=CONFORMAL_FILTER)),
        EnsembleRetriever(retrievers=[FOUND, filtered_by()]),
        filtered_by() | RunnableLambda(list),
        RunnableLambda(list).with_fallbacks([filtered_by()]),
        MultiQueryRetriever(retriever=filtered_by(), llm_chain=RunnableLambda(len)),
        langchain_conformal.HybridRetriever({"dense": filtered_by()}),
        langchain_conformal.HybridRetriever({"dense": filtered_by()}).with_retry(),
    ],
)
def test_a_filtered_retriever_is_refused(filtered):
    with pytest.raises(ValueError, match=r"\.retriever or \.base_retriever"):
        langchain_conformal.judge_retriever(filtered, [QUERY])
    with pytest.raises(ValueError, match=r"\.retriever or \.base_retriever"):
        ConformalRetriever(retriever=filtered, filter=CONFORMAL_FILTER)


def test_documents_that_a_filter_has_kept_are_warned_of_in_the_next():
    compressor, kept = ConformalCompressor(filter=CONFORMAL_FILTER), filtered_by().invoke("q")
    with pytest.warns(UserWarning, match="documents have conformal_p_value .* a filter has kept"):
        compressor.compress_documents(kept, "q")


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
def test_anything_but_a_retriever_is_refused(package, make):
    with pytest.raises(TypeError, match="retriever"):
        package.judge_retriever(make(), [QUERY])
    if package is langchain_conformal:
        with pytest.raises(TypeError, match="as_retriever"):
            ConformalRetriever(retriever=make(), filter=CONFORMAL_FILTER)


@pytest.mark.parametrize(
    ("judged", "named"),
    [
        ("q", "judged is"),
        ([QUERY, {"query": "q"}], r"judged\[1\]"),
        ({"q": ["1"]}, r"judged is \{'q': .*; give .*JudgedQuery\.from_ids"),
    ],
)
@each_package
def test_what_is_neither_a_judged_query_nor_a_question_is_named(package, make, judged, named):
    with pytest.raises(TypeError, match=named):
        package.judge_retriever(make(), judged)
