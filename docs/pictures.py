"""Make the pictures of the README, and of docs/report.md from the chain of the README.

That of docs/answers.md is from the replies of a real model, see `benchmarks/answers.py`.

python docs/pictures.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import matplotlib.style
import reader
from chromium import CHROMIUM
from matplotlib.figure import Figure

from benchmarks.answers import REPLIES, one_halving, read_rows
from conformal_retrievers import ConformalFilter, calibrate, evaluate, score_queries
from conformal_retrievers.evaluation.plot import STYLE, plot
from conformal_retrievers.evaluation.report import write
from langchain_conformal import HybridRetriever, judge_retriever

ASSETS = ROOT / "docs" / "assets"


def main() -> None:
    """Make all of them."""
    names = reader.before()
    retriever = HybridRetriever({name: names[name] for name in ("dense", "bm25")})
    calibration = calibrate(judge_retriever(retriever, names["queries"]), alpha=0.1)
    scorer = ConformalFilter.of(calibration).scorer
    scored = score_queries(scorer, judge_retriever(retriever, names["new"]))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        diagnosis = write(page, calibration, scored)
        evaluation = evaluate(calibration, scored)
        draw("equal-recall", evaluation)  # the first of its pictures
        draw("evaluation", evaluation, rows=2)
        draw("diagnosis", diagnosis, rows=2, columns=2)
        options = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=900,1000")
        shown = (f"--screenshot={ASSETS / 'report.png'}", page.as_uri())
        subprocess.run([str(CHROMIUM), *options, *shown], check=True, stderr=subprocess.DEVNULL)
    rows = [row for row in read_rows(REPLIES) if row["set"] == "nq-open" and "1.5B" in row["model"]]
    figure = plot(one_halving(rows))
    figure.savefig(ASSETS / "answers.png", dpi=110, metadata={"Software": None})


def draw(name: str, value: Any, rows: int = 1, columns: int = 1) -> None:
    """Draw a value in a grid that is legible on a narrow page, too."""
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(6.4 * columns, 3.4 * rows))
        plot(value, axes=figure.subplots(rows, columns))
        figure.savefig(
            ASSETS / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None}
        )


if __name__ == "__main__":
    main()
