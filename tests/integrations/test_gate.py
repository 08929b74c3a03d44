"""The gate in the components of both packages: a query that it silences gets nothing."""

import copy
import json
import re
import warnings
from itertools import product

import pytest
from frameworks import COMPONENTS, calibration_at, each_component, filter_at, retriever_of, texts_of
from langchain_core import runnables
from langchain_core.prompts import ChatPromptTemplate
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.query_engine import RetrieverQueryEngine
from lookup import LookupScorer, QueryFunction

import langchain_conformal
from conformal_retrievers import ConformalFilter, Gate, JudgedQuery, ScoredQuery, calibrate
from conformal_retrievers.calibration import Calibration, CalibrationMismatch, calibrate_gate
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.llm import openai_options
from conformal_retrievers.monitoring import FilterLog, read_log
from conformal_retrievers.scoring import BestScore, LLMVerdict, RankScorer
from langchain_conformal import ConformalCallbackHandler, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalEventHandler

pytestmark = pytest.mark.filterwarnings("ignore:relevant snippets score", "ignore:the threshold")

TEXTS = ["near", "far", "middle"]
SCORER = LookupScorer({"near": 0.1, "middle": 0.4, "far": 0.9})
COMPRESSOR, RETRIEVER, POSTPROCESSOR = COMPONENTS
SPEAKS, SILENT = "a query 0.3", "a query 0.9"


def last_word(query, texts):
    """A query ends with its score."""
    return float(query.split()[-1])


LAST = QueryFunction(last_word, "last word")


def judged(score, relevant=True, **fields):
    return JudgedQuery(f"{relevant} {score}", TEXTS, [relevant, False, False], **fields)


def tenths(**fields):
    return [judged(i / 10, **fields) for i in range(1, 10)]


def gate_of(scorer=LAST, **options):
    """Return a gate with the threshold 0.8: of 0.1 … 0.9 the 8-th, k = ⌈10 · 0.8⌉."""
    return calibrate_gate(tenths(), scorer=scorer, **{"alpha": 0.2, **options})


def gated(of, **fields):
    return of.made(TEXTS, **{"filter": filter_at(SCORER), "gate": gate_of(), **fields})


def opened(of, given, scorer=SCORER, **options):
    return of.opened(TEXTS, given, scorer=scorer, **options)


# --- what is kept ---------------------------------------------------------------------------------


WAYS = {
    "a field": lambda of, path: gated(of),
    "in the filter": lambda of, path: gated(
        of, filter=filter_at(SCORER, gate=gate_of()), gate=None
    ),
    "from_calibration": lambda of, path: opened(of, calibration_at(SCORER), gate=gate_of()),
    "its file": lambda of, path: opened(
        of, calibration_at(SCORER), gate=path, scorer=[SCORER, LAST]
    ),
}


@each_component
@pytest.mark.parametrize("way", WAYS)
async def test_a_silent_gate_returns_nothing_and_another_what_the_filter_keeps(of, way, tmp_path):
    gate_of().save(tmp_path / "gate.json")
    made = WAYS[way](of, tmp_path / "gate.json")
    assert await of.kept(made, TEXTS, SPEAKS) == ["near", "middle"]
    assert await of.kept(made, TEXTS, SILENT) == []


@each_component
async def test_one_file_may_hold_both(of, tmp_path):
    calibrate(tenths(), SCORER, alpha=0.5, gate=gate_of()).save(tmp_path / "both.json")
    made = opened(of, tmp_path / "both.json", scorer=[SCORER, LAST])
    assert await of.kept(made, TEXTS, SPEAKS) == ["near"]
    assert await of.kept(made, TEXTS, SILENT) == []
    with pytest.raises(CalibrationMismatch, match="last word"):
        opened(of, tmp_path / "both.json")


@pytest.mark.parametrize("of", COMPONENTS[:2])
def test_metadata_have_the_gate_only_if_there_is_one(of):
    kept = of.ask(gated(of, gate=None), TEXTS, SPEAKS)
    assert {*kept[0].metadata} == {"own", "conformal_score", "conformal_p_value"}
    (first, _) = of.ask(gated(of, metadata_prefix="my_"), TEXTS, SPEAKS)
    assert first.metadata["my_gate_p_value"] == pytest.approx(0.8)  # (1 + 7) / 10
    assert of.ask(gated(of, metadata_prefix=None), TEXTS, SPEAKS)[0].metadata == {"own": 1}
    json.dumps(first.metadata, allow_nan=False)


@each_component
def test_a_query_without_a_score_passes(of):
    unknown = QueryFunction(
        lambda query, texts: float("nan") if query == "unknown" else last_word(query, texts),
        LAST.name,
    )
    kept = of.ask(gated(of, gate=gate_of(unknown)), TEXTS, "unknown")
    assert texts_of(kept) == ["near", "middle"]
    if of is not POSTPROCESSOR:
        assert kept[0].metadata["conformal_gate_p_value"] is None


@each_component
async def test_the_group_of_a_query_has_its_own_threshold(of):
    given = tenths(group="easy") + [judged(i / 100, group="hard") for i in range(1, 10)]
    gate = calibrate_gate(given, scorer=LAST, alpha=0.2, by_group=True)
    made = gated(of, filter=filter_at(SCORER, group_of=lambda query: query.split()[0]), gate=gate)
    assert await of.kept(made, TEXTS, "easy 0.3") == ["near", "middle"]
    assert await of.kept(made, TEXTS, "hard 0.3") == []
    with pytest.warns(UserWarning, match="group"):
        assert await of.kept(made, TEXTS, "new 0.3") == ["near", "middle"]


# --- many calls, copies, configurations -----------------------------------------------------------


@each_component
async def test_copies_have_the_gate_and_may_get_another(of):
    made = gated(of)
    for twin in (copy.copy(made), made.model_copy(), made.model_copy(deep=True)):
        assert await of.kept(twin, TEXTS, SILENT) == []
    other = made.model_copy(update={"gate": gate_of(alpha=0.1)})  # the threshold is 0.9
    assert await of.kept(other, TEXTS, SILENT) == ["near", "middle"]
    assert await of.kept(made, TEXTS, SILENT) == []


async def test_the_filters_alpha_is_configurable_behind_a_gate():
    scored = [ScoredQuery([s], [True]) for s in [0.1] * 5 + [0.4] * 3 + [0.9]]
    calibration = Calibration.from_scores(scored, alpha=0.3, scorer=SCORER.name)
    made = gated(RETRIEVER, filter=ConformalFilter(SCORER, calibration))
    configurable = made.configurable_fields(alpha=runnables.ConfigurableField(id="alpha"))
    queries = [SPEAKS, SILENT]
    for alpha, kept in ((0.5, ["near"]), (0.3, ["near", "middle"]), (0.1, TEXTS)):
        config = {"configurable": {"alpha": alpha}}
        bound = configurable.with_config(config)
        for found in (
            [configurable.invoke(query, config) for query in queries],
            [await configurable.ainvoke(query, config) for query in queries],
            [bound.invoke(query) for query in queries],
            configurable.batch(queries, config),
            await configurable.abatch(queries, config),
            await bound.abatch(queries),
        ):
            assert [*map(texts_of, found)] == [kept, []]
    assert texts_of(configurable.invoke(SPEAKS)) == ["near", "middle"]


async def test_a_postprocessor_shows_its_gate_without_models():
    gate = gate_of()  # another one may be made in the next second
    made = gated(POSTPROCESSOR, gate=gate)
    shown = made.model_dump(exclude={"callback_manager"})
    assert shown["gate"] == {"scorer": "last word", "calibration": gate.calibration.checksum}
    assert gated(POSTPROCESSOR, gate=None).model_dump()["gate"] is None
    assert made.model_json_schema()["properties"]["gate"]["type"] == "object"
    made.gate = None
    assert await POSTPROCESSOR.kept(made, TEXTS, SILENT) == ["near", "middle"]


# --- what is refused, and what is noticed ---------------------------------------------------------


@each_component
async def test_another_gate_than_the_calibrated_one_is_refused(of):
    gate, other = gate_of(), gate_of(alpha=0.1)
    both = calibrate(tenths(), SCORER, alpha=0.5, gate=gate)
    behind = ConformalFilter(SCORER, both, gate=gate)
    same = Gate(LAST, Calibration.from_json(gate.calibration.to_json()))
    assert await of.kept(gated(of, filter=behind, gate=same), TEXTS, SILENT) == []
    with pytest.raises(ValueError, match="gate is"):  # pydantic makes it a ValidationError
        gated(of, filter=behind, gate=other)
    with pytest.raises(CalibrationMismatch, match="gate"):
        opened(of, both, gate=other, scorer=[SCORER, LAST])


@each_component
@pytest.mark.parametrize(
    "given", ["gate.json", 0.5, filter_at(SCORER)], ids=["path", "0.5", "filter"]
)
def test_what_is_no_gate_is_refused(of, given):
    with pytest.raises((TypeError, ValueError), match="gate"):
        gated(of, gate=given)


@each_component
def test_a_gate_in_the_place_of_a_calibration_is_refused_as_its_file_is(of):
    with pytest.raises(CalibrationMismatch, match="is of a gate, about queries.*Give it as gate="):
        of.component.from_calibration(gate_of(), scorer=[SCORER, LAST])


def test_a_retriever_notices_that_the_gate_is_of_another_depth():
    queries = [JudgedQuery(f"{text} 0.1", [text], [True]) for text in TEXTS]
    found = langchain_conformal.judge_retriever(retriever_of(TEXTS, 3), queries)
    keep = filter_at(SCORER, gate=calibrate_gate(found, scorer=LAST, alpha=0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ConformalRetriever(retriever=retriever_of(TEXTS, 3), filter=keep).invoke(SPEAKS)
    with pytest.warns(UserWarning, match="k = 3"):
        ConformalRetriever(retriever=retriever_of(TEXTS, 2), filter=keep).invoke(SPEAKS)


# --- the models that a gate needs -----------------------------------------------------------------


ABOUT = [JudgedQuery(text, TEXTS, [t == text for t in TEXTS]) for text in TEXTS]


# It needs no model, and keeps the first two.
SECOND = JudgedQuery("q", with_hits(list("abcd")), [False, True, False, False])
BY_RANK = calibrate([SECOND], RankScorer(), alpha=0.5)


@each_component
async def test_the_embeddings_that_a_gate_needs_are_given_as_those_of_a_filter(
    of, tmp_path, monkeypatch
):
    model, path = of.embeddings(), tmp_path / "gate.json"
    nearest = BestScore(of.package.embedding_scorer(model))
    calibrate_gate(ABOUT, scorer=nearest, alpha=0.3).save(path)
    made = of.opened(TEXTS, BY_RANK, gate=path, **{of.argument: model})
    assert await of.kept(made, TEXTS, "near") == ["near", "far"]
    assert await of.kept(made, TEXTS, "zebra opera") == []
    if of is POSTPROCESSOR:
        monkeypatch.setattr(Settings, "_embed_model", model)
        assert of.ask(of.opened(TEXTS, BY_RANK, gate=path), TEXTS, "zebra opera") == []
    else:
        with pytest.raises(CalibrationMismatch, match=re.escape("cosine(all-MiniLM-L6-v2)")):
            of.opened(TEXTS, BY_RANK, gate=path)


@each_component
async def test_the_llm_that_a_gate_needs_gives_its_verdict(of, tmp_path, models, llm_server):
    llm, path = models()[of is POSTPROCESSOR], tmp_path / "gate.json"
    llm_server.reply = lambda body: json.dumps(
        {"reason": "…", "rating": 0.0 if "zebra" in str(body) else 0.9}
    )
    calibrate_gate(ABOUT, scorer=LLMVerdict(of.package.as_llm(llm)), alpha=0.3).save(path)
    made = of.opened(TEXTS, BY_RANK, llm=llm, gate=path)
    del llm_server.bodies[:]
    assert texts_of(of.ask(made, TEXTS, "near")) == ["near", "far"]
    assert await of.aask(made, TEXTS, "zebra opera") == []
    assert len(llm_server.bodies) == 2  # one for each query; the filter asks none
    other = LLMVerdict(of.package.as_llm(llm, options=openai_options), by="probability-of-yes")
    with pytest.raises(CalibrationMismatch, match="verdict"):
        of.opened(TEXTS, BY_RANK, gate=path, scorer=[other])


# --- events ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", COMPONENTS[1:])
async def test_a_silent_query_has_its_event_like_every_other(of, tmp_path, handled):
    made, log = gated(of), FilterLog(tmp_path / "filter.jsonl")
    handled(ConformalEventHandler(log))
    callbacks = [ConformalCallbackHandler(log)]
    kept = [of.ask(made, TEXTS, SILENT, callbacks)]
    kept += [await of.aask(made, TEXTS, query, callbacks) for query in (SPEAKS, SILENT)]
    events = [*read_log(log.path)]
    assert [event["gate"]["decision"] for event in events] == ["silent", "speaks", "silent"]
    assert [event["gate"]["p_value"] for event in events] == [0.2, 0.8, 0.2]
    assert {event["gate"]["calibration"] for event in events} == {made.gate.calibration.checksum}
    assert [event["kept"] for event in events] == [[], [0, 2], []]
    assert [len(one) for one in kept] == [0, 2, 0]
    assert {tuple(event["scores"]) for event in events} == {(0.1, 0.9, 0.4)}


async def test_opentelemetrys_span_has_the_decision(tracing):
    exporter, provider = tracing
    ways = [*product(COMPONENTS, (False, True))]
    for of, shadow in ways:
        with provider.get_tracer("test").start_as_current_span("query"):
            await of.kept(gated(of, filter=filter_at(SCORER, shadow=shadow)), TEXTS, SILENT)
    for (_, shadow), span in zip(ways, exporter.get_finished_spans(), strict=True):
        assert span.attributes.get("conformal.shadow", False) is shadow
        assert [event.name for event in span.events] == ["conformal_filter"] * 2
        assert span.attributes["conformal.gate.decision"] == "silent"
        assert span.attributes["conformal.gate.p_value"] == 0.2
        assert span.attributes["conformal.kept"] == 0


# --- what follows in a chain ----------------------------------------------------------------------

ANSWER, NONE = "An answer of several words.", "The documents do not answer this."


async def test_a_chain_branches_on_no_documents_without_asking_the_llm(models, llm_server):
    llm_server.reply = lambda body: ANSWER
    filtered = gated(RETRIEVER)
    prompt = ChatPromptTemplate.from_template("{context}\n\n{question}")
    answer = prompt | models()[0] | (lambda message: message.content)
    chain = runnables.RunnablePassthrough.assign(
        context=runnables.RunnableLambda(lambda given: given["question"]) | filtered
    ) | runnables.RunnableBranch((lambda given: not given["context"], lambda given: NONE), answer)
    assert chain.invoke({"question": SILENT}) == NONE
    assert await chain.ainvoke({"question": SILENT}) == NONE
    assert llm_server.bodies == []
    given = [{"question": query} for query in (SPEAKS, SILENT, SPEAKS)]
    assert chain.batch(given) == await chain.abatch(given) == [ANSWER, NONE, ANSWER]
    assert "".join(chain.stream(given[1])) == NONE
    assert len(llm_server.bodies) == 4
    assert all("near" in str(body) and "far" not in str(body) for body in llm_server.bodies)


async def test_a_query_engine_answers_what_is_set_without_asking_the_llm(models, llm_server):
    llm_server.reply = lambda body: ANSWER
    keep = gated(POSTPROCESSOR)

    found = POSTPROCESSOR.retriever(lambda query: POSTPROCESSOR.given(TEXTS))

    def engine(**options):
        options |= {"llm": models()[1], "node_postprocessors": [keep]}
        return RetrieverQueryEngine.from_args(found, **options)

    response = engine().query(SILENT)
    assert (str(response), response.source_nodes) == ("Empty Response", [])
    assert str(await engine().aquery(SILENT)) == "Empty Response"
    assert "".join(engine(streaming=True).query(SILENT).response_gen) == "Empty Response"
    synthesizer = get_response_synthesizer(llm=models()[1])
    if hasattr(synthesizer, "_empty_response"):  # from llama-index-core 0.14.13 on
        synthesizer._empty_response = NONE
        assert str(engine(response_synthesizer=synthesizer).query(SILENT)) == NONE
    assert llm_server.bodies == []
    assert str(engine().query(SPEAKS)) == ANSWER
    (body,) = llm_server.bodies
    assert "near" in str(body)
    assert "conformal" not in str(body)
