"""The quality of answers from a filtered context, compared with answers from the whole context.

An LLM judges whether the context supports each sentence of an answer, and whether the answer states
each of the query's nuggets: the facts that a good answer contains, with weights w. Per query,

    precision = supported sentences / sentences      recall = Σ w of nuggets stated / Σ w
    F1 = 2 · precision · recall / (precision + recall),   0 where both are 0

These are the sentence support and the nugget coverage of ARGUE (Mayfield et al. 2024, SIGIR;
AutoARGUE, arXiv 2509.26184), with which Chakraborty et al. 2025 (arXiv 2511.17908) compare filtered
and unfiltered contexts. ARGUE judges a sentence against the documents that it cites. Here the whole
context takes their place, because that is what a filter changes. The script prints means over
queries with bootstrap intervals and, with `--unfiltered`, the paired differences.

    python -m benchmarks.nuggets filtered.jsonl [--unfiltered all.jsonl] --model MODEL
        [--base-url URL] [--cache replies.db]

A line of a file is {"id", "query", "sentences": […], "context": […], "nuggets": […]} and may have
"weights" of the nuggets (ARGUE: 2 for vital, 1 for okay). The prompts are prompts/support.txt and
prompts/nugget.txt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from conformal_retrievers.llm.ask import LLM, ask_verdicts
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import VERDICT

MEASURES = ("precision", "recall", "F1")
RESAMPLES = 2000
PROMPTS = Path(__file__).parent / "prompts"

Answer = dict[str, Any]


def precision_recall_f1(
    supported: Iterable[bool], stated: Iterable[bool], weights: Iterable[float] | None = None
) -> tuple[float, float, float]:
    """Return precision, recall and F1 of one answer.

    >>> precision_recall_f1([True, False, True, True], [True, False], [2, 1])
    (0.75, 0.6666666666666666, 0.7058823529411765)
    >>> precision_recall_f1([], [False])
    (0.0, 0.0, 0.0)
    """
    sentences, nuggets = list(supported), list(stated)
    w = np.ones(len(nuggets)) if weights is None else np.array(list(weights), dtype=float)
    if len(w) != len(nuggets) or not len(w) or not (w > 0).all():
        raise ValueError(f"weights is {w.tolist()}; give a positive weight for each nugget")
    precision = sum(sentences) / len(sentences) if sentences else 0.0
    recall = float(w @ nuggets / w.sum())
    both = precision + recall
    return precision, recall, 2 * precision * recall / both if both else 0.0


def judge(
    answers: list[Answer], llm: LLM, cache: Cache | None = None
) -> dict[str, tuple[float, float, float]]:
    """Return precision, recall and F1 by the answer's id; print the answers without a verdict.

    A sentence without context is unsupported and a nugget without sentences unstated, without
    asking. An answer with an unreadable verdict is left out, and never counts as a no.
    """
    verdicts, _ = ask_verdicts(llm, list(_requests(answers)), cache=cache, progress=True)
    said = iter(verdicts)
    judged = {}
    for answer in answers:
        sentences, nuggets = _asked(answer)
        supported = list(islice(said, len(sentences))) or [False] * len(answer["sentences"])
        stated = list(islice(said, len(nuggets))) or [False] * len(answer["nuggets"])
        reason = next((v for v in [*supported, *stated] if isinstance(v, str)), None)
        if reason is not None:
            print(f"answer {answer['id']!r} is left out: {reason}")
            continue
        judged[answer["id"]] = precision_recall_f1(supported, stated, answer.get("weights"))
    return judged


def _asked(answer: Answer) -> tuple[list[str], list[str]]:
    """Return the sentences and the nuggets that the LLM has to judge."""
    return (
        answer["sentences"] if answer["context"] else [],
        answer["nuggets"] if answer["sentences"] else [],
    )


def _requests(answers: Iterable[Answer]) -> Iterator[Request]:
    support, nugget = (
        Prompt.parse((PROMPTS / f"{name}.txt").read_text(encoding="utf-8"))
        for name in ("support", "nugget")
    )
    for answer in answers:
        sentences, nuggets = _asked(answer)
        for sentence in sentences:
            values = {"sentence": sentence, "context": answer["context"]}
            yield support.request(values, schema=VERDICT)
        text = " ".join(answer["sentences"])
        for fact in nuggets:
            values = {"query": answer["query"], "nugget": fact, "answer": text}
            yield nugget.request(values, schema=VERDICT)


def mean_with_interval(table: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the mean and the ends of the 95 % bootstrap interval over rows, (3, columns)."""
    n = len(table)
    means = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES) @ table / n
    return np.stack([table.mean(axis=0), *np.quantile(means, [0.025, 0.975], axis=0)])


def read(path: Path) -> list[Answer]:
    answers = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if len({answer["id"] for answer in answers}) < len(answers):
        raise ValueError(f"{path}: an id occurs twice; give one answer to each query")
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("filtered", type=Path)
    parser.add_argument("--unfiltered", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--base-url")
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    llm = openai_llm(arguments.model, base_url=arguments.base_url)
    cache = Cache(arguments.cache) if arguments.cache else None
    rng = np.random.default_rng(0)

    table = Table("answers", "queries", *MEASURES)

    def add(name: str, rows: list[NDArray[np.float64]]) -> None:
        found = mean_with_interval(np.array(rows), rng).T
        cells = [f"{mean:.1%} [{low:.1%}, {high:.1%}]" for mean, low, high in found]
        table.add_row(name, str(len(rows)), *cells)

    judged = {"filtered": judge(read(arguments.filtered), llm, cache)}
    if arguments.unfiltered:
        judged["unfiltered"] = judge(read(arguments.unfiltered), llm, cache)
    for name, answers in judged.items():
        add(name, [np.array(measures) for measures in answers.values()])
    if arguments.unfiltered:
        ours, theirs = judged["filtered"], judged["unfiltered"]
        both = [id for id in ours if id in theirs]
        add("difference", [np.subtract(ours[id], theirs[id]) for id in both])
    Console().print(table)


if __name__ == "__main__":
    main()
