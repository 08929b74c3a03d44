"""What a model, or an input, in the wrong place is told, in both frameworks."""

from __future__ import annotations

import re

import pytest
from frameworks import MiniLMEmbedding, MiniLMEmbeddings
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core.llms import MockLLM
from llama_index.postprocessor import conformal as llama_index_conformal

import langchain_conformal
from conformal_retrievers import Calibration, CalibrationMismatch, FunctionScorer, ScoredQuery
from langchain_conformal import ConformalCompressor, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor

NAME = "cosine(all-MiniLM-L6-v2)"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "calibration.json"
    Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer=NAME).save(path)
    return path


def refused(said):
    return pytest.raises(TypeError, match=re.escape(said))


# --- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("component", "embedding_scorer", "argument", "wanted", "other"),
    [
        (
            ConformalCompressor,
            langchain_conformal.embedding_scorer,
            "embeddings",
            "LangChain's Embeddings",
            MiniLMEmbedding,
        ),
        (
            ConformalPostprocessor,
            llama_index_conformal.embedding_scorer,
            "embed_model",
            "LlamaIndex's BaseEmbedding",
            MiniLMEmbeddings,
        ),
    ],
)
def test_what_is_no_embedding_model_of_the_framework_is_told_by_its_argument(
    file, component, embedding_scorer, argument, wanted, other
):
    for given in ("all-MiniLM-L6-v2", other()):
        said = f"{argument} is a {type(given).__name__}; give {wanted}"
        with refused(said):
            component.from_calibration(file, **{argument: given})
        with refused(said):
            embedding_scorer(given)


@pytest.mark.parametrize(
    ("component", "other", "wanted"),
    [
        (ConformalCompressor, MockLLM, "a BaseChatModel"),
        (ConformalPostprocessor, MiniLMEmbedding, "LlamaIndex's LLM"),
    ],
)
def test_what_is_no_llm_of_the_framework_is_told_by_its_argument(file, component, other, wanted):
    with refused(f"llm is a {other.__name__}; give {wanted}"):
        component.from_calibration(file, llm=other())


# --- LangChain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
async def test_the_runnable_says_what_it_takes(file, call):
    runnable = ConformalCompressor.from_calibration(
        file, scorer=FunctionScorer(lambda query, texts: [0.1] * len(texts), NAME)
    ).as_runnable()

    async def asked(given):
        return runnable.invoke(given) if call == "invoke" else await runnable.ainvoke(given)

    form = "give {'query': …, 'documents': […]}"
    with pytest.raises(TypeError, match=re.escape(f"the input is 'q'; {form}")):
        await asked("q")
    with pytest.raises(
        ValueError, match=re.escape(f"'documents' is missing from the input; {form}")
    ):
        await asked({"query": "q"})
    with pytest.raises(ValueError, match=re.escape(f"'query' is missing from the input; {form}")):
        await asked({"documents": []})
    assert len(await asked({"query": "q", "documents": [Document("a")]})) == 1


def test_documents_and_query_in_each_others_place_are_told(file):
    compressor = ConformalCompressor.from_calibration(file, embeddings=MiniLMEmbeddings())
    with refused("documents is 'q'; give the documents first, then the query"):
        compressor.compress_documents("q", [Document("a")])


def test_a_store_in_the_place_of_a_retriever_is_told_what_makes_one(file):
    store = InMemoryVectorStore(MiniLMEmbeddings())
    with refused("retriever is a InMemoryVectorStore; give a retriever, such as store.as_retriev"):
        ConformalRetriever.from_calibration(file, retriever=store, embeddings=MiniLMEmbeddings())


# --- LlamaIndex -----------------------------------------------------------------------------------


def test_a_model_in_the_place_of_a_scorer_is_told_its_own_place(file):
    with refused("scorer is a MiniLMEmbedding, an embedding model; give it as embed_model="):
        ConformalPostprocessor.from_calibration(file, scorer=MiniLMEmbedding())
    with refused("scorer is a MockLLM, an LLM; give it as llm="):
        ConformalPostprocessor.from_calibration(file, scorer=MockLLM())


# --- calibrations ---------------------------------------------------------------------------------


def test_a_calibration_that_is_at_hand_needs_no_file(file):
    calibration = Calibration.load(file)
    for ours in (
        ConformalCompressor.from_calibration(calibration, embeddings=MiniLMEmbeddings()),
        ConformalPostprocessor.from_calibration(calibration, embed_model=MiniLMEmbedding()),
    ):
        assert ours.filter.calibration is calibration


def test_another_risk_is_the_same_filter_at_it(tmp_path):
    path = tmp_path / "calibration.json"
    queries = [ScoredQuery([i / 20], [True]) for i in range(20)]
    Calibration.from_scores(queries, alpha=0.1, scorer=NAME).save(path)
    compressor = ConformalCompressor.from_calibration(path, embeddings=MiniLMEmbeddings())
    postprocessor = ConformalPostprocessor.from_calibration(path, embed_model=MiniLMEmbedding())
    for ours in (compressor, postprocessor):
        other = type(ours)(filter=ours.filter.at(0.2))
        assert (ours.filter.calibration.alpha, other.filter.calibration.alpha) == (0.1, 0.2)
        assert other.filter.calibration.threshold() < ours.filter.calibration.threshold()


# --- names ----------------------------------------------------------------------------------------


def test_the_same_model_under_another_name_can_be_said_to_be_the_same(file):
    same = MiniLMEmbeddings()
    same.model_name = "sentence-transformers/all-MiniLM-L6-v2"
    remedy = f"scorer=embedding_scorer(model, name={NAME!r})"
    with pytest.raises(CalibrationMismatch, match=re.escape(remedy)):
        ConformalCompressor.from_calibration(file, embeddings=same)
    scorer = langchain_conformal.embedding_scorer(same, name=NAME)
    assert ConformalCompressor.from_calibration(file, scorer=scorer).filter.scorer is scorer


def test_a_scorer_of_another_kind_is_not_offered_the_name(file):
    with pytest.raises(CalibrationMismatch, match=r"filter with that one$"):
        ConformalCompressor.from_calibration(file, scorer=FunctionScorer(len, "rating(a model)"))
