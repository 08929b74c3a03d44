"""What the default was before it became one score with a prior, on the halvings of `default.py`.

The former default (commit 79de4d5) chose among candidates on a third of the judged queries: sums of
all retrievers' z-scores and of words, each retriever alone, and learned scores, also with trees,
with the consensus of snippets and in two stages. With fewer than 60 judged queries it took the sum
of z-scores. The former and today's default get the same judged queries, and filter the others. The
figures are those of `default.py`: snippets at equal end-to-end recall, of the top k of dense and of
the fusion, and the coverage of the calibrations' own thresholds, in %.

    git worktree add ../former 79de4d5
    python -m benchmarks.former --checkout ../former --data FOLDER [--cache FOLDER] [--write]

The former code runs in a process of its own, and needs scikit-learn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import OTHERS, SETS, Halving, cost_at, halving, in_order, recall_of, united
from benchmarks.prior import prior_without
from conformal_retrievers import JudgedQuery, ScoredQuery, score_queries
from conformal_retrievers.scoring.learned.prior import Prior
from conformal_retrievers.scoring.shared_scores import shared_in

SIZES = (40, 0)  # judged queries; 0 is half of the set
RESULTS = Path(__file__).parent / "results" / "former.md"
FORMER_CODE = """
import json, sys, warnings
from dataclasses import replace
from conformal_retrievers import *
from conformal_retrievers.data.hits import Hit

warnings.simplefilter("ignore")
judged = []
for query, texts, lists, relevant, missed in json.loads(sys.stdin.readline()):
    hits = [tuple(Hit(*hit) for hit in found) for found in lists]
    snippets = [Snippet(t, id=str(i), hits=h) for i, (t, h) in enumerate(zip(texts, hits))]
    judged.append(JudgedQuery(query, snippets, relevant, missed=missed))
for line in sys.stdin:
    own, given, filtered, alpha = json.loads(line)
    # The fit part follows from the texts: so each halving draws another one.
    some = [replace(judged[i], query=f"{judged[i].query} {own}") for i in given]
    calibration = calibrate(some, alpha=alpha, count_missed=True)
    scorer = ConformalFilter.of(calibration).scorer
    scores = [query.scores for query in score_queries(scorer, [judged[i] for i in filtered])]
    print(json.dumps([[own.tolist(), calibration.keep(own).tolist()] for own in scores]))
"""


class Drawn(NamedTuple):
    """One halving: places of the judged queries and of the filtered ones."""

    own: int  # a number that no other halving has
    given: list[int]
    filtered: list[int]


class Row(NamedTuple):
    """Means over the halvings of one set."""

    former: float  # snippets at the recall
    today: float
    dense: float
    fusion: float
    coverage: float  # of the former
    se: float


def main() -> None:
    parser = parser_of("benchmarks.former", __doc__)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--checkout", type=Path, required=True, help="of commit 79de4d5")
    parser.add_argument("--sets", nargs="*", default=[*SETS], choices=SETS)
    parser.add_argument("--halvings", type=int, default=10)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    lines = [
        "# The former default and today's, against top k",
        "",
        f"Over {arguments.halvings} random halvings (seed 0); union of dense and BM25, 50 snippets "
        "each. `benchmarks/former.py` says what the columns are.",
    ]
    rows: dict[int, list[Row]] = {size: [] for size in SIZES}
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        for name in arguments.sets:
            judged = united(arguments.data / name, cache)
            prior = prior_without(name, "snippets", arguments.data, cache)
            for size in SIZES:
                made = row_of(name, judged, size, arguments.halvings, arguments.checkout, prior)
                rows[size].append(made)
                print(name, size, made, file=sys.stderr)
    for size in SIZES:
        lines += ["", f"## {size or 'Half'} judged", "", *table(arguments.sets, rows[size])]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")


def row_of(
    name: str, judged: list[JudgedQuery], size: int, times: int, checkout: Path, prior: Prior
) -> Row:
    recall, shared = recall_of(name, judged), shared_in(judged)
    tops = {row: in_order(score_queries(OTHERS[row], judged), row) for row in ("dense", "fusion")}
    rngs = np.random.default_rng([0, size]).spawn(times)
    today = [halving(shared, tops, recall, rng, size, prior) for rng in rngs]
    draws = [*drawn(len(judged), size, times)]
    former = [*by_former(checkout, judged, draws, recall)]
    coverage = np.array([half.coverage for half in former])
    return Row(
        np.mean([half.snippets["filter"] for half in former]),
        *(np.mean([half.snippets[of] for half in today]) for of in ("filter", "dense", "fusion")),
        coverage=100 * coverage.mean(),
        se=100 * coverage.std(ddof=1) / len(coverage) ** 0.5,
    )


def drawn(n: int, size: int, times: int) -> Iterator[Drawn]:
    """Yield what `halving` draws."""
    for rng in np.random.default_rng([0, size]).spawn(times):
        order = rng.permutation(n).tolist()
        yield Drawn(int(rng.integers(2**60)), order[: n // 2][: size or None], order[n // 2 :])


def by_former(
    checkout: Path, judged: Sequence[JudgedQuery], draws: Sequence[Drawn], recall: float
) -> Iterator[Halving]:
    """Yield what the former default gives in each halving."""
    queries = [
        (
            query.query,
            [s.text for s in query.snippets],
            [[(hit.retriever, hit.rank, hit.score) for hit in s.hits] for s in query.snippets],
            query.relevant,
            query.missed,
        )
        for query in judged
    ]
    asked = [queries, *([*draw, round(1 - recall, 9)] for draw in draws)]
    run = subprocess.run(
        [sys.executable, "-c", FORMER_CODE],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        cwd=checkout,
        input="\n".join(map(json.dumps, asked)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for draw, line in zip(draws, run.stdout.splitlines(), strict=True):
        filtered, shares, kept = [judged[i] for i in draw.filtered], [], []
        scored = []
        for query, (scores, keeps) in zip(filtered, json.loads(line), strict=True):
            marks = np.array(query.relevant, np.bool_)
            scored.append(ScoredQuery(scores, marks, missed=query.missed))
            shares.append((marks & keeps).sum() / (marks.sum() + (query.missed or 0)))
            kept.append(sum(keeps))
        snippets = cost_at(recall, scored, [np.ones(len(q.snippets)) for q in filtered])
        yield Halving(0, {"filter": snippets}, {}, float(np.mean(shares)), float(np.mean(kept)))


def table(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    yield "| set | former, of dense | of fusion | today, of dense | of fusion | former coverage |"
    yield "|---|---|---|---|---|---|"
    ratios = [
        [of / by for of in (row.former, row.today) for by in (row.dense, row.fusion)]
        for row in rows
    ]
    for name, row, own in zip(names, rows, ratios, strict=True):
        cells = " | ".join(f"{ratio:.2f}" for ratio in own)
        yield f"| {name} | {cells} | {row.coverage:.1f}, se {row.se:.1f} |"
    columns = np.array(ratios).T
    cells = " | ".join(f"{np.median(c):.2f} [{c.min():.2f}, {c.max():.2f}]" for c in columns)
    yield f"| **median** | {cells} | |"


if __name__ == "__main__":
    main()
