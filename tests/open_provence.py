"""A stand-in for OpenProvence's model: its `process`, with word overlap in place of the network.

The signature, how sentences are handed in, split again, numbered, kept and returned, follow
`OpenProvenceModel.process` of github.com/hotchpotch/open_provence (October 2025). A sentence's
probability is the share of the question's words in it, halved, plus half of that of its context.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class OpenProvenceStandIn:
    def __init__(self) -> None:
        self.calls: list[Sequence[Any]] = []  # the contexts of each call

    def process(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str] | Sequence[Sequence[str]],
        title: str | Sequence[str] | Sequence[Sequence[str]] | None = "first_sentence",
        first_line_as_title: bool = False,
        *,
        batch_size: int = 32,
        threshold: float | None = None,
        always_select_title: bool = False,
        reorder: bool = False,
        top_k: int | None = None,
        sentence_splitter: Callable[[str], list[str]] | None = None,
        language: str | None = None,
        use_best_reranker_score: bool = True,
        zero_score_when_empty: bool = True,
        show_progress: bool = True,
        debug_messages: bool | Callable[[str], None] = False,
        enable_warnings: bool = True,
        strip_sentences: bool = False,
        respect_sentence_boundaries: bool = False,
        return_sentence_metrics: bool = False,
        return_sentence_texts: bool = False,
        show_inference_progress: bool | None = None,
        preprocess_workers: int | None = None,
        preprocess_batch_size: int | None = None,
        torch_dataloader_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        assert isinstance(question, str)  # one query with several documents: no more is imitated
        assert not isinstance(context, str)
        assert not show_progress  # which would print bars
        self.calls.append(context)
        threshold = 0.1 if threshold is None else threshold
        kept: list[list[str]] = []
        removed: list[list[str]] = []
        probabilities: list[list[float]] = []
        for document in context:
            sentences = split_again(document)
            found = probabilities_of(question, sentences)
            probabilities.append(found)
            pairs = [*zip(sentences, found, strict=True)]
            kept.append([sentence for sentence, p in pairs if p > threshold])
            removed.append([sentence for sentence, p in pairs if not p > threshold])
        result = {
            "pruned_context": ["".join(sentences) for sentences in kept],
            "reranking_score": [max(found, default=None) for found in probabilities],
            "compression_rate": [0.0 for _ in kept],
            "title": [None for _ in kept],
            "timing": {},
            "performance_trace": None,
        }
        if return_sentence_texts:
            result |= {"kept_sentences": kept, "removed_sentences": removed}
        if return_sentence_metrics:
            result["sentence_probabilities"] = probabilities
        return result


def split_again(document: str | Sequence[str]) -> list[str]:
    """Return a document's sentences; those of several lines that are hardly punctuated as lines."""
    given = re.split(r"(?<=[.?!])(?=\s)", document) if isinstance(document, str) else document
    sentences = []
    for sentence in given:
        if sentence.strip():
            lines = [line for line in sentence.splitlines(keepends=True) if line.strip()]
            punctuated = sum(sentence.count(mark) for mark in ".?!") >= len(lines)
            whole = "\n" not in sentence or len(lines) <= 1 or punctuated
            sentences += [sentence] if whole else lines
    return sentences


def probabilities_of(question: str, sentences: Sequence[str]) -> list[float]:
    asked = words(question)
    own = [len(asked & words(sentence)) / len(asked) for sentence in sentences]
    together = len(asked & words(" ".join(sentences))) / len(asked)
    return [(share + together) / 2 for share in own]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
