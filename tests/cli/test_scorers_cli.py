"""The scores that the command line calibrates with, and the files of other tools that it reads."""

from dataclasses import replace

import numpy as np
import pytest
from commands import as_json, error_of, judged_queries, retrieval_in, run, write_beir

from conformal_retrievers import Calibration, ConformalFilter, JudgedQuery, Snippet, calibrate
from conformal_retrievers.data import read, read_beir, write_jsonl
from conformal_retrievers.scoring import RankScorer

N, DEPTH = 180, 4


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """A folder with a run of similarities and one of distances, which find different snippets."""
    rng, runs = np.random.default_rng(3), {"dense": [], "l2": []}
    for i in range(N):
        for (_, rows), sign in zip(runs.items(), (1, -1), strict=True):
            similarity = rng.normal([2, *[0] * 7])
            for rank, j in enumerate(np.argsort(-similarity), start=1):
                rows.append((f"q{i}", f"d{i}-{j}", rank, f"{sign * similarity[j]:.6f}"))
    return write_beir(
        tmp_path_factory.mktemp("hybrid"),
        {f"d{i}-{j}": f"text {i} {j}" for i in range(N) for j in range(8)},
        {f"q{i}": f"question {i}" for i in range(N)},
        [(f"q{i}", f"d{i}-0", 1) for i in range(N)],
        runs,
    )


RUNS = ("--run", "dense.tsv", "--run", "l2.tsv", "--k", DEPTH)


def test_a_score_of_several_runs_is_that_of_the_library(beir, tmp_path):
    out = tmp_path / "c.json"
    done = run("calibrate", beir, *RUNS, "--alpha", "0.2", "--hold-out", "0.5", "--out", out)
    made = Calibration.load(out)
    assert " ".join(made.statement.split()) in " ".join(done.stdout.split())
    expected = ConformalFilter.of(made).scorer
    assert expected.retrievers == ("dense", "l2")
    assert retrieval_in(out) == {"runs": ["dense.tsv", "l2.tsv"], "k": 2 * DEPTH}
    queries = read_beir(beir, ["dense.tsv", "l2.tsv"], k=DEPTH)
    new = [query for query in queries if query.id not in made.used_ids]
    kept = [made.keep(expected.score(q.query, q.snippets)) for q in new]
    both = as_json("evaluate", out, beir, *RUNS[:4])  # at the depth of the file
    assert both["left_out"] == N - len(new) > len(made.ids) > 0  # those of the fit are left out too
    found = both["evaluation"]
    assert found["n_snippets"] == sum(len(q.snippets) for q in new) == sum(map(len, kept))
    assert found["removal"]["estimate"] == pytest.approx(1 - np.concatenate(kept).mean())
    run("diagnose", out, beir, *RUNS[:4])


def test_a_run_is_named_and_one_of_several_that_calibrated_will_do_if_it_has_its_name(
    beir, tmp_path
):
    out = tmp_path / "c.json"
    runs = {"near": "dense.tsv", "l2": "l2.tsv"}
    judged = [query for i, query in enumerate(read_beir(beir, runs, k=DEPTH)) if i % 2]
    names = {"runs": ["dense.tsv", "l2.tsv"]}
    calibrate(judged, RankScorer("near"), alpha=0.2, retrieval=names).save(out)
    made = Calibration.load(out)
    assert retrieval_in(out) == {"runs": ["dense.tsv", "l2.tsv"], "k": 2 * DEPTH}
    done = run("evaluate", out, beir, "--run", "near=dense.tsv")  # at the depth of the file
    assert f"k {DEPTH}, but the calibration has {2 * DEPTH}" in done.stderr
    other = run("evaluate", out, beir, "--run", "dense.tsv", code=1).stderr
    assert other.count("'near'") <= 1  # which is said once, not for each query
    new = [q for q in read_beir(beir, {"near": "dense.tsv"}, k=DEPTH) if q.id not in made.ids]
    found = as_json("evaluate", out, beir, "--run", "near=dense.tsv")["evaluation"]
    assert found["n_snippets"] == DEPTH * len(new)


def test_a_single_run_needs_no_name_and_a_path_with_an_equals_sign_is_a_path(beir, tmp_path):
    path = beir / "name=dense.tsv"
    path.write_text((beir / "dense.tsv").read_text())
    out = tmp_path / "c.json"
    run("calibrate", beir, "--run", path.name, "--alpha", "0.2", "--out", out)
    assert ConformalFilter.of(Calibration.load(out)).scorer.retrievers == ("retriever",)
    assert retrieval_in(out) == {"run": path.name}


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        (("--run", "l2.tsv"), 2, "NAME=FILE"),
        (("--run", "=l2.tsv"), 2, "NAME=FILE"),
        (("--run", "a=b.tsv"), 3, "b.tsv"),
    ],
)
def test_a_retriever_that_is_not_known_is_named(options, code, named, beir, tmp_path):
    given = ("--alpha", "0.1", *RUNS, "--out", tmp_path / "c.json", *options)
    assert named in error_of("calibrate", beir, *given, code=code)


def test_hits_are_needed_where_a_score_is_made_of_them(tmp_path):
    path = tmp_path / "judged.jsonl"
    queries = [
        JudgedQuery(f"q {i}", [Snippet("a", retrieval_score=s), Snippet("b")], [True, False])
        for i, s in enumerate(np.random.default_rng(0).normal(size=50))
    ]
    write_jsonl(queries, path)
    assert "hit" in error_of("calibrate", path, "--alpha", "0.1", "--out", tmp_path / "c.json")


# --- files of other tools, wherever JSON lines go -------------------------------------------------


def test_qrels_and_a_run_calibrate(tmp_path):
    qrels, runs = [], []
    judged = judged_queries(120)
    for query in judged:
        for s, relevant in zip(query.snippets, query.relevant, strict=True):
            qrels.append(f"{query.id} 0 {s.id} {int(relevant)}")
            runs.append(f"{query.id} Q0 {s.id} {s.hits[0].rank + 1} {s.retrieval_score} bm25")
    (tmp_path / "qrels.txt").write_text("\n".join(qrels))
    (tmp_path / "run.txt").write_text("\n".join(runs))
    options = ("--alpha", "0.2", "--out", tmp_path / "c.json")
    run("calibrate", tmp_path / "qrels.txt", "--run", tmp_path / "run.txt", *options)
    texts = [[replace(s, text="") for s in query.snippets] for query in judged]
    bare = [replace(q, query=q.id, snippets=s) for q, s in zip(judged, texts, strict=True)]
    write_jsonl(bare, tmp_path / "ours.jsonl")
    run("calibrate", tmp_path / "ours.jsonl", *options[:-1], tmp_path / "ours.json")
    one, other = (Calibration.load(tmp_path / f"{name}.json") for name in ("c", "ours"))
    assert (one.threshold(), one.used_ids) == (other.threshold(), {q.id for q in judged})
    assert one.ids == other.ids
    assert "--run FILE" in error_of("calibrate", tmp_path / "qrels.txt", *options, code=2)
    assert "TREC qrels and a run" in error_of("calibrate", tmp_path / "run.txt", *options)


def test_an_unknown_file_is_an_error_of_one_line_that_lists_the_formats(tmp_path):
    (tmp_path / "x.json").write_text('{"question": "?"}')
    message = error_of("calibrate", tmp_path / "x.json", "--alpha", "0.1")
    assert "RAGAS" in message
    assert "question" in message


def test_grades_are_judged_by_min_score_in_each_command(tmp_path):
    rows = ["query,query_id,id,text,relevant,rank,score"]
    for query in judged_queries(120):
        for i, (s, relevant) in enumerate(zip(query.snippets, query.relevant, strict=True)):
            grade = 3 if relevant else i % 2  # 1 is not relevant from 2 on
            rows.append(f"{query.query},{query.id},{s.id},{s.text},{grade},{i},{s.retrieval_score}")
    graded, plain = tmp_path / "graded.csv", tmp_path / "plain.jsonl"
    graded.write_text("\n".join(rows))
    write_jsonl(read(graded, min_score=2), plain)
    made = []
    for path, options in ((graded, ("--min-score", 2)), (plain, ())):
        out = tmp_path / f"{path.stem}.json"
        run("calibrate", path, "--alpha", 0.2, "--hold-out", 0.5, "--out", out, *options)
        evaluated = as_json("evaluate", out, path, *options)
        diagnosed = as_json("diagnose", out, path, *options)
        made.append([Calibration.load(out).threshold(), evaluated, diagnosed])
    assert made[0] == made[1]
    refused = error_of("calibrate", graded, "--alpha", 0.2, "--out", tmp_path / "no.json")
    assert "relevant is '3'" in refused
    assert " --min-score, from which" in refused
    given = ("--alpha", 0.2, "--out", tmp_path / "no.json", "--min-score", 2)
    assert "--min-score is 2.0" in error_of("calibrate", plain, *given)
