"""Simulated judged queries: texts that begin with a query score and end with a snippet's score."""

from lookup import QueryFunction

from conformal_retrievers import ConformalFilter, FunctionScorer, JudgedQuery, calibrate
from conformal_retrievers.calibration.gates.calibrate_gate import calibrate_gate

FIRST = QueryFunction(lambda query, texts: float(texts[0].split()[0]), "first")
LAST = FunctionScorer(lambda query, texts: [float(text.split()[-1]) for text in texts], "last")


def query(name, score, relevant=(1.0,), irrelevant=(), **fields):
    """Return a query with a query score, and the scores of its snippets."""
    texts = [f"{score} {name} {s}" for s in (*relevant, *irrelevant)]
    flags = [True] * len(relevant) + [False] * len(irrelevant)
    return JudgedQuery(name, texts, flags, id=name, **{"retriever": "mine", **fields})


def unanswerable(name, score, **fields):
    """Return a query with an irrelevant snippet, which nothing answers."""
    return query(name, score, (), (9.0,), answerable=False, **fields)


def drawn(rng, n, name, *, answerable=1.0, shift=0.0):
    """Draw n queries; unanswerable ones have query scores from N(2, 1), others from N(shift, 1)."""
    found = []
    for i in range(n):
        others = tuple(rng.normal(3, 1, 4).tolist())
        if rng.random() < answerable:
            score, relevant = float(rng.normal(shift)), (float(rng.normal()),)
            found.append(query(f"{name} {i}", score, relevant, others))
        else:
            found.append(query(f"{name} {i}", float(rng.normal(2)), (), others, answerable=False))
    return found


def gate_of(scores, sources=(), alpha=0.2, **options):
    """Return the gate of answerable queries with these scores, and unanswerable ones by source."""
    given = [query(f"q{i}", score) for i, score in enumerate(scores)]
    others = {
        name: [unanswerable(f"{name} of gate {i}", score) for i, score in enumerate(of)]
        for name, of in dict(sources).items()
    }
    return calibrate_gate(given, others, FIRST, alpha=alpha, **options)


def filter_of(rng, **options):
    """Return a filter behind a gate, both of the same 200 queries."""
    queries = drawn(rng, 200, "gate")
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    calibration = calibrate(queries, LAST, alpha=0.2, gate=gate, **options)
    return ConformalFilter(LAST, calibration, gate=gate)
