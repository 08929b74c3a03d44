"""The LlamaIndex postprocessor and reranker scorer, with scores from a dict or of words."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import pytest
from frameworks import MiniLMEmbedding
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode
from lookup import LookupScorer
from pydantic import ValidationError

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    RetrievalScorer,
    ScoredQuery,
    Snippet,
)
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.scoring import score_snippets
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    as_scorer,
    embedding_scorer,
    reranker_scorer,
)
from llama_index.postprocessor.conformal.nodes import to_snippets

SCORES = {"near": 0.1, "far": 0.9, "middle": 0.4, "odd": math.nan}
KEPT = ["near", "middle", "odd"]
RETRIEVAL = RetrievalScorer(higher_is_better=True)


def filter_of(scorer, threshold=0.5, **options) -> ConformalFilter:
    queries = [ScoredQuery([threshold], [True])]
    calibration = Calibration.from_scores(queries, alpha=0.5, scorer=scorer.name)
    return ConformalFilter(scorer, calibration, **options)


def node(text: str, score: float | None = None) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text), score=score)


def nodes():
    return [node(text) for text in SCORES]


def texts_of(found):
    return [one.text for one in found]


async def both(postprocessor, given, query="q"):
    """What the postprocessor keeps, which is the same asynchronously."""
    kept = postprocessor.postprocess_nodes(given, query_str=query)
    assert await postprocessor.apostprocess_nodes(given, query_str=query) == kept
    return kept


@pytest.fixture
def postprocessor():
    return ConformalPostprocessor(filter=filter_of(LookupScorer(SCORES)))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama_index") / "calibration.json"
    filter_of(embedding_scorer(MiniLMEmbedding())).calibration.save(path)
    return path


def test_nodes_without_the_scores_that_were_calibrated_are_kept_with_a_remedy_for_nodes():
    keep = ConformalPostprocessor(filter=filter_of(RetrievalScorer()))
    unscored = pytest.warns(UserWarning, match="could not score any")
    remedy = r"no scores.*in LlamaIndex as NodeWithScore\.score"
    with pytest.warns(UserWarning, match=remedy), unscored:
        assert len(keep.postprocess_nodes(nodes(), query_str="q")) == len(nodes())


# --- what is kept ---------------------------------------------------------------------------------


async def test_nodes_are_kept_in_order_and_inputs_are_unchanged(postprocessor):
    given, query = nodes(), QueryBundle("q")
    before = copy.deepcopy(given)
    kept = await both(postprocessor, given)
    assert texts_of(kept) == KEPT
    assert kept == postprocessor.postprocess_nodes(given, query)
    kept[0].score = -1.0
    assert (given, query) == (before, QueryBundle("q"))
    assert await both(postprocessor, []) == []
    for again in (
        postprocessor.postprocess_nodes(iter(given), query_str="q"),
        await postprocessor.apostprocess_nodes(iter(given), query_str="q"),
    ):
        assert texts_of(again) == KEPT


async def test_nodes_keep_id_class_metadata_and_the_retrievers_score(postprocessor):
    class Found(NodeWithScore):
        rank: int

    near = Found(node=TextNode(text="near", id_="a", metadata={"x": [1]}), score=0.5, rank=3)
    (kept,) = await both(postprocessor, [near])
    assert kept is not near
    assert type(kept) is Found
    assert (kept.node_id, kept.rank, kept.score, kept.metadata) == ("a", 3, 0.5, {"x": [1]})


async def test_metadata_is_not_scored(postprocessor):
    given = [NodeWithScore(node=TextNode(text="near", metadata={"title": "far away"}))]
    assert await both(postprocessor, given) == given


async def test_pictures_and_blank_texts_cannot_be_scored_and_are_kept(file):
    ours = ConformalPostprocessor.from_calibration(file, embed_model=MiniLMEmbedding())
    given = [NodeWithScore(node=ImageNode(image_path="picture.png")), node(" "), node("other")]
    assert await both(ours, given, "mountain") == given[:2]


async def test_the_retrievers_own_score_can_be_the_score():
    ours = ConformalPostprocessor(filter=filter_of(RETRIEVAL, -0.5))
    given = [node("a", 0.4), node("b", 0.6), node("c", None), node("d", 0.5)]
    assert texts_of(await both(ours, given)) == ["b", "c", "d"]


class BestFirst(RetrievalScorer):
    """How far a similarity is from the best of its query: `turn` alone does not tell."""

    def score(self, query, snippets):
        scores = super().score(query, snippets)
        return scores - scores.min()


def test_the_hits_of_plain_nodes_are_those_of_one_retriever():
    hits = [s.hits for s in to_snippets([node("a", 0.5), node("b", math.nan), node("c")])]
    assert hits == [(Hit(RETRIEVER, 0, 0.5),), (Hit(RETRIEVER, 1),), (Hit(RETRIEVER, 2),)]


async def test_a_subclass_of_the_retrieval_scorer_decides_by_its_own_score():
    ours = ConformalPostprocessor(filter=filter_of(BestFirst(higher_is_better=True), 0.25))
    given = [node("a", score=0.75), node("b", score=0.5), node("c", score=0.25)]
    assert texts_of(await both(ours, given)) == ["a", "b"]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "query", "error", "field"),
    [
        ([], None, ValueError, "query"),
        ([], QueryBundle(" "), ValueError, "query"),
        (None, QueryBundle("q"), TypeError, "nodes"),
        ("near", QueryBundle("q"), TypeError, "nodes"),
        (node("near"), QueryBundle("q"), TypeError, "nodes"),
        ([TextNode(text="a")], QueryBundle("q"), TypeError, r"nodes\[0\]"),
    ],
    ids=["no query", "blank", "none", "str", "one node", "no score"],
)
async def test_an_invalid_argument_is_named(postprocessor, given, query, error, field):
    with pytest.raises(error, match=field):
        postprocessor.postprocess_nodes(given, query)
    with pytest.raises(error, match=field):
        await postprocessor.apostprocess_nodes(given, query)


def test_a_misspelt_keyword_is_an_error():
    with pytest.raises(ValidationError, match="treshold"):
        ConformalPostprocessor(filter=filter_of(RETRIEVAL), treshold=0.3)


def test_the_embedding_model_of_the_settings_is_the_default(file, monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", MiniLMEmbedding())
    assert ConformalPostprocessor.from_calibration(file).filter.calibration.scorer
    monkeypatch.setattr(Settings, "_embed_model", None)
    with pytest.raises(ValueError, match=r"Settings\.embed_model"):  # not the error of OpenAI's
        ConformalPostprocessor.from_calibration(file)


def test_an_llm_without_a_name_needs_one(file):
    with pytest.raises(ValueError, match="name"):
        ConformalPostprocessor.from_calibration(file, llm=MockLLM())


# --- as a component -------------------------------------------------------------------------------


def test_it_is_a_component_of_llama_index():
    manager = CallbackManager([])
    ours = ConformalPostprocessor(filter=filter_of(RETRIEVAL), callback_manager=manager)
    assert ours.callback_manager is manager
    schema = ConformalPostprocessor.model_json_schema()
    assert schema["properties"]["filter"]["description"] == "The scorer with its calibration."
    assert schema["properties"]["class_name"]["default"] == "ConformalPostprocessor"
    assert schema["required"] == ["filter"]


def test_it_can_be_pickled():
    ours = ConformalPostprocessor(filter=filter_of(RETRIEVAL, -0.5))
    again = pickle.loads(pickle.dumps(ours))
    kept = again.postprocess_nodes([node("a", 0.4), node("b", 0.6)], query_str="q")
    assert texts_of(kept) == ["b"]


def test_a_failed_pickle_leaves_it_unchanged(file):
    ours = ConformalPostprocessor.from_calibration(file, embed_model=MiniLMEmbedding())
    before = ours.filter
    with pytest.raises(NotImplementedError):  # LlamaIndex wraps its models' methods in proxies
        pickle.dumps(ours)
    assert ours.filter is before


def test_a_dump_names_the_scorer_and_the_calibration():
    ours = ConformalPostprocessor(filter=filter_of(RETRIEVAL))
    checksum = ours.filter.calibration.checksum
    assert json.loads(ours.to_json())["filter"] == {
        "scorer": RETRIEVAL.name,
        "calibration": checksum,
    }


# --- rerankers as scorers -------------------------------------------------------------------------


class Reranker(BaseNodePostprocessor):
    """Returns the longest texts first, `top_n` of them, with their length as the score."""

    model: str = "length"
    top_n: int = 100
    written: Any = None

    def _postprocess_nodes(self, nodes, query_bundle=None):
        for one in nodes:
            one.score = None if one.text == "none" else self.written or float(len(one.text))
            if self.written == "id":
                one.score, one.node.id_ = 1.0, "another"
        return sorted(nodes, key=lambda one: -len(one.text))[: self.top_n]


async def test_a_reranker_is_a_scorer():
    scorer = as_scorer(Reranker())
    assert scorer.name == "reranker(length)"
    given = [node(text) for text in ("aa", "aaaa", " ", "none", "aa")]
    ours = ConformalPostprocessor(filter=filter_of(scorer, -3.0))
    assert texts_of(await both(ours, given)) == ["aaaa", " ", "none"]
    assert scorer.relative_to_query


async def test_a_snippet_that_the_reranker_does_not_return_is_dropped():
    ours = ConformalPostprocessor(filter=filter_of(reranker_scorer(Reranker(top_n=1)), 0.0))
    assert texts_of(await both(ours, [node("aa"), node("aaaa")])) == ["aaaa"]
    with pytest.raises(ValueError, match="reranker_scorer"):
        reranker_scorer(Reranker(model="unknown"))


@pytest.mark.parametrize("written", ["id", 10**400, "abc", [0.5]])
def test_a_reranker_that_does_not_give_each_node_a_number_is_named(written):
    with pytest.raises(ValueError, match=r"'reranker\(length\)'"):
        score_snippets(as_scorer(Reranker(written=written)), "q", [Snippet("a")])
