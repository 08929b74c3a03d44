"""Asking a chain about many questions: with a bound, a cache, references and comparisons."""

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict, TypeVar

import numpy as np

from conformal_retrievers.answers.same import Same, has_answer, llm_same, same_text
from conformal_retrievers.answers.wording import say
from conformal_retrievers.calibration.checks import check_type
from conformal_retrievers.data.checks import check_count, check_names
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.ask import ENOUGH, announce, each_in_threads
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import background_loop
from conformal_retrievers.llm.reply import without_thoughts
from conformal_retrievers.scoring.scorer import judged_queries

logger = logging.getLogger("conformal_retrievers")

T = TypeVar("T")
# What code raises that does not expect an empty context; a server that is down raises others.
MISTAKES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError)
EMPTY, TENTH = 3, 0.1  # so many, and such a share, that fail without snippets
Answer: TypeAlias = Callable[[str, Sequence[Snippet]], str | Coroutine[Any, Any, str]]
Expected: TypeAlias = Mapping[str, str | Sequence[str]]  # reference answers, by question or id
References: TypeAlias = tuple[str, ...]  # of which one suffices


class AskOptions(TypedDict, total=False):
    """The options of `scan_answers`, `calibrate_answers` and `evaluate_answers`."""

    expected: Expected | None
    same: Same | None
    chain: str | None
    concurrency: int
    cache: Cache | None
    progress: bool


class Misuse(TypeError):
    """A chain or a comparison returns something else than it must.

    It ends the whole scan: a chain that returns None where it does not know would else leave out
    the very questions that need their snippets.
    """


class EmptyContext(RuntimeError):
    """A chain fails without snippets, which leaves out the very questions that need none."""


@dataclass
class Asked:
    """Questions, the chain that is asked for their answers, and what these are compared with.

    What is given is checked before anything is paid for.
    """

    given: Iterable[JudgedQuery]
    answer: Answer
    expected: Expected | None = None
    same: Same | None = None
    chain: str | None = None
    concurrency: int = 8
    cache: Cache | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self.queries = judged_queries(self.given, "queries")
        if not self.queries:
            raise ValueError("queries is empty; give those of judge_retriever(…)")
        for query in self.queries:
            if query.split is not None:
                raise ValueError(f"{query.name} is cut into sentences; give whole snippets")
        check_copies(self.queries)
        check_type(Cache | None, "Cache(path), or None", cache=self.cache)
        self.concurrency = check_count(self.concurrency, "concurrency")
        self.name = name_of("answer", self.answer, self.chain)
        if self.cache and not (self.chain or getattr(self.answer, "name", None)):
            raise ValueError(say("no chain"))
        self.references = references_of(self.queries, self.expected)
        self.will_do: Same = self.same or (has_answer if any(self.references) else same_text)
        self.compared_by = name_of("same", self.will_do)
        if isinstance(self.same, llm_same):
            self.same = self.will_do = replace(self.same, cache=self.same.cache or self.cache)
            self.same.check()  # with six short calls, before a score or an answer is paid for

    def __call__(self, question: str, snippets: Sequence[Snippet], *, first: bool = False) -> str:
        """Return the chain's answer, without the thoughts that a reasoning model puts before it.

        The first one from all snippets is asked for on its own.

        Raises ValueError for a blank answer from snippets, `Misuse` for something that is no text,
        and InterruptedError once it is stopped.
        """
        if self._stopped.is_set():
            raise InterruptedError("the chain is no longer asked")
        request = json.dumps([question, [snippet.text for snippet in snippets], first])
        known = self.cache.replies(self.name, [request])[0] if self.cache else None
        if known is not None:
            return without_thoughts(known)
        try:
            text: Any = self.answer(question, snippets)
            if asyncio.iscoroutine(text):
                text = asyncio.run_coroutine_threadsafe(text, background_loop()).result()
        except (*MISTAKES, TypeError, ValueError) as error:
            if snippets:
                raise
            why = "asked with 0 snippets: the chain must accept an empty context"
            raise EmptyContext(f"{error!r} ({why})") from error
        if not isinstance(text, str):
            what = f"answer returned {text!r:.60} to {question!r:.60}"
            raise Misuse(f"{what}; return the text of the answer")
        said = without_thoughts(text)  # which no user reads
        if snippets and not said.strip():  # from none, silence is an answer
            what = f"the answer to {question!r:.60} is blank, or unfinished thinking"
            raise ValueError(f"{what}; return 'unknown', or the like")
        if self.cache:
            self.cache.add_replies(self.name, {request: said})
        return said

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

    def of_each(
        self, ask: Callable[[int, str], T], contexts: Sequence[Iterable[Sequence[Snippet]]]
    ) -> tuple[list[T], dict[str, str]]:
        """Return what `ask` makes of each question and its first answer, and why some failed.

        `ask` is given the place of a question, since two may have one text. It asks about the
        contexts of that question, at most. Raises `Misuse`, and ValueError if all questions fail,
        or the first 8 that end, or 3 without snippets, if these are more than a tenth.
        """
        self._announce(contexts)
        answered: list[int] = []
        causes: list[Exception] = []  # why the others failed

        def attempted(i: int) -> T | Exception:
            query = self.queries[i]
            try:
                outcome = ask(i, self(query.query, query.snippets, first=True))
            except Misuse:
                self._stopped.set()
                raise
            except Exception as error:
                causes.append(error)
                if not self._stopped.is_set() and (why := self._hopeless(causes, len(answered))):
                    self._stopped.set()
                    raise ValueError(why) from error
                return error
            answered.append(i)
            return outcome

        background_loop()  # now, before several threads ask for it
        title = "Answering" if self.progress else None
        places = range(len(self.queries))
        outcomes = each_in_threads(attempted, places, self.concurrency, self._stopped, title)
        count = Counter(query.query for query in self.queries)
        named = (f"{q.query} ({q.id})" if count[q.query] > 1 else q.query for q in self.queries)
        pairs = zip(named, outcomes, strict=True)
        failed = {name: repr(why) for name, why in pairs if isinstance(why, Exception)}
        if failed:
            text = "%d of %d questions are left out, because a call failed (%s); %s"
            again = "with a cache, the next run asks only these"
            logger.warning(text, len(failed), len(outcomes), [*failed.values()][-1], again)
        return [of_one for of_one in outcomes if not isinstance(of_one, Exception)], failed

    def _hopeless(self, causes: Sequence[Exception], answered: int) -> str:
        """Return why no more questions are asked, from why some failed; "" to ask more."""
        empty = [cause for cause in causes if isinstance(cause, EmptyContext)]
        if len(empty) >= EMPTY and len(empty) > TENTH * (len(causes) + answered):
            return f"{len(empty)} questions failed: {empty[0]}"  # that need no snippet, above all
        enough = min(ENOUGH, len(self.queries))
        if len(causes) >= enough and not answered:
            return f"all of the first {enough} questions failed: {causes[0]!r}"
        return ""

    def _announce(self, contexts: Sequence[Iterable[Sequence[Snippet]]]) -> None:
        """Say how many calls and tokens it takes at most, to ask about each context.

        An LLM that compares answers is asked about each, with the one from all snippets and with
        each reference.
        """
        pairs = zip(self.queries, contexts, strict=True)
        every = [context for query, given in pairs for context in (query.snippets, *given)]
        calls, tokens = len(every), int(sum(map(tokens_of, every)))
        compared = calls * (1 + max(map(len, self.references), default=0))
        verdicts = f" and {compared:,} of {self.compared_by}" * isinstance(self.same, llm_same)
        facts = {"n": len(self.queries), "calls": calls, "tokens": tokens}
        announce(say("most calls", name=self.name + verdicts, **facts), self.progress)


def tokens_of(snippets: Sequence[Snippet]) -> float:
    """Return about how many tokens snippets have: one for every four characters."""
    return sum(len(snippet.text) for snippet in snippets) / 4


def name_of(what: str, function: Any, name: str | None = None) -> str:
    """Return what a chain or a comparison is called.

    >>> from functools import partial
    >>> name_of("answer", same_text, "gpt, prompt 7"), name_of("same", same_text)
    ('gpt, prompt 7', 'same_text')
    >>> name_of("same", partial(same_text, "Where?"))
    'partial'
    """
    check_type(Callable, "a function, see scan_answers", **{what: function})
    named = getattr(function, "__name__", type(function).__name__)
    known: str = name or getattr(function, "name", None) or named
    check_names(what, name=known)
    return known


def references_of(queries: Sequence[JudgedQuery], expected: Any) -> list[References]:
    """Return the references of each question, () if none is expected; raise, naming it, for none.

    >>> references_of([JudgedQuery("Where?", [], [], id="q1")], {"q1": "here"})
    [('here',)]
    """
    check_type(Mapping | None, "reference answers by question, a dict", expected=expected)
    known = {str(question).strip(): given for question, given in (expected or {}).items()}
    references: list[References] = []
    for query in queries:
        given: Any = known.get(query.id or "", known.get(query.query.strip()))
        texts = given if isinstance(given, list | tuple) else [given]
        if expected is None:
            texts = ()
        elif not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            shown = "no reference" if given is None else f"{given!r:.60}"
            raise ValueError(say("no reference", given=shown, question=query.query))
        references.append(tuple(texts))
    return references
