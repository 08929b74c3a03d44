"""Who judged the snippets that a calibration calls relevant, in words.

Coverage is of what was *labelled* relevant. Labels that a person checked in part say how many
relevant snippets they miss.
"""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from conformal_retrievers.theory.intervals import Interval, percent


def judged_by(labels: Mapping[str, JsonValue], items: str) -> Iterator[str]:
    """Yield sentences on who judged the items of a calibration, from its `labels`.

    >>> print(*judged_by({"source": "person", "by": "Ann"}, "snippets"))
    Relevance was judged by a person ('Ann').
    """
    if labels.get("questions") == "synthetic":
        yield (
            "The questions are synthetic: the guarantee is about real ones only if these look like "
            "them, which diagnose tests on logged real questions."
        )
    if n := labels.get("malformed_records"):
        yield f"{n} malformed records are left out: the guarantee is about queries like the others."
    if labels.get("source") == "LLM":
        yield f"Relevance was labelled by {_llm(labels)}, and no person checked it."
        yield from _without_verdict(labels)
        yield "The guarantee is about what the LLM calls relevant, which a person may not."
        yield "Below some 200 judged queries, calibrate only on those that a person judged."
    elif labels.get("source") == "answers":
        yield (
            "Nobody judged relevance: relevant is a snippet without which a chain's answer "
            "changed. calibrate_answers has a guarantee about the answers themselves."
        )
    elif labels.get("source") == "person":
        given, person = labels.get("given"), "a person"
        if labels.get("by"):
            person += f" ({labels['by']!r})"
        if not isinstance(given, dict):
            yield f"Relevance was judged by {person}."
        else:
            whose = f"by {given['source']!r}" if given.get("source") else "before"
            whose = f"by {_llm(given)}" if given.get("source") == "LLM" else whose
            yield f"Relevance was marked {whose} and judged by {person}, who saw these marks."
            yield from _without_verdict(given)
        yield from _sampled(labels, items)
        yield from _left_out(labels.get("unsure"), "the person was unsure", "a person")


def _without_verdict(labels: Mapping[str, JsonValue]) -> Iterator[str]:
    n = labels.get("queries_without_verdict")
    yield from _left_out(n, "the LLM gave no readable verdict", "it")


def _left_out(n: JsonValue, why: str, who: str) -> Iterator[str]:
    if isinstance(n, int) and n:
        queries = "1 query was" if n == 1 else f"{n} queries were"
        yield (
            f"{queries} left out because {why}: the guarantee is about queries like those that "
            f"{who} can judge."
        )


def _llm(labels: Mapping[str, JsonValue]) -> str:
    return f"the LLM {labels['llm']!r}" if labels.get("llm") else "an LLM"


def _sampled(labels: Mapping[str, JsonValue], items: str) -> Iterator[str]:
    """Yield what a person who saw a sample of the unmarked items did not see."""
    sample, audit = labels.get("sample"), labels.get("audit")
    if not (isinstance(sample, dict) and isinstance(audit, dict)):
        return
    share, missed = sample.get("share"), _interval(audit.get("remaining_miss_rate"))
    if not isinstance(share, (int, float)) or share >= 1 or missed is None:
        return
    yield (
        f"Of the unmarked {items} the person saw a random {percent(share, exact=True)} of each "
        f"query. By it, an estimated {missed} of the relevant {items} are unmarked: the guarantee "
        "is not about these."
    )


def _interval(rate: JsonValue) -> Interval | None:
    """Return a stored rate, or None if it is none or unknown."""
    if not isinstance(rate, list) or len(rate) != 3:
        return None
    estimate, low, high = (end if isinstance(end, (int, float)) else None for end in rate)
    return (
        None if estimate is None or low is None or high is None else Interval(estimate, low, high)
    )
