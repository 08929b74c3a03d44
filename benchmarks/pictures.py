"""The pictures and tables of results/reproduction.json, which `benchmarks.reproduction` writes.

coverage      coverage and removal against the guaranteed coverage (Chakraborty et al. 2025, fig. 2)
baselines     coverage against removal: top k, fixed thresholds, calibrated thresholds
reranking     m1 and m2 against alpha, with and without reranking (Geissler et al. 2026, fig. 4)
tables        the tables of README.md, in Markdown

python -m benchmarks.pictures coverage
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.arguments import parser_of
from benchmarks.reproduction import RESULTS
from conformal_retrievers.evaluation.plot import BLUE, GREEN, GREY, RED, STYLE

FOLDER = Path(__file__).parent / "results"
RANKINGS = {
    "BM25": (BLUE, "-"),
    "the same ten, MiniLM": (GREEN, "-."),
    "reranked by MiniLM": (RED, "--"),
}
TABLE_1A = {  # m1 and m2 in % with their standard errors, of K = 10 and alpha = 0.1
    "nq-open, ROUGE-L, β = 0.99": (91.1, 0.4, 74.9, 0.5),
    "pubmedqa": (91.3, 0.4, 59.2, 0.5),
    "ragbench-hotpotqa": (97.9, 0.5, 27.0, 0.9),
}
SHOWN_SIMILARITIES = (0.3, 0.4, 0.5, 0.6)
SHOWN_KS = (3, 5, 10)


def main() -> None:
    parser = parser_of("benchmarks.pictures", __doc__)
    parser.add_argument("what", nargs="+", choices=[*PICTURES, "tables"])
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for what in parser.parse_args().what:
        if what == "tables":
            print("\n".join(tables(results)))
            continue
        file = FOLDER / f"reproduction-{what}.png"
        with matplotlib.rc_context(STYLE):
            figure = PICTURES[what](results)
            figure.savefig(file, dpi=88, metadata={"Software": None}, pil_kwargs={"optimize": True})
        print(file)


# --- pictures -------------------------------------------------------------------------------------


def coverage(results: dict[str, Any]) -> Figure:
    guaranteed = 1 - np.array(results["alphas"])
    figure = Figure(figsize=(13, 5.4))
    rows = figure.subplots(2, len(results["filters"]), sharex=True, sharey="row")
    for (above, removed), (name, found) in zip(rows.T, results["filters"].items(), strict=True):
        above.axhline(0, color=GREY, linestyle=":", label="guaranteed")
        for score, color, line in (("BM25", RED, "--"), ("MiniLM", BLUE, "-")):
            measured = found[score]["query-recall"]
            for axes, measure, at in ((above, "coverage", guaranteed), (removed, "removed", 0)):
                mean, sd = (100 * np.array(measured[measure][key]) for key in ("mean", "sd"))
                mean -= 100 * at
                axes.fill_between(guaranteed, mean - sd, mean + sd, color=color, alpha=0.2, lw=0)
                axes.plot(guaranteed, mean, color=color, linestyle=line, label=f"{score}, ± sd")
        above.set(title=name, ylim=(-4, 12))
        removed.set(xlabel="guaranteed coverage, 1 − α", ylim=(0, 100))
    rows[0, 0].set_ylabel("coverage − guaranteed, points")
    rows[1, 0].set_ylabel("removed, %")
    rows[0, 0].legend(loc="upper left")
    return figure


def baselines(results: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(13, 3.6))
    panels = figure.subplots(1, len(results["filters"]), sharey=True)
    marked = [results["alphas"].index(alpha) for alpha in (0.05, 0.1, 0.2, 0.4)]
    for axes, (name, found) in zip(panels, results["filters"].items(), strict=True):
        of = found["MiniLM"]
        top, fixed, calibrated = of["top k"], of["similarity at least"], of["query-recall"]
        axes.plot(top["removed"], top["coverage"], color=RED, linestyle="--", label="top k, all k")
        axes.plot(fixed["removed"], fixed["coverage"], color=GREY, lw=1.2, label="any threshold")
        for similarity in SHOWN_SIMILARITIES:
            i = fixed["similarity"].index(similarity)
            x, y = fixed["removed"][i], fixed["coverage"][i]
            label = "cosine ≥ 0.3 … 0.6" if similarity == SHOWN_SIMILARITIES[0] else None
            axes.plot(x, y, "x", color=GREY, markersize=7, markeredgewidth=2, label=label)
        x, y = ([calibrated[m]["mean"][i] for i in marked] for m in ("removed", "coverage"))
        axes.plot(x, y, "o", color=BLUE, label="calibrated, α 0.4 … 0.05")
        axes.set(title=name, xlabel="share removed", xlim=(-0.03, 1.03), ylim=(0, 1.03))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    panels[0].set_ylabel("coverage per query")
    panels[0].legend(loc="lower left", fontsize=7.5)
    return figure


def reranking(results: dict[str, Any]) -> Figure:
    alphas = np.array(results["alphas"])
    figure = Figure(figsize=(13, 5.4))
    rows = figure.subplots(2, len(results["at_depth_10"]), sharex=True, sharey="row")
    columns = zip(rows.T, results["at_depth_10"].items(), strict=True)
    for (m1, m2), (name, found) in columns:
        m1.plot(alphas, 1 - alphas, color=GREY, linestyle=":", label="1 − α")
        for ranking, (color, line) in RANKINGS.items():
            for axes, measure in ((m1, "m1"), (m2, "m2")):
                mean, sd = (np.array(found[ranking][measure][key]) for key in ("mean", "sd"))
                axes.fill_between(alphas, mean - sd, mean + sd, color=color, alpha=0.2, lw=0)
                axes.plot(alphas, mean, color=color, linestyle=line, label=ranking)
        if name in TABLE_1A:
            paper = TABLE_1A[name]
            m1.plot(0.1, paper[0] / 100, "*", color="black", markersize=10, label="Table 1a (BM25)")
            m2.plot(0.1, paper[2] / 100, "*", color="black", markersize=10)
        m1.set_title(name.replace(", ROUGE", ",\nROUGE"))
        m1.set_ylim(0.4, 1.03)
        m2.set(xlabel="α", ylim=(0, 1.03))
    rows[0, 0].set_ylabel("m1")
    rows[1, 0].set_ylabel("m2")
    with_paper = list(results["at_depth_10"]).index("pubmedqa")
    rows[0, with_paper].legend(loc="lower left", fontsize=7.5)
    return figure


PICTURES = {"coverage": coverage, "baselines": baselines, "reranking": reranking}


# --- tables ---------------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> Iterator[str]:
    yield from coverage_table(results)
    yield ""
    yield from baseline_table(results)
    yield ""
    yield from depth_table(results)
    yield ""
    yield from shortfalls(results)


def coverage_table(results: dict[str, Any]) -> Iterator[str]:
    shown = [results["alphas"].index(alpha) for alpha in (0.05, 0.1, 0.2, 0.3, 0.4)]
    targets = [f"{100 * (1 - results['alphas'][i]):g}" for i in shown]
    heads = [f"coverage at {targets[0]} %", *targets[1:], f"removed at {targets[0]} %"]
    yield from heading(["set", "score", *heads, *targets[1:]])
    for name, found in results["filters"].items():
        for score in ("BM25", "MiniLM"):
            of = found[score]["query-recall"]
            covered = [spread(of["coverage"], i) for i in shown]
            removed = [percent(of["removed"]["mean"][i]) for i in shown]
            yield row([name if score == "BM25" else "", score, *covered, *removed])


def baseline_table(results: dict[str, Any]) -> Iterator[str]:
    thresholds = [f"cosine ≥ {s:g}" for s in SHOWN_SIMILARITIES]
    yield from heading(["set", "calibrated", *(f"top {k}" for k in SHOWN_KS), *thresholds])
    at = results["alphas"].index(0.1)
    for name, found in results["filters"].items():
        of = found["MiniLM"]
        means = {key: [value["mean"][at]] for key, value in of["query-recall"].items()}
        cells = [across_queries(means, 0)]
        cells += [across_queries(of["top k"], of["top k"]["k"].index(k)) for k in SHOWN_KS]
        fixed = of["similarity at least"]
        cells += [across_queries(fixed, fixed["similarity"].index(s)) for s in SHOWN_SIMILARITIES]
        yield row([name, *cells])


def across_queries(of: dict[str, Any], i: int) -> str:
    covered, std, removed = (of[key][i] for key in ("coverage", "coverage_std", "removed"))
    return f"{percent(covered)} ± {percent(std)}, {percent(removed)}"


def depth_table(results: dict[str, Any]) -> Iterator[str]:
    heads = ["m1", "m2", "m1, paper", "m2, paper", "coverage", "queries with one relevant of 10"]
    yield from heading(["set", "ranking", *heads, "a relevant kept", "only others kept"])
    at = results["alphas"].index(0.1)
    for name, found in results["at_depth_10"].items():
        for ranking in RANKINGS:
            of = found[ranking]
            m1, kept = of["m1"]["mean"][at], of["relevant_kept"]["mean"][at]
            a, b, c, d = TABLE_1A.get(name, (0, 0, 0, 0))
            paper = [f"{a} ± {b}", f"{c} ± {d}"] if ranking == "BM25" and a else ["", ""]
            ours = [spread(of[measure], at) for measure in ("m1", "m2")]
            rest = [percent(x) for x in (of["with a relevant snippet"], kept, m1 - kept)]
            cells = [*ours, *paper, spread(of["coverage_pooled"], at), *rest]
            yield row([name if ranking == "BM25" else "", ranking, *cells])


def shortfalls(results: dict[str, Any]) -> Iterator[str]:
    """State how often mean coverage is below 1 − alpha − 3 standard errors, and where."""
    for guarantee in ("query-recall", "snippet"):
        cells = [
            (name, score, alpha, mean, mean - (1 - alpha - 3 * sd / results["splits"] ** 0.5))
            for name, found in results["filters"].items()
            for score in ("BM25", "MiniLM")
            for alpha, mean, sd in zip(
                results["alphas"], *found[score][guarantee]["coverage"].values(), strict=True
            )
        ]
        short = [f"{n} {s} α = {a:g}: {percent(m)}" for n, s, a, m, above in cells if above < 0]
        yield f"{guarantee}: {len(cells) - len(short)} of {len(cells)} hold. {'; '.join(short)}"


def heading(names: Sequence[str]) -> list[str]:
    return [row(names), "|" + "---|" * len(names)]


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def spread(of: dict[str, Any], i: int) -> str:
    return f"{percent(of['mean'][i])} ± {percent(of['sd'][i])}"


if __name__ == "__main__":
    main()
