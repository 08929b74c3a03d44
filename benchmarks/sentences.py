"""Words that reach the model at equal recall of relevant sentences: chunks against sentences.

ragbench-hotpotqa: the passages of a question are the chunks. wice: the page of a claim is cut into
chunks of at most 500 characters, of whole sentences, whose place in the page is known. Both have
labels of sentences. A chunk has hits of two retrievers that rank the chunks of its query:
all-MiniLM-L6-v2 and BM25 (bm25s).

Queries are halved at random, 100 times. Of one half, a third fits the learned scores and the rest
calibrates (alpha = 0.1, "query-recall", of sentences); the other half is filtered. Of this half, as
mean ± sd over the halvings, in %,

    words      share of the words of all chunks that is kept
    of chunks  that share over the share of chunks by cosine
    by query   mean over queries of the share of their words that is kept
    coverage   mean over queries of the share of their relevant sentences kept; "holds" if its mean
               is at least 90 % less three standard errors (sd / √halvings)

A score of chunks is the score of each of their sentences. The fixed cut-off is a similarity that
nothing was tuned to, as pruners have one: its coverage is what it happens to be. "calibrate" is
what `calibrate(judged, …, alpha=0.1)` chooses on a third of the same half, in fewer halvings.

The last table is the time of 20 chunks of 2,000 characters whose sentences were embedded before.

    python -m benchmarks.sentences --data FOLDER [--sets wice …] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.halvings import minilm
from benchmarks.sets import json_rows
from conformal_retrievers import (
    Calibration,
    EmbeddingScorer,
    JudgedQuery,
    LearnedScorer,
    ScoredQuery,
    Scorer,
    Snippet,
    __version__,
    calibrate,
)
from conformal_retrievers.data import read_beir
from conformal_retrievers.data.evidence import by_sentence
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.sentences import cut
from conformal_retrievers.pruning import open_filter
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.learned.features import columns
from conformal_retrievers.scoring.learned.prior import Item, Prior
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.learned.score import table_of
from conformal_retrievers.scoring.sources import sources_of

ALPHA = 0.1
SIZE = 500  # characters of a chunk of a page
CUT_OFF = 0.3  # a similarity
TARGETS = {"ragbench-hotpotqa": 0.70}
RESULTS = Path(__file__).parent / "results" / "sentences.md"

Scores = Sequence[NDArray[np.float64]]  # (n,) of the sentences of each query


def main() -> None:
    arguments = parsed_arguments()
    lines = [
        f"# Words kept at equal recall of sentences\n\n{arguments.halvings} halvings (seed "
        f"{arguments.seed}), alpha = {ALPHA:g}, in %, mean ± sd; conformal_retrievers "
        f"{__version__}. `benchmarks/sentences.py` says what the columns are."
    ]
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.sets:
            data = data_of(SETS[name](arguments.data / name), arguments.cache or Path(temporary))
            lines += [f"\n## {name}\n\n{described(data)}\n", *table(name, data, arguments)]
    lines += ["\n## Time\n", *timed(arguments.data / "ragbench-hotpotqa")]
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.sentences",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=data,
        required=data is None,
        help="folder that holds the data sets, one folder each; default: $CONFORMAL_DATA",
    )
    parser.add_argument("--sets", nargs="*", default=[*SETS], choices=SETS)
    parser.add_argument("--halvings", type=int, default=100)
    parser.add_argument("--chosen", type=int, default=10, help="halvings of calibrate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps embeddings; default: a temporary one"
    )
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


class Deal(NamedTuple):
    """The numbers of the queries that fit, calibrate and are filtered."""

    training: NDArray[np.intp]
    calibrating: NDArray[np.intp]
    filtered: NDArray[np.intp]


# --- the data -------------------------------------------------------------------------------------


class Labelled(NamedTuple):
    """A query, and its chunks as lists of sentences, each with whether it is relevant."""

    id: str
    query: str
    chunks: list[list[tuple[str, bool]]]
    places: list[tuple[str | None, int | None]]  # the page of each chunk, and where it starts


@dataclass(frozen=True)
class Data:
    """Chunks with hits, and their sentences; each judged, with the words of each sentence."""

    chunks: list[JudgedQuery]
    sentences: list[JudgedQuery]
    relevant: list[NDArray[np.bool_]]  # of sentences
    words: list[NDArray[np.float64]]  # of sentences
    cache: Path

    @cached_property
    def cosine(self) -> Scorer:
        """The cosines of sentences."""
        return minilm(self.sentences, self.cache)

    def of_chunks(self, scores: Scores) -> Scores:
        """Return the scores of sentences from those of chunks."""
        return [s[q.document_of] for s, q in zip(scores, self.sentences, strict=True)]


def lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the range of each line: the sentences as the data set has them."""
    end = -1
    for line in text.split("\n"):
        start, end = end + 1, end + 1 + len(line)
        yield start, end


def passages(folder: Path) -> Iterator[Labelled]:
    """Yield each question with its passages."""
    chunks: dict[str, dict[str, list[tuple[str, bool]]]] = defaultdict(lambda: defaultdict(list))
    for row in json_rows(folder / "snippets.jsonl.gz"):
        sentence = row["text"], bool(row["relevant"])
        chunks[row["query_id"]][row["corpus_id"]].append(sentence)
    for row in json_rows(folder / "queries.jsonl.gz"):
        if row["_id"] in chunks:
            own = [*chunks[row["_id"]].values()]
            yield Labelled(row["_id"], row["text"], own, [(None, None)] * len(own))


def pages(folder: Path) -> Iterator[Labelled]:
    """Yield each claim with the chunks of its pages."""
    corpus = {row["_id"]: row for row in json_rows(folder / "corpus.jsonl.gz")}
    for query in read_beir(folder, "candidates.tsv"):
        chunks: list[list[tuple[str, bool]]] = []
        places: list[tuple[str | None, int | None]] = []
        page, start, end = None, 0, 0
        for snippet, relevant in zip(query.snippets, query.relevant, strict=True):
            row = corpus[str(snippet.id)]
            if row["title"] != page or end + len(row["text"]) > start + SIZE:
                start = end = end if row["title"] == page else 0
                page = row["title"]
                chunks.append([])
                places.append((page, start))
            chunks[-1].append((row["text"], relevant))
            end += len(row["text"]) + 1
        yield Labelled(str(query.id), query.query, chunks, places)


def data_of(labelled: Iterator[Labelled], cache: Path) -> Data:
    queries = [*labelled]
    texts = [["\n".join(text for text, _ in chunk) for chunk in q.chunks] for q in queries]
    known = minilm(
        [
            JudgedQuery(q.query, own, [False] * len(own))
            for q, own in zip(queries, texts, strict=True)
        ],
        cache,
    )
    bm25 = BM25Scorer([text for own in texts for text in own])
    retrievers = {"bm25": bm25, "dense": known}
    chunks = []
    for query, own in zip(queries, texts, strict=True):
        hits: list[list[Hit]] = [[] for _ in own]
        for name, scorer in retrievers.items():
            scores = np.asarray(scorer.score(query.query, own))
            for rank, i in enumerate(np.argsort(scores, kind="stable").tolist()):
                hits[i].append(Hit(name, rank, -float(scores[i])))
        snippets = [
            Snippet(text, f"{query.id}:{i}", *place, hits=tuple(found))
            for i, (text, place, found) in enumerate(zip(own, query.places, hits, strict=True))
        ]
        relevant = [any(r for _, r in chunk) for chunk in query.chunks]
        evidence = [
            (snippet.id, *place)
            for snippet, chunk in zip(snippets, query.chunks, strict=True)
            for place, (_, r) in zip(lines(snippet.text), chunk, strict=True)
            if r
        ]
        chunks.append(JudgedQuery(query.query, snippets, relevant, id=query.id, evidence=evidence))
    sentences = by_sentence(chunks, lines)
    return Data(
        chunks,
        sentences,
        [np.array(q.relevant) for q in sentences],
        [np.array([float(len(s.text.split())) for s in q.snippets]) for q in sentences],
        cache,
    )


def described(data: Data) -> str:
    n_chunks = np.mean([len(q.snippets) for q in data.chunks])
    n = np.mean([len(q.snippets) for q in data.sentences])
    words = np.mean([w.sum() for w in data.words])
    relevant = sum(w[r].sum() for w, r in zip(data.words, data.relevant, strict=True))
    return (
        f"{len(data.chunks)} queries, each with {n_chunks:.1f} chunks, {n:.1f} sentences and "
        f"{words:.0f} words; {relevant / sum(w.sum() for w in data.words):.1%} of the words are in "
        "relevant sentences."
    )


SETS: dict[str, Callable[[Path], Iterator[Labelled]]] = {
    "ragbench-hotpotqa": passages,
    "ragbench-covidqa": passages,
    "wice": pages,
}


# --- halvings -------------------------------------------------------------------------------------


def halvings_of(n: int, times: int, seed: int) -> list[Deal]:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(times)]
    return [Deal(o[: n // 6], o[n // 6 : n // 2], o[n // 2 :]) for o in orders]


def measured(
    data: Data, halving: Deal, keep: Callable[[int], NDArray[np.bool_]]
) -> tuple[float, float, float]:
    """Return words kept, words kept by query and coverage, from what each filtered query keeps."""
    kept, whole, coverage = [], [], []
    for i in halving.filtered.tolist():
        keeps, relevant = keep(i), data.relevant[i]
        kept.append(data.words[i][keeps].sum())
        whole.append(data.words[i].sum())
        if relevant.any():
            coverage.append(keeps[relevant].mean())
    shares = np.divide(kept, whole)
    return sum(kept) / sum(whole), float(shares.mean()), float(np.mean(coverage))


def over_halvings(
    data: Data, halvings: list[Deal], scores_of: Callable[[Deal], Scores]
) -> NDArray[np.float64]:
    """Calibrate and filter with the scores that a halving gives; return measures (halvings, 3)."""
    rows = []
    for halving in halvings:
        scores = scores_of(halving)
        known = [ScoredQuery(scores[i], data.relevant[i]) for i in halving.calibrating]
        calibration = Calibration.from_scores(known, alpha=ALPHA, scorer="scored beforehand")
        keeps = [calibration.keep(of_query) for of_query in scores]
        rows.append(measured(data, halving, keeps.__getitem__))
    return np.array(rows)


def learned(
    judged: list[JudgedQuery], scorers: Sequence[Scorer], prior: Prior
) -> Callable[[Deal], Scores]:
    """Return the scores that are learned on the fit parts, as `LearnedScorer` makes them.

    The features are computed once for all halvings.
    """
    sources = sources_of(judged, [scorer.name for scorer in scorers])
    known = [table_of(sources, scorers, query) for query in judged]
    relevant = [np.array(query.relevant)[k] for query, (k, _) in zip(judged, known, strict=True)]
    mean, sd = prior.of(columns(sources))

    def scores_of(halving: Deal) -> Scores:
        table = np.concatenate([known[i][1] for i in halving.training], axis=1).T
        own = np.concatenate([relevant[i] for i in halving.training])
        b = most_probable(table, own, mean, sd)
        return [-(table * b[:, np.newaxis]).sum(axis=0) for _, table in known]

    return scores_of


# --- the tables -----------------------------------------------------------------------------------


def prior_without(name: str, item: Item, arguments: argparse.Namespace) -> Prior:
    """Return the prior that other sets give."""
    from benchmarks.prior import coefficients, prior_from

    return prior_from(item, coefficients(item, arguments.data, arguments.cache), [name])


def table(name: str, data: Data, arguments: argparse.Namespace) -> Iterator[str]:
    halvings = halvings_of(len(data.chunks), arguments.halvings, arguments.seed)
    cosines = [np.asarray(data.cosine.score(q.query, q.snippets)) for q in data.sentences]
    dense = [-query.hits["dense"].scores for query in data.chunks]
    prior = prior_without(name, "sentences", arguments)
    of_chunks = learned(data.chunks, [], prior_without(name, "snippets", arguments))
    scores: dict[str, Callable[[Deal], Scores]] = {
        "chunks by cosine": lambda _: data.of_chunks(dense),
        "chunks learned, from hits": lambda halving: data.of_chunks(of_chunks(halving)),
        "sentences by cosine": lambda _: cosines,
        "sentences learned, from hits and words": learned(data.sentences, [], prior),
        "sentences learned, from hits, words and cosine": learned(
            data.sentences, [data.cosine], prior
        ),
    }
    yield "| score | words | of chunks | by query | coverage | holds |"
    yield "|---|---|---|---|---|---|"
    results = {label: over_halvings(data, halvings, of) for label, of in scores.items()}
    first = next(iter(results.values()))
    for label, rows in results.items():
        yield cells(label, rows, first)
    fixed = [measured(data, halving, lambda i: 1 - cosines[i] >= CUT_OFF) for halving in halvings]
    yield cells(f"sentences, fixed cosine ≥ {CUT_OFF:g}", np.array(fixed), first)
    chosen: dict[str, Counter[str]] = {}
    for label, given in {"calibrate": None, "calibrate, with cosine": [data.cosine]}.items():
        made = [by_default(data, halving, given) for halving in halvings[: arguments.chosen]]
        if made:
            chosen[label] = Counter(one[0] for one in made)
            rows = np.array([one[1] for one in made])
            yield cells(f"{label} ({len(rows)} halvings)", rows, first)
    yield ""
    for label, times in chosen.items():
        yield f"- {label} chose " + ", ".join(f"{c} ({n})" for c, n in times.most_common())
    if name in TARGETS:
        best = min(rows[:, 0].mean() / first[:, 0].mean() for rows in results.values())
        met = "yes" if best <= TARGETS[name] else "NO"
        yield f"- {best:.2f} of chunks by cosine; target {TARGETS[name]:.2f}: {met}"


def by_default(
    data: Data, halving: Deal, given: list[Scorer] | None
) -> tuple[str, tuple[float, float, float]]:
    """Return what `calibrate` chooses on the half that is not filtered, and its measures."""
    own = [data.chunks[i] for i in (*halving.training, *halving.calibrating)]
    calibration = calibrate(own, given, alpha=ALPHA, split=lines)
    opened = open_filter(calibration, given or (), split=lines)

    def keep(i: int) -> NDArray[np.bool_]:
        return opened(data.chunks[i].query, data.chunks[i].snippets).keeps

    return calibration.scorer_provenance["choice"]["chosen"], measured(data, halving, keep)


def cells(label: str, rows: NDArray[np.float64], first: NDArray[np.float64]) -> str:
    """Return the row of a table."""
    words, _, coverage = rows.T
    holds = coverage.mean() >= 1 - ALPHA - 3 * coverage.std(ddof=1) / math.sqrt(len(rows))
    shown = [f"{100 * v.mean():.1f} ± {100 * v.std(ddof=1):.1f}" for v in rows.T]
    ratio = f"{words.mean() / first[: len(rows), 0].mean():.2f}"
    shown = [label, shown[0], ratio, *shown[1:], "yes" if holds else "NO"]
    return f"| {' | '.join(shown)} |"


# --- time -----------------------------------------------------------------------------------------

N_CHUNKS, CHUNK, TIMES = 20, 2000, 50
QUESTION = "Which of the two bands was formed first, and where did its singer grow up?"


def timed(folder: Path) -> Iterator[str]:
    """Yield the least time of cutting and scoring, with a model that costs next to nothing."""
    text = " ".join(row["text"] for row in json_rows(folder / "corpus.jsonl.gz"))
    rng = np.random.default_rng(0)
    documents = [
        Snippet(
            text[i * CHUNK : (i + 1) * CHUNK],
            str(i),
            hits=(Hit("bm25", i, 20.0 - i), Hit("dense", i, 0.9 - i / 100)),
        )
        for i in range(N_CHUNKS)
    ]
    cosine = EmbeddingScorer(lambda texts: rng.normal(size=(len(texts), 384)), "random")
    sentences = cut(documents, "sentences")
    some = [
        JudgedQuery(f"{i}", sentences.snippets, rng.random(len(sentences.snippets)) < 0.05)
        for i in range(3)
    ]
    scorers: dict[str, Scorer] = {
        "sentences by cosine": cosine,
        "learned, from hits and cosine": LearnedScorer.fit(some, [cosine]),
        "learned, from hits and words": LearnedScorer.fit(some),
        "learned, from hits, words and cosine": LearnedScorer.fit(some, [cosine]),
    }
    yield (
        f"{N_CHUNKS} chunks of {CHUNK:,} characters, {len(sentences.snippets)} sentences; the "
        f"least processor time of {TIMES}, in ms.\n"
    )
    yield "| score | cut | cut and score |"
    yield "|---|---|---|"
    cutting = least(lambda snippets: None, documents)
    for label, scorer in scorers.items():
        both = least(partial(scorer.score, QUESTION), documents)
        yield f"| {label} | {cutting:.1f} | {both:.1f} |"


def least(score: Callable[[Sequence[Snippet]], object], documents: list[Snippet]) -> float:
    seconds = []
    for _ in range(TIMES):
        start = time.process_time()
        score(cut(documents, "sentences").snippets)
        seconds.append(time.process_time() - start)
    return 1000 * min(seconds)


if __name__ == "__main__":
    main()
