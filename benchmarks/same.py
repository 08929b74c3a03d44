"""How far a small model can be trusted with `llm_same`: whether two answers are the same.

The answers are those of results/answers.jsonl.gz, of Qwen2.5-Coder-1.5B to the first questions of
nq-open (references are names and numbers) and ragbench-hotpotqa (references are sentences).

    framed     the answer from all snippets, and the same after "The answer is": the same
    another's  the answer to the next question: not the same
    reference  the answer from all snippets and a reference
    fewer      the answers from all and from two snippets

Pairs with the same words are the same without a model, and are left out.

    python -m benchmarks.same [--write]
    python -m benchmarks.same --base-url URL --model NAME
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.answers import REPLIES, RESULTS, Row, read_rows
from benchmarks.arguments import parser_of
from conformal_retrievers.answers import f1, has_answer, llm_same, same_text
from conformal_retrievers.llm import openai_llm

SETS = ("nq-open", "ragbench-hotpotqa")
MODEL = "Qwen2.5-Coder-1.5B-Instruct"
N = 30  # questions of a set
KINDS = ("framed", "another's", "reference", "fewer")
VERDICTS, TABLES = RESULTS / "same.jsonl", RESULTS / "same.md"


def main() -> None:
    parser = parser_of("benchmarks.same", __doc__)
    parser.add_argument("--base-url", help="an OpenAI-compatible server; asks it")
    parser.add_argument("--model", default="model", help="the server's name for the model")
    parser.add_argument("--write", action="store_true", help=f"also write {TABLES.name}")
    arguments = parser.parse_args()
    if arguments.base_url:
        collect(arguments.base_url, arguments.model)
    console = Console(record=True, width=120)
    console.print(*sections(), sep="\n", markup=False, highlight=False)
    if arguments.write:
        lines = (line.rstrip() for line in console.export_text().splitlines())
        TABLES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pairs() -> Iterator[Row]:
    """Yield the pairs of answers that are compared."""
    every = [row for row in read_rows(REPLIES) if row["model"] == MODEL]
    for name in SETS:
        rows = [row for row in every if row["set"] == name][: N + 1]
        for row, after in pairwise(rows):
            answer, few = row["replies"]["top 10"], row["replies"]["top 2"]
            others = {
                "framed": f"The answer is {answer}",
                "another's": after["replies"]["top 10"],
                "reference": row["expected"][0],
                "fewer": few,
            }
            for kind, other in others.items():
                if not same_text("", answer, other):
                    texts = {"question": row["question"], "answer": answer, "other": other}
                    yield {"set": name, "kind": kind, **texts}


def collect(base_url: str, model: str) -> None:
    """Ask for each pair that has no verdict yet."""
    same = llm_same(openai_llm(model, base_url=base_url, timeout=600.0))
    known = [json.loads(line) for line in lines_of(VERDICTS)]
    asked = [{**row, "same": None} for row in known]
    with VERDICTS.open("a", encoding="utf-8") as file:
        for pair in pairs():
            if {**pair, "same": None} in asked:
                continue
            try:
                verdict = same(pair["question"], pair["answer"], pair["other"])
            except (RuntimeError, ValueError):  # ValueError for a reply without a verdict
                verdict = None
            file.write(json.dumps({**pair, "same": verdict}, ensure_ascii=False) + "\n")
            file.flush()


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def sections() -> Iterator[str | Table]:
    yield f"# What {MODEL} takes for the same answer\n"
    table = Table(box=box.MARKDOWN)
    for heading in ("set", "pair", "n", "no verdict", "same, %", "has_answer says so, %", "F1, %"):
        table.add_column(heading, no_wrap=True)
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines_of(VERDICTS)]
    for name in SETS:
        for kind in KINDS:
            found = [row for row in rows if (row["set"], row["kind"]) == (name, kind)]
            said = [row for row in found if row["same"] is not None]
            words = [has_answer("", row["answer"], row["other"]) for row in said]
            overlap = [f1(row["answer"], row["other"]) for row in said]
            shares = ([row["same"] for row in said], words, overlap)
            cells = (f"{100 * np.mean(share):.0f}" for share in shares)
            table.add_row(name, kind, f"{len(found)}", f"{len(found) - len(said)}", *cells)
    yield table
    for name in SETS:
        judged = [r for r in rows if (r["set"], r["kind"]) == (name, "reference")]
        agree = [has_answer("", r["answer"], r["other"]) == r["same"] for r in judged]
        yield f"{name}: of references it says what `has_answer` says for {np.mean(agree):.0%}."


if __name__ == "__main__":
    main()
