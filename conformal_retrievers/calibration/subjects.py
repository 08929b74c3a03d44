"""What a calibration is about: snippets, sentences, answers, claims, answers to flag, or queries.

The theorem is the same for all; their nouns and their comparison differ:

    snippets  kept     iff  score ≤ threshold        a snippet without a score is kept
    sentences                                        as snippets, which they are cut from
    answers                                          as snippets, which they are made from
    claims    kept     iff  relevance > threshold    a claim without a relevance is dropped
    flags     flagged  iff  confidence ≤ threshold   an answer without a confidence is flagged
    queries   passed   iff  score ≤ threshold        a query without a score passes
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.text import plural
from conformal_retrievers.data.wording import sentences_of

Scores = NDArray[np.float64]
OnUnscorable = Literal["raise", "keep", "drop"]
KeepsAt = Literal["keep_all", "keep_none"]
WORDING = sentences_of(__package__)
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
    judged_unit: str  # one unit of a calibration
    made_by: str  # the function that calibrates
    measure: str  # what a verdict is on; {} stands for the guarantee
    new: str  # what the guarantee assumes to be exchangeable with the units of the calibration
    keep: Callable[[Scores, float | Scores], NDArray[np.bool_]] = field(default=at_most, repr=False)
    unscorable: Literal["keep", "drop"] = "keep"  # what happens to an item without a score

    @property
    def units(self) -> str:
        """Several units."""
        return plural(self.unit)

    @property
    def judged(self) -> str:
        """Several units of a calibration."""
        return plural(self.judged_unit)

    @cached_property
    def item(self) -> str:
        """One of the items that are kept or not."""
        others = {"queries": "query", "answers": "snippet"}
        return others.get(self.name, self.name.removesuffix("s"))

    def worded(self, text: str) -> str:
        """Return a text about snippets with the noun of this subject; quoted names stay."""
        return NOUN.sub(lambda noun: noun[0][0] + self.item[1:], text)

    def says(self, about: str, **facts: object) -> str:
        """Return what a statement says about something, by default as of snippets."""
        own = WORDING.get(f"{self.name} {about}")
        return (own or self.worded(WORDING[f"snippets {about}"])).format(**facts)

    def threshold_name(self, threshold: float) -> float | KeepsAt:
        """Return a threshold as JSON can hold it: a number, or what an infinite one keeps."""
        if np.isfinite(threshold):
            return threshold
        return "keep_all" if self.keep(np.zeros(1), threshold).all() else "keep_none"


SNIPPETS = Subject(
    "snippets",
    unit="query",
    judged_unit="judged query",
    made_by="calibrate",
    measure="{} coverage",
    new="queries",
)
SENTENCES = replace(SNIPPETS, name="sentences")
RETRIEVED = (SNIPPETS, SENTENCES)  # what a retriever returns, whole or cut
ANSWERS = Subject(
    "answers",
    unit="question",
    judged_unit="answered question",
    made_by="calibrate_answers",
    measure="share of questions whose answer will do",
    new="questions",
)
FILTERED = (*RETRIEVED, ANSWERS)  # what a filter of snippets takes
CLAIMS = Subject(
    "claims",
    unit="answer",
    judged_unit="annotated answer",
    made_by="calibrate_claims",
    measure="factuality",
    new="answers",
    keep=above,
    unscorable="drop",
)
FLAGS = Subject(
    "flags",
    unit="answer",
    judged_unit="inconsistent answer",
    made_by="calibrate_flag",
    measure="recall of inconsistent answers",
    new="inconsistent answers",
)
QUERIES = Subject(
    "queries",
    unit="query",
    judged_unit="answerable query",
    made_by="calibrate_gate",
    measure="share of answerable queries that pass",
    new="answerable queries",
)
SUBJECTS = {subject.name: subject for subject in (*FILTERED, CLAIMS, FLAGS, QUERIES)}
