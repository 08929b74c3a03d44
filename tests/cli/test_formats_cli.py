"""Files of other tools in the commands, wherever JSON lines go."""

from commands import as_json, error_of, judged_queries, run

from conformal_retrievers import Calibration, read, write_jsonl


def test_qrels_and_a_run_calibrate_on_ranks(tmp_path):
    qrels, runs = [], []
    judged = judged_queries(120)
    for query in judged:
        for s, relevant in zip(query.snippets, query.relevant, strict=True):
            qrels.append(f"{query.id} 0 {s.id} {int(relevant)}")
            runs.append(f"{query.id} Q0 {s.id} {s.hits[0].rank + 1} {s.retrieval_score} bm25")
    (tmp_path / "qrels.txt").write_text("\n".join(qrels))
    (tmp_path / "run.txt").write_text("\n".join(runs))
    options = ("--alpha", "0.2", "--scorer", "rank", "--out", tmp_path / "c.json")
    run("calibrate", tmp_path / "qrels.txt", "--run", tmp_path / "run.txt", *options)
    write_jsonl(judged, tmp_path / "ours.jsonl")
    run("calibrate", tmp_path / "ours.jsonl", *options[:-1], tmp_path / "ours.json")
    one, other = (Calibration.load(tmp_path / f"{name}.json") for name in ("c", "ours"))
    assert (one.threshold(), one.n_queries) == (other.threshold(), 120)
    assert "--run FILE" in error_of("calibrate", tmp_path / "qrels.txt", *options, code=2)
    assert "TREC qrels and a run" in error_of("calibrate", tmp_path / "run.txt", *options)


def test_an_unknown_file_is_an_error_of_one_line_that_lists_the_formats(tmp_path):
    (tmp_path / "x.json").write_text('{"question": "?"}')
    message = error_of("calibrate", tmp_path / "x.json", "--alpha", "0.1", "--scorer", "rank")
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
