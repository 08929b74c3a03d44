"""Made-up chains and questions: what is answered is known, so that needed scores are."""

import hashlib
from collections.abc import Sequence

import numpy as np

from conformal_retrievers import FunctionScorer, JudgedQuery, Snippet


def scored(values: Sequence[float], number: int = 0, **more) -> JudgedQuery:
    """Return a question whose snippets state their scores in their texts; NaN is no score."""
    texts = [f"{value} place {i}" for i, value in enumerate(values)]
    return JudgedQuery(
        f"What is thing {number}, {digest(number)[:8]}?",
        [Snippet(text, f"{number}-{i}") for i, text in enumerate(texts)],
        [False] * len(texts),
        id=f"q{number}",
        **more,
    )


SCORER = FunctionScorer(lambda query, texts: [float(text.split()[0]) for text in texts], "stated")


def digest(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def dice(*of: object) -> float:
    """Return a number in [0, 1) that is the same for the same question and context."""
    return int(digest(*of)[:12], 16) / 16**12


class Chain:
    """Knows the answer if it sees the snippet at a place; counts what it is asked."""

    name = "chain that needs one place"

    def __init__(self, places: dict[str, int] | int = 0, noise: float = 0.0) -> None:
        self.places, self.noise, self.calls = places, noise, []

    def __call__(self, question: str, snippets: Sequence[Snippet]) -> str:
        self.calls.append((question, [snippet.id for snippet in snippets]))
        place = self.places if isinstance(self.places, int) else self.places[question]
        knows = any(snippet.text.endswith(f"place {place}") for snippet in snippets)
        if dice(question, [snippet.id for snippet in snippets]) < self.noise:
            return "nonsense"
        return "Paris" if knows else "unknown"


def drawn(n: int, seed: int) -> tuple[list[JudgedQuery], dict[str, int]]:
    """Return questions with ties, unscorable snippets and empty lists, and what each needs."""
    rng = np.random.default_rng(seed)
    queries = []
    for i in range(n):
        values = rng.integers(8, size=rng.integers(0, 7)).astype(float)
        values[rng.random(len(values)) < 0.1] = np.nan
        queries.append(scored(values.tolist(), i))
    return queries, {query.query: int(rng.integers(0, 4)) for query in queries}
