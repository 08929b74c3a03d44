"""A calibration: a frozen value that is saved, loaded, and asked at any alpha."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import checks, file_schema
from conformal_retrievers.calibration.file_schema import Record
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.statement import statement
from conformal_retrievers.calibration.subjects import SENTENCES, SNIPPETS, SUBJECTS, OnUnscorable
from conformal_retrievers.calibration.sufficient_statistics import Reduced
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.data import files
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.data.text import filled
from conformal_retrievers.scoring.scorer import Scorer, relative_to_query


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Thresholds):
    """Thresholds, the statement of what they guarantee, and a file, as `calibrate` makes them.

    Read its `statement`, `save` it, and give it to a filter; `at(alpha)` is the one at another
    risk. Two calibrations are equal if their files are.
    """

    gate: Calibration | None = None

    @classmethod
    def from_scores(
        cls,
        scored_queries: Iterable[ScoredQuery] | Reduced,
        *,
        alpha: float,
        scorer: str | Scorer,
        guarantee: Guarantee = "query-recall",
        delta: float | None = None,
        by_group: bool = False,
        count_missed: bool = False,
        on_unscorable: OnUnscorable = "raise",
        scorer_provenance: Mapping[str, JsonValue] | None = None,
        retrieval: Mapping[str, JsonValue] | None = None,
        labels: Mapping[str, JsonValue] | None = None,
        gate: Calibration | None = None,
    ) -> Calibration:
        """Return the calibration of queries whose snippets, or sentences, are already scored.

        The other parameters are those of `calibrate`.

        Parameters
        ----------
        scored_queries
            A `ScoredQuery` for each judged query, with scores and judgements (n,), or all of them
            as arrays, `ScoredQueries`, or reduced, `Reduced.merged`.
        scorer
            The scorer, or its name if it scores each snippet of a query by itself; filters with a
            scorer of another name are refused.
        scorer_provenance
            What the scorer was made from; written into the file.
        gate
            The calibration of a gate in front of the filter; the snippets of queries that it
            silences have the score +inf.

        Raises
        ------
        ValueError
            For an argument out of range, a repeated id, a relevant score that is NaN, a missing
            group, no relevant snippet, too few queries for delta, or snippets that are whole and
            sentences in one list.
        """
        checks.check_flags(by_group=by_group, count_missed=count_missed)
        if isinstance(scored_queries, Reduced):
            reduced = scored_queries
        else:
            reduced = Reduced.of(ScoredQueries.of(scored_queries, "scored_queries"))
        queries = reduced.queries
        relative = isinstance(scorer, Scorer) and relative_to_query(scorer)
        name = scorer.name if isinstance(scorer, Scorer) else scorer
        subject = SENTENCES if queries.split else SNIPPETS
        checks.check_on_unscorable(on_unscorable, subject)
        checks.check_scorable(reduced, name, on_unscorable)
        checks.check_scored(queries, subject)
        checks.check_type(Calibration | None, "gate.calibration", gate=gate)
        checks.check_silenced(queries, gate is not None)
        checks.warn_if_reversed(reduced.ordered, reduced.pairs, subject)
        unknown = np.isnan(queries.missed) & bool(count_missed)  # which is refused
        known = (queries.sizes > 0) | (queries.missed > 0) | unknown
        return cls(
            alpha,
            guarantee,
            name,
            queries if known.all() else queries.select(known),
            subject=subject,
            delta=delta,
            by_group=bool(by_group),
            count_missed=bool(count_missed),
            n_without_relevant=int(np.count_nonzero(~known)),
            other_ids=tuple(filter(None, queries.ids[~known].tolist())),
            lowest_scores=tuple(np.sort(reduced.lowest_scores).tolist()),
            relative_to_query=relative,
            scorer_provenance=checks.json_copy("scorer_provenance", scorer_provenance),
            retrieval=checks.with_split(retrieval, queries.split),
            labels=checks.json_copy("labels", labels),
            gate=gate,
        )

    def at(self, alpha: float) -> Calibration:
        """Return the same calibration for another alpha. Raises ValueError as `calibrate` does."""
        if alpha == self.alpha:
            return self
        return replace(self, alpha=alpha)

    def guaranteeing(self, guarantee: Guarantee, *, delta: float | None = None) -> Calibration:
        """Return the same scores with another guarantee. Raises ValueError as `calibrate` does."""
        return replace(self, guarantee=guarantee, delta=delta)

    @property
    def statement(self) -> str:
        """The guarantee, the threshold, the assumptions and the numbers, a line each."""
        return statement(self)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return files.checksum(self._fields)

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON, whole or not at all. Raises OSError, naming the path."""
        files.write_envelope(path, self._fields, file_schema.KIND, rows="queries")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path and field, for a file that is broken, newer or changed, or
        whose threshold does not follow from its scores; FileNotFoundError for none, and TypeError
        unless it is given a path.
        """
        checks.check_type(str | Path, "the path of a calibration's file", path=path)
        fields = files.read_envelope(path, file_schema.KIND)
        return cls._of(file_schema.checked(fields, str(path)), str(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        return files.envelope_text(self._fields, rows="queries")

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Return the calibration that `to_json` wrote. Raises ValueError as `load` does."""
        fields = files.parse_envelope(text, "the text", file_schema.KIND)
        return cls._of(file_schema.checked(fields, "the text"), "the text")

    @classmethod
    def _of(cls, stored: Record, where: str) -> Calibration:
        gate = None if stored.gate is None else cls._of(stored.gate, f"{where}: gate")
        try:
            calibration = cls(
                **{name: getattr(stored, name) for name in file_schema.SHARED},
                queries=stored.queries.relevant_only(),
                subject=SUBJECTS[stored.subject],
                other_ids=tuple(stored.other_ids),
                lowest_scores=tuple(sorted(stored.lowest_scores)),
                gate=gate,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        file_schema.check_derived(where, stored, calibration._record)
        return calibration

    @property
    def _fields(self) -> dict[str, Any]:
        without = {"queries"} if self.gate else {"queries", "gate"}
        rows = {"queries": file_schema.Rows(self.queries)}
        return self._record.model_dump(exclude=without) | rows

    @cached_property
    def _record(self) -> Record:
        thresholds = {g or "": self.subject.threshold_name(self.threshold(g)) for g in self.n_units}
        return Record(
            **{name: getattr(self, name) for name in file_schema.SHARED},
            subject=self.subject.name,
            threshold=thresholds if self.by_group else thresholds[""],
            n_queries=self.n_queries,
            n_relevant=self.n_relevant,
            design_effect=round(self.design_effect, 3),
            effective_n=round(self.effective_n, 3),
            other_ids=list(self.other_ids),
            lowest_scores=list(self.lowest_scores),
            gate=None if self.gate is None else self.gate._record,
            queries=self.queries,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.checksum == other.checksum

    def __hash__(self) -> int:
        return hash(self.checksum)

    def __str__(self) -> str:
        """Write the statement, in lines of at most 80 characters."""
        return filled(self.statement)

    def __repr__(self) -> str:
        return (
            f"Calibration({self.subject.name}, {self.guarantee!r}, alpha={self.alpha:g}, "
            f"scorer={self.scorer!r}, {self.n_queries} {self.subject.judged})"
        )
