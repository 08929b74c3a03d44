"""A LangSmith on loopback, as its client sends traces to one: a server that keeps the runs.

Asked for its limits (`GET /info`) it names none, and it takes runs as multipart forms
(`POST /runs/multipart`): a part `post.<id>` holds a new run as JSON, `patch.<id>` what is added to
it, and `post.<id>.outputs`, or of another field, that field alone.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LangSmithServer:
    """The server, running inside `with`; `runs` are those that reached it, by their id."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = defaultdict(dict)
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Requests)
        self._http.runs = self.runs
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> LangSmithServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Requests(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200 if self.path == "/info" else 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/runs/multipart":
            self._answer(404)
            return
        form = message_from_bytes(
            b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body
        )
        for part in form.get_payload():
            _, run, *field = part.get_param("name", header="Content-Disposition").split(".")
            value = json.loads(part.get_payload(decode=True))
            self.server.runs[run].update({field[0]: value} if field else value)
        self._answer(202)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the tests look at what came."""
