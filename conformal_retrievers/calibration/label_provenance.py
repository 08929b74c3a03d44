"""Who judged the snippets that a calibration calls relevant, in words.

Coverage is of what was *labelled* relevant. Labels that a person checked in part say how many
relevant snippets they miss.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import JsonValue

from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.text import counted
from conformal_retrievers.theory.intervals import Interval, percent


def judged_by(labels: Mapping[str, JsonValue], items: str) -> Iterator[str]:
    """Yield sentences on who judged the items of a calibration, from its `labels`.

    >>> print(*judged_by({"source": "person", "by": "Ann"}, "snippets"))
    Relevance was judged by a person ('Ann').
    """
    if labels.get("questions") == "synthetic":
        yield say("synthetic")
    if n := labels.get("malformed_records"):
        yield say("malformed", n=n)
    if labels.get("source") == "LLM":
        yield say("labelled by LLM", llm=_llm(labels))
        yield from _without_verdict(labels)
        yield say("LLM's relevance")
    elif labels.get("source") in ("answer", "answers"):
        yield say(f"labelled by {labels['source']}")
    elif labels.get("source") == "person":
        given, person = labels.get("given"), "a person"
        if labels.get("by"):
            person += f" ({labels['by']!r})"
        if not isinstance(given, dict):
            yield say("judged", person=person)
        else:
            whose = f"by {given['source']!r}" if given.get("source") else "before"
            whose = f"by {_llm(given)}" if given.get("source") == "LLM" else whose
            yield say("marked and judged", whose=whose, person=person)
            yield from _without_verdict(given)
        yield from _sampled(labels, items)
        yield from _left_out(labels.get("unsure"), "the person was unsure", "a person")


def _without_verdict(labels: Mapping[str, JsonValue]) -> Iterator[str]:
    n = labels.get("queries_without_verdict")
    yield from _left_out(n, "the LLM gave no readable verdict", "it")


def _left_out(n: JsonValue, why: str, who: str) -> Iterator[str]:
    if isinstance(n, int) and n:
        yield say("left out", queries=counted(n, "query was", "queries were"), why=why, who=who)


def _llm(labels: Mapping[str, JsonValue]) -> str:
    return f"the LLM {labels['llm']!r}" if labels.get("llm") else "an LLM"


def _sampled(labels: Mapping[str, Any], items: str) -> Iterator[str]:
    """Yield what a person who saw a sample of the unmarked items did not see."""
    try:
        share = float(labels["sample"]["share"])
        missed = Interval(*map(float, labels["audit"]["remaining_miss_rate"]))
    except (KeyError, TypeError, ValueError):  # no sample, nothing known of it, or other facts
        return
    if share < 1:
        yield say("sampled", items=items, share=percent(share, exact=True), missed=missed)
