"""Relevance judgements from an LLM or a reference answer."""

from conformal_retrievers.labels.answers import label_by_answer
from conformal_retrievers.labels.labeling import (
    AnsweredQuery,
    Labelled,
    label_by_llm,
    label_by_source,
    rouge_l,
)
from conformal_retrievers.labels.questions import label_questions
from conformal_retrievers.labels.record import read_labels, write_labelled

__all__ = ["AnsweredQuery", "Labelled"]
__all__ += ["label_by_answer", "label_by_llm", "label_by_source", "label_questions"]
__all__ += ["read_labels", "rouge_l", "write_labelled"]
