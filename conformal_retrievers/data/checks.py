"""What may enter as data: texts, names, judgements, flags, counts, hits; errors name the field."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.snippets import Snippet
from conformal_retrievers.data.text import visible
from conformal_retrievers.data.wording import say

T = TypeVar("T")
MAX_COUNT = 1_000_000  # where missed snippets count, each takes memory: it has the score +inf


def check_type(kind: Any, remedy: str, **given: object) -> None:
    """Raise TypeError, naming it, for an argument of another type."""
    for name, value in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r:.80}; give {remedy}")


def all_of(kind: type[T], items: Iterable[T], name: str) -> list[T]:
    """Return the items as a list; raise TypeError, naming it, for one of another type."""
    if isinstance(items, kind):
        raise TypeError(f"{name} is a single {kind.__name__}; give a list")
    check_no_table(items, name)
    if hasattr(items, name):  # such as what label_retriever returns
        raise TypeError(f"{name} is a {type(items).__name__}; give its .{name}")
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise TypeError(say("no list", name=name, items=items, kind=kind))
    given = list(items)
    for i, item in enumerate(given):
        if not isinstance(item, kind):
            raise TypeError(f"{name}[{i}] is {item!r:.60}; give {kind.__name__} objects")
    return given


def check_no_table(items: object, name: str) -> None:
    """Raise TypeError, naming it, for a data frame, which would give the names of its columns."""
    if hasattr(items, "columns"):
        raise TypeError(f"{name} is a table; give read(table), or the texts of a column")


def query_name(id: str | None, query: str) -> str:
    """Return the name of a query in messages."""
    name = str(id) if id else query
    return f"query {name[:60] + '…' if len(name) > 60 else name!r}"


def check_texts(where: str, **values: object) -> None:
    """Raise TypeError unless each value is text or None; ValueError for a lone surrogate."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{where}: {name} is {value!r:.60}; give a str, or None")
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise ValueError(say("lone surrogate", where=where, name=name, error=error)) from None


def check_snippets(where: str, snippets: Iterable[Snippet]) -> None:
    """Raise as `check_texts` does for the texts, ids and documents of snippets."""
    given = [text for s in snippets for text in (s.text, s.id, s.document) if text is not None]
    try:
        "".join([text for text in given if not str.isascii(text)]).encode()
    except (TypeError, UnicodeEncodeError):  # it is one of these
        for i, s in enumerate(snippets):
            check_texts(f"{where}: snippets[{i}]", text=s.text, id=s.id, document=s.document)


def check_names(where: str, **names: object) -> None:
    """Raise as `check_texts` does, and ValueError for a name with a control character."""
    check_texts(where, **names)
    for field_name, name in names.items():
        if name is not None and visible(str(name)) != str(name):
            raise ValueError(say("control characters", where=where, field=field_name, name=name))


def check_hits(where: str, found: Sequence[Sequence[Hit]]) -> None:
    """Raise ValueError unless ranks are 0 or more, and each retriever found a snippet once.

    Raises TypeError for anything but a `Hit`, and as `check_names` does for a retriever's name.
    """
    for i, hits in enumerate(found):
        for hit in hits:
            if not isinstance(hit, Hit):
                raise TypeError(say("foreign hits", where=where, i=i, hits=hits))
            if not 0 <= hit.rank < 2**53 or hit.rank % 1:
                raise ValueError(say("wrong rank", where=where, i=i, rank=hit.rank))
        if len(hits) > 1 and len({hit.retriever for hit in hits}) < len(hits):
            raise ValueError(f"{where}: snippets[{i}]: hits has one retriever twice; remove a hit")
    for name in {hit.retriever for hits in found for hit in hits}:
        check_names(where, retriever=name)


def as_judgement(where: str, i: int, value: object) -> bool:
    """Return a judgement as a bool; raise ValueError unless it is true or false."""
    if isinstance(value, (bool, np.bool_, int, np.integer)) and value in (0, 1):
        return bool(value)
    raise ValueError(say("no judgement", where=where, i=i, value=value))


def as_judgements(where: str, values: Iterable[object]) -> tuple[bool, ...]:
    """Return judgements as `as_judgement` returns one."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{where}: relevant is {values!r:.60}; give a list, as of [True, False]")
    judgements = tuple(values)
    if {*map(type, judgements)} <= {bool}:
        return judgements  # type: ignore[return-value]
    return tuple([as_judgement(where, i, value) for i, value in enumerate(judgements)])


def as_flag(where: str, name: str, value: object) -> bool:
    """Return a flag as a bool; raise TypeError, naming it, unless it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{where}: {name} is {value!r:.60}; give True or False")
    return bool(value)


def as_ids(where: str, name: str, ids: Iterable[str]) -> tuple[str, ...]:
    """Return different ids, in order; raise TypeError or ValueError unless each is visible text."""
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
        raise TypeError(say("no list of ids", where=where, name=name, kind=type(ids), ids=ids))
    given = tuple(dict.fromkeys(ids))
    for id in given:
        if not isinstance(id, str):
            raise TypeError(f"{where}: {name} has {id!r:.60}; give each id as a str")
        check_texts(where, **{name: id})
        if not id.strip():
            raise ValueError(f"{where}: {name} has the blank id {id!r:.60}; remove it")
    return given


def as_count(where: str, name: str, value: Any, *, least: int) -> int | None:
    """Return a number of snippets, or None; raise ValueError if it is below the least."""
    if value is None:
        return None
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (whole and least <= value <= MAX_COUNT):
        limits = {"least": least, "most": MAX_COUNT}
        raise ValueError(say("wrong count", where=where, name=name, value=value, **limits))
    return int(value)


def check_count(count: object, name: str) -> int:
    """Return a whole number of at least 1; raise ValueError, naming it, for anything else."""
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
        raise ValueError(f"{name} is {count!r:.80}; give a whole number of at least 1")
    return int(count)


def as_scores(
    scores: ArrayLike | Sequence[float | None],
    name: str,
    n: int | None = None,
    items: str = "snippets",
) -> NDArray[np.float64]:
    """Return scores as floats, NaN for None.

    Raises ValueError, with their name, for scores that are not numbers, and unless there is one for
    each of n items, if n is given.
    """
    if type(scores) is np.ndarray and scores.dtype == np.float64:
        array = scores
    else:
        array = as_numbers(scores, name).astype(np.float64)
    if n is not None:
        check_shape(name, array, n, items)
    return array


def check_shape(name: str, array: NDArray[Any], n: int, items: str) -> None:
    """Raise ValueError, naming it, unless an array has one entry for each of n items."""
    if array.shape != (n,):
        raise ValueError(say("one each", name=name, shape=array.shape, n=n, items=items))


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """Return numbers as an array of their type, or of floats if there is None.

    Raises ValueError, with their name, for values that are not numbers.
    """
    try:
        if isinstance(values, np.ma.MaskedArray):
            raise TypeError("a mask hides some; fill it: array.filled(np.nan)")
        array = np.asarray(values)
        objects = array.flat if array.dtype == object else ()
        if array.dtype.kind not in "biufO" or any(isinstance(x, (str, bytes)) for x in objects):
            raise TypeError("they are text, dates or complex numbers")
        return array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of a tensor's gradient
        raise ValueError(say("not numbers", name=name, error=error)) from error
