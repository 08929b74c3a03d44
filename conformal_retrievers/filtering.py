"""The filter: a scorer and its calibration; a snippet is kept iff its score ≤ the threshold.

    filtered = ConformalFilter(scorer, calibration)(query, snippets)
    [snippets[i] for i in filtered.kept]

An uncalibrated filter cannot be built, and nothing about a query is held on the filter, so that one
filter serves any number of threads and tasks.
"""

from __future__ import annotations

import logging
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import (
    CalibrationMismatch,
    check_same_scorer,
    check_subject,
)
from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.scoring.scorer import (
    Scorer,
    ascore_snippets,
    check_scorer,
    score_snippets,
)

__all__ = [
    "CalibrationMismatch",
    "ConformalFilter",
    "Decision",
    "Filtered",
    "NothingKept",
    "Refused",
    "Unscorable",
]

logger = logging.getLogger("conformal_retrievers")

OnEmpty = Literal["allow", "keep_best", "raise"]
OnUnscorable = Literal["keep", "raise"]
MOST_ALPHAS = 32  # that one filter remembers itself at
MOST_GROUPS = 100  # unknown to the calibration, that one filter tells of


class Refused(Exception):
    """A filter decided, and raises instead of passing anything on, as it was told to.

    `filtered` is what was decided all the same: a `Filtered`, of a filter of claims a
    `FilteredClaims`, and of one of answers a `FilteredAnswer`.
    """

    def __init__(self, message: str, filtered: Any) -> None:
        super().__init__(message)
        self.filtered = filtered

    def of(self, calibration: object) -> bool:
        """Return whether a filter with this calibration decided, and not one inside its scorer."""
        return getattr(self.filtered, "calibration", None) is calibration

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception's own would make the copy of the message alone.
        return type(self), (*self.args, self.filtered), self.__dict__


class NothingKept(Refused, LookupError):
    """No snippet of a query, or claim of an answer, is kept, and the filter was told to raise."""


class Unscorable(Refused, ValueError):
    """A snippet of a query could not be scored, and the filter was told to raise.

    Its `filtered` keeps that snippet, as the filter does that is not told to.
    """


class Thresholds(Protocol):
    """A calibration of snippets or of claims, as far as a decision asks it."""

    def threshold(self, group: str | None = None) -> float:
        """Return the threshold of a group."""

    def p_values(self, scores: ArrayLike, /, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (n,)."""


class Decision(ABC):
    """What a filter decided about n things of one query, in their order; `keeps` (n,) pass on."""

    keeps: NDArray[np.bool_]
    calibration: Thresholds
    group: str | None

    @property
    @abstractmethod
    def _values(self) -> NDArray[np.float64]:
        """What the n things were decided by, NaN for what could not be scored."""

    @property
    def threshold(self) -> float:
        """The threshold of the query's group, infinite where it decides all alike."""
        return self.calibration.threshold(self.group)

    @property
    def kept(self) -> NDArray[np.intp]:
        """The places of what is kept, ascending."""
        return np.flatnonzero(self.keeps)

    @property
    def dropped(self) -> NDArray[np.intp]:
        """The places of what is dropped, ascending."""
        return np.flatnonzero(~self.keeps)

    @property
    def unscorable(self) -> NDArray[np.intp]:
        """The places of what could not be scored, ascending."""
        return np.flatnonzero(np.isnan(self._values))

    @property
    def p_values(self) -> NDArray[np.float64]:
        """The conformal p-value of each (n,), see the calibration's `p_values`."""
        return self.calibration.p_values(self._values, self.group)


@dataclass(frozen=True, eq=False)
class Filtered(Decision):
    """What a filter decided about the n snippets of one query, in the retriever's order.

    `scores` (n,) holds NaN for what could not be scored; `keeps` (n,) says what passes on. The
    `threshold` is the largest score that is kept, +inf where everything is.
    """

    scores: NDArray[np.float64]
    keeps: NDArray[np.bool_]
    calibration: Calibration = field(repr=False)
    group: str | None = None

    @property
    def m1(self) -> float:
        """1.0 if the threshold passes any snippet, else 0.0; before any is added.

        Its mean over queries is m1 of the factual-confidence paper (arXiv 2605.05244, section 3.2).
        """
        return float(self._passes.any())

    @property
    def m2(self) -> float:
        """The share of the n snippets that pass; before any is added, and 0.0 of none."""
        return float(self._passes.mean()) if len(self.scores) else 0.0

    @property
    def _passes(self) -> NDArray[np.bool_]:
        return self.calibration.keep(self.scores, self.group)

    @property
    def _values(self) -> NDArray[np.float64]:
        return self.scores


class ConformalFilter:
    """Keeps the snippets whose score is at most the threshold of the calibration.

    `on_empty` says what happens when no snippet passes: "allow" returns none, "keep_best" adds the
    one with the lowest score (which only enlarges the set, so the guarantee stands), "raise" raises
    `NothingKept`. `on_unscorable` says what happens to a snippet that cannot be scored: "keep"
    passes it on, the only way that preserves the guarantee, "raise" raises `Unscorable`, a
    ValueError. There is no limit on the number kept: it would void the guarantee, so limit the
    retriever instead, before calibrating.

    `group_of` tells the group of a query from its text, for calibrations by group whose callers do
    not name it.

    A calibration that promises nothing at any threshold, of too few queries, is said to `logging`,
    and so is, once each, a group that a calibration by group does not know.
    Raises `CalibrationMismatch` if the calibration was made with a scorer of another name, and
    ValueError for options that are unknown or do not go together.
    """

    scorer: Scorer
    calibration: Calibration
    on_empty: OnEmpty
    on_unscorable: OnUnscorable
    group_of: Callable[[str], str | None] | None
    _at: dict[float, ConformalFilter]
    _unknown: set[str | None]

    def __init__(
        self,
        scorer: Scorer,
        calibration: Calibration,
        *,
        on_empty: OnEmpty = "allow",
        on_unscorable: OnUnscorable = "keep",
        group_of: Callable[[str], str | None] | None = None,
    ) -> None:
        if not isinstance(calibration, Calibration):
            raise TypeError(
                f"calibration is {calibration!r:.80}; give a Calibration, from calibrate(...) or "
                "Calibration.load(path)"
            )
        check_subject(calibration.subject, SNIPPETS)
        check_scorer(scorer)
        check_same_scorer(scorer.name, calibrated=calibration.scorer)
        for name, value, known in (
            ("on_empty", on_empty, get_args(OnEmpty)),
            ("on_unscorable", on_unscorable, get_args(OnUnscorable)),
        ):
            if value not in known:
                raise ValueError(f"{name} is {value!r}; give one of {', '.join(map(repr, known))}")
        self.__dict__.update(
            scorer=scorer,
            calibration=calibration,
            on_empty=on_empty,
            on_unscorable=on_unscorable,
            group_of=group_of,
            _at={},
            _unknown=set(),
        )
        if all(calibration.threshold(group) == math.inf for group in calibration.n_units):
            logger.warning("this filter drops nothing: %s", calibration.statement)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        # Scorer and calibration were checked against each other, and threads share the filter.
        raise AttributeError(f"{name} of a filter cannot be set; build another filter")

    def at(self, alpha: float) -> ConformalFilter:
        """Return the same filter at another alpha, see `Calibration.at`; made once for each alpha.

        Raises ValueError where alpha is not in (0, 1), or cannot be had with the calibration.
        """
        if alpha not in self._at:
            if len(self._at) >= MOST_ALPHAS:
                self._at.clear()
            self._at[alpha] = ConformalFilter(
                self.scorer,
                self.calibration.at(alpha),
                on_empty=self.on_empty,
                on_unscorable=self.on_unscorable,
                group_of=self.group_of,
            )
            self._at[alpha].__dict__["_unknown"] = self._unknown  # told once for all alphas
        return self._at[alpha]

    def __call__(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> Filtered:
        """Score the snippets of a query and decide which to keep; no snippets, no scoring.

        Warns of more snippets than the calibration's retriever was asked for, and where not one of
        them can be scored. Raises ValueError where the query is missing or blank, and what `decide`
        raises.
        """
        snippets = as_snippets(snippets)
        self._check(query, len(snippets))
        scores = score_snippets(self.scorer, query, snippets)
        return self.decide(scores, self._group(query, group))

    async def acall(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> Filtered:
        """Do what calling the filter does, without blocking the event loop."""
        snippets = as_snippets(snippets)
        self._check(query, len(snippets))
        scores = await ascore_snippets(self.scorer, query, snippets)
        return self.decide(scores, self._group(query, group))

    def _check(self, query: object, n: int) -> None:
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"query is {query!r}; give the question to score snippets against")
        k = self.calibration.k
        if k is not None and n > k:
            # One text and one place, so that Python says it once.
            warnings.warn(
                f"more snippets than k = {k}, the depth that was calibrated at: deeper relevant "
                f"snippets are not what the guarantee is about; retrieve {k}, or calibrate deeper",
                stacklevel=1,
            )

    def _group(self, query: str, group: str | None) -> str | None:
        return self.group_of(query) if group is None and self.group_of is not None else group

    def decide(
        self, scores: ArrayLike, group: str | None = None, *, query: str | None = None
    ) -> Filtered:
        """Decide from scores (n,) that are at hand already.

        With `query`, its text is checked and its group told as where the filter is called. Raises
        `Unscorable` for unscorable snippets, and `NothingKept` where none passes, if the filter was
        told to.
        """
        s = np.array(scores, dtype=np.float64)
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score a snippet, (n,)")
        if query is not None:
            self._check(query, len(s))
            group = self._group(query, group)
        self._tell_unknown(group)
        keeps = self.calibration.keep(s, group)
        filtered = Filtered(s, keeps, self.calibration, group)
        if self.on_unscorable == "raise" and len(filtered.unscorable):
            raise Unscorable(
                f"snippets {filtered.unscorable.tolist()} could not be scored by "
                f"{self.scorer.name!r}; filter with on_unscorable='keep' to pass them on",
                filtered,
            )
        if len(s) and len(filtered.unscorable) == len(s):
            # One text and one place, so that Python says it once.
            warnings.warn(
                f"not one snippet of a query could be scored by {self.scorer.name!r}, so that all "
                "are kept: the filter drops nothing while that is so",
                stacklevel=1,
            )
        return filtered if keeps.any() or not len(s) else self._when_empty(filtered)

    def _tell_unknown(self, group: str | None) -> None:
        """Log a group that the calibration does not know, once each, up to `MOST_GROUPS`."""
        c = self.calibration
        if not c.by_group or c.threshold(group) < math.inf or group in self._unknown:
            return
        known = c.n_units
        if group is not None and (c.merge_groups or {}).get(group, group) in known:
            return  # known, and too small for a threshold: the statement says so
        if len(self._unknown) < MOST_GROUPS:
            self._unknown.add(group)
            logger.warning(
                "group is %r, which the calibration does not know, so that everything is kept of "
                "such queries; it knows %s",
                group,
                ", ".join(map(repr, known)),
            )

    def _when_empty(self, filtered: Filtered) -> Filtered:
        scores = filtered.scores
        best = int(np.argmin(scores))  # no score is NaN here: that snippet would have been kept
        if self.on_empty == "raise":
            raise NothingKept(
                f"none of {len(scores)} snippets is kept: the best score is {scores[best]:.6g}, "
                f"the threshold {filtered.threshold:.6g}",
                filtered,
            )
        if self.on_empty == "keep_best":
            return replace(filtered, keeps=np.asarray(np.arange(len(scores)) == best))
        return filtered

    def __repr__(self) -> str:
        c = self.calibration
        return f"ConformalFilter({self.scorer.name!r}, alpha={c.alpha:g}, {c.guarantee!r})"


def open_filter(
    calibration: str | Path | Calibration,
    scorer: Scorer,
    *,
    alpha: float | None = None,
    on_empty: OnEmpty = "allow",
    on_unscorable: OnUnscorable = "keep",
) -> ConformalFilter:
    """Return the filter of a calibration, or of the file of one.

    Parameters
    ----------
    calibration
        The calibration, or the path of its file.
    scorer
        The scorer that was calibrated with.
    alpha
        Another risk than the calibration's, in (0, 1).
    on_empty, on_unscorable
        As in `ConformalFilter`.

    Raises
    ------
    CalibrationMismatch
        If the calibration was made with another scorer.
    ValueError
        If the file is not a calibration, or the calibration cannot be used at `alpha`.
    """
    if not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    if alpha is not None:
        calibration = calibration.at(alpha)
    return ConformalFilter(scorer, calibration, on_empty=on_empty, on_unscorable=on_unscorable)
