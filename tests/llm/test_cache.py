"""The cache of replies: shared by threads and processes, killed, and broken."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conformal_retrievers.llm import Cache, Reply, Request
from conformal_retrievers.llm.ask import LLM, aask, ask


def sqlite(path, **options):
    return contextlib.closing(sqlite3.connect(path, isolation_level=None, **options))


# --- values ---------------------------------------------------------------------------------------


def test_a_reply_belongs_to_model_and_request(cache):
    cache.add_replies("m", {"one": "yes", "two": "é\ud800"})
    assert cache.replies("m", ["two", "three", "one"]) == ["é\ud800", None, "yes"]
    assert cache.replies("n", ["one"]) == [None]


@pytest.mark.parametrize("value", [b"\xff" * 16, "12345678", 7, None])
def test_a_damaged_value_is_a_missing_one(cache, value):
    cache.add_replies("m", {"one": "yes", "two": "no"})
    with sqlite(cache.path) as file:
        file.execute("UPDATE entries SET value = ? WHERE value = ?", (value, b"yes"))
    assert cache.replies("m", ["one", "two"]) == [None, "no"]


def test_a_cache_stays_where_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = Cache("cache.db")
    cache.add_replies("m", {"a": "1"})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    assert cache.replies("m", ["a"]) == ["1"]


# --- threads and processes ------------------------------------------------------------------------

WRITER = """
import sys
from conformal_retrievers.llm.cache import Cache
path, worker, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
cache = Cache(path)
for i in range(n):
    cache.add_replies("m", {f"{worker} {i} a": str(i), f"{worker} {i} b": str(-i)})
    print(i, flush=True)
"""


def writer(path, worker, n):
    command = [sys.executable, "-c", WRITER, str(path), worker, str(n)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True)
    process.stdin.write("go\n")
    process.stdin.flush()
    return process


def written_by(cache, worker, i):
    return cache.replies("m", [f"{worker} {i} a", f"{worker} {i} b"])


def test_several_processes_create_and_fill_one_file_at_once(tmp_path):
    path = tmp_path / "cache.db"
    writers = [writer(path, str(worker), 50) for worker in range(3)]
    assert [process.communicate()[0].count("\n") for process in writers] == [50] * 3
    assert [process.returncode for process in writers] == [0] * 3
    cache = Cache(path)
    for worker in range(3):
        for i in range(50):
            assert written_by(cache, worker, i) == [str(i), str(-i)]
    with sqlite(path) as file:
        assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_writer_loses_at_most_what_it_was_writing(tmp_path):
    path = tmp_path / "cache.db"
    process = writer(path, "killed", 1_000_000)
    written = 0
    while written < 50:
        written = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    written = max([written, *map(int, rest.split()[:-1])])  # the last line may be cut off
    cache = Cache(path)
    for i in range(written + 1):
        assert written_by(cache, "killed", i) == [str(i), str(-i)]
    beyond = written_by(cache, "killed", written + 1)
    assert len({reply is None for reply in beyond}) == 1  # a whole transaction or none
    cache.add_replies("m", {"a": "1"})


# --- broken files and those of others -------------------------------------------------------------


def overwrite(path, start, data):
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(data)


BREAKS = {
    "header": lambda path: overwrite(path, 16, b"x" * 84),
    "pages": lambda path: overwrite(path, 4096, b"\xff" * (path.stat().st_size - 4096)),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("breaks", BREAKS.values(), ids=BREAKS)
def test_a_broken_file_is_not_used_and_left_alone(cache, breaks, caplog):
    replies = {f"{i}": str(i) for i in range(2500)}
    cache.add_replies("m", replies)
    breaks(cache.path)
    before = cache.path.read_bytes()
    for _ in range(2):
        cache.add_replies("m", replies)
        assert cache.replies("m", replies) == [None] * len(replies)
    [logged] = caplog.records
    assert str(cache.path) in logged.getMessage()
    assert cache.path.read_bytes() == before


@pytest.mark.parametrize("other", ["user_version", "application_id", None])
def test_a_file_of_another_version_or_program_or_no_database_is_left_alone(cache, other):
    if other is None:
        cache.path.write_text('{"query": "q", "snippets": []}\n' * 100)
    else:
        with sqlite(cache.path) as file:
            file.execute(f"PRAGMA {other} = 7")
    before = cache.path.read_bytes()
    with pytest.raises(ValueError, match=r"cache\.db"):
        Cache(cache.path)
    assert cache.path.read_bytes() == before
    assert list(cache.path.parent.iterdir()) == [cache.path]


# --- files that cannot be used --------------------------------------------------------------------


@pytest.fixture
def read_only():
    """A cache that its owner, another user than root, may only read."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which only its owner may read
        path = Path(folder).resolve() / "cache.db"
        path.parent.chmod(0o777)
        if root:
            os.seteuid(65534)
        Cache(path)
        path.chmod(0o400)
        yield path
        if root:
            os.seteuid(0)


def test_a_path_that_cannot_be_opened_or_written_is_an_error_that_names_it(tmp_path, read_only):
    nowhere = tmp_path / "nowhere" / "cache.db"
    for path, words in ((read_only, ".*readonly"), (nowhere, ""), (tmp_path, "")):
        with pytest.raises(OSError, match=f"{path}: {words}"):
            Cache(path)


# --- faults while it is used ----------------------------------------------------------------------


@contextlib.contextmanager
def locked(cache):
    with sqlite(cache.path) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextlib.contextmanager
def full(cache):
    """No file of this process grows any more, as on a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def without_folder(cache):
    shutil.rmtree(cache.path.parent)
    yield
    cache.path.parent.mkdir()


@contextlib.contextmanager
def of_another_program(cache):
    with sqlite(cache.path) as file:
        file.execute("PRAGMA application_id = 7")
    yield
    cache.path.unlink()


@pytest.mark.parametrize("fault", [locked, full, without_folder, of_another_program])
async def test_a_fault_loses_no_reply_and_is_waited_for_once(cache, fault, caplog, monkeypatch):
    asked, waits, connect = [], [], sqlite3.connect

    def complete(request):
        asked.append(request.user)
        return Reply(request.user)

    async def acomplete(request):
        return complete(request)

    llm = LLM(complete, "m", acomplete)
    requests = [Request("s", str(i)) for i in range(10)]

    def connected(*arguments, timeout, **options):
        waits.append(timeout)
        return connect(*arguments, timeout=timeout, **options)

    with fault(cache):
        answers = ask(llm, requests[:1], cache=cache)
        monkeypatch.setattr(sqlite3, "connect", connected)
        answers += ask(llm, requests[1:], cache=cache) + await aask(llm, requests, cache=cache)
        cache.add_replies("m", {"a": "1"})
        assert cache.replies("m", ["a"]) == [None]
        monkeypatch.undo()
    assert {*waits} == {0}
    assert [answer.text for answer in answers] == [str(i) for i in range(10)] * 2
    assert len(asked) == 20
    [logged] = caplog.records
    assert str(cache.path) in logged.getMessage()
    assert not ask(llm, requests, cache=cache)[0].cached  # the fault is over
    assert ask(llm, requests, cache=cache)[0].cached
