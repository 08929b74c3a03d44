"""Filters of sentences in both frameworks: what documents and nodes come back as."""

from __future__ import annotations

import copy
import json
import math

import pytest
from frameworks import Reversed
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import Document as Page
from llama_index.core.schema import (
    ImageNode,
    NodeRelationship,
    NodeWithScore,
    RelatedNodeInfo,
    TextNode,
)

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    FunctionScorer,
    NothingKept,
    RetrievalScorer,
    ScoredQuery,
)
from conformal_retrievers.data import Hit
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.monitoring import FilterLog
from conformal_retrievers.sentence_filter import SentenceFilter
from langchain_conformal import (
    ConformalCallbackHandler,
    ConformalCompressor,
    ConformalRetriever,
)
from llama_index.postprocessor.conformal import (
    ConformalEventHandler,
    ConformalFilterEvent,
    ConformalPostprocessor,
    NodeWithHits,
)

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


def lines(text):
    ends = [i + 1 for i, character in enumerate(text) if character == "\n"]
    return list(zip([0, *ends], [*ends, len(text)], strict=True))


def calibration(split="sentences", threshold=0.5):
    name = None if split is None else splitter(split).name
    queries = [ScoredQuery([threshold], [True], split=name)]
    return Calibration.from_scores(queries, alpha=0.5, scorer=WORDS.name)


def documents(texts=TEXTS):
    return [Document(text, id=id, metadata={"source": "a"}) for id, text in texts.items()]


def nodes(texts=TEXTS):
    return [NodeWithScore(node=TextNode(text=t, id_=id), score=0.5) for id, t in texts.items()]


def compressor(split="sentences", threshold=0.5, **options):
    given = calibration(split, threshold)
    return ConformalCompressor.from_calibration(given, scorer=WORDS, split=split, **options)


def postprocessor(split="sentences", threshold=0.5, **options):
    given = calibration(split, threshold)
    return ConformalPostprocessor.from_calibration(given, scorer=WORDS, split=split, **options)


def texts_in_langchain(texts, **options):
    kept = compressor(**options).compress_documents(documents(texts), "q")
    return {document.id: document.page_content for document in kept}


def texts_in_llama_index(texts, **options):
    kept = postprocessor(**options).postprocess_nodes(nodes(texts), query_str="q")
    return {node.node_id: node.node.get_content() for node in kept}


both = pytest.mark.parametrize("kept_texts", [texts_in_langchain, texts_in_llama_index])


# --- what is kept ---------------------------------------------------------------------------------


@both
def test_documents_have_their_kept_sentences_and_others_are_dropped(kept_texts):
    assert kept_texts(TEXTS) == KEPT


@both
def test_neighbours_of_a_kept_sentence_stay_in_its_document(kept_texts):
    assert kept_texts(TEXTS, neighbours=1) == {
        **KEPT,
        "cut": TEXTS["cut"],
        "unscored": TEXTS["unscored"],
    }


@both
def test_a_function_of_the_user_cuts(kept_texts):
    text = "a line is far\na line is near\nthe rest is far"
    assert kept_texts({"1": text}, split=lines) == {"1": "a line is near"}


def test_tables_and_code_are_kept_whole_or_dropped_whole():
    table = "| animal | place |\n|---|---|\n| bee | far |\n| cow | near |"
    code = "```python\nx = far\ny = x  # near\n```"
    text = f"The table is far.\n\n{table}\n\nThe code is far.\n\n{code}\n\nThe end is near."

    def score(query, texts):
        return [scores[t] if t in scores else by_last_word(query, [t])[0] for t in texts]

    scores, scorer = {table: 0.1, code: 0.9}, FunctionScorer(score, WORDS.name)
    given = SentenceFilter(scorer, calibration())
    for kept in (
        [
            d.page_content
            for d in ConformalCompressor(filter=given).compress_documents([Document(text)], "q")
        ],
        [
            n.text
            for n in ConformalPostprocessor(filter=given).postprocess_nodes(
                nodes({"1": text}), query_str="q"
            )
        ],
    ):
        assert kept == [f"{table}\n…\nThe end is near."]


@both
def test_nothing_found_and_nothing_kept_are_empty(kept_texts):
    assert kept_texts({}) == kept_texts({"dropped": TEXTS["dropped"]}) == {}


@both
def test_the_best_sentence_alone_is_kept_where_a_result_must_not_be_empty(kept_texts):
    texts = {"1": "The elk is far. The fox is middle.", "2": "The gnu is far."}
    assert kept_texts(texts, on_empty="keep_best", threshold=0.05) == {"1": "The fox is middle."}


@both
def test_a_filter_that_must_keep_something_raises_if_no_sentence_is_kept(kept_texts):
    with pytest.raises(NothingKept, match="sentences"):
        kept_texts({"1": TEXTS["dropped"]}, on_empty="raise")


def test_sentences_can_have_the_score_that_the_retriever_gave_their_document():
    scorer = RetrievalScorer()
    one = ScoredQuery([-0.5], [True], split=splitter("sentences").name)
    given = SentenceFilter(
        scorer, Calibration.from_scores([one], alpha=0.5, scorer=scorer.name), "sentences"
    )
    scored = [
        Document("One. Two.", metadata={"relevance_score": 0.6}),
        Document("Three.", metadata={"relevance_score": 0.4}),
    ]
    kept = ConformalCompressor(filter=given).compress_documents(scored, "q")
    assert [document.page_content for document in kept] == ["One. Two."]
    nodes = [
        NodeWithScore(node=TextNode(text=d.page_content), score=d.metadata["relevance_score"])
        for d in scored
    ]
    kept = ConformalPostprocessor(filter=given).postprocess_nodes(nodes, query_str="q")
    assert [node.text for node in kept] == ["One. Two."]


# --- events ---------------------------------------------------------------------------------------


def check_event(event):
    assert event["split"] == splitter("sentences").name
    # 3, 2, 1 and 2 sentences, and a blank document.
    assert (event["k"], event["kept"], event["unscorable"]) == (9, [0, 2, 5, 7, 8], [7, 8])
    kept = {[*TEXTS][one["document"]]: one["ranges"] for one in event["kept_ranges"]}
    assert kept == RANGES
    assert not any(text.strip() and text[:14] in json.dumps(event) for text in TEXTS.values())


class Events(BaseCallbackHandler):
    def __init__(self):
        self.runs, self.custom = [], []

    def on_chain_end(self, outputs, **kwargs):
        self.runs.append(outputs)

    def on_custom_event(self, name, data, **kwargs):
        self.custom.append(data)


async def test_events_in_langchain_have_the_kept_ranges_and_no_text():
    handler = Events()
    given = compressor()
    kept = given.compress_documents(documents(), "q", [handler])
    assert await given.acompress_documents(documents(), "q", [handler]) == kept
    assert (len(handler.runs), len(handler.custom)) == (2, 2)
    for event in (*handler.runs, *handler.custom):
        check_event(event)


def test_a_filter_that_raises_has_an_event_without_ranges():
    handler = Events()
    with pytest.raises(NothingKept):
        compressor(on_empty="raise").compress_documents(
            [Document(TEXTS["dropped"])], "q", callbacks=[handler]
        )
    assert [event["kept_ranges"] for event in handler.custom] == [[]]


class Heard(BaseEventHandler):
    heard: list = []  # noqa: RUF012 (a field)

    def handle(self, event, **kwargs):
        self.heard.append(event)


async def test_events_in_llama_index_have_the_kept_ranges_and_no_text():
    debug = LlamaDebugHandler(print_trace_on_end=False)
    given = postprocessor()
    given.callback_manager = CallbackManager([debug])
    dispatcher, handler = get_dispatcher(), Heard()
    before = [*dispatcher.event_handlers]
    dispatcher.event_handlers = [*before, handler]
    try:
        kept = given.postprocess_nodes(nodes(), query_str="q")
        assert await given.apostprocess_nodes(nodes(), query_str="q") == kept
    finally:
        dispatcher.event_handlers = before
    decided = [event for event in handler.heard if isinstance(event, ConformalFilterEvent)]
    assert len(decided) == 2
    for event in decided:
        check_event(event.decision)
        assert event.nodes == kept
    legacy = debug.get_event_pairs(CBEventType.RERANKING)
    assert [end.payload["nodes"] for _, end in legacy] == [kept] * 2


async def test_both_handlers_log_the_same_decision_about_sentences(tmp_path):
    paths = [tmp_path / "langchain.jsonl", tmp_path / "llama_index.jsonl"]
    one, other = map(FilterLog, paths)
    handlers = ConformalCallbackHandler(one), ConformalEventHandler(other)
    compressor().compress_documents(documents(), "q", [handlers[0]])
    dispatcher = get_dispatcher()
    before = [*dispatcher.event_handlers]
    dispatcher.event_handlers = [*before, handlers[1]]
    try:
        postprocessor().postprocess_nodes(nodes(), query_str="q")
    finally:
        dispatcher.event_handlers = before
    first, second = ({**json.loads(path.read_text()), "time": None} for path in paths)
    check_event(first)
    assert {**first, "calibration": None} == {**second, "calibration": None}


# --- LangChain ------------------------------------------------------------------------------------


class Chapter(Document):
    title: str = "untitled"


def test_a_document_comes_back_as_itself_with_the_kept_text_ranges_and_best_score():
    given = [
        Chapter(
            page_content=text, id=id, metadata={"source": "a", "nested": {"b": [1]}}, title="one"
        )
        for id, text in TEXTS.items()
    ]
    before = copy.deepcopy(given)
    kept = compressor().compress_documents(given, "q")
    assert given == before
    assert [type(document) for document in kept] == [Chapter] * 4
    assert {document.title for document in kept} == {"one"}
    assert {d.id: d.page_content for d in kept} == KEPT
    marks = {d.id: (d.metadata["conformal_score"], d.metadata["conformal_p_value"]) for d in kept}
    assert marks == {
        "cut": (0.1, 1.0),
        "whole": (0.4, 1.0),
        "unscored": (None, None),
        "blank": (None, None),
    }
    assert {d.id: d.metadata["conformal_ranges"] for d in kept} == RANGES
    assert all(d.metadata["source"] == "a" and d.metadata["nested"] == {"b": [1]} for d in kept)
    json.dumps([d.metadata for d in kept])


def test_the_best_score_of_a_document_is_of_a_kept_sentence_even_beside_one_without_a_score():
    [kept] = compressor().compress_documents([Document("It is odd. It is middle. It is far.")], "q")
    assert kept.metadata["conformal_score"] == 0.4


def test_a_best_sentence_that_the_threshold_does_not_pass_has_its_p_value():
    given = compressor(threshold=0.05, on_empty="keep_best")
    [kept] = given.compress_documents([Document("It is middle. It is far.")], "q")
    assert (kept.metadata["conformal_score"], kept.metadata["conformal_p_value"]) == (0.4, 0.5)


def test_ranges_have_the_prefix_of_the_user_or_are_left_out():
    given = [Document(TEXTS["cut"], metadata={"ranges": 1})]
    for prefix, ranges in (("c_", {"c_ranges": RANGES["cut"]}), (None, {})):
        [kept] = compressor(metadata_prefix=prefix).compress_documents(given, "q")
        found = {k: v for k, v in kept.metadata.items() if k.endswith("ranges")}
        assert found == {"ranges": 1, **ranges}


class ByLength(BaseDocumentCompressor):
    """A reranker: the longest first."""

    def compress_documents(self, documents, query, callbacks=None):
        return sorted(documents, key=lambda document: -len(document.page_content))


async def test_every_way_into_a_chain_returns_the_same_documents():
    found = RunnableLambda(lambda query: documents())
    given = compressor()
    retriever = ConformalRetriever.from_calibration(
        calibration(), retriever=found, scorer=WORDS, split="sentences"
    )
    compression = ContextualCompressionRetriever(base_compressor=given, base_retriever=found)
    pipeline = ContextualCompressionRetriever(
        base_compressor=DocumentCompressorPipeline(transformers=[given]), base_retriever=found
    )
    runnable = {"query": RunnableLambda(str), "documents": found} | given.as_runnable()
    expected = given.compress_documents(documents(), "q")
    assert await given.acompress_documents(documents(), "q") == expected
    for one in (retriever, compression, pipeline, runnable):
        assert one.invoke("q") == expected
        assert await one.ainvoke("q") == expected
        assert one.batch(["q"]) == [expected]


async def test_a_reranker_behind_the_filter_sees_the_kept_text():
    pipeline = DocumentCompressorPipeline(transformers=[compressor(), ByLength(), Reversed()])
    found = RunnableLambda(lambda query: documents())
    chain = ContextualCompressionRetriever(base_compressor=pipeline, base_retriever=found)
    kept = {document.id: document.page_content for document in chain.invoke("q")}
    assert kept == KEPT
    assert await chain.ainvoke("q") == chain.invoke("q")


def test_a_retriever_at_another_alpha_cuts_more():
    queries = [
        ScoredQuery([score], [True], split=splitter("sentences").name) for score in (0.1, 0.4, 0.9)
    ]
    given = Calibration.from_scores(queries, alpha=0.3, scorer=WORDS.name)
    found = RunnableLambda(lambda query: [Document(TEXTS["cut"])])
    at = {
        alpha: ConformalRetriever.from_calibration(
            given, retriever=found, scorer=WORDS, split="sentences", alpha=alpha
        )
        for alpha in (0.3, 0.5, 0.8)
    }
    texts = {alpha: one.invoke("q")[0].page_content for alpha, one in at.items()}
    assert texts == {0.3: TEXTS["cut"], 0.5: KEPT["cut"], 0.8: "The bee is near."}


# --- LlamaIndex -----------------------------------------------------------------------------------


class Section(TextNode):
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
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="source")},
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
    kept = postprocessor().postprocess_nodes(given, query_str="q")
    assert await postprocessor().apostprocess_nodes(given, query_str="q") == kept
    assert given == before
    assert [(type(one), one.hits, one.failed, one.score) for one in kept] == [
        (NodeWithHits, hits, ("dense",), 0.5)
    ] * 4
    assert {one.node_id: one.text for one in kept} == KEPT
    originals = {one.node_id: one.node for one in given}
    for node in (one.node for one in kept):
        whole = originals[node.node_id]
        cut = node.text != whole.text
        assert type(node) is Section
        same = {**whole.model_dump(), "text": node.text, "embedding": None if cut else [1.0, 0.0]}
        assert node.model_dump() == same
        assert node.ref_doc_id == "source"


def test_other_classes_of_nodes_are_cut_where_they_have_text():
    given = [
        NodeWithScore(node=Page(text=TEXTS["cut"], id_="1")),
        NodeWithScore(node=ImageNode(text=TEXTS["cut"], image_url="http://a/b.png", id_="2")),
        NodeWithScore(node=ImageNode(image_url="http://a/b.png", id_="3")),
    ]
    kept = postprocessor().postprocess_nodes(given, query_str="q")
    assert [type(one.node) for one in kept] == [Page, ImageNode, ImageNode]
    assert [one.node.get_content() for one in kept] == [KEPT["cut"], KEPT["cut"], ""]
    assert kept[1].node.image_url == "http://a/b.png"
    assert kept[2].node is given[2].node


class Fixed(TextNode):
    """Its text is made from something else, so that it cannot be set."""

    def get_content(self, metadata_mode=None):
        return TEXTS["cut"]


def test_a_node_whose_text_cannot_be_set_stays_whole():
    given = [NodeWithScore(node=Fixed(id_="1", embedding=[1.0]), score=0.2)]
    [kept] = postprocessor().postprocess_nodes(given, query_str="q")
    assert (kept.node.get_content(), kept.node.embedding) == (TEXTS["cut"], [1.0])


# --- mismatches -----------------------------------------------------------------------------------


def retriever_from(given, **options):
    found = RunnableLambda(lambda query: documents())
    return ConformalRetriever.from_calibration(given, retriever=found, **options)


each = pytest.mark.parametrize(
    "made_from",
    [
        ConformalCompressor.from_calibration,
        retriever_from,
        ConformalPostprocessor.from_calibration,
    ],
)


@each
@pytest.mark.parametrize(
    ("calibrated", "filtered"), [("sentences", None), (None, "sentences"), (lines, "sentences")]
)
def test_a_calibration_filters_only_what_was_cut_as_it_was(made_from, calibrated, filtered):
    with pytest.raises(CalibrationMismatch, match="split"):
        made_from(calibration(calibrated), scorer=WORDS, split=filtered)


@each
def test_neighbours_need_split(made_from):
    with pytest.raises(ValueError, match="split"):
        made_from(calibration(None), scorer=WORDS, neighbours=1)


@each
def test_a_file_is_opened_with_split(made_from, tmp_path):
    calibration().save(tmp_path / "calibration.json")
    made = made_from(tmp_path / "calibration.json", scorer=WORDS, split="sentences", neighbours=2)
    assert isinstance(made.filter, SentenceFilter)
    assert made.filter.neighbours == 2
