"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept."""

from typing import TYPE_CHECKING

# At once: later, the module of the same name would stand in the function's place.
from conformal_retrievers.certify import certify
from conformal_retrievers.lazy import lazy_names
from conformal_retrievers.version import __version__

if TYPE_CHECKING:
    from conformal_retrievers.beir import read_beir
    from conformal_retrievers.cache import Cache
    from conformal_retrievers.calibration import Calibration, calibrate
    from conformal_retrievers.choosing import coverage_curve, threshold_for_budget
    from conformal_retrievers.claims import (
        Agreement,
        AnnotatedAnswer,
        AnswerFilter,
        ClaimCalibration,
        ClaimEvaluation,
        ClaimFilter,
        ClaimRelevance,
        ClaimScorer,
        FilteredAnswer,
        FilteredClaims,
        SelfConfidence,
        annotate,
        calibrate_claims,
        claim_relevance,
        decompose,
        evaluate_claims,
        merge,
    )
    from conformal_retrievers.comparison import compare, fixed_thresholds, top_k
    from conformal_retrievers.diagnostics import Diagnosis, diagnose
    from conformal_retrievers.evaluation import Evaluation, evaluate
    from conformal_retrievers.filter_log import FilterLog, read_log
    from conformal_retrievers.filtering import (
        CalibrationMismatch,
        ConformalFilter,
        Filtered,
        NothingKept,
        Refused,
        Unscorable,
    )
    from conformal_retrievers.jsonl import iter_jsonl, read_jsonl, write_jsonl
    from conformal_retrievers.judged import JudgedQuery, ScoredQuery, Snippet
    from conformal_retrievers.llm import LLM
    from conformal_retrievers.monitor import Monitor
    from conformal_retrievers.planning import plan, promise
    from conformal_retrievers.scoring import (
        CachedScorer,
        Cascade,
        CrossEncoderScorer,
        EmbeddingScorer,
        FunctionScorer,
        LearnedScorer,
        LLMScorer,
        QueryZScore,
        RetrievalScorer,
        Scorer,
        TieBreak,
        YesScorer,
        score_queries,
    )
    from conformal_retrievers.servers import openai_options
    from conformal_retrievers.tracking import track
else:  # what needs asyncio, sqlite3 and the like is loaded by whoever uses it
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "beir": "read_beir",
            "cache": "Cache",
            "calibration": "Calibration calibrate",
            "choosing": "coverage_curve threshold_for_budget",
            "claims": (
                "Agreement AnnotatedAnswer AnswerFilter ClaimCalibration ClaimEvaluation "
                "ClaimFilter ClaimRelevance ClaimScorer FilteredAnswer FilteredClaims "
                "SelfConfidence annotate calibrate_claims claim_relevance decompose "
                "evaluate_claims merge"
            ),
            "comparison": "compare fixed_thresholds top_k",
            "diagnostics": "Diagnosis diagnose",
            "evaluation": "Evaluation evaluate",
            "filter_log": "FilterLog read_log",
            "filtering": (
                "CalibrationMismatch ConformalFilter Filtered NothingKept Refused Unscorable"
            ),
            "jsonl": "iter_jsonl read_jsonl write_jsonl",
            "judged": "JudgedQuery ScoredQuery Snippet",
            "llm": "LLM",
            "monitor": "Monitor",
            "planning": "plan promise",
            "scoring": (
                "CachedScorer Cascade CrossEncoderScorer EmbeddingScorer FunctionScorer "
                "LearnedScorer LLMScorer QueryZScore RetrievalScorer Scorer TieBreak YesScorer "
                "score_queries"
            ),
            "servers": "openai_options",
            "tracking": "track",
        },
    )

__all__ = [
    "LLM",
    "Agreement",
    "AnnotatedAnswer",
    "AnswerFilter",
    "Cache",
    "CachedScorer",
    "Calibration",
    "CalibrationMismatch",
    "Cascade",
    "ClaimCalibration",
    "ClaimEvaluation",
    "ClaimFilter",
    "ClaimRelevance",
    "ClaimScorer",
    "ConformalFilter",
    "CrossEncoderScorer",
    "Diagnosis",
    "EmbeddingScorer",
    "Evaluation",
    "FilterLog",
    "Filtered",
    "FilteredAnswer",
    "FilteredClaims",
    "FunctionScorer",
    "JudgedQuery",
    "LLMScorer",
    "LearnedScorer",
    "Monitor",
    "NothingKept",
    "QueryZScore",
    "Refused",
    "RetrievalScorer",
    "ScoredQuery",
    "Scorer",
    "SelfConfidence",
    "Snippet",
    "TieBreak",
    "Unscorable",
    "YesScorer",
    "__version__",
    "annotate",
    "calibrate",
    "calibrate_claims",
    "certify",
    "claim_relevance",
    "compare",
    "coverage_curve",
    "decompose",
    "diagnose",
    "evaluate",
    "evaluate_claims",
    "fixed_thresholds",
    "iter_jsonl",
    "merge",
    "openai_options",
    "plan",
    "promise",
    "read_beir",
    "read_jsonl",
    "read_log",
    "score_queries",
    "threshold_for_budget",
    "top_k",
    "track",
    "write_jsonl",
]
