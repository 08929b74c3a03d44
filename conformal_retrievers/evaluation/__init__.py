"""What a filter does to judged queries, and whether its guarantee can be trusted."""

from conformal_retrievers.evaluation.compare import Difference, Differences, compare
from conformal_retrievers.evaluation.diagnose import diagnose
from conformal_retrievers.evaluation.diagnosis import Diagnosis, Finding
from conformal_retrievers.evaluation.equal_recall import EqualRecall, Row
from conformal_retrievers.evaluation.evaluate import Evaluation, evaluate
from conformal_retrievers.evaluation.evaluate_gate import GateEvaluation, evaluate_gate
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.splits import Splits, try_splits
from conformal_retrievers.evaluation.verdict import Verdict

__all__ = [
    "Diagnosis",
    "Difference",
    "Differences",
    "EqualRecall",
    "Evaluation",
    "Finding",
    "GateEvaluation",
    "Row",
    "Share",
    "Splits",
    "Verdict",
    "compare",
    "diagnose",
    "evaluate",
    "evaluate_gate",
    "try_splits",
]
