"""The needed score of a question: from which threshold on its kept snippets give an answer that
will do.

    v_1 < … < v_m   the different scores of the question's snippets, and v_0 = −inf
    S_t             the snippets with a score ≤ t, or without one, in the retriever's order
    ok(S)           the chain's answer from S is the same as its first answer from all snippets, or,
                    where references are given, as one of these
    N               the smallest v_j with ok at v_j, v_{j+1}, …, v_m; +inf if not even at v_m

The levels are scanned from all snippets downwards, up to the first that fails. What a lucky answer
from still fewer snippets says is never asked: N is the monotone envelope of ok. The answer from all
snippets is asked for twice: the first is compared with, or says whether the question is answered
rightly, and the second is that of the level v_m. So a chain that contradicts itself has N = +inf.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue
from typing_extensions import Unpack

from conformal_retrievers.answers.asked import Answer, Asked, AskOptions, References
from conformal_retrievers.calibration.fitting import check_given
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.scoring.hit_features import sources_of
from conformal_retrievers.scoring.learned.score import fitted
from conformal_retrievers.scoring.scorer import Scorer, Scores, score_queries


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
    first: str  # the first answer from all of them
    references: References  # reference answers, or the first one
    levels: tuple[Level, ...]  # the last one fails, unless even no snippet suffices
    wrong: bool = False  # whether the first answer is no reference: then there are no levels

    @property
    def needed(self) -> float:
        """The needed score N."""
        return min((level.score for level in self.levels if level.same), default=math.inf)

    @property
    def contradicts(self) -> bool:
        """Whether the second answer from all snippets fails, although the first did not."""
        return not self.wrong and not self.levels[0].same

    @property
    def kept(self) -> int:
        """How many snippets have a score of at most the needed one, or none."""
        return int(np.count_nonzero(~(self.scores > self.needed)))

    @property
    def lost(self) -> tuple[bool, ...]:
        """Which snippets (n,) were left out first when the answer changed."""
        return tuple((math.isfinite(self.needed) & (self.scores == self.needed)).tolist())


@dataclass(frozen=True, eq=False)
class Scans:
    """The scans of questions, and how they were made; `calibrate_answers` calibrates on them."""

    scans: tuple[Scan, ...] = field(repr=False)
    scorer: Scorer
    same: str  # the name of what compares answers
    chain: str  # the name of what answers
    right: bool  # whether answers are compared with reference answers
    failed: Mapping[str, str] = field(default_factory=dict)  # why, by question

    @property
    def judged(self) -> tuple[JudgedQuery, ...]:
        """The questions, with the snippets without which the answer changed as relevant ones.

        They are for reading: `write_labelled(scans.judged, scans.labels, path)` writes them, marked
        as what they are. A snippet that says the same as another one is not among them, so do not
        calibrate a filter by relevance on them.
        """
        return tuple(
            replace(scan.query, relevant=scan.lost, missed=None, evidence=(), answerable=True)
            for scan in self.scans
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
        judged = []
        for scan in self.scans:
            answers = {scan.first: False} if scan.wrong else {}
            answers |= {level.answer: level.same for level in scan.levels if level.answer.strip()}
            text = f"{scan.query.query} Reference: {' / '.join(scan.references)}"
            judged.append(JudgedQuery(text, [*answers], [*answers.values()], id=scan.query.id))
        return tuple(judged)


def scan_answers(
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    scorer: Scorer | None = None,
    **options: Unpack[AskOptions],
) -> Scans:
    """Ask a chain for its answers to each question, from all its snippets downwards.

    The number of calls that this takes at most is logged before the first, or printed on stderr
    above the progress bar. A call that raises, or that returns a blank text from snippets, leaves
    its question out, in `failed`.

    Parameters
    ----------
    queries
        Retrieved queries, such as `judge_retriever(retriever, questions)` returns. Their judgements
        are not read.
    answer
        The chain: a function from a question and the snippets that are kept, in the retriever's
        order, to the text of the answer; it may be asynchronous, and return other answers each time
        it is asked.
    scorer
        Scores the snippets; by default hits and words by the prior, which no question of these
        has changed.
    options
        `expected`, the reference answer of each question, by its text or id, or a list of which one
        suffices.
        `same`, whether an answer will do, from the question, the answer and a reference:
        `same_text` by default, `has_answer` with `expected`, `llm_same(llm)` for long answers.
        `chain`, what the chain is called in the file, such as its model and prompt; by default the
        name of the function or its class. A cache needs one: another name finds nothing in it.
        `concurrency`, 8: so many questions are asked at a time, the levels of one in order.
        `cache`, which keeps the answers, so that an interrupted scan asks for none of them again.
        `progress`, whether to show a progress bar.

    Raises
    ------
    TypeError
        If `answer` or `same` is no function, the chain returns something that is not text, or the
        comparison neither True nor False.
    ValueError
        For queries that are not retrieved, are cut into sentences, or have neither hits nor a
        scorer, for a question that occurs twice with the same snippets, that the scorer was fitted
        on, or that has no reference or an empty one, a cache without a name for the chain, an
        `llm_same` whose LLM errs in a plain example, or if the first 8 questions fail, or 3, and
        more than a tenth, when they are asked with no snippets.
    """
    return scans_of(Asked(queries, answer, **options), scorer)


def scans_of(asked: Asked, scorer: Scorer | None) -> Scans:
    """Return the scans of questions, see `scan_answers`."""
    if scorer is None:
        check_given(asked.queries, ())
        scorer = fitted(sources_of(asked.queries), (), [], "snippets")
    scores = [of_query.scores for of_query in score_queries(scorer, asked.queries)]
    contexts = [*map(contexts_of, asked.queries, scores)]
    right = any(asked.references)

    def scanned(i: int, first: str) -> Scan:
        query, references = asked.queries[i], asked.references[i] or (first,)
        wrong = right and not asked.agrees(asked.will_do, query.query, first, references)
        levels: list[Level] = []
        for score, snippets in () if wrong else contexts[i].items():
            answer = asked(query.query, snippets)
            same = asked.agrees(asked.will_do, query.query, answer, references)
            levels.append(Level(score, answer, same))
            if not same:
                break
        return Scan(query, scores[i], first, references, tuple(levels), wrong)

    scans, failed = asked.of_each(scanned, [levels.values() for levels in contexts])
    return Scans(tuple(scans), scorer, asked.compared_by, asked.name, right, failed)


def contexts_of(query: JudgedQuery, scores: Scores) -> dict[float, list[Snippet]]:
    """Return the snippets with a score of at most each level, or without one, by falling level.

    >>> query = JudgedQuery("q", ["a", "b", "c"], [False] * 3)
    >>> contexts = contexts_of(query, np.array([0.5, np.nan, 0.2]))
    >>> {level: [snippet.text for snippet in context] for level, context in contexts.items()}
    {0.5: ['a', 'b', 'c'], 0.2: ['b', 'c'], -inf: ['b']}
    """
    levels = sorted({*scores[~np.isnan(scores)].tolist(), -math.inf}, reverse=True)
    kept = {level: np.flatnonzero(~(scores > level)) for level in levels}
    return {level: [query.snippets[i] for i in places] for level, places in kept.items()}
