"""HybridRetriever of both packages: the union, its hits, and retrievers that fail."""

import asyncio
import json
import logging
import pickle
import threading
import warnings
from contextvars import ContextVar

import numpy as np
import pytest
from frameworks import compressing, filter_at, ids_of
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from llama_index.core import MockEmbedding, VectorStoreIndex, schema
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters
from llama_index.postprocessor import conformal as llama_index_conformal
from llama_index.retrievers.bm25 import BM25Retriever
from pydantic import Field

import langchain_conformal
from conformal_retrievers import ConformalFilter, FunctionScorer, LearnedScorer, RetrievalScorer
from conformal_retrievers.calibration import calibrate, calibrate_gate
from conformal_retrievers.data import JudgedQuery, Snippet
from conformal_retrievers.data.hits import Hit, fusion
from conformal_retrievers.monitoring import read_log
from conformal_retrievers.results import Unscorable
from conformal_retrievers.scoring import (
    BestScore,
    FusionScorer,
    QueryZScore,
    RankScorer,
    ascore_snippets,
    score_snippets,
)
from langchain_conformal import ConformalCompressor, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor, NodeWithHits

LISTS = {
    "dense": [("1", "red apple", 0.9), ("2", "green apple", 0.7), ("3", "red car", 0.1)],
    "bm25": [("3", "red car", 7.0), ("4", "blue car", 6.0), ("2", "green apple", 0.0)],
}
HITS = {
    "3": (Hit("dense", 2, 0.1), Hit("bm25", 0, 7.0)),  # 1/63 + 1/61
    "2": (Hit("dense", 1, 0.7), Hit("bm25", 2, 0.0)),  # 1/62 + 1/63
    "1": (Hit("dense", 0, 0.9),),  # 1/61
    "4": (Hit("bm25", 1, 6.0),),  # 1/62
}
TEXTS = {id: text for items in LISTS.values() for id, text, _ in items}
caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Down(Exception):
    """What a store raises that is down."""


def listed(retriever):
    """Return a list, or raise, once as many others are asked as the barrier waits for."""
    if retriever.barrier is not None:
        retriever.barrier.wait()
    if retriever.items and isinstance(retriever.items[0], Exception):
        raise retriever.items[0]
    return retriever.items


class Listed(LangChainRetriever):
    items: list
    barrier: object = None
    k: int = 3
    seen: list = Field(default_factory=list)

    def _get_relevant_documents(self, query, *, run_manager):
        self.seen.append((caller.get(), run_manager.parent_run_id is not None))
        return [
            Document(text, id=id, metadata=metadata | {"relevance_score": score})
            for id, text, score in listed(self)
            for metadata in [{"source": "s", "start_index": len(text)}]
        ]


class Other(Listed):
    """A retriever of another kind."""


class ListedNodes(LlamaIndexRetriever):
    def __init__(self, items, barrier=None):
        super().__init__()
        self.items, self.barrier, self.similarity_top_k, self.seen = items, barrier, 3, []

    def _retrieve(self, query_bundle):
        self.seen.append((caller.get(), query_bundle.embedding is None))
        query_bundle.embedding = [1.0]  # as a VectorIndexRetriever does
        return [
            schema.NodeWithScore(node=schema.TextNode(text=text, id_=id), score=score)
            for id, text, score in listed(self)
        ]


class InLangChain:
    package, module = langchain_conformal, langchain_conformal.documents
    asking = "_aget_relevant_documents"
    listed = staticmethod(lambda items, barrier=None: Listed(items=items, barrier=barrier))

    def retrieve(self, hybrid, **config):
        return hybrid.invoke("q", config)

    async def aretrieve(self, hybrid, **config):
        return await hybrid.ainvoke("q", config)

    async def found(self, hybrid):
        """What it finds as (id, hits), which is the same asynchronously."""
        documents = hybrid.invoke("q")
        assert await hybrid.ainvoke("q") == documents
        json.dumps([d.metadata for d in documents], allow_nan=False)
        known = [d.metadata["conformal_hits"] for d in documents]
        return [
            (d.id, tuple(Hit(name, *place) for name, place in hits.items() if place))
            for d, hits in zip(documents, known, strict=True)
        ]

    def filter_once(self, hybrid, conformal_filter):
        return ConformalRetriever(retriever=hybrid, filter=conformal_filter).invoke("q")

    def filter_best(self, hybrid, keep):
        ConformalCompressor(filter=keep).compress_documents(hybrid.invoke("q")[:1], "q")

    async def kept(self, hybrid, conformal_filter):
        filtered = ConformalRetriever(retriever=hybrid, filter=conformal_filter)
        chain = compressing(hybrid, ConformalCompressor(filter=conformal_filter))
        kept = ids_of(filtered.invoke("q"))
        assert ids_of(await filtered.ainvoke("q")) == kept
        assert ids_of(chain.invoke("q")) == ids_of(await chain.ainvoke("q")) == kept
        return kept


class InLlamaIndex:
    package, module = llama_index_conformal, llama_index_conformal.nodes
    asking = "_aretrieve"
    listed = ListedNodes

    def retrieve(self, hybrid):
        return hybrid.retrieve("q")

    async def aretrieve(self, hybrid):
        return await hybrid.aretrieve("q")

    async def found(self, hybrid):
        nodes = hybrid.retrieve("q")
        assert await hybrid.aretrieve("q") == nodes
        assert [node.score for node in nodes] == fusion([node.hits for node in nodes])
        assert all(node.node.metadata == {} for node in nodes)
        shown = [node.get_content(schema.MetadataMode.LLM) for node in nodes]
        assert shown == [TEXTS[node.node_id] for node in nodes]
        return [(node.node_id, node.hits) for node in nodes]

    def filter_once(self, hybrid, conformal_filter):
        postprocessor = ConformalPostprocessor(filter=conformal_filter)
        return postprocessor.postprocess_nodes(hybrid.retrieve("q"), query_str="q")

    def filter_best(self, hybrid, keep):
        ConformalPostprocessor(filter=keep).postprocess_nodes(hybrid.retrieve("q")[:1], None, "q")

    async def kept(self, hybrid, conformal_filter):
        keep = ConformalPostprocessor(filter=conformal_filter)
        engine = RetrieverQueryEngine.from_args(hybrid, llm=MockLLM(), node_postprocessors=[keep])
        kept = ids_of(engine.query("q").source_nodes)
        assert ids_of((await engine.aquery("q")).source_nodes) == kept
        return kept


@pytest.fixture(params=[InLangChain(), InLlamaIndex()], ids=["langchain", "llama-index"])
def framework(request):
    return request.param


def hybrid_in(framework, lists=LISTS, barrier=None, **options):
    retrievers = {name: framework.listed(items, barrier) for name, items in lists.items()}
    return framework.package.HybridRetriever(retrievers, **options)


FUSED = FusionScorer(["dense", "bm25"])


def fit_part():
    rng = np.random.default_rng(0)
    for i in range(12):
        places = {name: rng.permutation(6) for name in ("bm25", "dense")}
        snippets = [
            Snippet(
                "word " * int(rng.integers(1, 9)),
                document=f"document {j // 2}",
                hits=tuple(Hit(name, int(at[j]), 9.0 - at[j]) for name, at in places.items()),
            )
            for j in range(6)
        ]
        yield JudgedQuery(f"query {i}", snippets, [j == i % 6 for j in range(6)])


LEARNED = LearnedScorer.fit(fit_part())
SNIPPETS = [Snippet(TEXTS[id], id, hits=hits) for id, hits in HITS.items()]
GATE = calibrate_gate(
    [JudgedQuery("q", SNIPPETS, [True, False, False, False])], (), BestScore(FUSED), alpha=0.5
)


# --- the union ------------------------------------------------------------------------------------


async def test_the_union_is_in_the_order_of_fusion_and_keeps_every_hit(framework):
    assert await framework.found(hybrid_in(framework)) == [*HITS.items()]


async def test_both_keep_the_same_snippets(framework):
    for scorer, threshold, kept in (
        (FUSED, -fusion([HITS["2"]])[0], ["3", "2"]),
        (RankScorer("dense"), 1, ["2", "1"]),
        (RankScorer("bm25"), 0, ["3"]),
        (RetrievalScorer("bm25"), -5.0, ["3", "4"]),
    ):
        assert await framework.kept(hybrid_in(framework), filter_at(scorer, threshold)) == kept


def test_judged_queries_have_the_hits_names_and_depth_of_all(framework):
    query = JudgedQuery("q", [*TEXTS.values(), "none"], [True] * 5, id="1")
    (judged,) = framework.package.judge_retriever(hybrid_in(framework), [query])
    assert [(s.id, s.hits) for s in judged.snippets] == [*HITS.items()]
    assert [s.retrieval_score for s in judged.snippets] == fusion(HITS.values())
    assert (judged.k, judged.missed) == (6, 1)
    assert all(name in str(judged.retriever) for name in ("bm25: ", "; dense: ", "k = 3"))
    own = framework.package.judge_retriever(hybrid_in(framework), [query], name="mine")
    assert own[0].retriever == "mine"


def test_retrievers_of_the_other_framework_are_not_taken_for_others():
    query = JudgedQuery("q", [*TEXTS.values()], [True] * 4, id="1")
    judged = langchain_conformal.judge_retriever(hybrid_in(InLangChain()), [query])
    assert "dense: Listed(), k = 3" in str(judged[0].retriever)
    keep = ConformalFilter(FUSED, calibrate(judged, FUSED, alpha=0.5))
    InLlamaIndex().filter_once(hybrid_in(InLlamaIndex()), keep)  # a warning is an error


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_all_are_asked_at_once_in_the_callers_context(framework, asynchronous):
    hybrid = hybrid_in(framework, barrier=threading.Barrier(2, timeout=30))
    caller.set("me")
    in_langchain, seen = framework.package is langchain_conformal, Runs()
    config = {"callbacks": [seen]} if in_langchain else {}
    if asynchronous:
        await framework.aretrieve(hybrid, **config)
    else:
        framework.retrieve(hybrid, **config)
    assert [one for r in hybrid.retrievers.values() for one in r.seen] == [("me", True)] * 2
    if in_langchain:
        assert sorted(seen.tags) == [[], ["retriever:bm25"], ["retriever:dense"]]
        assert seen.parents == 2


class Runs(BaseCallbackHandler):
    def __init__(self):
        self.tags, self.parents = [], 0

    def on_retriever_start(self, serialized, query, *, parent_run_id=None, tags=None, **kwargs):
        self.tags.append(tags or [])
        self.parents += parent_run_id is not None


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_cancelled_call_or_an_error_cancels_all_that_wait(framework, how):
    begun, stopped = [], []

    async def wait(*arguments, **options):
        begun.append(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(1)
            raise

    async def fail(*arguments, **options):
        while not begun:
            await asyncio.sleep(0.001)
        raise Down

    hybrid = hybrid_in(framework)
    methods = (wait, wait if how == "cancelled" else fail)
    for retriever, method in zip(hybrid.retrievers.values(), methods, strict=True):
        retriever.__class__ = type("Own", (type(retriever),), {framework.asking: method})
    task = asyncio.create_task(framework.aretrieve(hybrid))
    if how == "cancelled":
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        task.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else Down):
        await asyncio.wait_for(task, timeout=30)
    await asyncio.sleep(0)
    assert stopped == [1] * methods.count(wait)


def test_a_hybrid_retriever_refuses_what_is_not_a_retriever_or_a_name(framework):
    good = framework.listed(LISTS["dense"])
    for retrievers, options, field in (
        ({}, {}, "retrievers is empty"),
        ([good], {}, r"retrievers is a list; give .* {'dense': …, 'bm25': …}$"),
        ({"dense": good, "bm25": "bm25"}, {}, r"retrievers\['bm25'\]"),
        ({3: good}, {}, "name"),
        ({"dense": good}, {"on_error": "ignore"}, "on_error"),
    ):
        with pytest.raises((TypeError, ValueError), match=field):
            framework.package.HybridRetriever(retrievers, **options)


def test_a_hybrid_retriever_without_one_that_the_score_reads_is_refused(framework):
    hybrid = hybrid_in(framework, {"dense": LISTS["dense"]})
    dense = filter_at(RankScorer("dense"), 0)
    for needs_both in (filter_at(LEARNED, 0), dense.with_gate(GATE)):
        with pytest.raises(ValueError, match="hits of 'dense', .* needs those of 'bm25'"):
            framework.filter_once(hybrid, needs_both)
    framework.filter_once(hybrid, dense)


def test_what_drops_documents_behind_a_hybrid_retriever_is_warned_of(framework):
    with pytest.warns(UserWarning, match="something drops snippets"):  # the third of dense is left
        framework.filter_best(hybrid_in(framework), filter_at(RankScorer("dense"), 0))


# --- failures -------------------------------------------------------------------------------------

FAILING = {**LISTS, "bm25": [Down("the store is down")]}


async def test_a_retriever_that_fails_is_an_error_by_default(framework):
    with pytest.raises(Down) as caught:
        await framework.found(hybrid_in(framework, FAILING))
    assert caught.value.__notes__[0] == "the retriever 'bm25' failed"
    all_failing = {name: [Down(name)] for name in LISTS}
    with pytest.raises(Down, match="dense"):
        await framework.found(hybrid_in(framework, all_failing, on_error="skip"))
    with pytest.raises(Down):  # the others find nothing
        await framework.found(hybrid_in(framework, FAILING | {"dense": []}, on_error="skip"))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_judging_raises_if_a_retriever_fails_naming_it_and_the_query(framework, on_error, caplog):
    hybrid = hybrid_in(framework, FAILING, on_error=on_error)
    with pytest.raises(RuntimeError, match=r"query 'why\?': .*the store is down.*'bm25'") as caught:
        framework.package.judge_retriever(hybrid, [JudgedQuery.from_ids("why?", ["1"])])
    assert isinstance(caught.value.__cause__, Down)
    assert not caplog.records  # nothing was calibrated with what failed


@pytest.mark.filterwarnings("ignore:.*could not score any snippet")
async def test_a_retriever_that_is_skipped_is_logged_once_and_seen_in_the_event(
    framework, caplog, log, handled
):
    hybrid = hybrid_in(framework, FAILING, on_error="skip")
    with caplog.at_level(logging.WARNING):
        assert await framework.found(hybrid) == [
            (id, (Hit("dense", rank, score),)) for rank, (id, _, score) in enumerate(LISTS["dense"])
        ]
        await framework.found(hybrid)
    assert sum("'bm25'" in record.message for record in caplog.records) == 1
    conformal_filter = filter_at(FUSED, -fusion([HITS["1"]])[0])
    if framework.package is langchain_conformal:
        handler = langchain_conformal.ConformalCallbackHandler(log)
        filtered = ConformalRetriever(retriever=hybrid, filter=conformal_filter)
        kept = filtered.invoke("q", {"callbacks": [handler]})
        assert kept[0].metadata["conformal_hits"] == {"dense": [0, 0.9], "bm25": None}
    else:
        handled(llama_index_conformal.ConformalEventHandler(log))
        await framework.kept(hybrid, conformal_filter)
    event = next(read_log(log.path))
    assert (event["failed_retrievers"], event["kept"]) == (["bm25"], [0, 1, 2])
    assert "retrievers that failed: bm25" in caplog.text
    await framework.kept(hybrid_in(framework), conformal_filter)


@pytest.mark.filterwarnings("ignore:.*could not score any snippet")
async def test_all_are_kept_if_a_retriever_that_the_score_reads_fails(framework):
    hybrid = hybrid_in(framework, FAILING, on_error="skip")
    for scorer in (FUSED, LEARNED, RankScorer("bm25")):
        assert await framework.kept(hybrid, filter_at(scorer, -np.inf)) == ["1", "2", "3"]
    assert await framework.kept(hybrid, filter_at(RankScorer("dense"), 0)) == ["1"]
    with pytest.raises(Unscorable, match=r"snippets \[0, 1, 2\]"):
        await framework.kept(hybrid, filter_at(FUSED, -np.inf, on_unscorable="raise"))


@pytest.mark.filterwarnings("ignore:.*could not score any snippet")
@pytest.mark.parametrize("scorer", [FUSED, RetrievalScorer("dense")])
async def test_a_gate_is_silent_if_a_retriever_finds_nothing_and_not_if_it_fails(framework, scorer):
    always = filter_at(scorer, 1.0, gate=GATE)  # its score is worse where one finds nothing
    assert await framework.kept(hybrid_in(framework), always)
    assert await framework.kept(hybrid_in(framework, {**LISTS, "bm25": []}), always) == []
    assert await framework.kept(hybrid_in(framework, FAILING, on_error="skip"), always)


# --- columns --------------------------------------------------------------------------------------


async def test_columns_are_those_of_snippets_and_become_them_once_a_scorer_reads_one(framework):
    found, module = framework.retrieve(hybrid_in(framework)), framework.module
    columns_of = getattr(module, "RetrievedDocuments", None) or module.RetrievedNodes
    if framework.package is llama_index_conformal:
        source, parent = (schema.RelatedNodeInfo(node_id=id) for id in "sp")
        for i, node in enumerate(found):
            node.node.relationships[schema.NodeRelationship.SOURCE] = source
            node.node.start_char_idx, node.node.end_char_idx = i, i + 1
        found[0].node.relationships[schema.NodeRelationship.PARENT] = parent
    snippets, dense = module.to_snippets(found), RetrievalScorer("dense")
    # Of LlamaIndex, it would be counted from a parent.
    assert snippets[0].position == (7 if framework.package is langchain_conformal else None)
    scorers = [RankScorer("dense"), dense, RetrievalScorer("bm25"), FUSED, LEARNED]
    for scorer in (*scorers, QueryZScore(dense)):
        keep = filter_at(scorer, 0)
        given, expected = columns_of(found), scorer.score("q", snippets)
        assert np.isfinite(expected[:2]).all()
        assert [*given.documents] == [snippet.document for snippet in snippets]
        assert [*given.positions] == [snippet.position for snippet in snippets]
        for scores in (
            score_snippets(scorer, "q", given),
            await ascore_snippets(scorer, "q", given),
            keep("q", given).scores,
        ):
            np.testing.assert_array_equal(scores, expected)
    length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    given = columns_of(found)
    assert ([*given], given.texts is given.texts) == (snippets, True)  # read once
    assert (given[0].id, len(given), [s.id for s in given[1:]]) == ("3", 4, ["2", "1", "4"])
    assert length.score("q", given).tolist() == [len(TEXTS[id]) for id in HITS]
    assert {*given.hits} == {"bm25", "dense"}
    assert [*given.texts] == [TEXTS[id] for id in HITS]


# --- LangChain ------------------------------------------------------------------------------------


def test_kept_documents_have_hits_unless_metadata_are_to_be_unchanged():
    hybrid = hybrid_in(InLangChain())
    keep = filter_at(FUSED, -fusion([HITS["2"]])[0])
    marks = {"conformal_hits", "conformal_score", "conformal_p_value"}
    for prefix, keys in (("conformal_", marks), (None, set())):
        filtered = ConformalRetriever(retriever=hybrid, filter=keep, metadata_prefix=prefix)
        for document in filtered.invoke("q"):
            assert document.metadata.keys() == {"source", "start_index"} | keys


def test_documents_of_the_retrievers_are_not_changed():
    mine = [Document("a", metadata={"nested": {}})]
    hybrid = langchain_conformal.HybridRetriever(
        {"one": RunnableLambda(lambda query: mine), "other": RunnableLambda(lambda query: mine)}
    )
    (found,) = hybrid.invoke("q")
    assert found.metadata["conformal_hits"] == {"one": [0, None], "other": [0, None]}
    assert mine[0].metadata == {"nested": {}}


def test_what_a_caller_configures_reaches_the_retrievers_inside():
    listed = Listed(items=LISTS["dense"]).configurable_fields(items=ConfigurableField(id="items"))
    hybrid = langchain_conformal.HybridRetriever({"dense": listed})
    config = {"configurable": {"items": LISTS["bm25"]}}
    filtered = ConformalRetriever(retriever=hybrid, filter=filter_at(RankScorer("dense"), 0))
    assert [d.id for d in filtered.invoke("q")] == ["1"]
    assert [d.id for d in filtered.invoke("q", config)] == ["3"]
    assert [d.id for d in asyncio.run(hybrid.ainvoke("q", config))] == ["3", "4", "2"]


def test_another_retriever_or_depth_in_a_hybrid_one_gives_a_warning():
    queries = [JudgedQuery("q", [*TEXTS.values()], [True, False, False, False])]
    hybrid = hybrid_in(InLangChain())
    (judged,) = langchain_conformal.judge_retriever(hybrid, queries)
    keep = ConformalFilter.of(calibrate([judged], RankScorer("dense"), alpha=0.5))

    def warning_of(retriever):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            InLangChain().filter_once(retriever, keep)
        return " ".join({str(one.message) for one in caught})

    assert warning_of(hybrid) == ""
    for depth in (1, 4):
        hybrid.retrievers["bm25"].k = depth
        text = warning_of(hybrid)
        assert f"'bm25' is asked for {depth} documents" in text
        assert "'dense'" not in text
    hybrid.retrievers.update(bm25=Other(items=[]), dense=Listed(items=LISTS["dense"], k=2))
    text = warning_of(hybrid)
    assert "'bm25' is Other(), but the calibration is of Listed()" in text
    assert "'dense' is asked for 2 documents" in text
    one = langchain_conformal.HybridRetriever({"dense": Listed(items=LISTS["dense"])})
    assert "the retriever is HybridRetriever(dense: Listed" in warning_of(one)


# --- LlamaIndex -----------------------------------------------------------------------------------


def test_another_depth_search_mode_or_metadata_filter_of_an_index_gives_a_warning():
    nodes = [schema.TextNode(text=t, id_=i, metadata={"id": i}) for i, t in TEXTS.items()]
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(2))

    def hybrid(k=4, **settings):
        dense = index.as_retriever(similarity_top_k=k, **settings)
        words = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=k)
        return llama_index_conformal.HybridRetriever({"dense": dense, "bm25": words})

    judged = llama_index_conformal.judge_retriever(hybrid(), [JudgedQuery.from_ids("q", [*TEXTS])])
    keep = ConformalFilter.of(calibrate(judged, RankScorer("dense"), alpha=0.5))
    only = hybrid(filters=MetadataFilters(filters=[MetadataFilter(key="id", value="1")]))
    others = hybrid(2), hybrid(vector_store_query_mode="mmr"), only
    texts = "'dense'.*'bm25' is asked", "mmr", "or judge queries with their filters"
    for other, text in zip(others, texts, strict=True):
        with pytest.warns(UserWarning, match=text):
            InLlamaIndex().filter_once(other, keep)


def test_nodes_with_hits_survive_copies_pickles_and_json():
    (node, *_) = hybrid_in(InLlamaIndex()).retrieve("q")
    for twin in (pickle.loads(pickle.dumps(node)), node.model_copy(), node.model_copy(deep=True)):
        assert (type(twin), twin, twin.hits) == (NodeWithHits, node, HITS["3"])
        assert all(type(hit) is Hit for hit in twin.hits)


def test_a_node_that_came_later_has_no_hits_and_is_kept_as_a_copy():
    nodes = hybrid_in(InLlamaIndex()).retrieve("q")
    nodes.append(schema.NodeWithScore(node=schema.TextNode(text="later", id_="5")))
    keep = ConformalPostprocessor(filter=filter_at(RankScorer("bm25"), 0))
    kept = keep.postprocess_nodes(nodes, query_str="q")
    assert kept == [nodes[0], nodes[-1]]
    assert kept[0] is not nodes[0]
