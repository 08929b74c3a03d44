"""What a calibration is about: snippets, sentences, answers, claims, answers to flag, or queries.

The theorem is the same for all; their nouns and their comparison differ:

    snippets  kept     iff  score ≤ threshold        a snippet without a score is kept
    sentences                                        as snippets, which they are cut from
    answers                                          as snippets, which they are made from
    claims    kept     iff  relevance > threshold    a claim without a relevance is dropped
    flags     flagged  iff  confidence ≤ threshold   an answer without a confidence is flagged
    queries   passed   iff  score ≤ threshold        a query without a score passes the gate
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
OnUnscorable = Literal["raise", "keep", "drop"]
KeepsAt = Literal["keep_all", "keep_none"]
NOUN = re.compile(r"""(?<!["'“])\b[Ss]nippet""")


def at_most(scores: Scores, threshold: float | Scores) -> NDArray[np.bool_]:
    """Return which scores (n,) are at most a threshold, one or (n,); NaN counts as kept."""
    return (scores <= threshold) | np.isnan(scores)


def above(scores: Scores, threshold: float | Scores) -> NDArray[np.bool_]:
    """Return which scores (n,) are above a threshold, one or (n,); NaN counts as dropped."""
    return scores > threshold


@dataclass(frozen=True)
class Subject:
    """The nouns of a calibration, and the comparison that decides what it keeps."""

    name: Literal["snippets", "sentences", "answers", "claims", "flags", "queries"]
    unit: str  # the guarantee is about a new one
    units: str
    judged_unit: str  # one unit of a calibration
    judged: str  # several
    made_by: str  # the function that calibrates
    measure: str  # what a verdict is on; {} stands for the guarantee
    # The sentences of a statement.
    guarantees: Mapping[str, str] = field(hash=False)
    rule: str  # at a finite threshold
    keep_all: str  # what an infinite one does
    keep_none: str
    new: str  # what the guarantee assumes: new ones are exchangeable, and these are the same
    same: str
    not_covered: str
    known: str = "(retrieved or not)"  # which items a guarantee is about if missed ones count
    keep: Callable[[Scores, float | Scores], NDArray[np.bool_]] = field(default=at_most, repr=False)
    unscorable: Literal["keep", "drop"] = "keep"  # what happens to an item without a score

    @property
    def item(self) -> str:
        """One of the items that are kept or not."""
        others = {"queries": "query", "answers": "snippet"}
        return others.get(self.name, self.name.removesuffix("s"))

    def worded(self, text: str) -> str:
        """Return a text about snippets with the noun of this subject; quoted names stay."""
        return NOUN.sub(lambda found: found[0][0] + self.item[1:], text)

    def threshold_name(self, threshold: float) -> float | KeepsAt:
        """Return a threshold as JSON can hold it: a number, or what an infinite one keeps."""
        if np.isfinite(threshold):
            return threshold
        return "keep_all" if self.keep(np.zeros(1), threshold).all() else "keep_none"


SNIPPETS = Subject(
    "snippets",
    unit="query",
    units="queries",
    judged_unit="judged query",
    judged="judged queries",
    made_by="calibrate",
    measure="{} coverage",
    guarantees={
        "query-recall": "keeps at least {target} of the relevant snippets {which}, on average over "
        "queries",
        "snippet": "keeps a relevant snippet {that} with probability at least {target}",
        "all": "keeps all relevant snippets {which} for a query, with probability at least "
        "{target}",
        "any": "keeps at least one relevant snippet {that} for a query, with probability at least "
        "{target}, if there is any",
    },
    rule="snippets with a score ≤ {threshold} are kept (scorer {scorer})",
    keep_all="every snippet is kept",
    keep_none="no snippet is kept",
    new="queries",
    same="the same kind of question, retriever, depth, chunking and scorer, and the same meaning "
    "of relevant",
    not_covered="relevant snippets that the retriever does not return",
)
SENTENCES = replace(
    SNIPPETS,
    name="sentences",
    guarantees={
        name: text.replace("snippet", "sentence") for name, text in SNIPPETS.guarantees.items()
    },
    rule="sentences with a score ≤ {threshold} are kept (scorer {scorer})",
    keep_all="every sentence is kept",
    keep_none="no sentence is kept",
    same="the same kind of question, retriever, depth, chunking, splitter and scorer, and the same "
    "meaning of relevant",
    not_covered="relevant sentences that the retriever does not return",
    known="(retrieved or not, with each piece of evidence that was not wholly retrieved as one)",
)
RETRIEVED = (SNIPPETS, SENTENCES)  # what a retriever returns, whole or cut
ANSWERS = replace(
    SNIPPETS,
    name="answers",
    unit="question",
    units="questions",
    judged_unit="answered question",
    judged="answered questions",
    made_by="calibrate_answers",
    measure="share of questions whose answer will do",
    guarantees={
        "all": "keeps snippets from which the chain's answer {answer}, with probability at least "
        "{target}{whose}"
    },
    new="questions",
    same="the same kind of question, retriever, depth, chunking and scorer, and the same chain: "
    "its model, prompt and order of snippets",
    not_covered="answers that are wrong from all retrieved snippets",
)
FILTERED = (*RETRIEVED, ANSWERS)  # what a filter of snippets takes
CLAIMS = Subject(
    "claims",
    unit="answer",
    units="answers",
    judged_unit="annotated answer",
    judged="annotated answers",
    made_by="calibrate_claims",
    measure="factuality",
    guarantees={"all": "{claims} are factual with probability at least {target}"},
    rule="claims with a relevance > {threshold} are kept (scorer {scorer})",
    keep_all="every claim that has a relevance is kept",
    keep_none="no claim is kept",
    new="answers",
    same="the same kind of question, retriever, generator, division into claims and scorer, and "
    "the same meaning of factual",
    not_covered="a text that an LLM writes from the kept claims. Answers without a kept claim "
    "count as factual; evaluate_claims reports how many there are",
    keep=above,
    unscorable="drop",
)
FLAGS = Subject(
    "flags",
    unit="answer",
    units="answers",
    judged_unit="inconsistent answer",
    judged="inconsistent answers",
    made_by="calibrate_flag",
    measure="recall of inconsistent answers",
    guarantees={"all": "flags an inconsistent answer with probability at least {target}"},
    rule="answers with a confidence ≤ {threshold} are flagged (classifier {scorer})",
    keep_all="every answer is flagged",
    keep_none="no answer is flagged",
    new="inconsistent answers",
    same="the same kind of question, retriever, model and prompt, and the same meaning of "
    "consistent",
    not_covered="consistent answers, which may be flagged too",
)
QUERIES = Subject(
    "queries",
    unit="query",
    units="queries",
    judged_unit="answerable query",
    judged="answerable queries",
    made_by="calibrate_gate",
    measure="share of answerable queries that pass",
    guarantees={"all": "passes an answerable query with probability at least {target}"},
    rule="queries with a score ≤ {threshold} pass, the gate is silent on others (score {scorer})",
    keep_all="every query passes",
    keep_none="no query passes",
    new="answerable queries",
    same="the same kind of question, retriever, depth and chunking, and the same meaning of "
    "relevant",
    not_covered="queries for which nothing relevant was retrieved",
)
SUBJECTS = {subject.name: subject for subject in (*FILTERED, CLAIMS, FLAGS, QUERIES)}
