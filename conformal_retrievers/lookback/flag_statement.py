"""What the calibration of a flag promises, in words of answers, and how it is known to be one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from conformal_retrievers.theory import ranks

if TYPE_CHECKING:
    from conformal_retrievers.calibration.calibration import Calibration

# What a file says of itself among its labels: the words of retrieval mean this here.
MARK = {"relevant": "inconsistent answers", "kept": "flagged"}


def is_flag(calibration: Calibration) -> bool:
    """Return whether a calibration is that of a flag, as its labels say."""
    return (calibration.labels or {}).get("relevant") == MARK["relevant"]


def flag_labels(
    digests: Iterable[str], judged_by: Mapping[str, JsonValue] | None
) -> dict[str, JsonValue]:
    """Return the labels of a flag's calibration: the mark, its answers, and who judged them."""
    answers: list[JsonValue] = [*sorted(digests)]
    given = {} if judged_by is None else {"judged_by": dict(judged_by)}
    return {**MARK, "answers": answers, **given}


def calibrated_on(calibration: Calibration) -> frozenset[str]:
    """Return the digests of the answers that a flag was calibrated on, consistent ones too."""
    answers = (calibration.labels or {}).get("answers")
    return frozenset(map(str, answers)) if isinstance(answers, list) else frozenset()


def flag_statement(c: Calibration) -> str:
    """Return what the flag of a calibration promises, which `FactualityFlag.calibrate` made."""
    target = f"{float(1 - ranks.exact_alpha(c.alpha))!r}"
    of = "an inconsistent answer is flagged with probability at least"
    promise = (
        f"{of} {target}"
        if c.delta is None
        else f"of all calibrations like this one, at least {1 - c.delta:.6g} keep that {of} "
        f"{target}"
    )
    if c.by_group:
        promise = f"in each group of questions, {promise}"
    rules = "; ".join(
        (f"in group {g}, " if c.by_group else "") + _rule(c.threshold(g), n, c.n_needed)
        for g, n in c.n_units.items()
    )
    unknown = " In a group that is not named here, every answer is flagged." if c.by_group else ""
    return (
        f"{promise[0].upper()}{promise[1:]} (alpha = {c.alpha!r}, delta = {c.delta!r}). "
        f"Flagged is, by {c.scorer!r}: {rules}.{unknown} Consistent answers may be flagged "
        "too: nothing is promised about them. This assumes new inconsistent answers "
        "exchangeable with those of the calibration: the same kind of question, the same "
        "retriever, model and prompt, and the same meaning of consistent. It rests on "
        f"{c.n_queries} inconsistent answers; {c.n_without_relevant} consistent ones did not "
        "enter."
    )


def _rule(threshold: float, n: int, needed: int) -> str:
    if math.isinf(threshold):
        return f"every answer, as {n} inconsistent ones are too few: it takes {needed}"
    return f"an answer of confidence at most {threshold:.6g} (from {n} inconsistent ones)"
