"""On a real Ray cluster: actors, records and drivers fail, and no pair is lost."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("ray")
from cluster import failing_scorer, judged, length_scorer, line, rating_scorer, shown, write_source

from conformal_retrievers import Calibration, evaluate, score_queries
from conformal_retrievers.cluster.ray import calibrate_dataset, evaluate_dataset, score_dataset
from conformal_retrievers.data.parquet import read_parquet, write_parquet

# Ray warns of the defaults of its own settings.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*")]


def content(out):
    """Return what a folder has, a tuple a query, in the order of the source."""
    parts = sorted(Path(out).glob("*.parquet"))
    return [(q.id, q.scores.tolist(), q.relevant.tolist()) for p in parts for q in read_parquet(p)]


def expected(numbers, tmp_path):
    scorer = length_scorer(tmp_path / "plain.log")
    scored = score_queries(scorer, judged([line(i) for i in numbers]))
    return [(q.id, q.scores.tolist(), q.relevant.tolist()) for q in scored]


def test_a_cluster_scores_what_the_plain_loop_scores_and_names_malformed_records(cluster, tmp_path):
    bad = {(0, 5): '{"query": "half a li', (1, 2): json.dumps({"query": "no snippets"})}
    source, out = write_source(tmp_path / "source", [23, 17], bad), tmp_path / "out"
    make = partial(length_scorer, tmp_path / "log")
    done = score_dataset(source, out, make, actors=3, queries_per_part=10)  # two have a place
    good = [i for i in range(40) if i not in (4, 24)]
    assert content(out) == expected(good, tmp_path)
    assert (done.parts, done.skipped, done.queries) == (5, 0, 38)
    assert done.pairs == sum(i % 4 + 1 for i in good)
    named = [(Path(e["file"]).name, e["line"]) for e in done.errors]
    assert named == [("0.jsonl", 5), ("1.jsonl", 2)]
    assert "snippets" in done.errors[1]["error"]
    assert [*map(json.loads, (out / "errors.jsonl").read_text().splitlines())] == [*done.errors]

    again = score_dataset(source, f"file://{out}", make, actors=1, queries_per_part=10)
    assert (again.skipped, again.queries, again.pairs) == (5, done.queries, done.pairs)
    assert len((tmp_path / "log").read_text().splitlines()) == 38  # each query once
    with pytest.raises(ValueError, match="'length'.*, not .*'width'"):
        score_dataset(source, out, partial(make, name="width"), queries_per_part=10)
    with (source / "1.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r"sha256.*sha256"):
        score_dataset(source, out, make, queries_per_part=10)


def test_the_part_of_a_killed_actor_is_done_again(cluster, tmp_path):
    source, out = write_source(tmp_path / "source", [60], {}), tmp_path / "out"
    log = tmp_path / "log"
    make = partial(length_scorer, log, fatal="query 37")
    done = score_dataset(source, out, make, actors=2, queries_per_part=10)
    assert (done.queries, done.errors) == (60, ())
    assert content(out) == expected(range(60), tmp_path)
    times = Counter(log.read_text().splitlines())
    assert times["query 37"] == times["query 30"] == 2  # the part that was lost, and no other
    assert {times[f"query {i}"] for i in [*range(30), *range(40, 60)]} == {1}


@pytest.mark.parametrize(
    ("fault", "line", "why"),
    [
        ("raises", 21, "no memory left"),
        ("dies", 21, "its actor died 5 times"),
        ("differs", 1, "one actor made"),
    ],
)
def test_a_part_that_fails_is_named_and_those_before_stay(cluster, tmp_path, fault, line, why):
    source, out = write_source(tmp_path / "source", [30], {}), tmp_path / "out"
    make = partial(failing_scorer, tmp_path, "query 25", fault)
    with pytest.raises(RuntimeError, match=rf"0\.jsonl from line {line} .*{why}"):
        score_dataset(source, out, make, queries_per_part=10)
    assert len(content(out)) == line - 1
    if fault == "dies":
        assert len((tmp_path / "asked.log").read_text().splitlines()) == 5


DRIVER = """
import sys
from functools import partial
from pathlib import Path
import ray
from cluster import length_scorer
from conformal_retrievers.cluster.ray import connect, score_dataset

source, out, log, address = sys.argv[1:]
connect(address)
assert ray.get_runtime_context().gcs_address == address
score_dataset(source, out, partial(length_scorer, Path(log), held="query 150"), queries_per_part=10)
"""


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupted_driver_continues_with_what_is_not_written(cluster, tmp_path):
    source, out = write_source(tmp_path / "source", [200], {}), tmp_path / "out"
    log = tmp_path / "log"
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, source, out, log, cluster],
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        while not [*out.glob("*-*2.json")] and driver.poll() is None:
            time.sleep(0.05)
    finally:
        driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    while any(map(is_alive, log.with_suffix(".pids").read_text().split())):  # its actors
        time.sleep(0.05)
    written = {p.stem for p in out.glob("*-*.json")}
    assert 0 < len(written) < 20
    log.unlink()
    done = score_dataset(source, out, partial(length_scorer, log), actors=2, queries_per_part=10)
    assert (done.skipped, done.queries) == (len(written), 200)
    assert content(out) == expected(range(200), tmp_path)
    redone = Counter(log.read_text().splitlines())
    assert len(redone) == redone.total() == 200 - 10 * len(written)


def test_parts_are_calibrated_and_evaluated_as_all_queries_at_once(cluster, tmp_path):
    source, out = tmp_path / "judged.parquet", tmp_path / "out"
    write_parquet(judged([line(i) for i in range(24)]), source)
    assert score_dataset(source, out, partial(length_scorer, tmp_path / "log")).pairs == 60
    calibration = calibrate_dataset(out, alpha=0.3)
    alone = Calibration.from_scores(read_parquet(out), alpha=0.3, scorer="length")
    assert calibration == replace(alone, created=calibration.created)
    rows = judged([line(i) for i in range(24, 99)])
    new, tested = score_queries(length_scorer(tmp_path / "new.log"), rows), tmp_path / "new"
    tested.mkdir()
    write_parquet(new[:40], tested / "0.parquet")
    write_parquet(new[40:], tested / "1.parquet")
    assert shown(evaluate_dataset(alone, tested)) == shown(evaluate(alone, new))
    (tested / "1.parquet").write_bytes(b"PAR1 cut")
    with pytest.raises(ValueError, match=r"^\S*1\.parquet is not"):  # the error itself
        evaluate_dataset(alone, tested)


def test_a_scorer_that_asks_an_llm_scores_on_a_cluster_as_alone(cluster, tmp_path, llm_server):
    source, out = write_source(tmp_path / "source", [8, 8], {}), tmp_path / "out"
    done = score_dataset(source, out, partial(rating_scorer, llm_server.url), actors=2)
    alone = score_queries(rating_scorer(llm_server.url), judged([line(i) for i in range(16)]))
    assert content(out) == [(q.id, q.scores.tolist(), q.relevant.tolist()) for q in alone]
    assert (done.pairs, done.unscorable) == (40, 0)
    llm_server.trouble = lambda body, times: "401"
    with pytest.raises(RuntimeError, match=r"0\.jsonl from line 1 failed: .*401"):
        score_dataset(source, tmp_path / "again", partial(rating_scorer, llm_server.url))
