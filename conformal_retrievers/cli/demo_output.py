"""The tables of `conformal-retrievers demo`."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten

import numpy as np
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli.docstrings import DocstringCorpus
from conformal_retrievers.cli.terminal import table
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation.evaluate import Evaluation, evaluate, measure
from conformal_retrievers.filtering import ConformalFilter, Filtered

K = 20
ALPHAS = (0.05, 0.1, 0.2)
DROPPED_SHOWN = 4
INDENT = " " * 13


def print_corpus(corpus: DocstringCorpus, console: Console) -> None:
    """Print the size of the corpus."""
    console.print(
        f"[bold]1 Read[/]       {corpus.n_docstrings:,} docstrings of Python's standard library "
        f"({corpus.n_characters / 1e6:.1f} MB),\n"
        f"{INDENT}cut into {len(corpus.snippets):,} snippets. The first sentences of "
        f"{len(corpus.questions)}\n{INDENT}are the questions; the text after them is relevant"
    )


def print_measurements(
    calibration: Calibration,
    judged: Sequence[JudgedQuery],
    scored: Sequence[ScoredQuery],
    console: Console,
) -> None:
    """Print what the filter and simpler ones keep and remove, and recall."""
    coverage = table("", "kept, by query", "kept, pooled", "removed")
    for alpha in sorted({*ALPHAS, calibration.alpha}):
        at = calibration.at(alpha)
        here = evaluate(at, scored)
        others = baselines(judged, scored, sum(int(at.keep(q.scores).sum()) for q in scored))
        coverage.add_row(f"[bold]target {100 * (1 - alpha):g} %, α = {alpha:g}[/]")
        for name, found in {"conformal": here, **others}.items():
            shares = (found.coverage["query-recall"], found.coverage["snippet"], found.removal)
            style = "bold" if found is here else ""
            coverage.add_row(name, *(s.interval.written(unit="") for s in shares), style=style)
        coverage.add_section()
    result = evaluate(calibration, scored)
    kept = result.coverage["query-recall"].estimate
    console.print(
        f"{INDENT}guaranteed: {100 * (1 - calibration.alpha):.4g} % of a question's relevant "
        f"snippets on average\n{INDENT}kept:       {100 * kept:.1f} %"
    )
    console.print("\nRelevant snippets kept and all snippets removed, % [95 % interval]\n")
    console.print(coverage)
    console.print(
        "\nThe other filters are set, with hindsight, to remove about as much. None of them has a "
        "guarantee: how much they keep is known only once it is measured.\n"
    )
    recall = result.recall_at_k
    console.print(
        f"Of the relevant snippets, {recall} were among the {K} retrieved. No filter "
        "can keep the others.\n"
    )


def baselines(
    judged: Sequence[JudgedQuery], scored: Sequence[ScoredQuery], number: int
) -> dict[str, Evaluation]:
    """Measure the top k and a threshold on the similarity that keep about this number of snippets.

    The threshold is a share of the query's best similarity.
    """
    similarities = [np.array([s.retrieval_score for s in query.snippets]) for query in judged]
    shares = [similarity / similarity.max() for similarity in similarities]
    share = np.sort(np.concatenate(shares))[-number]
    k = max(1, round(number / len(judged)))
    masks = {
        f"top {k}": [np.arange(len(s)) < k for s in shares],
        f"BM25 ≥ {share:.2f} of best": [s >= share for s in shares],
    }
    return {name: measure(scored, mask) for name, mask in masks.items()}


def print_query(
    conformal: ConformalFilter, judged: Sequence[JudgedQuery], console: Console
) -> None:
    """Print what is kept of one query, and the dropped snippets with the lowest scores."""
    query, filtered = _good_example(conformal, judged)
    shown = table("", "relevant", "score", "p", "snippet")
    shown.columns[-1].justify = "left"
    nearest = sorted(filtered.dropped, key=lambda i: float(filtered.scores[i]))[:DROPPED_SHOWN]
    for i in [*filtered.kept, *nearest]:
        kept = bool(filtered.keeps[i])
        shown.add_row(
            "kept" if kept else "dropped",
            "yes" if query.relevant[i] else "",
            f"{filtered.scores[i]:.2f}",
            f"{filtered.p_values[i]:.3f}",
            Text(shorten(query.snippets[i].text, 42, placeholder=" …")),
            style="" if kept else "dim",
        )
    console.print(f"“{query.query}”\n")
    console.print(shown)
    console.print(
        f"\n{len(filtered.kept)} of {len(query.snippets)} snippets are kept: those with a score of "
        f"at most {filtered.threshold:.2f}, where p > {filtered.calibration.alpha:g}. A lower "
        f"score is more relevant. The table ends with the {len(nearest)} nearest dropped ones.\n"
    )


def _good_example(
    conformal: ConformalFilter, judged: Sequence[JudgedQuery]
) -> tuple[JudgedQuery, Filtered]:
    """Return the first query that keeps two to six snippets, a relevant one among them."""
    decided = [(query, conformal(query.query, query.snippets)) for query in judged]
    return next(
        (
            (query, filtered)
            for query, filtered in decided
            if 2 <= len(filtered.kept) <= 6 and any(query.relevant[i] for i in filtered.kept)
        ),
        decided[0],
    )
