"""One HTML file on a calibration and new queries: verdict, evidence, pictures.

The page needs no network and no scripts, and prints well. The same input gives the same bytes.
Everything that comes from the data is escaped.
"""

import base64
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from conformal_retrievers.extras import require

require("cli", "jinja2", "matplotlib")

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.copies import without_copies
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.retrieval import in_words
from conformal_retrievers.evaluation import plot
from conformal_retrievers.evaluation.diagnose import diagnose
from conformal_retrievers.evaluation.diagnosis import MEANING, Band, Diagnosis, Finding
from conformal_retrievers.evaluation.dropped import dropped
from conformal_retrievers.evaluation.equal_recall import marked
from conformal_retrievers.evaluation.evaluate_gate import GateEvaluation
from conformal_retrievers.evaluation.findings import ordered
from conformal_retrievers.evaluation.measures import Given, checked, guaranteed
from conformal_retrievers.theory.intervals import Interval, in_percent, percent

SHOWN = 20  # queries whose relevant snippets were dropped


def write(
    path: str | Path,
    calibration: Calibration,
    scored: Given,
    *,
    reference: Given | None = None,
    level: float = 0.95,
    sources: Mapping[str, str] | None = None,
    gate: GateEvaluation | None = None,
    judged: Iterable[JudgedQuery] = (),
    answers: Any = None,
) -> Diagnosis:
    """Diagnose the queries, write the report to a file, and return the diagnosis.

    Parameters
    ----------
    path
        An old file stays until the new one is complete.
    calibration, scored, reference, level
        As in `diagnose`, which raises ValueError for what is invalid.
    sources
        Where things come from, such as {"judged queries": "new.jsonl"}.
    gate
        What `evaluate_gate` measured of the gate in front, which gets a section of its own.
    judged
        The queries with their texts, to name those whose relevant snippets were dropped.
    answers
        What `evaluate_answers` measured of filters, which gets a section of its own.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    given = checked(scored, calibration)
    d = diagnose(calibration, given, reference=reference, level=level)
    write_whole(path, html(d, given, sources, gate, judged, answers).encode("utf-8"), what="report")
    return d


@matplotlib.rc_context(plot.STYLE)
def html(
    d: Diagnosis,
    scored: Iterable[ScoredQuery],
    sources: Mapping[str, str] | None = None,
    gate: GateEvaluation | None = None,
    judged: Iterable[JudgedQuery] = (),
    answers: Any = None,
) -> str:
    """Return a diagnosis of scored queries as one HTML page; the others are as in `write`."""
    environment = Environment(
        loader=PackageLoader("conformal_retrievers.evaluation", ""),
        autoescape=True,
        finalize=_unbroken,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": _number, "ends": _ends}
    c, (_, *copies) = d.calibration, without_copies([*judged])
    notices = [Finding("copies", "notice", f"{told}.") for told in copies if told]
    d = replace(d, findings=ordered([*d.findings, *notices]))
    thresholds = {group or "all queries": c.threshold(group) for group in c.n_units}
    scorer = None if c.choice is not None else c.scorer_provenance
    given = {"retrieval": in_words(c.retrieval or {}), "labels": c.labels, "scorer": scorer}
    facts = [(f"{name}: {k}", v) for name, part in given.items() for k, v in (part or {}).items()]
    return environment.get_template("report.html.jinja").render(
        sources=dict(sources or {}),
        c=c,
        d=d,
        meaning=c.subject.worded(MEANING[c.guarantee]),
        guaranteed=guaranteed(c),
        thresholds=thresholds,
        pictures={name: _image(draw) for name, draw in plot.of_diagnosis(d).items()},
        kinds=" and ".join(plot.scores_of(d)),
        provenance=dict(facts),
        infinity=math.inf,
        gate=gate,
        gate_curve=gate and _image(partial(plot.gate_errors, gate=gate)),
        answers=answers and f"{answers}",
        answers_drawn=answers and _image(answers.draw),
        dropped=dropped(c, scored, judged),
        shown=SHOWN,
        marked=marked,
    )


def _unbroken(value: object) -> object:
    """Keep a number and its % on one line, and quote the name of a field as words are."""
    if not isinstance(value, str):
        return value
    return value.replace(" %", "\xa0%").replace("`missed`", "“missed”")


def _number(value: float) -> str:
    if np.isinf(value):
        return "none, everything is kept" if value > 0 else "−∞"
    if np.isnan(value):
        return "–"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _ends(ends: Interval | Band | None) -> str:
    if ends is None or ends[-2:] == (0, 1):
        return "–"
    return in_percent(*ends[-2:])


def _image(draw: plot.Draw) -> str:
    """Return the source of an image: what is inside cannot meet the page's ids, styles or text."""
    figure = Figure(figsize=(4.6, 3.3))
    draw(figure.subplots())
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue().encode()).decode()
