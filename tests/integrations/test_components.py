"""Compressor, retriever and postprocessor with scores from a dict, and rerankers of LlamaIndex."""

import copy
import json
import math
import pickle
from threading import get_ident
from typing import Any

import pytest
from frameworks import (
    COMPONENTS,
    MiniLMEmbedding,
    calibration_at,
    each_component,
    each_framework,
    filter_at,
    ids_of,
    texts_of,
)
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_tests.integration_tests import RetrieversIntegrationTests
from llama_index.core import MockEmbedding, Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import ImageNode, NodeWithScore, QueryBundle, TextNode
from lookup import LookupScorer
from pydantic import ValidationError

from conformal_retrievers import Calibration, ConformalFilter, ScoredQuery, Snippet
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.scoring import FunctionScorer, RetrievalScorer, score_snippets
from langchain_conformal import ConformalCompressor, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor, as_scorer, embedding_scorer
from llama_index.postprocessor.conformal.nodes import to_snippets

SCORES = {"near": 0.1, "far": 0.9, "middle": 0.4, "odd": math.nan}
TEXTS = [*SCORES]
KEPT = ["near", "middle", "odd"]
LOOKUP, RETRIEVAL = LookupScorer(SCORES), RetrievalScorer(higher_is_better=True)
COMPRESSOR, IN_RETRIEVER, POSTPROCESSOR = COMPONENTS


class Numbered(Document):
    """A document class with a field of its own."""

    number: int


class Found(NodeWithScore):
    number: int


def own(of):
    """Return objects of a class of the user, by a framework, which have nested metadata."""
    metadata = {"conformal_score": "mine", "nested": {"pages": [1]}}
    if of is COMPRESSOR:
        return [Numbered(page_content=t, id=t, metadata=metadata, number=3) for t in TEXTS]
    nodes = [TextNode(text=text, id_=text, metadata=metadata) for text in TEXTS]
    return [Found(node=node, score=0.5, number=3) for node in nodes]


async def both(made, given, query="q"):
    """What a compressor or postprocessor keeps, which is the same asynchronously."""
    if isinstance(made, ConformalCompressor):
        kept = made.compress_documents(given, query)
        assert await made.acompress_documents(given, query) == kept
        return kept
    kept = made.postprocess_nodes(given, query_str=query)
    assert await made.apostprocess_nodes(given, query_str=query) == kept
    return kept


@each_component
async def test_an_asynchronous_call_scores_in_a_thread(of):
    at_work = []
    scorer = FunctionScorer(lambda _, texts: at_work.append(get_ident()) or [0.0] * len(texts), "s")
    await of.aask(of.made(TEXTS, filter=filter_at(scorer)), TEXTS)
    assert {*at_work} - {get_ident()}


KEEP_DOCUMENTS = COMPRESSOR.made(TEXTS, filter=filter_at(LOOKUP))
KEEP_NODES = POSTPROCESSOR.made(TEXTS, filter=filter_at(LOOKUP))


BY_EMBEDDINGS = calibration_at(embedding_scorer(MiniLMEmbedding()))


# --- what is kept ---------------------------------------------------------------------------------


@each_framework
async def test_copies_keep_id_class_fields_and_metadata_and_inputs_are_unchanged(of):
    made, given = of.made(TEXTS, filter=filter_at(LOOKUP)), own(of)
    before = copy.deepcopy(given)
    kept = await both(made, given[::-1])
    assert texts_of(kept) == ids_of(kept) == KEPT[::-1]
    assert await both(made, []) == []
    for one in kept:
        assert (type(one), one.number) == (type(given[0]), 3)
        assert one.metadata["nested"] == {"pages": [1]}
        if of is COMPRESSOR:
            one.metadata["written"] = "afterwards"
        else:
            assert (one.score, one.metadata) == (0.5, given[0].metadata)
            one.score = -1.0
    assert given == before


class TestTheRetrieverStandardsOfLangChain(RetrieversIntegrationTests):
    """k belongs to the wrapped retriever: the constructor below passes it on."""

    @property
    def retriever_constructor(self):
        def construct(k: int = 3) -> ConformalRetriever:
            documents = COMPRESSOR.given(TEXTS)
            found = RunnableLambda(lambda query, **kwargs: documents[: kwargs.get("k", k)])
            return ConformalRetriever(retriever=found, filter=filter_at(LOOKUP, math.inf))

        return construct

    @property
    def retriever_query_example(self) -> str:
        return "q"


def node(text: str, score: float | None = None) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text), score=score)


def test_nodes_without_the_scores_that_were_calibrated_are_kept_with_a_remedy_for_nodes():
    keep = ConformalPostprocessor(filter=filter_at(RetrievalScorer()))
    unscored = pytest.warns(UserWarning, match="could not score any")
    remedy = r"no scores.*in LlamaIndex as NodeWithScore\.score"
    with pytest.warns(UserWarning, match=remedy), unscored:
        assert len(keep.postprocess_nodes([*map(node, TEXTS)], query_str="q")) == len(TEXTS)


async def test_metadata_is_not_scored():
    given = [NodeWithScore(node=TextNode(text="near", metadata={"title": "far away"}))]
    assert await both(KEEP_NODES, given) == given


async def test_pictures_and_blank_texts_cannot_be_scored_and_are_kept():
    ours = ConformalPostprocessor.from_calibration(BY_EMBEDDINGS, embed_model=MiniLMEmbedding())
    given = [NodeWithScore(node=ImageNode(image_path="picture.png")), node(" "), node("other")]
    assert await both(ours, given, "mountain") == given[:2]


def test_the_hits_of_plain_nodes_are_those_of_one_retriever():
    hits = [s.hits for s in to_snippets([node("a", 0.5), node("b", math.nan), node("c")])]
    assert hits == [(Hit(RETRIEVER, 0, 0.5),), (Hit(RETRIEVER, 1),), (Hit(RETRIEVER, 2),)]


async def test_the_retrievers_own_score_decides_and_a_node_without_one_is_kept():
    ours = ConformalPostprocessor(filter=filter_at(RETRIEVAL, -0.5))
    given = [node("a", 0.4), node("b", 0.6), node("d", 0.5), node("c")]
    assert texts_of(await both(ours, given)) == ["b", "d", "c"]


# --- metadata -------------------------------------------------------------------------------------


def test_copies_have_score_and_p_value_as_plain_numbers():
    given = [Document("near", metadata={"conformal_score": "mine", "page": 1}), Document("odd")]
    given[1].metadata = None  # lost, as after a store or a step of one's own
    near, odd = KEEP_DOCUMENTS.compress_documents(given, "q")
    assert near.metadata == {"conformal_score": 0.1, "conformal_p_value": 1.0, "page": 1}
    assert {type(value) for value in near.metadata.values()} == {float, int}
    assert odd.metadata == {"conformal_score": None, "conformal_p_value": None}


def test_a_p_value_is_of_the_group_of_the_query():
    """Of the scores 0.1 … 0.9 of one group none is 1.5 or more, and of the other 1.1 … 1.9 five."""
    given = [ScoredQuery([g + i / 10], [True], group=f"{g}") for g in (0, 1) for i in range(1, 10)]
    of_groups = Calibration.from_scores(given, alpha=0.1, scorer="lookup", by_group=True)
    grouped = ConformalFilter(LookupScorer({"a": 1.5}), of_groups, group_of=lambda query: query)
    (kept,) = ConformalCompressor(filter=grouped).compress_documents([Document("a")], "1")
    assert kept.metadata["conformal_p_value"] == pytest.approx(0.6)  # (1 + 5) / 10


@pytest.mark.parametrize(("score", "name"), [(math.inf, "inf"), (-math.inf, "-inf")])
def test_an_infinite_score_has_a_name_because_json_has_no_number_for_it(score, name):
    everything = ConformalCompressor(filter=filter_at(LookupScorer({"a": score}), math.inf))
    (kept,) = everything.compress_documents([Document("a")], "q")
    assert kept.metadata["conformal_score"] == name
    json.dumps(kept.metadata, allow_nan=False)


# --- alpha ----------------------------------------------------------------------------------------


async def test_a_retriever_can_have_another_alpha_than_its_calibration():
    queries = [ScoredQuery([score], [True]) for score in [0.2] * 13 + [0.9] * 7]
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer=LOOKUP.name)
    strict = ConformalFilter(LOOKUP, calibration)
    for alpha, kept in ((None, ["near", "far", "middle", "odd"]), (0.4, ["near", "odd"])):
        made = IN_RETRIEVER.made(TEXTS, filter=strict, alpha=alpha)
        assert await IN_RETRIEVER.kept(made, TEXTS) == kept


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "query", "error", "field"),
    [
        ([], None, (TypeError, ValueError), "query"),
        *((given, "q", TypeError, "documents|nodes") for given in (None, 3, "q")),
        (Document("near"), "q", TypeError, "documents|nodes"),
        (node("near"), "q", TypeError, "documents|nodes"),
        (["text"], "q", TypeError, r"documents\[0\]|nodes\[0\]"),
        ([TextNode(text="a")], "q", TypeError, r"documents\[0\]|nodes\[0\]"),
    ],
)
async def test_an_invalid_argument_is_named(given, query, error, field):
    bundle = None if query is None else QueryBundle(query)
    for filtering, awaited, asked in (
        (KEEP_DOCUMENTS.compress_documents, KEEP_DOCUMENTS.acompress_documents, query),
        (KEEP_NODES.postprocess_nodes, KEEP_NODES.apostprocess_nodes, bundle),
    ):
        with pytest.raises(error, match=field):
            filtering(given, asked)
        with pytest.raises(error, match=field):
            await awaited(given, asked)


@each_component
def test_a_misspelt_keyword_is_an_error(of):
    with pytest.raises(ValidationError, match="treshold"):
        of.made(TEXTS, filter=filter_at(LOOKUP), treshold=0.3)


def test_the_embedding_model_of_the_settings_is_the_default(monkeypatch):
    monkeypatch.setattr(Settings, "_embed_model", MiniLMEmbedding())
    assert ConformalPostprocessor.from_calibration(BY_EMBEDDINGS).filter.calibration.scorer
    monkeypatch.setattr(Settings, "_embed_model", None)
    with pytest.raises(ValueError, match=r"Settings\.embed_model"):  # not the error of OpenAI's
        ConformalPostprocessor.from_calibration(BY_EMBEDDINGS)
    with pytest.raises(ValueError, match="name"):  # which the LLM lacks
        ConformalPostprocessor.from_calibration(BY_EMBEDDINGS, llm=MockLLM())


# --- as a component of its framework --------------------------------------------------------------


def two_scored(query="q"):
    return [Document(t, metadata={"relevance_score": s}) for t, s in (("a", 0.4), ("b", 0.6))]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_components_can_be_pickled_and_copied(copied):
    keep = filter_at(RetrievalScorer(), -0.5)
    retriever = copied(ConformalRetriever(retriever=RunnableLambda(two_scored), filter=keep))
    assert texts_of(retriever.invoke("q")) == ["b"]
    assert retriever.filter.calibration == keep.calibration
    compressor = copied(ConformalCompressor(filter=keep))
    assert texts_of(compressor.compress_documents(two_scored(), "q")) == ["b"]
    nodes = [node("a", 0.4), node("b", 0.6)]
    postprocessor = copied(ConformalPostprocessor(filter=keep))
    assert texts_of(postprocessor.postprocess_nodes(nodes, query_str="q")) == ["b"]
    of_model = embedding_scorer(MockEmbedding(embed_dim=3), name="cosine(m)")
    assert copied(of_model).score("q", ["a"]).round(9).tolist() == [0.0]
    assert hash(of_model)
    assert "embed_dim" not in repr(of_model)  # nor any key that a model has


def test_it_is_a_component_of_llama_index():
    manager = CallbackManager([])
    ours = ConformalPostprocessor(filter=filter_at(RETRIEVAL), callback_manager=manager)
    assert ours.callback_manager is manager
    schema = ConformalPostprocessor.model_json_schema()
    assert schema["properties"]["filter"]["description"] == "The scorer with its calibration."
    assert schema["properties"]["class_name"]["default"] == "ConformalPostprocessor"
    assert schema["required"] == ["filter"]
    shown = {"scorer": RETRIEVAL.name, "calibration": ours.filter.calibration.checksum}
    assert json.loads(ours.to_json())["filter"] == shown


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


@pytest.mark.parametrize(
    ("top_n", "kept"), [(100, ["aaaa", " ", "none"]), (1, ["aaaa", " "])], ids=["all", "the first"]
)
async def test_a_reranker_of_llama_index_is_a_scorer_and_drops_what_it_does_not_return(top_n, kept):
    scorer = as_scorer(Reranker(top_n=top_n))
    assert (scorer.name, scorer.relative_to_query) == ("reranker(length)", True)
    ours = ConformalPostprocessor(filter=filter_at(scorer, -3.0))
    assert texts_of(await both(ours, [*map(node, ("aa", "aaaa", " ", "none", "aa"))])) == kept
    with pytest.raises(ValueError, match="as_scorer"):
        as_scorer(Reranker(model="unknown"))


@pytest.mark.parametrize("written", ["id", 10**400, "abc", [0.5]])
def test_a_reranker_that_does_not_give_each_node_a_number_is_named(written):
    with pytest.raises(ValueError, match=r"'reranker\(length\)'"):
        score_snippets(as_scorer(Reranker(written=written)), "q", [Snippet("a")])
