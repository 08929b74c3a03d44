"""Relevance labels from an LLM, or from a reference answer and its source.

An LLM judges whether each snippet contains or supports a fact (Chakraborty et al. 2025,
arXiv 2511.17908). With a reference answer r and the documents d(r) that contain it, a snippet c is
relevant by its source (Geissler et al. 2026, arXiv 2605.05244, eq. 1) iff

    d(c) ∈ d(r)  and  ROUGE-L(c, r) ≥ P_β({ROUGE-L(c', r') : d(c') ∉ d(r')})

with the β-quantile P_β over the snippets of all queries. Both methods err.
"""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache as computed_once
from typing import Any
from unicodedata import normalize

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.checks import all_of, query_name
from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.data.sentences import Sentences, Split, cut
from conformal_retrievers.extras import require
from conformal_retrievers.labels.sentences import ask_numbers
from conformal_retrievers.llm.ask import LLM, ask_verdicts
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import VERDICT, Usage

logger = logging.getLogger("conformal_retrievers")


@dataclass(frozen=True, init=False)
class AnsweredQuery:
    """A query with its retrieved snippets, in the retriever's order, and its reference answer.

    Its parameters are its fields. Raises as `JudgedQuery`.
    """

    query: str
    snippets: tuple[Snippet, ...]
    answer: str | None = None  # or the fact to be supported; without one, the query is the fact
    documents: frozenset[str] = frozenset()  # the documents that contain the answer
    id: str | None = None
    group: str | None = None

    def __init__(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        answer: str | None = None,
        *,
        documents: Iterable[str] = (),
        id: str | None = None,
        group: str | None = None,
    ) -> None:
        if isinstance(documents, str):
            raise TypeError(f"documents is the str {documents!r:.60}; give a list of documents")
        fields: dict[str, object] = {"query": query, "answer": answer, "id": id, "group": group}
        fields |= {"snippets": as_snippets(snippets), "documents": frozenset(documents)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self.judged([False] * len(self.snippets))  # checks the rest before a label is paid for

    def judged(self, relevant: Iterable[bool], sentences: Sentences | None = None) -> JudgedQuery:
        """Return the query with a judgement for each snippet, or for each sentence of these."""
        snippets = self.snippets if sentences is None else sentences.snippets
        split = None if sentences is None else sentences.split
        names: Any = {"id": self.id, "group": self.group, "split": split}
        return JudgedQuery(self.query, snippets, relevant, **names)


@dataclass(frozen=True)
class Labelled:
    """Judged queries with the origin of their labels."""

    judged: tuple[JudgedQuery, ...]
    labels: Mapping[str, JsonValue]  # the origin, for `calibrate(labels=)`
    unlabelled: tuple[tuple[AnsweredQuery, Mapping[int, str]], ...] = ()  # why, by snippet's place
    usage: Usage = field(default_factory=Usage)


def label_by_llm(
    queries: Iterable[AnsweredQuery],
    llm: LLM,
    *,
    split: Split | None = None,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
    most_calls: int | None = None,
) -> Labelled:
    """Let an LLM judge whether each snippet contains or supports the query's answer.

    A query with a cut-off, refused or unreadable reply is in `unlabelled`. A blank snippet is
    irrelevant, and the LLM is not asked about it; equal texts of a query are asked about once. If
    none of the first 8 calls is answered, no further one is made.

    `prompt` has the fields $query, $fact and $snippet, or, with `split`, $query, $fact and
    $sentences. `split` cuts the snippets: the LLM is asked once a snippet for the numbers of the
    sentences that count, or several times where there are more than 50, and the judged queries are
    of sentences.

    `concurrency`, `cache` and `progress` are as for `ask`. With a cache, a repeated run asks only
    for what is unlabelled. The number of calls is logged before the first, or printed on stderr
    above the progress bar. If it is above `most_calls`, none is made; give 0 to learn the number.

    Raises TypeError for other objects than `AnsweredQuery`, such as queries that are judged
    already, and ValueError for a prompt with other fields, for a blank answer, naming its query,
    and for more calls than `most_calls`, with their number.
    """
    queries = all_of(AnsweredQuery, queries, "queries")
    prompt = prompt or Prompt.load("label_sentences" if split else "label")

    def announce(n: int, missing: int) -> None:
        snippets = sum(len(query.snippets) for query in queries)
        text = (
            f"{len(queries):,} questions with {snippets:,} snippets take {n:,} calls of "
            f"{llm.name}, {n - missing:,} of them in the cache"
        )
        if most_calls is not None and missing > most_calls:
            raise ValueError(
                f"most_calls is {most_calls}, but {text}; allow {missing}, or give fewer questions"
            )
        if progress:
            require("cli", "rich")  # before a call is made
            print(text, file=sys.stderr)
        else:
            logger.info(text)

    options: dict[str, Any] = {"concurrency": concurrency, "cache": cache, "progress": progress}
    options |= {"before": announce, "give_up": True}
    cuts = [cut(query.snippets, split) for query in queries] if split else []
    facts = [_fields(query) for query in queries]
    verdicts: Sequence[bool | str | list[bool]]
    if split:
        documents = [
            (fields, [document.text[start:end] for start, end in ranges])
            for fields, sentences in zip(facts, cuts, strict=True)
            for document, ranges in zip(sentences.documents, sentences.ranges, strict=True)
            if document.text.strip()
        ]
        verdicts, usage = ask_numbers(llm, prompt, documents, **options)
    else:
        requests = [
            prompt.request({**fields, "snippet": s.text}, schema=VERDICT)
            for fields, query in zip(facts, queries, strict=True)
            for s in query.snippets
            if s.text.strip()
        ]
        verdicts, usage = ask_verdicts(llm, requests, **options)
    judged, unlabelled = [], []
    verdict = iter(verdicts)
    for i, query in enumerate(queries):
        given = [s.text.strip() != "" and next(verdict) for s in query.snippets]
        if reasons := {i: value for i, value in enumerate(given) if isinstance(value, str)}:
            unlabelled.append((query, reasons))
        else:
            marks = [mark if isinstance(mark, list) else [mark is True] for mark in given]
            relevant = [mark for of_snippet in marks for mark in of_snippet]
            judged.append(query.judged(relevant, cuts[i] if split else None))
    if unlabelled:
        logger.warning(
            "%d of %d questions have no verdict and are left out, see `unlabelled`. Run it again "
            "with the same cache=Cache(path) to ask only for what it lacks",
            *(len(unlabelled), len(queries)),
        )
    labels: dict[str, JsonValue] = {"source": "LLM", "llm": llm.name, "prompt": prompt.hash}
    labels |= {"queries": len(judged), "queries_without_verdict": len(unlabelled)}
    return Labelled(tuple(judged), labels, tuple(unlabelled), usage)


def _fields(query: AnsweredQuery) -> dict[str, str]:
    name = "query" if query.answer is None else "answer"
    fact = query.query if query.answer is None else query.answer
    if not fact.strip():
        where = query_name(query.id, query.query)
        raise ValueError(f"{where}: {name} is {fact!r:.60}; give the fact to be supported")
    return {"query": query.query, "fact": fact}


def label_by_source(queries: Iterable[AnsweredQuery], *, beta: float) -> Labelled:
    """Label snippets as relevant by their document and their overlap with the answer (eq. 1).

    `beta` in [0, 1] is the share of the snippets from wrong documents whose ROUGE-L is exceeded. At
    0 the document alone decides and no answer is needed. The paper uses 0.99 for long answers; with
    an answer of a few words, a high beta rejects many snippets that contain it.

    Raises ValueError for a beta outside [0, 1]; if a snippet's document, the right documents or the
    answer are missing, naming the query; and if beta is above 0 and no document is wrong. Raises
    TypeError for other objects than `AnsweredQuery`.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}; give a share from 0 to 1, such as 0.99")
    queries = all_of(AnsweredQuery, queries, "queries")
    for query in queries:
        _check_sources(query, beta)
    right = [[s.document in q.documents for s in q.snippets] for q in queries]
    labels: dict[str, JsonValue] = {"source": "document", "beta": float(beta)}
    labels["queries"] = len(queries)
    if beta > 0:
        overlap = [[rouge_l(s.text, q.answer or "") for s in q.snippets] for q in queries]
        both = [list(zip(r, o, strict=True)) for r, o in zip(right, overlap, strict=True)]
        wrong = [value for query in both for is_right, value in query if not is_right]
        if not wrong:
            raise ValueError("beta needs snippets from wrong documents; retrieve more or give 0")
        threshold = float(np.quantile(wrong, beta))
        right = [[is_right and value >= threshold for is_right, value in query] for query in both]
        labels |= {"source": "document and ROUGE-L", "rouge_l_threshold": threshold}
    return Labelled(tuple(q.judged(r) for q, r in zip(queries, right, strict=True)), labels)


def _check_sources(query: AnsweredQuery, beta: float) -> None:
    where = query_name(query.id, query.query)
    for i, snippet in enumerate(query.snippets):
        if snippet.document is None:
            raise ValueError(f"{where}: snippets[{i}].document is None; give it")
    if not query.documents:
        raise ValueError(f"{where}: documents is empty; give those that contain the answer")
    if beta > 0 and not tokens_of(query.answer or ""):
        raise ValueError(f"{where}: answer has no words; give one, or beta=0")


def rouge_l(text: str, reference: str) -> float:
    """Return ROUGE-L of a text and a reference: F1 of their longest common subsequence.

    It is 2·LCS/(m + n) over m and n tokens (Lin 2004, "ROUGE: A Package for Automatic Evaluation of
    Summaries"), 0 where either has none. Tokens are runs of letters and digits in lower case, as in
    `rouge-score` without stemming, but of any script, and single characters in scripts without
    spaces between words. It needs the extra `text`.

    >>> rouge_l("The cat sat.", "the cat is fat")
    0.5714285714285714
    """
    ours, theirs = tokens_of(text), tokens_of(reference)
    if not ours or not theirs:
        return 0.0
    from rapidfuzz.distance import LCSseq

    return 2 * LCSseq.similarity(ours, theirs) / (len(ours) + len(theirs))


def tokens_of(text: str) -> list[str]:
    """Return the words of a text, see `rouge_l`."""
    return list(_token().findall(normalize("NFC", text.lower())))


@computed_once
def _token() -> Any:
    require("text", "rapidfuzz", "regex")
    import regex

    # Scripts without spaces between words: a character with its marks is a token.
    single = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}\p{N}]]"
    pattern = rf"{single}\p{{M}}*+|(?:(?!{single})[\p{{L}}\p{{N}}\p{{M}}])++"
    return regex.compile(pattern, regex.VERSION1)
