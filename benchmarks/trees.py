"""What trees would add to the default score, on the halvings of `default.py`.

Boosted trees (100 of depth 2, at a rate of 0.05, with at least 20 snippets in a leaf) begin with
the log-odds of the default's regression, and are fitted to the same queries. The figures are
snippets at equal end-to-end recall, of the top k of dense, without trees and with them.

    python -m benchmarks.trees --data FOLDER [--cache FOLDER] [--write]

It needs scikit-learn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import GradientBoostingClassifier

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import OTHERS, SETS, halving, in_order, recall_of, united
from benchmarks.prior import prior_without
from conformal_retrievers import JudgedQuery, score_queries
from conformal_retrievers.scoring.learned import score as learned
from conformal_retrievers.scoring.learned.prior import Prior
from conformal_retrievers.scoring.learned.score import LearnedScorer
from conformal_retrievers.scoring.shared_scores import shared_in

SIZES = (40, 0)  # judged queries; 0 is half of the set
RESULTS = Path(__file__).parent / "results" / "trees.md"


class Regression(ClassifierMixin, BaseEstimator):
    """The default's regression, as trees begin with it."""

    def __init__(self, coefficients: Sequence[float] = ()) -> None:
        self.coefficients = coefficients

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Regression:
        self.classes_, self.n_classes_ = np.array([0, 1]), 2
        return self

    def predict_proba(self, x: Any) -> Any:
        p = 1 / (1 + np.exp(-np.clip(x @ np.array(self.coefficients), -30, 30)))
        return np.column_stack([1 - p, p])


def main() -> None:
    parser = parser_of("benchmarks.trees", __doc__)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--sets", nargs="*", default=[*SETS], choices=SETS)
    parser.add_argument("--halvings", type=int, default=10)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    lines = [
        "# Trees beside the default score",
        "",
        f"Over {arguments.halvings} random halvings (seed 0). `benchmarks/trees.py` says what the "
        "columns are.",
        "",
        "| set | 40 judged | with trees | half judged | with trees |",
        "|---|---|---|---|---|",
    ]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        for name in arguments.sets:
            judged = united(arguments.data / name, cache)
            prior = prior_without(name, "snippets", arguments.data, cache)
            rows.append(ratios(name, judged, arguments.halvings, prior))
            lines.append(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in rows[-1])} |")
            print(lines[-1], flush=True)
    columns = np.array(rows).T
    cells = " | ".join(f"{np.median(c):.2f} [{c.min():.2f}, {c.max():.2f}]" for c in columns)
    text = "\n".join([*lines, f"| **median** | {cells} |"]) + "\n"
    print(text)
    if arguments.write:
        RESULTS.write_text(text, encoding="utf-8")


def ratios(name: str, judged: list[JudgedQuery], times: int, prior: Prior) -> list[float]:
    recall = recall_of(name, judged)
    top = {"dense": in_order(score_queries(OTHERS["dense"], judged), "dense")}
    made = []
    for size in SIZES:
        for with_trees in (False, True):
            rngs = np.random.default_rng([0, size]).spawn(times)
            shared = shared_in(judged)  # anew: a score is remembered by its name
            with trees() if with_trees else nullcontext():
                halvings = [halving(shared, top, recall, rng, size, prior) for rng in rngs]
            filtered, dense = (
                np.mean([half.snippets[row] for half in halvings]) for row in ("filter", "dense")
            )
            made.append(float(filtered / dense))
    return made


@contextmanager
def trees() -> Iterator[None]:
    """Let what is fitted inside have trees, too."""
    grown: dict[tuple[float, ...], GradientBoostingClassifier] = {}
    without, of_regression = learned.fitted, LearnedScorer.combine

    def fitted(sources: Any, scorers: Any, judged: Any, item: Any) -> LearnedScorer:
        made = without(sources, scorers, judged, item)
        marks, table = learned.table_of(sources, scorers, judged)
        if marks.any():
            trees = GradientBoostingClassifier(
                init=Regression(made.coefficients),
                n_estimators=100,
                learning_rate=0.05,
                max_depth=2,
                min_samples_leaf=20,
                random_state=0,
            )
            grown[made.coefficients] = trees.fit(table.T, marks.astype(int))
        return made

    def combine(self: LearnedScorer, query: str, scores: Any, snippets: Any) -> Any:
        if (trees := grown.get(self.coefficients)) is None:
            return of_regression(self, query, scores, snippets)
        words = learned.words_of(query, snippets.texts)
        known, table = learned.features(self.sources, query, words, scores, snippets)
        combined = np.full(len(snippets), np.nan)
        combined[known] = learned.by_share(trees.decision_function(table.T))
        return combined + np.log1p(
            np.array([*map(len, snippets.texts)]) / learned.BESIDE["snippets"]
        )

    with (
        patch("conformal_retrievers.calibration.fitting.fitted", fitted),
        patch.object(LearnedScorer, "combine", combine),
    ):
        yield


if __name__ == "__main__":
    main()
