"""Make the pictures of the README and of docs/report.md from the chain of the README.

python docs/pictures.py
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import reader
from chromium import Browser

from conformal_retrievers import ConformalFilter, calibrate, evaluate, score_queries
from conformal_retrievers.evaluation.plot import plot
from conformal_retrievers.evaluation.report import write
from langchain_conformal import HybridRetriever, judge_retriever

ASSETS = ROOT / "docs" / "assets"


def main() -> None:
    names = reader.before()
    retriever = HybridRetriever({name: names[name] for name in ("dense", "bm25")})
    calibration = calibrate(judge_retriever(retriever, names["queries"]), alpha=0.1)
    scorer = ConformalFilter.of(calibration).scorer
    scored = score_queries(scorer, judge_retriever(retriever, names["new"]))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        diagnosis = write(page, calibration, scored)
        for name, value in (("evaluation", evaluate(calibration, scored)), ("diagnosis", diagnosis)):
            (ASSETS / f"{name}.png").write_bytes(plot(value)._repr_png_())
        browser = Browser(os.path.join(folder, "browser"))
        browser.size(900, 1000)
        browser.open(page.as_uri())
        browser.screenshot(ASSETS / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
