"""`conformal-retrievers evaluate`: does a calibration keep its promise on new judged queries?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli.inputs import (
    NewQueries,
    calibration_of_snippets,
    depth_of,
    judged_queries,
    scored,
)
from conformal_retrievers.cli.options import Corpus, Depth, Json, Judged, Model, Run
from conformal_retrievers.cli.scorers import scorer_named
from conformal_retrievers.cli.show import CalibrationFile
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    between,
    percent,
    print_json,
    table,
    tracked,
)
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation import evaluate as evaluation
from conformal_retrievers.evaluation import verdict
from conformal_retrievers.evaluation.compare import fixed_thresholds, top_k
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.evaluation.findings import counted_queries
from conformal_retrievers.evaluation.measures import END_TO_END, Share
from conformal_retrievers.filtering import ConformalFilter

NOTES = (
    "m1: queries of which anything is kept; m2: mean share of a query's snippets that is kept; "
    "neither is a coverage. Tokens are counted as characters. Units are queries, or snippets; "
    "effective is how many independent ones, each a yes or a no, tell as much: fewer where "
    "snippets share their query's fate, more where each query gives a share. Design effect: units "
    "by effective."
)
UNKNOWN = "Without missed snippets in the file, recall@K and end to end are unknown, not 100 %."
PERCENTILES = (50, 75, 90, 95, 99)  # of all scores: where the fixed thresholds are put


def evaluate(
    calibration: CalibrationFile,
    judged: Judged,
    run: Run = None,
    k: Depth = None,
    model: Model = None,
    corpus: Corpus = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also keep the top k, and what scores below a number.",
            metavar="",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a calibration on judged queries that it was not made from, and test its promise.

    Exits with 1 if the calibration promises nothing, out of reach, or if coverage is significantly
    below the target: p < 0.05, one-sided, for the share of new queries covered if the promise just
    holds (beta-binomial, over calibration and new queries); or if half of the snippets could not be
    scored, which tests nothing. Queries that the calibration was made from are left out, and
    counted.
    """
    with bad_data_in_one_line():
        tested = calibration_of_snippets(calibration)
        conformal = ConformalFilter(
            scorer_named(tested.scorer, model=model, corpus=corpus, judged=judged), tested
        )
        new = NewQueries(judged_queries(judged, run, depth_of(tested, run, k)), tested)
        queries: Iterable[JudgedQuery] = tracked(new, "Evaluating")
        others: Mapping[str, Evaluation] = {}
        if baselines:
            queries = list(queries)
            others = _baselines(conformal, queries)
        result = evaluation.evaluate(conformal, queries)
    if as_json:
        said = {"left_out": new.left_out, "verdict": _verdict(result)}
        print_json({**said, "evaluation": result, "baselines": others})
    else:
        _print(Console(highlight=False), result, tested, new.left_out, others)
    fails = result.verdict is not None and result.verdict.fails
    if fails or result.mostly_unscorable or result.out_of_reach:
        raise typer.Exit(1)


def _baselines(conformal: ConformalFilter, queries: list[JudgedQuery]) -> dict[str, Evaluation]:
    given = list(scored(conformal.scorer, tracked(queries, "Scoring")))
    scores = np.concatenate([query.scores for query in given])
    some = scores[np.isfinite(scores)]
    percentiles = [100 - p for p in PERCENTILES][::-1]
    thresholds = np.unique(np.percentile(some, percentiles)) if len(some) else some
    return {
        **{f"top {k}": e for k, e in top_k(given).items()},
        **{f"score ≤ {t:.4g}": e for t, e in fixed_thresholds(given, thresholds).items()},
    }


# --- what is printed ------------------------------------------------------------------------------


def _print(
    console: Console,
    result: Evaluation,
    calibration: Calibration,
    left_out: int,
    others: Mapping[str, Evaluation],
) -> None:
    missed = (
        f"{result.n_missed:,} relevant ones were not retrieved"
        if result.misses_known
        else "no query says how many relevant ones were not retrieved"
    )
    console.print(
        f"{counted_queries(result.n_queries)}, {result.n_snippets:,} snippets, "
        f"{result.n_relevant:,} of them relevant; {missed}."
    )
    if left_out:
        console.print(f"Left out: {counted_queries(left_out)} {NewQueries.why}.")
    if not result.told_apart:
        console.print(verdict.NOT_TOLD_APART)
    console.print()
    console.print(_measures(result, calibration))
    console.print(NOTES if result.misses_known else f"{NOTES} {UNKNOWN}")
    if result.by_group:
        console.print()
        console.print(_groups(result, calibration))
    if others:
        console.print()
        console.print(_others(result, others))
    console.print()
    console.print(Text(_verdict(result), style="bold"))


def _measures(result: Evaluation, calibration: Calibration) -> Table:
    shown = table("%", "target", "measured", "95 % range", "units", "effective", "design\neffect")
    promised = (END_TO_END if calibration.count_missed else "") + calibration.guarantee
    sections: dict[str, dict[str, Share]] = {
        "of the retrieved": {str(g): s for g, s in result.coverage.items()},
        "end to end": {END_TO_END + g: s for g, s in result.end_to_end.items()},
    }
    told = {name for section in sections.values() for name in section}
    sections[""] = {name: share for name, share in result.shares.items() if name not in told}
    if not result.misses_known:
        del sections["end to end"], sections[""]["recall@K"]
    for title, section in sections.items():
        if title:
            shown.add_row(Text(title, style="italic"))
        for name, share in section.items():
            shown.add_row(
                f"{'  ' if title else ''}{name.removeprefix(END_TO_END)}",
                f"{100 * (1 - calibration.alpha):g}" if name == promised else "",
                *(_cells(share) if name != "tokens saved" else _cells(share)[:2]),
                style="bold" if name == promised else "",
            )
        shown.add_section()
    return shown


def _cells(share: Share) -> tuple[str, ...]:
    """Return what is measured, its interval, the units, those they are worth, the design effect."""
    if not share.n:
        return ("–", "–", "0", "–", "–")
    return (
        f"{100 * share.estimate:.1f}",
        between(share),
        f"{share.n:,.0f}",
        f"{share.effective_n:,.0f}",
        f"{share.design_effect:.1f}",
    )


def _groups(result: Evaluation, calibration: Calibration) -> Table:
    tested = [part.verdict is not None for part in result.by_group.values()]
    p_value = ["p"] if any(tested) else []
    shown = table("group", "queries", "coverage", "95 % interval", "removal", *p_value)
    for group, part in result.by_group.items():
        measured = part.end_to_end if calibration.count_missed else part.coverage
        share = measured[calibration.guarantee]
        shown.add_row(
            Text("none" if group is None else group),
            f"{measured['query-recall'].n:,.0f}",
            percent(share.estimate),
            between(share) if share.n else "–",
            percent(part.removal.estimate),
            *(["–" if part.verdict is None else f"{part.verdict.p_value:.2g}"] if p_value else []),
        )
    return shown


def _others(result: Evaluation, others: Mapping[str, Evaluation]) -> Table:
    shown = table("kept is", "coverage", "95 % interval", "± std", "removal")
    for name, part in {"the calibrated": result, **others}.items():
        share = part.coverage["query-recall"]
        shown.add_row(
            Text(name),
            percent(share.estimate),
            between(share),
            percent(part.coverage_std),
            percent(part.removal.estimate),
            style="bold" if part is result else "",
            end_section=part is result,
        )
    return shown


def _verdict(result: Evaluation) -> str:
    lost = result.unscorable.estimate
    if result.verdict is not None:
        said = str(result.verdict)
        if result.removal.estimate == 0:
            said += " But nothing is removed: no score is above the threshold."
    elif not result.n_relevant:
        said = "No retrieved snippet is judged relevant, so that no coverage can be measured."
    elif result.out_of_reach:
        said = verdict.OUT_OF_REACH
    elif result.removal.estimate > 0:  # by group, and those that remove something have none
        said = "Nothing is tested: no group that has a threshold has a relevant snippet here."
    else:
        said = "Everything is kept, so that no promise can fail here."
    if lost > 0 and result.verdict is None:
        said += f" {lost:.1%} of the snippets could not be scored, and are kept."
    if lost > 0.01:
        said += " See that the scorer knows these texts (for bm25, --corpus)."
    return said
