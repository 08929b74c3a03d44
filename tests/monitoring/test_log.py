"""What a filter did: as an event, in a log that many processes append, and counted."""

from __future__ import annotations

import gzip
import json
import logging
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from filelock import FileLock
from lookup import LookupScorer

from conformal_retrievers import Calibration, ConformalFilter, FilterLog, ScoredQuery, read_log
from conformal_retrievers.monitoring.events import annotate_span, event_of, scores_of
from conformal_retrievers.monitoring.log import LOCK_SECONDS
from conformal_retrievers.monitoring.observing import HELD_SECONDS, Observer


def calibration_of(scores=(0.1, 0.2, 0.3, 0.4, 0.5), alpha=0.4, **options):
    queries = [ScoredQuery([score], [True]) for score in scores]
    return Calibration.from_scores(queries, alpha=alpha, scorer="lookup", **options)


def decided(scores, **options):
    return ConformalFilter(LookupScorer({}), calibration_of(**options)).decide(scores)


# --- the event ------------------------------------------------------------------------------------


def test_an_event_is_plain_json_that_says_what_was_decided():
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
    }
    np.testing.assert_array_equal(scores_of(event), [0.9, 0.1, math.nan, math.inf])


def test_a_threshold_that_keeps_everything_has_a_name():
    assert event_of(decided([0.9], alpha=0.01))["threshold"] == "keep_all"
    assert event_of(decided([]))["k"] == 0


def test_without_opentelemetry_nothing_is_loaded_for_a_span():
    code = (
        "import sys; from conformal_retrievers import *; "
        "from conformal_retrievers.monitoring.events import annotate_span; "
        "c = Calibration.from_scores([ScoredQuery([1.0], [True])], alpha=.5, scorer='s'); "
        "S = type('S', (), {'name': 's', 'score': lambda s, q, x: [1.0]}); "
        "annotate_span(ConformalFilter(S(), c).decide([1.0])); "
        "print('opentelemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "stored"), [("hashed", "e1ea4ac41c9b11b0"), ("text", "why? 😀"), ("none", None)]
)
def test_a_query_is_stored_as_it_was_asked_for(tmp_path, queries, stored):
    log = FilterLog(tmp_path / "log.jsonl", queries=queries)
    log.append(event_of(decided([0.1]), query="why? 😀"))
    log.append(event_of(decided([0.1])))
    found = [event["query"] for event in read_log(log.path)]
    if queries == "hashed":
        import hashlib

        stored = hashlib.sha256("why? 😀".encode()).hexdigest()[:16]
        assert "why" not in log.path.read_text(encoding="utf-8")
    assert found == [stored, None]


def test_a_full_file_is_renamed_and_the_oldest_are_given_up(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl", max_bytes=1200, backups=2)
    for i in range(40):
        log.append({**event_of(decided([0.1])), "group": str(i)})
    names = sorted(path.name for path in tmp_path.glob("log.jsonl*") if path.suffix != ".lock")
    assert names == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    assert all(len((tmp_path / name).read_bytes()) <= 1200 for name in names)
    groups = [int(event["group"]) for event in read_log(log.path)]
    assert groups == list(range(groups[0], 40))  # oldest first, and none is lost in between
    lone = FilterLog(tmp_path / "lone.jsonl", max_bytes=1, backups=0)
    lone.append(event_of(decided([0.1])))
    lone.append({**event_of(decided([0.1])), "group": "last"})
    assert [event["group"] for event in read_log(lone.path)] == ["last"]


def test_processes_and_threads_append_whole_lines(tmp_path):
    path = tmp_path / "log.jsonl"
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; "
        "from conformal_retrievers import FilterLog; "
        "log = FilterLog(sys.argv[1], max_bytes=20_000, backups=1000); "
        "event = {'event': 'conformal_filter', 'version': 1, 'calibration': 'c', 'k': 0, "
        "'kept': [], 'scores': [], 'm1': 0.0, 'm2': 0.0, 'by': sys.argv[2], 'more': 'x' * 300}; "
        "pool = ThreadPoolExecutor(4); "
        "list(pool.map(lambda i: log.append({**event, 'i': i}, wait=60), range(100)))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in "abc"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    found = [(event["by"], event["i"]) for event in read_log(path)]
    assert sorted(found) == [(name, i) for name in "abc" for i in range(100)]
    assert (tmp_path / "log.jsonl.3").exists()


def test_a_log_whose_lock_is_held_is_neither_written_nor_read(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl")
    event = event_of(decided([0.1]))
    log.append(event)
    with FileLock(f"{log.path}.lock"), ThreadPoolExecutor(1) as other:
        with pytest.raises(OSError, match="lock"):
            other.submit(log.append, event).result(timeout=60)
        with pytest.raises(OSError, match="lock"):
            other.submit(lambda: list(read_log(log.path))).result(timeout=60)
    log.append(event)
    assert len(list(read_log(log.path))) == 2


def test_a_log_is_read_as_it_was_when_reading_began_whatever_is_renamed_since(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl", max_bytes=1200, backups=3)
    for i in range(8):
        log.append({**event_of(decided([0.1])), "group": str(i)})
    before = [event["group"] for event in read_log(log.path)]
    assert (tmp_path / "log.jsonl.1").exists()
    reading = read_log(log.path)
    groups = [next(reading)["group"]]
    for i in range(8, 30):
        log.append({**event_of(decided([0.1])), "group": str(i)})
    groups += [event["group"] for event in reading]
    assert groups == before


def test_a_log_that_grows_while_it_is_read_ends_where_it_ended(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl")
    log.append(event_of(decided([0.1])))
    reading = read_log(log.path)
    next(reading)
    log.append(event_of(decided([0.1])))
    with log.path.open("a") as file:
        file.write('{"event": "confor')
    assert list(reading) == []


def test_a_torn_line_is_skipped_with_a_warning_and_spoils_no_other(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl")
    event = event_of(decided([0.1]))
    log.append(event)
    for torn in ('{"event": "confor', '{"event": "é'.encode()[:-1]):
        with log.path.open("ab") as file:
            file.write(torn if isinstance(torn, bytes) else torn.encode())
        log.append(event)
    with pytest.warns(UserWarning, match=r"2 lines are no JSON.*log\.jsonl, line 2; .*line 4"):
        assert len(list(read_log(log.path))) == 3
    log.path.write_bytes(log.path.read_bytes()[:-1])  # all of the last line but its end
    log.append(event)
    with pytest.warns(UserWarning, match="2 lines"):
        assert len(list(read_log(log.path))) == 4
    other = tmp_path / "other.txt"
    other.write_text("no\nlog\n")
    with pytest.raises(ValueError, match=r"other\.txt, line 1 is no JSON, nor is any other"):
        list(read_log(other))


def test_a_log_whose_name_has_brackets_is_read_with_its_older_files(tmp_path):
    log = FilterLog(tmp_path / "filter[prod]*.jsonl", max_bytes=1)
    for query in "abc":
        log.append(event_of(decided([0.1]), query=query))
    names = sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock"))
    assert names == [f"filter[prod]*.jsonl{end}" for end in ("", ".1", ".2")]
    assert len(list(read_log(log.path))) == 3


def test_a_compressed_log_is_read_too(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl")
    log.append(event_of(decided([0.1])))
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(log.path.read_bytes()))
    assert list(read_log(packed)) == list(read_log(log.path))
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ValueError, match="no complete compressed"):
        list(read_log(packed))


def test_a_log_is_not_compressed_while_it_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"path is '.*log\.jsonl\.gz', but .* without \.gz"):
        FilterLog(tmp_path / "log.jsonl.gz")


def test_a_folder_is_no_log(tmp_path):
    with pytest.raises(ValueError, match="which is a folder; give a file in it"):
        FilterLog(tmp_path)


def test_a_log_stays_one_file_where_the_process_changes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = FilterLog("log.jsonl")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    log.append(event_of(decided([0.1])))
    assert len(list(read_log(tmp_path / "log.jsonl"))) == 1


def test_a_query_that_is_no_text_is_stored_as_it_is(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl", queries="text")
    for query in ("bad \ud800 é", "a\u2028b\r\n"):
        log.append(event_of(decided([0.1]), query=query))
    assert [event["query"] for event in read_log(log.path)] == ["bad \ud800 é", "a\u2028b\r\n"]


def test_a_log_cannot_be_made_without_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(ModuleNotFoundError, match=r"conformal-retrievers\[log\]"):
        FilterLog(tmp_path / "log.jsonl")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "line 2: its field 'event' is not 'conformal_filter'"),
        ('{"event": "conformal_filter", "version": 2}', "line 2 has version 2"),
        ('{"event": "conformal_filter", "version": 1}', "line 2: its field 'calibration' is miss"),
    ],
)
def test_a_line_that_is_no_event_is_named(tmp_path, line, said):
    log = FilterLog(tmp_path / "log.jsonl")
    log.append(event_of(decided([0.1])))
    with log.path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=rf"log\.jsonl, {said}"):
        list(read_log(log.path))
    with pytest.raises(FileNotFoundError):
        list(read_log(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("query", ["why?"]),
        ("query", {"text": "why?"}),
        ("query", 5),
        ("scores", None),
        ("scores", 5),
        ("scores", "0.5"),
        ("scores", ["abc"]),
        ("scores", [[0.1], [0.2]]),
        ("scores", [True]),
        ("scores", ["nan"]),
        ("scores", [10**400]),
        ("group", ["a"]),
        ("group", 3),
        ("calibration", None),
        ("calibration", {"sha256": "c"}),
        ("k", "one"),
        ("kept", 1),
        ("kept", ["0"]),
    ],
)
def test_a_field_of_an_event_that_cannot_be_is_named_with_its_file_and_line(tmp_path, field, value):
    log = FilterLog(tmp_path / "log.jsonl")
    event = {**event_of(decided([0.1, math.nan, math.inf, -math.inf])), "group": "a"}
    log.append(event)
    assert next(read_log(log.path)) == event
    with log.path.open("a") as file:
        file.write(json.dumps({**event, field: value}) + "\n")
    said = rf"log\.jsonl, line 2: its field '{field}' is .*; give "
    with pytest.raises(ValueError, match=said) as raised:
        list(read_log(log.path))
    assert len(str(raised.value)) < 300 + len(str(tmp_path))


@pytest.mark.parametrize("kind", [["conformal_filter"], {}, 1], ids=str)
def test_a_kind_of_event_that_is_no_name_is_none(tmp_path, kind):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"event": kind}))
    with pytest.raises(ValueError, match=r"line 1: its field 'event' is not 'conformal_filter'"):
        list(read_log(path))


def test_a_line_of_lists_without_end_is_no_json(tmp_path):
    log = FilterLog(tmp_path / "log.jsonl")
    log.path.write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match=r"log\.jsonl, line 1 is no JSON, nor is any other"):
        list(read_log(log.path))
    log.append(event_of(decided([0.1])))
    with pytest.warns(UserWarning, match="a line is no JSON and was skipped"):
        assert len(list(read_log(log.path))) == 1


@pytest.mark.parametrize(
    "options", [{"queries": "plain"}, {"max_bytes": 0}, {"backups": -1}], ids=str
)
def test_an_option_of_the_log_that_cannot_be_is_named(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name} is {value!r}; give"):
        FilterLog("log.jsonl", **options)


# --- what handlers do with events -----------------------------------------------------------------


def test_an_observer_counts_by_calibration_and_says_it(caplog, tmp_path):
    observer = Observer(FilterLog(tmp_path / "log.jsonl"))
    one, other = decided([0.1, 0.9]), decided([0.9, 0.9, math.nan], alpha=0.5)
    with caplog.at_level(logging.INFO, logger="conformal_retrievers"):
        for filtered in (one, decided([0.9, 0.9]), other):
            observer.observe(event_of(filtered))
    counts = observer.counts[one.calibration.checksum]
    assert (counts.queries, counts.m1, counts.m2, counts.kept) == (2, 0.5, 0.25, 1)
    assert observer.counts[other.calibration.checksum].unscorable == 1
    assert "kept 0 of 2 snippets (m1 0.500, m2 0.250 over 2 queries)" in caplog.text
    assert "1 of 3 snippets could not be scored" in caplog.text
    assert len(list(read_log(tmp_path / "log.jsonl"))) == 3


def test_an_observer_may_be_shared_by_threads():
    observer = Observer()
    event = event_of(decided([0.1, 0.9]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(observer.observe, [event] * 400))
    (counts,) = observer.counts.values()
    assert (counts.queries, counts.kept) == (400, 400)


def test_a_log_that_cannot_be_written_does_not_get_in_the_way(caplog, tmp_path):
    (tmp_path / "log.lock").mkdir()
    observer = Observer(FilterLog(tmp_path / "log"))
    event = event_of(decided([0.1]))
    observer.observe(event)
    observer.observe(event)
    assert caplog.text.count("cannot be written; events are lost") == 1
    assert sum(counts.queries for counts in observer.counts.values()) == 2


def test_events_that_a_log_lost_are_counted_when_it_can_be_written_again(caplog, tmp_path):
    observer = Observer(FilterLog(tmp_path / "log.jsonl"))
    event = event_of(decided([0.1]))
    with FileLock(f"{tmp_path}/log.jsonl.lock"), ThreadPoolExecutor(2) as others:
        list(others.map(observer.observe, [event] * 2))
    assert "events are lost" in caplog.text
    observer.observe(event)
    observer.observe(event)
    assert caplog.text.count("is written again; events lost: 2") == 1
    assert len(list(read_log(tmp_path / "log.jsonl"))) == 2


def test_for_a_lock_that_is_held_one_event_waits_long_and_the_others_hardly(tmp_path, monkeypatch):
    waits = []

    class Waiting(FileLock):  # the real one, which tells how long it would wait
        def acquire(self, *args, **kwargs):
            waits.append(self.timeout)
            return super().acquire(*args, **kwargs)

    observer = Observer(FilterLog(tmp_path / "log.jsonl"))
    event = event_of(decided([0.1]))
    held = FileLock(f"{tmp_path}/log.jsonl.lock")
    monkeypatch.setattr("filelock.FileLock", Waiting)
    with held, ThreadPoolExecutor(1) as other:
        list(other.map(observer.observe, [event] * 20))
    assert waits == [LOCK_SECONDS] + [HELD_SECONDS] * 19
    assert observer.lost == 20
    observer.observe(event)
    assert observer.lost == 0
    observer.observe(event)
    assert waits[20:] == [HELD_SECONDS, LOCK_SECONDS]  # as before, once it was written
    assert len(list(read_log(tmp_path / "log.jsonl"))) == 2


def test_however_many_threads_write_no_event_is_lost(tmp_path):
    """They write in turn: polling for the lock of the file, some of them would never come to it."""
    log = FilterLog(tmp_path / "log")
    observer = Observer(log)
    event = event_of(decided([0.1]))
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda _: observer.observe(event), range(1500)))
    assert (len(list(read_log(log.path))), observer.lost) == (1500, 0)


def test_an_event_that_is_no_json_does_not_get_in_the_way(caplog, tmp_path):
    observer = Observer(FilterLog(tmp_path / "log.jsonl"))
    observer.observe({**event_of(decided([0.1])), "group": object()})
    assert "cannot be written; events are lost" in caplog.text


def test_the_current_span_says_what_was_decided():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    filtered = decided([0.1, 0.9, math.nan])
    with provider.get_tracer("test").start_as_current_span("retrieval"):
        assert trace.get_current_span().is_recording()
        annotate_span(filtered)
    (span,) = exporter.get_finished_spans()
    (event,) = span.events
    assert (event.name, event.attributes) == ("conformal_filter", span.attributes)
    assert dict(span.attributes) == {
        "conformal.calibration": filtered.calibration.checksum,
        "conformal.guarantee": "query-recall",
        "conformal.alpha": 0.4,
        "conformal.threshold": 0.4,
        "conformal.k": 3,
        "conformal.kept": 2,
        "conformal.unscorable": 1,
        "conformal.m1": 1.0,
        "conformal.m2": 2 / 3,
    }
