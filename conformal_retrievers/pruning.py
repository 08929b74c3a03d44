"""The filter of sentences: it cuts documents, and keeps of each the sentences below the threshold.

    kept      the sentences with a score ≤ threshold, and `neighbours` on either side of each
    returned  of each document with a kept sentence, the passage of these; other documents are gone

All sentences of all documents of a query are scored together. Neighbours only add, so the guarantee
stands. Like any filter, it has no state per query.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gate import Gate, Gated, gate_for
from conformal_retrievers.calibration.scorer import needed_scorers, scorer_for
from conformal_retrievers.calibration.subjects import RETRIEVED, OnUnscorable
from conformal_retrievers.data.queries import Snippet, as_scores
from conformal_retrievers.data.sentences import (
    Passage,
    Sentences,
    Split,
    Splitter,
    cut,
    passages,
    splitter,
    with_neighbours,
)
from conformal_retrievers.decisions import Filtered
from conformal_retrievers.filtering import ConformalFilter, GroupOf, OnEmpty
from conformal_retrievers.scoring.answerability import QueryScorer
from conformal_retrievers.scoring.scorer import Scorer

ScorersOf = Callable[[Sequence[str]], Iterable[Scorer | QueryScorer]]  # from needed names


@dataclass(frozen=True, eq=False)
class Pruned(Filtered):
    """What a filter decided about the m sentences of a query's documents, in order.

    `scores` and `keeps` are of sentences (m,); `keeps` has the neighbours too, m1 and m2 do not.
    """

    sentences: Sentences = field(kw_only=True, repr=False)

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """What is kept of each document with a kept sentence, in the documents' order."""
        return tuple(passages(self.sentences, self.keeps))


class SentenceFilter(ConformalFilter):
    """Keeps the sentences of documents whose score is at most the threshold of the calibration.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> scorer = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> name = splitter("sentences").name
    >>> scored = [ScoredQuery([n], [True], split=name) for n in (1, 5, 9, 20)]
    >>> calibration = Calibration.from_scores(scored, alpha=0.4, scorer="length")
    >>> pruned = SentenceFilter(scorer, calibration)("q", ["One two. Here is more. Six."])
    >>> pruned.keeps, pruned.passages[0].text
    (array([ True, False,  True]), 'One two. … Six.')

    Parameters
    ----------
    scorer, calibration
        The scorer that was calibrated with, and its calibration, about sentences.
    split
        "sentences" or a function from a text to the ranges of its sentences, as in the calibration.
    neighbours
        How many sentences on either side of a kept one are kept with it. One helps where a
        sentence needs the one before: "She is the champion" does not say who.
    on_empty, on_unscorable, group_of, gate
        As in `ConformalFilter`, of sentences: a gate reads these, too.

    Raises
    ------
    CalibrationMismatch
        For a calibration of another scorer, of whole snippets, or of another splitter or version.
    """

    splitter: Splitter

    def __init__(
        self,
        scorer: Scorer,
        calibration: Calibration,
        split: Split = "sentences",
        *,
        neighbours: int = 0,
        on_empty: OnEmpty = "allow",
        on_unscorable: OnUnscorable = "keep",
        group_of: GroupOf | None = None,
        gate: Gate | None = None,
    ) -> None:
        if type(neighbours) is not int or neighbours < 0:  # True is an int
            raise ValueError(f"neighbours is {neighbours!r}; give a whole number, 0 or more")
        self.splitter, self.neighbours = splitter(split), neighbours
        super().__init__(
            scorer,
            calibration,
            on_empty=on_empty,
            on_unscorable=on_unscorable,
            group_of=group_of,
            gate=gate,
        )

    def __call__(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        group: str | None = None,
        *,
        failed: Collection[str] = (),
    ) -> Pruned:
        """Cut the documents of a query, score their sentences and decide which to keep.

        Warns if there are more documents than the retriever was asked for, or no sentence can be
        scored.
        """
        sentences = cut(snippets, self.splitter)
        group = self._checked(query, len(sentences.documents), group)
        scores, gated = self._scored(query, sentences.snippets, group, failed)
        return self.decide_on(sentences, scores, group, gated=gated)

    async def acall(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        group: str | None = None,
        *,
        failed: Collection[str] = (),
    ) -> Pruned:
        """Filter without blocking the event loop."""
        sentences = cut(snippets, self.splitter)
        group = self._checked(query, len(sentences.documents), group)
        scores, gated = await self._ascored(query, sentences.snippets, group, failed)
        return self.decide_on(sentences, scores, group, gated=gated)

    def decide_on(
        self,
        sentences: Sentences,
        scores: ArrayLike,
        group: str | None = None,
        *,
        gated: Gated | None = None,
    ) -> Pruned:
        """Decide from the scores (m,) of sentences, and from what the gate decided."""
        checks.check_split(self.splitter.name, sentences.split, "the sentences")
        s = np.array(as_scores(scores, "scores"))
        if s.shape != (len(sentences.snippets),):
            raise ValueError(
                f"scores has shape {s.shape} for {len(sentences.snippets)} sentences; give one for "
                "each"
            )
        c = self.calibration
        decided = self._decided(
            Pruned(s, c.keep(s, group), c, group, sentences=sentences, gated=gated)
        )
        return replace(decided, keeps=with_neighbours(sentences, decided.keeps, self.neighbours))

    def decide(
        self,
        scores: ArrayLike,
        group: str | None = None,
        *,
        query: str | None = None,
        gated: Gated | None = None,
    ) -> Filtered:
        """Raise TypeError: scores alone do not say which documents their sentences are of."""
        raise TypeError("a SentenceFilter needs the sentences of the scores; use decide_on")


def open_filter(
    calibration: str | Path | Calibration,
    scorers: Scorer | Iterable[Scorer | QueryScorer] | ScorersOf = (),
    *,
    alpha: float | None = None,
    split: Split | None = None,
    neighbours: int = 0,
    on_empty: OnEmpty = "allow",
    on_unscorable: OnUnscorable = "keep",
    group_of: GroupOf | None = None,
    gate: Gate | str | Path | None = None,
) -> ConformalFilter:
    """Return the filter of a calibration or of its file, at another `alpha` if one is given.

    With `split` it is a `SentenceFilter`.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> from conformal_retrievers.scoring import RetrievalScorer
    >>> scorer = RetrievalScorer("store", higher_is_better=False)
    >>> scored = [ScoredQuery([n], [True]) for n in (1, 2, 3)]
    >>> calibration = Calibration.from_scores(scored, alpha=0.3, scorer=scorer.name)
    >>> open_filter(calibration, scorer, alpha=0.5).calibration.threshold()
    2.0

    Parameters
    ----------
    calibration
        A calibration, or the path of its file.
    scorers
        As in `ConformalFilter.of`; or a function that returns them, from the names of those that
        calibration and gate need.
    on_empty, on_unscorable, group_of
        As in `ConformalFilter.of`.
    alpha
        Replaces the calibration's own, see `Calibration.at`.
    split, neighbours
        As in `SentenceFilter`; without `split`, snippets stay whole.
    gate
        As in `ConformalFilter`; the path of a gate's file is one, too.

    Raises
    ------
    CalibrationMismatch, ValueError
        As `ConformalFilter.of`, `SentenceFilter`, `Calibration.load` and `Calibration.at`; and for
        `neighbours` without `split`.
    """
    if not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    if alpha is not None:
        calibration = calibration.at(alpha)
    needed = needed_scorers(calibration)
    if isinstance(gate, str | Path):
        of_gate = Calibration.load(gate)
        needed += needed_scorers(of_gate)
    if callable(scorers) and not isinstance(scorers, Scorer):
        scorers = scorers(needed)
    given = [scorers] if isinstance(scorers, Scorer) else [*scorers]
    if isinstance(gate, str | Path):
        gate = Gate.of(of_gate, given)
    more: dict[str, Any] = {
        "on_empty": on_empty,
        "on_unscorable": on_unscorable,
        "group_of": group_of,
    }
    if split is None:
        if neighbours:
            raise ValueError(
                f"neighbours is {neighbours!r} without split; give split='sentences' too, or leave "
                "it out"
            )
        return ConformalFilter.of(calibration, given, gate=gate, **more)
    checks.check_subject(calibration, *RETRIEVED)
    gate = gate_for(calibration, gate, given)
    scorer = scorer_for(calibration, given, gate.calibration if gate else None)
    return SentenceFilter(scorer, calibration, split, neighbours=neighbours, gate=gate, **more)
