"""Results in parts, without a cluster: whatever the parts are, they give what all queries give."""

import json
from dataclasses import replace
from functools import partial
from uuid import uuid4

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster import judged, length_scorer, line, shown
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import FunctionScorer, ScoredQueries, ScoredQuery, evaluate, score_queries
from conformal_retrievers.calibration import Calibration, CalibrationMismatch
from conformal_retrievers.cluster.parts import Folder, files_in, manifest_of, parts_of, surveyed
from conformal_retrievers.cluster.results import calibrated, evaluated
from conformal_retrievers.cluster.tasks import facts_of, score_part
from conformal_retrievers.data.parquet import read_parquet, write_parquet


def here(do, files):
    return map(do, files)


def mixed(query, texts):
    return [text.count("x") / 8 + len(query) % 2 for text in texts]


SCORER = FunctionScorer(mixed, "mixed")


def scored_in_parts(lines, sizes, per_part, scorer=SCORER, skip=()):
    """Score lines that are in files of these sizes, in parts; return the folder."""
    source, folder = f"memory://{uuid4()}", Folder(f"memory://{uuid4()}")
    start = 0
    for i, size in enumerate(sizes):
        with fsspec.open(f"{source}/{i:03}.jsonl", "w") as file:
            file.write("\n".join(lines[start : start + size]))
        start += size
    surveys = [surveyed(file, per_part) for file in files_in(source)]
    folder.begin(manifest_of(facts_of(scorer), surveys, per_part))
    for part in parts_of(surveys):
        if part.name not in skip:
            score_part(scorer, part, folder)
    return folder.url


def grouped(i):
    return {**line(i), "group": "ab"[i % 2], "missed": i % 3, "retriever": "dense", "k": 9}


LINES = [json.dumps(grouped(i)) for i in range(90)]


@pytest.mark.slow
@given(st.data(), st.integers(1, 40), st.sampled_from(["query-recall", "all", "any", "snippet"]))
def test_a_calibration_of_parts_is_that_of_all_queries_bit_for_bit(data, per_part, guarantee):
    cuts = sorted(data.draw(st.lists(st.integers(0, 90), max_size=4)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, 90], strict=True)]
    options = {"alpha": 0.2, "guarantee": guarantee, "by_group": True, "count_missed": True}
    url = scored_in_parts(LINES, sizes, per_part)
    of_parts = calibrated(url, here, **options)
    whole = all_scored()
    retrieval = {"retriever": "dense", "k": 9}
    of_all = Calibration.from_scores(whole, scorer="mixed", retrieval=retrieval, **options)
    assert of_parts == replace(of_all, created=of_parts.created)
    other = Calibration.from_scores(all_scored(range(100, 190)), scorer="mixed", **options)
    assert shown(evaluated(other, url, here)) == shown(evaluate(other, whole))


def all_scored(numbers=range(90)):
    return score_queries(SCORER, judged([grouped(i) for i in numbers]))


def test_a_calibration_states_the_malformed_records(tmp_path):
    lines = [*LINES[:50], "{", *LINES[50:], '{"query": " ", "snippets": []}']
    url = scored_in_parts(lines, [92], 40)
    with pytest.warns(UserWarning, match="2 malformed"):
        calibration = calibrated(url, here, alpha=0.2, labels={"source": "person"})
    assert calibration.labels == {"source": "person", "malformed_records": 2}
    assert "2 malformed records" in calibration.statement
    assert len(calibration.queries) == 90


def test_a_malformed_row_of_parquet_is_named_and_the_others_are_scored(tmp_path):
    rows = [grouped(i) for i in range(5)]
    columns = {name: [row[name] for row in rows] for name in ("id", "query")}
    for name in ("text", "relevant"):
        columns[name] = [[one[name] for one in row["snippets"]] for row in rows]
    columns["query"][3] = None
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (part,) = parts_of([surveyed(str(tmp_path / "a.parquet"), 1000)])
    folder = Folder(tmp_path)
    score_part(SCORER, part, folder)
    ((error,),) = [report["errors"] for report in folder.reports([part.name])]
    assert (error["file"], error["line"]) == (str(tmp_path / "a.parquet"), 4)
    assert read_parquet(tmp_path / f"{part.name}.parquet").ids.tolist() == ["q0", "q1", "q2", "q4"]


def test_parts_of_two_retrievers_are_refused():
    other = [json.dumps({**grouped(i), "retriever": "sparse"}) for i in range(60, 90)]
    with pytest.raises(ValueError, match="retriever"):
        calibrated(scored_in_parts([*LINES[:60], *other], [90], 30), here, alpha=0.2)


def test_parts_are_evaluated_with_their_own_scorer_only(tmp_path):
    url = scored_in_parts(LINES, [90], 40, length_scorer(tmp_path / "log"))
    calibration = calibrated(url, here, alpha=0.2)
    assert calibration.scorer == "length"
    with pytest.raises(CalibrationMismatch, match=r"'length'.*'mixed'"):
        evaluated(calibration, scored_in_parts(LINES, [90], 40), here)
    with pytest.raises(CalibrationMismatch, match="scorer is 'mixed'"):
        calibrated(url, here, alpha=0.2, scorer="mixed")


def test_scored_queries_without_a_manifest_need_the_name_of_their_scorer(tmp_path):
    url = scored_in_parts(LINES, [90], 40)
    files = {file: fsspec.open(file).open().read() for file in files_in(url)}
    for i, content in enumerate(files.values()):
        (tmp_path / f"{i}.parquet").write_bytes(content)
    with pytest.raises(ValueError, match="scorer is None"):
        calibrated(tmp_path, here, alpha=0.2)
    write_parquet(ScoredQueries.of([]), tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    write_parquet(ScoredQueries.of([]), tmp_path / "empty" / "none.parquet")
    of_files = calibrated(tmp_path, here, alpha=0.2, scorer="mixed")
    new = Calibration.from_scores([ScoredQuery([1.0], [True], id="own")], alpha=0.5, scorer="mixed")
    assert evaluated(new, tmp_path, here).n_queries == len(all_scored())
    with pytest.raises(ValueError, match="scored is empty"):
        evaluated(new, tmp_path / "empty", here)
    assert of_files.threshold() == calibrated(url, partial(here), alpha=0.2).threshold()
