"""The server of the judging page: what it answers, and whom it refuses."""

import re
import socket

import pytest
from judging import ask, queries, serving

from conformal_retrievers.data.jsonl import read_jsonl
from conformal_retrievers.labels.judging import Judging, JudgingServer
from conformal_retrievers.labels.judging.server import LONGEST

MARKS = {"marks": [True, False, None, False], "done": False, "version": 0}


@pytest.fixture
def server(tmp_path):
    with serving(Judging(queries(), tmp_path / "judged.jsonl")) as running:
        yield running


@pytest.fixture
def url(server):
    return server.url


def test_it_shows_questions_and_stores_marks(server, url, tmp_path):
    assert server.server_address[0] == "127.0.0.1"
    status, first = ask(url)
    assert (status, first["number"], first["questions"], first["all_done"]) == (200, 0, 3, False)
    status, shown = ask(url, "?number=1")
    assert [s["given"] for s in shown["snippets"]] == shown["marks"] == [True] + [False] * 3
    status, shown = ask(url, "?number=1", MARKS)
    assert (status, shown["marks"], shown["version"]) == (200, MARKS["marks"], 1)
    assert server.judging.question(1)["marks"] == MARKS["marks"]
    for number in range(3):
        version = ask(url, f"?number={number}")[1]["version"]
        ask(url, f"?number={number}", {"marks": [True] * 4, "done": True, "version": version})
    assert ask(url)[1]["all_done"]
    assert len(read_jsonl(tmp_path / "judged.jsonl")) == 3


def test_the_page_asks_nothing_of_other_machines_and_runs_no_foreign_script(url):
    status, page = ask(url, path="/", headers={"Authorization": ""})
    text = page.decode()
    assert status == 200
    assert not re.search(r"(?:https?:)?//[a-z]|innerHTML|insertAdjacentHTML|@import", text)
    nonces = set(re.findall(r'nonce="(.+?)"', text))
    assert len(nonces) == 1
    assert "NONCE" not in text
    assert nonces != set(re.findall(r'nonce="(.+?)"', ask(url, path="/")[1].decode()))


def test_the_policy_allows_only_what_the_page_holds(url):
    from http.client import HTTPConnection

    connection = HTTPConnection(url.partition("/#")[0].removeprefix("http://"), timeout=20)
    connection.request("GET", "/")
    headers = connection.getresponse().headers
    connection.close()
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'nonce-")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer \xe9"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
def test_other_sites_and_whoever_lacks_the_token_are_refused(headers, server, url):
    assert ask(url, "?number=0", headers=headers)[0] == 403
    assert ask(url, "?number=0", MARKS, headers=headers)[0] == 403
    assert server.judging.question(0)["version"] == 0


def test_a_forwarded_port_and_the_pages_own_origin_are_allowed(url):
    assert ask(url, headers={"Host": "localhost:9000"})[0] == 200
    assert ask(url, headers={"Host": "127.0.0.1:9000", "Origin": "http://127.0.0.1:9000"})[0] == 200


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (404, {"query": "?number=3"}),
        (404, {"path": "/../../etc/passwd", "query": "?number=0"}),
        (400, {"fields": {**MARKS, "marks": [True]}}),
        (400, {"fields": {**MARKS, "done": 1}}),
        (400, {"fields": {"marks": MARKS["marks"]}}),
        (409, {"fields": {**MARKS, "version": 5}}),
        (400, {"body": "{", "headers": {"Content-Type": "application/json"}}),
        (400, {"body": "[" * 100_000, "headers": {"Content-Type": "application/json"}}),
        (415, {"body": "{}", "headers": {"Content-Type": "text/plain"}}),
        (413, {"fields": MARKS, "headers": {"Content-Length": str(LONGEST + 1)}}),
        (413, {"fields": MARKS, "headers": {"Content-Length": "9" * 5000}}),
        (501, {"method": "OPTIONS"}),
    ],
)
def test_wrong_requests_are_refused_and_change_nothing(status, request_, server, url, capfd):
    request_ = {"query": "?number=0", **request_}
    if status == 501:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as raw:
            raw.sendall(b"OPTIONS / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            assert raw.recv(100).split()[1] == b"501"
    else:
        assert ask(url, **request_)[0] == status
    assert server.judging.question(0)["version"] == 0
    assert capfd.readouterr().err == ""


def test_a_mark_that_cannot_be_stored_is_an_error_and_not_shown(server, url):
    server.judging.journal.close()
    status, reply = ask(url, "?number=0", MARKS)
    assert status == 507
    assert "marks.sqlite" in reply["error"]
    assert ask(url, "?number=0")[1]["marks"] == [True, False, False, False]


def test_a_mark_that_is_stored_is_shown_even_if_the_file_cannot_be_written(server, url, tmp_path):
    (tmp_path / "judged.jsonl").mkdir()
    fields = MARKS | {"marks": [True] * 4, "done": True}
    status, reply = ask(url, "?number=0", fields)
    assert (status, reply["version"]) == (200, 1)
    assert "judged.jsonl" in reply["unwritten"]
    (tmp_path / "judged.jsonl").rmdir()
    status, reply = ask(url, "?number=0", fields | {"version": 1})
    assert (status, reply["unwritten"]) == (200, None)
    assert len(read_jsonl(tmp_path / "judged.jsonl")) == 1


def test_a_port_that_is_in_use_is_named(server, tmp_path):
    judging = Judging(queries(), tmp_path / "other.jsonl")
    with pytest.raises(OSError, match=f"port {server.server_port}"):
        JudgingServer(judging, server.server_port)
    judging.close()
