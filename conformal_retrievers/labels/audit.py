"""How good a labeler is: a sample of its judgements, judged again by a person.

The sample is stratified over the label and the decile of the score, each stratum sampled at least
once: an audit of the positives alone cannot see what the labeler misses, nor where. A row stands
for weight = N_h/n_h snippets, those of its stratum h over those sampled, so that a sum of weights
estimates a number of snippets without bias (Horvitz and Thompson 1952, JASA 47).

A calibration promises coverage of the snippets that are labelled relevant. With the share μ of the
truly relevant ones that the labeler misses,

    coverage of what is relevant = (1 − μ) · coverage of the found + μ · coverage of the missed

where the last is the lower, the higher the missed ones score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.labels.audit_sheet import (
    AuditedSnippet,
    SampledSnippet,
    check_free,
    read_audit,
    write_audit,
)
from conformal_retrievers.theory.intervals import Interval, cluster_interval

# --- the sample -----------------------------------------------------------------------------------


def audit_sample(
    judged: Sequence[JudgedQuery],
    scored: Sequence[ScoredQuery],
    path: str | Path,
    *,
    share: float = 0.1,
    rng: np.random.Generator,
) -> int:
    """Write a sample of judged snippets to a CSV file for a person to judge; return its rows.

    `scored` are the same queries, as `score_queries(scorer, judged)` returns them. Of each stratum
    ⌈share · N_h⌉ snippets are drawn, without replacement, and the rows shuffled. The person writes
    yes or no into the column "audited", as the labeler was asked. Labels and scores, which would
    sway the person, are not in the file but in its key, <path>.key, which only `audit_report`
    reads: each row has an id that is found there. A cell that a spreadsheet would read as a formula
    begins with an apostrophe. Raises FileExistsError rather than overwrite an audit, and ValueError
    where judged and scored differ, there is nothing to sample, or unless 0 < share ≤ 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; give the part of the snippets to audit, such as 0.1")
    check_free(Path(path))
    _check_same(judged, scored)
    of_query = np.repeat(np.arange(len(scored)), [len(q.scores) for q in scored])
    of_snippet = np.concatenate([np.arange(len(q.scores)) for q in scored])
    scores = np.concatenate([q.scores for q in scored])
    labels = np.concatenate([q.relevant for q in scored])
    deciles = _deciles(scores)
    sampled = []
    for label in (True, False):
        for decile in range(11):
            members = np.flatnonzero((labels == label) & (deciles == decile))
            # As the decimal that was written: in floats 0.07 · 100 is 7.000000000000001.
            n = math.ceil(Fraction(str(share)) * len(members))
            for i in rng.choice(members, n, replace=False).tolist():
                place = int(of_query[i]), int(of_snippet[i])
                score = float(scores[i])
                sampled.append(SampledSnippet(*place, label, score, decile, len(members), n))
    write_audit(path, judged, sampled, rng)
    return len(sampled)


def _check_same(judged: Sequence[JudgedQuery], scored: Sequence[ScoredQuery]) -> None:
    if len(judged) != len(scored):
        raise ValueError(
            f"{len(judged)} judged queries but {len(scored)} scored ones; give the same queries, "
            "as score_queries(scorer, judged) returns them"
        )
    for i, (one, other) in enumerate(zip(judged, scored, strict=True)):
        if one.id != other.id or list(one.relevant) != other.relevant.tolist():
            raise ValueError(
                f"judged[{i}] and scored[{i}] differ in id or judgements; give the same queries in "
                "the same order"
            )
    if not any(query.snippets for query in judged):
        raise ValueError(f"the {len(judged)} judged queries have no snippets; there is no audit")


def _deciles(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each score's decile, 1 to 10, the same for tied scores; 0 for what has no score."""
    ordered = np.sort(scores[~np.isnan(scores)])
    below = np.searchsorted(ordered, scores, side="left")
    decile = 1 + 10 * below // max(1, len(ordered))
    return np.where(np.isnan(scores), 0, decile)


# --- the report -----------------------------------------------------------------------------------


def audit_report(path: str | Path) -> AuditReport:
    """Read an audit that `audit_sample` wrote and a person filled in, with its key, <path>.key.

    Columns may be separated by commas, semicolons or tabs, in UTF-8 or UTF-16, as spreadsheets save
    them. Raises ValueError, naming lines and column, for a judgement that is missing or neither yes
    nor no, where columns, rows or texts have been lost or changed, and where the key is another
    audit's; FileNotFoundError without the file or its key. Texts may differ in what spreadsheets
    change: white space, punctuation, case, and letters that an encoding does not hold.
    """
    return AuditReport(tuple(read_audit(path)))


class Confusion(NamedTuple):
    """Numbers of snippets: labelled relevant rightly, wrongly; irrelevant wrongly, rightly."""

    found: float
    false_alarms: float
    missed: float
    rejected: float


class Misses(NamedTuple):
    """Of a score decile (None: no score), the estimated numbers of relevant and missed snippets."""

    decile: int | None
    relevant: float
    missed: float


@dataclass(frozen=True)
class AuditReport:
    """What an audit says of a labeler, estimated for all snippets that were sampled from.

    Intervals are Wilson's at 95 %, with the query as the unit, since snippets of a query are judged
    alike (`conformal.cluster_interval`); nan where there is nothing that it would be a share of.
    """

    rows: tuple[AuditedSnippet, ...]

    @property
    def counts(self) -> Confusion:
        """The confusion matrix of the audited rows."""
        return Confusion(*(sum(cell) for cell in zip(*map(_one_hot, self.rows), strict=True)))

    @property
    def estimated(self) -> Confusion:
        """The confusion matrix of all snippets, estimated by weight."""
        weighted = [[row.weight * cell for cell in _one_hot(row)] for row in self.rows]
        return Confusion(*(sum(cell) for cell in zip(*weighted, strict=True)))

    @property
    def agreement(self) -> Interval:
        """The share of snippets on which labeler and auditor agree."""
        return self._share(self._labels == self._truth, np.ones(len(self.rows), bool))

    @property
    def precision(self) -> Interval:
        """The share truly relevant of those labelled relevant."""
        return self._share(self._truth, self._labels)

    @property
    def miss_rate(self) -> Interval:
        """The share μ labelled irrelevant of those truly relevant."""
        return self._share(~self._labels, self._truth)

    @property
    def false_alarm_rate(self) -> Interval:
        """The share labelled relevant of those truly irrelevant."""
        return self._share(self._labels, ~self._truth)

    @property
    def kappa(self) -> float:
        """Cohen's kappa, (p_o − p_e)/(1 − p_e), of all snippets; nan where all is one class.

        Cohen 1960, Educational and Psychological Measurement 20.
        """
        found, false_alarms, missed, rejected = np.array(self.estimated) / sum(self.estimated)
        labelled, relevant = found + false_alarms, found + missed
        by_chance = labelled * relevant + (1 - labelled) * (1 - relevant)
        if by_chance == 1:
            return math.nan
        return float((found + rejected - by_chance) / (1 - by_chance))

    @property
    def misses(self) -> tuple[Misses, ...]:
        """By score decile, how many snippets are relevant and how many of these are missed."""
        groups: dict[int | None, list[AuditedSnippet]] = {}
        for row in sorted(self.rows, key=lambda row: row.decile or 11):
            groups.setdefault(row.decile, []).append(row)
        return tuple(
            Misses(
                decile,
                sum(row.weight for row in rows if row.audited),
                sum(row.weight for row in rows if row.audited and not row.label),
            )
            for decile, rows in groups.items()
        )

    def coverage(self, threshold: float) -> Interval:
        """Return the share kept of the truly relevant snippets, pooled, at a score threshold.

        Kept is what scores at most the threshold, and what has no score. It compares with the
        coverage that is measured on the labels, which are all that a calibration knows.
        """
        return self._share(self._kept(threshold), self._truth)

    def labelled_coverage(self, threshold: float) -> Interval:
        """Return the share kept of the snippets labelled relevant, pooled, in the same sample."""
        return self._share(self._kept(threshold), self._labels)

    @property
    def statement(self) -> str:
        """One paragraph: how far the labels can be trusted, and what that means for coverage."""
        n, total = len(self.rows), round(sum(self.estimated))
        said = (
            f"Of {total:,} labelled snippets {n:,} were judged again. Labeler and auditor agree on "
            f"{_percent(self.agreement)} (Cohen's kappa {self.kappa:.2f}). Of the snippets "
            f"labelled relevant {_percent(self.precision)} are."
        )
        mu = self.miss_rate
        if math.isnan(mu.estimate):
            return f"{said} The auditor found no relevant snippet: nothing is known of misses."
        said += f" Of the relevant ones the labeler misses {_percent(mu)}"
        if not self.counts.missed:
            return (
                f"{said}: none was found. Coverage of the labelled ones then stands for that of "
                f"all relevant ones, but for up to {mu.high:.1%} of them."
            )
        return (
            f"{said}, {self._where_missed}. A calibration on these labels promises coverage of "
            "what is labelled relevant. Coverage of what is relevant is "
            f"{1 - mu.estimate:.3f} × coverage of the found + {mu.estimate:.3f} × coverage of the "
            "missed: coverage(threshold) estimates it."
        )

    @property
    def labels(self) -> dict[str, JsonValue]:
        """What a calibration stores in its `labels`: {"audit": {…}}, shares as [estimate, ends]."""
        shares = {
            name: [None if math.isnan(end) else end for end in getattr(self, name)]
            for name in ("agreement", "precision", "miss_rate", "false_alarm_rate")
        }
        return {
            "audit": {
                "audited": len(self.rows),
                "of": round(sum(self.estimated)),
                "counts": dict(zip(Confusion._fields, self.counts, strict=True)),
                "kappa": None if math.isnan(self.kappa) else self.kappa,
                **shares,
            }
        }

    def __str__(self) -> str:
        return self.statement

    @cached_property
    def _labels(self) -> NDArray[np.bool_]:
        return np.array([row.label for row in self.rows])

    @cached_property
    def _truth(self) -> NDArray[np.bool_]:
        return np.array([row.audited for row in self.rows])

    @property
    def _where_missed(self) -> str:
        at = {
            label: np.average([r.decile for r in some], weights=[r.weight for r in some])
            for label in (True, False)
            if (some := [r for r in self.rows if r.audited and r.label == label and r.decile])
        }
        if len(at) < 2:
            return "of which the scores say nothing"
        return f"in score decile {at[False]:.1f} on average; the found lie in {at[True]:.1f}"

    def _kept(self, threshold: float) -> NDArray[np.bool_]:
        scores = np.array([row.score for row in self.rows])
        return np.asarray((scores <= threshold) | np.isnan(scores))

    def _share(self, part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Interval:
        weights = np.array([row.weight for row in self.rows])
        _, queries = np.unique([row.query for row in self.rows], return_inverse=True)
        return cluster_interval(
            np.bincount(queries, weights * (part & whole)), np.bincount(queries, weights * whole)
        )


def _one_hot(row: AuditedSnippet) -> Confusion:
    said, true = row.label, row.audited
    return Confusion(said and true, said and not true, true and not said, not said and not true)


def _percent(share: Interval) -> str:
    return str(share).strip()
