"""Files of answerable and unanswerable queries, and of a gate, for tests of the command line."""

import numpy as np
from commands import run

from conformal_retrievers import write_jsonl
from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits

K = 4


def queries(n, kind, best, *, relevant, start=0):
    """Queries of four snippets with falling scores; the best is around `best`, the others 0."""
    rng = np.random.default_rng(start + round(10 * best))
    found = []
    for i in range(start, start + n):
        scores = sorted([float(rng.normal(best)), *rng.normal(0, 0.3, K - 1).tolist()])[::-1]
        texts = [Snippet(f"{kind} {i:4} {j}", retrieval_score=s) for j, s in enumerate(scores)]
        marks = [relevant, *[False] * (K - 1)]
        fields = {"id": f"{kind}{i}", "group": "ab"[i % 2], "answerable": relevant}
        found.append(JudgedQuery(f"{kind} {i}", with_hits(texts), marks, **fields))
    return found


def gate_files(folder):
    """Write answerable and unanswerable queries, old and new, and a gate of the old."""
    for name, start in (("", 0), ("new-", 1000)):
        asked = queries(120, "asked", 4, relevant=True, start=start)
        write_jsonl(asked, folder / f"{name}judged.jsonl")
        for kind, best in (("hard", 2.5), ("easy", 0)):
            others = queries(60, kind, best, relevant=False, start=start)
            write_jsonl(others, folder / f"{name}{kind}.jsonl")
    run("gate", folder / "judged.jsonl", *sources(folder), "--alpha", "0.1", *out(folder, "gate"))
    return folder


def sources(folder, new=""):
    hard, easy = (folder / f"{new}{name}.jsonl" for name in ("hard", "easy"))
    return ("--unanswerable", hard, "--unanswerable", f"off topic={easy}")


def out(folder, name):
    return ("--out", folder / f"{name}.json")
