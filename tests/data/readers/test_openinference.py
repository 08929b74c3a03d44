"""OpenInference spans: those of real retrievers, and a file of Phoenix's client."""

import json
from pathlib import Path

import pytest
from calibrations import calibration_of
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from lookup import LookupScorer
from openinference.semconv.trace import SpanAttributes

from conformal_retrievers import ConformalFilter, JudgedQuery, Snippet, read
from conformal_retrievers.data import read_openinference
from conformal_retrievers.data.queries import with_hits
from langchain_conformal import ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor

PHOENIX = Path(__file__).parent / "files" / "phoenix.jsonl"
TEXTS = {"Ann did.": 0.1, "It rains.": 0.9, "Wann? 🥐": 0.2}


class Fixed(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        metadata = {"source": "s", "start_index": 3}
        return [Document(text, id=text[:1], metadata=metadata) for text in TEXTS]


def conformal_filter():
    return ConformalFilter(LookupScorer(TEXTS), calibration_of())


def exported(spans):
    return [json.loads(span.to_json()) for span in spans]


def marks(span, *scores, **fields):
    id = span["context"]["span_id"].removeprefix("0x")
    return [
        {"name": "relevance", "annotator_kind": "HUMAN", "span_id": id, "document_position": i}
        | {"result": {"score": score}}
        | fields
        for i, score in enumerate(scores)
    ]


def written(tmp_path, *records):
    path = tmp_path / "spans.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def spans_by_name(spans):
    return {span["name"]: span for span in exported(spans)}


def test_the_spans_of_a_langchain_retriever_are_read_with_annotations(langchain_spans, tmp_path):
    Fixed().invoke("Who?")
    [span] = exported(langchain_spans())
    found, id = [Snippet(t, None, "s", 3) for t in TEXTS], span["context"]["span_id"][2:]
    expected = JudgedQuery("Who?", with_hits(found), [True, False, True], id=id)
    found = marks(span, 1, 0, True)
    assert read(written(tmp_path, span, *found)) == [expected]
    assert read(written(tmp_path, *found, span)) == [expected]


@pytest.fixture
def index():
    nodes = [TextNode(id_=text[:1], text=text) for text in TEXTS]
    return VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=4))


def test_the_spans_of_a_llama_index_retriever_are_read_with_annotations(
    llama_index_spans, index, tmp_path
):
    returned = index.as_retriever(similarity_top_k=3).retrieve("Who?")
    spans = spans_by_name(llama_index_spans())
    span = spans["VectorIndexRetriever.retrieve"]
    [one] = read(written(tmp_path, *spans.values(), *marks(span, 0, 1, 0)))
    snippets = [Snippet(n.text, n.id_, retrieval_score=n.score) for n in returned]
    assert (one.query, one.snippets) == ("Who?", tuple(with_hits(snippets)))
    assert one.relevant == (False, True, False)


def test_a_file_of_phoenix_is_read_with_the_annotation_of_a_person_first():
    snippets = [
        Snippet("Um 7.\n🥐", "a", "page", 7, retrieval_score=0.75),
        Snippet("Nie.", "b", "page", 7, retrieval_score=0.5),
    ]
    expected = JudgedQuery("Wann?", with_hits(snippets), [True, False], id="1" * 16)
    assert read(PHOENIX) == read_openinference(PHOENIX) == [expected]
    spans, annotations = [], []
    for line in PHOENIX.read_text("utf-8").splitlines():
        record = json.loads(line)
        (annotations if "document_position" in record else spans).append(record)
    metadata = {"source": "page", "start_index": 7}
    documents = [
        {"id": "a", "content": "Um 7.\n🥐", "score": 0.75, "metadata": json.dumps(metadata)},
        {"id": "b", "content": "Nie.", "score": 0.5},
    ]
    flat = {f"metadata.{key}": value for key, value in metadata.items()}  # by Phoenix's client
    for own in ({"metadata": metadata}, flat):
        both = documents[0], documents[1] | own
        nested = {"retrieval": {"documents": [{"document": document} for document in both]}}
        nested[SpanAttributes.INPUT_VALUE] = "Wann?"
        assert read([spans[0] | {"attributes": nested}, *annotations]) == [expected]
    columns = {f"attributes.{name}": value for name, value in spans[0]["attributes"].items()}
    columns["context.span_id"] = "1" * 16  # a row of get_spans_dataframe
    assert read([columns, *reversed(annotations)]) == [expected]


@pytest.mark.parametrize("name", ["ConformalRetriever", "search"])
@pytest.mark.parametrize("prefix", ["conformal_", "x_", None])
def test_what_a_conformal_retriever_kept_is_refused(prefix, name, langchain_spans, tmp_path):
    given = {"filter": conformal_filter(), "metadata_prefix": prefix}
    ConformalRetriever(retriever=Fixed(), **given).with_config(run_name=name).invoke("Who?")
    spans = spans_by_name(langchain_spans())
    kept = marks(spans[name], 1, 1)
    with pytest.raises(ValueError, match=r"spans\.jsonl, line \d.*onformal.*retriever inside"):
        read(written(tmp_path, *spans.values(), *kept))
    with pytest.warns(UserWarning, match="1 of 2 spans"):
        [one] = read(written(tmp_path, *spans.values(), *marks(spans["Fixed"], 1, 0, 1)))
    assert one.relevant == (True, False, True)


def test_what_a_conformal_postprocessor_kept_is_refused(llama_index_spans, index, tmp_path):
    filters = [ConformalPostprocessor(filter=conformal_filter())]
    options = {"similarity_top_k": 3, "node_postprocessors": filters}
    index.as_query_engine(llm=MockLLM(), **options).query("Who?")
    spans = spans_by_name(llama_index_spans())
    ours = spans["ConformalPostprocessor._postprocess_nodes"]
    with pytest.raises(ValueError, match=r"conformal.*retriever inside"):
        read(written(tmp_path, *spans.values(), *marks(ours, 1)))
    retrieved = spans["VectorIndexRetriever.retrieve"]
    [one] = read(written(tmp_path, *spans.values(), *marks(retrieved, 1, 0, 0)))
    assert len(one.snippets) == 3


def span(i="1", n=2, **attributes):
    documents = {f"retrieval.documents.{j}.document.content": f"text {j}" for j in range(n)}
    given = {"input.value": "q", **documents, **attributes}
    return {"context": {"span_id": i}, "attributes": given}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([span(), *marks(span(), 1)], "document_position 1 has no annotation"),
        ([span(), *marks(span(), 1, 0, 0)], "document_position 2 is annotated"),
        ([span()], "none of 1 spans has documents that are annotated"),
        ([span("2"), *marks(span(), 1, 0)], "span '1' is not given"),
        ([span(), *marks(span(), 1, 0), *marks(span(), 1, 1)], "contradict"),
        ([span(), *marks(span(), 1, 0.5)], "score is 0.5.*min_score"),
        ([span(), *marks(span(), 1, 0, result={"label": "so"})], "label is 'so'"),
        ([span(), *marks(span(), 1, 0, document_position="x")], "document_position is 'x'"),
        ([span(), *marks(span(), 1, 0, span_id=None)], "document_position"),
        ([span(n=0), *marks(span(), 1)], "retrieval.documents is missing"),
        ([span(**{"input.value": None}), *marks(span(), 1, 0)], "input.value is missing"),
        ([span(**{"input.value": "{}", "input.mime_type": "application/json"}),
          *marks(span(), 1, 0)], "input.value is '{}'"),
        ([span(**{"retrieval.documents.1.document.content": 7}), *marks(span(), 1, 0)],
         "content is 7"),
        ([span(**{"retrieval.documents.1.document.score": 10**400}), *marks(span(), 1, 0)],
         "score is 1000"),
        ([span(**{"retrieval.documents.1.document.metadata": "{1: 2, 'source': []}"}),
          *marks(span(), 1, 0)], r"source has \[\]"),
        ([span(["1"]), *marks(span(), 1, 0)], r"span_id has \['1'\]"),
        ([span(**{"retrieval.documents.9.document.content": "x"}), *marks(span(), 1, 0)],
         "retrieval.documents"),
        ([span(**{"conformal.alpha": 0.1}), *marks(span(), 1, 0)], "conformal.alpha"),
        ([span() | {"events": [{"name": "conformal_filter"}]}, *marks(span(), 1, 0)],
         "conformal_filter"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_refused_with_place_and_field(records, message):
    with pytest.raises(ValueError, match=rf"(records\[\d\]|the annotated).*{message}"):
        read_openinference(records)


def test_annotations_of_two_names_are_ambiguous():
    records = [span(), *marks(span(), 1, 0), *marks(span(), 0, 1, name="toxicity")]
    with pytest.raises(ValueError, match="'relevance' and 'toxicity'"):
        read(records)
    assert read(records, relevant="toxicity")[0].relevant == (False, True)


def test_scores_have_a_threshold_and_labels_are_words():
    assert read([span(), *marks(span(), 0.7, 0.6)], min_score=0.7)[0].relevant == (True, False)
    labels = [
        one | {"result": {"label": label}}
        for one, label in zip(marks(span(), 0, 0), ("Relevant", "unrelated"), strict=True)
    ]
    assert read([span(), *labels])[0].relevant == (True, False)
