"""Recognising judged snippets among retrieved ones: by id, or else by text or another value."""

from collections.abc import Collection, Sequence

# The id of a snippet, and its text, or another value that is compared where ids do not decide.
Known = tuple[str | None, str | None]


def places_of(
    retrieved: Sequence[Known], relevant: Sequence[Known], judged: Collection[str | None]
) -> list[int | None]:
    """Return the place in `relevant` of each retrieved snippet; of equal values, different ones.

    The ids in `judged` are those of all snippets that were judged for the query.

    >>> places_of([("x", "text"), ("b", "other")], [("a", "text")], {"a", "b"})
    [0, None]
    """
    places: list[int | None] = [None] * len(retrieved)
    taken: set[int] = set()
    # Those whose id was judged come first, because they have one candidate only.
    for i in sorted(range(len(retrieved)), key=lambda i: retrieved[i][0] not in judged):
        candidates = [j for j, known in enumerate(relevant) if _same(known, retrieved[i], judged)]
        if candidates:
            place = next((j for j in candidates if j not in taken), candidates[0])
            places[i] = place
            taken.add(place)
    return places


def _same(known: Known, snippet: Known, judged: Collection[str | None]) -> bool:
    if None not in (known[0], snippet[0]) and snippet[0] in judged:
        return known[0] == snippet[0]
    return known[1] is not None and known[1] == snippet[1]
