"""A picture of filters: how often the answer is kept, against the tokens that it takes."""

from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

from conformal_retrievers.answers.evaluate import AnswerEvaluation
from conformal_retrievers.evaluation.plot import BLUE, GREEN, GREY, STYLE, Picture

LABELS = {"unchanged": "answers unchanged, %", "right": "right answers, %"}
MARKS = {"whole": (GREY, "X"), "filter": (BLUE, "o"), "top k": (GREEN, "s")}


def plot_answers(value: AnswerEvaluation, *, axes: Any = None) -> Figure:
    """Draw what an evaluation measured, and return the matplotlib figure.

    Filters are dots, a top k is a square, and the whole context a cross, each with its interval:
    the higher and the further left, the better. What is shown is right answers if references are
    known, or else unchanged ones. It needs the extra `cli`.
    """
    measure = "right" if "right" in value.ways[0].measures else "unchanged"
    with matplotlib.style.context(["default", STYLE]):
        figure = Picture(figsize=(5.8, 3.6)) if axes is None else axes.figure
        drawn = figure.subplots() if axes is None else axes
        for way in value.ways:
            share, x = way.estimates[measure], way.estimates["tokens"].estimate
            color, mark = MARKS[way.kind]
            drawn.vlines(x, 100 * share.low, 100 * share.high, color=color, alpha=0.5)
            drawn.plot(x, 100 * share.estimate, mark, color=color)
            above = way.kind == "filter"  # a filter and its top k have about the same tokens
            drawn.annotate(
                way.name.replace("$", r"\$"),
                (x, 100 * (share.high if above else share.low)),
                xytext=(-4, 3 if above else -11),
                textcoords="offset points",
                fontsize=8.5,
                color=color,
            )
        widest = max(way.estimates["tokens"].estimate for way in value.ways)
        drawn.set(xlabel="tokens of context", ylabel=LABELS[measure], xlim=(0, 1.25 * widest))
        low, high = drawn.get_ylim()
        drawn.set_ylim(max(0, low - 5), min(102, high + 5))
    return figure
