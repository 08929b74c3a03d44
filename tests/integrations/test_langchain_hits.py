"""Ranks and scores of LangChain's retrievers, and that asking for them changes nothing else."""

from __future__ import annotations

import asyncio
import copy
import json
import warnings

import pytest
from frameworks import MiniLMEmbeddings, compressing, cosine, filter_at, ids_of, texts_of
from langchain_classic import retrievers as classic
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.load import dumps
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever

from conformal_retrievers import ConformalFilter, FunctionScorer, JudgedQuery, calibrate
from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.scoring import BestScore, FusionScorer, RankScorer, RetrievalScorer
from langchain_conformal import (
    ConformalCompressor,
    ConformalRetriever,
    HybridRetriever,
    judge_retriever,
)
from langchain_conformal.around import with_scores
from langchain_conformal.documents import RetrievedDocuments, to_snippets, with_hits

TEXTS = ["red apple", "green apple", "red car", "blue car", "green pear"]
UNSCORED = pytest.warns(UserWarning, match="could not score any")
QUERY = JudgedQuery("red apple pie", TEXTS, [True, True, False, False, False], id="1")


class Normalised(InMemoryVectorStore):
    """A store with relevance scores, as the search by a score's threshold needs them."""

    def _select_relevance_score_fn(self):
        return lambda similarity: (1 + similarity) / 2


class Reversed(InMemoryVectorStore):
    """Searches in a way of its own, of which the search with scores knows nothing."""

    def similarity_search(self, query, k=4, **kwargs):
        return [d for d, _ in super().similarity_search_with_score(query, k)][::-1]

    async def asimilarity_search(self, query, k=4, **kwargs):
        return self.similarity_search(query, k, **kwargs)


class Failing(Reversed):
    """Finds documents, but not with scores."""

    error = TypeError

    def similarity_search_with_score(self, query, k=4):
        raise self.error("no index of scores")

    async def asimilarity_search_with_score(self, query, k=4):
        return self.similarity_search_with_score(query, k)


class WithoutScores(Failing):
    error = NotImplementedError


class Late(Failing):
    error = TimeoutError


class Down(InMemoryVectorStore):
    """Cannot be asked at all."""

    similarity_search = asimilarity_search = similarity_search_with_score = None


class InWords(Failing):
    def similarity_search_with_score(self, query, k=4):
        return [(document, "near") for document in self.similarity_search(query, k)]


class Own(VectorStoreRetriever):
    """A retriever with a search of its own, whose scores are not known."""

    def _get_relevant_documents(self, query, *, run_manager, **kwargs):
        return self.vectorstore.similarity_search(query, k=2)[::-1]

    async def _aget_relevant_documents(self, query, *, run_manager, **kwargs):
        return self._get_relevant_documents(query, run_manager=run_manager)


def store(kind=Normalised, metadata=lambda text: {"nested": {"n": len(text)}}):
    made = kind(MiniLMEmbeddings())
    made.add_documents([Document(text, id=text, metadata=metadata(text)) for text in TEXTS])
    return made


def retriever(k=3, kind=Normalised, **options):
    return store(kind).as_retriever(search_kwargs={"k": k, **options.pop("kwargs", {})}, **options)


def scored(n, step):
    """Return documents with the relevance scores 1, 1 − step and so on."""
    return [
        Document(text, id=str(i), metadata={"relevance_score": 1 - i * step})
        for i, text in enumerate(TEXTS[:n])
    ]


def red(document):
    return "red" in document.page_content


SIMILARITIES = {text: cosine(QUERY.query, text) for text in TEXTS}
NEAREST = sorted(TEXTS, key=SIMILARITIES.get, reverse=True)
SOME = RunnableLambda(lambda query: [Document(text) for text in NEAREST[1:3]])


# --- a vector store -------------------------------------------------------------------------------

FIELDS = retriever().configurable_fields(search_kwargs=ConfigurableField(id="kwargs"))


@pytest.mark.parametrize(
    ("asked", "n"),
    [
        (retriever(), 3),
        (retriever(k=5), 5),
        (retriever(kwargs={"filter": red}), 2),
        (retriever().bind(k=2), 2),
        (retriever().with_retry(), 3),
        (retriever().with_config(tags=["ours"]).with_retry().bind(k=2), 2),
        (FIELDS, 3),
        (FIELDS.with_config(configurable={"kwargs": {"k": 2}}), 2),
        (retriever(kind=Down).with_fallbacks([retriever()]), 3),
    ],
)
async def test_a_vector_store_tells_its_scores_and_returns_the_same_documents(asked, n):
    alone = asked.invoke(QUERY.query)
    assert len(alone) == n
    (judged,) = judge_retriever(asked, [QUERY])
    assert [s.id for s in judged.snippets] == [d.id for d in alone]
    for rank, snippet in enumerate(judged.snippets):
        assert snippet.retrieval_score == pytest.approx(SIMILARITIES[snippet.text], abs=1e-6)
        assert snippet.hits == (Hit(RETRIEVER, rank, snippet.retrieval_score),)
        assert type(snippet.retrieval_score) is float
    for found in (with_scores(asked).invoke(QUERY.query), await with_scores(asked).ainvoke("red")):
        assert all(d.metadata == {"nested": {"n": len(d.page_content)}} for d in found)
        assert found.scores == sorted(found.scores, reverse=True)
    assert with_scores(asked).invoke(QUERY.query) == asked.invoke(QUERY.query) == alone


@pytest.mark.parametrize(
    ("asked", "scores"),
    [
        (
            retriever(search_type="similarity_score_threshold", kwargs={"score_threshold": 0.0}),
            [(1 + SIMILARITIES[text]) / 2 for text in NEAREST[:3]],
        ),
        (retriever(search_type="mmr"), [None] * 3),
        (retriever(kind=Failing, kwargs={"filter": red}), [None] * 3),
        *((retriever(kind=k), [None] * 3) for k in (WithoutScores, Failing, InWords, Reversed)),
        (Own(vectorstore=store()), [None] * 2),
        (SOME, [None] * 2),
        (classic.EnsembleRetriever(retrievers=[retriever(), SOME]), [None] * 3),
    ],
)
async def test_other_searches_have_relevance_scores_or_ranks_only(asked, scores):
    (judged,), alone = judge_retriever(asked, [QUERY]), asked.invoke(QUERY.query)
    for found in (
        with_scores(asked).invoke(QUERY.query),
        await with_scores(asked).ainvoke(QUERY.query),
    ):
        assert found == alone
        assert not hasattr(found, "scores") or None not in scores
    assert [s.text for s in judged.snippets] == texts_of(alone)
    places = [(hit.retriever, hit.rank) for s in judged.snippets for hit in s.hits]
    assert places == [(RETRIEVER, rank) for rank in range(len(scores))]
    assert [s.hits[0].score for s in judged.snippets] == pytest.approx(scores, abs=1e-6)
    filtered = ConformalRetriever(retriever=asked, filter=filter_at(RankScorer(), 0))
    kept = [judged.snippets[0].text]
    assert texts_of(filtered.invoke(QUERY.query)) == kept
    assert texts_of(await filtered.ainvoke(QUERY.query)) == kept
    if None in scores:
        needing = ConformalRetriever(retriever=asked, filter=filter_at(RetrievalScorer(), 0))
        with pytest.warns(UserWarning, match="ranks and no scores"), UNSCORED:
            assert len(needing.invoke(QUERY.query)) == len(scores)


@pytest.mark.parametrize(
    ("kind", "error", "words"), [(Late, TimeoutError, "index"), (Down, TypeError, "not callable")]
)
async def test_a_store_that_is_down_is_not_taken_for_one_without_scores(kind, error, words):
    asked = with_scores(retriever(kind=kind))
    with pytest.raises(error, match=words):
        asked.invoke("red")
    with pytest.raises(error, match=words):
        await asked.ainvoke("red")


async def test_a_plain_vector_store_is_filtered_by_its_own_scores():
    threshold = -sum(SIMILARITIES[text] for text in NEAREST[1:3]) / 2
    plain = retriever(k=4)
    model = plain.vectorstore.embedding
    filtered = ConformalRetriever(retriever=plain, filter=filter_at(RetrievalScorer(), threshold))
    before = copy.deepcopy(plain.vectorstore.store)
    for documents in (filtered.invoke(QUERY.query), await filtered.ainvoke(QUERY.query)):
        assert texts_of(documents) == NEAREST[:2]
        assert documents[0].metadata["conformal_score"] == pytest.approx(-SIMILARITIES[NEAREST[0]])
    assert model.calls == 1 + 2  # the documents, and each query once
    assert plain.vectorstore.store == before
    assert filtered.retriever is plain
    for name, remedy in (("alpha", "configurable_fields"), ("group", "group_of=")):
        with pytest.warns(UserWarning, match=f"^{name}= went to the retriever.*{remedy}"):
            filtered.invoke(QUERY.query, **{name: 0.2})


class Seen(BaseCallbackHandler):
    def __init__(self):
        self.starts, self.ends = [], []

    def on_retriever_start(self, serialized, query, *, tags=None, metadata=None, **kwargs):
        self.starts.append((kwargs.get("name"), tags, metadata))

    def on_retriever_end(self, documents, **kwargs):
        self.ends.append(list(documents))


async def test_handlers_see_the_same_runs_of_the_retriever():
    asked = retriever(tags=["mine"], metadata={"team": "a"})
    filtered = ConformalRetriever(retriever=asked, filter=filter_at(RankScorer(), 1))
    alone, sync, asynchronous = Seen(), Seen(), Seen()
    asked.invoke("red", {"callbacks": [alone]})
    filtered.invoke("red", {"callbacks": [sync]})
    await filtered.ainvoke("red", {"callbacks": [asynchronous]})
    for seen in (sync, asynchronous):
        (_, (name, tags, metadata)), (documents, _) = seen.starts, seen.ends
        assert (name, tags) == alone.starts[0][:2] == ("VectorStoreRetriever", ["mine"])
        assert alone.starts[0][2].items() <= metadata.items()
        assert documents == alone.ends[0]


# --- without a store ------------------------------------------------------------------------------


async def test_a_compressor_has_ranks_and_the_scores_that_documents_carry():
    by_rank = ConformalCompressor(filter=filter_at(RankScorer(), 1))
    by_score = ConformalCompressor(filter=filter_at(RetrievalScorer(), -0.8))
    given = scored(5, 1 / 8)
    for compressor in (by_rank, by_score):
        assert texts_of(compressor.compress_documents(given, "q")) == TEXTS[:2]
        assert texts_of(await compressor.acompress_documents(given, "q")) == TEXTS[:2]
    plain = [Document(text) for text in TEXTS]
    assert len(by_rank.compress_documents(plain, "q")) == 2
    with pytest.warns(UserWarning, match="ranks and no scores"), UNSCORED:
        assert len(by_score.compress_documents(plain, "q")) == len(plain)
    assert texts_of(compressing(retriever(), by_rank).invoke(QUERY.query)) == NEAREST[:2]


class Reranker(BaseDocumentCompressor):
    """Puts the longest texts first, and writes their lengths as scores, or upside down."""

    upside_down: bool = False

    def compress_documents(self, documents, query, callbacks=None):
        ordered = sorted(documents, key=lambda d: len(d.page_content), reverse=not self.upside_down)
        return [
            d.model_copy(update={"metadata": d.metadata | {"relevance_score": len(d.page_content)}})
            for d in ordered
        ]


def reranking(names=("dense", "bm25"), **options):
    both = HybridRetriever({name: retriever(k=5) for name in names})
    return compressing(both, Reranker(**options))


async def test_a_reranker_behind_several_retrievers_is_one_more_in_the_hits():
    asked = reranking()
    (judged,) = judge_retriever(asked, [QUERY])
    for rank, snippet in enumerate(judged.snippets):
        assert snippet.hits[-1] == Hit("reranker", rank, len(snippet.text))
        assert [hit.retriever for hit in snippet.hits] == ["dense", "bm25", "reranker"]
    longest = [snippet.text for snippet in judged.snippets if len(snippet.text) == 11]
    for scorer, threshold in ((RankScorer("reranker"), 0), (RetrievalScorer("reranker"), -11)):
        filtered = ConformalRetriever(retriever=asked, filter=filter_at(scorer, threshold))
        kept = filtered.invoke(QUERY.query)
        assert texts_of(kept) == longest[: len(kept)] == ["green apple"]
        assert [*kept[0].metadata["conformal_hits"]] == ["dense", "bm25"]


@pytest.mark.parametrize(
    "asked", [reranking(upside_down=True), reranking(names=("dense", "reranker"))]
)
def test_scores_in_another_order_and_a_retriever_of_that_name_are_no_reranker(asked):
    (judged,) = judge_retriever(asked, [QUERY])
    assert [len(snippet.hits) for snippet in judged.snippets] == [2] * len(TEXTS)


@pytest.mark.parametrize("scorer", [RankScorer("dense"), FusionScorer(["dense", RETRIEVER])])
def test_the_missing_retriever_is_named_when_a_filter_is_made_or_else_called(scorer):
    dense = HybridRetriever({"dense": retriever(), RETRIEVER: retriever()})
    gate = calibrate_gate(judge_retriever(dense, [QUERY]), scorer=BestScore(scorer), alpha=0.5)
    for known in (retriever(), HybridRetriever({"one": retriever(), "other": retriever()})):
        with pytest.raises(ValueError, match="'dense'"):
            ConformalRetriever(retriever=known, filter=filter_at(scorer, 1))
    with pytest.raises(ValueError, match="'dense'"):
        ConformalRetriever(retriever=retriever(), filter=filter_at(RankScorer(), 1), gate=gate)
    unknown = RunnableLambda(lambda query: [Document("a")])
    filtered = ConformalRetriever(retriever=unknown, filter=filter_at(RankScorer("dense"), 1))
    seen = pytest.warns(UserWarning, match="could not score")
    with seen, pytest.warns(UserWarning, match="a hit of 'dense'"):
        assert len(filtered.invoke("q")) == 1


@pytest.mark.parametrize(
    ("score", "expected"), [(0.3, 0.3), (float("nan"), 1 / 61), (None, 1 / 61)]
)
def test_the_score_of_a_reranker_comes_before_the_fusion_unless_it_is_missing(score, expected):
    [known] = with_hits([Document("a")], [{"dense": [0, 0.9]}])
    known.metadata["relevance_score"] = score
    (snippet,) = to_snippets([known])
    assert snippet.retrieval_score == expected


@pytest.mark.parametrize(
    "stored",
    [3, ["dense"], {"dense": [5, 0.1]}, {"other": [0, 0.9]}, {"dense": [-1, "x"]}, {"dense": None}],
)
def test_hits_in_the_metadata_of_a_stored_document_are_not_read(stored):
    plain = scored(4, 1 / 4)
    for place in range(4):
        given = scored(4, 1 / 4)
        given[place].metadata["conformal_hits"] = stored
        assert [s.hits for s in to_snippets(given)] == [s.hits for s in to_snippets(plain)]
        assert RetrievedDocuments(given).failed == []
        kept = ConformalCompressor(filter=filter_at(RankScorer(), 1)).compress_documents(given, "q")
        assert ids_of(kept) == ["0", "1"]


def retrievers_in(documents):
    return {hit.retriever for snippet in to_snippets(documents) for hit in snippet.hits}


def test_what_a_hybrid_retriever_found_is_a_plain_document_where_it_is_indexed_again():
    hybrid = HybridRetriever({name: retriever(k=5) for name in ("dense", "bm25")})
    found = hybrid.invoke(QUERY.query)
    again = InMemoryVectorStore.from_documents(found, MiniLMEmbeddings())
    for documents in (
        again.similarity_search(QUERY.query, k=5),
        [Document.model_validate_json(d.model_dump_json()) for d in found],
        [Document(**load["kwargs"]) for load in json.loads(dumps(found))],
    ):
        assert all("conformal_hits" in d.metadata for d in documents)
        assert retrievers_in(documents) == {RETRIEVER}
    for kept_as_object in (found[:1], found[:1] + hybrid.invoke("car")[:1]):
        assert retrievers_in([*scored(4, 1 / 4), *kept_as_object]) == {RETRIEVER}
    for documents in (found, copy.deepcopy(found), [d.model_copy() for d in found]):
        assert retrievers_in(documents) == {"dense", "bm25"}
    assert documents == found


# --- arguments of a call --------------------------------------------------------------------------


def tenants_store():
    owner = dict(zip(TEXTS, ["ours"] * 3 + ["theirs"] * 2, strict=True))
    return store(metadata=lambda text: {"tenant": owner[text]})


def of(tenant):
    return lambda document: document.metadata["tenant"] == tenant


class Words(BaseRetriever):
    """Takes a query and nothing else, as many retrievers of words."""

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(text) for text in TEXTS if text.split()[0] in query]


@pytest.mark.parametrize("hybrid", [False, True])
async def test_a_filter_by_metadata_reaches_the_store_and_is_warned_of_unless_calibrated(hybrid):
    asked = tenants_store().as_retriever(search_kwargs={"k": 3})
    scorer, calibrated, set_to = RankScorer(), asked, asked.bind(filter=of("ours"))
    if hybrid:
        calibrated, set_to = HybridRetriever({"dense": asked}), HybridRetriever({"dense": set_to})
        scorer = RankScorer("dense")
    for known, ours in ((calibrated, False), (set_to, True)):
        (judged,) = judge_retriever(known, [QUERY])
        conformal = ConformalFilter(scorer, calibrate([judged], scorer, alpha=0.5))
        assert ("metadata filter" in str(judged.retriever)) == ours
        filtered = ConformalRetriever(retriever=calibrated, filter=conformal)
        for options, fits in (({"filter": of("theirs")}, ours), ({}, not ours)):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                found = filtered.invoke(QUERY.query, **options)
                assert await filtered.ainvoke(QUERY.query, **options) == found
            assert {d.metadata["tenant"] for d in found} == {"theirs" if options else "ours"}
            assert len([w for w in seen if "metadata filter" in str(w.message)]) == 2 * (not fits)


async def test_an_argument_that_a_retriever_would_ignore_is_refused():
    dense = tenants_store().as_retriever(search_kwargs={"k": 5})
    for words in (
        Words(),
        Words().with_retry(),
        dense.with_fallbacks([Words()]),
        Words() | RunnableLambda(lambda documents: documents[:1]),
    ):
        hybrid = HybridRetriever({"dense": dense, "words": words})
        assert hybrid.invoke("red apple")
        ignored = pytest.raises(TypeError, match=r"'words', of the class Words, ignores filter=")
        with ignored:
            hybrid.invoke("red apple", filter=of("ours"))
        with ignored:
            await hybrid.ainvoke("red apple", filter=of("ours"))
        alone = ConformalRetriever(retriever=Words(), filter=filter_at(RankScorer(), 1))
        with pytest.raises(TypeError, match="the retriever, of the class Words, ignores"):
            alone.invoke("red apple", filter=of("ours"))
    both = HybridRetriever({"dense": dense, "again": dense})
    assert {d.page_content for d in both.invoke("red apple", filter=of("ours"))} == {*TEXTS[:3]}


@pytest.mark.parametrize("found", [None, ["red apple"], [None]])
async def test_what_is_no_document_counts_as_a_failure_of_its_retriever(found, caplog):
    bad = RunnableLambda(lambda query: found)
    retrievers = {"good": RunnableLambda(lambda query: [Document("a")]), "bad": bad}
    hybrid = HybridRetriever(retrievers, on_error="skip")
    for documents in (hybrid.invoke("q"), await hybrid.ainvoke("q")):
        assert texts_of(documents) == ["a"]
        assert RetrievedDocuments(documents).failed == ["bad"]
    assert "'bad' is left out" in caplog.text
    with pytest.raises(TypeError, match="give a list of Documents"):
        HybridRetriever(retrievers).invoke("q")


# --- the depth, and what else is recorded ---------------------------------------------------------

IN_MEMORY = "Normalised(all-MiniLM-L6-v2, similarity)"
IN_3 = f"{IN_MEMORY}, k = 3"
ENSEMBLE = classic.EnsembleRetriever(retrievers=[retriever(3), Words()], weights=[0.5, 0.5])
PARTS = {"base_retriever": retriever(3), "base_compressor": Reranker()}
COMPRESSED = classic.ContextualCompressionRetriever(**PARTS)


class Sparse(Normalised):
    embeddings = property(lambda self: 1 / 0)  # as Qdrant's raises without dense vectors


PARENTS = classic.MultiVectorRetriever(vectorstore=store(Sparse), docstore=InMemoryStore())


@pytest.mark.parametrize(
    ("retriever", "name", "k"),
    [
        (retriever(2), IN_MEMORY, 2),
        (retriever(50), IN_MEMORY, 50),
        (store().as_retriever(), IN_MEMORY, 4),
        (retriever(4).bind(k=3), IN_MEMORY, 3),
        (retriever(4).bind(k=3).bind(k=2), IN_MEMORY, 2),
        (retriever(2).with_retry(), IN_MEMORY, 2),
        (FIELDS, IN_MEMORY, 3),
        (FIELDS.with_config(configurable={"kwargs": {"k": 2}}).with_retry(), IN_MEMORY, 2),
        (RunnableLambda(lambda query: [Document(TEXTS[0])], name="first"), "first", None),
        (RunnableLambda(lambda query: iter([Document(TEXTS[0])]), name="next"), "next", None),
        (RunnableLambda(lambda query: [], name="nothing"), "nothing", None),
        (ENSEMBLE, f"EnsembleRetriever({IN_3}; Words(), k = ?; weights [0.5, 0.5])", None),
        (COMPRESSED, f"ContextualCompressionRetriever({IN_3}; Reranker)", None),
        (PARENTS, "MultiVectorRetriever(Sparse(?, similarity))", None),
    ],
)
def test_judged_queries_carry_the_retrievers_name_and_depth(retriever, name, k):
    (judged,) = judge_retriever(retriever, [QUERY])
    assert (str(judged.retriever), judged.k) == (name, k)
    assert isinstance(judged.retriever, str) == name.islower()  # a function's own name


@pytest.mark.parametrize(
    ("asked", "kwargs", "name", "warning"),
    [
        (retriever(3), {}, None, None),
        (retriever(2), {}, None, "the retriever is asked for 2 documents"),
        (retriever(3), {"k": 2}, None, "the retriever is asked for 2 documents"),
        (retriever(4), {}, None, "more snippets than k = 3"),
        (retriever(3, search_type="mmr"), {}, None, "the retriever is Normalised"),
        (Words(), {}, None, "the retriever is Words"),
        (Words(), {}, "a name of its own", None),
        (ENSEMBLE, {}, None, "the retriever is EnsembleRetriever"),
        (COMPRESSED, {}, None, "the retriever is ContextualCompressionRetriever"),
        (PARENTS, {}, None, "the retriever is MultiVectorRetriever"),
    ],
)
def test_another_retriever_or_depth_than_the_calibrated_one_gives_one_warning(
    asked, kwargs, name, warning
):
    scorer = FunctionScorer(lambda query, texts: [float(text != query) for text in texts], "same")
    queries = [JudgedQuery(TEXTS[0], TEXTS, [True] + [False] * 4)]
    calibration = calibrate(judge_retriever(retriever(3), queries, name=name), scorer, alpha=0.5)
    filtered = ConformalRetriever(retriever=asked, filter=ConformalFilter(scorer, calibration))
    for call in (filtered.invoke, lambda *a, **k: asyncio.run(filtered.ainvoke(*a, **k))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                call(TEXTS[0], **kwargs)
        assert len(caught) == (warning is not None)
        assert all(str(one.message).startswith(warning) for one in caught)
