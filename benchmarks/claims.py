"""Whether kept claims are factual as often as guaranteed, and what is removed, on real data.

The data are the sub-claims that Feng et al. 2025 (Conformal-RAG, arXiv 2506.20978) published, each
with a score and an LLM's annotation against a reference answer: `similarity` is the relevance of
their algorithm 1 in answers written from retrieved documents, `gpt` an LLM's own confidence, in
answers with (rag) and without (llm) documents. The letter S means "factual" and every other letter
"not factual", as in their code. An exception is NF, which their code writes if it finds no letter:
answers with a claim marked NF are left out. Scores are used as published, and, as "+ noise", with
the noise (sd .001) that the authors added to break ties.

Each variant is halved at random 200 times; a query's answers stay in one half. One half calibrates,
the other is filtered. For each target 1 − alpha the table holds the mean over the halvings of

    factual   share of answers whose kept claims are all factual, empty answers among them
    empty     share of answers without a kept claim
    removed   mean share of an answer's claims that is dropped

and `holds` states whether mean factual ≥ target − 3 se, se = sd / √halvings (benchmarks/halvings.py
explains this standard error). By group, each group has its own threshold, and the factuality of
every group must hold. FActScore is also filtered with each answer left out in turn. For each
variant, a table states how many claims share the highest score.

    python -m benchmarks.claims --data FOLDER [--write]
    python -m benchmarks.claims --speed
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import parser_of
from conformal_retrievers import __version__
from conformal_retrievers.claims import AnnotatedAnswer, calibrate_claims, claim_relevance

TARGETS = (0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
SHOWN = (0.60, 0.70, 0.80, 0.85, 0.90, 0.95)
RESULTS = Path(__file__).parent / "results"
MARGINAL = {
    "hotpotqa similarity": ["hotpotqa/rag/similarity"],
    "hotpotqa gpt, rag": ["hotpotqa/rag/gpt"],
    "hotpotqa gpt, llm": ["hotpotqa/llm/gpt"],
    "hotpotqa gpt + noise, llm": ["hotpotqa/llm/gpt + noise"],
    "popqa similarity": ["popqa/rag/similarity"],
    "popqa gpt, rag (two runs)": ["popqa/rag/gpt/run1", "popqa/rag/gpt/run2"],
    "popqa gpt, rag (run 1)": ["popqa/rag/gpt/run1"],
    "popqa gpt, rag (run 2)": ["popqa/rag/gpt/run2"],
    "popqa gpt, llm": ["popqa/llm/gpt"],
    "popqa gpt + noise, llm": ["popqa/llm/gpt + noise"],
    "factscore similarity": ["factscore/rag/similarity"],
    "medlfqa similarity": [
        f"{name}/rag/similarity"
        for name in ("kqa_golden", "kqa_silver_wogold", "live_qa", "medication_qa")
    ],
}
BY_GROUP = {
    "medlfqa similarity": MARGINAL["medlfqa similarity"],
    "wiki similarity": ["hotpotqa/rag/similarity", "popqa/rag/similarity"],
    "wiki gpt, llm": ["hotpotqa/llm/gpt", "popqa/llm/gpt"],
    "wiki gpt + noise, llm": ["hotpotqa/llm/gpt + noise", "popqa/llm/gpt + noise"],
}


def main() -> None:
    arguments = parsed_arguments()
    if arguments.speed:
        speed()
        return
    answers = read(arguments.data / "conformal-rag-claims" / "claims.jsonl.gz")
    console = Console(record=True, width=200)
    measured: dict[tuple[str, bool], dict[str, NDArray[np.float64]]] = {}
    for part in sections(answers, arguments.halvings, measured):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        lines = (line.rstrip() for line in console.export_text().splitlines())
        (RESULTS / "claims.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        picture(measured).savefig(RESULTS / "claims.png", dpi=110)


def parsed_arguments() -> argparse.Namespace:
    parser = parser_of("benchmarks.claims", __doc__)
    data = os.environ.get("CONFORMAL_DATA")
    parser.add_argument(
        "--data",
        type=Path,
        default=data,
        help="folder that holds conformal-rag-claims; default: $CONFORMAL_DATA",
    )
    parser.add_argument("--halvings", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="also write results/claims.*")
    parser.add_argument("--speed", action="store_true", help="measure speed alone")
    arguments = parser.parse_args()
    if arguments.data is None and not arguments.speed:
        parser.error("--data is required without --speed")
    return arguments


def read(path: Path) -> dict[str, list[tuple[str, AnnotatedAnswer]]]:
    """Return, by variant, each answer with the text of its query."""
    rows = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows[row["variant"], row["query_id"]].append(row)
    answers = defaultdict(list)
    for (variant, id), claims in rows.items():
        scores = np.array([list(claim["scores"].values()) for claim in claims])  # score, noise
        letters = [claim["annotation_raw"] for claim in claims]
        factual = [None if letter == "NF" else letter == "S" for letter in letters]
        for name, relevance in (
            (variant, scores[:, 0]),
            (f"{variant} + noise", scores.sum(axis=1)),
        ):
            answer = AnnotatedAnswer(relevance, factual, id=id, group=claims[0]["group"])
            answers[name].append((claims[0]["query"], answer))
    return answers


def halves(
    queries: list[str], halvings: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the places of the answers in either half; a query's answers are in one of them."""
    distinct = {query: i for i, query in enumerate(dict.fromkeys(queries))}
    of = np.array([distinct[query] for query in queries])
    for seed in range(halvings):
        first = np.random.default_rng(seed).permutation(len(distinct)) < len(distinct) // 2
        yield np.flatnonzero(first[of]), np.flatnonzero(~first[of])


def measure(
    rows: list[tuple[str, AnnotatedAnswer]], halvings: int, *, by_group: bool
) -> dict[str, NDArray[np.float64]]:
    """Return (halvings, targets, 3) of factual, empty, removed: of all answers, and by group."""
    rows = [row for row in rows if row[1].annotated]
    answers = [answer for _, answer in rows]
    factual = [np.array(answer.factual, dtype=bool) for answer in answers]
    groups = np.array([answer.group for answer in answers])
    names = ["", *sorted(set(groups))] if by_group else [""]
    measured = {name: np.empty((halvings, len(TARGETS), 3)) for name in names}
    for h, (calibrating, filtered) in enumerate(halves([q for q, _ in rows], halvings)):
        calibration = calibrate_claims(
            [answers[i] for i in calibrating], alpha=0.1, scorer="published", by_group=by_group
        )
        for t, target in enumerate(TARGETS):
            at = calibration.at(round(1 - target, 2))
            kept = [at.keep(answers[i].relevance, answers[i].group) for i in filtered]
            each = np.array(
                [
                    (factual[i][k].all(), not k.any(), 1 - k.mean())
                    for i, k in zip(filtered, kept, strict=True)
                ]
            )
            for name in names:
                of = each if not name else each[groups[filtered] == name]
                measured[name][h, t] = of.mean(axis=0)
    return measured


def sections(
    answers: dict[str, list[tuple[str, AnnotatedAnswer]]],
    halvings: int,
    measured: dict[tuple[str, bool], dict[str, NDArray[np.float64]]],
) -> Iterator[str | Table]:
    """Yield the tables, and fill `measured` with what they are made from."""
    yield (
        f"# Factuality of kept claims, and what is removed\n\nOver {halvings} random halvings, in "
        f"%: factual / removed / empty; conformal_retrievers {__version__}. `benchmarks/claims.py` "
        "says what is measured. ! marks factuality below target − 3 se."
    )
    cells, falls = 0, 0
    for by_group, sets in ((False, MARGINAL), (True, BY_GROUP)):
        yield "\n## By group\n" if by_group else "\n## Marginal\n"
        table = Table(box=box.MARKDOWN)
        for heading in ("score", "answers", "left out", *(f"{t:.0%}" for t in SHOWN)):
            table.add_column(heading, no_wrap=True)
        for name, variants in sets.items():
            rows = list(chain.from_iterable(answers[variant] for variant in variants))
            values = measured[name, by_group] = measure(rows, halvings, by_group=by_group)
            for group, of in values.items():
                own = [a for _, a in rows if not group or a.group == group]
                known = sum(a.annotated for a in own)
                texts = []
                for t, target in enumerate(TARGETS):
                    fact, empty, removed = of[:, t].mean(axis=0)
                    low = fact < target - 3 * of[:, t, 0].std(ddof=1) / np.sqrt(len(of))
                    cells, falls = cells + 1, falls + low
                    if target in SHOWN:
                        texts.append(
                            f"{100 * fact:.1f}{'!' if low else ''} / {100 * removed:.1f} / "
                            f"{100 * empty:.1f}"
                        )
                label = f"  {group}" if group else name
                table.add_row(label, str(known), str(len(own) - known), *texts)
        yield table
    yield f"\nMean factuality ≥ target − 3 se: {cells - falls} of {cells} cells."
    yield "\n## FActScore, each answer left out in turn\n"
    yield left_out_in_turn([a for _, a in answers["factscore/rag/similarity"] if a.annotated])
    yield "\n## Claims that share the highest score, in %\n"
    table = Table(box=box.MARKDOWN)
    for heading in ("score", "highest", "of all", "of the factual", "of the others"):
        table.add_column(heading, no_wrap=True)
    for name, variants in MARGINAL.items():
        own = [a for variant in variants for _, a in answers[variant] if a.annotated]
        relevance = np.concatenate([a.relevance for a in own])
        factual = np.concatenate([np.array(a.factual, dtype=bool) for a in own])
        at = relevance == relevance.max()
        shares = (at.mean(), at[factual].mean(), at[~factual].mean())
        table.add_row(name, f"{relevance.max():.4g}", *(f"{100 * share:.1f}" for share in shares))
    yield table


def left_out_in_turn(answers: list[AnnotatedAnswer]) -> Table:
    """Return a table of factual / removed / empty: each answer by a calibration on the others."""
    each = np.empty((len(TARGETS), len(answers), 3))
    for i, answer in enumerate(answers):
        calibration = calibrate_claims(
            answers[:i] + answers[i + 1 :], alpha=0.1, scorer="published"
        )
        factual = np.array(answer.factual, dtype=bool)
        for t, target in enumerate(TARGETS):
            kept = calibration.at(round(1 - target, 2)).keep(answer.relevance)
            each[t, i] = factual[kept].all(), not kept.any(), 1 - kept.mean()
    table = Table(*(f"{target:.0%}" for target in TARGETS), box=box.MARKDOWN)
    table.add_row(
        *(
            f"{fact:.1f} / {removed:.1f} / {empty:.1f}"
            for fact, empty, removed in 100 * each.mean(axis=1)
        )
    )
    return table


def picture(measured: dict[tuple[str, bool], dict[str, NDArray[np.float64]]]) -> Figure:
    """Draw removal (top) and factuality (bottom) against the target, as figures 2 and 3 do."""
    figure = Figure(figsize=(14, 8), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True)
    columns = (
        ("Marginal: retrieval similarity", [k for k in measured if _is(k, "similarity", False)]),
        ("Marginal: GPT self-confidence", [k for k in measured if _is(k, "gpt", False)]),
        ("By group", [k for k in measured if k[1]]),
    )
    for column, (title, keys) in enumerate(columns):
        for key in keys:
            for group, values in measured[key].items():
                if key[1] and not group:
                    continue
                label = f"{group}, {key[0].split(' ', 1)[1]}" if group else key[0]
                draw(axes[0, column], values[:, :, 2], label)
                draw(axes[1, column], values[:, :, 0], label)
        axes[0, column].set(title=title, ylim=(0, 1))
        axes[1, column].plot(TARGETS, TARGETS, "r--")
        axes[1, column].set(xlabel="target 1 − α", ylim=(0.55, 1.01))
        axes[1, column].legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    axes[0, 0].set_ylabel("claims removed")
    axes[1, 0].set_ylabel("factual answers")
    return figure


def _is(key: tuple[str, bool], score: str, by_group: bool) -> bool:
    return score in key[0] and key[1] == by_group


def draw(axis: Axes, values: NDArray[np.float64], label: str) -> None:
    mean, sd = values.mean(axis=0), values.std(axis=0, ddof=1)
    (line,) = axis.plot(TARGETS, mean, marker=".", label=label)
    axis.fill_between(TARGETS, mean - sd, mean + sd, alpha=0.12, color=line.get_color())


def speed() -> None:
    """Print the ratio of scoring to its two matrix products, and the time of a calibration."""
    rng = np.random.default_rng(0)
    scoring_speed(*(rng.normal(size=(n, 384)) for n in (1, 50, 20)))
    answers = [
        AnnotatedAnswer(rng.random(n), (rng.random(n) < 0.9).tolist(), id=str(i))
        for i, n in enumerate(rng.integers(1, 12, 100_000))
    ]
    times = [
        seconds(lambda: calibrate_claims(answers, alpha=0.1, scorer="s").threshold(), 1)
        for _ in range(5)
    ]
    print(f"calibrating 100,000 answers: {statistics.median(times):.2f} s of processor time")


def scoring_speed(query: NDArray[Any], claims: NDArray[Any], documents: NDArray[Any]) -> None:
    ratios, scoring, products = [], [], []
    for _ in range(400):
        scoring.append(seconds(lambda: claim_relevance(query[0], claims, documents), 20))
        products.append(seconds(lambda: (claims @ documents.T, documents @ query[0]), 20))
        ratios.append(scoring[-1] / products[-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"50 claims x 20 documents, 384 dimensions: "
        f"{1e6 * statistics.median(scoring):.1f} µs, the two products "
        f"{1e6 * statistics.median(products):.1f} µs; ratio {middle:.2f} [{low:.2f}, {high:.2f}]"
    )


def seconds(work: Callable[[], object], times: int) -> float:
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


if __name__ == "__main__":
    main()
