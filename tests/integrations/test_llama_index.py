"""The LlamaIndex postprocessor, in a real index with a real model."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from frameworks import K, MiniLMEmbedding, halves, snippets, vector_index
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode
from lookup import LookupScorer
from pydantic import ValidationError

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    RetrievalScorer,
    ScoredQuery,
    calibrate,
)
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    embedding_scorer,
    judge_retriever,
)


def index_retriever():
    return vector_index().as_retriever(similarity_top_k=K)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    judged = judge_retriever(index_retriever(), halves()[0])
    return calibrate(judged, embedding_scorer(MiniLMEmbedding()), alpha=0.2)


@pytest.fixture(scope="module")
def file(calibration, tmp_path_factory):
    path = tmp_path_factory.mktemp("llama_index") / "calibration.json"
    calibration.save(path)
    return path


@pytest.fixture
def postprocessor(file) -> ConformalPostprocessor:
    return ConformalPostprocessor.from_calibration(file, embed_model=MiniLMEmbedding())


@pytest.fixture
def engine(postprocessor):
    return vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=K, node_postprocessors=[postprocessor]
    )


def lookup_filter(scores, threshold=0.5, **options) -> ConformalFilter:
    calibration = Calibration.from_scores(
        [ScoredQuery([threshold], [True])], alpha=0.5, scorer="lookup"
    )
    return ConformalFilter(LookupScorer(scores), calibration, **options)


def node(text: str, score: float | None = None) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text), score=score)


def test_it_is_a_node_postprocessor():
    assert issubclass(ConformalPostprocessor, BaseNodePostprocessor)
    assert ConformalPostprocessor.class_name() == "ConformalPostprocessor"


# --- in a query engine ----------------------------------------------------------------------------


def test_the_engine_answers_from_what_the_threshold_keeps(engine, calibration):
    kept_at_all = 0
    for query in halves()[1]:
        found = index_retriever().retrieve(query.query)
        distances = embedding_scorer(MiniLMEmbedding()).score(
            query.query, [s for n in found for s in snippets() if s.id == n.node_id]
        )
        expected = [
            n.node_id for n, a in zip(found, distances, strict=True) if a <= calibration.threshold()
        ]
        response = engine.query(query.query)
        assert [n.node_id for n in response.source_nodes] == expected
        kept_at_all += len(expected)
    assert 0 < kept_at_all < K * len(halves()[1])


async def test_the_asynchronous_engine_keeps_the_same(engine):
    for query in halves()[1][:10]:
        response = await engine.aquery(query.query)
        assert response.source_nodes == engine.query(query.query).source_nodes


def test_when_nothing_is_kept_the_engine_says_so_or_gets_the_best():
    scores = {s.text: 1.0 for s in snippets()}
    nothing = ConformalPostprocessor(filter=lookup_filter(scores))
    best = ConformalPostprocessor(filter=lookup_filter(scores, on_empty="keep_best"))
    for postprocessor, kept in ((nothing, 0), (best, 1)):
        engine = vector_index().as_query_engine(
            llm=MockLLM(), similarity_top_k=K, node_postprocessors=[postprocessor]
        )
        response = engine.query("anything")
        assert len(response.source_nodes) == kept
        assert (str(response) == "Empty Response") == (kept == 0)


# --- the contract ---------------------------------------------------------------------------------


async def test_synchronous_and_asynchronous_keep_the_same(postprocessor):
    query = halves()[1][0].query
    found = index_retriever().retrieve(query)
    kept = postprocessor.postprocess_nodes(found, query_str=query)
    assert await postprocessor.apostprocess_nodes(found, query_str=query) == kept
    assert postprocessor.postprocess_nodes(found, QueryBundle(query)) == kept


def test_inputs_are_left_as_they_were(postprocessor):
    query = QueryBundle(halves()[1][0].query)
    found = index_retriever().retrieve(query)
    before, query_before = copy.deepcopy(found), copy.deepcopy(query)
    kept = postprocessor.postprocess_nodes(found, query)
    kept[0].score = -1.0
    assert found == before
    assert query == query_before


def test_nodes_keep_id_class_metadata_and_the_retrievers_score():
    class Found(NodeWithScore):
        rank: int

    near = Found(node=TextNode(text="near", id_="a", metadata={"x": [1]}), score=0.5, rank=3)
    [kept] = ConformalPostprocessor(filter=lookup_filter({"near": 0.25})).postprocess_nodes(
        [near], query_str="q"
    )
    assert kept is not near
    assert type(kept) is Found
    assert (kept.node_id, kept.rank, kept.score, kept.metadata) == ("a", 3, 0.5, {"x": [1]})


def test_metadata_is_not_scored():
    with_metadata = NodeWithScore(node=TextNode(text="near", metadata={"title": "far away"}))
    keep = ConformalPostprocessor(filter=lookup_filter({"near": 0.25}))
    assert keep.postprocess_nodes([with_metadata], query_str="q") == [with_metadata]


def test_a_node_without_a_score_can_be_filtered_and_one_that_cannot_be_scored_is_kept():
    keep = ConformalPostprocessor(filter=lookup_filter({"near": 0.1, "odd": math.nan, "far": 0.9}))
    nodes = [node("far"), node("odd"), node("near")]
    kept = keep.postprocess_nodes(nodes, query_str="q")
    assert [n.node.get_content() for n in kept] == ["odd", "near"]


def test_the_retrievers_own_score_can_be_the_score():
    scorer = RetrievalScorer("index", higher_is_better=True)
    few = Calibration.from_scores([ScoredQuery([-0.5], [True])], alpha=0.5, scorer=scorer.name)
    keep = ConformalPostprocessor(filter=ConformalFilter(scorer, few))
    nodes = [node("a", 0.4), node("b", 0.6), node("c", None), node("d", 0.5)]
    kept = keep.postprocess_nodes(nodes, query_str="q")
    assert [n.node.get_content() for n in kept] == ["b", "c", "d"]


async def test_no_nodes_need_no_model(file):
    model = MiniLMEmbedding()
    postprocessor = ConformalPostprocessor.from_calibration(file, embed_model=model)
    assert postprocessor.postprocess_nodes([], query_str="q") == []
    assert await postprocessor.apostprocess_nodes([], query_str="q") == []
    assert model.calls == 0


async def test_a_missing_query_is_an_error(postprocessor):
    with pytest.raises(ValueError, match="query is missing.*query_str="):
        postprocessor.postprocess_nodes([node("a")])
    with pytest.raises(ValueError, match="query is missing.*query_str="):
        await postprocessor.apostprocess_nodes([])
    with pytest.raises(ValueError, match="query is ' '; give the question"):
        postprocessor.postprocess_nodes([], query_str=" ")


class BestFirst(RetrievalScorer):
    """How far a similarity is from the best of its query: `turn` alone does not tell."""

    def score(self, query, snippets):
        scores = super().score(query, snippets)
        return scores - scores.min()


def test_where_no_model_is_given_and_none_is_set_the_remedy_is_told(file, monkeypatch):
    """LlamaIndex's own error asks to install OpenAI's, which is another model."""
    monkeypatch.setattr(Settings, "_embed_model", None)
    with pytest.raises(ValueError, match="embed_model is not set: give embed_model=, the one that"):
        ConformalPostprocessor.from_calibration(file)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_scorer_that_is_made_from_the_retrievers_decides_by_its_own_score(asynchronous):
    scorer = BestFirst("store", higher_is_better=True)
    calibration = Calibration.from_scores(
        [ScoredQuery([0.25], [True])], alpha=0.5, scorer=scorer.name
    )
    postprocessor = ConformalPostprocessor(filter=ConformalFilter(scorer, calibration))
    nodes = [node("a", score=0.75), node("b", score=0.5), node("c", score=0.25)]
    if asynchronous:
        kept = asyncio.run(postprocessor.apostprocess_nodes(nodes, query_str="q"))
    else:
        kept = postprocessor.postprocess_nodes(nodes, query_str="q")
    assert [found.text for found in kept] == ["a", "b"]


async def test_nodes_that_can_be_gone_through_once_are_filtered_as_a_list_is():
    found = [node("near"), node("far"), node("also near")]
    scores = {"near": 0.1, "far": 0.9, "also near": 0.2}
    filtering = ConformalPostprocessor(filter=lookup_filter(scores))
    for kept in (
        filtering.postprocess_nodes(reversed(found), query_str="q"),
        await filtering.apostprocess_nodes(iter(found[::-1]), query_str="q"),
    ):
        assert [each.node.text for each in kept] == ["also near", "near"]


@pytest.mark.parametrize("given", [None, 3, "near", node("near")])
async def test_what_is_no_list_of_nodes_is_an_error(given):
    filtering = ConformalPostprocessor(filter=lookup_filter({"near": 0.1}))
    said = rf"nodes is a {type(given).__name__}, .*; give a list of NodeWithScore"
    with pytest.raises(TypeError, match=said):
        filtering.postprocess_nodes(given, query_str="q")
    with pytest.raises(TypeError, match=said):
        await filtering.apostprocess_nodes(given, query_str="q")


async def test_a_text_in_the_place_of_a_query_bundle_is_an_error():
    filtering = ConformalPostprocessor(filter=lookup_filter({"near": 0.1}))
    said = r"query_bundle is a str, 'q'; give query_str=, or a QueryBundle"
    with pytest.raises(TypeError, match=said):
        filtering.postprocess_nodes([node("near")], "q")
    with pytest.raises(TypeError, match=said):
        await filtering.apostprocess_nodes([node("near")], "q")


def test_nodes_without_a_place_for_a_score_are_an_error(postprocessor):
    with pytest.raises(TypeError, match=r"nodes\[0\] is a TextNode; give NodeWithScore"):
        postprocessor.postprocess_nodes([TextNode(text="a")], query_str="q")


def test_a_misspelt_keyword_is_an_error():
    with pytest.raises(ValidationError, match="treshold"):
        ConformalPostprocessor(filter=lookup_filter({}), treshold=0.3)


def test_it_can_be_pickled():
    scorer = RetrievalScorer("index", higher_is_better=True)
    few = Calibration.from_scores([ScoredQuery([-0.5], [True])], alpha=0.5, scorer=scorer.name)
    again = pickle.loads(pickle.dumps(ConformalPostprocessor(filter=ConformalFilter(scorer, few))))
    kept = again.postprocess_nodes([node("a", 0.4), node("b", 0.6)], query_str="q")
    assert [n.node.get_content() for n in kept] == ["b"]


def test_what_cannot_be_pickled_says_so_and_stays_as_it_was(postprocessor):
    query = halves()[1][0].query
    found = index_retriever().retrieve(query)
    before = postprocessor.postprocess_nodes(found, query_str=query)
    with pytest.raises(NotImplementedError):  # LlamaIndex wraps its models' methods in proxies
        pickle.dumps(postprocessor)
    assert postprocessor.postprocess_nodes(found, query_str=query) == before


# --- dumped and made again ------------------------------------------------------------------------


@pytest.mark.parametrize("on_empty", ["allow", "keep_best", "raise"])
def test_it_is_dumped_with_its_calibration_and_made_again_with_the_model(calibration, on_empty):
    scorer = embedding_scorer(MiniLMEmbedding())
    before = ConformalPostprocessor(
        filter=ConformalFilter(scorer, calibration, on_empty=on_empty, on_unscorable="raise")
    )
    data = json.loads(json.dumps(before.to_dict()))
    assert data == json.loads(before.to_json()) == before.model_dump()
    assert data["class_name"] == "ConformalPostprocessor"
    again = ConformalPostprocessor.from_dict(data, embed_model=MiniLMEmbedding())
    assert again.filter.calibration == calibration
    assert (again.filter.on_empty, again.filter.on_unscorable) == (on_empty, "raise")
    assert again.to_dict() == data
    query = halves()[1][0].query
    found = index_retriever().retrieve(query)
    kept = before.postprocess_nodes(found, query_str=query)
    assert again.postprocess_nodes(found, query_str=query) == kept


def test_the_dump_holds_no_model_and_its_json_makes_it_again(postprocessor, monkeypatch):
    assert set(postprocessor.to_dict()) == {"filter", "class_name"}
    assert set(postprocessor.to_dict()["filter"]) == {
        *("scorer", "calibration", "on_empty", "on_unscorable", "group_of")
    }
    monkeypatch.setattr(Settings, "_embed_model", MiniLMEmbedding())
    again = ConformalPostprocessor.from_json(postprocessor.to_json())
    assert again.filter.calibration == postprocessor.filter.calibration


def test_made_again_with_another_model_or_from_a_changed_dump_it_is_refused(postprocessor):
    data = postprocessor.to_dict()
    with pytest.raises(CalibrationMismatch, match="another-model"):
        ConformalPostprocessor.from_dict(
            data, embed_model=MiniLMEmbedding(model_name="another-model")
        )
    data["filter"]["calibration"]["alpha"] = 0.4
    with pytest.raises(ValueError, match="the text was changed after it was written.*'sha256'"):
        ConformalPostprocessor.from_dict(data, embed_model=MiniLMEmbedding())


def test_what_a_filter_has_beside_its_calibration_is_asked_for_again():
    def group(query):
        return "long" if len(query) > 20 else "short"

    queries = [ScoredQuery([0.5], [True], group=g) for g in ("long", "short")]
    calibration = Calibration.from_scores(queries, alpha=0.5, scorer="lookup", by_group=True)
    scorer = LookupScorer({"a": 0.1})
    before = ConformalPostprocessor(filter=ConformalFilter(scorer, calibration, group_of=group))
    data = before.to_dict()
    with pytest.raises(ValueError, match=r"group_of is None.*group' before: give the function"):
        ConformalPostprocessor.from_dict(data, scorer=scorer)
    again = ConformalPostprocessor.from_dict(data, scorer=scorer, group_of=group)
    assert again.filter.group_of == group


def test_it_has_a_schema():
    schema = ConformalPostprocessor.model_json_schema()
    assert schema["properties"]["filter"]["description"] == "The scorer with its calibration."
    assert schema["properties"]["class_name"]["default"] == "ConformalPostprocessor"
    assert schema["required"] == ["filter"]


def test_a_callback_manager_can_be_given():
    manager = CallbackManager([])
    keep = ConformalPostprocessor(filter=lookup_filter({}), callback_manager=manager)
    assert keep.callback_manager is manager


def test_a_calibration_file_and_what_to_do_where_nothing_is_kept_make_one_in_one_line(file):
    keep = ConformalPostprocessor.from_calibration(
        file, embed_model=MiniLMEmbedding(), on_empty="keep_best", on_unscorable="raise"
    )
    assert (keep.filter.on_empty, keep.filter.on_unscorable) == ("keep_best", "raise")


def test_too_few_judged_queries_keep_everything():
    calibration = Calibration.from_scores([ScoredQuery([0.1], [True])], alpha=0.1, scorer="lookup")
    keep = ConformalPostprocessor(filter=ConformalFilter(LookupScorer({"far": 9.0}), calibration))
    nodes = [node("far")]
    assert keep.postprocess_nodes(nodes, query_str="q") == nodes


def test_a_score_at_the_threshold_is_kept():
    keep = ConformalPostprocessor(filter=lookup_filter({"at": 0.5, "above": 0.5000001}))
    kept = keep.postprocess_nodes([node("above"), node("at")], query_str="q")
    assert [n.node.get_content() for n in kept] == ["at"]


def test_pictures_and_blank_texts_cannot_be_scored_and_are_kept(postprocessor):
    nodes = [
        NodeWithScore(node=ImageNode(image_path="picture.png")),
        node(" "),
        node("What has nothing to do with anything that anybody ever asked."),
    ]
    assert postprocessor.postprocess_nodes(nodes, query_str=halves()[1][0].query) == nodes[:2]


def test_many_threads_get_what_one_gets(engine):
    questions = [query.query for query in halves()[1]][:32]
    serial = [engine.query(question).source_nodes for question in questions]
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda question: engine.query(question).source_nodes, questions))
    assert found == serial


async def test_many_tasks_get_what_one_gets(postprocessor):
    questions = ([query.query for query in halves()[1]] * 5)[:200]
    found = {question: index_retriever().retrieve(question) for question in set(questions)}
    together = await asyncio.gather(
        *(postprocessor.apostprocess_nodes(found[q], query_str=q) for q in questions)
    )
    serial = {q: postprocessor.postprocess_nodes(found[q], query_str=q) for q in set(questions)}
    assert together == [serial[question] for question in questions]


# --- scorers and calibration files ----------------------------------------------------------------


def test_the_embedding_model_of_the_settings_is_the_default(file, monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", MiniLMEmbedding())
    postprocessor = ConformalPostprocessor.from_calibration(file)
    assert postprocessor.filter.scorer.name == "cosine(all-MiniLM-L6-v2)"


def test_another_model_than_the_calibrated_one_is_refused(file):
    with pytest.raises(CalibrationMismatch, match=r"all-MiniLM-L6-v2.*another-model"):
        ConformalPostprocessor.from_calibration(
            file, embed_model=MiniLMEmbedding(model_name="another-model")
        )


def test_a_model_and_a_scorer_are_one_too_many(file):
    model = MiniLMEmbedding()
    with pytest.raises(TypeError, match="one of embed_model=, llm= and scorer="):
        ConformalPostprocessor.from_calibration(
            file, embed_model=model, scorer=embedding_scorer(model)
        )


def test_the_remedy_for_a_model_without_a_name_is_taken_where_the_model_was_given(
    calibration, file
):
    nameless = MiniLMEmbedding(model_name="unknown")
    remedy = "give scorer=embedding_scorer(embed_model, name='cosine(<model name>)')"
    with pytest.raises(ValueError, match=re.escape(remedy)):
        ConformalPostprocessor.from_calibration(file, embed_model=nameless)
    with pytest.raises(ValueError, match=r"give scorer=llm_scorer\(model, name='…'\)"):
        ConformalPostprocessor.from_calibration(file, llm=MockLLM())
    scorer = embedding_scorer(nameless, name=calibration.scorer)
    assert ConformalPostprocessor.from_calibration(file, scorer=scorer).filter.scorer is scorer


def test_a_model_without_a_name_needs_one():
    with pytest.raises(ValueError, match="MiniLMEmbedding has no model_name.*name="):
        embedding_scorer(MiniLMEmbedding(model_name="unknown"))
    assert embedding_scorer(MiniLMEmbedding(model_name="unknown"), name="mine").name == "mine"


async def test_the_scorer_waits_for_the_asynchronous_model():
    scorer = embedding_scorer(MiniLMEmbedding())
    synchronous = scorer.score("cat", snippets()[:5])
    assert (await scorer.ascore("cat", snippets()[:5]) == synchronous).all()


def test_judging_a_retriever_takes_what_it_returns_and_counts_what_it_misses():
    before = halves()[0][:10]
    for old, new in zip(before, judge_retriever(index_retriever(), before), strict=True):
        found = index_retriever().retrieve(old.query)
        relevant = {s.id for s, r in zip(old.snippets, old.relevant, strict=True) if r}
        assert [s.id for s in new.snippets] == [n.node_id for n in found]
        assert [s.retrieval_score for s in new.snippets] == [n.score for n in found]
        assert list(new.relevant) == [n.node_id in relevant for n in found]
        assert new.missed == len(relevant) - sum(new.relevant)
