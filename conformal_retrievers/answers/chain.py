"""A plain chain: an LLM that answers a question from its snippets, by one prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.llm.ask import LLM, check_llm
from conformal_retrievers.llm.prompt import Prompt, check_fields
from conformal_retrievers.llm.reply import failure_of


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
    prompt: Prompt | None = None  # with the fields $snippets and $question
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_fields(self._prompt, "snippets", "question")

    @property
    def name(self) -> str:
        """The model, the hash of the prompt, and the bound on the reply."""
        bound = "" if self.max_tokens is None else f", max_tokens={self.max_tokens}"
        return f"{self.llm.name}, prompt={self._prompt.hash}{bound}"

    def __call__(self, question: str, snippets: Sequence[Snippet]) -> str:
        """Return the reply of the LLM."""
        values = {"snippets": texts_in(snippets), "question": question}
        reply = self.llm.complete(self._prompt.request(values, max_tokens=self.max_tokens))
        if reply.finish not in ("stop", "length"):
            raise RuntimeError(f"{self.llm.name} gave no answer: {failure_of(reply)}")
        return reply.text.strip()

    @property
    def _prompt(self) -> Prompt:
        return self.prompt or Prompt.load("answer")
