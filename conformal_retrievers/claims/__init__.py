"""Claims of answers: of each answer those are kept of which all are factual with probability 1 − α.

answers.py has an answer's score, calibration.py the threshold, filter.py and answer_filter.py what
is kept, relevance.py the score of a claim, dividing.py, annotating.py and merging.py what an LLM
does with them, and events.py what callbacks are told. Feng et al. 2025,
Conformal-RAG (arXiv 2506.20978).
"""

from conformal_retrievers.claims import events
from conformal_retrievers.claims.annotating import Annotations, Verdict, aannotate, annotate
from conformal_retrievers.claims.answer_filter import AnswerFilter, FilteredAnswer
from conformal_retrievers.claims.answers import AnnotatedAnswer, answer_scores
from conformal_retrievers.claims.calibrate import calibrate_claims
from conformal_retrievers.claims.dividing import Decomposition, adecompose, decompose
from conformal_retrievers.claims.evaluation import ClaimEvaluation, evaluate_claims
from conformal_retrievers.claims.file import read_answers, write_answers
from conformal_retrievers.claims.filter import (
    AsyncClaimScorer,
    ClaimFilter,
    ClaimScorer,
    FilteredClaims,
)
from conformal_retrievers.claims.merging import Merged, amerge, joined, merge
from conformal_retrievers.claims.relevance import ClaimRelevance, claim_relevance

__all__ = [
    "AnnotatedAnswer",
    "Annotations",
    "AnswerFilter",
    "AsyncClaimScorer",
    "ClaimEvaluation",
    "ClaimFilter",
    "ClaimRelevance",
    "ClaimScorer",
    "Decomposition",
    "FilteredAnswer",
    "FilteredClaims",
    "Merged",
    "Verdict",
    "aannotate",
    "adecompose",
    "amerge",
    "annotate",
    "answer_scores",
    "calibrate_claims",
    "claim_relevance",
    "decompose",
    "evaluate_claims",
    "events",
    "joined",
    "merge",
    "read_answers",
    "write_answers",
]
