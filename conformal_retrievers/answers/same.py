"""Whether two answers are the same: what a guarantee about answers is about.

same_text     equal, after SQuAD's normalisation: no case, punctuation or a, an, the
has_answer    the words of the reference stand in the answer in a row
llm_same      an LLM says that both answer the question in the same way
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from conformal_retrievers.answers.wording import say
from conformal_retrievers.data.answer_words import has_words, words_of
from conformal_retrievers.llm.ask import LLM, ask_verdicts, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, check_fields
from conformal_retrievers.llm.reply import VERDICT

Same: TypeAlias = Callable[[str, str, str], bool]  # of a question, an answer and a reference
CONTROLS = (  # a question, two answers, and whether they are the same
    ("What is the capital of France?", "It is Paris.", "Paris", True),
    ("What is the capital of France?", "It is Berlin.", "Paris", False),
    ("In which year did the museum open?", "In 1995, after ten years.", "1884", False),
    ("Who wrote The Art of War?", "Nebuchadnezzar", "Sun Tzu", False),
    ("Are both from one country?", "Yes", "No, one is from Japan.", False),
    ("Which river is it?", "It is not known.", "the Danube", False),
)


def same_text(question: str, answer: str, reference: str) -> bool:
    """Return whether two answers have the same words in the same order.

    >>> same_text("Where?", "the Eiffel Tower!", "Eiffel tower"), same_text("Age?", "5", "-5")
    (True, False)
    """
    words = words_of(answer)
    return words == words_of(reference) and (bool(words) or answer.strip() == reference.strip())


def has_answer(question: str, answer: str, reference: str) -> bool:
    """Return whether the words of a reference stand in an answer in a row.

    >>> has_answer("Where?", "It stands in Paris.", "Paris"), has_answer("Age?", "In 1990.", "19")
    (True, False)
    """
    return has_words(answer, reference)


def f1(answer: str, reference: str) -> float:
    """Return SQuAD's F1 of an answer: the harmonic mean of its words' precision and recall.

    >>> f1("in Paris", "Paris")
    0.6666666666666666
    """
    ours, theirs = words_of(answer), words_of(reference)
    if not ours or not theirs:
        return float(same_text("", answer, reference))
    return 2 * (Counter(ours) & Counter(theirs)).total() / (len(ours) + len(theirs))


@dataclass(frozen=True)
class llm_same:  # noqa: N801, it is called as a function is
    """Lets an LLM say whether two answers to a question are the same in substance.

    A call raises ValueError if the reply has no verdict, which leaves its question out of a scan.
    `Scans.verdicts` gives the verdicts to a person on the judging page.

    >>> from conformal_retrievers.llm import Reply
    >>> always = LLM(lambda request: Reply('{"reasoning": "…", "verdict": "yes"}'), "toy")
    >>> llm_same(always)("Where?", "Paris", "in Paris, France")
    True
    """

    llm: LLM
    # With the fields $question, $answer and $reference.
    prompt: Prompt = field(default_factory=lambda: Prompt.load("same_answer"))
    cache: Cache | None = None

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_fields(self.prompt, "question", "answer", "reference")

    @property
    def name(self) -> str:
        """The model and the hash of the prompt."""
        return f"llm_same({self.llm.name}, prompt={self.prompt.hash})"

    def __call__(self, question: str, answer: str, reference: str) -> bool:
        """Return the verdict; answers of the same text are the same, and no LLM is asked."""
        if same_text(question, answer, reference):
            return True
        values = {"question": question, "answer": answer, "reference": reference}
        request = self.prompt.request(values, schema=VERDICT)
        ((verdict,), _) = ask_verdicts(self.llm, [request], cache=self.cache)
        if isinstance(verdict, str):
            raise ValueError(say("no verdict", llm=self.llm.name, why=verdict))
        return verdict

    def check(self) -> None:
        """Raise ValueError if the LLM does not see what is the same in six plain examples."""
        for question, answer, reference, expected in CONTROLS:
            if self(question, answer, reference) != expected:
                said = "different" if expected else "equal"
                facts = {"question": question, "answer": answer, "reference": reference}
                raise ValueError(say("errs", llm=self.llm.name, said=said, **facts))
