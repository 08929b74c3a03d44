"""What a calibration is about: snippets of queries, claims of answers, or answers to flag.

The theorem is the same for all three; their nouns and their comparison differ:

    snippets  kept     iff  score ≤ threshold        a snippet without a score is kept
    claims    kept     iff  relevance > threshold    a claim without a relevance is dropped
    flags     flagged  iff  confidence ≤ threshold   an answer without a confidence is flagged
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
OnUnscorable = Literal["raise", "keep", "drop"]
KeepsAt = Literal["keep_all", "keep_none"]


def at_most(scores: Scores, threshold: float | Scores) -> NDArray[np.bool_]:
    """Return which scores (n,) are at most a threshold, one or (n,); NaN counts as kept."""
    return (scores <= threshold) | np.isnan(scores)


def above(scores: Scores, threshold: float) -> NDArray[np.bool_]:
    """Return which scores (n,) are above the threshold; NaN counts as dropped."""
    return scores > threshold


@dataclass(frozen=True)
class Subject:
    """The nouns of a calibration, and the comparison that decides what it keeps."""

    name: Literal["snippets", "claims", "flags"]
    unit: str  # the guarantee is about a new one
    units: str
    judged_unit: str  # one unit of a calibration
    judged: str  # several
    made_by: str  # the function that calibrates
    keep: Callable[[Scores, float], NDArray[np.bool_]] = field(default=at_most, repr=False)
    unscorable: Literal["keep", "drop"] = "keep"  # what happens to an item without a score

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
)
CLAIMS = Subject(
    "claims",
    unit="answer",
    units="answers",
    judged_unit="annotated answer",
    judged="annotated answers",
    made_by="calibrate_claims",
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
)
SUBJECTS = {subject.name: subject for subject in (SNIPPETS, CLAIMS, FLAGS)}
