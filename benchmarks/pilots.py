"""Whether `plan` is right about coverage and, from a pilot, about what more queries remove.

Each data set is a folder in the BEIR layout with a BM25 run of depth K = 20, scored by BM25. All
its queries stand for the population; calibrations and pilots are drawn from them. At alpha = 0.1
and "query-recall":

    coverage   of 2000 calibrations on n queries: the mean, the ends of 8 in 10 of them, the same of
               the Beta law (which `plan` prints), and the share of calibrations within its ends
    pilots     of 200 pilots of n queries, what `plan` expects: the mean ± sd of the share of the
               snippets that n queries keep, and of how much less 4n keep, beside the true ones (the
               means of 2000 calibrations), and how often each 80 % interval has the true value;
               "best one": of each query, only the relevant snippet with the best score is relevant

    python -m benchmarks.pilots --data FOLDER [--write]
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from conformal_retrievers import RetrievalScorer, ScoredQuery, score_queries
from conformal_retrievers.calibration.pilot import Pilot, interval
from conformal_retrievers.calibration.planning import coverage_of
from conformal_retrievers.data import read_beir
from conformal_retrievers.theory.ranks import Masses, mass_threshold

SETS = ("scifact", "wice", "nq-open", "ragbench-hotpotqa", "pubmedqa")
ALPHA = 0.1
SIZES = (30, 60, 120)
RESULTS = Path(__file__).parent / "results" / "pilots.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pilots", description=__doc__.splitlines()[0])
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument("--data", type=Path, default=data, required=data is None)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    given = parser.parse_args()
    lines = ["# What `plan` says, and what is", "", *__doc__.splitlines()[2:-2], ""]
    coverage = ["| data | n | mean, % | 8 in 10 | Beta law | within |", "|---|---|---|---|---|---|"]
    pilots = [
        "| data | n | kept, % | true | interval has it | 4n keep less | true | interval has it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in SETS:
        rng = np.random.default_rng(0)
        judged = read_beir(given.data / name, "run-bm25.tsv", k=20)
        scorer = RetrievalScorer("BM25", higher_is_better=True)
        queries = [q for q in score_queries(scorer, judged) if q.relevant.any()]
        population = Population(queries)
        kept = {}
        for n in sorted({*SIZES, *(4 * n for n in SIZES)}):
            drawn = np.array([population.calibrated(n, rng) for _ in range(2000)])
            kept[n] = drawn[:, 1].mean()
            covered = drawn[:, 0]
            ends, law = np.quantile(covered, [0.1, 0.9]), coverage_of(n, ALPHA)
            within = np.mean((law.low <= covered) & (covered <= law.high))
            coverage.append(
                f"| {name} | {n} | {100 * covered.mean():.1f} | {_range(*ends)} | "
                f"{_range(law.low, law.high)} | {100 * within:.0f} % |"
            )
        for n in SIZES:
            pilots.append(f"| {name} | {n} | {_of_pilots(queries, n, kept[n], kept[4 * n], rng)} |")
        single = [_one_relevant(query) for query in queries]
        population = Population(single)
        for n in SIZES:
            true = [
                np.mean([population.calibrated(m, rng)[1] for _ in range(2000)]) for m in (n, 4 * n)
            ]
            pilots.append(f"| {name}, best one | {n} | {_of_pilots(single, n, *true, rng)} |")
        print(name, flush=True)
    text = "\n".join([*lines, *coverage, "", *pilots]) + "\n"
    print(text)
    if given.write:
        RESULTS.write_text(text, encoding="utf-8")


class Population:
    """All queries of a data set: what a threshold covers of them, and what it keeps."""

    def __init__(self, queries: list[ScoredQuery]) -> None:
        self.relevant = [q.scores[q.relevant] for q in queries]
        sizes = np.array([len(scores) for scores in self.relevant])
        scores = np.concatenate(self.relevant)
        order = np.argsort(scores)
        self.scores = scores[order]
        self.covered = np.append(0, np.cumsum((1 / sizes.repeat(sizes))[order]) / len(queries))
        self.all = np.sort(np.concatenate([q.scores for q in queries]))

    def calibrated(self, n: int, rng: np.random.Generator) -> tuple[float, float]:
        """Return coverage and the share of snippets kept, calibrated on n queries."""
        some = [self.relevant[i] for i in rng.integers(0, len(self.relevant), n)]
        sizes = np.array([len(scores) for scores in some])
        threshold = mass_threshold(np.concatenate(some), Masses.of(sizes.repeat(sizes)), ALPHA)
        covered = self.covered[np.searchsorted(self.scores, threshold, side="right")]
        kept = np.searchsorted(self.all, threshold, side="right") / len(self.all)
        return float(covered), float(kept)


def _one_relevant(query: ScoredQuery) -> ScoredQuery:
    """Return a query whose relevant snippet with the lowest score is the only one."""
    best = np.argmin(np.where(query.relevant, query.scores, np.inf))
    return ScoredQuery(query.scores, np.arange(len(query.scores)) == best)


def _of_pilots(
    queries: list[ScoredQuery], n: int, kept: float, kept_by_more: float, rng: np.random.Generator
) -> str:
    """Return the cells of a row on pilots of n queries."""
    estimates, less, right, right_less = [], [], 0, 0
    for _ in range(200):
        some = [queries[i] for i in rng.choice(len(queries), n, replace=False)]
        pilot = Pilot.of(some, "query-recall")
        now, later = pilot.expected(n, ALPHA), pilot.expected(4 * n, ALPHA)
        found, fewer = interval(now), interval(now - later)
        estimates.append(found.estimate)
        less.append(fewer.estimate)
        right += found.low <= kept <= found.high
        right_less += fewer.low <= kept - kept_by_more <= fewer.high
    return " | ".join(
        [
            _mean(estimates),
            f"{100 * kept:.1f}",
            f"{right / 2:.0f} %",
            _mean(less),
            f"{100 * (kept - kept_by_more):.1f}",
            f"{right_less / 2:.0f} %",
        ]
    )


def _mean(shares: list[float]) -> str:
    return f"{100 * np.mean(shares):.1f} ± {100 * np.std(shares):.1f}"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"


if __name__ == "__main__":
    main()
