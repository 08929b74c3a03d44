"""Whether answers are consistent with their context, as judged by an LLM.

This is the answer consistency γ_ac that a factuality classifier learns to predict from attention
(Geissler et al. 2026, arXiv 2605.05244, section 3.3). A judge errs: a guarantee for inconsistent
answers holds for those that it calls inconsistent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.llm.verdicts import VERDICT, ask_verdicts


@dataclass(frozen=True)
class Response:
    """An answer to a query, and the texts of the snippets it was generated from.

    Raises TypeError, naming the field, for anything but texts.
    """

    query: str
    snippets: tuple[str, ...]
    answer: str

    def __post_init__(self) -> None:
        if isinstance(self.snippets, str):
            raise TypeError(f"snippets is the str {self.snippets!r:.60}; give a tuple of texts")
        object.__setattr__(self, "snippets", tuple(self.snippets))
        parts: dict[str, object] = {"query": self.query, "answer": self.answer}
        parts |= {f"snippets[{i}]": snippet for i, snippet in enumerate(self.snippets)}
        for name, part in parts.items():
            if not isinstance(part, str):
                raise TypeError(f"{name} is {part!r:.60}; give its text as a str")


@dataclass(frozen=True)
class ConsistencyLabels:
    """Whether each answer is consistent, in the order of the answers."""

    consistent: tuple[bool | None, ...]  # None where there is no verdict
    reasons: Mapping[int, str]  # why there is none, by the place of the answer
    labels: Mapping[str, JsonValue]  # where the labels come from
    usage: Usage = field(default_factory=Usage)


def label_consistency(
    responses: Iterable[Response],
    llm: LLM,
    *,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> ConsistencyLabels:
    """Ask an LLM of each answer whether its context says all that it claims.

    Parameters
    ----------
    responses, llm
        The answers (n,) and the judge.
    prompt
        A prompt with the fields $query, $context and $answer.
    concurrency, cache, progress
        As for `ask`.

    Returns
    -------
    ConsistencyLabels
        A cut-off, refused or unreadable reply gives None.

    Raises
    ------
    ValueError
        For a prompt with other fields.
    """
    prompt = prompt or Prompt.load("consistency")
    values = (
        {"query": r.query, "context": list(r.snippets), "answer": r.answer} for r in responses
    )
    requests = [prompt.request(fields, schema=VERDICT) for fields in values]
    verdicts = ask_verdicts(llm, requests, concurrency=concurrency, cache=cache, progress=progress)
    labels: dict[str, JsonValue] = {
        "source": "LLM",
        "llm": llm.name,
        "prompt": prompt.hash,
        "answers": len(verdicts.values),
        "answers_without_verdict": len(verdicts.reasons),
    }
    consistent = tuple(None if isinstance(value, str) else value for value in verdicts.values)
    return ConsistencyLabels(consistent, verdicts.reasons, labels, verdicts.usage)
