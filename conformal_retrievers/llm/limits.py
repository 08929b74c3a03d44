"""What the machines of a cluster share while they ask an LLM: one pace, one cache, one count."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.deadlines import Pace


class Desk:
    """Hands out permits, holds the cache, and counts how often a piece of work is begun."""

    def __init__(self, per_minute: float | None, cache: str | Path | None) -> None:
        self._pace = None if per_minute is None else Pace(per_minute)
        self._cache = None if cache is None else Cache(cache)
        self._begun = Counter[str]()

    def begin(self, work: str) -> int:
        """Count that work is begun; return how often it was."""
        self._begun[work] += 1
        return self._begun[work]

    def permit(self) -> float:
        """Return in how many seconds a request may be sent."""
        return 0.0 if self._pace is None else self._pace.permit()

    def replies(self, llm: str, requests: Sequence[str]) -> list[str | None]:
        """Return the stored replies, as `Cache.replies`."""
        return [None] * len(requests) if self._cache is None else self._cache.replies(llm, requests)

    def add_replies(self, llm: str, replies: Mapping[str, str]) -> None:
        """Store replies, as `Cache.add_replies`."""
        if self._cache is not None:
            self._cache.add_replies(llm, replies)


class CacheOfDesk(Cache):
    """The cache of a desk on another machine, whose methods `call` calls by name."""

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "path", call)

    def replies(self, llm: str, requests: Iterable[str]) -> list[str | None]:
        """Return the stored replies."""
        return list(self._call("replies", llm, list(requests)))

    def add_replies(self, llm: str, replies: Mapping[str, str]) -> None:
        """Store replies."""
        self._call("add_replies", llm, dict(replies))

    @property
    def _call(self) -> Callable[..., Any]:
        return self.path  # type: ignore[return-value]
