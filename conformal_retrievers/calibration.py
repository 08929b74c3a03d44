"""A calibration: the scores of judged queries' relevant snippets, and the threshold they give.

`calibrate` scores judged queries; the result is a frozen value that is saved, loaded, and asked at
any alpha. What 1 − α is a probability of is named by the guarantee:

    "query-recall"  E[share of a new query's relevant snippets that is kept] ≥ 1 − α,
                    if the new query is exchangeable with the calibration queries
    "snippet"       P(a new relevant snippet is kept) ≥ 1 − α, if it is exchangeable with the
                    calibration snippets; snippets that come in queries are not. The rule of
                    Chakraborty et al. 2025 (arXiv 2511.17908, section 3.2)

The formulas are in `conformal.py`, the file format in `calibration_file.py`, the sentences of the
statement in `statement.py`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers import calibration_file, conformal
from conformal_retrievers.calibration_file import CalibrationRecord, QueryRecord
from conformal_retrievers.judged import JudgedQuery, ScoredQuery
from conformal_retrievers.scoring.scorer import Scorer, score_queries
from conformal_retrievers.statement import statement
from conformal_retrievers.version import __version__

Guarantee = Literal["query-recall", "snippet"]


def calibrate(
    judged: Iterable[JudgedQuery],
    scorer: Scorer,
    *,
    alpha: float,
    guarantee: Guarantee = "query-recall",
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    progress: bool = False,
) -> Calibration:
    """Score judged queries and return the calibration that their relevant snippets give.

    `retrieval` (retriever, K, chunking) and `labels` (source, prompt) are written into the file for
    its reader. Raises ValueError as `Calibration.from_scores` does.
    """
    conformal.exact_alpha(alpha)  # before the scorer is paid for
    _check_guarantee(guarantee)
    return Calibration.from_scores(
        score_queries(scorer, judged, progress=progress),
        alpha=alpha,
        guarantee=guarantee,
        scorer=scorer.name,
        retrieval=retrieval,
        labels=labels,
    )


@dataclass(frozen=True, eq=False)
class Calibration:
    """Relevant scores of judged queries, with all that follows from them; made by `calibrate`.

    `queries` hold, of each judged query with a relevant retrieved snippet, the sorted scores of its
    relevant snippets alone; `n_without_relevant` counts the other queries. Two calibrations are
    equal if their files are.
    """

    alpha: float
    guarantee: Guarantee
    scorer: str
    queries: tuple[ScoredQuery, ...]
    n_without_relevant: int = 0
    retrieval: Mapping[str, JsonValue] | None = None
    labels: Mapping[str, JsonValue] | None = None
    library: str = __version__
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    @classmethod
    def from_scores(
        cls,
        scored_queries: Iterable[ScoredQuery],
        *,
        alpha: float,
        guarantee: Guarantee = "query-recall",
        scorer: str,
        retrieval: Mapping[str, JsonValue] | None = None,
        labels: Mapping[str, JsonValue] | None = None,
    ) -> Calibration:
        """Return the calibration of queries whose snippets are scored already.

        `scorer` is the name of the scorer that scored them. Raises ValueError, naming query and
        field, where alpha is not in (0, 1), the guarantee is unknown, a score is NaN or infinite,
        an id occurs twice, a weight is not 1, or no query has a relevant snippet. Warns where
        relevant snippets score higher than irrelevant ones.
        """
        conformal.exact_alpha(alpha)
        _check_guarantee(guarantee)
        scored = list(scored_queries)
        _check_scored(scored)
        _warn_if_reversed(scored)
        return cls(
            float(conformal.exact_alpha(alpha)),
            guarantee,
            scorer,
            tuple(_relevant_only(query) for query in scored if query.relevant.any()),
            n_without_relevant=sum(not query.relevant.any() for query in scored),
            retrieval=_json_copy("retrieval", retrieval),
            labels=_json_copy("labels", labels),
        )

    def at(self, alpha: float) -> Calibration:
        """Return the same calibration for another alpha: no snippet is scored again."""
        return replace(self, alpha=float(conformal.exact_alpha(alpha)))

    # --- what is kept -----------------------------------------------------------------------------

    def threshold(self, group: str | None = None) -> float:
        """Return the largest score that is kept, or +inf where everything is.

        Every `group` has the same threshold: the guarantee is over all queries together.
        """
        return self._threshold

    def keep(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.bool_]:
        """Return which of the scores (n,) are kept: those ≤ threshold, and NaN, the unscorable.

        An unscorable snippet may be relevant, so only keeping it preserves the guarantee.
        """
        s = np.asarray(scores, dtype=np.float64)
        return (s <= self.threshold(group)) | np.isnan(s)

    def p_values(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (n,): a snippet is kept at α iff p > α.

        p = (1 + Σ_{A_i ≥ score} 1/N_q(i)) / (K + 1) for "query-recall", and
        p = (1 + #{A_i ≥ score}) / (n + 1) for "snippet". NaN stays NaN.
        """
        return conformal.p_values(*self._p_table, scores)

    # --- what it is worth -------------------------------------------------------------------------

    @property
    def n_queries(self) -> int:
        """K, the number of queries with a relevant retrieved snippet."""
        return len(self.queries)

    @property
    def n_relevant(self) -> int:
        """The number n of relevant retrieved snippets."""
        return len(self._scores)

    @property
    def n_units(self) -> int:
        """What the rank is counted in: queries, or snippets for the guarantee "snippet"."""
        return self.n_queries if self.guarantee == "query-recall" else self.n_relevant

    @property
    def n_missed(self) -> int:
        """The number of known relevant snippets of these queries that were not retrieved."""
        return sum(query.missed for query in self.queries)

    @cached_property
    def effective_n(self) -> float:
        """How many independent relevant snippets are worth as much as these, at the threshold."""
        kept = [np.count_nonzero(self.keep(query.scores)) for query in self.queries]
        return conformal.effective_n(kept, [len(query.scores) for query in self.queries])

    @property
    def design_effect(self) -> float:
        """How many times more relevant snippets it takes because they come in queries (Kish)."""
        return self.n_relevant / self.effective_n

    @property
    def statement(self) -> str:
        """One paragraph: what is promised, over what, assuming what, from how many queries."""
        return statement(self)

    # --- the file ---------------------------------------------------------------------------------

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return self._record.sha256

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; an old file stays until the new one is complete.

        Raises OSError, naming the path, where it cannot be written.
        """
        calibration_file.write(self._record, path)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path, field and remedy, where the file is broken, newer or
        changed, or where its threshold does not follow from its scores; FileNotFoundError where
        there is none.
        """
        record = calibration_file.read(path)
        try:
            calibration = cls._from_record(record)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        derived = calibration._record
        for name in ("threshold", "n_queries", "n_relevant", "design_effect", "effective_n"):
            stored, follows = getattr(record, name), getattr(derived, name)
            # Another machine may sum in another order; only the effective numbers are sums.
            near = name.endswith(("effect", "_n")) and math.isclose(stored, follows, rel_tol=1e-3)
            if stored != follows and not near:
                raise ValueError(
                    f"{path}: its field {name!r} is {stored!r}, but its scores give {follows!r}; "
                    "calibrate and save again"
                )
        return calibration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self._record == other._record

    def __hash__(self) -> int:
        return hash(self.checksum)

    @classmethod
    def _from_record(cls, record: CalibrationRecord) -> Calibration:
        queries = [
            ScoredQuery(
                np.array(query.scores),
                np.ones(len(query.scores), dtype=bool),
                id=query.id,
                group=query.group,
                missed=query.missed,
                weight=query.weight,
            )
            for query in record.queries
        ]
        conformal.exact_alpha(record.alpha)
        _check_scored(queries)
        return cls(
            record.alpha,
            record.guarantee,
            record.scorer,
            tuple(_relevant_only(query) for query in queries),
            n_without_relevant=record.n_without_relevant,
            retrieval=record.retrieval,
            labels=record.labels,
            library=record.library,
            created=record.created,
        )

    @cached_property
    def _record(self) -> CalibrationRecord:
        threshold = self.threshold()
        return CalibrationRecord(
            format="conformal-retrievers/calibration",
            version=1,
            guarantee=self.guarantee,
            alpha=self.alpha,
            delta=None,
            threshold="keep_all" if math.isinf(threshold) else threshold,
            scorer=self.scorer,
            n_queries=self.n_queries,
            n_relevant=self.n_relevant,
            n_without_relevant=self.n_without_relevant,
            design_effect=round(self.design_effect, 3),
            effective_n=round(self.effective_n, 3),
            retrieval=None if self.retrieval is None else dict(self.retrieval),
            labels=None if self.labels is None else dict(self.labels),
            library=self.library,
            created=self.created,
            queries=[
                QueryRecord(
                    id=query.id,
                    group=query.group,
                    weight=query.weight,
                    missed=query.missed,
                    scores=query.scores.tolist(),
                )
                for query in self.queries
            ],
        )

    # --- derived once, from the scores ------------------------------------------------------------

    @cached_property
    def _threshold(self) -> float:
        if self.guarantee == "snippet":
            return conformal.conformal_quantile(self._scores, self.alpha)
        return conformal.query_recall_threshold(self._scores, self._sizes, self.alpha)

    @cached_property
    def _scores(self) -> NDArray[np.float64]:
        return np.concatenate([query.scores for query in self.queries])

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """The size of each score's unit: N_q, or 1 where each snippet is a unit of its own."""
        if self.guarantee == "snippet":
            return np.ones(self.n_relevant, dtype=np.int64)
        sizes = np.array([len(query.scores) for query in self.queries], dtype=np.int64)
        return np.repeat(sizes, sizes)

    @cached_property
    def _p_table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        order = np.argsort(self._scores)
        return self._scores[order], conformal.p_value_steps(self._sizes[order])


# --- what enters ----------------------------------------------------------------------------------


def _json_copy(
    name: str, provenance: Mapping[str, JsonValue] | None
) -> dict[str, JsonValue] | None:
    """Return a copy that nobody else holds, as the file will give it back."""
    if provenance is None:
        return None
    try:
        text = json.dumps(provenance, allow_nan=False, ensure_ascii=False)
        copy: dict[str, JsonValue] = json.loads(text.encode("utf-8"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {provenance!r:.80}, which JSON cannot hold: {error}") from None
    return copy


def _relevant_only(query: ScoredQuery) -> ScoredQuery:
    scores = np.sort(query.scores[query.relevant])
    return replace(query, scores=scores, relevant=np.ones(len(scores), dtype=bool))


def _check_guarantee(guarantee: str) -> None:
    if guarantee not in get_args(Guarantee):
        known = " or ".join(map(repr, get_args(Guarantee)))
        raise ValueError(f"guarantee is {guarantee!r}; give {known}")


def _check_scored(scored: list[ScoredQuery]) -> None:
    ids = Counter(query.id for query in scored if query.id is not None)
    twice = next((id for id, times in ids.items() if times > 1), None)
    if twice is not None:
        raise ValueError(
            f"query id {twice!r} occurs {ids[twice]} times; a query enters a calibration once, so "
            "remove the repetitions"
        )
    for query in scored:
        for i, score in enumerate(query.scores):
            if math.isnan(score):
                raise ValueError(
                    f"{query.name}: scores[{i}] is nan, so its snippet could not be scored; score "
                    "it again, or leave the query out"
                )
            if math.isinf(score):
                raise ValueError(
                    f"{query.name}: scores[{i}] is {score}; scores are finite, and a relevant "
                    "snippet that was not retrieved is counted in missed instead"
                )
        if query.weight != 1:
            raise ValueError(
                f"{query.name}: weight is {query.weight:g}; the guarantees of this version weigh "
                "every query alike, so leave weight at 1"
            )
    if not any(query.relevant.any() for query in scored):
        raise ValueError(
            f"none of the {len(scored)} judged queries has a relevant retrieved snippet; judge "
            "queries until some have, or retrieve deeper"
        )


def _warn_if_reversed(scored: list[ScoredQuery]) -> None:
    relevant = np.concatenate([query.scores[query.relevant] for query in scored])
    irrelevant = np.sort(np.concatenate([query.scores[~query.relevant] for query in scored]))
    if len(irrelevant) == 0:
        return
    above = len(irrelevant) - np.searchsorted(irrelevant, relevant, side="right")
    ties = len(irrelevant) - above - np.searchsorted(irrelevant, relevant, side="left")
    auc = float(np.mean(above + ties / 2) / len(irrelevant))
    if auc < 0.5:
        warnings.warn(
            f"relevant snippets score higher than irrelevant ones (AUC {auc:.2f}, below 0.5), but "
            "a score is a nonconformity, lower = more relevant: give a distance, or negate a "
            "similarity",
            UserWarning,
            stacklevel=3,
        )
