"""Answers with a confidence in both frameworks, from a tiny transformers model that runs here."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from frameworks import texts_of
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from langchain_openai import ChatOpenAI
from llama_index.core import SummaryIndex
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import TextNode
from llama_index.llms.huggingface import HuggingFaceLLM
from llama_index.llms.openai_like import OpenAILike
from tiny_models import bpe_tokenizer, local, tiny
from transformers import GenerationConfig

from conformal_retrievers import Calibration, CalibrationMismatch, ScoredQuery
from conformal_retrievers.calibration.subjects import FLAGS
from conformal_retrievers.llm.wire import portable
from conformal_retrievers.lookback import FactualityClassifier, RagPrompt
from conformal_retrievers.lookback.flag import FactualityFlag, calibrate_flag
from conformal_retrievers.lookback.model import LocalModel
from conformal_retrievers.lookback.ratios import JudgedRatios, lookback_ratios
from langchain_conformal.confidence import confidence_runnable
from llama_index.postprocessor.conformal.confidence import ConfidenceQueryEngine

pytestmark = pytest.mark.slow

QUESTION = "How long to wait?"
CHUNKS = ("Wait six hours after the last drink.", "Tylenol and alcohol strain the liver.")
GIVEN = {"question": QUESTION, "context": list(CHUNKS)}


@pytest.fixture(scope="module")
def model():
    return local("llama")


@pytest.fixture(scope="module")
def flag(model):
    """Fitted and calibrated on answers that are judged by the toss of a coin."""
    rng = np.random.default_rng(4)
    prompts = [RagPrompt(f"{QUESTION} {i}", CHUNKS) for i in range(48)]
    answers = model.generate(prompts, max_new_tokens=3)
    ratios = [lookback_ratios(answer.attention) for answer in answers]
    judged = [JudgedRatios(one, bool(rng.random() < 0.5)) for one in ratios]
    classifier = FactualityClassifier.fit(judged[:24], n_snippets=2)
    inconsistent = [JudgedRatios(one.ratios, False) for one in judged[24:]]
    return calibrate_flag(inconsistent, classifier, alpha=0.3)


@pytest.fixture(scope="module")
def expected(model, flag):
    [generated] = model.generate([RagPrompt(QUESTION, CHUNKS)], max_new_tokens=5)
    said = flag(lookback_ratios(generated.attention))
    assert 0 < said.value < 1
    return generated.text, {"confidence": said.value, "flagged": said.flagged}


class KeepsNothing(BaseNodePostprocessor):
    def _postprocess_nodes(self, nodes, query_bundle=None):
        return []


def engine_of(chunks, *postprocessors):
    index = SummaryIndex([TextNode(text=text) for text in chunks])
    return index.as_query_engine(llm=MockLLM(), node_postprocessors=[*postprocessors])


def pipeline_of(folder, **settings):
    return HuggingFacePipeline.from_model_id(folder, "text-generation", pipeline_kwargs=settings)


def network_of(folder, **settings):
    return HuggingFaceLLM(
        model_name=folder, tokenizer_name=folder, device_map="cpu", max_new_tokens=3, **settings
    )


async def in_chain(llm, flag, group=None, **options):
    """Return the answer and its confidence, which are the same asynchronously."""
    made = confidence_runnable(llm, flag, **{"max_new_tokens": 5, **options})
    given = GIVEN | ({} if group is None else {"group": group})
    message = made.invoke(given)
    assert message == await made.ainvoke(given | {"context": [*map(Document, [*CHUNKS, " "])]})
    return message.text, message.response_metadata["factuality"]


async def in_engine(llm, flag, group=None, **options):
    options = {"max_new_tokens": 5, "group_of": group and {QUESTION: group}.get, **options}
    made = ConfidenceQueryEngine(engine_of(CHUNKS), llm, flag, **options)
    response, again = made.query(QUESTION), await made.aquery(QUESTION)
    assert (again.response, again.metadata) == (response.response, response.metadata)
    assert texts_of(response.source_nodes) == [*CHUNKS]
    return response.response, response.metadata["factuality"]


each = pytest.mark.parametrize("asked", [in_chain, in_engine])


@each
async def test_an_answer_has_its_confidence(asked, model, flag, expected):
    assert await asked(model, flag) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """The model and its tokenizer, as they are kept: their name is where they lie."""
    folder = tmp_path_factory.mktemp("model")
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def kept_flag(folder, flag):
    classifier = dataclasses.replace(flag.classifier, model=portable(folder))
    return FactualityFlag(classifier, dataclasses.replace(flag.calibration, scorer=classifier.name))


async def test_a_model_that_a_framework_loaded_can_be_used(folder, kept_flag, expected):
    pipeline, network = pipeline_of(folder, max_new_tokens=3), network_of(folder)
    assert pipeline.invoke("How long").startswith("How long")  # each runs by itself
    assert network.complete("How long").text
    same = expected[0], pytest.approx(expected[1])
    assert await in_chain(pipeline, kept_flag) == same
    assert await in_chain(ChatHuggingFace(llm=pipeline), kept_flag) == same
    assert await in_engine(network, kept_flag) == same
    [message] = confidence_runnable(pipeline, kept_flag, max_new_tokens=5).stream(GIVEN)
    assert message.text == expected[0]  # as one piece


def test_a_chat_model_brings_its_own_template(folder, kept_flag):
    pipeline = pipeline_of(folder)
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = "Q: {{ messages[0]['content'] }} A:"
    chat = ChatHuggingFace(llm=pipeline, tokenizer=tokenizer)
    said = confidence_runnable(chat, kept_flag, max_new_tokens=5).invoke(GIVEN)
    by_hand = LocalModel(pipeline.pipeline.model, tokenizer)
    [generated] = by_hand.generate([RagPrompt(QUESTION, CHUNKS)], max_new_tokens=5)
    expected = kept_flag(lookback_ratios(generated.attention))
    assert said.text == generated.text
    assert said.response_metadata["factuality"]["confidence"] == expected.value


@pytest.mark.parametrize("framework", ["langchain", "llama-index"])
def test_the_lines_about_confidence_run_in_both_frameworks(
    framework, folder, kept_flag, tmp_path, monkeypatch, expected
):
    page = Path(__file__).parents[2] / "docs" / f"{framework}.md"
    section = page.read_text(encoding="utf-8").split("## Confidence in an answer")[1]
    [code] = re.findall(r"^```python\n(.*?)^```", section.split("\n## ")[0], re.S | re.M)
    kept_flag.classifier.save(tmp_path / "factuality.json")
    kept_flag.calibration.save(tmp_path / "flag.json")
    monkeypatch.chdir(tmp_path)
    names = {
        "question": QUESTION,
        "filtered": RunnableLambda(lambda _: [Document(text) for text in CHUNKS]),
        "index": SummaryIndex([TextNode(text=text) for text in CHUNKS]),
    }
    assert "Qwen/Qwen3-0.6B" in code
    code = code.replace("Qwen/Qwen3-0.6B", folder).replace("max_new_tokens=200", "max_new_tokens=5")
    exec(compile(code, str(page), "exec"), names)
    said = names["answer"].response_metadata if "answer" in names else names["response"].metadata
    assert said["factuality"] == pytest.approx(expected[1])


def test_the_page_about_confidence_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "confidence.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    flag, test = names["flag"], names["test"]
    assert flag.classifier.evaluate(test).low > 0.5
    printed = capsys.readouterr().out
    assert "inconsistent answer with probability at least 90 %" in printed
    assert str(flag.evaluate(test)) in printed  # the loaded one flags the same
    assert flag.calibration.labels["llm"] == "word by word"
    assert re.search(r"^Confidence\(value=0\.\d+, flagged=(True|False)\)$", printed, re.M)


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        (QUESTION, TypeError, "input"),
        ({"question": QUESTION}, ValueError, "context"),
        (GIVEN | {"context": CHUNKS[0]}, TypeError, "context"),
        (GIVEN | {"context": Document(CHUNKS[0])}, TypeError, "context"),
        (GIVEN | {"context": {"answer": CHUNKS}}, TypeError, "context"),
        (GIVEN | {"context": []}, ValueError, "context"),
    ],
)
def test_an_invalid_input_is_named(model, flag, given, error, field):
    with pytest.raises(error, match=field):
        confidence_runnable(model, flag, max_new_tokens=5).invoke(given)


def test_settings_that_would_be_dropped_are_refused(folder, kept_flag):
    made_with_settings = transformers.pipeline("text-generation", folder, do_sample=True)
    for llm, field in (
        (pipeline_of(folder, max_new_tokens=9, do_sample=True), "do_sample"),
        (HuggingFacePipeline(pipeline=made_with_settings), "do_sample"),
        (ChatHuggingFace(llm=pipeline_of(folder, do_sample=True)), "do_sample"),
        (ChatHuggingFace(llm=pipeline_of(folder), temperature=1.5), "temperature"),
    ):
        with pytest.raises(ValueError, match=field):
            confidence_runnable(llm, kept_flag, max_new_tokens=5)
    for field, value in (("generate_kwargs", {"top_k": 3}), ("system_prompt", "Be brief.")):
        llm = network_of(folder, **{field: value})
        with pytest.raises(ValueError, match=field):
            ConfidenceQueryEngine(engine_of(CHUNKS), llm, kept_flag, max_new_tokens=5)


async def test_without_a_kept_node_the_answer_is_empty_and_flagged(model, flag):
    """An answer without confidence is flagged, as everywhere."""
    inner = engine_of(CHUNKS, KeepsNothing())
    engine = ConfidenceQueryEngine(inner, model, flag, max_new_tokens=5)
    for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
        assert str(response) == str(inner.query(QUESTION)) == "Empty Response"
        assert response.metadata == {"factuality": {"confidence": None, "flagged": True}}
        assert response.source_nodes == []


async def test_generation_and_prompt_are_those_of_the_calibration(folder, kept_flag):
    network, sampling = network_of(folder, stopping_ids=[7]), pipeline_of(folder, do_sample=True)
    local = LocalModel(sampling.pipeline.model, sampling.pipeline.tokenizer)
    prompt = partial(RagPrompt, preamble="Be brief.")
    [long] = local.generate([prompt(QUESTION, CHUNKS)], max_new_tokens=5)
    assert long.tokens[2] not in long.tokens[:2]
    settings = {"generation": GenerationConfig(eos_token_id=long.tokens[2]), "prompt": prompt}
    short = local.tokenizer.decode(long.tokens[:2])
    for asked, llm in ((in_chain, sampling), (in_engine, network)):
        assert (await asked(llm, kept_flag, **settings))[0] == short


@each
async def test_a_flag_by_group_uses_the_group_of_the_question(asked, model, flag, expected):
    """The confidence is above what flags in the one group, and below what flags in the other."""
    confidence = expected[1]["confidence"]
    scores = {"lenient": confidence - 0.01, "strict": confidence + 0.01}
    scored = [ScoredQuery([score], [True], group=g) for g, score in scores.items()] * 9
    rule = {"guarantee": "all", "by_group": True, "scorer": flag.classifier.name}
    calibration = Calibration.from_scores(scored, alpha=0.5, **rule)
    grouped = FactualityFlag(flag.classifier, dataclasses.replace(calibration, subject=FLAGS))
    for group, flagged in (("lenient", False), ("strict", True)):
        said = {"confidence": confidence, "flagged": flagged}
        assert await asked(model, grouped, group) == (expected[0], said)
    with pytest.warns(UserWarning, match="has no group among"):
        assert (await asked(model, grouped))[1]["flagged"]


@each
async def test_a_hosted_model_is_refused(asked, flag):
    hosted = ChatOpenAI(model="gpt", api_key="none")
    for llm in (hosted, OpenAILike(model="gpt", api_key="none"), MockLLM()):
        with pytest.raises(TypeError, match=f"llm is a {type(llm).__name__}"):
            await asked(llm, flag)


@each
async def test_a_flag_of_another_model_is_refused_before_a_question_is_asked(asked, flag):
    renamed = LocalModel(tiny("llama"), bpe_tokenizer(), name="other")
    deeper = LocalModel(tiny("llama", num_hidden_layers=4), bpe_tokenizer(), name="llama")
    for llm, message in ((renamed, "'other' .* name='llama'"), (deeper, "3 layers .* 4 layers")):
        with pytest.raises(CalibrationMismatch, match=message):
            await asked(llm, flag)
