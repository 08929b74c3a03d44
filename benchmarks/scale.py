"""Whether an evaluation keeps up with its file: time against reading, and memory.

A file of judged queries is written, 20 snippets of about 400 characters each. Then, each in a
process of its own, so that peak memory (resident set size) is that of the step alone:

    read      iterate over `iter_jsonl(path)` and do nothing else
    evaluate  `evaluate(calibration, scored)`, read from the file with the retriever's own scores

    python -m benchmarks.scale [--queries 100000] [--folder FOLDER]

The target is at most 3 times the time of reading, and less than 2 GB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_of
from conformal_retrievers import Calibration, RetrievalScorer, ScoredQuery, evaluate, score_queries
from conformal_retrievers.data import iter_jsonl

K = 20
REPETITIONS = 3
WORDS = [f"word{i}" for i in range(2000)]


def main() -> None:
    parser = parser_of("benchmarks.scale", __doc__)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the file goes; default: a temporary one")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured(arguments.step, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = (arguments.folder or Path(temporary)) / "judged.jsonl"
        write(path, arguments.queries)
        size = path.stat().st_size / 1e6
        print(f"{arguments.queries:,} queries × {K} snippets, {size:.0f} MB")
        ratios = []
        for _ in range(REPETITIONS):  # in turn: the machine's mood is shared
            seconds = {}
            for step in STEPS:
                seconds[step], peak = in_a_process(step, path)
                print(f"{step:<9} {seconds[step]:7.1f} s   peak {peak / 1e6:6.0f} MB")
            ratios.append(seconds["evaluate"] / seconds["read"])
    print(f"evaluate / read: {', '.join(f'{ratio:.2f}' for ratio in ratios)} (target ≤ 3)")


def write(path: Path, n: int) -> None:
    """Write n queries; one in ten snippets is relevant and scores higher."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):
            relevant = rng.random(K) < 0.1
            similarities = rng.normal(size=K) + 2 * relevant
            words = rng.integers(len(WORDS), size=(K, 60))
            snippets = [
                {
                    "id": f"{i}-{j}",
                    "text": " ".join(WORDS[w] for w in words[j]),
                    "relevant": bool(relevant[j]),
                    "retrieval_score": float(similarities[j]),
                }
                for j in range(K)
            ]
            row = {"id": f"q{i}", "query": f"question {i}", "group": "ab"[i % 2]}
            file.write(json.dumps({**row, "snippets": snippets}) + "\n")


def in_a_process(step: str, path: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.scale", "--step", step, "--folder", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def measured(step: str, path: Path) -> tuple[float, float]:
    """Return the seconds of a step and the peak of this process in kB."""
    start = time.perf_counter()
    STEPS[step](path)
    seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1000


def read(path: Path) -> None:
    for _ in iter_jsonl(path):
        pass


def evaluate_file(path: Path) -> None:
    scorer = RetrievalScorer()
    scores = [ScoredQuery([-score], [True]) for score in np.linspace(0, 4, 199)]
    calibration = Calibration.from_scores(scores, alpha=0.1, scorer=scorer.name)
    scored = (query for judged in iter_jsonl(path) for query in score_queries(scorer, [judged]))
    evaluation = evaluate(calibration, scored)
    assert evaluation.n_queries > 0


STEPS = {"read": read, "evaluate": evaluate_file}


if __name__ == "__main__":
    main()
