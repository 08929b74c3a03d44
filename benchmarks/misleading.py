"""Lists in which documents mislead: how many snippets pass, of those that pass without documents.

Relevant snippets tend to come from the same documents, and the default score's prior says so. Here
they do not. Lists of two made-up retrievers, 50 snippets each of 60: a snippet has a quality, of
sd 1 and 1.5 more if it is relevant, each document has some of sd 0.5, and each retriever an error
of sd 0.8. They know no words. The kinds are

    one of its own     five documents of 11 snippets, and five alone, of which one is relevant
    short pages        four documents of ten, and 20 alone; of four in five queries one of these is
                       relevant, of others one of a document
    one long document  half of all snippets, without anything relevant; the others are in pairs, and
                       one of these is relevant
    one in some        ten documents of six snippets; in two of them, one is relevant

and two of real text (`benchmarks/unseen.py`), changed: each relevant paragraph of faq as a page of
its own, and handbook-de without all relevant paragraphs of a query but the first retrieved.

Queries are halved at random; of one half, 10 or 40 are judged, and the other half is filtered, as
in `benchmarks/default.py`: snippets per query at a recall of 80 %, found in hindsight.

    python -m benchmarks.misleading --data FOLDER [--cache FOLDER] [--halvings 10] [--write]
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import halving, placed, united
from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.scoring.learned.prior import prior_of

RECALL = 0.8
SIZES = (10, 40)
QUERIES = 300  # of a made-up kind
FOUND = 50  # by each retriever
RESULTS = Path(__file__).parent / "results" / "misleading.md"


def main() -> None:
    parser = parser_of("benchmarks.misleading", __doc__)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--halvings", type=int, default=10)
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        kinds = [*made_up(), *changed(arguments.data, arguments.cache or Path(temporary))]
    lines = [
        "# Lists in which documents mislead",
        "",
        f"Over {arguments.halvings} halvings. `benchmarks/misleading.py` says what the rows are.",
        "",
        "| lists | judged | without documents | with them | ratio | coverage with them, % |",
        "|---|---|---|---|---|---|",
    ]
    for name, judged in kinds:
        for size in SIZES:
            line = f"| {name} | {size} | {compared(judged, size, arguments.halvings)} |"
            print(line, flush=True)
            lines.append(line)
    if arguments.write:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compared(judged: Sequence[JudgedQuery], size: int, halvings: int) -> str:
    """Return the cells of a row."""
    bare = [
        replace(q, snippets=tuple(replace(s, document=None, position=None) for s in q.snippets))
        for q in judged
    ]
    rngs, prior = np.random.default_rng(size).spawn(halvings), prior_of("snippets")
    pairs = [
        [halving([*queries], {}, RECALL, deepcopy(rng), size, prior) for queries in (bare, judged)]
        for rng in rngs
    ]
    without, with_them = np.mean([[h.snippets["filter"] for h in pair] for pair in pairs], axis=0)
    coverage = [having.coverage for _, having in pairs]
    spread = f"{100 * np.mean(coverage):.1f} ± {100 * np.std(coverage, ddof=1):.1f}"
    return f"{without:.1f} | {with_them:.1f} | {with_them / without:.2f} | {spread}"


# --- made-up lists --------------------------------------------------------------------------------


def made_up() -> Iterator[tuple[str, list[JudgedQuery]]]:
    """Yield the name and the queries of each made-up kind."""
    alone = [f"alone {i}" for i in range(20)]
    kinds = {
        "one of its own": [f"{i // 11}" for i in range(55)] + alone[:5],
        "short pages": [f"{i // 10}" for i in range(40)] + alone,
        "one long document": ["long"] * 30 + [f"pair {i // 2}" for i in range(30)],
        "one in some": [f"{i // 6}" for i in range(60)],
    }
    for number, (name, documents) in enumerate(kinds.items()):
        rng = np.random.default_rng(number)
        yield name, [drawn(f"{name} {i}", name, documents, rng) for i in range(QUERIES)]


def drawn(text: str, kind: str, documents: list[str], rng: np.random.Generator) -> JudgedQuery:
    """Return a query of a kind with what both retrievers find."""
    n = len(documents)
    relevant = np.isin(np.arange(n), places(kind, rng))
    of_each = {name: 0.5 * rng.normal() for name in dict.fromkeys(documents)}
    quality = rng.normal(size=n) + 1.5 * relevant + [of_each[name] for name in documents]
    hits: list[list[Hit]] = [[] for _ in documents]
    for retriever in ("bm25", "dense"):
        scores = quality + 0.8 * rng.normal(size=n)
        for rank, i in enumerate(np.argsort(-scores)[:FOUND].tolist()):
            hits[i].append(Hit(retriever, rank, float(scores[i])))
    retrieved = [i for i in rng.permutation(n).tolist() if hits[i]]
    snippets = [
        Snippet(f"{text}, {i}", id=str(i), document=documents[i], position=i, hits=tuple(hits[i]))
        for i in retrieved
    ]
    judged = relevant[retrieved]
    return JudgedQuery(text, snippets, judged, id=text, missed=int(relevant.sum() - judged.sum()))


def places(kind: str, rng: np.random.Generator) -> list[int]:
    """Return which snippets of a query are relevant."""
    if kind == "one of its own":
        return [55]
    if kind == "short pages":
        return [40 if rng.random() < 0.8 else int(rng.integers(40))]
    if kind == "one long document":
        return [30]
    return [int(6 * document + rng.integers(6)) for document in rng.choice(10, 2, replace=False)]


# --- changed lists of real text -------------------------------------------------------------------


def changed(data: Path, cache: Path) -> Iterator[tuple[str, list[JudgedQuery]]]:
    """Yield the name and the queries of each real set that was changed."""
    faq = placed(united(data / "faq", cache), data / "faq")
    yield "faq, each relevant paragraph a page of its own", [*map(on_pages_of_their_own, faq)]
    handbook = placed(united(data / "handbook-de", cache), data / "handbook-de")
    retrieved = [query for query in handbook if any(query.relevant)]
    yield "handbook-de, one relevant paragraph left", [*map(with_one_relevant, retrieved)]


def on_pages_of_their_own(query: JudgedQuery) -> JudgedQuery:
    snippets = [
        replace(s, document=f"page of {s.id}", position=0) if relevant else s
        for s, relevant in zip(query.snippets, query.relevant, strict=True)
    ]
    return replace(query, snippets=tuple(snippets))


def with_one_relevant(query: JudgedQuery) -> JudgedQuery:
    first = query.relevant.index(True)
    kept = [i for i, relevant in enumerate(query.relevant) if not relevant or i == first]
    snippets, relevant = [query.snippets[i] for i in kept], [i == first for i in kept]
    return replace(query, snippets=tuple(snippets), relevant=tuple(relevant), missed=0)


if __name__ == "__main__":
    main()
