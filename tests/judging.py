"""Queries to judge, and a running server of the page that judges them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from http.client import HTTPConnection

import loopback

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.labels.judging import JudgingServer


def queries(n=3, k=4, marked=(0,)):
    """Return queries whose snippets at the places `marked` are marked relevant."""
    return [
        JudgedQuery(
            f"Question {q}?",
            [Snippet(f"Text {q} {i}.", id=f"{q}-{i}", document=f"page {i}") for i in range(k)],
            [i in marked for i in range(k)],
            id=f"q{q}",
        )
        for q in range(n)
    ]


@contextlib.contextmanager
def serving(judging):
    """Serve the page of a judging in a thread."""
    with contextlib.closing(judging), loopback.serving(JudgingServer(judging)) as server:
        yield server


def ask(url, query="", fields=None, *, headers=None, path="/question", method=None, body=None):
    """Send a request as the page does; return the status and the reply."""
    address, _, token = url.partition("/#")
    sent = {"Authorization": f"Bearer {token}"}
    if fields is not None:
        sent["Content-Type"], body = "application/json", json.dumps(fields)
    sent |= headers or {}
    connection = HTTPConnection(address.removeprefix("http://"), timeout=20)
    try:
        connection.request(method or ("POST" if body else "GET"), path + query, body, sent)
        reply = connection.getresponse()
        text = reply.read()
        return reply.status, json.loads(text) if "json" in reply.headers["Content-Type"] else text
    finally:
        connection.close()


def finish(judging, marks_of=lambda query, given: given):
    """Go on from every question, with the marks that a function gives for those that are shown."""
    while (number := judging.next_after(-1)) is not None:
        shown = judging.question(number)
        marks = marks_of(shown, shown["marks"])
        assert judging.mark(number, marks, done=True, version=shown["version"])


@contextlib.contextmanager
def command(*arguments):
    """Run `conformal-retrievers judge` in a process of its own; yield it and its address."""
    # A shell that runs the tests in the background has them, and what they start, ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "conformal_retrievers", "judge", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
    )
    try:
        yield process, next(line for line in process.stdout if line.startswith("http://")).strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
