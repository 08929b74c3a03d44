"""Answers with a confidence in both frameworks, from a tiny transformers model that runs here."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from llama_index.core import SummaryIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from tiny_models import bpe_tokenizer, local, tiny

from conformal_retrievers.flagging import FactualityFlag
from conformal_retrievers.huggingface import LocalModel, RagPrompt
from conformal_retrievers.lookback import FactualityClassifier, JudgedRatios, lookback_ratios
from langchain_conformal.confidence import confidence_runnable
from llama_index.postprocessor.conformal.confidence import ConfidenceQueryEngine

QUESTION = "How long to wait?"
CHUNKS = ("Wait six hours after the last drink.", "Tylenol and alcohol strain the liver.")


@pytest.fixture(scope="module")
def model():
    return local("llama")


@pytest.fixture(scope="module")
def flag(model):
    """Fitted and calibrated on answers that are judged by the toss of a coin."""
    rng = np.random.default_rng(4)
    prompts = [RagPrompt(f"{QUESTION} {i}", CHUNKS) for i in range(48)]
    answers = model.generate(prompts, max_new_tokens=3)
    judged = [
        JudgedRatios(lookback_ratios(answer.attention), bool(rng.random() < 0.5))
        for answer in answers
    ]
    classifier = FactualityClassifier.fit(judged[:24], n_chunks=2)
    inconsistent = [JudgedRatios(one.ratios, False) for one in judged[24:]]
    return FactualityFlag.calibrate(classifier, inconsistent, alpha=0.3)


@pytest.fixture(scope="module")
def expected(model, flag):
    [generated] = model.generate([RagPrompt(QUESTION, CHUNKS)], max_new_tokens=5)
    said = flag(lookback_ratios(generated.attention))
    assert 0 < said.value < 1
    return generated.text, {"confidence": said.value, "flagged": said.flagged}


def engine_of(chunks):
    index = SummaryIndex([TextNode(text=text) for text in chunks])
    return index.as_query_engine(llm=MockLLM())


async def test_the_answer_of_a_chain_has_its_confidence(model, flag, expected):
    runnable = confidence_runnable(model, flag, max_new_tokens=5)
    given = {"question": QUESTION, "context": [Document(CHUNKS[0]), Document(CHUNKS[1])]}
    for message in (runnable.invoke(given), await runnable.ainvoke(given)):
        assert message.text == expected[0]
        assert message.response_metadata["factuality"] == expected[1]
    assert runnable.invoke({**given, "context": list(CHUNKS)}).text == expected[0]


async def test_the_answer_of_an_engine_has_its_confidence(model, flag, expected):
    engine = ConfidenceQueryEngine(engine_of(CHUNKS), model, flag, max_new_tokens=5)
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert response.response == expected[0]
        assert response.metadata["factuality"] == expected[1]
        assert [node.text for node in response.source_nodes] == list(CHUNKS)


def test_the_models_of_the_frameworks_hold_one_of_transformers(flag, expected):
    """What is read of them is their public `pipeline`, and the attributes of HuggingFaceLLM."""
    from types import SimpleNamespace

    network, tokenizer = tiny("llama"), bpe_tokenizer()
    network.config._name_or_path = "llama"
    pipeline = SimpleNamespace(pipeline=SimpleNamespace(model=network, tokenizer=tokenizer))
    given = {"question": QUESTION, "context": list(CHUNKS)}
    for llm in (pipeline, SimpleNamespace(llm=pipeline)):
        said = confidence_runnable(llm, flag, max_new_tokens=5).invoke(given)
        assert said.response_metadata["factuality"] == expected[1]
    llm = SimpleNamespace(_model=network, _tokenizer=tokenizer)
    engine = ConfidenceQueryEngine(engine_of(CHUNKS), llm, flag, max_new_tokens=5)
    assert engine.query(QUESTION).metadata["factuality"] == expected[1]


def test_the_attention_of_a_hosted_model_cannot_be_seen(flag):
    with pytest.raises(TypeError, match="llm is a FakeListChatModel, whose attention cannot be"):
        confidence_runnable(FakeListChatModel(responses=["a"]), flag, max_new_tokens=5)
    with pytest.raises(TypeError, match="llm is a MockLLM, whose attention cannot be seen"):
        ConfidenceQueryEngine(engine_of(CHUNKS), MockLLM(), flag, max_new_tokens=5)


def test_a_flag_of_another_model_is_refused(flag):
    other = LocalModel(tiny("llama"), bpe_tokenizer(), name="other")
    given = {"question": QUESTION, "context": list(CHUNKS)}
    with pytest.raises(ValueError, match="ratios are of 'other'"):
        confidence_runnable(other, flag, max_new_tokens=2).invoke(given)


def test_an_answer_without_a_token_is_flagged_without_confidence(flag):
    model = local("llama")
    [one] = model.generate([RagPrompt(QUESTION, CHUNKS)], max_new_tokens=1)
    model.model.generation_config.eos_token_id = one.tokens[0]
    given = {"question": QUESTION, "context": list(CHUNKS)}
    said = confidence_runnable(model, flag, max_new_tokens=2).invoke(given)
    assert said.response_metadata["factuality"] == {"confidence": None, "flagged": True}
