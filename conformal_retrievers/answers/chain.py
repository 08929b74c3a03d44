"""Chains: an LLM that answers a question from its snippets by one prompt, or a framework's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from conformal_retrievers.data.judged import with_questions
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.llm.ask import LLM, check_llm
from conformal_retrievers.llm.prompt import Prompt, check_fields
from conformal_retrievers.llm.reply import failure_of

Item = TypeVar("Item")  # a document, or a node


@dataclass(frozen=True)
class plain_chain:  # noqa: N801, it is called as a function is
    """Answers a question from snippets by one call of an LLM, whose reply is the answer.

    The snippets come before the question, so that servers which remember the start of a prompt read
    the snippets that two levels share once. A reply that is cut off counts as far as it goes; a
    refused one raises RuntimeError.

    >>> from conformal_retrievers.llm import Reply
    >>> chain = plain_chain(LLM(lambda request: Reply(" Paris "), "toy"))
    >>> chain("Where?", [Snippet("It stands in Paris.")])
    'Paris'
    """

    llm: LLM
    # With the fields $snippets and $question.
    prompt: Prompt = field(default_factory=lambda: Prompt.load("answer"))

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_fields(self.prompt, "snippets", "question")

    @property
    def name(self) -> str:
        """The model and the hash of the prompt."""
        return f"{self.llm.name}, prompt={self.prompt.hash}"

    def __call__(self, question: str, snippets: Sequence[Snippet]) -> str:
        """Return the reply of the LLM."""
        values = {"snippets": [snippet.text for snippet in snippets], "question": question}
        reply = self.llm.complete(self.prompt.request(values))
        if reply.finish not in ("stop", "length"):
            raise RuntimeError(f"{self.llm.name} gave no answer: {failure_of(reply)}")
        return reply.text.strip()


@dataclass(frozen=True, eq=False)
class Chain(Generic[Item]):
    """A framework's chain as a function of snippets, each of which stands for an item retrieved.

    `respond` takes a question and what is kept of its items, and `cut` returns an item with another
    text. `answer_queries` of both packages makes one.
    """

    name: str
    respond: Callable[[str, list[Item]], str]
    cut: Callable[[Item, str], Item]
    # By question, id and hits: not all snippets have an id, but each has a rank.
    retrieved: Mapping[Any, tuple[str, Item]] = field(default_factory=dict)

    def __call__(self, question: str, snippets: Sequence[Snippet]) -> str:
        """Return the chain's answer."""
        items = []
        for snippet in snippets:
            if (key := (question, snippet.id, snippet.hits)) not in self.retrieved:
                raise ValueError(f"snippet {snippet.id!r} was not retrieved for {question!r:.60}")
            text, item = self.retrieved[key]
            items.append(item if text == snippet.text else self.cut(item, snippet.text))
        return self.respond(question, items)

    def with_queries(
        self,
        questions: Iterable[JudgedQuery] | Iterable[str],
        retrieve: Callable[[Sequence[str]], tuple[Sequence[Sequence[Item]], Retrieval]],
        to_snippets: Callable[[Sequence[Item]], Sequence[Snippet]],
    ) -> tuple[list[JudgedQuery], Chain[Item]]:
        """Return what a retriever returns for questions, and the chain, which answers from it."""
        asked = with_questions(questions, "questions")
        documents, retrieval = retrieve([query.query for query in asked])
        queries, retrieved = [], {}
        for query, items in zip(asked, documents, strict=True):
            snippets = to_snippets(items)
            for snippet, item in zip(snippets, items, strict=True):
                retrieved[query.query, snippet.id, snippet.hits] = snippet.text, item
            facts = {"id": query.id, "group": query.group, **vars(retrieval)}
            queries.append(JudgedQuery(query.query, snippets, [False] * len(snippets), **facts))
        return queries, replace(self, retrieved=retrieved)
