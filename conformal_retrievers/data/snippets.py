"""What a retriever returns: snippets, made of texts or of the documents of a framework."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainValidator

from conformal_retrievers.data.hits import RETRIEVER, Hit, HitColumns, Hits, Number, hit_columns

T = TypeVar("T")


def _not_in_files(vector: object) -> object:
    raise ValueError("remove it, since files hold no embeddings")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A retrieved piece of text, which stands for a LangChain Document or a LlamaIndex Node.

    `document` names the document that it was cut from, and `position` is its first character there.
    `retrieval_score` is the retriever's own score, on its own scale. `hits` are the rank and score
    of each retriever that found it. Only `text` is needed; a score may read the others. A position
    that is no whole number, or below 0, is unknown. Raises TypeError for a `text` that is no str,
    and for a position or a score that is one.

    >>> [Snippet("a", position=start).position for start in (12.0, float("nan"), -1)]  # of a table
    [12, None, None]
    """

    text: str
    id: str | None = None
    document: str | None = None  # the document that it was cut from
    position: Annotated[int | None, Number] = None  # its first character in the document
    # The retriever's own, on the retriever's own scale.
    retrieval_score: Annotated[float | None, Number] = None
    hits: Hits = ()  # of each retriever that found it; () if that is unknown
    embedding: Annotated[
        Sequence[float] | NDArray[np.floating[Any]] | None, PlainValidator(_not_in_files)
    ] = field(default=None, compare=False, repr=False)  # (d,)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text is {self.text!r:.60}; give a str, such as document.page_content")
        start: Any = self.position
        score: Any = self.retrieval_score
        if isinstance(start, str) or isinstance(score, str):
            given = f"position is {start!r:.40} and retrieval_score {score!r:.40}"
            raise TypeError(f"{given}; give numbers, or None")
        if start is not None and not (type(start) is int and start >= 0):  # of a table, of numpy
            object.__setattr__(self, "position", as_position(start))


class column(Generic[T]):  # noqa: N801, it is used as a decorator
    """What an object makes when it is first read, and keeps: `cached_property` without a lock.

    Before Python 3.12 the lock is one for all objects, and held while a value is made: a process
    that is forked meanwhile would wait for it forever, as soon as it filters.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __get__(self, made_for: object, kind: object = None) -> T:
        if made_for is None:  # of the class
            return cast(T, self)
        value = vars(made_for)[self.make.__name__] = self.make(made_for)
        return value


class Retrieved(Sequence[Snippet]):
    """What was retrieved for a query: n snippets, in columns that are made when they are read.

    Scores from hits read no snippet, and making a hundred takes longer than scoring them: so the
    packages make columns of their documents and nodes.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self.given = given
        self.known: dict[Any, Any] | None = None  # scores, where scorers share them

    def __len__(self) -> int:
        return len(self.given)

    @overload
    def __getitem__(self, i: int) -> Snippet: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Snippet]: ...
    def __getitem__(self, i: int | slice) -> Snippet | Sequence[Snippet]:
        return self.snippets[i]

    def __iter__(self) -> Iterator[Snippet]:
        return iter(self.snippets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "known": None}  # what is awaited stays here

    @column
    def snippets(self) -> tuple[Snippet, ...]:
        """The snippets themselves."""
        return tuple(self.given)

    @column
    def hits(self) -> Mapping[str, HitColumns]:
        """The hits of each retriever, by its name; empty if they are unknown."""
        return hit_columns([snippet.hits for snippet in self.snippets])

    @column
    def texts(self) -> tuple[str, ...]:
        """The texts."""
        return tuple([snippet.text for snippet in self.snippets])

    @column
    def documents(self) -> Sequence[str | None]:
        """The documents that they were cut from."""
        return [snippet.document for snippet in self.snippets]

    @column
    def positions(self) -> Sequence[int | None]:
        """The places of their first characters in these."""
        return [snippet.position for snippet in self.snippets]

    @column
    def embeddings(self) -> Sequence[Any]:
        """Their vectors, None where there is none."""
        return [snippet.embedding for snippet in self.snippets]

    @column
    def failed(self) -> Sequence[str]:
        """The retrievers that failed and were left out."""
        return ()

    @property
    def depth(self) -> int:
        """How many were retrieved: of several retrievers, by the one that found most.

        A union of lists of one length has a length of its own for each query.

        >>> hits = (Hit("dense", 3), Hit("bm25", 0))
        >>> Retrieved([Snippet("a", hits=hits), Snippet("b")]).depth
        4
        """
        return max((depth for depth, _ in self.ranks), default=len(self))

    @property
    def has_gaps(self) -> bool:
        """Whether a retriever's ranks have gaps, as behind something that drops what it returned.

        More than a tenth is missing, and not one alone: a retriever may return a snippet twice.

        >>> sentences = [Snippet(text, hits=(Hit("dense", 3),)) for text in ("Ann did.", "It was.")]
        >>> Retrieved([Snippet("a", hits=(Hit("dense", 0),)), *sentences]).has_gaps
        True
        """
        some = ((depth, own) for depth, own in self.ranks if len(own) != depth)  # not complete
        return any(len(np.unique(own)) < min(0.9 * depth, depth - 1) for depth, own in some)

    @property
    def scored(self) -> bool | None:
        """Whether all in the list of a single retriever has a score, or none; None for some."""
        if RETRIEVER not in self.hits:
            return None
        known = np.isfinite(self.hits[RETRIEVER].scores)
        return bool(known.any()) if known.all() == known.any() else None

    @column
    def ranks(self) -> list[tuple[int, NDArray[np.float64]]]:
        """The depth and the ranks of each retriever that found something."""
        known = [own.ranks[own.ranks < np.inf] for own in self.hits.values()]
        return [(int(own.max()) + 1, own) for own in known if len(own)]


def as_snippets(snippets: Iterable[Snippet | str], name: str = "snippets") -> Retrieved:
    """Return the snippets as what was retrieved.

    A plain string becomes one, and so does a Document of LangChain or a node of LlamaIndex.
    """
    if isinstance(snippets, Retrieved):
        return snippets
    if isinstance(snippets, (str, Snippet, Mapping)):
        raise TypeError(f"{name} is a single {type(snippets).__name__}; give a list of snippets")
    return Retrieved(tuple([s if isinstance(s, Snippet) else _snippet(s) for s in snippets]))


def _snippet(given: Any) -> Snippet:
    """Return a text, a Document of LangChain or a node of LlamaIndex as a snippet."""
    if hasattr(given, "page_content"):
        metadata = given.metadata or {}
        source, start = as_document(metadata.get("source")), metadata.get("start_index")
        return Snippet(given.page_content, given.id, source, as_position(start))
    node = getattr(given, "node", given)  # a NodeWithScore has a node
    if hasattr(node, "node_id"):
        # That of a node of a parent is counted from the parent.
        start = None if node.parent_node else getattr(node, "start_char_idx", None)
        score, hits = getattr(given, "score", None), getattr(given, "hits", ())
        return Snippet(node.get_content(), node.node_id, node.ref_doc_id, start, score, hits)
    return Snippet(given)


def as_document(source: object) -> str | None:
    """Return the name of a snippet's document; None for none, and as tables have a missing one.

    >>> [as_document(source) for source in ("page 1", 7, None, float("nan"), "")]
    ['page 1', '7', None, None, None]
    """
    if source is None or (isinstance(source, float) and math.isnan(source)):
        return None
    return str(source) if str(source) not in ("", "<NA>") else None  # that of pandas


def as_position(start: object) -> int | None:
    """Return the offset of a snippet in its document: a whole number, 0 or more, or else None.

    A splitter that does not find the text again writes −1, and some stores return floats.

    >>> [as_position(start) for start in (12, 12.0, np.float32(12), -1, 12.5, True, None)]
    [12, 12, 12, None, None, None, None]
    """
    if isinstance(start, bool) or not isinstance(start, (int, float, np.integer, np.floating)):
        return None
    return int(start) if start >= 0 and start % 1 == 0 else None


def with_hits(snippets: Iterable[Snippet | str], retriever: str = RETRIEVER) -> list[Snippet]:
    """Return snippets in the order in which one retriever returned them, each with its hit.

    >>> with_hits(["a", "b"])[1].hits
    (Hit(retriever='retriever', rank=1, score=None),)
    """
    return [
        replace(snippet, hits=(Hit(retriever, rank, snippet.retrieval_score),))
        for rank, snippet in enumerate(as_snippets(snippets))
    ]


def source_of(sentence: Snippet) -> tuple[str | None, str]:
    """Return what names the retrieved document of a sentence, see `Sentences.snippets`.

    >>> source_of(Snippet("Ann did.", id="chunk 3:10", document="page", position=510))
    ('page', 'chunk 3')
    """
    return sentence.document, (sentence.id or "").rpartition(":")[0]
