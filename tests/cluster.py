"""Scorers and files for the tests of the cluster, whose actors import this module."""

import json
import os
import signal
import time
from pathlib import Path
from uuid import uuid4

from conformal_retrievers import FunctionScorer, JudgedQuery, LLMScorer
from conformal_retrievers.llm.openai import openai_llm


def line(i: int) -> dict[str, object]:
    """Return judged query i, with i % 4 + 1 snippets of which one or none is relevant."""
    rows = [
        {
            "text": f"{i}.{j} " + "x" * ((7 * i + 3 * j) % 11 + 6 * (j != i % 3)),
            "relevant": j == i % 3,
        }
        for j in range(i % 4 + 1)
    ]
    return {"id": f"q{i}", "query": f"query {i}", "missed": 0, "snippets": rows}


def write_source(folder: Path, sizes: list[int], malformed: dict[tuple[int, int], str]) -> Path:
    """Write files of so many lines each; malformed ones by (file, line number)."""
    folder.mkdir()
    i = 0
    for f, size in enumerate(sizes):
        lines = []
        for number in range(1, size + 1):
            lines.append(malformed.get((f, number)) or json.dumps(line(i)))
            i += 1
        (folder / f"{f}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def length_scorer(log: Path, *, fatal: str | None = None, name: str = "length", held: str = ""):
    """Return a scorer that appends each query to a log.

    It kills its process once at the query `fatal`, and stays at the query `held`. The log's .pids
    has the processes.
    """
    died = log.with_suffix(".died")
    with log.with_suffix(".pids").open("a") as file:
        file.write(f"{os.getpid()}\n")

    def score(query: str, texts: list[str]) -> list[float]:
        with log.open("a") as file:
            file.write(f"{query}\n")
        if query == fatal and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while query == held:
            time.sleep(0.05)
        return [float(len(text)) for text in texts]

    return FunctionScorer(score, name)


def failing_scorer(folder: Path, query: str, fault: str):
    """Return a scorer that kills its process at a query or raises, or has ever new names."""

    def score(asked: str, texts: list[str]) -> list[float]:
        if asked == query:
            with (folder / "asked.log").open("a") as file:
                file.write(f"{asked}\n")
            if fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("no memory left on the GPU")
        return [0.0] * len(texts)

    return FunctionScorer(score, f"failing {uuid4()}" if fault == "differs" else "failing")


def rating_scorer(url: str) -> LLMScorer:
    return LLMScorer(openai_llm("judge", base_url=url, max_retries=0))


def judged(lines: list[dict[str, object]]) -> list[JudgedQuery]:
    found = []
    for row in lines:
        texts, marks = zip(*((s["text"], s["relevant"]) for s in row["snippets"]), strict=True)
        fields = {name: row.get(name) for name in ("id", "missed", "group")}
        found.append(JudgedQuery(row["query"], texts, marks, **fields))
    return found


def shown(evaluation):
    """Return what an evaluation measures; repr shows all digits, and NaN as equal."""
    return repr(evaluation), repr(evaluation.by_group)
