"""`conformal-retrievers show`: the guarantee of a calibration file, and what it rests on."""

import json
from collections.abc import Mapping
from typing import Any

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.false_answers import Source, silent_on, sources_of
from conformal_retrievers.calibration.subjects import QUERIES, SUBJECTS
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration
from conformal_retrievers.cli.terminal import print_json, print_table, say
from conformal_retrievers.data.retrieval import in_words
from conformal_retrievers.data.text import visible
from conformal_retrievers.theory.intervals import percent

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)


def show(calibration: options.CalibrationFile, as_json: options.Json = False) -> None:
    """Print the guarantee, sources and thresholds of a calibration.

    Reads calibrations of snippets, answers, claims, flags and gates.
    """
    shown = load_calibration(calibration, None, *SUBJECTS.values())
    facts = facts_of(shown)
    if as_json:
        print_json({"file": str(calibration), **facts})
        return
    say(f"{shown.statement}\n")
    for name in ("retrieval", "labels", "created", "library", "sha256"):  # not in the statement
        if isinstance(value := facts[name], dict):
            value = visible(", ".join(f"{k} = {item}" for k, item in in_words(value).items()))
        if value is not None:
            say(f"{name}: {value}")
    rule = shown.subject.says("rule", threshold="the threshold", scorer=shown.scorer)
    say(f"\nThresholds by alpha: {rule}.\n")
    rows = facts["thresholds"]
    cells = ([g or f"all {shown.subject.units}", *map(_cell, rows[g].values())] for g in rows)
    print_table(["", *next(iter(rows.values()))], cells)
    if sources := facts.get("silent_on"):
        say("\nSilent on unanswerable queries by alpha, in %:\n")
        cells = ([visible(n), *map(_share, s["silent"].values())] for n, s in sources.items())
        print_table(["", *next(iter(sources.values()))["silent"]], cells)


def facts_of(calibration: Calibration) -> dict[str, Any]:
    """Return the fields of a calibration file without its queries, the statement and thresholds.

    `thresholds` are by group ("" for all) and alpha: a number, "keep_all" or "keep_none". Of a
    gate, `silent_on` has the share of each source's queries that it silences, by alpha, in place of
    their scores.
    """
    fields = json.loads(calibration.to_json())
    for name in ("queries", "other_ids", "lowest_scores"):
        del fields[name]
    at = {f"{a:g}": calibration.at(a) for a in calibration.possible_alphas(ALPHAS)}
    thresholds = {
        group or "": {a: c.subject.threshold_name(c.threshold(group)) for a, c in at.items()}
        for group in sorted(calibration.n_units, key=str)
    }
    facts = {**fields, "statement": calibration.statement, "thresholds": thresholds}
    if calibration.gate is not None:
        facts["gate"] = facts_of(calibration.gate)
    if calibration.subject == QUERIES:
        del facts["details"]
        facts["silent_on"] = {s.name: _silent_on(s, at) for s in sources_of(calibration)}
    return facts


def _silent_on(source: Source, at: Mapping[str, Calibration]) -> dict[str, Any]:
    shares = {alpha: silent_on(known, source)._asdict() for alpha, known in at.items()}
    return {"n": len(source.scores), "silent": shares}


def _share(interval: Mapping[str, float]) -> str:
    return percent(interval["estimate"], unit="")


def _cell(threshold: float | str) -> str:
    return threshold.removeprefix("keep_") if isinstance(threshold, str) else f"{threshold:.4g}"
