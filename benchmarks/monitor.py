"""How often alarms over live traffic are false, and how soon true ones come: ours, and the usual.

Each run draws a calibration of n queries and a stream of new ones. A query has one to three
relevant snippets, N(h, ½), and ten others, N(3 + h, 1), with a difficulty h ~ N(0, ½) of its own.
In "same" the stream is drawn as the calibration is; in "shift" relevant snippets score 0.7 higher
from query 500 on. Shown is the share of runs with an alarm at level 0.05, ± its standard error, and
the median number of queries from the shift to the alarm.

    online ranks     the monitor's: ranks among the calibration and all queries before
    fixed ranks      the same bet on ranks among the calibration alone
    repeated KS      a Kolmogorov-Smirnov test of the last 200 ranks, every 100 queries
    snippets         the monitor's bet, a rank for each of a query's snippets
    harm             the monitor's, with the judgements of all queries

    python -m benchmarks.monitor [--runs 300] [--write]
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from scipy.stats import kstest

from benchmarks.arguments import parser_of
from conformal_retrievers import Calibration, Monitor, ScoredQuery

LEVEL = 0.05
QUERIES = 1500
SHIFT_FROM = 500
SIZES = (100, 300, 1000)
RESULTS = Path(__file__).parent / "results" / "monitor.md"
RULES = ("online ranks", "fixed ranks", "repeated KS", "snippets", "harm")


def main() -> None:
    parser = parser_of("benchmarks.monitor", __doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    console = Console(record=True, width=120)
    console.print(f"{arguments.runs} runs of {QUERIES} queries, level {LEVEL}, seed 0\n")
    for n in SIZES:
        console.print(f"calibration of n = {n} queries")
        console.print(table(n, arguments.runs))
    if arguments.write:
        lines = (line.rstrip() for line in console.export_text().splitlines())
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(n: int, runs: int) -> Table:
    shown = Table(box=box.MARKDOWN)
    for heading in ("rule", "alarm, same", "alarm, shift", "queries until then"):
        shown.add_column(heading)
    alarms = {
        shifted: [run(np.random.default_rng([0, n, i, shifted]), n, shifted) for i in range(runs)]
        for shifted in (False, True)
    }
    for rule in RULES:
        cells = []
        for shifted in (False, True):
            share = float(np.mean([found[rule] is not None for found in alarms[shifted]]))
            cells.append(f"{share:.3f} ± {(share * (1 - share) / runs) ** 0.5:.3f}")
        times = [
            at - SHIFT_FROM
            for found in alarms[True]
            if (at := found[rule]) is not None and at >= SHIFT_FROM
        ]
        shown.add_row(rule, *cells, f"{np.median(times):.0f}" if times else "")
    return shown


def run(rng: np.random.Generator, n: int, shifted: bool) -> dict[str, int | None]:
    """Return when each rule alarms first, in queries, None where it does not."""
    judged = [drawn(rng) for _ in range(n)]
    calibration = Calibration.from_scores(judged, alpha=0.1, scorer="drawn")
    stream = [drawn(rng, 0.7 * (shifted and t >= SHIFT_FROM)) for t in range(QUERIES)]
    found: dict[str, int | None] = dict.fromkeys(RULES)
    monitor = Monitor(calibration, LEVEL, seed=int(rng.integers(2**32)))
    for t, query in enumerate(stream):
        monitor.observe(query.scores)
        watch = monitor.observe_judged(query)
        if found["online ranks"] is None and watch.drift:
            found["online ranks"] = t
        if found["harm"] is None and watch.harm:
            found["harm"] = t
    lowest = np.array([query.scores.min() for query in stream])
    reference = np.array(calibration.lowest_scores)
    fixed = smoothed(reference, lowest, rng)
    found["fixed ranks"] = first_alarm(fixed)
    found["repeated KS"] = next(
        (
            t
            for t in range(200, QUERIES + 1, 100)
            if kstest(fixed[t - 200 : t], "uniform").pvalue < LEVEL
        ),
        None,
    )
    snippets = np.concatenate([query.scores for query in stream])
    known = np.concatenate([query.scores for query in judged])
    at = first_alarm(np.array(list(online(known, snippets, rng))))
    if at is not None:
        ends = np.cumsum([len(query.scores) for query in stream])
        found["snippets"] = int(np.searchsorted(ends, at, side="right"))
    return found


def drawn(rng: np.random.Generator, shift: float = 0.0) -> ScoredQuery:
    n = int(rng.integers(1, 4))
    difficulty = 0.7 * rng.normal()
    relevant = difficulty + 0.7 * rng.normal(size=n) + shift
    others = 3 + difficulty + rng.normal(size=10)
    return ScoredQuery(np.concatenate([relevant, others]), np.arange(n + 10) < n)


def smoothed(
    known: NDArray[np.float64], values: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    higher = len(known) - np.searchsorted(known, values, side="right")
    return np.asarray((higher + rng.random(len(values))) / (len(known) + 1))


def online(
    known: NDArray[np.float64], values: NDArray[np.float64], rng: np.random.Generator
) -> Iterator[float]:
    ordered = sorted(known.tolist())
    for value in values.tolist():
        higher = len(ordered) - bisect.bisect_right(ordered, value)
        yield (higher + rng.random()) / (len(ordered) + 1)
        bisect.insort(ordered, value)


def first_alarm(ranks: NDArray[np.float64]) -> int | None:
    """Return when the monitor's bet on ranks reaches 1/level."""
    capitals, log_wealth = np.full(3, 1 / 3), 0.0
    for t, p in enumerate(ranks):
        capitals = (0.99 * capitals + 0.01 / 3) * (1 + np.array([-1, 0, 1]) * (p - 0.5))
        log_wealth += np.log(capitals.sum())
        capitals /= capitals.sum()
        if log_wealth >= -np.log(LEVEL):
            return t
    return None


if __name__ == "__main__":
    main()
