"""Whether `plan` is right about the coverage of calibrations.

Each data set is a folder in the BEIR layout with a BM25 run of depth K = 20, scored by BM25. All
its queries stand for the population, from which calibrations are drawn. At alpha = 0.1 and
"query-recall", of 2000 calibrations on n queries: the mean coverage, the ends of 8 in 10 of them,
the same of the Beta law (which `plan` prints), and the share of calibrations within its ends.

    python -m benchmarks.plans --data FOLDER [--write]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from conformal_retrievers import RetrievalScorer, ScoredQuery, score_queries
from conformal_retrievers.calibration.planning import coverage_of
from conformal_retrievers.data import read_beir
from conformal_retrievers.theory.ranks import Masses, mass_threshold

SETS = ("scifact", "wice", "nq-open", "ragbench-hotpotqa", "pubmedqa")
ALPHA = 0.1
SIZES = (10, 20, 30, 60, 120, 240, 480)
RESULTS = Path(__file__).parent / "results" / "plans.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plans", description=__doc__.splitlines()[0])
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    given = parser.parse_args()
    lines = ["# What `plan` says, and what is", "", *__doc__.splitlines()[2:-2], ""]
    coverage = ["| data | n | mean, % | 8 in 10 | Beta law | within |", "|---|---|---|---|---|---|"]
    for name in SETS:
        rng = np.random.default_rng(0)
        judged = read_beir(given.data / name, "run-bm25.tsv", k=20)
        scorer = RetrievalScorer()
        scored = score_queries(scorer, judged)
        population = Population([query for query in scored if query.relevant.any()])
        for n in SIZES:
            covered = np.array([population.calibrated(n, rng) for _ in range(2000)])
            ends, law = np.quantile(covered, [0.1, 0.9]), coverage_of(n, ALPHA)
            within = np.mean((law.low <= covered) & (covered <= law.high))
            coverage.append(
                f"| {name} | {n} | {100 * covered.mean():.1f} | {_range(*ends)} | "
                f"{_range(law.low, law.high)} | {100 * within:.0f} % |"
            )
        print(name, flush=True)
    text = "\n".join([*lines, *coverage]) + "\n"
    print(text)
    if given.write:
        RESULTS.write_text(text, encoding="utf-8")


class Population:
    """All queries of a data set: what a threshold covers of them."""

    def __init__(self, queries: list[ScoredQuery]) -> None:
        self.relevant = [q.scores[q.relevant] for q in queries]
        sizes = np.array([len(scores) for scores in self.relevant])
        scores = np.concatenate(self.relevant)
        order = np.argsort(scores)
        self.scores = scores[order]
        self.covered = np.append(0, np.cumsum((1 / sizes.repeat(sizes))[order]) / len(queries))

    def calibrated(self, n: int, rng: np.random.Generator) -> float:
        """Return the coverage of a calibration on n queries."""
        some = [self.relevant[i] for i in rng.integers(0, len(self.relevant), n)]
        sizes = np.array([len(scores) for scores in some])
        threshold = mass_threshold(np.concatenate(some), Masses.of(sizes.repeat(sizes)), ALPHA)
        return float(self.covered[np.searchsorted(self.scores, threshold, side="right")])


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"


if __name__ == "__main__":
    main()
