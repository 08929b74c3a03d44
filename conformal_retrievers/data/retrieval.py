"""What was asked for snippets: a retriever, or several at once, and how deep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, RootModel, ValidationError

from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.files import explain
from conformal_retrievers.data.text import printable

Name = Annotated[str, AfterValidator(printable)]


@dataclass(frozen=True)
class Retrieval:
    """A retriever and the number of snippets that it was asked for, None if that is unknown."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    retriever: Name | Hybrid
    k: Annotated[int, Field(ge=1, strict=True)] | None = None


class Hybrid(RootModel[dict[Name, Retrieval]]):
    """The retrievers of a `HybridRetriever`, by name.

    >>> hybrid = Hybrid({"dense": {"retriever": "FAISS", "k": 50}, "bm25": {"retriever": "BM25"}})
    >>> hybrid, hybrid.root["dense"].k
    (HybridRetriever(bm25: BM25, k = None; dense: FAISS, k = 50), 50)
    """

    model_config = ConfigDict(frozen=True)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        parts = sorted(self.root.items())
        named = [f"{name}: {part.retriever}, k = {part.k}" for name, part in parts]
        return f"HybridRetriever({'; '.join(named)})"

    __repr__ = __str__

    @property
    def k(self) -> int | None:
        """How many snippets all of them were asked for, None if that is unknown of any."""
        depths = [part.k for part in self.root.values()]
        return None if None in depths else sum(k or 0 for k in depths)


Retriever: TypeAlias = str | Hybrid  # by the name of its class or store


def as_retriever(where: str, value: Any) -> Retriever | None:
    """Return a retriever, also as JSON has it; raise TypeError or ValueError for anything else."""
    if value and isinstance(value, Mapping):
        try:
            return Hybrid.model_validate(value)
        except ValidationError as error:
            raise ValueError(f"{where}: retriever.{explain(error)}") from None
    if isinstance(value, Hybrid):
        return value
    check_names(where, retriever=value)
    return None if value is None else str(value)


def in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about a retrieval with the retrievers of a union as a text."""
    known = as_retriever("retrieval", facts.get("retriever"))
    return {**facts, "retriever": str(known)} if known else {**facts}


def as_json(value: object) -> Any:
    """Return a `Hybrid` as plain JSON; raise TypeError for anything else."""
    if not isinstance(value, Hybrid):
        raise TypeError(f"{value!r:.60} is not JSON")
    return value.model_dump()
