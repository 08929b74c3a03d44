"""A stand-in for OpenProvence's model: its `process`, with word overlap in place of the network.

How sentences are handed in, split again, numbered, kept and returned follows
`OpenProvenceModel.process` of github.com/hotchpotch/open_provence (October 2025); of its arguments
there are those that are used. A sentence's probability is the share of the question's words in it,
halved, plus half of that of its context.
"""

import re
from collections.abc import Sequence
from typing import Any


class OpenProvenceStandIn:
    def __init__(self) -> None:
        self.calls: list[Sequence[Any]] = []  # the contexts of each call

    def process(
        self,
        question: str,
        context: Sequence[Sequence[str]],
        *,
        threshold: float,
        show_progress: bool = True,
        return_sentence_metrics: bool = False,
        return_sentence_texts: bool = False,
    ) -> dict[str, Any]:
        assert not show_progress  # which would print bars
        self.calls.append(context)
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


def split_again(document: Sequence[str]) -> list[str]:
    """Return a document's sentences; those of several lines that are hardly punctuated as lines."""
    sentences = []
    for sentence in document:
        if sentence.strip():
            lines = [line for line in sentence.splitlines(keepends=True) if line.strip()]
            punctuated = sum(sentence.count(mark) for mark in ".?!") >= len(lines)
            whole = "\n" not in sentence or len(lines) <= 1 or punctuated
            sentences += [sentence] if whole else lines
    return sentences


def probabilities_of(question: str, sentences: Sequence[str]) -> list[float]:
    asked = words(question)
    own = [len(asked & words(sentence)) / len(asked) for sentence in sentences]
    return [(share + len(asked & words(" ".join(sentences))) / len(asked)) / 2 for share in own]


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
