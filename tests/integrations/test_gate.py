"""The gate in the components of both packages: a query that it silences gets nothing."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from frameworks import MiniLMEmbedding, MiniLMEmbeddings
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableLambda,
    RunnablePassthrough,
)
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor import conformal as llama_index_conformal
from lookup import LookupScorer, QueryFunction

import langchain_conformal
from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    Gate,
    JudgedQuery,
    ScoredQuery,
    calibrate,
)
from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.llm import openai_options
from conformal_retrievers.monitoring import FilterLog, read_log
from conformal_retrievers.scoring import BestScore, FusionScorer, LLMVerdict
from conformal_retrievers.sentence_filter import SentenceFilter
from langchain_conformal import ConformalCallbackHandler, ConformalCompressor, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalEventHandler, ConformalPostprocessor

pytestmark = pytest.mark.filterwarnings("ignore:relevant snippets score", "ignore:the threshold")

TEXTS = ["near", "far", "middle"]
SCORER = LookupScorer({"near": 0.1, "middle": 0.4, "far": 0.9})
# A query ends with its score.
LAST = QueryFunction(lambda query, texts: float(query.split()[-1]), "last word")
SPEAKS, SILENT = "a query 0.3", "a query 0.9"


def judged(score, relevant=True, **fields):
    return JudgedQuery(f"{relevant} {score}", TEXTS, [relevant, False, False], **fields)


def gate_of(scorer=LAST, **options):
    """Return a gate with the threshold 0.8: of 0.1 … 0.9 the 8-th, k = ⌈10 · 0.8⌉."""
    given = [judged(i / 10) for i in range(1, 10)]
    return calibrate_gate(given, scorer=scorer, **{"alpha": 0.2, **options})


def calibration(threshold=0.5, **fields):
    return Calibration.from_scores(
        [ScoredQuery([threshold], [True], **fields)], alpha=0.5, scorer=SCORER.name
    )


def a_filter(**options):
    return ConformalFilter(SCORER, calibration(), **options)


def documents():
    return [Document(text, id=text, metadata={"own": 1}) for text in TEXTS]


def nodes():
    return [
        NodeWithScore(node=TextNode(text=text, id_=text, metadata={"own": 1}), score=0.5)
        for text in TEXTS
    ]


FOUND = RunnableLambda(lambda query: documents())


class Nodes(LlamaIndexRetriever):
    def _retrieve(self, query_bundle):
        return nodes()


def compressor(**fields):
    return ConformalCompressor(**fields)


def retriever(**fields):
    return ConformalRetriever(retriever=FOUND, **fields)


def postprocessor(**fields):
    return ConformalPostprocessor(**fields)


EACH = pytest.mark.parametrize("made", [compressor, retriever, postprocessor])


def from_calibration(made, given, **options):
    options.setdefault("scorer", SCORER)
    if made is retriever:
        options["retriever"] = FOUND
    kinds = {
        compressor: ConformalCompressor,
        retriever: ConformalRetriever,
        postprocessor: ConformalPostprocessor,
    }
    return kinds[made].from_calibration(given, **options)


def found(component, query, config=None):
    if isinstance(component, ConformalPostprocessor):
        return component.postprocess_nodes(nodes(), query_str=query)
    if isinstance(component, ConformalCompressor):
        return component.compress_documents(documents(), query)
    return component.invoke(query, config)


async def afound(component, query):
    if isinstance(component, ConformalPostprocessor):
        return await component.apostprocess_nodes(nodes(), query_str=query)
    if isinstance(component, ConformalCompressor):
        return await component.acompress_documents(documents(), query)
    return await component.ainvoke(query)


def texts(kept):
    return [one.page_content if isinstance(one, Document) else one.text for one in kept]


# --- what is kept ---------------------------------------------------------------------------------


WAYS = {
    "a field": lambda made, path: made(filter=a_filter(), gate=gate_of()),
    "in the filter": lambda made, path: made(filter=a_filter(gate=gate_of())),
    "from_calibration": lambda made, path: from_calibration(made, calibration(), gate=gate_of()),
    "its file": lambda made, path: from_calibration(
        made, calibration(), gate=path, scorer=[SCORER, LAST]
    ),
}


@EACH
@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_gate_returns_nothing_and_another_what_the_filter_keeps(made, way, tmp_path):
    gate_of().save(tmp_path / "gate.json")
    component = WAYS[way](made, tmp_path / "gate.json")
    for query, kept in ((SPEAKS, ["near", "middle"]), (SILENT, [])):
        assert texts(found(component, query)) == kept
        assert texts(await afound(component, query)) == kept


@EACH
async def test_one_file_may_hold_both(made, tmp_path):
    queries = [judged(i / 10) for i in range(1, 10)]
    calibrate(queries, SCORER, alpha=0.5, gate=gate_of()).save(tmp_path / "both.json")
    component = from_calibration(made, tmp_path / "both.json", scorer=[SCORER, LAST])
    assert texts(found(component, SPEAKS)) == ["near"]
    assert texts(found(component, SILENT)) == texts(await afound(component, SILENT)) == []
    with pytest.raises(CalibrationMismatch, match="last word"):
        from_calibration(made, tmp_path / "both.json")


@pytest.mark.parametrize("made", [compressor, retriever])
def test_metadata_have_the_gate_only_if_there_is_one(made):
    kept = found(made(filter=a_filter()), SPEAKS)
    assert {*kept[0].metadata} == {"own", "conformal_score", "conformal_p_value"}
    gated = {"filter": a_filter(), "gate": gate_of()}
    (first, _) = found(made(**gated, metadata_prefix="my_"), SPEAKS)
    assert first.metadata["my_gate_p_value"] == pytest.approx(0.8)  # (1 + 7) / 10
    assert found(made(**gated, metadata_prefix=None), SPEAKS)[0].metadata == {"own": 1}
    json.dumps(first.metadata, allow_nan=False)


@EACH
def test_a_query_without_a_score_passes(made):
    unknown = QueryFunction(
        lambda query, texts: float("nan") if query == "unknown" else float(query.split()[-1]),
        LAST.name,
    )
    kept = found(made(filter=a_filter(), gate=gate_of(unknown)), "unknown")
    assert texts(kept) == ["near", "middle"]
    if made is not postprocessor:
        assert kept[0].metadata["conformal_gate_p_value"] is None


@EACH
@pytest.mark.parametrize("on_empty", ["keep_best", "raise"])
def test_on_empty_does_not_apply_to_silence(made, on_empty):
    assert found(made(filter=a_filter(on_empty=on_empty), gate=gate_of()), SILENT) == []


@EACH
async def test_sentences_are_kept_or_silenced_together(made):
    split = splitter("sentences")
    of_sentences = SentenceFilter(SCORER, calibration(split=split.name), split)
    cut_gate = calibrate_gate(
        [judged(i / 10, split=split.name) for i in range(1, 10)], scorer=LAST, alpha=0.2
    )
    component = made(filter=of_sentences, gate=cut_gate)
    assert texts(found(component, SPEAKS)) == ["near", "middle"]
    assert texts(found(component, SILENT)) == texts(await afound(component, SILENT)) == []


@EACH
def test_the_group_of_a_query_has_its_own_threshold(made):
    given = [judged(i / 10, group="easy") for i in range(1, 10)]
    given += [judged(i / 100, group="hard") for i in range(1, 10)]
    gate = calibrate_gate(given, scorer=LAST, alpha=0.2, by_group=True)
    component = made(filter=a_filter(group_of=lambda query: query.split()[0]), gate=gate)
    assert texts(found(component, "easy 0.3")) == ["near", "middle"]
    assert texts(found(component, "hard 0.3")) == []
    with pytest.warns(UserWarning, match="group"):
        assert texts(found(component, "new 0.3")) == ["near", "middle"]


# --- many calls, copies, configurations -----------------------------------------------------------


@EACH
async def test_queries_of_many_threads_and_tasks_do_not_mix(made):
    component = made(filter=a_filter(), gate=gate_of())
    queries = [f"q {i % 10 / 10}" for i in range(200)]
    expected = [[] if query == "q 0.9" else ["near", "middle"] for query in queries]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(lambda q: texts(found(component, q)), queries)] == expected
    kept = await asyncio.gather(*(afound(component, query) for query in queries))
    assert [texts(one) for one in kept] == expected


@EACH
def test_copies_have_the_gate_and_may_get_another(made):
    component = made(filter=a_filter(), gate=gate_of())
    for twin in (copy.copy(component), component.model_copy(), component.model_copy(deep=True)):
        assert texts(found(twin, SILENT)) == []
    other = component.model_copy(update={"gate": gate_of(alpha=0.1)})  # the threshold is 0.9
    assert texts(found(other, SILENT)) == ["near", "middle"]
    assert texts(found(component, SILENT)) == []


def last_word(query, texts):
    return float(query.split()[-1])


PICKLED = QueryFunction(last_word, LAST.name)


@pytest.mark.parametrize("made", [compressor, postprocessor])
def test_a_component_with_a_gate_can_be_pickled(made):
    twin = pickle.loads(pickle.dumps(made(filter=a_filter(), gate=gate_of(PICKLED))))
    assert (texts(found(twin, SPEAKS)), found(twin, SILENT)) == (["near", "middle"], [])


def test_the_filters_alpha_is_configurable_behind_a_gate():
    three = Calibration.from_scores(
        [ScoredQuery([s], [True]) for s in (0.1, 0.4, 0.9)], alpha=0.5, scorer=SCORER.name
    )
    component = retriever(filter=ConformalFilter(SCORER, three), gate=gate_of())
    opened = component.configurable_fields(alpha=ConfigurableField(id="alpha"))
    for alpha, kept in ((0.75, ["near"]), (0.5, ["near", "middle"]), (0.25, TEXTS)):
        config = {"configurable": {"alpha": alpha}}
        assert texts(found(opened, SPEAKS, config)) == kept
        assert found(opened, SILENT, config) == []


def test_a_postprocessor_shows_its_gate_without_models():
    gate = gate_of()
    component = postprocessor(filter=a_filter(), gate=gate)
    shown = component.model_dump(exclude={"callback_manager"})
    assert shown["gate"] == {"scorer": "last word", "calibration": gate.calibration.checksum}
    assert postprocessor(filter=a_filter()).model_dump()["gate"] is None
    assert component.model_json_schema()["properties"]["gate"]["type"] == "object"
    component.gate = None
    assert texts(found(component, SILENT)) == ["near", "middle"]


# --- what is refused, and what is noticed ---------------------------------------------------------


@EACH
def test_another_gate_than_the_calibrated_one_is_refused(made):
    queries = [judged(i / 10) for i in range(1, 10)]
    gate = gate_of()
    both = calibrate(queries, SCORER, alpha=0.5, gate=gate)
    behind = ConformalFilter(SCORER, both, gate=gate)
    same = Gate(LAST, Calibration.from_json(gate.calibration.to_json()))
    assert found(made(filter=behind, gate=same), SILENT) == []
    with pytest.raises(ValueError, match="gate is"):  # pydantic makes it a ValidationError
        made(filter=behind, gate=gate_of(alpha=0.1))
    with pytest.raises(CalibrationMismatch, match="gate"):
        from_calibration(made, both, gate=gate_of(alpha=0.1), scorer=[SCORER, LAST])


@EACH
@pytest.mark.parametrize("given", ["gate.json", 0.5, "a filter"])
def test_what_is_no_gate_is_refused(made, given):
    with pytest.raises((TypeError, ValueError), match="gate"):
        made(filter=a_filter(), gate=a_filter() if given == "a filter" else given)


def in_langchain(k=3):
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents(documents())
    return store.as_retriever(search_kwargs={"k": k})


def test_a_retriever_that_lacks_hits_of_the_gate_is_refused():
    both = langchain_conformal.HybridRetriever({"dense": in_langchain(), "bm25": in_langchain()})
    queries = [JudgedQuery(text, [text], [True]) for text in TEXTS]
    gate = calibrate_gate(
        langchain_conformal.judge_retriever(both, queries),
        scorer=BestScore(FusionScorer(["dense", "bm25"])),
        alpha=0.3,
    )
    ConformalRetriever(retriever=both, filter=a_filter(), gate=gate)
    with pytest.raises(ValueError, match="bm25"):
        ConformalRetriever(retriever=in_langchain(), filter=a_filter(), gate=gate)


def test_a_retriever_notices_that_the_gate_is_of_another_depth():
    gate = calibrate_gate(
        langchain_conformal.judge_retriever(
            in_langchain(3), [JudgedQuery(f"{text} 0.1", [text], [True]) for text in TEXTS]
        ),
        scorer=LAST,
        alpha=0.3,
    )
    same = ConformalRetriever(retriever=in_langchain(3), filter=a_filter(), gate=gate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same.invoke(SPEAKS)
    other = ConformalRetriever(retriever=in_langchain(2), filter=a_filter(), gate=gate)
    with pytest.warns(UserWarning, match="k = 3"):
        other.invoke(SPEAKS)


# --- the models that a gate needs -----------------------------------------------------------------


def nearest(package, model):
    """A gate by the best cosine, which needs the model, and a filter by rank, which needs none."""
    scorer = BestScore(package.embedding_scorer(model))
    queries = [JudgedQuery(text, TEXTS, [t == text for t in TEXTS]) for text in TEXTS]
    return calibrate_gate(queries, scorer=scorer, alpha=0.3)


def by_rank():
    provenance = {"kind": "rank", "retriever": "retriever"}
    return Calibration.from_scores(
        [ScoredQuery([1.0], [True])],
        alpha=0.5,
        scorer="rank(retriever)",
        scorer_provenance=provenance,
    )


@EACH
async def test_the_embeddings_that_a_gate_needs_are_given_as_those_of_a_filter(
    made, tmp_path, monkeypatch
):
    package = llama_index_conformal if made is postprocessor else langchain_conformal
    model = MiniLMEmbedding() if made is postprocessor else MiniLMEmbeddings()
    argument = "embed_model" if made is postprocessor else "embeddings"
    path = tmp_path / "gate.json"
    nearest(package, model).save(path)
    options = {"scorer": None, "gate": path}
    component = from_calibration(made, by_rank(), **options, **{argument: model})
    assert texts(found(component, "near")) == ["near", "far"]
    assert texts(found(component, "zebra opera")) == []
    assert await afound(component, "zebra opera") == []
    if made is postprocessor:
        monkeypatch.setattr(Settings, "_embed_model", model)
        component = from_calibration(made, by_rank(), **options)
        assert found(component, "zebra opera") == []
    else:
        with pytest.raises(CalibrationMismatch, match=re.escape("cosine(all-MiniLM-L6-v2)")):
            from_calibration(made, by_rank(), **options)


@pytest.fixture
async def llms(llm_server):
    """The LLM of each framework, over HTTP."""
    async with httpx.AsyncClient() as asynchronous:
        with httpx.Client() as synchronous:
            given = {"model": "minilm", "temperature": 0, "max_retries": 0, "api_key": "none"}
            yield (
                ChatOpenAI(
                    base_url=llm_server.url,
                    http_client=synchronous,
                    http_async_client=asynchronous,
                    **given,
                ),
                OpenAILike(
                    api_base=llm_server.url,
                    is_chat_model=True,
                    context_window=100_000,
                    http_client=synchronous,
                    async_http_client=asynchronous,
                    **given,
                ),
            )


@EACH
async def test_the_llm_that_a_gate_needs_gives_its_verdict(made, tmp_path, llms, llm_server):
    package = llama_index_conformal if made is postprocessor else langchain_conformal
    llm = llms[made is postprocessor]
    asked = []

    def reply(body):
        asked.append(body)
        rating = 0.0 if "zebra" in str(body) else 0.9
        return json.dumps({"reason": "…", "rating": rating})

    llm_server.reply = reply
    queries = [JudgedQuery(text, TEXTS, [t == text for t in TEXTS]) for text in TEXTS]
    verdict = LLMVerdict(package.as_llm(llm))
    calibrate_gate(queries, scorer=verdict, alpha=0.3).save(tmp_path / "gate.json")
    options = {"scorer": None, "gate": tmp_path / "gate.json"}
    component = from_calibration(made, by_rank(), llm=llm, **options)
    del asked[:]
    assert texts(found(component, "near")) == ["near", "far"]
    assert await afound(component, "zebra opera") == []
    assert len(asked) == 2  # one for each query; the filter asks none
    other = LLMVerdict(package.as_llm(llm, options=openai_options), by="probability-of-yes")
    with pytest.raises(CalibrationMismatch, match="verdict"):
        from_calibration(made, by_rank(), gate=tmp_path / "gate.json", scorer=[other])


# --- events ---------------------------------------------------------------------------------------


@pytest.fixture
def handled():
    """Return a function that adds a handler to LlamaIndex for this test."""
    root = get_dispatcher()
    before = list(root.event_handlers)
    yield root.add_event_handler
    root.event_handlers = before


async def decisions_of(component, queries, handled, log):
    """The decision about each query in a log that the package's handler writes."""
    if isinstance(component, ConformalPostprocessor):
        handled(ConformalEventHandler(FilterLog(log)))
        kept = [found(component, queries[0])] + [await afound(component, q) for q in queries[1:]]
    else:
        config = {"callbacks": [ConformalCallbackHandler(FilterLog(log))]}
        kept = [found(component, queries[0], config)]
        kept += [await component.ainvoke(query, config) for query in queries[1:]]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return events, [len(one) for one in kept]


@pytest.mark.parametrize("made", [retriever, postprocessor])
async def test_a_silent_query_has_its_event_like_every_other(made, tmp_path, handled):
    gate = gate_of()
    component = from_calibration(made, calibration(), gate=gate)
    log = tmp_path / "filter.jsonl"
    events, kept = await decisions_of(component, [SILENT, SPEAKS, SILENT], handled, log)
    assert [event["gate"]["decision"] for event in events] == ["silent", "speaks", "silent"]
    assert [event["gate"]["p_value"] for event in events] == [0.2, 0.8, 0.2]
    assert {event["gate"]["calibration"] for event in events} == {gate.calibration.checksum}
    assert [event["kept"] for event in events] == [[], [0, 2], []]
    assert kept == [0, 2, 0]
    assert {tuple(event["scores"]) for event in events} == {(0.1, 0.9, 0.4)}
    assert len([*read_log(log)]) == 3


async def test_both_frameworks_tell_the_same_of_a_decision(tmp_path, handled):
    told, one_filter, gate = [], a_filter(), gate_of()
    for made in (retriever, postprocessor):
        component = made(filter=one_filter, gate=gate)
        queries = [f"q {i / 10}" for i in range(11)]
        events, kept = await decisions_of(component, queries, handled, tmp_path / made.__name__)
        told.append(([{**event, "time": None} for event in events], kept))
    assert told[0] == told[1]
    assert {event["gate"]["decision"] for event in told[0][0]} == {"speaks", "silent"}


async def test_opentelemetrys_span_has_the_decision(tracing):
    exporter, provider = tracing
    component = postprocessor(filter=a_filter(), gate=gate_of())
    with provider.get_tracer("test").start_as_current_span("query"):
        found(component, SILENT)
    [span] = exporter.get_finished_spans()
    assert span.attributes["conformal.gate.decision"] == "silent"
    assert span.attributes["conformal.gate.p_value"] == 0.2
    assert span.attributes["conformal.kept"] == 0


# --- what follows in a chain ----------------------------------------------------------------------

ANSWER, NONE = "An answer of several words.", "The documents do not answer this."


async def test_a_chain_branches_on_no_documents_without_asking_the_llm(llms, llm_server):
    llm_server.reply = lambda body: ANSWER
    filtered = retriever(filter=a_filter(), gate=gate_of())
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    answer = prompt | llms[0] | (lambda message: message.content)
    chain = RunnablePassthrough.assign(
        context=RunnableLambda(lambda given: given["question"]) | filtered
    ) | RunnableBranch((lambda given: not given["context"], lambda given: NONE), answer)
    assert chain.invoke({"question": SILENT}) == NONE
    assert await chain.ainvoke({"question": SILENT}) == NONE
    assert llm_server.bodies == []
    given = [{"question": query} for query in (SPEAKS, SILENT, SPEAKS)]
    assert chain.batch(given) == await chain.abatch(given) == [ANSWER, NONE, ANSWER]
    assert "".join(chain.stream(given[1])) == NONE
    assert len(llm_server.bodies) == 4
    assert all("near" in str(body) and "far" not in str(body) for body in llm_server.bodies)


async def test_a_query_engine_answers_what_is_set_without_asking_the_llm(llms, llm_server):
    llm_server.reply = lambda body: ANSWER
    keep = postprocessor(filter=a_filter(), gate=gate_of())

    def engine(**options):
        return RetrieverQueryEngine.from_args(
            Nodes(), llm=llms[1], node_postprocessors=[keep], **options
        )

    response = engine().query(SILENT)
    assert (str(response), response.source_nodes) == ("Empty Response", [])
    assert str(await engine().aquery(SILENT)) == "Empty Response"
    streamed = engine(streaming=True).query(SILENT)
    assert "".join(streamed.response_gen) == "Empty Response"
    synthesizer = get_response_synthesizer(llm=llms[1])
    synthesizer._empty_response = NONE
    assert str(engine(response_synthesizer=synthesizer).query(SILENT)) == NONE
    assert llm_server.bodies == []
    assert str(engine().query(SPEAKS)) == ANSWER
    (body,) = llm_server.bodies
    assert "near" in str(body)
    assert "conformal" not in str(body)
