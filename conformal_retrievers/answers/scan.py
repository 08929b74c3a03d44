"""The needed score of a question: from which threshold on its kept snippets give an answer that
will do.

    v_1 < … < v_m   the different scores of the question's snippets, and v_0 = −inf
    S_t             the snippets with a score ≤ t, or without one, in the retriever's order
    ok(S)           the chain's answer from S is the same as its answer from all snippets, or, where
                    references are given, as one of these
    N               the smallest v_j with ok at v_j, v_{j+1}, …, v_m; +inf if not even at v_m

The levels are scanned from all snippets downwards, up to the first that fails. What a lucky answer
from still fewer snippets says is never asked: N is the monotone envelope of ok. The answer from all
snippets is asked for twice, so that a chain that contradicts itself is seen to.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.answers.asked import Answer, Asked, named_chain
from conformal_retrievers.answers.same import Same, has_answer, name_of, same_text
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.scoring.learned.score import fitted
from conformal_retrievers.scoring.scorer import (
    Scorer,
    Scores,
    check_not_fitted_on,
    check_scorer,
    judged_queries,
    score_snippets,
)
from conformal_retrievers.scoring.sources import sources_of

logger = logging.getLogger("conformal_retrievers")

Expected: TypeAlias = Mapping[str, str | Sequence[str]]  # reference answers, by question
CHARACTERS = 4  # of a token, about


class Level(NamedTuple):
    """The answer from the snippets with a score of at most `score`, and whether it will do."""

    score: float
    answer: str
    same: bool


@dataclass(frozen=True, eq=False)
class Scan:
    """What a chain answers to one question, from all its snippets downwards."""

    query: JudgedQuery  # whose judgements were not read
    scores: Scores  # (n,), of its snippets
    references: tuple[str, ...]  # reference answers, or the first answer from all snippets
    levels: tuple[Level, ...]  # the last one fails, unless even no snippet suffices

    @property
    def needed(self) -> float:
        """The needed score N."""
        return min((level.score for level in self.levels if level.same), default=math.inf)

    @property
    def kept(self) -> int:
        """How many snippets have a score of at most the needed one, or none."""
        return int(np.count_nonzero(~(self.scores > self.needed)))

    @property
    def lost(self) -> tuple[bool, ...]:
        """Which snippets (n,) were left out first when the answer changed."""
        changed = not self.levels[-1].same and math.isfinite(self.needed)
        return tuple((changed & (self.scores == self.needed)).tolist())


@dataclass(frozen=True, eq=False)
class Scans:
    """The scans of questions, and how they were made; `calibrate_answers` calibrates on them."""

    scans: tuple[Scan, ...]
    scorer: Scorer
    same: str  # the name of what compares answers
    chain: str  # the name of what answers
    right: bool  # whether answers are compared with reference answers
    failed: Mapping[str, str] = field(default_factory=dict)  # why, by question

    @property
    def judged(self) -> tuple[JudgedQuery, ...]:
        """The questions, with the snippets without which the answer changed as relevant ones.

        They are for reading, with `labels` that say what they are. A snippet that says the same as
        another one is not among them, so do not calibrate a filter by relevance on them.
        """
        return tuple(
            JudgedQuery(s.query.query, s.query.snippets, s.lost, id=s.query.id) for s in self.scans
        )

    @property
    def labels(self) -> dict[str, JsonValue]:
        """Where the marks of `judged` come from, for `write_labelled`."""
        return {"source": "answers", "chain": self.chain, "same": self.same}

    @property
    def verdicts(self) -> tuple[JudgedQuery, ...]:
        """What was compared: each answer as a snippet, relevant if it is taken for the same.

        `write_jsonl` them and run `conformal-retrievers judge`, which shows a sample to a person.
        """
        return tuple(
            JudgedQuery(
                f"{s.query.query} Reference: {' / '.join(s.references)}",
                [*dict.fromkeys(level.answer for level in s.levels)],
                [*{level.answer: level.same for level in s.levels}.values()],
                id=s.query.id,
            )
            for s in self.scans
        )


def scan_answers(
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    expected: Expected | None = None,
    same: Same | None = None,
    scorer: Scorer | None = None,
    chain: str | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
    most_calls: int | None = None,
) -> Scans:
    """Ask a chain for its answers to each question, from all its snippets downwards.

    The number of calls and of tokens that this takes at most is logged before the first, or
    printed on stderr above the progress bar. A call that raises leaves its question out, in
    `failed`, and so does one that returns a blank text.

    Parameters
    ----------
    queries
        Retrieved queries, such as `judge_retriever(retriever, questions)` returns. Their judgements
        are not read.
    answer
        The chain: a function from a question and the snippets that are kept, in the retriever's
        order, to the text of the answer; it may be asynchronous, and return other answers each time
        it is asked.
    expected
        The reference answer of each question, or several of which one suffices, by the question's
        text.
    same
        Whether an answer will do, from the question, the answer and the reference: `same_text` by
        default, with `expected` `has_answer`; `llm_same(llm)` for long answers.
    scorer
        Scores the snippets; by default hits and words by the prior, which no question of these
        has changed.
    chain
        What the chain is called in the file, such as its model and prompt; by default the name of
        the function. Another name finds nothing in the cache.
    concurrency
        How many questions are asked at a time; the levels of one are asked in order.
    cache
        Keeps the answers, so that a scan that was interrupted asks nothing twice.
    progress
        Whether to show a progress bar.
    most_calls
        Above so many calls none is made; give 0 to learn the number.

    Raises
    ------
    TypeError
        If `answer` or `same` is no function, or the chain returns something that is not text.
    ValueError
        For queries that are not retrieved, a question that occurs twice or that the scorer was
        fitted on, a question without a reference or with an empty one, a comparison or chain
        without a name, more calls than `most_calls`, or if all questions fail.
    """
    given = judged_queries(queries, "queries")
    if not given:
        raise ValueError(
            "queries is empty; give what judge_retriever(retriever, questions) returns"
        )
    check_copies(given)
    will_do = same or (same_text if expected is None else has_answer)
    named = name_of(will_do), named_chain(chain, answer)
    references = None if expected is None else references_of(given, expected)
    if scorer is None:
        scorer = fitted(sources_of(given), (), [], "snippets")
    check_scorer(scorer)
    check_not_fitted_on(scorer, given)
    scores = [score_snippets(scorer, query.query, query.snippets) for query in given]
    most = sum(len(levels_of(of)) + (references is None) for of in scores)
    _announce(given, scores, most, references is None, named[1], most_calls, progress)
    asked = Asked(answer, named[1], cache, concurrency)
    scores_of = dict(zip((query.query for query in given), scores, strict=True))

    def scan(query: JudgedQuery) -> Scan:
        known = (references or {}).get(query.query, ())
        return _scanned(query, scores_of[query.query], partial(asked, query.query), will_do, known)

    scans, failed = asked.of_each(scan, given, progress)
    return Scans(tuple(scans), scorer, *named, references is not None, failed)


def levels_of(scores: Scores) -> list[float]:
    """Return the levels of scores (n,), from the largest to −inf.

    >>> levels_of(np.array([0.5, np.nan, 0.2, 0.5]))
    [0.5, 0.2, -inf]
    """
    return sorted({*scores[~np.isnan(scores)].tolist(), -math.inf}, reverse=True)


def _scanned(
    query: JudgedQuery,
    scores: Scores,
    ask: Callable[[Sequence[Snippet], bool], str],
    same: Same,
    references: tuple[str, ...],
) -> Scan:
    """Return the scan of a question; `ask` is told whether the answer is the reference."""
    references = references or (ask(query.snippets, True),)
    found: list[Level] = []
    for level in levels_of(scores):
        answer = ask([query.snippets[i] for i in np.flatnonzero(~(scores > level))], False)
        will_do = any(same(query.query, answer, reference) for reference in references)
        found.append(Level(level, answer, will_do))
        if not will_do:
            break
    return Scan(query, scores, references, tuple(found))


def references_of(queries: Sequence[JudgedQuery], expected: Expected) -> dict[str, tuple[str, ...]]:
    """Return the references of each question; raise, naming it, for none or an empty one."""
    if not isinstance(expected, Mapping):
        raise TypeError(f"expected is {expected!r:.60}; give reference answers by question, a dict")
    references = dict[str, tuple[str, ...]]()
    for query in queries:
        given = expected.get(query.query, ())
        texts = (given,) if isinstance(given, str) else tuple(given)
        if not texts or not all(str(text).strip() for text in texts):
            raise ValueError(
                f"expected[{query.query!r:.80}] is {given!r:.60}; give a reference answer, or "
                "leave the question out of queries"
            )
        references[query.query] = texts
    return references


def _announce(
    queries: Sequence[JudgedQuery],
    scores: Sequence[Scores],
    most: int,
    twice: bool,
    chain: str,
    most_calls: int | None,
    shown: bool,
) -> None:
    """Say how many calls and tokens a scan takes at most, and refuse too many calls."""
    characters = 0
    for query, of in zip(queries, scores, strict=True):
        sizes = np.array([len(snippet.text) for snippet in query.snippets], dtype=np.int64)
        parts = [int(sizes[~(of > level)].sum()) for level in levels_of(of)]
        characters += sum(parts) + twice * int(sizes.sum())
    text = (
        f"{len(queries):,} questions take at most {most:,} calls of {chain} with some "
        f"{characters // CHARACTERS:,} tokens of snippets; each stops at the first answer that "
        "fails"
    )
    if most_calls is not None and most > most_calls:
        raise ValueError(f"most_calls is {most_calls}, but {text}")
    if shown:
        require("cli", "rich")  # before a call is made
        print(text, file=sys.stderr)
    else:
        logger.info(text)
