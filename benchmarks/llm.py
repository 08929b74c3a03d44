"""What LLM scoring costs beside the LLM: waiting for a server, and reading from the cache.

    calls   100 snippets, 16 at a time, from a server on loopback, a process of its own, that takes
            200 ms for each: wall time against ⌈100/16⌉ · 0.2 s, as if nothing else took time
    cache   query-snippet pairs a second from a warm cache, by how many snippets a query has

Run from the repository's root; it takes about a minute and needs `make .venv/dev`:

    .venv/bin/python -m benchmarks.llm
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from conformal_retrievers import LLMScorer, Snippet
from conformal_retrievers.llm import Cache
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply
from tests.llm_server import LLMServer

SNIPPETS, CONCURRENCY, LATENCY = 100, 16, 0.2
REPETITIONS = 5
PAIRS = 20_000
TEXT = "The first ascent of a mountain is a story of weather, rope and patience. " * 7


def main() -> None:
    calls()
    cache()


def calls() -> None:
    spawned = multiprocessing.get_context("spawn")
    here, there = spawned.Pipe()
    server = spawned.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = here.recv()
    least = math.ceil(SNIPPETS / CONCURRENCY) * LATENCY
    scorer = LLMScorer(openai_llm("m", base_url=url), concurrency=CONCURRENCY)
    snippets = [Snippet(f"{i}: {TEXT}") for i in range(SNIPPETS)]

    def synchronous() -> float:
        return read(scorer, [("query", snippets)])

    async def asynchronous() -> float:
        began = time.perf_counter()
        await scorer.ascore("query", snippets)
        return time.perf_counter() - began

    async def warm() -> list[float]:
        return [await asynchronous() for _ in range(REPETITIONS + 1)]

    first, *later = asyncio.run(warm())
    show("async, first in its event loop", [first], least)
    show("async", later, least)
    show("sync", [synchronous() for _ in range(REPETITIONS + 1)][1:], least)
    server.terminate()
    server.join()


def serve(parent: Connection) -> None:
    server = LLMServer(lambda query, text: 0.5, latency=LATENCY)
    server.start()
    parent.send(server.url)
    threading.Event().wait()


def cache() -> None:
    for k in (10, 20, 100):
        queries = [
            (f"query {q}", [Snippet(f"{q} {i}: {TEXT}") for i in range(k)])
            for q in range(PAIRS // k)
        ]
        with tempfile.TemporaryDirectory() as folder:
            kept = Cache(Path(folder) / "cache.db")
            scorer = LLMScorer(LLM(constant, "constant"), concurrency=1, cache=kept)
            for query, snippets in queries:
                scorer.score(query, snippets)
            rates = [PAIRS / read(scorer, queries) for _ in range(REPETITIONS)]
            print(f"cache, K = {k}: {spread(rates, ',.0f')} pairs a second")


def constant(request: Request) -> Reply:
    return Reply('{"reason": "so", "rating": 0.5}')


def read(scorer: LLMScorer, queries: list[tuple[str, list[Snippet]]]) -> float:
    began = time.perf_counter()
    for query, snippets in queries:
        assert not np.isnan(scorer.score(query, snippets)).any()
    return time.perf_counter() - began


def show(what: str, times: list[float], least: float) -> None:
    print(f"{what}: {spread(times, '.3f')} s, {np.median(times) / least:.3f} × {least:.1f} s")


def spread(values: list[float], form: str) -> str:
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return f"{middle:{form}} [{low:{form}}, {high:{form}}]"


if __name__ == "__main__":
    main()
