"""What the default filter keeps of lists that are shorter than those that were judged.

On each set of `benchmarks/default.py`, 80 judged queries, or half of the set, calibrate at alpha =
0.1 on the union of dense and BM25, 50 snippets each, with the prior made without the set and its
relatives. At most 200 others are filtered, each as a whole list and as short ones:

    best k    the k best snippets of each retriever, as a smaller k leaves them
    n of one  one relevant snippet and n − 1 irrelevant ones at random, with the ranks that they
              have among these, as a metadata filter leaves them

A cell has the share of a query's relevant snippets that is kept, and of its irrelevant ones, in %.

    python -m benchmarks.short --data FOLDER [--cache FOLDER] [--sets faq papers] [--write [NAME]]
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.arguments import add_cache, add_data, parser_of
from benchmarks.default import SETS, united
from benchmarks.prior import prior_without
from conformal_retrievers import ConformalFilter, JudgedQuery, calibrate

JUDGED, OTHERS, ALPHA = 80, 200, 0.1
BEST, AMONG = (1, 2, 3, 5, 10, 20), (1, 2, 3, 5, 10)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = parser_of("benchmarks.short", __doc__)
    add_data(parser)
    add_cache(parser)
    parser.add_argument("--sets", nargs="*", default=[*SETS])
    parser.add_argument(
        "--write", nargs="?", const="short", help="also write results/NAME.md", metavar="NAME"
    )
    arguments = parser.parse_args()
    lines = [
        "# Short lists",
        "",
        "Relevant / irrelevant snippets that are kept, in %. `benchmarks/short.py` says what the "
        "columns are.",
        "",
    ]
    heads = ["whole", *(f"best {k}" for k in BEST), *(f"{n} of one" for n in AMONG)]
    lines += [f"| set | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.sets:
            cells = cells_of(arguments.data / name, arguments.cache or Path(temporary))
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        (RESULTS / f"{arguments.write}.md").write_text(text, encoding="utf-8")


def cells_of(folder: Path, cache: Path) -> Iterator[str]:
    judged = [query for query in united(folder, cache) if any(query.relevant)]
    prior = prior_without(folder.name, "snippets", folder.parent, cache)
    n = min(JUDGED, len(judged) // 2)
    with (
        patch("conformal_retrievers.scoring.learned.score.prior_of", lambda item: prior),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of near copies, and of lists that are too short
        keep = ConformalFilter.of(calibrate(judged[:n], alpha=ALPHA))
        others, rng = judged[n:][:OTHERS], np.random.default_rng(0)
        yield kept_of(keep, others)
        for k in BEST:
            yield kept_of(keep, [best(query, k) for query in others])
        for n in AMONG:
            yield kept_of(keep, [among(query, n, rng) for query in others])


def kept_of(keep: ConformalFilter, queries: Sequence[JudgedQuery]) -> str:
    shares: tuple[list[float], list[float]] = [], []
    for query in queries:
        marks = np.array(query.relevant, np.bool_)
        keeps = np.asarray(keep(query.query, query.snippets).keeps)
        for share, some in zip(shares, (marks, ~marks), strict=True):
            if some.any():
                share.append(float(keeps[some].mean()))
    return " / ".join(f"{100 * np.mean(share):.0f}" if share else "–" for share in shares)


def best(query: JudgedQuery, k: int) -> JudgedQuery:
    """Return a query with the k best snippets of each retriever."""
    hits = [[hit for hit in s.hits if hit.rank < k] for s in query.snippets]
    some = [i for i, own in enumerate(hits) if own]
    snippets = [replace(query.snippets[i], hits=tuple(hits[i])) for i in some]
    return JudgedQuery(query.query, snippets, [query.relevant[i] for i in some])


def among(query: JudgedQuery, n: int, rng: np.random.Generator) -> JudgedQuery:
    """Return a query with one relevant snippet and n − 1 irrelevant ones, ranked among these."""
    marks = np.array(query.relevant, np.bool_)
    irrelevant = rng.permutation(np.flatnonzero(~marks))[: n - 1]
    some = np.sort([rng.choice(np.flatnonzero(marks)), *irrelevant]).tolist()
    ranks: dict[str, list[int]] = {}
    for hit in (hit for i in some for hit in query.snippets[i].hits):
        ranks.setdefault(hit.retriever, []).append(hit.rank)
    snippets = []
    for snippet in (query.snippets[i] for i in some):
        hits = [h._replace(rank=sorted(ranks[h.retriever]).index(h.rank)) for h in snippet.hits]
        snippets.append(replace(snippet, hits=tuple(hits)))
    return JudgedQuery(query.query, snippets, [query.relevant[i] for i in some])


if __name__ == "__main__":
    main()
