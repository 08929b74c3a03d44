"""Events: what a filter decided, as plain JSON values without the text of what it filtered.

`claims/answer_filter.py` makes the events of answers' claims.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from conformal_retrievers.calibration.gates.gate import Gated, GateDecision
from conformal_retrievers.data.files import explain
from conformal_retrievers.monitoring.wording import say
from conformal_retrievers.results import Decision, Filtered
from conformal_retrievers.sentence_filter import FilteredSentences

EVENT = "conformal_filter"  # the name of the event and of its run
CLAIMS_EVENT = "conformal_claims"
VERSION = 1


def event_of(
    filtered: Filtered, *, query: str | None = None, failed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a filter decided about one query, as plain JSON values.

    `scores` are in the retriever's order, None for a snippet that could not be scored and "inf" for
    one that the scorer dropped. `threshold` is "keep_all" if everything is kept. `failed` are
    the retrievers that were left out, although the calibration was made with them. Of sentences,
    `scores` and `kept` are in the order of the documents and of their texts, `split` names what cut
    them, and `kept_ranges` has the number of each document with a kept sentence, and the ranges.
    `gate` is what a gate in front decided, None without one; of a query that it silenced nothing is
    kept, and `scores` are those that the scorer gave. In shadow, all this is what would be, with
    `shadow`, True, and `characters`, the length of each snippet's text.
    """
    fields: dict[str, Any] = {
        "query": query,
        "guarantee": filtered.calibration.guarantee,
        "threshold": json_number(filtered.threshold, "keep_all"),
        "scores": [json_number(score, "inf") for score in filtered.scores.tolist()],
        "m1": filtered.m1,
        "m2": filtered.m2,
        "failed_retrievers": [*failed],
        "gate": None if filtered.gated is None else _gate(filtered.gated),
    }
    if isinstance(filtered, FilteredSentences):
        fields["split"] = filtered.calibration.split
        fields["documents"] = len(filtered.sentences.documents)
        fields["kept_ranges"] = [
            {"document": passage.document, "ranges": [[*r] for r in passage.ranges]}
            for passage in filtered.passages
        ]
    if filtered.shadow:
        fields["shadow"] = True
        if filtered.characters is not None:
            fields["characters"] = filtered.characters.tolist()
    return build_event(EVENT, filtered, fields)


def _gate(gated: Gated) -> dict[str, Any]:
    return {
        "calibration": gated.calibration.checksum,
        "scorer": gated.calibration.scorer,
        "alpha": gated.calibration.alpha,
        "score": json_number(gated.score),
        "p_value": json_number(gated.p_value),
        "decision": gated.decision,
    }


def build_event(name: str, decided: Decision, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event: what events of snippets and of claims share, and the fields of one kind."""
    return {
        "event": name,
        "version": VERSION,
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "calibration": decided.calibration.checksum,
        "scorer": decided.calibration.scorer,
        "alpha": decided.calibration.alpha,
        "group": decided.group,
        "k": len(decided.keeps),
        "kept": decided.kept.tolist(),
        "unscorable": decided.unscorable.tolist(),
        **fields,
    }


def annotate_span(filtered: Filtered) -> Filtered:
    """Return the decision, and write it onto OpenTelemetry's current span, see `set_on_span`."""
    set_on_span(EVENT, lambda: _facts(filtered))
    return filtered


def _facts(filtered: Filtered) -> dict[str, Any]:
    c, gated = filtered.calibration, filtered.gated
    facts = {name: getattr(filtered, name) for name in ("threshold", "m1", "m2")}
    facts |= {"calibration": c.checksum, "guarantee": c.guarantee, "alpha": c.alpha}
    facts |= {"k": len(filtered.scores), "kept": len(filtered.kept)}
    facts |= {"unscorable": len(filtered.unscorable)}
    facts |= {"split": c.split} if c.split else {}
    if gated:
        facts |= {"gate.p_value": gated.p_value, "gate.decision": gated.decision}
    facts |= {"shadow": True} if filtered.shadow else {}
    return facts


def set_on_span(event: str, facts: Callable[[], Mapping[str, str | bool | float]]) -> None:
    """Write conformal.* attributes onto OpenTelemetry's current span, if any, and into an event.

    They are made only if there is one, since that takes longer than a decision. A span keeps its
    128 newest attributes: an instrumentor that writes several for each node can crowd these out,
    but not those of the event.
    """
    trace = sys.modules.get("opentelemetry.trace")  # if it is not loaded, there is no span
    if trace is not None and (span := trace.get_current_span()).is_recording():
        written = {f"conformal.{name}": fact for name, fact in facts().items()}
        span.set_attributes(written)
        span.add_event(event, written)


def json_number(value: float, infinite: str = "inf") -> float | str | None:
    """Return a float as JSON can represent it: NaN as None, +inf as `infinite`, -inf as "-inf"."""
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else infinite if value > 0 else "-inf"


# --- reading --------------------------------------------------------------------------------------

Count = Annotated[int, Field(ge=0)]
Score = float | Literal["inf", "-inf"] | None
Share = Annotated[float, Field(ge=0, le=1)]


class _Event(BaseModel):
    model_config = ConfigDict(strict=True)

    calibration: str  # the checksum
    alpha: float | None = None
    k: Count
    kept: list[Count]
    group: str | None = None
    query: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        lists = {name: getattr(self, name, None) for name in ("scores", "relevance", "characters")}
        wrong = [name for name, of_k in lists.items() if of_k is not None and len(of_k) != self.k]
        if wrong or max(self.kept, default=-1) >= self.k:
            raise ValueError(f"{(*wrong, 'kept')[0]} does not fit k, which is {self.k}")
        return self


class _Gate(BaseModel):
    model_config = ConfigDict(strict=True)

    calibration: str
    score: Score
    p_value: float | None
    decision: GateDecision


class _SnippetsEvent(_Event):
    scores: list[Score]
    m1: Share
    m2: Share
    split: str | None = None
    gate: _Gate | None = None
    failed_retrievers: list[str] = []
    shadow: bool = False
    characters: list[Count] | None = None


class _ClaimsEvent(_Event):
    relevance: list[Score]


MODELS: Mapping[str, type[_Event]] = {EVENT: _SnippetsEvent, CLAIMS_EVENT: _ClaimsEvent}


def check_event(event: Any, where: str) -> dict[str, Any] | None:
    """Return an event as it is, or None if no filter wrote it.

    Raises ValueError with `where` and the field if it is invalid.
    """
    if not isinstance(event, dict) or event.get("event") not in [*MODELS]:
        return None
    if event.get("version") != VERSION:
        raise ValueError(say("other version", where=where, given=event.get("version"), n=VERSION))
    try:
        MODELS[event["event"]].model_validate(event)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(error)}; remove the line") from None
    return event


def is_silent(event: Mapping[str, Any]) -> bool:
    """Return whether a gate was silent on the query of an event."""
    return bool(event.get("gate")) and event["gate"]["decision"] == "silent"


def scores_of(event: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the scores (n,) of an event as floats, NaN for a snippet that could not be scored."""
    return np.array([math.nan if s is None else float(s) for s in event["scores"]], np.float64)
