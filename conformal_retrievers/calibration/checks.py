"""What may enter a calibration or a filter: every check is made here, once."""

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration.subjects import SENTENCES, Subject
from conformal_retrievers.calibration.sufficient_statistics import Reduced
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.checks import check_type as check_type
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.judged import retrieved
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.retrieval import as_json, as_retriever
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hits import retrievers_of
from conformal_retrievers.scoring.scorer import Scorer


class CalibrationMismatch(ValueError):
    """A calibration was made with another scorer or splitter, or is about another subject.

    Give the scorer and the splitter of the calibration, or calibrate again.
    """


def warn_if_large(**risks: float | None) -> None:
    """Warn of an alpha or a delta above 0.5, which looks like a share that is to hold."""
    for name, risk in risks.items():
        if risk is not None and risk > 0.5:
            warnings.warn(say(f"large {name}", risk=risk, other=1 - risk), stacklevel=3)


def check_subject(calibration: object, *expected: Subject) -> None:
    """Raise TypeError unless it is a calibration, `CalibrationMismatch` for another subject."""
    about: Any = getattr(calibration, "subject", None)
    if not isinstance(about, Subject):
        more = say("measured elsewhere") if hasattr(calibration, "calibration") else ""
        raise TypeError(say("no calibration", given=calibration, more=more))
    if about not in expected:
        names = " or ".join(subject.name for subject in expected)
        facts = {"subject": about, "names": names, "needed": expected[0]}
        raise CalibrationMismatch(about.says("elsewhere", **facts))


def check_split(calibrated: str | None, split: str | None, what: str = "this filter") -> None:
    """Raise `CalibrationMismatch` unless documents are cut as they were calibrated, or not at all.

    Both are names of splitters, None for whole snippets.
    """
    if calibrated == split:
        return
    facts = {"split": split, "calibrated": calibrated, "what": what}
    if calibrated is None:
        raise CalibrationMismatch(say("needless split", **facts))
    ours = "'sentences'" if calibrated.startswith("sentences(") else f"the function {calibrated!r}"
    raise CalibrationMismatch(say("other split" if split else "no split", ours=ours, **facts))


def with_split(
    retrieval: Mapping[str, JsonValue] | None, split: str | None
) -> dict[str, JsonValue] | None:
    """Return a copy of the retrieval facts, with the name of the splitter if there is one."""
    facts = json_copy("retrieval", retrieval)
    return facts if split is None else {**(facts or {}), "split": split}


def check_same_scorer(name: str, *, calibrated: str) -> None:
    """Raise `CalibrationMismatch` unless the scorer is the one that was calibrated with."""
    if name == calibrated:
        return
    text = say("other scorer", calibrated=calibrated, name=name)
    if calibrated.startswith("cosine(") and name.startswith("cosine("):
        # The frameworks and a folder call one model differently; only the user knows.
        text += f". {say('same model', calibrated=calibrated)}"
    raise CalibrationMismatch(text)


def check_query(query: object) -> None:
    """Raise ValueError unless it is the text of a query."""
    if not isinstance(query, str) or not query.strip():
        raise ValueError(f"query is {query!r:.80}; give the text of the query")


def check_flags(**flags: object) -> None:
    """Raise TypeError for an argument that is neither True nor False."""
    check_type((bool, np.bool_), "True or False", **flags)


def check_scorers(scorer: object) -> None:
    """Raise TypeError unless it may be a scorer, an iterable of scorers or None."""
    kinds = () if isinstance(scorer, str | type) else Scorer | Iterable | None
    check_type(kinds, say("no scorer"), scorer=scorer)


def check_on_unscorable(on_unscorable: object, subject: Subject) -> None:
    """Raise ValueError unless it is "raise" or what filters of the subject do."""
    if on_unscorable not in ("raise", subject.unscorable):
        raise ValueError(say("no on_unscorable", given=on_unscorable, other=subject.unscorable))


def warn_if_deeper(n: int, k: int | None) -> None:
    """Warn of more snippets than the depth of a calibration, if that is known."""
    if k is not None and n > k:
        warnings.warn(say("deeper", k=k), stacklevel=1)  # the same text: Python shows it once


def warn_if_shallow(n: int, fewest: int) -> None:
    """Warn of some snippets, but less than half of those in nearly all lists that calibrated."""
    if 0 < 2 * n < fewest:
        warnings.warn(say("shallow", fewest=fewest, half=-(-fewest // 2)), stacklevel=1)


def warn_if_gaps(snippets: Retrieved, calibrated: Mapping[str, JsonValue] | None) -> None:
    """Warn of a list that lacks ranks of a retriever, unless some that calibrated did, too."""
    if not (calibrated or {}).get("with_gaps") and snippets.has_gaps:
        warnings.warn(say("gaps"), stacklevel=1)


def warn_if_twice(snippets: Retrieved) -> None:
    """Warn of a list of Snippets in which one has the id of another.

    Of the packages' documents and nodes it says nothing: a retriever that returns one twice cannot
    be judged.
    """
    ids = [s.id for s in snippets.given if s.id is not None] if type(snippets) is Retrieved else []
    if len({*ids}) < len(ids):
        warnings.warn(say("twice"), stacklevel=1)  # the same text: Python shows it once


def warn_if_scored(
    snippets: Retrieved, calibrated: Mapping[str, JsonValue] | None, scorer: Scorer
) -> None:
    """Warn of scores where the retriever gave none to calibrate with, if its ranks are read."""
    if (calibrated or {}).get("without_scores") and snippets.scored and retrievers_of(scorer):
        warnings.warn(say("scored"), stacklevel=1)


def check_unique_ids(ids: Iterable[str | None], unit: str = "query") -> None:
    """Raise ValueError for an id that occurs twice; None is not an id."""
    for id, times in Counter(id for id in ids if id is not None).most_common(1):
        if times > 1:
            raise ValueError(say("repeated", unit=unit, id=id, times=times))


def check_new(ids: Iterable[str | None], calibrated: frozenset[str], subject: Subject) -> None:
    """Raise ValueError for a unit that the calibration was made from, by its id."""
    for id in ids:
        if id in calibrated:
            raise ValueError(say("not new", id=id, subject=subject))


def check_scored(queries: ScoredQueries, subject: Subject, other_ids: Sequence[str] = ()) -> None:
    """Raise ValueError for no queries, a repeated id, or nothing relevant."""
    if not len(queries):
        raise ValueError(f"there are no {subject.judged}; at least one is needed to calibrate")
    check_unique_ids([*queries.ids.tolist(), *other_ids], subject.unit)
    if not queries.relevant.any():
        raise ValueError(say("nothing relevant", n=len(queries), subject=subject))


def check_one_score(
    queries: ScoredQueries, guarantee: str, count_missed: bool, subject: Subject
) -> None:
    """Raise ValueError unless each unit has exactly one score, as claims and flags have."""
    single = (queries.sizes == 1).all() and not (queries.missed > 0).any()
    if guarantee != "all" or count_missed or not single:
        facts = {"guarantee": guarantee, "count_missed": count_missed, "subject": subject}
        raise ValueError(say("one score", **facts))


def check_silenced(queries: ScoredQueries | ScoredQuery, silences: bool) -> None:
    """Raise `CalibrationMismatch` unless queries were scored behind what silences some, or none.

    What is silenced counts as dropped, so queries must be scored as they were calibrated.
    """
    if isinstance(queries, ScoredQuery):
        queries = ScoredQueries.of([queries])
    for i in np.flatnonzero(np.isnan(queries.silenced) == silences)[:1].tolist():
        name = "not silenced" if silences else "silenced"
        raise CalibrationMismatch(say(name, query=queries[i].name))


def check_scorable(reduced: Reduced, scorer: str, on_unscorable: str) -> None:
    """Raise ValueError for a relevant NaN, unless it counts as kept and others have a score."""
    n, lost = len(reduced.queries.scores), reduced.first_lost
    if lost is None or (on_unscorable == "keep" and reduced.n_lost < n):
        return
    id = reduced.queries.ids[lost.query]
    lacking = "lacks hits" if "words; context=" in scorer else "lacks a score"
    facts = {
        "where": f"query number {lost.query + 1}" if id is None else f"query {id!r}",
        "why": "" if lost.why is None else f" ({lost.why})",
        "remedy": say("scores nothing" if reduced.n_lost == n else lacking),
    }
    raise ValueError(say("no score", place=lost.snippet, reduced=reduced, n=n, s=scorer, **facts))


def check_groups(queries: ScoredQueries, by_group: bool, subject: Subject) -> None:
    """Raise ValueError if a query has no group, and the guarantee is by group."""
    groups = queries.groups.tolist()
    if by_group and None in groups:
        place = groups.index(None)
        id = queries.ids[place]
        which = f"number {place + 1}" if id is None else repr(id)
        raise ValueError(say("no group", unit=subject.unit, which=which))


def warn_if_reversed(ordered: float, pairs: int, subject: Subject, n: int | None = None) -> None:
    """Warn if fewer than half of all pairs of a good and a bad item are ordered by their scores.

    By two standard errors fewer if there are n independent items (Mann and Whitney).
    """
    margin = 0.0 if n is None else math.sqrt(pairs * (n + 1) / 3)
    if 2 * ordered < pairs - 2 * margin:
        warnings.warn(subject.says("reversed", area=ordered / pairs), stacklevel=3)


def with_retrieval(
    judged: Sequence[JudgedQuery], retrieval: Mapping[str, JsonValue] | None
) -> Mapping[str, JsonValue] | None:
    """Return the retrieval facts, completed with the judged queries' retriever, k and lengths.

    `lengths` are those of the lists that were retrieved, each with its number of queries. `empty`
    is for how many queries nothing was, None if that is unknown of some; `with_gaps` is how many
    lists lack ranks, `found_by` how many lists a retriever found something of, where there are
    several, and `without_scores` how many there are, if one retriever is known to have given all,
    and none has a score. What is 0 is left out. Raises ValueError if retriever or k differ between
    queries, or from what is given.
    """
    facts: dict[str, Any] = json_copy("retrieval", retrieval) or {}
    check_retrieval(facts)
    given = {**facts, "retriever": as_retriever("retrieval", facts.get("retriever"))}
    for name in ("retriever", "k"):
        known = {given.get(name), *(getattr(query, name) for query in judged)} - {None}
        if len(known) > 1:
            values = ", ".join(sorted(map(repr, known)))
            raise ValueError(say("retrievals differ", name=name, values=values))
        if known:
            facts[name] = known.pop()
    returned = [query for query in judged if query.snippets and retrieved(query)]
    lists = [query.retrieved for query in returned]
    if not lists:
        return json_copy("retrieval", facts or None)
    lengths = Counter(snippets.depth for snippets in lists)
    empty = [query for query in judged if not query.snippets]
    bare = all(q.retriever is not None for q in returned) and all(s.scored is False for s in lists)
    found = Counter(name for snippets in lists for name in snippets.hits)
    measured = {
        "lengths": {str(n): lengths[n] for n in sorted(lengths)},
        "empty": len(empty) if all(map(retrieved, empty)) else None,
        "with_gaps": sum(snippets.has_gaps for snippets in lists),
        "found_by": dict(sorted(found.items())) if len(found) > 1 else 0,
        "without_scores": len(lists) if bare else 0,
    }
    others = {name: fact for name, fact in facts.items() if name not in measured}
    return json_copy("retrieval", others | {k: v for k, v in measured.items() if v != 0})


def check_retrieval(
    retrieval: Mapping[str, JsonValue] | None, subject: Subject | None = None
) -> None:
    """Raise unless the retriever has a printable name and k is 1 or more, where they are known.

    Of sentences, the splitter must be known.
    """
    k, split = (retrieval or {}).get("k"), (retrieval or {}).get("split")
    if subject == SENTENCES and not (isinstance(split, str) and split.isprintable() and split):
        raise ValueError(say("no name of a split", split=split))
    as_retriever("retrieval", (retrieval or {}).get("retriever"))
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise ValueError(say("no k", k=k))


def json_copy(name: str, value: Mapping[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    """Return a copy of JSON data that shares nothing, as the file will give it back.

    Raises TypeError unless it is a mapping or None, and ValueError unless it is JSON.
    """
    check_type(Mapping | None, "a mapping, such as a dict", **{name: value})
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=as_json).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(say("no json", name=name, value=value, error=error)) from None
    copy: dict[str, JsonValue] | None = json.loads(text)
    return copy
