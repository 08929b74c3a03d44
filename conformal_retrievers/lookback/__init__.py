"""Confidence in answers from attention: lookback ratios, a classifier of them, and flags.

`conformal_retrievers.lookback.model` reads the attention; it is imported by itself, because it
needs torch and transformers.
"""

from conformal_retrievers.lookback.answering import Answering
from conformal_retrievers.lookback.classifier import FactualityClassifier
from conformal_retrievers.lookback.consistency import ConsistencyLabels, Response, label_consistency
from conformal_retrievers.lookback.flag import (
    WITHOUT_CONFIDENCE,
    Confidence,
    FactualityFlag,
    FlagEvaluation,
    calibrate_flag,
)
from conformal_retrievers.lookback.prompt import RagPrompt
from conformal_retrievers.lookback.ratios import (
    JudgedRatios,
    LookbackRatios,
    SegmentAttention,
    lookback_ratios,
)

__all__ = [
    "WITHOUT_CONFIDENCE",
    "Answering",
    "Confidence",
    "ConsistencyLabels",
    "FactualityClassifier",
    "FactualityFlag",
    "FlagEvaluation",
    "JudgedRatios",
    "LookbackRatios",
    "RagPrompt",
    "Response",
    "SegmentAttention",
    "calibrate_flag",
    "label_consistency",
    "lookback_ratios",
]
