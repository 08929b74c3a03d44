"""The filter of sentences: it cuts documents, and keeps of each the sentences below the threshold.

    kept      the sentences with a score ≤ threshold, and `neighbours` on either side of each
    returned  of each document with a kept sentence, the passage of these; other documents are gone

All sentences of all documents of a query are scored together. Neighbours only add, so the guarantee
stands. Like any filter, it has no state per query.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.gate import Gate, Gated, scorer_and_gate
from conformal_retrievers.calibration.scorer import needed_scorers
from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.data.sentences.cutting import (
    Passage,
    Sentences,
    Split,
    Splitter,
    cut,
    passages,
    splitter,
    with_neighbours,
)
from conformal_retrievers.data.snippets import Retrieved, column
from conformal_retrievers.filtering import ConformalFilter, FilterOptions, RetrievalFilter
from conformal_retrievers.results import Filtered
from conformal_retrievers.scoring.query_scorer import QueryScorer
from conformal_retrievers.scoring.scorer import Scorer


class OpenOptions(FilterOptions, total=False):
    """The options of `open_filter`."""

    alpha: float | None
    split: Split | None
    neighbours: int


ScorersOf = Callable[[Sequence[str]], Iterable[Scorer | QueryScorer]]  # from needed names


@dataclass(frozen=True, eq=False)
class FilteredSentences(Filtered):
    """What a filter decided about the m sentences of a query's documents, in order.

    `scores` and `keeps` are of sentences (m,); `keeps` has the neighbours too, m1 and m2 do not.
    """

    sentences: Sentences = field(kw_only=True, repr=False)

    @column
    def passages(self) -> tuple[Passage, ...]:
        """What is kept of each document with a kept sentence, in the documents' order."""
        return tuple(passages(self.sentences, self.keeps))


class SentenceFilter(RetrievalFilter[FilteredSentences]):
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
        The scorer of the calibration, and the calibration, about sentences.
    split
        "sentences" or a function from a text to the ranges of its sentences, as in the calibration.
    neighbours
        How many sentences on either side of a kept one are kept with it. One helps where a
        sentence needs the one before: "She is the champion" does not say who.
    options
        Those of a `ConformalFilter`, `on_empty`, `on_unscorable`, `group_of`, `gate` and `shadow`,
        of sentences: a gate reads these, too.

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
        **options: Unpack[FilterOptions],
    ) -> None:
        if type(neighbours) is not int or neighbours < 0:  # True is an int
            raise ValueError(f"neighbours is {neighbours!r:.80}; give a whole number, 0 or more")
        self.splitter, self.neighbours = splitter(split), neighbours
        super().__init__(scorer, calibration, **options)

    def _opened(
        self, snippets: Iterable[Snippet | str]
    ) -> tuple[Retrieved, int, Callable[..., FilteredSentences]]:
        given = as_snippets(snippets)
        checks.warn_if_twice(given)
        sentences = cut(given, self.splitter)
        scored = Retrieved(sentences.snippets)
        scored.failed = given.failed
        return scored, len(sentences.documents), partial(self.decide_on, sentences)

    def decide_on(
        self,
        sentences: Sentences,
        scores: ArrayLike,
        group: str | None = None,
        *,
        gated: Gated | None = None,
    ) -> FilteredSentences:
        """Decide from the scores (m,) of sentences, and from what the gate decided."""
        checks.check_split(self.splitter.name, sentences.split, "the sentences")
        s = np.array(as_scores(scores, "scores", len(sentences.snippets), "sentences"))
        c = self.calibration
        decided = self._decided(
            FilteredSentences(s, c.keep(s, group), c, group, sentences=sentences, gated=gated)
        )
        return replace(decided, keeps=with_neighbours(sentences, decided.keeps, self.neighbours))


def open_filter(
    calibration: str | Path | Calibration,
    scorers: Scorer | Iterable[Scorer | QueryScorer] | ScorersOf = (),
    *,
    alpha: float | None = None,
    split: Split | None = None,
    neighbours: int = 0,
    **options: Unpack[FilterOptions],
) -> ConformalFilter | SentenceFilter:
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
    alpha
        Replaces the calibration's own, see `Calibration.at`.
    split, neighbours
        As in `SentenceFilter`; without `split`, snippets stay whole.
    options
        `on_empty`, `on_unscorable`, `group_of`, `gate` and `shadow`, as in `ConformalFilter`.

    Raises
    ------
    CalibrationMismatch, ValueError
        As `ConformalFilter.of`, `SentenceFilter`, `Calibration.load` and `Calibration.at`; and for
        `neighbours` without `split`.
    TypeError
        For an option that is none, naming it.
    """
    if unknown := options.keys() - FilterOptions.__annotations__.keys():
        known = ", ".join(OpenOptions.__annotations__)
        text = f"{min(unknown)!r} is not an option of a filter; give some of {known}"
        raise TypeError(f"{text}, a model (embeddings, embed_model, llm, scorer), or another field")
    if isinstance(calibration, Gate):  # which is refused below, as its file is
        calibration = calibration.calibration
    if not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    if alpha is not None:
        calibration = calibration.at(alpha)
        checks.warn_if_large(alpha=alpha)
    if callable(scorers) and not isinstance(scorers, Scorer):
        gate = options.get("gate")
        of_gate = needed_scorers(Calibration.load(gate)) if isinstance(gate, str | Path) else []
        scorers = scorers(needed_scorers(calibration) + of_gate)
    scorer, options["gate"] = scorer_and_gate(calibration, scorers, options.get("gate"))
    if split is not None:
        return SentenceFilter(scorer, calibration, split, neighbours=neighbours, **options)
    if neighbours:
        text = f"neighbours is {neighbours!r} without split; give split='sentences', too"
        raise ValueError(f"{text}, or leave it out")
    return ConformalFilter(scorer, calibration, **options)
