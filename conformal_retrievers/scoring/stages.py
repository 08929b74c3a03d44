"""A learned score in two stages: the second one knows what the first one says of the whole query.

    first     a regression on the features of a snippet (`features.py`): log-odds z
    second    a regression on these features and on where z stands among the query's snippets; with
              boosted trees, the mean of both

So a snippet's score follows from how many of its query's snippets look relevant, and from what
stands around it in its document. The second stage is fitted on z of regressions that did not see
the query: one for each of four folds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.scoring.features import STEPS, Features, Layout, Places, neighbours
from conformal_retrievers.scoring.regression import (
    Regression,
    StoredRegression,
    regress,
    weights_of,
)
from conformal_retrievers.scoring.sources import Context, Known, Values, average_ranks
from conformal_retrievers.scoring.trees import StoredTrees, Trees, grow

FOLDS = 4
OF_QUERY = (
    "log-odds",
    "log-odds below best",
    "log share of odds",
    "log rank by log-odds",
    "log number expected above",
    "log number expected",
    "log-odds of second below best",
    "log-odds of fifth below best",
)
OF_DOCUMENT = "log-odds below best of document"
IN_DOCUMENT = ("log number expected before", "log places from best of document")


class Stages(NamedTuple):
    """Both stages, as fitted."""

    first: Regression
    second: Regression
    trees: Trees | None

    def log_odds(self, features: Features) -> Values:
        """Return the log-odds (n,) of the snippets of a query from their features."""
        table = with_standing(features, self.first.log_odds(features.table))
        log_odds = self.second.log_odds(table)
        return log_odds if self.trees is None else (log_odds + self.trees.log_odds(table)) / 2

    def as_json(self) -> dict[str, JsonValue]:
        """Return the fields of `StoredStages`."""
        parts = {name: part and asdict(part) for name, part in self._asdict().items()}
        fields: dict[str, JsonValue] = json.loads(json.dumps(parts))  # tuples become lists
        return fields


class StoredStages(pydantic.BaseModel):
    """The fields of both stages in a provenance."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    first: StoredRegression
    second: StoredRegression
    trees: StoredTrees | None

    def stages(self, of_first: int, of_second: int) -> Stages:
        """Return the stages; ValueError unless they are on so many features each."""
        trees = None if self.trees is None else self.trees.trees(of_second)
        return Stages(self.first.regression(of_first), self.second.regression(of_second), trees)


def fit_stages(
    queries: Sequence[Features], relevant: Sequence[Known], *, alpha: float | None, trees: bool
) -> Stages:
    """Fit both stages to the features and the judgements (n,) of queries, with trees or without.

    The regression of the second stage is best near the threshold at an alpha, as in `regress`.
    """

    def first(places: Sequence[int]) -> Regression:
        tables, labels = [queries[i].table for i in places], [relevant[i] for i in places]
        return regress(np.vstack(tables), np.concatenate(labels), weights_of(labels))

    of_all, known = first(range(len(queries))), [np.empty(0)] * len(queries)
    for fold in range(FOLDS):
        others = [i for i in range(len(queries)) if i % FOLDS != fold]
        both = {r for i in others for r in relevant[i].tolist()} == {True, False}
        regression = first(others) if both else of_all
        for i in range(fold, len(queries), FOLDS):
            known[i] = regression.log_odds(queries[i].table)
    table = np.vstack([with_standing(q, z) for q, z in zip(queries, known, strict=True)])
    labels, weights = np.concatenate(relevant), weights_of(relevant)
    second = regress(table, labels, weights, alpha=alpha)
    return Stages(of_all, second, grow(table, labels, weights) if trees else None)


def standing_names(context: Context) -> list[str]:
    """Return the names of the features that the second stage has more than the first."""
    names = [*OF_QUERY]
    if context != "none":
        names.append(OF_DOCUMENT)
    if context == "document+position":
        names += IN_DOCUMENT
        names += [f"log-odds {abs(step)} {'before' if step < 0 else 'after'}" for step in STEPS]
    return names


def with_standing(features: Features, log_odds: Values) -> Values:
    """Return the features (n, d) of a query's snippets and where their log-odds (n,) stand.

    A number expected is a sum of probabilities: of all snippets, of those with larger log-odds, or
    of the places before it in its document (of the best snippet of each). Neighbours that are not
    there have the query's lowest log-odds.
    """
    n, layout = len(log_odds), features.layout
    if n == 0:
        return np.empty((0, features.table.shape[1] + len(standing_names(features.context))))
    of_first = features.table.shape[1]
    table: Values = np.empty((of_first + len(standing_names(features.context)), n)).T
    table[:, :of_first], columns = features.table, table.T[of_first:]
    low = -log_odds
    ordered = np.sort(low)  # sums of floats depend on the order, features must not
    z, above = -ordered, ordered.searchsorted(low)
    best, p = z[0], 1 / (1 + np.exp(np.minimum(ordered, 700)))  # exp(710) overflows
    expected = np.zeros(n + 1)
    np.cumsum(p, out=expected[1:])
    columns[0] = log_odds
    columns[1] = best - log_odds
    columns[2] = log_odds - best - np.log(np.exp(z - best).sum())
    columns[3] = np.log1p(average_ranks(low, ordered))
    columns[4] = np.log(0.01 + expected[above])
    columns[5] = np.log(1e-9 + expected[-1])
    columns[6] = best - z[min(1, n - 1)]
    columns[7] = best - z[min(4, n - 1)]
    if layout is not None:
        starts = layout.sizes.cumsum() - layout.sizes
        of_documents = np.maximum.reduceat(log_odds.take(layout.order), starts)
        columns[8] = of_documents[layout.document] - log_odds
    if layout is not None and features.context == "document+position":
        columns[9] = np.log(0.01 + _expected_before(p[above], layout))
        columns[10] = np.log1p(_places_from_best(columns[8] == 0, layout))
        columns[11:] = -neighbours(low[np.newaxis], layout, STEPS)[:, 0]
    return table


def _expected_before(p: Values, layout: Layout) -> Values:
    """Return Σ p over the places before a snippet's own in its document, (n,), from p (n,)."""
    # In whole billionths, whose sums do not depend on the order of the documents.
    of_places = np.rint(1e9 * np.maximum.reduceat(p.take(layout.order), layout.first))
    before = of_places.cumsum() - of_places
    return np.asarray(1e-9 * (before[layout.place] - before[layout.place - layout.number]))


def _places_from_best(best: Known, layout: Layout) -> Places:
    """Return how many places a snippet is away from the first best one of its document, (n,)."""
    number = np.where(best, layout.number, len(best)).take(layout.order)
    first = np.minimum.reduceat(number, layout.sizes.cumsum() - layout.sizes)
    return np.asarray(np.abs(layout.number - first[layout.document]))
