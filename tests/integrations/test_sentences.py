"""Filters of sentences in both frameworks: what documents and nodes come back as."""

import copy
import json
import math

import pytest
from frameworks import (
    COMPONENTS,
    K,
    calibration_at,
    each_component,
    each_framework,
    each_package,
    halves,
    ids_of,
    index_retriever,
    langchain_retriever,
    snippets,
    texts_of,
    with_evidence,
)
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core import schema
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import Document as Page
from llama_index.postprocessor import conformal as llama_index_conformal

import langchain_conformal
from conformal_retrievers import CalibrationMismatch, FunctionScorer, RetrievalScorer, calibrate
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.data import Evidence, Hit, JudgedQuery
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.monitoring import read_log
from conformal_retrievers.sentence_filter import SentenceFilter
from langchain_conformal import (
    ConformalCallbackHandler,
    ConformalCompressor,
    ConformalRetriever,
    HybridRetriever,
)
from llama_index.postprocessor.conformal import (
    ConformalEventHandler,
    ConformalPostprocessor,
    NodeWithHits,
)

NAME = splitter("sentences").name
SCORES = {"near": 0.1, "middle": 0.4, "far": 0.9, "odd": math.nan}


def by_last_word(query, texts):
    return [SCORES[(text.strip("`|. ").split() or ["odd"])[-1]] for text in texts]


WORDS = FunctionScorer(by_last_word, "last word")
TEXTS = {
    "cut": "The bee is near. The cow is far. The dog is middle.",
    "dropped": "The elk is far. The fox is far.",
    "whole": "The gnu is middle.",
    "unscored": "The hen is far. The ibis is odd.",
    "blank": " \n ",
}
KEPT = {
    "cut": "The bee is near. … The dog is middle.",
    "whole": "The gnu is middle.",
    "unscored": "The ibis is odd.",
    "blank": " \n ",
}
RANGES = {"cut": [[0, 16], [33, 51]], "whole": [[0, 18]], "unscored": [[16, 32]], "blank": [[0, 3]]}


COMPRESSOR, _, POSTPROCESSOR = COMPONENTS


def made(of, texts=TEXTS, threshold=0.5, **options):
    given = calibration_at(WORDS, threshold, split=NAME)
    return of.opened(texts, given, scorer=WORDS, split="sentences", **options)


def texts_by_id(kept):
    return dict(zip(ids_of(kept), texts_of(kept), strict=True))


async def kept_texts(of, texts, **options):
    """Return the texts that are kept by their ids, which are the same asynchronously."""
    component = made(of, texts, **options)
    kept = of.ask(component, texts)
    assert await of.kept(component, texts) == texts_of(kept)
    return texts_by_id(kept)


# --- what is kept ---------------------------------------------------------------------------------


@each_framework
async def test_documents_have_their_kept_sentences_and_others_are_dropped(of):
    assert await kept_texts(of, TEXTS) == KEPT
    assert await kept_texts(of, {}) == await kept_texts(of, {"1": TEXTS["dropped"]}) == {}


@each_framework
async def test_neighbours_of_a_kept_sentence_stay_in_its_document(of):
    whole = {"cut": TEXTS["cut"], "unscored": TEXTS["unscored"]}
    assert await kept_texts(of, TEXTS, neighbours=1) == KEPT | whole


def test_sentences_can_have_the_score_that_the_retriever_gave_their_document():
    scorer = RetrievalScorer()
    given = SentenceFilter(scorer, calibration_at(scorer, -0.5, split=NAME), "sentences")
    found, nodes = (of.given(["One. Two.", "Three."]) for of in (COMPRESSOR, POSTPROCESSOR))
    for document, node, score in zip(found, nodes, (0.6, 0.4), strict=True):
        document.metadata["relevance_score"] = node.score = score
    for kept in (
        ConformalCompressor(filter=given).compress_documents(found, "q"),
        ConformalPostprocessor(filter=given).postprocess_nodes(nodes, query_str="q"),
    ):
        assert texts_of(kept) == ["One. Two."]


# --- events ---------------------------------------------------------------------------------------


def test_both_handlers_log_the_same_decision_about_sentences(log, handled):
    handled(ConformalEventHandler(log))
    COMPRESSOR.ask(made(COMPRESSOR), TEXTS, callbacks=[ConformalCallbackHandler(log)])
    POSTPROCESSOR.ask(made(POSTPROCESSOR), TEXTS)
    event, other = ({**one, "time": None, "calibration": None} for one in read_log(log.path))
    assert event == other
    assert event["split"] == NAME
    # 3, 2, 1 and 2 sentences, and a blank document.
    assert (event["k"], event["kept"], event["unscorable"]) == (9, [0, 2, 5, 7, 8], [7, 8])
    assert {[*TEXTS][one["document"]]: one["ranges"] for one in event["kept_ranges"]} == RANGES
    assert not any(text.strip() and text[:14] in json.dumps(event) for text in TEXTS.values())


# --- LangChain ------------------------------------------------------------------------------------


class Chapter(Document):
    title: str = "untitled"


def test_a_document_comes_back_as_itself_with_the_kept_text_ranges_and_best_score():
    nested = {"source": "a", "nested": {"b": [1]}}
    given = [Chapter(page_content=t, id=i, metadata=nested, title="one") for i, t in TEXTS.items()]
    before = copy.deepcopy(given)
    kept = made(COMPRESSOR).compress_documents(given, "q")
    assert given == before
    assert [(type(document), document.title) for document in kept] == [(Chapter, "one")] * 4
    assert texts_by_id(kept) == KEPT
    marks = {d.id: (d.metadata["conformal_score"], d.metadata["conformal_p_value"]) for d in kept}
    scored, unscored = {"cut": (0.1, 1.0), "whole": (0.4, 1.0)}, ("unscored", "blank")
    assert marks == scored | dict.fromkeys(unscored, (None, None))
    assert {d.id: d.metadata["conformal_ranges"] for d in kept} == RANGES
    assert all(d.metadata["source"] == "a" and d.metadata["nested"] == {"b": [1]} for d in kept)
    json.dumps([d.metadata for d in kept])


@pytest.mark.parametrize(
    ("text", "options", "score", "p_value"),
    [
        ("It is odd. It is middle. It is far.", {}, 0.4, 1.0),
        ("It is middle. It is far.", {"threshold": 0.05, "on_empty": "keep_best"}, 0.4, 0.5),
    ],
    ids=["beside one without a score", "that the threshold does not pass"],
)
def test_the_best_score_of_a_document_is_that_of_a_kept_sentence(text, options, score, p_value):
    [kept] = COMPRESSOR.ask(made(COMPRESSOR, **options), [text])
    assert [kept.metadata[f"conformal_{name}"] for name in ("score", "p_value")] == [score, p_value]


def test_ranges_have_the_prefix_of_the_user_or_are_left_out():
    given = [Document(TEXTS["cut"], metadata={"ranges": 1})]
    for prefix, ranges in (("c_", {"c_ranges": RANGES["cut"]}), (None, {})):
        [kept] = made(COMPRESSOR, metadata_prefix=prefix).compress_documents(given, "q")
        found = {k: v for k, v in kept.metadata.items() if k.endswith("ranges")}
        assert found == {"ranges": 1, **ranges}


# --- LlamaIndex -----------------------------------------------------------------------------------


class Section(schema.TextNode):
    heading: str = "none"

    @classmethod
    def class_name(cls):
        return "Section"


def section(id, text):
    return Section(
        text=text,
        id_=id,
        heading="one",
        metadata={"file": "a", "nested": {"b": [1]}},
        excluded_llm_metadata_keys=["file"],
        text_template="{content}",
        relationships={schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id="source")},
        embedding=[1.0, 0.0],
        start_char_idx=7,
        end_char_idx=7 + len(text),
    )


async def test_a_node_comes_back_as_itself_with_the_kept_text():
    hits = (Hit("bm25", 0, 3.0),)
    given = [
        NodeWithHits(node=section(id, text), score=0.5, hits=hits, failed=("dense",))
        for id, text in TEXTS.items()
    ]
    before = copy.deepcopy(given)
    kept = made(POSTPROCESSOR).postprocess_nodes(given, query_str="q")
    assert await made(POSTPROCESSOR).apostprocess_nodes(given, query_str="q") == kept
    assert given == before
    assert [(type(one), one.hits, one.failed, one.score) for one in kept] == [
        (NodeWithHits, hits, ("dense",), 0.5)
    ] * 4
    assert texts_by_id(kept) == KEPT
    originals = {one.node_id: one.node for one in given}
    for node in (one.node for one in kept):
        whole = originals[node.node_id]
        cut = node.text != whole.text
        assert type(node) is Section
        same = {**whole.model_dump(), "text": node.text, "embedding": None if cut else [1.0, 0.0]}
        assert node.model_dump() == same
        assert node.ref_doc_id == "source"


class Fixed(schema.TextNode):
    """Its text is made from something else, so that it cannot be set."""

    def get_content(self, metadata_mode=None):
        return TEXTS["cut"]


def test_other_classes_of_nodes_are_cut_where_they_have_a_text_that_can_be_set():
    given = [
        schema.NodeWithScore(node=Page(text=TEXTS["cut"], id_="1")),
        schema.NodeWithScore(
            node=schema.ImageNode(text=TEXTS["cut"], image_url="http://a/b.png", id_="2")
        ),
        schema.NodeWithScore(node=schema.ImageNode(image_url="http://a/b.png", id_="3")),
        schema.NodeWithScore(node=Fixed(id_="4", embedding=[1.0])),
    ]
    kept = made(POSTPROCESSOR).postprocess_nodes(given, query_str="q")
    assert [type(one.node) for one in kept] == [Page, schema.ImageNode, schema.ImageNode, Fixed]
    assert texts_of(kept) == [KEPT["cut"], KEPT["cut"], "", TEXTS["cut"]]
    assert kept[1].node.image_url == "http://a/b.png"
    assert kept[2].node is given[2].node
    assert kept[3].node.embedding == [1.0]


# --- mismatches -----------------------------------------------------------------------------------


@each_component
@pytest.mark.parametrize(
    ("calibrated", "options", "error"),
    [
        (NAME, {"split": None}, CalibrationMismatch),
        (None, {"split": "sentences"}, CalibrationMismatch),
        ("lines", {"split": "sentences"}, CalibrationMismatch),
        (None, {"neighbours": 1}, ValueError),
    ],
)
def test_a_calibration_filters_only_what_was_cut_as_it_was(of, calibrated, options, error):
    with pytest.raises(error, match="split"):
        of.opened(TEXTS, calibration_at(WORDS, split=calibrated), scorer=WORDS, **options)


# --- sentences judged -----------------------------------------------------------------------------


def test_both_frameworks_judge_the_same_sentences():
    queries = with_evidence(halves()[0])
    one = langchain_conformal.judge_retriever(langchain_retriever(), queries, split="sentences")
    other = llama_index_conformal.judge_retriever(index_retriever(), queries, split="sentences")
    for a, b in zip(one, other, strict=True):
        sentences = [[(s.text, s.id, s.document, s.position) for s in q.snippets] for q in (a, b)]
        assert sentences[0] == sentences[1]
        assert (a.relevant, a.missed, a.split, a.k) == (b.relevant, b.missed, NAME, K)
    assert any(q.missed for q in other)


@each_package
def test_judgements_of_documents_alone_are_refused_for_sentences(package, make):
    for split, message in (("sentences", "evidence"), ("words", "split")):
        with pytest.raises(ValueError, match=message):
            package.judge_retriever(make(), halves()[0][:2], split=split)


def test_evidence_of_a_source_needs_to_know_where_chunks_start():
    document = Document("One two. Three.", metadata={"source": "a", "start_index": -1})
    found = RunnableLambda(lambda query: [document])
    asked = [JudgedQuery("Three?", [], [], evidence=[Evidence("a", 9, 15)])]
    with pytest.raises(ValueError, match="position"):
        langchain_conformal.judge_retriever(found, asked, split="sentences")


def test_snippets_have_the_whole_numbers_that_say_where_they_start():
    starts = {"a": 7, "b": 7.0, "c": -1, "d": 0.5, "e": "7", "f": None, "g": True, "h": math.inf}
    given = [Document(name, metadata={"start_index": start}) for name, start in starts.items()]
    positions = {s.text: s.position for s in langchain_conformal.documents.to_snippets(given)}
    assert positions == {**dict.fromkeys(starts), "a": 7, "b": 7}


# --- survivors ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_both_frameworks_keep_the_same_sentences(path):
    hybrid = HybridRetriever({"dense": langchain_retriever(), "few": langchain_retriever(4)})
    parts = {"dense": index_retriever(), "few": index_retriever(4)}
    queries = with_evidence([*halves()[0], *halves()[1]])
    judged = langchain_conformal.judge_retriever(hybrid, queries, split="sentences")
    calibrate(judged, alpha=0.3).save(path)
    split = {"split": "sentences"}
    retriever = ConformalRetriever.from_calibration(path, retriever=hybrid, **split)
    compressor = ConformalCompressor.from_calibration(path, **split)
    engine = RetrieverQueryEngine.from_args(
        llama_index_conformal.HybridRetriever(parts),
        llm=MockLLM(),
        node_postprocessors=[ConformalPostprocessor.from_calibration(path, **split)],
    )
    by_id = {s.id: s.text for s in snippets()}
    asked = [query.query for query in docstring_corpus().questions[4::8][:15]]
    n_cut = n_kept = n_all = 0
    for query in langchain_conformal.judge_retriever(hybrid, asked, split="sentences"):
        question, kept = query.query, retriever.invoke(query.query)
        expected = [*texts_by_id(kept).items()]
        for again in (
            await retriever.ainvoke(question),
            compressor.compress_documents(hybrid.invoke(question), question),
            engine.query(question).source_nodes,
            (await engine.aquery(question)).source_nodes,
        ):
            assert [*texts_by_id(again).items()] == expected, question
        ranges = {document.id: document.metadata["conformal_ranges"] for document in kept}
        for id, text in expected:
            assert all(by_id[id][a:b] in text for a, b in ranges[id])
            n_cut += text != by_id[id]
        places = [(s.position, ranges.get(s.document, ())) for s in query.snippets]
        keeps = [any(a <= position < b for a, b in of) for position, of in places]
        scores = retriever.filter.scorer.score(question, query.snippets)
        assert keeps == retriever.filter.calibration.keep(scores).tolist()
        n_kept, n_all = n_kept + sum(keeps), n_all + len(keeps)
    assert n_cut > 0
    assert 0 < n_kept < n_all * 0.5
