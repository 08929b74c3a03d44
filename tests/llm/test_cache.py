"""The cache: bit for bit, by threads and processes at once, killed, and broken."""

from __future__ import annotations

import contextlib
import gc
import math
import multiprocessing
import os
import pickle
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer

from conformal_retrievers import Cache, CachedScorer, EmbeddingScorer, RetrievalScorer, Snippet
from conformal_retrievers.scoring import relative_to_query

ODD = [0.0, -0.0, math.inf, -math.inf, 5e-324, -2.2e-308, 0.1, 1 / 3, math.nextafter(1, 2), 1e308]


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache.db")


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("cache") / "cache.db")


def bits(values):
    return [struct.pack("<d", value) for value in values]


# --- scores ---------------------------------------------------------------------------------------


def test_a_cached_score_equals_the_original_bit_for_bit(cache):
    texts = [str(i) for i in range(len(ODD))]
    cache.add_scores("s", "q", texts, ODD)
    assert bits(Cache(cache.path).scores("s", "q", texts)) == bits(ODD)


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_any_score_comes_back_bit_for_bit(one_cache, scores):
    texts = [str(i) for i in range(len(scores))]
    one_cache.add_scores("s", "q", texts, scores)
    assert bits(one_cache.scores("s", "q", texts)) == bits(scores)


def test_what_is_not_known_is_nan_and_nan_is_not_kept(cache):
    cache.add_scores("s", "q", ["a", "b"], [1.0, math.nan])
    np.testing.assert_array_equal(
        cache.scores("s", "q", ["b", "a", "c", "a"]), [np.nan, 1, np.nan, 1]
    )
    assert cache.scores("s", "q", []).shape == (0,)
    with sqlite3.connect(cache.path) as connection:
        assert connection.execute("SELECT count(*) FROM scores").fetchone() == (1,)
    connection.close()


def test_a_score_belongs_to_scorer_query_and_text(cache):
    cache.add_scores("s", "q", ["a"], [1.0])
    for scorer, query, text in (("S", "q", "a"), ("s", "Q", "a"), ("s", "q", "A"), ("q", "s", "a")):
        assert np.isnan(cache.scores(scorer, query, [text])).all()
    cache.add_scores("s", "q", ["a"], [2.0])
    assert cache.scores("s", "q", ["a"]).tolist() == [2.0]


def test_more_snippets_than_one_statement_takes(cache):
    texts = [f"{i} \ud800" for i in range(33_000)]
    cache.add_scores("s", "q", texts, np.arange(33_000.0))
    assert cache.scores("s", "q", texts).tolist() == list(range(33_000))


def test_each_text_has_one_score(cache):
    with pytest.raises(ValueError, match=r"shape \(1,\); give one for each of 2 texts"):
        cache.add_scores("s", "q", ["a", "b"], [1.0])


def test_a_cache_is_its_path(cache):
    cache.add_scores("s", "q", ["a"], [1.0])
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.scores("s", "q", ["a"]).tolist() == [1.0]
    cache.close()
    assert cache.scores("s", "q", ["a"]).tolist() == [1.0]  # opened again
    assert repr(cache) == f"Cache({str(cache.path)!r})"


# --- threads and processes ------------------------------------------------------------------------

WRITER = """
import sys
from conformal_retrievers import Cache
path, worker, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
cache = Cache(path)
for i in range(n):
    cache.add_scores("s", f"{worker} {i}", ["a", "b"], [i, -i])
    print(i, flush=True)
"""


def writer(path, worker, n):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), worker, str(n)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_several_processes_begin_and_fill_one_file_at_once(tmp_path):
    path = tmp_path / "cache.db"
    writers = [writer(path, str(worker), 50) for worker in range(4)]
    for process in writers:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate()[0].count("\n") for process in writers] == [50] * 4
    assert [process.returncode for process in writers] == [0] * 4
    cache = Cache(path)
    for worker in range(4):
        for i in range(50):
            assert cache.scores("s", f"{worker} {i}", ["a", "b"]).tolist() == [i, -i]


def test_threads_share_a_cache(cache):
    together = threading.Barrier(8)

    texts = [str(j) for j in range(20)]

    def work(worker):
        together.wait()
        for i in range(50):
            cache.add_scores("s", f"{worker} {i}", texts, [i] * 20)
            assert cache.scores("s", f"{worker} {i}", texts).tolist() == [i] * 20

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many switches as there can be
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    known = [cache.scores("s", f"{w} {i}", ["7"])[0] == i for w in range(8) for i in range(50)]
    assert all(known)


def _in_child(cache, results):
    cache.add_scores("s", "child", ["a"], [3.0])
    results.put(cache.scores("s", "parent", ["a"]).tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_opens_the_file_for_itself(cache):
    cache.add_scores("s", "parent", ["a"], [2.0])
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(cache, results))
    with cache._lock:  # another thread is at work: the child must not wait for it
        child.start()
    assert results.get(timeout=30) == [2.0]
    child.join()
    assert child.exitcode == 0
    assert cache.scores("s", "child", ["a"]).tolist() == [3.0]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_writer_loses_at_most_what_it_was_writing(tmp_path):
    path = tmp_path / "cache.db"
    process = writer(path, "killed", 1_000_000)
    process.stdin.write("go\n")
    process.stdin.flush()
    told = 0
    while told < 100:
        told = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    told = max([told, *map(int, rest.split()[:-1])])  # the last line may be cut off
    assert process.returncode == -signal.SIGKILL
    cache = Cache(path)
    for i in range(told + 1):
        assert cache.scores("s", f"killed {i}", ["a", "b"]).tolist() == [i, -i]
    beyond = cache.scores("s", f"killed {told + 1}", ["a", "b"])
    assert np.isnan(beyond).all() or not np.isnan(beyond).any()  # a whole transaction or none
    cache.add_scores("s", "q", ["a"], [1.0])


# --- broken files ---------------------------------------------------------------------------------


def filled(path):
    cache = Cache(path)
    for i in range(50):
        cache.add_scores("s", str(i), [str(j) for j in range(50)], np.arange(50.0))
    cache.close()


def overwrite(path, start, data):
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(data)


BREAKS = {
    "text": lambda path: path.write_text("no database, but a shopping list " * 100),
    "header": lambda path: overwrite(path, 0, b"x" * 100),
    "pages": lambda path: overwrite(path, 4096, b"\xff" * (path.stat().st_size - 4096)),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=BREAKS)
def test_a_broken_file_is_set_aside_with_a_warning_and_begun_anew(tmp_path, breaks):
    path = tmp_path / "cache.db"
    filled(path)
    breaks(path)
    size = path.stat().st_size

    def use():
        cache = Cache(path)
        for i in range(50):
            cache.add_scores("s", str(i), [f"new {j}" for j in range(50)], np.arange(50.0))
            cache.scores("s", str(i), [str(j) for j in range(50)])

    with pytest.warns(
        RuntimeWarning, match=r"cache\.db is broken .* as cache\.db\.corrupt-2\d{7}T"
    ):
        use()
    assert any(p.stat().st_size >= size for p in tmp_path.glob("cache.db.corrupt-*"))
    cache = Cache(path)
    cache.add_scores("s", "q", ["a"], [0.5])
    assert cache.scores("s", "q", ["a"]).tolist() == [0.5]
    assert cache.scores("s", "49", ["new 7"]).tolist() == [7.0]


def test_a_file_that_breaks_while_it_is_open_is_set_aside(tmp_path):
    path = tmp_path / "cache.db"
    filled(path)
    cache = Cache(path)
    BREAKS["pages"](path)
    with pytest.warns(RuntimeWarning, match="set aside"):
        known = cache.scores("s", "7", ["3"])
    assert np.isnan(known).all()
    cache.add_scores("s", "7", ["3"], [2.0])
    assert cache.scores("s", "7", ["3"]).tolist() == [2.0]


def test_the_log_of_a_broken_file_is_set_aside_with_it(tmp_path):
    """Left where it is, SQLite would play it into the new file."""
    path = tmp_path / "cache.db"
    filled(path)
    cache = Cache(path)
    with contextlib.closing(sqlite3.connect(path)) as other:  # as long as it is open, the log stays
        cache.add_scores("s", "q", ["a"], [1.0])
        other.execute("SELECT count(*) FROM scores").fetchone()
        logs = [path.with_name(f"cache.db{suffix}") for suffix in ("-wal", "-shm")]
        before = [log.stat().st_ino for log in logs]
        with pytest.warns(RuntimeWarning, match="set aside"):
            cache._set_aside(sqlite3.DatabaseError("malformed"))
        [aside] = tmp_path.glob("cache.db.corrupt-*[0-9]")
        moved = [aside.with_name(f"{aside.name}{suffix}") for suffix in ("-wal", "-shm")]
        assert [log.stat().st_ino for log in moved] == before
        assert np.isnan(cache.scores("s", "q", ["a"])).all()
        assert [log.stat().st_ino for log in logs] != before


def test_who_finds_the_file_in_use_while_switching_to_the_log_tries_again(tmp_path):
    path = tmp_path / "cache.db"
    filled(path)
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN IMMEDIATE")  # the lock for whose end SQLite does not wait
        release = threading.Timer(0.3, other.rollback)
        release.start()
        cache = Cache(path)
        release.join()
    assert cache.scores("s", "7", ["3"]).tolist() == [3.0]
    cache.close()
    with contextlib.closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_another_process_has_replaced_is_not_set_aside_again(cache):
    cache.add_scores("s", "q", ["a"], [1.0])
    replacement = cache.path.with_name("new.db")
    Cache(replacement).close()
    os.replace(replacement, cache.path)
    cache._set_aside(sqlite3.DatabaseError("malformed"))  # what it had open was broken
    assert not list(cache.path.parent.glob("*.corrupt-*"))
    cache.add_scores("s", "q", ["a"], [3.0])
    assert cache.scores("s", "q", ["a"]).tolist() == [3.0]


MOVES = {
    "renamed": lambda path: os.replace(path, path.with_name("aside.db")),
    "deleted": lambda path: path.unlink(),
    "set aside": lambda path: Cache(path)._set_aside(sqlite3.DatabaseError("malformed")),
}


@pytest.mark.filterwarnings("ignore:.*is set aside:RuntimeWarning")
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_who_has_a_file_open_that_was_moved_goes_on_in_the_new_one(tmp_path, move):
    path = tmp_path / "cache.db"
    holder = Cache(path)
    holder.add_scores("s", "q", ["old"], [1.0])
    move(path)
    holder.add_scores("s", "q", ["a"], [2.0])
    other = Cache(path)
    other.add_scores("s", "q", ["b"], [3.0])
    for cache in (holder, other):
        np.testing.assert_array_equal(
            cache.scores("s", "q", ["old", "a", "b"]), [math.nan, 2.0, 3.0]
        )


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE scores (a)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another program's database; give the cache a path"):
        Cache(path)
    assert path.read_bytes() == before


def test_a_newer_cache_is_left_alone(cache):
    cache.close()
    with sqlite3.connect(cache.path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(ValueError, match="cache of version 7, this library writes version 1"):
        Cache(cache.path)


def test_a_path_that_cannot_be_opened_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match=r"nowhere.*give the cache a path to write"):
        Cache(tmp_path / "nowhere" / "cache.db")
    with pytest.raises(OSError, match="give the cache a path"):
        Cache(tmp_path)


@contextlib.contextmanager
def not_as_root():
    """Be nobody for a while, if need be: root writes anywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def guarded():
    """A cache that is closed, in a folder that is made read-only by `chmod(0o555)`."""
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, where only its owner may look
        path = Path(folder).resolve() / "cache.db"
        path.parent.chmod(0o777)
        with not_as_root():
            filled(path)
        yield path
        path.parent.chmod(0o777)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_a_file_that_cannot_be_written_is_an_error_that_names_it(guarded):
    guarded.chmod(0o400)
    said = rf"^{guarded}: .*readonly.*; give the cache a path to write to$"
    with not_as_root(), pytest.raises(OSError, match=said):
        Cache(guarded)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
@pytest.mark.parametrize("name", ["cache.db", "new.db"])
def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file(guarded, name):
    guarded.parent.chmod(0o555)
    path = guarded.with_name(name)
    with not_as_root(), pytest.raises(OSError, match=rf"^{path}: .*give the cache a path to write"):
        Cache(path)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_a_broken_file_that_cannot_be_set_aside_is_an_error_that_says_so(guarded):
    BREAKS["text"](guarded)
    guarded.parent.chmod(0o555)
    said = rf"^{guarded} is broken .*cannot be renamed \(Permission denied\); remove it"
    with not_as_root(), pytest.raises(OSError, match=said):
        Cache(guarded)
    assert guarded.read_text().startswith("no database")


def test_a_full_disk_is_an_error_that_names_the_file_and_may_pass(cache):
    cache.add_scores("s", "q", ["a"], [1.0])
    texts = [str(i) for i in range(1000)]
    cache._connection.execute("PRAGMA max_page_count = 1")  # SQLite takes that for a full disk
    with pytest.raises(OSError, match=rf"^{cache.path}: .*full; make room there, or give"):
        cache.add_scores("s", "q", texts, np.arange(1000.0))
    assert cache.scores("s", "q", ["a"]).tolist() == [1.0]
    cache._connection.execute("PRAGMA max_page_count = 1000000")
    cache.add_scores("s", "q", texts, np.arange(1000.0))
    assert Cache(cache.path).scores("s", "q", texts).tolist() == list(range(1000))


def test_a_file_that_stays_locked_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("conformal_retrievers.llm.cache.SECONDS", 0.05)
    cache = Cache(tmp_path / "cache.db")
    said = rf"^{cache.path}: database is locked; end what has kept it locked for 0\.05 s, or give"
    with contextlib.closing(sqlite3.connect(cache.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match=said):
            cache.add_scores("s", "q", ["a"], [1.0])
        assert np.isnan(cache.scores("s", "q", ["a"])).all()  # to read it, no lock is needed
    cache.add_scores("s", "q", ["a"], [1.0])


def test_a_cache_that_is_dropped_closes_its_file(tmp_path):
    cache = Cache(tmp_path / "cache.db")
    cache.add_scores("s", "q", ["a"], [1.0])
    assert (tmp_path / "cache.db-wal").exists()
    del cache
    gc.collect()
    assert not (tmp_path / "cache.db-wal").exists()  # the last to close a file clears its log


# --- a scorer with a cache ------------------------------------------------------------------------


class Counting(LookupScorer):
    def score(self, query, snippets):
        asked.append([s.text for s in snippets])
        return super().score(query, snippets)


asked: list[list[str]] = []


@pytest.fixture
def counting():
    asked.clear()
    return Counting({"a": 0.1, "b": -0.0, "c": math.nan, "d": math.inf})


def snippets(texts):
    return [Snippet(text) for text in texts]


async def test_a_cached_scorer_asks_only_for_what_it_does_not_know(cache, counting):
    scorer = CachedScorer(counting, cache)
    assert scorer.name == counting.name
    first = scorer.score("q", snippets("ab"))
    second = scorer.score("q", snippets("dbca"))
    third = await scorer.ascore("q", snippets("dbca"))
    assert bits(first) == bits([0.1, -0.0])
    assert bits(second) == bits(third) == bits([math.inf, -0.0, math.nan, 0.1])
    assert asked == [["a", "b"], ["d", "c"], ["c"]]  # NaN is tried again
    assert bits(CachedScorer(counting, cache).score("q", snippets("a"))) == bits([0.1])
    assert asked[3:] == []


def test_a_cached_scorer_gives_what_its_scorer_gives(cache, minilm, toy_corpus):
    plain = EmbeddingScorer(lambda texts: minilm.encode(texts), name="minilm")
    cached = CachedScorer(plain, cache)
    given = snippets([*toy_corpus.values(), "  "])
    original = plain.score("highest mountain", given)
    for _ in range(2):
        assert bits(cached.score("highest mountain", given)) == bits(original)


def test_a_score_that_depends_on_the_others_is_not_cached(cache, counting):
    class Relative(LookupScorer):
        relative_to_query = True

    assert relative_to_query(Relative({}))
    assert not relative_to_query(counting)
    with pytest.raises(TypeError, match="relative to the others of its query.*cache the scorers"):
        CachedScorer(Relative({}), cache)
    with pytest.raises(TypeError, match="reads more of a snippet than its text"):
        CachedScorer(RetrievalScorer("faiss", higher_is_better=True), cache)
    with pytest.raises(TypeError, match="scorer is"):
        CachedScorer(len, cache)


def test_a_row_that_rotted_is_not_known_any_more(tmp_path):
    path = tmp_path / "cache.db"
    cache = Cache(path)
    cache.add_scores("s", "q", ["a", "b"], [0.123, 0.5])
    cache.add_replies("m", {"one": "yes, indeed", "other": "no"})
    cache.close()
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.create_function("rot", 1, lambda value: value[:-1] + bytes([value[-1] ^ 64]))
        file.execute("UPDATE scores SET score = rot(score)")
        file.execute("UPDATE replies SET reply = rot(reply) WHERE length(reply) > 10")
    cache = Cache(path)
    assert np.isnan(cache.scores("s", "q", ["a", "b"])).all()
    assert cache.replies("m", ["one", "other"]) == [None, "no"]
    cache.add_scores("s", "q", ["a"], [0.123])
    assert cache.scores("s", "q", ["a"]).tolist() == [0.123]
