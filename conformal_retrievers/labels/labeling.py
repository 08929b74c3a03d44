"""Judgements that nobody made by hand: from an LLM, or from a reference answer and its source.

An LLM is asked of each snippet whether it contains or supports a fact (Chakraborty et al. 2025,
arXiv 2511.17908). With a reference answer r and the documents d(r) that hold it, a snippet c is
relevant by its source (Geissler et al. 2026, arXiv 2605.05244, eq. 1) iff

    d(c) ∈ d(r)  and  ROUGE-L(c, r) ≥ P_β({ROUGE-L(c', r') : d(c') ∉ d(r')})

with the β-quantile P_β over the snippets of all queries. Both ways err: `audit.py` measures how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from unicodedata import normalize

import numpy as np

from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.llm.verdicts import VERDICT, Verdicts, aask_verdicts, ask_verdicts

require("labels", "rapidfuzz", "regex")
import regex
from pydantic import JsonValue
from rapidfuzz.distance import LCSseq

from conformal_retrievers.llm.cache import Cache

# --- what is labelled -----------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class AnsweredQuery:
    """A query, its retrieved snippets in the retriever's order, and its reference answer.

    `answer` may also be the fact to be supported; where there is none the query is, as with claims.
    `documents` are those that hold the answer. `id` and `group` are those of `JudgedQuery`. Raises
    TypeError, naming the field, for what is no text.
    """

    query: str
    snippets: tuple[Snippet, ...]
    answer: str | None = None
    documents: frozenset[str] = frozenset()
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
        if answer is not None and not isinstance(answer, str):
            raise TypeError(f"answer is {answer!r}; give the reference answer as a str, or None")
        if isinstance(documents, str):
            raise TypeError(f"documents is the str {documents!r}; give a list of documents")
        fields = {
            "query": query,
            "snippets": as_snippets(snippets),
            "answer": answer,
            "documents": frozenset(documents),
            "id": id,
            "group": group,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self.judged([False] * len(self.snippets))  # checks the rest before a label is paid for

    def judged(self, relevant: Iterable[bool]) -> JudgedQuery:
        """Return the query with a judgement for each snippet."""
        return JudgedQuery(self.query, self.snippets, relevant, id=self.id, group=self.group)


@dataclass(frozen=True)
class Labelled:
    """Judged queries, and what is to be known of their labels.

    `labels` says where they come from: give it to `calibrate(labels=)`. A query with a snippet that
    got no verdict is not among `judged`: it is in `unlabelled`, with the reason for each such
    snippet by its place. `usage` is what the LLM took.
    """

    judged: tuple[JudgedQuery, ...]
    labels: Mapping[str, JsonValue]
    unlabelled: tuple[tuple[AnsweredQuery, Mapping[int, str]], ...] = ()
    usage: Usage = field(default_factory=Usage)


# --- by an LLM ------------------------------------------------------------------------------------


def label_by_llm(
    queries: Iterable[AnsweredQuery],
    llm: LLM,
    *,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Labelled:
    """Ask an LLM of each snippet whether it contains or supports the query's answer.

    `prompt` has the fields $query, $fact and $snippet; it is prompts/label.txt by default. The
    reply is {"reasoning", "verdict"} with the verdict "yes" or "no"; a reply that is anything else,
    cut off or refused is no verdict, and never a no. A blank snippet holds no fact: it is labelled
    irrelevant, and nobody is asked. Equal texts of a query are asked about once.

    At most `concurrency` requests are under way; with a `cache`, a run that was interrupted, or
    left snippets unlabelled, asks only for the rest when it is started again. Raises ValueError for
    a prompt with other fields and, naming the query, for a blank answer; and what the model raises
    where asking again could not help.
    """
    checked = _checked(queries)
    prompt = prompt or Prompt.load("label")
    requests = _requests(checked, prompt)
    verdicts = ask_verdicts(llm, requests, concurrency=concurrency, cache=cache, progress=progress)
    return _labelled(checked, verdicts, llm, prompt)


async def alabel_by_llm(
    queries: Iterable[AnsweredQuery],
    llm: LLM,
    *,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Labelled:
    """Return what `label_by_llm` returns, without blocking the event loop."""
    checked = _checked(queries)
    prompt = prompt or Prompt.load("label")
    requests = _requests(checked, prompt)
    verdicts = await aask_verdicts(
        llm, requests, concurrency=concurrency, cache=cache, progress=progress
    )
    return _labelled(checked, verdicts, llm, prompt)


def _requests(queries: Sequence[AnsweredQuery], prompt: Prompt) -> list[Request]:
    return [
        prompt.request(
            {"query": query.query, "fact": _fact(query), "snippet": snippet.text}, schema=VERDICT
        )
        for query in queries
        for snippet in query.snippets
        if snippet.text.strip()
    ]


def _fact(query: AnsweredQuery) -> str:
    fact = query.query if query.answer is None else query.answer
    if not fact.strip():
        field = "query" if query.answer is None else "answer"
        raise ValueError(
            f"{_where(query)}: {field} is {fact!r}; give the fact that snippets are to support"
        )
    return fact


def _labelled(
    queries: Sequence[AnsweredQuery], verdicts: Verdicts, llm: LLM, prompt: Prompt
) -> Labelled:
    judged = []
    unlabelled = []
    said_of_each = iter(verdicts.values)
    for query in queries:
        of_query = [s.text.strip() != "" and next(said_of_each) for s in query.snippets]
        missing = {i: said for i, said in enumerate(of_query) if isinstance(said, str)}
        if missing:
            unlabelled.append((query, missing))
        else:
            judged.append(query.judged([said is True for said in of_query]))
    labels: dict[str, JsonValue] = {
        "source": "LLM",
        "llm": llm.name,
        "prompt": prompt.hash,
        "queries": len(judged),
        "queries_without_verdict": len(unlabelled),
    }
    return Labelled(tuple(judged), labels, tuple(unlabelled), verdicts.usage)


# --- by source and reference answer ---------------------------------------------------------------


def label_by_source(queries: Iterable[AnsweredQuery], *, beta: float) -> Labelled:
    """Label relevant what is from the right document and as close to the answer as eq. 1 asks.

    `beta` in [0, 1] is the share of the snippets from wrong documents that ROUGE-L is to exceed,
    interpolated linearly between them. At 0 the document alone decides, and no answer is needed.
    The paper takes 0.99 where documents are long; but where an answer is a few words, F1 falls with
    the snippet's length, and a high beta rejects much that holds the answer. Raises ValueError,
    naming the query, where a snippet's document, the right documents or the answer are missing,
    where no snippet is from a wrong document but beta is above 0, and unless 0 ≤ beta ≤ 1.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta is {beta}; give a share from 0 to 1, such as 0.99")
    checked = _checked(queries)
    for query in checked:
        _check_sources(query, beta)
    right = [[s.document in query.documents for s in query.snippets] for query in checked]
    labels: dict[str, JsonValue] = {
        "source": "document",
        "beta": float(beta),
        "queries": len(checked),
    }
    if beta == 0:
        return Labelled(tuple(q.judged(r) for q, r in zip(checked, right, strict=True)), labels)
    overlap = [[rouge_l(s.text, query.answer or "") for s in query.snippets] for query in checked]
    wrong = [
        h
        for rs, hs in zip(right, overlap, strict=True)
        for r, h in zip(rs, hs, strict=True)
        if not r
    ]
    if not wrong:
        raise ValueError(
            "no snippet is from a wrong document, so that beta says nothing; retrieve deeper, or "
            "give beta=0 to judge by the document alone"
        )
    threshold = float(np.quantile(wrong, beta))
    judged = tuple(
        query.judged([r and h >= threshold for r, h in zip(rs, hs, strict=True)])
        for query, rs, hs in zip(checked, right, overlap, strict=True)
    )
    labels |= {"source": "document and ROUGE-L", "rouge_l_threshold": threshold}
    return Labelled(judged, labels)


def _check_sources(query: AnsweredQuery, beta: float) -> None:
    where = _where(query)
    nameless = next((i for i, s in enumerate(query.snippets) if s.document is None), None)
    if nameless is not None:
        raise ValueError(f"{where}: snippets[{nameless}].document is None; name its document")
    if not query.documents:
        raise ValueError(f"{where}: documents is empty; name those that hold the answer")
    if beta > 0 and not (query.answer and _tokens(query.answer)):
        raise ValueError(
            f"{where}: answer is {query.answer!r}, which has no words; give the reference answer, "
            "or beta=0 to judge by the document alone"
        )


def _where(query: AnsweredQuery) -> str:
    return f"query {query.query[:60]!r}" if query.id is None else f"query {query.id!r}"


# Scripts without spaces between words: a character, with its marks, is a token.
_UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}\p{N}]]"
_TOKEN = regex.compile(
    rf"{_UNSPACED}\p{{M}}*+|(?:(?!{_UNSPACED})[\p{{L}}\p{{N}}\p{{M}}])++", regex.VERSION1
)


def rouge_l(text: str, reference: str) -> float:
    """Return ROUGE-L of a text against a reference: F1 of their longest common subsequence.

    2·LCS/(m + n) over m and n tokens (Lin 2004, "ROUGE: A Package for Automatic Evaluation of
    Summaries"), 0 where either has none. Tokens are runs of letters and digits in lower case, as in
    `rouge-score` without stemming, which knows ASCII alone; here any script's count, and each
    character where a script sets no spaces between words.

    >>> rouge_l("The cat sat.", "the cat is fat")
    0.5714285714285714
    """
    one, other = _tokens(text), _tokens(reference)
    if not one or not other:
        return 0.0
    return 2 * LCSseq.similarity(one, other) / (len(one) + len(other))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = _TOKEN.findall(normalize("NFC", text.lower()))
    return tokens


def _checked(queries: Iterable[object]) -> list[AnsweredQuery]:
    checked: list[AnsweredQuery] = []
    for i, query in enumerate([queries] if isinstance(queries, str) else queries):
        if not isinstance(query, AnsweredQuery):
            raise TypeError(f"queries[{i}] is {query!r:.60}; give AnsweredQuery objects")
        checked.append(query)
    return checked
