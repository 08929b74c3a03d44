"""Words that reach the model at equal recall of relevant sentences: chunks against sentences.

ragbench-hotpotqa, ragbench-covidqa: the passages of a question are the chunks. wice: the page of a
claim is cut into chunks of at most 500 characters, of whole sentences, whose place in the page is
known. All have labels of sentences. A chunk has hits of two retrievers that rank the chunks of its
query: all-MiniLM-L6-v2 and BM25 (bm25s).

Queries are halved at random. Of one half, some are judged and given to `calibrate(…, alpha=0.1)`,
with a prior that is made without the set (`benchmarks/prior.py`), and the other half is filtered:

    words     share of the words of all chunks that is kept at the lowest threshold at which the
              mean share of a query's relevant sentences that is kept is 90 %, mean ± sd, in %
    of        the mean over that of whole chunks by cosine, and by reciprocal rank fusion
    kept      share of the words that the calibration keeps, in %
    coverage  mean over queries of the share of their relevant sentences kept; "holds" if its mean
              is at least 90 % less three standard errors (sd / √halvings)

The last table is the time of 20 chunks of 2,000 characters whose sentences were embedded before.

    python -m benchmarks.sentences --data FOLDER [--sets wice …] [--cache FOLDER] [--write]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.halvings import minilm
from benchmarks.sets import json_rows
from conformal_retrievers import (
    EmbeddingScorer,
    JudgedQuery,
    LearnedScorer,
    Scorer,
    Snippet,
    __version__,
    calibrate,
)
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.data import read_beir
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.sentences import cut
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.learned.prior import Prior
from conformal_retrievers.scoring.shared_scores import shared_in

ALPHA = 0.1
SIZE = 500  # characters of a chunk of a page
SIZES = (20, 40, 0)  # judged queries; 0 is half of the set
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
            cache = arguments.cache or Path(temporary)
            data = data_of(SETS[name](arguments.data / name), cache)
            lines += [f"\n## {name}\n\n{described(data)}\n", *table(name, data, arguments, cache)]
    lines += ["\n## Time\n", *timed(arguments.data / "ragbench-hotpotqa")]
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.sentences", __doc__)
    add_data(parser)
    parser.add_argument("--sets", nargs="*", default=[*SETS], choices=SETS)
    parser.add_argument("--halvings", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    add_cache(parser)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    return parser.parse_args()


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


class Halving(NamedTuple):
    """What one halving gave."""

    n_fit: int
    words: dict[str, float]  # the share of words that is kept at a recall of 1 − ALPHA, by row
    kept: float  # the share of words that the calibration keeps
    coverage: float


def halving(data: Data, rng: np.random.Generator, n: int, prior: Prior) -> Halving:
    """Calibrate on n queries of one half, or all of it, and filter the other half."""
    order = rng.permutation(len(data.chunks))
    half, own = len(order) // 2, str(rng.integers(2**60))
    given = [data.chunks[i] for i in order[:half][: n or None]]
    module = "conformal_retrievers.calibration.fitting.query_digest"
    with (
        patch("conformal_retrievers.scoring.learned.score.prior_of", lambda item: prior),
        patch(module, lambda query: hashlib.sha256((own + query).encode()).hexdigest()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # that some are near copies, or too few
        calibration = calibrate(given, alpha=ALPHA, split=lines)
    scorer = scorer_for(calibration)
    filtered = order[half:].tolist()
    sentences = [data.sentences[i] for i in filtered]
    rows = {
        "filter": [np.asarray(scorer.score(q.query, q.retrieved)) for q in sentences],
        "chunks by cosine": [-data.chunks[i].hits["dense"].scores[data.sentences[i].document_of]
                             for i in filtered],
        "chunks by fusion": [-fused(data.chunks[i])[data.sentences[i].document_of]
                             for i in filtered],
    }  # fmt: skip
    relevant, words = ([of[i] for i in filtered] for of in (data.relevant, data.words))
    keeps = [calibration.keep(scores) for scores in rows["filter"]]
    return Halving(
        calibration.scorer_provenance["choice"]["n_fit"],
        {name: words_at(scores, relevant, words) for name, scores in rows.items()},
        sum(w[k].sum() for w, k in zip(words, keeps, strict=True)) / sum(w.sum() for w in words),
        float(np.mean([k[r].mean() for k, r in zip(keeps, relevant, strict=True) if r.any()])),
    )


def fused(chunks: JudgedQuery) -> NDArray[np.float64]:
    return np.sum([1 / (61 + of.ranks) for of in chunks.hits.values()], axis=0)


def words_at(
    scores: Scores, relevant: Sequence[NDArray[np.bool_]], words: Sequence[NDArray[np.float64]]
) -> float:
    """Return the share of words that is kept where a mean share 1 − ALPHA of the relevant is."""
    gains = np.concatenate([r / max(1, r.sum()) for r in relevant])
    joined = np.concatenate(scores)
    order = np.argsort(joined, kind="stable")
    last = np.flatnonzero(np.append(np.diff(joined[order]) > 0, True))  # of equal scores
    recalls = np.cumsum(gains[order])[last] / sum(r.any() for r in relevant)
    kept = np.cumsum(np.concatenate(words)[order])[last]
    return float(np.interp(1 - ALPHA, recalls, kept) / kept[-1])


# --- the tables -----------------------------------------------------------------------------------


def table(name: str, data: Data, arguments: argparse.Namespace, cache: Path) -> Iterator[str]:
    from benchmarks.prior import prior_without

    data = replace(data, sentences=shared_in(data.sentences))
    prior = prior_without(name, "sentences", arguments.data, cache)
    columns = ("judged", "fit", "words", "of chunks by cosine", "of chunks by fusion")
    yield f"| {' | '.join((*columns, 'kept', 'coverage', 'holds'))} |"
    yield "|---|---|---|---|---|---|---|---|"
    for size in SIZES:
        rngs = np.random.default_rng([arguments.seed, size]).spawn(arguments.halvings)
        made = [halving(data, rng, size, prior) for rng in rngs]
        words = {row: np.array([one.words[row] for one in made]) for row in made[0].words}
        coverage = np.array([one.coverage for one in made])
        se = coverage.std(ddof=1) / math.sqrt(len(coverage))
        own = words.pop("filter")
        cells = [
            str(size or "half"),
            str(made[0].n_fit),
            spread(own),
            *(f"{own.mean() / other.mean():.2f}" for other in words.values()),
            spread(np.array([one.kept for one in made])),
            spread(coverage),
            "yes" if coverage.mean() >= 1 - ALPHA - 3 * se else "NO",
        ]
        yield f"| {' | '.join(cells)} |"


def spread(values: NDArray[np.float64]) -> str:
    return f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}"


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
