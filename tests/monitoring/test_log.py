"""What a filter did: as an event, counted, and in a log that many processes append."""

import functools
import gzip
import hashlib
import json
import logging
import math
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from drawn import calibrated
from lookup import LookupScorer

from conformal_retrievers import ConformalFilter
from conformal_retrievers.monitoring import FilterLog, Observer, event_of, read_log, scores_of


@functools.cache  # two that are made in different seconds are different calibrations
def calibration_at(alpha):
    return calibrated([0.1, 0.2, 0.3, 0.4, 0.5], alpha)


def decided(scores, alpha=0.4):
    return ConformalFilter(LookupScorer({}), calibration_at(alpha)).decide(scores)


@pytest.fixture(scope="module")
def event():
    return event_of(decided([0.1]))


# --- the event ------------------------------------------------------------------------------------


def test_an_event_states_the_decision_as_plain_json():
    filtered = decided([0.9, 0.1, math.nan, math.inf])
    event = json.loads(json.dumps(event_of(filtered, query="why?"), allow_nan=False))
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "event": "conformal_filter",
        "version": 1,
        "calibration": filtered.calibration.checksum,
        "scorer": "lookup",
        "guarantee": "query-recall",
        "alpha": 0.4,
        "group": None,
        "query": "why?",
        "k": 4,
        "kept": [1, 2],
        "unscorable": [2],
        "threshold": 0.4,
        "scores": [0.9, 0.1, None, "inf"],
        "m1": 1.0,
        "m2": 0.5,
        "failed_retrievers": [],
        "gate": None,
    }
    np.testing.assert_array_equal(scores_of(event), [0.9, 0.1, math.nan, math.inf])
    assert event_of(decided([0.9], alpha=0.01))["threshold"] == "keep_all"
    assert event_of(decided([]))["k"] == 0


# --- writing --------------------------------------------------------------------------------------

HASH = hashlib.sha256("why? 😀".encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("queries", "stored"), [("hashed", HASH), ("text", "why? 😀"), ("none", None)]
)
def test_a_query_is_stored_as_the_option_states(tmp_path, event, queries, stored):
    log = FilterLog(tmp_path / "log.jsonl", queries=queries)
    log.append({**event, "query": "why? 😀"})
    log.append(event)
    odd = ["bad \ud800 é", "a\u2028b\r\n", " WHY?  😀"]
    for query in odd:
        log.append({**event, "query": query})
    rows = [row["query"] for row in read_log(log.path)]
    assert rows[:2] == [stored, None]
    assert (rows[2:] == odd) == (queries == "text")
    assert (rows[-1] == HASH) == (queries == "hashed")  # whatever its case and white space
    assert ("why" in log.path.read_text("utf-8")) == (queries == "text")


WRITER = """
import sys
from conformal_retrievers.monitoring import FilterLog
log = FilterLog(sys.argv[1])
event = {"event": "conformal_filter", "version": 1, "calibration": "c", "k": 0, "kept": [],
         "scores": [], "m1": 0.0, "m2": 0.0, "by": int(sys.argv[2]), "more": "x" * 300}
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    log.append({**event, "i": i})
    if i % 10 == 0:
        print(i, flush=True)
"""


def start_writers(path, *events):
    """Start a process for each number of events, which writes that many."""
    code = [sys.executable, "-c", WRITER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    counts = enumerate(events)
    writers = [subprocess.Popen([*code, str(n), str(count)], **pipes) for n, count in counts]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    return writers


def written(path):
    """Return the numbers of the events in a log, by the process that wrote them."""
    found = {}
    for event in read_log(path):
        found.setdefault(event["by"], []).append(event["i"])
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:skipped [123] of:UserWarning")
def test_of_eight_processes_three_are_killed_and_no_other_event_is_lost(tmp_path):
    """A killed process may leave its last line incomplete, and no other line."""
    path = tmp_path / "log.jsonl"
    writers = start_writers(path, *[10**6] * 3, *[2000] * 5)
    reported = {}
    for n, writer in enumerate(writers[:3]):
        while (line := writer.stdout.readline()) and int(line) < 200 * (n + 1):
            pass
        writer.send_signal(signal.SIGKILL)
        reported[n] = int(line)
    for writer in writers:
        writer.communicate(timeout=120)
    found = written(path)
    for n in range(8):
        assert found[n] == list(range(len(found[n])))  # in order, none lost in between
    assert all(found[n][-1] >= reported[n] for n in reported)
    assert [len(found[n]) for n in range(3, 8)] == [2000] * 5


def test_processes_write_whole_lines_while_the_log_is_rotated(tmp_path):
    path = tmp_path / "log.jsonl"
    writers = start_writers(path, 300, 300)
    for rotated, _ in enumerate(writers[0].stdout):  # which says so after every tenth event
        if path.exists():
            os.rename(path, f"{path}.{100 - rotated}")
    path.touch()  # the last file may have been renamed
    assert [writer.communicate(timeout=60) and writer.returncode for writer in writers] == [0, 0]
    assert [sorted(written(path)[n]) for n in range(2)] == [[*range(300)]] * 2


def test_a_torn_line_is_skipped_with_a_warning_and_the_next_event_begins_a_new_line(log, event):
    log.append(event)
    for torn in (b'{"event": "confor', '{"event": "é'.encode()[:-1]):
        with log.path.open("ab") as file:
            file.write(torn)
        log.append(event)
    with pytest.warns(UserWarning, match=r"log\.jsonl, line 2; .*line 4"):
        assert len(list(read_log(log.path))) == 3


def test_what_others_write_to_the_same_stream_is_skipped_with_a_warning(log, event):
    log.append(event)
    with log.path.open("a") as file:
        file.write('{"event": "other", "k": 3}\n[1]\n{"level": "INFO"}\n' * 3)
    with pytest.warns(UserWarning, match=r"skipped 9 of 10 lines, .* events: .*line 2;.*line 6$"):
        assert len([*read_log(log.path)]) == 1
    log.path.write_text('{"event": "other"}\n')
    with pytest.raises(ValueError, match="line 1 is not an event, nor is any other line; give"):
        next(read_log(log.path))


def test_an_event_is_written_again_if_another_process_was_killed_before(log, event, monkeypatch):
    log.append(event)
    check = FilterLog._continues_a_line

    def killed_after(self, file, start):
        found = check(self, file, start)
        if start == log.path.stat().st_size:  # the event is not written yet
            with log.path.open("ab") as other:
                other.write(b'{"event": "confor')
        return found

    monkeypatch.setattr(FilterLog, "_continues_a_line", killed_after)
    log.append({**event, "group": "new"})
    with pytest.warns(UserWarning, match=r"skipped 1 of 3 lines, .*log\.jsonl, line 2$"):
        assert [row["group"] for row in read_log(log.path)] == [None, "new"]


def test_a_fifo_is_a_log_while_it_has_a_reader(tmp_path, event):
    os.mkfifo(tmp_path / "fifo")
    log = FilterLog(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo"):
        log.append(event)
    with os.fdopen(os.open(log.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        log.append(event)
        log.append(event)
        assert [json.loads(line)["k"] for line in reader] == [1, 1]


def test_invalid_arguments_are_named(tmp_path):
    with pytest.raises(ValueError, match="queries"):
        FilterLog(tmp_path / "log.jsonl", queries="plain")
    with pytest.raises(TypeError, match="log"):
        Observer("log.jsonl")


GATE = {"calibration": "c", "score": 0.6, "p_value": 0.2, "decision": "silent"}

# --- reading --------------------------------------------------------------------------------------


def test_rotated_files_are_read_oldest_first(tmp_path, event):
    log = FilterLog(tmp_path / "filter[prod]*.jsonl")
    ends = ("-20260131", ".2026-02", ".10", ".2.gz", ".1", "")
    for end in (*ends, ".lock", "x.3", ".3.zst"):
        row = json.dumps({**event, "group": end}).encode()
        path = tmp_path / f"{log.path.name}{end}"
        path.write_bytes(gzip.compress(row) if end.endswith("gz") else row)
    read = partial(read_log, log.path)
    (other := tmp_path / "filter[prod]*-20260203.jsonl").write_text("")  # logrotate's `extension`
    with pytest.warns(UserWarning, match=r"files such as .*-20260203\.jsonl .*2 in all"):
        assert [row["group"] for row in read()] == [".10", ".2.gz", ".1", *ends[:2], ""]
    (tmp_path / f"{log.path.name}.3.zst").unlink(), other.unlink()
    log.path.unlink()
    assert [row["group"] for row in read()] == [".10", ".2.gz", ".1", *ends[:2]]
    path = tmp_path / f"{log.path.name}.2.gz"
    for damaged in (path.read_bytes()[:-9], gzip.compress(b"")[:10] + b"\xff" * 9, b"no"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"\.2\.gz is not a complete"):
            list(read_log(log.path))


@pytest.mark.parametrize("line", ["no", "[" * 100_000], ids=["text", "nested"])
def test_a_file_of_other_lines_is_not_a_log(tmp_path, line):
    (tmp_path / "other.txt").write_text(f"{line}\n{line}\n")
    with pytest.raises(ValueError, match=r"other\.txt, line 1"):
        list(read_log(tmp_path / "other.txt"))
    with pytest.raises(FileNotFoundError):
        list(read_log(tmp_path / "none.jsonl"))
    with pytest.raises(ValueError, match="event is 'claims'; give 'conformal_filter' or"):
        list(read_log(tmp_path / "other.txt", event="claims"))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"version": 2}, "version"),
        ({"scores": None}, "scores"),
        ({"scores": ["nan"]}, "scores"),
        ({"scores": [10**400]}, "scores"),
        ({"m1": 1e308}, "m1"),
        ({"m2": 10**400}, "m2"),
        ({"group": 3}, "group"),
        ({"calibration": None}, "calibration"),
        ({"k": -1}, "k"),
        ({"alpha": []}, "alpha"),
        ({"alpha": "0.1"}, "alpha"),
        ({"kept": ["0"]}, "kept"),
        ({"kept": [4]}, "kept does not fit k, which is 4"),
        ({"characters": [9, 9]}, "characters does not fit k"),
        ({"scores": [0.1]}, "scores does not fit k"),
        ({"gate": {**GATE, "decision": "mute"}}, r"gate\.decision"),
        ({"gate": {**GATE, "score": "high"}}, r"gate\.score"),
    ],
    ids=str,
)
def test_a_foreign_line_is_an_error_with_file_line_and_field(log, changed, field):
    event = {**event_of(decided([0.1, math.nan, math.inf, -math.inf])), "group": "a", "gate": GATE}
    log.append(event)
    assert next(read_log(log.path)) == event
    log.append({**event, **changed})
    with pytest.raises(ValueError, match=rf"log\.jsonl, line 2.*{field}") as raised:
        list(read_log(log.path))
    assert len(str(raised.value)) < 300 + len(str(log.path))


# --- what handlers do with events -----------------------------------------------------------------


def test_an_observer_counts_by_calibration_and_reports(caplog, log):
    observer = Observer(log)
    one, other = decided([0.1, 0.9]), decided([0.9, 0.9, math.nan], alpha=0.5)
    with caplog.at_level(logging.INFO, logger="conformal_retrievers"):
        for filtered in (one, decided([0.9, 0.9]), other):
            observer.observe(event_of(filtered))
    counts = observer.counts[one.calibration.checksum]
    assert (counts.queries, counts.m1, counts.m2, counts.kept) == (2, 0.5, 0.25, 1)
    assert observer.counts[other.calibration.checksum].unscorable == 1
    assert (
        "kept 0 of 2 snippets; so far 50.0 % of 2 queries kept a snippet, and a query kept 25.0 % "
        "of its snippets on average"
    ) in caplog.text
    assert "1 of 3 snippets could not be scored" in caplog.text
    claims = {"calibration": "c", "k": 0, "kept": [], "unscorable": []}
    observer.observe({**claims, "event": "conformal_claims", "undivided": "\x1b[2J\r\u202e"})
    assert r"\u001b[2J\r\u202e" in caplog.text
    assert log.path.read_text().count("\n") == 4


def test_a_log_that_cannot_be_written_does_not_stop_retrieval(caplog, tmp_path, event):
    observer = Observer(FilterLog(tmp_path / "later" / "log.jsonl"))
    observer.observe(event)
    observer.observe(event)
    observer.observe({**event, "group": object()})
    assert caplog.text.count("cannot write") == 1
    assert sum(counts.queries for counts in observer.counts.values()) == 3
    (tmp_path / "later").mkdir()
    observer.observe(event)
    observer.observe({**event, "group": object()})  # not JSON: a new failure is reported again
    assert len(list(read_log(observer.log.path))) == 1
    assert caplog.text.count("cannot write") == 2
