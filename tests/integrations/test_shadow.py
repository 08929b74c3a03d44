"""A filter in shadow: everything is returned, and events have what would be kept."""

import math

import pytest
from commands import as_json, run
from frameworks import COMPONENTS, calibration_at, each_component, query_gate, texts_of
from llama_index.core import get_response_synthesizer
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.llms import MockLLM
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import MetadataMode
from lookup import LookupScorer
from pydantic import Field

import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import FunctionScorer
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.monitoring import FilterLog, read_log
from conformal_retrievers.scoring import RankScorer
from langchain_conformal import ConformalCallbackHandler, ConformalRetriever

SCORER = LookupScorer({"near": 0.1, "far": 0.9, "middle": 0.4, "odd": math.nan})
WORDS = FunctionScorer(lambda q, ts: [SCORER.scores[t.strip(". ").split()[-1]] for t in ts], "word")
TEXTS = ["far", "near", "middle"]
PAGES = ["It is near. It is far.", "It is far. It was far."]
FAR = ["far", "far"]


CALIBRATION = calibration_at(SCORER, alpha=0.1, n=20)
OF_SENTENCES = calibration_at(WORDS, alpha=0.1, n=20, split=splitter("sentences").name)
SENTENCES = {"split": "sentences", "scorer": WORDS}
STRICT = {"on_empty": "raise", "on_unscorable": "raise"}
SILENT = query_gate(lambda query: float(query == "q") or float(query))


COMPRESSOR, RETRIEVER, POSTPROCESSOR = COMPONENTS


async def asked(of, texts, given, callbacks=None, **options):
    """Ask a component, sync and async, and return (text, whether metadata say that it is kept)."""
    texts = {str(i): text for i, text in enumerate(texts)}
    made = of.opened(texts, given, **options)
    found = of.ask(made, texts, callbacks=callbacks)
    again = await of.aask(made, texts, callbacks=callbacks)
    assert [one.metadata for one in again] == [one.metadata for one in found]
    assert texts_of(again) == texts_of(found)
    if of is POSTPROCESSOR and options.get("shadow"):
        for old, new in zip(of.given(texts), found, strict=True):
            assert (new.score, new.node.node_id) == (old.score, old.node.node_id)
            for mode in (MetadataMode.LLM, MetadataMode.EMBED):
                assert new.node.get_content(mode) == old.node.get_content(mode)
    return pairs(found)


def pairs(found):
    marks = [one.metadata.get("conformal_kept") for one in found]
    return [*zip(texts_of(found), marks, strict=True)]


@each_component
@pytest.mark.parametrize("options", [{}, {"alpha": 0.2}, STRICT])
async def test_everything_is_returned_in_order_with_whether_it_would_be_kept(of, options):
    found = await asked(of, [*TEXTS, "odd"], CALIBRATION, scorer=SCORER, shadow=True, **options)
    assert found == [("far", False), ("near", True), ("middle", True), ("odd", True)]


@each_component
async def test_a_silent_gate_silences_nothing(of):
    given = {"scorer": [SCORER, SILENT.scorer], "gate": SILENT}
    assert await asked(of, TEXTS, CALIBRATION, **given) == []
    found = await asked(of, TEXTS, CALIBRATION, shadow=True, **given)
    assert found == [(text, False) for text in TEXTS]


@each_component
async def test_texts_stay_whole_where_sentences_would_be_cut(of):
    options = {"shadow": True, **SENTENCES}
    assert await asked(of, PAGES, OF_SENTENCES, **options) == [(PAGES[0], True), (PAGES[1], False)]
    assert await asked(of, PAGES[1:], OF_SENTENCES, **options, **STRICT) == [(PAGES[1], False)]


def test_langchains_metadata_have_the_scores_of_what_would_be_dropped_too():
    made = COMPRESSOR.opened(PAGES, OF_SENTENCES, shadow=True, **SENTENCES)
    found = COMPRESSOR.ask(made, PAGES)
    scores = [(d.metadata["conformal_score"], d.metadata["conformal_p_value"] > 0.1) for d in found]
    assert scores == [(0.1, True), (0.9, False)]
    assert all("conformal_ranges" not in d.metadata for d in found)
    assert made.compress_documents(found, "q")  # without a warning: nothing was dropped before
    bare = made.model_copy(update={"metadata_prefix": None})
    assert COMPRESSOR.ask(bare, PAGES) == COMPRESSOR.given(PAGES)


def hybrid_in(of):
    return of.package.HybridRetriever({"dense": of.retriever(lambda query: of.given(["a", "b"]))})


async def test_documents_of_a_hybrid_retriever_all_come_back():
    rank = RankScorer("dense")
    first = calibration_at(rank, 0.0)
    options = {"scorer": rank, "shadow": True}
    made = ConformalRetriever.from_calibration(first, retriever=hybrid_in(RETRIEVER), **options)
    expected = [("a", True), ("b", False)]
    assert pairs(made.invoke("q")) == pairs(await made.ainvoke("q")) == expected

    found = hybrid_in(POSTPROCESSOR).retrieve("q")
    made = llama_index_conformal.ConformalPostprocessor.from_calibration(first, **options)
    kept = made.postprocess_nodes(found, query_str="q")
    assert pairs(kept) == expected
    assert [type(node) for node in kept] == [llama_index_conformal.NodeWithHits] * 2
    assert [node.hits for node in kept] == [node.hits for node in found]


class Recording(MockLLM):
    prompts: list[str] = Field(default_factory=list)

    def complete(self, prompt, formatted=False, **kwargs):
        self.prompts.append(prompt)
        return super().complete(prompt, formatted, **kwargs)


@pytest.mark.parametrize("mode", [ResponseMode.COMPACT, ResponseMode.REFINE, "tree_summarize"])
def test_llama_indexs_prompts_are_the_same_byte_for_byte(mode):
    def prompts(given):
        llm = Recording()
        get_response_synthesizer(llm=llm, response_mode=mode).synthesize("q", given)
        return llm.prompts

    made = POSTPROCESSOR.opened(TEXTS, CALIBRATION, scorer=SCORER, shadow=True)
    assert prompts(POSTPROCESSOR.ask(made, TEXTS)) == prompts(POSTPROCESSOR.given(TEXTS)) != []


@each_component
@pytest.mark.parametrize(
    ("texts", "given", "options", "characters"),
    [
        (TEXTS, CALIBRATION, {"scorer": SCORER}, [3, 4, 6]),
        (TEXTS, CALIBRATION, {"scorer": [SCORER, SILENT.scorer], "gate": SILENT}, [3, 4, 6]),
        (PAGES, OF_SENTENCES, SENTENCES, [11, 10, 10, 11]),
    ],
    ids=["snippets", "behind a gate", "sentences"],
)
async def test_events_are_those_of_a_filter_that_cuts_marked_as_in_shadow(
    of, texts, given, options, characters, handled, tmp_path, caplog
):
    async def observed(name, **more):
        """Return the events of a component with a log, and their counts."""
        log = FilterLog(tmp_path / name)
        handlers = ConformalCallbackHandler(log), llama_index_conformal.ConformalEventHandler(log)
        handled(handlers[1])
        await asked(of, texts, given, [handlers[0]], **options, **more)
        get_dispatcher().event_handlers.remove(handlers[1])
        events = [{**event, "time": None} for event in read_log(log.path)]
        return events, [handler.observer.counts for handler in handlers]

    caplog.set_level("INFO", "conformal_retrievers")
    cut, counts = await observed("cut.jsonl")
    assert "(in shadow)" not in caplog.text
    shadow, same = await observed("shadow.jsonl", shadow=True)
    assert shadow == [event | {"shadow": True, "characters": characters} for event in cut] != []
    assert same == counts
    assert "(in shadow); so far" in caplog.text


async def test_a_log_written_in_shadow_says_first_what_would_be_saved(tmp_path):
    CALIBRATION.save(tmp_path / "c.json")
    log = tmp_path / "log.jsonl"
    handlers = [ConformalCallbackHandler(FilterLog(log, queries="none"))]
    for texts in (TEXTS, FAR, FAR, []):
        await asked(COMPRESSOR, texts, CALIBRATION, handlers, scorer=SCORER, shadow=True)
    # Of 13, 6, 6 and 0 characters, 3, 6, 6 and 0 are not kept; each query is asked twice.
    found = as_json("diagnose", tmp_path / "c.json", "--log", log, code=1)
    assert found["shadow"].pop("alphas") == "0.1"
    assert found["shadow"] == {"queries": 8, "tokens": 25 / 16, "saved": 15 / 16, "emptied": 0.5}
    shown = run("diagnose", tmp_path / "c.json", "--log", log, code=1).stdout
    assert shown.startswith("In shadow at alpha = 0.1, over 8 queries: the filter would have saved")
