"""Relevance judgements from an LLM or a reference answer."""

from conformal_retrievers.labels.answers import label_by_answer
from conformal_retrievers.labels.labeling import AnsweredQuery, Labelled, label_by_llm
from conformal_retrievers.labels.questions import label_questions
from conformal_retrievers.labels.record import read_labels, write_labelled

__all__ = ["AnsweredQuery", "Labelled", "label_by_answer", "label_by_llm", "label_questions"]
__all__ += ["read_labels", "write_labelled"]
