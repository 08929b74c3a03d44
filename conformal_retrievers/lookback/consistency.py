"""Whether answers are consistent with their context, as judged by an LLM.

This is the answer consistency γ_ac that a factuality classifier learns to predict from attention
(Geissler et al. 2026, arXiv 2605.05244, section 3.3). A judge errs: a guarantee for inconsistent
answers holds for those that it calls inconsistent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from conformal_retrievers.data.checks import all_of, check_type
from conformal_retrievers.llm.ask import LLM, ask_verdicts
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt
from conformal_retrievers.llm.reply import VERDICT, Usage


@dataclass(frozen=True)
class Response:
    """An answer to a query, and the texts of the snippets it was generated from."""

    query: str
    snippets: tuple[str, ...]
    answer: str

    def __post_init__(self) -> None:
        check_type(str, "a text", query=self.query, answer=self.answer)
        object.__setattr__(self, "snippets", tuple(all_of(str, self.snippets, "snippets")))


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
    """Let an LLM judge whether the context of each answer (n,) says all that the answer claims.

    The prompt has the fields $query, $context and $answer; ValueError is raised for other ones.
    `concurrency`, `cache` and `progress` are as for `ask`.
    """
    prompt = prompt or Prompt.load("consistency")
    given = all_of(Response, responses, "responses")
    fields = [{"query": r.query, "context": [*r.snippets], "answer": r.answer} for r in given]
    requests = [prompt.request(values, schema=VERDICT) for values in fields]
    verdicts, usage = ask_verdicts(
        llm, requests, concurrency=concurrency, cache=cache, progress=progress
    )
    reasons = {i: verdict for i, verdict in enumerate(verdicts) if isinstance(verdict, str)}
    labels: dict[str, JsonValue] = {"source": "LLM", "llm": llm.name, "prompt": prompt.hash}
    labels |= {"answers": len(verdicts), "answers_without_verdict": len(reasons)}
    consistent = tuple(None if isinstance(verdict, str) else verdict for verdict in verdicts)
    return ConsistencyLabels(consistent, reasons, labels, usage)
