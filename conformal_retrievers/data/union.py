"""One list from the lists of several retrievers, with the hits of each item.

Two items are the same one if their ids are equal, or else their texts, because some stores assign
ids of their own. The union has the order of reciprocal rank fusion, see `fuse`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.hits import Hit, fuse
from conformal_retrievers.data.wording import say

logger = logging.getLogger("conformal_retrievers")

T = TypeVar("T")
OnError = Literal["raise", "skip"]
Place: TypeAlias = tuple[str, int]  # a retriever and a rank
_judging = ContextVar("judging", default=False)


class Item(NamedTuple):
    """What a retriever returned, as far as a union needs it."""

    id: str | None
    text: str
    score: float | None = None


def unite(lists: Mapping[str, Sequence[Item]]) -> dict[Place, tuple[Hit, ...]]:
    """Return the first place of each different item, with its hits, in the order of fusion.

    Items of one list that have different ids are different ones, whatever their texts.

    >>> united = unite({"a": [Item("1", "x", 0.9)], "b": [Item(None, "y"), Item(None, "x", 7.0)]})
    >>> united["a", 0]
    (Hit(retriever='a', rank=0, score=0.9), Hit(retriever='b', rank=1, score=7.0))
    """
    by_id: dict[str | None, Place] = {}
    by_text: dict[str, list[Place]] = {}
    keys: dict[str, list[tuple[Place, float | None]]] = {}
    for retriever, items in lists.items():
        keys[retriever] = []
        taken = {by_id[item.id] for item in items if item.id in by_id}
        for rank, (id, text, score) in enumerate(items):
            place = by_id.get(id)
            if place is None:
                # A text without words, such as that of an image, says nothing about identity.
                same = by_text.setdefault(text, []) if text.strip() else []
                free = (known for known in same if id is None or known not in taken)
                place = next(free, (retriever, rank))
                if place == (retriever, rank):
                    same.append(place)
            taken.add(place)
            if id is not None:
                by_id[id] = place
            keys[retriever].append((place, score))
    return fuse(keys)


def check_retrievers(retrievers: Any, on_error: object, kind: type, example: str) -> None:
    """Raise TypeError or ValueError unless there are retrievers by name, and a known on_error."""
    if not isinstance(retrievers, Mapping) or not retrievers:
        given = "empty" if isinstance(retrievers, Mapping) else f"a {type(retrievers).__name__}"
        raise TypeError(f"retrievers is {given}; give a dict, such as {{'dense': …, 'bm25': …}}")
    for name, retriever in retrievers.items():
        check_names("retrievers", name=name)
        if not name:
            raise ValueError("retrievers has a name without a character; give each a name")
        if not isinstance(retriever, kind):
            raise TypeError(say("no retriever", name=name, kind=type(retriever), example=example))
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error is {on_error!r:.80}; give one of {get_args(OnError)}")


def check_asked(read: Iterable[str], asked: Collection[str]) -> None:
    """Raise ValueError if a score reads the hits of a retriever that is not among those asked.

    >>> check_asked(["bm25", "dense"], ["dense"])
    Traceback (most recent call last):
    ValueError: retriever gives the hits of 'dense', but the calibration's score needs those of \
'bm25'; give the retriever of the calibration
    """
    if missing := [name for name in read if name not in asked]:
        given, lacking = (", ".join(map(repr, names)) for names in (asked, missing))
        raise ValueError(say("hits of others", asked=given, missing=lacking))


@contextmanager
def judging() -> Iterator[None]:
    """Let no retriever be skipped inside: judged without one, queries are not what is filtered."""
    token = _judging.set(True)
    try:
        yield
    finally:
        _judging.reset(token)


def failure(query: str, error: Exception) -> RuntimeError:
    """Return the error of a query that could not be judged, which names what failed."""
    notes = getattr(error, "__notes__", ())
    text = "; ".join([f"query {query!r:.80}: the retriever raised {error!r}", *notes])
    return RuntimeError(f"{text}. {say('judge again')}")


def answers(
    outcomes: Mapping[str, T | BaseException], on_error: OnError, logged: set[Any]
) -> dict[str, T]:
    """Return what each retriever returned; those that failed are left out if on_error="skip".

    Raises the first error, with a note that names the retriever, if on_error="raise", while judging
    or if the others found nothing, so that no failure stays unseen, and one that is not an
    Exception. Outcomes are what each returned or raised; a kind of error that is not in `logged` is
    logged, and added to it.
    """
    errors = {name: e for name, e in outcomes.items() if isinstance(e, BaseException)}
    results = {name: r for name, r in outcomes.items() if not isinstance(r, BaseException)}
    skips = on_error == "skip" and not _judging.get() and any(results.values())
    for name, error in errors.items():
        if not (skips and isinstance(error, Exception)):
            # What `add_note` does from Python 3.11 on.
            vars(error).setdefault("__notes__", []).append(f"the retriever {name!r} failed")
            raise error
        if (name, type(error)) not in logged:
            logged.add((name, type(error)))
            text = "retriever %r is left out, although the calibration was made with it: %r"
            logger.warning(text, name, error)
    return results


def ask(calls: Mapping[str, Callable[[], T]], on_error: OnError, logged: set[Any]) -> dict[str, T]:
    """Return the `answers` of calls at once, each in a thread and a copy of the context."""
    with ThreadPoolExecutor(len(calls)) as threads:
        running = {name: threads.submit(copy_context().run, call) for name, call in calls.items()}
    outcomes = {name: task.exception() or task.result() for name, task in running.items()}
    return answers(outcomes, on_error, logged)


async def aask(
    calls: Mapping[str, Awaitable[T]], on_error: OnError, logged: set[Any]
) -> dict[str, T]:
    """Return the `answers` of calls at once; if on_error="raise", an error cancels the others."""
    tasks = {name: asyncio.ensure_future(call) for name, call in calls.items()}
    until = asyncio.ALL_COMPLETED if on_error == "skip" else asyncio.FIRST_EXCEPTION
    try:
        ended, _ = await asyncio.wait(tasks.values(), return_when=until)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    done = {name: task for name, task in tasks.items() if task in ended}
    outcomes = {name: task.exception() or task.result() for name, task in done.items()}
    return answers(outcomes, on_error, logged)
