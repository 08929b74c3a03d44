"""Auditing labels: a person judges a sample of the labelled snippets again.

The sample is stratified by label and score decile, with at least one snippet of each stratum: an
audit of the positive labels alone cannot show what the labeler missed. A sampled snippet stands for
weight = N_h/n_h snippets, the size of its stratum h over the number sampled, so sums of weights
estimate numbers of snippets without bias (Horvitz and Thompson 1952, JASA 47). A calibration
guarantees coverage of the snippets that are *labelled* relevant.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.theory.intervals import Interval, cluster_interval
from conformal_retrievers.theory.ranks import exact_share
from conformal_retrievers.theory.tolerance import binomial_interval

JUDGEMENTS = {"yes": True, "y": True, "no": False, "n": False}


def audit_sample(
    judged: Sequence[JudgedQuery],
    scored: Sequence[ScoredQuery],
    path: str | Path,
    *,
    share: float = 0.1,
    rng: np.random.Generator,
) -> int:
    """Write a sample of labelled snippets to a CSV file for a person; return its number of rows.

    The person writes yes or no into the column `audited`. The file shows neither labels nor scores.
    `scored` is the labelled queries as `score_queries(scorer, judged)` returns them. Of each
    stratum h, ⌈share · N_h⌉ snippets are drawn with `rng`, for a share in (0, 1].

    Raises ValueError if `judged` and `scored` are not the same queries, and FileExistsError if the
    file exists.
    """
    exact = exact_share(share)  # in floats, 0.07 · 100 is above 7
    population = _Population(judged, scored)
    strata = [np.flatnonzero(population.strata == h) for h in np.unique(population.strata)]
    drawn = [rng.choice(s, math.ceil(exact * len(s)), replace=False) for s in strata]
    rows = rng.permutation(np.concatenate(drawn)).tolist()
    with Path(path).open("x", encoding="utf-8-sig", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["audited", "query", "snippet", "id"])
        for i in rows:
            writer.writerow(["", *map(_cell, population.texts[i]), population.ids[i]])
    return len(rows)


def audit_report(
    path: str | Path, judged: Sequence[JudgedQuery], scored: Sequence[ScoredQuery]
) -> AuditReport:
    """Return the report of an audit that a person has filled in.

    `judged` and `scored` are those of `audit_sample`. Raises ValueError, naming the line, for a
    judgement that is neither yes nor no, and for a row of other queries.
    """
    population = _Population(judged, scored)
    places = {id: i for i, id in enumerate(population.ids)}
    text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.DictReader(StringIO(text, newline=""), delimiter=separator)
    if not {"audited", "id"} <= set(reader.fieldnames or ()):
        raise ValueError(f"{path} needs the columns audited and id; restore them")
    audited: dict[int, bool] = {}
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        place = places.get((row["id"] or "").strip())
        judgement = JUDGEMENTS.get((row["audited"] or "").strip().lower())
        if place is None or place in audited:
            shown = f"id {row['id']!r:.60}"
            raise ValueError(f"{where}: {shown} is unknown or repeated; remove the row")
        if judgement is None:
            raise ValueError(f"{where}: audited is {row['audited']!r:.60}; write yes or no")
        audited[place] = judgement
    if not audited:
        raise ValueError(f"{path} has no rows; restore the file that audit_sample wrote")
    rows = np.array(list(audited))
    strata = population.strata[rows]
    return AuditReport(
        labelled=population.labelled[rows],
        audited=np.array(list(audited.values())),
        scores=population.scores[rows],
        queries=population.queries[rows],
        weights=np.bincount(population.strata)[strata] / np.bincount(strata)[strata],
    )


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Arrays (n,) of audited snippets, and rates of all labelled ones by `cluster_interval`."""

    labelled: NDArray[np.bool_]  # by the labeler: relevant
    audited: NDArray[np.bool_]  # by the person: relevant
    scores: NDArray[np.float64]
    queries: NDArray[np.int64]  # places of the snippets' queries
    weights: NDArray[np.float64]  # numbers of snippets that the audited ones stand for

    @property
    def agreement(self) -> Interval:
        """The share of snippets on which labeler and person agree."""
        return self._rate(self.labelled == self.audited, np.ones(len(self.labelled), bool))

    @property
    def precision(self) -> Interval:
        """The share of the snippets labelled relevant that are relevant."""
        return self._rate(self.audited, self.labelled)

    @property
    def miss_rate(self) -> Interval:
        """The share μ of the relevant snippets that are labelled irrelevant."""
        return self._rate(~self.labelled, self.audited)

    @property
    def remaining_miss_rate(self) -> Interval:
        """The share of the relevant snippets that stay labelled irrelevant: they were not audited.

        That is if the audited ones get the person's label. The interval has the ends of
        `cluster_interval`, or of Clopper and Pearson's for the audited irrelevant labels where
        these are further away, because a few of them may have no miss by chance.
        """
        part = ~self.labelled & (self.weights > 1)
        rest = (self.weights - 1) * part
        if not part.any():
            return Interval(0.0, 0.0, 0.0)
        missed, relevant = rest * self.audited, self.weights * self.audited
        known = (relevant - missed).sum()
        ends = cluster_interval(
            np.bincount(self.queries, missed), np.bincount(self.queries, relevant)
        )
        found = binomial_interval(int((part & self.audited).sum()), int(part.sum()))
        low, high = (end * rest.sum() / (end * rest.sum() + known or 1) for end in found[1:])
        return Interval(ends.estimate, min(ends.low, low), max(ends.high, high))

    def coverage(self, threshold: float) -> Interval:
        """Return the share of the relevant snippets that a score threshold keeps, pooled."""
        return self._rate(~(self.scores > threshold), self.audited)

    @property
    def labels(self) -> dict[str, JsonValue]:
        """The audit for `calibrate(labels=)`, with rates as [estimate, low, high]."""
        return self._written("agreement", "precision", "miss_rate")

    @property
    def corrected_labels(self) -> dict[str, JsonValue]:
        """As `labels`, where the audited snippets get the person's label."""
        return self._written("agreement", "precision", "miss_rate", "remaining_miss_rate")

    def _written(self, *rates: str) -> dict[str, JsonValue]:
        audit: dict[str, JsonValue] = {"audited": len(self.labelled)}
        audit["of"] = round(self.weights.sum())
        for name in rates:
            audit[name] = [None if math.isnan(end) else end for end in getattr(self, name)]
        return {"audit": audit}

    def _rate(self, part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Interval:
        parts = np.bincount(self.queries, self.weights * (part & whole))
        return cluster_interval(parts, np.bincount(self.queries, self.weights * whole))


class _Population:
    """All labelled snippets, in one array for each of their properties."""

    def __init__(self, judged: Sequence[JudgedQuery], scored: Sequence[ScoredQuery]) -> None:
        one = [(query.id, list(query.relevant)) for query in judged]
        if one != [(query.id, query.relevant.tolist()) for query in scored]:
            raise ValueError("scored has other queries; give score_queries(scorer, judged)")
        self.queries = np.repeat(np.arange(len(scored)), [len(q.scores) for q in scored])
        self.scores = np.concatenate([q.scores for q in scored])
        self.labelled = np.concatenate([q.relevant for q in scored])
        self.texts = [(q.query, s.text) for q in judged for s in q.snippets]
        places = enumerate(zip(self.queries.tolist(), self.texts, strict=True))
        self.ids = [f"s{short_hash([i, q, *texts])}" for i, (q, texts) in places]
        ordered = np.sort(self.scores[~np.isnan(self.scores)])
        below = np.searchsorted(ordered, self.scores, side="left")
        deciles = np.where(np.isnan(self.scores), 10, 10 * below // max(1, len(ordered)))
        self.strata = 11 * self.labelled + deciles  # tied scores share a decile, NaN has its own


def _cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, whatever separates its cells."""
    text = text.replace("\0", "")  # which older versions of csv cannot read
    return re.sub(r"(^|[;\t\r\n])(?=[\s\"]*[=+\-@＝＋－＠])", r"\1'", text)
