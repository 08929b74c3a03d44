"""What may stand behind a gate: a filter of the same queries, retrieval and groups.

The guarantee of gate and filter together is exact on the queries that calibrated both: seen from
these n and a new one together, the gate's threshold is the k-th smallest of n + 1 scores. That lies
between the (k − 1)-th and the k-th of n, and silences the new query iff the gate does. So each
calibrating query counts as silenced above the (k − 1)-th, and no query loses more than that. Of
n + 1 queries at most (n + 1) α_gate are silent, so some threshold reaches every α ≥ α_gate.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Any

from conformal_retrievers.calibration.checks import CalibrationMismatch
from conformal_retrievers.calibration.file_schema import details_of
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.ranks import exact_alpha


def check_behind(
    gate: Any, alpha: float, guarantee: str, delta: float | None, *, by_group: bool
) -> None:
    """Raise ValueError for a calibration that has no guarantee behind this gate."""
    if gate.subject != QUERIES:
        raise ValueError(say("about another", subject=gate.subject))
    if guarantee == "snippet":
        raise ValueError(f"{say('snippets behind')}. {say('apart')}")
    if delta is not None:
        raise ValueError(f"{say('delta behind', delta=delta)}. {say('apart')}")
    if exact_alpha(alpha) <= exact_alpha(gate.alpha):
        nearest = gate.alpha + min(0.001, (1 - gate.alpha) / 2)
        raise ValueError(say("alpha behind", alpha=alpha, gate=gate, nearest=nearest))
    if by_group and not gate.by_group:
        raise ValueError(say("groups behind"))


def check_same_queries(
    gate: Any, judged: Sequence[JudgedQuery], alpha: float, *, by_group: bool
) -> None:
    """Raise ValueError unless the answerable ones of the queries calibrated the gate.

    Some of the gate's may be missing, such as those that chose the filter's score, if even then a
    threshold of the filter, or of each group, makes up for as many as the gate may silence.
    """
    known = answerable_in(gate)
    answerable = [query for query in judged if any(query.relevant)]
    others = [query for query in answerable if query_digest(query.query) not in known]
    members = {group: len(queries) for group, queries in gate.by_threshold(answerable).items()}
    silent = {g: floor((n + 1) * exact_alpha(gate.alpha)) for g, n in gate.n_units.items()}
    parts = [(silent[g], members.get(g, 0)) for g in silent]
    if not by_group:
        parts = [(sum(silent.values()), len(answerable))]
    facts = {"same": len(answerable) - len(others), "n": len(answerable), "alpha": alpha}
    if others or any(lost > n for lost, n in parts if n):  # then no alpha would do
        raise ValueError(f"{say('other queries', gate=gate, **facts)}. {say('apart')}")
    if any(lost > (n + 1) * exact_alpha(alpha) for lost, n in parts if n):
        nearest = max(ceil(1000 * lost / (n + 1)) for lost, n in parts if n) / 1000
        raise ValueError(say("fewer behind", gate=gate, nearest=nearest, **facts))


def answerable_in(gate: Any) -> frozenset[str]:
    """Return the `query_digest` of each answerable query that calibrated a gate."""
    return frozenset(details_of(gate).answerable)


def check_same_retrieval(gate: Any, calibration: Any, what: str) -> None:
    """Raise `CalibrationMismatch` for a gate of another retriever, depth or splitter."""
    for name in ("retriever", "k", "split"):
        ours, theirs = getattr(calibration, name), getattr(gate, name)
        if ours != theirs and (None not in (ours, theirs) or name == "split"):
            facts = {"what": what, "name": name, "ours": ours, "theirs": theirs}
            kind = "other cut" if name == "split" else "other retrieval"
            raise CalibrationMismatch(say(kind, **facts))
