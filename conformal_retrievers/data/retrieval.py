"""What was asked for snippets: a retriever, or several at once, and how deep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, ValidationError

from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.files import explain
from conformal_retrievers.data.text import printable, visible

Name = Annotated[str, AfterValidator(printable)]


@dataclass(frozen=True)
class Retrieval:
    """A retriever and the number of snippets that it was asked for, None if that is unknown."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    retriever: Name | Described | Hybrid
    k: Annotated[int, Field(ge=1, strict=True)] | None = None

    def returned(self, lists: Iterable[Sized], name: str | None) -> Retrieval:
        """Return what was asked for lists, by a name if one is given.

        One that is longer than k was asked for, too: a retriever may return more.
        """
        k = None if self.k is None else max([self.k, *map(len, lists)])
        return Retrieval(name or self.retriever, k)


class Described(BaseModel):
    """A retriever as a package describes it: its class, and what is in it, as its framework has it.

    Those of one framework can be compared. A name that the user chose, or a function's, is a str.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(visible)]
    framework: Literal["LangChain", "LlamaIndex"]
    filtered: bool = False  # whether by metadata, such as a tenant

    def __str__(self) -> str:
        return self.name + " with a metadata filter" * self.filtered

    __repr__ = __str__


class Hybrid(RootModel[dict[Name, Retrieval]]):
    """The retrievers of a `HybridRetriever`, by name.

    >>> hybrid = Hybrid({"dense": {"retriever": "FAISS", "k": 50}, "bm25": {"retriever": "BM25"}})
    >>> hybrid, hybrid.root["dense"].k
    (HybridRetriever(bm25: BM25, k = ?; dense: FAISS, k = 50), 50)
    """

    model_config = ConfigDict(frozen=True)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = [(n, p.retriever or "?", p.k or "?") for n, p in sorted(self.root.items())]
        named = [f"{name}: {retriever}, k = {k}" for name, retriever, k in parts]
        return f"HybridRetriever({'; '.join(named)})"

    __repr__ = __str__

    @property
    def k(self) -> int | None:
        """How many snippets all of them were asked for, None if that is unknown of any."""
        depths = [part.k for part in self.root.values()]
        return None if None in depths else sum(k or 0 for k in depths)


Retriever: TypeAlias = str | Described | Hybrid


def difference(
    asked: Retrieval,
    calibrated: Retrieval,
    part: str | None = None,
    parts: Collection[Retriever] = (),
) -> str | None:
    """Return how a retriever is known to differ from the calibrated one, or None.

    `part` is the retriever's name in a `HybridRetriever`, and `parts` are all of the calibrated
    one, which show that two have each other's name.

    >>> difference(Retrieval("mine", 9), Retrieval("mine", 20))
    'the retriever is asked for 9 documents, but the calibration has k = 20: retrieve 20, or \
calibrate at 9'
    >>> now = Described(name="FAISS(m, mmr)", framework="LangChain")
    >>> known = Described(name="FAISS(m, similarity)", framework="LangChain")
    >>> difference(Retrieval(now), Retrieval(known))
    'the retriever is FAISS(m, mmr), but the calibration is of FAISS(m, similarity): retrieve with \
that one, or calibrate with this one'
    >>> filtered = Described(name="FAISS(m, mmr)", framework="LangChain", filtered=True)
    >>> difference(Retrieval(filtered), Retrieval(now))
    'the retriever is FAISS(m, mmr) with a metadata filter, but the calibration is of \
FAISS(m, mmr): retrieve with that one, or judge queries with their filters'
    >>> difference(Retrieval(now), Retrieval(filtered)).partition(": ")[2]
    'retrieve with that one, or calibrate with this one'
    >>> now = {"dense": {"retriever": "words_of"}, "bm25": {"retriever": "vectors_of"}}
    >>> known = {"dense": now["bm25"], "bm25": now["dense"]}
    >>> difference(Retrieval(Hybrid(now)), Retrieval(Hybrid(known))).count("that one")
    2
    """
    what = "the retriever" if part is None else f"the retriever {part!r}"
    now, known, depth, k = asked.retriever, calibrated.retriever, asked.k, calibrated.k
    if isinstance(now, Hybrid) and isinstance(known, Hybrid) and {*now.root} == {*known.root}:
        all_parts = {own.retriever for own in known.root.values()}
        each = [difference(o, known.root[name], name, all_parts) for name, o in now.root.items()]
        return "; ".join(text for text in each if text) or None
    comparable = not isinstance(now, str) and not isinstance(known, str)
    if now != known and ((comparable and not of_two_frameworks(now, known)) or now in parts):
        text = f"{what} is {now}, but the calibration is of {known}: retrieve with that one"
        filtered = [getattr(own, "filtered", False) for own in (known, now)]
        judge = "judge queries with their filters"
        return f"{text}, or {judge if filtered == [False, True] else 'calibrate with this one'}"
    # The filter warns of more documents than k, but does not know who returned them.
    if depth is not None and k is not None and (depth < k or (part and depth > k)):
        text = f"{what} is asked for {depth} documents, but the calibration has k = {k}"
        return f"{text}: retrieve {k}, or calibrate at {depth}"
    return None


def of_two_frameworks(*retrievers: Retriever | int | None) -> bool:
    """Return whether retrievers are of LangChain and LlamaIndex, and so may be the same."""
    each, frameworks = [*retrievers], set()
    for own in each:  # to which the parts of unions are added
        if isinstance(own, Hybrid):
            each += [part.retriever for part in own.root.values()]
        elif isinstance(own, Described):
            frameworks.add(own.framework)
    return len(frameworks) == 2


def as_retriever(where: str, value: Any) -> Retriever | None:
    """Return a retriever, also as JSON has it; raise TypeError or ValueError for anything else."""
    if value and isinstance(value, Mapping):
        try:
            described = isinstance(value.get("framework"), str)
            return (Described if described else Hybrid).model_validate(value)
        except ValidationError as error:
            raise ValueError(f"{where}: retriever.{explain(error)}") from None
    if isinstance(value, Described | Hybrid):
        return value
    check_names(where, retriever=value)
    return None if value is None else str(value)


def in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about a retrieval with its retriever as a text."""
    known = as_retriever("retrieval", facts.get("retriever"))
    return {**facts, "retriever": str(known)} if known else {**facts}


def as_json(value: object) -> Any:
    """Return a retriever as plain JSON; raise TypeError for anything else."""
    if not isinstance(value, Described | Hybrid):
        raise TypeError(f"{value!r:.60} is not JSON")
    return value.model_dump()
