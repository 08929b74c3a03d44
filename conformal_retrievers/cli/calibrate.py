"""`conformal-retrievers calibrate`: judged queries become a calibration file."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import JsonValue

from conformal_retrievers.calibration import calibrate as calibrated
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.gate import Gate
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.cli import inputs, options
from conformal_retrievers.cli.scorers import Models, needs_model
from conformal_retrievers.cli.show import ALPHAS, facts_of
from conformal_retrievers.cli.terminal import print_json, print_table, say, worded
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.scoring.scorer import Scorer, fitted_on, query_digest, score_queries

PASSES = (
    "What passes of a query like these, on average, by alpha. The fewer queries calibrate, the "
    "more a threshold allows for chance, and the more passes than in hindsight. If you choose "
    "alpha by this table, calibrate with it on other queries:"
)


def calibrate(
    judged: options.Judged,
    alpha: options.Alpha,
    out: options.Out = Path("calibration.json"),
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    corpus: options.Corpus = None,
    split: options.Split = None,
    guarantee: options.Guarantee = "query-recall",
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    count_missed: Annotated[bool, options.flag("--count-missed")] = False,
    gate: Annotated[Path | None, options.file("--gate")] = None,
    synthetic: options.Synthetic = False,
    hold_out: options.HoldOut = 0.0,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on judged queries, and save the calibration."""
    options.check_out(out, judged, corpus, gate)
    rule: dict[str, Any] = {"guarantee": guarantee, "delta": delta, "by_group": by_group}
    rule |= {"count_missed": count_missed}
    models = Models(None, corpus, judged)
    front = None if gate is None else inputs.load_calibration(gate, None, QUERIES)
    if front is not None and needs_model(front):
        raise ValueError(worded("model behind", gate=gate, scorer=front.scorer))
    queries = inputs.held_out(inputs.judged_queries(judged, run, k, min_score), hold_out)
    if hold_out and any(query.id is None for query in queries):
        raise ValueError("--hold-out needs an id for each query; give those without id one")
    if split is not None:
        queries = by_sentence(queries, split)
    behind = None if front is None else Gate.of(front, models.needed(front))
    beside = models.given()
    calibration = calibrated(
        queries,
        beside,
        alpha=alpha,
        **rule,
        gate=behind,
        retrieval=retrieval_of(judged, run),
        labels=inputs.labels_of(judged, synthetic),
        progress=sys.stderr.isatty(),
    )
    if n := calibration.n_without_id:
        warnings.warn(f"{n} queries have no id; evaluate cannot leave them out", stacklevel=1)
    passing = passing_of(calibration, scorer_for(calibration, beside, front), behind, queries)
    save(calibration, out, as_json, passing)


def passing_of(
    calibration: Calibration, scorer: Scorer, gate: Gate | None, judged: Sequence[JudgedQuery]
) -> dict[str, dict[str, float]]:
    """Return by alpha the mean numbers of snippets, or sentences, and tokens that pass.

    A token is counted as four characters. Queries of a fit, also of the gate's, do not count.
    """
    fitted = fitted_on(scorer) | (fitted_on(gate.scorer) if gate else set())
    judged = [query for query in judged if query_digest(query.query) not in fitted]
    scored: list[Any] = score_queries(scorer, judged, gate=gate)
    n, items, passing = len(scored), f"{calibration.subject.item}s", dict[str, dict[str, float]]()
    for alpha in calibration.possible_alphas(ALPHAS):
        at = calibration.at(alpha)
        kept = [q.tokens[at.keep(q.scores, q.group)] for q in scored if not q.silenced]
        each, tokens = sum(map(len, kept)) / n, sum(lengths.sum() for lengths in kept) / 4 / n
        passing[f"{alpha:g}"] = {items: round(each, 1), "tokens": round(tokens)}
    return passing


def retrieval_of(judged: Path, run: list[str] | None) -> dict[str, JsonValue] | None:
    """Return the runs of a BEIR folder as facts about the retrieval, None for a file."""
    runs = inputs.named_runs(judged, run or [])
    paths = runs.values() if isinstance(runs, dict) else runs
    names: list[JsonValue] = [Path(path).name for path in paths]
    return {"run": names[0]} if len(names) == 1 else {"runs": names} if names else None


def save(
    calibration: Calibration,
    out: Path,
    as_json: bool,
    passing: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Save a calibration, and print its statement and what passes, or its facts as JSON."""
    calibration.save(out)
    if as_json:
        more = {} if passing is None else {"passing": passing}
        print_json({"file": str(out), **facts_of(calibration), **more})
        return
    say(f"{calibration.statement}\n")
    if passing is not None:
        say(f"{PASSES}\n")
        rows = ([alpha, *(f"{n:,}" for n in means.values())] for alpha, means in passing.items())
        print_table(["alpha", *next(iter(passing.values()))], rows)
        say("")
    say(f"Saved as {out}")
