"""The filter of snippets. It has no state per query: one serves any number of threads and tasks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.calibration.statement import why_none
from conformal_retrievers.calibration.subjects import RETRIEVED, SNIPPETS, OnUnscorable
from conformal_retrievers.data.queries import Snippet, as_scores
from conformal_retrievers.data.sentences import Splitter
from conformal_retrievers.scoring.scorer import (
    Scorer,
    as_taken,
    ascore_snippets,
    check_scorer,
    score_snippets,
)

logger = logging.getLogger("conformal_retrievers")

OnEmpty = Literal["allow", "keep_best", "raise"]
GroupOf = Callable[[str], str | None]  # from a query to its group
AFilter = TypeVar("AFilter", bound="ConformalFilter")
AFiltered = TypeVar("AFiltered", bound="Filtered")
MAX_ALPHAS = 32  # at which one filter is remembered


class Refused(Exception):
    """A filter raises this, as its options say, with its decision as `filtered`."""

    def __init__(self, message: str, filtered: Any) -> None:
        super().__init__(message)
        self.filtered = filtered

    def of(self, calibration: object) -> bool:
        """Return whether a filter with this calibration raised, not one inside its scorer."""
        return getattr(self.filtered, "calibration", None) is calibration

    def __reduce__(self) -> tuple[Any, ...]:  # an exception's own loses `filtered`
        return type(self), (*self.args, self.filtered), self.__dict__


class NothingKept(Refused, LookupError):
    """No snippet of a query, or no claim of an answer, is kept, and `on_empty` is "raise"."""


class Unscorable(Refused, ValueError):
    """A snippet could not be scored, and `on_unscorable` is "raise"; `filtered` keeps it."""


@dataclass(frozen=True, eq=False)
class Decision:
    """What a filter decided about n snippets or claims, in their order."""

    scores: NDArray[np.float64]  # (n,), or relevances of claims; NaN if unscorable
    keeps: NDArray[np.bool_]  # (n,)
    calibration: Calibration = field(repr=False)
    group: str | None = None

    @property
    def threshold(self) -> float:
        """The threshold of the query's group, see `Calibration.threshold`."""
        return self.calibration.threshold(self.group)

    @property
    def kept(self) -> NDArray[np.intp]:
        """The indices of what is kept, ascending."""
        return np.flatnonzero(self.keeps)

    @property
    def dropped(self) -> NDArray[np.intp]:
        """The indices of what is dropped, ascending."""
        return np.flatnonzero(~self.keeps)

    @property
    def unscorable(self) -> NDArray[np.intp]:
        """The indices of what could not be scored, ascending."""
        return np.flatnonzero(np.isnan(self.scores))

    @property
    def p_values(self) -> NDArray[np.float64]:
        """The conformal p-values (n,), see `Calibration.p_values`."""
        return self.calibration.p_values(self.scores, self.group)


class Filtered(Decision):
    """What a filter decided about the n snippets of one query, in the retriever's order.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> scored = [ScoredQuery([n], [True]) for n in (1, 2, 3)]
    >>> calibration = Calibration.from_scores(scored, alpha=0.4, scorer="s")
    >>> Filtered(np.array([2.0, 9.0]), np.array([True, False]), calibration).m2
    0.5
    """

    @property
    def m1(self) -> float:
        """1.0 if the threshold passes a snippet, else 0.0; what `on_empty` adds does not count."""
        return float(self.m2 > 0)

    @property
    def m2(self) -> float:
        """The share of the n snippets that the threshold passes, 0.0 for n = 0."""
        passes = self.calibration.keep(self.scores, self.group)
        return float(passes.mean()) if len(passes) else 0.0


class ConformalFilter:
    """Keeps the snippets whose score is at most the threshold of the calibration.

    The number kept has no limit, which would void the guarantee: limit the retriever instead,
    before calibrating. A filter whose calibration has no finite threshold logs a warning.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> scorer = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> scored = [ScoredQuery([n], [True]) for n in (1, 2, 3, 4)]
    >>> calibration = Calibration.from_scores(scored, alpha=0.4, scorer="length")
    >>> ConformalFilter(scorer, calibration)("q", ["a", "bcdef"]).kept
    array([0])

    Parameters
    ----------
    scorer, calibration
        The scorer that was calibrated with, and its calibration, about snippets.
    on_empty
        If no snippet passes: return none, add the one with the lowest score (which cannot break
        the guarantee), or raise `NothingKept`.
    on_unscorable
        Keep a snippet without a score, which preserves the guarantee, or raise `Unscorable`.
    group_of
        Returns the group of a query from its text, for calibrations by group.

    Raises
    ------
    CalibrationMismatch
        For the calibration of another scorer or subject, such as sentences.
    """

    splitter: Splitter | None = None  # what cuts documents into sentences

    # Not a dataclass: pydantic, in the frameworks' models, would validate each of its fields.
    def __init__(
        self,
        scorer: Scorer,
        calibration: Calibration,
        *,
        on_empty: OnEmpty = "allow",
        on_unscorable: OnUnscorable = "keep",
        group_of: GroupOf | None = None,
    ) -> None:
        if isinstance(scorer, Calibration):
            raise TypeError("scorer is a Calibration; swap the two arguments")
        checks.check_subject(calibration, *RETRIEVED)
        checks.check_split(calibration.split, self.splitter.name if self.splitter else None)
        check_scorer(scorer)
        checks.check_same_scorer(scorer.name, calibrated=calibration.scorer)
        if on_empty not in get_args(OnEmpty):
            raise ValueError(f"on_empty is {on_empty!r}; give one of {get_args(OnEmpty)}")
        checks.check_on_unscorable(on_unscorable, SNIPPETS)
        self.scorer, self.calibration = scorer, calibration
        self.on_empty, self.on_unscorable, self.group_of = on_empty, on_unscorable, group_of
        self._at: dict[float, Any] = {}
        self._warn_if_nothing_drops()

    @classmethod
    def of(
        cls: type[AFilter],
        calibration: Calibration,
        scorers: Scorer | Iterable[Scorer] = (),
        *,
        on_empty: OnEmpty = "allow",
        on_unscorable: OnUnscorable = "keep",
        group_of: GroupOf | None = None,
    ) -> AFilter:
        """Return the filter of a calibration that holds its score, such as a learned one.

        Parameters
        ----------
        calibration
            A calibration about snippets.
        scorers
            The scorers that `needed_scorers` names: one, several, or none.
        on_empty, on_unscorable, group_of
            As in `ConformalFilter`.

        Raises
        ------
        CalibrationMismatch
            If a scorer is missing, naming it, or is another than the calibration's.
        """
        checks.check_subject(calibration, *RETRIEVED)
        return cls(
            scorer_for(calibration, scorers),
            calibration,
            on_empty=on_empty,
            on_unscorable=on_unscorable,
            group_of=group_of,
        )

    def at(self: AFilter, alpha: float) -> AFilter:
        """Return the same filter at another alpha, see `Calibration.at`; it is remembered."""
        if alpha not in self._at:
            if len(self._at) >= MAX_ALPHAS:
                self._at.clear()
            twin = copy(self)
            twin.calibration = self.calibration.at(alpha)
            twin._warn_if_nothing_drops()
            self._at[alpha] = twin
        found: AFilter = self._at[alpha]
        return found

    def __call__(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> Filtered:
        """Score the snippets of a query and decide which to keep.

        Warns if there are more snippets than the retriever was asked for, or none can be scored.
        """
        snippets = as_taken(self.scorer, snippets)
        group = self._checked(query, len(snippets), group)
        return self.decide(score_snippets(self.scorer, query, snippets), group)

    async def acall(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> Filtered:
        """Filter without blocking the event loop."""
        snippets = as_taken(self.scorer, snippets)
        group = self._checked(query, len(snippets), group)
        return self.decide(await ascore_snippets(self.scorer, query, snippets), group)

    def decide(
        self, scores: ArrayLike, group: str | None = None, *, query: str | None = None
    ) -> Filtered:
        """Decide from scores (n,); a `query` is checked, and gives the group, as in a call."""
        s = np.array(as_scores(scores, "scores"))
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score for each snippet, (n,)")
        if query is not None:
            group = self._checked(query, len(s), group)
        return self._decided(Filtered(s, self.calibration.keep(s, group), self.calibration, group))

    def _decided(self, filtered: AFiltered) -> AFiltered:
        """Return a decision by the threshold alone, as the options say."""
        s, lost, item = filtered.scores, filtered.unscorable, self.calibration.subject.item
        self.calibration.warn_if_unknown(filtered.group, f"all {item}s are kept")
        if self.on_unscorable == "raise" and len(lost):
            text = f"{self.scorer.name!r} gave no score to {item}s {lost.tolist()}"
            raise Unscorable(f"{text}. To keep such {item}s, set on_unscorable='keep'", filtered)
        if len(s) and len(lost) == len(s):  # the same text and place: Python shows it once
            text = f"{self.scorer.name!r} could not score any {item} of a query, so all are kept"
            warnings.warn(text, stacklevel=1)
        if filtered.keeps.any() or not len(s) or self.on_empty == "allow":
            return filtered
        best = int(np.argmin(s))  # none is NaN here: it would have been kept
        if self.on_empty == "raise":
            raise NothingKept(
                f"none of {len(s)} {item}s is kept: the lowest score is {s[best]:.6g}, the "
                f"threshold {filtered.threshold:.6g}. Lower alpha, or set on_empty='keep_best'",
                filtered,
            )
        return replace(filtered, keeps=np.arange(len(s)) == best)

    def _checked(self, query: object, n: int, group: str | None) -> str | None:
        """Check a query and its number of snippets, and return its group."""
        if not isinstance(query, str) or not query.strip():
            raise ValueError(f"query is {query!r}; give the text of the query")
        k = self.calibration.k
        if k is not None and n > k:
            warnings.warn(  # the same text and place: Python shows it once
                f"more snippets than k = {k}, the depth of the calibration: the guarantee does not "
                f"cover deeper ones. Retrieve {k}, or calibrate at the greater depth",
                stacklevel=1,
            )
        return self.group_of(query) if group is None and self.group_of is not None else group

    def _warn_if_nothing_drops(self) -> None:
        calibration = self.calibration
        if calibration.keeps_everything:
            why = why_none(calibration, next(iter(calibration.n_units)))
            logger.warning("this filter drops nothing: %s", why)

    def __repr__(self) -> str:
        c = self.calibration
        return f"{type(self).__name__}({self.scorer.name!r}, alpha={c.alpha:g}, {c.guarantee!r})"
