"""A guarantee about answers: calibrate on questions and a chain, without judged snippets.

    k = ⌈(n + 1)(1 − α)⌉, t = the k-th smallest needed score of n questions (`scan.py`)
    P(the chain's answer from the snippets with a score ≤ t will do) ≥ 1 − α

over new questions that are exchangeable with these, for any chain, also a random one: its dice are
part of N. An answer will do at every level from the needed score upwards, so P(ok(S_t)) ≥ P(N ≤ t).
"""

from conformal_retrievers.answers.calibrate import calibrate_answers, calibrate_scans
from conformal_retrievers.answers.chain import plain_chain
from conformal_retrievers.answers.evaluate import AnswerEvaluation, evaluate_answers
from conformal_retrievers.answers.same import f1, has_answer, llm_same, same_text
from conformal_retrievers.answers.scan import Level, Scan, Scans, scan_answers

__all__ = [
    "AnswerEvaluation",
    "Level",
    "Scan",
    "Scans",
    "calibrate_answers",
    "calibrate_scans",
    "evaluate_answers",
    "f1",
    "has_answer",
    "llm_same",
    "plain_chain",
    "same_text",
    "scan_answers",
]
