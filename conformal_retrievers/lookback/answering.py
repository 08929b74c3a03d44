"""Answers of a local model, each with its confidence: what both frameworks call."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from conformal_retrievers.calibration import checks
from conformal_retrievers.lookback.flag import FactualityFlag
from conformal_retrievers.lookback.prompt import RagPrompt
from conformal_retrievers.lookback.ratios import lookback_ratios
from conformal_retrievers.lookback.wording import say


def local_model(llm: object, model: Any, tokenizer: Any, example: str) -> Any:
    """Return the `LocalModel` of a framework's LLM, which has a model and a tokenizer.

    Raises TypeError, with an example, for one that has not, since its attention is hidden.
    """
    from conformal_retrievers.lookback.model import LocalModel  # loads torch

    if isinstance(llm, LocalModel):
        return llm
    if model is None or tokenizer is None:
        raise TypeError(say("hidden attention", kind=type(llm).__name__, example=example))
    return LocalModel(model, tokenizer)


@dataclass(frozen=True)
class Answering:
    """Answers questions from texts with a `LocalModel`, and flags each answer.

    Raises TypeError unless `flag` is a flag, `CalibrationMismatch` unless of this `LocalModel`.
    Other weights under the same name, with as many layers and heads, cannot be distinguished.
    """

    local: Any
    flag: FactualityFlag
    max_new_tokens: int
    generation: Any = None
    prompt: Callable[[str, tuple[str, ...]], RagPrompt] = RagPrompt

    def __post_init__(self) -> None:
        needed = "FactualityFlag(FactualityClassifier.load(…), Calibration.load(…))"
        checks.check_type(FactualityFlag, needed, flag=self.flag)
        model, made_for = self.local, self.flag.classifier
        shape = (made_for.model, made_for.layers, made_for.heads)
        if (model.name, model.layers, model.heads) != shape:
            raise checks.CalibrationMismatch(say("another model", known=made_for, model=model))

    def __call__(
        self, question: str, texts: Iterable[str], group: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return the answer, and its metadata with "factuality"."""
        known = tuple(text for text in texts if text.strip())  # of a blank one nothing is read
        options = {"max_new_tokens": self.max_new_tokens, "generation": self.generation}
        [made] = self.local.generate([self.prompt(question, known)], **options)
        return made.text, {"factuality": self.flag(lookback_ratios(made.attention), group).details}
