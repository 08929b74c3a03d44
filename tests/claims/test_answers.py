"""From a question to a filtered answer: both frameworks, MiniLM, and a server as every LLM."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from claims_server import INVENTED
from frameworks import MiniLMEmbeddings, halves, judged, langchain_retriever, vector_index
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core.base.response import schema
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import CustomQueryEngine, RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from conformal_retrievers import LLM, ConformalFilter, calibrate
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    AnswerFilter,
    ClaimFilter,
    ClaimRelevance,
    calibrate_claims,
)
from langchain_conformal import (
    ConformalRetriever,
    answer_filter_runnable,
    embedding_scorer,
    judge_retriever,
)
from llama_index.postprocessor.conformal import ClaimFilterQueryEngine, ConformalPostprocessor

ALPHA = 0.2
PROMPT = ChatPromptTemplate.from_template(
    "Context information is below.\n---------------------\n{context}\n---------------------\n"
    "Answer the query.\nQuery: {question}\nAnswer: "
)


@pytest.fixture
def snippet_filter():
    calibrating, _ = halves()
    scorer = embedding_scorer(MiniLMEmbeddings())
    return ConformalFilter(
        scorer, calibrate(judge_retriever(langchain_retriever(4), calibrating), scorer, alpha=ALPHA)
    )


@pytest.fixture
def own_loop():
    """LlamaIndex's synchronous engines open an event loop, where there is none, and leave it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def http():
    with httpx.Client() as client:
        yield client


def by_hand(texts):
    """A calibration with threshold .5 of a scorer that looks relevances up by the claim's text."""

    class Lookup:
        name = "lookup"

        def relevance(self, query, claims, documents):
            texts.append([d.text for d in documents])
            return [{"low": 0.1, "nan": float("nan")}.get(c.split()[-1][:-1], 0.9) for c in claims]

    answers = [AnnotatedAnswer([0.5], [False])] * 4
    return ClaimFilter(Lookup(), calibrate_claims(answers, alpha=0.4, scorer="lookup"))


# --- the whole path -------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_frameworks_filter_answers_from_question_to_text(
    llm, llm_server, snippet_filter, own_loop, http
):
    def asked(given):
        texts = [document.page_content for document in given["context"]]
        return {"context": "\n\n".join(texts), "question": given["question"]}

    retriever = ConformalRetriever(retriever=langchain_retriever(4), filter=snippet_filter)
    chat = ChatOpenAI(model="m", base_url=llm_server.url, api_key="none", temperature=0)
    answering = RunnablePassthrough.assign(answer=asked | PROMPT | chat | StrOutputParser())
    chain = {"question": RunnablePassthrough(), "context": retriever} | answering

    scorer = ClaimRelevance(embedding_scorer(MiniLMEmbeddings()))
    answers = [AnnotatedAnswer([0.2], [False])] * 9
    calibration = calibrate_claims(answers, alpha=ALPHA, scorer=scorer.name)
    _, new = halves()

    # The same filter behind each framework's own generation keeps the same of the same answer.
    answers = AnswerFilter(ClaimFilter(scorer, calibration), llm)
    filtering = chain | answer_filter_runnable(answers)
    at = {"api_base": llm_server.url, "api_key": "none", "http_client": http}
    like = OpenAILike(model="m", is_chat_model=True, temperature=0, **at)
    post = ConformalPostprocessor(filter=snippet_filter)
    inner = vector_index().as_query_engine(llm=like, similarity_top_k=4, node_postprocessors=[post])
    engine = ClaimFilterQueryEngine(inner, answers)
    invented, kept = [], 0
    for query in new[:6]:
        message = filtering.invoke(query.query)
        response = engine.query(query.query)
        details = message.response_metadata["conformal_claims"]
        other = response.metadata["conformal_claims"]
        assert [c["claim"] for c in details["kept"]] == [c["claim"] for c in other["kept"]]
        assert str(response) == (message.text if response.source_nodes else "Empty Response")
        assert len(response.source_nodes) <= 4
        assert all(c["p_value"] <= ALPHA for c in details["kept"])
        kept += len(details["kept"])
        invented += [c["claim"] in INVENTED for c in details["removed"]]
    assert any(invented)
    assert kept > 0


# --- from text to text ----------------------------------------------------------------------------


async def test_an_answer_is_divided_filtered_and_stated_again(llm, llm_server):
    seen = []
    filtered = AnswerFilter(by_hand(seen), llm)("q", "It is red. It is low. It is nan. So.", ["d"])
    assert filtered.text == "It is red. So."
    assert filtered.guaranteed
    assert filtered.claims.kept.tolist() == [0, 3]
    assert seen == [["d"]]
    assert json.loads(json.dumps(filtered.details, allow_nan=False)) == {
        "kept": [
            {"claim": "It is red.", "relevance": 0.9, "p_value": 0.2},
            {"claim": "So.", "relevance": 0.9, "p_value": 0.2},
        ],
        "removed": [
            {"claim": "It is low.", "relevance": 0.1, "p_value": 1.0},
            {"claim": "It is nan.", "relevance": None, "p_value": None},
        ],
        "threshold": 0.5,
        "alpha": 0.4,
        "scorer": "lookup",
        "guaranteed": True,
        "undivided": None,
    }
    again = await AnswerFilter(by_hand([]), llm).acall("q", filtered.answer, ["d"])
    assert (again.details, again.text) == (filtered.details, filtered.text)


async def test_a_merged_text_is_outside_the_guarantee_and_nothing_is_not_merged(llm, llm_server):
    answers = AnswerFilter(by_hand([]), llm, merge_with=llm)
    given = ("q", "It is red. It is low.", [])
    for filtered in (answers(*given), await answers.acall(*given)):
        assert filtered.text == "In short: It is red."
        assert filtered.guaranteed is filtered.details["guaranteed"] is False
        assert filtered.usage.requests == 2
    abstaining = replace(answers, abstention="No.")
    for answer in ("It is low.", " "):
        assert abstaining("q", answer, []).text == "No."
    assert len(llm_server.bodies) == 5  # "It is low." is divided, and nothing is merged


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [("429 for good", "unanswered"), ("refusal", "refused"), ("cut off", "cut off")],
)
def test_an_undivided_answer_is_not_passed_on(llm, llm_server, trouble, reason):
    llm_server.trouble = lambda body, times: trouble
    filtered = AnswerFilter(by_hand([]), llm)("q", "It is red.", [])
    assert filtered.text == "I cannot answer this reliably."
    assert filtered.undivided == filtered.details["undivided"] == reason
    assert filtered.guaranteed  # nothing is stated


# --- LangChain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [["a d"], [Document("a d")]], ids=["texts", "documents"])
@pytest.mark.parametrize("answer", ["It is red. It is low.", AIMessage("It is red. It is low.")])
async def test_the_runnable_accepts_the_forms_of_context_and_answer(llm, context, answer):
    seen = []
    chain = RunnablePassthrough() | answer_filter_runnable(AnswerFilter(by_hand(seen), llm))
    given = {"question": "q", "context": context, "answer": answer}
    message = chain.invoke(given)
    assert message.text == (await chain.ainvoke(given)).text == "It is red."
    assert (chain | StrOutputParser()).invoke(given) == "It is red."
    removed = message.response_metadata["conformal_claims"]["removed"]
    assert [claim["claim"] for claim in removed] == ["It is low."]
    assert seen == [["a d"]] * 3


def test_the_runnable_refuses_an_invalid_input(llm):
    for given, error, message in (
        ("It is red.", TypeError, "str"),
        ({"question": "q", "context": []}, ValueError, "answer"),
        ({"question": "q", "context": ["d", 3], "answer": "a"}, TypeError, "text is 3"),
        ({"question": "q", "context": "d\n\ne", "answer": "a"}, TypeError, "list of Documents"),
    ):
        with pytest.raises(error, match=message):
            answer_filter_runnable(AnswerFilter(by_hand([]), llm)).invoke(given)


def test_the_runnable_passes_the_group_on(llm):
    answers = [AnnotatedAnswer([r], [False], group=g) for g, r in (("x", 0.5), ("y", 0.95)) * 4]
    calibration = calibrate_claims(answers, alpha=0.4, scorer="lookup", by_group=True)
    claim_filter = replace(by_hand([]), calibration=calibration)
    runnable = answer_filter_runnable(AnswerFilter(claim_filter, llm, abstention="No."))
    given = {"question": "q", "context": [], "answer": "It is red."}
    said = [runnable.invoke(given | {"group": group}).text for group in ("x", "y")]
    assert said == ["It is red.", "No."]


# --- LlamaIndex -----------------------------------------------------------------------------------


def engine_of(llm, *, streaming, seen=None, **options):
    options |= {"llm": MockLLM(), "similarity_top_k": 2, "streaming": streaming}
    inner = vector_index().as_query_engine(**options)
    answers = AnswerFilter(by_hand([] if seen is None else seen), llm)
    return ClaimFilterQueryEngine(inner, answers), inner


async def test_the_engine_keeps_sources_and_metadata(llm):
    seen = []
    engine, inner = engine_of(llm, streaming=False, seen=seen)
    question = judged()[0].query
    plain, response = inner.query(question), engine.query(question)
    assert [n.node_id for n in response.source_nodes] == [n.node_id for n in plain.source_nodes]
    assert set(response.metadata) == {*plain.metadata, "conformal_claims"}
    assert "conformal_claims" not in plain.metadata
    assert seen == [[n.node.get_content() for n in plain.source_nodes]]
    assert str(await engine.aquery(question)) == str(response)
    assert [n.node_id for n in engine.retrieve(QueryBundle(question))] == [
        n.node_id for n in plain.source_nodes
    ]


async def test_a_stream_is_collected_and_filtered_as_a_whole(llm):
    question = judged()[0].query
    expected = str(engine_of(llm, streaming=False)[0].query(question))
    response = engine_of(llm, streaming=True)[0].query(question)
    assert isinstance(response, schema.StreamingResponse)
    assert "".join(response.response_gen) == expected
    assert response.metadata["conformal_claims"]["kept"]
    awaited = await engine_of(llm, streaming=True)[0].aquery(question)
    assert isinstance(awaited, schema.AsyncStreamingResponse)
    assert "".join([text async for text in awaited.async_response_gen()]) == expected


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_empty_response_is_not_divided_into_claims(streaming):
    class Nothing(BaseRetriever):
        def _retrieve(self, query_bundle):
            return []

    def ask(request):
        raise AssertionError(request)

    inner = RetrieverQueryEngine.from_args(Nothing(), llm=MockLLM(), streaming=streaming)
    engine = ClaimFilterQueryEngine(inner, AnswerFilter(by_hand([]), LLM(ask, "llm")))
    response, awaited = engine.query("q"), await engine.aquery("q")
    for one in (response, awaited):
        details = one.metadata["conformal_claims"]
        assert (details["kept"], details["removed"], details["undivided"]) == ([], [], None)
    if streaming:
        assert "".join(response.response_gen) == "Empty Response"
        assert "".join([text async for text in awaited.async_response_gen()]) == "Empty Response"
    else:
        assert (str(response), str(awaited)) == ("Empty Response", "Empty Response")


def test_an_engine_without_text_answers_is_refused(llm, own_loop):
    class Structured(CustomQueryEngine):
        def custom_query(self, query_str):
            return schema.PydanticResponse(TextNode(text="red"))

    engine = ClaimFilterQueryEngine(Structured(), AnswerFilter(by_hand([]), llm))
    with pytest.raises(TypeError, match="PydanticResponse"):
        engine.query("q")
