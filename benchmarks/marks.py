"""How long ten marks take on the judging page, and the reading, for 60 questions.

Ten questions with 20 snippets each are judged by keyboard in headless Chromium: `j` to the snippet,
Space, Enter. Snippets of 50 and of 100 words are read at 225 words a minute.

    python -m benchmarks.marks        (needs Chromium)
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.labels.judging import Judging

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from chromium import Browser
from judging import serving

MARKS, QUESTIONS, WORDS_A_MINUTE = 10, 60, 225
WAYS = {"k = 20": 20, "k = 10": 10, "LLM, sample of 20 %": 2 + 4, "LLM, sample of 5 %": 2 + 1}


def main() -> None:
    queries = [
        JudgedQuery(
            f"{q}?", [Snippet("word " * 100, id=f"{q}-{i}") for i in range(20)], [False] * 20
        )
        for q in range(MARKS)
    ]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "chromium")
        try:
            with serving(Judging(queries, Path(folder) / "judged.jsonl")) as server:
                browser.open(server.url)
                browser.js("work")
                for number in range(MARKS):
                    start = time.perf_counter()
                    browser.press(*["j"] * number, "Space", "Enter")
                    seconds.append(time.perf_counter() - start)
        finally:
            browser.close()
    print(
        f"A mark: {np.mean(seconds):.2f} ± {np.std(seconds):.2f} s, the slowest {max(seconds):.2f}"
    )
    for way, shown in WAYS.items():
        times = [QUESTIONS * shown * words / WORDS_A_MINUTE for words in (50, 100)]
        print(f"{way:<20} {QUESTIONS * shown:>5} snippets", *(f"{t:>5.0f} minutes" for t in times))


if __name__ == "__main__":
    main()
