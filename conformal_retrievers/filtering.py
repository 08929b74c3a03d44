"""The filter of snippets. It has no state per query: one serves any number of threads and tasks."""

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast, get_args

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Self, Unpack

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.gate import (
    Gate,
    Gated,
    gate_for,
    scorer_and_gate,
    statement_with,
)
from conformal_retrievers.calibration.statement import why_none
from conformal_retrievers.calibration.subjects import ANSWERS, FILTERED, SNIPPETS, OnUnscorable
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.checks import as_flag
from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.data.sentences.cutting import Splitter
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.results import Alarm, Filtered, NothingKept, Unscorable
from conformal_retrievers.scoring.hits import lacks, retrievers_of
from conformal_retrievers.scoring.query_scorer import QueryScorer
from conformal_retrievers.scoring.scorer import (
    Scorer,
    Scores,
    ascore_snippets,
    check_scorer,
    same_from,
    score_snippets,
    with_parts,
)
from conformal_retrievers.scoring.shared_scores import ashared, at_once, shared

logger = logging.getLogger("conformal_retrievers")

OnEmpty = Literal["allow", "keep_best", "raise"]
GroupOf = Callable[[str], str | None]  # from a query to its group
AFiltered = TypeVar("AFiltered", bound=Filtered)
MAX_TWINS = 32  # of a filter, which are remembered


class FilterOptions(TypedDict, total=False):
    """The options of a filter, as in `ConformalFilter`."""

    on_empty: OnEmpty
    on_unscorable: OnUnscorable
    group_of: GroupOf | None
    gate: Gate | str | Path | None
    shadow: bool


class RetrievalFilter(ABC, Generic[AFiltered]):
    """What `ConformalFilter` and `SentenceFilter` share: they differ in what they score."""

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
        gate: Gate | str | Path | None = None,
        shadow: bool = False,
    ) -> None:
        if isinstance(scorer, Calibration):
            raise TypeError("scorer is a Calibration; swap the two arguments")
        checks.check_subject(calibration, *FILTERED)
        checks.check_split(calibration.split, self.splitter.name if self.splitter else None)
        check_scorer(scorer)
        checks.check_same_scorer(scorer.name, calibrated=calibration.scorer)
        if on_empty not in get_args(OnEmpty):
            raise ValueError(f"on_empty is {on_empty!r:.80}; give one of {get_args(OnEmpty)}")
        checks.check_on_unscorable(on_unscorable, SNIPPETS)
        if group_of is not None and not callable(group_of):
            raise TypeError(f"group_of is {group_of!r:.80}; give a function from query to group")
        self.gate = gate_for(calibration, gate, with_parts(scorer))
        self.scorer, self.calibration = scorer, calibration
        self.on_empty, self.on_unscorable, self.group_of = on_empty, on_unscorable, group_of
        self.shadow = as_flag("a filter", "shadow", shadow)  # the text "false" would be true
        self._twins: dict[float, Any] = {}  # by alpha, or by the id of a gate
        self._same_from, self._alarm = same_from(scorer), Alarm()
        self._read = retrievers_of(scorer)
        self._warn_if_nothing_drops()

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        scorers: Scorer | Iterable[Scorer | QueryScorer] = (),
        **options: Unpack[FilterOptions],
    ) -> Self:
        """Return the filter of a calibration that holds its score, such as a learned one.

        `scorers` are those that `needed_scorers` names: one, several, or none. The options are
        `on_empty`, `on_unscorable`, `group_of`, `gate` and `shadow`. Raises `CalibrationMismatch`
        if a scorer is missing, naming it, or is another than the calibration's.
        """
        scorer, options["gate"] = scorer_and_gate(calibration, scorers, options.get("gate"))
        return cls(scorer, calibration, **options)

    def at(self, alpha: float) -> Self:
        """Return the same filter at another alpha, see `Calibration.at`; it is remembered.

        Warns of an alpha above 0.5, which looks like the share to be kept.
        """
        twin = self._twin(alpha, lambda: {"calibration": self.calibration.at(alpha)})
        checks.warn_if_large(alpha=alpha)
        return twin

    def with_gate(self, gate: Gate | None) -> Self:
        """Return the same filter with a gate in front, or with its own for None; it is remembered.

        Raises `CalibrationMismatch` for another gate than the one that it was calibrated with.
        """
        if gate is None or gate is self.gate:
            return self
        return self._twin(id(gate), lambda: {"gate": gate_for(self.calibration, gate)})

    def _twin(self, key: float, changed: Callable[[], dict[str, Any]]) -> Self:
        """Return the same filter with changes, which counts its own queries; it is remembered."""
        if (twin := self._twins.get(key)) is None:
            if len(self._twins) >= MAX_TWINS:
                self._twins.clear()
            twin = copy(self)
            vars(twin).update(changed(), _twins={}, _alarm=Alarm())
            twin._warn_if_nothing_drops()
            self._twins[key] = twin
        return cast(Self, twin)

    def __call__(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> AFiltered:
        """Score the snippets of a query and decide which to keep: `kept` of the result.

        Give all snippets that the retriever returned, in its order.

        If one of the retrievers that the scorer reads failed, or the query is blank, no snippet can
        be scored; a gate lets it pass. None can be scored either in a list clearly shorter than any
        that was calibrated, if the scorer compares the snippets of a list. Warns of that, of more
        snippets than the retriever was asked for, of ranks that are missing between others, if none
        were where it was calibrated, of scores where the retriever gave none, of less than half as
        many snippets as in nearly all lists that calibrated, if an id occurs twice or none can be
        scored, and if far more queries than of the judged ones keep none, or all, lack a
        retriever's hits, or have longer lists than all of these, or shorter ones.
        """
        given, n, decide = self._opened(snippets)
        group = self._checked(query, given, n, group)
        scores, gated = self._scored(query, given, group)
        return self._with_characters(decide(scores, group, gated=gated), given)

    async def acall(
        self, query: str, snippets: Iterable[Snippet | str], group: str | None = None
    ) -> AFiltered:
        """Filter without blocking the event loop."""
        given, n, decide = self._opened(snippets)
        group = self._checked(query, given, n, group)
        scores, gated = await self._ascored(query, given, group)
        return self._with_characters(decide(scores, group, gated=gated), given)

    @abstractmethod
    def _opened(
        self, snippets: Iterable[Snippet | str]
    ) -> tuple[Retrieved, int, Callable[..., AFiltered]]:
        """Return what is scored, the number of what was retrieved, and what decides on scores."""

    @property
    def deciding(self) -> tuple[Self | Gate, ...]:
        """The filter, and the gate in front if there is one."""
        return (self,) if self.gate is None else (self, self.gate)

    @property
    def statement(self) -> str:
        """The calibration's statement, with that of a gate which it was calibrated without."""
        return statement_with(self.calibration, self.gate)

    def _scored(
        self, query: str, snippets: Retrieved, group: str | None
    ) -> tuple[Scores, Gated | None]:
        """Return the scores of the snippets, and what the gate decides."""
        if self.gate is None:
            return self._score(query, snippets, group), None
        with shared(snippets) as given:
            return self._score(query, given, group), self.gate(query, given, group)

    def _score(self, query: str, snippets: Retrieved, group: str | None) -> Scores:
        if lacks(self.scorer, query, snippets):  # scores without its hits lose what it alone finds
            return np.full(len(snippets), np.nan)
        return self._meant(score_snippets(self.scorer, query, snippets), snippets, group)

    async def _ascored(
        self, query: str, snippets: Retrieved, group: str | None
    ) -> tuple[Scores, Gated | None]:
        """Return the scores of the snippets, and what the gate decides at the same time."""
        if self.gate is None:
            return await self._ascore(query, snippets, group), None
        async with ashared(snippets) as given:
            both = self._ascore(query, given, group), self.gate.acall(query, given, group)
            return await at_once(*both)

    async def _ascore(self, query: str, snippets: Retrieved, group: str | None) -> Scores:
        if lacks(self.scorer, query, snippets):
            return np.full(len(snippets), np.nan)
        return self._meant(await ascore_snippets(self.scorer, query, snippets), snippets, group)

    def _meant(self, scores: Scores, snippets: Retrieved, group: str | None) -> Scores:
        """Return scores (n,), NaN where they mean something else than those of the calibration."""
        c = self.calibration
        if c.fewest is None or (n := snippets.depth) >= c.fewest:
            return scores
        passes = bool(c.keep(scores, group).any())
        # In a far shorter list, nothing can stand out from the others as much as in long ones.
        if len(scores) >= self._same_from and (passes or not self._same_from or 2 * n >= c.fewest):
            checks.warn_if_shallow(n, 0 if c.by_group else c.fewest)  # a group's may be short
            return scores
        short = c.is_short(n, passes=passes)
        return np.full(len(scores), np.nan) if short else scores

    def _with_characters(self, filtered: AFiltered, given: Retrieved) -> AFiltered:
        if not self.shadow:
            return filtered
        return replace(filtered, characters=np.array([*map(len, given.texts)], dtype=np.intp))

    def _decided(self, filtered: AFiltered) -> AFiltered:
        """Return a decision by the threshold alone, as the options say."""
        filtered = replace(filtered, shadow=True) if self.shadow else filtered
        s, item = filtered.scores, self.calibration.subject.item
        if (filtered.gated is None) != (self.gate is None):
            raise ValueError(say("gated", gated=filtered.gated, gate=self.gate))
        effect = f"all {item}s are kept; group_of= gets a query's group from its text"
        self.calibration.warn_if_unknown(filtered.group, effect)
        if filtered.silenced:
            return replace(filtered, keeps=np.zeros(len(s), dtype=bool))
        n_lost = np.count_nonzero(np.isnan(s))
        if not n_lost and not self.calibration.keeps_everything:
            self._alarm.add(filtered, item)
        if n_lost and self.on_unscorable == "raise" and not self.shadow:
            text = f"{self.scorer.name!r} gave no score to {item}s {filtered.unscorable.tolist()}"
            raise Unscorable(f"{text}. To keep such {item}s, set on_unscorable='keep'", filtered)
        if n_lost and n_lost == len(s):  # the same text and place: Python shows it once
            text = f"{self.scorer.name!r} could not score any {item} of a query, so all are kept"
            warnings.warn(text, stacklevel=1)
        allowed = self.on_empty == "allow" or (self.on_empty == "raise" and self.shadow)
        if allowed or not len(s) or filtered.keeps.any():
            return filtered
        best = int(np.argmin(s))  # none is NaN here: it would have been kept
        if self.on_empty == "raise":
            facts = {"n": len(s), "item": item, "lowest": s[best], "threshold": filtered.threshold}
            raise NothingKept(say("none kept", **facts), filtered)
        if self.calibration.subject == ANSWERS:  # whose kept sets do not part equal scores
            return replace(filtered, keeps=s == s[best])
        return replace(filtered, keeps=np.arange(len(s)) == best)

    def _checked(self, query: str, given: Retrieved, n: int, group: str | None) -> str | None:
        """Check a query and what was retrieved, and return its group."""
        c = self.calibration
        checks.check_type(str, "the text of the query", query=query)
        checks.warn_if_deeper(n, c.k)
        checks.warn_if_gaps(given, c.retrieval)
        checks.warn_if_scored(given, c.retrieval, self.scorer)
        if self._read and not given.failed:
            self._alarm.add_list(given, self._read, c)
        return self.group_of(query) if group is None and self.group_of is not None else group

    def _warn_if_nothing_drops(self) -> None:
        if self.calibration.keeps_everything:
            why = why_none(self.calibration, next(iter(self.calibration.n_units)))
            behind = " that its gate lets pass" if self.gate else ""
            logger.warning("this filter drops nothing%s: %s", behind, why)

    def __repr__(self) -> str:
        c = self.calibration
        return f"{type(self).__name__}({self.scorer.name!r}, alpha={c.alpha:g}, {c.guarantee!r})"


class ConformalFilter(RetrievalFilter[Filtered]):
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
        The scorer of the calibration, and the calibration, about snippets.
    on_empty
        If no snippet passes: return none, add the one with the lowest score (which cannot break
        the guarantee), or raise `NothingKept`.
    on_unscorable
        Keep a snippet without a score, which preserves the guarantee, or raise `Unscorable`. None
        has a score if a retriever that the scorer reads failed.
    group_of
        Returns the group of a query from its text, for calibrations by group.
    gate
        Decides before the filter whether anything is returned; a `Gate`, or its file, by default
        that of the calibration. One that it was not calibrated with loses up to its alpha more.
    shadow
        Cut and raise nothing, while decisions, events and logs have what these options would keep.

    Raises
    ------
    CalibrationMismatch
        For the calibration of another scorer or subject, such as sentences, and for another gate
        than the one that it was calibrated with.
    """

    def _opened(
        self, snippets: Iterable[Snippet | str]
    ) -> tuple[Retrieved, int, Callable[..., Filtered]]:
        given = as_snippets(snippets)
        checks.warn_if_twice(given)
        return given, len(given), self.decide

    def decide(
        self, scores: ArrayLike, group: str | None = None, *, gated: Gated | None = None
    ) -> Filtered:
        """Decide from scores (n,), and from what the gate decided, which needs the snippets.

        Raises ValueError if the filter has a gate and `gated` is missing, or the other way round.
        """
        s = np.array(as_scores(scores, "scores"))
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score for each snippet, (n,)")
        keeps = self.calibration.keep(s, group)
        return self._decided(Filtered(s, keeps, self.calibration, group, gated=gated))
