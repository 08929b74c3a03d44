"""Running the command line in a test, and files that its commands read."""

import json

import numpy as np
from typer.testing import CliRunner

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli import app
from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    lines = [line for line in done.stdout.splitlines() if "/" not in line]  # but for long paths
    assert max(map(len, lines), default=0) <= 80 or "--json" in arguments
    return done


def as_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def error_of(*arguments, code=3):
    """Run a command that fails, and return its message without line breaks."""
    done = run(*arguments, code=code)
    assert code != 3 or (done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1)
    return " ".join(done.stderr.split())


def retrieval_in(path):
    """Return what a calibration file states of the retrieval, without the numbers of its lists."""
    facts = dict(Calibration.load(path).retrieval)
    assert [*facts.pop("lengths")]
    facts.pop("found_by", None)
    return facts


def judged_queries(n, *, shift=0.0, groups=("a", "b"), start=0):
    """Queries of five snippets, one relevant, with similarities around 2 and 0, by these."""
    rng = np.random.default_rng(start + 1)

    def found(i):
        snippets = [
            Snippet(f"text {i} {j}", id=f"{i}-{j}", retrieval_score=similarity)
            for j, similarity in enumerate(rng.normal([2 - shift, 0, 0, 0, 0]).tolist())
        ]
        return with_hits(sorted(snippets, key=lambda s: -s.retrieval_score), "toy")

    return [
        JudgedQuery(
            f"question {i}",
            snippets := found(i),
            [snippet.id == f"{i}-0" for snippet in snippets],
            id=f"q{i}",
            group=groups[i % len(groups)],
            missed=i % 2,
            retriever="toy",
            k=5,
        )
        for i in range(start, start + n)
    ]


def write_beir(folder, corpus, queries, qrels, runs):
    """Write a folder in the BEIR layout: texts by id, and rows of qrels and of runs by name."""
    for name, by_id in {"corpus": corpus, "queries": queries}.items():
        rows = [json.dumps({"_id": id, "text": text}) for id, text in by_id.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    for name, rows in {"qrels": qrels, **runs}.items():
        (folder / f"{name}.tsv").write_text("\n".join("\t".join(map(str, row)) for row in rows))
    return folder
