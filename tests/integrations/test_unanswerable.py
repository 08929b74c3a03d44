"""`without_answers` of both packages: real retrievers as they look if nothing answers a query."""

import copy

import pytest

pytest.importorskip("langchain_chroma")  # which `make test-all` installs
from frameworks import (
    K,
    MiniLMEmbedding,
    OfNodes,
    each_package,
    halves,
    index_retriever,
    langchain_retriever,
    retriever_of,
    snippets,
    vector_store,
    with_evidence,
)
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.postprocessor import conformal as llama_index_conformal
from vector_stores import bm25, bm25_of_nodes, chroma_in_memory

import langchain_conformal
from conformal_retrievers import JudgedQuery


def hybrid(package, **parts):
    return package.HybridRetriever(parts)


def package_of(retriever):
    in_llama_index = isinstance(retriever, LlamaIndexRetriever)
    return llama_index_conformal if in_llama_index else langchain_conformal


IN_LANGCHAIN = {
    "in memory": langchain_retriever,
    "Chroma": lambda: chroma_in_memory("langchain", "l2").as_retriever(search_kwargs={"k": K}),
    "mmr": lambda: vector_store().as_retriever(
        search_type="mmr", search_kwargs={"k": K, "fetch_k": len(snippets())}
    ),
    "threshold": lambda: chroma_in_memory("langchain", "l2").as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"k": K, "score_threshold": -2.0}
    ),
    "default depth": lambda: chroma_in_memory("langchain", "l2").as_retriever(),
    "BM25": bm25,
    "hybrid": lambda: hybrid(langchain_conformal, dense=langchain_retriever(), bm25=bm25(k=5)),
}
IN_LLAMA_INDEX = {
    "in memory": index_retriever,
    "Chroma": lambda: chroma_in_memory("llama_index", "l2").as_retriever(similarity_top_k=K),
    "BM25": bm25_of_nodes,
    "hybrid": lambda: hybrid(llama_index_conformal, dense=index_retriever(), bm25=bm25_of_nodes()),
}
EACH = pytest.mark.parametrize("make", [*IN_LANGCHAIN.values(), *IN_LLAMA_INDEX.values()])


def lists(query):
    """Each retriever's list as (rank, text, score)."""
    found = {name: [] for s in query.snippets for name, *_ in s.hits}
    for snippet in query.snippets:
        for name, rank, score in snippet.hits:
            found[name].append((rank, snippet.text, score))
    return {name: sorted(one, key=lambda hit: hit[0]) for name, one in sorted(found.items())}


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*fewer snippets", "ignore:Relevance", "ignore:.*nowhere in")
@EACH
def test_nothing_but_the_texts_tells_that_relevant_ones_were_taken_out(make):
    queries, retriever = halves()[0][:15], make()
    package = package_of(retriever)
    retrieved = package.judge_retriever(retriever, queries)
    made = package.without_answers(retriever, queries)
    for known, before, after in zip(queries, retrieved, made, strict=True):
        relevant = {s.text for s, r in zip(known.snippets, known.relevant, strict=True) if r}
        assert relevant.isdisjoint(s.text for s in after.snippets)
        assert (after.retriever, after.k, after.split) == (before.retriever, before.k, None)
        assert (after.id, after.missed, after.answerable) == (known.id, 0, False)
        was, now = lists(before), lists(after)
        assert [*was] == [*now]
        for name, own in was.items():
            assert [rank for rank, *_ in now[name]] == [*range(len(own))]
            rest = [hit[1:] for hit in own if hit[1] not in relevant]
            assert [text for _, text, _ in now[name]][: len(rest)] == [text for text, _ in rest]
            scores = [score for _, _, score in now[name]][: len(rest)]
            assert scores == [score if score is None else pytest.approx(score) for _, score in rest]
        assert (was != now) == any(before.relevant)
    assert any(any(query.relevant) for query in retrieved)
    assert package.judge_retriever(retriever, queries) == retrieved  # it is as it was


@pytest.mark.slow
@each_package
def test_of_sentences_the_documents_with_evidence_go(package, make):
    queries = with_evidence(halves()[0][:8])
    retrieved = package.judge_retriever(make(4 * K), queries, split="sentences")
    made = package.without_answers(make(4 * K), queries, split="sentences")
    for known, before, after in zip(queries, retrieved, made, strict=True):
        named = {one.document for one in known.evidence}
        assert named.isdisjoint(s.id.rpartition(":")[0] for s in after.snippets)
        assert (after.split, after.k, len(set(after.document_of))) == (before.split, 4 * K, 4 * K)
        assert {hit.rank for s in after.snippets for hit in s.hits} == {*range(4 * K)}


# --- the depth ------------------------------------------------------------------------------------

TEXTS = ["red apple", "green apple", "red car", "blue car", "green pear"]
QUERY = JudgedQuery("red apple", TEXTS, [True, False, False, False, False], id="1")


def store(k):
    return retriever_of(TEXTS, k)


def small(k):
    texts = [TextNode(text=text, id_=text) for text in TEXTS]
    return VectorStoreIndex(texts, embed_model=MiniLMEmbedding()).as_retriever(similarity_top_k=k)


def function(k):
    return RunnableLambda(lambda query: store(k).invoke(query), name="mine")


class Named(LangChainRetriever):
    """Has no depth that can be set."""

    inside: LangChainRetriever

    def _get_relevant_documents(self, query, *, run_manager):
        return self.inside.invoke(query)


BOTH = pytest.mark.parametrize(
    ("package", "make"), [(langchain_conformal, store), (llama_index_conformal, small)]
)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (function, "mine"),
        (lambda k: Named(inside=store(k)), "Named"),
        (lambda k: store(5).bind(k=k).with_retry(), "InMemoryVectorStore"),
        (lambda k: OfNodes(small(k)), "OfNodes"),
        (lambda k: hybrid(langchain_conformal, a=store(k), b=function(k)), "mine"),
        (lambda k: hybrid(llama_index_conformal, a=small(k), b=OfNodes(small(k))), "OfNodes"),
    ],
)
def test_a_retriever_whose_depth_cannot_be_set_is_given_deeper(make, name):
    package = package_of(make(2))
    with pytest.raises(ValueError, match=rf"{name}.*deeper="):
        package.without_answers(make(2), [QUERY])
    (retrieved,) = package.judge_retriever(make(2), [QUERY])
    (made,) = package.without_answers(make(2), [QUERY], deeper=make(4))
    assert [s.text for s in retrieved.snippets] == ["red apple", "green apple"]
    assert [s.text for s in made.snippets] == ["green apple", "red car"]
    assert (made.k, made.retriever) == (retrieved.k, retrieved.retriever)


@BOTH
def test_a_small_corpus_gives_one_warning_with_the_number(package, make):
    others = [JudgedQuery("blue car", ["none of them"], [True], id=str(i)) for i in range(3)]
    with pytest.warns(UserWarning, match="1 of 4 queries") as caught:
        made = package.without_answers(make(5), [QUERY, *others])
    assert [warning.filename for warning in caught] == [__file__]
    assert [len(query.snippets) for query in made] == [4, 5, 5, 5]
    assert {query.k for query in made} == {5}


@BOTH
def test_what_is_given_is_checked(package, make):
    retriever = make(2)
    for given, judged, options, named in (
        (retriever, JudgedQuery("q", ["red car"], [True], missed=1), {}, "missed"),
        (retriever, "q", {}, "judged"),
        (len, QUERY, {}, "retriever"),
        (retriever, QUERY, {"deeper": len}, "retriever"),
    ):
        with pytest.raises((TypeError, ValueError), match=named):
            package.without_answers(given, [judged], **options)
    known = copy.copy(QUERY)
    (named,) = package.without_answers(retriever, [known], name="mine", max_concurrency=1)
    assert (named.retriever, known) == ("mine", QUERY)


@BOTH
def test_an_unanswerable_query_is_judged_as_it_is(package, make):
    query = JudgedQuery("blue car", [], [], answerable=False)
    (judged,) = package.judge_retriever(make(2), [query])
    assert not judged.answerable
    assert [s.text for s in judged.snippets] == ["blue car", "red car"]
    assert package.without_answers(make(2), [query]) == [judged]


# --- retrievers that fuse -------------------------------------------------------------------------


def ensemble():
    parts = [langchain_retriever(), langchain_retriever()]
    return EnsembleRetriever(retrievers=parts, weights=[0.5, 0.5])


def fusion():
    parts = [index_retriever(), index_retriever()]
    return QueryFusionRetriever(parts, llm=MockLLM(), num_queries=1)


def alternatives():
    which = ConfigurableField(id="which")
    return langchain_retriever().configurable_alternatives(which, fused=ensemble())


@pytest.mark.parametrize(
    "make",
    [
        ensemble,
        lambda: ensemble().with_retry().with_config(tags=["mine"]),
        lambda: hybrid(langchain_conformal, a=langchain_retriever(), b=ensemble()),
        lambda: Named(inside=ensemble()),
        lambda: alternatives().with_config(configurable={"which": "fused"}),
        lambda: langchain_retriever().with_fallbacks([ensemble()]),
        fusion,
        lambda: OfNodes(fusion()),
        lambda: hybrid(llama_index_conformal, a=index_retriever(), b=fusion()),
    ],
)
def test_a_retriever_that_fuses_is_refused(make):
    with pytest.raises(ValueError, match=r"retriever is (Ensemble|QueryFu).*HybridRetriever"):
        package_of(make()).without_answers(make(), halves()[0][:3], deeper=make())


def test_an_alternative_that_is_not_configured_may_fuse():
    queries, deeper = halves()[0][:3], langchain_retriever(2 * K)
    made = langchain_conformal.without_answers(alternatives(), queries, deeper=deeper)
    assert [*made[0].relevant] == [False] * K
