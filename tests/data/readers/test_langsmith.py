"""LangSmith: examples, runs that a real retriever sent, feedback."""

from collections.abc import Iterator
from datetime import datetime, timezone
from uuid import uuid4

import pandas as pd
import pytest
from calibrations import calibration_of
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.langchain import get_client
from langsmith import run_trees, schemas
from langsmith.utils import get_env_var, get_tracer_project
from langsmith_server import langsmith_server
from lookup import LookupScorer

from conformal_retrievers import ConformalFilter, JudgedQuery, Snippet, read
from conformal_retrievers.data import read_langsmith
from conformal_retrievers.data.queries import with_hits
from langchain_conformal import ConformalRetriever

DOCUMENTS = [
    Document("Ann did.", id="a", metadata={"source": "s", "start_index": 3.0}),
    Document("Wann? 🥐", id="b", metadata={"relevance_score": 0.25, "start_index": -1}),
    Document("It rains."),
]
ANN = Snippet("Ann did.", id="a", document="s", position=3)
SNIPPETS = with_hits([ANN, Snippet("Wann? 🥐", "b", retrieval_score=0.25), Snippet("It rains.")])


class Fixed(BaseRetriever):
    found: list[Document] = DOCUMENTS

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return self.found


@pytest.fixture
def sent(monkeypatch) -> Iterator:
    """A function that asks a retriever and returns the runs that reach LangSmith."""
    with langsmith_server() as server, monkeypatch.context() as patched:
        patched.setenv("LANGSMITH_TRACING", "true")
        patched.setenv("LANGSMITH_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        patched.setenv("LANGSMITH_API_KEY", "any")
        patched.setattr(run_trees, "_CLIENT", None)
        get_env_var.cache_clear()
        get_tracer_project.cache_clear()

        def runs_of(retriever, query="Who?"):
            server.runs.clear()
            retriever.invoke(query)
            get_client().flush(timeout=30)
            return [schemas.Run(**run) for run in server.runs.values()]

        yield runs_of
        get_client().close(timeout=30)
        patched.undo()
        get_env_var.cache_clear()
        get_tracer_project.cache_clear()


def feedback_on(run, **fields):
    return feedback(**{"run_id": run.id, "trace_id": run.id, "key": "relevance", **fields})


def feedback(**fields):
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return schemas.Feedback(id=uuid4(), created_at=now, modified_at=now, **fields)


def written(tmp_path, *objects):
    path = tmp_path / "export.jsonl"
    path.write_text("".join(one.model_dump_json() + "\n" for one in objects))
    return path


def example(inputs, outputs):
    return schemas.Example(id=uuid4(), inputs=inputs, outputs=outputs)


def test_runs_are_judged_by_feedback_on_each_document(sent, tmp_path):
    [run] = sent(Fixed())
    marks = feedback_on(run, value={"a": 1, "b": False, "2": 1})
    path = written(tmp_path, run, marks, feedback_on(run, key="helpful", score=1))
    expected = JudgedQuery("Who?", SNIPPETS, [True, False, True], id=str(run.id))
    assert read(path) == [expected]
    assert read([run, marks]) == [expected]  # as client.list_runs gives it
    assert read(pd.DataFrame([one.model_dump(mode="json") for one in (run, marks)])) == [expected]


def test_runs_are_judged_by_the_examples_that_they_refer_to(sent, tmp_path):
    [run] = sent(Fixed())
    outputs = {"answer": "Ann", "documents": ["Ann did.", *map(str, range(9))]}
    reference = example({"question": "Who?"}, outputs)
    run.reference_example_id = reference.id
    expected = JudgedQuery("Who?", SNIPPETS, [True, False, False], id=str(run.id), missed=9)
    with pytest.warns(UserWarning, match="9 of 10 references"):
        assert read(written(tmp_path, run, reference)) == [expected]


def test_runs_without_a_judgement_are_left_out_with_a_warning(sent, tmp_path):
    [judged], [other] = sent(Fixed()), sent(Fixed(), "What?")
    marks = feedback_on(judged, value={"0": 1, "1": 0, "2": 0})
    with pytest.warns(UserWarning, match="1 of 2 runs of retrievers") as caught:
        assert len(read_langsmith(written(tmp_path, judged, other, marks))) == 1
    assert [warning.filename for warning in caught] == [__file__]
    without_id = {"inputs": {"question": "?"}, "outputs": {"documents": ["Ann did."]}}
    with pytest.raises(ValueError, match="none of 2 runs has documents that are judged"):
        read([judged, other, without_id])
    with pytest.raises(ValueError, match="run_id"):
        read_langsmith([marks])


def test_examples_are_relevant_snippets_for_judge_retriever(tmp_path):
    texts = example({"question": "Who?"}, {"answer": "Ann", "contexts": ["Ann did.", "So?"]})
    ids = example({"question": "Why?"}, {"relevant_ids": ["a", 2]})
    dumped = DOCUMENTS[0].model_dump(mode="json")
    documents = example({"question": "When?"}, {"documents": [dumped]})
    first, second, third = read(written(tmp_path, texts, ids, documents))
    assert first == JudgedQuery("Who?", ["Ann did.", "So?"], [True, True], id=str(texts.id))
    assert second == JudgedQuery.from_ids("Why?", ["a", "2"], id=str(ids.id))
    assert third.snippets == (ANN,)
    assert {q.missed for q in (first, second, third)} == {None}


def test_examples_are_read_from_a_csv_file(tmp_path):
    outputs = {"contexts": ["It's 7.\nSo", 'a "b"'], "answer": "7"}
    one = example({"question": "When?"}, outputs)
    pd.DataFrame([one.model_dump()]).to_csv(tmp_path / "examples.csv", index=False)
    [query] = read(tmp_path / "examples.csv")
    assert [s.text for s in query.snippets] == outputs["contexts"]
    assert (query.id, query.query, query.relevant) == (str(one.id), "When?", (True, True))


def test_the_fields_of_examples_may_be_named(tmp_path):
    one = example({"ask": "Who?", "language": "en"}, {"gold": ["x"], "documents": ["y"]})
    path = written(tmp_path, one)
    with pytest.raises(ValueError, match=r"inputs has the fields.*query=FIELD"):
        read(path)
    [query] = read(path, query="ask", relevant="gold")
    assert (query.query, [s.text for s in query.snippets]) == ("Who?", ["x"])


def filtering(prefix):
    scorer = LookupScorer({"Ann did.": 0.1, "Wann? 🥐": 0.9, "It rains.": 0.2})
    keeps_two = ConformalFilter(scorer, calibration_of())
    return ConformalRetriever(retriever=Fixed(), filter=keeps_two, metadata_prefix=prefix)


def test_a_function_inside_a_conformal_retriever_is_read(sent, tmp_path):
    inside = RunnableLambda(lambda query: DOCUMENTS)
    runs = {run.name: run for run in sent(filtering(None).model_copy(update={"retriever": inside}))}
    marks = feedback_on(runs["RunnableLambda"], value={"a": 1, "1": 0, "2": 0})
    with pytest.warns(UserWarning, match="not judged"):
        assert len(read(written(tmp_path, *runs.values(), marks))) == 1


@pytest.mark.parametrize("name", ["ConformalRetriever", "search"])
@pytest.mark.parametrize("prefix", ["conformal_", "x_", None])
def test_what_a_conformal_retriever_kept_is_refused_and_what_it_was_given_is_read(
    prefix, name, sent, tmp_path
):
    runs = {run.name: run for run in sent(filtering(prefix).with_config({"run_name": name}))}
    outer, inner = runs[name], runs["Fixed"]
    assert len(outer.outputs["documents"]) == 2
    marks = feedback_on(outer, value={"a": 1, "1": 0})
    with pytest.raises(ValueError, match="line 1.*onformal.*retriever inside"):
        read(written(tmp_path, outer, inner, marks))
    found = feedback_on(inner, value={"a": 1, "b": 0, "2": 0})
    with pytest.warns(UserWarning, match="not judged"):
        [one] = read(written(tmp_path, *runs.values(), found))
    assert (one.snippets, one.relevant) == (tuple(SNIPPETS), (True, False, False))


def test_a_chain_around_a_conformal_retriever_is_refused_too(sent, tmp_path):
    runs = sent(filtering("conformal_") | RunnableLambda(lambda found: {"documents": found}))
    [root] = [run for run in runs if run.parent_run_id is None]
    reference = example({"question": "Who?"}, {"documents": ["Ann did."]})
    root.reference_example_id = reference.id
    with pytest.raises(ValueError, match="'conformal_score' shows"):
        read(written(tmp_path, *runs, reference))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": 1}, "none of 1 runs"),
        ({"value": {"a": 1, "b": 1}}, r"value is .*documents\[2\]"),
        ({"value": {"a": 1, "b": 1, "2": 1, "z": 1}}, "'z' is not a document"),
        ({"value": {"a": 0.5, "b": 1, "2": 1}}, r"value\['a'\] is 0.5"),
    ],
)
def test_feedback_that_does_not_judge_each_document_is_refused(change, message, sent, tmp_path):
    [run] = sent(Fixed())
    with pytest.raises(ValueError, match=message):
        read(written(tmp_path, run, feedback_on(run, **change)))


def test_feedback_of_two_keys_is_ambiguous(sent, tmp_path):
    [run] = sent(Fixed())
    one, other = ({"a": 1, "b": 0, "2": 0}, {"a": 0, "b": 1, "2": 0})
    gold = feedback_on(run, key="gold", value=other)
    path = written(tmp_path, run, feedback_on(run, value=one), gold)
    with pytest.raises(ValueError, match="'relevance' and 'gold'"):
        read(path)
    [query] = read(path, relevant="gold")
    assert query.relevant == (False, True, False)
    with pytest.raises(ValueError, match="or remove one"):
        read([run, feedback_on(run, value=one), feedback_on(run, value=one)])
    with pytest.raises(ValueError, match="none of 1 runs"):
        read([run, feedback_on(run, score=1)], relevant="relevance")


KEPT = {"page_content": "x", "metadata": {"conformal_score": 0.1}}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"question": "?"}, {"answer": "x"}, r"outputs has the fields \['answer'\]"),
        ({"question": "?"}, {"documents": ["x"], "contexts": ["y"]}, "documents and contexts"),
        ({"question": "?"}, {"documents": []}, "relevant_ids is empty"),
        ({"question": "?"}, {"documents": [7]}, "documents has 7"),
        ({"question": "?"}, {"documents": "x"}, "documents is 'x'"),
        ({"question": "?"}, {"relevant_ids": [None]}, "relevant_ids"),
        ({"x": "?", "y": "?"}, {"documents": ["x"]}, "query=FIELD"),
        ({"question": "?"}, {"documents": [KEPT]}, "conformal_score"),
    ],
)
def test_a_broken_example_is_refused_with_line_and_field(inputs, outputs, message, tmp_path):
    with pytest.raises(ValueError, match=f"line 1.*{message}"):
        read(written(tmp_path, example(inputs, outputs)))
