"""What a filter decided about the snippets of a query, or the claims of an answer."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.gate import Gated
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.snippets import Retrieved


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


class Alarm:
    """Warns once if far more queries keep none, or all, than of those that calibrated.

    Or, where hits are read, if a retriever, or all, find nothing for far more, or lists are longer
    or shorter.

    Page's cumulative sum, s ← max(0, s + log P₁/P₀) for each query, warns at s ≥ log 10⁴: if a
    share p of all queries does so, once in 10⁴ of them or more seldom (Lorden 1971). Here p is that
    of the calibrating queries, plus two standard errors and at least `LEAST`; P₁ has one half way
    from p to 1. The true share is above p for some small calibrations: in simulations, from 3
    queries on, at most 2 % of them warned of 1,000 queries like their own.
    """

    LEAST = 0.1  # so that it takes six queries

    def __init__(self) -> None:
        self._sums: dict[Any, tuple[float, int, int]] = {}  # s; queries since it was 0, of all

    def add(self, decided: Decision, item: str) -> None:
        """Take the decision about the snippets, or sentences, of one more query.

        By group, a calibration does not tell how many queries of each kept none, so none is taken.
        """
        n, kept = len(decided.keeps), np.count_nonzero(decided.keeps)
        lowest, quiet = decided.calibration.lowest_scores, 0 < kept < n and not self._sums
        if quiet or not n or not lowest or decided.calibration.by_group:
            return
        above = len(lowest) - bisect_right(lowest, decided.threshold)
        # Of a short list, such as a metadata filter leaves, all may well pass.
        lower = kept == n >= (decided.calibration.fewest or 0) and decided.scores.max() < lowest[0]
        self._add("alarm", not kept, above, len(lowest), "none", item)
        self._add("alarm", bool(lower), 0, len(lowest), "all", item)

    def add_list(self, given: Retrieved, read: Sequence[str], c: Calibration) -> None:
        """Take the length of one more query's list, and who found something, or that nobody did.

        By group, a calibration does not tell how many of each there were, so none is taken.
        """
        known: Any = (c.retrieval or {}).get("found_by") or {}
        n, found = len(c.lengths), given.hits.keys()
        if c.by_group or not n:
            return
        self._add("empty", not given, *c.empty_lists, "nothing")
        if not given:
            return
        self._add("shorter", given.depth < c.lengths[0], 0, n, c.lengths[0])
        if c.k is None:
            self._add("longer", given.depth > c.lengths[-1], 0, n, c.lengths[-1])
        for name in [] if found.isdisjoint(known) else sorted({*known} & {*read}):
            self._add("found nothing", name not in found, n - known[name], n, name)

    def _add(self, kind: str, did: bool, before: int, of: int, what: Any, item: str = "") -> None:
        known = self._sums.get((kind, what), (0.0, 0, 0))
        if known[0] == math.inf or not (did or known[0]):
            return  # it was said, or the sum stays 0
        share = (before + 1) / (of + 1)  # with one more query, if it is like them
        p = max(self.LEAST, share + 2 * math.sqrt(share * (1 - share) / (of + 1)))
        if p > 1 - self.LEAST:
            return  # nearly all do so
        s = known[0] + math.log((1 + p) / (2 * p) if did else 0.5)
        m, n = known[1] + did, known[2] + 1
        self._sums[kind, what] = (s, m, n) if s > 0 else (0.0, 0, 0)
        if s >= math.log(1e4):
            self._sums[kind, what] = (math.inf, 0, 0)
            facts = {"what": what, "item": item, "m": m, "n": n, "before": before, "of": of}
            warnings.warn(say(kind, **facts), stacklevel=1)


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
        return self.keeps.nonzero()[0]

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


@dataclass(frozen=True, eq=False)
class Filtered(Decision):
    """What a filter decided about the n snippets of one query, in the retriever's order.

    `kept` and `dropped` are places in this order.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> scored = [ScoredQuery([n], [True]) for n in (1, 2, 3)]
    >>> calibration = Calibration.from_scores(scored, alpha=0.4, scorer="s")
    >>> Filtered(np.array([2.0, 9.0]), np.array([True, False]), calibration).m2
    0.5
    """

    gated: Gated | None = field(default=None, kw_only=True)  # what a gate in front decided
    shadow: bool = field(default=False, kw_only=True)  # nothing is cut: this is what would be
    characters: NDArray[np.intp] | None = field(default=None, kw_only=True, repr=False)  # in shadow

    @property
    def silenced(self) -> bool:
        """Whether a gate is silent on the query, so that all snippets are dropped."""
        return self.gated is not None and self.gated.silent

    def beyond(self, alpha: float) -> Filtered:
        """Return the decision that keeps what is kept at another alpha, and not already here.

        >>> from conformal_retrievers.data.queries import ScoredQuery
        >>> scored = [ScoredQuery([n], [True]) for n in (1, 2, 3)]
        >>> calibration = Calibration.from_scores(scored, alpha=0.4, scorer="s")
        >>> Filtered(np.array([2.0, 9.0]), np.array([True, False]), calibration).beyond(0.1).kept
        array([1])
        """
        done = self.silenced or self.shadow  # in shadow everything is returned
        wider = self.calibration.at(alpha).keep(self.scores, self.group)
        return replace(self, keeps=wider & ~self.keeps & (not done), shadow=False)

    @property
    def m1(self) -> float:
        """1.0 if the threshold passes a snippet, else 0.0; what `on_empty` adds does not count."""
        return float(self.m2 > 0)

    @property
    def m2(self) -> float:
        """The share of the n snippets that the threshold passes; 0.0 for n = 0 or if silenced."""
        passes = self.calibration.keep(self.scores, self.group)
        return float(passes.mean()) if len(passes) and not self.silenced else 0.0


def check_more(calibration: Calibration, more_alpha: float) -> None:
    """Raise ValueError unless a second call at `more_alpha` may keep more than a first call."""
    if not 0 < more_alpha < calibration.alpha:
        raise ValueError(say("more alpha", given=more_alpha, c=calibration))
    calibration.at(more_alpha)


def tool_description(first: str) -> str:
    """Return the description of a search tool, which tells a model when to ask again."""
    return f"{first} {say('search again')}"


def tool_text(texts: Sequence[str], more: bool, again: bool) -> str:
    """Return what a search tool says: texts, or that a first call or one `again` has found none.

    >>> tool_text([], more=True, again=False)
    'Nothing likely was found. Search again with the same question for less likely ones.'
    """
    if texts:
        return "\n\n".join(texts)
    if again:
        return "Nothing more was found for this question."
    if more:
        return "Nothing likely was found. Search again with the same question for less likely ones."
    return "Nothing relevant was found."
