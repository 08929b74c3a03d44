"""Asking a chain about many questions: with a bound, a cache, references and comparisons."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from dataclasses import replace
from typing import Any, TypeAlias, TypedDict, TypeVar

import numpy as np

from conformal_retrievers.answers.same import Same, has_answer, llm_same, same_text
from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import ENOUGH, check_count, with_bar
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import background_loop
from conformal_retrievers.scoring.scorer import judged_queries

logger = logging.getLogger("conformal_retrievers")

T = TypeVar("T")
Answer: TypeAlias = Callable[[str, Sequence[Snippet]], str | Awaitable[str]]
Expected: TypeAlias = Mapping[str, str | Sequence[str]]  # reference answers, by question
References: TypeAlias = tuple[str, ...]  # of which one suffices
CHARACTERS = 4  # of a token, about


class AskOptions(TypedDict, total=False):
    """The options of `scan_answers`, `calibrate_answers` and `evaluate_answers`."""

    expected: Expected | None
    same: Same | None
    chain: str | None
    concurrency: int
    cache: Cache | None
    progress: bool


class Misuse(TypeError):
    """A chain or a comparison returns something else than it must, whatever the question."""


class Asked:
    """Questions, the chain that is asked for their answers, and what these are compared with.

    What is given is checked before anything is paid for.
    """

    def __init__(
        self,
        queries: Iterable[JudgedQuery],
        answer: Answer,
        *,
        expected: Expected | None = None,
        same: Same | None = None,
        chain: str | None = None,
        concurrency: int = 8,
        cache: Cache | None = None,
        progress: bool = False,
    ) -> None:
        self.queries = judged_queries(queries, "queries")
        if not self.queries:
            raise ValueError(
                "queries is empty; give those of judge_retriever(retriever, questions)"
            )
        for query in self.queries:
            if query.split is not None:
                raise ValueError(
                    f"{query.name} is cut into sentences by {query.split!r}; give whole snippets, "
                    "such as judge_retriever without split= returns"
                )
        check_copies(self.queries)
        if not isinstance(cache, Cache | None):
            raise TypeError(f"cache is {cache!r:.60}; give Cache(path), or None")
        if same is not None:
            name_of("same", same)
        if isinstance(same, llm_same) and same.cache is None:
            same = replace(same, cache=cache)
        self.answer, self.chain = answer, name_of("answer", answer, chain)
        if cache is not None and not (chain or getattr(answer, "name", None)):
            raise ValueError(
                "chain is missing; with a cache, give chain=, a name that changes with the chain: "
                "its answers are found by it"
            )
        self.expected = None if expected is None else references_of(self.queries, expected)
        self.same, self.cache, self.progress = same, cache, progress
        self.unchanged: Same = same or same_text  # which compares an answer with another one,
        self.right: Same = same or has_answer  # or with a reference
        self.concurrency = check_count(concurrency, "concurrency")
        self._stopped = threading.Event()
        if isinstance(same, llm_same):
            same.check()  # with six short calls, before a score or an answer is paid for

    def __call__(self, question: str, snippets: Sequence[Snippet], *, first: bool = False) -> str:
        """Return the chain's answer; the first one from all snippets is asked for on its own.

        Raises ValueError for a blank answer from snippets, `Misuse` for something that is no text,
        and InterruptedError once it is stopped.
        """
        request = json.dumps([question, [snippet.text for snippet in snippets], first])
        if self.cache is not None:
            (known,) = self.cache.replies(self.chain, [request])
            if known is not None:
                return known
        if self._stopped.is_set():
            raise InterruptedError("the chain was no longer asked")
        text: Any = self.answer(question, snippets)
        if asyncio.iscoroutine(text):
            text = asyncio.run_coroutine_threadsafe(text, background_loop()).result()
        if not isinstance(text, str):
            raise Misuse(
                f"answer returned {text!r:.60} to the question {question!r:.60} from "
                f"{len(snippets)} snippets; return the text of the answer"
            )
        if snippets and not text.strip():  # from none, silence is an answer
            raise ValueError(f"answer returned {text!r:.20} from {len(snippets)} snippets")
        if self.cache is not None:
            self.cache.add_replies(self.chain, {request: text})
        return text

    def agrees(self, same: Same, question: str, answer: str, references: References) -> bool:
        """Return whether an answer is the same as one of the references.

        Raises `Misuse` if the comparison returns neither True nor False.
        """
        for reference in references:
            verdict: Any = same(question, answer, reference)
            if not isinstance(verdict, bool | np.bool_):
                raise Misuse(f"same returned {verdict!r:.60}; return True or False")
            if verdict:
                return True
        return False

    def announce(self, contexts: Iterable[Sequence[int]]) -> None:
        """Say how many calls and tokens are needed at most.

        `contexts` has the characters of the snippets of each call. An LLM that compares answers is
        asked about each, with the one from all snippets and with each reference.
        """
        sizes = [sum(lengths) for lengths in contexts]
        most = 1 + max(map(len, (self.expected or {}).values()), default=0)
        calls = len(sizes) * (1 + most * isinstance(self.same, llm_same))
        text = (
            f"{len(self.queries):,} questions take at most {calls:,} calls, of {self.chain}, with "
            f"about {sum(sizes) // CHARACTERS:,} tokens of snippets"
        )
        if self.progress:
            require("cli", "rich")  # before a call is made
            print(text, file=sys.stderr)
        else:
            logger.info(text)

    def of_each(self, function: Callable[[JudgedQuery], T]) -> tuple[list[T], dict[str, str]]:
        """Return what a function that asks returns for each question, and why some failed.

        Raises `Misuse`, and ValueError if all questions fail, or the first 8 that end.
        """
        causes: list[Exception] = []  # why questions failed, as they end
        answered: list[T] = []

        def attempted(query: JudgedQuery) -> T:
            try:
                answered.append(outcome := function(query))
                return outcome
            except Exception as error:
                causes.append(error)
                if isinstance(error, Misuse) or (len(causes) >= ENOUGH and not answered):
                    self._stopped.set()
                raise

        background_loop()  # now, before several threads ask for it
        with ThreadPoolExecutor(self.concurrency) as pool:
            tasks = [pool.submit(copy_context().run, attempted, query) for query in self.queries]
            bar = with_bar(tasks, "Answering") if self.progress else tasks
            try:
                ends = zip(as_completed(tasks), bar, strict=True)
                hopeless = any(self._stopped.is_set() for _ in ends)
            finally:
                self._stopped.set()  # what is under way ends with its next call
                pool.shutdown(wait=False, cancel_futures=True)
        if hopeless or not answered:
            for error in causes:
                if isinstance(error, Misuse):
                    raise error
            text = f"all of the first {min(ENOUGH, len(tasks))} questions failed: {causes[0]!r}"
            raise ValueError(text) from causes[0]
        pairs = [*zip(self.queries, tasks, strict=True)]
        done = [task.result() for task in tasks if not task.exception()]
        failed = {q.query: repr(why) for q, task in pairs if (why := task.exception())}
        if failed:
            text = "%d of %d questions are left out, because a call failed; the last: %s"
            logger.warning(text, len(failed), len(pairs), [*failed.values()][-1])
        return done, failed


def name_of(what: str, function: Any, name: str | None = None) -> str:
    """Return what a chain or a comparison is called.

    >>> name_of("answer", same_text, "gpt, prompt 7"), name_of("same", same_text)
    ('gpt, prompt 7', 'same_text')
    """
    if not callable(function):
        raise TypeError(f"{what} is {function!r:.60}; give a function, see scan_answers")
    check_names(what, name=name)
    known = name or getattr(function, "name", None) or getattr(function, "__name__", None)
    if known is None:
        option = "chain=" if what == "answer" else "it an attribute name,"
        raise ValueError(f"{what} is a {type(function).__name__} without a name; give {option}")
    return str(known)


def references_of(queries: Sequence[JudgedQuery], expected: Expected) -> dict[str, References]:
    """Return the references of each question; raise, naming it, for none or an empty one."""
    if not isinstance(expected, Mapping):
        raise TypeError(f"expected is {expected!r:.60}; give reference answers by question, a dict")
    references = dict[str, References]()
    known = {str(question).strip(): given for question, given in expected.items()}
    for query in queries:
        given: Any = known.get(query.query.strip())
        texts = [given] if isinstance(given, str) else given
        if not (isinstance(texts, Sequence) and texts) or not all(
            isinstance(text, str) and text.strip() for text in texts
        ):
            raise ValueError(
                f"expected has {given!r:.60} for {query.query!r:.80}; give a reference answer or "
                "several, or leave the question out of queries"
            )
        references[query.query] = tuple(texts)
    return references
