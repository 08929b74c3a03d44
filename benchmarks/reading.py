"""Reading queries: JSON lines against an earlier version, Parquet against pyarrow.

    jsonl    `read_jsonl` of `--lines` queries with 20 snippets, against the version --before (a
             commit, checked out into a temporary folder) and against json.loads of the same lines
    parquet  `read_parquet` of `--queries` queries with 20 scores, against pyarrow reading them into
             numpy arrays, with the peak memory (resident set size) of each

    python -m benchmarks.reading [--lines 10000] [--queries 1000000] [--before 79de4d5]

The files of JSON lines have texts of about 600 characters, of which a quarter is not ASCII and a
third has escapes; texts and the hits of two retrievers; and ids alone. Each timing is the
processor's time of a process of its own, in turn A B C A B C …: the least of two readings.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[1]
K = 20
KINDS = {"texts": (600, False), "texts and hits": (600, True), "ids": (1, False)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--before", default="79de4d5", metavar="COMMIT")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        seconds = min(timed(STEPS[given.step], given.file) for _ in range(2))
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]))
        return
    with tempfile.TemporaryDirectory() as folder:
        before, file = Path(folder, "before"), Path(folder, "file")
        git = ["git", "-C", str(HERE), "archive", given.before, "conformal_retrievers"]
        before.mkdir()
        archive = subprocess.run(git, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-xf", "-", "-C", str(before)], input=archive, check=True)
        for kind, (length, hits) in KINDS.items():
            write_lines(file, given.lines, length, hits)
            compare(f"{given.lines:,} queries, {kind}", file, given.repetitions, before)
        write_scores(file, given.queries)
        compare(f"{given.queries:,} queries in Parquet", file, given.repetitions)


def compare(title: str, file: Path, repetitions: int, before: Path | None = None) -> None:
    runs = {"before": ("jsonl", before), "now": ("jsonl", HERE), "json.loads": ("loads", HERE)}
    if before is None:
        runs = {"now": ("parquet", HERE), "pyarrow": ("pyarrow", HERE)}
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    for _ in range(repetitions):
        for name, (step, version) in runs.items():
            found[name].append(run(step, version or HERE, file))
    print(f"{title}, {file.stat().st_size / 1e6:.0f} MB")
    for name, values in found.items():
        seconds, megabytes = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"  {name:11} {seconds:6.2f} s  {megabytes:6.0f} MB")
    for one, other in [("before", "now"), ("now", "json.loads"), ("now", "pyarrow")]:
        if one in found and other in found:
            ratios = sorted(a[0] / b[0] for a, b in zip(found[one], found[other], strict=True))
            middle = statistics.median(ratios)
            print(f"  {one} / {other}: {middle:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]")


def run(step: str, version: Path, file: Path) -> list[float]:
    command = [sys.executable, __file__, "--step", step, "--file", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(version), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(value) for value in json.loads(done.stdout)]


def timed(step: Callable[[Path], object], file: Path) -> float:
    start = time.process_time()
    kept = step(file)
    seconds = time.process_time() - start
    del kept
    return seconds


def write_lines(file: Path, n: int, length: int, hits: bool) -> None:
    rng = random.Random(0)
    words = ["the", "of", "a", "in", "is", "retrieval", "conformal", "threshold", "query", "to"]

    def text() -> str:
        made = " ".join(rng.choices(words, k=length // 5))[:length]
        made += " – naïve" if rng.random() < 1 / 4 else ""
        return made + ' "quoted"\n' if rng.random() < 1 / 3 else made

    def snippet(rank: int) -> dict[str, Any]:
        found = [("dense", rank, rng.random()), ("bm25", K - 1 - rank, 20 * rng.random())]
        named = [dict(zip(("retriever", "rank", "score"), hit, strict=True)) for hit in found]
        of = {"id": f"doc-{rng.randrange(10**6)}-{rank}", "text": rng.choice(texts)}
        return {**of, "relevant": rank == 0, **({"hits": named} if hits else {})}

    texts = [text() for _ in range(2000)]
    with open(file, "w", encoding="utf-8") as lines:
        for i in range(n):
            query = {"id": f"q{i}", "query": f"question {i}", "missed": 0, "k": K}
            query["snippets"] = [snippet(rank) for rank in range(K)]
            lines.write(json.dumps(query, ensure_ascii=False) + "\n")


def write_scores(file: Path, n: int) -> None:
    from conformal_retrievers import ScoredQueries
    from conformal_retrievers.data.parquet import write_parquet

    rng = np.random.default_rng(0)
    scores, relevant = rng.normal(size=n * K), rng.random(n * K) < 0.1
    offsets = np.arange(0, n * K + 1, K)
    ids = [f"q{i}" for i in range(n)]
    queries = ScoredQueries(scores, relevant, offsets, ids=ids, missed=np.zeros(n))
    write_parquet(queries, file)


def step_jsonl(file: Path) -> object:
    from conformal_retrievers.data.jsonl import read_jsonl

    return read_jsonl(file)


def step_loads(file: Path) -> object:
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def step_parquet(file: Path) -> object:
    from conformal_retrievers.data.parquet import read_parquet

    return read_parquet(file)


def step_pyarrow(file: Path) -> object:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    flat = [pc.list_flatten(table[name]).to_numpy() for name in ("scores", "relevant")]
    sizes = pc.list_value_length(table["relevant"]).to_numpy()
    return flat, sizes, table["id"].to_numpy(), table["missed"].to_numpy()


STEPS = {
    "jsonl": step_jsonl,
    "loads": step_loads,
    "parquet": step_parquet,
    "pyarrow": step_pyarrow,
}

if __name__ == "__main__":
    main()
