"""Judgements carried over to what a retriever returns: by id, text, metadata or evidence.

    key            what is relevant of what was retrieved
    None           what has a relevant id, or else the text of a relevant snippet (`retrieved_as`)
    "evidence"     what has enough of the evidence (`by_chunk`)
    a field        what has a relevant id as str(metadata[field]): all chunks of a document

Ids that are in nothing retrieved are reported with those that are most like them.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import chain
from typing import Any, TypedDict
from unicodedata import category, normalize

from conformal_retrievers.data.checks import check_type
from conformal_retrievers.data.judged import with_questions
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.data.sentences import Split, splitter
from conformal_retrievers.data.sentences.evidence import LEAST, by_chunk, by_sentence, located
from conformal_retrievers.data.wording import say

Found = tuple[Snippet, Mapping[str, Any]]  # with the fields of its metadata
Returned = tuple[Sequence[Sequence[Found]], Retrieval]  # for each question, by what was asked
Names = tuple[tuple[str, str], ...]  # what something relevant is looked for by: ("id", "7")
SHOWN = 3  # names in a message
PREFIX = 80  # characters of a text that are compared with others, or of an id in a message


class JudgeOptions(TypedDict, total=False):
    """The options of `judge_retriever` of both packages."""

    name: str | None
    key: str | None
    max_concurrency: int | None
    split: Split | None


def retrieve_and_judge(
    judged: Iterable[JudgedQuery] | Iterable[str],
    retrieve: Callable[..., Returned],
    /,
    *,
    key: str | None = None,
    split: Split | None = None,
    **asking: Any,
) -> list[JudgedQuery]:
    """Return judged queries, or plain questions, with what is retrieved for each, judged.

    `judge_retriever` of both packages calls it. Queries have relevant snippets, relevant ids or
    evidence. `retrieve` returns for each of their texts a list, best first, of snippets with the
    fields of their metadata, and what was asked for it; `asking` are its options. `key` is what
    snippets are recognised by, see above; `split` cuts them into sentences, see `by_sentence`.

    Raises ValueError if no metadata have the field; if a query lacks what the key compares; if all
    relevant ids, ten or more, are in nothing that was retrieved for any query. Warns if all of
    fewer are, more than half of ten or more, or each one of a third of the queries; if one differs
    in case, punctuation or Unicode form only; and if an id is that of several snippets of a query.
    """
    split = None if split is None else splitter(split)
    queries = with_questions(judged)
    retrieved, asked = retrieve([query.query for query in queries], **asking)
    queries = located(queries, [[snippet for snippet, _ in returned] for returned in retrieved])
    everything = [*chain.from_iterable(retrieved)]
    fields = _values(everything)
    _check_key(key, fields)
    results = [
        replace(_judged(query, returned, key, split), **vars(asked))
        for query, returned in zip(queries, retrieved, strict=True)
    ]
    if split is not None:
        return by_sentence(results, split)
    if key not in (None, "evidence") and _of_documents(results, retrieved, key):
        results = [replace(query, missed=None) for query in results]
    if everything:
        looked_for = [(q.name, names) for q in queries for names in _names(q, key)]
        _report(looked_for, [snippet for snippet, _ in everything], fields, key)
    return results


def _check_key(key: str | None, fields: Mapping[str, set[str]]) -> None:
    check_type(str | None, "the name of a field of the metadata, or None", key=key)
    if fields and key not in (None, "evidence", *fields):
        near = get_close_matches(key or "", fields, 1) or [*sorted(fields), "evidence"]
        raise ValueError(say("unknown key", key=key, keys=" or ".join(map(repr, near))))


def _judged(
    query: JudgedQuery, found: Sequence[Found], key: str | None, split: Split | None
) -> JudgedQuery:
    snippets = [snippet for snippet, _ in found]
    if key == "evidence":
        return by_chunk(query, snippets)
    names = _names(query, key)
    if query.evidence and not names and split is None:
        raise ValueError(say("evidence alone", query=query))
    if key is None:
        return query.retrieved_as(snippets)
    if not all(names):
        raise ValueError(say("no id to compare", query=query, key=key))
    return query.retrieved_as(snippets, values=[_value(fields, key) for _, fields in found])


def _value(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    return str(value) if isinstance(value, (str, int, float)) else None


def _values(found: Sequence[Found]) -> dict[str, set[str]]:
    """Return the values of each field that has a text or a number."""
    values: dict[str, set[str]] = {}
    for _, fields in found:
        for key in fields:
            if value := _value(fields, key):
                values.setdefault(key, set()).add(value)
    return values


def _of_documents(
    results: Sequence[JudgedQuery], retrieved: Sequence[Sequence[Found]], key: str
) -> bool:
    """Return whether a relevant id is that of several snippets, and warn: `missed` is unknown."""
    for query, returned in zip(results, retrieved, strict=True):
        pairs = zip(returned, query.relevant, strict=True)
        ids = [_value(metadata, key) for (_, metadata), relevant in pairs if relevant]
        if len({*ids}) < len(ids):
            ((id, n),) = Counter(ids).most_common(1)
            warnings.warn(say("id of several", n=n, query=query, id=id), stacklevel=4)
            return True
    return False


# --- what nothing was found for -------------------------------------------------------------------


def _names(query: JudgedQuery, key: str | None) -> list[Names]:
    """Return what each of the relevant ones is looked for by; () for a chunk without an id."""
    if key == "evidence":
        return [(("document", piece.document),) for piece in query.evidence]
    names: list[Names] = [(("id", id),) for id in query.relevant_ids]
    for s in [s for s, r in zip(query.snippets, query.relevant, strict=True) if r]:
        by_id = () if s.id is None else (("id", s.id), ("chunk", s.id))
        names.append((*by_id, ("text", s.text)) if key is None else by_id)
    return names


def _report(
    relevant: Sequence[tuple[str, Names]],
    snippets: Sequence[Snippet],
    fields: Mapping[str, set[str]],
    key: str | None,
) -> None:
    """Warn of relevant ones that nothing retrieved has, and raise ValueError if it has none."""
    ids = {s.id for s in snippets if s.id is not None}
    values = {"id": ids if key is None else fields.get(key, set()), "chunk": ids}
    values["text"] = {s.text for s in snippets}
    values["document"] = ids | {s.document for s in snippets if s.document is not None}
    known = {(kind, name) for kind, names in values.items() for name in names}
    unknown = [(query, names) for query, names in relevant if known.isdisjoint(names)]
    spelt = {(kind, _spelt(name)) for kind, name in known}
    alike = [(q, names) for q, names in unknown if (names[0][0], _spelt(names[0][1])) in spelt]
    asked = {query for query, _ in relevant}
    lost = asked - {query for query, names in relevant if not known.isdisjoint(names)}
    all_are, enough = len(unknown) == len(relevant), len(relevant) >= LEAST
    # Retrievers do miss some.
    many = len(unknown) > len(relevant) / 2 or 3 * len(lost) >= len(asked)
    if not unknown or not (all_are or alike or (many and enough)):
        return
    shown = ", ".join(_nearest(q, names, known) for q, names in (alike or unknown)[:SHOWN])
    firsts = [names[0] for _, names in unknown]
    if alike:
        text = f"{len(alike)} of them differ in case, punctuation or Unicode form alone"
        remedy = f"{text}: write them as stored"
    else:
        remedy = _remedy(firsts, fields, key)
    facts = {"unknown": len(unknown), "n": len(relevant), "lost": len(lost), "asked": len(asked)}
    message = say("found nowhere", kind=firsts[0][0], shown=shown, remedy=remedy, **facts)
    if all_are and enough:
        raise ValueError(message)
    if not alike:
        message += "; if they are right, the retriever misses them, and they count as missed"
    warnings.warn(message, stacklevel=4)


def _spelt(name: str) -> str:
    """Return a name in one case, punctuation and Unicode form: what is a symbol or a mark stays.

    >>> _spelt("HALO_PARTS") == _spelt("halo-parts"), _spelt("caf\u00e9") == _spelt("cafe\u0301")
    (True, True)
    >>> _spelt("c++") == _spelt("c#"), _spelt("\u0915\u093f") == _spelt("\u0915\u0940")
    (False, False)
    """
    return re.sub("-+", "-", normalize("NFKC", name).casefold().translate(_separators()))


@cache
def _separators() -> dict[int, str]:
    kinds = ((i, category(chr(i))) for i in range(0x10000))
    return {i: "-" for i, kind in kinds if kind[0] in "PZ" or kind == "Cc"}


def _nearest(query: str, names: Names, known: Iterable[tuple[str, str]]) -> str:
    kind, name = names[0]
    # Long ids, such as addresses, often differ at their ends.
    part = slice(PREFIX) if kind == "text" else slice(-PREFIX, None)
    values = {v[part].casefold(): v[part] for k, v in sorted(known) if k == kind}
    near = get_close_matches(name[part].casefold(), values, 1)
    return f"{name[part]!r} of {query}" + "".join(f" (nearest: {values[n]!r})" for n in near)


def _remedy(
    unknown: Sequence[tuple[str, str]], fields: Mapping[str, set[str]], key: str | None
) -> str:
    """Return what to do about names that nothing has where they were looked for."""
    shares = {field: sum(name in values for _, name in unknown) for field, values in fields.items()}
    field = max(shares, key=shares.__getitem__, default="")
    if key == "evidence":
        text = f"{shares[field]} of them are the {field}. " if shares.get(field) else ""
        return text + say("evidence names")
    if not shares.get(field):
        if key is None and unknown[0][0] == "id" and not fields.get("id"):
            return "What was retrieved has no ids: give the store documents with ids"
        return say("in no field")
    # The documents' own ids, unless these were looked at: then it is a field of the metadata.
    own = field == "id" and (key is not None or unknown[0][0] != "id")
    other = "leave key out" if own else f"give key={field!r}"
    return say("in a field", n=shares[field], field=field, other=other)
