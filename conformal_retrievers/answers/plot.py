"""A picture of filters: how often the answer is kept, against the tokens that it takes."""

from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

from conformal_retrievers.answers.evaluate import AnswerEvaluation
from conformal_retrievers.evaluation.plot import STYLE, Picture


def plot_answers(value: AnswerEvaluation, *, axes: Any = None) -> Figure:
    """Draw what an evaluation measured, and return the matplotlib figure.

    Filters are dots, a top k is a square, and the whole context a cross, each with its interval:
    the higher and the further left, the better. What is shown is right answers if references are
    known, or else unchanged ones. It needs the extra `cli`.
    """
    with matplotlib.style.context(["default", STYLE]):
        axes = Picture(figsize=(5.8, 3.6)).subplots() if axes is None else axes
        value.draw(axes)
    return axes.figure  # type: ignore[no-any-return]
