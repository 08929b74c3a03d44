"""How good are answers from a filtered context: is it supported, and is what matters in it?

An answer is judged sentence by sentence against its context, and against the query's nuggets, the
facts that a good answer holds, of weight w. Then

    precision = supported sentences / sentences      recall = Σ w of nuggets stated / Σ w
    F1 = 2 · precision · recall / (precision + recall),   0 where both are 0

per query, and the mean over queries: sentence support and nugget coverage of ARGUE (Mayfield et al.
2024, SIGIR; AutoARGUE, arXiv 2509.26184), as Chakraborty et al. 2025 (arXiv 2511.17908) compare a
filtered with an unfiltered context. ARGUE holds a sentence against the documents that it cites;
here it is held against the whole context, since a filter changes that. Intervals are bootstraps
over queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.evaluation.compare import Difference, resampled_sums
from conformal_retrievers.llm.ask import LLM, Prompt, Request, Usage
from conformal_retrievers.llm.verdicts import VERDICT, Verdicts, aask_verdicts, ask_verdicts
from conformal_retrievers.theory.ranks import Interval, check_level

if TYPE_CHECKING:
    from conformal_retrievers.llm.cache import Cache

# --- from judgements ------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedAnswer:
    """What was found in one answer: whether each sentence is supported, and each nugget stated.

    `weights` are those of the nuggets, all 1 by default (ARGUE: 2 if vital, 1 if okay). Raises
    ValueError, naming the field, where there is no nugget or a weight is missing or not positive.
    """

    supported: tuple[bool, ...]
    stated: tuple[bool, ...]
    weights: tuple[float, ...] | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        where = "an answer" if self.id is None else f"answer {self.id!r}"
        if not self.stated:
            raise ValueError(f"{where}: stated is empty; give the judgement of a nugget or more")
        _check_weights(where, self.weights, len(self.stated))

    @property
    def precision(self) -> float:
        """The share of its sentences that is supported; 0 for an answer without sentences."""
        return sum(self.supported) / len(self.supported) if self.supported else 0.0

    @property
    def recall(self) -> float:
        """The share of the nuggets' weight that is stated."""
        weights = self.weights or (1.0,) * len(self.stated)
        return math.fsum(w for w, s in zip(weights, self.stated, strict=True) if s) / math.fsum(
            weights
        )

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True)
class NuggetF1:
    """Mean precision, recall and F1 over queries, each with its bootstrap interval."""

    n_queries: int
    precision: Interval
    recall: Interval
    f1: Interval

    def __str__(self) -> str:
        return (
            f"{self.n_queries} queries: precision {self.precision}, recall {self.recall}, "
            f"F1 {self.f1}"
        )


def nugget_f1(
    answers: Iterable[JudgedAnswer],
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    level: float = 0.95,
) -> NuggetF1:
    """Return mean precision, recall and F1 of judged answers; raises ValueError for none."""
    check_level(level)
    table = _table(list(answers))
    means = resampled_sums(table, resamples, rng) / len(table)
    ends = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    precision, recall, f1 = (
        Interval(float(mean), float(low), float(high))
        for mean, low, high in zip(table.mean(axis=0), *ends, strict=True)
    )
    return NuggetF1(len(table), precision, recall, f1)


@dataclass(frozen=True)
class NuggetDifferences:
    """Precision, recall and F1 of answers to some queries less those of others to the same.

    `unpaired` is how many answers were left out, because their query has none on the other side.
    """

    n_queries: int
    unpaired: int
    precision: Difference
    recall: Difference
    f1: Difference

    def __str__(self) -> str:
        return (
            f"{self.n_queries} queries, {self.unpaired} answers unpaired: precision "
            f"{self.precision}, recall {self.recall}, F1 {self.f1}"
        )


def nugget_f1_differences(
    filtered: Iterable[JudgedAnswer],
    unfiltered: Iterable[JudgedAnswer],
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    level: float = 0.95,
) -> NuggetDifferences:
    """Return what filtered answers have more than unfiltered ones, by the paired bootstrap.

    Answers are paired by their id, that of the query. Raises ValueError where one has none, two of
    a side have the same, or no query has both.
    """
    check_level(level)
    ours, theirs = _by_id("filtered", filtered), _by_id("unfiltered", unfiltered)
    both = [id for id in ours if id in theirs]
    if not both:
        raise ValueError(
            f"none of the {len(ours)} filtered and {len(theirs)} unfiltered answers has the id of "
            "one of the other side; give answers to the same queries, with the query's id"
        )
    table = _table([ours[id] for id in both]) - _table([theirs[id] for id in both])
    means = resampled_sums(table, resamples, rng) / len(table)
    ends = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    precision, recall, f1 = (
        Difference(float(mean), float(low), float(high))
        for mean, low, high in zip(table.mean(axis=0), *ends, strict=True)
    )
    unpaired = len(ours) + len(theirs) - 2 * len(both)
    return NuggetDifferences(len(both), unpaired, precision, recall, f1)


def _by_id(name: str, answers: Iterable[JudgedAnswer]) -> dict[str, JudgedAnswer]:
    found: dict[str, JudgedAnswer] = {}
    for i, answer in enumerate(answers):
        if answer.id is None:
            raise ValueError(
                f"{name}[{i}] has no id, so that nobody knows which answer of the other side is to "
                "the same query; give JudgedAnswer(..., id=…), or Answer(..., id=…) to be judged"
            )
        if answer.id in found:
            raise ValueError(
                f"{name}[{i}], answer {answer.id!r}, occurs twice; a query counts once, so remove "
                "one"
            )
        found[answer.id] = answer
    return found


def _table(answers: Sequence[JudgedAnswer]) -> NDArray[np.float64]:
    if not answers:
        raise ValueError("there is no judged answer; give one or more")
    return np.array([(answer.precision, answer.recall, answer.f1) for answer in answers])


# --- judgements by an LLM -------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An answer to a query: its sentences, the context it was written from, and the nuggets.

    `context` are the texts of the snippets that were kept. `weights` and `id` are those of
    `JudgedAnswer`. Raises ValueError or TypeError, naming the field, for what cannot be judged.
    """

    query: str
    sentences: tuple[str, ...]
    context: tuple[str, ...]
    nuggets: tuple[str, ...]
    weights: tuple[float, ...] | None = None
    id: str | None = None

    def __post_init__(self) -> None:
        where = f"answer {self.id or self.query!r:.60}"
        for name in ("sentences", "context", "nuggets"):
            texts = getattr(self, name)
            if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{where}: {name} is {texts!r:.60}; give a tuple of texts")
            object.__setattr__(self, name, tuple(texts))
        if not self.nuggets:
            raise ValueError(f"{where}: nuggets is empty; give a fact that a good answer holds")
        _check_weights(where, self.weights, len(self.nuggets))


@dataclass(frozen=True)
class JudgedAnswers:
    """The answers that an LLM judged, in their order, and those that it did not, each with why.

    `usage` is what the LLM took.
    """

    judged: tuple[JudgedAnswer, ...]
    unjudged: tuple[tuple[Answer, str], ...] = ()
    usage: Usage = field(default_factory=Usage)


def judge_answers(
    answers: Iterable[Answer],
    llm: LLM,
    *,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> JudgedAnswers:
    """Ask an LLM whether the context supports each sentence, and the answer states each nugget.

    The prompts are prompts/support.txt and prompts/nugget.txt; a reply is {"reasoning", "verdict"}.
    Without context no sentence is supported, and without sentences no nugget stated: nobody is
    asked. An answer with a reply that is no verdict is not judged, and never taken for a no. Raises
    what the model raises where asking again could not help.
    """
    given = list(answers)
    requests = list(_requests(given))
    verdicts = ask_verdicts(llm, requests, concurrency=concurrency, cache=cache, progress=progress)
    return _judged(given, verdicts)


async def ajudge_answers(
    answers: Iterable[Answer],
    llm: LLM,
    *,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> JudgedAnswers:
    """Return what `judge_answers` returns, without blocking the event loop."""
    given = list(answers)
    requests = list(_requests(given))
    verdicts = await aask_verdicts(
        llm, requests, concurrency=concurrency, cache=cache, progress=progress
    )
    return _judged(given, verdicts)


def _asked(answer: Answer) -> tuple[int, int]:
    """Return of how many sentences and of how many nuggets an LLM is asked."""
    return (
        len(answer.sentences) if answer.context else 0,
        len(answer.nuggets) if answer.sentences else 0,
    )


def _requests(answers: Iterable[Answer]) -> Iterator[Request]:
    support, nugget = Prompt.load("support"), Prompt.load("nugget")
    for answer in answers:
        sentences, nuggets = _asked(answer)
        for sentence in answer.sentences[:sentences]:
            yield support.request(
                {"sentence": sentence, "context": list(answer.context)}, schema=VERDICT
            )
        for fact in answer.nuggets[:nuggets]:
            said = {"query": answer.query, "nugget": fact, "answer": " ".join(answer.sentences)}
            yield nugget.request(said, schema=VERDICT)


def _judged(answers: Sequence[Answer], verdicts: Verdicts) -> JudgedAnswers:
    judged, unjudged = [], []
    said = iter(verdicts.said)
    for answer in answers:
        sentences, nuggets = _asked(answer)
        supported = list(islice(said, sentences)) or [False] * len(answer.sentences)
        stated = list(islice(said, nuggets)) or [False] * len(answer.nuggets)
        reason = next((v for v in [*supported, *stated] if isinstance(v, str)), None)
        if reason is not None:
            unjudged.append((answer, reason))
            continue
        judged.append(
            JudgedAnswer(
                tuple(v is True for v in supported),
                tuple(v is True for v in stated),
                answer.weights,
                answer.id,
            )
        )
    return JudgedAnswers(tuple(judged), tuple(unjudged), verdicts.usage)


def _check_weights(where: str, weights: Sequence[float] | None, n: int) -> None:
    if weights is None:
        return
    if len(weights) != n:
        raise ValueError(f"{where}: {n} nuggets but {len(weights)} weights; give one for each")
    odd = next((w for w in weights if not 0 < w < math.inf), None)
    if odd is not None:
        raise ValueError(f"{where}: a weight is {odd!r}; give a positive number for each nugget")
